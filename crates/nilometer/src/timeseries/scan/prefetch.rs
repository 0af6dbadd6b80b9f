//! Opens buckets before a reader requests them: those that were sealed lately, and the newest ones after an opening.
//!
//! ```text
//! maintenance seals a bucket ─► PrefetchQueue ─► none sealed for a tick ─► newest first: open into the cache
//!                                                                          newest first: decode columns
//!                                                                          newest first: blocks of summaries
//! the database was opened ─► small indexes, newest buckets of each series, summaries, buckets, columns, `_id`s, while there is time
//! ```
//!
//! Most queries read the newest measurements, and opening a bucket is most of the cost of a short query that is the first to
//! read it. While buckets are being sealed nothing is prefetched: writers need the processor, and newer buckets follow. The decoded
//! columns are those that readers requested of other buckets with the same columns
//! ([`ColumnNames::requested`](crate::timeseries::cache::interner::ColumnNames::requested)); decision 0015 gives the reason. A prefetch
//! is an ordinary scan from the newest bucket of the collection to the oldest pending one, so it also fills the list of sealed buckets.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nilometer_storage::Direction;

use super::summary_reader::{DIRECTORY_BLOCKS_MAX, SummaryReader};
use super::{BucketRange, BucketReader};
use crate::catalog::Collection;
use crate::error::Result;
use crate::index::buckets::BucketIndex;
use crate::timeseries::cache::index_entries::INDEX_ENTRIES_MAX;
use crate::timeseries::cache::opened_bucket::StoredBucket;
use crate::timeseries::cache::prefetch::PendingRange;
use crate::timeseries::format::key_range::KeyRange;
use crate::timeseries::format::keyspaces::BucketKeyspaces;

/// Buckets to open for one collection, at most. Late measurements seal buckets that lie far apart, with others between
/// them.
const OPENED_MAX: usize = 8192;

/// Buckets to open for each pending one, at most.
const OPENED_PER_PENDING_MAX: usize = 2;

/// One part in this many of the cache is left to what readers request. Unread buckets are evicted first, so it can be small.
const RESERVED_SHARE: usize = 8;

/// The share that an opening leaves. No reader has asked for anything yet, so the share is larger.
const RESERVED_SHARE_OF_OPENING: usize = 2;

/// Blocks of summaries that are read at a time.
const SUMMARY_BLOCKS_AT_A_TIME: usize = 16;

/// Blocks of summaries to read for pending buckets of one collection, at most.
const SUMMARY_BLOCKS_MAX: usize = 1024;

/// The time for that: the thread has other work.
const SUMMARIES_TIME: Duration = Duration::from_millis(100);

/// The time of an opening that is left, to be shared by collections.
struct SharedTime {
    ends: Instant,
}

impl SharedTime {
    /// Returns when the first of `collections` has used its share.
    fn share(&self, collections: usize) -> Instant {
        let now = Instant::now();
        let left = self.ends.saturating_duration_since(now);
        now + left / u32::try_from(collections.max(1)).unwrap_or(u32::MAX)
    }
}

impl BucketReader {
    /// Opens pending buckets, decodes columns of theirs, and reads their summaries, if none was sealed since the last call and the cache
    /// has room.
    /// `collection_of` returns the collection with a UUID, `None` if it was dropped. Errors are left to readers.
    pub(crate) fn prefetch(
        self: &Arc<Self>,
        collection_of: impl Fn([u8; 16]) -> Option<Arc<Collection>>,
    ) {
        let summaries = self.cache.prefetch.summaries();
        let has_room = || self.cache.buckets.has_room(RESERVED_SHARE);
        for (collection, PendingRange { oldest, count }) in self.cache.prefetch.take() {
            let Some(collection) = collection_of(collection) else {
                continue;
            };
            if has_room() {
                let at_most = (count * OPENED_PER_PENDING_MAX).min(OPENED_MAX);
                let opened = self.open_newest(&collection, Some(oldest), at_most, &has_room);
                decode_columns(&opened, StoredBucket::decode_requested, &has_room);
            }
        }
        for (uuid, oldest) in summaries {
            let is_read = match collection_of(uuid) {
                Some(collection) => self.read_newest_summaries(&collection, oldest),
                None => Ok(true),
            };
            if is_read.unwrap_or(true) {
                self.cache.prefetch.remove_summaries(uuid);
            }
        }
    }

