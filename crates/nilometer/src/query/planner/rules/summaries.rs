//! Reading summaries of buckets instead of buckets.

use super::PhysicalRule;
use crate::eval::accumulator::AccumulatorKind as K;
use crate::query::planner::physical::{Input, PhysicalPlan, PhysicalStage, is_constant};
use crate::query::planner::settings::PlanSettings;

/// Reads buckets by their summaries where a `$group` needs hardly more of them than their headers and totals.
///
/// Conditions: the buckets of a range of ids are read by no index; the first stage is a `$group`, which reads the scan
/// within one command; each accumulator is a count, a function of metadata, or `$sum`, `$avg`,
/// `$min` or `$max` of a field. A bucket that a filter cuts, that spans two groups, or whose summary does not suffice is
/// read when one of its columns is requested. If most are, the scan continues without summaries.
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
        let is_range_of_ids =
            input.buckets.index.is_none() && input.limit.is_none() && input.sample.is_none();
        if !is_range_of_ids || !input.unpack.computed.is_empty() {
            return false;
        }
        let shape = input.shape();
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
