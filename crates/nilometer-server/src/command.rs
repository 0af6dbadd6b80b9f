//! Running a command of a client. A panic ends there.

use std::panic::{AssertUnwindSafe, catch_unwind};

use nilometer::commands::error_reply;
use nilometer::router::{PARTITION_FIELD, addressed};
use nilometer::{ClientSession, Database, Error, ErrorCode, Request};
use nilometer_bson::Document;
use tracing::error;

use crate::database_slot::NodeRequests;

/// Runs a command. The second value is true if it panicked: the reply then reports it, and the session must not be used
/// again.
pub(crate) fn run(
    database: &Database,
    session: &mut ClientSession,
    request: &Request,
) -> (Document, bool) {
    guarded(request, || database.run_command(session, request))
}

/// Runs a command that another node of the cluster asks of a database of this one.
pub(crate) fn run_for_node(
    node: &dyn NodeRequests,
    session: &ClientSession,
    request: &Request,
) -> (Document, bool) {
    guarded(request, || {
        if !session.login.is_member() {
            let text = format!("only nodes of the cluster send {PARTITION_FIELD}");
            return error_reply(&Error::new(ErrorCode::Unauthorized, text));
        }
        let outcome = addressed(request).and_then(|found| match found {
            Some((unit, request)) => node.run(&unit, &request),
            None => Err(Error::bad_value("the command is for no partition")),
        });
        outcome.unwrap_or_else(|error| error_reply(&error))
    })
}

fn guarded(request: &Request, run: impl FnOnce() -> Document) -> (Document, bool) {
    let outcome = catch_unwind(AssertUnwindSafe(run));
    if let Ok(reply) = outcome {
        return (reply, false);
    }
    let command = request.command_name();
    error!(
        c = "COMMAND",
        id = 22_992,
        command,
        "A command panicked; this is a bug in the server"
    );
    let error = Error::new(
        ErrorCode::InternalError,
        format!("the command {command} failed unexpectedly; see the server's log"),
    );
    (error_reply(&error), true)
}
