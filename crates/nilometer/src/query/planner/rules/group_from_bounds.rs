//! A `$group` answered from bucket headers.

use std::sync::Arc;

use super::PhysicalRule;
use crate::query::planner::physical::{BoundsAggregate, Input, PhysicalPlan, PhysicalStage};
use crate::query::planner::settings::PlanSettings;

/// Computes a `$group` with `$min`, `$max` and counts, by metadata or by time bins, from the bounds and counts of buckets
/// instead of measurements.
///
/// Conditions: the key consists of constants, metadata and `$dateTrunc` of the time with constant bins; accumulators
/// are counts, functions of metadata, and `$min` and `$max` of a field, except `$min` of the time, whose lower bound
/// is rounded; no field of the key or of an accumulator is computed by an earlier stage. A bucket whose header is not
/// enough, or that a filter keeps in part, is grouped by its columns ([`BoundsAggregate`]), so the rule sets no
/// condition on bucket widths or filters.
pub struct GroupFromBounds;

impl PhysicalRule for GroupFromBounds {
    fn name(&self) -> &'static str {
        "GroupFromBounds"
    }

    fn apply(&self, plan: &mut PhysicalPlan, _: &PlanSettings) -> bool {
        let (Input::Buckets(input), Some(PhysicalStage::Group(group))) =
            (&plan.input, plan.stages.first_mut())
        else {
            return false;
        };
        let options = input.source.options();
        if options.mixed_schema {
            return false;
        }
        let found = BoundsAggregate::of(&group.stage, &input.shape(), options.collation.clone());
        group.from_bounds = found.map(Arc::new);
        group.from_bounds.is_some()
    }
}
