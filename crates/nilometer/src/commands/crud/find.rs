//! `find`: filter, sort, skip, limit and projection over one collection or view.
//!
//! Its options become a pipeline (`$match`, `$sort`, `$skip`, `$limit`, projection), which is planned like
//! any other.

use std::sync::Arc;

use nilometer_bson::{Document, DocumentBuilder, ValueRef, doc};

use super::query;
use super::query::{PlannedQuery, QueryOptions, check_collection_name, namespace_of, open_cursor};
use super::resume;
use crate::args::Args;
use crate::auth::Action;
use crate::catalog::{CatalogEntry, Namespace};
use crate::commands::cursor_reply::FirstBatch;
use crate::commands::ddl::collection_uuid;
use crate::commands::generic::RAW_DATA;
use crate::commands::{
    Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter, OperationCounter,
};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result, location};
use crate::eval::matcher::MatchExpression;
use crate::eval::projection::MetaField;
use crate::eval::sort_key::SortPattern;
use crate::eval::{Collation, ParseContext};
use crate::operation::Request;
use crate::query::cursor::{FIRST_BATCH_DEFAULT, Tail};
use crate::query::pipeline::needs::Needs;
use crate::query::pipeline::{
    GeoNearStage, MatchStage, ProjectStage, ReplaceRootStage, SortStage, Stage, meta,
};
use crate::query::planner::access::bins::BinHint;
use crate::query::planner::access::choose::filter_shape_of;
use crate::query::planner::access::hint::{self, Forced, Hint};
use crate::query::planner::cut::not_over_partitions;
use crate::query::planner::logical::{LogicalRollup, LogicalSource};
use crate::query::planner::physical::{AccessPath, Input};
use crate::query::source::Direction;
use crate::services::LatencyClass;

pub(crate) const SPEC: CommandSpec = CommandSpec {
    access: Access::Read,
    latency: LatencyClass::Read,
    takes_memory: true,
    read_concern: true,
    in_api_v1: true,
    counted: OperationCounter::Query,
    fields: Fields::Only(FIELDS),
    ..CommandSpec::new(
        "find",
        "Finds documents.",
        Authorization::OnCollection(&[Action::Find]),
        OnRouter::Same,
        run,
    )
};

/// The options of `find`; `explain` reads them too.
pub(crate) const FIELDS: &[&str] = &[
    "filter",
    "sort",
    "projection",
    "hint",
    "skip",
    "limit",
    "batchSize",
    "singleBatch",
    "max",
    "min",
    "returnKey",
    "showRecordId",
    "tailable",
    "oplogReplay",
    "noCursorTimeout",
    "awaitData",
    "allowPartialResults",
    "collation",
    "allowDiskUse",
    "let",
    "mirrored",
    "ntoreturn",
    RAW_DATA,
    "$_requestResumeToken",
    "$_resumeAfter",
    collection_uuid::NAME,
];

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("find", request.body.as_ref());
    let planned = plan(database, &context.operation, &args)?;
    let first = FirstBatch {
        documents: args
            .integer_at_least("batchSize", 0)?
            .map_or(FIRST_BATCH_DEFAULT, |n| u64::try_from(n).unwrap_or(0)),
        single: args.lenient_boolean("singleBatch")?.unwrap_or(false),
        no_timeout: args.lenient_boolean("noCursorTimeout")?.unwrap_or(false),
        tail: tail(&args, &planned.plan.input)?,
        resume: resume::position(&args)?,
        stream: None,
    };
    open_cursor(database, &context.operation, planned, first, &request.body)
}

