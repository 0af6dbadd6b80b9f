//! The collation an operation compares strings by, as parsed things carry it.

use std::cmp::Ordering;

use nilometer_bson::ValueRef;
use nilometer_bson::order::{Collator, compare_with};

use super::variables::{ParseContext, SharedCollator};

/// A collation, or the plain order of bytes. Cheap to clone.
#[derive(Clone, Default)]
pub struct Collation(Option<SharedCollator>);

impl Collation {
    /// The collation `ctx` asks for.
    pub fn of(ctx: &ParseContext) -> Self {
        Self(ctx.collator().cloned())
    }

    /// The collator, if strings do not compare by bytes.
    pub fn collator(&self) -> Option<&dyn Collator> {
        match &self.0 {
            Some(collator) => Some(&**collator),
            None => None,
        }
    }

    /// The collator, to hand on.
    pub fn shared(&self) -> Option<SharedCollator> {
        self.0.clone()
    }

    /// Compares two values in the order over all types.
    pub fn compare(&self, a: ValueRef<'_>, b: ValueRef<'_>) -> Ordering {
        compare_with(a, b, self.collator())
    }
}

impl From<Option<SharedCollator>> for Collation {
    fn from(collator: Option<SharedCollator>) -> Self {
        Self(collator)
    }
}

impl std::fmt::Debug for Collation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() {
            "Collation(..)"
        } else {
            "Collation(bytes)"
        })
    }
}
