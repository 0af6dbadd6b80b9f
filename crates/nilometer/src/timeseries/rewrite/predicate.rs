//! Evaluates a predicate on a bucket's header: true, false, or unknown.
//!
//! The header has the metadata and the bounds of each field. [`super`] lists where bounds are weaker than they seem; each of
//! those cases evaluates to [`Truth::Unknown`].

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, PoisonError};

use nilometer_bson::order::{CanonicalType, Collator, canonical_type};
use nilometer_bson::{Document, DocumentBuilder, ObjectId, Value, ValueRef};

use super::constant_answer::ConstantAnswer;
use super::values_test::ValuesTest;
use crate::error::Result;
use crate::eval::matcher::geo::bucket_document;
use crate::eval::matcher::{CompareOp, MatchExpression};
use crate::eval::variables::SharedCollator;
use crate::eval::{Collation, EvalContext, EvaluationLimits, FoldBudget};
use crate::geo::{GeoTest, may_contain};

/// Metadata whose answers a test caches, at most.
const META_ANSWERS_MAX: usize = 10_000;

/// The header of a bucket, which is read before any column.
pub trait BucketHeader {
    /// Returns the bucket's `_id`.
    fn id(&self) -> ObjectId;

    /// Returns the metadata; missing if there is none.
    fn meta(&self) -> ValueRef<'_>;

    /// Returns the id of the metadata, if it has one: headers with equal ids have equal metadata.
    fn meta_id(&self) -> Option<NonZeroU64> {
        None
    }

    /// Returns `control.min.<field>`; missing if no measurement has the field.
    fn min(&self, field: &str) -> ValueRef<'_>;

    /// Returns `control.max.<field>`; missing if no measurement has the field.
    fn max(&self, field: &str) -> ValueRef<'_>;

    /// Returns both bounds.
    fn bounds(&self, field: &str) -> (ValueRef<'_>, ValueRef<'_>) {
        (self.min(field), self.max(field))
    }

    /// Returns the id of [`BucketHeader::constants`], if it was computed before: headers with equal ids have equal constants.
    fn known_constants_id(&self) -> Option<NonZeroU64> {
        None
    }

    /// Returns the fields that have one value in all measurements.
    fn constants(&self) -> Result<Document> {
        Ok(Document::default())
    }

    /// Returns the number of measurements.
    fn count(&self) -> u32;
}

/// The result of a predicate on a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth {
    /// True for the measurements of the bucket.
    True,
    /// False for the measurements of the bucket.
    False,
    /// The header does not decide.
    Unknown,
}

impl Truth {
    pub(super) fn of(value: bool) -> Self {
        if value { Self::True } else { Self::False }
    }
}

/// A predicate on the header of a bucket.
#[derive(Clone, Debug)]
pub enum BucketPredicate {
    /// Accepts every bucket.
    Always,
    /// Accepts no bucket.
    Never,
    /// All parts accept the bucket.
    All(Vec<BucketPredicate>),
    /// At least one part accepts the bucket.
    Any(Vec<BucketPredicate>),
    /// A test of the metadata.
    Meta(MetaTest),
    /// A comparison of a bound with an operand.
    Bound(BoundTest),
    /// One of several values lies between the bounds.
    Values(ValuesTest),
    /// A geometric test of the bounds of a field.
    Geo(GeoBoundTest),
}

/// `$_internalBucketGeoWithin`: true if points between the bounds of a field may pass a test.
#[derive(Clone, Debug)]
pub struct GeoBoundTest {
    /// The measurement field, dotted.
    pub path: Arc<str>,
    /// The test of measurements.
    pub test: Arc<GeoTest>,
}

/// A filter that reads the metadata only.
#[derive(Clone)]
pub struct MetaTest {
    /// The name of the metadata field in the filter.
    pub field: Arc<str>,
    /// The filter with the user's names.
    pub filter: MatchExpression,
    /// The same filter on metadata that is an object, if it reads nothing but fields of it.
    of_object: Option<MatchExpression>,
    /// The context of the filter's expressions.
    pub context: FilterContext,
    /// Cached answers.
    answers: Arc<MetaAnswers>,
}

/// The answers of a test by id of the metadata.
#[derive(Default)]
struct MetaAnswers(Mutex<HashMap<NonZeroU64, bool, foldhash::fast::RandomState>>);

impl std::fmt::Debug for MetaTest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MetaTest")
            .field("field", &self.field)
            .field("filter", &self.filter)
            .finish_non_exhaustive()
    }
}

