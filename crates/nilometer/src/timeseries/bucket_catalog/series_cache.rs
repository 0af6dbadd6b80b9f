//! Metadata as clients send it, and the series it names.
//!
//! A series is known by its normalised metadata, and a client repeats the same metadata with every
//! measurement. Looking that up spares normalising and hashing it anew in every command. It is looked up
//! in two ways: as the bytes that were sent, and, for clients whose fields come in another order each
//! time, as what [`crate::timeseries::insert::normalize_meta`] makes of them. The table has a fixed number of places;
//! metadata takes the first of four places its hash names, and who had it moves on.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use foldhash::quality::RandomState;
use nilometer_bson::type_code;

use super::series::SeriesKey;

/// Places, some of them side by side for each hash.
const PLACES: usize = 32_768;

/// Places for a hash. Two would leave some of a few thousand series without one.
const WAYS: usize = 4;

/// Bytes of a line of the processor's cache.
const LINE_BYTES: usize = 64;

/// Longer metadata is not remembered, in bytes. With all places taken the table holds 32 MiB.
const RAW_BYTES_MAX: usize = 1024;

/// One way to find a series.
#[derive(Debug)]
struct Alias {
    hash: u64,
    key: Arc<SeriesKey>,
    sent: Sent,
}

#[derive(Debug)]
enum Sent {
    /// As these bytes.
    Bytes(Box<[u8]>),
    /// As those of the normalised metadata, once they are in order. Beside them what tells the order in which they came last.
    InOrder(AtomicU64),
}

impl Alias {
    /// The bytes it is found by.
    fn bytes(&self) -> &[u8] {
        match &self.sent {
            Sent::Bytes(bytes) => bytes,
            // Behind the type.
            Sent::InOrder(_) => match self.key.meta.as_bytes().split_first() {
                Some((&type_code::DOCUMENT, bytes)) => bytes,
                _ => &[],
            },
        }
    }
}

/// The table.
#[derive(Debug, Default)]
pub(crate) struct Aliases {
    /// Made when one is first used.
    places: RwLock<Vec<Option<Alias>>>,
    /// Who finds metadata of equal hashes makes them take each other's place, no more.
    hasher: RandomState,
}

impl Aliases {
    /// The hash of bytes that were sent.
    pub(crate) fn hash(&self, collection: [u8; 16], raw: &[u8]) -> u64 {
        self.hasher.hash_one((collection, raw))
    }

    /// The hash of bytes that were put in order: another one, as they may have been sent, too.
    pub(crate) fn hash_in_order(&self, collection: [u8; 16], bytes: &[u8]) -> u64 {
        self.hash(collection, bytes).rotate_left(u64::BITS / 2)
    }

    /// What is remembered, for some looks at it. Whoever has this must not put anything.
    pub(crate) fn read(&self) -> KnownAliases<'_> {
        KnownAliases(self.places.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Remembers what series the bytes with this hash name.
    pub(crate) fn put(&self, hash: u64, raw: &[u8], key: Arc<SeriesKey>) {
        if raw.len() <= RAW_BYTES_MAX {
            let sent = Sent::Bytes(raw.into());
            self.keep(Alias { hash, key, sent });
        }
    }

    /// Remembers what series metadata with this hash names when it is in order.
    pub(crate) fn put_in_order(&self, hash: u64, sent_as: u64, key: Arc<SeriesKey>) {
        if key.meta.len() <= RAW_BYTES_MAX {
            let sent = Sent::InOrder(AtomicU64::new(sent_as));
            self.keep(Alias { hash, key, sent });
        }
    }

    fn keep(&self, alias: Alias) {
        let ways = ways(alias.hash);
        let mut places = self.places.write().unwrap_or_else(PoisonError::into_inner);
        if places.is_empty() {
            places.resize_with(PLACES, || None);
        }
        if let Some(ways) = places.get_mut(ways) {
            ways.rotate_right(1);
            if let Some(first) = ways.first_mut() {
                *first = Some(alias);
            }
        }
    }
}

/// The table while nobody puts anything into it.
pub(crate) struct KnownAliases<'a>(RwLockReadGuard<'a, Vec<Option<Alias>>>);

