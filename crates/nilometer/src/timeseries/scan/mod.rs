//! Scans of buckets in the order of their ids, or in the order of an index.
//!
//! ```text
//! range of ids ──► list of buckets: covered, in the cache? ───► opened buckets
//!                     └ no: storage_iterator ─► bytes and tails ─► cache: same state? ─► opened bucket
//! ids of an index ► cache: valid at these versions? └ no: point_reads ─┘      └ no: open, fold ─┘
//! ```
//!
//! A chunk of a scan reads one snapshot. The next chunk takes a new snapshot and continues after the last id: buckets
//! keep their ids when they are folded or sealed, so a scan skips or repeats none. Cached entries are used at the
//! versions of the keyspaces ([`KeyspaceVersions`]) in the chunk's snapshot.
//!
//! Does not know queries: their predicates select buckets after the scan.

pub(crate) mod bucket_parts;
pub(crate) mod distinct_metas;
pub(crate) mod index_scan;
pub(crate) mod index_view;
pub(crate) mod latest_buckets;
mod open_bucket;
pub(crate) mod point_reads;
pub(crate) mod prefetch;
mod read_ahead;
pub(crate) mod series;
pub(crate) mod storage_iterator;
pub(crate) mod summarized;
pub(crate) mod summarized_bucket;
pub(crate) mod summarized_list;
pub(crate) mod summary_reader;
pub(crate) mod summary_run;

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use nilometer_storage::{Direction, Engine, Snapshot};

use self::index_scan::{BucketSelection, IndexStream, StartRanges};
use self::storage_iterator::{BucketChunk, ChunkBounds, RawBucket};
use super::cache::ReadCache;
use super::cache::opened_bucket::StoredBucket;
use super::cache::sealed_bucket_list::{KeyspaceVersions, ListedBucket, ListedRange};
use super::format::key_range::{KeyRange, end_of};
use super::format::keyspaces::BucketKeyspaces;
use crate::catalog::Collection;
use crate::error::{Error, Result};

/// Buckets read in one snapshot.
const CHUNK_BUCKETS_MAX: usize = 512;

/// Buckets read in the first snapshot: a reader of the newest may need no more.
const FIRST_BUCKETS: usize = 64;

/// Factor by which the chunks of a scan of all buckets grow.
const CHUNK_GROWTH: usize = 4;

/// Buckets of an index read in one snapshot, at most.
const CHUNK_CANDIDATES_MAX: usize = 64;

/// Buckets of an index read in the first snapshot: a reader may need the newest alone.
const FIRST_CANDIDATES: usize = 2;

/// Which buckets to read.
#[derive(Clone, Copy, Debug, Default)]
pub struct BucketRange {
    /// Lowest id, inclusive.
    pub min: Option<[u8; 12]>,
    /// Highest id, inclusive.
    pub max: Option<[u8; 12]>,
    /// Descending ids.
    pub backward: bool,
}

impl BucketRange {
    /// True if the id lies between the bounds.
    pub fn contains(&self, id: [u8; 12]) -> bool {
        self.min.is_none_or(|min| min <= id) && self.max.is_none_or(|max| id <= max)
    }
}

/// A scan of a bucket collection.
pub struct StoredBuckets {
    reader: Arc<BucketReader>,
    collection: Arc<Collection>,
    keyspaces: BucketKeyspaces,
    range: BucketRange,
    source: BucketSelection,
    /// Buckets to read in the next snapshot.
    chunk: usize,
    /// The last id of the previous chunk.
    after: Option<[u8; 12]>,
    ready: VecDeque<Result<Arc<StoredBucket>>>,
    done: bool,
}

/// Reads buckets, through the cache.
pub struct BucketReader {
    engine: Arc<dyn Engine>,
    pub(super) cache: Arc<ReadCache>,
    start_ranges: StartRanges,
}

impl BucketReader {
    /// Returns a reader of the buckets in an engine.
    pub(crate) fn new(engine: Arc<dyn Engine>, cache: Arc<ReadCache>) -> Self {
        Self {
            engine,
            cache,
            start_ranges: StartRanges::default(),
        }
    }

