//! From a predicate on measurements to a predicate on buckets.
//!
//! ```text
//! {v: {$gt: 5}}                 some measurement matches  ⇒  control.max.v > 5        (loose)
//! {t: {$gte: d}}                every measurement matches ⇐  control.min.t >= d       (whole)
//! {t: {$gte: a, $lt: b}}        bucket _id between a - maxSpan and b                  (bounds)
//! {p: {$geoWithin: …}}          the box between control.min.p and control.max.p meets the shape
//! ```
//!
//! A bucket's bounds are weaker than they look, and each weakness is a reason to say "unknown":
//!
//! - missing values leave no trace, so nothing follows for a predicate that matches missing;
//! - arrays and objects are tracked element by element and field by field, so a bound that is one is
//!   no value of any measurement, and says nothing about scalars beside it either; and bounds of types
//!   below and above arrays may have one between them;
//! - `control.min` of the time field is rounded towards 1970: down after it, but *up* before it, so
//!   at or below 1970 it is no lower bound;
//! - strings in bounds compare by the collation of the collection, so they say nothing of strings that an
//!   operation compares otherwise;
//! - the seconds in `_id` wrap for dates outside 1970…2038, so a collection that holds any has no
//!   bounds on `_id`.
//!
//! The loose form may keep a bucket without a match, never drop one with a match; the whole form may
//! miss a bucket that matches entirely, never claim one that does not. Nothing is derived from what
//! is not listed here.

mod constant_answer;
mod predicate;
mod time_range;

use std::sync::Arc;

use nilometer_bson::order::{CanonicalType, canonical_type};
use nilometer_bson::{DocRef, Value};

pub use constant_answer::ConstantAnswer;
pub use predicate::{
    BoundTest, BucketHeader, BucketPredicate, FilterContext, GeoBoundTest, MetaTest, Side, Truth,
};
pub use time_range::{IdBounds, TimeRange};

use crate::eval::expression::{ComparisonOperator, Expression};
use crate::eval::matcher::comparison::is_nan;
use crate::eval::matcher::{CompareOp, Comparison, MatchExpression};
use crate::eval::{Collation, Dependencies};

/// Last second that fits the signed 32-bit seconds of a bucket id: 2038-01-19T03:14:07Z.
pub const STANDARD_SECONDS_MAX: i64 = i32::MAX as i64;

/// Derives predicates on buckets for one collection.
#[derive(Clone)]
pub struct BucketRewriter {
    /// Name of the time field.
    pub time_field: Arc<str>,
    /// Name of the metadata field.
    pub meta_field: Option<Arc<str>>,
    /// The longest a bucket may span.
    pub max_span_seconds: i64,
    /// Some date lies outside what bucket ids can say.
    pub extended_range: bool,
    /// Bounds of a measurement field may be of different types, so that they say nothing.
    pub mixed_schema: bool,
    /// How the collection's bounds compare strings: they say something of a comparison only if it
    /// compares strings alike.
    pub bounds_collation: Collation,
    /// For filters on metadata.
    pub context: FilterContext,
}

impl BucketRewriter {
    /// True for the metadata field and what lies in it.
    pub fn is_meta_path(&self, path: &str) -> bool {
        self.meta_field
            .as_deref()
            .is_some_and(|meta| is_at_or_below(path, meta))
    }

    /// The metadata test of a filter that reads nothing else; `None` for any other filter.
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

    /// A predicate no bucket with a match fails.
    pub fn loose(&self, filter: &MatchExpression) -> BucketPredicate {
        if let Some(meta) = self.meta_test(filter) {
            return meta;
        }
        match filter {
            MatchExpression::AlwaysFalse => BucketPredicate::Never,
            MatchExpression::And(arms) => {
                BucketPredicate::all(arms.iter().map(|arm| self.loose(arm)))
            }
            // An arm that says nothing lets every bucket through, so the whole says nothing.
            MatchExpression::Or(arms) => {
                BucketPredicate::any(arms.iter().map(|arm| self.loose(arm)))
            }
            MatchExpression::Compare(comparison) => self.loose_comparison(comparison),
            MatchExpression::In(list) if list.patterns().is_empty() => {
                let path = list.path.to_shared();
                BucketPredicate::any(
                    list.values().iter().map(|value| {
                        self.loose_compare(&path, CompareOp::Eq, value, list.collation())
                    }),
                )
            }
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

    /// Comparisons of bounds that follow from "some value compares so with the operand".
    fn bounds_of(
        &self,
        path: &Arc<str>,
        op: CompareOp,
        operand: &Value,
        is_time: bool,
    ) -> BucketPredicate {
        let bound = |side, op| {
            BucketPredicate::Bound(BoundTest {
                side,
                path: Arc::clone(path),
                op,
                operand: operand.clone(),
                is_time,
                collation: self.bounds_collation.clone(),
                answer: ConstantAnswer::default(),
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

    /// Times are dates, always there and never in arrays.
    fn loose_time(&self, op: CompareOp, operand: &Value) -> BucketPredicate {
        match operand {
            Value::DateTime(at) if TimeRange::of(op, *at).is_empty() => BucketPredicate::Never,
            Value::DateTime(_) => self.bounds_of(&self.time_field, op, operand, true),
            Value::MinKey | Value::MaxKey => BucketPredicate::Always,
            _ => BucketPredicate::Never,
        }
    }

    /// Without a bound no measurement has the field.
    fn loose_exists(&self, path: &str) -> BucketPredicate {
        if path.contains('.') {
            return BucketPredicate::Always;
        }
        // MinKey is below everything: only the absence of a bound fails this.
        BucketPredicate::Bound(BoundTest {
            side: Side::Max,
            path: path.into(),
            op: CompareOp::Gte,
            operand: Value::MinKey,
            is_time: false,
            collation: Collation::SIMPLE,
            answer: ConstantAnswer::default(),
        })
    }

    /// `$expr`: a comparison of a field with a constant, `$and` and `$or` of such. Kinds are not
    /// kept apart and missing is below everything, so only "above" says something of a field.
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

    /// A predicate that holds only for buckets all of whose measurements match; `None` if the filter
    /// has no such form. Only times and metadata have one: a value may be missing in a measurement
    /// whatever the bounds say.
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
                side,
                path: Arc::clone(&self.time_field),
                op,
                operand: operand.clone(),
                is_time: true,
                collation: Collation::SIMPLE,
                answer: ConstantAnswer::default(),
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

    /// Between which times every match lies.
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

    /// Between which ids buckets with measurements in `range` lie.
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
        // Every time lies in 0 ..= STANDARD_SECONDS_MAX, with milliseconds at the last second cut.
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

    /// A path whose bounds are those of a measurement field.
    fn is_measurement_path(&self, path: &str) -> bool {
        !self.mixed_schema
            && !self.is_meta_path(path)
            && !is_at_or_below(path, &self.time_field)
            // A number may pick an array element; bounds of arrays are not looked into.
            && !path
                .split('.')
                .skip(1)
                .any(|part| part.bytes().all(|b| b.is_ascii_digit()))
    }

    /// Operands whose order among scalars is that of the bounds, and which missing does not equal.
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

    /// `field <op> value`, whichever way round it is written, where the value is the same for all documents: a
    /// constant, a variable of the query or of the document being joined, or something made of these.
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

    /// The value of an expression that reads no document.
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
        // What fails does so when measurements are asked.
        expression
            .evaluate(DocRef::EMPTY, &self.context.eval())
            .ok()
    }
}

fn is_at_or_below(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}