impl KnownAliases<'_> {
    /// The series that metadata with the bytes `raw` and this hash names, if it is remembered.
    pub(crate) fn get(
        &self,
        hash: u64,
        collection: [u8; 16],
        raw: &[u8],
    ) -> Option<Arc<SeriesKey>> {
        let found = self.find(hash, |alias| {
            alias.key.collection == collection
                && matches!(&alias.sent, Sent::Bytes(known) if **known == *raw)
        });
        found.cloned()
    }

    /// The series that metadata names which has these bytes and this hash when in order, if it is remembered; and whether it
    /// was sent in the same order the last time.
    pub(crate) fn get_in_order(
        &self,
        hash: u64,
        collection: [u8; 16],
        bytes: &[u8],
        sent_as: u64,
    ) -> Option<(&Arc<SeriesKey>, bool)> {
        let mut as_before = false;
        let found = self.find(hash, |alias| {
            let Sent::InOrder(before) = &alias.sent else {
                return false;
            };
            let is_it = alias.key.collection == collection && alias.bytes() == bytes;
            if is_it {
                as_before = before.load(Ordering::Relaxed) == sent_as;
                before.store(sent_as, Ordering::Relaxed);
            }
            is_it
        });
        found.map(|key| (key, as_before))
    }

    fn find(&self, hash: u64, mut is_it: impl FnMut(&Alias) -> bool) -> Option<&Arc<SeriesKey>> {
        let mut known = self.0.get(ways(hash))?.iter().flatten();
        known
            .find(|alias| alias.hash == hash && is_it(alias))
            .map(|alias| &alias.key)
    }

    /// Reads what looks at these hashes will read, all of them side by side. It finds nothing: it has the processor wait
    /// for its memory once instead of many times.
    pub(crate) fn bring_near(&self, hashes: &[Option<u64>]) {
        let of_hash = |hash: &u64| {
            let mut known = self.0.get(ways(*hash))?.iter().flatten();
            known.find(|alias| alias.hash == *hash)
        };
        let known: Vec<&Alias> = hashes.iter().flatten().filter_map(of_hash).collect();
        let mut read = 0u64;
        for alias in &known {
            read ^= alias.key.hash();
            if let Sent::Bytes(bytes) = &alias.sent {
                read ^= bytes.first().map_or(0, |byte| u64::from(*byte));
            }
        }
        for alias in &known {
            let lines = alias.bytes().iter().step_by(LINE_BYTES);
            read ^= lines.map(|byte| u64::from(*byte)).sum::<u64>();
        }
        std::hint::black_box(read);
    }
}

