//! Interned field names of a collection, each with an id.
//!
//! ```text
//! bytes of a document ─► first 24 bytes of the name, as three words ─► slot of the table ─► id of the name
//! ```
//!
//! A name is recognised by its prefix, in one comparison and without reading to its end first. No branch depends on the name: where
//! fields come in any order, none could be predicted. With a hash of the bytes of the name instead, and metadata sorted by the ids,
//! this file is half as long, but a shuffled insert took 18 % more instructions and mispredicted three times the branches.
//!
//! Names without an id are searched among the columns of their bucket. A command works on a copy, shared until it adds a name,
//! and stores it back when it has grown.

use std::hint::select_unpredictable;
use std::sync::Arc;

use nilometer_bson::Element;
use nilometer_bson::document::Elements;

/// Names of one collection with an id.
const NAMES_MAX: usize = 1024;

/// Slots of a table for each name, at least.
const SLOTS_FOR_A_NAME: usize = 8;

/// Slots of the smallest table.
const SLOTS_MIN: usize = 64;

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Bytes of a word.
const WORD: usize = 8;

/// Words of a prefix.
const WORDS: usize = 3;

/// Bytes in which the end of a name is found without a loop.
const WINDOW: usize = WORD * WORDS;

const LOW_BITS: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

/// The first bytes of a name as words; bytes behind its end are zero. A name shorter than a window is its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NamePrefix(u64, u64, u64);

impl NamePrefix {
    fn of(name: &[u8]) -> Self {
        let mut bytes = [[0; WORD]; WORDS];
        let length = name.len().min(WINDOW);
        bytes.as_flattened_mut()[..length].copy_from_slice(&name[..length]);
        let [first, second, third] = bytes.map(u64::from_le_bytes);
        Self(first, second, third)
    }

    /// Returns the prefix of the name at the start of a window, and its length; `None` if it does not end there.
    ///
    /// The length, which tells where the value starts, depends on few steps in sequence.
    #[inline]
    fn in_window(window: &[u8; WINDOW]) -> Option<(Self, usize)> {
        let word = |n: usize| window[n * WORD..].first_chunk().copied();
        let first = u64::from_le_bytes(word(0)?);
        let second = u64::from_le_bytes(word(1)?);
        let third = u64::from_le_bytes(word(2)?);
        let ends = (zeros(first), zeros(second), zeros(third));
        let (in_first, in_second) = (ends.0 != 0, ends.0 | ends.1 != 0);
        if !in_second & (ends.2 == 0) {
            return None;
        }
        let (end, before) = select_unpredictable(in_second, (ends.1, WORD), (ends.2, 2 * WORD));
        let (end, before) = select_unpredictable(in_first, (ends.0, 0), (end, before));
        let length = before + end.trailing_zeros() as usize / WORD;
        let second = select_unpredictable(in_first, 0, second & before_mark(ends.1));
        let third = select_unpredictable(in_second, 0, third & before_mark(ends.2));
        let prefix = Self(first & before_mark(ends.0), second, third);
        Some((prefix, length))
    }

    /// Compares word by word: a comparison of bytes would have to store them first.
    #[inline]
    fn equals(self, other: Self) -> bool {
        (self.0 ^ other.0) | (self.1 ^ other.1) | (self.2 ^ other.2) == 0
    }

    #[inline]
    fn slot(self, slots: usize) -> usize {
        let Self(first, second, third) = self;
        let all = first ^ second.rotate_left(29) ^ third.rotate_left(47);
        // The highest bits depend on all others.
        (all.wrapping_mul(GOLDEN) >> (u64::BITS - slots.trailing_zeros())) as usize
    }
}

/// Marks the zero bytes of a word. The lowest mark is exact; those above it may not be.
#[inline]
fn zeros(word: u64) -> u64 {
    word.wrapping_sub(LOW_BITS) & !word & HIGH_BITS
}

/// All ones without a mark; else ones in the bytes before the lowest mark, and in seven more bits.
#[inline]
fn before_mark(marks: u64) -> u64 {
    marks.wrapping_sub(1) & !marks
}

/// A slot of the table: a prefix and the id of its name.
#[derive(Clone, Copy, Debug)]
struct Slot {
    prefix: NamePrefix,
    id: u16,
}

/// The id of no name.
const NO_ID: u16 = u16::MAX;

const FREE_SLOT: Slot = Slot {
    prefix: NamePrefix(0, 0, 0),
    id: NO_ID,
};

