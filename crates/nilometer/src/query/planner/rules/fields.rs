//! Only what is needed is unpacked.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::PhysicalRule;
use crate::query::batch::FieldSet;
use crate::query::pipeline::needs::Needs;
use crate::query::planner::physical::{Input, PhysicalPlan, PhysicalStage, is_constant, needs_of};
use crate::query::planner::settings::PlanSettings;

/// Measurements show the fields some later stage needs, and no others.
///
/// Fields the event filter reads are read from the columns all the same; they need not show. When the
/// last stage gives on documents as they are, everything is needed and the rule does not fire.
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
        // What a projection has taken away is not there for those who ask for it later.
        let shown = &input.unpack.fields;
        let fields: BTreeSet<Arc<str>> = fields.into_iter().filter(|f| shown.contains(f)).collect();
        if *shown == FieldSet::Only(fields.clone()) {
            return false;
        }
        input.unpack.fields = FieldSet::Only(fields);
        true
    }
}

/// A `$project` that keeps or drops whole fields is left to unpacking, which shows no others.
///
/// Conditions: it stands first, nothing is computed, and no path is dotted.
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
        // What is computed is computed of what unpacking shows.
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

/// Fields computed from the metadata alone are computed once for each bucket, and stand in its measurements as columns.
///
/// Conditions: the stage stands first; every path it computes is a top-level field, neither time nor metadata, from an
/// expression that reads nothing but metadata as it is stored and is not random; else it keeps or drops whole fields.
/// Filters on measurements and time are asked before, so they may be there.
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
