//! Derives predicates on buckets from predicates on measurements.
//!
//! ```text
//! {v: {$gt: 5}}                 some measurement matches  ⇒  control.max.v > 5        (loose)
//! {v: {$in: [2, 5]}}            control.min.v <= 2 <= control.max.v, or the same of 5 (loose)
//! {t: {$gte: d}}                every measurement matches ⇐  control.min.t >= d       (whole)
//! {t: {$gte: a, $lt: b}}        bucket _id between a - maxSpan and b                  (bounds)
//! {p: {$geoWithin: …}}          the box between control.min.p and control.max.p meets the shape
//! ```
//!
//! A bucket's bounds are weaker than they seem. In each of these cases the answer is "unknown":
//!
//! - missing values do not show in bounds, so nothing follows for a predicate that matches missing;
//! - bounds of arrays and objects are merged by element and field, so such a bound need not be the value of any
//!   measurement, and does not bound scalars in the same field; between bounds of types below and above arrays there may
//!   be an array;
//! - `control.min` of the time field is rounded towards 1970: down after it, but *up* before it, so
//!   at or below 1970 it is no lower bound;
//! - strings in bounds compare by the collation of the collection, so they do not bound strings for an operation with
//!   another collation;
//! - the seconds in `_id` wrap for dates outside 1970…2038, so a collection with such dates has no bounds on `_id`.
//!
//! The loose form may keep a bucket without a match and never drops one with a match. The whole form may miss a bucket that
//! matches entirely and never includes one that does not. Predicates not listed here derive nothing.

mod constant_answer;
mod predicate;
pub(crate) mod series_metas;
mod time_range;
mod values_test;

use std::sync::Arc;

use nilometer_bson::order::{CanonicalType, canonical_type};
use nilometer_bson::{DocRef, Value};

pub use constant_answer::ConstantAnswer;
pub use predicate::{
    BoundTest, BucketHeader, BucketPredicate, FilterContext, GeoBoundTest, MetaTest, Side, Truth,
};
pub use series_metas::SeriesMetas;
pub use time_range::{IdBounds, TimeRange};
pub use values_test::ValuesTest;

use crate::eval::expression::{ComparisonOperator, Expression};
use crate::eval::matcher::comparison::is_nan;
use crate::eval::matcher::{CompareOp, Comparison, InList, MatchExpression};
use crate::eval::{Collation, Dependencies, EvalContext};

/// Last second that fits the signed 32-bit seconds of a bucket id: 2038-01-19T03:14:07Z.
pub const STANDARD_SECONDS_MAX: i64 = i32::MAX as i64;

/// Derives predicates on buckets for one collection.
#[derive(Clone)]
pub struct BucketRewriter {
    /// Name of the time field.
    pub time_field: Arc<str>,
    /// Name of the metadata field.
    pub meta_field: Option<Arc<str>>,
    /// The largest time span of a bucket.
    pub max_span_seconds: i64,
    /// The collection has dates outside the range of bucket ids.
    pub extended_range: bool,
    /// The bounds of a field may have different types and then bound nothing.
    pub mixed_schema: bool,
    /// The collation of the bounds. They apply to a comparison of strings only if it has the same collation.
    pub bounds_collation: Collation,
    /// The context of filters on metadata.
    pub context: FilterContext,
}

impl BucketRewriter {
    /// True for the metadata field and the paths in it.
    pub fn is_meta_path(&self, path: &str) -> bool {
        self.meta_field
            .as_deref()
            .is_some_and(|meta| is_at_or_below(path, meta))
    }

    /// Returns the metadata test of a filter that reads only metadata; `None` for any other filter.
    pub fn meta_test(&self, filter: &MatchExpression) -> Option<BucketPredicate> {
        let field = self.meta_field.clone()?;
        let dependencies = filter.dependencies();
        let only_meta = !dependencies.reads_nothing()
            && !dependencies.whole
            && !dependencies.random
            && dependencies.paths.iter().all(|p| self.is_meta_path(p));
        only_meta.then(|| {
            BucketPredicate::Meta(MetaTest::new(field, filter.clone(), self.context.clone()))
        })
    }

