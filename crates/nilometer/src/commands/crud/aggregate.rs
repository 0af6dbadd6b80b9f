//! `aggregate`: a pipeline over a collection or view, or, with `aggregate: 1`, over documents that its first
//! stage produces.

use nilometer_bson::{DocRef, Document, ValueRef};

use super::change_stream;
use super::find::apply_hint;
use super::query;
use super::query::{PlannedQuery, QueryOptions, check_collection_name, namespace_of, open_cursor};
use crate::args::Args;
use crate::commands::cursor_reply::FirstBatch;
use crate::commands::ddl::collection_uuid;
use crate::commands::generic::RAW_DATA;
use crate::commands::security::authorization::rules;
use crate::commands::{
    Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter, OperationCounter,
};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::eval::projection::MetaField;
use crate::operation::{OperationContext, Request};
use crate::query::cursor::FIRST_BATCH_DEFAULT;
use crate::query::pipeline::needs::Needs;
use crate::query::pipeline::{PipelineContext, Stage, given_documents, meta, parse_pipeline};
use crate::query::planner::logical::LogicalSource;
use crate::query::planner::physical::{AccessPath, Input};
use crate::query::source::{Collections, Resolved};
use crate::services::LatencyClass;

pub(crate) const SPEC: CommandSpec = CommandSpec {
    access: Access::Read,
    latency: LatencyClass::Read,
    takes_memory: true,
    read_concern: true,
    write_concern: true,
    in_api_v1: true,
    counted: OperationCounter::Command,
    fields: Fields::Only(FIELDS),
    ..CommandSpec::new(
        "aggregate",
        "Runs an aggregation pipeline.",
        Authorization::ByRule(rules::aggregate),
        OnRouter::Same,
        run,
    )
};

/// The options of `aggregate`; `explain` reads them too.
pub(crate) const FIELDS: &[&str] = &[
    "pipeline",
    "explain",
    "allowDiskUse",
    "cursor",
    "bypassDocumentValidation",
    "hint",
    "collation",
    "let",
    "isMapReduceCommand",
    RAW_DATA,
    collection_uuid::NAME,
];

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("aggregate", request.body.as_ref());
    let explain = args.lenient_boolean("explain")?.unwrap_or(false);
    let cursor = match args.value("cursor") {
        ValueRef::Missing if explain => None,
        ValueRef::Missing => {
            return Err(Error::failed_to_parse(
                "The 'cursor' option is required, except for aggregate with the explain argument",
            ));
        }
        ValueRef::Document(_) => args.nested("cursor", &["batchSize"])?,
        _ => {
            return Err(Error::type_mismatch(
                "cursor field must be missing or an object",
            ));
        }
    };
    if !explain && change_stream::is_stream(&args)? {
        return change_stream::open(database, &context.operation, &args, cursor, &request.body);
    }
    check_definitions(database, &context.operation, &args)?;
    let mut planned = plan(database, &context.operation, &args)?;
    if request.part().is_some_and(|part| part.returns_states) {
        planned.plan.return_states()?;
    }
    if explain {
        return super::explain::explained(
            database,
            &context.operation,
            planned,
            super::explain::Verbosity::QueryPlanner,
            &request.body,
        );
    }
    let first = first_batch(cursor)?;
    open_cursor(database, &context.operation, planned, first, &request.body)
}

/// Fails if the router that merges the bins has another definition of the rollup: it was dropped and created again.
fn check_definitions(
    database: &Database,
    operation: &OperationContext,
    args: &Args<'_>,
) -> Result<()> {
    let routed = operation.routed.as_ref();
    let Some(known) = routed.and_then(|routed| routed.definitions.as_ref()) else {
        return Ok(());
    };
    let name = args.required_string("aggregate")?;
    let found = database.collections().resolve(&operation.database, name)?;
    match found {
        Resolved::Rollup(rollup) if rollup.definitions() == *known => Ok(()),
        _ => Err(Error::new(
            ErrorCode::QueryPlanKilled,
            format!("the rollup {name} was dropped or created while the query began: repeat it"),
        )),
    }
}

/// Returns the options of the first batch by the field `cursor`.
pub(super) fn first_batch(cursor: Option<Args<'_>>) -> Result<FirstBatch> {
    let size = match &cursor {
        Some(cursor) => cursor.integer_at_least("batchSize", 0)?,
        None => None,
    };
    let documents = size.map_or(FIRST_BATCH_DEFAULT, |n| u64::try_from(n).unwrap_or(0));
    Ok(FirstBatch::of(documents))
}

