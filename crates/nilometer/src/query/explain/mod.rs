//! Explain: a physical plan and its figures, in MongoDB's terms.
//!
//! ```text
//! ordinary collection   queryPlanner.winningPlan: LIMIT ► PROJECTION ► SORT ► COLLSCAN …
//!   with stages that `find` does not have         stages: [{$cursor: {queryPlanner}}, {$group}, …]
//! time-series           stages: [{$cursor: {queryPlanner: COLLSCAN or CLUSTERED_IXSCAN of buckets}},
//!                                {$_internalUnpackBucket: {include, eventFilter, …}}, …]
//! ```
//!
//! Each stage has the name of the MongoDB stage with the same function. Figures are counted while the query runs;
//! nothing is estimated.

mod by_index;
mod partitions;
mod text;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, array, doc};

use crate::error::Error;
use crate::index::buckets::BucketIndex;
use crate::query::batch::FieldSet;
use crate::query::exec::OperatorStats;
use crate::query::exec::build::Trace;
use crate::query::planner::access::choose::explain_hashes;
use crate::query::planner::access::{ID_INDEX, IndexAccess};
use crate::query::planner::physical::{
    AccessPath, BucketInput, BucketOrder, Input, MetaInput, PhysicalPlan, PhysicalSort,
    PhysicalStage, RecordInput, RollupInput,
};
use crate::query::source::{BucketEntries, BucketPredicate, Direction, highest_id, lowest_id};

pub(crate) use partitions::{shown_stages, stage_name};

/// The figures of a finished run.
#[derive(Clone, Copy, Debug)]
pub struct Execution<'a> {
    /// The figures of each operator.
    pub trace: &'a Trace,
    /// The number of documents returned.
    pub returned: u64,
    /// The duration in milliseconds.
    pub millis: i64,
    /// True to include the candidates that were tried.
    pub all_plans: bool,
    /// The error that ended the run.
    pub failed: Option<&'a Error>,
}

/// The top stage that a command adds.
#[derive(Clone, Copy, Debug)]
pub struct Top<'a> {
    /// `COUNT`, `UPDATE`, `DELETE`.
    pub name: &'static str,
    /// The figures of what it did, or would have done.
    pub figures: Option<&'a Document>,
}

/// Explains a plan, without the fields that only a server has (host, version, command).
///
/// `namespace` is the namespace the client reads; `top` is the top stage of the command (`COUNT`).
pub fn explain(
    plan: &PhysicalPlan,
    namespace: &str,
    top: Option<Top<'_>>,
    execution: Option<Execution<'_>>,
) -> Document {
    let mut out = DocumentBuilder::new();
    out.append("explainVersion", "1");
    match as_find_tree(plan, top, execution) {
        Some(steps) => {
            planner_and_stats(&mut out, plan, namespace, &steps, top, execution);
        }
        None => {
            let mut stages = vec![Value::from(cursor_stage(plan, namespace, execution))];
            let by_headers = group_by_headers(plan);
            if let (Input::Buckets(input), None) = (&plan.input, &by_headers) {
                stages.extend(span_guard(plan, input).map(Value::from));
                stages.push(unpack_stage(input, execution).into());
            }
            let sort = sort_of_buckets(plan);
            for (at, stage) in plan.stages.iter().enumerate() {
                if text::is_hidden(stage) {
                    continue;
                }
                if at == 0
                    && let Some(sort) = sort
                {
                    // The sort is part of the tree below; only its limit remains here.
                    let limit = sort.stage.limit.map(PhysicalStage::Limit);
                    stages.extend(limit.map(|limit| limit.explain().into()));
                    continue;
                }
                let stats = execution.and_then(|e| e.trace.stages.get(at));
                let shown = match &by_headers {
                    Some(group) if at == 0 => group.clone(),
                    _ => stage.explain(),
                };
                stages.push(with_stats(shown, stats.map(|s| &**s)).into());
            }
            out.append("stages", stages);
        }
    }
    out.finish()
}

