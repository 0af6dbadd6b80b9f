//! Only what is needed is unpacked.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Rule;
use crate::query::batch::FieldSet;
use crate::query::exec::ExecSettings;
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
        let fields: BTreeSet<Arc<str>> = fields;
        if input.unpack.fields == FieldSet::Only(fields.clone()) {
            return false;
        }
        input.unpack.fields = FieldSet::Only(fields);
        true
    }
}
