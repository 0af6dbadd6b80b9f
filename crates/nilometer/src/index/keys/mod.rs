//! The keys of a document in an index.
//!
//! ```text
//! 1, -1       the value; one key for each element of an array; see nilometer_bson::path::keys
//! "hashed"    the hash of the value as a long; arrays are refused
//! $**         path and value of every leaf
//! "2d" …      cells and hashes of geometry; see geo
//! "text"      each term of the strings, with its score
//! ```
//!
//! A document has no keys if a partial filter does not match it, or if the index is sparse and the document
//! has none of its fields.

mod geo;
mod ordinary;
mod text;
mod wildcard;

use std::cmp::Ordering;

use nilometer_bson::key_string::KeyBuilder;
use nilometer_bson::path::keys::{KeyError, visit_keys};
use nilometer_bson::{DocRef, Value, ValueRef};

use super::Index;
use crate::error::{Error, ErrorCode, Result, location};
use crate::eval::{EvalContext, EvaluationLimits};

/// Most bytes of the keys of one document: of the key strings in one index, and of its entries in all indexes. With
/// this an entry fits an engine key, and the entries of a document a batch.
pub const KEYS_BYTES_MAX: usize = 192 << 20;

/// One key: the key string, and the type bits it does not contain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IndexKey {
    /// The key string of the components.
    pub key: Vec<u8>,
    /// Their type bits.
    pub type_bits: Vec<u8>,
}

/// All keys of a document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DocumentKeys {
    /// Sorted, each key string once.
    pub keys: Vec<IndexKey>,
    /// One bit per part that met an array.
    pub multikey: u32,
}

impl DocumentKeys {
    /// Returns the bytes of the entries of the document under a record key.
    pub fn entry_bytes(&self, record: &[u8]) -> usize {
        let keys = self.keys.iter();
        keys.map(|key| key.key.len() + key.type_bits.len() + record.len())
            .sum()
    }
}

/// Keys being collected, and their bytes.
#[derive(Default)]
struct KeyCollector {
    keys: Vec<IndexKey>,
    multikey: u32,
    bytes: usize,
}

impl KeyCollector {
    /// Adds a key. Fails if the document has too many, or too long ones.
    fn add(&mut self, index: &Index, key: IndexKey) -> Result<()> {
        self.bytes += key.key.len() + key.type_bits.len();
        if self.bytes > KEYS_BYTES_MAX {
            return Err(index.keys_too_long());
        }
        self.keys.push(key);
        Ok(())
    }
}

impl Index {
    /// Returns the keys of a document, without a limit of the work; empty if the index leaves it out.
    pub fn keys(&self, document: DocRef<'_>) -> Result<DocumentKeys> {
        self.keys_within(document, None)
    }

    /// Returns the keys of a document; empty if the index leaves it out. Evaluates within the limits of an operation.
    pub fn keys_within(
        &self,
        document: DocRef<'_>,
        limits: Option<EvaluationLimits<'_>>,
    ) -> Result<DocumentKeys> {
        match self.selects(document, limits)? {
            true => self.keys_of_selected(document),
            false => Ok(DocumentKeys::default()),
        }
    }

    /// True if the partial filter selects the document, or there is none. Evaluates within the limits of an operation.
    pub fn selects(
        &self,
        document: DocRef<'_>,
        limits: Option<EvaluationLimits<'_>>,
    ) -> Result<bool> {
        let Some(filter) = self.partial_filter() else {
            return Ok(true);
        };
        let context = EvalContext {
            collator: self.collation().collator(),
            limits,
            ..EvalContext::default()
        };
        filter.matches(document, &context)
    }

