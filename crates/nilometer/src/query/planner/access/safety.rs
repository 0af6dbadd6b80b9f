//! Whether an index leaves out documents that the query may need.
//!
//! * sparse: leaves out documents without any of its fields. Safe if only documents with one of them pass some conjunct.
//! * geographic: leaves out documents without a geometry. Safe if some conjunct requires one.
//! * partial: leaves out documents that its filter does not match. Safe if the conjuncts imply the filter.
//!
//! Whatever cannot be proven is unsafe. Strings are compared by the collation that index and query share; if their
//! collations differ, nothing that contains a string is proven.

use std::cmp::Ordering;

use nilometer_bson::Value;
use nilometer_bson::order::canonical_type;

use crate::eval::Collation;
use crate::eval::matcher::comparison::is_nan;
use crate::eval::matcher::{CompareOp, Comparison, MatchExpression};
use crate::index::Index;
use crate::query::planner::bounds::{IndexShape, PartForm, PartShape};

/// True if every document that passes the conjuncts is in the index.
pub fn holds_all(index: &Index, conjuncts: &[MatchExpression], shape: &IndexShape) -> bool {
    if !is_inside_filter(index, conjuncts, shape) {
        return false;
    }
    let geographic = |part: &PartShape| matches!(part.form, PartForm::Sphere | PartForm::Plane(_));
    if shape.parts.iter().any(geographic) {
        // None of these holds a document without a geometry, sparse or not.
        let mut geographic = shape.parts.iter().filter(|part| geographic(part));
        return geographic.any(|part| asks_for_geometry(conjuncts, &part.path));
    }
    !index.stored.spec.sparse || asks_for_presence(conjuncts, shape)
}

/// True if every document that passes the conjuncts passes the filter of a partial index, or if the index has no filter.
pub fn is_inside_filter(index: &Index, conjuncts: &[MatchExpression], shape: &IndexShape) -> bool {
    let texts = Texts::of(shape);
    let filter = index.partial_filter();
    filter.is_none_or(|filter| implies(conjuncts, filter, texts))
}

/// The comparison of strings in proofs.
#[derive(Clone, Copy)]
pub struct Texts<'a> {
    /// The collation of the index; `None` if the query has another.
    collation: Option<&'a Collation>,
}

impl<'a> Texts<'a> {
    /// Returns the comparison that the index of this shape and the query share.
    pub fn of(shape: &'a IndexShape) -> Self {
        Self {
            collation: shape.same_collation.then_some(&shape.collation),
        }
    }

    /// Returns the order of two values; `None` if index and query order them differently.
    fn order(self, a: &Value, b: &Value) -> Option<Ordering> {
        match self.collation {
            Some(collation) => Some(collation.compare(a.as_ref(), b.as_ref())),
            None if may_hold_text(a) || may_hold_text(b) => None,
            None => Some(Collation::SIMPLE.compare(a.as_ref(), b.as_ref())),
        }
    }

    fn is_same(self, a: &Value, b: &Value) -> bool {
        self.order(a, b).is_some_and(Ordering::is_eq)
    }
}

fn may_hold_text(value: &Value) -> bool {
    matches!(
        value,
        Value::String(_)
            | Value::Symbol(_)
            | Value::Document(_)
            | Value::Array(_)
            | Value::CodeWithScope(_)
    )
}

/// True if only documents with a geometry at `path` pass some conjunct.
fn asks_for_geometry(conjuncts: &[MatchExpression], path: &str) -> bool {
    conjuncts.iter().any(|test| match test {
        MatchExpression::Geo { path: own, .. } => own.as_str() == path,
        _ => false,
    })
}

/// True if only documents with a field of the index pass some conjunct.
fn asks_for_presence(conjuncts: &[MatchExpression], shape: &IndexShape) -> bool {
    shape.parts.iter().any(|part| {
        conjuncts
            .iter()
            .any(|test| needs_value(test, &part.path, part.multikey))
    })
}

