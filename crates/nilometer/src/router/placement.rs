//! Where the documents of collections are.
//!
//! ```text
//! chunks    key ──► partition         where new buckets and documents of a sharded collection go, now
//! history   range ──► partition …     the partitions that may have any of a range: entries are only added
//! primary                             the partition of a collection that is not sharded
//! ```
//!
//! A read of a time series asks the partitions of the history; one of an ordinary collection those of the chunks. An entry is added before a write can follow it, so a read never misses a
//! document.

use std::collections::BTreeSet;
use std::sync::Arc;

use nilometer_bson::{DocRef, Value};

use super::moves::Passage;
use super::shard_key::{KeyBound, ShardKey};
use super::targets::{KeyRange, ranges_of};
use crate::catalog::Namespace;
use crate::error::{Error, ErrorCode, Result};
use crate::eval::matcher::MatchExpression;
use crate::operation::PlacementVersion;

/// Most chunks of one collection.
const CHUNKS_MAX: usize = 100_000;

/// Where the documents of a collection are.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    /// The partition of the collection while it is not sharded, and of its first chunk.
    pub(crate) primary: usize,
    /// Identifies the collection in `config`.
    pub(crate) uuid: [u8; 16],
    /// The number of the change that made the placement: later changes, of any collection, have greater ones.
    pub(crate) version: i64,
    /// How a sharded collection is divided.
    pub(crate) sharding: Option<Arc<Sharding>>,
}

/// How a collection is divided.
#[derive(Clone, Debug)]
pub(crate) struct Sharding {
    pub(crate) key: ShardKey,
    /// By their lower bounds; each ends where the next begins.
    pub(crate) chunks: Vec<Chunk>,
    /// Ranges and the partitions that had them.
    pub(super) history: Vec<HeldRange>,
    /// Partitions with documents that may have any key.
    pub(super) anywhere: BTreeSet<usize>,
    /// True if the shard key was declared to be unique.
    pub(crate) is_unique: bool,
    /// True if the balancer passes over the collection.
    pub(crate) is_exempt: bool,
    /// Counts the changes.
    pub(crate) version: i64,
    /// When a range was last assigned to another partition, in ms since 1970; 0 if never.
    pub(super) moved_ms: i64,
}

/// A range and a partition that has or had it.
#[derive(Clone, Debug)]
pub(super) struct HeldRange {
    pub(super) range: KeyRange,
    pub(super) partition: usize,
    /// When the range was assigned to it, in ms since 1970; 0 if unknown.
    pub(super) since_ms: i64,
}

/// A range that was assigned to another partition.
pub(crate) struct RangeMove<'s> {
    pub(crate) low: &'s KeyBound,
    pub(crate) high: &'s KeyBound,
    /// The partitions that had it before.
    pub(crate) from: BTreeSet<usize>,
    pub(crate) to: usize,
    pub(crate) at_ms: i64,
}

/// Time for which a driver may repeat a numbered write: a session that is not used for so long ends.
const REPEATED_FOR_MS: i64 = 30 * 60 * 1000;

/// A range of keys and the partition of what is new in it.
#[derive(Clone, Debug)]
pub(crate) struct Chunk {
    pub(crate) min: KeyBound,
    pub(crate) partition: usize,
}

impl Placement {
    /// Places a new collection in one partition.
    pub(crate) fn whole(primary: usize, uuid: [u8; 16]) -> Self {
        Self {
            primary,
            uuid,
            version: 0,
            sharding: None,
        }
    }

    /// Returns the version that a request which follows the placement names.
    pub(crate) fn version_of(&self, namespace: &Namespace) -> PlacementVersion {
        PlacementVersion {
            namespace: namespace.to_string(),
            number: self.version,
        }
    }

