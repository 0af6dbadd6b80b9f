//! Reading summaries of buckets instead of buckets.

use super::PhysicalRule;
use crate::eval::Dependencies;
use crate::eval::accumulator::AccumulatorKind as K;
use crate::eval::expression::Expression;
use crate::query::batch::MeasurementShape;
use crate::query::pipeline::{GroupStage, Stage};
use crate::query::planner::physical::{
    BucketInput, Input, PhysicalPlan, PhysicalStage, is_constant, time_bins,
};
use crate::query::planner::settings::PlanSettings;
use crate::query::source::BucketEntries;

/// Reads buckets by their summaries where few of their columns are needed.
///
/// Conditions: the first stage behind `$match` and `$project` reads the scan within one command. It is a `$group` that reads no
/// whole documents, a sort with a limit whose reading no order of the buckets ends, or a `$facet`. The buckets are those of a range of ids. They
/// may be a list that an index found if the `$group` is the first stage, its bins of time are at least as long as buckets, and each
/// accumulator is a count, a function of metadata, or `$sum`, `$avg`, `$min` or `$max` of a field. A bucket that a filter cuts, that
/// spans two groups, or whose summary does not suffice is read when one of its columns is requested.
pub struct SummariesOfBuckets;

impl PhysicalRule for SummariesOfBuckets {
    fn name(&self) -> &'static str {
        "SummariesOfBuckets"
    }

    fn apply(&self, plan: &mut PhysicalPlan, _: &PlanSettings) -> bool {
        let Input::Buckets(input) = &mut plan.input else {
            return false;
        };
        let reads_all = input.limit.is_none() && input.sample.is_none();
        if !reads_all {
            return false;
        }
        let is_step = |stage: &&PhysicalStage| {
            matches!(stage, PhysicalStage::Match(_) | PhysicalStage::Project(_))
        };
        let steps = plan.stages.iter().take_while(is_step).count();
        let is_range = input.buckets.index.is_none();
        input.buckets.summaries = match plan.stages.get(steps) {
            Some(PhysicalStage::Group(group)) => {
                let reads_fields =
                    is_range && group.in_order.is_none() && reads_fields(&group.stage);
                let is_first = steps == 0 && input.unpack.computed.is_empty();
                reads_fields || (is_first && reads_totals(input, &group.stage))
            }
            Some(PhysicalStage::Sort(sort)) => {
                let is_by_rows = sort.arrival.is_none() && sort.buckets.is_none();
                is_range && is_by_rows && sort.stage.limit.is_some()
            }
            Some(PhysicalStage::Plain(Stage::Facet(_))) => is_range,
            _ => false,
        };
        input.buckets.summaries
    }
}

/// True if the stage reads no whole documents.
fn reads_fields(stage: &GroupStage) -> bool {
    let mut reads = Dependencies::default();
    stage.key.dependencies(&mut reads);
    for (_, spec) in stage.fields.iter() {
        spec.dependencies(&mut reads);
    }
    !reads.whole
}

/// True if headers and totals of most buckets suffice for the stage.
fn reads_totals(input: &BucketInput, stage: &GroupStage) -> bool {
    let shape = input.shape();
    let may_read = match &input.buckets.index {
        None => true,
        Some(index) => {
            let span_ms = input.source.options().bucket_max_span_seconds * 1000;
            matches!(index.entries, BucketEntries::Within(_))
                && has_long_bins(&stage.key, &shape, span_ms)
        }
    };
    may_read
        && stage.fields.iter().all(|(_, spec)| {
            let argument = spec.argument();
            let is_field = argument.as_field_path().is_some_and(|path| path.len() == 1);
            match spec.kind() {
                K::Count => true,
                K::Sum | K::Avg | K::Min | K::Max => is_field || is_constant(argument, &shape),
                _ => false,
            }
        })
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
