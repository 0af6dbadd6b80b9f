//! Metadata as clients send it, and the series it names.
//!
//! A series is known by its normalised metadata, and a client repeats the same metadata with every
//! measurement. Looking that up spares normalising and hashing it anew in every command. It is looked up
//! in two ways: as the bytes that were sent, and, for clients whose fields come in another order each
//! time, field by field, by a hash that no order changes. The table has a fixed number of places;
//! metadata takes one of two places its hash names, whoever had it before.

use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, PoisonError};

use foldhash::quality::RandomState;
use nilometer_bson::document::Elements;
use nilometer_bson::{DocRef, Element, ValueRef};

use super::series::SeriesKey;

/// Locks the places are spread over.
const SHARDS: usize = 16;

/// Places of one shard, in pairs.
const PLACES: usize = 2048;

/// Longer metadata is not remembered, in bytes. With all places taken the table holds 32 MiB.
const RAW_BYTES_MAX: usize = 1024;

/// Metadata with more fields is not looked up field by field.
const FIELDS_MAX: usize = 32;

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
    /// As these fields of the normalised metadata, in any order.
    Fields(Box<[Part]>),
}

/// A field of normalised metadata: a part of a hash of it, and where it is there, from its type to the end of its value.
/// Small: a look at one series should touch few lines of the cache.
#[derive(Debug)]
struct Part {
    hash: u32,
    start: u16,
    bytes: u16,
}

impl Part {
    fn is(&self, field: &[u8], normalised: &[u8]) -> bool {
        let here = normalised.get(usize::from(self.start)..);
        here.and_then(|here| here.get(..usize::from(self.bytes))) == Some(field)
    }
}

/// The fields of a document, each as its bytes: type, name and value.
struct RawFields<'a>(Elements<'a>);

impl<'a> Iterator for RawFields<'a> {
    type Item = (Element<'a>, &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let before = self.0.rest();
        let element = self.0.next()?;
        let bytes = before.get(..before.len() - self.0.rest().len())?;
        Some((element, bytes))
    }
}

/// A hash of metadata whatever the order of its fields, and those of the fields in the order sent.
pub(crate) struct FieldHashes {
    of_all: u64,
    count: usize,
    /// With their lengths.
    of_each: [(u32, u16); FIELDS_MAX],
}

/// The table.
#[derive(Debug)]
pub(crate) struct Aliases {
    /// Their places are made when one is first used.
    shards: Vec<Mutex<Vec<Option<Alias>>>>,
    /// Who finds metadata of equal hashes makes them take each other's place, no more.
    hasher: RandomState,
}

impl Default for Aliases {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::default(),
        }
    }
}

impl Aliases {
    /// The hash of bytes that were sent.
    pub(crate) fn hash(&self, collection: [u8; 16], raw: &[u8]) -> u64 {
        self.hasher.hash_one((collection, raw))
    }

    /// Hashes of the fields that were sent; `None` if they are too many.
    pub(crate) fn hash_fields(
        &self,
        collection: [u8; 16],
        meta: DocRef<'_>,
    ) -> Option<FieldHashes> {
        let mut hashes = FieldHashes {
            of_all: self.hasher.hash_one(collection),
            count: 0,
            of_each: [(0, 0); FIELDS_MAX],
        };
        for (_, field) in RawFields(meta.iter()) {
            let hash = self.hasher.hash_one(field);
            let bytes = u16::try_from(field.len()).ok()?;
            *hashes.of_each.get_mut(hashes.count)? = (hash as u32, bytes);
            hashes.count += 1;
            hashes.of_all = hashes.of_all.wrapping_add(hash);
        }
        Some(hashes)
    }

    /// The series that metadata with the bytes `raw` and this hash names, if it is remembered.
    pub(crate) fn get(
        &self,
        hash: u64,
        collection: [u8; 16],
        raw: &[u8],
    ) -> Option<Arc<SeriesKey>> {
        self.find(hash, |alias| {
            alias.key.collection == collection
                && matches!(&alias.sent, Sent::Bytes(known) if **known == *raw)
        })
    }