/// The names, and a hash table of their prefixes with linear probing.
#[derive(Clone, Debug)]
struct NameTable {
    /// By id.
    names: Vec<Arc<str>>,
    /// A power of two.
    slots: Vec<Slot>,
}

impl NameTable {
    /// Iterates over the ids of names with this prefix.
    #[inline]
    fn ids_with_prefix(&self, prefix: NamePrefix) -> impl Iterator<Item = u16> {
        let mut at = prefix.slot(self.slots.len());
        std::iter::from_fn(move || {
            loop {
                let slot = &self.slots[at];
                at = (at + 1) & (self.slots.len() - 1);
                if slot.id == NO_ID {
                    return None;
                }
                if slot.prefix.equals(prefix) {
                    return Some(slot.id);
                }
            }
        })
    }

    /// Puts a name into a slot.
    fn insert_slot(&mut self, id: u16, prefix: NamePrefix) {
        let mut at = prefix.slot(self.slots.len());
        while self.slots[at].id != NO_ID {
            at = (at + 1) & (self.slots.len() - 1);
        }
        self.slots[at] = Slot { prefix, id };
    }

    fn add(&mut self, name: Arc<str>) {
        self.insert_slot(self.names.len() as u16, NamePrefix::of(name.as_bytes()));
        self.names.push(name);
        if self.names.len() * SLOTS_FOR_A_NAME > self.slots.len() {
            let slots = vec![FREE_SLOT; self.slots.len() * 2];
            let before = std::mem::replace(&mut self.slots, slots);
            for slot in before.iter().filter(|slot| slot.id != NO_ID) {
                self.insert_slot(slot.id, slot.prefix);
            }
        }
    }
}

/// Interned names by id.
#[derive(Clone, Debug)]
pub(crate) struct FieldNames(Arc<NameTable>);

impl Default for FieldNames {
    fn default() -> Self {
        Self(Arc::new(NameTable {
            names: Vec::new(),
            slots: vec![FREE_SLOT; SLOTS_MIN],
        }))
    }
}

impl FieldNames {
    pub(crate) fn len(&self) -> usize {
        self.0.names.len()
    }

    /// Returns the name with this id.
    #[inline]
    pub(crate) fn name(&self, id: u16) -> &Arc<str> {
        &self.0.names[usize::from(id)]
    }

    /// Returns the next element, and the id of its name if it gets one.
    #[inline]
    pub(crate) fn next<'a>(
        &mut self,
        elements: &mut Elements<'a>,
    ) -> Option<(Element<'a>, Option<u16>)> {
        let known = elements.next_recognized(|bytes| self.find_at_start(bytes));
        match known {
            Some((element, id)) => Some((element, Some(id))),
            None => self.next_slow(elements),
        }
    }

    /// The slow path of [`Self::next`]: the name is new or long.
    #[inline(never)]
    fn next_slow<'a>(&mut self, elements: &mut Elements<'a>) -> Option<(Element<'a>, Option<u16>)> {
        let element = elements.next()?;
        Some((element, self.id_of(element.name_bytes())))
    }

    /// Returns the id and the length of the name at the start of `bytes`, which a zero ends; `None` if it is not known, or if it
    /// is not shorter than a window.
    #[inline(always)]
    fn find_at_start(&self, bytes: &[u8]) -> Option<(u16, usize)> {
        let mut padded = [0; WINDOW];
        let window = match bytes.first_chunk() {
            Some(window) => window,
            // The last field of a document.
            None => {
                padded[..bytes.len()].copy_from_slice(bytes);
                &padded
            }
        };
        let (prefix, length) = NamePrefix::in_window(window)?;
        if length >= bytes.len() {
            return None;
        }
        Some((self.0.ids_with_prefix(prefix).next()?, length))
    }

    /// Returns the id of a known name.
    fn find(&self, name: &[u8]) -> Option<u16> {
        let is_it = |id: &u16| self.name(*id).as_bytes() == name;
        self.0.ids_with_prefix(NamePrefix::of(name)).find(is_it)
    }

    /// Returns the id of a name, which is added if it is new; `None` if it is not UTF-8, or there are too many.
    pub(crate) fn id_of(&mut self, name: &[u8]) -> Option<u16> {
        if let Some(id) = self.find(name) {
            return Some(id);
        }
        if self.len() >= NAMES_MAX {
            return None;
        }
        let id = u16::try_from(self.len()).ok()?;
        let name = std::str::from_utf8(name).ok()?.into();
        Arc::make_mut(&mut self.0).add(name);
        Some(id)
    }

    /// Returns the name, shared if it has an id.
    pub(crate) fn intern(&mut self, name: &[u8]) -> Arc<str> {
        let id = self.id_of(name);
        match id {
            Some(id) => self.name(id).clone(),
            None => String::from_utf8_lossy(name).into(),
        }
    }
}

