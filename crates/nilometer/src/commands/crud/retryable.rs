//! Retryable writes in commands: which statements ran before, and what their replies say.
//!
//! A statement's number is its position in the command.

use nilometer_bson::{Array, DocRef, DocumentBuilder, Value};
use nilometer_storage::Durability;

use super::insert::insert_documents;
use crate::catalog::Namespace;
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::insertion::BatchRecord;
use crate::modify::Modified;
use crate::operation::OperationContext;
use crate::retryable_writes::{RetryableCommand, StatementKind, StatementResult};
use crate::services::{EnteringCommand, FAIL_WRITE};
use crate::write::ChangedDocument;

/// Begins a command; `None` if it is not to be repeated.
pub(crate) fn begin<'d>(
    database: &'d Database,
    operation: &OperationContext,
) -> Result<Option<RetryableCommand<'d>>> {
    let max = database.services().parameters.max_sessions();
    let max = usize::try_from(max).unwrap_or(usize::MAX);
    database.retryable_writes().begin(operation, max)
}

/// Refuses a statement on many documents: repeated, it would change those that match meanwhile.
pub(crate) fn refuse_many(operation: &OperationContext, is_many: bool, option: &str) -> Result<()> {
    match operation.txn_number {
        Some(_) if is_many => Err(Error::invalid_options(format!(
            "Cannot use retryable writes with {option}"
        ))),
        _ => Ok(()),
    }
}

/// The result of an insert.
pub(crate) struct Inserted {
    /// Documents that were inserted, now or before.
    pub(crate) count: usize,
    /// The errors of the others by position.
    pub(crate) errors: Vec<(usize, Error)>,
    /// Positions of those that were inserted before.
    pub(crate) retried: Vec<usize>,
}

/// Inserts documents, without those that were inserted before. `first` is the number of the first one's statement.
pub(crate) fn insert<'a>(
    (database, operation, durability): (&Database, &OperationContext, Durability),
    namespace: &Namespace,
    documents: impl Iterator<Item = DocRef<'a>> + Clone,
    ordered: bool,
    retryable: Option<(&RetryableCommand<'_>, usize)>,
) -> Result<Inserted> {
    let place = (database, operation, durability);
    let Some((command, first)) = retryable else {
        let (count, errors) = insert_documents(place, namespace, documents, ordered, None)?;
        return Ok(Inserted {
            count,
            errors,
            retried: Vec::new(),
        });
    };
    let (mut statements, mut retried) = (Vec::new(), Vec::new());
    for (index, _) in documents.clone().enumerate() {
        match command.was_inserted(first + index)? {
            true => retried.push(index),
            false => statements.push(first + index),
        }
    }
    if statements.is_empty() || command.repeats_only() {
        return Ok(Inserted {
            count: retried.len(),
            errors: Vec::new(),
            retried,
        });
    }
    let is_new = |index: &usize| retried.binary_search(index).is_err();
    let new = documents.enumerate();
    let new = new.filter(|(index, _)| is_new(index));
    let new = new.map(|(_, document)| document);
    if database.services().fail_write.is_on() {
        for _ in 0..write_groups(new.clone()) {
            fail_on_purpose(database, operation)?;
        }
    }
    let record = command.inserts(&statements);
    let inserted = insert_documents(place, namespace, new, ordered, Some(&record));
    let (count, errors) = inserted.inspect_err(|_| command.forget())?;
    let position = |at: usize| statements.get(at).map_or(at, |statement| statement - first);
    let errors = errors.into_iter();
    Ok(Inserted {
        count: count + retried.len(),
        errors: errors.map(|(at, error)| (position(at), error)).collect(),
        retried,
    })
}

/// Returns the number of groups in which MongoDB commits inserted documents: its fail point acts on each.
fn write_groups<'d>(documents: impl Iterator<Item = DocRef<'d>>) -> usize {
    const BYTES_MAX: usize = 256 << 10;
    let bytes = documents.map(|document| document.as_bytes().len());
    let (groups, open) = bytes.fold((0, 0), |(groups, open), bytes| match open + bytes {
        sum if sum >= BYTES_MAX => (groups + 1, 0),
        sum => (groups, sum),
    });
    groups + usize::from(open > 0)
}

/// Asks the fail point of retryable writes before a statement. The connection may be closed behind the command.
fn fail_on_purpose(database: &Database, operation: &OperationContext) -> Result<()> {
    let services = database.services();
    if !services.fail_write.is_on() {
        return Ok(());
    }
    let command = EnteringCommand {
        names: &[FAIL_WRITE],
        namespace: "",
        application: None,
    };
    let Some(failure) = services.fail_write.enter(&command, &services.ids) else {
        return Ok(());
    };
    if failure.closes_connection {
        operation.kill_switch().disconnect();
    }
    match failure.code {
        Some(code) => Err(Error::new(
            ErrorCode(code),
            "Failing a write by the fail point onPrimaryTransactionalWrite",
        )),
        None => Ok(()),
    }
}

/// Runs a statement on one document, unless it ran before: then returns what it did, and true.
pub(crate) fn statement(
    (database, operation): (&Database, &OperationContext),
    retryable: Option<&RetryableCommand<'_>>,
    (position, kind): (usize, StatementKind),
    run: impl FnOnce(Option<&dyn BatchRecord>) -> Result<Modified>,
) -> Result<(Modified, bool)> {
    let Some(command) = retryable else {
        return Ok((run(None)?, false));
    };
    if let Some(result) = command.result(position, kind)? {
        return Ok((repeated(result), true));
    }
    if command.repeats_only() {
        return Ok((Modified::default(), false));
    }
    fail_on_purpose(database, operation)?;
    let record = command.statement(position, kind);
    let modified = run(Some(&record)).inspect_err(|_| command.forget())?;
    Ok((modified, false))
}

/// Returns what a statement did.
fn repeated(result: StatementResult) -> Modified {
    let existed = result.upserted.is_none();
    let changed = u64::from(existed);
    let is_delete = matches!(
        result.kind,
        StatementKind::Delete | StatementKind::FindAndRemove
    );
    Modified {
        matched: if is_delete { 0 } else { changed },
        modified: if is_delete { 0 } else { changed },
        deleted: u64::from(is_delete),
        upserted: result.upserted,
        document: Some(ChangedDocument {
            before: result.image.clone(),
            after: result.image,
            position: result.position,
        }),
    }
}

/// Appends the numbers of the statements that ran before, if there are any.
pub(crate) fn append_retried(reply: &mut DocumentBuilder, retried: &[usize]) {
    if !retried.is_empty() {
        let number = |at: &usize| Value::Int32(i32::try_from(*at).unwrap_or(i32::MAX));
        reply.append(
            "retriedStmtIds",
            retried.iter().map(number).collect::<Array>(),
        );
    }
}
