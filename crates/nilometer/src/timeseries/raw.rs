//! Bucket documents written as they are, into `system.buckets.<name>`: what a restore does.
//!
//! A bucket document must have the shape of one, hold columns that can be decoded, and bound each
//! field by extremes of one canonical type. It is stored byte for byte.

use std::collections::HashSet;
use std::sync::Arc;

use nilometer_bson::{DocRef, Document, ObjectId, ValueRef, column, doc, type_code};
use nilometer_storage::WriteBatch;

use super::bucket_document::{BucketDocument, COLUMN_SUBTYPE, MEASUREMENTS_MAX, Version};
use super::fold::{self, BucketKeyspaces};
use super::index_maintenance::Maintained;
use super::insert::in_ordinary_range;
use super::meta::SeriesMeta;
use super::schema::Schema;
use super::{Timeseries, sealed, series_index};
use crate::catalog::{Catalog, Collection};
use crate::error::{Error, ErrorCode, Result};
use crate::insertion::{InsertOptions, InsertOutcome, WriteError};

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

/// Checks that a document is a bucket of the collection whose time field is `time_field`.
fn check<'d>(document: DocRef<'d>, time_field: &str) -> Result<BucketDocument<'d>> {
    if document.as_bytes().len() > BUCKET_BYTES_MAX {
        return Err(Error::new(
            ErrorCode::BSONObjectTooLarge,
            format!("a bucket document has at most {BUCKET_BYTES_MAX} bytes"),
        ));
    }
    let bucket =
        BucketDocument::parse(document, time_field).map_err(|error| invalid(&error.message))?;
    let is_date = |bounds: DocRef<'_>| matches!(bounds.get(time_field), ValueRef::DateTime(_));
    if !is_date(bucket.min) || !is_date(bucket.max) {
        return Err(invalid(
            "control.min and control.max must hold a date in the time field",
        ));
    }
    if bucket.count == 0 {
        return Err(invalid("a bucket holds at least one measurement"));
    }
    for element in bucket.min {
        let max = bucket.max.get(element.name());
        if !max.is_missing() && !Schema::of(element.value()).accepts(max) {
            return Err(Error::new(
                ErrorCode::CannotInsertTimeseriesBucketsWithMixedSchema,
                format!("the bucket mixes types in the field '{}'", element.name()),
            ));
        }
    }
    check_columns(&bucket, time_field)?;
    Ok(bucket)
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

impl Timeseries {
    /// Inserts bucket documents. Those it accepts are stored together; `Err` means none was stored.
    pub fn insert_buckets<'a>(
        &self,
        catalog: &Catalog,
        collection: &Arc<Collection>,
        documents: impl Iterator<Item = DocRef<'a>>,
        options: InsertOptions<'_>,
    ) -> Result<InsertOutcome> {
        let (Some(keyspaces), Some(timeseries)) =
            (BucketKeyspaces::of(collection), &collection.timeseries)
        else {
            return Err(Error::bad_value("not a bucket collection"));
        };
        let time_field = &timeseries.time_field;
        // No two commands may find the same id free.
        let _alone = self.chores.exclusive();
        let indexes = Maintained::hold(collection)?;
        let snapshot = self.engine.snapshot()?;
        let mut outcome = InsertOutcome::default();
        let mut batch = WriteBatch::new();
        let mut fresh = HashSet::new();
        let mut extended = false;
        for (index, document) in documents.enumerate() {
            let checked = check(document, time_field).and_then(|bucket| {
                let parts = fold::read_parts(&*snapshot, keyspaces, bucket.id, None)?;
                let taken = parts.document.is_some() || !parts.tail.is_empty();
                if taken || fresh.contains(&bucket.id) {
                    return Err(duplicate(collection, bucket.id));
                }
                indexes.document_added(&mut batch, bucket.id, document)?;
                fresh.insert(bucket.id);
                Ok(bucket)
            });
            let bucket = match checked {
                Ok(bucket) => bucket,
                Err(error) => {
                    outcome.errors.push(WriteError { index, error });
                    if options.ordered {
                        break;
                    }
                    continue;
                }
            };
            for bounds in [bucket.min, bucket.max] {
                if let ValueRef::DateTime(time) = bounds.get(time_field) {
                    extended |= !in_ordinary_range(time);
                }
            }
            if let ValueRef::DateTime(start) = bucket.min.get(time_field) {
                let key = series_index::key(&SeriesMeta::of(bucket.meta), start, bucket.id);
                batch.put(keyspaces.series, key, Vec::new());
            }
            batch.put(
                keyspaces.sealed,
                bucket.id.to_vec(),
                sealed::store(document)?,
            );
            outcome.inserted += 1;
        }
        if extended {
            catalog.mark_extended_range(collection)?;
        }
        indexes.mark_multikey(catalog)?;
        if !batch.is_empty() {
            self.engine.commit(batch, options.durability)?;
        }
        Ok(outcome)
    }
}

fn duplicate(collection: &Collection, id: [u8; 12]) -> Error {
    let id: Document = doc! { "_id": ObjectId(id) };
    Error::new(
        ErrorCode::DuplicateKey,
        format!(
            "E11000 duplicate key error collection: {} dup key: {}",
            collection.namespace,
            nilometer_bson::extjson::to_relaxed(id.as_ref())
        ),
    )
    .with_details(doc! { "keyPattern": doc! { "_id": 1 }, "keyValue": id })
}
