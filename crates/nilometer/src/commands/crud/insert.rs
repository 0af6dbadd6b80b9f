//! `insert`, into ordinary and time-series collections.

use std::sync::Arc;

use nilometer_bson::{Array, DocRef, Document, DocumentBuilder, Value};
use nilometer_storage::Durability;

use super::change::durability;
use super::retryable;
use super::retryable::{Inserted, append_retried};
use crate::args::Args;
use crate::catalog::{Collection, Namespace};
use crate::commands::ddl::collection_uuid;
use crate::commands::generic::RAW_DATA;
use crate::commands::security::authorization::rules;
use crate::commands::{
    Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter, OperationCounter,
};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::eval::EvalContext;
use crate::insertion::{BatchRecord, InsertOptions, InsertOutcome};
use crate::limits::WRITE_BATCH_MAX;
use crate::operation::{Documents, OperationContext, Request};
use crate::services::LatencyClass;
use crate::write::DocumentChecks;

/// Retries of an insert whose collection is dropped meanwhile.
const DROPPED_RETRIES_MAX: usize = 10;

pub(crate) const SPEC: CommandSpec = CommandSpec {
    access: Access::Write,
    latency: LatencyClass::Write,
    takes_memory: true,
    write_concern: true,
    in_api_v1: true,
    retryable: true,
    counted: OperationCounter::Insert,
    fields: Fields::Only(&[
        "documents",
        "ordered",
        "bypassDocumentValidation",
        "bypassEmptyTsReplacement",
        RAW_DATA,
        collection_uuid::NAME,
    ]),
    ..CommandSpec::new(
        "insert",
        "Inserts documents.",
        Authorization::ByRule(rules::insert),
        OnRouter::Own,
        run,
    )
};

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("insert", request.body.as_ref());
    let namespace = Namespace::new(context.database_name(), args.required_string("insert")?)?;
    collection_uuid::check(database, &args, &namespace)?;
    let ordered = args.boolean("ordered")?.unwrap_or(true);
    let documents = write_batch(request, &args, "documents")?;
    let count = documents.remaining();
    let operation = &context.operation;
    let retryable = retryable::begin(database, operation)?;
    let retryable = retryable.as_ref().map(|command| (command, 0));
    let place = (database, operation, durability(operation, true));
    let inserted = retryable::insert(place, &namespace, documents, ordered, retryable)?;
    let counters = &database.services().counters;
    counters.operations.insert.add(count as u64);
    Ok(reply(inserted))
}

/// The number of inserted documents, and the errors of the others by position.
type InsertedOrErrors = (usize, Vec<(usize, Error)>);

/// Inserts documents into the collection of the name, of any kind; returns the number of inserted documents,
/// and the errors of the others by position. `record` is stored beside them.
pub(crate) fn insert_documents<'a>(
    (database, operation, durability): (&Database, &OperationContext, Durability),
    namespace: &Namespace,
    documents: impl Iterator<Item = DocRef<'a>> + Clone,
    ordered: bool,
    record: Option<&dyn BatchRecord>,
) -> Result<InsertedOrErrors> {
    let (ids, now_ms) = (&database.services().ids, operation.now_ms);
    let all = documents.clone();
    let ids = ids.object_ids(now_ms, move || all.clone().count());
    let new_id = || ids.draw();
    let catalog = database.catalog();
    let options = InsertOptions {
        ordered,
        durability,
        new_id: &new_id,
        record,
    };
    let timeseries = database.timeseries();
    let outcome = match buckets(database, namespace) {
        Some((collection, true)) => {
            timeseries.insert_buckets(catalog, &collection, documents, options)?
        }
        Some((collection, false)) => timeseries.insert(catalog, &collection, documents, options)?,
        None => {
            let checking = DocumentChecks {
                bypass: operation.bypass,
                eval: EvalContext {
                    now_ms,
                    random: Some(&*database.queries().ids),
                    limits: Some(operation.evaluation_limits()),
                    ..EvalContext::default()
                },
            };
            let records = database.records();
            let mut tries = 0;
            loop {
                let modify = database.collections().modify();
                let collection = modify.find_or_create(operation, namespace)?;
                match records.insert(&collection, documents.clone(), options, checking) {
                    // The collection was dropped or replaced meanwhile: try again with its successor.
                    Err(error)
                        if error.code == ErrorCode::QueryPlanKilled
                            && tries < DROPPED_RETRIES_MAX =>
                    {
                        tries += 1;
                    }
                    outcome => break outcome?,
                }
            }
        }
    };
    counted(database, outcome)
}

