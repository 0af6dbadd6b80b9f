//! Evaluation of a filter on one document.

use nilometer_bson::{DocRef, ValueRef};

use super::MatchExpression;
use super::comparison::{CompareOp, test_pattern};
use super::path::{LeafArrays, MatchPath};
use crate::error::Result;
use crate::eval::{EvalContext, value_bytes};

impl MatchExpression {
    /// True if `doc` passes the filter.
    pub fn matches(&self, doc: DocRef<'_>, ctx: &EvalContext<'_>) -> Result<bool> {
        self.matches_value(ValueRef::Document(doc), ctx)
    }

    /// True if `root` passes: a document, or an array element under `$elemMatch`.
    pub fn matches_value(&self, root: ValueRef<'_>, ctx: &EvalContext<'_>) -> Result<bool> {
        ctx.charge(1)?;
        match self {
            Self::And(arms) => all(arms, root, ctx),
            Self::Or(arms) => any(arms, root, ctx),
            Self::Nor(arms) => Ok(!any(arms, root, ctx)?),
            Self::Not(arm) => Ok(!arm.matches_value(root, ctx)?),
            Self::AlwaysTrue => Ok(true),
            Self::AlwaysFalse => Ok(false),
            Self::ExprCompare(comparison) => Ok(match root {
                // A path through an array is decided by the `$expr` that accompanies this test.
                ValueRef::Document(doc) => comparison
                    .path
                    .value_without_arrays(doc)
                    .is_none_or(|value| comparison.test_any_type(value)),
                value => comparison.test_any_type(value),
            }),
            Self::Expr(test) => match root {
                ValueRef::Document(doc) => Ok(test.expression.evaluate_ref(doc, ctx)?.is_true()),
                _ => Ok(false),
            },
            Self::JsonSchema(schema) => match root {
                ValueRef::Document(doc) => schema.matches(doc, ctx),
                _ => Ok(false),
            },
            Self::Text(test) => match root {
                ValueRef::Document(doc) => Ok(test.score(doc, ctx)?.is_some()),
                _ => Ok(false),
            },
            Self::BucketGeo(test) => Ok(match root {
                ValueRef::Document(doc) => test.matches(doc),
                _ => true,
            }),
            leaf => leaf
                .visit_leaf(root, ctx, &mut |_| ())
                .map(|found| found.is_some()),
        }
    }

    /// Returns whether the document matches, and the index of the matching array element for the
    /// positional `$` of a projection or an update. If several arrays match, the last one counts. The arms of an `$or`
    /// give no position, except those that test one path for equality, which are an `$in`.
    pub fn matches_with_position(
        &self,
        doc: DocRef<'_>,
        ctx: &EvalContext<'_>,
    ) -> Result<(bool, Option<usize>)> {
        let root = ValueRef::Document(doc);
        match self {
            Self::And(arms) => {
                let mut position = None;
                for arm in arms {
                    let (matched, at) = arm.matches_with_position(doc, ctx)?;
                    if !matched {
                        return Ok((false, None));
                    }
                    position = at.or(position);
                }
                Ok((true, position))
            }
            Self::Or(arms) if is_list_of_one_path(arms) => {
                let mut first: Option<usize> = None;
                let mut passed = false;
                for arm in arms {
                    let (matched, at) = arm.matches_with_position(doc, ctx)?;
                    passed |= matched;
                    first = match (first, at) {
                        (Some(known), Some(at)) => Some(known.min(at)),
                        (known, at) => known.or(at),
                    };
                }
                Ok((passed, first))
            }
            leaf if leaf.leaf_path().is_some() => {
                let mut position = None;
                let found = leaf.visit_leaf(root, ctx, &mut |at| position = at)?;
                Ok((found.is_some(), position))
            }
            other => Ok((other.matches_value(root, ctx)?, None)),
        }
    }

    /// Returns the path of a filter that tests one path and traverses arrays.
    pub fn leaf_path(&self) -> Option<&MatchPath> {
        match self {
            Self::Compare(comparison) => Some(&comparison.path),
            Self::In(list) => Some(&list.path),
            Self::Exists(path)
            | Self::Type { path, .. }
            | Self::Regex { path, .. }
            | Self::Mod { path, .. }
            | Self::Size { path, .. }
            | Self::ElemMatchObject { path, .. }
            | Self::ElemMatchValue { path, .. }
            | Self::Bits { path, .. }
            | Self::Geo { path, .. }
            | Self::Near { path, .. } => Some(path),
            _ => None,
        }
    }

