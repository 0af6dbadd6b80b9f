//! Finds buckets by an index.
//!
//! ```text
//! bounds ─► entries of the index ─► distinct ids, ascending ─► buckets in the order of their ids
//!           buckets with a tail ──┘ (dynamic indexes)
//! ```
//!
//! A scan collects all ids in one snapshot before it reads the first bucket. Buckets keep their ids when they are folded
//! or sealed, so the scan neither skips nor repeats a bucket that exists throughout, and sees those that existed when it
//! began. The order of the buckets is that of their ids for every index; the operators above rely on it.
//!
//! If a query needs the order of the index, an [`IndexStream`] reads its entries in chunks instead: a bucket keeps its
//! place in an index of metadata and time.
//!
//! Only entries within the bounds are read: after a key outside of them the scan seeks the next key that may be inside.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use nilometer_bson::key_string::{self, KeyOrder};
use nilometer_storage::{Bytes, Direction, KeyspaceId, Snapshot, seek};

use super::{BucketRange, BucketReader};
use crate::catalog::Collection;
use crate::error::{Error, ErrorCode, Result};
use crate::index::buckets::{
    BucketIndex, IndexKeyFilter, KeyCount, KeyLimit, KeyPosition, ScannedBuckets,
};
use crate::timeseries::cache::sealed_bucket_list::KeyspaceVersions;
use crate::timeseries::format::key_range::{KeyRange, end_of};
use crate::timeseries::format::keyspaces::BucketKeyspaces;
use crate::timeseries::format::tail;

/// Length of a bucket's id, the last part of every entry, in bytes.
const ID_BYTES: usize = 12;

/// Ids to collect, at most: 12 MiB. A scan that would find more reads all buckets instead.
pub const CANDIDATES_MAX: usize = 1 << 20;

/// Entries of one bucket's tail to step over before the scan seeks the next bucket.
const TAIL_STEPS_MAX: usize = 4;

/// Entries to step over before a seek.
pub(crate) const STEPS_MAX: usize = 8;

/// Seeks to perform directly after steps that did not reach the target: where many entries lie between two wanted values,
/// the next distance is long as well.
const SEEKS_AFTER_STEPS: usize = 16;

/// Entries after which a count is estimated again.
const ESTIMATE_EVERY: u64 = 16;

/// Entries outside the bounds that are passed before they limit a count, at least.
const PASSED_MIN: u64 = 128;

/// A count passes one entry outside the bounds for so many that it may count within them. Reading an entry costs as much as testing
/// three or four buckets of a scan: a count that leads to a scan costs at most a quarter of it.
const COUNTED_PER_PASSED: u64 = 3;

/// Values whose entries are counted before the others are estimated, at least.
const ESTIMATE_VALUES_MIN: usize = 8;

/// True if a count of `count` entries, at this progress of the wanted values, lets expect a quarter more than `limit`.
///
/// A quarter of the values must be counted. Where the others have no entries at all, the count then stops with nearly a third
/// of `limit`, so the scan that is chosen instead costs at most about three times what the index would.
fn exceeds_limit(count: u64, progress: Option<(usize, usize)>, limit: u64) -> bool {
    let Some((before, all)) = progress else {
        return false;
    };
    // The value of the last entry counts as whole.
    let counted = before + 1;
    counted >= ESTIMATE_VALUES_MIN.max(all / 4)
        && u128::from(count) * all as u128 * 4 > u128::from(limit) * counted as u128 * 5
}

/// An iterator over the wanted entries of an index.
pub(crate) struct IndexIterator<'w> {
    snapshot: &'w dyn Snapshot,
    keyspace: KeyspaceId,
    wanted: &'w dyn IndexKeyFilter,
    end: Option<Vec<u8>>,
    scan: nilometer_storage::Scan,
    /// Keys examined, wanted or not.
    pub(crate) examined: u64,
    /// Keys to examine, without those stepped over before a seek. The iterator pauses there: it returns no entry, and is not done.
    examined_max: u64,
    /// The next key that may be wanted, and the steps made towards it.
    seek: Option<(Vec<u8>, usize)>,
    /// Seeks to perform directly, without stepping first.
    direct_seeks: usize,
    done: bool,
}

