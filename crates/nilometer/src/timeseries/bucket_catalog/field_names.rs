//! Interned field names of a collection, each with an id.
//!
//! ```text
//! bytes of a document ─► first 24 bytes of the name, as three words ─► slot of the table ─► id of the name
//! ```
//!
//! A name is recognised by its prefix, in one comparison and without reading to its end first. Names the table has no id for are
//! searched among the columns of their bucket. A command works on a copy, shared until it adds a name, and stores it back when
//! it has grown.

use std::hint::select_unpredictable;
use std::sync::Arc;

use nilometer_bson::PreparedName;

/// Names of one collection with an id.
const NAMES_MAX: usize = 1024;

/// Slots of a table for each name, at least.
const SLOTS_FOR_A_NAME: usize = 8;

/// Slots of the smallest table.
const SLOTS_MIN: usize = 64;

/// Multipliers to try for one that gives every name its own slot.
const MULTIPLIERS: u64 = 32;

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Bytes of a word.
const WORD: usize = 8;

/// Words of a prefix.
const WORDS: usize = 3;

/// Bytes in which the end of a name is found without a loop.
pub(crate) const WINDOW: usize = WORD * WORDS;

const LOW_BITS: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

/// The first bytes of a name as words; bytes behind its end are zero. A name shorter than a window is its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NamePrefix(u64, u64, u64);

impl NamePrefix {
    /// The prefix of no name.
    const NONE: Self = Self(u64::MAX, u64::MAX, u64::MAX);

    fn of(name: &[u8]) -> Self {
        let mut bytes = [[0; WORD]; WORDS];
        for (to, from) in bytes.as_flattened_mut().iter_mut().zip(name) {
            *to = *from;
        }
        let [first, second, third] = bytes.map(u64::from_le_bytes);
        Self(first, second, third)
    }

    /// Returns the prefix of the name at the start of a window, and its length; `None` if it does not end there.
    #[inline]
    fn in_window(window: &[u8; WINDOW]) -> Option<(Self, usize)> {
        Self::in_words(
            word_at(window, 0)?,
            word_at(window, 1)?,
            word_at(window, 2)?,
        )
    }

    /// Like [`Self::in_window`], for fewer bytes than a window but more than a word; missing bytes count as zeros.
    #[inline]
    fn in_short_window(bytes: &[u8]) -> Option<(Self, usize)> {
        let missing = WINDOW.checked_sub(bytes.len())?;
        let last = u64::from_le_bytes(*bytes.last_chunk()?);
        // Drops what the last word shares with the one before it.
        let rest = |bytes: usize| last.checked_shr(8 * bytes as u32).unwrap_or(0);
        let (second, third) = match missing.checked_sub(WORD) {
            None => (word_at(bytes, 1)?, rest(missing)),
            Some(missing) => (rest(missing), 0),
        };
        Self::in_words(word_at(bytes, 0)?, second, third)
    }

