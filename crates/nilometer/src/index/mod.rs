//! The keys of documents in an index, the layout of entries, and the building of indexes.
//!
//! ```text
//! catalog::StoredIndex ──Index::of──▶ Index ──keys(document)──▶ DocumentKeys ──┬─ put_entries
//!   definition as stored               parts, order, filter                    ├─ delete_entries
//!                                                                              └─ diff_entries (before, after)
//! ```
//!
//! The promise: the keys of a document depend on the document and the definition alone, so entries can be
//! recomputed at any time; `validate` does. Every change of a document puts the difference of its keys into
//! the same engine batch.
//!
//! An index has *parts*, the fields of its key pattern, and *components*, the values of a key string. Each
//! part has one component, except two: a wildcard part has the path and the value, a text part (`_fts` and `_ftsx` of the
//! key pattern) has the term and its score.
//!
//! Does not read indexes (the module `query` does) and does not know the contents of a collection: records
//! or buckets. A key may have any length that the values of a document can make: the engine cuts long ones.

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
use crate::text::TextSpec;

pub use build::{BuildSource, DocumentChunk, IndexBuild};
pub use compile::{TEXT_SCORE, TEXT_TERMS, WildcardFields};
pub use entry::{KeyRange, delete_entries, diff_entries, put_entries};
pub(crate) use keys::keys_too_long;
pub use keys::{DocumentKeys, IndexKey, KEYS_BYTES_MAX};
pub use unique::{PendingKeys, duplicate_id, duplicate_key};

/// How an index stores one field.
#[derive(Clone, Debug, PartialEq)]
pub enum IndexPartKind {
    /// The value, ascending.
    Ascending,
    /// The value, descending.
    Descending,
    /// The hash of the value; arrays are refused.
    Hashed,
    /// The cell of each point on the plane.
    TwoD {
        /// Bits per coordinate.
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
    /// The terms of strings, with their scores: two components.
    Text,
}

/// One field of the key pattern of an index.
#[derive(Clone, Debug)]
pub struct IndexPart {
    /// The field; for a wildcard the prefix of `$**`, `None` for the whole document.
    pub path: Option<FieldPath>,
    /// How the field is stored.
    pub kind: IndexPartKind,
    /// The first of its components in a key string.
    pub component: usize,
}

impl IndexPart {
    /// Returns the dotted path of the field; empty for a wildcard over the whole document.
    pub fn name(&self) -> &str {
        self.path.as_ref().map_or("", FieldPath::as_str)
    }

    /// Returns the number of its components.
    pub fn components(&self) -> usize {
        match self.kind {
            IndexPartKind::Wildcard { .. } | IndexPartKind::Text => 2,
            _ => 1,
        }
    }

    /// True if the values themselves are stored, so that value ranges are index ranges.
    pub fn is_ordered(&self) -> bool {
        matches!(
            self.kind,
            IndexPartKind::Ascending | IndexPartKind::Descending
        )
    }
}

/// An index compiled to compute the keys of documents. Cheap to construct: the compiled definition is
/// cached in the stored index.
#[derive(Clone, Debug)]
pub struct Index {
    /// The definition and state.
    pub stored: Arc<StoredIndex>,
    compiled: Arc<compile::CompiledIndex>,
}

impl Index {
    /// Returns the fields of the key pattern.
    pub fn parts(&self) -> &[IndexPart] {
        &self.compiled.parts
    }

    /// Returns the number of values in a key string.
    pub fn components(&self) -> usize {
        self.compiled.components
    }

    /// Returns which components of a key string are descending.
    pub fn order(&self) -> KeyOrder {
        self.compiled.order
    }

    /// Returns the collation; key strings hold its sort keys.
    pub fn collation(&self) -> &Collation {
        &self.compiled.collation
    }

    /// Returns the filter that selects the indexed documents; `None` selects all.
    pub fn partial_filter(&self) -> Option<&MatchExpression> {
        self.compiled.partial_filter.as_ref()
    }

    /// Returns the fields a wildcard covers.
    pub fn wildcard_fields(&self) -> &WildcardFields {
        &self.compiled.wildcard_fields
    }

    /// Returns the strings that a text index covers; `None` for other indexes.
    pub fn text(&self) -> Option<&Arc<TextSpec>> {
        self.compiled.text.as_ref()
    }

    /// True if some part is a wildcard.
    pub fn is_wildcard(&self) -> bool {
        self.parts()
            .iter()
            .any(|part| matches!(part.kind, IndexPartKind::Wildcard { .. }))
    }

    /// True if the index may leave documents out: sparse, partial, or by its type.
    pub fn leaves_documents_out(&self) -> bool {
        self.compiled.partial_filter.is_some()
            || self.stored.spec.sparse
            || self.parts().iter().any(|part| {
                !part.is_ordered()
                    && part.kind != IndexPartKind::Hashed
                    && !self.is_compound_wildcard()
            })
    }

    /// True for a wildcard beside other parts, which has a key for every document.
    fn is_compound_wildcard(&self) -> bool {
        self.is_wildcard() && self.parts().len() > 1
    }
}

#[cfg(test)]
mod tests;
