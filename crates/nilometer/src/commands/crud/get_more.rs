//! `getMore`: the next batch of a cursor.

use std::time::Duration;

use nilometer_bson::{Document, DocumentBuilder, ValueRef};

use super::change_stream;
use super::query::{limit_time, namespace_of};
use crate::args::Args;
use crate::commands::{
    Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter, OperationCounter,
};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;
use crate::query::cursor::BatchRequest;
use crate::services::{EnteringCommand, LatencyClass, Services};
use crate::session::ClientSession;

/// The default wait of a cursor that awaits documents.
const AWAIT_DEFAULT: Duration = Duration::from_secs(1);

pub(crate) const SPEC: CommandSpec = CommandSpec {
    access: Access::Read,
    latency: LatencyClass::Read,
    in_api_v1: true,
    counted: OperationCounter::GetMore,
    fields: Fields::Only(&[
        "collection",
        "batchSize",
        "lastKnownCommittedOpTime",
        "term",
    ]),
    ..CommandSpec::new(
        "getMore",
        "Returns the next batch of a cursor.",
        Authorization::LoggedIn,
        OnRouter::Same,
        run,
    )
};

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("getMore", request.body.as_ref());
    let id = match args.value("getMore") {
        ValueRef::Int64(id) => id,
        other => return Err(args.wrong_type("getMore", other, "long")),
    };
    let collection = args.required_string("collection")?;
    let size = args.integer_at_least("batchSize", 0)?;
    let operation = &mut context.operation;
    let namespace = namespace_of(operation, collection);
    let cursors = &database.queries().cursors;
    let mut pinned = cursors.check_out(id, &namespace, operation)?;
    let cursor = pinned.cursor_mut()?;
    if cursor.api != operation.api {
        // The request is invalid; the cursor stays usable.
        pinned.keep(operation.clock().monotonic());
        return Err(Error::new(
            ErrorCode::APIMismatchError,
            "getMore must have the apiVersion, apiStrict and apiDeprecationErrors of the command that opened the cursor",
        ));
    }
    let awaits = cursor.tail.as_ref().is_some_and(|tail| tail.awaits);
    let mut wait = AWAIT_DEFAULT;
    if operation.max_time_ms > 0 {
        if !awaits {
            // The request is invalid; the cursor stays usable.
            pinned.keep(operation.clock().monotonic());
            return Err(Error::bad_value(
                "cannot set maxTimeMS on getMore command for a non-awaitData cursor",
            ));
        }
        // `maxTimeMS` limits the wait here, not the execution.
        wait = Duration::from_millis(u64::try_from(operation.max_time_ms).unwrap_or(0));
        operation.set_time_limit(None);
    }
    limit_time(operation, cursor.time_left);
    let mut reply = DocumentBuilder::with_capacity(4096);
    reply.begin_document("cursor");
    reply.begin_array("nextBatch");
    // No size, or size 0, means as many as fit.
    let batch = BatchRequest {
        documents: size.and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0),
    };
    let is_stream = cursor.stream.is_some();
    let filled = match fail_on_purpose(database.services(), context.session, &namespace) {
        Ok(()) => cursor.fill_or_wait(operation, batch, wait, &mut reply),
        Err(error) => Err(error),
    };
    let more = match filled {
        Err(error) if is_stream => return Err(change_stream::with_label(error)),
        filled => filled?,
    };
    cursor.time_left = operation.time_left();
    reply.end();
    cursor.append_resume_token(&mut reply);
    if more {
        pinned.keep(operation.clock().monotonic());
    }
    reply.append("id", if more { id } else { 0 });
    reply.append("ns", namespace);
    reply.end();
    Ok(reply.finish())
}

/// Fails as the fail point of `getMore` says.
fn fail_on_purpose(
    services: &Services,
    session: &mut ClientSession,
    namespace: &str,
) -> Result<()> {
    if !services.fail_get_more.is_on() {
        return Ok(());
    }
    let command = EnteringCommand {
        names: &[SPEC.name],
        namespace,
        application: None,
    };
    let Some(failure) = services.fail_get_more.enter(&command, &services.ids) else {
        return Ok(());
    };
    session.closes_connection |= failure.closes_connection;
    match failure.code {
        Some(code) => Err(Error::new(
            ErrorCode(code),
            "Failing getMore by the fail point failGetMoreAfterCursorCheckout",
        )),
        None => Ok(()),
    }
}
