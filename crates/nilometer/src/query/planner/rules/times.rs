//! Rules for comparisons of the time that the options of a collection decide.

use nilometer_bson::Value;

use super::{LogicalRule, PhysicalRule};
use crate::eval::matcher::{CompareOp, MatchExpression};
use crate::query::pipeline::{MatchStage, Stage};
use crate::query::planner::logical::{LogicalPlan, LogicalSource};
use crate::query::planner::physical::{Input, PhysicalPlan};
use crate::query::planner::settings::PlanSettings;
use crate::query::source::BucketOptions;
use crate::timeseries::rewrite::STANDARD_SECONDS_MAX;

/// Replaces comparisons of the time with a date that no measurement can have by their result.
///
/// Conditions: the collection has no date outside the range of bucket ids, the operand does lie outside it, and the `$match`
/// is first, so the time is the stored one.
pub struct DatesOutOfRange;

impl LogicalRule for DatesOutOfRange {
    fn name(&self) -> &'static str {
        "DatesOutOfRange"
    }

    fn apply(&self, plan: &mut LogicalPlan, _: &PlanSettings) -> bool {
        let (LogicalSource::Measurements(scan), Some(Stage::Match(stage))) =
            (&plan.source, plan.stages.first_mut())
        else {
            return false;
        };
        let options = scan.source.options();
        if options.extended_range {
            return false;
        }
        let mut decided = false;
        let filter = decide(&stage.filter, &options.time_field, &mut decided);
        if decided {
            *stage = MatchStage::new(filter.simplify());
        }
        decided
    }
}

fn decide(filter: &MatchExpression, time_field: &str, decided: &mut bool) -> MatchExpression {
    use MatchExpression as M;
    match filter {
        M::And(arms) => M::And(
            arms.iter()
                .map(|arm| decide(arm, time_field, decided))
                .collect(),
        ),
        M::Or(arms) => M::Or(
            arms.iter()
                .map(|arm| decide(arm, time_field, decided))
                .collect(),
        ),
        M::Compare(comparison) if comparison.path.as_str() == time_field => {
            let Value::DateTime(at) = &comparison.value else {
                return filter.clone();
            };
            // Bucket ids have a resolution of one second: all of the last second counts.
            let is_early = *at < 0;
            if !is_early && *at < (STANDARD_SECONDS_MAX + 1) * 1000 {
                return filter.clone();
            }
            *decided = true;
            let holds = match comparison.op {
                CompareOp::Gt | CompareOp::Gte => is_early,
                CompareOp::Lt | CompareOp::Lte => !is_early,
                CompareOp::Eq => false,
            };
            if holds { M::AlwaysTrue } else { M::AlwaysFalse }
        }
        other => other.clone(),
    }
}

/// Selects whole buckets for comparisons with the boundaries of fixed buckets.
///
/// Conditions: fixed buckets; every comparison is `$gte` or `$lt` with a date on the boundary of two buckets. A bucket
/// that was written directly and crosses a boundary is still filtered.
pub struct FixedBuckets;

impl PhysicalRule for FixedBuckets {
    fn name(&self) -> &'static str {
        "FixedBuckets"
    }

    fn apply(&self, plan: &mut PhysicalPlan, _: &PlanSettings) -> bool {
        let Input::Buckets(input) = &mut plan.input else {
            return false;
        };
        let options = input.source.options();
        let Some(filter) = &input.unpack.event_filter else {
            return false;
        };
        if !options.fixed_buckets || options.extended_range || !is_aligned(filter, options) {
            return false;
        }
        input.unpack.takes_whole = true;
        true
    }
}

fn is_aligned(filter: &MatchExpression, options: &BucketOptions) -> bool {
    use MatchExpression as M;
    let span_ms = options.bucket_max_span_seconds.saturating_mul(1000).max(1);
    match filter {
        M::And(arms) | M::Or(arms) => arms.iter().all(|arm| is_aligned(arm, options)),
        M::Compare(comparison) => {
            let is_border =
                matches!(comparison.value, Value::DateTime(at) if at.rem_euclid(span_ms) == 0);
            is_border
                && comparison.path.as_str() == &*options.time_field
                && matches!(comparison.op, CompareOp::Gte | CompareOp::Lt)
        }
        _ => false,
    }
}