/// The context of a filter during a query.
#[derive(Clone, Default)]
pub struct FilterContext {
    /// `$$NOW`.
    pub now_ms: i64,
    /// The values of variables.
    pub variables: Arc<[Value]>,
    /// The collation; `None` compares bytes.
    pub collator: Option<SharedCollator>,
    /// The work that evaluating constants may do.
    pub(crate) folding: Arc<FoldBudget>,
}

impl FilterContext {
    /// Returns the collation.
    pub fn collation(&self) -> Collation {
        Collation::from(self.collator.clone())
    }

    pub(super) fn eval(&self) -> EvalContext<'_> {
        EvalContext {
            now_ms: self.now_ms,
            variables: &self.variables,
            collator: self.collator.as_deref().map(|c| c as &dyn Collator),
            ..EvalContext::default()
        }
    }
}

/// The side of a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// `control.min`
    Min,
    /// `control.max`
    Max,
}

/// `control.<side>.<path> <op> <operand>`.
#[derive(Clone, Debug)]
pub struct BoundTest {
    /// The side of a bound.
    pub side: Side,
    /// The measurement field, dotted.
    pub path: Arc<str>,
    /// The comparison, in the order over all types.
    pub op: CompareOp,
    /// The operand.
    pub operand: Value,
    /// True for the time field, whose minimum is rounded.
    pub is_time: bool,
    /// The collation of bounds that are strings.
    pub collation: Collation,
    /// Cached answer for a constant field.
    pub answer: ConstantAnswer,
}

impl BucketPredicate {
    /// Evaluates the predicate on a header, within the limits of the operation.
    pub fn truth(
        &self,
        header: &(impl BucketHeader + ?Sized),
        limits: Option<EvaluationLimits<'_>>,
    ) -> Result<Truth> {
        self.truth_behind(header, &mut None, limits)
    }

    /// Evaluates the predicate; `last` holds the bounds that were read last.
    fn truth_behind<'p, 'h>(
        &'p self,
        header: &'h (impl BucketHeader + ?Sized),
        last: &mut Option<AskedBounds<'p, 'h>>,
        limits: Option<EvaluationLimits<'_>>,
    ) -> Result<Truth> {
        Ok(match self {
            Self::Always => Truth::True,
            Self::Never => Truth::False,
            Self::All(parts) => {
                let mut result = Truth::True;
                for part in parts {
                    match part.truth_behind(header, last, limits)? {
                        Truth::True => {}
                        Truth::False => return Ok(Truth::False),
                        Truth::Unknown => result = Truth::Unknown,
                    }
                }
                result
            }
            Self::Any(parts) => {
                let mut result = Truth::False;
                for part in parts {
                    match part.truth_behind(header, last, limits)? {
                        Truth::True => return Ok(Truth::True),
                        Truth::False => {}
                        Truth::Unknown => result = Truth::Unknown,
                    }
                }
                result
            }
            Self::Meta(test) => Truth::of(test.test_header(header, limits)?),
            Self::Bound(test) => test.truth(header, last)?,
            Self::Values(test) => test.truth(header, last)?,
            Self::Geo(test) => test.truth(header),
        })
    }

    /// False only if no measurement can match.
    pub fn may_match(
        &self,
        header: &(impl BucketHeader + ?Sized),
        limits: Option<EvaluationLimits<'_>>,
    ) -> Result<bool> {
        Ok(self.truth(header, limits)? != Truth::False)
    }

    /// True only if all measurements match.
    pub fn surely_matches(
        &self,
        header: &(impl BucketHeader + ?Sized),
        limits: Option<EvaluationLimits<'_>>,
    ) -> Result<bool> {
        Ok(self.truth(header, limits)? == Truth::True)
    }

    /// True if the predicate reads nothing of a bucket but the bounds of its times.
    pub fn reads_only_times(&self) -> bool {
        match self {
            Self::Always | Self::Never => true,
            Self::All(parts) | Self::Any(parts) => parts.iter().all(Self::reads_only_times),
            Self::Bound(test) => test.is_time,
            Self::Values(test) => test.is_time(),
            Self::Meta(_) | Self::Geo(_) => false,
        }
    }

    /// True if the predicate accepts every bucket.
    pub fn is_always(&self) -> bool {
        matches!(self, Self::Always)
    }

    /// Returns the conjunction of `parts`, flattened.
    pub fn all(parts: impl IntoIterator<Item = BucketPredicate>) -> Self {
        let mut flat = Vec::new();
        for part in parts {
            match part {
                Self::Always => {}
                Self::Never => return Self::Never,
                Self::All(inner) => flat.extend(inner),
                other => flat.push(other),
            }
        }
        match flat.len() {
            0 => Self::Always,
            1 => flat.remove(0),
            _ => Self::All(flat),
        }
    }

