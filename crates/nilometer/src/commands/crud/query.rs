//! The parts that `find`, `aggregate`, `count`, `distinct` and `explain` share: the options of every query,
//! planning, and the first batch of a cursor.

use std::sync::Arc;
use std::time::Duration;

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef};

use crate::args::Args;
use crate::catalog::{CatalogEntry, Namespace};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::eval::{Collation, EvalContext, Expression, ParseContext};
use crate::ids::IdSource;
use crate::operation::OperationContext;
use crate::parameters::QUERY_THREADS_MAX;
use crate::query::cursor::{BatchRequest, Cursor, ResumePosition, Tail};
use crate::query::exec::build::Builder;
use crate::query::exec::scan::documents::GivenDocuments;
use crate::query::exec::scan::trial::Trials;
use crate::query::exec::workers::QueryThreads;
use crate::query::exec::{ExecLimits, ExecSettings, Executor};
use crate::query::explain::plan_summary;
use crate::query::pipeline::needs::Needs;
use crate::query::pipeline::{PipelineContext, Stage};
use crate::query::planner::logical::LogicalSource;
use crate::query::planner::physical::PhysicalPlan;
use crate::query::planner::rules::RuleSet;
use crate::query::planner::settings::{PlanOptions, PlanSettings};
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
        let constant = ParseContext::new().with_collator(collation.shared());
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

pub(crate) fn settings(
    database: &Database,
    operation: &OperationContext,
    variables: Arc<[Value]>,
    allow_disk_use: Option<bool>,
    collation: &Collation,
) -> ExecSettings {
    let services = database.queries();
    let given = &database.services().parameters;
    let may_spill = allow_disk_use.unwrap_or_else(|| given.allow_disk_use_by_default() != 0);
    // The parameter table rejects negative values.
    let most = |limit: i64| u64::try_from(limit).unwrap_or(0);
    ExecSettings {
        memory: Arc::clone(&services.memory),
        plan: PlanSettings {
            now_ms: operation.now_ms,
            variables,
            collator: collation.shared(),
            options: PlanOptions {
                disabled: RuleSet::from_number(given.internal_nilometer_disabled_rules()),
                ..PlanOptions::default()
            },
        },
        user: operation.user.clone().map(Arc::new),
        ids: Arc::clone(&services.ids),
        limits: ExecLimits {
            group_bytes_max: most(given.internal_document_source_group_max_memory_bytes()),
            sort_bytes_max: most(given.internal_query_max_blocking_sort_memory_usage_bytes()),
            densify_documents_max: most(given.internal_query_max_allowed_densify_docs()),
            ..services.limits
        },
        spill: services.spill.clone().filter(|_| may_spill),
        // Explain always runs a new trial.
        plans: if operation.is_explain {
            Arc::new(services.plans.without_plans())
        } else {
            Arc::clone(&services.plans)
        },
        threads: query_threads(database),
    }
}

/// Returns the number of threads that may run one query.
fn query_threads(database: &Database) -> Option<QueryThreads> {
    let services = database.services();
    let threads = match services.parameters.nilometer_query_threads() {
        0 => services.host.cores,
        given => usize::try_from(given).unwrap_or(1),
    };
    let workers = &database.queries().workers;
    (threads > 1).then(|| QueryThreads::new(Arc::clone(workers), threads.min(QUERY_THREADS_MAX)))
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
    let services = database.queries();
    let settings = Arc::new(settings(
        database,
        operation,
        Arc::clone(&options.variables),
        options.allow_disk_use,
        &Collation::of(&options.expressions),
    ));
    let request = PlanRequest {
        collections: &*services.collections,
        database: &operation.database,
        collection,
        context: PipelineContext::top(options.expressions.clone()),
        stages,
        wanted: wanted.needs,
        distinct: wanted.distinct,
    };
    let trials = Trials {
        settings: &settings,
        operation,
    };
    let plan = planner::plan(request, settings.choice(Some(&trials)), adjust)?;
    let builder = Builder {
        collections: Arc::clone(&services.collections),
        database: operation.database.as_str().into(),
        collection: collection.map(Arc::from),
        settings: Arc::clone(&settings),
        depth: 0,
    };
    Ok((builder, plan))
}

/// Options of the first batch.
pub(crate) struct FirstBatch {
    /// The number of documents; 0 for an empty batch.
    pub(crate) documents: u64,
    /// There is no second batch.
    pub(crate) single: bool,
    /// The cursor never times out.
    pub(crate) no_timeout: bool,
    /// The cursor stays open at the end.
    pub(crate) tail: Option<Tail>,
    /// The position to report after each batch.
    pub(crate) resume: Option<ResumePosition>,
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
    begin(database, operation, namespace, executor, first, command)
}

/// Returns the `cursor.batchSize` of a listing command.
pub(crate) fn listing_batch_size(args: &Args<'_>) -> Result<Option<u64>> {
    let Some(cursor) = args.nested("cursor", &["batchSize"])? else {
        return Ok(None);
    };
    let size = cursor.integer_at_least("batchSize", 0)?;
    Ok(size.and_then(|size| u64::try_from(size).ok()))
}

/// Returns a cursor over documents in memory, such as the server's own listings.
pub(crate) fn open_listing(
    database: &Database,
    operation: &OperationContext,
    namespace: String,
    documents: Vec<Document>,
    batch_size: Option<u64>,
    command: &Document,
) -> Result<Document> {
    let root = Box::new(GivenDocuments::new(documents));
    let settings = Arc::new(settings(
        database,
        operation,
        Arc::from([]),
        None,
        &Collation::SIMPLE,
    ));
    let first = FirstBatch {
        // A listing is one batch unless the client sets a batch size.
        documents: batch_size.unwrap_or(u64::MAX),
        single: false,
        no_timeout: false,
        tail: None,
        resume: None,
    };
    let executor = Executor::new(root, settings);
    begin(database, operation, namespace, executor, first, command)
}

fn begin(
    database: &Database,
    operation: &OperationContext,
    namespace: String,
    executor: Executor,
    first: FirstBatch,
    command: &Document,
) -> Result<Document> {
    let mut cursor = Cursor::new(namespace.clone(), executor, command.clone());
    let awaits = first.tail.as_ref().is_some_and(|tail| tail.awaits);
    if let Some(tail) = first.tail {
        cursor.follow(tail);
    }
    cursor.resume = first.resume;
    let mut reply = DocumentBuilder::with_capacity(4096);
    reply.begin_document("cursor");
    reply.begin_array("firstBatch");
    let request = BatchRequest {
        documents: Some(first.documents),
    };
    let more = cursor.fill(operation, request, &mut reply)?;
    reply.end();
    cursor.append_resume_token(&mut reply);
    let id = if more && !first.single {
        cursor.lsid = operation.lsid;
        cursor.user = operation.user.clone();
        cursor.api = operation.api;
        cursor.no_timeout = first.no_timeout;
        // Waiting for new documents has its own time limit, set by each getMore.
        cursor.time_left = operation.time_left().filter(|_| !awaits);
        let services = database.queries();
        let now = operation.clock().monotonic();
        services
            .cursors
            .register(cursor, now, || services.ids.random())?
    } else {
        0
    };
    reply.append("id", id);
    reply.append("ns", namespace);
    reply.end();
    Ok(reply.finish())
}

/// Applies the time left over from an earlier command, unless the own limit is shorter.
pub(crate) fn limit_time(operation: &mut OperationContext, left: Option<Duration>) {
    if let Some(left) = left {
        let own = operation.time_left();
        operation.set_time_limit(Some(own.map_or(left, |own| own.min(left))));
    }
}