/// Parses and plans a `find`.
pub(crate) fn plan(
    database: &Database,
    operation: &crate::operation::OperationContext,
    args: &Args<'_>,
) -> Result<PlannedQuery> {
    let collection = check_collection_name(args, "find")?;
    collection_uuid::check_read(database, args, &operation.database, collection)?;
    refuse_unsupported(args)?;
    let tailable = is_tailable(database, operation, args, collection)?;
    let options = QueryOptions::parse(database, operation, args, Some(collection))?;
    let stages = stages(args, &options)?;
    let reads = |field: MetaField| {
        let mut projects = stages.iter();
        projects.any(|stage| matches!(stage, Stage::Project(project) if project.returns(field)))
    };
    let shows_record_id = args.lenient_boolean("showRecordId")?.unwrap_or(false);
    let adds_record_id = shows_record_id || reads(MetaField::RecordId);
    let returns_key = args.lenient_boolean("returnKey")?.unwrap_or(false);
    let adds_keys = returns_key || reads(MetaField::IndexKey);
    let hint = args.value("hint");
    // `{$natural: ±1}` as a sort order sets the direction of the scan, as the hint does.
    let order = match args.document("sort")? {
        Some(pattern) if is_natural(pattern)? => ValueRef::Document(pattern),
        _ => ValueRef::Missing,
    };
    let (builder, mut plan) = query::plan(
        database,
        operation,
        &options,
        Some(collection),
        stages,
        Needs::All.into(),
        |source| {
            apply_hint(source, hint)?;
            apply_hint(source, order)?;
            apply_limits(source, args)?;
            if adds_record_id {
                record_ids(source)?;
            }
            if adds_keys && matches!(source, LogicalSource::Partitions(_)) {
                return Err(not_over_partitions("returnKey"));
            }
            resume::apply(source, args)?;
            if tailable {
                follow(source)?;
            }
            Ok(())
        },
    )?;
    if adds_keys && let Input::Records(input) = &mut plan.input {
        match &mut input.access {
            AccessPath::Index(access) => access.adds_keys = true,
            AccessPath::IdLookup(_) if returns_key => {
                plan.stages.pop();
                let names = sort_key_names(args)?;
                let id = doc! {"_id": "$_id"};
                let stage = ReplaceRootStage::of_key(id, &names, &options.expressions)?;
                plan.stages.push(Stage::ReplaceRoot(stage).into());
            }
            _ => {}
        }
    }
    Ok(PlannedQuery {
        namespace: namespace_of(operation, collection),
        builder,
        plan,
    })
}

/// Returns the names that the projection gives to the sort key: all of it that `returnKey` leaves.
fn sort_key_names(args: &Args<'_>) -> Result<Vec<String>> {
    let Some(projection) = args.document("projection")? else {
        return Ok(Vec::new());
    };
    let is_sort_key = |value: ValueRef<'_>| {
        let meta = value.as_document().map(|meta| meta.get("$meta"));
        meta.and_then(ValueRef::as_str) == Some(MetaField::SortKey.operand())
    };
    let named = projection.iter().filter(|e| is_sort_key(e.value()));
    Ok(named.map(|element| element.name().to_owned()).collect())
}

/// Returns the stages that replace documents by the index keys they were found by. Without an index they are empty, as in
/// MongoDB.
fn key_stages(
    args: &Args<'_>,
    sort: Option<SortPattern>,
    expressions: &ParseContext,
) -> Result<Vec<Stage>> {
    let names = sort_key_names(args)?;
    let mut stages = Vec::new();
    if !names.is_empty() {
        let mut spec = DocumentBuilder::new();
        for name in &names {
            spec.append(name, doc! {"$meta": MetaField::SortKey.operand()});
        }
        let (spec, all) = (spec.finish(), MatchExpression::AlwaysTrue);
        let project = ProjectStage::of_find(spec.as_ref(), all, sort, false, expressions)?;
        stages.push(Stage::Project(project));
    }
    let key = doc! {"$meta": MetaField::IndexKey.operand()};
    let replace = ReplaceRootStage::of_key(key, &names, expressions)?;
    stages.push(Stage::ReplaceRoot(replace));
    Ok(stages)
}

/// Returns the hashes of the query shape that `query`, `sort`, `projection` and `collation` describe: that of
/// cached plans, and that of index filters.
pub(crate) fn query_hashes(
    database: &Database,
    operation: &crate::operation::OperationContext,
    args: &Args<'_>,
    collection: &str,
) -> Result<(Option<u32>, Option<u32>)> {
    let options = QueryOptions::parse(database, operation, args, Some(collection))?;
    let mut as_find = DocumentBuilder::new();
    for (own, name) in [
        ("query", "filter"),
        ("sort", "sort"),
        ("projection", "projection"),
    ] {
        if let Some(document) = args.document(own)? {
            as_find.append(name, document.to_document());
        }
    }
    let as_find = as_find.finish();
    let stages = stages(&Args::new("find", as_find.as_ref()), &options)?;
    let (_, plan) = query::plan(
        database,
        operation,
        &options,
        Some(collection),
        stages,
        Needs::All.into(),
        |_| Ok(()),
    )?;
    let hash = match &plan.input {
        Input::Records(input) => input.choice.query_hash,
        _ => None,
    };
    let collation = Collation::of(&options.expressions);
    Ok((hash, filter_shape_of(&plan, &collation)))
}

