//! Statements of transactions: which commands may be one, and how one runs.
//!
//! A command with `autocommit: false` is a statement of the transaction with its `txnNumber`. An error of a statement aborts the
//! transaction. Errors after which the whole transaction may be run again have a label.

use std::sync::{Arc, PoisonError};

use nilometer_bson::{DocRef, Document, ValueRef};

use super::{Access, CommandSpec};
use crate::catalog::{CatalogEntry, Namespace, is_internal_database};
use crate::database::Database;
use crate::database::transactions::{SessionOwner, Transaction, TransactionStart};
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;
use crate::services::OpenConnection;
use crate::session::ClientMetadata;
use crate::timeseries;
use crate::write::CappedLimits;

/// Commands that may be statements of a transaction.
const STATEMENTS: [&str; 12] = [
    "aggregate",
    "bulkWrite",
    CREATE,
    CREATE_INDEXES,
    "delete",
    "distinct",
    "find",
    "findAndModify",
    "getMore",
    "insert",
    "killCursors",
    "update",
];

/// Statements that create collections and indexes.
const CREATE: &str = "create";
const CREATE_INDEXES: &str = "createIndexes";

/// Statements on cursors, which cannot be the first ones.
const ON_CURSORS: [&str; 2] = ["getMore", "killCursors"];

/// Commands about the server that may be statements, but not the first.
const ABOUT_THE_SERVER: [&str; 3] = ["buildInfo", "connectionStatus", "hello"];

/// Commands that end a transaction.
const ENDS: [&str; 2] = ["abortTransaction", "commitTransaction"];

/// Stages that cannot be in a transaction, or read a snapshot.
const REFUSED_STAGES: [&str; 10] = [
    "$changeStream",
    "$collStats",
    "$currentOp",
    "$indexStats",
    "$listCatalog",
    "$listLocalSessions",
    "$listSessions",
    "$merge",
    "$out",
    "$planCacheStats",
];

/// The label of errors after which the whole transaction may be run again.
const TRANSIENT: &str = "TransientTransactionError";

/// The options of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TransactionArgs {
    pub(super) number: i64,
    /// It is the first one.
    pub(super) starts: bool,
}

/// True for the commands that end a transaction.
pub(super) fn is_end(spec: &CommandSpec) -> bool {
    ENDS.contains(&spec.name)
}

/// True if a request is a statement of a transaction, and no end of one.
pub(super) fn is_statement(request: &Request) -> bool {
    request.body.as_ref().contains("autocommit") && !ENDS.contains(&request.command_name())
}

/// Errors after which the whole transaction may be run again.
const TRANSIENT_CODES: [ErrorCode; 6] = [
    ErrorCode::LockTimeout,
    ErrorCode::WriteConflict,
    ErrorCode::SnapshotTooOld,
    ErrorCode::SnapshotUnavailable,
    ErrorCode::NoSuchTransaction,
    ErrorCode::PreparedTransactionInProgress,
];

/// Adds the label to an error after which the whole transaction may be run again.
pub(super) fn with_label(error: Error) -> Error {
    match TRANSIENT_CODES.contains(&error.code) {
        true => transient(error),
        false => error,
    }
}

/// Adds the label to any error of a statement, as when this server is not the primary any more.
pub(super) fn transient(mut error: Error) -> Error {
    if !error.labels.contains(&TRANSIENT) {
        error.labels.push(TRANSIENT);
    }
    error
}

/// Runs a statement on the database that its transaction sees.
pub(super) fn run_statement(
    database: &Database,
    (owner, (connection_id, client)): (&SessionOwner, (i64, Arc<ClientMetadata>)),
    (spec, request): (&CommandSpec, &Request),
    args: TransactionArgs,
    run: impl FnOnce(&Database) -> Result<Document>,
) -> Result<Document> {
    let transactions = database.transactions();
    let number = args.number;
    let begun = match args.starts {
        true => {
            let user = owner.1.clone();
            let start = TransactionStart {
                number,
                read_concern: read_concern(request),
                connection_id,
                connection: OpenConnection { client, user },
            };
            check_first(spec).and_then(|()| transactions.begin(database, owner.clone(), start))
        }
        false => Ok(()),
    };
    begun.and_then(|()| {
        let slot = transactions.find(owner, number)?;
        // The statements of a transaction run one after the other.
        let mut open = slot.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(transaction) = &mut *open else {
            return Err(transactions.why_ended(owner, number));
        };
        let clock = &database.services().clock;
        let began = clock.monotonic();
        let outcome = check(transaction, spec, request).and_then(|()| run(&transaction.database));
        transaction.add_active(clock.monotonic().saturating_sub(began));
        let has_failed = match &outcome {
            Ok(reply) => {
                !matches!(reply.get("writeErrors"), ValueRef::Missing) || has_errors(reply)
            }
            Err(_) => true,
        };
        if has_failed {
            *open = None;
            transactions.end(owner, number, false);
        }
        outcome
    })
}

/// True if the reply of `bulkWrite` reports errors.
fn has_errors(reply: &Document) -> bool {
    reply.get("nErrors").as_exact_i64().is_some_and(|n| n > 0)
}

fn unsupported(name: &str) -> Error {
    Error::new(
        ErrorCode::OperationNotSupportedInTransaction,
        format!("Cannot run '{name}' in a multi-document transaction."),
    )
}

