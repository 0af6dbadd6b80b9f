//! Builds operators from a physical plan: the one place where operators are created.
//!
//! ```text
//! PhysicalPlan.input     ─► scan operator      counted if traced
//!             .stages[0] ─► operator over it   counted if traced
//!             .stages[1] ─► …
//! ```
//!
//! Joins keep the [`Builder`] to plan and build their inner pipelines when a document needs them.

use std::sync::Arc;

use nilometer_bson::{DocRef, Document};

use super::group::Group;
use super::group::bucket_auto::BucketAuto;
use super::group::streaming::StreamingGroup;
use super::group::within_groups::SortWithinGroups;
use super::join::facet::Facet;
use super::join::graph_lookup::GraphLookup;
use super::join::lookup::Lookup;
use super::join::union_with::UnionWith;
use super::row::documents::{ComputedDocuments, GivenDocuments};
use super::row::filter::Filter;
use super::row::geo_near::GeoDistance;
use super::row::limit::{Limit, Skip};
use super::row::project::Project;
use super::row::redact::Redact;
use super::row::replace_root::ReplaceRoot;
use super::row::sample::Sample;
use super::row::text_score::TextScore;
use super::row::unwind::Unwind;
use super::scan::bucket_sample::BucketSample;
use super::scan::index_fetch::{AccessStats, IndexRead};
use super::scan::merged_bins::MergedBins;
use super::scan::nearest::NearestRead;
use super::scan::partitions::PartitionScan;
use super::scan::rollup::RollupScan;
use super::scan::unpack_bucket::UnpackBucket;
use super::scan::{BucketScan, MetaScan, Nothing, RecordScan};
use super::sink::merge::Merge;
use super::sink::out::Out;
use super::sort::Sort;
use super::sort::bucket_sort::BucketSort;
use super::window::WindowFields;
use super::window::densify::Densify;
use super::{BoxOperator, Counted, ExecSettings, OperatorStats};
use crate::error::Result;
use crate::eval::ParseContext;
use crate::query::pipeline::needs::Needs;
use crate::query::pipeline::{PipelineContext, Place, Stage, geo_near_not_first};
use crate::query::planner::physical::{
    AccessPath, BucketOrder, Input, Nearest, PhysicalPlan, PhysicalStage,
};
use crate::query::planner::{self, PlanRequest};
use crate::query::source::{Collections, ScanCounters};

/// Plans inner pipelines and builds operators. Cheap to clone.
#[derive(Clone)]
pub struct Builder {
    /// The stored collections.
    pub collections: Arc<dyn Collections>,
    /// The database of the command.
    pub database: Arc<str>,
    /// The collection of the command; none for a database-level aggregate.
    pub collection: Option<Arc<str>>,
    /// Settings of the query.
    pub settings: Arc<ExecSettings>,
    /// Nesting depth of the pipeline being built.
    pub depth: usize,
}

/// Counters of the operators of one plan, filled while they run.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// What the scan examined.
    pub scan: Arc<ScanCounters>,
    /// What a read by index examined.
    pub access: AccessStats,
    /// What the scan returned.
    pub input: Arc<OperatorStats>,
    /// What each stage returned, in order.
    pub stages: Vec<Arc<OperatorStats>>,
}

impl Builder {
    /// Returns a builder for pipelines within the one being built.
    #[must_use]
    pub fn nested(&self, depth: usize) -> Self {
        Self {
            depth,
            ..self.clone()
        }
    }

    /// Returns the same builder with other settings.
    #[must_use]
    pub fn with_settings(&self, settings: Arc<ExecSettings>) -> Self {
        Self {
            settings,
            ..self.clone()
        }
    }

    /// Plans `stages` over a collection of this database, as a pipeline within another one.
    pub fn plan(&self, collection: Option<&str>, stages: Vec<Stage>) -> Result<PhysicalPlan> {
        let settings = &self.settings;
        let expressions =
            ParseContext::new().with_collator(settings.plan.collator.as_ref().map(Arc::clone));
        let request = PlanRequest {
            collections: &*self.collections,
            database: &self.database,
            collection,
            context: PipelineContext {
                expressions,
                place: Place::Lookup,
                depth: self.depth,
            },
            stages,
            wanted: Needs::All,
            distinct: None,
        };
        // Inner pipelines are planned often, so no candidates are run.
        planner::plan(request, settings.choice(None), |_| Ok(()))
    }