/// The places of a hash.
fn ways(hash: u64) -> std::ops::Range<usize> {
    let first = hash as usize % (PLACES / WAYS) * WAYS;
    first..first + WAYS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeseries::bucket_catalog::field_names::Names;
    use crate::timeseries::format::series_key::SeriesMeta;
    use crate::timeseries::insert::normalize_meta::NormalOrder;
    use crate::timeseries::tests::Draw;
    use nilometer_bson::{Document, DocumentBuilder, ValueRef, doc};

    const COLLECTION: [u8; 16] = [7; 16];

    /// A table, and what puts metadata in order for it.
    struct Known {
        aliases: Aliases,
        order: NormalOrder,
    }

    impl Known {
        fn new() -> Self {
            Self {
                aliases: Aliases::default(),
                order: NormalOrder::new(Names::default()),
            }
        }

        fn key(meta: &Document) -> Arc<SeriesKey> {
            let normalised = SeriesMeta::of(ValueRef::Document(meta.as_ref()));
            let hasher = std::hash::RandomState::new();
            Arc::new(SeriesKey::new(COLLECTION, normalised, &hasher))
        }

        fn learn(&mut self, meta: &Document) -> Arc<SeriesKey> {
            let key = Self::key(meta);
            if let Some(added) = self.order.add(meta.as_ref(), &[]) {
                let bytes = self.order.bytes(&added);
                let hash = self.aliases.hash_in_order(COLLECTION, bytes);
                self.aliases.put_in_order(hash, added.sent_as, key.clone());
            }
            key
        }

        fn get(&mut self, collection: [u8; 16], meta: &Document) -> Option<(Arc<SeriesKey>, bool)> {
            let added = self.order.add(meta.as_ref(), &[])?;
            let bytes = self.order.bytes(&added);
            let hash = self.aliases.hash_in_order(collection, bytes);
            let aliases = self.aliases.read();
            aliases.bring_near(&[None, Some(hash)]);
            let found = aliases.get_in_order(hash, collection, bytes, added.sent_as);
            found.map(|(key, as_before)| (key.clone(), as_before))
        }

        fn finds(&mut self, collection: [u8; 16], meta: &Document) -> Option<Arc<SeriesKey>> {
            self.get(collection, meta).map(|(key, _)| key)
        }
    }

    fn learned(meta: &Document) -> (Known, Arc<SeriesKey>) {
        let mut known = Known::new();
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
    fn fields_in_the_order_of_the_last_time_are_told_from_others() {
        let sent = doc! { "b": 1, "a": "x" };
        let other = doc! { "a": "x", "b": 1 };
        let (mut known, _) = learned(&sent);
        for (meta, as_before) in [
            (&sent, true),
            (&other, false),
            (&other, true),
            (&sent, false),
        ] {
            let found = known.get(COLLECTION, meta);
            assert_eq!(found.unwrap().1, as_before, "{meta:?}");
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
    fn equal_hashes_are_looked_at_closer() {
        let meta = doc! { "a": 1, "b": 2 };
        let (mut known, key) = learned(&meta);
        let added = known.order.add(meta.as_ref(), &[]).unwrap();
        let bytes = known.order.bytes(&added);
        let hash = known.aliases.hash_in_order(COLLECTION, bytes);
        known.aliases.put(hash ^ 1 << 60, bytes, key);
        for other in [doc! { "a": 1, "b": 3 }, doc! { "a": 1 }, doc! {}] {
            let bytes = other.as_bytes();
            let aliases = known.aliases.read();
            assert_eq!(aliases.get_in_order(hash, COLLECTION, bytes, 0), None);
            assert_eq!(aliases.get(hash, COLLECTION, bytes), None);
            assert_eq!(aliases.get(hash ^ 1 << 60, COLLECTION, bytes), None);
        }
    }

    #[test]
    fn each_hash_has_some_places() {
        let known = Known::new();
        let metas: Vec<Document> = (0..=WAYS as i32).map(|n| doc! { "n": n }).collect();
        let hash = |n: usize| 3 + (n * PLACES) as u64;
        for (n, meta) in metas.iter().enumerate() {
            known
                .aliases
                .put(hash(n), meta.as_bytes(), Known::key(meta));
        }
        let found = |n: usize| {
            known
                .aliases
                .read()
                .get(hash(n), COLLECTION, metas[n].as_bytes())
        };
        assert!(found(0).is_none());
        for (n, meta) in metas.iter().enumerate().skip(1) {
            assert_eq!(found(n).unwrap().meta, Known::key(meta).meta);
        }
    }

    #[test]
    fn metadata_that_is_no_document_is_not_found_by_its_bytes() {
        let known = Known::new();
        let hasher = std::hash::RandomState::new();
        let normalised = SeriesMeta::of(ValueRef::String("x"));
        let bytes = normalised.as_bytes()[1..].to_vec();
        let key = Arc::new(SeriesKey::new(COLLECTION, normalised, &hasher));
        known.aliases.put_in_order(5, 0, key);
        assert_eq!(
            known.aliases.read().get_in_order(5, COLLECTION, &bytes, 0),
            None
        );
    }

    #[test]
    fn generated_metadata_names_the_series_that_normalising_tells() {
        let mut draw = Draw::new(7);
        let mut known = Known::new();
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
                    assert_eq!(series.meta, Known::key(&meta).meta, "{meta:?}");
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
