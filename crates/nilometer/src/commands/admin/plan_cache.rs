//! `planCacheClear`: clears the cached choices of indexes.

use nilometer_bson::{Document, ValueRef};

use crate::args::Args;
use crate::auth::Action;
use crate::commands::crud::query::{QueryOptions, check_collection_name, namespace_of};
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;
use crate::query::source::{Collections, Resolved};

pub(crate) const CLEAR: CommandSpec = CommandSpec {
    access: Access::Write,
    fields: Fields::Only(&["query", "sort", "projection", "collation"]),
    ..CommandSpec::new(
        "planCacheClear",
        "Clears the plan cache of a collection.",
        Authorization::OnCollection(&[Action::PlanCacheWrite]),
        clear,
    )
};

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
    if args.document("query")?.is_none() {
        for name in ["sort", "projection", "collation"] {
            if !matches!(args.value(name), ValueRef::Missing) {
                return Err(Error::bad_value(
                    "sort or projection provided without query",
                ));
            }
        }
        plans.clear(&namespace, None);
        return Ok(Document::new());
    }
    QueryOptions::parse(database, operation, &args, Some(collection))?;
    let resolved = database
        .collections()
        .resolve(&operation.database, collection)?;
    if matches!(resolved, Resolved::View(_)) {
        return Err(Error::new(
            ErrorCode::CommandNotSupportedOnView,
            format!("Namespace {namespace} is a view, not a collection"),
        ));
    }
    let hash = crate::commands::crud::find::query_hash(database, operation, &args, collection)?;
    if let Some(hash) = hash {
        plans.clear(&namespace, Some(hash));
    }
    Ok(Document::new())
}
