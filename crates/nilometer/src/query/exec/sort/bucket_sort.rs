//! `$sort` by bucket headers: by metadata, by time, or by metadata then time.
//!
//! ```text
//! {m: 1}           buckets are sorted; their measurements follow as blocks, undecoded
//! {t: 1}           buckets arrive by ascending start; measurements before the next start are returned
//! {m: 1, t: 1}     the same within each metadata value, if an index delivers them in that order; else
//! {m: 1, t: -1}    buckets are sorted by metadata, then by latest time; within one metadata value
//!                  measurements after the next bucket's latest time are returned
//! ```
//!
//! A sort by time alone also sorts buckets by the bounds in their headers where ids hold no full times (dates outside
//! 1970 to 2038) or where the requested direction is not that of the scan. A sort by descending starts relies on the maximum
//! bucket span of the collection; a wider bucket fails it.
//!
//! Where the next operator takes blocks ([`PhysicalSort::as_blocks`]), buckets that do not overlap are returned unchanged
//! ([`super::block_pool`]).
//!
//! So output begins before all input is read or decoded, and memory holds only the rows of overlapping buckets.
//! Equal rows keep their input order, as in any sort. The row sorter takes over where headers do not suffice (rows instead of
//! blocks; dates before 1970, which lie before their bucket's start) and where buckets or rows exceed the memory limit.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use nilometer_bson::{Document, DocumentBuilder, Value};

use super::block_pool::{BlockPool, PoolOutput};
use super::external_sort::{ENTRY_OVERHEAD, Sorter};
use super::merged_bucket::MergedMetas;
use super::{ByPattern, Everything, add_all, assert_span, everything, gauge};
use crate::error::Result;
use crate::eval::ParseContext;
use crate::eval::sort_key::{SortBy, SortKey, SortPattern};
use crate::query::batch::{Batch, MeasurementBlock};
use crate::query::exec::memory::MemoryGauge;
use crate::query::exec::{BoxOperator, ExecContext, Operator, ROWS_PER_BATCH, next_filled};
use crate::query::pipeline::SortStage;
use crate::query::planner::physical::{BucketOrder, PhysicalSort};

/// Bytes counted for an undecoded bucket, in addition to its values.
const BUCKET_OVERHEAD: usize = 512;

/// Bytes counted for a value of a compressed column.
const COMPRESSED_VALUE_BYTES: usize = 2;

/// Sorts measurements using the headers of their buckets.
pub struct BucketSort {
    input: Option<BoxOperator>,
    plan: PhysicalSort,
    order: BucketOrder,
    state: SortState,
    /// Rows still to return.
    left: u64,
}

enum SortState {
    /// Nothing read yet.
    Unread,
    /// Sorted buckets, whose rows follow.
    Blocks(VecDeque<MeasurementBlock>),
    /// Rows of overlapping buckets.
    Overlapping(Box<Overlapping>),
    /// Rows from the sorter.
    Rows(Box<Everything>),
}

impl BucketSort {
    /// Sorts `input`, with buckets in `order`.
    pub fn new(input: BoxOperator, plan: PhysicalSort, order: BucketOrder) -> Self {
        Self {
            input: Some(input),
            left: plan.stage.limit.unwrap_or(u64::MAX),
            plan,
            order,
            state: SortState::Unread,
        }
    }

