//! Equivalent transformations of filters: flattening, splitting by field, renaming.
//!
//! Used by the planner. `split` separates the parts of a filter on a time-series collection that
//! depend on metadata alone from those that need measurements; `renamed` converts the user's meta
//! field to that of the buckets.

use std::sync::Arc;

use super::comparison::Comparison;
use super::path::MatchPath;
use super::{ExprTest, InList, MatchExpression};
use crate::eval::Dependencies;
use crate::eval::expression::is_true;

/// Combines `parts` by and, flattened.
pub(super) fn and(mut parts: Vec<MatchExpression>) -> MatchExpression {
    match parts.len() {
        0 => MatchExpression::AlwaysTrue,
        1 => parts.remove(0),
        _ => MatchExpression::And(parts),
    }
}

/// Negates `arm`.
pub(super) fn not(arm: MatchExpression) -> MatchExpression {
    MatchExpression::Not(Box::new(arm))
}

impl MatchExpression {
    /// Combines `parts` by and.
    pub fn and(parts: Vec<MatchExpression>) -> Self {
        Self::And(parts).simplify()
    }

    /// Combines `parts` by or.
    pub fn or(parts: Vec<MatchExpression>) -> Self {
        Self::Or(parts).simplify()
    }

    /// Flattens nested `$and` and `$or`, removes neutral constants and propagates dominating ones.
    /// The result matches the same documents.
    #[must_use]
    pub fn simplify(self) -> Self {
        match self {
            Self::And(arms) => simplify_and(arms),
            Self::Or(arms) => simplify_or(arms),
            Self::Nor(arms) => match simplify_or(arms) {
                Self::Or(arms) => Self::Nor(arms),
                single => single.negated(),
            },
            Self::Not(arm) => arm.simplify().negated(),
            Self::In(list) if list.values().is_empty() && list.patterns().is_empty() => {
                Self::AlwaysFalse
            }
            Self::ElemMatchObject { path, filter } => match filter.simplify() {
                Self::AlwaysFalse => Self::AlwaysFalse,
                filter => Self::ElemMatchObject {
                    path,
                    filter: Box::new(filter),
                },
            },
            Self::ElemMatchValue { path, tests } => match simplify_and(tests) {
                Self::AlwaysFalse => Self::AlwaysFalse,
                Self::And(tests) => Self::ElemMatchValue { path, tests },
                test => Self::ElemMatchValue {
                    path,
                    tests: vec![test],
                },
            },
            Self::Expr(test) => match test.expression.as_constant() {
                Some(value) if is_true(value.as_ref()) => Self::AlwaysTrue,
                Some(_) => Self::AlwaysFalse,
                None => Self::Expr(test),
            },
            leaf => leaf,
        }
    }

    /// Returns the negation, without double negation.
    fn negated(self) -> Self {
        match self {
            Self::AlwaysTrue => Self::AlwaysFalse,
            Self::AlwaysFalse => Self::AlwaysTrue,
            Self::Not(arm) => *arm,
            Self::Nor(arms) => Self::Or(arms),
            Self::Or(arms) => Self::Nor(arms),
            other => Self::Not(Box::new(other)),
        }
    }

    /// Returns the arms of an `$and`, or the expression alone; none for
    /// [`MatchExpression::AlwaysTrue`].
    pub fn into_conjuncts(self) -> Vec<MatchExpression> {
        match self {
            Self::And(arms) => arms.into_iter().flat_map(Self::into_conjuncts).collect(),
            Self::AlwaysTrue => Vec::new(),
            other => vec![other],
        }
    }

    /// Separates the conjuncts that read only paths accepted by `belongs` from the others. Both
    /// together match the same documents. A conjunct that reads the whole document, random numbers
    /// or no field at all is among the others. An `$expr` with an `$and` is split arm by arm.
    pub fn split(self, belongs: impl Fn(&str) -> bool) -> (MatchExpression, MatchExpression) {
        let mut inside = Vec::new();
        let mut outside = Vec::new();
        for conjunct in self.into_conjuncts().into_iter().flat_map(expr_arms) {
            let dependencies = conjunct.dependencies();
            let is_inside = !dependencies.reads_nothing()
                && !dependencies.whole
                && !dependencies.random
                && dependencies.paths.iter().all(|path| belongs(path));
            if is_inside {
                inside.push(conjunct);
            } else {
                outside.push(conjunct);
            }
        }
        (and(inside), and(outside))
    }

    /// Returns the inputs of the filter.
    pub fn dependencies(&self) -> Dependencies {
        let mut into = Dependencies::default();
        self.add_dependencies(&mut into);
        into
    }

    /// Adds the inputs of the filter.
    pub fn add_dependencies(&self, into: &mut Dependencies) {
        match self {
            Self::And(arms) | Self::Or(arms) | Self::Nor(arms) => {
                arms.iter().for_each(|arm| arm.add_dependencies(into));
            }
            Self::Not(arm) => arm.add_dependencies(into),
            Self::ExprCompare(comparison) => {
                into.paths.insert(comparison.path.to_shared());
            }
            Self::Expr(test) => test.expression.dependencies(into),
            Self::JsonSchema(_) | Self::Text(_) => into.whole = true,
            Self::BucketGeo(test) => {
                let paths = test.paths().into_iter().map(MatchPath::to_shared);
                into.paths.extend(paths);
            }
            Self::AlwaysTrue | Self::AlwaysFalse => {}
            leaf => {
                if let Some(path) = leaf.leaf_path() {
                    into.paths.insert(path.to_shared());
                }
            }
        }
    }

