//! The series cache: from metadata as clients send it to its series.
//!
//! ```text
//! bytes of metadata ─► hash ─► set of 4 slots ─► key of the series
//!                              newest first; the last is dropped
//! ```
//!
//! A series is identified by its normalised metadata, and a client repeats the same metadata with every measurement. The cache
//! saves normalising and hashing it in every command. Its entries are the bytes of metadata with the fields in some order: as
//! sent, or in the order of the names (`timeseries/insert/reorder_meta.rs`). The table has a fixed number of slots.

use std::hash::BuildHasher;
use std::sync::{Arc, PoisonError, RwLock};

use foldhash::quality::RandomState;

use super::series::SeriesKey;

/// Slots of the table.
const SLOTS: usize = 32_768;

/// Slots of a set. With two, some of a few thousand series would have none.
const WAYS: usize = 4;

/// Longer metadata is not cached, in bytes. A full table takes 32 MiB.
const KEY_BYTES_MAX: usize = 1024;

/// An entry of the cache.
#[derive(Clone, Debug)]
pub(crate) struct CachedSeries {
    pub(crate) hash: u64,
    /// The metadata, with its fields in some order.
    pub(crate) meta: Arc<[u8]>,
    pub(crate) key: Arc<SeriesKey>,
}

/// The table.
#[derive(Debug, Default)]
pub(crate) struct SeriesCache {
    /// Allocated with the first entry.
    slots: RwLock<Vec<Option<CachedSeries>>>,
    /// Equal hashes only make entries displace each other.
    hasher: RandomState,
}

impl SeriesCache {
    /// Returns the hash of metadata.
    pub(crate) fn hash(&self, collection: [u8; 16], meta: &[u8]) -> u64 {
        self.hasher.hash_one((collection, meta))
    }

    /// Returns the series of metadata with this hash.
    pub(crate) fn get(&self, hash: u64, collection: [u8; 16], meta: &[u8]) -> Option<CachedSeries> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let mut known = slots.get(ways(hash))?.iter().flatten();
        let is_it = |cached: &&CachedSeries| {
            cached.hash == hash && *cached.meta == *meta && cached.key.collection == collection
        };
        known.find(is_it).cloned()
    }

    /// Adds metadata.
    pub(crate) fn put(&self, cached: CachedSeries) {
        if cached.meta.len() > KEY_BYTES_MAX {
            return;
        }
        let ways = ways(cached.hash);
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        if slots.is_empty() {
            slots.resize_with(SLOTS, || None);
        }
        let set = &mut slots[ways];
        set.rotate_right(1);
        set[0] = Some(cached);
    }
}

/// The slots of a hash.
fn ways(hash: u64) -> std::ops::Range<usize> {
    let first = hash as usize % (SLOTS / WAYS) * WAYS;
    first..first + WAYS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeseries::bucket_catalog::series::SeriesHasher;
    use crate::timeseries::format::series_key::SeriesMeta;
    use nilometer_bson::{Document, ValueRef, doc};

    const COLLECTION: [u8; 16] = [7; 16];

    fn cached(hash: u64, meta: &Document) -> CachedSeries {
        let normalised = SeriesMeta::of(ValueRef::Document(meta.as_ref()));
        let key = SeriesKey::new(COLLECTION, normalised, &SeriesHasher::default());
        CachedSeries {
            hash,
            meta: meta.as_bytes().into(),
            key: Arc::new(key),
        }
    }

    #[test]
    fn a_series_has_an_entry_for_each_order_of_its_fields() {
        let series_cache = SeriesCache::default();
        let orders = [doc! { "b": 1, "a": "x" }, doc! { "a": "x", "b": 1 }];
        for sent in &orders {
            let hash = series_cache.hash(COLLECTION, sent.as_bytes());
            series_cache.put(cached(hash, sent));
        }
        let [one, other] = orders.map(|sent| {
            let hash = series_cache.hash(COLLECTION, sent.as_bytes());
            assert!(series_cache.get(hash, [8; 16], sent.as_bytes()).is_none());
            let found = series_cache.get(hash, COLLECTION, sent.as_bytes());
            found.unwrap().key
        });
        assert_eq!(one.meta, other.meta);
    }

    #[test]
    fn equal_hashes_are_compared_by_bytes() {
        let series_cache = SeriesCache::default();
        let meta = doc! { "a": 1, "b": 2 };
        series_cache.put(cached(5, &meta));
        for other in [doc! { "a": 1, "b": 3 }, doc! { "a": 1 }, doc! {}] {
            assert!(series_cache.get(5, COLLECTION, other.as_bytes()).is_none());
        }
        assert!(series_cache.get(5, COLLECTION, meta.as_bytes()).is_some());
        assert!(
            series_cache
                .get(5 ^ 1 << 60, COLLECTION, meta.as_bytes())
                .is_none()
        );
    }

    #[test]
    fn each_hash_has_a_set_of_slots() {
        let series_cache = SeriesCache::default();
        let metas: Vec<Document> = (0..=WAYS as i32).map(|n| doc! { "n": n }).collect();
        let hash = |n: usize| 3 + (n * SLOTS) as u64;
        for (n, meta) in metas.iter().enumerate() {
            series_cache.put(cached(hash(n), meta));
        }
        let found = |n: usize| series_cache.get(hash(n), COLLECTION, metas[n].as_bytes());
        assert!(found(0).is_none());
        for (n, meta) in metas.iter().enumerate().skip(1) {
            assert_eq!(found(n).unwrap().key.meta, cached(0, meta).key.meta);
        }
    }

    #[test]
    fn long_metadata_is_not_cached() {
        let series_cache = SeriesCache::default();
        let meta = doc! { "a": "x".repeat(KEY_BYTES_MAX) };
        series_cache.put(cached(5, &meta));
        assert!(series_cache.get(5, COLLECTION, meta.as_bytes()).is_none());
    }
}
