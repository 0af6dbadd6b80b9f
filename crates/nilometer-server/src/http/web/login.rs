//! Logging in for a browser, which cannot: the server speaks SCRAM with itself.
//!
//! The messages are those a driver would send, as commands. So a password is checked by the one code
//! that checks passwords, failures are delayed by the address they come from, and the log and the audit
//! log tell of the login as of any other.

use nilometer::auth::{self, Mechanism, Prover};
use nilometer::{ClientSession, Database, Request};
use nilometer_bson::{Binary, Document, Value, ValueRef, doc};

use crate::command;

/// Random bytes of our part of the nonce.
const NONCE_BYTES: usize = 18;

/// What is told of every failure but those of the server.
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
) -> Result<(), String> {
    let mechanism = mechanism(database, session, db, user).ok_or_else(failed)?;
    let nonce: String = auth::unguessable::<NONCE_BYTES>()
        .map_err(|e| e.message)?
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let prover = Prover::new(mechanism, user, password, &nonce).map_err(|_| failed())?;
    let begin = doc! {
        "saslStart": 1,
        "mechanism": mechanism.name(),
        "payload": payload(&prover.first()),
        "options": doc! {"skipEmptyExchange": true},
        "$db": db,
    };
    let reply = run(database, session, begin)?;
    let proof = prover.prove(&text(&reply)).ok_or_else(failed)?;
    let go_on = doc! {
        "saslContinue": 1,
        "conversationId": reply.get("conversationId").to_value(),
        "payload": payload(&proof.message),
        "$db": db,
    };
    let reply = run(database, session, go_on)?;
    let done = matches!(reply.get("done"), ValueRef::Bool(true));
    if done && proof.is_answered_by(&text(&reply)) && session.login.user().is_some() {
        Ok(())
    } else {
        Err(failed())
    }
}

/// Logs the user of a session out.
pub(super) fn log_out(database: &Database, session: &mut ClientSession) {
    // It is over either way.
    drop(run(database, session, doc! {"logout": 1, "$db": "admin"}));
}

/// True if the user of a session that was logged in is still there.
pub(super) fn is_still_in(database: &Database, session: &mut ClientSession) -> bool {
    let status = doc! {"connectionStatus": 1, "$db": "admin"};
    run(database, session, status).is_ok() && session.login.user().is_some()
}

/// The best mechanism by which the user can log in.
fn mechanism(
    database: &Database,
    session: &mut ClientSession,
    db: &str,
    user: &str,
) -> Option<Mechanism> {
    let hello = doc! {"hello": 1, "saslSupportedMechs": format!("{db}.{user}"), "$db": "admin"};
    let reply = run(database, session, hello).ok()?;
    let offered = reply.get("saslSupportedMechs").as_array()?;
    let offers = |mechanism: &Mechanism| {
        let mut names = offered.iter().filter_map(ValueRef::as_str);
        names.any(|name| name == mechanism.name())
    };
    [Mechanism::Sha256, Mechanism::Sha1]
        .into_iter()
        .find(offers)
}

/// Runs a command; its error is a text.
fn run(
    database: &Database,
    session: &mut ClientSession,
    body: Document,
) -> Result<Document, String> {
    let (reply, _) = command::run(database, session, &Request::new(body));
    if reply.get("ok").as_exact_i64() == Some(1) {
        return Ok(reply);
    }
    Err(reply.get("errmsg").as_str().unwrap_or_default().to_owned())
}

fn payload(message: &str) -> Value {
    Value::from(Binary {
        subtype: 0,
        bytes: message.as_bytes().into(),
    })
}

/// The payload of a reply; nothing if there is none.
fn text(reply: &Document) -> String {
    match reply.get("payload") {
        ValueRef::Binary { bytes, .. } => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    }
}
