//! Measurements that an oplog adds to buckets, applied to buckets that may have them.
//!
//! ```text
//! bucket with n measurements        does the entry's part from the row f on, of k, exist?
//!   n ≤ f                           no: they are added
//!   otherwise                       those that it does not have are added
//! ```
//!
//! The rows of a bucket are numbered in the order in which they were staged. A dump reads buckets when none of their entries are
//! in flight, so that what it has of a bucket are its first rows. The entries of concurrent inserts may be in another
//! order in the oplog than they were staged: so the measurements are compared. Of measurements that are equal in all fields, also in
//! `_id`, and that several clients insert at the same time, one may be lost.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use nilometer_bson::{DocRef, Document, DocumentBuilder, ValueRef};
use nilometer_storage::Durability;

use super::assemble::{BucketContents, Row};
use super::bucket_changes::BucketChanges;
use super::merge::{rows_of, sorted_fields};
use super::{options_of, raw};
use crate::catalog::{Catalog, Collection, TimeseriesOptions};
use crate::error::{Error, ErrorCode, Result};
use crate::eval::Collation;
use crate::timeseries::Timeseries;
use crate::timeseries::cache::opened_bucket::StoredBucket;
use crate::timeseries::format::bucket_document::{BucketDocument, Layout, MEASUREMENTS_MAX};

/// An entry of an oplog that adds measurements.
pub enum ReplayedBucket<'a> {
    /// A bucket was inserted with its measurements.
    Inserted(DocRef<'a>),
    /// Measurements were added to the bucket.
    Extended {
        /// The bucket.
        id: [u8; 12],
        /// The number of measurements before them.
        rows_before: usize,
        /// The measurements, without metadata.
        measurements: Vec<Document>,
    },
}

impl<'a> ReplayedBucket<'a> {
    /// Returns the measurements in the difference of two bucket documents, of which new rows of columns are named one by one.
    /// `None` if it has none.
    pub fn of_diff(id: [u8; 12], diff: DocRef<'a>) -> Result<Option<Self>> {
        let Some(data) = diff.get("sdata").as_document() else {
            return Ok(None);
        };
        let mut rows: BTreeMap<usize, DocumentBuilder> = BTreeMap::new();
        for column in data {
            let name = column.name().strip_prefix('s');
            let (Some(name), Some(sections)) = (name, column.value().as_document()) else {
                return Err(unsupported(column.name()));
            };
            for section in sections {
                let values = section.value().as_document();
                let (Some(values), "i" | "u") = (values, section.name()) else {
                    return Err(unsupported(section.name()));
                };
                for value in values {
                    let row = value.name().parse().ok();
                    let row = row.filter(|row| *row < MEASUREMENTS_MAX);
                    let row = row.ok_or_else(|| unsupported(value.name()))?;
                    rows.entry(row).or_default().append_renamed(name, value);
                }
            }
        }
        let Some((rows_before, _)) = rows.first_key_value() else {
            return Ok(None);
        };
        Ok(Some(Self::Extended {
            id,
            rows_before: *rows_before,
            measurements: rows.into_values().map(DocumentBuilder::finish).collect(),
        }))
    }
}

fn unsupported(what: &str) -> Error {
    Error::new(
        ErrorCode::CommandNotSupported,
        format!("the difference of a bucket document has a part that is not supported: '{what}'"),
    )
}

/// Applies an entry.
pub(super) fn replay(
    timeseries: &Timeseries,
    catalog: &Catalog,
    collection: &Arc<Collection>,
    bucket: ReplayedBucket<'_>,
) -> Result<()> {
    let options = options_of(collection)?;
    let id = match &bucket {
        ReplayedBucket::Inserted(document) => {
            raw::check(*document, collection)?;
            BucketDocument::parse(*document, &options.time_field)?.id
        }
        ReplayedBucket::Extended { id, .. } => *id,
    };
    let mut changes = timeseries.change_buckets(collection)?;
    let before = changes.claim(id)?;
    let added = match (bucket, &before) {
        (ReplayedBucket::Inserted(document), None) => {
            insert(&mut changes, collection, document)?;
            None
        }
        (ReplayedBucket::Inserted(document), Some(_)) => Some(Addition {
            rows_before: 0,
            measurements: rows_of(&document.to_document(), options)?,
        }),
        (
            ReplayedBucket::Extended {
                rows_before,
                measurements,
                ..
            },
            _,
        ) => Some(Addition {
            rows_before,
            measurements,
        }),
    };
    // A bucket that is gone is removed by a later entry.
    if let (Some(added), Some(before)) = (added, before) {
        extend(&mut changes, collection, (id, &before), added)?;
    }
    changes.commit(catalog, Durability::Buffered)
}

