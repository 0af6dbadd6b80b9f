//! The first batch of a cursor, for queries and for listings, and the settings of the query behind it.

use std::sync::Arc;

use nilometer_bson::{Document, DocumentBuilder, Value};

use crate::args::Args;
use crate::database::Database;
use crate::error::Result;
use crate::eval::Collation;
use crate::operation::OperationContext;
use crate::parameters::QUERY_THREADS_MAX;
use crate::query::cursor::{BatchRequest, Cursor, ResumePosition, StreamPosition, Tail};
use crate::query::exec::row::documents::GivenDocuments;
use crate::query::exec::workers::QueryThreads;
use crate::query::exec::{ExecLimits, ExecSettings, Executor};
use crate::query::planner::rules::RuleSet;
use crate::query::planner::settings::{PlanOptions, PlanSettings};

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
    /// The place in the change log to report after each batch.
    pub(crate) stream: Option<StreamPosition>,
}

impl FirstBatch {
    /// Returns the options of a batch of this many documents, without further ones.
    pub(crate) fn of(documents: u64) -> Self {
        Self {
            documents,
            single: false,
            no_timeout: false,
            tail: None,
            resume: None,
            stream: None,
        }
    }
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
    // A listing is one batch unless the client sets a batch size.
    let first = FirstBatch::of(batch_size.unwrap_or(u64::MAX));
    let executor = Executor::new(root, settings);
    open(database, operation, namespace, executor, first, command)
}

/// Fills the first batch of a cursor and registers the cursor if more may follow; returns the reply.
pub(crate) fn open(
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
    cursor.stream = first.stream;
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
        let cursors = &services.cursors;
        let id = cursors.register(cursor, now, || services.ids.random())?;
        // A kill before the registration has set the switch, but found no cursor to close.
        if let Err(ended) = operation.check_killed() {
            cursors.kill(id, None, |_| true);
            return Err(ended);
        }
        id
    } else {
        0
    };
    reply.append("id", id);
    reply.append("ns", namespace);
    reply.end();
    Ok(reply.finish())
}

/// Returns the settings of a query: the limits and services of the database, and what the command gives.
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
            strict_api: operation.api.strict,
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
        is_merge_identified: operation
            .routed
            .as_ref()
            .is_some_and(|routed| routed.merge_now_ms.is_some()),
        threads: query_threads(database),
    }
}

/// Returns the threads that may run one query beside its own; none while others use the processors.
fn query_threads(database: &Database) -> Option<QueryThreads> {
    let services = database.services();
    if services.turns.are_scarce() {
        return None;
    }
    let threads = match services.parameters.nilometer_query_threads() {
        0 => services.host.cores,
        given => usize::try_from(given).unwrap_or(1),
    };
    let workers = &database.queries().workers;
    (threads > 1).then(|| QueryThreads::new(Arc::clone(workers), threads.min(QUERY_THREADS_MAX)))
}