    /// Plans and builds `stages` over a collection of this database.
    pub fn pipeline(&self, collection: Option<&str>, stages: Vec<Stage>) -> Result<BoxOperator> {
        self.build(self.plan(collection, stages)?)
    }

    /// Builds the operators of a plan.
    pub fn build(&self, plan: PhysicalPlan) -> Result<BoxOperator> {
        self.build_counted(plan).map(|(top, _)| top)
    }

    /// Builds the operators of a plan; also returns the counters of its input.
    pub fn build_counted(&self, plan: PhysicalPlan) -> Result<(BoxOperator, Arc<ScanCounters>)> {
        let (top, trace) = self.assemble(plan, |operator, _| operator)?;
        Ok((top, trace.scan))
    }

    /// Builds the operators of a plan, each with counters, for explain.
    pub fn build_traced(&self, plan: PhysicalPlan) -> Result<(BoxOperator, Trace)> {
        self.assemble(plan, |operator, trace| {
            let stats = Arc::<OperatorStats>::default();
            trace.push(Arc::clone(&stats));
            Box::new(Counted::new(operator, stats))
        })
    }

    /// Builds the input and the operators above it; `wrap` may wrap each in a counting one.
    fn assemble(
        &self,
        plan: PhysicalPlan,
        wrap: impl Fn(BoxOperator, &mut Vec<Arc<OperatorStats>>) -> BoxOperator,
    ) -> Result<(BoxOperator, Trace)> {
        let mut trace = Trace::default();
        let mut stats = Vec::new();
        let (input, measured): (BoxOperator, usize) = match Nearest::of(&plan) {
            // One operator reads and measures the nearest few.
            Some(nearest) => {
                let read = NearestRead::new(nearest, Arc::clone(&trace.scan));
                trace.access = read.stats().clone();
                (Box::new(read), 1)
            }
            None => (self.scan(plan.input, &mut trace)?, 0),
        };
        let mut top = wrap(input, &mut stats);
        for (at, stage) in plan.stages.into_iter().enumerate() {
            if at < measured {
                stats.extend(stats.first().cloned());
                continue;
            }
            top = wrap(self.operator(top, stage)?, &mut stats);
        }
        let mut stats = stats.into_iter();
        if let Some(input) = stats.next() {
            trace.input = input;
            trace.stages = stats.collect();
        }
        Ok((top, trace))
    }

    /// Builds the operator that reads the input of a plan.
    fn scan(&self, input: Input, trace: &mut Trace) -> Result<BoxOperator> {
        match input {
            Input::Rollup(input) => {
                let depth = self.depth + 1;
                let counters = Arc::clone(&trace.scan);
                let read = RollupScan::new(*input, self.nested(depth), counters);
                Ok(Box::new(read))
            }
            Input::Partitions(input) if input.rollup.is_some() => {
                let rollup = input.rollup.clone();
                let bins = scan(Input::Partitions(input), trace);
                Ok(match rollup {
                    Some(rollup) => Box::new(MergedBins::new(bins, &rollup, &self.settings)),
                    None => bins,
                })
            }
            input => Ok(scan(input, trace)),
        }
    }

    /// Builds the operators of parsed stages over `input`, each with its simplest strategy.
    pub fn over(&self, input: BoxOperator, stages: Vec<Stage>) -> Result<BoxOperator> {
        stages
            .into_iter()
            .try_fold(input, |input, stage| self.operator(input, stage.into()))
    }

