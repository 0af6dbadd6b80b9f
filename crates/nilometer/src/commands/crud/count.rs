//! `count`: the number of matching documents.

use nilometer_bson::{Document, Value, doc};

use super::find::apply_hint;
use super::query;
use super::query::{PlannedQuery, QueryOptions, check_collection_name, namespace_of};
use crate::args::Args;
use crate::auth::Action;
use crate::commands::ddl::collection_uuid;
use crate::commands::generic::RAW_DATA;
use crate::commands::{
    Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter, OperationCounter,
};
use crate::database::Database;
use crate::error::Result;
use crate::eval::matcher::MatchExpression;
use crate::operation::{OperationContext, Request};
use crate::query::pipeline::needs::Needs;
use crate::query::pipeline::{GeoNearStage, MatchStage, PipelineContext, Stage, parse_pipeline};
use crate::query::planner::physical::{AccessPath, Input, PhysicalStage};
use crate::services::LatencyClass;

pub(crate) const SPEC: CommandSpec = CommandSpec {
    access: Access::Read,
    latency: LatencyClass::Read,
    takes_memory: true,
    read_concern: true,
    in_api_v1: true,
    counted: OperationCounter::Command,
    fields: Fields::Only(FIELDS),
    ..CommandSpec::new(
        "count",
        "Counts documents.",
        Authorization::OnCollection(&[Action::Find]),
        OnRouter::Same,
        run,
    )
};

/// The options of `count`; `explain` reads them too.
pub(crate) const FIELDS: &[&str] = &[
    "query",
    "limit",
    "skip",
    "hint",
    "collation",
    "fields",
    RAW_DATA,
    collection_uuid::NAME,
];

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("count", request.body.as_ref());
    let planned = plan(database, &context.operation, &args)?;
    if let Input::Partitions(_) = &planned.plan.input {
        let mut executor = plan_for(database, &context.operation, &args, true)?.executor()?;
        let rows = executor.drain(&context.operation)?;
        let counted = rows.first().and_then(|row| row.get("n").as_exact_i64());
        let counted = u64::try_from(counted.unwrap_or(0)).unwrap_or(0);
        return Ok(doc! {"n": number(counted)});
    }
    let counted = match known_count(&planned)? {
        Some(counted) => counted,
        None => {
            let mut executor = planned.executor()?;
            let mut counted = 0u64;
            while let Some(batch) = executor.next(&context.operation)? {
                counted += batch.len() as u64;
            }
            counted
        }
    };
    Ok(doc! {"n": number(counted)})
}

/// Returns an int32 if it fits, else an int64, as MongoDB does.
fn number(counted: u64) -> Value {
    match i32::try_from(counted) {
        Ok(small) => Value::Int32(small),
        Err(_) => Value::Int64(i64::try_from(counted).unwrap_or(i64::MAX)),
    }
}

/// Counts all documents of a collection without reading them.
fn known_count(planned: &PlannedQuery) -> Result<Option<u64>> {
    let mut stages = planned.plan.stages.iter();
    if !stages.all(|stage| matches!(stage, PhysicalStage::Skip(_) | PhysicalStage::Limit(_))) {
        return Ok(None);
    }
    let all = match &planned.plan.input {
        Input::Records(input)
            if input.filter.is_none() && matches!(input.access, AccessPath::CollectionScan) =>
        {
            input.source.count_estimate()?
        }
        Input::Buckets(input) if input.reads_all() => match input.source.measurement_count()? {
            Some(count) => count,
            None => return Ok(None),
        },
        _ => return Ok(None),
    };
    let stages = planned.plan.stages.iter();
    Ok(Some(stages.fold(all, |count, stage| match stage {
        PhysicalStage::Skip(n) => count.saturating_sub(*n),
        PhysicalStage::Limit(n) => count.min(*n),
        _ => count,
    })))
}

/// Parses and plans a `count`: the matching documents without their fields.
pub(crate) fn plan(
    database: &Database,
    operation: &OperationContext,
    args: &Args<'_>,
) -> Result<PlannedQuery> {
    plan_for(database, operation, args, false)
}

/// With `adds_counts` the documents are counted by a stage, which partitions share: its only document has the number.
fn plan_for(
    database: &Database,
    operation: &OperationContext,
    args: &Args<'_>,
    adds_counts: bool,
) -> Result<PlannedQuery> {
    let collection = check_collection_name(args, "count")?;
    collection_uuid::check_read(database, args, &operation.database, collection)?;
    let options = QueryOptions::parse(database, operation, args, Some(collection))?;
    args.value("fields");
    let mut stages = Vec::new();
    if let Some(query) = args.document("query")? {
        let parsed = MatchExpression::parse_with_near(query, &options.expressions)?.simplify();
        let (near, filter) = parsed.take_near()?;
        if let Some((path, near)) = near {
            let stage = GeoNearStage::of_find(path, near, filter, false);
            stages.push(stage.into_stage());
        } else if !matches!(filter, MatchExpression::AlwaysTrue) {
            stages.push(Stage::Match(MatchStage {
                filter,
                source: query.to_document(),
            }));
        }
    }
    match args.integer_at_least("skip", 0)? {
        None | Some(0) => {}
        Some(n) => stages.push(Stage::Skip(n.unsigned_abs())),
    }
    // The sign of a limit is ignored, for old clients.
    match args.integer("limit")? {
        None | Some(0) => {}
        Some(n) => stages.push(Stage::Limit(n.unsigned_abs())),
    }
    let mut wanted = Needs::none();
    if adds_counts {
        let count = doc! {"$count": "n"};
        let cx = PipelineContext::top(options.expressions.clone());
        stages.extend(parse_pipeline(&cx, [count.as_ref()])?);
        wanted = Needs::All;
    }
    let hint = args.value("hint");
    let (builder, plan) = query::plan(
        database,
        operation,
        &options,
        Some(collection),
        stages,
        wanted.into(),
        |source| apply_hint(source, hint),
    )?;
    Ok(PlannedQuery {
        namespace: namespace_of(operation, collection),
        builder,
        plan,
    })
}