/// Returns the `$group` that reads bucket headers only, in their terms.
fn group_by_headers(plan: &PhysicalPlan) -> Option<Document> {
    let (Input::Buckets(input), Some(PhysicalStage::Group(group))) =
        (&plan.input, plan.stages.first())
    else {
        return None;
    };
    if input.unpack.event_filter.is_some() && !input.unpack.takes_whole {
        return None;
    }
    let aggregate = group.from_bounds.as_ref()?;
    Some(doc! {"$group": aggregate.shown(&group.stage.source)})
}

/// Returns the assertion of a sort by descending starts on each bucket, where MongoDB shows it. It excludes no bucket.
fn span_guard(plan: &PhysicalPlan, input: &BucketInput) -> Option<Document> {
    let Some(PhysicalStage::Sort(sort)) = plan.stages.first() else {
        return None;
    };
    let span_ms = sort.guarded_span_ms()?;
    let time = &input.source.options().time_field;
    let bound = |side: &str| format!("$control.{side}.{time}");
    let spanned = doc! {"$subtract": array![bound("max"), bound("min")]};
    let condition = doc! {"$lte": array![spanned, doc! {"$const": span_ms}]};
    Some(doc! {"$match": doc! {"$expr": condition}})
}

/// A stage of a `find`, and the position of its figures among the operators.
struct Step {
    document: Document,
    stats: Option<usize>,
}

/// Returns the plan as the tree of a `find`, lowest stage first; `None` if it has other stages.
fn as_find_tree(
    plan: &PhysicalPlan,
    top: Option<Top<'_>>,
    execution: Option<Execution<'_>>,
) -> Option<Vec<Step>> {
    let base = match &plan.input {
        Input::Nothing => doc! {"stage": "EOF"},
        Input::Records(input) => {
            let counts = top.is_some_and(|top| top.name == "COUNT");
            record_step(plan, input, counts, execution)
        }
        Input::FirstStage
        | Input::Buckets(_)
        | Input::Metas(_)
        | Input::Partitions(_)
        | Input::Rollup(_) => return None,
    };
    let mut steps = vec![Step {
        document: base,
        stats: None,
    }];
    let shown = plan.stages.iter().enumerate();
    for (at, stage) in shown.filter(|(_, stage)| !text::is_hidden(stage)) {
        let document = match stage {
            PhysicalStage::Sort(sort) => {
                let mut out = DocumentBuilder::new();
                out.append("stage", "SORT");
                out.append("sortPattern", sort.stage.pattern.to_document());
                if let Some(limit) = sort.stage.limit {
                    out.append("limitAmount", i64::try_from(limit).unwrap_or(i64::MAX));
                }
                out.append("type", "simple");
                out.finish()
            }
            PhysicalStage::Skip(n) => {
                doc! {"stage": "SKIP", "skipAmount": i64::try_from(*n).unwrap_or(i64::MAX)}
            }
            PhysicalStage::Limit(n) => {
                doc! {"stage": "LIMIT", "limitAmount": i64::try_from(*n).unwrap_or(i64::MAX)}
            }
            PhysicalStage::Project(project) if project.name() == "$project" => {
                let simple = project.narrows(&FieldSet::All).is_some();
                let name = if index_access(plan).is_some_and(|a| a.covering.is_some()) {
                    "PROJECTION_COVERED"
                } else if simple {
                    "PROJECTION_SIMPLE"
                } else {
                    "PROJECTION_DEFAULT"
                };
                doc! {"stage": name, "transformBy": project.source.clone()}
            }
            other => match other.as_geo_distance() {
                // A stage that writes distances belongs to a pipeline.
                Some(near) if near.output.is_ordered => by_index::near(index_access(plan)?, near)?,
                _ => return None,
            },
        };
        steps.push(Step {
            document,
            stats: Some(at),
        });
    }
    Some(steps)
}

fn index_access(plan: &PhysicalPlan) -> Option<&IndexAccess> {
    match &plan.input {
        Input::Records(input) => match &input.access {
            AccessPath::Index(access) => Some(access),
            _ => None,
        },
        _ => None,
    }
}

