//! Unique indexes: comparing new keys with the stored ones and those of the current batch.

use std::collections::{HashMap, HashSet};

use nilometer_bson::key_string::{decode, prefix_end};
use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, doc, extjson};
use nilometer_storage::{Direction, Snapshot};

use super::{DocumentKeys, Index, IndexKey, entry};
use crate::catalog::Namespace;
use crate::error::{Error, ErrorCode, Result};
use crate::eval::Collation;

/// The changes of an uncommitted batch to a unique index.
#[derive(Debug, Default)]
pub struct PendingKeys {
    /// Key strings it adds, with their records.
    added: HashMap<Vec<u8>, Vec<u8>>,
    /// Entries it removes.
    removed: HashSet<Vec<u8>>,
}

impl PendingKeys {
    /// Records that the keys of a record change. Keys that stay are in both.
    pub fn change(&mut self, record: &[u8], before: &DocumentKeys, after: &DocumentKeys) {
        for key in &before.keys {
            self.removed.insert(entry::key(key, record));
            if self.added.get(&key.key).is_some_and(|by| by == record) {
                self.added.remove(&key.key);
            }
        }
        for key in &after.keys {
            self.removed.remove(&entry::key(key, record));
            self.added.insert(key.key.clone(), record.to_vec());
        }
    }

    /// Removes all changes, after the batch was committed.
    pub fn clear(&mut self) {
        self.added.clear();
        self.removed.clear();
    }

    /// Returns the first new key of a record that another record has, in the batch or in the snapshot
    /// before it. Keys of `before` are not new.
    pub fn find_duplicate<'k>(
        &self,
        index: &Index,
        snapshot: &dyn Snapshot,
        record: &[u8],
        (before, after): (&DocumentKeys, &'k DocumentKeys),
    ) -> Result<Option<&'k IndexKey>> {
        let had = |key: &IndexKey| before.keys.iter().any(|known| known.key == key.key);
        for key in after.keys.iter().filter(|key| !had(key)) {
            let in_batch = self.added.get(&key.key).is_some_and(|by| by != record);
            if in_batch || self.is_stored(index, snapshot, record, key)? {
                return Ok(Some(key));
            }
        }
        Ok(None)
    }

    fn is_stored(
        &self,
        index: &Index,
        snapshot: &dyn Snapshot,
        record: &[u8],
        key: &IndexKey,
    ) -> Result<bool> {
        let end = prefix_end(key.key.clone());
        let keyspace = index.stored.keyspace;
        for item in snapshot.scan(keyspace, &key.key, end.as_deref(), Direction::Forward)? {
            let (found, _) = item?;
            let other = found.get(key.key.len()..) != Some(record);
            if other && !self.removed.contains(&found[..]) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Returns the error 11000 for a key that another record has. `document` is the refused one, if known.
pub fn duplicate_key(
    namespace: &Namespace,
    index: &Index,
    key: &IndexKey,
    document: Option<DocRef<'_>>,
) -> Error {
    let spec = &index.stored.spec;
    let values = key_values(index, key, document);
    let shown: Vec<String> = values
        .iter()
        .map(|e| format!("{}: {}", e.name(), shown_value(e.value())))
        .collect();
    let by = index
        .collation()
        .to_text()
        .map_or_else(String::new, |text| format!("collation: {text} "));
    Error::new(
        ErrorCode::DuplicateKey,
        format!(
            "E11000 duplicate key error collection: {namespace} index: {} {by}dup key: {{ {} }}",
            spec.name,
            shown.join(", ")
        ),
    )
    .with_details(details(spec.key.clone(), values, index.collation()))
}

/// Returns the details of the error.
fn details(pattern: Document, value: Document, collation: &Collation) -> Document {
    let mut out = DocumentBuilder::new();
    out.append("keyPattern", pattern);
    if value.as_bytes().len() <= KEY_VALUE_BYTES_MAX {
        out.append("keyValue", value);
    }
    out.append("collation", collation.to_document());
    out.finish()
}

/// Longest value of a key in the details of an error, in bytes. A longer one is left out, so that the errors of one command
/// fit its reply.
const KEY_VALUE_BYTES_MAX: usize = 64 << 10;

/// Longest text of one value in an error, in bytes. A longer one is cut.
const SHOWN_VALUE_BYTES_MAX: usize = 1024;

/// Returns a value as it is shown in an error.
fn shown_value(value: ValueRef<'_>) -> String {
    let mut text = extjson::value_to_relaxed(value);
    if text.len() > SHOWN_VALUE_BYTES_MAX {
        text.truncate(text.floor_char_boundary(SHOWN_VALUE_BYTES_MAX));
        text.push('…');
    }
    text
}

/// Returns the error 11000 for an `_id` that another record has.
pub fn duplicate_id(namespace: &Namespace, id: ValueRef<'_>, collation: &Collation) -> Error {
    let by = collation
        .to_text()
        .map_or_else(String::new, |text| format!("collation: {text} "));
    let shown = shown_value(id);
    Error::new(
        ErrorCode::DuplicateKey,
        format!(
            "E11000 duplicate key error collection: {namespace} index: _id_ {by}dup key: {{ _id: {shown} }}"
        ),
    )
    .with_details(details(doc! { "_id": 1 }, doc! { "_id": id }, collation))
}

/// Returns the values of a key by the names of their fields.
fn key_values(index: &Index, key: &IndexKey, document: Option<DocRef<'_>>) -> Document {
    let values = match document {
        Some(document) if !index.collation().is_simple() => index.values_of(document, key),
        _ => decode(&key.key, index.order(), index.components(), &key.type_bits)
            .map_or_else(|_| Vec::new(), |(values, _)| values),
    };
    let mut out = DocumentBuilder::new();
    for part in index.parts() {
        let value = values.get(part.component).cloned();
        out.append(part.name(), value.unwrap_or(Value::Null));
    }
    out.finish()
}