    /// Returns a predicate that accepts every bucket with a match.
    pub fn loose(&self, filter: &MatchExpression) -> BucketPredicate {
        if let Some(meta) = self.meta_test(filter) {
            return meta;
        }
        match filter {
            MatchExpression::AlwaysFalse => BucketPredicate::Never,
            MatchExpression::And(arms) => {
                BucketPredicate::all(arms.iter().map(|arm| self.loose(arm)))
            }
            // An arm without a predicate accepts every bucket, and so does the whole.
            MatchExpression::Or(arms) => {
                BucketPredicate::any(arms.iter().map(|arm| self.loose(arm)))
            }
            MatchExpression::Compare(comparison) => self.loose_comparison(comparison),
            MatchExpression::In(list) if list.patterns().is_empty() => self.loose_list(list),
            MatchExpression::Exists(path) if self.is_measurement_path(path.as_str()) => {
                self.loose_exists(path.as_str())
            }
            MatchExpression::Geo { path, test } if self.is_measurement_path(path.as_str()) => {
                BucketPredicate::Geo(GeoBoundTest {
                    path: path.to_shared(),
                    test: Arc::clone(test),
                })
            }
            MatchExpression::Expr(test) => self.loose_expression(&test.expression),
            _ => BucketPredicate::Always,
        }
    }

    fn loose_comparison(&self, comparison: &Comparison) -> BucketPredicate {
        self.loose_compare(
            &comparison.path.to_shared(),
            comparison.op,
            &comparison.value,
            &comparison.collation,
        )
    }

    /// Tests the values of a list together. A value that derives nothing accepts every bucket, and so does the whole list.
    fn loose_list(&self, list: &InList) -> BucketPredicate {
        let path = list.path.to_shared();
        let mut bounding = Vec::new();
        for value in list.values() {
            match self.loose_compare(&path, CompareOp::Eq, value, list.collation()) {
                BucketPredicate::Never => {}
                BucketPredicate::Always => return BucketPredicate::Always,
                _ => bounding.push(value.clone()),
            }
        }
        let is_time = *path == *self.time_field;
        match bounding.as_slice() {
            [] => BucketPredicate::Never,
            [value] => self.bounds_of(&path, CompareOp::Eq, value, is_time),
            _ => {
                let collation = self.bounds_collation.clone();
                BucketPredicate::Values(ValuesTest::new(path, bounding, is_time, collation))
            }
        }
    }

    fn loose_compare(
        &self,
        path: &Arc<str>,
        op: CompareOp,
        operand: &Value,
        collation: &Collation,
    ) -> BucketPredicate {
        if **path == *self.time_field {
            return self.loose_time(op, operand);
        }
        if !self.is_measurement_path(path) || !self.has_ordered_bounds(operand, collation) {
            return BucketPredicate::Always;
        }
        self.bounds_of(path, op, operand, false)
    }

    /// Returns the comparisons of bounds that follow from a match of some value with the operand.
    fn bounds_of(
        &self,
        path: &Arc<str>,
        op: CompareOp,
        operand: &Value,
        is_time: bool,
    ) -> BucketPredicate {
        let bound = |side, op| {
            BucketPredicate::Bound(BoundTest {
                is_time,
                collation: self.bounds_collation.clone(),
                ..BoundTest::new(side, path, op, operand)
            })
        };
        match op {
            CompareOp::Gt | CompareOp::Gte => bound(Side::Max, op),
            CompareOp::Lt | CompareOp::Lte => bound(Side::Min, op),
            CompareOp::Eq => BucketPredicate::All(vec![
                bound(Side::Min, CompareOp::Lte),
                bound(Side::Max, CompareOp::Gte),
            ]),
        }
    }

    /// Compares the time field, which is always present, a date, and not in an array.
    fn loose_time(&self, op: CompareOp, operand: &Value) -> BucketPredicate {
        match operand {
            Value::DateTime(at) if TimeRange::of(op, *at).is_empty() => BucketPredicate::Never,
            Value::DateTime(_) => self.bounds_of(&self.time_field, op, operand, true),
            Value::MinKey | Value::MaxKey => BucketPredicate::Always,
            _ => BucketPredicate::Never,
        }
    }

    /// Compares the existence of a field: without a bound no measurement has it.
    fn loose_exists(&self, path: &str) -> BucketPredicate {
        if path.contains('.') {
            return BucketPredicate::Always;
        }
        // MinKey is below everything, so only a missing bound fails this.
        let (path, op) = (&path.into(), CompareOp::Gte);
        BucketPredicate::Bound(BoundTest::new(Side::Max, path, op, &Value::MinKey))
    }

