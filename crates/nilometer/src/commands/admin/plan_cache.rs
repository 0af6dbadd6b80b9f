//! `planCacheClear`, and the index filters: `planCacheSetFilter`, `planCacheListFilters`, `planCacheClearFilters`.
//!
//! All name queries by their shape: `query`, `sort`, `projection` and `collation` without the constants.

use nilometer_bson::{Array, DocRef, Document, DocumentBuilder, Value, ValueRef, doc};

use crate::args::Args;
use crate::auth::Action;
use crate::commands::crud::find;
use crate::commands::crud::query::{QueryOptions, check_collection_name, namespace_of};
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::{OperationContext, Request};
use crate::query::planner::access::filters::IndexFilter;
use crate::query::planner::access::hint::Hint;
use crate::query::planner::cut::not_over_partitions;
use crate::query::source::{Collections, Resolved};

/// The fields of a query shape besides its filter.
const SHAPE_FIELDS: [&str; 3] = ["sort", "projection", "collation"];

pub(crate) const CLEAR: CommandSpec = CommandSpec {
    access: Access::Write,
    fields: Fields::Only(&["query", "sort", "projection", "collation"]),
    ..CommandSpec::new(
        "planCacheClear",
        "Clears the plan cache of a collection.",
        Authorization::OnCollection(&[Action::PlanCacheWrite]),
        OnRouter::Refused,
        clear,
    )
};

pub(crate) const CLEAR_FILTERS: CommandSpec = CommandSpec {
    access: Access::Write,
    fields: Fields::Only(&["query", "sort", "projection", "collation"]),
    ..CommandSpec::new(
        "planCacheClearFilters",
        "Removes the index filters of a collection, or that of one query shape.",
        Authorization::OnCollection(&[Action::PlanCacheIndexFilter]),
        OnRouter::Refused,
        clear_filters,
    )
};

pub(crate) const LIST_FILTERS: CommandSpec = CommandSpec {
    access: Access::Read,
    ..CommandSpec::new(
        "planCacheListFilters",
        "Lists the index filters of a collection.",
        Authorization::OnCollection(&[Action::PlanCacheIndexFilter]),
        OnRouter::Refused,
        list_filters,
    )
};

pub(crate) const SET_FILTER: CommandSpec = CommandSpec {
    access: Access::Write,
    fields: Fields::Only(&["query", "sort", "projection", "collation", "indexes"]),
    ..CommandSpec::new(
        "planCacheSetFilter",
        "Limits queries of one shape to some indexes.",
        Authorization::OnCollection(&[Action::PlanCacheIndexFilter]),
        OnRouter::Refused,
        set_filter,
    )
};

/// True if the command names a query shape, not a whole collection.
fn names_shape(args: &Args<'_>) -> Result<bool> {
    if args.document("query")?.is_some() {
        return Ok(true);
    }
    match SHAPE_FIELDS
        .iter()
        .find(|name| !args.value(name).is_missing())
    {
        Some(_) => Err(Error::bad_value(
            "sort or projection provided without query",
        )),
        None => Ok(false),
    }
}

fn clear(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let operation = &context.operation;
    let args = Args::new("planCacheClear", request.body.as_ref());
    let collection = check_collection_name(&args, "planCacheClear")?;
    let namespace = namespace_of(operation, collection);
    let plans = &database.queries().plans;
    if !names_shape(&args)? {
        plans.clear(&namespace, None);
        return Ok(Document::new());
    }
    QueryOptions::parse(database, operation, &args, Some(collection))?;
    let resolved = database
        .collections()
        .resolve(&operation.database, collection)?;
    if matches!(
        resolved,
        Resolved::View(_) | Resolved::Rollup(_) | Resolved::PartitionedRollup(..)
    ) {
        return Err(is_a_view(&namespace));
    }
    let (hash, _) = find::query_hashes(database, operation, &args, collection)?;
    if let Some(hash) = hash {
        plans.clear(&namespace, Some(hash));
    }
    Ok(Document::new())
}

