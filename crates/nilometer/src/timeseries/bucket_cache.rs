//! Opened buckets, kept for the next reader with the columns that were decoded.
//!
//! A bucket in the cache answers for one state of it only: the bytes it was opened from and the tail
//! entries folded into it. A reader comes with the state it has read from storage, so a bucket that
//! was written meanwhile is opened anew, and no writer needs to tell the cache anything.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use nilometer_storage::Bytes;

use super::read::StoredBucket;

/// Memory the cache may take, as if every column of its buckets were decoded, in bytes.
const CACHE_BYTES_MAX: usize = 256 << 20;

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

#[derive(Default)]
struct Kept {
    buckets: HashMap<[u8; 12], (u64, Arc<StoredBucket>)>,
    bytes: usize,
}

/// The cache of one database.
#[derive(Default)]
pub(super) struct BucketCache {
    kept: Mutex<Kept>,
}

impl BucketCache {
    /// The bucket in this state.
    pub(super) fn get(&self, id: [u8; 12], state: u64) -> Option<Arc<StoredBucket>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, bucket) = kept.buckets.get(&id)?;
        (*known == state).then(|| bucket.clone())
    }

    /// Keeps a bucket; others go when there is no room.
    pub(super) fn put(&self, id: [u8; 12], state: u64, bucket: Arc<StoredBucket>) {
        let bytes = bucket.memory_bytes();
        if bytes > CACHE_BYTES_MAX / 8 {
            return;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.bytes + bytes > CACHE_BYTES_MAX {
            // Which bucket is read next is anyone's guess: a quarter goes, in the map's order.
            let mut room = CACHE_BYTES_MAX / 4;
            kept.buckets.retain(|_, (_, bucket)| {
                let goes = room > 0;
                room = room.saturating_sub(bucket.memory_bytes());
                !goes
            });
            kept.bytes = kept.buckets.values().map(|(_, b)| b.memory_bytes()).sum();
        }
        kept.bytes += bytes;
        if let Some((_, replaced)) = kept.buckets.insert(id, (state, bucket)) {
            kept.bytes -= replaced.memory_bytes();
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
        cache.put([1; 12], 5, bucket(1, 0));
        assert!(cache.get([1; 12], 5).is_some());
        assert!(cache.get([1; 12], 6).is_none());
        assert!(cache.get([2; 12], 5).is_none());
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

    #[test]
    fn memory_is_bounded() {
        let cache = BucketCache::default();
        for id in 0..40 {
            cache.put([id; 12], 1, bucket(id, 15 << 20));
            let kept = cache.kept.lock().unwrap();
            assert!(kept.bytes <= CACHE_BYTES_MAX);
            let bytes: usize = kept.buckets.values().map(|(_, b)| b.memory_bytes()).sum();
            assert_eq!(bytes, kept.bytes);
        }
        cache.put([99; 12], 1, bucket(99, CACHE_BYTES_MAX / 4));
        assert!(cache.get([99; 12], 1).is_none());
    }
}
