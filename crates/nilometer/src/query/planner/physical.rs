//! From a logical plan to operators.

use std::sync::Arc;

use nilometer_bson::{DocRef, Document};

use super::access::choose::choose;
use super::logical::{AccessPath, Input, LogicalPlan};
use super::near;
use super::resolve::{check_unpacking, resolve};
use super::rules;
use crate::error::Result;
use crate::eval::ParseContext;
use crate::query::exec::group::Group;
use crate::query::exec::group::streaming::StreamingGroup;
use crate::query::exec::row::filter::Filter;
use crate::query::exec::row::limit::{Limit, Skip};
use crate::query::exec::row::project::Project;
use crate::query::exec::row::replace_root::ReplaceRoot;
use crate::query::exec::row::unwind::Unwind;
use crate::query::exec::scan::bucket_sample::BucketSample;
use crate::query::exec::scan::index_fetch::{AccessStats, IndexRead};
use crate::query::exec::scan::nearest::{Nearest, NearestRead};
use crate::query::exec::scan::{BucketScan, MetaScan, Nothing, RecordScan};
use crate::query::exec::sort::Sort;
use crate::query::exec::sort::bucket_sort::BucketSort;
use crate::query::exec::{BoxOperator, Counted, ExecSettings, OperatorStats};
use crate::query::pipeline::{PipelineContext, Place, Stage};
use crate::query::source::{Collections, ScanCounters};

/// Builds operators. Cheap to clone: joins keep one to build a pipeline per document.
#[derive(Clone)]
pub struct Builder {
    /// What is stored.
    pub collections: Arc<dyn Collections>,
    /// The database of the command.
    pub database: Arc<str>,
    /// The collection of the command; none for a database-level aggregate.
    pub collection: Option<Arc<str>>,
    /// What the query runs with.
    pub settings: Arc<ExecSettings>,
    /// How many pipelines are around the one being built.
    pub depth: usize,
}

/// What the operators of one plan did: filled while they run.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// What the scan touched.
    pub scan: Arc<ScanCounters>,
    /// What a read by index did.
    pub access: AccessStats,
    /// What the scan gave on.
    pub input: Arc<OperatorStats>,
    /// What each stage gave on, in order.
    pub stages: Vec<Arc<OperatorStats>>,
}

impl Builder {
    /// A builder for pipelines within the one being built.
    #[must_use]
    pub fn nested(&self, depth: usize) -> Self {
        Self {
            depth,
            ..self.clone()
        }
    }

    /// The same with other settings.
    #[must_use]
    pub fn with_settings(&self, settings: Arc<ExecSettings>) -> Self {
        Self {
            settings,
            ..self.clone()
        }
    }

    /// The plan of `stages` over a collection of this database, rules applied.
    pub fn plan(&self, collection: Option<&str>, stages: Vec<Stage>) -> Result<LogicalPlan> {
        let mut plan = match collection {
            None => LogicalPlan::new(Input::Nothing, stages),
            Some(name) => {
                let expressions = ParseContext::new()
                    .with_collator(self.settings.collator.as_ref().map(Arc::clone));
                let cx = PipelineContext {
                    expressions,
                    place: Place::Lookup,
                    depth: self.depth,
                };
                let resolved = resolve(&*self.collections, &self.database, name, &cx)?;
                let mut all = resolved.view_stages;
                all.extend(stages);
                check_unpacking(&resolved.input, &all)?;
                let all = near::settle(&resolved.input, all, &self.settings)?;
                LogicalPlan::new(resolved.input, all)
            }
        };
        rules::apply_all(&mut plan, &self.settings);
        // Pipelines within pipelines are planned often: nothing is tried.
        choose(&mut plan, &self.settings, None)?;
        Ok(plan)
    }

    /// The operators of `stages` over a collection of this database.
    pub fn pipeline(&self, collection: Option<&str>, stages: Vec<Stage>) -> Result<BoxOperator> {
        self.build(self.plan(collection, stages)?)
    }

    /// The operators of a plan.
    pub fn build(&self, plan: LogicalPlan) -> Result<BoxOperator> {
        self.build_counted(plan).map(|(top, _)| top)
    }

