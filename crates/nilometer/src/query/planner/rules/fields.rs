//! Rules that limit unpacking to the needed fields.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::PhysicalRule;
use crate::query::batch::FieldSet;
use crate::query::pipeline::needs::Needs;
use crate::query::planner::physical::{Input, PhysicalPlan, PhysicalStage, is_constant, needs_of};
use crate::query::planner::settings::PlanSettings;

/// Unpacks only the fields that a later stage needs.
///
/// The event filter reads its columns in any case; they need not be unpacked for it. The rule does not fire when the
/// last stage returns whole documents, because then every field is needed.
pub struct NeededFields;

impl PhysicalRule for NeededFields {
    fn name(&self) -> &'static str {
        "NeededFields"
    }

    fn apply(&self, plan: &mut PhysicalPlan, _: &PlanSettings) -> bool {
        let needed = needs_of(&plan.stages, &plan.wanted);
        let Input::Buckets(input) = &mut plan.input else {
            return false;
        };
        let computed = input.unpack.computed.iter().rev();
        let needed = computed.fold(needed, |needed, stage| stage.needs(&needed));
        let Needs::Fields(fields) = needed else {
            return false;
        };
        // Fields a projection has dropped stay missing for later stages.
        let shown = &input.unpack.fields;
        let fields: BTreeSet<Arc<str>> = fields.into_iter().filter(|f| shown.contains(f)).collect();
        if *shown == FieldSet::Only(fields.clone()) {
            return false;
        }
        input.unpack.fields = FieldSet::Only(fields);
        true
    }
}

/// Folds a `$project` that keeps or drops whole fields into unpacking.
///
/// Conditions: the stage is first, it computes nothing, and no path is dotted.
pub struct ProjectOnBuckets;

impl PhysicalRule for ProjectOnBuckets {
    fn name(&self) -> &'static str {
        "ProjectOnBuckets"
    }

    fn apply(&self, plan: &mut PhysicalPlan, _: &PlanSettings) -> bool {
        let Input::Buckets(input) = &mut plan.input else {
            return false;
        };
        let mut any = false;
        // Computed fields read unpacked fields.
        if !input.unpack.computed.is_empty() {
            return false;
        }
        while let Some(PhysicalStage::Project(project)) = plan.stages.first() {
            let Some(fields) = project.narrows(&input.unpack.fields) else {
                break;
            };
            input.unpack.fields = fields;
            plan.stages.remove(0);
            any = true;
        }
        any
    }
}

/// Computes fields that depend on metadata alone once for each bucket and adds them to its measurements as columns.
///
/// Conditions: the stage is first; it either computes top-level fields other than time and metadata, from non-random
/// expressions of the stored metadata, or keeps or drops whole fields. Filters on measurements and time may be present: they
/// run before.
pub struct ComputedMetas;

impl PhysicalRule for ComputedMetas {
    fn name(&self) -> &'static str {
        "ComputedMetas"
    }

    fn apply(&self, plan: &mut PhysicalPlan, _: &PlanSettings) -> bool {
        let Input::Buckets(input) = &mut plan.input else {
            return false;
        };
        let mut any = false;
        while let Some(PhysicalStage::Project(project)) = plan.stages.first() {
            let shape = input.shape();
            let computed = project.computed();
            let mut computed = computed.iter();
            let reads_metas = computed.all(|(_, expression)| is_constant(expression, &shape));
            if !reads_metas || project.shown_behind(&shape).is_none() {
                break;
            }
            if let PhysicalStage::Project(project) = plan.stages.remove(0) {
                input.unpack.computed.push(project);
            }
            any = true;
        }
        any
    }
}
