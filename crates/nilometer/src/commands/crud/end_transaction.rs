//! `commitTransaction` and `abortTransaction`.

use std::sync::{Arc, Mutex, PoisonError};

use nilometer_bson::{Document, DocumentBuilder};

use super::change::durability;
use super::retryable;
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::database::transactions::{CommitContext, SessionOwner, Transaction};
use crate::error::{Error, ErrorCode, Result};
use crate::insertion::BatchRecord;
use crate::operation::{OperationContext, Request};
use crate::retryable_writes::StatementKind;

/// The common part of both. Routers send `recoveryToken` back; here there are none.
const fn spec(
    name: &'static str,
    help: &'static str,
    handler: crate::commands::Handler,
) -> CommandSpec {
    CommandSpec {
        access: Access::Write,
        admin_only: true,
        write_concern: true,
        in_api_v1: true,
        fields: Fields::Only(&["recoveryToken"]),
        ..CommandSpec::new(
            name,
            help,
            Authorization::LoggedIn,
            OnRouter::Refused,
            handler,
        )
    }
}

pub(crate) const COMMIT: CommandSpec = spec(
    "commitTransaction",
    "Makes the changes of a transaction visible.",
    commit,
);

pub(crate) const ABORT: CommandSpec = spec(
    "abortTransaction",
    "Discards the changes of a transaction.",
    abort,
);

/// Returns the session and the number of a command that ends a transaction.
fn ended(context: &CommandContext<'_>) -> Result<(SessionOwner, i64)> {
    let OperationContext {
        lsid,
        txn_number,
        user,
        ..
    } = &context.operation;
    match (lsid, txn_number) {
        (Some(lsid), Some(number)) => Ok(((*lsid, user.clone()), *number)),
        _ => Err(Error::new(
            ErrorCode::CommandFailed,
            format!("{} must be run within a transaction", context.spec.name),
        )),
    }
}

/// Takes an open transaction, after its statement that runs, if one does.
fn take(
    slot: &Arc<Mutex<Option<Transaction>>>,
    (database, owner, number): (&Database, &SessionOwner, i64),
) -> Result<Transaction> {
    let taken = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    taken.ok_or_else(|| database.transactions().why_ended(owner, number))
}

fn commit(database: &Database, context: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    let (owner, number) = ended(context)?;
    let operation = &context.operation;
    let transactions = database.transactions();
    if transactions.is_committed(&owner, number) {
        super::change::make_durable(database, operation)?;
        return Ok(DocumentBuilder::new().finish());
    }
    let Some(command) = retryable::begin(database, operation)? else {
        return Err(Error::new(
            ErrorCode::InternalError,
            "a transaction without a session",
        ));
    };
    if command.result(0, StatementKind::Commit)?.is_some() {
        // It was committed before this process began, or while this command waited.
        super::change::make_durable(database, operation)?;
        return Ok(DocumentBuilder::new().finish());
    }
    let slot = transactions.find(&owner, number)?;
    let transaction = take(&slot, (database, &owner, number))?;
    let record = command.statement(0, StatementKind::Commit);
    record.changed(None, None, None);
    let ids = database.services().ids.object_ids(operation.now_ms, || 0);
    let new_id = || ids.draw();
    let committed = transaction.commit(
        database,
        CommitContext {
            durability: durability(operation, true),
            record: &record,
            new_id: &new_id,
            check_interrupt: &|| operation.check_interrupt(),
        },
    );
    if committed.is_err() {
        command.forget();
    }
    transactions.end(&owner, number, committed.is_ok());
    committed?;
    Ok(DocumentBuilder::new().finish())
}

fn abort(database: &Database, context: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    let (owner, number) = ended(context)?;
    let transactions = database.transactions();
    let slot = transactions.find(&owner, number)?;
    drop(take(&slot, (database, &owner, number))?);
    transactions.end(&owner, number, false);
    Ok(DocumentBuilder::new().finish())
}
