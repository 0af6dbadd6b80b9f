//! The keys of the groups of a table, and the numbers of the groups.
//!
//! ```text
//! by value   hash, compare ─► number        any key
//! by parts   series, bin   ─► number        a bin of the time, and parts that are the same in all measurements of a bucket
//!
//! {hour: 10:00, host: "a"}  =  series {host: "a"} (number 3), bin 10:00
//! ```
//!
//! A key by parts becomes a value when its group is returned. Once a key arrives as a value, the keys by parts become
//! values too, since they may be equal to it; parts then are a short way to a group that was met before.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::num::NonZeroU64;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use nilometer_bson::order::{Collator, compare_with, hash_with};
use nilometer_bson::{DocumentBuilder, Value, ValueRef};

use super::row_keys::RowKeys;
use crate::eval::expression::Expression;
use crate::eval::memory_bytes;

/// Bytes counted for a part of a key in addition to its name and what its value refers to.
const PART_BYTES: usize = 16;

/// How a key is made of its parts.
#[derive(Debug, PartialEq)]
pub(crate) struct KeyForm {
    /// Names of the parts if the key is an object.
    pub(crate) names: Option<Vec<Arc<str>>>,
    /// The part that is the bin of the time.
    pub(crate) bin: Option<usize>,
    /// The parts that differ between the rows of a block, each with the only column it reads.
    pub(crate) rows: Vec<(usize, Option<Box<str>>)>,
    /// The field whose values the constant parts read.
    pub(crate) meta_field: Option<Arc<str>>,
}

impl KeyForm {
    /// Returns the key with these parts.
    pub(crate) fn key<'v>(&self, mut values: impl Iterator<Item = ValueRef<'v>>) -> Value {
        match &self.names {
            None => values.next().map(ValueRef::to_value).unwrap_or_default(),
            Some(names) => {
                let mut out = DocumentBuilder::new();
                for (name, value) in names.iter().zip(values) {
                    out.append_ref(name, value);
                }
                Value::Document(out.finish())
            }
        }
    }

    /// Returns about the bytes of a key with these parts.
    fn key_bytes(&self, values: &[Value]) -> usize {
        let names = self.names.iter().flatten();
        let bytes = values.iter().map(memory_bytes).sum::<usize>();
        names.map(|name| name.len()).sum::<usize>() + bytes + PART_BYTES * values.len()
    }

    /// Appends the key of a bin as a field: `values` are the other parts.
    fn append_key(&self, values: &[Value], bin: i64, name: &str, out: &mut DocumentBuilder) {
        let bin = ValueRef::DateTime(bin);
        let Some(names) = &self.names else {
            out.append_ref(name, bin);
            return;
        };
        out.begin_document(name);
        for (at, (name, value)) in names.iter().zip(values).enumerate() {
            let is_bin = Some(at) == self.bin;
            out.append_ref(name, if is_bin { bin } else { value.as_ref() });
        }
        out.end();
    }

    /// Returns the key of a bin: `values` are the other parts.
    fn key_of_bin(&self, values: &[Value], bin: i64) -> Value {
        let values = values.iter().enumerate();
        self.key(values.map(|(at, value)| match Some(at) == self.bin {
            true => ValueRef::DateTime(bin),
            false => value.as_ref(),
        }))
    }
}

/// The key of a group.
enum Key {
    Value { hash: u64, value: Value },
    Parts { series: u32, bin: i64 },
}

/// The number of a group by its parts.
#[derive(Clone, Copy)]
struct PartsEntry {
    class: u32,
    bin: i64,
    group: u32,
}

/// The keys of a table.
pub(crate) struct Keys {
    /// The member name if the key is an object with one member; a missing value then becomes null, as for a plain key.
    single_member: Option<Arc<str>>,
    hasher: RandomState,
    keys: Vec<Key>,
    /// Groups by value: all of them, or none while every key is one of parts.
    values: HashTable<u32>,
    /// Groups by parts.
    parts: HashTable<PartsEntry>,
    /// The form of keys by parts.
    form: Option<Arc<KeyForm>>,
    /// The constant parts of keys.
    pub(super) series: SeriesList,
    /// Results for metadata met before.
    pub(super) metas: MetasMet,
    /// Numbers of keys that differ between the rows of a block.
    pub(super) rows: RowKeys,
}

