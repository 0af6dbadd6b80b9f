//! `$eq`, `$gt`, `$gte`, `$lt`, `$lte`, `$in`: comparing one value found by a path with an operand.
//!
//! Comparisons of a filter compare like with like: numbers with numbers, strings with strings
//! (symbols count as strings), dates with dates. Values of another kind do not match, whatever the
//! order of kinds says. The exceptions:
//!
//! | operand          | rule                                                                |
//! |------------------|---------------------------------------------------------------------|
//! | null             | `$eq`, `$gte`, `$lte` match null and missing, but not undefined     |
//! | MinKey, MaxKey   | compared with every kind, missing included                          |
//! | NaN              | `$eq`, `$gte`, `$lte` match NaN; nothing else does, and a NaN value |
//! |                  | matches no other number                                             |
//!
//! [`Comparison::test_any_type`] is the other reading, that of `$expr`: one order over all kinds,
//! missing lowest.

use std::cmp::Ordering;

use nilometer_bson::order::canonical_type;
use nilometer_bson::{Value, ValueRef};

use super::path::MatchPath;
use super::regex::Pattern;
use crate::error::Result;
use crate::eval::Collation;

/// Which comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompareOp {
    /// `$eq`
    Eq,
    /// `$gt`
    Gt,
    /// `$gte`
    Gte,
    /// `$lt`
    Lt,
    /// `$lte`
    Lte,
}

impl CompareOp {
    /// True when a value that stands so to the operand passes.
    pub fn accepts(self, ordering: Ordering) -> bool {
        match self {
            Self::Eq => ordering.is_eq(),
            Self::Gt => ordering.is_gt(),
            Self::Gte => ordering.is_ge(),
            Self::Lt => ordering.is_lt(),
            Self::Lte => ordering.is_le(),
        }
    }

    /// `$eq` …
    pub fn name(self) -> &'static str {
        match self {
            Self::Eq => "$eq",
            Self::Gt => "$gt",
            Self::Gte => "$gte",
            Self::Lt => "$lt",
            Self::Lte => "$lte",
        }
    }

    /// `$_internalExprEq` …
    pub fn expr_name(self) -> &'static str {
        match self {
            Self::Eq => "$_internalExprEq",
            Self::Gt => "$_internalExprGt",
            Self::Gte => "$_internalExprGte",
            Self::Lt => "$_internalExprLt",
            Self::Lte => "$_internalExprLte",
        }
    }

    /// The comparison with its sides exchanged: `a < b` is `b > a`.
    #[must_use]
    pub fn flipped(self) -> Self {
        match self {
            Self::Eq => Self::Eq,
            Self::Gt => Self::Lt,
            Self::Gte => Self::Lte,
            Self::Lt => Self::Gt,
            Self::Lte => Self::Gte,
        }
    }
}

/// A path, a comparison, an operand.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Where.
    pub path: MatchPath,
    /// Which comparison.
    pub op: CompareOp,
    /// The operand.
    pub value: Value,
    /// How strings compare, if not by bytes.
    pub collation: Collation,
}

impl Comparison {
    /// True when `value`, found by the path, passes. Kinds are kept apart.
    pub fn test(&self, value: ValueRef<'_>) -> bool {
        let operand = self.value.as_ref();
        match operand {
            ValueRef::Null => {
                !matches!(self.op, CompareOp::Gt | CompareOp::Lt)
                    && matches!(value, ValueRef::Null | ValueRef::Missing)
            }
            ValueRef::MinKey | ValueRef::MaxKey => {
                self.op.accepts(self.collation.compare(value, operand))
            }
            _ if canonical_type(value) != canonical_type(operand) => false,
            _ => match (is_nan(value), is_nan(operand)) {
                (false, false) => self.op.accepts(self.collation.compare(value, operand)),
                (true, true) => !matches!(self.op, CompareOp::Gt | CompareOp::Lt),
                _ => false,
            },
        }
    }

    /// True when `value` passes in the order over all kinds, as in `$expr`.
    pub fn test_any_type(&self, value: ValueRef<'_>) -> bool {
        self.op
            .accepts(self.collation.compare(value, self.value.as_ref()))
    }
}

/// True for the numbers that are none.
pub fn is_nan(value: ValueRef<'_>) -> bool {
    match value {
        ValueRef::Double(v) => v.is_nan(),
        ValueRef::Decimal128(v) => v.is_nan(),
        _ => false,
    }
}

/// The operand of `$in`: values in order, so that one look-up is a binary search, and patterns.
#[derive(Clone, Debug)]
pub struct InList {
    /// Where.
    pub path: MatchPath,
    /// The values, sorted, without duplicates.
    values: Vec<Value>,
    /// The patterns.
    patterns: Vec<Pattern>,
    /// How strings compare, if not by bytes.
    collation: Collation,
}

impl InList {
    /// Sorts `values`; they must not hold undefined or missing.
    pub fn new(
        path: MatchPath,
        mut values: Vec<Value>,
        patterns: Vec<Pattern>,
        collation: Collation,
    ) -> Self {
        values.sort_by(|a, b| collation.compare(a.as_ref(), b.as_ref()));
        values.dedup_by(|a, b| collation.compare(a.as_ref(), b.as_ref()).is_eq());
        Self {
            path,
            values,
            patterns,
            collation,
        }
    }

    /// The values in ascending order.
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    /// The patterns.
    pub fn patterns(&self) -> &[Pattern] {
        &self.patterns
    }

    /// The collation strings compare by.
    pub fn collation(&self) -> &Collation {
        &self.collation
    }

    /// The same list at another path.
    #[must_use]
    pub fn at(&self, path: MatchPath) -> Self {
        Self {
            path,
            ..self.clone()
        }
    }

    /// True when `value`, found by the path, is in the list or matches a pattern.
    pub fn test(&self, value: ValueRef<'_>) -> Result<bool> {
        let wanted = match value {
            ValueRef::Missing => ValueRef::Null,
            ValueRef::Undefined => return Ok(false),
            other => other,
        };
        let found = self
            .values
            .binary_search_by(|known| self.collation.compare(known.as_ref(), wanted))
            .is_ok();
        if found {
            return Ok(true);
        }
        for pattern in &self.patterns {
            if test_pattern(pattern, value)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// A pattern matches strings and symbols it occurs in, and a stored equal pattern.
pub fn test_pattern(pattern: &Pattern, value: ValueRef<'_>) -> Result<bool> {
    match value {
        ValueRef::String(text) | ValueRef::Symbol(text) => pattern.is_match(text),
        ValueRef::Regex {
            pattern: source,
            options,
        } => Ok(source == pattern.source() && options == pattern.options()),
        _ => Ok(false),
    }
}