/// Returns a short description of the access path: `COLLSCAN`, `IXSCAN { a: 1 }`.
pub fn plan_summary(plan: &PhysicalPlan) -> Arc<str> {
    let by = |step: &str, key: &Document| Arc::from(format!("{step} {}", shell_text(key)));
    match &plan.input {
        Input::Nothing => Arc::from("EOF"),
        Input::FirstStage => Arc::from("VIRTUAL_SCAN"),
        Input::Records(input) => match &input.access {
            AccessPath::Index(access) => Arc::from(by_index::summary(access)),
            AccessPath::IdLookup(_) => by("EXPRESS_IXSCAN", &doc! {"_id": 1}),
            AccessPath::CollectionScan => Arc::from("COLLSCAN"),
            AccessPath::ClusteredScan { .. } => Arc::from(bounded_step(input)),
        },
        Input::Buckets(input) => match &input.buckets.index {
            Some(choice) => by("IXSCAN", &choice.index.stored.spec.key),
            None => Arc::from("COLLSCAN"),
        },
        Input::Metas(input) => by("DISTINCT_SCAN", &input.index.stored.spec.key),
        Input::Partitions(input) => Arc::from(stage_name(input)),
        Input::Rollup(input) => match &input.index {
            Some(access) => Arc::from(by_index::summary(access)),
            None => Arc::from("ROLLUP"),
        },
    }
}

/// Returns the name of a bounded scan: the oplog has no clustered index.
fn bounded_step(input: &RecordInput) -> &'static str {
    match input.source.cluster_field() {
        "_id" => "CLUSTERED_IXSCAN",
        _ => "COLLSCAN",
    }
}

/// Formats a key pattern: `{ a: 1, b: -1 }`.
fn shell_text(key: &Document) -> String {
    let parts = key.iter().map(|part| {
        let direction = match part.value() {
            ValueRef::String(kind) => format!("\"{kind}\""),
            number => number.as_exact_i64().unwrap_or(1).to_string(),
        };
        format!("{}: {direction}", part.name())
    });
    format!("{{ {} }}", parts.collect::<Vec<_>>().join(", "))
}

fn record_step(
    plan: &PhysicalPlan,
    input: &RecordInput,
    counts: bool,
    execution: Option<Execution<'_>>,
) -> Document {
    let mut out = DocumentBuilder::new();
    match &input.access {
        AccessPath::Index(access) => {
            let stats = execution.map(|e| &e.trace.access);
            return text::tree(plan, input, access, stats)
                .unwrap_or_else(|| by_index::tree(access, counts, stats));
        }
        AccessPath::IdLookup(_) => {
            out.append("stage", "EXPRESS_IXSCAN");
            out.append("keyPattern", doc! {"_id": 1});
            out.append("indexName", "_id_");
            return out.finish();
        }
        AccessPath::CollectionScan => out.append("stage", "COLLSCAN"),
        AccessPath::ClusteredScan { .. } => out.append("stage", bounded_step(input)),
    };
    if let Some(filter) = &input.filter {
        out.append("filter", filter.to_document());
    }
    out.append("direction", input.direction.name());
    if let AccessPath::ClusteredScan { min, max } = &input.access {
        for (name, key) in [("minRecord", min), ("maxRecord", max)] {
            if let Some(bound) = key {
                out.append(name, bound.value.clone());
            }
        }
    }
    out.finish()
}

/// Returns a bucket's key as the object id it is; any other key as bytes.
fn record_id(key: &[u8]) -> Value {
    match <[u8; 12]>::try_from(key) {
        Ok(id) => Value::ObjectId(nilometer_bson::ObjectId(id)),
        Err(_) => ValueRef::Binary {
            subtype: 0,
            bytes: key,
        }
        .to_value(),
    }
}

