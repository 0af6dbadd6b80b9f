//! The parts that `find`, `aggregate`, `count`, `distinct` and `explain` share: the options of every query,
//! and planning.

use std::sync::Arc;
use std::time::Duration;

use nilometer_bson::{DocRef, Document, Value, ValueRef};

use crate::args::Args;
use crate::catalog::{CatalogEntry, Namespace};
use crate::commands::cursor_reply::{self, FirstBatch, settings};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::eval::{Collation, EvalContext, Expression, ParseContext};
use crate::ids::IdSource;
use crate::operation::OperationContext;
use crate::query::exec::Executor;
use crate::query::exec::build::Builder;
use crate::query::exec::scan::trial::Trials;
use crate::query::explain::plan_summary;
use crate::query::pipeline::needs::Needs;
use crate::query::pipeline::{PipelineContext, Stage};
use crate::query::planner::logical::LogicalSource;
use crate::query::planner::physical::PhysicalPlan;
use crate::query::planner::{self, PlanRequest};

/// Options of every query.
pub(crate) struct QueryOptions {
    /// The names that expressions may refer to.
    pub(crate) expressions: ParseContext,
    /// The values of `let`.
    pub(crate) variables: Arc<[Value]>,
    /// True if stages above their memory limit may write to disk; by default a parameter decides.
    pub(crate) allow_disk_use: Option<bool>,
}

impl QueryOptions {
    /// Parses `let`, `collation` and `allowDiskUse`. The collation of `collection` is the default.
    pub(crate) fn parse(
        database: &Database,
        operation: &OperationContext,
        args: &Args<'_>,
        collection: Option<&str>,
    ) -> Result<Self> {
        let collation = match (given_collation(args)?, collection) {
            (Some(given), _) => given,
            (None, None) => Collation::SIMPLE,
            (None, Some(name)) => default_collation(database, &operation.database, name)?,
        };
        Self::with_collation(operation, args, &collation)
    }

    /// Like [`QueryOptions::parse`], but with this collation in any case.
    pub(crate) fn with_collation(
        operation: &OperationContext,
        args: &Args<'_>,
        collation: &Collation,
    ) -> Result<Self> {
        let constant = ParseContext::new()
            .with_collator(collation.shared())
            .with_interrupt(Arc::new(operation.for_worker()));
        let mut expressions = constant.clone();
        let mut variables = Vec::new();
        if let Some(list) = args.document("let")? {
            let random = IdSource::default();
            for element in list {
                crate::eval::variables::check_user_name(element.name())?;
                // Values are constants: they see neither documents nor each other.
                let value = Expression::parse(element.value(), &constant)?;
                let cx = EvalContext {
                    now_ms: operation.now_ms,
                    collator: collation.collator(),
                    random: Some(&random),
                    limits: Some(operation.evaluation_limits()),
                    ..EvalContext::default()
                };
                variables.push(value.evaluate(DocRef::EMPTY, &cx)?);
                expressions.define(element.name());
            }
        }
        Ok(Self {
            expressions,
            variables: variables.into(),
            allow_disk_use: args.lenient_boolean("allowDiskUse")?,
        })
    }
}

/// Returns the `collation` of a command or statement; `None` for an empty one.
pub(crate) fn given_collation(args: &Args<'_>) -> Result<Option<Collation>> {
    match args.document("collation")? {
        Some(spec) if !spec.is_empty() => Collation::parse(spec, "collation").map(Some),
        _ => Ok(None),
    }
}

/// Returns the collation a collection, view or time-series collection was created with.
pub(crate) fn default_collation(database: &Database, db: &str, name: &str) -> Result<Collation> {
    let catalog = database.catalog();
    let namespace = Namespace {
        database: db.to_owned(),
        collection: name.to_owned(),
    };
    if let Some(buckets) = catalog.timeseries(&namespace) {
        return Collation::of_stored(buckets.options.as_ref());
    }
    match catalog.get(&namespace) {
        Some(CatalogEntry::Collection(found)) => Collation::of_stored(found.options.as_ref()),
        Some(CatalogEntry::View(view)) => Collation::of_stored(view.options.as_ref()),
        None => Ok(Collation::SIMPLE),
    }
}

