//! Metadata as clients send it, and the series it names.
//!
//! A series is known by its normalised metadata, and a client repeats the same metadata with every
//! measurement. Looking that up spares normalising and hashing it anew in every command. It is looked up
//! in two ways: as the bytes that were sent, and, for clients whose fields come in another order each
//! time, field by field, by a hash that no order changes. The table has a fixed number of places;
//! metadata takes one of two places its hash names, whoever had it before.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use foldhash::quality::RandomState;
use nilometer_bson::document::Elements;
use nilometer_bson::{DocRef, Element, ValueRef};

use super::series::SeriesKey;

/// Places, in pairs.
const PLACES: usize = 32_768;

/// Bytes of a line of the processor's cache.
const LINE_BYTES: usize = 64;

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
    /// As these fields of the normalised metadata, in any order. Beside them a hash of the order in which they came last.
    Fields(Box<[Part]>, AtomicU64),
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
        let here = here.and_then(|here| here.get(..usize::from(self.bytes)));
        here.is_some_and(|here| are_same(here, field))
    }
}

/// True if the bytes are the same. Most fields have 16 to 32 bytes, which two comparisons cover.
#[inline]
fn are_same(a: &[u8], b: &[u8]) -> bool {
    let ends = |bytes: &[u8]| {
        let (first, last) = (bytes.first_chunk::<16>()?, bytes.last_chunk::<16>()?);
        Some((u128::from_le_bytes(*first), u128::from_le_bytes(*last)))
    };
    match (ends(a), ends(b)) {
        (Some(of_a), Some(of_b)) if a.len() == b.len() && a.len() <= 32 => of_a == of_b,
        _ => a == b,
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

impl FieldHashes {
    /// The hash that no order changes.
    pub(crate) fn of_all(&self) -> u64 {
        self.of_all
    }
}

/// A hash of metadata whatever the order of its fields, and those of the fields in the order sent.
pub(crate) struct FieldHashes {
    of_all: u64,
    /// Of all in the order sent.
    in_order: u64,
    count: usize,
    /// With their lengths.
    of_each: [(u32, u16); FIELDS_MAX],
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

    /// Hashes of the fields that were sent; `None` if they are too many.
    pub(crate) fn hash_fields(
        &self,
        collection: [u8; 16],
        meta: DocRef<'_>,
    ) -> Option<FieldHashes> {
        let mut hashes = FieldHashes {
            of_all: self.hasher.hash_one(collection),
            in_order: 0,
            count: 0,
            of_each: [(0, 0); FIELDS_MAX],
        };
        for (_, field) in RawFields(meta.iter()) {
            let hash = self.hasher.hash_one(field);
            let bytes = u16::try_from(field.len()).ok()?;
            *hashes.of_each.get_mut(hashes.count)? = (hash as u32, bytes);
            hashes.count += 1;
            hashes.of_all = hashes.of_all.wrapping_add(hash);
            hashes.in_order = hashes.in_order.rotate_left(5) ^ hash;
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

    /// The series that metadata with these fields names, if it is remembered; and whether they came in the same order the
    /// last time.
    pub(crate) fn get_by_fields(
        &self,
        hashes: &FieldHashes,
        collection: [u8; 16],
        meta: DocRef<'_>,
    ) -> Option<(Arc<SeriesKey>, bool)> {
        let mut as_before = false;
        let found = self.find(hashes.of_all, |alias| {
            let Sent::Fields(parts, before) = &alias.sent else {
                return false;
            };
            let is_it = alias.key.collection == collection
                && parts.len() == hashes.count
                && is_permutation(parts, alias.key.meta.as_bytes(), hashes, meta);
            if is_it {
                as_before = before.load(Ordering::Relaxed) == hashes.in_order;
                before.store(hashes.in_order, Ordering::Relaxed);
            }
            is_it
        });
        found.map(|key| (key, as_before))
    }

    fn find(&self, hash: u64, mut is_it: impl FnMut(&Alias) -> bool) -> Option<Arc<SeriesKey>> {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        let place = place(hash);
        let pair = [places.get(place)?, places.get(place ^ 1)?];
        let mut known = pair.into_iter().flatten();
        known
            .find(|alias| alias.hash == hash && is_it(alias))
            .map(|alias| alias.key.clone())
    }

    /// Reads what looks at these hashes will read, all of them side by side. It finds nothing: it has the processor wait
    /// for its memory once instead of many times.
    pub(crate) fn bring_near(&self, hashes: &[Option<u64>]) {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        let of_hash = |hash: &u64| {
            let place = place(*hash);
            let pair = [places.get(place)?, places.get(place ^ 1)?];
            pair.into_iter().flatten().find(|alias| alias.hash == *hash)
        };
        let known: Vec<&Alias> = hashes.iter().flatten().filter_map(of_hash).collect();
        let mut read = 0u64;
        for alias in &known {
            read ^= alias.key.hash();
            read ^= match &alias.sent {
                Sent::Bytes(bytes) => bytes.first().map_or(0, |byte| u64::from(*byte)),
                Sent::Fields(parts, _) => parts.iter().map(|part| u64::from(part.hash)).sum(),
            };
        }
        for alias in &known {
            let bytes = match &alias.sent {
                Sent::Bytes(bytes) => bytes,
                Sent::Fields(..) => alias.key.meta.as_bytes(),
            };
            let lines = bytes.iter().step_by(LINE_BYTES);
            read ^= lines.map(|byte| u64::from(*byte)).sum::<u64>();
        }
        std::hint::black_box(read);
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
            let before = AtomicU64::new(hashes.in_order);
            let (hash, sent) = (hashes.of_all, Sent::Fields(parts, before));
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
        let place = place(alias.hash);
        let mut places = self.places.write().unwrap_or_else(PoisonError::into_inner);
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

/// The first of a hash's places.
fn place(hash: u64) -> usize {
    hash as usize % PLACES
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
            // All are looked at: where the right one is cannot be foreseen.
            let known = parts.iter().enumerate();
            let at = known.fold(parts.len(), |found, (at, part)| match part.hash == *hash {
                true => at,
                false => found,
            });
            parts.get(at).is_some_and(|part| {
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
        let found = aliases.get_by_fields(&hashes, collection, meta.as_ref());
        found.map(|(key, _)| key)
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
    fn fields_in_the_order_of_the_last_time_are_told_from_others() {
        let sent = doc! { "b": 1, "a": "x" };
        let other = doc! { "a": "x", "b": 1 };
        let (aliases, _) = learned(&sent);
        for (meta, as_before) in [
            (&sent, true),
            (&other, false),
            (&other, true),
            (&sent, false),
        ] {
            let hashes = aliases.hash_fields(COLLECTION, meta.as_ref()).unwrap();
            aliases.bring_near(&[None, Some(hashes.of_all())]);
            let found = aliases.get_by_fields(&hashes, COLLECTION, meta.as_ref());
            assert_eq!(found.unwrap().1, as_before, "{meta:?}");
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
    fn bytes_are_compared_whatever_their_length() {
        let bytes: Vec<u8> = (0..70).collect();
        for length in 0..=bytes.len() {
            let one = &bytes[..length];
            assert!(are_same(one, one));
            assert!(!are_same(one, &bytes[..length.saturating_sub(1)]) || length == 0);
            for at in 0..length {
                let mut other = one.to_vec();
                other[at] ^= 1;
                assert!(!are_same(one, &other), "{length} {at}");
            }
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