/// A group to be added.
pub(super) struct NewGroup(Key);

impl Keys {
    pub(super) fn new(key: &Expression) -> Self {
        Self {
            single_member: single_member(key),
            hasher: RandomState::default(),
            keys: Vec::new(),
            values: HashTable::new(),
            parts: HashTable::new(),
            form: None,
            series: SeriesList::default(),
            metas: MetasMet::default(),
            rows: RowKeys::default(),
        }
    }

    /// Returns the number of groups.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Forgets what finds groups: none is added any more.
    pub(super) fn finish(&mut self) {
        self.rows = RowKeys::default();
        self.metas = MetasMet::default();
    }

    /// Removes all groups.
    pub(super) fn clear(&mut self) {
        self.keys.clear();
        self.values.clear();
        self.forget_parts();
    }

    fn forget_parts(&mut self) {
        self.parts.clear();
        self.series = SeriesList::default();
        self.metas = MetasMet::default();
        self.rows = RowKeys::default();
    }

    /// Normalizes a key: never missing.
    pub(super) fn normal(&self, key: Value) -> Value {
        match (key, &self.single_member) {
            (Value::Missing | Value::Undefined, _) => Value::Null,
            (Value::Document(document), Some(name)) if document.is_empty() => {
                let mut out = DocumentBuilder::new();
                out.append(name, Value::Null);
                Value::Document(out.finish())
            }
            (key, _) => key,
        }
    }

    /// Returns the key of a group.
    pub(super) fn key(&self, group: usize) -> Value {
        match self.keys.get(group) {
            Some(Key::Value { value, .. }) => value.clone(),
            Some(Key::Parts { series, bin }) => self.key_of_parts(*series, *bin),
            None => Value::Null,
        }
    }

    /// Returns the key of a group, which is not used again.
    pub(super) fn take(&mut self, group: usize) -> Value {
        match self.keys.get_mut(group) {
            Some(Key::Value { value, .. }) => std::mem::take(value),
            _ => self.key(group),
        }
    }

    /// Appends the key of a group, which is not used again, as a field.
    pub(super) fn append(&mut self, group: usize, name: &str, out: &mut DocumentBuilder) {
        let form = self.form.clone();
        match (self.parts(group), form.as_deref()) {
            (Some((series, bin)), Some(form)) => {
                form.append_key(self.series.values(series), bin, name, out)
            }
            _ => {
                out.append(name, self.take(group));
            }
        }
    }

    fn key_of_parts(&self, series: u32, bin: i64) -> Value {
        let form = self.form.as_deref();
        let key = form.map(|form| form.key_of_bin(self.series.values(series), bin));
        self.normal(key.unwrap_or_default())
    }

    /// Returns the bytes of the key of a group as a value.
    pub(super) fn bytes(&self, group: usize) -> usize {
        match self.keys.get(group) {
            Some(Key::Value { value, .. }) => memory_bytes(value),
            // Bins do not differ in size.
            Some(Key::Parts { series, .. }) => self.series.key_bytes(*series),
            None => 0,
        }
    }

    /// Returns series and bin of a group, if its key is one of parts.
    pub(super) fn parts(&self, group: usize) -> Option<(u32, i64)> {
        match self.keys.get(group)? {
            Key::Parts { series, bin } => Some((*series, *bin)),
            Key::Value { .. } => None,
        }
    }

    /// Returns the form of keys by parts, if every key is one.
    pub(super) fn common_form(&self) -> Option<&Arc<KeyForm>> {
        self.form.as_ref().filter(|_| self.is_by_parts())
    }

    fn is_by_parts(&self) -> bool {
        self.values.is_empty()
    }

    /// Makes values of all keys.
    fn make_values(&mut self, collator: Option<&dyn Collator>) {
        if !self.is_by_parts() {
            return;
        }
        for group in 0..self.keys.len() {
            let value = self.key(group);
            let hash = self.hash(value.as_ref(), collator);
            self.keys[group] = Key::Value { hash, value };
            self.list(hash, group as u32);
        }
    }

