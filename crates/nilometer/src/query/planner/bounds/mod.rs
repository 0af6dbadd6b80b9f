//! Bounds: the keys that documents matching a filter must have in an index.
//!
//! ```text
//! filter ── conjuncts ──► leaf: path, operator, operand ──► intervals of one part of the index
//!                                                             │ several conjuncts: intersected, where allowed
//!                                                             ▼
//!                                              IndexBounds: one ordered list of intervals per part
//!                                                 │ keys                       │ text
//!                                                 ▼                            ▼
//!                              byte ranges, and which key to seek next      what explain prints
//! ```
//!
//! Guarantee: every document that matches and is in the index has at least one key inside the bounds. Bounds are
//! *exact* for a conjunct if, in addition, every document with a key inside matches it; the conjunct then need not be
//! tested again. A condition that intervals cannot express gives no bounds (the whole part), which is always correct.
//!
//! Limits of intersection: a document has several keys if an array lies on the path (*multikey*), and two different
//! elements may satisfy `{a: {$gt: 3, $lt: 5}}`. So only one of several conjuncts bounds a multikey part, and the
//! others are tested on the document. Conditions inside one `$elemMatch` apply to one element and may be intersected.
//! For the same reason, parts whose paths share an array are bounded together only by one `$elemMatch`.
//!
//! This module does not decide whether an index (sparse, partial) contains all documents that can match.

mod assign;
mod brackets;
mod interval;
mod keys;
mod leaf;
mod prefix;
#[cfg(test)]
mod tests;
mod text;

use std::sync::Arc;

use nilometer_bson::key_string::KeyOrder;
use nilometer_bson::order::{Collator, canonical_type};
use nilometer_bson::{Value, ValueRef};

use crate::eval::Collation;
use crate::geo::PlaneGrid;

pub use assign::Assigned;
pub use interval::Interval;
pub use keys::{KeyBounds, Position};

/// How a part of an index converts values to keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PartForm {
    /// Keys have the order of the values.
    Ordered,
    /// Keys are hashes of values, usable only for equality.
    Hashed,
    /// Keys are cells of the sphere, usable only for geographic tests.
    Sphere,
    /// Keys are hashes of points on the plane.
    Plane(PlaneGrid),
    /// Keys of another kind, which are never bounded.
    Opaque,
}

/// The properties of an index part that affect bounds.
#[derive(Clone, Debug)]
pub struct PartShape {
    /// Its dotted path.
    pub path: Arc<str>,
    /// True if keys of this part are in descending order.
    pub descending: bool,
    /// How values are converted to keys.
    pub form: PartForm,
    /// True if some document has several keys for this part.
    pub multikey: bool,
}

/// The properties of an index that affect bounds.
#[derive(Clone, Debug, Default)]
pub struct IndexShape {
    /// Its parts, in order.
    pub parts: Vec<PartShape>,
    /// The collation of its keys.
    pub collation: Collation,
    /// True if the query has the same collation. If not, no value that contains a string is bounded.
    pub same_collation: bool,
}

impl IndexShape {
    /// Returns the part with this path.
    pub fn part(&self, path: &str) -> Option<&PartShape> {
        self.parts.iter().find(|part| &*part.path == path)
    }

    /// Returns which parts are descending.
    pub fn order(&self) -> KeyOrder {
        KeyOrder::new(self.parts.iter().map(|part| part.descending))
    }

    fn collator(&self) -> Option<&dyn Collator> {
        self.collation.collator()
    }
}

/// The bounds of one part of an index.
#[derive(Clone, Debug)]
pub struct PartBounds {
    /// Disjoint intervals in ascending order.
    pub intervals: Vec<Interval>,
    /// True if every document with a key inside satisfies the tests that gave the bounds.
    pub exact: bool,
}

impl PartBounds {
    /// Returns the bounds that contain every key.
    pub fn all() -> Self {
        Self {
            intervals: vec![Interval::all()],
            exact: false,
        }
    }

    /// Returns the bounds that contain no key.
    pub fn none() -> Self {
        Self {
            intervals: Vec::new(),
            exact: true,
        }
    }

    /// True if the bounds contain every key.
    pub fn is_all(&self) -> bool {
        matches!(&*self.intervals, [only] if only.is_all())
    }

    /// True if all keys inside are equal.
    pub fn is_point(&self, collation: &Collation) -> bool {
        matches!(&*self.intervals, [only] if only.is_point(collation.collator()))
    }

    /// True if all intervals are single values.
    pub fn is_points(&self, collation: &Collation) -> bool {
        let mut intervals = self.intervals.iter();
        intervals.all(|interval| interval.is_point(collation.collator()))
    }
}

/// The bounds of an index.
#[derive(Clone, Debug)]
pub struct IndexBounds {
    /// The bounds of each part.
    pub parts: Vec<PartBounds>,
}

impl IndexBounds {
    /// Returns bounds that contain every key of an index with `parts` parts.
    pub fn all(parts: usize) -> Self {
        Self {
            parts: vec![PartBounds::all(); parts],
        }
    }

    /// True if the bounds contain no key.
    pub fn is_empty(&self) -> bool {
        self.parts.iter().any(|part| part.intervals.is_empty())
    }

    /// Returns the number of leading parts that are single values.
    pub fn leading_points(&self, collation: &Collation) -> usize {
        let points = self.parts.iter().take_while(|p| p.is_point(collation));
        points.count()
    }
}

/// Returns the least and the greatest value for which a comparison with `value` can be true.
pub fn ends_of_type(value: ValueRef<'_>) -> (Value, Value) {
    let of = canonical_type(value);
    (brackets::least(of).value, brackets::greatest(of).value)
}