    /// The series that metadata with these fields names, if it is remembered.
    pub(crate) fn get_by_fields(
        &self,
        hashes: &FieldHashes,
        collection: [u8; 16],
        meta: DocRef<'_>,
    ) -> Option<Arc<SeriesKey>> {
        self.find(hashes.of_all, |alias| {
            let Sent::Fields(parts) = &alias.sent else {
                return false;
            };
            alias.key.collection == collection
                && parts.len() == hashes.count
                && is_permutation(parts, alias.key.meta.as_bytes(), hashes, meta)
        })
    }

    fn find(&self, hash: u64, is_it: impl Fn(&Alias) -> bool) -> Option<Arc<SeriesKey>> {
        let (shard, place) = place(hash);
        let places = self.shards.get(shard)?;
        let places = places.lock().unwrap_or_else(PoisonError::into_inner);
        let pair = [places.get(place)?, places.get(place ^ 1)?];
        let mut known = pair.into_iter().flatten();
        known
            .find(|alias| alias.hash == hash && is_it(alias))
            .map(|alias| alias.key.clone())
    }

    /// Remembers what series the bytes with this hash name.
    pub(crate) fn put(&self, hash: u64, raw: &[u8], key: Arc<SeriesKey>) {
        if raw.len() <= RAW_BYTES_MAX {
            let sent = Sent::Bytes(raw.into());
            self.keep(Alias { hash, key, sent });
        }
    }

    /// Remembers what series the fields with these hashes name, in whatever order.
    pub(crate) fn put_fields(&self, hashes: &FieldHashes, key: Arc<SeriesKey>) {
        if key.meta.len() > RAW_BYTES_MAX {
            return;
        }
        if let Some(parts) = self.parts(&key) {
            let (hash, sent) = (hashes.of_all, Sent::Fields(parts));
            self.keep(Alias { hash, key, sent });
        }
    }

    /// The fields of normalised metadata; `None` where a name is there twice, so that order matters.
    fn parts(&self, key: &SeriesKey) -> Option<Box<[Part]>> {
        let ValueRef::Document(fields) = key.meta.value() else {
            return None;
        };
        let mut parts = Vec::with_capacity(FIELDS_MAX);
        // Behind the type of the metadata and the length of the document.
        let mut at = 1 + 4;
        let mut last: Option<&[u8]> = None;
        for (element, field) in RawFields(fields.iter()) {
            if last == Some(element.name_bytes()) {
                return None;
            }
            last = Some(element.name_bytes());
            parts.push(Part {
                hash: self.hasher.hash_one(field) as u32,
                start: u16::try_from(at).ok()?,
                bytes: u16::try_from(field.len()).ok()?,
            });
            at += field.len();
        }
        Some(parts.into())
    }

    fn keep(&self, alias: Alias) {
        let (shard, place) = place(alias.hash);
        let Some(shard) = self.shards.get(shard) else {
            return;
        };
        let mut places = shard.lock().unwrap_or_else(PoisonError::into_inner);
        if places.is_empty() {
            places.resize_with(PLACES, || None);
        }
        let [first, second] = [place, place ^ 1];
        let evicted = places.get_mut(first).and_then(|at| at.replace(alias));
        if let (Some(evicted), Some(second)) = (evicted, places.get_mut(second)) {
            *second = Some(evicted);
        }
    }
}

/// The shard a hash falls to, and the first of its places there.
fn place(hash: u64) -> (usize, usize) {
    let hash = hash as usize;
    (hash % SHARDS, hash / SHARDS % PLACES)
}

/// True if the fields sent are the parts, each once.
fn is_permutation(
    parts: &[Part],
    normalised: &[u8],
    hashes: &FieldHashes,
    meta: DocRef<'_>,
) -> bool {
    let mut met = 0u32;
    let mut rest = meta.iter().rest();
    let same = hashes
        .of_each
        .iter()
        .take(hashes.count)
        .all(|(hash, bytes)| {
            let Some((field, behind)) = rest.split_at_checked(usize::from(*bytes)) else {
                return false;
            };
            rest = behind;
            let mut known = parts.iter().enumerate();
            let found = known.find(|(_, part)| part.hash == *hash);
            found.is_some_and(|(at, part)| {
                met |= 1 << at;
                part.is(field, normalised)
            })
        });
    same && met.count_ones() as usize == parts.len()
}

