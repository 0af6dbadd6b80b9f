//! `delete`: statements that remove one document, or all, that a filter matches.

use nilometer_bson::{DocRef, Document, DocumentBuilder};

use super::change::{
    Place, Selected, Statements, Target, append_errors, count_value, durability, eval_context,
    expressions_of, make_durable, target,
};
use super::raw_change::Buckets;
use super::view_change::Measurements;
use crate::args::Args;
use crate::auth::Action;
use crate::commands::ddl::collection_uuid;
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Counted, Fields};
use crate::database::Database;
use crate::error::{Error, Result};
use crate::eval::Collation;
use crate::operation::Request;
use crate::services::LatencyClass;
use crate::write::{Changed, Selection};

/// The options of the command.
pub(crate) const FIELDS: &[&str] = &[
    "deletes",
    "ordered",
    "bypassDocumentValidation",
    "let",
    collection_uuid::NAME,
];

pub(crate) const SPEC: CommandSpec = CommandSpec {
    access: Access::Write,
    latency: LatencyClass::Write,
    takes_memory: true,
    write_concern: true,
    in_api_v1: true,
    counted: Counted::Delete,
    fields: Fields::Only(FIELDS),
    ..CommandSpec::new(
        "delete",
        "Deletes documents.",
        Authorization::OnCollection(&[Action::Remove]),
        run,
    )
};

/// What a statement may say.
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
    target(database, &statements.namespace)?;
    let mut deleted = 0;
    let counters = &database.services().counters;
    let only_one = statements.is_one_change(|s| !matches!(is_multi(s), Ok(false)));
    let errors = statements.run(|_, document| {
        counters.operations.delete.increment();
        let place = Place {
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
    });
    if !only_one {
        make_durable(database, operation)?;
    }
    let mut reply = DocumentBuilder::new();
    reply.append("n", count_value(deleted));
    append_errors(&mut reply, errors);
    Ok(reply.finish())
}

/// Runs one statement, and counts what it does to documents.
pub(crate) fn one(
    place: Place<'_>,
    statement: &Args<'_>,
    filter: DocRef<'_>,
    multi: bool,
) -> Result<u64> {
    let Place {
        database,
        operation,
        namespace,
        options,
        durability,
    } = place;
    let expressions = &expressions_of(place, statement)?;
    let mut selected = Selected::parse(database, namespace, statement, filter, expressions)?;
    let target = target(database, namespace)?;
    let collation = Collation::of(expressions);
    selected.find_targets(
        database,
        operation,
        namespace,
        &options.variables,
        &collation,
    )?;
    let check_interrupt = || operation.check_interrupt();
    let eval = eval_context(database, operation, &options.variables, expressions);
    let selection = selected.selection(multi, durability, eval, operation.bypass, &check_interrupt);
    let (deleted, _) = apply(database, &target, selection)?;
    database.services().counters.documents.deleted.add(deleted);
    Ok(deleted)
}

/// Removes documents; tells how many and, if only one was meant, which.
pub(crate) fn apply(
    database: &Database,
    target: &Target,
    selection: Selection<'_>,
) -> Result<(u64, Option<Changed>)> {
    match target {
        Target::Absent => Ok((0, None)),
        Target::Records(collection) => database.records().delete(collection, selection),
        Target::Buckets(collection) => Buckets {
            database,
            collection,
        }
        .delete(selection),
        Target::Measurements(collection) => Measurements {
            stored: database.collections(),
            collection,
        }
        .delete(selection),
    }
}

/// `limit: 0` means all documents, `limit: 1` one.
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