/// Returns the collection an `aggregate` names.
pub(super) fn collection_of<'a>(args: &Args<'a>) -> Result<Option<&'a str>> {
    match args.value("aggregate") {
        ValueRef::String(_) => check_collection_name(args, "aggregate").map(Some),
        value if crate::args::truncated_i64(value) == Some(1) => Ok(None),
        _ => Err(Error::failed_to_parse(
            "Invalid command format: the 'aggregate' field must specify a collection name or 1",
        )),
    }
}

/// Returns the stages of an `aggregate`.
pub(super) fn stages_of<'a>(args: &Args<'a>) -> Result<Vec<DocRef<'a>>> {
    let pipeline = args.required_array("pipeline")?;
    let mut documents = Vec::new();
    for value in pipeline.iter() {
        let Some(document) = value.as_document() else {
            return Err(Error::type_mismatch(
                "Each element of the 'pipeline' array must be an object",
            ));
        };
        documents.push(document);
    }
    Ok(documents)
}

/// Parses and plans an `aggregate`.
pub(crate) fn plan(
    database: &Database,
    operation: &OperationContext,
    args: &Args<'_>,
) -> Result<PlannedQuery> {
    let collection = collection_of(args)?;
    if let Some(name) = collection {
        collection_uuid::check_read(database, args, &operation.database, name)?;
    }
    let options = QueryOptions::parse(database, operation, args, collection)?;
    let documents = stages_of(args)?;
    change_stream::check_not_planned(database, &documents)?;
    let has_meta = meta::is_mentioned(&documents);
    let cx = PipelineContext::top(options.expressions.clone());
    let mut stages = parse_pipeline(&cx, documents)?;
    let routed = operation.routed.as_ref();
    if let Some(part) = routed.and_then(|routed| routed.part) {
        meta::settle_part(&mut stages, part.metadata);
    }
    if let Some(given) = routed.and_then(|routed| routed.given.as_ref()) {
        let documents = given.iter().map(|document| document.to_document());
        stages.insert(0, given_documents(documents.collect()));
    }
    check_input(collection, &operation.database, &stages)?;
    let hint = args.value("hint");
    let adds_record_id = has_meta && meta::reads(&stages, MetaField::RecordId);
    let adds_keys = has_meta && meta::reads(&stages, MetaField::IndexKey);
    let (builder, mut plan) = query::plan(
        database,
        operation,
        &options,
        collection,
        stages,
        Needs::All.into(),
        |source| {
            if let (true, LogicalSource::Records(scan)) = (adds_record_id, &mut *source) {
                scan.show_record_id = true;
            }
            apply_hint(source, hint)
        },
    )?;
    if adds_keys
        && let Input::Records(input) = &mut plan.input
        && let AccessPath::Index(access) = &mut input.access
    {
        access.adds_keys = true;
    }
    Ok(PlannedQuery {
        namespace: namespace_of(operation, collection.unwrap_or("$cmd.aggregate")),
        builder,
        plan,
    })
}

/// Checks the first stage against the input: stages that produce documents need no collection, and stages
/// that read the whole server must not have one.
fn check_input(collection: Option<&str>, db: &str, stages: &[Stage]) -> Result<()> {
    let first = stages.first();
    let name = first.map_or("", Stage::name);
    let wants_none = matches!(
        name,
        "$documents"
            | "$currentOp"
            | "$listLocalSessions"
            | "$querySettings"
            | "$queryStats"
            | "$shardedDataDistribution"
    );
    match collection {
        None if name == "$listCatalog" || wants_none => {
            if name == "$currentOp" && db != "admin" {
                return Err(Error::new(
                    ErrorCode::InvalidNamespace,
                    "$currentOp must be run against the 'admin' database with {aggregate: 1}",
                ));
            }
            Ok(())
        }
        None => Err(Error::new(
            ErrorCode::InvalidNamespace,
            format!("{{aggregate: 1}} is not valid for '{name}'; a collection is required."),
        )),
        Some(_) if wants_none => Err(Error::new(
            ErrorCode::InvalidNamespace,
            format!("'{name}' can only be run with {{aggregate: 1}}"),
        )),
        Some(_) => Ok(()),
    }
}
