//! Raw writes: bucket documents inserted, replaced or removed as such, through `system.buckets.<name>`. A restore does this.
//!
//! A bucket document must have the shape of one, hold columns that can be decoded, and bound each field by extremes of one
//! canonical type, unless the collection may have a mixed schema. It is stored byte for byte. The caller selects the
//! documents and decides their changes.

use std::collections::HashSet;
use std::sync::Arc;

use nilometer_bson::{DocRef, Document, ObjectId, ValueRef, column, doc, type_code};
use nilometer_storage::Durability;

use super::bucket_changes::BucketChanges;
use crate::catalog::{Catalog, Collection};
use crate::error::{Error, ErrorCode, Result};
use crate::insertion::{BatchRecord, InsertOptions, InsertOutcome, WriteError};
use crate::timeseries::Timeseries;
use crate::timeseries::format::bucket_document::{
    BucketDocument, COLUMN_SUBTYPE, MEASUREMENTS_MAX, Version,
};
use crate::timeseries::format::schema::Schema;

/// Buckets changed in one engine batch at most, so that other writers do not wait long.
const CHANGE_BATCH_BUCKETS_MAX: usize = 128;

/// Bytes of documents in one engine batch, about.
const CHANGE_BATCH_BYTES_MAX: usize = 32 << 20;

/// The largest bucket document, in bytes.
const BUCKET_BYTES_MAX: usize = 16 << 20;

fn invalid(reason: &str) -> Error {
    let info = doc! { "failingDocumentReason": reason };
    Error::new(
        ErrorCode::DocumentValidationFailure,
        "Document failed validation",
    )
    .with_details(doc! { "errInfo": info })
}

/// Checks that a document may be a bucket of the collection: the rules of its validator, and that the columns can be decoded.
pub(super) fn check(document: DocRef<'_>, collection: &Collection) -> Result<()> {
    let Some(options) = &collection.timeseries else {
        return Err(Error::bad_value("not a bucket collection"));
    };
    let time_field = &*options.time_field;
    if document.as_bytes().len() > BUCKET_BYTES_MAX {
        return Err(Error::new(
            ErrorCode::BSONObjectTooLarge,
            format!("a bucket document has at most {BUCKET_BYTES_MAX} bytes"),
        ));
    }
    check_names(document)?;
    let bucket =
        BucketDocument::parse(document, time_field).map_err(|error| invalid(&error.message))?;
    let is_date = |bounds: DocRef<'_>| matches!(bounds.get(time_field), ValueRef::DateTime(_));
    if !is_date(bucket.min) || !is_date(bucket.max) {
        return Err(invalid(
            "control.min and control.max must hold a date in the time field",
        ));
    }
    check_count(document)?;
    if bucket.count == 0 {
        return Err(invalid("a bucket holds at least one measurement"));
    }
    for element in bucket.min {
        if collection.may_have_mixed_schema() {
            break;
        }
        let max = bucket.max.get(element.name());
        if !max.is_missing() && !Schema::of(element.value()).accepts(max) {
            return Err(Error::new(
                ErrorCode::CannotInsertTimeseriesBucketsWithMixedSchema,
                format!("the bucket mixes types in the field '{}'", element.name()),
            ));
        }
    }
    check_columns(&bucket, time_field)
}

/// Checks that neither the bucket nor its parts name a field twice: readers could take either of the two.
fn check_names(document: DocRef<'_>) -> Result<()> {
    let unique = |part: Option<DocRef<'_>>| {
        let mut names = HashSet::new();
        let mut fields = part.iter().flat_map(|part| part.iter());
        match fields.find(|field| !names.insert(field.name_bytes().to_vec())) {
            Some(twice) => Err(invalid(&format!(
                "a bucket names the field '{}' twice",
                twice.name()
            ))),
            None => Ok(()),
        }
    };
    let control = document.get("control").as_document();
    let bounds = |name: &str| control.and_then(|control| control.get(name).as_document());
    unique(Some(document))?;
    unique(control)?;
    unique(bounds("min"))?;
    unique(bounds("max"))?;
    unique(document.get("data").as_document())
}

/// Checks that `control.count`, if present, is a number of at least 1.
fn check_count(document: DocRef<'_>) -> Result<()> {
    let control = document.get("control").as_document();
    match control.map_or(ValueRef::Missing, |control| control.get("count")) {
        ValueRef::Missing => Ok(()),
        count if count.is_number() && count.as_exact_i64().is_some_and(|count| count >= 1) => {
            Ok(())
        }
        _ => Err(invalid("control.count must be a number of at least 1")),
    }
}

