//! `delete`: statements that remove one or all documents that match a filter.

use nilometer_bson::{DocRef, Document, DocumentBuilder};

use super::change::{
    StatementContext, Statements, append_errors, count_value, expressions_of, make_durable,
    selector,
};
use super::retryable;
use super::retryable::{append_retried, refuse_many};
use crate::args::Args;
use crate::auth::Action;
use crate::commands::ddl::collection_uuid;
use crate::commands::generic::RAW_DATA;
use crate::commands::{
    Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter, OperationCounter,
};
use crate::database::Database;
use crate::error::{Error, Result};
use crate::modify::{Modified, ModifyAction, WriteTarget};
use crate::operation::{OperationContext, Request};
use crate::retryable_writes::StatementKind;
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
    retryable: true,
    counted: OperationCounter::Delete,
    fields: Fields::Only(FIELDS),
    ..CommandSpec::new(
        "delete",
        "Deletes documents.",
        Authorization::OnCollection(&[Action::Remove]),
        OnRouter::Own,
        run,
    )
};

/// The fields of a statement.
pub(crate) const STATEMENT: &[&str] = &["q", "limit", "collation", "hint"];

/// Returns the statements of a command, whose fields have the right names and types.
pub(crate) fn checked<'r>(
    database: &Database,
    operation: &OperationContext,
    request: &'r Request,
) -> Result<Statements<'r>> {
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
    Ok(statements)
}

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let operation = &context.operation;
    let statements = checked(database, operation, request)?;
    let mut deleted = 0;
    let counters = &database.services().counters;
    let only_one = statements.is_one_change(|s| !matches!(is_multi(s), Ok(false)));
    let retryable = retryable::begin(database, operation)?;
    for document in statements.documents.clone() {
        let many = is_multi(&Args::new("delete.deletes", document))?;
        refuse_many(operation, many, "limit=0")?;
    }
    let mut retried = Vec::new();
    let errors = statements.run(|index, document| {
        counters.operations.delete.increment();
        let statement = Args::new("delete.deletes", document);
        let filter = statement.required_document("q")?;
        let multi = is_multi(&statement)?;
        let number = (index, StatementKind::Delete);
        let run_by = (database, operation);
        let retryable = retryable.as_ref();
        let (removed, was_retried) = retryable::statement(run_by, retryable, number, |record| {
            let place = statements.context(database, operation, only_one, record);
            one(place, &statement, filter, multi)
        })?;
        deleted += removed.deleted;
        if was_retried {
            retried.push(index);
        }
        Ok(())
    })?;
    if !only_one {
        make_durable(database, operation)?;
    }
    let mut reply = DocumentBuilder::new();
    reply.append("n", count_value(deleted));
    append_errors(&mut reply, errors);
    append_retried(&mut reply, &retried);
    Ok(reply.finish())
}

/// Runs one statement and counts the removed documents.
pub(crate) fn one(
    place: StatementContext<'_>,
    statement: &Args<'_>,
    filter: DocRef<'_>,
    multi: bool,
) -> Result<Modified> {
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
    let removed = statement.run(database.collections().modify())?;
    let counters = &database.services().counters.documents;
    counters.deleted.add(removed.deleted);
    Ok(removed)
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