    /// Visits the values of a leaf's path; `Some` if a value passes. `position` receives the array
    /// index.
    fn visit_leaf(
        &self,
        root: ValueRef<'_>,
        ctx: &EvalContext<'_>,
        position: &mut dyn FnMut(Option<usize>),
    ) -> Result<Option<()>> {
        let Some(path) = self.leaf_path() else {
            return Ok(None);
        };
        let arrays = match self {
            Self::Exists(_)
            | Self::Size { .. }
            | Self::ElemMatchObject { .. }
            | Self::ElemMatchValue { .. } => LeafArrays::Whole,
            _ => LeafArrays::Expand,
        };
        ctx.charge_lookup(value_bytes(root))?;
        let found = path.visit(root, arrays, &mut |value, outer| {
            let mut element = None;
            ctx.charge_value(value)?;
            let passed = self.test_value(value, ctx, &mut element)?;
            if passed {
                position(outer.or(element));
            }
            Ok(passed)
        })?;
        Ok(found.then_some(()))
    }

    /// Tests one value found by the path of a leaf. For `$elemMatch` returns the index of the
    /// element.
    fn test_value(
        &self,
        value: ValueRef<'_>,
        ctx: &EvalContext<'_>,
        element: &mut Option<usize>,
    ) -> Result<bool> {
        Ok(match self {
            Self::Compare(comparison) => comparison.test(value),
            Self::In(list) => list.test(value, ctx)?,
            Self::Exists(_) => !value.is_missing(),
            Self::Type { types, .. } => types.test(value),
            Self::Regex { pattern, .. } => test_pattern(pattern, value, ctx)?,
            Self::Mod { test, .. } => test.test(value),
            Self::Size { size, .. } => value
                .as_array()
                .is_some_and(|array| i64::try_from(array.len()) == Ok(*size)),
            Self::Bits { test, .. } => test.test(value),
            Self::Geo { test, .. } => test.test(value),
            Self::Near { query, .. } => query.distance(value).is_some_and(|d| query.accepts(d)),
            Self::ElemMatchObject { filter, .. } => {
                *element = first_element(value, |inner| {
                    let is_object = matches!(inner, ValueRef::Document(_) | ValueRef::Array(_));
                    Ok(is_object && filter.matches_value(inner, ctx)?)
                })?;
                element.is_some()
            }
            Self::ElemMatchValue { tests, .. } => {
                *element = first_element(value, |inner| all(tests, inner, ctx))?;
                element.is_some()
            }
            _ => false,
        })
    }
}

/// True if the arms of an `$or` are equalities and patterns of one path, which MongoDB runs as an `$in`.
fn is_list_of_one_path(arms: &[MatchExpression]) -> bool {
    let path = |arm: &MatchExpression| match arm {
        MatchExpression::Compare(comparison) if comparison.op == CompareOp::Eq => {
            Some(comparison.path.clone())
        }
        MatchExpression::In(list) => Some(list.path.clone()),
        MatchExpression::Regex { path, .. } => Some(path.clone()),
        _ => None,
    };
    let first = arms.first().and_then(path);
    first.is_some() && arms.iter().all(|arm| path(arm) == first)
}

/// Returns the index of the first array element that passes.
fn first_element<'a>(
    value: ValueRef<'a>,
    mut test: impl FnMut(ValueRef<'a>) -> Result<bool>,
) -> Result<Option<usize>> {
    let Some(array) = value.as_array() else {
        return Ok(None);
    };
    for (at, element) in array.iter().enumerate() {
        if test(element)? {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

fn all(arms: &[MatchExpression], root: ValueRef<'_>, ctx: &EvalContext<'_>) -> Result<bool> {
    for arm in arms {
        if !arm.matches_value(root, ctx)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn any(arms: &[MatchExpression], root: ValueRef<'_>, ctx: &EvalContext<'_>) -> Result<bool> {
    for arm in arms {
        if arm.matches_value(root, ctx)? {
            return Ok(true);
        }
    }
    Ok(false)
}
