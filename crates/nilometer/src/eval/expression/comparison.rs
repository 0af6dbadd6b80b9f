//! `$eq $ne $gt $gte $lt $lte` return booleans, `$cmp` returns −1, 0 or 1.
//!
//! Values of all types are comparable in BSON order: missing below null below numbers below strings
//! … Unlike in filters there is no type bracketing. Numbers compare by value across their types,
//! strings by the operation's collation.

use std::cmp::Ordering;

use nilometer_bson::{ValueRef, order};

use super::Expression;
use super::evaluated::Evaluated;
use super::parse::ExpressionParser;
use super::registry::OperatorSpec;
use super::scope::Scope;
use crate::error::{Error, ErrorCode, Result};

/// The comparison operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComparisonOperator {
    /// `$eq`
    Eq,
    /// `$ne`
    Ne,
    /// `$gt`
    Gt,
    /// `$gte`
    Gte,
    /// `$lt`
    Lt,
    /// `$lte`
    Lte,
    /// `$cmp`
    Cmp,
}

impl ComparisonOperator {
    /// Returns the operator's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Eq => "$eq",
            Self::Ne => "$ne",
            Self::Gt => "$gt",
            Self::Gte => "$gte",
            Self::Lt => "$lt",
            Self::Lte => "$lte",
            Self::Cmp => "$cmp",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "$eq" => Self::Eq,
            "$ne" => Self::Ne,
            "$gt" => Self::Gt,
            "$gte" => Self::Gte,
            "$lt" => Self::Lt,
            "$lte" => Self::Lte,
            "$cmp" => Self::Cmp,
            _ => return None,
        })
    }

    /// Returns the operator with exchanged sides: `a < b` is `b > a`. `$cmp` has none.
    pub fn mirrored(self) -> Self {
        match self {
            Self::Gt => Self::Lt,
            Self::Gte => Self::Lte,
            Self::Lt => Self::Gt,
            Self::Lte => Self::Gte,
            same => same,
        }
    }

    /// True if the relation holds for two values with this order; not meaningful for `$cmp`.
    pub fn holds(self, ordering: Ordering) -> bool {
        match self {
            Self::Eq => ordering.is_eq(),
            Self::Ne | Self::Cmp => ordering.is_ne(),
            Self::Gt => ordering.is_gt(),
            Self::Gte => ordering.is_ge(),
            Self::Lt => ordering.is_lt(),
            Self::Lte => ordering.is_le(),
        }
    }
}

/// A comparison of two expressions.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The operator.
    pub operator: ComparisonOperator,
    /// Its left side.
    pub left: Expression,
    /// Its right side.
    pub right: Expression,
}

impl Comparison {
    pub(super) fn evaluate<'s>(&'s self, scope: &Scope<'s>) -> Result<Evaluated<'s>> {
        let left = self.left.eval(scope)?;
        let right = self.right.eval(scope)?;
        scope.context.charge_value(left.as_ref())?;
        let ordering = compare(left.as_ref(), right.as_ref(), scope);
        Ok(match self.operator {
            ComparisonOperator::Cmp => Evaluated::from(ordering as i32),
            relation => Evaluated::from(relation.holds(ordering)),
        })
    }
}

/// Compares two values by the operation's collation.
pub(crate) fn compare(a: ValueRef<'_>, b: ValueRef<'_>, scope: &Scope<'_>) -> Ordering {
    match (a, b) {
        (ValueRef::Int32(a), ValueRef::Int32(b)) => a.cmp(&b),
        (ValueRef::Int64(a), ValueRef::Int64(b))
        | (ValueRef::DateTime(a), ValueRef::DateTime(b)) => a.cmp(&b),
        _ => order::compare_with(a, b, scope.context.collator),
    }
}

/// Parses any of the seven operators.
pub(super) fn parse(
    parser: &mut ExpressionParser<'_>,
    spec: &'static OperatorSpec,
    value: ValueRef<'_>,
) -> Result<Expression> {
    let operator = ComparisonOperator::from_name(spec.name)
        .ok_or_else(|| Error::new(ErrorCode::InternalError, "not a comparison"))?;
    let mut operands = parser.positional(spec, value)?.into_iter();
    match (operands.next(), operands.next()) {
        (Some(left), Some(right)) => Ok(Expression::Compare(Box::new(Comparison {
            operator,
            left,
            right,
        }))),
        _ => Err(spec.arguments.count_error(spec.name, 0)),
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Value, array, doc};

    use super::super::testing::{check, parse_code};
    use super::*;

    #[test]
    fn order_across_types() {
        let ascending = [
            Value::MinKey,
            Value::Missing,
            Value::Null,
            Value::Double(f64::NAN),
            Value::Double(f64::NEG_INFINITY),
            Value::from(-1),
            Value::from(0),
            Value::from(1.5),
            Value::from(i64::MAX),
            Value::from(""),
            Value::from("a"),
            Value::from(doc! {}),
            array![],
            Value::from(false),
            Value::from(true),
            Value::DateTime(-1),
            Value::MaxKey,
        ];
        for (i, a) in ascending.iter().enumerate() {
            for (j, b) in ascending.iter().enumerate() {
                let doc = doc! { "a": a.clone(), "b": b.clone() };
                let both = array!["$a", "$b"];
                check(&doc, doc! { "$cmp": both.clone() }, i.cmp(&j) as i32);
                check(&doc, doc! { "$lt": both.clone() }, i < j);
                check(&doc, doc! { "$lte": both.clone() }, i <= j);
                check(&doc, doc! { "$gt": both.clone() }, i > j);
                check(&doc, doc! { "$gte": both.clone() }, i >= j);
                check(&doc, doc! { "$eq": both.clone() }, i == j);
                check(&doc, doc! { "$ne": both }, i != j);
            }
        }
    }

    #[test]
    fn numbers_compare_by_value() {
        let doc = doc! { "i": 7, "l": 7i64, "d": 7.0 };
        check(&doc, doc! { "$eq": array!["$i", "$d"] }, true);
        check(&doc, doc! { "$eq": array!["$l", "$d"] }, true);
        check(&doc, doc! { "$lt": array!["$l", 7.5] }, true);
        let big = doc! { "l": 9_007_199_254_740_993i64, "d": 9_007_199_254_740_992.0 };
        check(&big, doc! { "$gt": array!["$l", "$d"] }, true);
    }

    #[test]
    fn argument_counts() {
        for arguments in [array![], array![1], array![1, 2, 3]] {
            assert_eq!(parse_code(doc! { "$eq": arguments }), 16020);
        }
        assert_eq!(parse_code(doc! { "$cmp": 1 }), 16020);
    }

    #[test]
    fn mirrored_sides() {
        assert_eq!(ComparisonOperator::Gt.mirrored(), ComparisonOperator::Lt);
        assert_eq!(ComparisonOperator::Eq.mirrored(), ComparisonOperator::Eq);
    }
}