    fn list(&mut self, hash: u64, group: u32) {
        let keys = &self.keys;
        self.values
            .insert_unique(hash, group, |group| match keys.get(*group as usize) {
                Some(Key::Value { hash, .. }) => *hash,
                _ => 0,
            });
    }

    fn hash(&self, key: ValueRef<'_>, collator: Option<&dyn Collator>) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hash_with(key, collator, &mut hasher);
        hasher.finish()
    }

    /// Returns the number of the group with a key, or what to add.
    pub(super) fn find(
        &mut self,
        key: ValueRef<'_>,
        collator: Option<&dyn Collator>,
    ) -> Result<u32, u64> {
        self.make_values(collator);
        let hash = self.hash(key, collator);
        let same = |group: &u32| match self.keys.get(*group as usize) {
            Some(Key::Value { hash: known, value }) => {
                *known == hash && compare_with(value.as_ref(), key, collator).is_eq()
            }
            _ => false,
        };
        self.values.find(hash, same).copied().ok_or(hash)
    }

    /// Returns the group with a key whose hash [`Keys::find`] returned.
    pub(super) fn new_group(hash: u64, value: Value) -> NewGroup {
        NewGroup(Key::Value { hash, value })
    }

    /// Sets the form of the parts that follow. Numbers of series of another form are void.
    pub(super) fn set_form(&mut self, form: &Arc<KeyForm>, collator: Option<&dyn Collator>) {
        let is_same = |known: &Arc<KeyForm>| Arc::ptr_eq(known, form) || known == form;
        if self.form.as_ref().is_some_and(is_same) {
            return;
        }
        self.make_values(collator);
        self.forget_parts();
        self.form = Some(Arc::clone(form));
    }

    /// Returns the number of the series with these constant parts of the current form.
    pub(super) fn series_of(&mut self, values: &[Value], collator: Option<&dyn Collator>) -> u32 {
        let form = self.form.as_deref();
        let bytes = || form.map_or(0, |form| form.key_bytes(values));
        self.series.number_of(values, &self.hasher, collator, bytes)
    }

    fn hash_of_parts(&self, class: u32, bin: i64) -> u64 {
        self.hasher.hash_one((class, bin))
    }

    /// Returns the number of the group of a series and a bin, or the group to add. The number of a new group is that of
    /// the groups before it.
    pub(super) fn find_parts(
        &mut self,
        series: u32,
        bin: i64,
        collator: Option<&dyn Collator>,
    ) -> Result<u32, NewGroup> {
        let class = self.series.class(series);
        let hash = self.hash_of_parts(class, bin);
        let same = |entry: &PartsEntry| entry.class == class && entry.bin == bin;
        if let Some(entry) = self.parts.find(hash, same) {
            return Ok(entry.group);
        }
        let found = match self.is_by_parts() {
            true => Err(NewGroup(Key::Parts { series, bin })),
            false => {
                let value = self.key_of_parts(series, bin);
                let found = self.find(value.as_ref(), collator);
                found.map_err(|hash| Self::new_group(hash, value))
            }
        };
        let group = match &found {
            Ok(group) => *group,
            Err(_) => self.keys.len() as u32,
        };
        let entry = PartsEntry { class, bin, group };
        let hasher = &self.hasher;
        self.parts.insert_unique(hash, entry, |entry| {
            hasher.hash_one((entry.class, entry.bin))
        });
        found
    }

    /// Adds a group.
    pub(super) fn add(&mut self, NewGroup(key): NewGroup) {
        let group = self.keys.len() as u32;
        let hash = match &key {
            Key::Value { hash, .. } => Some(*hash),
            Key::Parts { .. } => None,
        };
        self.keys.push(key);
        if let Some(hash) = hash {
            self.list(hash, group);
        }
    }
}

/// Returns the member name if the key is an object literal with one member that is no object literal itself.
fn single_member(key: &Expression) -> Option<Arc<str>> {
    match key {
        Expression::Object(members) => match members.as_slice() {
            [(_, Expression::Object(_))] => None,
            [(name, _)] => Some(Arc::clone(name)),
            _ => None,
        },
        _ => None,
    }
}

