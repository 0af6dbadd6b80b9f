//! The buckets of one series as the catalog knows them, and the stripes that series are spread over.
//!
//! ```text
//! open       takes measurements
//! archived   left for an earlier bucket, or for want of memory; may be needed again
//! closing    takes no more, and has entries on their way
//! removing   being rewritten or removed by somebody who is alone with it
//! ```

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::bucket::{MemoryUse, OpenBucket};
use super::evicted_bucket_hints::EvictedBucketHints;
use crate::timeseries::format::series_key::SeriesMeta;
use crate::timeseries::index::maintenance::has_arrays;

/// Buckets left for an earlier one that one series keeps with all they have learned; of others only
/// the id is remembered.
const ARCHIVED_IN_FULL_MAX: usize = 4;

/// A series: its collection and its normalised meta value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeriesKey {
    /// Of what follows: metadata is long, and looked up often.
    hash: u64,
    pub(crate) collection: [u8; 16],
    pub(crate) meta: SeriesMeta,
    /// There are arrays in the metadata.
    pub(crate) has_arrays: bool,
}

impl SeriesKey {
    pub(super) fn new(collection: [u8; 16], meta: SeriesMeta, hasher: &RandomState) -> Self {
        Self {
            hash: hasher.hash_one((collection, &meta)),
            collection,
            has_arrays: has_arrays(meta.value()),
            meta,
        }
    }

    /// A hash of collection and metadata.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// Which of `count` it falls to. Bits are used that hash maps make no use of.
    pub(super) fn share(&self, count: usize) -> usize {
        (self.hash >> 40) as usize % count
    }
}

impl Hash for SeriesKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// Takes the hash that a series brings along.
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

/// A map by series.
pub(crate) type SeriesMap<V> = HashMap<Arc<SeriesKey>, V, BuildHasherDefault<PrecomputedHasher>>;

/// A bucket that may be taken up again.
#[derive(Debug)]
pub(super) struct ArchivedBucket {
    pub(super) id: [u8; 12],
    pub(super) start_ms: i64,
    /// The clear operations before it was opened.
    pub(super) era: u64,
    /// What was known of it; without, it is read from storage.
    pub(super) known: Option<Box<OpenBucket>>,
    /// Counts the bucket while `known` does not.
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

    /// Forgets everything but where to find it.
    fn shrink(&mut self, meta_bytes: usize) {
        if let Some(bucket) = self.known.take() {
            let mut memory = bucket.memory().another();
            memory.add(size_of::<Self>() + SERIES_MEMORY_BYTES + meta_bytes);
            self._memory = Some(memory);
        }
    }
}

/// Memory a series takes besides its buckets: itself, its key and its places in the map and queue.
pub(super) const SERIES_MEMORY_BYTES: usize =
    size_of::<Series>() + size_of::<SeriesKey>() + 3 * size_of::<Arc<SeriesKey>>() + 64;

#[derive(Debug, Default)]
pub(super) struct Series {
    /// The bucket that takes measurements.
    pub(super) open: Option<Box<OpenBucket>>,
    /// In the order of their starts.
    pub(super) archived: Vec<ArchivedBucket>,
    pub(super) closing: Vec<OpenBucket>,
    pub(super) removing: Vec<[u8; 12]>,
    /// It stands in the stripe's queue of series that may leave memory.
    pub(super) queued: bool,
    /// It was written to since it was put there.
    pub(super) touched: bool,
}

impl Series {
    /// True if nothing of it needs to be remembered.
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

    /// True if an entry of any of its buckets is on its way, or somebody is alone with one.
    pub(super) fn is_busy(&self) -> bool {
        !self.removing.is_empty() || self.buckets().any(|bucket| bucket.in_flight > 0)
    }

    /// True if a bucket with this id is known, or must not be looked at.
    pub(super) fn knows(&self, id: [u8; 12]) -> bool {
        self.buckets().any(|bucket| bucket.id == id) || self.removing.contains(&id)
    }

    /// Takes no more measurements into the bucket; it is written out when nothing is in flight.
    pub(super) fn close(&mut self, mut bucket: OpenBucket) {
        bucket.closing = true;
        self.closing.push(bucket);
    }

    /// Forgets a bucket, but not before its entries have arrived: its next sequence number is known
    /// only here, so it must not be taken up again while one of them is on its way.
    pub(super) fn discard(&mut self, bucket: OpenBucket) {
        if bucket.in_flight > 0 {
            self.close(bucket);
        }
    }

    /// Leaves a bucket that may be needed again.
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

    /// Archives the open bucket and remembers of all archived ones only where they are; nothing may
    /// be on its way. Returns how many buckets left memory.
    pub(super) fn shrink(&mut self, meta_bytes: usize) -> usize {
        if let Some(bucket) = self.open.take() {
            self.archive(bucket, meta_bytes);
        }
        let full = self.archived.iter_mut().filter(|a| a.known.is_some());
        full.map(|archived| archived.shrink(meta_bytes)).count()
    }

    /// Forgets a bucket one of whose entries did not arrive; not before the others have.
    pub(super) fn abandon(&mut self, id: [u8; 12]) {
        if let Some(bucket) = self.buckets_mut().find(|bucket| bucket.id == id) {
            bucket.in_flight -= 1;
        }
        self.remove(id);
        self.closing
            .retain(|bucket| bucket.id != id || bucket.in_flight > 0);
    }

    /// Takes a bucket out of those that are offered for measurements.
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

    /// Forgets all buckets but those with entries in flight.
    pub(super) fn clear(&mut self) {
        let archived = std::mem::take(&mut self.archived);
        let archived = archived.into_iter().filter_map(|a| a.known);
        for bucket in self.open.take().into_iter().chain(archived) {
            self.discard(*bucket);
        }
    }
}

/// Series that share a lock.
#[derive(Debug, Default)]
pub(super) struct Stripe {
    pub(super) series: SeriesMap<Series>,
    /// Series that may leave memory, the one queued first in front.
    pub(super) idle: VecDeque<Arc<SeriesKey>>,
    /// Where the last buckets are of series that left it.
    pub(super) hints: EvictedBucketHints,
    /// Those who wait for entries to arrive.
    waiting: usize,
}

impl Stripe {
    /// After a series was written to: forgets it if nothing is left of it, else puts it where it is
    /// found when memory is short.
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
            // The key the map has, so that one lives and not two.
            if let Some((known, _)) = self.series.get_key_value(key) {
                self.idle.push_back(known.clone());
            }
        }
    }

    /// Forgets a series of which nothing is left.
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
    /// Told when entries have arrived.
    entries_arrived: Condvar,
}

impl StripeLock {
    pub(super) fn lock(&self) -> MutexGuard<'_, Stripe> {
        self.stripe.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until entries have arrived.
    pub(super) fn wait<'g>(&self, mut guard: MutexGuard<'g, Stripe>) -> MutexGuard<'g, Stripe> {
        guard.waiting += 1;
        let waited = self.entries_arrived.wait(guard);
        let mut guard = waited.unwrap_or_else(PoisonError::into_inner);
        guard.waiting -= 1;
        guard
    }

    /// Tells those who wait that entries have arrived. Hardly ever does anybody: the common case is
    /// no call of the system.
    pub(super) fn notify(&self, stripe: &Stripe) {
        if stripe.waiting > 0 {
            self.entries_arrived.notify_all();
        }
    }
}
