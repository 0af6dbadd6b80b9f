//! Collations: the order of strings for an operation, a collection or an index.
//!
//! ```text
//! {locale: "fr", strength: 1}  ─ parse ─▶  CollationOptions  ─ ICU ─▶  LocaleOrder
//!                                          all fields known             compare, sort keys
//! ```
//!
//! A [`Collation`] is either simple, which is the order of bytes, or a shared [`LocaleOrder`]. It
//! is cheap to clone, and two are equal if all their options are, including defaults of the locale.
//! Sort keys ([`Collation::sort_key`]) compare exactly like the strings; they depend on the version
//! of the Unicode data compiled in.
//!
//! A collation applies only to strings, also inside objects and arrays; never to field names, code
//! and regular expressions.

mod locale;
mod options;
mod order;

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use nilometer_bson::order::{Collator, compare_with, hash_with};
use nilometer_bson::{DocRef, Document, Value, ValueRef};

pub use options::CollationOptions;
pub use order::LocaleOrder;

use super::variables::{ParseContext, SharedCollator};
use crate::error::{Error, ErrorCode, Result};

/// A collation, or the simple order of bytes. Cheap to clone.
#[derive(Clone, Default)]
pub struct Collation(Option<SharedCollator>);

impl Collation {
    /// The order of bytes.
    pub const SIMPLE: Self = Self(None);

    /// Parses a collation document, named `path` in errors. `{locale: "simple"}` is the order of
    /// bytes.
    pub fn parse(spec: DocRef<'_>, path: &str) -> Result<Self> {
        match CollationOptions::parse(spec, path)? {
            None => Ok(Self::SIMPLE),
            Some(options) => Ok(Self(Some(Arc::new(LocaleOrder::new(options)?)))),
        }
    }

    /// Returns the collation stored in the options of a collection or view.
    pub fn of_stored(options: DocRef<'_>) -> Result<Self> {
        match options.get("collation") {
            ValueRef::Missing => Ok(Self::SIMPLE),
            ValueRef::Document(spec) => Self::parse(spec, "collation"),
            other => Err(Error::new(
                ErrorCode::DataCorruptionDetected,
                format!("a stored collation is a {}", other.type_name()),
            )),
        }
    }

    /// Returns the collation of a parse context.
    pub fn of(ctx: &ParseContext) -> Self {
        Self(ctx.collator().cloned())
    }

    /// True if strings compare by bytes.
    pub fn is_simple(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the collator, if strings do not compare by bytes.
    pub fn collator(&self) -> Option<&dyn Collator> {
        match &self.0 {
            Some(collator) => Some(&**collator),
            None => None,
        }
    }

    /// Returns the shared collator, if strings do not compare by bytes.
    pub fn shared(&self) -> Option<SharedCollator> {
        self.0.clone()
    }

    /// Compares two values of any types.
    pub fn compare(&self, a: ValueRef<'_>, b: ValueRef<'_>) -> Ordering {
        compare_with(a, b, self.collator())
    }

    /// Appends a byte string whose order is the order of the strings; equal strings give equal
    /// bytes.
    pub fn sort_key(&self, text: &str, out: &mut Vec<u8>) {
        match self.collator() {
            Some(collator) => collator.sort_key(text, out),
            None => out.extend_from_slice(text.as_bytes()),
        }
    }

    /// Returns all options as shown in listings; `None` for the simple collation.
    pub fn to_document(&self) -> Option<Document> {
        self.0.as_ref().map(|order| order.options().to_document())
    }

    /// Returns all options as shown in messages; `None` for the simple collation.
    pub fn to_text(&self) -> Option<String> {
        let document = self.to_document()?;
        Some(options::format_document(document.as_ref()))
    }

    /// Wraps a value as a map key under this collation.
    pub fn key(&self, value: Value) -> CollatedValue {
        CollatedValue {
            value,
            collation: self.clone(),
        }
    }
}

impl From<Option<SharedCollator>> for Collation {
    fn from(collator: Option<SharedCollator>) -> Self {
        Self(collator)
    }
}

impl PartialEq for Collation {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a.options() == b.options(),
            _ => false,
        }
    }
}

impl Eq for Collation {}

impl std::fmt::Debug for Collation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Some(order) => order.fmt(f),
            None => f.write_str("simple"),
        }
    }
}

/// True if a collation can affect comparisons with the value.
pub fn has_text(value: &Value) -> bool {
    matches!(
        value,
        Value::String(_) | Value::Symbol(_) | Value::Document(_) | Value::Array(_)
    )
}

/// A value as a map key, with equality, order and hash of its collation. All keys of one map must
/// have the same collation.
#[derive(Clone, Debug)]
pub struct CollatedValue {
    value: Value,
    collation: Collation,
}

impl CollatedValue {
    /// Returns the value.
    pub fn value(&self) -> &Value {
        &self.value
    }
}

impl PartialEq for CollatedValue {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for CollatedValue {}

impl PartialOrd for CollatedValue {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for CollatedValue {
    fn cmp(&self, other: &Self) -> Ordering {
        self.collation
            .compare(self.value.as_ref(), other.value.as_ref())
    }
}

impl Hash for CollatedValue {
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash_with(self.value.as_ref(), self.collation.collator(), state);
    }
}

#[cfg(test)]
mod tests;
