//! Opened buckets, kept for the next reader with the columns that were decoded.
//!
//! A bucket in the cache answers for one state of it only: the bytes it was opened from and the tail
//! entries folded into it. A reader comes with the state it has read from storage, so a bucket that
//! was written meanwhile is opened anew, and no writer needs to tell the cache anything. Where the engine gives the
//! same bytes in the same place, which the bucket in the cache holds on to, there is nothing to compare; and where
//! a snapshot shows what another did ([`Versions`]), there is nothing to read.

use std::collections::HashMap;
use std::sync::Arc;

use nilometer_storage::Bytes;

use super::read::StoredBucket;
use super::roster::Versions;
use crate::budget::Budgeted;

/// Memory the cache may take if nothing else is said, as if every column of its buckets were decoded, in bytes.
pub const BUCKET_CACHE_BYTES_MAX: usize = 256 << 20;

/// One bucket may take this part of it.
const SHARE_MAX: usize = 8;

/// When there is no room, this part of it is made free.
const FREED: usize = 4;

/// Tells one state of a bucket from another: stored bytes, and keys and values of the tail.
pub(super) fn state(stored: Option<&[u8]>, tail: &[(Bytes, Bytes)]) -> u64 {
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

#[derive(Default)]
struct Kept {
    buckets: HashMap<[u8; 12], Entry, foldhash::fast::RandomState>,
    bytes: usize,
}

impl Kept {
    /// Lets buckets go, until they take `most` bytes and no more. A bucket that was read since it came, or since
    /// the last time, is passed over once; which of the others go is anyone's guess.
    fn shrink_to(&mut self, most: usize) {
        while self.bytes > most {
            let bytes = &mut self.bytes;
            self.buckets.retain(|_, entry| {
                if *bytes <= most || entry.bucket.was_wanted() {
                    return true;
                }
                *bytes = bytes.saturating_sub(entry.bucket.memory_bytes());
                false
            });
            if self.buckets.is_empty() {
                self.bytes = 0;
            }
        }
    }
}

/// The cache of one database.
pub struct BucketCache(Budgeted<Kept>);

impl Default for BucketCache {
    fn default() -> Self {
        Self(Budgeted::new(BUCKET_CACHE_BYTES_MAX))
    }
}

impl BucketCache {
    /// Changes the memory it may take; with 0 it keeps nothing.
    pub fn set_bytes_max(&self, bytes: usize) {
        self.0.set_bytes_max(bytes);
        self.0.lock().shrink_to(bytes);
    }

    /// Lets everything go; what comes is kept again.
    pub fn clear(&self) {
        self.0.lock().shrink_to(0);
    }

    /// Memory it takes, as if every column were decoded.
    pub fn memory_bytes(&self) -> usize {
        self.0.lock().bytes
    }

    /// True if more than one part of so many is empty.
    pub(super) fn has_room(&self, parts: usize) -> bool {
        let most = self.0.bytes_max();
        self.memory_bytes() < most - most / parts
    }

    /// True if it keeps anything.
    pub(super) fn keeps(&self) -> bool {
        self.0.bytes_max() > 0
    }

    /// The buckets of these ids that were found when a snapshot showed the same, each in its place.
    pub(super) fn seen(
        &self,
        versions: Option<Versions>,
        ids: &[[u8; 12]],
    ) -> Vec<Option<Arc<StoredBucket>>> {
        if versions.is_none() {
            return vec![None; ids.len()];
        }
        let mut kept = self.0.lock();
        let seen = ids.iter().map(|id| {
            let entry = kept.buckets.get_mut(id)?;
            (entry.seen == versions).then(|| entry.give(versions))
        });
        seen.collect()
    }

    /// The bucket in this state.
    pub(super) fn get(
        &self,
        id: [u8; 12],
        state: u64,
        versions: Option<Versions>,
    ) -> Option<Arc<StoredBucket>> {
        let mut kept = self.0.lock();
        let entry = kept.buckets.get_mut(&id)?;
        (entry.state == state).then(|| entry.give(versions))
    }

    /// The bucket that was opened from these very bytes, with no tail.
    pub(super) fn get_like(
        &self,
        id: [u8; 12],
        stored: &[u8],
        versions: Option<Versions>,
    ) -> Option<Arc<StoredBucket>> {
        let mut kept = self.0.lock();
        let entry = kept.buckets.get_mut(&id)?;
        let is_it = entry.bucket.is_opened_from(stored);
        is_it.then(|| entry.give(versions))
    }

    /// Keeps a bucket; others go when there is no room.
    pub(super) fn put(
        &self,
        id: [u8; 12],
        state: u64,
        bucket: Arc<StoredBucket>,
        versions: Option<Versions>,
    ) {
        let most = self.0.bytes_max();
        let bytes = bucket.memory_bytes();
        if bytes > most / SHARE_MAX {
            return;
        }
        let entry = Entry {
            state,
            bucket,
            seen: versions,
        };
        let mut kept = self.0.lock();
        if kept.bytes + bytes > most {
            kept.shrink_to(most - most / FREED);
        }
        kept.bytes += bytes;
        if let Some(replaced) = kept.buckets.insert(id, entry) {
            kept.bytes -= replaced.bucket.memory_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::{Binary, ObjectId, Value, doc};

    fn bucket(id: u8, padding: usize) -> Arc<StoredBucket> {
        let times = Value::DateTime(0);
        let mut column = nilometer_bson::column::ColumnBuilder::new();
        column.append_datetime(0);
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
                "count": 1,
            },
            "meta": "x".repeat(padding),
            "data": doc! { "t": column },
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
        let kept = cache.0.lock();
        let all = kept.buckets.values();
        let bytes: usize = all.map(|entry| entry.bucket.memory_bytes()).sum();
        assert_eq!(bytes, kept.bytes);
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