    /// Reads the buckets of a collection in the order of their ids.
    pub fn scan(
        self: &Arc<Self>,
        collection: &Arc<Collection>,
        range: BucketRange,
    ) -> Result<StoredBuckets> {
        let keyspaces = BucketKeyspaces::of(collection)
            .ok_or_else(|| Error::bad_value("not a bucket collection"))?;
        Ok(StoredBuckets {
            reader: self.clone(),
            collection: collection.clone(),
            keyspaces,
            range,
            source: BucketSelection::All,
            chunk: FIRST_BUCKETS,
            after: None,
            ready: VecDeque::new(),
            done: false,
        })
    }

    /// Reads the buckets with these ids, which ascend. Ids without a bucket are skipped.
    pub fn scan_listed(
        self: &Arc<Self>,
        collection: &Arc<Collection>,
        mut ids: Vec<[u8; 12]>,
        range: BucketRange,
    ) -> Result<StoredBuckets> {
        if !range.backward {
            ids.reverse();
        }
        let mut scan = self.scan(collection, range)?;
        scan.source = BucketSelection::Listed(ids);
        scan.chunk = FIRST_CANDIDATES;
        Ok(scan)
    }

    /// Reads the newest, or the oldest, bucket of each series. Their ids are close together in most cases.
    pub fn scan_latest(
        self: &Arc<Self>,
        collection: &Arc<Collection>,
        ids: Vec<[u8; 12]>,
        range: BucketRange,
    ) -> Result<StoredBuckets> {
        let mut scan = self.scan_listed(collection, ids, range)?;
        if let BucketSelection::Listed(ids) = scan.source {
            scan.source = BucketSelection::Latest(ids);
            scan.chunk = CHUNK_BUCKETS_MAX;
        }
        Ok(scan)
    }

    /// Reads the buckets of an index in its order.
    pub fn scan_streamed(
        self: &Arc<Self>,
        collection: &Arc<Collection>,
        stream: IndexStream,
        range: BucketRange,
    ) -> Result<StoredBuckets> {
        let mut scan = self.scan(collection, range)?;
        scan.source = BucketSelection::Streamed(stream);
        scan.chunk = FIRST_CANDIDATES;
        Ok(scan)
    }

    /// Estimates the number of buckets without reading: each has one entry in the series index.
    pub fn bucket_count(&self, collection: &Collection) -> Result<u64> {
        let Some(keyspaces) = BucketKeyspaces::of(collection) else {
            return Ok(0);
        };
        Ok(self.engine.keys_estimate(keyspaces.series)?)
    }

    /// Returns the ids of all buckets, or `None` if there are more than `at_most`.
    pub fn bucket_ids(
        &self,
        collection: &Collection,
        at_most: usize,
    ) -> Result<Option<Vec<[u8; 12]>>> {
        let Some(keyspaces) = BucketKeyspaces::of(collection) else {
            return Ok(Some(Vec::new()));
        };
        let snapshot = self.engine.snapshot()?;
        let mut ids = Vec::new();
        for item in snapshot.scan(keyspaces.series, &[], None, Direction::Forward)? {
            let (key, _) = item?;
            if ids.len() >= at_most {
                return Ok(None);
            }
            ids.extend(key.last_chunk().copied());
        }
        Ok(Some(ids))
    }

    /// Counts the buckets: each has one entry in the series index.
    pub fn count_buckets(&self, collection: &Collection) -> Result<u64> {
        let Some(keyspaces) = BucketKeyspaces::of(collection) else {
            return Ok(0);
        };
        let snapshot = self.engine.snapshot()?;
        let mut count = 0;
        for item in snapshot.scan(keyspaces.series, &[], None, Direction::Forward)? {
            item?;
            count += 1;
        }
        Ok(count)
    }
}

