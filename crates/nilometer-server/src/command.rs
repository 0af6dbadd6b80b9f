//! Running a command of a client. A panic ends there.

use std::panic::{AssertUnwindSafe, catch_unwind};

use nilometer::commands::error_reply;
use nilometer::{ClientSession, Database, Error, ErrorCode, Request};
use nilometer_bson::Document;
use tracing::error;

/// Runs a command. The second value is true if it panicked: the reply then reports it, and the session must not be used
/// again.
pub(crate) fn run(
    database: &Database,
    session: &mut ClientSession,
    request: &Request,
) -> (Document, bool) {
    let outcome = catch_unwind(AssertUnwindSafe(|| database.run_command(session, request)));
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
