//! Opened buckets, kept for the next reader with the columns that were decoded.
//!
//! A bucket in the cache answers for one state of it only: the bytes it was opened from and the tail
//! entries folded into it. A reader comes with the state it has read from storage, so a bucket that
//! was written meanwhile is opened anew, and no writer needs to tell the cache anything. Where the engine gives the
//! same bytes in the same place, which the bucket in the cache holds on to, there is nothing to compare; and where
//! a snapshot shows what another did ([`Versions`]), there is nothing to read.

use std::collections::HashMap;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock};

use nilometer_storage::Bytes;

use super::opened_bucket::StoredBucket;
use super::sealed_bucket_list::Versions;
use crate::budget::Budgeted;

/// Memory the cache may take if nothing else is said, in bytes.
pub const BUCKET_CACHE_BYTES_MAX: usize = 256 << 20;

/// One bucket may take this part of it.
const SHARE_MAX: usize = 8;

/// When there is no room, this part of it is made free.
const FREED: usize = 4;

/// Tells one state of a bucket from another: stored bytes, and keys and values of the tail.
pub(crate) fn state(stored: Option<&[u8]>, tail: &[(Bytes, Bytes)]) -> u64 {
    /// Odd, with bits all over: no entry undoes another.
    const MIX: u64 = 0x9E37_79B9_7F4A_7C15;
    let hash = xxhash_rust::xxh3::xxh3_64;
    let start = stored.map_or(0, hash);
    tail.iter().fold(start, |state, (key, value)| {
        let state = (state ^ hash(key)).wrapping_mul(MIX);
        (state ^ hash(value)).wrapping_mul(MIX)
    })
}

struct Entry {
    state: u64,
    bucket: Arc<StoredBucket>,
    /// What the snapshot showed in which it was last found in this state.
    seen: Option<Versions>,
}

impl Entry {
    fn give(&mut self, versions: Option<Versions>) -> Arc<StoredBucket> {
        self.seen = versions.or(self.seen);
        self.bucket.is_wanted_again();
        self.bucket.clone()
    }
}

/// What a bucket holds, which its cache counts as long as it keeps the bucket.
pub(crate) struct Held {
    /// Bytes, and [`KEPT`].
    bytes: AtomicUsize,
    /// The cache it was put into last.
    cache: OnceLock<Arc<Shared>>,
}

/// Set where a cache keeps the bucket.
const KEPT: usize = 1 << (usize::BITS - 1);

impl Held {
    /// So many bytes, in no cache.
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            bytes: AtomicUsize::new(bytes),
            cache: OnceLock::new(),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed) & !KEPT
    }

    /// The bucket holds more. Others go if that is too much for its cache.
    pub(crate) fn grow(&self, bytes: usize) {
        let before = self.bytes.fetch_add(bytes, Ordering::Acquire);
        if before & KEPT == 0 {
            return;
        }
        if let Some(cache) = self.cache.get() {
            cache.count(bytes.cast_signed());
            let most = cache.kept.bytes_max();
            if cache.bytes() > most {
                cache.make_room(&mut cache.kept.lock(), most);
            }
        }
    }

    fn join(&self, cache: &Arc<Shared>) {
        let cache = self.cache.get_or_init(|| Arc::clone(cache));
        let before = self.bytes.fetch_or(KEPT, Ordering::AcqRel);
        if before & KEPT == 0 {
            cache.count(before.cast_signed());
        }
    }

    fn leave(&self) {
        let before = self.bytes.fetch_and(!KEPT, Ordering::AcqRel);
        if let (true, Some(cache)) = (before & KEPT != 0, self.cache.get()) {
            cache.count(-(before & !KEPT).cast_signed());
        }
    }
}

type Kept = HashMap<[u8; 12], Entry, foldhash::fast::RandomState>;

/// What buckets know of the cache that keeps them.
struct Shared {
    kept: Budgeted<Kept>,
    /// What is held. What a bucket holds may be taken off a moment before it is added.
    bytes: AtomicIsize,
}

impl Shared {
    fn bytes(&self) -> usize {
        usize::try_from(self.bytes.load(Ordering::Relaxed)).unwrap_or(0)
    }

    fn count(&self, more: isize) {
        self.bytes.fetch_add(more, Ordering::Relaxed);
    }

