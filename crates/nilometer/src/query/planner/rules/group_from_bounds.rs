//! A `$group` that the headers of buckets can answer.

use std::sync::Arc;

use super::PhysicalRule;
use crate::query::planner::physical::{BoundsAggregate, Input, PhysicalPlan, PhysicalStage};
use crate::query::planner::settings::PlanSettings;

/// `$group` with `$min`, `$max` and counts by metadata, or by bins of time, reads bounds and counts
/// of buckets instead of measurements.
///
/// Conditions: the key is made of constants, metadata and `$dateTrunc` of the time with constant bins;
/// accumulators are counts, functions of metadata, `$min` and `$max` of a field, but not `$min` of the time,
/// whose lower bound is rounded; no field of the key or of an accumulator was computed before. Each bucket whose
/// header does not tell, or of which a filter has left a part, is grouped by its columns ([`BoundsAggregate`]), so
/// nothing is asked of bucket widths or filters.
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
