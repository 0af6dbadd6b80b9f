//! Opened buckets with the columns that were decoded, for the next reader.
//!
//! An entry is valid for one state of its bucket: the stored bytes and the entries of its tail. There
//! are three ways to find an entry, from the cheapest to the dearest:
//!
//! - by the versions of the keyspaces ([`KeyspaceVersions`]), if the entry was found at the same versions before: storage
//!   is not read;
//! - by the address of the stored bytes, which the entry keeps alive: nothing is compared;
//! - by a fingerprint of the stored bytes and the tail.
//!
//! A bucket that was written since has another state, so writers need not invalidate entries.
//!
//! Eviction gives each entry a second chance if it was read since the last pass. It is not left to a cache library:
//! an entry grows while readers use it, as its columns are decoded ([`BucketMemory`]), and libraries take the weight of an entry
//! when it is inserted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock};

use nilometer_storage::Bytes;

use super::opened_bucket::StoredBucket;
use super::sealed_bucket_list::KeyspaceVersions;
use crate::budget::Budgeted;

/// Default limit of the cache, in bytes.
pub(crate) const BUCKET_CACHE_BYTES_MAX: usize = 256 << 20;

/// One bucket may take one part in this many of the limit.
const BUCKET_SHARE: usize = 8;

/// An eviction frees one part in this many of the limit.
const EVICTED_SHARE: usize = 4;

/// Returns the fingerprints of the states of a bucket: of its stored bytes alone, and with one, two, and more entries of its tail, each by
/// its sequence number and its value.
pub(crate) fn fingerprints(
    stored: Option<&[u8]>,
    tail: &[(Bytes, Bytes)],
) -> impl Iterator<Item = u64> {
    /// An odd multiplier, so that the order of the entries matters and none cancels another.
    const MIX: u64 = 0x9E37_79B9_7F4A_7C15;
    let hash = xxhash_rust::xxh3::xxh3_64;
    let sequence = |key: &[u8]| key.last_chunk().map_or(0, |last| u32::from_be_bytes(*last));
    let start = stored.map_or(0, hash);
    let entries = tail.iter().scan(start, move |state, (key, value)| {
        let entry = hash(value) ^ u64::from(sequence(key));
        *state = (*state ^ entry).wrapping_mul(MIX);
        Some(*state)
    });
    std::iter::once(start).chain(entries)
}

struct CachedBucket {
    fingerprint: u64,
    bucket: Arc<StoredBucket>,
    /// The versions at which the entry was last found valid.
    valid_at: Option<KeyspaceVersions>,
}

impl CachedBucket {
    /// Returns the bucket to a reader at these versions.
    fn read_at(&mut self, versions: Option<KeyspaceVersions>) -> Arc<StoredBucket> {
        self.valid_at = versions.or(self.valid_at);
        self.bucket.mark_read();
        self.bucket.clone()
    }
}

/// The memory of one bucket. While a cache holds the bucket, every change is added to the memory of the cache.
pub(crate) struct BucketMemory {
    /// Bytes, and the flag [`CACHED`].
    bytes: AtomicUsize,
    /// The cache that the bucket was first inserted into.
    cache: OnceLock<Arc<CacheState>>,
}

/// Set while a cache holds the bucket.
const CACHED: usize = 1 << (usize::BITS - 1);

impl BucketMemory {
    /// Returns the memory of a bucket that is in no cache.
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            bytes: AtomicUsize::new(bytes),
            cache: OnceLock::new(),
        }
    }

    /// Returns the memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed) & !CACHED
    }

    /// Adds bytes. The cache evicts other buckets if it exceeds its limit.
    pub(crate) fn grow(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let before = self.bytes.fetch_add(bytes, Ordering::Acquire);
        if before & CACHED == 0 {
            return;
        }
        if let Some(cache) = self.cache.get() {
            cache.count(bytes.cast_signed());
            let bytes_max = cache.buckets.bytes_max();
            if cache.bytes() > bytes_max {
                cache.make_room(&mut cache.buckets.lock(), bytes_max);
            }
        }
    }

    fn join(&self, cache: &Arc<CacheState>) {
        let cache = self.cache.get_or_init(|| Arc::clone(cache));
        let before = self.bytes.fetch_or(CACHED, Ordering::AcqRel);
        if before & CACHED == 0 {
            cache.count(before.cast_signed());
        }
    }

    fn leave(&self) {
        let before = self.bytes.fetch_and(!CACHED, Ordering::AcqRel);
        if let (true, Some(cache)) = (before & CACHED != 0, self.cache.get()) {
            cache.count(-(before & !CACHED).cast_signed());
        }
    }
}