fn stages(args: &Args<'_>, options: &QueryOptions) -> Result<Vec<Stage>> {
    let expressions = &options.expressions;
    let mut stages = Vec::new();
    let mut filter = None;
    if let Some(document) = args.document("filter")? {
        let parsed = MatchExpression::parse_with_near(document, expressions)?.simplify();
        let (near, rest) = parsed.take_near()?;
        let is_sorted = args.document("sort")?.is_some_and(|sort| !sort.is_empty());
        if let Some((path, query)) = near {
            let stage = GeoNearStage::of_find(path, query, rest.clone(), !is_sorted);
            stages.push(stage.into_stage());
        } else if !matches!(rest, MatchExpression::AlwaysTrue) {
            stages.push(Stage::Match(MatchStage {
                filter: rest.clone(),
                source: document.to_document(),
            }));
        }
        filter = Some(rest);
    }
    let mut sort = None;
    if let Some(pattern) = args.document("sort")?.filter(|d| !d.is_empty())
        && !is_natural(pattern)?
    {
        let pattern =
            SortPattern::parse(pattern, expressions).map_err(|error| match error.code {
                ErrorCode(location::PATH_EMPTY) => error,
                // `$sort` has its own codes for errors that are a bad value in `find`.
                _ => Error {
                    code: ErrorCode::BadValue,
                    ..error
                },
            })?;
        sort = Some(pattern.clone());
        stages.push(Stage::Sort(SortStage::new(pattern)));
    }
    match args.integer_at_least("skip", 0)? {
        None | Some(0) => {}
        Some(n) => stages.push(Stage::Skip(u64::try_from(n).unwrap_or(0))),
    }
    match args.integer_at_least("limit", 0)? {
        None | Some(0) => {}
        Some(n) => stages.push(Stage::Limit(u64::try_from(n).unwrap_or(0))),
    }
    if args.lenient_boolean("returnKey")?.unwrap_or(false) {
        stages.extend(key_stages(args, sort, expressions)?);
        settle_text_score(args, &mut stages)?;
        return Ok(stages);
    }
    if let Some(projection) = args.document("projection")?.filter(|d| !d.is_empty()) {
        let filter = filter.unwrap_or(MatchExpression::AlwaysTrue);
        // The cursor reads the record id of a resumable scan, and takes it out.
        let resumable = resume::position(args)?.is_some();
        let shown = args.lenient_boolean("showRecordId")?.unwrap_or(false);
        let shows_record_id = shown || resumable;
        let project =
            ProjectStage::of_find(projection, filter, sort, shows_record_id, expressions)?;
        if let Some(Stage::GeoNear(near)) = stages.first_mut() {
            let known = [MetaField::GeoNearDistance, MetaField::GeoNearPoint];
            let asked = known.into_iter().filter(|field| project.returns(*field));
            Arc::make_mut(near).output.adds.extend(asked);
        }
        stages.push(Stage::Project(project));
    }
    settle_text_score(args, &mut stages)?;
    Ok(stages)
}

/// Connects sort and projection with the score of the filter's `$text`.
fn settle_text_score(args: &Args<'_>, stages: &mut Vec<Stage>) -> Result<()> {
    let readers = [args.document("sort")?, args.document("projection")?];
    let readers: Vec<_> = readers.into_iter().flatten().collect();
    if meta::is_mentioned(&readers) {
        meta::settle_text_score(stages)?;
    }
    Ok(())
}

fn is_natural(document: nilometer_bson::DocRef<'_>) -> Result<bool> {
    let mut elements = document.iter();
    let Some(first) = elements.next() else {
        return Ok(false);
    };
    if first.name() != "$natural" {
        return Ok(false);
    }
    natural_direction(first.value())?;
    if elements.next().is_some() {
        return Err(Error::bad_value(
            "$natural sort cannot be combined with other sort fields",
        ));
    }
    Ok(true)
}