    /// Returns the partitions that may have documents which pass `filter`.
    pub(crate) fn targets(&self, filter: Option<&MatchExpression>) -> Vec<usize> {
        let Some(sharding) = &self.sharding else {
            return vec![self.primary];
        };
        let ranges = filter.and_then(|filter| ranges_of(&sharding.key, filter));
        if !sharding.key.is_timeseries() {
            return sharding.owners(ranges.as_deref());
        }
        let mut found = sharding.anywhere.clone();
        for HeldRange {
            range: held,
            partition,
            ..
        } in &sharding.history
        {
            let may_hold = ranges.as_ref().is_none_or(|ranges| {
                let meets = |range: &KeyRange| range.low <= held.high && held.low <= range.high;
                ranges.iter().any(meets)
            });
            if may_hold {
                found.insert(*partition);
            }
        }
        found.into_iter().collect()
    }

    /// Returns the partitions that have the collection.
    pub(crate) fn partitions(&self, all: usize) -> Vec<usize> {
        match self.sharding {
            None => vec![self.primary],
            Some(_) => (0..all).collect(),
        }
    }

    /// True if a document of an ordinary collection may have been in another partition when a write that is repeated at `now_ms` ran.
    pub(crate) fn has_moved_documents(&self, now_ms: i64) -> bool {
        let sharding = self.sharding.as_ref();
        sharding.is_some_and(|sharding| {
            !sharding.key.is_timeseries()
                && now_ms.saturating_sub(sharding.moved_ms) < REPEATED_FOR_MS
        })
    }

    /// Returns other partitions in which a write that is repeated at `now_ms` may have inserted the document before its range was
    /// assigned to another one.
    pub(crate) fn partitions_before(&self, document: DocRef<'_>, now_ms: i64) -> Vec<usize> {
        let Some(sharding) = &self.sharding else {
            return Vec::new();
        };
        let may_be_repeated = now_ms.saturating_sub(sharding.moved_ms) < REPEATED_FOR_MS;
        let Ok(key) = sharding.key.of(document) else {
            return Vec::new();
        };
        if !may_be_repeated {
            return Vec::new();
        }
        let target = sharding.chunk_of(&key).partition;
        let history = sharding.history.iter();
        let held = history.filter(|held| held.range.low <= key && key <= held.range.high);
        let held = held.map(|held| held.partition);
        let others: BTreeSet<usize> = held.filter(|partition| *partition != target).collect();
        others.into_iter().collect()
    }

    /// Returns the partition for a new document.
    pub(crate) fn partition_of(&self, document: DocRef<'_>) -> Result<usize> {
        match &self.sharding {
            None => Ok(self.primary),
            Some(sharding) => {
                let key = sharding.key.of(document)?;
                Ok(sharding.chunk_of(&key).partition)
            }
        }
    }
}

impl Sharding {
    /// Divides a collection by `key`. A collection with documents is one chunk in its primary; an empty one with a hashed
    /// first part has a chunk in each partition.
    pub(crate) fn new(
        key: ShardKey,
        primary: usize,
        spread_over: Option<usize>,
        since_ms: i64,
    ) -> Self {
        let (low, high) = key.whole();
        let held = |range, partition| HeldRange {
            range,
            partition,
            since_ms,
        };
        let mut new = Self {
            key,
            chunks: vec![Chunk {
                min: low.clone(),
                partition: primary,
            }],
            history: vec![held(KeyRange { low, high }, primary)],
            anywhere: BTreeSet::new(),
            is_unique: false,
            is_exempt: false,
            version: 1,
            moved_ms: 0,
        };
        let is_hashed = new.key.parts().first().is_some_and(|part| part.is_hashed);
        if let Some(count) = spread_over.filter(|count| is_hashed && *count > 1) {
            new.chunks.clear();
            new.history.clear();
            let step = u64::MAX / count as u64;
            for at in 0..count {
                let mut min = new.key.whole().0;
                if let Some(first) = min.0.first_mut().filter(|_| at > 0) {
                    let from = i128::from(i64::MIN) + i128::from(step) * at as i128;
                    *first = Value::Int64(i64::try_from(from).unwrap_or(i64::MAX));
                }
                let partition = (primary + at) % count;
                new.chunks.push(Chunk { min, partition });
            }
            for at in 0..count {
                let range = KeyRange {
                    low: new.min_of(at),
                    high: new.max_of(at),
                };
                new.history.push(held(range, new.chunks[at].partition));
            }
        }
        new
    }