    /// Returns the keys of a document that [`Index::selects`].
    pub fn keys_of_selected(&self, document: DocRef<'_>) -> Result<DocumentKeys> {
        let mut out = KeyCollector::default();
        if self.is_wildcard() {
            wildcard::keys(self, document, &mut out)?;
        } else if let Some(spec) = self.text() {
            text::keys(self, spec, document, &mut out)?;
        } else if self.parts().iter().any(geo::is_geo) {
            geo::keys(self, document, &mut out)?;
        } else {
            ordinary::keys(self, document, &mut out)?;
        }
        if out.keys.len() > 1 {
            out.keys.sort();
            out.keys.dedup_by(|a, b| a.key == b.key);
        }
        Ok(DocumentKeys {
            keys: out.keys,
            multikey: out.multikey,
        })
    }

    /// Returns the values of a document that produced a key: they cannot be decoded from the key of a
    /// collated index.
    pub(super) fn values_of(&self, document: DocRef<'_>, key: &IndexKey) -> Vec<Value> {
        let mut found = Vec::new();
        // An error would have occurred before there were keys.
        let _ = visit_keys(self.paths(), document, &mut |values| {
            let same = self.encode(values.iter().copied());
            if same.is_ok_and(|same| same.key == key.key) {
                found = values.iter().map(|value| value.to_value()).collect();
            }
        });
        found
    }

    /// Encodes component values as a key. Missing values become null.
    fn encode<'v>(&self, values: impl Iterator<Item = ValueRef<'v>>) -> Result<IndexKey> {
        let mut builder = self.key_builder();
        for value in values {
            self.push_value(&mut builder, value)?;
        }
        Ok(finish_key(builder))
    }

    /// Appends a component to a key. A missing value becomes null.
    fn push_value(&self, builder: &mut KeyBuilder<'_>, value: ValueRef<'_>) -> Result<()> {
        builder.push(or_null(value));
        match builder.bytes().len() > KEYS_BYTES_MAX {
            true => Err(self.keys_too_long()),
            false => Ok(()),
        }
    }

    fn keys_too_long(&self) -> Error {
        keys_too_long(&format!("the index '{}'", self.stored.spec.name))
    }

    fn key_builder(&self) -> KeyBuilder<'_> {
        KeyBuilder::with_collator(self.order(), self.collation().collator())
    }
}

fn finish_key(builder: KeyBuilder<'_>) -> IndexKey {
    let (key, type_bits) = builder.finish();
    IndexKey { key, type_bits }
}

/// Returns the error for a document whose keys have more than [`KEYS_BYTES_MAX`] bytes.
pub(crate) fn keys_too_long(place: &str) -> Error {
    Error::new(
        ErrorCode::KeyTooLong,
        format!("the keys of a document in {place} have more than {KEYS_BYTES_MAX} bytes"),
    )
}

/// Calls `change` for each key that is only in `before` (`Less`), only in `after` (`Greater`), or in both
/// with different type bits (`Equal`, with the key of `after`).
pub(super) fn compare(
    before: &DocumentKeys,
    after: &DocumentKeys,
    mut change: impl FnMut(Ordering, &IndexKey),
) {
    let (mut old, mut new) = (before.keys.iter().peekable(), after.keys.iter().peekable());
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => return,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(a), Some(b)) => a.key.cmp(&b.key),
        };
        let gone = if order.is_le() { old.next() } else { None };
        let come = if order.is_ge() { new.next() } else { None };
        match (gone, come) {
            (Some(gone), None) => change(Ordering::Less, gone),
            (None, Some(come)) => change(Ordering::Greater, come),
            (Some(gone), Some(come)) if gone.type_bits != come.type_bits => {
                change(Ordering::Equal, come);
            }
            _ => {}
        }
    }
}

fn or_null(value: ValueRef<'_>) -> ValueRef<'_> {
    match value {
        ValueRef::Missing => ValueRef::Null,
        value => value,
    }
}

fn refused(error: &KeyError) -> Error {
    let code = match error {
        KeyError::ParallelArrays(..) => ErrorCode::CannotIndexParallelArrays,
        KeyError::AmbiguousIndex(_) => ErrorCode(location::PATH_NUMBER_AMBIGUOUS),
    };
    Error::new(code, error.to_string())
}
