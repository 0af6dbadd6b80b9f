//! Input of `$densify` over time by metadata: buckets are sorted, and rows are built one bucket at a time.
//!
//! ```text
//! buckets ── by partition, first time ──► [a 09:00] [a 10:00] [b 09:00] …   undecoded except for their times
//!                                             │ overlapping ones are merged (block_pool)
//!                                             ▼
//!                                         rows by partition and time
//! ```
//!
//! Partitions compare as in [`super::densify`]. Where overlapping buckets of a partition differ in shape,
//! that partition is sorted row by row; where the buckets exceed the memory limit, the whole input is.

use std::collections::VecDeque;
use std::sync::Arc;

use nilometer_bson::{Document, Value, ValueRef};

use super::densify::{DensifyKey, DensifyOrder, NAME, compare_partitions};
use crate::error::{Error, ErrorCode, Result};
use crate::query::batch::{Batch, MeasurementBlock};
use crate::query::exec::memory::MemoryGauge;
use crate::query::exec::row::unwind::value_at;
use crate::query::exec::sort::block_pool::{BlockPool, PoolOutput};
use crate::query::exec::sort::bucket_sort::held_bytes;
use crate::query::exec::sort::external_sort::{Sorted, Sorter};
use crate::query::exec::sort::merged_bucket::MergedMetas;
use crate::query::exec::{BoxOperator, ExecContext, next_filled};
use crate::query::pipeline::{AxisPoint, DensifyStage};

/// Bytes counted for a decoded time.
const TIME_BYTES: usize = 8;

/// Buckets sorted by partition and time.
pub(crate) struct PartitionedBuckets {
    stage: Arc<DensifyStage>,
    waiting: VecDeque<PendingBucket>,
    /// Buckets of the current partition that overlap or may overlap.
    pool: BlockPool,
    rows: std::vec::IntoIter<Document>,
    /// The partition of `rows`.
    partition: Arc<[Value]>,
    /// The sorted rows of a partition whose buckets differ in shape.
    sorted: Option<Sorted<DensifyOrder>>,
    memory: MemoryGauge,
}

/// A pending bucket.
struct PendingBucket {
    partition: Arc<[Value]>,
    /// Number of rows that arrived before its first one.
    arrival: u64,
    first: i64,
    block: MeasurementBlock,
}

/// Result of gathering the input.
pub(crate) enum BufferedInput {
    /// All buckets, with the first and the last time of all.
    Buckets(Box<PartitionedBuckets>, Option<(AxisPoint, AxisPoint)>),
    /// The batches read so far, in input order: the input has rows, or the buckets exceed the memory limit.
    Rows(Vec<Batch>),
}

/// Reads the whole input.
pub(crate) fn gather(
    stage: &Arc<DensifyStage>,
    input: &mut BoxOperator,
    cx: &ExecContext<'_>,
) -> Result<BufferedInput> {
    let mut memory = MemoryGauge::gather(NAME, cx);
    let mut held: Vec<PendingBucket> = Vec::new();
    let mut ends: Option<(i64, i64)> = None;
    while let Some(batch) = next_filled(input, cx)? {
        let block = match batch {
            Batch::Block(block) if memory.add(bytes_of(&block)).is_ok() => block,
            other => {
                let held = held.into_iter().map(|held| Batch::Block(held.block));
                return Ok(BufferedInput::Rows(held.chain([other]).collect()));
            }
        };
        let (first, last) = ends_of(&block)?;
        let (low, high) = ends.get_or_insert((first, last));
        (*low, *high) = (first.min(*low), last.max(*high));
        held.push(PendingBucket {
            partition: partition_of(stage, &block),
            arrival: (held.len() as u64) << u32::BITS,
            first,
            block,
        });
    }
    held.sort_by(|a, b| {
        let order = compare_partitions(&a.partition, &b.partition, cx);
        order.then(a.first.cmp(&b.first))
    });
    let buckets = PartitionedBuckets {
        stage: Arc::clone(stage),
        waiting: held.into(),
        pool: BlockPool::new(false, MergedMetas::Same),
        rows: Vec::new().into_iter(),
        partition: Arc::new([]),
        sorted: None,
        memory,
    };
    let ends = ends.map(|(low, high)| (AxisPoint::Date(low), AxisPoint::Date(high)));
    Ok(BufferedInput::Buckets(Box::new(buckets), ends))
}