    /// Reads what queries of the newest measurements need, for at most `at_most`: of each collection with its indexes the newest
    /// buckets of each series, summaries and buckets, and in the time that is left columns. Errors are left to readers.
    pub(crate) fn prefetch_newest(
        self: &Arc<Self>,
        collections: &[(Arc<Collection>, Vec<Arc<BucketIndex>>)],
        at_most: Duration,
    ) {
        let time = SharedTime {
            ends: Instant::now() + at_most,
        };
        let has_room = || self.cache.buckets.has_room(RESERVED_SHARE_OF_OPENING);
        let mut opened = Vec::with_capacity(collections.len());
        for (at, (collection, indexes)) in collections.iter().enumerate() {
            let ends = time.share(collections.len() - at);
            let goes_on = || Instant::now() < ends;
            for index in indexes {
                let _ = self.read_index(collection, index, &goes_on);
            }
            let _ = self.read_summaries(collection, &goes_on);
            let goes_on = || goes_on() && has_room();
            opened.push(match goes_on() {
                true => self.open_newest(collection, None, OPENED_MAX, &goes_on),
                false => Vec::new(),
            });
        }
        // Whole documents need the column of `_id`, too, which aggregations rarely read: it comes last.
        let decoders: [Decoder; 2] = [StoredBucket::decode_requested, StoredBucket::decode_all];
        for decode in decoders {
            for (at, buckets) in opened.iter().enumerate() {
                let ends = time.share(opened.len() - at);
                decode_columns(buckets, decode, &|| Instant::now() < ends && has_room());
            }
        }
    }

    /// Opens the newest buckets with ids from `oldest` on, at most `at_most`, while it `goes_on`.
    fn open_newest(
        self: &Arc<Self>,
        collection: &Arc<Collection>,
        oldest: Option<[u8; 12]>,
        at_most: usize,
        goes_on: &dyn Fn() -> bool,
    ) -> Vec<Arc<StoredBucket>> {
        let range = BucketRange {
            min: oldest,
            max: None,
            backward: true,
        };
        let Ok(scan) = self.scan(collection, range) else {
            return Vec::new();
        };
        let opened = scan.take(at_most);
        let opened = opened.map_while(|bucket| bucket.ok().filter(|_| goes_on()));
        opened.collect()
    }