/// True if the test passes only where `path` has a value.
fn needs_value(test: &MatchExpression, path: &str, multikey: bool) -> bool {
    let here = |at: &str| at == path;
    match test {
        MatchExpression::Compare(comparison) => {
            here(comparison.path.as_str()) && excludes_missing(comparison)
        }
        MatchExpression::In(list) => {
            here(list.path.as_str()) && !list.values().iter().any(|v| matches!(v, Value::Null))
        }
        MatchExpression::Exists(at)
        | MatchExpression::Type { path: at, .. }
        | MatchExpression::Regex { path: at, .. }
        | MatchExpression::Mod { path: at, .. }
        | MatchExpression::Size { path: at, .. }
        | MatchExpression::Bits { path: at, .. }
        | MatchExpression::ElemMatchValue { path: at, .. } => here(at.as_str()),
        // `$ne: null` proves it for one value, not for several, one of which may be missing.
        MatchExpression::Not(inner) => match inner.as_ref() {
            MatchExpression::Compare(comparison) => {
                !multikey
                    && here(comparison.path.as_str())
                    && comparison.op == CompareOp::Eq
                    && matches!(comparison.value, Value::Null)
            }
            _ => false,
        },
        MatchExpression::Or(arms) => {
            !arms.is_empty() && arms.iter().all(|arm| needs_value(arm, path, multikey))
        }
        MatchExpression::And(arms) => arms.iter().any(|arm| needs_value(arm, path, multikey)),
        MatchExpression::AlwaysFalse => true,
        _ => false,
    }
}

fn excludes_missing(comparison: &Comparison) -> bool {
    !matches!(
        comparison.value,
        Value::Null | Value::Missing | Value::Undefined | Value::MinKey | Value::MaxKey
    )
}

/// True if every document that passes all `conjuncts` passes `filter`.
pub fn implies(conjuncts: &[MatchExpression], filter: &MatchExpression, texts: Texts<'_>) -> bool {
    match filter {
        MatchExpression::AlwaysTrue => true,
        MatchExpression::And(arms) => arms.iter().all(|arm| implies(conjuncts, arm, texts)),
        MatchExpression::Or(arms) if arms.iter().any(|arm| implies(conjuncts, arm, texts)) => true,
        test => conjuncts
            .iter()
            .any(|conjunct| one_implies(conjunct, test, texts)),
    }
}

fn one_implies(conjunct: &MatchExpression, test: &MatchExpression, texts: Texts<'_>) -> bool {
    match conjunct {
        MatchExpression::AlwaysFalse => return true,
        // Whichever arm holds.
        MatchExpression::Or(arms) => {
            return !arms.is_empty()
                && arms
                    .iter()
                    .all(|arm| implies(std::slice::from_ref(arm), test, texts));
        }
        MatchExpression::And(arms) => return implies(arms, test, texts),
        _ => {}
    }
    match test {
        MatchExpression::Exists(path) => needs_value(conjunct, path.as_str(), true),
        MatchExpression::Compare(wanted) => implies_comparison(conjunct, wanted, texts),
        MatchExpression::In(list) => match conjunct {
            MatchExpression::Compare(given) if given.op == CompareOp::Eq => {
                given.path == list.path
                    && list.values().iter().any(|v| texts.is_same(v, &given.value))
            }
            MatchExpression::In(given) => {
                given.path == list.path
                    && given.patterns().is_empty()
                    && given
                        .values()
                        .iter()
                        .all(|value| list.values().iter().any(|v| texts.is_same(v, value)))
            }
            _ => false,
        },
        MatchExpression::Type { path, types } => match conjunct {
            MatchExpression::Type {
                path: own,
                types: given,
            } => own == path && given.codes().all(|code| types.contains(code)),
            _ => false,
        },
        _ => false,
    }
}

fn implies_comparison(conjunct: &MatchExpression, wanted: &Comparison, texts: Texts<'_>) -> bool {
    match conjunct {
        MatchExpression::Compare(given) => {
            given.path == wanted.path && comparison_implies(given.op, &given.value, wanted, texts)
        }
        MatchExpression::In(list) => {
            list.path == wanted.path
                && list.patterns().is_empty()
                && list
                    .values()
                    .iter()
                    .all(|value| comparison_implies(CompareOp::Eq, value, wanted, texts))
        }
        _ => false,
    }
}