/// Describes an index over buckets: its key pattern as listed, and the bounds of the stored parts.
fn bucket_index_step(
    stage: &str,
    index: &BucketIndex,
    bounds: Option<Document>,
    direction: Direction,
) -> Document {
    let mut out = DocumentBuilder::new();
    let spec = &index.stored.spec;
    out.append("stage", stage);
    out.append("keyPattern", spec.key.clone());
    out.append("indexName", spec.name.as_str());
    out.append("collation", spec.collation.clone());
    out.append("isMultiKey", index.stored.multikey() != 0);
    out.append("isUnique", false);
    out.append("isSparse", spec.sparse);
    out.append("isPartial", spec.partial_filter.is_some());
    out.append("indexVersion", 2);
    out.append("direction", direction.name());
    if let Some(bounds) = bounds {
        out.begin_document("indexBounds");
        if index.index().is_wildcard() {
            for part in bounds.iter() {
                out.append_element(part);
            }
            out.end();
            return out.finish();
        }
        // Of the two bounds of the time only the start is stored.
        for part in spec.key.iter() {
            match bounds.get(part.name()) {
                ValueRef::Missing => {
                    out.append(part.name(), vec![Value::from("[MinKey, MaxKey]")]);
                }
                known => {
                    out.append_ref(part.name(), known);
                }
            }
        }
        out.end();
    }
    out.finish()
}

fn meta_step(input: &MetaInput) -> Document {
    let bounds = input.bounds.clone();
    let step = bucket_index_step("DISTINCT_SCAN", &input.index, bounds, Direction::Forward);
    let Some(filter) = &input.filter else {
        return step;
    };
    let mut out = DocumentBuilder::new();
    for element in step.iter() {
        out.append_element(element);
        if element.name() == "stage" {
            out.append("filter", filter.to_document());
        }
    }
    out.finish()
}

fn bucket_step(input: &BucketInput) -> Document {
    let predicate = &input.buckets.predicate;
    let filter = (!predicate.is_always()).then(|| predicate.to_document());
    buckets_read(input, filter)
}

/// Describes how the bins of a rollup are read.
fn rollup_step(input: &RollupInput) -> Document {
    let mut out = DocumentBuilder::extending(input.explain());
    let keys = input.index.as_ref().map(|access| by_index::keys(access));
    out.append("inputStage", keys);
    out.finish()
}

/// Describes how buckets are read, with the filter of the scan.
pub fn buckets_read(input: &BucketInput, filter: Option<Document>) -> Document {
    let mut out = DocumentBuilder::new();
    let buckets = &input.buckets;
    if let Some(choice) = &buckets.index {
        let stage = match choice.entries {
            BucketEntries::Newest(_) | BucketEntries::Oldest(_) => "DISTINCT_SCAN",
            BucketEntries::Within(_)
            | BucketEntries::InIdOrder(_)
            | BucketEntries::InIndexOrder { .. } => "IXSCAN",
        };
        let bounds = choice.bounds.explain(&choice.shape, false);
        out.append("stage", "FETCH");
        out.append("filter", filter);
        let direction = match choice.entries {
            BucketEntries::InIndexOrder { backward: true, .. } => Direction::Backward,
            _ => Direction::Forward,
        };
        let below = bucket_index_step(stage, &choice.index, Some(bounds), direction);
        out.append("inputStage", below);
        return out.finish();
    }
    let bounded = buckets.id_min.is_some() || buckets.id_max.is_some();
    out.append(
        "stage",
        if bounded {
            "CLUSTERED_IXSCAN"
        } else {
            "COLLSCAN"
        },
    );
    out.append("filter", filter);
    out.append("direction", input.direction.name());
    if let Some(min) = buckets.id_min {
        out.append("minRecord", record_id(&lowest_id(min)));
    }
    if let Some(max) = buckets.id_max {
        out.append("maxRecord", record_id(&highest_id(max)));
    }
    out.finish()
}

/// Returns the input stage, below the stage of the index that measures distances.
fn input_step(plan: &PhysicalPlan, execution: Option<Execution<'_>>) -> Document {
    let below = scan_step(plan, execution);
    match near_step(plan) {
        Some(step) => {
            let mut out = DocumentBuilder::new();
            for element in step.iter() {
                out.append_element(element);
            }
            out.append("inputStage", below);
            out.finish()
        }
        None => below,
    }
}

/// Returns the stage above a read by a geographic index in order of distance.
fn near_step(plan: &PhysicalPlan) -> Option<Document> {
    let near = plan.stages.first()?.as_geo_distance()?;
    by_index::near(index_access(plan)?, near)
}

