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
use crate::timeseries::format::summary::keys::{self, ListedBlock};
use crate::timeseries::format::summary::{
    self, BucketSummary, ColumnSummary, META_BYTES_MAX, ROWS_MAX, SummaryHeader,
};
use crate::timeseries::scan::summary_reader::SummaryReader;

/// Marks that are handled in one step.
const STEP_MARKS_MAX: usize = 2 * ROWS_MAX;

/// Buckets of a collection without summaries that are marked in one batch.
const MARKED_AT_ONCE: usize = 10_000;

/// Brings the summaries of one collection up to date.
pub(crate) struct Summarizer<'s> {
    pub(crate) engine: &'s dyn Engine,
    pub(crate) keyspaces: BucketKeyspaces,
    /// The keyspace of the summaries.
    pub(crate) summaries: KeyspaceId,
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
        let snapshot = self.engine.snapshot()?;
        let keyspace = self.summaries;
        let stored = SummaryReader {
            snapshot: &*snapshot,
            keyspace,
        };
        if !stored.is_complete()? {
            return self.mark_all(&*snapshot);
        }
        let all = KeyRange::all();
        let mut marks = stored.marked(&all, STEP_MARKS_MAX)?;
        let Some(first) = marks.first().copied() else {
            return Ok(SummarizeStep::Done);
        };
        let mut batch = WriteBatch::new();
        let old = block_for(stored, first)?;
        // Marks up to the next block belong to this one.
        let start = old.map_or(first, |block| block.last.max(first));
        let next = stored.block_after(&end_of(start))?;
        if let Some(next) = next {
            marks.retain(|id| *id < next.first);
        }
        let mut summaries = Vec::new();
        if let Some(block) = old {
            summaries = self.unmarked_rows(stored, block, &marks)?;
            batch.delete(keyspace, keys::block_key(block.first));
            batch.delete(keyspace, keys::body_key(block.number));
        }
        for id in &marks {
            summaries.extend(self.summarize(&*snapshot, *id)?);
            batch.delete(keyspace, keys::mark_key(*id));
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
                number: self.next_number(stored)?,
            };
            batch.put(keyspace, keys::block_key(block.first), block.to_value());
            batch.put(
                keyspace,
                keys::body_key(block.number),
                summary::encode(rows)?,
            );
        }
        self.engine.commit(batch, Durability::Buffered)?;
        Ok(SummarizeStep::Marks(marks.len()))
    }

    /// Marks all buckets: the collection was made before there were summaries, or they were removed, or have another form.
    fn mark_all(&self, snapshot: &dyn Snapshot) -> Result<SummarizeStep> {
        let mut batch = WriteBatch::new();
        for item in snapshot.scan(self.summaries, &[], None, Direction::Forward)? {
            let (key, _) = item?;
            if !keys::is_mark(&key) {
                batch.delete(self.summaries, key.to_vec());
            }
            if batch.len() >= MARKED_AT_ONCE {
                self.engine
                    .commit(std::mem::take(&mut batch), Durability::Buffered)?;
            }
        }
        for item in snapshot.scan(self.keyspaces.series, &[], None, Direction::Forward)? {
            let (key, _) = item?;
            if let Some(id) = key.last_chunk::<12>() {
                keys::mark(&mut batch, self.keyspaces, *id);
            }
            if batch.len() >= MARKED_AT_ONCE {
                self.engine
                    .commit(std::mem::take(&mut batch), Durability::Buffered)?;
            }
        }
        batch.put(self.summaries, keys::COMPLETE.to_vec(), vec![summary::FORM]);
        self.engine.commit(batch, Durability::Buffered)?;
        Ok(SummarizeStep::Marks(0))
    }

    /// Returns the summaries of a block that are up to date. A damaged block is made again from its buckets.
    fn unmarked_rows(
        &self,
        stored: SummaryReader<'_>,
        listed: ListedBlock,
        marks: &[[u8; 12]],
    ) -> Result<Vec<BucketSummary>> {
        let kept = stored.block(listed).and_then(|block| block.summaries());
        let mut kept = match kept {
            Ok(kept) => kept,
            Err(_) => return self.summarize_between(stored.snapshot, listed, marks),
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
    fn next_number(&self, stored: SummaryReader<'_>) -> Result<u64> {
        let mut numbers = self
            .next_numbers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let number = match numbers.get(&self.summaries) {
            Some(last) => last + 1,
            None => stored.highest_number()? + 1,
        };
        numbers.insert(self.summaries, number);
        Ok(number)
    }
}

/// Returns the block that the summary of a bucket belongs to: one that holds its id, or the last before it if it has
/// room.
fn block_for(stored: SummaryReader<'_>, id: [u8; 12]) -> Result<Option<ListedBlock>> {
    let Some(block) = stored.block_before(id)? else {
        return Ok(None);
    };
    let has_room = block.last >= id || stored.block(block)?.rows.len() < ROWS_MAX;
    Ok(has_room.then_some(block))
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
        // Only numbers have a total: ids and times are not decoded for it.
        let total = match (min.is_number(), max.is_number()) {
            (true, true) => bucket.known_total_at(at).ok()?,
            _ => None,
        };
        columns.push(ColumnSummary {
            name: name.clone(),
            min: min.to_value(),
            max: max.to_value(),
            total,
            is_constant: constants.contains(name),
            stored: bucket.stored_column_at(at),
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
