//! The buckets of one series, as the catalog knows them, and the stripes over which series are spread.
//!
//! ```text
//! open       takes measurements
//! archived   left for an earlier bucket, or because memory ran short; may be reopened
//! closing    takes no more measurements, and has entries in flight
//! removing   claimed exclusively, to be rewritten or removed
//! ```

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::bucket::{MemoryUse, OpenBucket};
use super::evicted_bucket_hints::EvictedBucketHints;
use crate::timeseries::format::series_index;
use crate::timeseries::format::series_key::{SeriesMeta, has_arrays};

/// Archived buckets that a series keeps in full; of others it keeps the id.
const ARCHIVED_IN_FULL_MAX: usize = 4;

/// Hashes series. Random, so that clients cannot choose metadata with equal hashes; fixed in tests, so that a seed
/// gives one history.
#[cfg(not(test))]
pub(super) type SeriesHasher = std::hash::RandomState;
#[cfg(test)]
pub(super) type SeriesHasher = BuildHasherDefault<std::hash::DefaultHasher>;

/// A series: its collection and its normalised metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeriesKey {
    /// Of collection and metadata, which are long and compared often.
    hash: u64,
    pub(crate) collection: [u8; 16],
    pub(crate) meta: SeriesMeta,
    /// True if the metadata contains arrays.
    pub(crate) has_arrays: bool,
    /// The hash of the metadata in the keys of the series index.
    pub(crate) index_hash: u128,
}

impl SeriesKey {
    pub(super) fn new(collection: [u8; 16], meta: SeriesMeta, hasher: &SeriesHasher) -> Self {
        Self {
            hash: hasher.hash_one((collection, &meta)),
            collection,
            has_arrays: has_arrays(meta.value()),
            index_hash: series_index::hash(&meta),
            meta,
        }
    }

    /// Returns the hash of collection and metadata.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns its share among `count`, by bits of the hash that hash maps do not use.
    pub(super) fn share(&self, count: usize) -> usize {
        (self.hash >> 40) as usize % count
    }
}

impl Hash for SeriesKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// Uses the hash that a series key brings.
#[derive(Debug, Default)]
pub(crate) struct PrecomputedHasher(u64);

impl Hasher for PrecomputedHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // A series writes one number and nothing else.
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// A map from series.
pub(crate) type SeriesMap<V> = HashMap<Arc<SeriesKey>, V, BuildHasherDefault<PrecomputedHasher>>;

/// A bucket that may be reopened.
#[derive(Debug)]
pub(super) struct ArchivedBucket {
    pub(super) id: [u8; 12],
    pub(super) start_ms: i64,
    /// Clear operations before it was opened.
    pub(super) era: u64,
    /// The bucket; if `None`, it is read from storage.
    pub(super) known: Option<Box<OpenBucket>>,
    /// Accounts for the bucket while `known` is `None`.
    _memory: Option<MemoryUse>,
}

impl ArchivedBucket {
    fn in_full(bucket: Box<OpenBucket>) -> Self {
        Self {
            id: bucket.id,
            start_ms: bucket.start_ms,
            era: bucket.era,
            known: Some(bucket),
            _memory: None,
        }
    }

    /// Drops everything but its id and start.
    fn shrink(&mut self, meta_bytes: usize) {
        if let Some(bucket) = self.known.take() {
            let mut memory = bucket.memory().another();
            memory.add(size_of::<Self>() + SERIES_MEMORY_BYTES + meta_bytes);
            self._memory = Some(memory);
        }
    }
}

/// Memory of a series without its buckets: itself, its key, its places in map and queue.
pub(super) const SERIES_MEMORY_BYTES: usize =
    size_of::<Series>() + size_of::<SeriesKey>() + 3 * size_of::<Arc<SeriesKey>>() + 64;

#[derive(Debug, Default)]
pub(super) struct Series {
    /// The bucket that takes measurements.
    pub(super) open: Option<Box<OpenBucket>>,
    /// Sorted by start.
    pub(super) archived: Vec<ArchivedBucket>,
    pub(super) closing: Vec<OpenBucket>,
    pub(super) removing: Vec<[u8; 12]>,
    /// True if it is in the stripe's queue of idle series.
    pub(super) queued: bool,
    /// True if it was written to since it was queued.
    pub(super) touched: bool,
}

