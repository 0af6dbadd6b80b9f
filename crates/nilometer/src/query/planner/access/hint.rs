//! Hints: the index a client names, by name or by key pattern, and `min` and `max` within it.

use std::sync::Arc;

use nilometer_bson::key_string::KeyBuilder;
use nilometer_bson::order::compare;
use nilometer_bson::{Document, ValueRef};

use super::KeyLimits;
use crate::error::{Error, ErrorCode, Result, location};
use crate::index::{Index, IndexPartKind};

/// An index named by a client.
#[derive(Clone, Debug)]
pub enum Hint {
    /// By name.
    Name(Arc<str>),
    /// By key pattern.
    Key(Document),
}

/// A hint, and the range of keys within its index.
#[derive(Clone, Debug)]
pub struct Forced {
    /// The index.
    pub hint: Hint,
    /// The lowest key of the range.
    pub min: Option<Document>,
    /// The lowest key above the range.
    pub max: Option<Document>,
}

impl Hint {
    /// Parses a hint other than `$natural`; `None` for other types.
    pub fn of(value: ValueRef<'_>) -> Option<Self> {
        match value {
            ValueRef::String(name) => Some(Self::Name(name.into())),
            ValueRef::Document(key) => Some(Self::Key(key.to_document())),
            _ => None,
        }
    }

    /// Returns the index of a collection that the hint names.
    pub fn find(&self, indexes: &[Arc<Index>]) -> Result<Arc<Index>> {
        let named = |index: &&Arc<Index>| match self {
            Self::Name(name) => *index.stored.spec.name == **name,
            Self::Key(key) => {
                let own = ValueRef::Document(index.stored.spec.key.as_ref());
                compare(own, ValueRef::Document(key.as_ref())).is_eq()
            }
        };
        // A hidden index is never used.
        let usable = indexes.iter().filter(|index| !index.stored.spec.hidden);
        let found: Vec<&Arc<Index>> = usable.filter(named).collect();
        match &*found {
            [] => Err(unknown()),
            [only] => Ok(Arc::clone(only)),
            several => Err(ambiguous(several)),
        }
    }
}

/// Returns the error for a key pattern that several indexes have.
fn ambiguous(found: &[&Arc<Index>]) -> Error {
    let names: Vec<&str> = found.iter().map(|i| &*i.stored.spec.name).collect();
    Error::new(
        ErrorCode::IndexNotFound,
        format!(
            "error processing query: planner returned error :: caused by :: Hint matched multiple \
             indexes, must hint by index name. Matched: {}",
            names.join(", ")
        ),
    )
}

/// Returns the error for a hint that names no index.
pub fn unknown() -> Error {
    Error::bad_value(
        "error processing query: planner returned error :: caused by :: hint provided does not \
         correspond to an existing index",
    )
}

impl Forced {
    /// Returns the keys of `index` between `min` and `max`.
    pub fn limits(&self, index: &Index) -> Result<KeyLimits> {
        let bytes = |bound: &Option<Document>| match bound {
            None => Ok(None),
            Some(bound) => key_of(bound, index).map(Some),
        };
        let limits = KeyLimits {
            min: bytes(&self.min)?,
            max: bytes(&self.max)?,
        };
        if let (Some(min), Some(max)) = (&limits.min, &limits.max)
            && min >= max
        {
            return Err(Error::location(
                location::MIN_NOT_BELOW_MAX,
                "error processing query: planner returned error :: caused by :: The value provided \
                 for min() does not come before the value provided for max() in the hinted index",
            ));
        }
        Ok(limits)
    }
}

fn key_of(bound: &Document, index: &Index) -> Result<Vec<u8>> {
    let parts = index.parts();
    let fits = bound.iter().count() == parts.len()
        && parts.iter().zip(bound.iter()).all(|(part, element)| {
            // A bound of a hashed part is a hash.
            let plain = matches!(
                part.kind,
                IndexPartKind::Ascending | IndexPartKind::Descending | IndexPartKind::Hashed
            );
            plain && part.name() == element.name()
        });
    if !fits {
        return Err(Error::location(
            location::MIN_MAX_NOT_OF_INDEX,
            "error processing query: planner returned error :: caused by :: The index chosen is \
             not compatible with min/max",
        ));
    }
    let mut builder = KeyBuilder::with_collator(index.order(), index.collation().collator());
    for element in bound.iter() {
        builder.push(element.value());
    }
    Ok(builder.finish().0)
}
