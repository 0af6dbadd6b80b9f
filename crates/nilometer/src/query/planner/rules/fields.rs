//! Only what is needed is unpacked.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Rule;
use crate::query::batch::FieldSet;
use crate::query::exec::ExecSettings;
use crate::query::pipeline::Stage;
use crate::query::planner::logical::{Input, LogicalPlan};
use crate::query::planner::needs::{Needs, needs_of};

/// Measurements show the fields some later stage needs, and no others.
///
/// Fields the event filter reads are read from the columns all the same; they need not show. When the
/// last stage gives on documents as they are, everything is needed and the rule does not fire.
pub struct NeededFields;

impl Rule for NeededFields {
    fn name(&self) -> &'static str {
        "NeededFields"
    }

    fn apply(&self, plan: &mut LogicalPlan, _: &ExecSettings) -> bool {
        let Needs::Fields(fields) = needs_of(&plan.stages, &plan.wanted) else {
            return false;
        };
        let Input::Buckets(input) = &mut plan.input else {
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

impl Rule for ProjectOnBuckets {
    fn name(&self) -> &'static str {
        "ProjectOnBuckets"
    }

    fn apply(&self, plan: &mut LogicalPlan, _: &ExecSettings) -> bool {
        let Input::Buckets(input) = &mut plan.input else {
            return false;
        };
        let mut any = false;
        while let Some(Stage::Project(project)) = plan.stages.first() {
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