    /// Builds the operator of one stage over `input`.
    fn operator(&self, input: BoxOperator, stage: PhysicalStage) -> Result<BoxOperator> {
        Ok(match stage {
            PhysicalStage::Match(stage) => Box::new(Filter::new(input, stage.filter)),
            PhysicalStage::Project(stage) => Box::new(Project::new(input, stage)),
            PhysicalStage::Group(mut group) => match group.in_order.take() {
                Some(parts) => {
                    let parts = parts.iter().map(|(_, part)| part.clone()).collect();
                    Box::new(StreamingGroup::new(input, group, parts))
                }
                None => Box::new(Group::new(input, group)),
            },
            PhysicalStage::Sort(mut sort) => match (sort.within.take(), sort.buckets) {
                (Some(within), Some(BucketOrder::Arrival(span_ms))) => {
                    Box::new(SortWithinGroups::new(input, sort, within, span_ms))
                }
                (_, Some(order)) => Box::new(BucketSort::new(input, sort, order)),
                (_, None) => Box::new(Sort::new(input, sort)),
            },
            PhysicalStage::Limit(count) => Box::new(Limit::new(input, count)),
            PhysicalStage::Skip(count) => Box::new(Skip::new(input, count)),
            PhysicalStage::Windows(windows) => {
                let spec = Arc::clone(&windows.stage.spec);
                Box::new(WindowFields::new(input, spec, windows.input))
            }
            PhysicalStage::Densify(densify) => Box::new(Densify::new(input, densify)),
            PhysicalStage::Lookup(lookup) => {
                let builder = self.nested(lookup.stage.depth);
                Box::new(Lookup::new(input, lookup, builder))
            }
            PhysicalStage::Plain(stage) => self.plain(input, stage)?,
        })
    }

    /// Builds the operator of a stage that has only one strategy.
    fn plain(&self, input: BoxOperator, stage: Stage) -> Result<BoxOperator> {
        Ok(match stage {
            Stage::Unwind(stage) => Box::new(Unwind::new(input, stage)),
            Stage::ReplaceRoot(stage) => Box::new(ReplaceRoot::new(input, stage)),
            Stage::BucketAuto(stage) => {
                Box::new(BucketAuto::new(input, Arc::unwrap_or_clone(stage)))
            }
            Stage::Documents(stage) => Box::new(ComputedDocuments::new(stage.expression.clone())),
            Stage::Facet(stage) => Facet::build(input, &stage.facets, self)?,
            Stage::GeoNear(_) => return Err(geo_near_not_first()),
            Stage::GeoDistance(stage) => {
                Box::new(GeoDistance::new(input, Arc::unwrap_or_clone(stage)))
            }
            Stage::GraphLookup(stage) => {
                let builder = self.nested(stage.depth);
                let stage = Arc::unwrap_or_clone(stage);
                Box::new(GraphLookup::new(input, stage, builder))
            }
            Stage::Introspection(stage) => {
                let documents = self.introspect(stage.name, stage.argument.as_ref())?;
                Box::new(GivenDocuments::new(documents))
            }
            Stage::Merge(stage) => Merge::build(input, Arc::unwrap_or_clone(stage), self)?,
            Stage::Out(stage) => {
                let target = stage.target.namespace(&self.database)?;
                Box::new(Out::new(input, target, stage.timeseries.clone(), self)?)
            }
            Stage::Redact(stage) => Box::new(Redact::new(input, Arc::unwrap_or_clone(stage))),
            Stage::Sample(stage) => Box::new(Sample::new(input, stage.size)),
            Stage::TextScore(stage) => Box::new(TextScore::new(input, stage)),
            Stage::UnionWith(stage) => {
                let builder = self.nested(stage.depth);
                let other = builder.pipeline(stage.collection.as_deref(), stage.stages.clone())?;
                Box::new(UnionWith::new(input, other))
            }
            Stage::UnpackBucket(stage) => {
                Box::new(UnpackBucket::new(input, Arc::unwrap_or_clone(stage)))
            }
            other @ (Stage::Match(_)
            | Stage::Project(_)
            | Stage::Group(_)
            | Stage::Sort(_)
            | Stage::Limit(_)
            | Stage::Lookup(_)
            | Stage::Skip(_)
            | Stage::Densify(_)
            | Stage::SetWindowFields(_)) => self.operator(input, other.into())?,
        })
    }

    /// Returns the documents of a stage that describes the server.
    fn introspect(&self, stage: &str, argument: DocRef<'_>) -> Result<Vec<Document>> {
        let (collection, user) = (self.collection.as_deref(), self.settings.user.as_deref());
        self.collections
            .introspect(&self.database, collection, stage, argument, user)
    }
}

/// Builds the operator that reads the input of a plan.
fn scan(input: Input, trace: &mut Trace) -> BoxOperator {
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
        Input::Partitions(input) => Box::new(PartitionScan::new(*input, counters)),
        Input::Rollup(_) => unreachable!("built with its source"),
    }
}