impl BucketReader {
    /// Counts the measurements in a snapshot by the headers and tails of all buckets.
    pub(crate) fn count_at(
        self: &Arc<Self>,
        snapshot: &dyn Snapshot,
        collection: &Arc<Collection>,
        check_interrupt: &dyn Fn() -> Result<()>,
    ) -> Result<i64> {
        let scan = self.scan(collection, BucketRange::default())?;
        let mut start = Vec::new();
        let mut count = 0;
        loop {
            check_interrupt()?;
            let bounds = ChunkBounds {
                start: &start,
                end: None,
                direction: Direction::Forward,
                buckets_max: CHUNK_BUCKETS_MAX,
                bytes_max: usize::MAX,
            };
            let chunk = storage_iterator::next_buckets(snapshot, scan.keyspaces, bounds, None)?;
            let mut last = None;
            for raw in chunk.buckets {
                last = Some(raw.id);
                let bucket = self.assemble(collection, raw, None)?;
                count += i64::try_from(bucket.count()).unwrap_or(i64::MAX);
            }
            match last {
                Some(last) if !chunk.all => start = end_of(last),
                _ => return Ok(count),
            }
        }
    }
}

impl BucketReader {
    /// Returns the buckets of a range that have an open document or a tail, ascending. `None` if they are not known, and to read
    /// them may cost more than to look up those of `buckets` buckets.
    pub(super) fn unsealed_within(
        &self,
        snapshot: &dyn Snapshot,
        keyspaces: BucketKeyspaces,
        versions: Option<KeyspaceVersions>,
        (range, buckets): (&KeyRange, usize),
    ) -> Result<Option<Vec<[u8; 12]>>> {
        let Some(versions) = versions else {
            return Ok(None);
        };
        let lists = &self.cache.sealed_lists;
        let known = lists.unsealed_within(versions, range);
        if known.is_some() {
            return Ok(known);
        }
        let Some(mut found) = point_reads::unsealed_buckets(snapshot, keyspaces, buckets)? else {
            return Ok(None);
        };
        if self.cache.buckets.is_enabled() {
            lists.record_unsealed(versions, KeyRange::all(), found.clone());
        }
        found.retain(|id| range.start[..] <= id[..] && range.ends_after(id));
        Ok(Some(found))
    }

    /// The same for a scan of a range.
    fn known_unsealed(
        &self,
        versions: Option<KeyspaceVersions>,
        range: &KeyRange,
    ) -> Option<Vec<[u8; 12]>> {
        self.cache.sealed_lists.unsealed_within(versions?, range)
    }

    /// Records the buckets of a range that have an open document or a tail.
    fn record_unsealed(
        &self,
        versions: Option<KeyspaceVersions>,
        range: &KeyRange,
        unsealed: Vec<[u8; 12]>,
    ) {
        if let Some(versions) = versions.filter(|_| self.cache.buckets.is_enabled()) {
            let lists = &self.cache.sealed_lists;
            lists.record_unsealed(versions, range.clone(), unsealed);
        }
    }
}

impl StoredBuckets {
    fn direction(&self) -> Direction {
        match self.range.backward {
            true => Direction::Backward,
            false => Direction::Forward,
        }
    }

    /// Returns the range of the remaining keys.
    fn remaining(&self) -> KeyRange {
        let mut start = self.range.min.map(|id| id.to_vec()).unwrap_or_default();
        let mut end = self.range.max.map(end_of);
        match (self.after, self.range.backward) {
            (Some(last), false) => start = end_of(last),
            (Some(last), true) => end = Some(last.to_vec()),
            (None, _) => {}
        }
        KeyRange { start, end }
    }

