//! A partition as a router sees it: a database that runs commands.

use std::sync::Arc;
use std::time::Duration;

use nilometer_bson::{DocRef, Document, DocumentBuilder};

use super::report::Tenure;
use super::versions::OPENING_FIELD;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::{OperationContext, Request, RoutedRequest};
use crate::session::SessionId;

/// Longest wait for a reply between two checks for interrupts.
const CHECK_EVERY: Duration = Duration::from_millis(20);

/// A database that has part of the documents of a cluster.
///
/// A partition is asked by commands and never asks by itself. One that does not answer fails its replies; it must not keep
/// them back for ever.
pub trait Partition: Send + Sync {
    /// Returns the name that clients see as that of a shard. It never changes.
    fn name(&self) -> &str;

    /// Returns where it is reached, for clients that look.
    fn host(&self) -> String;

    /// Returns since when the process there writes it; `None` if that never changes, or is not known.
    fn tenure(&self) -> Option<Tenure> {
        None
    }

    /// Sends a command. Does not wait for the reply.
    fn send(&self, request: Request) -> Box<dyn PendingReply>;
}

/// The reply to a command that was sent.
pub trait PendingReply: Send {
    /// Waits at most that long; `None` if there is no reply yet.
    fn wait(&mut self, at_most: Duration) -> Result<Option<Document>>;
}

/// Waits for a reply as long as the operation may; fails with the error that the reply reports.
pub(crate) fn wait(reply: &mut dyn PendingReply, operation: &OperationContext) -> Result<Document> {
    loop {
        operation.check_interrupt()?;
        if let Some(reply) = reply.wait(CHECK_EVERY)? {
            return checked(reply);
        }
    }
}

/// Returns a reply; fails if it reports an error of the whole command.
pub(crate) fn checked(reply: Document) -> Result<Document> {
    if reply.get("ok").as_exact_i64() == Some(1) {
        return Ok(reply);
    }
    let others = [
        "ok",
        "codeName",
        "errorLabels",
        "operationTime",
        "$clusterTime",
        OPENING_FIELD,
    ];
    Err(error_of(reply.as_ref(), &others))
}

/// Returns the error that a document reports by `code` and `errmsg`. Its other fields but `others` are details of the error.
pub(crate) fn error_of(reported: DocRef<'_>, others: &[&str]) -> Error {
    let code = reported.get("code").as_exact_i64();
    let code = code.and_then(|code| i32::try_from(code).ok());
    let text = reported.get("errmsg").as_str();
    let text = text.unwrap_or("the command failed");
    let mut error = Error::new(code.map_or(ErrorCode::UnknownError, ErrorCode), text);
    let is_detail = |name: &str| !["code", "errmsg"].contains(&name) && !others.contains(&name);
    let mut details = DocumentBuilder::new();
    for element in reported.iter().filter(|e| is_detail(e.name())) {
        details.append_element(element);
    }
    if !details.is_empty() {
        error.details = Some(details.finish());
    }
    error
}

/// Returns a command for a partition: `body` with the database, the rest of the time limit, and the session of the request.
pub(crate) fn command(
    database: &str,
    body: Document,
    operation: &OperationContext,
    session: Option<SessionId>,
) -> Document {
    let mut out = DocumentBuilder::with_capacity(body.as_bytes().len() + 96);
    out.append_all(body.as_ref());
    out.append("$db", database);
    if let Some(session) = session {
        out.append("lsid", session.to_document());
    }
    if let Some(left) = operation.time_left() {
        // 0 would mean no limit.
        let left = i64::try_from(left.as_millis()).unwrap_or(i64::MAX).max(1);
        out.append("maxTimeMS", left.min(i64::from(i32::MAX)));
    }
    if let Some(comment) = &operation.comment {
        out.append("comment", comment.clone());
    }
    out.finish()
}

/// Returns a write for a partition. If it has a number, the partition keeps its results for the session of the client, with
/// the numbers of its statements that `routed` has.
pub(crate) fn write_request(
    database: &str,
    body: Document,
    operation: &OperationContext,
    routed: RoutedRequest,
) -> Request {
    let number = operation.txn_number;
    let session = operation.lsid.filter(|_| number.is_some());
    let session = session.map(|id| id.of_user(operation.user.as_ref()));
    let mut body = command(database, body, operation, session);
    if let (Some(number), Some(_)) = (number, session) {
        let mut numbered = DocumentBuilder::extending(body);
        numbered.append("txnNumber", number);
        body = numbered.finish();
    }
    Request {
        body,
        sequences: Vec::new(),
        routed: Some(Arc::new(routed)),
    }
}

/// What a partition is told when a router needs no more of a part: its argument is the session of the part.
pub(crate) const END_COMMAND: &str = "_endPart";

/// Returns the command that ends what the session of a part runs, its cursors, and its requests that arrive later.
pub(crate) fn end_of(session: SessionId) -> Document {
    let mut out = DocumentBuilder::new();
    out.append(END_COMMAND, session.to_document());
    out.append("$db", "admin");
    out.finish()
}