fn scan_step(plan: &PhysicalPlan, execution: Option<Execution<'_>>) -> Document {
    match &plan.input {
        Input::Nothing => doc! {"stage": "EOF"},
        Input::FirstStage => doc! {"stage": "VIRTUAL_SCAN"},
        Input::Records(input) => record_step(plan, input, false, execution),
        Input::Buckets(input) => above_buckets(plan, input),
        Input::Metas(input) => meta_step(input),
        Input::Partitions(input) => partitions::step(input),
        Input::Rollup(input) => rollup_step(input),
    }
}

/// Describes how buckets are read, and the stages on buckets before unpacking.
fn above_buckets(plan: &PhysicalPlan, input: &BucketInput) -> Document {
    let below = bucket_step(input);
    let amount = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    if let Some(limit) = input.limit {
        return doc! {"stage": "LIMIT", "limitAmount": amount(limit), "inputStage": below};
    }
    if let Some(size) = input.sample {
        return doc! {
            "stage": "SAMPLE_FROM_TIMESERIES_BUCKET", "sampleSize": amount(size), "inputStage": below,
        };
    }
    let Some(sort) = sort_of_buckets(plan) else {
        return below;
    };
    let mut pattern = DocumentBuilder::new();
    let meta_field = input.source.options().meta_field.clone();
    for part in sort.stage.pattern.to_document().iter() {
        let rest = meta_field
            .as_deref()
            .and_then(|meta| part.name().strip_prefix(meta));
        pattern.append_ref(&format!("meta{}", rest.unwrap_or("")), part.value());
    }
    doc! {
        "stage": "SORT",
        "sortPattern": pattern.finish(),
        "limitAmount": sort.stage.limit.map(amount),
        "type": "default",
        "inputStage": below,
    }
}

/// Returns the sort that orders buckets but not the measurements in them.
fn sort_of_buckets(plan: &PhysicalPlan) -> Option<&PhysicalSort> {
    match plan.stages.first() {
        Some(PhysicalStage::Sort(sort)) if sort.buckets == Some(BucketOrder::Metadata) => {
            Some(sort)
        }
        _ => None,
    }
}

fn stored_namespace<'a>(plan: &'a PhysicalPlan, namespace: &'a str) -> &'a str {
    match &plan.input {
        Input::Records(input) => &input.namespace,
        Input::Buckets(input) => &input.namespace,
        Input::Metas(input) => &input.namespace,
        Input::Partitions(input) => &input.namespace,
        Input::Rollup(input) => &input.rollup.namespace,
        Input::Nothing | Input::FirstStage => namespace,
    }
}

/// Returns the filter of the scan.
fn parsed_query(plan: &PhysicalPlan) -> Document {
    match &plan.input {
        Input::Records(input) => input
            .filter
            .as_ref()
            .map_or_else(Document::new, |filter| filter.to_document()),
        Input::Buckets(input) => input.buckets.predicate.to_document(),
        Input::Rollup(input) => {
            let filter = input.key_filter.as_ref();
            filter.map_or_else(Document::new, |filter| filter.to_document())
        }
        Input::Nothing | Input::FirstStage | Input::Metas(_) | Input::Partitions(_) => {
            Document::new()
        }
    }
}

fn query_planner(plan: &PhysicalPlan, namespace: &str, winning: Document) -> Document {
    let mut out = DocumentBuilder::new();
    out.append("namespace", stored_namespace(plan, namespace));
    out.append("parsedQuery", parsed_query(plan));
    let choice = match &plan.input {
        Input::Records(input) => Some(&*input.choice),
        _ => None,
    };
    out.append(
        "indexFilterSet",
        choice.is_some_and(|choice| choice.is_filtered),
    );
    if let Some(choice) = choice {
        explain_hashes(choice, &mut out);
    }
    out.append("maxIndexedOrSolutionsReached", false);
    out.append("maxIndexedAndSolutionsReached", false);
    out.append("maxScansToExplodeReached", false);
    let fired = plan.fired.iter().map(|name| Value::from(*name));
    out.append("rulesApplied", fired.collect::<Vec<_>>());
    match (index_access(plan), choice) {
        (Some(_), Some(choice)) => {
            out.begin_document("winningPlan");
            out.append("isCached", choice.is_cached);
            for element in winning.iter() {
                out.append_element(element);
            }
            out.end();
        }
        _ => {
            out.append("winningPlan", winning);
        }
    }
    out.append(
        "rejectedPlans",
        choice.map(by_index::rejected).unwrap_or_default(),
    );
    out.finish()
}