type BucketsById = HashMap<[u8; 12], CachedBucket, foldhash::fast::RandomState>;

/// The state of a cache, which its buckets refer to.
struct CacheState {
    buckets: Budgeted<BucketsById>,
    /// Memory of all buckets. It is below zero for a moment if a bucket is subtracted before it was added.
    bytes: AtomicIsize,
}

impl CacheState {
    fn bytes(&self) -> usize {
        usize::try_from(self.bytes.load(Ordering::Relaxed)).unwrap_or(0)
    }

    fn count(&self, more: isize) {
        self.bytes.fetch_add(more, Ordering::Relaxed);
    }

    /// Evicts buckets to below `bytes_max`, with some room for the next ones so that evictions are rare.
    fn make_room(&self, buckets: &mut BucketsById, bytes_max: usize) {
        let target = bytes_max - bytes_max / EVICTED_SHARE;
        // Another thread may have made room already.
        if self.bytes() > target {
            self.evict_to(buckets, target);
        }
    }

    /// Evicts buckets until the others take at most `target` bytes. A bucket that was read since it was inserted, or
    /// since the last pass, is skipped once; the order of the others is arbitrary.
    fn evict_to(&self, buckets: &mut BucketsById, target: usize) {
        while self.bytes() > target && !buckets.is_empty() {
            buckets.retain(|_, entry| {
                if self.bytes() <= target || entry.bucket.take_read_mark() {
                    return true;
                }
                entry.bucket.memory().leave();
                false
            });
        }
    }
}

/// The opened buckets of one database.
pub(crate) struct BucketCache(Arc<CacheState>);

impl Default for BucketCache {
    fn default() -> Self {
        Self(Arc::new(CacheState {
            buckets: Budgeted::new(BUCKET_CACHE_BYTES_MAX),
            bytes: AtomicIsize::new(0),
        }))
    }
}

impl Drop for BucketCache {
    /// Empties the cache: buckets refer to its state and the state to the buckets.
    fn drop(&mut self) {
        self.clear();
    }
}