    /// The operators of a plan, and what counts what is read for them.
    pub fn build_counted(&self, plan: LogicalPlan) -> Result<(BoxOperator, Arc<ScanCounters>)> {
        let mut trace = Trace::default();
        let counters = Arc::clone(&trace.scan);
        let (input, measured): (BoxOperator, usize) = match Nearest::of(&plan) {
            Some(nearest) => {
                let read = NearestRead::new(nearest, Arc::clone(&counters));
                (Box::new(read), 1)
            }
            None => (Self::input(plan.input, &mut trace), 0),
        };
        let stages = plan.stages.into_iter().skip(measured).collect();
        Ok((self.over(input, stages)?, counters))
    }

    /// The operators of a plan, each counted.
    pub fn build_traced(&self, plan: LogicalPlan) -> Result<(BoxOperator, Trace)> {
        let mut trace = Trace::default();
        // The nearest few are read and measured in one.
        let nearest = Nearest::of(&plan);
        let mut measured = usize::from(nearest.is_some());
        let input: BoxOperator = match nearest {
            Some(nearest) => {
                let read = NearestRead::new(nearest, Arc::clone(&trace.scan));
                trace.access = read.stats().clone();
                Box::new(read)
            }
            None => Self::input(plan.input, &mut trace),
        };
        let mut top: BoxOperator = Box::new(Counted::new(input, Arc::clone(&trace.input)));
        for stage in plan.stages {
            if measured > 0 {
                measured -= 1;
                trace.stages.push(Arc::clone(&trace.input));
                continue;
            }
            let stats = Arc::<OperatorStats>::default();
            top = Box::new(Counted::new(self.stage(top, stage)?, Arc::clone(&stats)));
            trace.stages.push(stats);
        }
        Ok((top, trace))
    }

    fn input(input: Input, trace: &mut Trace) -> BoxOperator {
        let counters = Arc::clone(&trace.scan);
        match input {
            Input::Nothing | Input::FirstStage => Box::new(Nothing),
            Input::Records(mut input) => match std::mem::take(&mut input.access) {
                AccessPath::Index(access) => {
                    let stats = AccessStats::of(&access);
                    trace.access = stats.clone();
                    Box::new(IndexRead::new(*input, *access, counters, stats))
                }
                other => {
                    input.access = other;
                    Box::new(RecordScan::new(*input, counters))
                }
            },
            Input::Buckets(input) => match input.sample {
                Some(size) => Box::new(BucketSample::new(*input, size, counters)),
                None => Box::new(BucketScan::new(*input, counters)),
            },
            Input::Metas(input) => Box::new(MetaScan::new(*input, counters)),
        }
    }

    /// `stages` over what `input` gives.
    pub fn over(&self, input: BoxOperator, stages: Vec<Stage>) -> Result<BoxOperator> {
        stages
            .into_iter()
            .try_fold(input, |input, stage| self.stage(input, stage))
    }

    fn stage(&self, input: BoxOperator, stage: Stage) -> Result<BoxOperator> {
        Ok(match stage {
            Stage::Match(stage) => Box::new(Filter::new(input, stage.filter)),
            Stage::Project(stage) => Box::new(Project::new(input, stage)),
            Stage::Group(mut stage) => match stage.in_order.take() {
                Some(parts) => {
                    let parts = parts.iter().map(|(_, part)| part.clone()).collect();
                    Box::new(StreamingGroup::new(input, stage, parts))
                }
                None => Box::new(Group::new(input, stage)),
            },
            Stage::Sort(stage) => match stage.buckets {
                Some(order) => Box::new(BucketSort::new(input, stage, order)),
                None => Box::new(Sort::new(input, stage)),
            },
            Stage::Limit(count) => Box::new(Limit::new(input, count)),
            Stage::Skip(count) => Box::new(Skip::new(input, count)),
            Stage::Unwind(stage) => Box::new(Unwind::new(input, stage)),
            Stage::ReplaceRoot(stage) => Box::new(ReplaceRoot::new(input, stage)),
            Stage::Other(stage) => stage.build(input, self)?,
        })
    }

    /// What the server says about itself.
    pub fn introspect(&self, stage: &str, argument: DocRef<'_>) -> Result<Vec<Document>> {
        let (collection, user) = (self.collection.as_deref(), self.settings.user.as_deref());
        self.collections
            .introspect(&self.database, collection, stage, argument, user)
    }
}