impl<'w> IndexIterator<'w> {
    /// Returns an iterator over the wanted entries, ascending.
    pub(crate) fn new(
        snapshot: &'w dyn Snapshot,
        keyspace: KeyspaceId,
        wanted: &'w dyn IndexKeyFilter,
    ) -> Result<Self> {
        let end = wanted.end();
        let start = wanted.start();
        let scan = snapshot.scan(keyspace, &start, end.as_deref(), Direction::Forward)?;
        Ok(Self {
            snapshot,
            keyspace,
            wanted,
            end,
            scan,
            examined: 0,
            examined_max: u64::MAX,
            seek: None,
            direct_seeks: 0,
            done: false,
        })
    }

    /// Moves to the first entry at or after `key`.
    fn seek_to(&mut self, key: &[u8]) -> Result<()> {
        self.seek = None;
        if self.end.as_deref().is_some_and(|end| end <= key) {
            self.done = true;
            return Ok(());
        }
        let (snapshot, end) = (self.snapshot, self.end.as_deref());
        seek(&mut self.scan, snapshot, self.keyspace, key, end)?;
        Ok(())
    }

    /// Returns the next wanted entry: its key followed by the bucket's id, and its type bits.
    pub(crate) fn next(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        while !self.done {
            if self.examined >= self.examined_max {
                return Ok(None);
            }
            let Some(item) = self.scan.next() else {
                break;
            };
            let (entry, type_bits) = item?;
            if let Some((target, steps)) = &mut self.seek {
                if &*entry < target.as_slice() {
                    *steps += 1;
                    if *steps > STEPS_MAX {
                        let target = std::mem::take(target);
                        self.direct_seeks = SEEKS_AFTER_STEPS;
                        self.seek_to(&target)?;
                    }
                    continue;
                }
                self.seek = None;
            }
            self.examined += 1;
            let (key, _) = split(&entry)?;
            match self.wanted.position(key)? {
                KeyPosition::Inside => return Ok(Some((entry, type_bits))),
                KeyPosition::Seek(target) if self.direct_seeks > 0 => {
                    self.direct_seeks -= 1;
                    self.seek_to(&target)?;
                }
                KeyPosition::Seek(target) => self.seek = Some((target, 0)),
                KeyPosition::Past => break,
            }
        }
        self.done = true;
        Ok(None)
    }
}

/// Splits an entry into the key string and the bucket's id.
pub(crate) fn split(entry: &[u8]) -> Result<(&[u8], [u8; ID_BYTES])> {
    entry.split_last_chunk().map_or_else(
        || {
            Err(Error::new(
                ErrorCode::DataCorruptionDetected,
                "an index entry is too short to name a bucket",
            ))
        },
        |(key, id)| Ok((key, *id)),
    )
}

/// Returns the first `components` components of a key string.
pub(crate) fn prefix(key: &[u8], order: KeyOrder, components: usize) -> Result<&[u8]> {
    let rest = key_string::skip(key, order, components).map_err(|error| {
        Error::new(
            ErrorCode::DataCorruptionDetected,
            format!("an index entry cannot be read: {error}"),
        )
    })?;
    Ok(key.get(..key.len() - rest.len()).unwrap_or(key))
}

/// Buckets that may hold matching measurements.
#[derive(Debug, Default)]
pub struct BucketCandidates {
    /// Distinct ids, ascending.
    pub ids: Vec<[u8; ID_BYTES]>,
    /// Keys examined.
    pub keys_examined: u64,
}

/// The buckets that a scan reads.
pub(crate) enum BucketSelection {
    /// All in the range.
    All,
    /// These ids; the next one is the last.
    Listed(Vec<[u8; ID_BYTES]>),
    /// These ids, which are close together; the next one is the last.
    Latest(Vec<[u8; ID_BYTES]>),
    /// Those of an index, in its order.
    Streamed(IndexStream),
}

/// The buckets of an index in its order, read in chunks.
pub struct IndexStream {
    pub(super) keyspace: KeyspaceId,
    low: Vec<u8>,
    high: Option<Vec<u8>>,
    /// The entries to return; `None` for all between `low` and `high`.
    wanted: Option<Arc<dyn IndexKeyFilter>>,
    range: BucketRange,
    backward: bool,
    count: Box<dyn Fn(u64) + Send>,
}