    /// Returns the disjunction of `parts`, flattened.
    pub fn any(parts: impl IntoIterator<Item = BucketPredicate>) -> Self {
        let mut flat = Vec::new();
        for part in parts {
            match part {
                Self::Never => {}
                Self::Always => return Self::Always,
                Self::Any(inner) => flat.extend(inner),
                other => flat.push(other),
            }
        }
        match flat.len() {
            0 => Self::Never,
            1 => flat.remove(0),
            _ => Self::Any(flat),
        }
    }

    /// Returns the predicate as a filter on bucket documents, as explain shows it.
    pub fn to_document(&self) -> Document {
        let mut out = DocumentBuilder::new();
        match self {
            Self::Always => {}
            Self::Never => {
                out.append("$alwaysFalse", 1);
            }
            Self::All(parts) | Self::Any(parts) => {
                let list: Vec<Value> = parts.iter().map(|p| p.to_document().into()).collect();
                let name = if matches!(self, Self::All(_)) {
                    "$and"
                } else {
                    "$or"
                };
                out.append(name, list);
            }
            Self::Meta(test) => return test.to_document(),
            Self::Geo(test) => return bucket_document(&test.test, &test.path),
            Self::Values(test) => return test.to_comparisons().to_document(),
            Self::Bound(test) => {
                let side = match test.side {
                    Side::Min => "min",
                    Side::Max => "max",
                };
                let mut comparison = DocumentBuilder::new();
                comparison.append_ref(test.op.expr_name(), test.operand.as_ref());
                let path = format!("control.{side}.{}", test.path);
                out.append(&path, comparison.finish());
            }
        }
        out.finish()
    }
}

impl MetaTest {
    /// Returns the test of a filter that reads only the metadata, under the name `field`.
    pub fn new(field: Arc<str>, filter: MatchExpression, context: FilterContext) -> Self {
        Self {
            of_object: filter.below(&field),
            field,
            filter,
            context,
            answers: Arc::default(),
        }
    }

    /// Evaluates the metadata of a bucket, once for each id.
    fn test_header(
        &self,
        header: &(impl BucketHeader + ?Sized),
        limits: Option<EvaluationLimits<'_>>,
    ) -> Result<bool> {
        let Some(number) = header.meta_id() else {
            return self.test(header.meta(), limits);
        };
        let answers = || {
            let answers = self.answers.0.lock();
            answers.unwrap_or_else(PoisonError::into_inner)
        };
        if let Some(known) = answers().get(&number) {
            return Ok(*known);
        }
        let answer = self.test(header.meta(), limits)?;
        let mut answers = answers();
        if answers.len() < META_ANSWERS_MAX {
            answers.insert(number, answer);
        }
        Ok(answer)
    }

    /// Evaluates metadata, within the limits of the operation.
    pub fn test(&self, meta: ValueRef<'_>, limits: Option<EvaluationLimits<'_>>) -> Result<bool> {
        let eval = EvalContext {
            limits,
            ..self.context.eval()
        };
        if let (Some(filter), ValueRef::Document(meta)) = (&self.of_object, meta) {
            return filter.matches(meta, &eval);
        }
        let mut document = DocumentBuilder::new();
        document.append_ref(&self.field, meta);
        let document = document.finish();
        self.filter.matches(document.as_ref(), &eval)
    }

    fn to_document(&self) -> Document {
        self.filter
            .renamed(&self.field, "meta")
            .unwrap_or_else(|| self.filter.clone())
            .to_document()
    }
}

/// The bounds of a path ([`bounds_at`]). Both sides of a range read the same bounds, one after the other.
pub(super) struct AskedBounds<'p, 'h> {
    path: &'p str,
    bounds: Option<(ValueRef<'h>, ValueRef<'h>)>,
}

/// The bounds of one field.
pub(super) enum Bounds<'a> {
    /// No measurement has the field.
    Absent,
    /// The values are not bounded.
    Unknown,
    /// All values are between these, in the order over all types.
    Between(ValueRef<'a>, ValueRef<'a>),
}

impl BoundTest {
    /// Returns a comparison with a bound of a field other than the time, under the simple collation.
    pub(super) fn new(side: Side, path: &Arc<str>, op: CompareOp, operand: &Value) -> Self {
        Self {
            side,
            path: Arc::clone(path),
            op,
            operand: operand.clone(),
            is_time: false,
            collation: Collation::SIMPLE,
            answer: ConstantAnswer::default(),
        }
    }