/// Nests the stages: the last is the root, and each has the one below as `inputStage`.
fn tree(
    steps: &[Step],
    top: Option<Top<'_>>,
    figures: impl Fn(&Step, &mut DocumentBuilder),
) -> Document {
    let mut below: Option<Document> = None;
    for step in steps {
        let mut out = DocumentBuilder::new();
        for element in step.document.iter() {
            out.append_element(element);
            if element.name() == "stage" {
                figures(step, &mut out);
            }
        }
        if let Some(below) = below.take() {
            out.append("inputStage", below);
        }
        below = Some(out.finish());
    }
    let below = below.unwrap_or_default();
    let Some(top) = top else {
        return below;
    };
    let mut out = DocumentBuilder::new();
    out.append("stage", top.name);
    for element in top.figures.iter().flat_map(|figures| figures.iter()) {
        out.append_element(element);
    }
    out.append("inputStage", below);
    out.finish()
}

fn planner_and_stats(
    out: &mut DocumentBuilder,
    plan: &PhysicalPlan,
    namespace: &str,
    steps: &[Step],
    top: Option<Top<'_>>,
    execution: Option<Execution<'_>>,
) {
    let plain = as_find_tree(plan, top, None).unwrap_or_default();
    let bare = top.map(|top| Top {
        figures: None,
        ..top
    });
    let winning = tree(&plain, bare, |_, _| {});
    out.append("queryPlanner", query_planner(plan, namespace, winning));
    if let Some(execution) = execution {
        let trace = execution.trace;
        // A count returns a number only.
        let counted = doc! {
            "nReturned": 0,
            "nCounted": i64::try_from(execution.returned).unwrap_or(i64::MAX),
            "nSkipped": 0,
        };
        let top = top.map(|top| match (top.name, top.figures) {
            ("COUNT", None) => Top {
                figures: Some(&counted),
                ..top
            },
            _ => top,
        });
        let stages = tree(steps, top, |step, out| match step.stats {
            Some(at) => {
                if let Some(stats) = trace.stages.get(at) {
                    step_figures(out, stats);
                }
            }
            None if index_access(plan).is_some() => {}
            None => {
                step_figures(out, &trace.input);
                out.append("docsExamined", examined(trace).1);
            }
        });
        out.append("executionStats", execution_stats(plan, execution, stages));
    }
}

fn step_figures(out: &mut DocumentBuilder, stats: &OperatorStats) {
    let (returned, millis) = figures(stats);
    out.append("nReturned", returned);
    out.append("executionTimeMillisEstimate", millis);
}

fn figures(stats: &OperatorStats) -> (i64, i64) {
    let read = |n: &std::sync::atomic::AtomicU64| {
        i64::try_from(n.load(Ordering::Relaxed)).unwrap_or(i64::MAX)
    };
    (read(&stats.returned), read(&stats.nanos) / 1_000_000)
}

/// Returns the keys and documents that the scan examined.
fn examined(trace: &Trace) -> (i64, i64) {
    let read = |n: &std::sync::atomic::AtomicU64| {
        i64::try_from(n.load(Ordering::Relaxed)).unwrap_or(i64::MAX)
    };
    (read(&trace.scan.keys), read(&trace.scan.documents))
}