impl IndexStream {
    /// Returns the wanted entries of `index`, descending if `backward`.
    pub fn new(
        index: &BucketIndex,
        wanted: &Arc<dyn IndexKeyFilter>,
        (range, backward): (BucketRange, bool),
        count: Box<dyn Fn(u64) + Send>,
    ) -> Self {
        Self {
            wanted: Some(Arc::clone(wanted)),
            backward,
            ..Self::contiguous(index, &**wanted, range, count)
        }
    }

    /// Returns all entries of `index` from the first wanted one to the last: those of one series, or of one combination of the
    /// values before the time. Their order is that of the ids, which begin with the start of the bucket.
    pub fn contiguous(
        index: &BucketIndex,
        wanted: &dyn IndexKeyFilter,
        range: BucketRange,
        count: Box<dyn Fn(u64) + Send>,
    ) -> Self {
        Self {
            keyspace: index.stored.keyspace,
            low: wanted.start(),
            high: wanted.end(),
            wanted: None,
            range,
            backward: range.backward,
            count,
        }
    }

    fn is_wanted(&self, key: &[u8]) -> Result<bool> {
        Ok(match &self.wanted {
            Some(wanted) => matches!(wanted.position(key)?, KeyPosition::Inside),
            None => true,
        })
    }

    /// Returns the next ids, at most `at_most`; none at the end.
    pub(crate) fn next(
        &mut self,
        snapshot: &dyn Snapshot,
        at_most: usize,
    ) -> Result<Vec<[u8; ID_BYTES]>> {
        let direction = match self.backward {
            true => Direction::Backward,
            false => Direction::Forward,
        };
        let scan = snapshot.scan(self.keyspace, &self.low, self.high.as_deref(), direction)?;
        let mut found = Vec::new();
        let mut last = None;
        let mut examined = 0;
        for item in scan {
            let (entry, _) = item?;
            examined += 1;
            let (key, id) = split(&entry)?;
            if self.range.contains(id) && self.is_wanted(key)? {
                found.push(id);
            }
            last = Some(entry);
            if found.len() >= at_most {
                break;
            }
        }
        (self.count)(examined);
        match (last, self.backward) {
            (Some(last), true) => self.high = Some(last.to_vec()),
            (Some(last), false) => self.low = [&*last, &[0]].concat(),
            (None, _) => {}
        }
        Ok(found)
    }
}

impl BucketReader {
    /// Returns the buckets that an index finds in a range of ids, or `None` if there are more than [`CANDIDATES_MAX`]. `counted` is
    /// the result of [`BucketReader::count_keys`]; the index is not read again if it has the same version.
    pub fn candidates(
        &self,
        collection: &Collection,
        index: &BucketIndex,
        (wanted, counted): (&dyn IndexKeyFilter, Option<&ScannedBuckets>),
        range: BucketRange,
    ) -> Result<Option<BucketCandidates>> {
        let Some(keyspaces) = BucketKeyspaces::of(collection) else {
            return Ok(Some(BucketCandidates::default()));
        };
        let snapshot = self.engine.snapshot()?;
        let mut found = BucketCandidates::default();
        let keyspace = index.stored.keyspace;
        let counted = counted.filter(|counted| {
            counted.keyspace == keyspace && Some(counted.version) == snapshot.version(keyspace)
        });
        if let Some(counted) = counted {
            let within = counted.ids.iter().filter(|id| range.contains(**id));
            found.ids.extend(within);
            found.keys_examined = counted.keys_examined;
        } else {
            let view = self.index_view(&*snapshot, keyspace)?;
            let mut entries = IndexIterator::new(&view, keyspace, wanted)?;
            while let Some((entry, _)) = entries.next()? {
                let (_, id) = split(&entry)?;
                if range.contains(id) {
                    found.ids.push(id);
                }
                if found.ids.len() > CANDIDATES_MAX {
                    return Ok(None);
                }
            }
            found.keys_examined = entries.examined;
        }
        if !index.is_static() {
            match self.few_unsealed(&*snapshot, keyspaces)? {
                Some(few) => {
                    let within = few.into_iter().filter(|id| range.contains(*id));
                    found.ids.extend(within);
                }
                None => buckets_with_tail(&*snapshot, keyspaces, range, |id| found.ids.push(id))?,
            }
        }
        found.ids.sort_unstable();
        found.ids.dedup();
        Ok((found.ids.len() <= CANDIDATES_MAX).then_some(found))
    }