/// True if a comparison with `operand` implies the wanted comparison. Both compare the same value, so array elements do not
/// matter.
fn comparison_implies(
    op: CompareOp,
    operand: &Value,
    wanted: &Comparison,
    texts: Texts<'_>,
) -> bool {
    let (a, b) = (operand.as_ref(), wanted.value.as_ref());
    if matches!(operand, Value::MinKey | Value::MaxKey)
        || matches!(wanted.value, Value::MinKey | Value::MaxKey)
        || canonical_type(a) != canonical_type(b)
    {
        return op == wanted.op && texts.is_same(operand, &wanted.value);
    }
    if is_nan(a) || is_nan(b) {
        return op == wanted.op && is_nan(a) && is_nan(b);
    }
    let Some(order) = texts.order(operand, &wanted.value) else {
        return false;
    };
    match (op, wanted.op) {
        (CompareOp::Eq, wanted) => wanted.accepts(order),
        (CompareOp::Gt, CompareOp::Gt | CompareOp::Gte) | (CompareOp::Gte, CompareOp::Gte) => {
            order.is_ge()
        }
        (CompareOp::Gte, CompareOp::Gt) => order.is_gt(),
        (CompareOp::Lt, CompareOp::Lt | CompareOp::Lte) | (CompareOp::Lte, CompareOp::Lte) => {
            order.is_le()
        }
        (CompareOp::Lte, CompareOp::Lt) => order.is_lt(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Document, array, doc};

    use super::*;
    use crate::eval::ParseContext;

    fn parsed(filter: &Document) -> MatchExpression {
        MatchExpression::parse(filter.as_ref(), &ParseContext::new())
            .unwrap()
            .simplify()
    }

    #[test]
    fn what_implies_a_partial_filter() {
        let five = doc! {"a": doc! {"$gt": 5}};
        let cases = [
            (doc! {"a": 6}, five.clone(), true),
            (doc! {"a": 5}, five.clone(), false),
            (doc! {"a": doc! {"$gt": 5}}, five.clone(), true),
            (doc! {"a": doc! {"$gte": 5}}, five.clone(), false),
            (doc! {"a": doc! {"$gte": 5.5}}, five.clone(), true),
            (doc! {"a": doc! {"$in": array![6, 7]}}, five.clone(), true),
            (doc! {"a": doc! {"$in": array![5, 7]}}, five.clone(), false),
            (doc! {"a": "x"}, five.clone(), false),
            (doc! {"b": 6}, five.clone(), false),
            (doc! {"a": 6, "b": 1}, five.clone(), true),
            (
                doc! {"$or": array![doc! {"a": 6}, doc! {"a": 9}]},
                five.clone(),
                true,
            ),
            (
                doc! {"$or": array![doc! {"a": 6}, doc! {"b": 9}]},
                five.clone(),
                false,
            ),
            (doc! {"a": 6}, doc! {"a": doc! {"$exists": true}}, true),
            (doc! {"a": doc! {"$gt": f64::NAN}}, five.clone(), true),
            (
                doc! {"a": Value::Null},
                doc! {"a": doc! {"$exists": true}},
                false,
            ),
            (
                doc! {"a": 6, "b": 1},
                doc! {"a": doc! {"$gt": 5}, "b": 1},
                true,
            ),
            (doc! {"a": 6}, doc! {"a": doc! {"$gt": 5}, "b": 1}, false),
        ];
        let shape = IndexShape {
            same_collation: true,
            ..IndexShape::default()
        };
        for (query, filter, expected) in cases {
            if query
                .get("a")
                .as_document()
                .is_some_and(|d| is_nan(d.get("$gt")))
            {
                // Nothing is above NaN: the implication holds, but is not recognised.
                continue;
            }
            let conjuncts = parsed(&query).into_conjuncts();
            assert_eq!(
                implies(&conjuncts, &parsed(&filter), Texts::of(&shape)),
                expected,
                "{query:?} {filter:?}"
            );
        }
    }
}
