//! The series cache: from metadata as clients send it to its series.
//!
//! ```text
//! bytes as sent ──────────┐
//!                         ├─► hash ─► set of 4 slots ─► key of the series
//! bytes, normalised ──────┘             newest first; the last is dropped
//! ```
//!
//! A series is identified by its normalised metadata, and a client repeats the same metadata with every measurement. The cache
//! saves normalising and hashing it in every command. Metadata whose fields come in another order each time is found by what
//! [`crate::timeseries::insert::normalize_meta`] makes of it. The table has a fixed number of slots.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use foldhash::quality::RandomState;
use nilometer_bson::type_code;

use super::series::SeriesKey;

/// Slots of the table.
const SLOTS: usize = 32_768;

/// Slots of a set. With two, some of a few thousand series would have none.
const WAYS: usize = 4;

/// Bytes of a cache line of the processor.
const LINE_BYTES: usize = 64;

/// Longer metadata is not cached, in bytes. A full table takes 32 MiB.
const KEY_BYTES_MAX: usize = 1024;

/// An entry of the cache.
#[derive(Debug)]
struct CachedSeries {
    hash: u64,
    key: Arc<SeriesKey>,
    cache_key: CacheKey,
}

#[derive(Debug)]
enum CacheKey {
    /// Metadata as sent.
    Bytes(Box<[u8]>),
    /// Normalised metadata, whose bytes are in the key. Holds a hash of the order in which the fields came last.
    Normalized(AtomicU64),
}

impl CachedSeries {
    /// The bytes that the entry matches.
    fn bytes(&self) -> &[u8] {
        match &self.cache_key {
            CacheKey::Bytes(bytes) => bytes,
            // Without the type.
            CacheKey::Normalized(_) => match self.key.meta.as_bytes().split_first() {
                Some((&type_code::DOCUMENT, bytes)) => bytes,
                _ => &[],
            },
        }
    }
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
    /// Returns the hash of metadata as sent.
    pub(crate) fn hash(&self, collection: [u8; 16], raw: &[u8]) -> u64 {
        self.hasher.hash_one((collection, raw))
    }

    /// Returns the hash of normalised metadata. It differs from that of the same bytes as sent.
    pub(crate) fn hash_normalized(&self, collection: [u8; 16], bytes: &[u8]) -> u64 {
        self.hash(collection, bytes).rotate_left(u64::BITS / 2)
    }

