//! Which keys a document has in an index, how entries lie in the engine, and filling an index.
//!
//! ```text
//! catalog::StoredIndex ──Index::of──▶ Index ──keys(document)──▶ Keys ──┬─ put_entries
//!   definition as stored               parts, order, filter            ├─ delete_entries
//!                                                                      └─ diff_entries (before, after)
//! ```
//!
//! The promise: the keys of a document depend on the document and the definition alone, so entries
//! can be computed again at any time; `validate` does. Whoever changes a document puts the difference
//! of its keys into the same engine batch.
//!
//! An index has *parts*, the fields of its key pattern, and *components*, the values a key string
//! holds. They are the same in number but for a wildcard part, which has two: the path and the value.
//!
//! Does not read indexes (the query room does) and does not know what collections keep: records,
//! buckets.

pub mod buckets;
mod build;
mod compile;
pub mod entry;
mod keys;
mod unique;

use std::sync::Arc;

use nilometer_bson::key_string::KeyOrder;
use nilometer_bson::path::FieldPath;

use crate::catalog::StoredIndex;
use crate::eval::Collation;
use crate::eval::matcher::MatchExpression;

pub use build::{Build, BuildSource, Chunk};
pub use compile::WildcardFields;
pub use entry::{KeyRange, delete_entries, diff_entries, put_entries};
pub use keys::{IndexKey, KEY_BYTES_MAX, Keys};
pub use unique::{PendingKeys, duplicate_key};

/// What an index keeps of one field.
#[derive(Clone, Debug, PartialEq)]
pub enum PartKind {
    /// The value, ascending.
    Ascending,
    /// The value, descending.
    Descending,
    /// The hash of the value; arrays are refused.
    Hashed,
    /// The cell of each point on the plane.
    TwoD {
        /// Bits for each coordinate.
        bits: u32,
        /// The least coordinate.
        min: f64,
        /// The greatest coordinate, exclusive.
        max: f64,
    },
    /// The cells that cover a shape on the sphere.
    TwoDSphere,
    /// The cells that cover the points of a bucket's column.
    TwoDSphereBucket,
    /// Every path below, with its value: two components.
    Wildcard {
        /// True for -1.
        descending: bool,
    },
}

/// One field of an index's key pattern.
#[derive(Clone, Debug)]
pub struct Part {
    /// The field; for a wildcard what stands in front of `$**`, none for all of the document.
    pub path: Option<FieldPath>,
    /// What is kept of it.
    pub kind: PartKind,
    /// The first component it has in a key string.
    pub component: usize,
}

impl Part {
    /// The field's dotted path; empty for a wildcard over the whole document.
    pub fn name(&self) -> &str {
        self.path.as_ref().map_or("", FieldPath::as_str)
    }

    /// How many components it has.
    pub fn components(&self) -> usize {
        match self.kind {
            PartKind::Wildcard { .. } => 2,
            _ => 1,
        }
    }

    /// True if the values themselves are kept, so that ranges of them are ranges of the index.
    pub fn is_ordered(&self) -> bool {
        matches!(self.kind, PartKind::Ascending | PartKind::Descending)
    }
}

/// An index, ready to say which keys documents have. Cheap to make again: what is parsed is kept
/// with the stored index.
#[derive(Clone, Debug)]
pub struct Index {
    /// Its definition and state.
    pub stored: Arc<StoredIndex>,
    compiled: Arc<compile::Compiled>,
}

impl Index {
    /// The fields of its key pattern.
    pub fn parts(&self) -> &[Part] {
        &self.compiled.parts
    }

    /// How many values a key string holds.
    pub fn components(&self) -> usize {
        self.compiled.components
    }

    /// Which components of a key string are descending.
    pub fn order(&self) -> KeyOrder {
        self.compiled.order
    }

    /// How strings compare; key strings hold the collation's sort keys.
    pub fn collation(&self) -> &Collation {
        &self.compiled.collation
    }

    /// Which documents are in it; all if `None`.
    pub fn partial_filter(&self) -> Option<&MatchExpression> {
        self.compiled.partial_filter.as_ref()
    }

    /// Which fields a wildcard covers.
    pub fn wildcard_fields(&self) -> &WildcardFields {
        &self.compiled.wildcard_fields
    }

    /// True when some part is a wildcard.
    pub fn is_wildcard(&self) -> bool {
        self.parts()
            .iter()
            .any(|part| matches!(part.kind, PartKind::Wildcard { .. }))
    }

    /// True when documents may be left out of it: sparse, partial, or by its kind.
    pub fn leaves_documents_out(&self) -> bool {
        self.compiled.partial_filter.is_some()
            || self.stored.spec.sparse
            || self.parts().iter().any(|part| {
                !part.is_ordered() && part.kind != PartKind::Hashed && !self.is_compound_wildcard()
            })
    }

    /// A wildcard beside other parts has a key for every document.
    fn is_compound_wildcard(&self) -> bool {
        self.is_wildcard() && self.parts().len() > 1
    }
}

#[cfg(test)]
mod tests;