/// Returns the direction of `{$natural: ±1}`; `None` for another document.
pub(crate) fn natural_direction_of(
    document: nilometer_bson::DocRef<'_>,
) -> Result<Option<Direction>> {
    if is_natural(document)? {
        natural_direction(document.get("$natural")).map(Some)
    } else {
        Ok(None)
    }
}

fn natural_direction(value: ValueRef<'_>) -> Result<Direction> {
    match crate::args::truncated_i64(value) {
        Some(1) => Ok(Direction::Forward),
        Some(-1) => Ok(Direction::Backward),
        _ => Err(Error::bad_value(
            "$natural hint may only accept one of: 1, -1",
        )),
    }
}

/// Applies the hint to the plan; refuses a hint that names no index.
pub(crate) fn apply_hint(source: &mut LogicalSource, hint: ValueRef<'_>) -> Result<()> {
    match hint {
        ValueRef::Missing | ValueRef::Null => return Ok(()),
        ValueRef::Document(document) if document.is_empty() => return Ok(()),
        ValueRef::Document(document) if is_natural(document)? => {
            let direction = natural_direction(document.get("$natural"))?;
            match source {
                LogicalSource::Records(scan) => {
                    scan.direction = direction;
                    scan.is_natural = true;
                }
                LogicalSource::Measurements(scan) => {
                    scan.direction = direction;
                    scan.is_direction_fixed = true;
                    scan.is_natural = true;
                }
                LogicalSource::Partitions(scan) => scan.hint = hint.to_value(),
                LogicalSource::Rollup(LogicalRollup::Documents(_, own)) => *own = BinHint::Natural,
                LogicalSource::Nothing | LogicalSource::FirstStage | LogicalSource::Rollup(_) => {}
            }
            return Ok(());
        }
        ValueRef::Document(_) | ValueRef::String(_) => {}
        _ => {
            return Err(Error::failed_to_parse("Hint must be a string or an object"));
        }
    }
    let known = match source {
        LogicalSource::Nothing | LogicalSource::FirstStage => true,
        // Each partition looks for the index.
        LogicalSource::Partitions(scan) => {
            scan.hint = hint.to_value();
            true
        }
        LogicalSource::Rollup(LogicalRollup::Documents(rollup, own)) => {
            let named = Hint::of(hint);
            *own = BinHint::named(&rollup.stored, &named.ok_or_else(hint::unknown)?)?;
            true
        }
        LogicalSource::Rollup(LogicalRollup::States(_)) => false,
        LogicalSource::Records(scan) => {
            let forced = Hint::of(hint).map(|hint| Forced {
                hint,
                min: None,
                max: None,
            });
            // Sources without indexes, and collections clustered by `_id`, check the hint themselves.
            if scan.source.is_clustered() && scan.source.knows_index(hint) {
                scan.is_natural = true;
                true
            } else if scan.source.view()?.is_some() {
                scan.forced = forced;
                true
            } else {
                scan.source.knows_index(hint)
            }
        }
        LogicalSource::Measurements(scan) => {
            scan.hint = scan.source.hinted(hint)?;
            scan.hint.is_some()
        }
    };
    if known { Ok(()) } else { Err(hint::unknown()) }
}

/// Limits the scan to the keys between `min` and `max` of the hinted index.
fn apply_limits(source: &mut LogicalSource, args: &Args<'_>) -> Result<()> {
    let bound = |name: &str| -> Result<Option<Document>> {
        let given = args.document(name)?.filter(|bound| !bound.is_empty());
        Ok(given.map(|bound| bound.to_document()))
    };
    let (min, max) = (bound("min")?, bound("max")?);
    if min.is_none() && max.is_none() {
        return Ok(());
    }
    match source {
        LogicalSource::Records(scan) => match &mut scan.forced {
            Some(forced) => {
                forced.min = min;
                forced.max = max;
                Ok(())
            }
            None => Err(without_hint()),
        },
        LogicalSource::Partitions(_) => Err(not_over_partitions("A find with min or max")),
        LogicalSource::Measurements(_) | LogicalSource::Rollup(_) => Err(Error::new(
            ErrorCode::CommandNotSupported,
            "min and max are not supported on a time-series collection",
        )),
        LogicalSource::Nothing | LogicalSource::FirstStage => Ok(()),
    }
}