impl Series {
    /// True if it may be forgotten.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_none()
            && self.archived.is_empty()
            && self.closing.is_empty()
            && self.removing.is_empty()
    }

    pub(super) fn buckets(&self) -> impl Iterator<Item = &OpenBucket> {
        let archived = self.archived.iter().filter_map(|a| a.known.as_ref());
        let boxed = self.open.iter().chain(archived);
        boxed.map(|bucket| &**bucket).chain(&self.closing)
    }

    pub(super) fn buckets_mut(&mut self) -> impl Iterator<Item = &mut OpenBucket> {
        let archived = self.archived.iter_mut().filter_map(|a| a.known.as_mut());
        let boxed = self.open.iter_mut().chain(archived);
        boxed.map(|bucket| &mut **bucket).chain(&mut self.closing)
    }

    /// True if an entry of any of its buckets is in flight, or one is claimed exclusively.
    pub(super) fn is_busy(&self) -> bool {
        !self.removing.is_empty() || self.buckets().any(|bucket| bucket.in_flight > 0)
    }

    /// True if a bucket with this id is known, or claimed exclusively.
    pub(super) fn knows(&self, id: [u8; 12]) -> bool {
        self.buckets().any(|bucket| bucket.id == id) || self.removing.contains(&id)
    }

    /// Closes a bucket; it is sealed when nothing of it is in flight.
    pub(super) fn close(&mut self, mut bucket: OpenBucket) {
        bucket.closing = true;
        self.closing.push(bucket);
    }

    /// Forgets a bucket, once its entries have arrived: only the catalog knows its next sequence number, so it must not be
    /// reopened before.
    pub(super) fn discard(&mut self, bucket: OpenBucket) {
        if bucket.in_flight > 0 {
            self.close(bucket);
        }
    }

    /// Archives a bucket.
    pub(super) fn archive(&mut self, bucket: Box<OpenBucket>, meta_bytes: usize) {
        let at = self
            .archived
            .partition_point(|other| other.start_ms <= bucket.start_ms);
        self.archived.insert(at, ArchivedBucket::in_full(bucket));
        let in_full = self.archived.iter().filter(|a| a.known.is_some()).count();
        if in_full > ARCHIVED_IN_FULL_MAX {
            let idle = |a: &&mut ArchivedBucket| a.known.as_ref().is_some_and(|b| b.in_flight == 0);
            if let Some(earliest) = self.archived.iter_mut().find(idle) {
                earliest.shrink(meta_bytes);
            }
        }
    }

    /// Archives the open bucket, and shrinks all archived ones to their ids. Nothing may be in flight. Returns the number
    /// of buckets that left memory.
    pub(super) fn shrink(&mut self, meta_bytes: usize) -> usize {
        if let Some(bucket) = self.open.take() {
            self.archive(bucket, meta_bytes);
        }
        let full = self.archived.iter_mut().filter(|a| a.known.is_some());
        full.map(|archived| archived.shrink(meta_bytes)).count()
    }

    /// Forgets a bucket after one of its entries failed to commit, once the others have arrived.
    pub(super) fn abandon(&mut self, id: [u8; 12]) {
        if let Some(bucket) = self.buckets_mut().find(|bucket| bucket.id == id) {
            bucket.in_flight -= 1;
        }
        self.remove(id);
        self.closing
            .retain(|bucket| bucket.id != id || bucket.in_flight > 0);
    }

    /// Removes a bucket from those that take measurements.
    pub(super) fn remove(&mut self, id: [u8; 12]) {
        if let Some(bucket) = self.open.take_if(|bucket| bucket.id == id) {
            self.discard(*bucket);
        }
        if let Some(at) = self.archived.iter().position(|a| a.id == id)
            && let Some(bucket) = self.archived.remove(at).known
        {
            self.discard(*bucket);
        }
    }

    /// Forgets all buckets without entries in flight.
    pub(super) fn clear(&mut self) {
        let archived = std::mem::take(&mut self.archived);
        let archived = archived.into_iter().filter_map(|a| a.known);
        for bucket in self.open.take().into_iter().chain(archived) {
            self.discard(*bucket);
        }
    }
}

/// The series under one lock.
#[derive(Debug, Default)]
pub(super) struct Stripe {
    pub(super) series: SeriesMap<Series>,
    /// Series that may be evicted, in the order in which they were queued.
    pub(super) idle: VecDeque<Arc<SeriesKey>>,
    /// The last buckets of evicted series.
    pub(super) hints: EvictedBucketHints,
    /// Threads that wait for entries to arrive.
    waiting: usize,
}

impl Stripe {
    /// After a write to a series: forgets it if it is empty, else queues it for eviction.
    pub(super) fn queue_idle(&mut self, key: &Arc<SeriesKey>) {
        let Some(series) = self.series.get_mut(key) else {
            return;
        };
        if series.is_empty() {
            self.series.remove(key);
            return;
        }
        series.touched = series.queued;
        if !series.queued {
            series.queued = true;
            // The key of the map, so that there is only one.
            if let Some((known, _)) = self.series.get_key_value(key) {
                self.idle.push_back(known.clone());
            }
        }
    }

    /// Forgets a series without buckets.
    pub(super) fn remove_if_empty(&mut self, key: &SeriesKey) {
        if self.series.get(key).is_some_and(Series::is_empty) {
            self.series.remove(key);
        }
    }
}

/// A stripe and its lock.
#[derive(Debug, Default)]
pub(super) struct StripeLock {
    stripe: Mutex<Stripe>,
    /// Notified when entries have arrived.
    entries_arrived: Condvar,
}

impl StripeLock {
    pub(super) fn lock(&self) -> MutexGuard<'_, Stripe> {
        self.stripe.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for entries to arrive.
    pub(super) fn wait<'g>(&self, mut guard: MutexGuard<'g, Stripe>) -> MutexGuard<'g, Stripe> {
        guard.waiting += 1;
        let waited = self.entries_arrived.wait(guard);
        let mut guard = waited.unwrap_or_else(PoisonError::into_inner);
        guard.waiting -= 1;
        guard
    }

    /// Notifies waiting threads that entries have arrived. Without one, which is the rule, it makes no system call.
    pub(super) fn notify(&self, stripe: &Stripe) {
        if stripe.waiting > 0 {
            self.entries_arrived.notify_all();
        }
    }
}