    fn truth<'p, 'h>(
        &'p self,
        header: &'h (impl BucketHeader + ?Sized),
        last: &mut Option<AskedBounds<'p, 'h>>,
    ) -> Result<Truth> {
        if let Some(truth) = self.truth_of_times(header) {
            return Ok(truth);
        }
        let by_bounds = || self.truth_of_bounds(header, &mut None);
        if !self.is_time
            && let Some(truth) = self.answer.truth(&self.path, header, by_bounds)?
        {
            return Ok(truth);
        }
        Ok(self.truth_of_bounds(header, last))
    }

    fn truth_of_bounds<'p, 'h>(
        &'p self,
        header: &'h (impl BucketHeader + ?Sized),
        last: &mut Option<AskedBounds<'p, 'h>>,
    ) -> Truth {
        match bounds_of(&self.path, header, last) {
            Bounds::Absent => Truth::False,
            Bounds::Unknown => Truth::Unknown,
            Bounds::Between(min, _) if self.is_lower_bound_of_time() && is_rounded_up(min) => {
                Truth::Unknown
            }
            Bounds::Between(min, max) => {
                let bound = match self.side {
                    Side::Min => min,
                    Side::Max => max,
                };
                let order = self.collation.compare(bound, self.operand.as_ref());
                Truth::of(self.op.accepts(order))
            }
        }
    }

    /// Evaluates a comparison of times as integers; nearly every query does so for every bucket.
    fn truth_of_times(&self, header: &(impl BucketHeader + ?Sized)) -> Option<Truth> {
        let (true, Value::DateTime(operand)) = (self.is_time, &self.operand) else {
            return None;
        };
        let bound = match self.side {
            Side::Min => header.min(&self.path),
            Side::Max => header.max(&self.path),
        };
        match bound {
            at if self.is_lower_bound_of_time() && is_rounded_up(at) => Some(Truth::Unknown),
            ValueRef::DateTime(at) => Some(Truth::of(self.op.accepts(at.cmp(operand)))),
            _ => None,
        }
    }

    fn is_lower_bound_of_time(&self) -> bool {
        self.is_time && self.side == Side::Min
    }
}

/// True if measurements may be below the lower bound of times, which is rounded towards 1970.
pub(super) fn is_rounded_up(min: ValueRef<'_>) -> bool {
    matches!(min, ValueRef::DateTime(at) if at <= 0)
}

/// Returns what the bounds at a dotted path say of the values of measurements.
pub(super) fn bounds_of<'p, 'h>(
    path: &'p str,
    header: &'h (impl BucketHeader + ?Sized),
    last: &mut Option<AskedBounds<'p, 'h>>,
) -> Bounds<'h> {
    let asked = match last {
        Some(asked) if asked.path == path => asked,
        last => last.insert(AskedBounds {
            path,
            bounds: bounds_at(path, header),
        }),
    };
    let Some((min, max)) = asked.bounds else {
        return Bounds::Unknown;
    };
    let composite = |v: ValueRef<'_>| matches!(v, ValueRef::Document(_) | ValueRef::Array(_));
    match (min, max) {
        (ValueRef::Missing, ValueRef::Missing) => Bounds::Absent,
        (ValueRef::Missing, _) | (_, ValueRef::Missing) => Bounds::Unknown,
        (min, max) if composite(min) || composite(max) => Bounds::Unknown,
        // The types are on both sides of arrays in the order, so an array may be between them.
        (min, max)
            if canonical_type(min) < CanonicalType::Array
                && canonical_type(max) > CanonicalType::Array =>
        {
            Bounds::Unknown
        }
        (min, max) => Bounds::Between(min, max),
    }
}

impl GeoBoundTest {
    /// Evaluates the geometric test: false or unknown, because bounds contain more than the points.
    fn truth(&self, header: &(impl BucketHeader + ?Sized)) -> Truth {
        match bounds_at(&self.path, header) {
            Some((min, max)) if !may_contain(&self.test, min, max) => Truth::False,
            _ => Truth::Unknown,
        }
    }
}

/// Returns the bounds of a dotted path: both missing if no measurement has it, `None` if the values are not bounded.
fn bounds_at<'a>(
    path: &str,
    header: &'a (impl BucketHeader + ?Sized),
) -> Option<(ValueRef<'a>, ValueRef<'a>)> {
    let mut parts = path.split('.');
    let first = parts.next().unwrap_or("");
    let (mut min, mut max) = header.bounds(first);
    for part in parts {
        match (min, max) {
            // Both bounds are objects, so every present value is one: no other type sorts between objects.
            (ValueRef::Document(low), ValueRef::Document(high)) => {
                min = low.get(part);
                max = high.get(part);
            }
            (ValueRef::Missing, ValueRef::Missing) => break,
            _ => return None,
        }
    }
    Some((min, max))
}