/// The names of a collection. Names in metadata have their own ids, so that these are low.
#[derive(Clone, Debug, Default)]
pub(crate) struct CollectionNames {
    pub(crate) fields: FieldNames,
    pub(crate) meta: FieldNames,
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::{DocumentBuilder, Value};

    const LIKE_EACH_OTHER: [&str; 8] = [
        "",
        "a",
        "usage_u",
        "usage_us",
        "usage_user",
        "usage_guest",
        "usage_guest_nice",
        "\u{e4}",
    ];

    /// A name as in a document, with this many bytes behind it.
    fn in_document(name: &str, behind: usize) -> Vec<u8> {
        [name.as_bytes(), &[0], &vec![0xC8; behind]].concat()
    }

    /// The id that the first element with this name gets, with this many bytes behind it.
    fn id_in_document(names: &mut FieldNames, name: &str, behind: usize) -> Option<u16> {
        let mut document = DocumentBuilder::new();
        document.append(name, Value::Null);
        document.append("behind", "x".repeat(behind));
        let document = document.finish();
        let mut elements = document.iter();
        let (element, id) = names.next(&mut elements).unwrap();
        assert_eq!(element.name(), name);
        id
    }

    #[test]
    fn names_have_one_id_each_and_are_found_by_prefix() {
        let mut names = FieldNames::default();
        let ids = LIKE_EACH_OTHER.map(|name| names.id_of(name.as_bytes()).unwrap());
        assert_eq!(ids, [0, 1, 2, 3, 4, 5, 6, 7]);
        for (name, id) in LIKE_EACH_OTHER.into_iter().zip(ids) {
            assert_eq!(names.id_of(name.as_bytes()), Some(id));
            for behind in 0..30 {
                let element = in_document(name, behind);
                let expected = (NamePrefix::of(name.as_bytes()), name.len());
                if let Some(window) = element.first_chunk() {
                    assert_eq!(NamePrefix::in_window(window), Some(expected));
                }
                let found = names.find_at_start(&element);
                assert_eq!(found, Some((id, name.len())), "{name}");
                assert_eq!(names.find_at_start(name.as_bytes()), None);
                let found = id_in_document(&mut names, name, behind);
                assert_eq!(found, Some(id), "{name}");
            }
        }
        assert_eq!(names.len(), LIKE_EACH_OTHER.len());
        for other in ["b", "usage_", "usage_guest_nicer", "usage_guest_nic"] {
            let found = names.find_at_start(&in_document(other, 20));
            assert!(found.is_none(), "{other}");
            assert!(names.find(other.as_bytes()).is_none());
        }
    }

    #[test]
    fn names_of_all_lengths_and_with_equal_prefixes_are_found() {
        let mut names = FieldNames::default();
        let long = |n: usize| format!("a name of twenty-four or more bytes {n}");
        let all: Vec<String> = (0..40)
            .map(|length| "x".repeat(length))
            .chain((0..60).map(long))
            .chain((0..400).map(|n| format!("metric {n}")))
            .collect();
        for (id, name) in all.iter().enumerate() {
            assert_eq!(names.id_of(name.as_bytes()), Some(id as u16));
        }
        for (id, name) in all.iter().enumerate() {
            for behind in [0, 5, 40] {
                let found = id_in_document(&mut names, name, behind);
                assert_eq!(found, Some(id as u16), "{name}");
            }
        }
    }

    #[test]
    fn a_copy_that_grows_leaves_the_first_alone() {
        let mut first = FieldNames::default();
        let kept = first.intern(b"a");
        let mut second = first.clone();
        second.intern(b"b");
        assert_eq!((first.len(), second.len()), (1, 2));
        assert!(Arc::ptr_eq(&second.intern(b"a"), &kept));
    }

    #[test]
    fn some_names_get_no_id() {
        let mut names = FieldNames::default();
        assert_eq!(names.id_of(b"\xff"), None);
        assert_eq!(names.id_of(&[0xFF; WINDOW]), None);
        assert_eq!(&*names.intern(b"\xff"), "\u{fffd}");
        for n in 0..NAMES_MAX {
            names.id_of(format!("field {n}").as_bytes()).unwrap();
        }
        assert_eq!(names.id_of(b"one more"), None);
        assert_eq!(&*names.intern(b"one more"), "one more");
        assert_eq!(names.id_of(b"field 7"), Some(7));
    }
}
