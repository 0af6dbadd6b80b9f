//! Merges buckets into time order and returns blocks: the path of [`super::bucket_sort`] for consumers that do not need rows.
//!
//! ```text
//! A ▪▪▪▪▪▪▪         A before all others    ──► returned unchanged, only its times decoded
//! B         ▪▪▪▪▪
//! C           ▪▪▪▪▪ B and C overlap        ──► one block of both, up to the earliest start of the next bucket
//! ```
//!
//! Measurements are returned in the order of the row path: by time, equal times in order of arrival. Overlapping buckets of
//! different shapes ([`merged`]) are left to the row path.

use std::sync::Arc;

use nilometer_bson::block::ColumnBlock;

use super::merged_bucket::{MergedMetas, merged};
use crate::error::{Error, ErrorCode, Result};
use crate::query::batch::{MeasurementBlock, Selection};

/// Fewest measurements worth a merged block.
const MERGED_MIN: usize = 4096;

/// Buckets checked when looking for one that precedes all others.
const LOOKED_THROUGH_MAX: usize = 8;

/// Bytes of one entry of the merge order.
const PLACE_BYTES: usize = 24;

/// Buckets that overlap or may overlap.
pub(crate) struct BlockPool {
    parts: Vec<PooledBucket>,
    is_descending: bool,
    metas: MergedMetas,
    /// Measurements added since the last merge.
    came: usize,
    /// Measurements to add before the next merge.
    wanted: usize,
}

/// A bucket with measurements not yet returned.
struct PooledBucket {
    block: MeasurementBlock,
    times: Arc<ColumnBlock>,
    /// Arrival number of its first row.
    arrival: u64,
    /// The rows in sort order; `None` if the selection is already in sort order.
    sorted: Option<Vec<u32>>,
    /// Number of measurements returned.
    given: usize,
    bytes: usize,
}

/// Result of [`BlockPool::take`].
pub(crate) enum PoolOutput {
    /// The next block, and the number of bytes released.
    Block(MeasurementBlock, usize),
    /// No block until more buckets are added.
    Nothing,
    /// The buckets differ in shape: rows must be sorted instead.
    Rows,
}

impl BlockPool {
    pub(crate) fn new(is_descending: bool, metas: MergedMetas) -> Self {
        Self {
            parts: Vec::new(),
            is_descending,
            metas,
            came: 0,
            wanted: MERGED_MIN,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Maps a time to a number that ascends in sort order.
    fn place(&self, time: i64) -> i64 {
        if self.is_descending { !time } else { time }
    }

    /// Adds a bucket whose rows have arrival numbers from `arrival` on; returns the bytes held for it.
    pub(crate) fn add(
        &mut self,
        block: MeasurementBlock,
        arrival: u64,
        bytes: usize,
    ) -> Result<usize> {
        if block.selection.is_empty() {
            return Ok(0);
        }
        let times = match block.column(&block.shape.time_field)? {
            Some(times) => Arc::clone(times),
            None => return Err(no_dates()),
        };
        let mut part = PooledBucket {
            times,
            arrival,
            sorted: None,
            given: 0,
            bytes: bytes + block.selection.len() * PLACE_BYTES,
            block,
        };
        if self.is_descending || !part.block.bucket.is_sorted() {
            let mut places = Vec::with_capacity(part.block.selection.len());
            for row in part.block.selection.to_vec() {
                places.push((self.place(part.time(row)?), row));
            }
            if !places.is_sorted_by_key(|(place, _)| *place) {
                places.sort_by_key(|(place, _)| *place);
                part.sorted = Some(places.into_iter().map(|(_, row)| row).collect());
            }
        }
        self.came += part.left();
        let bytes = part.bytes;
        self.parts.push(part);
        Ok(bytes)
    }

    /// Returns the next block. Buckets added later lie from `bound` on; `None` if there are none. `i64::MIN` or `i64::MAX` means
    /// that later buckets may lie anywhere.
    pub(crate) fn take(&mut self, bound: Option<i64>) -> Result<PoolOutput> {
        let bound = bound.map(|bound| self.place(bound));
        if let Some(at) = self.first_of_all(bound)? {
            let part = self.parts.remove(at);
            self.came = self.came.saturating_sub(part.left());
            let bytes = part.bytes;
            let block = part.into_block(self.is_descending);
            return Ok(PoolOutput::Block(block.ok_or_else(no_dates)?, bytes));
        }
        if self.parts.is_empty() || (bound.is_some() && self.came < self.wanted) {
            return Ok(PoolOutput::Nothing);
        }
        self.merge(bound)
    }

    /// Returns the index of the part that precedes all others and `bound`.
    fn first_of_all(&self, bound: Option<i64>) -> Result<Option<usize>> {
        if self.parts.len() > LOOKED_THROUGH_MAX {
            return Ok(None);
        }
        let mut ends = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            ends.push((self.place(part.first()?), self.place(part.last()?)));
        }
        let is_first = |at: usize, last: i64| {
            let mut others = ends.iter().zip(&self.parts).enumerate();
            let arrival = self.parts.get(at).map(|part| part.arrival);
            others.all(|(other, ((first, _), part))| {
                other == at || last < *first || (last == *first && arrival < Some(part.arrival))
            })
        };
        let mut all = ends.iter().enumerate();
        let found = all.find(|(at, (_, last))| {
            bound.is_none_or(|bound| *last < bound) && is_first(*at, *last)
        });
        Ok(found.map(|(at, _)| at))
    }

    /// Merges all measurements before the bound into one block.
    fn merge(&mut self, bound: Option<i64>) -> Result<PoolOutput> {
        self.parts.sort_by_key(|part| part.arrival);
        let mut entries = Vec::new();
        let mut blocks = Vec::new();
        let mut ends = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            let end = part.before(bound, |time| self.place(time))?;
            ends.push(end);
            if end > part.given {
                let source = u32::try_from(blocks.len()).map_err(|_| no_dates())?;
                for at in part.given..end {
                    let row = part.row(at);
                    entries.push((self.place(part.time(row)?), source, row));
                }
                blocks.push(&part.block);
            }
        }
        let count = entries.len();
        let left = self.parts.iter().map(PooledBucket::left).sum::<usize>() - count;
        self.came = 0;
        self.wanted = MERGED_MIN.max(2 * left);
        if count == 0 {
            return Ok(PoolOutput::Nothing);
        }
        entries.sort_by_key(|(place, _, _)| *place);
        let entries = entries.into_iter().map(|(_, source, row)| (source, row));
        let is_sorted = !self.is_descending;
        let Some(block) = merged(&blocks, entries.collect(), is_sorted, self.metas) else {
            return Ok(PoolOutput::Rows);
        };
        let mut bytes = 0;
        for (part, end) in self.parts.iter_mut().zip(ends) {
            part.given = end;
            if part.left() == 0 {
                bytes += part.bytes;
            }
        }
        self.parts.retain(|part| part.left() > 0);
        Ok(PoolOutput::Block(block, bytes))
    }