/// Refuses a command that is no statement, or cannot be the first.
fn check_first(spec: &CommandSpec) -> Result<()> {
    if ON_CURSORS.contains(&spec.name) {
        return Err(Error::new(
            ErrorCode::OperationNotSupportedInTransaction,
            format!(
                "Cannot run {} as the first operation in a transaction.",
                spec.name
            ),
        ));
    }
    match STATEMENTS.contains(&spec.name) {
        true => Ok(()),
        false => Err(unsupported(spec.name)),
    }
}

/// Refuses commands to databases of the server itself.
fn check_database(name: &str, spec: &CommandSpec) -> Result<()> {
    // `bulkWrite` names others in its operations.
    match is_internal_database(name) && spec.access == Access::Read {
        true => Err(Error::new(
            ErrorCode::OperationNotSupportedInTransaction,
            format!("Cannot run command against the '{name}' database in a transaction."),
        )),
        false => Ok(()),
    }
}

fn check_command(spec: &CommandSpec) -> Result<()> {
    match ABOUT_THE_SERVER.contains(&spec.name) {
        true => Ok(()),
        false if STATEMENTS.contains(&spec.name) => Ok(()),
        false => Err(unsupported(spec.name)),
    }
}

/// Returns the read concern of the first statement of a transaction; empty without one.
fn read_concern(request: &Request) -> Document {
    let concern = request.body.as_ref().get("readConcern").as_document();
    concern.map_or_else(Document::new, |concern| concern.to_document())
}

/// Returns the first stage of a pipeline that writes, or that tells of the server and not of a snapshot.
pub(super) fn refused_stage(request: &Request) -> Option<&str> {
    let stages = request.body.as_ref().get("pipeline").as_array()?;
    let mut names = stages.iter().filter_map(|stage| {
        let stage = stage.as_document()?;
        Some(stage.iter().next()?.name())
    });
    names.find(|name| REFUSED_STAGES.contains(name))
}

/// Refuses what cannot be in a transaction. An open one is aborted by it.
fn check(transaction: &Transaction, spec: &CommandSpec, request: &Request) -> Result<()> {
    check_command(spec)?;
    let (database, body) = (&transaction.database, request.body.as_ref());
    let name = body.get("$db").as_str().unwrap_or_default();
    if !ON_CURSORS.contains(&spec.name) {
        check_database(name, spec)?;
    }
    if [CREATE, CREATE_INDEXES].contains(&spec.name) {
        check_definition(transaction, spec, body)?;
    }
    if let Some(stage) = refused_stage(request) {
        return Err(unsupported(stage));
    }
    if matches!(body.get("tailable"), ValueRef::Bool(true)) {
        return Err(unsupported("find with tailable"));
    }
    if let Some(namespaces) = request.documents(spec.name, "nsInfo")? {
        for namespace in namespaces {
            let namespace = namespace.get("ns").as_str().unwrap_or_default();
            if let Some((database_name, collection)) = namespace.split_once('.') {
                check_target(database, database_name, collection)?;
                database
                    .catalog()
                    .check_in_snapshot(database_name, collection)?;
            }
        }
        return Ok(());
    }
    let Some(collection) = collection_of(body) else {
        return Ok(());
    };
    if spec.access == Access::Write {
        check_target(database, name, collection)?;
    }
    database.catalog().check_in_snapshot(name, collection)
}

/// Returns the collection that a statement names.
pub(super) fn collection_of(body: DocRef<'_>) -> Option<&str> {
    body.iter().next()?.value().as_str()
}

/// Refuses to create time series and views in a transaction, and anything with the read concern `snapshot`: a new collection is in
/// no snapshot.
fn check_definition(transaction: &Transaction, spec: &CommandSpec, body: DocRef<'_>) -> Result<()> {
    if transaction.start.reads_snapshot() {
        return Err(Error::invalid_options(format!(
            "'{}' in a transaction needs the readConcern level 'local'",
            spec.name
        )));
    }
    let others = [
        ("timeseries", "a time-series collection"),
        ("viewOn", "a view"),
        ("rollup", "a rollup"),
    ];
    match others.iter().find(|(option, _)| body.contains(option)) {
        Some((_, what)) => Err(Error::new(
            ErrorCode::OperationNotSupportedInTransaction,
            format!("Cannot create {what} in a multi-document transaction."),
        )),
        None => Ok(()),
    }
}

/// Refuses writes to collections that take none in a transaction.
fn check_target(database: &Database, name: &str, collection: &str) -> Result<()> {
    let refused = |text: String| {
        Err(Error::new(
            ErrorCode::OperationNotSupportedInTransaction,
            text,
        ))
    };
    if is_internal_database(name) || collection.starts_with("system.") {
        return refused(format!(
            "Cannot write to system collection {name}.{collection} within a transaction."
        ));
    }
    let Ok(namespace) = Namespace::new(name, collection) else {
        return Ok(());
    };
    let catalog = database.catalog();
    if let Some(buckets) = catalog.timeseries(&namespace) {
        return timeseries::check_insertable(&buckets);
    }
    match catalog.get(&namespace) {
        Some(CatalogEntry::Collection(found)) if CappedLimits::of(&found).is_some() => {
            refused(format!(
                "Collection '{namespace}' is a capped collection. Writes in transactions are not allowed on capped collections."
            ))
        }
        _ => Ok(()),
    }
}
