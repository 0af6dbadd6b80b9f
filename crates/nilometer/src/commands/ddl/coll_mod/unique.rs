//! Making an existing index unique, in two steps.
//!
//! ```text
//! prepareUnique: true   no insert may duplicate a key; existing duplicates stay
//! unique: true          writers wait; are there two entries with one key?
//!                         yes: error 359 with the `_id`s of the documents
//!                         no:  the index is unique
//! ```

use std::sync::Arc;

use nilometer_bson::{Array, Document, Value, doc};

use crate::catalog::{Collection, IndexSpec, StoredIndex};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::index::Index;
use crate::write::{CollectionSnapshot, Records};

/// The largest list of duplicates in an error, in bytes; more are left out.
const VIOLATIONS_BYTES_MAX: usize = 8 << 20;

/// True if the index is not unique yet.
pub(super) fn may_become(spec: &IndexSpec) -> Result<bool> {
    if spec.unique {
        return Ok(false);
    }
    if !spec.prepare_unique {
        return Err(Error::invalid_options(
            "Cannot make index unique with collMod without first setting 'prepareUnique' to true",
        ));
    }
    Ok(true)
}

/// Refuses index types that cannot be unique.
pub(super) fn check_kind(spec: &IndexSpec) -> Result<()> {
    let is_plain = spec.key.iter().all(|part| part.value().is_number());
    let is_wildcard = spec.key.iter().any(|part| part.name().ends_with("$**"));
    if is_plain && !is_wildcard {
        return Ok(());
    }
    Err(Error::invalid_options(format!(
        "the index '{}' is of a kind that cannot be unique",
        spec.name
    )))
}

/// Makes an index unique, or fails with the duplicates.
pub(super) fn convert(
    database: &Database,
    collection: &Collection,
    stored: &Arc<StoredIndex>,
    dry_run: bool,
) -> Result<()> {
    let records = database.records();
    records.exclusively(collection, || {
        let violations = violations(records, collection, stored)?;
        if !violations.is_empty() {
            let error = Error::new(
                ErrorCode::CannotConvertIndexToUnique,
                "Cannot convert the index to unique. Please resolve conflicting documents before \
                 running collMod again.",
            );
            return Err(error.with_details(doc! { "violations": violations }));
        }
        if !dry_run {
            let catalog = database.catalog();
            let changed = catalog.modify_index(collection, stored.keyspace, |spec| {
                spec.unique = true;
                spec.prepare_unique = false;
            })?;
            changed.reset_uses(database.services().clock.now_ms());
        }
        Ok(())
    })
}

/// Returns the documents that share a key: `{ids: […]}` for each.
fn violations(
    records: &Records,
    collection: &Collection,
    stored: &Arc<StoredIndex>,
) -> Result<Vec<Value>> {
    let index = Index::of(stored)?;
    let view = records.snapshot(collection)?;
    let mut found = Vec::new();
    let mut bytes = 0;
    let mut shared: (Vec<u8>, Vec<Vec<u8>>) = Default::default();
    let mut entries = view.entries(&index, &[], None, false)?;
    while bytes <= VIOLATIONS_BYTES_MAX {
        let entry = entries.next().transpose()?;
        if let Some((key, _, record)) = &entry
            && *key == shared.0
        {
            shared.1.push(record.clone());
            continue;
        }
        if shared.1.len() > 1 {
            let violation = doc! { "ids": ids_of(&view, &shared.1)? };
            bytes += violation.as_bytes().len();
            found.push(Value::Document(violation));
        }
        match entry {
            Some((key, _, record)) => shared = (key, vec![record]),
            None => break,
        }
    }
    Ok(found)
}

fn ids_of(view: &CollectionSnapshot, keys: &[Vec<u8>]) -> Result<Array> {
    let mut ids = Vec::new();
    for key in keys {
        let record: Option<Document> = view.record(key)?;
        ids.extend(record.map(|record| record.get("_id").to_value()));
    }
    Ok(ids.into_iter().collect())
}