    /// Returns the partitions whose chunks have keys of these ranges; `None` means all keys. A document of an ordinary
    /// collection is in the chunk of its key.
    fn owners(&self, ranges: Option<&[KeyRange]>) -> Vec<usize> {
        let last = self.chunks.len() - 1;
        let meets = |at: usize| {
            ranges.is_none_or(|ranges| {
                let (min, max) = (self.min_of(at), self.max_of(at));
                let ends_behind = |range: &KeyRange| range.low < max || at == last;
                let mut ranges = ranges.iter();
                ranges.any(|range| min <= range.high && ends_behind(range))
            })
        };
        let chunks = self.chunks.iter().enumerate();
        let found = chunks.filter(|(at, _)| meets(*at));
        let found: BTreeSet<usize> = found.map(|(_, chunk)| chunk.partition).collect();
        found.into_iter().collect()
    }

    fn number_of(&self, key: &KeyBound) -> usize {
        self.chunks
            .partition_point(|chunk| chunk.min <= *key)
            .saturating_sub(1)
    }

    fn chunk_of(&self, key: &KeyBound) -> &Chunk {
        &self.chunks[self.number_of(key)]
    }

    fn min_of(&self, at: usize) -> KeyBound {
        self.chunks[at].min.clone()
    }

    /// Returns the upper bound of a chunk.
    pub(crate) fn max_of(&self, at: usize) -> KeyBound {
        let next = self.chunks.get(at + 1);
        next.map_or_else(|| self.key.whole().1, |next| next.min.clone())
    }

    /// Divides the chunk that contains `at` there; fails if a chunk begins there.
    pub(crate) fn split(&mut self, at: KeyBound) -> Result<()> {
        let number = self.number_of(&at);
        if self.chunks[number].min == at {
            return Err(Error::bad_value("a chunk begins at this key already"));
        }
        if self.chunks.len() >= CHUNKS_MAX {
            return Err(Error::new(
                ErrorCode::ExceededMemoryLimit,
                format!("a collection has at most {CHUNKS_MAX} chunks"),
            ));
        }
        let partition = self.chunks[number].partition;
        self.chunks.insert(number + 1, Chunk { min: at, partition });
        self.version += 1;
        Ok(())
    }

    /// Lets what is new between two keys go to a partition.
    pub(crate) fn assign(
        &mut self,
        (low, high): (KeyBound, KeyBound),
        partition: usize,
        now_ms: i64,
    ) -> Result<()> {
        if low >= high {
            return Err(Error::bad_value("the range must not be empty"));
        }
        let end = self.key.whole().1;
        for bound in [&low, &high] {
            let begins = self.chunks.iter().any(|chunk| chunk.min == *bound);
            if !begins && *bound != end {
                self.split(bound.clone())?;
            }
        }
        for chunk in &mut self.chunks {
            if chunk.min >= low && chunk.min < high {
                chunk.partition = partition;
            }
        }
        if !self.continues_move(&low, &high, partition) {
            self.history.push(HeldRange {
                range: KeyRange { low, high },
                partition,
                since_ms: now_ms,
            });
        }
        self.moved_ms = now_ms;
        self.merge_chunks();
        self.version += 1;
        Ok(())
    }

    /// Extends the range that was assigned last if the new one is behind it and goes to the same partition: documents of a range
    /// move step by step.
    fn continues_move(&mut self, low: &KeyBound, high: &KeyBound, partition: usize) -> bool {
        let is_timeseries = self.key.is_timeseries();
        let last = self.history.last_mut();
        let before = last.filter(|last| {
            !is_timeseries && last.partition == partition && last.range.high == *low
        });
        let Some(before) = before else {
            return false;
        };
        before.range.high = high.clone();
        self.chunks.retain(|chunk| chunk.min != *low);
        true
    }