/// Inserts documents into time series, each of which occurs once, in one engine batch that is written and not synced. Returns for
/// each what [`insert_documents`] does.
pub(crate) fn insert_measurements<'a>(
    (database, operation): (&Database, &OperationContext),
    inserts: &[(Arc<Collection>, impl Iterator<Item = DocRef<'a>> + Clone)],
) -> Vec<Result<InsertedOrErrors>> {
    let expected = || {
        let counts = inserts.iter().map(|(_, all)| all.clone().count());
        counts.sum()
    };
    let ids = &database.services().ids;
    let ids = ids.object_ids(operation.now_ms, expected);
    let new_id = || ids.draw();
    let options = InsertOptions {
        ordered: false,
        durability: Durability::Buffered,
        new_id: &new_id,
        record: None,
    };
    let timeseries = database.timeseries();
    let outcomes = timeseries.insert_together(database.catalog(), inserts, options);
    let outcomes = outcomes.into_iter();
    outcomes
        .map(|outcome| counted(database, outcome?))
        .collect()
}

/// Counts the documents of an insert. Fails with an error that is one of the whole command.
fn counted(database: &Database, outcome: InsertOutcome) -> Result<InsertedOrErrors> {
    if let Some(of_command) = outcome.errors.iter().find(|e| e.error.is_of_command()) {
        return Err(of_command.error.clone());
    }
    let inserted = outcome.inserted;
    let errors = outcome.errors.into_iter();
    let errors = errors.map(|e| (e.index, e.error)).collect();
    let counters = &database.services().counters;
    counters.documents.inserted.add(inserted as u64);
    Ok((inserted, errors))
}

/// Returns the bucket collection behind a name; true if the name is that of the buckets, so the documents are
/// buckets and not measurements.
pub(super) fn buckets(
    database: &Database,
    namespace: &Namespace,
) -> Option<(Arc<Collection>, bool)> {
    let catalog = database.catalog();
    if let Some(found) = catalog.timeseries(namespace) {
        return Some((found, false));
    }
    let found = catalog.collection(namespace)?;
    found.timeseries.is_some().then_some((found, true))
}

/// `{n, writeErrors?, retriedStmtIds?}`.
fn reply(inserted: Inserted) -> Document {
    let Inserted {
        count,
        errors,
        retried,
    } = inserted;
    let mut out = DocumentBuilder::new();
    out.append("n", i32::try_from(count).unwrap_or(i32::MAX));
    if !errors.is_empty() {
        let errors = errors
            .into_iter()
            .map(|(index, error)| write_error(index, &error));
        out.append("writeErrors", errors.collect::<Array>());
    }
    append_retried(&mut out, &retried);
    out.finish()
}

/// Returns the documents or statements of a write command; checks their number.
pub(crate) fn write_batch<'r>(
    request: &'r Request,
    args: &Args<'_>,
    field: &str,
) -> Result<Documents<'r>> {
    let documents = request
        .documents(args.path(), field)?
        .ok_or_else(|| args.missing(field))?;
    let count = documents.remaining();
    if count == 0 || count > WRITE_BATCH_MAX {
        return Err(Error::new(
            ErrorCode::InvalidLength,
            format!(
                "Write batch sizes must be between 1 and {WRITE_BATCH_MAX}. Got {count} operations."
            ),
        ));
    }
    Ok(documents)
}

/// Returns an entry of `writeErrors`.
pub(crate) fn write_error(index: usize, error: &Error) -> Value {
    let mut out = DocumentBuilder::new();
    out.append("index", i32::try_from(index).unwrap_or(i32::MAX));
    out.append("code", error.code.0);
    for element in error.details.iter().flat_map(Document::iter) {
        out.append_element(element);
    }
    out.append("errmsg", error.message.as_str());
    Value::Document(out.finish())
}
