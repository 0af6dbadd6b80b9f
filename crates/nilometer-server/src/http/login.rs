//! Logins with a user name and a password in a request: the server runs SCRAM against itself.
//!
//! It sends the commands that a driver would send. So one implementation checks passwords, failures are delayed by
//! client address, and the log and the audit log record the login as any other.

use nilometer::auth;
use nilometer::{ClientSession, Database, Error, ErrorCode, Request, Result};
use nilometer_bson::{Document, DocumentBuilder, doc};

use crate::command;
use crate::login::{best_mechanism, by_scram};

/// Returns the error for every failure except those of the server.
fn failed() -> String {
    auth::failed().message
}

/// Logs `user` of the database `db` in.
pub(super) fn log_in(
    database: &Database,
    session: &mut ClientSession,
    db: &str,
    user: &str,
    password: &str,
) -> std::result::Result<(), String> {
    let hello = doc! {"hello": 1, "saslSupportedMechs": format!("{db}.{user}"), "$db": "admin"};
    let hello = run(database, session, hello).map_err(|e| e.message)?;
    let mechanism = best_mechanism(&hello).ok_or_else(failed)?;
    let outcome = by_scram(mechanism, (user, password), |command| {
        let mut body = DocumentBuilder::new();
        for element in command.iter() {
            body.append_element(element);
        }
        body.append("$db", db);
        run(database, session, body.finish())
    });
    outcome.map_err(|e| e.message)?;
    session.login.user().map(drop).ok_or_else(failed)
}

/// Logs the user of a session out.
pub(super) fn log_out(database: &Database, session: &mut ClientSession) {
    // The session ends in any case.
    drop(run(database, session, doc! {"logout": 1, "$db": "admin"}));
}

/// True if the user of a logged-in session still exists.
pub(super) fn is_still_in(database: &Database, session: &mut ClientSession) -> bool {
    let status = doc! {"connectionStatus": 1, "$db": "admin"};
    run(database, session, status).is_ok() && session.login.user().is_some()
}

/// Runs a command. A reply that is not ok is an error.
fn run(database: &Database, session: &mut ClientSession, body: Document) -> Result<Document> {
    let (reply, _) = command::run(database, session, &Request::new(body));
    if reply.get("ok").as_exact_i64() == Some(1) {
        return Ok(reply);
    }
    let text = reply.get("errmsg").as_str().unwrap_or_default();
    Err(Error::new(ErrorCode::AuthenticationFailed, text))
}