    /// Reads the next buckets of an index. Those that were removed since are skipped.
    fn refill_from_index(&mut self) -> Result<()> {
        let snapshot = self.reader.engine.snapshot()?;
        let ids = match &mut self.source {
            BucketSelection::All => Vec::new(),
            BucketSelection::Listed(ids) | BucketSelection::Latest(ids) => {
                let mut next = ids.split_off(ids.len().saturating_sub(self.chunk));
                next.reverse();
                next
            }
            BucketSelection::Streamed(stream) => {
                let view = self.reader.index_view(&*snapshot, stream.keyspace)?;
                stream.next(&view, self.chunk)?
            }
        };
        self.done = ids.len() < self.chunk;
        self.chunk = (self.chunk * 2).min(CHUNK_CANDIDATES_MAX.max(self.chunk));
        let versions = KeyspaceVersions::of(&*snapshot, self.keyspaces);
        let cached = self.reader.cache.buckets.get_at(versions, &ids);
        let missing = ids.iter().zip(&cached);
        let missing = missing.filter(|(_, bucket)| bucket.is_none());
        let missing: Vec<[u8; 12]> = missing.map(|(id, _)| *id).collect();
        let read = self.fetch(&*snapshot, versions, &missing)?;
        let mut read = read.into_iter().peekable();
        for (id, cached) in ids.iter().zip(cached) {
            let bucket = match cached {
                Some(bucket) => Ok(bucket),
                None => match read.next_if(|raw| raw.id == *id) {
                    Some(raw) => self.reader.assemble(&self.collection, raw, versions),
                    None => continue,
                },
            };
            self.ready.push_back(bucket);
        }
        Ok(())
    }

    /// Reads buckets by their ids from storage.
    fn fetch(
        &self,
        snapshot: &dyn Snapshot,
        versions: Option<KeyspaceVersions>,
        ids: &[[u8; 12]],
    ) -> Result<Vec<RawBucket>> {
        let keyspaces = self.keyspaces;
        match self.source {
            _ if ids.is_empty() => Ok(Vec::new()),
            BucketSelection::Latest(_) => point_reads::neighbours(snapshot, keyspaces, ids),
            _ => {
                let range = KeyRange::of_buckets(ids.iter().copied());
                let reader = &self.reader;
                match reader.unsealed_within(snapshot, keyspaces, versions, (&range, ids.len()))? {
                    Some(unsealed) => {
                        point_reads::mostly_sealed(snapshot, keyspaces, ids, &unsealed)
                    }
                    None => point_reads::buckets_of(snapshot, keyspaces, ids),
                }
            }
        }
    }

    /// Reads the next chunk.
    fn refill(&mut self) -> Result<()> {
        if !matches!(self.source, BucketSelection::All) {
            return self.refill_from_index();
        }
        let range = self.remaining();
        if !range.ends_after(&range.start) {
            self.done = true;
            return Ok(());
        }
        let direction = self.direction();
        let snapshot = self.reader.engine.snapshot()?;
        let buckets_max = self.chunk;
        self.chunk = (self.chunk * CHUNK_GROWTH).min(CHUNK_BUCKETS_MAX);
        let versions = KeyspaceVersions::of(&*snapshot, self.keyspaces);
        let lists = &self.reader.cache.sealed_lists;
        let listed = versions.and_then(|v| lists.first_of(v, &range, direction, buckets_max));
        let in_memory = listed.as_ref().and_then(|listed| {
            let buckets = self.in_memory(listed, versions)?;
            Some((buckets, listed.all))
        });
        if let Some((buckets, all)) = in_memory {
            self.done = all;
            self.after = buckets.last().map(|bucket| bucket.id().0);
            self.ready.extend(buckets.into_iter().map(Ok));
            return Ok(());
        }
        let was_listed = listed.is_some();
        let bounds = ChunkBounds {
            start: &range.start,
            end: range.end.as_deref(),
            direction,
            buckets_max,
            bytes_max: usize::MAX,
        };
        let chunk = storage_iterator::next_buckets(&*snapshot, self.keyspaces, bounds, listed)?;
        let BucketChunk {
            buckets,
            all,
            range: chunk_range,
        } = chunk;
        self.done = all;
        let mut sealed = Vec::with_capacity(buckets.len());
        let mut unsealed = Vec::new();
        for raw in buckets {
            let id = raw.id;
            self.after = Some(id);
            let (is_sealed, is_alone) = (raw.is_sealed, raw.is_sealed_alone());
            let bucket = self.reader.assemble(&self.collection, raw, versions);
            if is_sealed {
                // A damaged bucket, or one with a tail, is read again by the next scan.
                let opened = bucket.as_ref().ok().filter(|_| is_alone);
                sealed.push((id, opened.map_or_else(Weak::new, Arc::downgrade)));
            }
            if !is_alone {
                unsealed.push(id);
            }
            self.ready.push_back(bucket);
        }
        let is_enabled = self.reader.cache.buckets.is_enabled();
        if let Some(versions) = versions.filter(|_| is_enabled) {
            if !was_listed {
                self.record(versions, range, sealed);
            }
            self.record_unsealed(versions, chunk_range, unsealed);
        }
        Ok(())
    }

