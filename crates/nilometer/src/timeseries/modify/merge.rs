//! Merging the change of a bucket by a transaction with what others have made of the bucket since.
//!
//! ```text
//! before ──► after    the transaction: which measurements are gone, which are new
//!    └─────► now      others: folded, sealed, sorted; measurements inserted, changed
//! ```
//!
//! What the transaction has changed must be there now as it was; everything else stays. Measurements without difference stand for
//! each other, so only their number counts.

use std::collections::HashMap;

use nilometer_bson::{Document, DocumentBuilder, ValueRef};

use super::assemble::{BucketContents, Row};
use crate::catalog::TimeseriesOptions;
use crate::error::{Error, Result};
use crate::timeseries::cache::opened_bucket::StoredBucket;
use crate::timeseries::format::bucket_document::{BucketDocument, Layout, MEASUREMENTS_MAX};
use crate::timeseries::unpack::{self, Shown};

/// The bucket before a transaction and after it; `None` if it is removed.
#[derive(Clone, Copy)]
pub(in crate::timeseries) struct BucketChange<'a> {
    pub(in crate::timeseries) before: &'a Document,
    pub(in crate::timeseries) after: Option<&'a Document>,
}

/// Measurements by their contents, with their numbers.
struct CountedRows(HashMap<Vec<u8>, usize>);

impl CountedRows {
    fn of(rows: &[Document]) -> Self {
        let mut counts = HashMap::with_capacity(rows.len());
        for row in rows {
            *counts.entry(sorted_fields(row)).or_default() += 1;
        }
        Self(counts)
    }

    /// Removes one that is equal; false if there is none.
    fn take(&mut self, row: &Document) -> bool {
        match self.0.get_mut(&sorted_fields(row)) {
            Some(count) if *count > 0 => {
                *count -= 1;
                true
            }
            _ => false,
        }
    }

    fn is_empty(&self) -> bool {
        self.0.values().all(|count| *count == 0)
    }
}

/// Returns the measurements that are not in `others`.
fn without(rows: &[Document], others: &[Document]) -> Vec<Document> {
    let mut others = CountedRows::of(others);
    let left = rows.iter().filter(|row| !others.take(row));
    left.cloned().collect()
}

/// Returns the bucket `now` with the change of a transaction; `None` if no measurement is left. Code 112 if others have changed
/// the same measurements, or if the result does not fit into one bucket of at most `bytes_max` bytes.
pub(in crate::timeseries) fn merge(
    change: BucketChange<'_>,
    now: &Document,
    (options, layout): (&TimeseriesOptions, &Layout<'_>),
    bytes_max: usize,
) -> Result<Option<Document>> {
    let BucketChange { before, after } = change;
    if now == before {
        return Ok(after.cloned());
    }
    let has_meta_of = |bucket: &Document| meta_of(bucket) == meta_of(before);
    let rows_before = rows_of(before, options)?;
    let rows_now = rows_of(now, options)?;
    if !has_meta_of(now) {
        return Err(Error::write_conflict());
    }
    if let Some(after) = after
        && !has_meta_of(after)
    {
        // One that came since would get the metadata, too.
        let is_same =
            rows_now.len() == rows_before.len() && without(&rows_now, &rows_before).is_empty();
        return match is_same {
            true => Ok(Some(after.clone())),
            false => Err(Error::write_conflict()),
        };
    }
    let rows_after = after.map(|after| rows_of(after, options)).transpose()?;
    let rows_after = rows_after.unwrap_or_default();
    let mut gone = CountedRows::of(&without(&rows_before, &rows_after));
    let new = without(&rows_after, &rows_before);
    let rows = rows_now.iter().enumerate();
    let kept: Vec<usize> = rows
        .filter(|(_, row)| !gone.take(row))
        .map(|(at, _)| at)
        .collect();
    let fits = kept.len() + new.len() <= MEASUREMENTS_MAX;
    if !gone.is_empty() || !fits {
        return Err(Error::write_conflict());
    }
    if kept.is_empty() && new.is_empty() {
        return Ok(None);
    }
    let document = assemble(now, (&kept, &new), (options, layout))?;
    let bytes_max = bytes_max.max(now.as_bytes().len());
    match document {
        Some(document) if document.as_bytes().len() <= bytes_max => Ok(Some(document)),
        _ => Err(Error::write_conflict()),
    }
}

/// Returns the bucket with these of its measurements and new ones; `None` if a field would have values of different types.
fn assemble(
    now: &Document,
    (kept, new): (&[usize], &[Document]),
    (options, layout): (&TimeseriesOptions, &Layout<'_>),
) -> Result<Option<Document>> {
    let bucket = StoredBucket::from_document(now.clone(), &options.time_field)?;
    let parsed = BucketDocument::parse(now.as_ref(), &options.time_field)?;
    let times = bucket.column(&options.time_field)?;
    let time_of = |row: &Row<'_>| match row {
        Row::Old(at) => times.as_ref().map(|times| times.value(*at)).and_then(time),
        Row::New(document) => time(document.get(&options.time_field)),
    };
    let mut rows: Vec<Row<'_>> = kept.iter().map(|at| Row::Old(*at)).collect();
    rows.extend(new.iter().map(|row| Row::New(row.as_ref())));
    if bucket.is_sorted() {
        rows.sort_by_key(|row| time_of(row));
    }
    let contents = BucketContents {
        bucket: Some((now, &bucket)),
        rows: &rows,
        in_place: false,
        layout,
        meta_field: options.meta_field.as_deref(),
    };
    let start_ms = parsed.start_ms(&options.time_field)?;
    let assembled = contents.assemble(parsed.id, start_ms, parsed.meta)?;
    Ok(assembled.uniform.then_some(assembled.document))
}

fn meta_of(bucket: &Document) -> Document {
    let mut meta = DocumentBuilder::new();
    meta.append_ref("meta", bucket.get("meta"));
    meta.finish()
}

fn time(value: ValueRef<'_>) -> Option<i64> {
    match value {
        ValueRef::DateTime(at) => Some(at),
        _ => None,
    }
}

/// Returns the measurements of a bucket document, without metadata.
pub(super) fn rows_of(bucket: &Document, options: &TimeseriesOptions) -> Result<Vec<Document>> {
    let mut without_meta = DocumentBuilder::with_capacity(bucket.as_bytes().len());
    for element in bucket.iter().filter(|element| element.name() != "meta") {
        without_meta.append_element(element);
    }
    let shown = Shown::new(&options.time_field, None);
    unpack::measurements(without_meta.finish().as_ref(), &shown, |_| true)
}

/// Returns the bytes of a measurement with its fields in the order of their names: columns have no order.
pub(super) fn sorted_fields(measurement: &Document) -> Vec<u8> {
    let mut fields: Vec<_> = measurement.iter().collect();
    fields.sort_unstable_by(|a, b| a.name_bytes().cmp(b.name_bytes()));
    let mut out = DocumentBuilder::with_capacity(measurement.as_bytes().len());
    for field in fields {
        out.append_element(field);
    }
    out.finish().as_bytes().to_vec()
}
