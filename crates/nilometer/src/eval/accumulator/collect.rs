//! `$push` and `$addToSet`: null is kept, missing is skipped.

use std::hash::{BuildHasher, Hasher};

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use nilometer_bson::order::hash_with;
use nilometer_bson::{Array, DocumentBuilder, Value, ValueRef};

use crate::eval::{Collation, memory_bytes};

/// An array under construction, already encoded.
#[derive(Clone, Debug, Default)]
pub struct PushState {
    out: DocumentBuilder,
    count: usize,
}

impl PushState {
    pub(super) fn add(&mut self, value: ValueRef<'_>) {
        if !value.is_missing() {
            self.out.append_indexed(self.count, value);
            self.count += 1;
        }
    }

    pub(super) fn merge(&mut self, later: Self) {
        if let Value::Array(array) = later.finish() {
            for value in array.as_ref().iter() {
                self.add(value);
            }
        }
    }

    pub(super) fn finish(self) -> Value {
        Value::Array(Array::from_document(self.out.finish()))
    }

    /// Returns the encoded size in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.out.len()
    }

    /// Returns the bytes allocated, including spare capacity.
    pub(super) fn memory_bytes(&self) -> usize {
        self.out.capacity()
    }
}

/// Distinct values in order of first appearance; numbers equal across types are one value.
#[derive(Clone, Debug, Default)]
pub struct ValueSet {
    collation: Collation,
    values: Vec<Value>,
    hasher: RandomState,
    /// Hashes and positions in `values`.
    places: HashTable<(u64, usize)>,
    bytes: usize,
}

impl ValueSet {
    /// Creates an empty set whose strings are compared by `collation`.
    pub fn new(collation: Collation) -> Self {
        Self {
            collation,
            ..Self::default()
        }
    }

    /// Adds a value unless it is missing or already in the set.
    pub fn add(&mut self, value: ValueRef<'_>) {
        if value.is_missing() {
            return;
        }
        let mut hasher = self.hasher.build_hasher();
        hash_with(value, self.collation.collator(), &mut hasher);
        let hash = hasher.finish();
        let is_equal = |known: &Value| self.collation.compare(known.as_ref(), value).is_eq();
        let known = self.places.find(hash, |(other, at)| {
            *other == hash && self.values.get(*at).is_some_and(is_equal)
        });
        if known.is_none() {
            let place = (hash, self.values.len());
            self.places.insert_unique(hash, place, |(hash, _)| *hash);
            let value = value.to_value();
            self.bytes += memory_bytes(&value) + size_of::<Value>() + SET_ENTRY_BYTES;
            self.values.push(value);
        }
    }

    /// Adds all values of another set.
    pub fn merge(&mut self, later: Self) {
        for value in &later.values {
            self.add(value.as_ref());
        }
    }

    pub(super) fn save(&self) -> Value {
        self.values.clone().into()
    }

    /// Returns the values as an array.
    pub fn finish(self) -> Value {
        self.values.into()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes
    }
}

/// Memory per element besides the value: hash, position, share of the tables.
const SET_ENTRY_BYTES: usize = 64;