    /// Counts the wanted entries of an index up to `limit`. Stops earlier if those counted show that there are more
    /// ([`exceeds_limit`]).
    pub fn count_keys(
        &self,
        index: &BucketIndex,
        wanted: &dyn IndexKeyFilter,
        limit: &mut KeyLimit<'_>,
    ) -> Result<KeyCount> {
        let snapshot = self.engine.snapshot()?;
        let keyspace = index.stored.keyspace;
        let version = snapshot.version(keyspace);
        let view = self.index_view(&*snapshot, keyspace)?;
        let mut entries = IndexIterator::new(&view, keyspace, wanted)?;
        let (mut ids, mut count) = (Vec::new(), 0);
        loop {
            let passed_max = PASSED_MIN.max(limit.keys() / COUNTED_PER_PASSED);
            entries.examined_max = match count < limit.keys() {
                true => count.saturating_add(passed_max),
                false => 0,
            };
            let Some((entry, _)) = entries.next()? else {
                if entries.done {
                    break;
                }
                if !limit.raise()? {
                    count = limit.keys();
                    break;
                }
                continue;
            };
            count += 1;
            let (key, id) = split(&entry)?;
            if ids.len() < CANDIDATES_MAX {
                ids.push(id);
            }
            let exceeds = |limit: &KeyLimit<'_>| {
                count % ESTIMATE_EVERY == 0
                    && exceeds_limit(count, wanted.progress(key), limit.keys())
            };
            if exceeds(limit) {
                limit.raise()?;
                if exceeds(limit) {
                    count = limit.keys();
                    break;
                }
            }
        }
        let complete = version.filter(|_| entries.done && ids.len() < CANDIDATES_MAX);
        Ok(KeyCount {
            keys: count.max(entries.examined / 2),
            scanned: complete.map(|version| {
                Arc::new(ScannedBuckets {
                    keyspace,
                    version,
                    ids,
                    keys_examined: entries.examined,
                })
            }),
        })
    }

    /// Estimates how many buckets have ids between two times in seconds. It assumes that they are spread evenly over the time from
    /// the first to the end of the last, as one that began an hour ago may still grow, and that those written since this range was
    /// read are the latest.
    pub fn clustered_estimate(
        &self,
        collection: &Collection,
        id_min: Option<u32>,
        id_max: Option<u32>,
    ) -> Result<u64> {
        let (Some(keyspaces), Some(options)) =
            (BucketKeyspaces::of(collection), &collection.timeseries)
        else {
            return Ok(0);
        };
        let all = self.engine.keys_estimate(keyspaces.series)?;
        if id_min.is_none() && id_max.is_none() {
            return Ok(all);
        }
        let Some((known, (first, last))) = self.start_range(keyspaces, all)? else {
            return Ok(0);
        };
        let span_seconds = u64::try_from(options.span_seconds).unwrap_or(0);
        let newer = match id_max {
            Some(max) if max < last => 0,
            _ => all.saturating_sub(known),
        };
        let (first, last) = (u64::from(first), u64::from(last.max(first)));
        let end = last + span_seconds;
        let low = id_min.map_or(first, |min| first.max(min.into()));
        let high = id_max.map_or(end, |max| end.min(max.into()));
        if low > high {
            // Older buckets may have been added since, too.
            return Ok(newer.max(all / START_RANGE_SLACK));
        }
        let (within, span) = (high - low + 1, end - first + 1);
        let share = u128::from(all) * u128::from(within) / u128::from(span);
        let share = u64::try_from(share).unwrap_or(u64::MAX).max(1);
        Ok(share.saturating_add(newer))
    }
}

/// The first and the last start of buckets in seconds, by the keyspace of sealed documents, and the estimated number of buckets
/// when they were read.
pub(crate) type StartRanges = Mutex<HashMap<KeyspaceId, (u64, (u32, u32))>>;

/// Collections with a cached range.
const START_RANGES_MAX: usize = 10_000;

/// The range is read again when the number of buckets has changed by one part in this many.
const START_RANGE_SLACK: u64 = 16;