    /// Returns the chunks of a partition as passages to another one.
    pub(crate) fn passages(&self, from: usize, to: usize) -> Vec<Passage> {
        let own = (0..self.chunks.len()).filter(|at| self.chunks[*at].partition == from);
        let passage = |at| Passage {
            low: self.min_of(at),
            high: self.max_of(at),
            from,
            to,
        };
        own.map(passage).collect()
    }

    /// Returns the first part of a range that another partition has.
    pub(crate) fn first_passage(
        &self,
        (low, high): (&KeyBound, &KeyBound),
        to: usize,
    ) -> Option<Passage> {
        let parts = (0..self.chunks.len()).map(|at| {
            let (min, max) = (self.min_of(at), self.max_of(at));
            let from = self.chunks[at].partition;
            Passage {
                low: min.max(low.clone()),
                high: max.min(high.clone()),
                from,
                to,
            }
        });
        let mut parts = parts.filter(|part| part.low < part.high);
        parts.find(|part| part.from != to)
    }

    /// Returns for each chunk the partitions that had it and since when, in ms since 1970, the earliest first.
    pub(crate) fn chunk_histories(&self) -> Vec<Vec<(usize, i64)>> {
        let mut out = vec![Vec::new(); self.chunks.len()];
        for held in &self.history {
            let first = self.number_of(&held.range.low);
            let end = self
                .chunks
                .partition_point(|chunk| chunk.min < held.range.high);
            for chunk in out.get_mut(first..end).unwrap_or_default() {
                chunk.push((held.partition, held.since_ms));
            }
        }
        out
    }

    /// Returns the ranges that were assigned to another partition, the earliest first. Of an assignment of which the time is
    /// not known nothing is returned.
    pub(crate) fn moves(&self) -> Vec<RangeMove<'_>> {
        let mut owners: Vec<Option<usize>> = vec![None; self.chunks.len()];
        let mut out = Vec::new();
        for held in &self.history {
            let (low, high) = (&held.range.low, &held.range.high);
            let end = self.chunks.partition_point(|chunk| chunk.min < *high);
            let chunks = owners.get_mut(self.number_of(low)..end);
            let mut from = BTreeSet::new();
            for owner in chunks.unwrap_or_default() {
                from.extend(owner.replace(held.partition));
            }
            if !from.is_empty() && held.since_ms > 0 {
                out.push(RangeMove {
                    low,
                    high,
                    from,
                    to: held.partition,
                    at_ms: held.since_ms,
                });
            }
        }
        out
    }

    /// Returns the bounds of the chunk that contains a key.
    pub(crate) fn chunk_around(&self, key: &KeyBound) -> (KeyBound, KeyBound) {
        let at = self.number_of(key);
        (self.min_of(at), self.max_of(at))
    }

    /// Returns the lower bound of the chunk in front of a bound.
    pub(crate) fn chunk_below(&self, bound: &KeyBound) -> KeyBound {
        let before = self.chunks.iter().rev().find(|chunk| chunk.min < *bound);
        before.map_or_else(|| self.key.whole().0, |chunk| chunk.min.clone())
    }

    /// Notes that documents of these partitions may have any key. True if that is new.
    pub(crate) fn note_anywhere(&mut self, partitions: &[usize]) -> bool {
        let before = self.anywhere.len();
        self.anywhere.extend(partitions);
        let is_new = self.anywhere.len() > before;
        self.version += i64::from(is_new);
        is_new
    }

    /// True if it is known that documents of these partitions may have any key.
    pub(crate) fn may_have_any_key(&self, partitions: &[usize]) -> bool {
        let mut partitions = partitions.iter();
        partitions.all(|partition| self.anywhere.contains(partition))
    }

    fn merge_chunks(&mut self) {
        // Neighbours that clients split stay apart: only repeated bounds go.
        self.chunks
            .dedup_by(|later, earlier| later.min == earlier.min);
    }
}