/// Measurements without metadata, and the number of those before them.
struct Addition {
    rows_before: usize,
    measurements: Vec<Document>,
}

/// Inserts a bucket. Its bounds are computed again if strings are compared by a collation, which the oplog does not know.
fn insert(
    changes: &mut BucketChanges<'_>,
    collection: &Collection,
    document: DocRef<'_>,
) -> Result<()> {
    let options = options_of(collection)?;
    let layout = Layout::of(collection, options)?;
    let mut rebuilt = document.to_document();
    if layout.collation != Collation::SIMPLE {
        let bucket = StoredBucket::from_document(rebuilt.clone(), &options.time_field)?;
        let rows: Vec<Row<'_>> = (0..bucket.count()).map(Row::Old).collect();
        rebuilt = assemble(options, &layout, (&rebuilt, &bucket), &rows)?;
    }
    changes.add(rebuilt.as_ref())?;
    changes.notes.bucket_added(rebuilt.as_ref());
    Ok(())
}

fn assemble(
    options: &TimeseriesOptions,
    layout: &Layout<'_>,
    (document, bucket): (&Document, &StoredBucket),
    rows: &[Row<'_>],
) -> Result<Document> {
    let parsed = BucketDocument::parse(document.as_ref(), &options.time_field)?;
    let contents = BucketContents {
        bucket: Some((document, bucket)),
        rows,
        in_place: false,
        layout,
        meta_field: options.meta_field.as_deref(),
    };
    let start_ms = parsed.start_ms(&options.time_field)?;
    Ok(contents
        .assemble(parsed.id, start_ms, parsed.meta)?
        .document)
}

/// Adds those measurements to a claimed bucket that it does not have.
fn extend(
    changes: &mut BucketChanges<'_>,
    collection: &Collection,
    (id, before): ([u8; 12], &Document),
    added: Addition,
) -> Result<()> {
    let options = options_of(collection)?;
    let layout = Layout::of(collection, options)?;
    let bucket = StoredBucket::from_document(before.clone(), &options.time_field)?;
    let missing = missing(options, &bucket, before, added)?;
    if missing.is_empty() {
        return Ok(());
    }
    if bucket.count() + missing.len() > MEASUREMENTS_MAX {
        return Err(unsupported("too many measurements"));
    }
    let start_ms = BucketDocument::parse(before.as_ref(), &options.time_field)?;
    let start_ms = start_ms.start_ms(&options.time_field)?;
    for measurement in &missing {
        match measurement.get(&options.time_field) {
            ValueRef::DateTime(at) if options.spans(start_ms, at) => {}
            _ => return Err(unsupported("a time outside the bucket")),
        }
    }
    let mut rows: Vec<Row<'_>> = (0..bucket.count()).map(Row::Old).collect();
    rows.extend(missing.iter().map(|one| Row::New(one.as_ref())));
    let after = assemble(options, &layout, (before, &bucket), &rows)?;
    if changes.notes.are_kept() {
        for measurement in &missing {
            let shown = with_meta(options, measurement, bucket.meta());
            changes.notes.inserted(shown.as_ref());
        }
    }
    changes.replace(id, after.as_ref())
}

/// Returns a measurement with its metadata behind the first field, as clients see it.
fn with_meta(options: &TimeseriesOptions, measurement: &Document, meta: ValueRef<'_>) -> Document {
    let mut out = DocumentBuilder::with_capacity(measurement.as_bytes().len() + 64);
    for (at, element) in measurement.iter().enumerate() {
        out.append_element(element);
        if let (0, Some(name)) = (at, &options.meta_field) {
            out.append_ref(name, meta);
        }
    }
    out.finish()
}

/// Returns the measurements that the bucket does not have.
fn missing(
    options: &TimeseriesOptions,
    bucket: &StoredBucket,
    before: &Document,
    added: Addition,
) -> Result<Vec<Document>> {
    if bucket.count() <= added.rows_before {
        return Ok(added.measurements);
    }
    let known = rows_of(before, options)?;
    let mut counts: HashMap<Vec<u8>, usize> = HashMap::new();
    for one in &known {
        *counts.entry(sorted_fields(one)).or_default() += 1;
    }
    let mut missing = added.measurements;
    missing.retain(|one| match counts.get_mut(&sorted_fields(one)) {
        Some(count) if *count > 0 => {
            *count -= 1;
            false
        }
        _ => true,
    });
    Ok(missing)
}
