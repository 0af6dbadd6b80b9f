//! Planning: from stages and a namespace to a physical plan.
//!
//! ```text
//! namespace ── resolve views ──► source + stages    LogicalPlan    source and stages
//!                                   │ logical rules                work moves towards the data
//!                                   ▼
//!                                 lower             PhysicalPlan   access path and operators, simplest strategies
//!                                   │ physical rules, choice of an index
//!                                   ▼
//!                                PhysicalPlan                      what explain prints and `exec` builds
//! ```
//!
//! [`plan`] runs all of these steps. A plan without any rule applied is already correct: it reads everything and runs every
//! stage as written. Rules only move work; each states when the answer is provably the same and does not fire otherwise.
//! [`PlanOptions::no_rules`](settings::PlanOptions) disables them all, which lets tests compare two plans of one query.
//!
//! A collection in several partitions is planned twice: here the pipeline is cut ([`cut`]), and each partition plans its
//! part as any pipeline.
//!
//! Planning does not know operators. Where candidates are compared by running them, the executor runs them ([`TrialRunner`]).

pub mod access;
pub mod bounds;
pub mod cut;
pub mod logical;
pub mod near;
pub mod physical;
pub mod resolve;
pub mod rules;
pub mod settings;
pub mod text;

use std::sync::Arc;

use self::access::choose::{ChoiceContext, choose};
use self::logical::{LogicalPlan, LogicalSource};
use self::physical::{PhysicalPlan, lower};
use self::settings::PlanSettings;
use super::pipeline::needs::Needs;
use super::pipeline::{PipelineContext, Stage, meta};
use super::source::Collections;
use crate::error::Result;
use crate::eval::projection::MetaField;

pub use self::access::choose::TrialRunner;

/// A pipeline to plan.
pub struct PlanRequest<'a> {
    /// The stored collections.
    pub collections: &'a dyn Collections,
    /// The database of the command.
    pub database: &'a str,
    /// The collection; `None` if the first stage generates its documents.
    pub collection: Option<&'a str>,
    /// The names that stages of views may refer to.
    pub context: PipelineContext,
    /// The stages.
    pub stages: Vec<Stage>,
    /// The fields needed of the results.
    pub wanted: Needs,
    /// The path whose distinct values are all that the command needs.
    pub distinct: Option<&'a str>,
}

/// Plans a pipeline: resolves views, applies `adjust` to the source, applies the rules, chooses access paths and strategies.
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
            if let LogicalSource::Partitions(scan) = &mut source {
                scan.variables = named(&context, cx.settings);
            }
            adjust(&mut source)?;
            let mut all = resolved.view_stages;
            all.extend(stages);
            resolve::check_unpacking(&source, &all)?;
            let all = near::settle(&source, all, cx.settings)?;
            let all = text::settle(&source, all)?;
            if matches!(source, LogicalSource::Partitions(_)) {
                check_metadata(&all)?;
            }
            LogicalPlan::new(source, all)
        }
    };
    plan.wanted = wanted;
    plan.distinct = distinct.map(Arc::from);
    optimize(plan, cx)
}

/// Fails if stages over partitions read what only the source of one server knows.
fn check_metadata(stages: &[Stage]) -> Result<()> {
    for (field, name) in [
        (MetaField::RecordId, "{$meta: 'recordId'}"),
        (MetaField::IndexKey, "{$meta: 'indexKey'}, as by returnKey,"),
    ] {
        if meta::reads(stages, field) {
            return Err(cut::not_over_partitions(name));
        }
    }
    Ok(())
}

/// Returns the names of the query's variables, in the order of their values; `None` if the context does not know them.
fn named(context: &PipelineContext, settings: &PlanSettings) -> Option<Vec<Arc<str>>> {
    let names = context.expressions.variable_names();
    (names.len() == settings.variables.len()).then(|| names.to_vec())
}

/// Applies the rules to a logical plan and chooses access paths and strategies.
pub fn optimize(mut plan: LogicalPlan, cx: ChoiceContext<'_>) -> Result<PhysicalPlan> {
    rules::apply_logical(&mut plan, cx.settings);
    if let LogicalSource::Partitions(scan) = &plan.source {
        let scan = scan.clone();
        return cut::cut(plan, *scan, cx.settings);
    }
    let mut plan = lower(plan, cx.settings);
    rules::apply_physical(&mut plan, cx.settings);
    choose(&mut plan, cx)?;
    Ok(plan)
}