    /// Locks the cache for reading. The holder must not add entries.
    pub(crate) fn read(&self) -> SeriesCacheReader<'_> {
        SeriesCacheReader(self.slots.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds metadata as sent.
    pub(crate) fn put(&self, hash: u64, raw: &[u8], key: Arc<SeriesKey>) {
        if raw.len() <= KEY_BYTES_MAX {
            let cache_key = CacheKey::Bytes(raw.into());
            self.insert(CachedSeries {
                hash,
                key,
                cache_key,
            });
        }
    }

    /// Adds normalised metadata.
    pub(crate) fn put_normalized(&self, hash: u64, field_order: u64, key: Arc<SeriesKey>) {
        if key.meta.len() <= KEY_BYTES_MAX {
            let cache_key = CacheKey::Normalized(AtomicU64::new(field_order));
            self.insert(CachedSeries {
                hash,
                key,
                cache_key,
            });
        }
    }

    fn insert(&self, cached: CachedSeries) {
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

/// The cache, locked for reading.
pub(crate) struct SeriesCacheReader<'a>(RwLockReadGuard<'a, Vec<Option<CachedSeries>>>);

impl SeriesCacheReader<'_> {
    /// Returns the series of metadata as sent.
    pub(crate) fn get(
        &self,
        hash: u64,
        collection: [u8; 16],
        raw: &[u8],
    ) -> Option<Arc<SeriesKey>> {
        let found = self.find(hash, |cached| {
            cached.key.collection == collection
                && matches!(&cached.cache_key, CacheKey::Bytes(known) if **known == *raw)
        });
        found.cloned()
    }

    /// Returns the series of normalised metadata, and whether its fields came in the same order the last time. Stores their
    /// order.
    pub(crate) fn get_normalized(
        &self,
        hash: u64,
        collection: [u8; 16],
        bytes: &[u8],
        field_order: u64,
    ) -> Option<(&Arc<SeriesKey>, bool)> {
        let mut same_order = false;
        let found = self.find(hash, |cached| {
            let CacheKey::Normalized(before) = &cached.cache_key else {
                return false;
            };
            let is_it = cached.key.collection == collection && cached.bytes() == bytes;
            if is_it {
                same_order = before.load(Ordering::Relaxed) == field_order;
                before.store(field_order, Ordering::Relaxed);
            }
            is_it
        });
        found.map(|key| (key, same_order))
    }

    fn find(
        &self,
        hash: u64,
        mut is_it: impl FnMut(&CachedSeries) -> bool,
    ) -> Option<&Arc<SeriesKey>> {
        let mut known = self.0.get(ways(hash))?.iter().flatten();
        known
            .find(|cached| cached.hash == hash && is_it(cached))
            .map(|cached| &cached.key)
    }

    /// Reads the entries of these hashes side by side, so that the lookups that follow find them in the processor's cache.
    /// One after the other, each would wait for memory.
    pub(crate) fn prefetch(&self, hashes: &[Option<u64>]) {
        let of_hash = |hash: &u64| {
            let mut known = self.0.get(ways(*hash))?.iter().flatten();
            known.find(|cached| cached.hash == *hash)
        };
        let known: Vec<&CachedSeries> = hashes.iter().flatten().filter_map(of_hash).collect();
        let mut read = 0u64;
        for cached in &known {
            read ^= cached.key.hash();
            if let CacheKey::Bytes(bytes) = &cached.cache_key {
                read ^= bytes.first().map_or(0, |byte| u64::from(*byte));
            }
        }
        for cached in &known {
            let lines = cached.bytes().iter().step_by(LINE_BYTES);
            read ^= lines.map(|byte| u64::from(*byte)).sum::<u64>();
        }
        std::hint::black_box(read);
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
    use crate::timeseries::bucket_catalog::field_names::FieldNames;
    use crate::timeseries::bucket_catalog::series::SeriesHasher;
    use crate::timeseries::format::series_key::SeriesMeta;
    use crate::timeseries::insert::normalize_meta::MetaNormalizer;
    use crate::timeseries::tests::Draw;
    use nilometer_bson::{Document, DocumentBuilder, ValueRef, doc};

    const COLLECTION: [u8; 16] = [7; 16];

    /// A cache and a normaliser.
    struct CacheFixture {
        series_cache: SeriesCache,
        order: MetaNormalizer,
    }

    impl CacheFixture {
        fn new() -> Self {
            Self {
                series_cache: SeriesCache::default(),
                order: MetaNormalizer::new(FieldNames::default()),
            }
        }

        fn key(meta: &Document) -> Arc<SeriesKey> {
            let normalised = SeriesMeta::of(ValueRef::Document(meta.as_ref()));
            let hasher = SeriesHasher::default();
            Arc::new(SeriesKey::new(COLLECTION, normalised, &hasher))
        }

        fn learn(&mut self, meta: &Document) -> Arc<SeriesKey> {
            let key = Self::key(meta);
            if let Some(added) = self.order.add(meta.as_ref(), &[]) {
                let bytes = self.order.bytes(&added);
                let hash = self.series_cache.hash_normalized(COLLECTION, bytes);
                self.series_cache
                    .put_normalized(hash, added.field_order, key.clone());
            }
            key
        }

        fn get(&mut self, collection: [u8; 16], meta: &Document) -> Option<(Arc<SeriesKey>, bool)> {
            let added = self.order.add(meta.as_ref(), &[])?;
            let bytes = self.order.bytes(&added);
            let hash = self.series_cache.hash_normalized(collection, bytes);
            let series_cache = self.series_cache.read();
            series_cache.prefetch(&[None, Some(hash)]);
            let found = series_cache.get_normalized(hash, collection, bytes, added.field_order);
            found.map(|(key, same_order)| (key.clone(), same_order))
        }

        fn finds(&mut self, collection: [u8; 16], meta: &Document) -> Option<Arc<SeriesKey>> {
            self.get(collection, meta).map(|(key, _)| key)
        }
    }

    fn learned(meta: &Document) -> (CacheFixture, Arc<SeriesKey>) {
        let mut known = CacheFixture::new();
        let key = known.learn(meta);
        (known, key)
    }

    #[test]
    fn fields_name_a_series_in_any_order() {
        let (mut known, key) = learned(&doc! { "b": 1, "a": "x", "c": doc! { "d": 1, "e": 2 } });
        for sent in [
            doc! { "b": 1, "a": "x", "c": doc! { "d": 1, "e": 2 } },
            doc! { "c": doc! { "d": 1, "e": 2 }, "b": 1, "a": "x" },
            doc! { "a": "x", "c": doc! { "d": 1, "e": 2 }, "b": 1 },
        ] {
            assert_eq!(known.finds(COLLECTION, &sent), Some(key.clone()));
            assert_eq!(known.finds([8; 16], &sent), None);
        }
    }

    #[test]
    fn fields_in_the_same_order_as_before_are_distinguished() {
        let sent = doc! { "b": 1, "a": "x" };
        let other = doc! { "a": "x", "b": 1 };
        let (mut known, _) = learned(&sent);
        for (meta, same_order) in [
            (&sent, true),
            (&other, false),
            (&other, true),
            (&sent, false),
        ] {
            let found = known.get(COLLECTION, meta);
            assert_eq!(found.unwrap().1, same_order, "{meta:?}");
        }
    }

    #[test]
    fn other_fields_do_not() {
        let (mut known, _) = learned(&doc! { "a": 1, "b": 2 });
        for sent in [
            doc! { "a": 2, "b": 1 },
            doc! { "a": 1, "b": 2i64 },
            doc! { "a": 1 },
            doc! { "a": 1, "b": 2, "c": 3 },
            doc! { "a": 1, "a": 1 },
            doc! {},
        ] {
            assert_eq!(known.finds(COLLECTION, &sent), None, "{sent:?}");
        }
    }

    #[test]
    fn equal_hashes_are_compared_by_bytes() {
        let meta = doc! { "a": 1, "b": 2 };
        let (mut known, key) = learned(&meta);
        let added = known.order.add(meta.as_ref(), &[]).unwrap();
        let bytes = known.order.bytes(&added);
        let hash = known.series_cache.hash_normalized(COLLECTION, bytes);
        known.series_cache.put(hash ^ 1 << 60, bytes, key);
        for other in [doc! { "a": 1, "b": 3 }, doc! { "a": 1 }, doc! {}] {
            let bytes = other.as_bytes();
            let series_cache = known.series_cache.read();
            assert_eq!(
                series_cache.get_normalized(hash, COLLECTION, bytes, 0),
                None
            );
            assert_eq!(series_cache.get(hash, COLLECTION, bytes), None);
            assert_eq!(series_cache.get(hash ^ 1 << 60, COLLECTION, bytes), None);
        }
    }

    #[test]
    fn each_hash_has_a_set_of_slots() {
        let known = CacheFixture::new();
        let metas: Vec<Document> = (0..=WAYS as i32).map(|n| doc! { "n": n }).collect();
        let hash = |n: usize| 3 + (n * SLOTS) as u64;
        for (n, meta) in metas.iter().enumerate() {
            known
                .series_cache
                .put(hash(n), meta.as_bytes(), CacheFixture::key(meta));
        }
        let found = |n: usize| {
            known
                .series_cache
                .read()
                .get(hash(n), COLLECTION, metas[n].as_bytes())
        };
        assert!(found(0).is_none());
        for (n, meta) in metas.iter().enumerate().skip(1) {
            assert_eq!(found(n).unwrap().meta, CacheFixture::key(meta).meta);
        }
    }

    #[test]
    fn metadata_that_is_no_document_is_not_found_by_its_bytes() {
        let known = CacheFixture::new();
        let hasher = SeriesHasher::default();
        let normalised = SeriesMeta::of(ValueRef::String("x"));
        let bytes = normalised.as_bytes()[1..].to_vec();
        let key = Arc::new(SeriesKey::new(COLLECTION, normalised, &hasher));
        known.series_cache.put_normalized(5, 0, key);
        assert_eq!(
            known
                .series_cache
                .read()
                .get_normalized(5, COLLECTION, &bytes, 0),
            None
        );
    }

    #[test]
    fn generated_metadata_names_the_series_of_its_normal_form() {
        let mut draw = Draw::new(7);
        let mut known = CacheFixture::new();
        let (mut found, mut missed) = (0, 0);
        for _ in 0..6000 {
            let mut meta = DocumentBuilder::new();
            for _ in 0..draw.below(5) {
                let name = ["a", "host", "datacenter_of_many", "service"][draw.below(4) as usize];
                match draw.below(12) {
                    0 => meta.append(name, doc! { "y": 1, "x": draw.below(2) as i32 }),
                    1 => meta.append(name, doc! { "x": draw.below(2) as i32, "y": 1 }),
                    2..6 => meta.append(name, draw.below(2) as i32),
                    _ => meta.append(name, ["x", "production"][draw.below(2) as usize]),
                };
            }
            let meta = meta.finish();
            known.order.clear();
            match known.finds(COLLECTION, &meta) {
                Some(series) => {
                    assert_eq!(series.meta, CacheFixture::key(&meta).meta, "{meta:?}");
                    found += 1;
                }
                None => {
                    known.learn(&meta);
                    missed += 1;
                }
            }
        }
        assert!(found > 2000 && missed > 500, "{found} {missed}");
    }
}