    fn start(&mut self, input: BoxOperator, cx: &ExecContext<'_>) -> Result<SortState> {
        let pattern = Arc::new(self.plan.stage.pattern.clone());
        let arriving = match self.order {
            BucketOrder::Arrival(span_ms) => Some((0, span_ms)),
            BucketOrder::Indexed { parts, span_ms } => Some((parts, span_ms)),
            BucketOrder::Metadata | BucketOrder::Bounds { .. } => None,
        };
        if let Some((parts, span_ms)) = arriving {
            let buckets = Buckets::Arriving(Arriving {
                input,
                next: None,
                prefix: prefix(&pattern, parts, cx)?,
                span_ms,
            });
            let overlapping = Overlapping::new(pattern, (parts, self.plan.as_blocks), buckets, cx);
            return Ok(SortState::Overlapping(Box::new(overlapping)));
        }
        let mut input = input;
        let gathered = gather(&mut input, &self.plan.stage, self.order, cx)?;
        Ok(match (gathered, self.order) {
            (BufferedInput::Rows(all), _) => SortState::Rows(Box::new(all)),
            (BufferedInput::Blocks(blocks), BucketOrder::Metadata) => {
                SortState::Blocks(blocks.into_iter().map(|held| held.block).collect())
            }
            (BufferedInput::Blocks(blocks), BucketOrder::Bounds { parts }) => {
                let buckets = Buckets::Buffered(blocks.into());
                let parts = (parts, self.plan.as_blocks);
                SortState::Overlapping(Box::new(Overlapping::new(pattern, parts, buckets, cx)))
            }
            (BufferedInput::Blocks(_), BucketOrder::Arrival(_) | BucketOrder::Indexed { .. }) => {
                unreachable!("buckets that arrive in order are not gathered")
            }
        })
    }
}

impl Operator for BucketSort {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        if let Some(input) = self.input.take() {
            self.state = self.start(input, cx)?;
        }
        if self.left == 0 {
            return Ok(None);
        }
        let at_most = usize::try_from(self.left).unwrap_or(usize::MAX);
        let batch = match &mut self.state {
            SortState::Unread => None,
            SortState::Blocks(blocks) => blocks.pop_front().map(|block| {
                let mut batch = Batch::Block(block);
                batch.truncate(at_most);
                batch
            }),
            SortState::Overlapping(rows) => match rows.next(at_most.min(ROWS_PER_BATCH), cx)? {
                NextRows::Block(block) => {
                    let mut batch = Batch::Block(block);
                    batch.truncate(at_most);
                    Some(batch)
                }
                NextRows::Rows(rows) => (!rows.is_empty()).then_some(Batch::Rows(rows)),
                NextRows::TooMany(all) => {
                    self.state = SortState::Rows(all);
                    return self.next(cx);
                }
            },
            SortState::Rows(all) => {
                let rows = all.take(at_most.min(ROWS_PER_BATCH), cx)?;
                (!rows.is_empty()).then_some(Batch::Rows(rows))
            }
        };
        if let Some(batch) = &batch {
            self.left -= batch.len() as u64;
        }
        Ok(batch)
    }

    fn is_exhausted(&self) -> bool {
        let is_empty = match &self.state {
            SortState::Unread => false,
            SortState::Blocks(blocks) => blocks.is_empty(),
            SortState::Overlapping(rows) => rows.is_exhausted(),
            SortState::Rows(all) => all.is_exhausted(),
        };
        self.left == 0 || is_empty
    }
}

/// A pending bucket.
struct PendingBucket {
    /// The sort key of the parts before the time.
    key: SortKey,
    /// Number of buckets that arrived before it.
    arrival: u64,
    block: MeasurementBlock,
}

/// Result of gathering the input.
enum BufferedInput {
    /// Sorted buckets, each with the sort key of the parts before the time.
    Blocks(Vec<PendingBucket>),
    /// Sorted rows: headers or memory did not suffice.
    Rows(Everything),
}