#[cfg(test)]
mod tests {
    use super::super::super::meta::SeriesMeta;
    use super::*;
    use nilometer_bson::{Document, doc};

    const COLLECTION: [u8; 16] = [7; 16];

    fn learned(meta: &Document) -> (Aliases, Arc<SeriesKey>) {
        let aliases = Aliases::default();
        let normalised = SeriesMeta::of(ValueRef::Document(meta.as_ref()));
        let hasher = std::hash::RandomState::new();
        let key = Arc::new(SeriesKey::new(COLLECTION, normalised, &hasher));
        let hashes = aliases.hash_fields(COLLECTION, meta.as_ref()).unwrap();
        aliases.put_fields(&hashes, key.clone());
        (aliases, key)
    }

    fn finds(aliases: &Aliases, collection: [u8; 16], meta: &Document) -> Option<Arc<SeriesKey>> {
        let hashes = aliases.hash_fields(collection, meta.as_ref())?;
        aliases.get_by_fields(&hashes, collection, meta.as_ref())
    }

    #[test]
    fn fields_name_a_series_in_any_order() {
        let (aliases, key) = learned(&doc! { "b": 1, "a": "x", "c": doc! { "d": 1, "e": 2 } });
        for sent in [
            doc! { "b": 1, "a": "x", "c": doc! { "d": 1, "e": 2 } },
            doc! { "c": doc! { "d": 1, "e": 2 }, "b": 1, "a": "x" },
            doc! { "a": "x", "c": doc! { "d": 1, "e": 2 }, "b": 1 },
        ] {
            assert_eq!(finds(&aliases, COLLECTION, &sent), Some(key.clone()));
            assert_eq!(finds(&aliases, [8; 16], &sent), None);
        }
    }

    #[test]
    fn other_fields_do_not() {
        let (aliases, _) = learned(&doc! { "a": 1, "b": 2 });
        for sent in [
            doc! { "a": 2, "b": 1 },
            doc! { "a": 1, "b": 2i64 },
            doc! { "a": 1 },
            doc! { "a": 1, "b": 2, "c": 3 },
            doc! { "a": 1, "a": 1 },
            doc! {},
        ] {
            assert_eq!(finds(&aliases, COLLECTION, &sent), None, "{sent:?}");
        }
    }

    #[test]
    fn where_order_tells_series_apart_nothing_is_remembered() {
        let twice = doc! { "a": 1, "a": 2 };
        let (aliases, _) = learned(&twice);
        assert_eq!(finds(&aliases, COLLECTION, &twice), None);
        assert_eq!(finds(&aliases, COLLECTION, &doc! { "a": 2, "a": 1 }), None);
    }

    #[test]
    fn equal_hashes_are_looked_at_closer() {
        let meta = doc! { "a": 1, "b": 2 };
        let (aliases, _) = learned(&meta);
        let hashes = aliases.hash_fields(COLLECTION, meta.as_ref()).unwrap();
        let others = [
            doc! { "a": 1, "b": 3 },
            doc! { "a": 1, "a": 1 },
            doc! { "b": 2, "a": 9 },
        ];
        for other in others {
            let found = aliases.get_by_fields(&hashes, COLLECTION, other.as_ref());
            assert_eq!(found, None, "{other:?}");
        }
    }

    #[test]
    fn metadata_of_many_fields_is_left_alone() {
        let mut many = nilometer_bson::DocumentBuilder::new();
        for at in 0..=FIELDS_MAX {
            many.append(&format!("f{at}"), 1);
        }
        let aliases = Aliases::default();
        let many = many.finish();
        assert!(aliases.hash_fields(COLLECTION, many.as_ref()).is_none());
    }
}