    /// Derives a predicate from `$expr`: a comparison of a field with a constant, and `$and` and `$or` of such. Expressions compare
    /// across types and order missing below everything, so only "above" derives a bound.
    fn loose_expression(&self, expression: &Expression) -> BucketPredicate {
        match expression {
            Expression::And(arms) => {
                BucketPredicate::all(arms.iter().map(|arm| self.loose_expression(arm)))
            }
            Expression::Or(arms) if !arms.is_empty() => {
                BucketPredicate::any(arms.iter().map(|arm| self.loose_expression(arm)))
            }
            _ => {
                let Some((path, op, operand)) = self.field_comparison(expression) else {
                    return BucketPredicate::Always;
                };
                let operand = &operand;
                if *path == *self.time_field {
                    return match operand {
                        Value::DateTime(_) => self.loose_time(op, operand),
                        _ => BucketPredicate::Always,
                    };
                }
                let says_something = matches!(op, CompareOp::Eq | CompareOp::Gt | CompareOp::Gte)
                    && self.is_measurement_path(&path)
                    && self.has_ordered_bounds(operand, &self.context.collation());
                if says_something {
                    self.bounds_of(&path, op, operand, false)
                } else {
                    BucketPredicate::Always
                }
            }
        }
    }

    /// Returns a predicate that accepts only buckets all of whose measurements match; `None` if the filter has no such form. Only
    /// times and metadata have one: a measurement may lack any other field.
    pub fn whole(&self, filter: &MatchExpression) -> Option<BucketPredicate> {
        if let Some(meta) = self.meta_test(filter) {
            return Some(meta);
        }
        match filter {
            MatchExpression::AlwaysTrue => Some(BucketPredicate::Always),
            MatchExpression::AlwaysFalse => Some(BucketPredicate::Never),
            MatchExpression::And(arms) => {
                let parts: Option<Vec<_>> = arms.iter().map(|arm| self.whole(arm)).collect();
                parts.map(BucketPredicate::all)
            }
            MatchExpression::Or(arms) => {
                let parts: Option<Vec<_>> = arms.iter().map(|arm| self.whole(arm)).collect();
                parts.map(BucketPredicate::any)
            }
            MatchExpression::Compare(comparison) => {
                self.whole_time(comparison.path.as_str(), comparison.op, &comparison.value)
            }
            MatchExpression::Expr(test) => {
                let (path, op, operand) = self.field_comparison(&test.expression)?;
                self.whole_time(&path, op, &operand)
            }
            _ => None,
        }
    }

    fn whole_time(&self, path: &str, op: CompareOp, operand: &Value) -> Option<BucketPredicate> {
        if path != &*self.time_field || !matches!(operand, Value::DateTime(_)) {
            return None;
        }
        let bound = |side, op| {
            BucketPredicate::Bound(BoundTest {
                is_time: true,
                ..BoundTest::new(side, &self.time_field, op, operand)
            })
        };
        Some(match op {
            CompareOp::Gt | CompareOp::Gte => bound(Side::Min, op),
            CompareOp::Lt | CompareOp::Lte => bound(Side::Max, op),
            CompareOp::Eq => BucketPredicate::All(vec![
                bound(Side::Min, CompareOp::Eq),
                bound(Side::Max, CompareOp::Eq),
            ]),
        })
    }

    /// Returns the range of times that contains every match.
    pub fn time_range(&self, filter: &MatchExpression) -> TimeRange {
        match filter {
            MatchExpression::AlwaysFalse => TimeRange::NONE,
            MatchExpression::And(arms) => arms
                .iter()
                .map(|arm| self.time_range(arm))
                .fold(TimeRange::ALL, TimeRange::intersect),
            MatchExpression::Or(arms) => arms
                .iter()
                .map(|arm| self.time_range(arm))
                .fold(TimeRange::NONE, TimeRange::hull),
            MatchExpression::Compare(comparison)
                if comparison.path.as_str() == &*self.time_field =>
            {
                self.range_of(comparison.op, &comparison.value)
            }
            MatchExpression::In(list)
                if list.path.as_str() == &*self.time_field && list.patterns().is_empty() =>
            {
                list.values()
                    .iter()
                    .map(|value| self.range_of(CompareOp::Eq, value))
                    .fold(TimeRange::NONE, TimeRange::hull)
            }
            MatchExpression::Expr(test) => self.expression_range(&test.expression),
            _ => TimeRange::ALL,
        }
    }

