//! Bounds: which keys of an index documents that match a filter must have.
//!
//! ```text
//! filter ── conjuncts ──► leaf: path, operator, operand ──► intervals of one part of the index
//!                                                             │ several conjuncts: intersected, where allowed
//!                                                             ▼
//!                                              IndexBounds: one ordered list of intervals per part
//!                                                 │ keys                       │ text
//!                                                 ▼                            ▼
//!                              byte ranges, and which key to look at next   what explain prints
//! ```
//!
//! The promise: every document that matches, and that the index holds, has at least one key inside
//! the bounds. Bounds are *exact* for a conjunct when, besides, every document with a key inside
//! matches it; then the conjunct need not be asked again. Whatever cannot be said with intervals gives
//! no bounds (the whole part), which is always right.
//!
//! What may not be intersected: a document has several keys where an array lies on the path
//! (*multikey*), and `{a: {$gt: 3, $lt: 5}}` may be met by two different elements. So of several
//! conjuncts on a multikey part one gives the bounds and the others are asked of the document;
//! conditions inside one `$elemMatch` speak of one element and may be intersected. For the same reason
//! parts whose paths share an array are bounded together only by one `$elemMatch`.
//!
//! Whether an index holds all documents that can match (sparse, partial) is not decided here.

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

/// How a part of an index makes keys of values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PartForm {
    /// Keys order as values do.
    Ordered,
    /// Keys are hashes of values: good for equality alone.
    Hashed,
    /// Keys are cells of the sphere: good for geographic tests alone.
    Sphere,
    /// Keys are hashes of points on the plane.
    Plane(PlaneGrid),
    /// Keys of another kind, which nothing bounds.
    Opaque,
}

/// One part of an index, as far as bounds are concerned.
#[derive(Clone, Debug)]
pub struct PartShape {
    /// Its dotted path.
    pub path: Arc<str>,
    /// Keys of this part go down.
    pub descending: bool,
    /// How keys are made.
    pub form: PartForm,
    /// Some document has several keys for this part.
    pub multikey: bool,
}

/// An index, as far as bounds are concerned.
#[derive(Clone, Debug, Default)]
pub struct IndexShape {
    /// Its parts, in order.
    pub parts: Vec<PartShape>,
    /// How its keys order strings.
    pub collation: Collation,
    /// The query compares strings as the index does. If not, nothing that holds a string is bounded.
    pub same_collation: bool,
}

impl IndexShape {
    /// The part of a path.
    pub fn part(&self, path: &str) -> Option<&PartShape> {
        self.parts.iter().find(|part| &*part.path == path)
    }

    /// Which parts go down.
    pub fn order(&self) -> KeyOrder {
        KeyOrder::new(self.parts.iter().map(|part| part.descending))
    }

    fn collator(&self) -> Option<&dyn Collator> {
        self.collation.collator()
    }
}

/// What a part of an index is bounded to.
#[derive(Clone, Debug)]
pub struct PartBounds {
    /// In ascending order, without a common value.
    pub intervals: Vec<Interval>,
    /// A document with a key inside surely passes what the bounds were made from.
    pub exact: bool,
}

impl PartBounds {
    /// Every key.
    pub fn all() -> Self {
        Self {
            intervals: vec![Interval::all()],
            exact: false,
        }
    }

    /// No key.
    pub fn none() -> Self {
        Self {
            intervals: Vec::new(),
            exact: true,
        }
    }

    /// True if every key is inside.
    pub fn is_all(&self) -> bool {
        matches!(&*self.intervals, [only] if only.is_all())
    }

    /// True if all keys inside are equal.
    pub fn is_point(&self, collation: &Collation) -> bool {
        matches!(&*self.intervals, [only] if only.is_point(collation.collator()))
    }

    /// True if the intervals are single values.
    pub fn is_points(&self, collation: &Collation) -> bool {
        let mut intervals = self.intervals.iter();
        intervals.all(|interval| interval.is_point(collation.collator()))
    }
}

/// What an index is bounded to.
#[derive(Clone, Debug)]
pub struct IndexBounds {
    /// One for each part of the index.
    pub parts: Vec<PartBounds>,
}

impl IndexBounds {
    /// Every key of an index of so many parts.
    pub fn all(parts: usize) -> Self {
        Self {
            parts: vec![PartBounds::all(); parts],
        }
    }

    /// True if no key is inside.
    pub fn is_empty(&self) -> bool {
        self.parts.iter().any(|part| part.intervals.is_empty())
    }

    /// Parts at the front that are single values.
    pub fn leading_points(&self, collation: &Collation) -> usize {
        let points = self.parts.iter().take_while(|p| p.is_point(collation));
        points.count()
    }
}

/// The least and the greatest value a comparison with `value` can be true of.
pub fn ends_of_type(value: ValueRef<'_>) -> (Value, Value) {
    let of = canonical_type(value);
    (brackets::least(of).value, brackets::greatest(of).value)
}