fn execution_stats(plan: &PhysicalPlan, execution: Execution<'_>, stages: Document) -> Document {
    let (keys, documents) = examined(execution.trace);
    let mut out = DocumentBuilder::new();
    out.append("executionSuccess", execution.failed.is_none());
    if let Some(error) = execution.failed {
        out.append("errorMessage", error.message.as_str());
        out.append("errorCode", error.code.0);
    }
    out.append(
        "nReturned",
        i64::try_from(execution.returned).unwrap_or(i64::MAX),
    );
    out.append("executionTimeMillis", execution.millis);
    out.append("totalKeysExamined", keys);
    out.append("totalDocsExamined", documents);
    out.append("executionStages", stages);
    if execution.all_plans {
        let all = match (&plan.input, index_access(plan)) {
            (Input::Records(input), Some(_)) => {
                let chosen = record_step(plan, input, false, None);
                by_index::all_plans(&input.choice, &chosen)
            }
            _ => Vec::new(),
        };
        out.append("allPlansExecution", all);
    }
    out.finish()
}

fn cursor_stage(
    plan: &PhysicalPlan,
    namespace: &str,
    execution: Option<Execution<'_>>,
) -> Document {
    let mut cursor = DocumentBuilder::new();
    let step = input_step(plan, None);
    cursor.append("queryPlanner", query_planner(plan, namespace, step));
    if let Some(execution) = execution {
        let step = input_step(plan, Some(execution));
        let steps = [Step {
            document: step,
            stats: None,
        }];
        let trace = execution.trace;
        let is_buckets = matches!(plan.input, Input::Buckets(_) | Input::Metas(_));
        let by_index = index_access(plan).is_some();
        let stages = tree(&steps, None, |_, out| {
            if by_index {
                return;
            }
            let returned = if is_buckets {
                &trace.scan.returned
            } else {
                &trace.input.returned
            };
            let returned = returned.load(Ordering::Relaxed);
            out.append("nReturned", i64::try_from(returned).unwrap_or(i64::MAX));
            let (keys, documents) = examined(trace);
            out.append("docsExamined", documents);
            if keys > 0 {
                out.append("keysExamined", keys);
            }
        });
        cursor.append("executionStats", execution_stats(plan, execution, stages));
    }
    let name = match near_step(plan) {
        Some(_) => "$geoNearCursor",
        None => "$cursor",
    };
    let mut document = DocumentBuilder::new();
    document.append(name, cursor.finish());
    let document = document.finish();
    with_stats(document, None)
}

fn unpack_stage(input: &BucketInput, execution: Option<Execution<'_>>) -> Document {
    let options = input.source.options();
    let mut out = DocumentBuilder::new();
    out.begin_document("$_internalUnpackBucket");
    let names = |names: &std::collections::BTreeSet<std::sync::Arc<str>>| -> Vec<Value> {
        names.iter().map(|name| Value::from(&**name)).collect()
    };
    match &input.unpack.fields {
        FieldSet::All => out.append("exclude", Vec::<Value>::new()),
        FieldSet::Only(fields) => out.append("include", names(fields)),
        FieldSet::Except(fields) => out.append("exclude", names(fields)),
    };
    out.append("timeField", &*options.time_field);
    out.append("metaField", options.meta_field.as_deref());
    let computed = input.unpack.computed.iter();
    let computed = computed.flat_map(|stage| stage.computed().into_iter());
    let computed: Vec<Value> = computed.map(|(name, _)| name.into()).collect();
    if !computed.is_empty() {
        out.append("computedMetaProjFields", computed);
    }
    out.append("bucketMaxSpanSeconds", options.bucket_max_span_seconds);
    if options.fixed_buckets {
        out.append("fixedBuckets", true);
    }
    let takes_whole = input.unpack.takes_whole;
    if let Some(filter) = input.unpack.event_filter.as_ref().filter(|_| !takes_whole) {
        out.append("eventFilter", filter.to_document());
    }
    if let Some(filter) = &input.unpack.whole_bucket_filter
        && !takes_whole
        && !matches!(filter, BucketPredicate::Always)
    {
        out.append("wholeBucketFilter", filter.to_document());
    }
    out.end();
    with_stats(out.finish(), execution.map(|e| &*e.trace.input))
}

fn with_stats(stage: Document, stats: Option<&OperatorStats>) -> Document {
    let Some(stats) = stats else {
        return stage;
    };
    let mut out = DocumentBuilder::new();
    for element in stage.iter() {
        out.append_element(element);
    }
    step_figures(&mut out, stats);
    out.finish()
}
