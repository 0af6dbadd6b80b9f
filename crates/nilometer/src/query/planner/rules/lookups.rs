//! Rules for `$lookup`: the `$unwind` behind it, and the fields that later stages read.

use super::PhysicalRule;
use crate::query::pipeline::Stage;
use crate::query::planner::physical::{PhysicalPlan, PhysicalStage, narrow_lookups};
use crate::query::planner::settings::PlanSettings;

/// Lets a `$lookup` return a row for each joined document, where an `$unwind` of its array follows.
///
/// Condition: the `$unwind` has the path of the array.
pub struct UnwindInLookup;

impl PhysicalRule for UnwindInLookup {
    fn name(&self) -> &'static str {
        "UnwindInLookup"
    }

    fn apply(&self, plan: &mut PhysicalPlan, _: &PlanSettings) -> bool {
        let mut any = false;
        let mut at = 0;
        while at + 1 < plan.stages.len() {
            if let [
                PhysicalStage::Lookup(lookup),
                PhysicalStage::Plain(Stage::Unwind(unwind)),
                ..,
            ] = plan.stages.get_mut(at..).unwrap_or_default()
                && lookup.unwind.is_none()
                && lookup.stage.target == unwind.path
            {
                lookup.unwind = Some(unwind.clone());
                plan.stages.remove(at + 1);
                any = true;
            }
            at += 1;
        }
        any
    }
}

/// Limits a `$lookup` to the fields of rows and of joined documents that later stages read.
///
/// The rule does not fire when the last stage returns whole documents, because then every field is needed.
pub struct NeededOfLookups;

impl PhysicalRule for NeededOfLookups {
    fn name(&self) -> &'static str {
        "NeededOfLookups"
    }

    fn apply(&self, plan: &mut PhysicalPlan, _: &PlanSettings) -> bool {
        narrow_lookups(&mut plan.stages, &plan.wanted)
    }
}