    /// Lets buckets go, until they take a part less than `most` bytes: as long as that lasts nobody has to look again.
    fn make_room(&self, kept: &mut Kept, most: usize) {
        // Another thread may have seen it as well.
        if self.bytes() > most - most / FREED {
            self.shrink_to(kept, most - most / FREED);
        }
    }

    /// Lets buckets go, until they take `most` bytes and no more. A bucket that was read since it came, or since
    /// the last time, is passed over once; which of the others go is anyone's guess.
    fn shrink_to(&self, kept: &mut Kept, most: usize) {
        while self.bytes() > most && !kept.is_empty() {
            kept.retain(|_, entry| {
                if self.bytes() <= most || entry.bucket.was_wanted() {
                    return true;
                }
                entry.bucket.held().leave();
                false
            });
        }
    }
}

/// The cache of one database.
pub struct BucketCache(Arc<Shared>);

impl Default for BucketCache {
    fn default() -> Self {
        Self(Arc::new(Shared {
            kept: Budgeted::new(BUCKET_CACHE_BYTES_MAX),
            bytes: AtomicIsize::new(0),
        }))
    }
}

impl Drop for BucketCache {
    /// Buckets hold on to what holds them.
    fn drop(&mut self) {
        self.clear();
    }
}

impl BucketCache {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.kept.lock()
    }

    /// Changes the memory it may take; with 0 it keeps nothing.
    pub fn set_bytes_max(&self, bytes: usize) {
        self.0.kept.set_bytes_max(bytes);
        self.0.shrink_to(&mut self.lock(), bytes);
    }

    /// Lets everything go; what comes is kept again.
    pub fn clear(&self) {
        for (_, entry) in self.lock().drain() {
            entry.bucket.held().leave();
        }
    }

    /// Memory it takes.
    pub fn memory_bytes(&self) -> usize {
        self.0.bytes()
    }

    /// True if more than one part of so many is empty.
    pub(crate) fn has_room(&self, parts: usize) -> bool {
        let most = self.0.kept.bytes_max();
        self.memory_bytes() < most - most / parts
    }

    /// True if it keeps anything.
    pub(crate) fn keeps(&self) -> bool {
        self.0.kept.bytes_max() > 0
    }

    /// The buckets of these ids that were found when a snapshot showed the same, each in its place.
    pub(crate) fn seen(
        &self,
        versions: Option<Versions>,
        ids: &[[u8; 12]],
    ) -> Vec<Option<Arc<StoredBucket>>> {
        if versions.is_none() {
            return vec![None; ids.len()];
        }
        let mut kept = self.lock();
        let seen = ids.iter().map(|id| {
            let entry = kept.get_mut(id)?;
            (entry.seen == versions).then(|| entry.give(versions))
        });
        seen.collect()
    }

    /// The bucket in this state.
    pub(crate) fn get(
        &self,
        id: [u8; 12],
        state: u64,
        versions: Option<Versions>,
    ) -> Option<Arc<StoredBucket>> {
        let mut kept = self.lock();
        let entry = kept.get_mut(&id)?;
        (entry.state == state).then(|| entry.give(versions))
    }

    /// The bucket that was opened from these very bytes, with no tail.
    pub(crate) fn get_like(
        &self,
        id: [u8; 12],
        stored: &[u8],
        versions: Option<Versions>,
    ) -> Option<Arc<StoredBucket>> {
        let mut kept = self.lock();
        let entry = kept.get_mut(&id)?;
        let is_it = entry.bucket.is_opened_from(stored);
        is_it.then(|| entry.give(versions))
    }

    /// Keeps a bucket; others go when there is no room.
    pub(crate) fn put(
        &self,
        id: [u8; 12],
        state: u64,
        bucket: Arc<StoredBucket>,
        versions: Option<Versions>,
    ) {
        let most = self.0.kept.bytes_max();
        let bytes = bucket.held().bytes();
        if bytes > most / SHARE_MAX {
            return;
        }
        let entry = Entry {
            state,
            bucket: Arc::clone(&bucket),
            seen: versions,
        };
        let mut kept = self.lock();
        if self.memory_bytes() + bytes > most {
            self.0.make_room(&mut kept, most);
        }
        if let Some(replaced) = kept.insert(id, entry) {
            replaced.bucket.held().leave();
        }
        bucket.held().join(&self.0);
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
    fn a_bucket_answers_for_its_state_alone() {
        let cache = BucketCache::default();
        cache.put([1; 12], 5, bucket(1, 0), None);
        assert!(cache.get([1; 12], 5, None).is_some());
        assert!(cache.get([1; 12], 6, None).is_none());
        assert!(cache.get([2; 12], 5, None).is_none());
        let entry = |key: &str, value: &str| {
            let bytes = |text: &str| Bytes::copy_from(text.as_bytes());
            vec![(bytes(key), bytes(value))]
        };
        let states = [
            state(None, &entry("a", "x")),
            state(None, &entry("b", "x")),
            state(None, &entry("a", "y")),
            state(None, &entry("", "")),
            state(Some(b""), &[]),
        ];
        for (at, one) in states.iter().enumerate() {
            assert!(states.iter().skip(at + 1).all(|other| other != one));
        }
    }

    fn check(cache: &BucketCache) -> usize {
        let kept = cache.lock();
        let all = kept.values();
        let bytes: usize = all.map(|entry| entry.bucket.held().bytes()).sum();
        assert_eq!(bytes, cache.memory_bytes());
        bytes
    }

    #[test]
    fn memory_is_bounded() {
        let cache = BucketCache::default();
        for id in 0..40 {
            cache.put([id; 12], 1, bucket(id, 15 << 20), None);
            assert!(check(&cache) <= BUCKET_CACHE_BYTES_MAX);
        }
        cache.put([99; 12], 1, bucket(99, BUCKET_CACHE_BYTES_MAX / 4), None);
        assert!(cache.get([99; 12], 1, None).is_none());
        cache.set_bytes_max(50 << 20);
        assert!((1..=50 << 20).contains(&check(&cache)));
        cache.set_bytes_max(0);
        cache.put([1; 12], 1, bucket(1, 0), None);
        assert_eq!(check(&cache), 0);
        assert_eq!(cache.memory_bytes(), 0);
    }

    #[test]
    fn columns_count_once_they_are_decoded() {
        let cache = BucketCache::default();
        let bucket = bucket_of(1, 0, 1000);
        cache.put([1; 12], 1, bucket.clone(), None);
        let opened = check(&cache);
        assert!(opened < 8000);
        for _ in 0..2 {
            bucket.column("t").unwrap().unwrap();
            let decoded = check(&cache);
            assert!((opened + 8000..opened + 8200).contains(&decoded));
        }
        cache.clear();
        assert_eq!(check(&cache), 0);
        // Somebody still reads it.
        bucket.column("u").unwrap().unwrap();
        assert_eq!(check(&cache), 0);
        cache.put([1; 12], 1, bucket.clone(), None);
        assert!(check(&cache) >= opened + 16_000);
        // Another in its place.
        cache.put([1; 12], 2, bucket_of(1, 0, 10), None);
        assert!(check(&cache) < opened);
    }

    #[test]
    fn threads_that_decode_stay_within_the_limit() {
        const LIMIT: usize = 1 << 20;
        const THREADS: usize = 4;
        /// Two columns that a thread has decoded and nobody has looked at since.
        const AHEAD: usize = 2 * THREADS * 8200;
        let cache = BucketCache::default();
        cache.set_bytes_max(LIMIT);
        let all: Vec<_> = (0..200).map(|id| bucket_of(id, 0, 1000)).collect();
        for (id, bucket) in all.iter().enumerate() {
            cache.put([id as u8; 12], 1, bucket.clone(), None);
        }
        assert_eq!(
            cache.lock().len(),
            200,
            "they fit as long as nothing is decoded"
        );
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
                            cache.put([round as u8; 12], 2, bucket_of(0, 0, 1000), None);
                        }
                    }
                });
            }
        });
        assert!((1..=LIMIT).contains(&check(&cache)));
    }

    #[test]
    fn a_cache_that_goes_lets_its_buckets_go() {
        let cache = BucketCache::default();
        let bucket = bucket(1, 0);
        let held = Arc::downgrade(&bucket);
        cache.put([1; 12], 1, bucket, None);
        assert!(held.upgrade().is_some());
        drop(cache);
        assert!(held.upgrade().is_none());
    }

    #[test]
    fn what_is_read_again_stays() {
        let cache = BucketCache::default();
        cache.set_bytes_max(1 << 20);
        cache.put([200; 12], 1, bucket(200, 60_000), None);
        for id in 0..100 {
            assert!(cache.get([200; 12], 1, None).is_some(), "{id}");
            cache.put([id; 12], 1, bucket(id, 60_000), None);
        }
        assert!(check(&cache) <= 1 << 20);
    }
}