fn is_a_view(namespace: &str) -> Error {
    Error::new(
        ErrorCode::CommandNotSupportedOnView,
        format!("Namespace {namespace} is a view, not a collection"),
    )
}

/// Returns the hashes of the shape that a command about index filters names.
fn shape(
    database: &Database,
    operation: &OperationContext,
    args: &Args<'_>,
    collection: &str,
) -> Result<(Option<u32>, u32)> {
    let namespace = namespace_of(operation, collection);
    match database
        .collections()
        .resolve(&operation.database, collection)?
    {
        Resolved::Ordinary(_) => {}
        Resolved::Partitioned(_) => return Err(not_over_partitions("An index filter")),
        Resolved::Absent => {
            return Err(Error::bad_value(format!("no such collection: {namespace}")));
        }
        Resolved::View(_)
        | Resolved::TimeSeries(_)
        | Resolved::Rollup(_)
        | Resolved::PartitionedRollup(..) => {
            return Err(is_a_view(&namespace));
        }
    }
    database.queries().plans.filters().begin();
    let (hash, shape) = find::query_hashes(database, operation, args, collection)?;
    let shape = shape.ok_or_else(|| Error::bad_value("the query reads no index"))?;
    Ok((hash, shape))
}

fn set_filter(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let operation = &context.operation;
    let args = Args::new("planCacheSetFilter", request.body.as_ref());
    let collection = check_collection_name(&args, "planCacheSetFilter")?;
    args.required_document("query")?;
    let mut indexes = Vec::new();
    for index in args.required_array("indexes")?.iter() {
        let empty = match index {
            ValueRef::String(name) => name.is_empty(),
            ValueRef::Document(key) => key.is_empty(),
            _ => true,
        };
        match Hint::of(index).filter(|_| !empty) {
            Some(index) => indexes.push(index),
            None => {
                return Err(Error::bad_value(
                    "each item in indexes must be a non-empty object or string",
                ));
            }
        }
    }
    if indexes.is_empty() {
        return Err(Error::bad_value(
            "required field indexes must contain at least one index",
        ));
    }
    let (hash, shape) = shape(database, operation, &args, collection)?;
    let filter = IndexFilter {
        described: described(&args)?,
        indexes,
    };
    let (plans, namespace) = (
        &database.queries().plans,
        namespace_of(operation, collection),
    );
    plans.filters().set(&namespace, shape, filter)?;
    if let Some(hash) = hash {
        plans.clear(&namespace, Some(hash));
    }
    Ok(Document::new())
}

/// Returns a filter as `planCacheListFilters` shows it.
fn described(args: &Args<'_>) -> Result<Document> {
    let mut out = DocumentBuilder::new();
    for name in ["query", "sort", "projection"] {
        let given = args.document(name)?.map(DocRef::to_document);
        out.append(name, given.unwrap_or_default());
    }
    out.append(
        "collation",
        args.document("collation")?.map(DocRef::to_document),
    );
    out.append("indexes", args.value("indexes").to_value());
    Ok(out.finish())
}

fn list_filters(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("planCacheListFilters", request.body.as_ref());
    let collection = check_collection_name(&args, "planCacheListFilters")?;
    let namespace = namespace_of(&context.operation, collection);
    let filters = database.queries().plans.filters().list(&namespace);
    let filters = filters.into_iter().map(Value::Document);
    Ok(doc! {"filters": filters.collect::<Array>()})
}

fn clear_filters(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let operation = &context.operation;
    let args = Args::new("planCacheClearFilters", request.body.as_ref());
    let collection = check_collection_name(&args, "planCacheClearFilters")?;
    let namespace = namespace_of(operation, collection);
    let plans = &database.queries().plans;
    if names_shape(&args)? {
        let (hash, shape) = shape(database, operation, &args, collection)?;
        plans.filters().clear(&namespace, Some(shape));
        if let Some(hash) = hash {
            plans.clear(&namespace, Some(hash));
        }
    } else {
        plans.filters().clear(&namespace, None);
        plans.clear(&namespace, None);
    }
    Ok(Document::new())
}