fn bytes_of(block: &MeasurementBlock) -> usize {
    held_bytes(block) + block.bucket.count() as usize * TIME_BYTES
}

/// Returns the partition of a block; it depends only on the metadata.
fn partition_of(stage: &DensifyStage, block: &MeasurementBlock) -> Arc<[Value]> {
    let constants = block.constant_document();
    let paths = stage.partition_by.iter();
    let values = paths.map(|path| value_at(constants.as_ref(), path).to_value());
    values.collect()
}

/// Returns the first and the last time of a block.
fn ends_of(block: &MeasurementBlock) -> Result<(i64, i64)> {
    let no_dates = || {
        Error::new(
            ErrorCode::DataCorruptionDetected,
            "a bucket's time column does not hold dates",
        )
    };
    let times = block
        .column(&block.shape.time_field)?
        .ok_or_else(no_dates)?;
    let time = |at: u32| match times.value(at as usize) {
        ValueRef::DateTime(time) => Ok(time),
        _ => Err(no_dates()),
    };
    let count = block.selection.len();
    let at = |place: usize| block.selection.get(place).ok_or_else(no_dates);
    let mut ends = (time(at(0)?)?, time(at(count.saturating_sub(1))?)?);
    if !block.bucket.is_sorted() {
        for place in 0..count {
            let time = time(at(place)?)?;
            ends = (ends.0.min(time), ends.1.max(time));
        }
    }
    Ok(ends)
}

impl PartitionedBuckets {
    /// Returns the next row.
    pub(crate) fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<(DensifyKey, Document)>> {
        loop {
            if let Some(row) = self.rows.next() {
                let key = DensifyKey::within(&self.stage, &self.partition, row.as_ref())?;
                return Ok(Some((key, row)));
            }
            if let Some(sorted) = &mut self.sorted {
                match sorted.next(cx)? {
                    Some(next) => return Ok(Some(next)),
                    None => self.sorted = None,
                }
            }
            if !self.load(cx)? {
                return Ok(None);
            }
        }
    }

    /// Builds the rows of the next bucket, or of the overlapping next buckets; false if there is none.
    fn load(&mut self, cx: &ExecContext<'_>) -> Result<bool> {
        cx.operation.check_interrupt()?;
        let follows = self
            .waiting
            .front()
            .filter(|next| self.is_at_work(next, cx));
        let bound = follows.map(|next| next.first);
        match self.pool.take(bound)? {
            PoolOutput::Block(block, bytes) => {
                self.memory.release(bytes);
                self.partition = partition_of(&self.stage, &block);
                self.rows = block.to_rows()?.into_iter();
            }
            PoolOutput::Rows => self.sort_partition(cx)?,
            PoolOutput::Nothing => {
                let Some(next) = self.waiting.pop_front() else {
                    return Ok(false);
                };
                self.partition = next.partition;
                // Pending buckets are counted already.
                let bytes = bytes_of(&next.block);
                let held = self.pool.add(next.block, next.arrival, bytes)?;
                self.memory.hold(held.saturating_sub(bytes))?;
            }
        }
        Ok(true)
    }

    /// True if a bucket belongs to the current partition.
    fn is_at_work(&self, next: &PendingBucket, cx: &ExecContext<'_>) -> bool {
        compare_partitions(&next.partition, &self.partition, cx).is_eq()
    }

    /// Sorts the rest of the current partition row by row.
    fn sort_partition(&mut self, cx: &ExecContext<'_>) -> Result<()> {
        let pool = std::mem::replace(&mut self.pool, BlockPool::new(false, MergedMetas::Same));
        let mut blocks: Vec<(u64, MeasurementBlock)> = pool.into_blocks();
        while let Some(next) = self
            .waiting
            .pop_front_if(|next| compare_partitions(&next.partition, &self.partition, cx).is_eq())
        {
            blocks.push((next.arrival, next.block));
        }
        blocks.sort_by_key(|(arrival, _)| *arrival);
        let order = DensifyOrder {
            stage: Arc::clone(&self.stage),
        };
        let mut sorter = Sorter::new(order, MemoryGauge::gather(NAME, cx));
        for (_, block) in blocks {
            for row in block.to_rows()? {
                sorter.add(row, cx)?;
            }
        }
        self.sorted = Some(sorter.finish(cx)?);
        Ok(())
    }
}