    /// Returns the filter with the path prefix `from` replaced by `to`; `None` if some part reads
    /// the whole document or paths not at or below `from`.
    pub fn renamed(&self, from: &str, to: &str) -> Option<MatchExpression> {
        self.with_paths(&|path| path.renamed(from, to), &|test| {
            test.renamed(from, to)
        })
    }

    /// Returns the filter of the object at the path `prefix`; `None` if some part reads anything but paths below it.
    pub fn below(&self, prefix: &str) -> Option<MatchExpression> {
        self.with_paths(&|path| path.below(prefix), &|_| None)
    }

    /// Returns the filter with other paths, and other expressions; `None` if some part has none.
    fn with_paths(
        &self,
        path: &dyn Fn(&MatchPath) -> Option<MatchPath>,
        expression: &dyn Fn(&ExprTest) -> Option<ExprTest>,
    ) -> Option<MatchExpression> {
        let arms = |arms: &[Self]| -> Option<Vec<Self>> {
            let arms = arms.iter();
            arms.map(|arm| arm.with_paths(path, expression)).collect()
        };
        Some(match self {
            Self::And(list) => Self::And(arms(list)?),
            Self::Or(list) => Self::Or(arms(list)?),
            Self::Nor(list) => Self::Nor(arms(list)?),
            Self::Not(arm) => Self::Not(Box::new(arm.with_paths(path, expression)?)),
            Self::AlwaysTrue => Self::AlwaysTrue,
            Self::AlwaysFalse => Self::AlwaysFalse,
            Self::ExprCompare(comparison) => Self::ExprCompare(Comparison {
                path: path(&comparison.path)?,
                ..comparison.clone()
            }),
            Self::Expr(test) => Self::Expr(Arc::new(expression(test)?)),
            Self::JsonSchema(_) | Self::BucketGeo(_) | Self::Text(_) => return None,
            leaf => leaf.at_path(path(leaf.leaf_path()?)?)?,
        })
    }

    /// Returns the same test at another path; `None` unless the filter tests a single path.
    pub fn at_path(&self, path: MatchPath) -> Option<MatchExpression> {
        Some(match self {
            Self::Compare(comparison) => Self::Compare(Comparison {
                path,
                ..comparison.clone()
            }),
            Self::In(list) => Self::In(InList::at(list, path)),
            Self::Exists(_) => Self::Exists(path),
            Self::Type { types, .. } => Self::Type {
                path,
                types: *types,
            },
            Self::Regex { pattern, .. } => Self::Regex {
                path,
                pattern: pattern.clone(),
            },
            Self::Mod { test, .. } => Self::Mod { path, test: *test },
            Self::Size { size, .. } => Self::Size { path, size: *size },
            Self::ElemMatchObject { filter, .. } => Self::ElemMatchObject {
                path,
                filter: filter.clone(),
            },
            Self::ElemMatchValue { tests, .. } => Self::ElemMatchValue {
                path,
                tests: tests.clone(),
            },
            Self::Bits { test, .. } => Self::Bits {
                path,
                test: test.clone(),
            },
            Self::Geo { test, .. } => Self::Geo {
                path,
                test: Arc::clone(test),
            },
            Self::Near { query, .. } => Self::Near {
                path,
                query: Arc::clone(query),
            },
            _ => return None,
        })
    }
}

fn simplify_and(arms: Vec<MatchExpression>) -> MatchExpression {
    let mut flat = Vec::with_capacity(arms.len());
    for arm in arms {
        match arm.simplify() {
            MatchExpression::AlwaysTrue => {}
            MatchExpression::AlwaysFalse => return MatchExpression::AlwaysFalse,
            MatchExpression::And(inner) => flat.extend(inner),
            other => flat.push(other),
        }
    }
    and(flat)
}

fn simplify_or(arms: Vec<MatchExpression>) -> MatchExpression {
    let mut flat = Vec::with_capacity(arms.len());
    for arm in arms {
        match arm.simplify() {
            MatchExpression::AlwaysFalse => {}
            MatchExpression::AlwaysTrue => return MatchExpression::AlwaysTrue,
            MatchExpression::Or(inner) => flat.extend(inner),
            other => flat.push(other),
        }
    }
    match flat.len() {
        0 => MatchExpression::AlwaysFalse,
        1 => flat.remove(0),
        _ => MatchExpression::Or(flat),
    }
}

/// Splits an `$expr: {$and: […]}` into one `$expr` per arm; returns other filters alone.
fn expr_arms(conjunct: MatchExpression) -> Vec<MatchExpression> {
    match conjunct {
        MatchExpression::Expr(test) => {
            let arms = test.arms().into_iter();
            arms.map(MatchExpression::Expr).collect()
        }
        other => vec![other],
    }
}