fn without_hint() -> Error {
    Error::location(
        location::MIN_MAX_WITHOUT_HINT,
        "When using min()/max() a hint of which index to use must be provided",
    )
}

fn record_ids(source: &mut LogicalSource) -> Result<()> {
    match source {
        LogicalSource::Records(scan) => {
            scan.show_record_id = true;
            Ok(())
        }
        LogicalSource::Partitions(_) => Err(not_over_partitions("showRecordId")),
        LogicalSource::Measurements(_) | LogicalSource::Rollup(_) => Err(Error::new(
            ErrorCode::InvalidPipelineOperator,
            "showRecordId is not supported on a time-series collection",
        )),
        LogicalSource::Nothing | LogicalSource::FirstStage => Ok(()),
    }
}

/// True if the cursor is tailable; checks the options that exclude each other.
fn is_tailable(
    database: &Database,
    operation: &crate::operation::OperationContext,
    args: &Args<'_>,
    collection: &str,
) -> Result<bool> {
    let tailable = args.lenient_boolean("tailable")?.unwrap_or(false);
    if args.lenient_boolean("awaitData")?.unwrap_or(false) && !tailable {
        return Err(Error::failed_to_parse(
            "Cannot set 'awaitData' without also setting 'tailable'",
        ));
    }
    if !tailable {
        return Ok(false);
    }
    let namespace = Namespace::new(&operation.database, collection)?;
    if let Some(CatalogEntry::View(_)) = database.catalog().get(&namespace) {
        return Err(Error::new(
            ErrorCode::InvalidPipelineOperator,
            "Option tailable not supported in aggregation.",
        ));
    }
    if args.lenient_boolean("singleBatch")?.unwrap_or(false) {
        return Err(Error::bad_value(
            "cannot use tailable option with the 'singleBatch' option",
        ));
    }
    let asks_for_other = |name: &str| -> Result<bool> {
        Ok(match args.value(name) {
            ValueRef::Document(order) if order.is_empty() => false,
            ValueRef::Document(order) => natural_direction_of(order)? != Some(Direction::Forward),
            ValueRef::String(_) => true,
            _ => false,
        })
    };
    if asks_for_other("sort")? || asks_for_other("hint")? {
        return Err(Error::bad_value(
            "cannot use tailable option with a sort other than {$natural: 1}",
        ));
    }
    Ok(true)
}

/// Plans a tailing scan: a capped collection in its order, then its new documents.
fn follow(source: &mut LogicalSource) -> Result<()> {
    match source {
        LogicalSource::Records(scan) if scan.source.arrivals()?.is_some() => {
            scan.is_natural = true;
            scan.is_tail = true;
            Ok(())
        }
        // There is nothing to wait for.
        LogicalSource::Nothing | LogicalSource::FirstStage => Ok(()),
        LogicalSource::Partitions(_) => Err(not_over_partitions("A tailable cursor")),
        LogicalSource::Records(_) | LogicalSource::Measurements(_) | LogicalSource::Rollup(_) => {
            Err(Error::bad_value(
                "error processing query: tailable cursor requested on non capped collection",
            ))
        }
    }
}

/// Returns the tail state of a planned query, if it tails.
fn tail(args: &Args<'_>, input: &Input) -> Result<Option<Tail>> {
    let Input::Records(input) = input else {
        return Ok(None);
    };
    match input.source.arrivals()? {
        Some(arrivals) if input.is_tail => Ok(Some(Tail {
            arrivals,
            awaits: args.lenient_boolean("awaitData")?.unwrap_or(false),
        })),
        _ => Ok(None),
    }
}

fn refuse_unsupported(args: &Args<'_>) -> Result<()> {
    let bounds = ["min", "max"];
    for name in bounds {
        let hinted = !matches!(args.value("hint"), ValueRef::Missing | ValueRef::Null);
        if args.document(name)?.is_some_and(|d| !d.is_empty()) && !hinted {
            return Err(without_hint());
        }
    }
    if !matches!(args.value("ntoreturn"), ValueRef::Missing | ValueRef::Null) {
        return Err(Error::new(
            ErrorCode::CommandNotSupported,
            "find option 'ntoreturn' is not supported",
        ));
    }
    for name in ["oplogReplay", "allowPartialResults", "mirrored"] {
        args.lenient_boolean(name)?;
    }
    Ok(())
}
