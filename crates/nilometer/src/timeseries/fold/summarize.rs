//! Summarizing: blocks of summaries are brought up to date with the sealed buckets that were changed.
//!
//! ```text
//! marks ─► the buckets of one block, or new ones behind the last ─► summaries ─► blocks
//!                                                                └ one engine batch with the marks removed ┘
//! ```
//!
//! A step changes one block at most, while no other thread changes buckets. A failure leaves the marks: readers read the
//! marked buckets, and the next pass tries again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use nilometer_bson::Value;
use nilometer_storage::{Direction, Durability, Engine, KeyspaceId, Snapshot, WriteBatch};

use crate::error::Result;
use crate::eval::memory_bytes;
use crate::timeseries::cache::interner::Interner;
use crate::timeseries::cache::opened_bucket::StoredBucket;
use crate::timeseries::format::bucket_document::Version;
use crate::timeseries::format::key_range::{KeyRange, end_of};
use crate::timeseries::format::keyspaces::BucketKeyspaces;
use crate::timeseries::format::summary;
use crate::timeseries::format::summary::{
    BucketSummary, ColumnSummary, ListedBlock, META_BYTES_MAX, ROWS_MAX, SummaryBlock,
    SummaryHeader,
};
use crate::timeseries::scan::summarized::{first_block, marked};

/// Marks that are handled in one step.
const STEP_MARKS_MAX: usize = 2 * ROWS_MAX;

/// Buckets of a collection without summaries that are marked in one batch.
const MARKED_AT_ONCE: usize = 10_000;

/// Brings the summaries of one collection up to date.
pub(crate) struct Summarizer<'s> {
    pub(crate) engine: &'s dyn Engine,
    pub(crate) keyspaces: BucketKeyspaces,
    pub(crate) time_field: &'s str,
    pub(crate) interner: &'s Arc<Interner>,
    /// The highest number of a block in each keyspace that was written to.
    pub(crate) next_numbers: &'s Mutex<HashMap<KeyspaceId, u64>>,
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SummarizeStep {
    /// So many marks were handled; others may be left.
    Marks(usize),
    /// No mark is left.
    Done,
}