/// Returns the collection a command names in its first field.
pub(crate) fn check_collection_name<'a>(args: &Args<'a>, command: &str) -> Result<&'a str> {
    let name = match args.value(command) {
        ValueRef::String(name) => name,
        other => {
            return Err(Error::new(
                ErrorCode::InvalidNamespace,
                format!("collection name has invalid type {}", other.type_name()),
            ));
        }
    };
    if name.is_empty() || name.contains('\0') || name.starts_with('.') {
        return Err(Error::new(
            ErrorCode::InvalidNamespace,
            format!("Invalid namespace specified: '{name}'"),
        ));
    }
    Ok(name)
}

/// Returns `db.coll`.
pub(crate) fn namespace_of(operation: &OperationContext, collection: &str) -> String {
    format!("{}.{collection}", operation.database)
}

/// A query, ready to run or to be explained.
pub(crate) struct PlannedQuery {
    /// The namespace the client reads: `db.coll`.
    pub(crate) namespace: String,
    /// The builder of its operators.
    pub(crate) builder: Builder,
    /// Its plan, with all rules applied.
    pub(crate) plan: PhysicalPlan,
}

impl PlannedQuery {
    /// Builds its operators.
    pub(crate) fn executor(self) -> Result<Executor> {
        let settings = Arc::clone(&self.builder.settings);
        let summary = plan_summary(&self.plan);
        let (root, counters) = self.builder.build_counted(self.plan)?;
        let mut executor = Executor::new(root, settings);
        executor.watch(counters, summary);
        Ok(executor)
    }
}

/// The part of the result documents that a command needs.
pub(crate) struct ResultNeeds<'a> {
    /// The fields.
    pub(crate) needs: Needs,
    /// Only the distinct values of this path.
    pub(crate) distinct: Option<&'a str>,
}

impl From<Needs> for ResultNeeds<'_> {
    fn from(needs: Needs) -> Self {
        Self {
            needs,
            distinct: None,
        }
    }
}

/// Plans the pipeline of a command; `adjust` may change the source.
pub(crate) fn plan(
    database: &Database,
    operation: &OperationContext,
    options: &QueryOptions,
    collection: Option<&str>,
    stages: Vec<Stage>,
    wanted: ResultNeeds<'_>,
    adjust: impl FnOnce(&mut LogicalSource) -> Result<()>,
) -> Result<(Builder, PhysicalPlan)> {
    let builder = builder(database, operation, options, collection);
    let settings = &builder.settings;
    let request = PlanRequest {
        collections: &*builder.collections,
        database: &operation.database,
        collection,
        context: PipelineContext::top(options.expressions.clone()),
        stages,
        wanted: wanted.needs,
        distinct: wanted.distinct,
    };
    let trials = Trials {
        settings,
        operation,
    };
    let plan = planner::plan(request, settings.choice(Some(&trials)), adjust)?;
    Ok((builder, plan))
}

/// Returns what builds the operators of a command.
pub(super) fn builder(
    database: &Database,
    operation: &OperationContext,
    options: &QueryOptions,
    collection: Option<&str>,
) -> Builder {
    let settings = settings(
        database,
        operation,
        Arc::clone(&options.variables),
        options.allow_disk_use,
        &Collation::of(&options.expressions),
    );
    Builder {
        collections: Arc::clone(&database.queries().collections),
        database: operation.database.as_str().into(),
        collection: collection.map(Arc::from),
        settings: Arc::new(settings),
        depth: 0,
    }
}

/// Fills the first batch and stores the cursor if more may follow.
pub(crate) fn open_cursor(
    database: &Database,
    operation: &OperationContext,
    planned: PlannedQuery,
    first: FirstBatch,
    command: &Document,
) -> Result<Document> {
    let namespace = planned.namespace.clone();
    let executor = planned.executor()?;
    cursor_reply::open(database, operation, namespace, executor, first, command)
}

/// Applies the time left over from an earlier command, unless the own limit is shorter.
pub(crate) fn limit_time(operation: &mut OperationContext, left: Option<Duration>) {
    if let Some(left) = left {
        let own = operation.time_left();
        operation.set_time_limit(Some(own.map_or(left, |own| own.min(left))));
    }
}
