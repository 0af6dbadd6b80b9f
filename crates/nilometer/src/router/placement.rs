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

/// Entries of a history after which the older half is joined, and again after each further so many of [`HISTORY_STEP`].
const HISTORY_MAX: usize = 10_000;

/// Entries between two such joins.
const HISTORY_STEP: usize = 1000;

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
        let held = held.chain(sharding.anywhere.iter().copied());
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

    /// Adds parts to the shard key. What is where stays the same: bounds get the least value of each new part, the end of all keys the
    /// greatest.
    pub(crate) fn refine(&mut self, key: ShardKey) {
        let end = self.key.whole().1;
        let longer = |bound: &mut KeyBound| {
            let rest = match *bound == end {
                true => Value::MaxKey,
                false => Value::MinKey,
            };
            bound.0.resize(key.parts().len(), rest);
        };
        let chunks = self.chunks.iter_mut();
        chunks.for_each(|chunk| longer(&mut chunk.min));
        for held in &mut self.history {
            longer(&mut held.range.low);
            longer(&mut held.range.high);
        }
        self.key = key;
        self.version += 1;
    }

    /// Divides a time series by another key. What it has may be in all partitions that had any.
    pub(crate) fn resharded(
        &self,
        key: ShardKey,
        (primary, count): (usize, usize),
        now_ms: i64,
    ) -> Self {
        let mut anywhere = self.anywhere.clone();
        anywhere.extend(self.history.iter().map(|held| held.partition));
        Self {
            anywhere,
            is_exempt: self.is_exempt,
            version: self.version + 1,
            moved_ms: now_ms,
            ..Self::new(key, primary, Some(count), now_ms)
        }
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

    /// Makes one chunk of those between two bounds. They must be bounds of chunks, and all chunks between them of one partition.
    pub(crate) fn merge(&mut self, low: &KeyBound, high: &KeyBound) -> Result<()> {
        let first = self.chunks.iter().position(|chunk| chunk.min == *low);
        let last = (0..self.chunks.len()).find(|at| self.max_of(*at) == *high);
        let (Some(first), Some(last)) = (first, last) else {
            return Err(Error::bad_value(
                "the bounds of merged chunks are the least one of the first and the greatest one of the last",
            ));
        };
        let is_refused = |text| Err(Error::new(ErrorCode::IllegalOperation, text));
        if first >= last {
            return is_refused("between these bounds there are no two chunks to merge");
        }
        let merged = &self.chunks[first..=last];
        let mut pairs = merged.windows(2);
        if !pairs.all(|pair| pair[0].partition == pair[1].partition) {
            return is_refused("the chunks between these bounds are in several shards");
        }
        self.chunks.drain(first + 1..=last);
        self.version += 1;
        Ok(())
    }

    /// Makes one chunk of each run of neighbouring ones of a partition, as long as no more than `most` chunks have been merged.
    pub(crate) fn merge_all(&mut self, partition: usize, most: usize) {
        let mut merged = 0;
        let before = self.chunks.len();
        self.chunks.dedup_by(|later, earlier| {
            let is_next = later.partition == partition && earlier.partition == partition;
            let is_merged = is_next && merged + 1 < most;
            merged += usize::from(is_merged);
            is_merged
        });
        self.version += i64::from(self.chunks.len() < before);
    }

    /// True if neighbouring chunks are of one partition.
    pub(crate) fn has_mergeable(&self) -> bool {
        let mut pairs = self.chunks.windows(2);
        pairs.any(|pair| pair[0].partition == pair[1].partition)
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
        if self.history.len() >= HISTORY_MAX && self.history.len().is_multiple_of(HISTORY_STEP) {
            self.join_history(self.history.len() / 2);
        }
        self.merge_chunks();
        self.version += 1;
        Ok(())
    }

    /// Joins the ranges of each partition in the first entries of the history. What may be where stays the same; when it was assigned
    /// is forgotten.
    fn join_history(&mut self, first: usize) {
        let mut older: Vec<HeldRange> = self.history.drain(..first).collect();
        older.sort_by(|a, b| {
            let by_partition = a.partition.cmp(&b.partition);
            by_partition.then_with(|| a.range.low.cmp(&b.range.low))
        });
        let mut joined: Vec<HeldRange> = Vec::new();
        for held in older {
            let before = joined.last_mut();
            let before = before.filter(|before| {
                before.partition == held.partition && held.range.low <= before.range.high
            });
            match before {
                Some(before) if before.range.high < held.range.high => {
                    before.range.high = held.range.high;
                }
                Some(_) => {}
                None => joined.push(HeldRange {
                    since_ms: 0,
                    ..held
                }),
            }
        }
        joined.append(&mut self.history);
        self.history = joined;
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

#[cfg(test)]
mod tests {
    use nilometer_bson::doc;
    use nilometer_storage::testing::random::Random;

    use super::*;
    use crate::catalog::TimeseriesOptions;

    fn ranged() -> Sharding {
        let options = doc! {"timeField": "t", "metaField": "m"};
        let options = TimeseriesOptions::parse(options.as_ref()).unwrap();
        let key = ShardKey::parse(doc! {"m": 1}.as_ref(), Some(&options)).unwrap();
        Sharding::new(key, 0, None, 1)
    }

    fn bound(at: u64) -> KeyBound {
        KeyBound(vec![Value::Int64(i64::try_from(at).unwrap())])
    }

    /// Returns the partitions that may have a key by the history.
    fn holders(sharding: &Sharding, key: &KeyBound) -> BTreeSet<usize> {
        let history = sharding.history.iter();
        let held = history.filter(|held| held.range.low <= *key && *key <= held.range.high);
        held.map(|held| held.partition).collect()
    }

    #[test]
    fn a_history_that_is_joined_says_the_same() {
        let mut random = Random::new(5);
        let (mut sharding, mut whole) = (ranged(), ranged());
        for step in 0..400 {
            let low = random.below(95);
            let range = (bound(low), bound(low + 1 + random.below(5)));
            let to = usize::try_from(random.below(6)).unwrap();
            for sharding in [&mut sharding, &mut whole] {
                sharding.assign(range.clone(), to, 1000 + step).unwrap();
            }
            if step % 100 == 99 {
                let before = sharding.history.len();
                sharding.join_history(before / 2);
                assert!(sharding.history.len() < before);
            }
            for key in (0..101).map(bound) {
                assert_eq!(holders(&sharding, &key), holders(&whole, &key), "{step}");
            }
        }
        assert!(sharding.history.len() < whole.history.len());
    }

    #[test]
    fn a_history_has_an_end() {
        let mut sharding = ranged();
        for step in 0..12_000_u64 {
            let low = step % 10;
            let to = usize::try_from(step % 7).unwrap();
            let range = (bound(low), bound(low + 1));
            sharding.assign(range, to, 1).unwrap();
        }
        assert!(
            sharding.history.len() <= HISTORY_MAX,
            "{}",
            sharding.history.len()
        );
    }
}