impl Summarizer<'_> {
    /// Handles the first marks, of one block. The caller holds the lock on rewriting buckets.
    pub(crate) fn step(&self) -> Result<SummarizeStep> {
        let Some(keyspace) = self.keyspaces.summaries else {
            return Ok(SummarizeStep::Done);
        };
        let snapshot = self.engine.snapshot()?;
        if snapshot.get(keyspace, &summary::COMPLETE)?.is_none() {
            return self.mark_all(&*snapshot);
        }
        let all = KeyRange {
            start: Vec::new(),
            end: None,
        };
        let mut marks = marked(&*snapshot, keyspace, &all, STEP_MARKS_MAX)?;
        let Some(first) = marks.first().copied() else {
            return Ok(SummarizeStep::Done);
        };
        let mut batch = WriteBatch::new();
        let old = self.block_for(&*snapshot, first)?;
        // Marks up to the next block belong to this one.
        let start = old.map_or(first, |block| block.last.max(first));
        let next = first_block(&*snapshot, keyspace, &end_of(start))?;
        if let Some(next) = next {
            marks.retain(|id| *id < next.first);
        }
        let mut summaries = Vec::new();
        if let Some(block) = old {
            summaries = self.unmarked_rows(&*snapshot, block, &marks)?;
            batch.delete(keyspace, summary::block_key(block.first));
            batch.delete(keyspace, summary::body_key(block.number));
        }
        for id in &marks {
            summaries.extend(self.summarize(&*snapshot, *id)?);
            batch.delete(keyspace, summary::mark_key(*id));
        }
        summaries.sort_unstable_by_key(|summary| summary.id);
        // At the end full blocks are left behind; in between, two halves have room for more.
        let is_between = old.is_some_and(|block| first < block.last);
        let blocks = summaries.len().div_ceil(ROWS_MAX).max(1);
        let rows = match is_between {
            true => summaries.len().div_ceil(blocks).max(1),
            false => ROWS_MAX,
        };
        for rows in summaries.chunks(rows) {
            let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
                continue;
            };
            let block = ListedBlock {
                first: first.id,
                last: last.id,
                number: self.next_number(&*snapshot)?,
            };
            batch.put(keyspace, summary::block_key(block.first), block.to_value());
            batch.put(
                keyspace,
                summary::body_key(block.number),
                summary::encode(rows)?,
            );
        }
        self.engine.commit(batch, Durability::Buffered)?;
        Ok(SummarizeStep::Marks(marks.len()))
    }

    /// Marks all buckets: the collection was made before there were summaries, or they were removed.
    fn mark_all(&self, snapshot: &dyn Snapshot) -> Result<SummarizeStep> {
        let Some(keyspace) = self.keyspaces.summaries else {
            return Ok(SummarizeStep::Done);
        };
        let mut batch = WriteBatch::new();
        for item in snapshot.scan(self.keyspaces.series, &[], None, Direction::Forward)? {
            let (key, _) = item?;
            if let Some(id) = key.last_chunk::<12>() {
                summary::mark(&mut batch, self.keyspaces, *id);
            }
            if batch.len() >= MARKED_AT_ONCE {
                self.engine
                    .commit(std::mem::take(&mut batch), Durability::Buffered)?;
            }
        }
        batch.put(keyspace, summary::COMPLETE.to_vec(), Vec::new());
        self.engine.commit(batch, Durability::Buffered)?;
        Ok(SummarizeStep::Marks(0))
    }

    /// Returns the block that the summary of a bucket belongs to: one that holds its id, or the last before it if it has
    /// room.
    fn block_for(&self, snapshot: &dyn Snapshot, id: [u8; 12]) -> Result<Option<ListedBlock>> {
        let Some(keyspace) = self.keyspaces.summaries else {
            return Ok(None);
        };
        let (start, end) = (
            summary::block_key([0; 12]),
            [&summary::block_key(id)[..], &[0]].concat(),
        );
        let mut before = snapshot.scan(keyspace, &start, Some(&end), Direction::Backward)?;
        let Some(item) = before.next() else {
            return Ok(None);
        };
        let (key, value) = item?;
        let block = ListedBlock::decode(&key, &value)?;
        if block.last >= id {
            return Ok(Some(block));
        }
        let rows = self.block(snapshot, block)?.rows.len();
        Ok((rows < ROWS_MAX).then_some(block))
    }

    fn block(&self, snapshot: &dyn Snapshot, block: ListedBlock) -> Result<SummaryBlock> {
        let keyspace = self.keyspaces.summaries.unwrap_or(self.keyspaces.sealed);
        let bytes = snapshot.get(keyspace, &summary::body_key(block.number))?;
        SummaryBlock::decode(bytes.unwrap_or_default())
    }

    /// Returns the summaries of a block that are up to date. A damaged block is made again from its buckets.
    fn unmarked_rows(
        &self,
        snapshot: &dyn Snapshot,
        listed: ListedBlock,
        marks: &[[u8; 12]],
    ) -> Result<Vec<BucketSummary>> {
        let kept = self
            .block(snapshot, listed)
            .and_then(|block| block.summaries());
        let mut kept = match kept {
            Ok(kept) => kept,
            Err(_) => return self.summarize_between(snapshot, listed, marks),
        };
        kept.retain(|summary| marks.binary_search(&summary.id).is_err());
        Ok(kept)
    }

    /// Summarizes the sealed buckets of a block that is damaged, except for the marked ones.
    fn summarize_between(
        &self,
        snapshot: &dyn Snapshot,
        listed: ListedBlock,
        marks: &[[u8; 12]],
    ) -> Result<Vec<BucketSummary>> {
        let end = end_of(listed.last);
        let sealed = self.keyspaces.sealed;
        let mut found = Vec::new();
        for item in snapshot.scan(sealed, &listed.first, Some(&end), Direction::Forward)? {
            if let Ok(id) = <[u8; 12]>::try_from(&item?.0[..])
                && marks.binary_search(&id).is_err()
            {
                found.extend(self.summarize(snapshot, id)?);
            }
        }
        Ok(found)
    }

    /// Returns the summary of a bucket; `None` if it is not sealed.
    fn summarize(&self, snapshot: &dyn Snapshot, id: [u8; 12]) -> Result<Option<BucketSummary>> {
        let Some(stored) = snapshot.get(self.keyspaces.sealed, &id)? else {
            return Ok(None);
        };
        // A damaged bucket is left to its readers, who report it.
        let header = StoredBucket::open(stored, self.time_field, self.interner)
            .ok()
            .and_then(|bucket| header_of(&bucket));
        Ok(Some(BucketSummary { id, header }))
    }

    /// Returns a number that no block of the collection has had while this process runs.
    fn next_number(&self, snapshot: &dyn Snapshot) -> Result<u64> {
        let keyspace = self.keyspaces.summaries.unwrap_or(self.keyspaces.sealed);
        let mut numbers = self
            .next_numbers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(next) = numbers.get_mut(&keyspace) {
            *next += 1;
            return Ok(*next);
        }
        let (start, end) = (summary::body_key(0), summary::body_key(u64::MAX));
        let mut blocks = snapshot.scan(keyspace, &start, Some(&end), Direction::Backward)?;
        let highest = match blocks.next() {
            Some(item) => summary::body_number(&item?.0)?,
            None => 0,
        };
        numbers.insert(keyspace, highest + 1);
        Ok(highest + 1)
    }
}

/// Returns the header to summarize; `None` if the bucket must be read: a plain one, one whose bounds are not those of its
/// columns, or one with large metadata.
fn header_of(bucket: &StoredBucket) -> Option<SummaryHeader> {
    if bucket.version() == Version::Plain as i32 {
        return None;
    }
    let meta = bucket.meta().to_value();
    if memory_bytes(&meta) > META_BYTES_MAX {
        return None;
    }
    let names: Vec<&str> = bucket.shown().map(|(_, name)| &**name).collect();
    for side in ["min", "max"] {
        let bounds = bucket.control_bounds(side)?;
        if !bounds
            .iter()
            .map(|bound| bound.name())
            .eq(names.iter().copied())
        {
            return None;
        }
    }
    let constants = bucket.constants().ok()?;
    let constants = constants.as_ref();
    let mut columns = Vec::with_capacity(names.len());
    for (at, name) in bucket.shown() {
        let (min, max) = bucket.bounds_at(at);
        columns.push(ColumnSummary {
            name: name.clone(),
            min: min.to_value(),
            max: max.to_value(),
            total: bucket.known_total_at(at).ok()?,
            is_constant: constants.contains(name),
        });
    }
    let is_missing = |value: &Value| matches!(value, Value::Missing);
    if columns
        .iter()
        .any(|c| is_missing(&c.min) || is_missing(&c.max))
    {
        return None;
    }
    Some(SummaryHeader {
        is_sorted: bucket.is_sorted(),
        is_closed: bucket.is_closed(),
        count: u32::try_from(bucket.count()).ok()?,
        meta,
        columns,
    })
}
