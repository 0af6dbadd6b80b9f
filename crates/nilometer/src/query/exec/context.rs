//! Settings and limits of a query, and the context of one call of an operator.
//!
//! Settings stay the same from the first batch of a query to its last; the context belongs to one command.

use std::path::Path;
use std::sync::Arc;

use nilometer_bson::order::Collator;

use super::workers::QueryThreads;
use crate::budget::MemoryPool;
use crate::eval::EvalContext;
use crate::ids::IdSource;
use crate::operation::OperationContext;
use crate::query::planner::TrialRunner;
use crate::query::planner::access::cache::PlanCache;
use crate::query::planner::access::choose::ChoiceContext;
use crate::query::planner::settings::PlanSettings;
use crate::session::UserName;

/// Bytes of the array of documents in one reply: the size of the largest document.
pub const REPLY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Default limit on the documents one `$densify` generates.
pub(super) const DENSIFY_DOCUMENTS_MAX: u64 = 500_000;

/// Settings of a query, fixed when it is planned.
#[derive(Clone, Default)]
pub struct ExecSettings {
    /// Inputs of planning: `$$NOW`, variables, collation, switches.
    pub plan: PlanSettings,
    /// The user, if stages must show only that user's data.
    pub user: Option<Arc<UserName>>,
    /// Source of randomness.
    pub ids: Arc<IdSource>,
    /// Memory limits.
    pub limits: ExecLimits,
    /// Memory for all queries together.
    pub memory: Arc<MemoryPool>,
    /// The folder for spill files; `None` if spilling is not allowed.
    pub spill: Option<Arc<Path>>,
    /// The best index of known query shapes.
    pub plans: Arc<PlanCache>,
    /// A router has checked that `on` of a `$merge` identifies documents.
    pub is_merge_identified: bool,
    /// Threads that share the work; none if the query runs on one.
    pub threads: Option<QueryThreads>,
}

impl ExecSettings {
    /// Returns the inputs of a choice between indexes; `runner` may run candidates.
    pub fn choice<'a>(&'a self, runner: Option<&'a dyn TrialRunner>) -> ChoiceContext<'a> {
        ChoiceContext {
            settings: &self.plan,
            cache: &self.plans,
            runner,
        }
    }
}

/// Memory limits of one query, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecLimits {
    /// Bytes a `$group` may hold.
    pub group_bytes_max: u64,
    /// Bytes a `$sort` may hold.
    pub sort_bytes_max: u64,
    /// Bytes any other stage that gathers its input may hold.
    pub gather_bytes_max: u64,
    /// Limit on the documents a `$densify` generates.
    pub densify_documents_max: u64,
    /// Bytes a reply may hold, if it has more than one document.
    pub batch_bytes_max: usize,
}

/// 100 MB: MongoDB's limit for one stage.
pub const STAGE_MEMORY_MAX: u64 = 100 * 1024 * 1024;

impl Default for ExecLimits {
    fn default() -> Self {
        Self {
            group_bytes_max: STAGE_MEMORY_MAX,
            sort_bytes_max: STAGE_MEMORY_MAX,
            gather_bytes_max: STAGE_MEMORY_MAX,
            densify_documents_max: DENSIFY_DOCUMENTS_MAX,
            batch_bytes_max: REPLY_BYTES_MAX,
        }
    }
}

/// The argument of every call of an operator.
#[derive(Clone, Copy)]
pub struct ExecContext<'a> {
    /// The current command: deadline and kill switch.
    pub operation: &'a OperationContext,
    /// Context of expression evaluation.
    pub eval: EvalContext<'a>,
    /// Settings of the query.
    pub settings: &'a ExecSettings,
}

impl<'a> ExecContext<'a> {
    /// Returns the operation and the settings for a helper thread, which starts no further threads.
    pub(super) fn for_worker(&self) -> (OperationContext, ExecSettings) {
        let settings = ExecSettings {
            threads: None,
            ..self.settings.clone()
        };
        (self.operation.for_worker(), settings)
    }

    /// Creates the context of a call under `settings`.
    pub fn new(operation: &'a OperationContext, settings: &'a ExecSettings) -> Self {
        Self {
            operation,
            eval: EvalContext {
                now_ms: settings.plan.now_ms,
                variables: &settings.plan.variables,
                collator: settings
                    .plan
                    .collator
                    .as_deref()
                    .map(|c| c as &dyn Collator),
                random: Some(&*settings.ids),
                user_roles: None,
                limits: Some(operation.evaluation_limits()),
            },
            settings,
        }
    }
}