impl BucketReader {
    /// Returns the start of the first and of the last bucket in seconds, and the number of buckets when they were read: from the cache
    /// if that has not changed much, as to read them the iterator skips the tombstones of tails.
    fn start_range(
        &self,
        keyspaces: BucketKeyspaces,
        all: u64,
    ) -> Result<Option<(u64, (u32, u32))>> {
        let lock = || {
            let ranges = self.start_ranges.lock();
            ranges.unwrap_or_else(PoisonError::into_inner)
        };
        if let Some((buckets, range)) = lock().get(&keyspaces.sealed)
            && buckets.abs_diff(all) <= buckets / START_RANGE_SLACK
        {
            return Ok(Some((*buckets, *range)));
        }
        let range = self.find_start_range(keyspaces)?;
        if let Some(range) = range {
            let mut ranges = lock();
            if ranges.len() >= START_RANGES_MAX {
                ranges.clear();
            }
            ranges.insert(keyspaces.sealed, (all, range));
        }
        Ok(range.map(|range| (all, range)))
    }

    /// Returns the buckets that have an open document or a tail, ascending; `None` if there may be many.
    fn few_unsealed(
        &self,
        snapshot: &dyn Snapshot,
        keyspaces: BucketKeyspaces,
    ) -> Result<Option<Vec<[u8; ID_BYTES]>>> {
        let versions = KeyspaceVersions::of(snapshot, keyspaces);
        let all = (&KeyRange::all(), 1);
        self.unsealed_within(snapshot, keyspaces, versions, all)
    }

    fn find_start_range(&self, keyspaces: BucketKeyspaces) -> Result<Option<(u32, u32)>> {
        let snapshot = self.engine.snapshot()?;
        let edge = |keyspace, direction| -> Result<Option<u32>> {
            let first = snapshot.scan(keyspace, &[], None, direction)?.next();
            let key = first.transpose()?.map(|(key, _)| key);
            Ok(key.and_then(|key| key.first_chunk().copied().map(u32::from_be_bytes)))
        };
        // Folded tails and sealed documents leave tombstones, which a scan of the front skips one by one: the oldest buckets
        // are among the sealed ones, if there are any.
        let mut first = edge(keyspaces.sealed, Direction::Forward)?;
        let mut last = edge(keyspaces.sealed, Direction::Backward)?;
        match self.few_unsealed(&*snapshot, keyspaces)? {
            Some(few) => {
                let start = |id: &[u8; ID_BYTES]| id.first_chunk().copied().map(u32::from_be_bytes);
                first = first.or_else(|| start(few.first()?));
                last = last.max(few.last().and_then(start));
            }
            None => {
                for keyspace in [keyspaces.open, keyspaces.tail] {
                    if first.is_none() {
                        first = edge(keyspace, Direction::Forward)?;
                    }
                    last = last.max(edge(keyspace, Direction::Backward)?);
                }
            }
        }
        Ok(first.zip(last))
    }
}

/// Calls `found` with the id of every bucket that has a tail.
pub(crate) fn buckets_with_tail(
    snapshot: &dyn Snapshot,
    keyspaces: BucketKeyspaces,
    range: BucketRange,
    mut found: impl FnMut([u8; ID_BYTES]),
) -> Result<()> {
    let start = range.min.map(|id| id.to_vec()).unwrap_or_default();
    let mut scan = snapshot.scan(keyspaces.tail, &start, None, Direction::Forward)?;
    let mut last = None;
    let mut steps = 0;
    while let Some(item) = scan.next() {
        let (id, _) = tail::split_key(&item?.0)?;
        if range.max.is_some_and(|max| id > max) {
            break;
        }
        if last == Some(id) {
            steps += 1;
            if steps > TAIL_STEPS_MAX {
                seek(&mut scan, snapshot, keyspaces.tail, &end_of(id), None)?;
                steps = 0;
            }
            continue;
        }
        last = Some(id);
        steps = 0;
        found(id);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::exceeds_limit;

    #[test]
    fn a_count_ends_early_only_if_a_quarter_of_the_values_shows_it() {
        // 13 entries for each of 32 values: 416.
        let after =
            |values: usize, limit| exceeds_limit(13 * values as u64, Some((values - 1, 32)), limit);
        assert!(after(8, 300) && after(20, 300));
        assert!(!after(7, 300), "too few values");
        assert!(!after(8, 400) && !after(31, 400), "nearly the limit");
        assert!(!exceeds_limit(1_000, None, 300));
        assert!(!exceeds_limit(1_000, Some((200, 1_000)), 300));
        assert!(exceeds_limit(1_000, Some((249, 1_000)), 300));
    }
}
