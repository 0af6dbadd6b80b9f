//! Sealed buckets whose summaries are side by side in one block.

use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;

use super::summarized_bucket::{ChunkReader, SummarizedBucket};
use crate::eval::accumulator::ColumnTotal;
use crate::timeseries::cache::summary_blocks::OpenedSummaries;
use crate::timeseries::format::summary::SummaryRow;

/// Buckets of the same layout in successive rows of a block.
pub struct SummaryRun {
    block: Arc<OpenedSummaries>,
    rows: Range<usize>,
    chunk: Arc<ChunkReader>,
}

impl SummaryRun {
    pub(super) fn new(block: Arc<OpenedSummaries>, row: usize, chunk: Arc<ChunkReader>) -> Self {
        Self {
            block,
            rows: row..row + 1,
            chunk,
        }
    }

    fn row(&self, at: usize) -> &SummaryRow {
        &self.block.rows()[self.rows.start + at]
    }

    /// Adds a row; false if it does not follow the last one, or has another layout.
    pub(super) fn extend(&mut self, row: usize) -> bool {
        let rows = self.block.rows();
        let follows = self.rows.end == row && rows[row].layout == rows[self.rows.start].layout;
        self.rows.end += usize::from(follows);
        follows
    }

    /// Removes the first `count` buckets and returns them; `None` if that is 0.
    pub(super) fn split_first(&mut self, count: usize) -> Option<Self> {
        let middle = self.rows.start + count.min(self.bucket_count());
        let first = self.rows.start..middle;
        self.rows.start = middle;
        (!first.is_empty()).then(|| Self {
            block: self.block.clone(),
            rows: first,
            chunk: self.chunk.clone(),
        })
    }

    /// Removes the first or the last bucket and returns it.
    pub(super) fn split_bucket(&mut self, last: bool) -> Option<SummarizedBucket> {
        let row = match last {
            true => self.rows.next_back()?,
            false => self.rows.next()?,
        };
        let (block, chunk) = (self.block.clone(), self.chunk.clone());
        Some(SummarizedBucket::new(block, row, chunk))
    }

    /// Returns the number of buckets.
    pub fn bucket_count(&self) -> usize {
        self.rows.len()
    }

    /// Returns a bucket.
    pub fn bucket(&self, at: usize) -> SummarizedBucket {
        let (block, chunk) = (self.block.clone(), self.chunk.clone());
        SummarizedBucket::new(block, self.rows.start + at, chunk)
    }

    /// Returns the names of the columns by place.
    pub fn columns(&self) -> &[Arc<str>] {
        self.block
            .order(self.row(0))
            .map_or(&[], |order| &order.names)
    }

    /// Returns the number of measurements of a bucket.
    pub fn count(&self, at: usize) -> u32 {
        self.row(at).count
    }

    /// Returns the id of the metadata of a bucket, if that is a document.
    pub fn meta_id(&self, at: usize) -> Option<NonZeroU64> {
        self.block.meta_id(self.rows.start + at)
    }

    /// Returns the places of the buckets among the rows of their layout.
    fn places(&self) -> Range<usize> {
        let first = self.row(0).place as usize;
        first..first + self.bucket_count()
    }

    /// Returns the bounds of a column in milliseconds, if those of all buckets are dates.
    pub fn dates(&self, column: usize) -> Option<&[[i64; 2]]> {
        let column = self.block.column(self.row(0), column).ok()??;
        column.dates()?.get(self.places())
    }

    /// Returns the totals of a column, up to the first bucket that has none.
    pub fn totals(&self, column: usize) -> Vec<ColumnTotal> {
        let Ok(Some(column)) = self.block.column(self.row(0), column) else {
            return Vec::new();
        };
        let rows = self.block.rows().get(self.rows.clone()).unwrap_or(&[]);
        let mut totals = Vec::with_capacity(rows.len());
        let all = rows
            .iter()
            .map_while(|row| column.total(row.place as usize, row.count));
        totals.extend(all);
        totals
    }
}