/// Gathers all buckets and sorts them.
fn gather(
    input: &mut BoxOperator,
    stage: &SortStage,
    order: BucketOrder,
    cx: &ExecContext<'_>,
) -> Result<BufferedInput> {
    let prefix = match order {
        BucketOrder::Bounds { parts } => prefix(&stage.pattern, parts, cx)?,
        BucketOrder::Metadata | BucketOrder::Arrival(_) | BucketOrder::Indexed { .. } => {
            Some(stage.pattern.clone())
        }
    };
    let mut memory = gauge(cx);
    let mut blocks: Vec<PendingBucket> = Vec::new();
    while let Some(batch) = next_filled(input, cx)? {
        let block = match batch {
            Batch::Block(block) if memory.add(held_bytes(&block)).is_ok() => block,
            other => {
                let gathered = blocks.into_iter().map(|held| Batch::Block(held.block));
                let rows = gathered.chain([other]);
                return Ok(BufferedInput::Rows(by_rows(rows, input, stage, cx)?));
            }
        };
        let key = match &prefix {
            Some(prefix) => prefix.extract(block.constant_document().as_ref(), &cx.eval)?,
            None => SortKey::from_values(std::iter::empty()),
        };
        let arrival = blocks.len() as u64;
        blocks.push(PendingBucket {
            key,
            arrival,
            block,
        });
    }
    let by_prefix = |a: &SortKey, b: &SortKey| match &prefix {
        Some(prefix) => prefix.compare(a, b),
        None => Ordering::Equal,
    };
    let descending = is_descending(&stage.pattern, order);
    blocks.sort_by(|a, b| {
        by_prefix(&a.key, &b.key).then_with(|| match descending {
            Some(true) => bound(&b.block, true).cmp(&bound(&a.block, true)),
            Some(false) => bound(&a.block, false).cmp(&bound(&b.block, false)),
            None => Ordering::Equal,
        })
    });
    Ok(BufferedInput::Blocks(blocks))
}

fn is_descending(pattern: &SortPattern, order: BucketOrder) -> Option<bool> {
    let BucketOrder::Bounds { parts } = order else {
        return None;
    };
    pattern.parts().get(parts).map(|part| part.descending)
}

/// Returns the first parts of a pattern as one pattern; `None` if there are none.
fn prefix(
    pattern: &SortPattern,
    parts: usize,
    cx: &ExecContext<'_>,
) -> Result<Option<SortPattern>> {
    let mut out = DocumentBuilder::new();
    for part in pattern.parts().iter().take(parts) {
        if let SortBy::Field(path) = &part.by {
            out.append(path.as_str(), if part.descending { -1 } else { 1 });
        }
    }
    if out.is_empty() {
        return Ok(None);
    }
    let context = ParseContext::new().with_collator(cx.settings.plan.collator.clone());
    SortPattern::parse(out.finish().as_ref(), &context).map(Some)
}

/// Returns a lower bound of the block's times, or an upper bound if `greatest`.
fn bound(block: &MeasurementBlock, greatest: bool) -> i64 {
    let (min, max) = block.time_bounds();
    match greatest {
        true => max.unwrap_or(i64::MAX),
        false => min.unwrap_or(i64::MIN),
    }
}

/// Returns the bytes counted for an undecoded block.
pub(crate) fn held_bytes(block: &MeasurementBlock) -> usize {
    let values = block.bucket.columns().len() * block.bucket.count() as usize;
    BUCKET_OVERHEAD + values * COMPRESSED_VALUE_BYTES
}

/// Sorts the batches and the rest of the input row by row.
fn by_rows(
    batches: impl Iterator<Item = Batch>,
    input: &mut BoxOperator,
    stage: &SortStage,
    cx: &ExecContext<'_>,
) -> Result<Everything> {
    let mut sorter = Sorter::new(ByPattern(stage.pattern.clone()), gauge(cx));
    for batch in batches {
        add_all(&mut sorter, batch, cx)?;
    }
    everything(sorter, input, stage.limit, cx)
}

/// Source of buckets in the order of a bound.
enum Buckets {
    /// In input order: by the parts before the time, then by start.
    Arriving(Arriving),
    /// In memory, ordered by the parts before the time, then by their bounds.
    Buffered(VecDeque<PendingBucket>),
}

struct Arriving {
    input: BoxOperator,
    next: Option<Batch>,
    /// The parts of the pattern before the time; `None` if there are none.
    prefix: Option<SortPattern>,
    /// `Some`: by descending start; the maximum span of a bucket. `None`: by ascending start.
    span_ms: Option<i64>,
}

