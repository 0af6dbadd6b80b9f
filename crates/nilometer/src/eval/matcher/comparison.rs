//! `$eq`, `$gt`, `$gte`, `$lt`, `$lte`, `$in`: comparison of a value with an operand.
//!
//! Filters compare only values of the same kind: numbers with numbers, strings with strings and
//! symbols, dates with dates. Values of another kind do not match, whatever the order of types. The
//! exceptions:
//!
//! | operand          | rule                                                                |
//! |------------------|---------------------------------------------------------------------|
//! | null             | `$eq`, `$gte`, `$lte` match null and missing, but not undefined     |
//! | MinKey, MaxKey   | compared with every kind, missing included                          |
//! | NaN              | `$eq`, `$gte`, `$lte` match NaN; nothing else does, and a NaN value |
//! |                  | matches no other number                                             |
//!
//! [`Comparison::test_any_type`] has the semantics of `$expr`: one order over all types, missing
//! lowest.

use std::cmp::Ordering;

use nilometer_bson::order::canonical_type;
use nilometer_bson::{Value, ValueRef};

use super::path::MatchPath;
use super::regex::Pattern;
use crate::error::Result;
use crate::eval::{Collation, EvalContext};

/// The comparison operator.
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
    /// True if a value with this order relative to the operand passes.
    pub fn accepts(self, ordering: Ordering) -> bool {
        match self {
            Self::Eq => ordering.is_eq(),
            Self::Gt => ordering.is_gt(),
            Self::Gte => ordering.is_ge(),
            Self::Lt => ordering.is_lt(),
            Self::Lte => ordering.is_le(),
        }
    }

    /// Returns the operator's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Eq => "$eq",
            Self::Gt => "$gt",
            Self::Gte => "$gte",
            Self::Lt => "$lt",
            Self::Lte => "$lte",
        }
    }

    /// Returns the name of the corresponding internal operator, `$_internalExprEq` ….
    pub fn expr_name(self) -> &'static str {
        match self {
            Self::Eq => "$_internalExprEq",
            Self::Gt => "$_internalExprGt",
            Self::Gte => "$_internalExprGte",
            Self::Lt => "$_internalExprLt",
            Self::Lte => "$_internalExprLte",
        }
    }

    /// Returns the operator with exchanged sides: `a < b` is `b > a`.
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

/// A comparison of a path with an operand.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The path.
    pub path: MatchPath,
    /// The operator.
    pub op: CompareOp,
    /// The operand.
    pub value: Value,
    /// The collation of strings.
    pub collation: Collation,
}

impl Comparison {
    /// True if `value`, found by the path, passes. Only values of the operand's kind match.
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

    /// True if `value` passes in the order over all types, as in `$expr`.
    pub fn test_any_type(&self, value: ValueRef<'_>) -> bool {
        self.op
            .accepts(self.collation.compare(value, self.value.as_ref()))
    }
}

/// True if the value is a NaN.
pub fn is_nan(value: ValueRef<'_>) -> bool {
    match value {
        ValueRef::Double(v) => v.is_nan(),
        ValueRef::Decimal128(v) => v.is_nan(),
        _ => false,
    }
}

/// The operand of `$in`: sorted values, for binary search, and patterns.
#[derive(Clone, Debug)]
pub struct InList {
    /// The path.
    pub path: MatchPath,
    /// The values, sorted, without duplicates.
    values: Vec<Value>,
    /// The patterns.
    patterns: Vec<Pattern>,
    /// The collation of strings.
    collation: Collation,
}

impl InList {
    /// Creates a list and sorts `values`, which must not contain undefined or missing.
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

    /// Returns the values in ascending order.
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    /// Returns the patterns.
    pub fn patterns(&self) -> &[Pattern] {
        &self.patterns
    }

    /// Returns the collation of strings.
    pub fn collation(&self) -> &Collation {
        &self.collation
    }

    /// Returns the same list at another path.
    #[must_use]
    pub fn at(&self, path: MatchPath) -> Self {
        Self {
            path,
            ..self.clone()
        }
    }

    /// True if `value`, found by the path, is in the list or matches a pattern.
    pub fn test(&self, value: ValueRef<'_>, ctx: &EvalContext<'_>) -> Result<bool> {
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
            if test_pattern(pattern, value, ctx)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// True for strings and symbols that contain a match, and for a stored equal pattern.
pub fn test_pattern(pattern: &Pattern, value: ValueRef<'_>, ctx: &EvalContext<'_>) -> Result<bool> {
    match value {
        ValueRef::String(text) | ValueRef::Symbol(text) => pattern.is_match(text, ctx),
        ValueRef::Regex {
            pattern: source,
            options,
        } => Ok(source == pattern.source() && options == pattern.options()),
        _ => Ok(false),
    }
}