/// The constant parts of keys.
#[derive(Default)]
pub(super) struct SeriesList {
    numbers: HashTable<u32>,
    entries: Vec<SeriesEntry>,
}

struct SeriesEntry {
    hash: u64,
    values: Vec<Value>,
    /// The first series whose parts compare equal.
    class: u32,
    /// The bytes of a key with these parts.
    key_bytes: usize,
}

impl SeriesList {
    /// Returns the number of the series with exactly these parts. Of a group the parts that it met first are shown.
    pub(super) fn number_of(
        &mut self,
        values: &[Value],
        hasher: &RandomState,
        collator: Option<&dyn Collator>,
        key_bytes: impl FnOnce() -> usize,
    ) -> u32 {
        let mut state = hasher.build_hasher();
        for value in values {
            hash_with(value.as_ref(), collator, &mut state);
        }
        let hash = state.finish();
        let entries = &self.entries;
        let is_equal = |entry: &SeriesEntry| {
            let mut pairs = entry.values.iter().zip(values);
            entry.hash == hash
                && pairs.all(|(a, b)| compare_with(a.as_ref(), b.as_ref(), collator).is_eq())
        };
        let equal = |at: &u32| entries.get(*at as usize).is_some_and(is_equal);
        let mut class = None;
        for at in self.numbers.iter_hash(hash).copied().filter(equal) {
            if is_same(self.values(at), values) {
                return at;
            }
            class = Some(self.class(at));
        }
        let at = self.entries.len() as u32;
        self.entries.push(SeriesEntry {
            hash,
            values: values.to_vec(),
            class: class.unwrap_or(at),
            key_bytes: key_bytes(),
        });
        let entries = &self.entries;
        self.numbers.insert_unique(hash, at, |at| {
            entries.get(*at as usize).map_or(0, |entry| entry.hash)
        });
        at
    }

    /// Returns the number of series.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the constant parts of a series, each at its position.
    pub(super) fn values(&self, series: u32) -> &[Value] {
        let entry = self.entries.get(series as usize);
        entry.map_or(&[], |entry| &entry.values)
    }

    /// Returns the first series whose parts compare equal.
    pub(super) fn class(&self, series: u32) -> u32 {
        let entry = self.entries.get(series as usize);
        entry.map_or(series, |entry| entry.class)
    }

    fn key_bytes(&self, series: u32) -> usize {
        let entry = self.entries.get(series as usize);
        entry.map_or(0, |entry| entry.key_bytes)
    }
}

/// True if values that compare equal are shown alike.
fn is_same(a: &[Value], b: &[Value]) -> bool {
    let shown = |values: &[Value]| {
        let mut out = DocumentBuilder::new();
        for value in values {
            out.append_ref("", value.as_ref());
        }
        out.finish()
    };
    shown(a).as_bytes() == shown(b).as_bytes()
}

/// Results for metadata seen before, by metadata number.
#[derive(Default)]
pub(super) struct MetasMet {
    found: HashMap<NonZeroU64, u32, RandomState>,
    asked: usize,
    met: usize,
}

impl MetasMet {
    /// Largest number of remembered metadata values.
    const KNOWN_MAX: usize = 10_000;

    /// Once `KNOWN_MAX` values are remembered, numbers are requested only while at least one block in `MET_SHARE` has known
    /// metadata: computing a number reads all of the metadata.
    const MET_SHARE: usize = 8;

    /// Returns the number of a block's metadata, if it is worth computing, and the result remembered for it.
    pub(super) fn get(
        &mut self,
        meta_id: impl FnOnce() -> Option<NonZeroU64>,
    ) -> (Option<NonZeroU64>, Option<u32>) {
        if self.found.len() >= Self::KNOWN_MAX && self.met * Self::MET_SHARE < self.asked {
            return (None, None);
        }
        let number = meta_id();
        let known = number.and_then(|number| self.found.get(&number)).copied();
        self.asked += 1;
        self.met += usize::from(known.is_some());
        (number, known)
    }

    pub(super) fn remember(&mut self, number: Option<NonZeroU64>, found: u32) {
        if let Some(number) = number
            && self.found.len() < Self::KNOWN_MAX
        {
            self.found.insert(number, found);
        }
    }
}