fn check_columns(bucket: &BucketDocument<'_>, time_field: &str) -> Result<()> {
    let broken = |name: &str, what: &str| {
        Error::new(
            ErrorCode::InvalidBSON,
            format!("the column '{name}' {what}"),
        )
    };
    for element in bucket.data {
        let name = element.name();
        if bucket.version == Version::Plain {
            if element.type_code() != type_code::DOCUMENT {
                return Err(invalid("a column of a version 1 bucket is an object"));
            }
            bucket
                .values(element)
                .map_err(|error| broken(name, &error.message))?;
            continue;
        }
        let ValueRef::Binary {
            subtype: COLUMN_SUBTYPE,
            bytes,
        } = element.value()
        else {
            return Err(invalid(
                "a column of a compressed bucket is BinData of subtype 7",
            ));
        };
        let values = column::decode_block(bytes, MEASUREMENTS_MAX)
            .map_err(|error| broken(name, &error.to_string()))?;
        let fits =
            values.len() == bucket.count || name != time_field && values.len() < bucket.count;
        if !fits {
            return Err(broken(name, "has another number of values than the bucket"));
        }
    }
    Ok(())
}

/// The change of a bucket.
#[derive(Debug)]
pub enum BucketChange {
    /// None.
    Keep,
    /// Replace it by this document.
    Replace(Document),
    /// Remove it.
    Remove,
}

/// Options of a raw change.
#[derive(Clone, Copy)]
pub struct RawChangeOptions<'a> {
    /// Fails once the statement is interrupted.
    pub check_interrupt: &'a dyn Fn() -> Result<()>,
    /// Of the last batch.
    pub durability: Durability,
    /// What is stored beside the change of the one bucket, if the statement may be repeated.
    pub record: Option<&'a dyn BatchRecord>,
}

/// Inserts bucket documents. Those it accepts are stored together; `Err` means none was stored.
pub(super) fn insert_buckets<'a>(
    timeseries: &Timeseries,
    catalog: &Catalog,
    collection: &Arc<Collection>,
    documents: impl Iterator<Item = DocRef<'a>>,
    options: InsertOptions<'_>,
) -> Result<InsertOutcome> {
    let mut changes = timeseries.change_buckets(collection)?;
    let mut outcome = InsertOutcome::default();
    for (index, document) in documents.enumerate() {
        let added = check(document, collection).and_then(|()| changes.add(document));
        match added {
            Ok(()) => {
                changes.notes.bucket_added(document);
                outcome.inserted += 1;
                if let Some(record) = options.record {
                    record.inserted(index);
                }
            }
            Err(error) => {
                outcome.errors.push(WriteError { index, error });
                if options.ordered {
                    break;
                }
            }
        }
    }
    changes.record(options.record);
    changes.commit(catalog, options.durability)?;
    Ok(outcome)
}

/// Claims the buckets with these ids and changes them as `decide` says. Changes decided before an error are made.
pub(super) fn modify_buckets(
    timeseries: &Timeseries,
    catalog: &Catalog,
    collection: &Arc<Collection>,
    ids: &[ObjectId],
    how: RawChangeOptions<'_>,
    decide: &mut dyn FnMut(&Document) -> Result<BucketChange>,
) -> Result<()> {
    for some in ids.chunks(CHANGE_BATCH_BUCKETS_MAX) {
        (how.check_interrupt)()?;
        let mut changes = timeseries.change_buckets(collection)?;
        let mut decided = Ok(());
        for id in some {
            decided = modify_bucket(&mut changes, collection, id.0, decide);
            if decided.is_err() {
                break;
            }
            if changes.bytes() > CHANGE_BATCH_BYTES_MAX {
                changes.commit(catalog, how.durability)?;
                changes = timeseries.change_buckets(collection)?;
            }
        }
        changes.record(how.record);
        changes.commit(catalog, how.durability)?;
        decided?;
    }
    Ok(())
}

fn modify_bucket(
    changes: &mut BucketChanges<'_>,
    collection: &Collection,
    id: [u8; 12],
    decide: &mut dyn FnMut(&Document) -> Result<BucketChange>,
) -> Result<()> {
    let Some(before) = changes.claim(id)? else {
        return Ok(());
    };
    match decide(&before)? {
        BucketChange::Keep => {}
        BucketChange::Remove => {
            changes.remove(id)?;
            changes.notes.bucket_removed(before.as_ref());
        }
        BucketChange::Replace(after) => {
            check(after.as_ref(), collection)?;
            changes.replace_raw(id, after.as_ref())?;
            changes.notes.bucket_removed(before.as_ref());
            changes.notes.bucket_added(after.as_ref());
        }
    }
    Ok(())
}