impl BucketCache {
    fn lock(&self) -> MutexGuard<'_, BucketsById> {
        self.0.buckets.lock()
    }

    /// Changes the limit and evicts what exceeds it; with 0 nothing is kept.
    pub(crate) fn set_bytes_max(&self, bytes: usize) {
        self.0.buckets.set_bytes_max(bytes);
        self.0.evict_to(&mut self.lock(), bytes);
    }

    /// Evicts everything.
    pub(crate) fn clear(&self) {
        for (_, entry) in self.lock().drain() {
            entry.bucket.memory().leave();
        }
    }

    /// Returns the memory in use, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.0.bytes()
    }

    /// True if more than one part in `parts` of the limit is free.
    pub(crate) fn has_room(&self, parts: usize) -> bool {
        let bytes_max = self.0.buckets.bytes_max();
        self.memory_bytes() < bytes_max - bytes_max / parts
    }

    /// True if the limit is not zero.
    pub(crate) fn is_enabled(&self) -> bool {
        self.0.buckets.bytes_max() > 0
    }

    /// Returns the buckets of these ids that are known to be valid at these versions, `None` for the others.
    pub(crate) fn get_at(
        &self,
        versions: Option<KeyspaceVersions>,
        ids: &[[u8; 12]],
    ) -> Vec<Option<Arc<StoredBucket>>> {
        if versions.is_none() {
            return vec![None; ids.len()];
        }
        let mut buckets = self.lock();
        let valid = ids.iter().map(|id| {
            let entry = buckets.get_mut(id)?;
            (entry.valid_at == versions).then(|| entry.read_at(versions))
        });
        valid.collect()
    }

    /// Returns the bucket in the state with this fingerprint.
    pub(crate) fn get(
        &self,
        id: [u8; 12],
        fingerprint: u64,
        versions: Option<KeyspaceVersions>,
    ) -> Option<Arc<StoredBucket>> {
        let mut buckets = self.lock();
        let entry = buckets.get_mut(&id)?;
        (entry.fingerprint == fingerprint).then(|| entry.read_at(versions))
    }

    /// Returns the bucket in whatever state is cached.
    pub(crate) fn other_state(&self, id: [u8; 12]) -> Option<Arc<StoredBucket>> {
        let buckets = self.lock();
        buckets.get(&id).map(|entry| Arc::clone(&entry.bucket))
    }

    /// Returns the bucket that was opened from these bytes at this address, without a tail.
    pub(crate) fn get_opened_from(
        &self,
        id: [u8; 12],
        stored: &[u8],
        versions: Option<KeyspaceVersions>,
    ) -> Option<Arc<StoredBucket>> {
        let mut buckets = self.lock();
        let entry = buckets.get_mut(&id)?;
        let is_same = entry.bucket.is_opened_from(stored);
        is_same.then(|| entry.read_at(versions))
    }

    /// Inserts a bucket unless it is too large. Others are evicted if there is no room.
    pub(crate) fn insert(
        &self,
        id: [u8; 12],
        fingerprint: u64,
        bucket: Arc<StoredBucket>,
        versions: Option<KeyspaceVersions>,
    ) {
        let bytes_max = self.0.buckets.bytes_max();
        let bytes = bucket.memory().bytes();
        if bytes > bytes_max / BUCKET_SHARE {
            return;
        }
        let entry = CachedBucket {
            fingerprint,
            bucket: Arc::clone(&bucket),
            valid_at: versions,
        };
        let mut buckets = self.lock();
        if self.memory_bytes() + bytes > bytes_max {
            self.0.make_room(&mut buckets, bytes_max);
        }
        if let Some(replaced) = buckets.insert(id, entry) {
            replaced.bucket.memory().leave();
        }
        bucket.memory().join(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::{Binary, ObjectId, Value, doc};

    fn bucket(id: u8, padding: usize) -> Arc<StoredBucket> {
        bucket_of(id, padding, 1)
    }

    fn bucket_of(id: u8, padding: usize, count: i32) -> Arc<StoredBucket> {
        let times = Value::DateTime(0);
        let mut column = nilometer_bson::column::ColumnBuilder::new();
        (0..count).for_each(|row| column.append_datetime(i64::from(row % 7)));
        let column = Binary {
            subtype: 7,
            bytes: column.finish().into(),
        };
        let document = doc! {
            "_id": ObjectId([id; 12]),
            "control": doc! {
                "version": 2,
                "min": doc! { "t": times.clone() },
                "max": doc! { "t": times },
                "count": count,
            },
            "meta": "x".repeat(padding),
            "data": doc! { "t": column.clone(), "u": column },
        };
        Arc::new(StoredBucket::from_document(document, "t").unwrap())
    }

    #[test]
    fn an_entry_is_valid_for_one_state_of_its_bucket() {
        let cache = BucketCache::default();
        cache.insert([1; 12], 5, bucket(1, 0), None);
        assert!(cache.get([1; 12], 5, None).is_some());
        assert!(cache.get([1; 12], 6, None).is_none());
        assert!(cache.get([2; 12], 5, None).is_none());
        let entry = |key: &str, value: &str| {
            let bytes = |text: &str| Bytes::copy_from(text.as_bytes());
            vec![(bytes(key), bytes(value))]
        };
        let fingerprint = |stored, tail: &[(Bytes, Bytes)]| fingerprints(stored, tail).last();
        let states = [
            fingerprint(None, &entry("aaaa", "xxxx")),
            fingerprint(None, &entry("aaab", "xxxx")),
            fingerprint(None, &entry("aaaa", "yxxx")),
            fingerprint(None, &entry("", "")),
            fingerprint(Some(b""), &[]),
        ];
        for (at, one) in states.iter().enumerate() {
            assert!(states.iter().skip(at + 1).all(|other| other != one));
        }
    }

    fn check(cache: &BucketCache) -> usize {
        let buckets = cache.lock();
        let all = buckets.values();
        let bytes: usize = all.map(|entry| entry.bucket.memory().bytes()).sum();
        assert_eq!(bytes, cache.memory_bytes());
        bytes
    }

    #[test]
    fn memory_is_bounded() {
        let cache = BucketCache::default();
        for id in 0..40 {
            cache.insert([id; 12], 1, bucket(id, 15 << 20), None);
            assert!(check(&cache) <= BUCKET_CACHE_BYTES_MAX);
        }
        cache.insert([99; 12], 1, bucket(99, BUCKET_CACHE_BYTES_MAX / 4), None);
        assert!(cache.get([99; 12], 1, None).is_none());
        cache.set_bytes_max(50 << 20);
        assert!((1..=50 << 20).contains(&check(&cache)));
        cache.set_bytes_max(0);
        cache.insert([1; 12], 1, bucket(1, 0), None);
        assert_eq!(check(&cache), 0);
        assert_eq!(cache.memory_bytes(), 0);
    }

    #[test]
    fn decoded_columns_are_counted() {
        let cache = BucketCache::default();
        let bucket = bucket_of(1, 0, 1000);
        cache.insert([1; 12], 1, bucket.clone(), None);
        let opened = check(&cache);
        assert!(opened < 8000);
        for _ in 0..2 {
            bucket.column("t").unwrap().unwrap();
            let decoded = check(&cache);
            assert!((opened + 8000..opened + 8200).contains(&decoded));
        }
        cache.clear();
        assert_eq!(check(&cache), 0);
        // A reader still uses it.
        bucket.column("u").unwrap().unwrap();
        assert_eq!(check(&cache), 0);
        cache.insert([1; 12], 1, bucket.clone(), None);
        assert!(check(&cache) >= opened + 16_000);
        // Another state replaces it.
        cache.insert([1; 12], 2, bucket_of(1, 0, 10), None);
        assert!(check(&cache) < opened);
    }

    #[test]
    fn threads_that_decode_stay_within_the_limit() {
        const LIMIT: usize = 1 << 20;
        const THREADS: usize = 4;
        /// Two columns that each thread has decoded before the next eviction.
        const AHEAD: usize = 2 * THREADS * 8200;
        let cache = BucketCache::default();
        cache.set_bytes_max(LIMIT);
        let all: Vec<_> = (0..200).map(|id| bucket_of(id, 0, 1000)).collect();
        for (id, bucket) in all.iter().enumerate() {
            cache.insert([id as u8; 12], 1, bucket.clone(), None);
        }
        assert_eq!(cache.lock().len(), 200, "all fit while nothing is decoded");
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (all, cache) = (&all, &cache);
                scope.spawn(move || {
                    for round in 0..200 {
                        let bucket = &all[(round * 7 + thread * 3) % all.len()];
                        bucket.column("t").unwrap().unwrap();
                        bucket.column("u").unwrap().unwrap();
                        assert!(cache.memory_bytes() <= LIMIT + AHEAD);
                        if round % 50 == 0 {
                            cache.insert([round as u8; 12], 2, bucket_of(0, 0, 1000), None);
                        }
                    }
                });
            }
        });
        assert!((1..=LIMIT).contains(&check(&cache)));
    }

    #[test]
    fn a_dropped_cache_drops_its_buckets() {
        let cache = BucketCache::default();
        let bucket = bucket(1, 0);
        let weak = Arc::downgrade(&bucket);
        cache.insert([1; 12], 1, bucket, None);
        assert!(weak.upgrade().is_some());
        drop(cache);
        assert!(weak.upgrade().is_none());
    }

    #[test]
    fn a_bucket_that_is_read_again_stays() {
        let cache = BucketCache::default();
        cache.set_bytes_max(1 << 20);
        cache.insert([200; 12], 1, bucket(200, 60_000), None);
        for id in 0..100 {
            assert!(cache.get([200; 12], 1, None).is_some(), "{id}");
            cache.insert([id; 12], 1, bucket(id, 60_000), None);
        }
        assert!(check(&cache) <= 1 << 20);
    }
}