    fn expression_range(&self, expression: &Expression) -> TimeRange {
        match expression {
            Expression::And(arms) => arms
                .iter()
                .map(|arm| self.expression_range(arm))
                .fold(TimeRange::ALL, TimeRange::intersect),
            Expression::Or(arms) if !arms.is_empty() => arms
                .iter()
                .map(|arm| self.expression_range(arm))
                .fold(TimeRange::NONE, TimeRange::hull),
            _ => match self.field_comparison(expression) {
                Some((path, op, Value::DateTime(at))) if *path == *self.time_field => {
                    TimeRange::of(op, at)
                }
                _ => TimeRange::ALL,
            },
        }
    }

    fn range_of(&self, op: CompareOp, operand: &Value) -> TimeRange {
        match operand {
            Value::DateTime(at) => TimeRange::of(op, *at),
            Value::MinKey | Value::MaxKey => TimeRange::ALL,
            _ => TimeRange::NONE,
        }
    }

    /// Returns the range of the ids of buckets with measurements in a range of times.
    pub fn id_bounds(&self, range: TimeRange) -> IdBounds {
        if range.is_empty() {
            return IdBounds::Empty;
        }
        if self.extended_range {
            return IdBounds::Within {
                min: None,
                max: None,
            };
        }
        // Every time is in 0 ..= STANDARD_SECONDS_MAX; the milliseconds of the last second are cut off.
        if range.max < 0 || range.min > STANDARD_SECONDS_MAX * 1000 {
            return IdBounds::Empty;
        }
        let span_ms = self.max_span_seconds.saturating_mul(1000);
        let first = range.min.saturating_sub(span_ms).div_euclid(1000);
        let last = range.max.div_euclid(1000);
        IdBounds::Within {
            min: (first > 0).then(|| u32::try_from(first).unwrap_or(u32::MAX)),
            max: (last < STANDARD_SECONDS_MAX).then(|| u32::try_from(last).unwrap_or(u32::MAX)),
        }
    }

    /// Returns a path that has bounds.
    fn is_measurement_path(&self, path: &str) -> bool {
        !self.mixed_schema
            && !self.is_meta_path(path)
            && !is_at_or_below(path, &self.time_field)
            // A numeric component may be an array index; bounds of arrays are not used.
            && !path
                .split('.')
                .skip(1)
                .any(|part| part.bytes().all(|b| b.is_ascii_digit()))
    }

    /// True for operands that compare with scalars in the order of the bounds and do not equal missing.
    fn has_ordered_bounds(&self, operand: &Value, collation: &Collation) -> bool {
        match canonical_type(operand.as_ref()) {
            CanonicalType::Number => !is_nan(operand.as_ref()),
            CanonicalType::String => *collation == self.bounds_collation,
            CanonicalType::Bool
            | CanonicalType::Date
            | CanonicalType::ObjectId
            | CanonicalType::Timestamp
            | CanonicalType::Binary => true,
            _ => false,
        }
    }

    /// Matches `field <op> value` or its reverse, where the value is the same for all documents: a constant, a variable of the query
    /// or of the document being joined, or an expression of these.
    fn field_comparison(&self, expression: &Expression) -> Option<(Arc<str>, CompareOp, Value)> {
        let Expression::Compare(comparison) = expression else {
            return None;
        };
        let op = match comparison.operator {
            ComparisonOperator::Eq => CompareOp::Eq,
            ComparisonOperator::Gt => CompareOp::Gt,
            ComparisonOperator::Gte => CompareOp::Gte,
            ComparisonOperator::Lt => CompareOp::Lt,
            ComparisonOperator::Lte => CompareOp::Lte,
            _ => return None,
        };
        match (&comparison.left, &comparison.right) {
            (Expression::FieldPath(path), other) => {
                Some((path.as_str().into(), op, self.same_for_all(other)?))
            }
            (other, Expression::FieldPath(path)) => Some((
                path.as_str().into(),
                op.flipped(),
                self.same_for_all(other)?,
            )),
            _ => None,
        }
    }

    /// Evaluates an expression that reads no document.
    fn same_for_all(&self, expression: &Expression) -> Option<Value> {
        if let Expression::Constant(value) = expression {
            return Some(value.clone());
        }
        let mut dependencies = Dependencies::default();
        expression.dependencies(&mut dependencies);
        let reads_document =
            dependencies.whole || dependencies.random || !dependencies.paths.is_empty();
        if reads_document {
            return None;
        }
        // An error is raised when the measurements are evaluated.
        let value = self.context.folding.compute(|limits| {
            let eval = EvalContext {
                limits: Some(limits),
                ..self.context.eval()
            };
            expression.evaluate(DocRef::EMPTY, &eval)
        });
        value.ok().flatten()
    }
}

fn is_at_or_below(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}