    /// Records the buckets of a chunk that have an open document or a tail.
    fn record_unsealed(
        &self,
        versions: KeyspaceVersions,
        range: KeyRange,
        mut unsealed: Vec<[u8; 12]>,
    ) {
        if self.range.backward {
            unsealed.reverse();
        }
        let lists = &self.reader.cache.sealed_lists;
        lists.record_unsealed(versions, range, unsealed);
    }

    /// Returns all buckets of a listed range in the order of the scan; `None` if one must be read from storage.
    fn in_memory(
        &self,
        listed: &ListedRange,
        versions: Option<KeyspaceVersions>,
    ) -> Option<Vec<Arc<StoredBucket>>> {
        let unsealed = listed.unsealed.as_deref()?;
        if unsealed.is_empty() {
            return Some(listed.buckets.clone());
        }
        let unsealed = self.reader.cache.buckets.get_at(versions, unsealed);
        let unsealed = unsealed.into_iter().collect::<Option<Vec<_>>>()?;
        // A sealed bucket may have a tail since it was listed. The one with its tail comes first and stays.
        let mut all = [&unsealed[..], &listed.buckets].concat();
        all.sort_by_key(|bucket| bucket.id().0);
        all.dedup_by_key(|bucket| bucket.id().0);
        if self.range.backward {
            all.reverse();
        }
        Some(all)
    }

    /// Records the sealed buckets of a range up to the last bucket of the chunk.
    fn record(
        &self,
        versions: KeyspaceVersions,
        mut range: KeyRange,
        mut sealed: Vec<ListedBucket>,
    ) {
        match (self.done, self.after, self.range.backward) {
            (false, Some(last), false) => range.end = Some(end_of(last)),
            (false, Some(last), true) => range.start = last.to_vec(),
            (false, None, _) => return,
            (true, ..) => {}
        }
        if self.range.backward {
            sealed.reverse();
        }
        let lists = &self.reader.cache.sealed_lists;
        lists.record(versions, range, sealed);
    }
}

