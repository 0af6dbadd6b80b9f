//! Planning: from stages and a namespace to a physical plan.
//!
//! ```text
//! namespace ── resolve views ──► source + stages    LogicalPlan    what is read, what is done to it
//!                                   │ logical rules                work moves towards the data
//!                                   ▼
//!                                 lower             PhysicalPlan   access path and operators, simplest strategies
//!                                   │ physical rules, choice of an index
//!                                   ▼
//!                                PhysicalPlan                      what explain prints and `exec` builds
//! ```
//!
//! [`plan`] is the one function that does all of it. A plan without any rule applied is already right: it reads
//! everything and runs every stage as written. Rules only move work; each states when the answer is provably the
//! same and does not fire otherwise. [`PlanOptions::no_rules`](settings::PlanOptions) leaves them all out,
//! which is how tests hold one plan against another.
//!
//! Planning knows no operators. Where candidates are compared by running them, the executor does it
//! ([`TrialRunner`]).

pub mod access;
pub mod bounds;
pub mod logical;
pub mod near;
pub mod physical;
pub mod resolve;
pub mod rules;
pub mod settings;

use std::sync::Arc;

use self::access::choose::{ChoiceContext, choose};
use self::logical::{LogicalPlan, LogicalSource};
use self::physical::{PhysicalPlan, lower};
use super::pipeline::needs::Needs;
use super::pipeline::{PipelineContext, Stage};
use super::source::Collections;
use crate::error::Result;

pub use self::access::choose::TrialRunner;

/// A pipeline to plan.
pub struct PlanRequest<'a> {
    /// The stored collections.
    pub collections: &'a dyn Collections,
    /// The database of the command.
    pub database: &'a str,
    /// The collection; none if the first stage makes its documents itself.
    pub collection: Option<&'a str>,
    /// What the stages of views may refer to.
    pub context: PipelineContext,
    /// The stages.
    pub stages: Vec<Stage>,
    /// The fields that are needed of the results.
    pub wanted: Needs,
    /// The path whose distinct values are all that is needed of the results.
    pub distinct: Option<&'a str>,
}

/// Plans a pipeline: follows views, applies `adjust` to what is read, applies the rules, chooses access paths and
/// strategies.
pub fn plan(
    request: PlanRequest<'_>,
    cx: ChoiceContext<'_>,
    adjust: impl FnOnce(&mut LogicalSource) -> Result<()>,
) -> Result<PhysicalPlan> {
    let PlanRequest {
        collections,
        database,
        collection,
        context,
        stages,
        wanted,
        distinct,
    } = request;
    let mut plan = match collection {
        None => LogicalPlan::new(LogicalSource::Nothing, stages),
        Some(name) => {
            let resolved = resolve::resolve(collections, database, name, &context)?;
            let mut source = resolved.source;
            adjust(&mut source)?;
            let mut all = resolved.view_stages;
            all.extend(stages);
            resolve::check_unpacking(&source, &all)?;
            let all = near::settle(&source, all, cx.settings)?;
            LogicalPlan::new(source, all)
        }
    };
    plan.wanted = wanted;
    plan.distinct = distinct.map(Arc::from);
    optimize(plan, cx)
}

/// Applies the rules to a logical plan and chooses access paths and strategies.
pub fn optimize(mut plan: LogicalPlan, cx: ChoiceContext<'_>) -> Result<PhysicalPlan> {
    rules::apply_logical(&mut plan, cx.settings);
    let mut plan = lower(plan, cx.settings);
    rules::apply_physical(&mut plan, cx.settings);
    choose(&mut plan, cx)?;
    Ok(plan)
}