impl Arriving {
    /// Returns the sort key of the block for the parts before the time.
    fn partition(&self, block: &MeasurementBlock, cx: &ExecContext<'_>) -> Result<Option<SortKey>> {
        let extracted = self.prefix.as_ref().map(|prefix| {
            let constants = block.constant_document();
            prefix.extract(constants.as_ref(), &cx.eval)
        });
        extracted.transpose()
    }

    /// True if the block's partition differs from that of the loaded rows.
    fn begins_partition(
        &self,
        block: &MeasurementBlock,
        at_hand: Option<&SortKey>,
        cx: &ExecContext<'_>,
    ) -> Result<bool> {
        let (Some(prefix), Some(at_hand)) = (&self.prefix, at_hand) else {
            return Ok(false);
        };
        let next = self.partition(block, cx)?;
        Ok(next.is_some_and(|next| prefix.compare(&next, at_hand).is_ne()))
    }
}

/// Rows of overlapping buckets, each returned once no later bucket can sort before it.
struct Overlapping {
    pattern: Arc<SortPattern>,
    /// Index of the time in the pattern.
    time_at: usize,
    buckets: Buckets,
    heap: BinaryHeap<PendingRow>,
    /// Buckets not needed as rows yet; `None` where the output is rows. Empty while rows are pending.
    pool: Option<BlockPool>,
    /// The partition of the loaded rows.
    partition: Option<SortKey>,
    arrivals: u64,
    memory: MemoryGauge,
}

enum NextRows {
    Block(MeasurementBlock),
    Rows(Vec<Document>),
    /// The overlapping rows exceed the memory limit: all remaining rows, from the sorter.
    TooMany(Box<Everything>),
}

/// What may follow the loaded rows.
enum Follows {
    /// Only rows that sort after all of them.
    Later,
    /// Rows with times from this one on, in the direction of the sort.
    From(i64),
    /// Any row.
    Unknown,
}

/// A pending row; the first in sort order is the greatest.
struct PendingRow {
    pattern: Arc<SortPattern>,
    key: SortKey,
    arrival: u64,
    row: Document,
}

impl Ord for PendingRow {
    fn cmp(&self, other: &Self) -> Ordering {
        let order = self.pattern.compare(&other.key, &self.key);
        order.then(other.arrival.cmp(&self.arrival))
    }
}

impl PartialOrd for PendingRow {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PendingRow {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for PendingRow {}

impl PendingRow {
    fn memory_bytes(&self) -> usize {
        self.key.memory_bytes() + self.row.as_bytes().len() + ENTRY_OVERHEAD
    }
}

impl Overlapping {
    fn new(
        pattern: Arc<SortPattern>,
        (time_at, as_blocks): (usize, bool),
        buckets: Buckets,
        cx: &ExecContext<'_>,
    ) -> Self {
        let is_descending = falls(&pattern, time_at);
        Self {
            pattern,
            time_at,
            buckets,
            heap: BinaryHeap::new(),
            pool: as_blocks.then(|| BlockPool::new(is_descending, MergedMetas::Same)),
            partition: None,
            arrivals: 0,
            memory: gauge(cx),
        }
    }

    fn is_exhausted(&self) -> bool {
        let no_more = match &self.buckets {
            Buckets::Arriving(arriving) => arriving.next.is_none() && arriving.input.is_exhausted(),
            Buckets::Buffered(blocks) => blocks.is_empty(),
        };
        no_more && self.heap.is_empty() && self.pool.as_ref().is_none_or(BlockPool::is_empty)
    }

    /// Returns a block if possible, else the next rows.
    fn next(&mut self, rows: usize, cx: &ExecContext<'_>) -> Result<NextRows> {
        if self.heap.is_empty()
            && let Some(block) = self.take_block(cx)?
        {
            return Ok(NextRows::Block(block));
        }
        self.take(rows, cx)
    }