impl Iterator for StoredBuckets {
    type Item = Result<Arc<StoredBucket>>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() && !self.done {
            if let Err(error) = self.refill() {
                self.done = true;
                return Some(Err(error));
            }
        }
        self.ready.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Document, Value, doc};

    use super::*;
    use crate::timeseries::tests::Fixture;

    #[test]
    fn buckets_with_tails_are_read_once_between_writes() {
        let f = Fixture::new();
        let one = |series: i64| {
            let time = Value::DateTime(series % 7 * 1000);
            doc! {"_id": series, "t": time, "m": series % 100, "v": series}
        };
        let documents: Vec<Document> = (0..300).map(one).collect();
        f.insert(&documents, true);
        let reader = &f.timeseries.reader;
        let scan = |backward| {
            let range = BucketRange {
                backward,
                ..BucketRange::default()
            };
            reader.scan(&f.collection, range).unwrap()
        };
        let from_memory = |backward| {
            let scan = scan(backward);
            let snapshot = reader.engine.snapshot().unwrap();
            let versions = KeyspaceVersions::of(&*snapshot, scan.keyspaces);
            let lists = &reader.cache.sealed_lists;
            let (range, direction) = (scan.remaining(), scan.direction());
            let listed = lists.first_of(versions?, &range, direction, FIRST_BUCKETS)?;
            Some(scan.in_memory(&listed, versions)?.len())
        };
        let ids = |backward| {
            let buckets = scan(backward).map(|bucket| bucket.unwrap().id().0);
            buckets.collect::<Vec<_>>()
        };
        assert_eq!(from_memory(false), None);
        let read = ids(false);
        assert_eq!(read.len(), 100);
        for backward in [false, true] {
            assert_eq!(from_memory(backward), Some(FIRST_BUCKETS));
            let mut again = ids(backward);
            if backward {
                again.reverse();
            }
            assert_eq!(again, read);
        }
        f.insert(
            &[doc! {"_id": 500, "t": Value::DateTime(0), "m": 7, "v": 1}],
            true,
        );
        assert_eq!(from_memory(false), None);
        let mut again = ids(true);
        again.retain(|id| read.contains(id));
        assert_eq!(again.len(), 100);
        assert_eq!(from_memory(true), Some(FIRST_BUCKETS));
        assert_eq!(from_memory(false), Some(FIRST_BUCKETS));
    }

    #[test]
    fn buckets_of_a_list_are_read_with_their_tails() {
        let f = Fixture::new();
        let one = |series: i64, second: i64| doc! {"t": Value::DateTime(second * 1000), "m": series, "v": 1};
        let documents: Vec<Document> = (0..20).map(|series| one(series, 0)).collect();
        f.insert(&documents, true);
        f.timeseries.seal_all(&f.collection).unwrap();
        let buckets = f.buckets(false);
        let mut ids: Vec<_> = buckets.iter().map(|bucket| bucket.id().0).collect();
        ids.sort_unstable();
        let mut f = f.reopened();
        let known = |f: &Fixture| {
            let reader = &f.timeseries.reader;
            let keyspaces = BucketKeyspaces::of(&f.collection).unwrap();
            let versions = KeyspaceVersions::of(&*reader.engine.snapshot().unwrap(), keyspaces);
            let lists = &reader.cache.sealed_lists;
            lists.unsealed_within(versions.unwrap(), &KeyRange::all())
        };
        for round in 0..4 {
            for backward in [false, true, true, false] {
                let range = BucketRange {
                    backward,
                    ..BucketRange::default()
                };
                let reader = &f.timeseries.reader;
                let scan = reader.scan_listed(&f.collection, ids.clone(), range);
                let read = scan.unwrap().map(Result::unwrap);
                let mut read: Vec<_> = read.map(|bucket| (bucket.id().0, bucket.count())).collect();
                if backward {
                    read.reverse();
                }
                assert!(read.iter().map(|(id, _)| id).eq(&ids));
                let rows: usize = read.iter().map(|(_, count)| count).sum();
                assert_eq!(rows, 20 + 5 * round as usize);
            }
            if round < 2 {
                assert_eq!(known(&f).unwrap().len(), [0, 5][round as usize]);
            }
            let again: Vec<Document> = (3..8).map(|series| one(series, round + 1)).collect();
            f.insert(&again, true);
            assert_eq!(known(&f), None, "tails have another version");
            if round == 2 {
                f = f.reopened();
            }
        }
    }

    #[test]
    fn a_listed_bucket_that_has_a_tail_again_is_read_once() {
        let mut f = Fixture::new();
        let one = |series: i64, second: i64| doc! {"t": Value::DateTime(second * 1000), "m": series, "v": 1};
        let documents: Vec<Document> = (0..20).map(|series| one(series, 0)).collect();
        f.insert(&documents, true);
        f.timeseries.seal_all(&f.collection).unwrap();
        for round in 1..4 {
            if round == 3 {
                f = f.reopened();
            }
            let counts = |backward| {
                let buckets = f.buckets(backward);
                let rows: usize = buckets.iter().map(|bucket| bucket.count()).sum();
                (buckets.len(), rows)
            };
            let before = counts(false);
            // A scan that still runs keeps the opened buckets of before.
            let _of_a_scan = f.buckets(false);
            let again: Vec<Document> = (3..8).map(|series| one(series, round)).collect();
            f.insert(&again, true);
            for backward in [false, true, false, true] {
                assert_eq!(counts(backward), (20, before.1 + 5));
            }
        }
    }
}
