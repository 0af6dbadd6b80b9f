//! `distinct`: the distinct values of a field.
//!
//! Arrays along the path and at its end are traversed, one level each; a missing field adds nothing. Of
//! values that compare equal the first is returned.

use std::collections::HashSet;

use nilometer_bson::{DocRef, Document, DocumentBuilder, ValueRef, doc};

use super::find::apply_hint;
use super::query;
use super::query::{PlannedQuery, QueryOptions, ResultNeeds, check_collection_name, namespace_of};
use crate::args::Args;
use crate::auth::Action;
use crate::commands::generic::RAW_DATA;
use crate::commands::{
    Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter, OperationCounter,
};
use crate::database::Database;
use crate::error::{Error, Result, location};
use crate::eval::Collation;
use crate::eval::collation::CollatedValue;
use crate::eval::matcher::{LeafArrays, MatchExpression, MatchPath};
use crate::operation::{OperationContext, Request};
use crate::query::pipeline::needs::Needs;
use crate::query::pipeline::{MatchStage, PipelineContext, Stage, parse_pipeline};
use crate::query::planner::physical::Input;
use crate::query::planner::rules::{DistinctMetas, PhysicalRule, distinct_values};
use crate::services::LatencyClass;

pub(crate) const SPEC: CommandSpec = CommandSpec {
    access: Access::Read,
    latency: LatencyClass::Read,
    takes_memory: true,
    read_concern: true,
    counted: OperationCounter::Command,
    fields: Fields::Only(FIELDS),
    ..CommandSpec::new(
        "distinct",
        "Lists the distinct values of a field.",
        Authorization::OnCollection(&[Action::Find]),
        OnRouter::Same,
        run,
    )
};

/// The options of `distinct`; `explain` reads them too.
pub(crate) const FIELDS: &[&str] = &["key", "query", "collation", "hint", RAW_DATA];

/// The largest size of all values of a reply, in bytes.
const DISTINCT_BYTES_MAX: usize = 16 * 1024 * 1024;

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("distinct", request.body.as_ref());
    let path = MatchPath::new(args.required_string("key")?);
    let mut planned = plan(database, &context.operation, &args)?;
    if let Input::Partitions(_) = &planned.plan.input {
        planned = plan_for(database, &context.operation, &args, true)?;
    }
    let mut values = Values::new(Collation::from(
        planned.builder.settings.plan.collator.clone(),
    ));
    let mut executor = planned.executor()?;
    while let Some(rows) = executor.next_rows(&context.operation)? {
        for row in &rows {
            values.collect(&path, row.as_ref())?;
        }
    }
    values.out.end();
    Ok(values.out.finish())
}

struct Values {
    seen: HashSet<CollatedValue>,
    collation: Collation,
    out: DocumentBuilder,
}

impl Values {
    fn new(collation: Collation) -> Self {
        let mut out = DocumentBuilder::new();
        out.begin_array("values");
        Self {
            seen: HashSet::new(),
            collation,
            out,
        }
    }

    fn collect(&mut self, path: &MatchPath, document: DocRef<'_>) -> Result<()> {
        let root = ValueRef::Document(document);
        path.visit(root, LeafArrays::Whole, &mut |value, _| {
            match value {
                ValueRef::Missing => {}
                ValueRef::Array(array) => {
                    for element in array.iter() {
                        self.add(element)?;
                    }
                }
                other => self.add(other)?,
            }
            Ok(false)
        })?;
        Ok(())
    }

    fn add(&mut self, value: ValueRef<'_>) -> Result<()> {
        let count = self.seen.len();
        if !self.seen.insert(self.collation.key(value.to_value())) {
            return Ok(());
        }
        self.out.append_indexed(count, value);
        if self.out.len() > DISTINCT_BYTES_MAX {
            return Err(Error::location(
                location::DISTINCT_TOO_LARGE,
                "distinct too big, 16mb cap",
            ));
        }
        Ok(())
    }
}

/// Returns stages that return each value of the first field of a path once. They change no value of the path: a document
/// without the field has none. A name that is no field in an expression is left to the reader.
fn grouped_by(key: &str) -> Vec<Document> {
    let first = key.split('.').next().unwrap_or(key);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_name = first.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if !is_name || !first.chars().all(is_plain) {
        return Vec::new();
    }
    let mut exists = DocumentBuilder::new();
    exists.append(first, doc! {"$exists": true});
    let group = doc! {"_id": format!("${first}")};
    let mut project = DocumentBuilder::new();
    match first {
        "_id" => project.append("_id", true),
        name => project.append("_id", false).append(name, "$_id"),
    };
    vec![
        doc! {"$match": exists.finish()},
        doc! {"$group": group},
        doc! {"$project": project.finish()},
    ]
}

/// Parses and plans a `distinct`: the documents with the field alone.
pub(crate) fn plan(
    database: &Database,
    operation: &OperationContext,
    args: &Args<'_>,
) -> Result<PlannedQuery> {
    plan_for(database, operation, args, false)
}

/// With `shares` each partition returns a document for each value of the first field of the path.
fn plan_for(
    database: &Database,
    operation: &OperationContext,
    args: &Args<'_>,
    shares: bool,
) -> Result<PlannedQuery> {
    let collection = check_collection_name(args, "distinct")?;
    let key = args.required_string("key")?;
    let options = QueryOptions::parse(database, operation, args, Some(collection))?;
    let mut stages = Vec::new();
    if let Some(query) = args.document("query")? {
        let filter = MatchExpression::parse_with_text(query, &options.expressions)?.simplify();
        if !matches!(filter, MatchExpression::AlwaysTrue) {
            stages.push(Stage::Match(MatchStage {
                filter,
                source: query.to_document(),
            }));
        }
    }
    if shares {
        let cx = PipelineContext::top(options.expressions.clone());
        let grouped = grouped_by(key);
        stages.extend(parse_pipeline(&cx, grouped.iter().map(Document::as_ref))?);
    }
    let mut wanted = Needs::none();
    wanted.add_path(key);
    let hint = args.value("hint");
    let (builder, mut plan) = query::plan(
        database,
        operation,
        &options,
        Some(collection),
        stages,
        ResultNeeds {
            needs: wanted,
            distinct: Some(key),
        },
        |source| apply_hint(source, hint),
    )?;
    let options = builder.settings.plan.options;
    if !options.no_rules && !options.disabled.contains(DistinctMetas.name()) {
        distinct_values(&mut plan, key, &builder.settings.plan);
    }
    Ok(PlannedQuery {
        namespace: namespace_of(operation, collection),
        builder,
        plan,
    })
}