    /// Returns the next block; `None` if rows must be sorted or the input is exhausted.
    fn take_block(&mut self, cx: &ExecContext<'_>) -> Result<Option<MeasurementBlock>> {
        loop {
            let follows = self.follows(cx)?;
            let Some(pool) = &mut self.pool else {
                return Ok(None);
            };
            let bound = match follows {
                Follows::Later => None,
                Follows::From(bound) => Some(bound),
                Follows::Unknown => return self.unpool(cx).map(|()| None),
            };
            match pool.take(bound)? {
                PoolOutput::Block(block, bytes) => {
                    self.memory.release(bytes);
                    return Ok(Some(block));
                }
                PoolOutput::Rows => return self.unpool(cx).map(|()| None),
                PoolOutput::Nothing => {}
            }
            let Some(Batch::Block(block)) = self.next_bucket(cx)? else {
                return Ok(None);
            };
            let arrival = self.arrivals;
            self.arrivals += u64::from(block.bucket.count());
            let bytes = held_bytes(&block);
            if let Some(pool) = &mut self.pool {
                let bytes = pool.add(block, arrival, bytes)?;
                if self.memory.add(bytes).is_err() {
                    return self.unpool(cx).map(|()| None);
                }
            }
        }
    }

    /// Turns the blocks in the pool into rows.
    fn unpool(&mut self, cx: &ExecContext<'_>) -> Result<()> {
        let empty = BlockPool::new(self.is_descending(), MergedMetas::Same);
        let Some(pool) = self.pool.replace(empty) else {
            self.pool = None;
            return Ok(());
        };
        self.memory.clear();
        for (arrival, block) in pool.into_blocks() {
            let numbers = block.selection.to_vec().into_iter();
            for (number, row) in numbers.zip(block.to_rows()?) {
                self.push(arrival + u64::from(number) + 1, row, cx)?;
            }
        }
        Ok(())
    }

    /// Returns the next rows; fewer than `rows` only at the end.
    fn take(&mut self, rows: usize, cx: &ExecContext<'_>) -> Result<NextRows> {
        let mut out = Vec::new();
        while out.len() < rows {
            let follows = self.follows(cx)?;
            if self.may_give(&follows) {
                let Some(first) = self.heap.pop() else {
                    break;
                };
                self.memory.release(first.memory_bytes());
                out.push(first.row);
                continue;
            }
            if self.pool.is_some() && self.heap.is_empty() && !out.is_empty() {
                // The next result may be a block again.
                break;
            }
            if !self.load(cx)? {
                break;
            }
            if self.memory.is_exceeded() {
                if out.is_empty() {
                    return self.give_up(cx);
                }
                // Return the rows taken so far first.
                break;
            }
        }
        if out.is_empty() && self.memory.is_exceeded() {
            return self.give_up(cx);
        }
        Ok(NextRows::Rows(out))
    }

    /// True if no later row can sort before the first loaded row.
    fn may_give(&self, follows: &Follows) -> bool {
        let Some(first) = self.heap.peek() else {
            return false;
        };
        let bound = match follows {
            Follows::Later => return true,
            Follows::Unknown => return false,
            Follows::From(bound) => *bound,
        };
        let Some(Value::DateTime(time)) = first.key.values().get(self.time_at) else {
            return false;
        };
        // Equal times are ordered by the other parts of the pattern and by arrival.
        if self.is_descending() {
            *time > bound
        } else {
            *time < bound
        }
    }

    fn is_descending(&self) -> bool {
        falls(&self.pattern, self.time_at)
    }

