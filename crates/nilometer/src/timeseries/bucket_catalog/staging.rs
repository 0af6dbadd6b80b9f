//! One command's measurements of one series on their way into buckets.
//!
//! A [`Stage`] collects the rows that go into one bucket, column by column. When the bucket is full
//! or the rows are at an end it becomes one tail entry. Rows are sorted by time within an entry, so
//! that a batch that arrives in disorder does not make its bucket unsorted.

use nilometer_bson::{Value, ValueRef};

use super::super::meta::SeriesMeta;
use super::super::tail::{self, ColumnChunk, Header};
use super::bucket::{Field, Measurement, OpenBucket};
use crate::error::Result;

/// What [`Stage::into_entry`] needs to know afterwards: which bucket, and what the entry told readers.
#[derive(Debug)]
pub(crate) struct StagedEntry {
    pub(crate) bucket: [u8; 12],
    pub(crate) rows: usize,
    /// Columns the entry names.
    pub(crate) named: Vec<usize>,
    pub(crate) with_header: bool,
    /// The bucket had no measurement before this entry.
    pub(crate) opens_bucket: bool,
    /// The entry made the bucket unsorted.
    pub(crate) unsorts: bool,
}

/// Rows collected for one bucket.
#[derive(Debug, Default)]
pub(crate) struct Stage<'a> {
    times: Vec<i64>,
    columns: Vec<Vec<ValueRef<'a>>>,
}

impl<'a> Stage<'a> {
    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.times.len()
    }

    /// Adds a measurement the bucket accepted; `fields` with the columns they were found at.
    pub(crate) fn push(
        &mut self,
        bucket: &mut OpenBucket,
        measurement: &Measurement<'a>,
        fields: &[(Option<usize>, Field<'a>)],
    ) {
        let row = self.times.len();
        self.times.push(measurement.time_ms);
        for (column, field) in fields {
            let at = bucket.learn(*column, field);
            if self.columns.len() <= at {
                self.columns.resize_with(at + 1, Vec::new);
            }
            if let Some(values) = self.columns.get_mut(at) {
                // A field given twice in one document counts once: the first stays.
                if values.len() <= row {
                    values.resize(row, ValueRef::Missing);
                    values.push(field.value());
                }
            }
        }
        bucket.count += 1;
    }

    /// Turns the rows into a tail entry: its key and value, and what to remember of it.
    pub(crate) fn into_entry(
        mut self,
        bucket: &mut OpenBucket,
        meta: &SeriesMeta,
    ) -> Result<(Vec<u8>, Vec<u8>, StagedEntry)> {
        let rows = self.rows();
        for values in &mut self.columns {
            values.resize(rows, ValueRef::Missing);
        }
        self.sort();
        let (first, last) = (self.times.first(), self.times.last());
        let span = (first.copied().unwrap_or(0), last.copied().unwrap_or(0));
        let opens_bucket = bucket.last_ms == i64::MIN;
        let unsorts = bucket.sorted && !opens_bucket && span.0 < bucket.last_ms;
        bucket.sorted &= !unsorts;
        bucket.last_ms = bucket.last_ms.max(span.1);

        let with_header = !bucket.header_committed;
        let header = with_header.then(|| Header {
            start_ms: bucket.start_ms,
            meta: Value::from(meta.value()),
        });
        let mut named = Vec::new();
        let mut chunks = Vec::with_capacity(self.columns.len());
        for (id, values) in self.columns.into_iter().enumerate() {
            let column = bucket.columns.get(id);
            let name = column.filter(|c| !c.committed).map(|c| &*c.name);
            if name.is_some() {
                named.push(id);
            }
            if name.is_some() || values.iter().any(|v| !v.is_missing()) {
                chunks.push(ColumnChunk { id, name, values });
            }
        }
        let value = tail::encode(rows, header.as_ref(), &chunks)?;
        let key = tail::key(bucket.id, bucket.next_sequence);
        bucket.next_sequence += 1;
        bucket.in_flight += 1;
        let entry = StagedEntry {
            bucket: bucket.id,
            rows,
            named,
            with_header,
            opens_bucket,
            unsorts,
        };
        Ok((key, value, entry))
    }

    /// Sorts the rows by time, keeping the order of equal times.
    fn sort(&mut self) {
        if self.times.is_sorted() {
            return;
        }
        let mut order: Vec<usize> = (0..self.times.len()).collect();
        order.sort_by_key(|&row| self.times.get(row).copied());
        let pick = |row: &usize, from: &[ValueRef<'a>]| from.get(*row).copied().unwrap_or_default();
        for values in &mut self.columns {
            *values = order.iter().map(|row| pick(row, values)).collect();
        }
        self.times.sort_unstable();
    }
}