    /// Reads the entries of a small index, and lists the newest buckets of each series if it is an index of metadata and time and it
    /// `goes_on` until all are found.
    fn read_index(
        &self,
        collection: &Collection,
        index: &BucketIndex,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<()> {
        if !goes_on() {
            return Ok(());
        }
        let keyspace = index.stored.keyspace;
        let snapshot = self.engine.snapshot()?;
        if let Some(version) = snapshot.version(keyspace)
            && self.engine.keys_estimate(keyspace)? <= INDEX_ENTRIES_MAX
        {
            self.keep_entries(&*snapshot, (keyspace, version))?;
        }
        if let Some(components) = index.time_part().filter(|parts| *parts > 0)
            && index.is_static()
        {
            let newest = (components, Direction::Backward);
            self.latest_candidates(collection, index, newest, goes_on)?;
        }
        Ok(())
    }

    /// Reads the blocks of summaries with buckets from `oldest` on, newest first, while the cache has room. Not the last one, which is
    /// made again with the next buckets. Returns false if some of the buckets have no summary yet.
    fn read_newest_summaries(&self, collection: &Collection, oldest: [u8; 12]) -> Result<bool> {
        let keyspaces = BucketKeyspaces::of(collection);
        let Some(keyspace) = keyspaces.and_then(|all| all.summaries) else {
            return Ok(true);
        };
        let snapshot = &*self.engine.snapshot()?;
        let summaries = SummaryReader { snapshot, keyspace };
        let range = KeyRange {
            start: oldest.to_vec(),
            ..KeyRange::all()
        };
        if !summaries.marked(&range, 1)?.is_empty() {
            return Ok(false);
        }
        let blocks = &self.cache.summary_blocks;
        let mut numbers = Vec::new();
        for block in summaries.newest_blocks()?.skip(1).take(SUMMARY_BLOCKS_MAX) {
            let block = block?;
            if block.last < oldest {
                break;
            }
            if !blocks.has(keyspace, block.number) {
                numbers.push(block.number);
            }
        }
        let ends = Instant::now() + SUMMARIES_TIME;
        for newest in numbers.chunks(SUMMARY_BLOCKS_AT_A_TIME) {
            if !blocks.has_room(RESERVED_SHARE) || Instant::now() >= ends {
                break;
            }
            self.summary_blocks(summaries, newest)?;
        }
        Ok(true)
    }

    /// Reads the list of blocks of summaries and the newest blocks, while it `goes_on`.
    fn read_summaries(&self, collection: &Collection, goes_on: &dyn Fn() -> bool) -> Result<()> {
        let keyspaces = BucketKeyspaces::of(collection);
        let summaries = keyspaces.and_then(|all| all.summaries);
        let Some(keyspace) = summaries.filter(|_| goes_on()) else {
            return Ok(());
        };
        let snapshot = &*self.engine.snapshot()?;
        let summaries = SummaryReader { snapshot, keyspace };
        let directory =
            self.summary_directory(summaries, &KeyRange::all(), DIRECTORY_BLOCKS_MAX)?;
        let blocks = directory.iter().flat_map(|directory| &directory.blocks);
        let numbers: Vec<u64> = blocks.map(|block| block.number).collect();
        for newest in numbers.rchunks(SUMMARY_BLOCKS_AT_A_TIME) {
            if !goes_on() {
                break;
            }
            self.summary_blocks(summaries, newest)?;
        }
        Ok(())
    }
}

/// Decodes columns of a bucket, while it goes on.
type Decoder = fn(&StoredBucket, &dyn Fn() -> bool) -> Result<()>;

/// Decodes columns of buckets, while it `goes_on`.
fn decode_columns(buckets: &[Arc<StoredBucket>], decode: Decoder, goes_on: &dyn Fn() -> bool) {
    let decoded = buckets.iter().map(|bucket| decode(bucket, goes_on));
    decoded.take_while(|done| done.is_ok() && goes_on()).count();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeseries::tests::{Fixture, at, measurements};

    #[test]
    fn sealed_buckets_are_opened_before_a_reader_requests_them() {
        let f = Fixture::new();
        for hour in 0..5 {
            f.insert(
                &[at(hour * 3600, "a", 1), at(hour * 3600 + 1, "a", 2)],
                true,
            );
        }
        f.timeseries.wait_for_maintenance().unwrap();
        let opened = || f.timeseries.cache.buckets.memory_bytes();
        f.timeseries.prefetch();
        assert_eq!(opened(), 0, "some were sealed since the last tick");
        f.timeseries.prefetch();
        let before = opened();
        assert!(before > 0);
        let read: Vec<_> = f.buckets(false);
        assert_eq!(read.len(), 5);
        assert_eq!(opened(), before, "all were opened");
        let values: Vec<_> = read.iter().flat_map(|b| measurements(b)).collect();
        assert_eq!(
            values,
            f.reopened()
                .buckets(false)
                .iter()
                .flat_map(|b| measurements(b))
                .collect::<Vec<_>>()
        );
    }

    #[test]
    fn requested_columns_are_decoded_before_a_reader_requests_them() {
        let f = Fixture::new();
        let seal = |hour: i64| {
            f.insert(
                &[at(hour * 3600, "a", 1), at(hour * 3600 + 1, "a", 2)],
                true,
            );
            f.timeseries.wait_for_maintenance().unwrap();
            f.timeseries.prefetch();
            f.timeseries.prefetch();
        };
        let is_decoded = |hour: usize| {
            let read = f.buckets(false);
            let places = 0..read[hour].columns().len();
            places
                .map(|at| read[hour].has_column_at(at))
                .collect::<Vec<_>>()
        };
        (0..3).for_each(seal);
        let without_id: Vec<_> = f.buckets(false)[1]
            .columns()
            .iter()
            .map(|name| **name != *"_id")
            .collect();
        assert_eq!(is_decoded(1), without_id, "no column was requested");
        f.buckets(false)[0].column_at(0).unwrap();
        (3..5).for_each(seal);
        assert_eq!(
            is_decoded(3),
            [true, false, false],
            "the times were requested"
        );
    }

    #[test]
    fn summaries_are_read_before_a_reader_requests_them() {
        let f = Fixture::new();
        let measured: Vec<_> = (0..40).map(|hour| at(hour * 3600, "a", hour)).collect();
        f.insert(&measured, true);
        f.timeseries.wait_for_maintenance().unwrap();
        let collection = f.collection.clone();
        let in_memory = || f.timeseries.cache.summary_blocks.memory_bytes();
        let keyspace = BucketKeyspaces::of(&collection).unwrap().summaries.unwrap();
        let has_marks = || {
            let snapshot = &*f.timeseries.engine.snapshot().unwrap();
            let summaries = SummaryReader { snapshot, keyspace };
            !summaries.marked(&KeyRange::all(), 1).unwrap().is_empty()
        };
        (0..3).for_each(|_| f.timeseries.prefetch());
        // Maintenance summarizes by itself where this test was held up.
        assert!(
            in_memory() == 0 || !has_marks(),
            "there are no summaries yet"
        );
        f.timeseries.maintenance.summarize(&collection).unwrap();
        f.timeseries.prefetch();
        let before = in_memory();
        assert!(before > 0);
        // A limit is kept.
        let f = f.reopened();
        assert_eq!(f.timeseries.cache.summary_blocks.memory_bytes(), 0);
        f.timeseries.cache.summary_blocks.set_bytes_max(before / 3);
        let measured: Vec<_> = (80..120).map(|hour| at(hour * 3600, "a", hour)).collect();
        f.insert(&measured, true);
        f.timeseries.wait_for_maintenance().unwrap();
        f.timeseries.maintenance.summarize(&collection).unwrap();
        (0..2).for_each(|_| f.timeseries.prefetch());
        let found = f.timeseries.cache.summary_blocks.memory_bytes();
        assert!(0 < found && found <= before / 3, "{found} of {before}");
    }

    #[test]
    fn a_disabled_cache_prefetches_nothing() {
        let f = Fixture::new();
        f.insert(&[at(0, "a", 1), at(3600, "a", 2)], true);
        f.timeseries.wait_for_maintenance().unwrap();
        f.timeseries.cache.buckets.set_bytes_max(0);
        for _ in 0..3 {
            f.timeseries.prefetch();
        }
        assert_eq!(f.timeseries.cache.buckets.memory_bytes(), 0);
        assert!(f.timeseries.cache.prefetch.is_empty());
    }
}