    fn follows(&mut self, cx: &ExecContext<'_>) -> Result<Follows> {
        let descending = self.is_descending();
        match &mut self.buckets {
            Buckets::Arriving(arriving) => {
                if arriving.next.is_none() {
                    arriving.next = next_filled(&mut arriving.input, cx)?;
                    if let (Some(Batch::Block(block)), Some(span_ms)) =
                        (&arriving.next, arriving.span_ms)
                    {
                        assert_span(block, span_ms)?;
                    }
                }
                Ok(match &arriving.next {
                    None => Follows::Later,
                    Some(Batch::Rows(_)) => Follows::Unknown,
                    Some(Batch::Block(block))
                        if arriving.begins_partition(block, self.partition.as_ref(), cx)? =>
                    {
                        Follows::Later
                    }
                    Some(Batch::Block(block)) => {
                        let start_ms = i64::from(block.bucket.id().timestamp_seconds()) * 1000;
                        Follows::From(start_ms.saturating_add(arriving.span_ms.unwrap_or(0)))
                    }
                })
            }
            Buckets::Buffered(blocks) => {
                let Some(held) = blocks.front() else {
                    return Ok(Follows::Later);
                };
                let is_same = self.partition.as_ref().is_none_or(|partition| {
                    let mut values = partition.values().iter().zip(held.key.values());
                    values.all(|(a, b)| self.pattern.is_equal(a, b))
                });
                Ok(if is_same {
                    Follows::From(bound(&held.block, descending))
                } else {
                    Follows::Later
                })
            }
        }
    }

    /// Returns the next bucket and makes its bound the current one.
    fn next_bucket(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        Ok(match &mut self.buckets {
            Buckets::Arriving(arriving) => {
                let next = arriving.next.take();
                if let Some(Batch::Block(block)) = &next {
                    self.partition = arriving.partition(block, cx)?;
                }
                next
            }
            Buckets::Buffered(blocks) => blocks.pop_front().map(|held| {
                self.partition = Some(held.key);
                // Equal rows keep the order in which their buckets arrived.
                self.arrivals = held.arrival << u32::BITS;
                Batch::Block(held.block)
            }),
        })
    }

    /// Loads the rows of the next bucket; false if there is none.
    fn load(&mut self, cx: &ExecContext<'_>) -> Result<bool> {
        let Some(batch) = self.next_bucket(cx)? else {
            return Ok(false);
        };
        for row in batch.into_rows()? {
            self.arrivals += 1;
            self.push(self.arrivals, row, cx)?;
        }
        Ok(true)
    }

    /// Adds a pending row.
    fn push(&mut self, arrival: u64, row: Document, cx: &ExecContext<'_>) -> Result<()> {
        let waiting = PendingRow {
            pattern: Arc::clone(&self.pattern),
            key: self.pattern.extract(row.as_ref(), &cx.eval)?,
            arrival,
            row,
        };
        let counted = self.memory.add(waiting.memory_bytes());
        if let Err(exceeded) = counted
            && cx.settings.spill.is_none()
        {
            return Err(exceeded);
        }
        self.heap.push(waiting);
        Ok(())
    }

    /// Moves everything that remains to the sorter.
    fn give_up(&mut self, cx: &ExecContext<'_>) -> Result<NextRows> {
        let mut sorter = Sorter::new(ByPattern((*self.pattern).clone()), gauge(cx));
        // In sort order, so that the sorter keeps equal keys in order of arrival.
        while let Some(first) = self.heap.pop() {
            sorter.add(first.row, cx)?;
        }
        self.memory.clear();
        let rest = std::mem::replace(&mut self.buckets, Buckets::Buffered(VecDeque::new()));
        let mut input: BoxOperator = Box::new(Rest(rest));
        let all = everything(sorter, &mut input, None, cx)?;
        Ok(NextRows::TooMany(Box::new(all)))
    }
}

/// True if a part of a pattern is descending.
fn falls(pattern: &SortPattern, part: usize) -> bool {
    let part = pattern.parts().get(part);
    part.is_some_and(|part| part.descending)
}

/// The buckets not yet loaded, as an operator.
struct Rest(Buckets);

impl Operator for Rest {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        match &mut self.0 {
            Buckets::Arriving(arriving) => match arriving.next.take() {
                Some(batch) => Ok(Some(batch)),
                None => arriving.input.next(cx),
            },
            Buckets::Buffered(blocks) => {
                Ok(blocks.pop_front().map(|held| Batch::Block(held.block)))
            }
        }
    }
}