    /// Like [`Self::in_window`], from its words.
    ///
    /// No branch depends on the length of the name: where fields come in any order, it cannot be predicted. The length,
    /// which tells where the value starts, depends on few steps in sequence.
    #[inline]
    fn in_words(first: u64, second: u64, third: u64) -> Option<(Self, usize)> {
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
    fn slot(self, multiplier: u64, slots: usize) -> usize {
        let Self(first, second, third) = self;
        let all = first ^ second.rotate_left(29) ^ third.rotate_left(47);
        // The highest bits depend on all others.
        (all.wrapping_mul(multiplier) >> (u64::BITS - slots.trailing_zeros())) as usize
    }
}

/// Returns the n-th word of some bytes.
#[inline]
fn word_at(bytes: &[u8], n: usize) -> Option<u64> {
    let word = bytes.get(n * WORD..)?.first_chunk()?;
    Some(u64::from_le_bytes(*word))
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

#[derive(Clone, Debug)]
struct NameEntry {
    name: Arc<str>,
    prepared: PreparedName,
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
    prefix: NamePrefix::NONE,
    id: NO_ID,
};

/// The names, and a hash table of their prefixes with linear probing.
#[derive(Clone, Debug)]
struct Table {
    entries: Vec<NameEntry>,
    /// By id, the rank of the name: how many sort before it.
    ranks: Vec<u16>,
    /// A power of two.
    slots: Vec<Slot>,
    multiplier: u64,
}

impl Table {
    fn new() -> Self {
        Self {
            entries: Vec::new(),
            ranks: Vec::new(),
            slots: vec![FREE_SLOT; SLOTS_MIN],
            multiplier: GOLDEN,
        }
    }

    /// Iterates over the ids of names with this prefix.
    #[inline]
    fn ids_with_prefix(&self, prefix: NamePrefix) -> impl Iterator<Item = u16> {
        let mut at = prefix.slot(self.multiplier, self.slots.len());
        std::iter::from_fn(move || {
            loop {
                let slot = &self.slots[at];
                at = (at + 1) & (self.slots.len() - 1);
                if slot.prefix.equals(prefix) {
                    return Some(slot.id);
                }
                if slot.id == NO_ID {
                    return None;
                }
            }
        })
    }

    /// Puts a name into a slot; false if its own slot was taken.
    fn insert_slot(&mut self, id: u16, name: &[u8]) -> bool {
        let (slots, prefix) = (self.slots.len(), NamePrefix::of(name));
        let own = prefix.slot(self.multiplier, slots);
        let mut free = own;
        while self.slots[free].id != NO_ID {
            free = (free + 1) & (slots - 1);
            assert_ne!(free, own, "the table is never full");
        }
        self.slots[free] = Slot { prefix, id };
        free == own
    }

    fn add(&mut self, name: Arc<str>) {
        let id = self.entries.len();
        let is_alone = self.insert_slot(id as u16, name.as_bytes());
        let mut rank = 0;
        for (known, other) in self.entries.iter().zip(&mut self.ranks) {
            match known.name.as_bytes() < name.as_bytes() {
                true => rank += 1,
                false => *other += 1,
            }
        }
        self.ranks.push(rank);
        let prepared = PreparedName::new(name.as_bytes());
        self.entries.push(NameEntry { name, prepared });
        if !is_alone || self.entries.len() * SLOTS_FOR_A_NAME > self.slots.len() {
            self.rebuild();
        }
    }

    /// Rebuilds the table with the multiplier that collides least.
    fn rebuild(&mut self) {
        let slots = (self.entries.len() * SLOTS_FOR_A_NAME).next_power_of_two();
        let slots = slots.max(SLOTS_MIN);
        let mut best = (usize::MAX, self.multiplier);
        for attempt in 0..MULTIPLIERS {
            // Odd, and distinct.
            let multiplier = GOLDEN.wrapping_mul(2 * attempt + 1);
            let moved = self.rebuild_with(slots, multiplier);
            if moved < best.0 {
                best = (moved, multiplier);
            }
            if moved == 0 {
                return;
            }
        }
        self.rebuild_with(slots, best.1);
    }

    /// Rebuilds the table with a multiplier; returns the number of collisions.
    fn rebuild_with(&mut self, slots: usize, multiplier: u64) -> usize {
        self.multiplier = multiplier;
        self.slots.clear();
        self.slots.resize(slots, FREE_SLOT);
        let names: Vec<Arc<str>> = self
            .entries
            .iter()
            .map(|known| known.name.clone())
            .collect();
        let entered = names.iter().zip(0..);
        entered
            .filter(|(name, id)| !self.insert_slot(*id, name.as_bytes()))
            .count()
    }
}

/// Interned names by id.
#[derive(Clone, Debug)]
pub(crate) struct FieldNames(Arc<Table>);

impl Default for FieldNames {
    fn default() -> Self {
        Self(Arc::new(Table::new()))
    }
}

impl FieldNames {
    pub(crate) fn len(&self) -> usize {
        self.0.entries.len()
    }

    /// Returns the name with this id.
    #[inline]
    pub(crate) fn name(&self, id: u16) -> &Arc<str> {
        &self.0.entries[usize::from(id)].name
    }

    /// Returns the name with this id, prepared for comparison.
    #[inline]
    pub(crate) fn prepared(&self, id: u16) -> &PreparedName {
        &self.0.entries[usize::from(id)].prepared
    }

    /// Returns the id and the length of the name at the start of `bytes`, which a zero ends.
    #[inline(always)]
    pub(crate) fn find_at_start(&self, bytes: &[u8]) -> Option<(u16, usize)> {
        match bytes.first_chunk().and_then(NamePrefix::in_window) {
            Some((prefix, length)) => Some((self.0.ids_with_prefix(prefix).next()?, length)),
            None => self.find_at_start_slow(bytes),
        }
    }

    /// Returns the rank and the length of the name at the start of `bytes`.
    #[inline(always)]
    pub(crate) fn rank_at_start(&self, bytes: &[u8]) -> Option<(u16, usize)> {
        let (id, length) = self.find_at_start(bytes)?;
        Some((self.0.ranks[usize::from(id)], length))
    }

    /// The slow path of [`Self::find_at_start`]: few bytes are left, or the name is long.
    #[inline(never)]
    fn find_at_start_slow(&self, bytes: &[u8]) -> Option<(u16, usize)> {
        if let Some((prefix, length)) = NamePrefix::in_short_window(bytes) {
            let id = self.0.ids_with_prefix(prefix).next()?;
            return (length < bytes.len()).then_some((id, length));
        }
        let length = bytes.iter().position(|byte| *byte == 0)?;
        Some((self.find(bytes.get(..length)?)?, length))
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

    #[test]
    fn names_have_one_id_each_and_are_found_by_prefix() {
        let mut names = FieldNames::default();
        let ids = LIKE_EACH_OTHER.map(|name| names.id_of(name.as_bytes()).unwrap());
        assert_eq!(ids, [0, 1, 2, 3, 4, 5, 6, 7]);
        for (name, id) in LIKE_EACH_OTHER.into_iter().zip(ids) {
            assert_eq!(names.id_of(name.as_bytes()), Some(id));
            for behind in 0..30 {
                let element = in_document(name, behind);
                if let Some(window) = element.first_chunk() {
                    let expected = (NamePrefix::of(name.as_bytes()), name.len());
                    assert_eq!(NamePrefix::in_window(window), Some(expected));
                }
                let found = names.find_at_start(&element);
                assert_eq!(found, Some((id, name.len())), "{name}");
            }
        }
        assert_eq!(names.len(), LIKE_EACH_OTHER.len());
        for other in ["b", "usage_", "usage_guest_nicer", "usage_guest_nic"] {
            assert!(
                names.find_at_start(&in_document(other, 20)).is_none(),
                "{other}"
            );
            assert!(names.find(other.as_bytes()).is_none());
        }
        assert!(
            names.find_at_start(b"usage_user").is_none(),
            "it does not end"
        );
    }

    #[test]
    fn names_of_all_lengths_and_with_equal_prefixes_are_found() {
        let mut names = FieldNames::default();
        let long = |n: usize| format!("a name of sixteen or more bytes {n}");
        let all: Vec<String> = (0..40)
            .map(|length| "x".repeat(length))
            .chain((0..60).map(long))
            .chain((0..400).map(|n| format!("metric {n}")))
            .collect();
        for (id, name) in all.iter().enumerate() {
            assert_eq!(names.id_of(name.as_bytes()), Some(id as u16));
        }
        let mut sorted: Vec<&String> = all.iter().collect();
        sorted.sort();
        for (id, name) in all.iter().enumerate() {
            let rank = sorted.iter().position(|other| *other == name).unwrap();
            for behind in [0, 5, 40] {
                let element = in_document(name, behind);
                let found = names.find_at_start(&element);
                assert_eq!(found, Some((id as u16, name.len())), "{name}");
                let found = names.rank_at_start(&element);
                assert_eq!(found, Some((rank as u16, name.len())), "{name}");
            }
        }
    }

    #[test]
    fn few_names_have_their_own_slots() {
        let mut names = FieldNames::default();
        for n in 0..24 {
            names.id_of(format!("usage_{n}").as_bytes()).unwrap();
        }
        let Table {
            slots, multiplier, ..
        } = &*names.0;
        for (id, known) in names.0.entries.iter().enumerate() {
            let own = NamePrefix::of(known.name.as_bytes()).slot(*multiplier, slots.len());
            assert_eq!(slots[own].id, id as u16, "{}", known.name);
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
        assert_eq!(&*names.intern(b"\xff"), "\u{fffd}");
        for n in 0..NAMES_MAX {
            names.id_of(format!("field {n}").as_bytes()).unwrap();
        }
        assert_eq!(names.id_of(b"one more"), None);
        assert_eq!(&*names.intern(b"one more"), "one more");
        assert_eq!(names.id_of(b"field 7"), Some(7));
    }
}
