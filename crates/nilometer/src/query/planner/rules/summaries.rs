//! Reading summaries of buckets instead of buckets.

use super::PhysicalRule;
use crate::eval::accumulator::AccumulatorKind as K;
use crate::eval::expression::Expression;
use crate::query::batch::MeasurementShape;
use crate::query::planner::physical::{Input, PhysicalPlan, PhysicalStage, is_constant, time_bins};
use crate::query::planner::settings::PlanSettings;
use crate::query::source::BucketEntries;

/// Reads buckets by their summaries where a `$group` needs hardly more of them than their headers and totals.
///
/// Conditions: the buckets are those of a range of ids, or of a list that an index found, whose bins of time are at least as long as
/// buckets; the first stage is a `$group`, which reads the scan
/// within one command; each accumulator is a count, a function of metadata, or `$sum`, `$avg`,
/// `$min` or `$max` of a field. A bucket that a filter cuts, that spans two groups, or whose summary does not suffice is
/// read when one of its columns is requested.
pub struct SummariesOfBuckets;

impl PhysicalRule for SummariesOfBuckets {
    fn name(&self) -> &'static str {
        "SummariesOfBuckets"
    }

    fn apply(&self, plan: &mut PhysicalPlan, _: &PlanSettings) -> bool {
        let (Input::Buckets(input), Some(PhysicalStage::Group(group))) =
            (&mut plan.input, plan.stages.first())
        else {
            return false;
        };
        let shape = input.shape();
        let may_read = match &input.buckets.index {
            None => true,
            Some(index) => {
                let span_ms = input.source.options().bucket_max_span_seconds * 1000;
                matches!(index.entries, BucketEntries::Within(_))
                    && has_long_bins(&group.stage.key, &shape, span_ms)
            }
        };
        let reads_all = input.limit.is_none() && input.sample.is_none();
        if !may_read || !reads_all || !input.unpack.computed.is_empty() {
            return false;
        }
        let mut fields = group.stage.fields.iter();
        input.buckets.summaries = fields.all(|(_, spec)| {
            let argument = spec.argument();
            let is_field = argument.as_field_path().is_some_and(|path| path.len() == 1);
            match spec.kind() {
                K::Count => true,
                K::Sum | K::Avg | K::Min | K::Max => is_field || is_constant(argument, &shape),
                _ => false,
            }
        });
        input.buckets.summaries
    }
}

/// True if every part of a key is constant within a bucket, or a bin of time that is at least `span_ms` long.
fn has_long_bins(key: &Expression, shape: &MeasurementShape, span_ms: i64) -> bool {
    let is_long = |part: &Expression| {
        is_constant(part, shape)
            || time_bins(part, shape).is_some_and(|bins| bins.are_at_least(span_ms))
    };
    match key {
        Expression::Object(members) => members.iter().all(|(_, part)| is_long(part)),
        single => is_long(single),
    }
}
