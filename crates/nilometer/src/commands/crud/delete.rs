//! `delete`: statements that remove one or all documents that match a filter.

use nilometer_bson::{DocRef, Document, DocumentBuilder};

use super::change::{
    StatementContext, Statements, append_errors, count_value, durability, expressions_of,
    make_durable, selector,
};
use crate::args::Args;
use crate::auth::Action;
use crate::commands::ddl::collection_uuid;
use crate::commands::generic::RAW_DATA;
use crate::commands::{
    Access, Authorization, CommandContext, CommandSpec, Fields, OperationCounter,
};
use crate::database::Database;
use crate::error::{Error, Result};
use crate::modify::{ModifyAction, WriteTarget};
use crate::operation::Request;
use crate::services::LatencyClass;

/// The options of the command.
pub(crate) const FIELDS: &[&str] = &[
    "deletes",
    "ordered",
    "bypassDocumentValidation",
    "let",
    RAW_DATA,
    collection_uuid::NAME,
];

pub(crate) const SPEC: CommandSpec = CommandSpec {
    access: Access::Write,
    latency: LatencyClass::Write,
    takes_memory: true,
    write_concern: true,
    in_api_v1: true,
    counted: OperationCounter::Delete,
    fields: Fields::Only(FIELDS),
    ..CommandSpec::new(
        "delete",
        "Deletes documents.",
        Authorization::OnCollection(&[Action::Remove]),
        run,
    )
};

/// The fields of a statement.
pub(crate) const STATEMENT: &[&str] = &["q", "limit", "collation", "hint"];

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let operation = &context.operation;
    let statements =
        Statements::parse("delete", "deletes", STATEMENT, database, operation, request)?;
    let args = Args::new("delete", request.body.as_ref());
    collection_uuid::check(database, &args, &statements.namespace)?;
    for document in statements.documents.clone() {
        let statement = Args::new("delete.deletes", document);
        statement.required_document("q")?;
        is_multi(&statement)?;
    }
    WriteTarget::of(database.catalog(), &statements.namespace)?;
    let mut deleted = 0;
    let counters = &database.services().counters;
    let only_one = statements.is_one_change(|s| !matches!(is_multi(s), Ok(false)));
    let errors = statements.run(|_, document| {
        counters.operations.delete.increment();
        let place = StatementContext {
            database,
            operation,
            namespace: &statements.namespace,
            options: &statements.options,
            durability: durability(operation, only_one),
        };
        let statement = Args::new("delete.deletes", document);
        let filter = statement.required_document("q")?;
        deleted += one(place, &statement, filter, is_multi(&statement)?)?;
        Ok(())
    })?;
    if !only_one {
        make_durable(database, operation)?;
    }
    let mut reply = DocumentBuilder::new();
    reply.append("n", count_value(deleted));
    append_errors(&mut reply, errors);
    Ok(reply.finish())
}

/// Runs one statement and counts the removed documents.
pub(crate) fn one(
    place: StatementContext<'_>,
    statement: &Args<'_>,
    filter: DocRef<'_>,
    multi: bool,
) -> Result<u64> {
    let StatementContext {
        database,
        namespace,
        options,
        ..
    } = place;
    let expressions = &expressions_of(place, statement)?;
    let selector = selector(database, namespace, statement, filter, expressions)?;
    let action = ModifyAction::Delete;
    let mut statement = place.statement(&selector, multi, action, &options.variables, expressions);
    place.find_candidates(&mut statement)?;
    let deleted = statement.run(database.collections().modify())?.deleted;
    database.services().counters.documents.deleted.add(deleted);
    Ok(deleted)
}

/// True for `limit: 0`, all documents; false for `limit: 1`.
pub(crate) fn is_multi(statement: &Args<'_>) -> Result<bool> {
    match statement.integer("limit")? {
        None => Err(statement.missing("limit")),
        Some(0) => Ok(true),
        Some(1) => Ok(false),
        Some(other) => Err(Error::failed_to_parse(format!(
            "The limit field in delete objects must be 0 or 1. Got {other}"
        ))),
    }
}