    /// Returns the remaining measurements as blocks, each with the arrival number of its bucket's first row.
    pub(crate) fn into_blocks(self) -> Vec<(u64, MeasurementBlock)> {
        let parts = self.parts.into_iter();
        let left = parts.map(|part| {
            let mut rows: Vec<u32> = (part.given..part.count()).map(|at| part.row(at)).collect();
            rows.sort_unstable();
            let selection = Selection::from_rows(rows);
            (
                part.arrival,
                MeasurementBlock {
                    selection,
                    ..part.block
                },
            )
        });
        left.collect()
    }
}

impl PooledBucket {
    fn count(&self) -> usize {
        self.block.selection.len()
    }

    fn left(&self) -> usize {
        self.count() - self.given
    }

    /// Returns the row at a position in sort order.
    fn row(&self, at: usize) -> u32 {
        let row = match &self.sorted {
            Some(sorted) => sorted.get(at).copied(),
            None => self.block.selection.get(at),
        };
        row.unwrap_or(u32::MAX)
    }

    fn time(&self, row: u32) -> Result<i64> {
        match self.times.value(row as usize) {
            nilometer_bson::ValueRef::DateTime(time) => Ok(time),
            _ => Err(no_dates()),
        }
    }

    fn first(&self) -> Result<i64> {
        self.time(self.row(self.given))
    }

    fn last(&self) -> Result<i64> {
        self.time(self.row(self.count().saturating_sub(1)))
    }

    /// Returns the number of positions before the bound.
    fn before(&self, bound: Option<i64>, place: impl Fn(i64) -> i64) -> Result<usize> {
        let Some(bound) = bound else {
            return Ok(self.count());
        };
        let (mut low, mut high) = (self.given, self.count());
        while low < high {
            let middle = low + (high - low) / 2;
            if place(self.time(self.row(middle))?) < bound {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// Returns the remaining measurements as a block in sort order.
    fn into_block(self, is_descending: bool) -> Option<MeasurementBlock> {
        if self.sorted.is_none() {
            let mut block = self.block;
            block.selection.skip(self.given);
            return Some(block);
        }
        let entries = (self.given..self.count()).map(|at| (0, self.row(at)));
        let blocks = [&self.block];
        merged(
            &blocks,
            entries.collect(),
            !is_descending,
            MergedMetas::Same,
        )
    }
}

fn no_dates() -> Error {
    Error::new(
        ErrorCode::DataCorruptionDetected,
        "a bucket's time column does not hold dates",
    )
}
