//! `saslStart`, `saslContinue`, `authenticate`, `logout`.
//!
//! The steps of SCRAM are in the module `auth`; here are the messages around them, the delay after failures,
//! and the records of each attempt. A driver may put its first message into `hello` to save a round trip
//! ([`speculate`]).
//!
//! Users may be created and may log in without access control; logins have no effect then.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use nilometer_bson::{Binary, DocRef, Document, DocumentBuilder, Value, ValueRef, doc};
use tracing::info;

use super::audit;
use crate::args::Args;
use crate::auth::{self, ClientFirst, Conversation, EXTERNAL, Grants, Mechanism, UserName};
use crate::commands::{Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;
use crate::session::ClientSession;

/// The mechanism of client certificates.
pub(crate) const X509: &str = "MONGODB-X509";

/// Random bytes in the server's part of a nonce.
const NONCE_BYTES: usize = 24;

/// The interval at which a delay checks for interruption.
const DELAY_SLICE: Duration = Duration::from_millis(50);

pub(crate) const SASL_START: CommandSpec = CommandSpec {
    in_api_v1: true,
    secrets: &["payload"],
    fields: Fields::Only(&["mechanism", "payload", "autoAuthorize", "options", "db"]),
    ..CommandSpec::new(
        "saslStart",
        "Starts a login.",
        Authorization::Open,
        OnRouter::Same,
        sasl_start,
    )
};

pub(crate) const SASL_CONTINUE: CommandSpec = CommandSpec {
    in_api_v1: true,
    secrets: &["payload"],
    fields: Fields::Only(&["conversationId", "payload"]),
    ..CommandSpec::new(
        "saslContinue",
        "Continues a login.",
        Authorization::Open,
        OnRouter::Same,
        sasl_continue,
    )
};

pub(crate) const AUTHENTICATE: CommandSpec = CommandSpec {
    in_api_v1: true,
    fields: Fields::Only(&["mechanism", "user"]),
    ..CommandSpec::new(
        "authenticate",
        "Logs in with the client's TLS certificate.",
        Authorization::Open,
        OnRouter::Same,
        authenticate,
    )
};

pub(crate) const LOGOUT: CommandSpec = CommandSpec {
    in_api_v1: true,
    ..CommandSpec::new(
        "logout",
        "Logs out.",
        Authorization::Open,
        OnRouter::Same,
        logout,
    )
};

fn sasl_start(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let db = context.operation.database.clone();
    start(database, context, request.body.as_ref(), &db)
}

/// Starts a conversation in the database `db`.
fn start(
    database: &Database,
    context: &mut CommandContext<'_>,
    body: DocRef<'_>,
    db: &str,
) -> Result<Document> {
    let args = Args::new("saslStart", body);
    let name = args.required_string("mechanism")?;
    let payload = payload(&args)?;
    args.lenient_boolean("autoAuthorize")?;
    let options = args.nested("options", &["skipEmptyExchange"])?;
    let skip_empty = match &options {
        Some(options) => options
            .lenient_boolean("skipEmptyExchange")?
            .unwrap_or(false),
        None => false,
    };
    let Some(mechanism) = Mechanism::from_name(name) else {
        return Err(Error::new(
            ErrorCode::MechanismUnavailable,
            format!("Received authentication for mechanism {name} which is not enabled"),
        ));
    };
    let first = ClientFirst::parse(&payload)?;
    let user = UserName::new(&first.user, db);
    let parameters = &database.services().parameters;
    let iterations = match mechanism {
        Mechanism::Sha1 => parameters.scram_iteration_count(),
        Mechanism::Sha256 => parameters.scram_sha256_iteration_count(),
    };
    let iterations = u32::try_from(iterations).unwrap_or(u32::MAX);
    let key = database.services().member_key.get();
    let credentials = match key.and_then(|key| key.of(&user, mechanism)) {
        Some(credentials) => (credentials, true),
        None => database
            .authority()
            .credentials(&user, mechanism, iterations),
    };
    let nonce = BASE64.encode(auth::random_bytes::<NONCE_BYTES>()?);
    let (conversation, answer) =
        Conversation::start(mechanism, &first, user, credentials, &nonce, skip_empty);
    let id = context.session.login.begin(conversation);
    Ok(answered(id, false, &answer, &args))
}

fn sasl_continue(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("saslContinue", request.body.as_ref());
    let id = args.integer("conversationId")?;
    let payload = payload(&args)?;
    let protocol = |text: &str| Error::new(ErrorCode::ProtocolError, text);
    let Some((number, conversation)) = context.session.login.conversation() else {
        return Err(protocol("No SASL session state found"));
    };
    if id != Some(i64::from(number)) {
        return Err(protocol("sasl: Mismatched conversation id"));
    }
    let mut conversation = conversation.lock().unwrap_or_else(PoisonError::into_inner);
    if conversation.awaits_proof() {
        wait(database, context)?;
    }
    let user = conversation.user().clone();
    let mechanism = conversation.mechanism().name();
    match conversation.step(&payload) {
        Ok((answer, false)) => Ok(answered(number, false, &answer, &args)),
        Ok((answer, true)) => {
            context.session.login.end_conversation();
            succeed(database, context, &user, mechanism)?;
            Ok(answered(number, true, &answer, &args))
        }
        Err(error) => {
            context.session.login.end_conversation();
            Err(fail(database, context.session, &user, mechanism, error))
        }
    }
}

fn authenticate(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let db = context.operation.database.clone();
    by_certificate(database, context, request.body.as_ref(), &db)
}

/// Logs in the subject of the certificate that the transport has verified.
fn by_certificate(
    database: &Database,
    context: &mut CommandContext<'_>,
    body: DocRef<'_>,
    db: &str,
) -> Result<Document> {
    let args = Args::new("authenticate", body);
    let mechanism = args.required_string("mechanism")?;
    let claimed = args.string("user")?;
    if mechanism != X509 {
        return Err(Error::new(
            ErrorCode::MechanismUnavailable,
            format!("Received authentication for mechanism {mechanism} which is not enabled"),
        ));
    }
    if db != EXTERNAL {
        return Err(Error::new(
            ErrorCode::ProtocolError,
            "X.509 authentication must always use the $external database.",
        ));
    }
    wait(database, context)?;
    let subject = context.session.certificate_subject.clone();
    let shown = subject
        .as_deref()
        .filter(|s| claimed.is_none_or(|c| c == *s));
    let name = UserName::new(shown.or(claimed).unwrap_or(""), EXTERNAL);
    if shown.is_none() {
        return Err(fail(database, context.session, &name, X509, auth::failed()));
    }
    succeed(database, context, &name, X509)?;
    Ok(doc! {"dbname": EXTERNAL, "user": name.user.as_str()})
}

fn logout(database: &Database, context: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    audit::logged_out(database.services(), context.session);
    context.session.login.log_out();
    let connections = &database.services().connections;
    connections.set_user(context.session.connection_id, None);
    Ok(Document::new())
}

/// Returns the reply of `saslStart` or `authenticate` to the message in a `hello`; nothing on failure, which
/// the login itself reports. Nothing either if the user lacks the mechanism: then the driver chooses one of
/// `saslSupportedMechs`, whereas an answer would commit it to a login that must fail.
pub(crate) fn speculate(
    database: &Database,
    context: &mut CommandContext<'_>,
    given: DocRef<'_>,
) -> Option<Document> {
    let db = given.get("db").as_str().unwrap_or("admin").to_owned();
    match given.iter().next()?.name() {
        "saslStart" if has_mechanism(database, given, &db) => {
            start(database, context, given, &db).ok()
        }
        "authenticate" => by_certificate(database, context, given, EXTERNAL).ok(),
        _ => None,
    }
}

/// True if the user of a `saslStart` can log in with its mechanism, as far as clients may know.
fn has_mechanism(database: &Database, given: DocRef<'_>, db: &str) -> bool {
    let mechanism = given.get("mechanism").as_str();
    let Some(mechanism) = mechanism.and_then(Mechanism::from_name) else {
        return false;
    };
    let Ok(payload) = payload(&Args::new("saslStart", given)) else {
        return false;
    };
    ClientFirst::parse(&payload).is_ok_and(|first| {
        let user = UserName::new(&first.user, db);
        database.authority().mechanisms(&user).contains(&mechanism)
    })
}

/// Returns the mechanisms `db.user` can log in with. The reply does not reveal whether the user exists.
pub(crate) fn mechanisms(database: &Database, name: &str) -> Vec<Value> {
    let (db, user) = name.split_once('.').unwrap_or(("", name));
    if db == EXTERNAL {
        return vec![Value::from(X509)];
    }
    let mechanisms = database.authority().mechanisms(&UserName::new(user, db));
    mechanisms.into_iter().map(|m| m.name().into()).collect()
}

/// Waits for the delay that the failures of this address require.
fn wait(database: &Database, context: &CommandContext<'_>) -> Result<()> {
    let clock = &database.services().clock;
    let address = host(context.session);
    let throttle = &database.authority().throttle;
    let mut left = throttle.delay(&address, clock.monotonic());
    while !left.is_zero() {
        context.operation.check_interrupt()?;
        let part = left.min(DELAY_SLICE);
        std::thread::sleep(part);
        left = left.saturating_sub(part);
    }
    Ok(())
}

/// Returns the address without its port.
fn host(session: &ClientSession) -> String {
    match address(&session.client.remote) {
        Some(ip) => ip.to_string(),
        None => session.client.remote.clone(),
    }
}

fn address(text: &str) -> Option<std::net::IpAddr> {
    let socket: std::net::SocketAddr = text.parse().ok()?;
    Some(socket.ip().to_canonical())
}

/// Logs in a user with valid credentials, unless its restrictions refuse the address.
fn succeed(
    database: &Database,
    context: &mut CommandContext<'_>,
    name: &UserName,
    mechanism: &str,
) -> Result<()> {
    let session = &mut *context.session;
    if database.services().member_key.get().is_some() && auth::is_member(name) {
        session.login.succeed_as_member();
        audit::authenticated(database.services(), session, name, mechanism, None);
        return Ok(());
    }
    let grants = database.authority().grants(name);
    let Some(grants) = grants.filter(|grants| may_come(session, grants)) else {
        return Err(fail(database, session, name, mechanism, auth::failed()));
    };
    session.login.succeed(Arc::new(grants));
    let connections = &database.services().connections;
    connections.set_user(session.connection_id, Some(name));
    let remote = session.client.remote.as_str();
    info!(
        c = "ACCESS",
        id = 5_286_306,
        user = %name,
        mechanism,
        remote,
        "Successfully authenticated"
    );
    audit::authenticated(database.services(), session, name, mechanism, None);
    Ok(())
}

fn may_come(session: &ClientSession, grants: &Grants) -> bool {
    let (client, server) = (&session.client.remote, &session.client.local);
    let (client, server) = (address(client), address(server));
    grants.user.restrictions.allow(client, server)
        && grants
            .resolved
            .restrictions
            .iter()
            .all(|r| r.allow(client, server))
}

/// Records a failure; returns `error`.
fn fail(
    database: &Database,
    session: &ClientSession,
    name: &UserName,
    mechanism: &str,
    error: Error,
) -> Error {
    let services = database.services();
    let now = services.clock.monotonic();
    database.authority().throttle.failed(&host(session), now);
    let remote = session.client.remote.as_str();
    info!(
        c = "ACCESS",
        id = 5_286_307,
        user = %name,
        mechanism,
        remote,
        "Failed to authenticate"
    );
    audit::authenticated(services, session, name, mechanism, Some(&error));
    error
}

/// Returns the payload, from bytes or base64 text.
fn payload(args: &Args<'_>) -> Result<Vec<u8>> {
    match args.value("payload") {
        ValueRef::Missing => Err(args.missing("payload")),
        ValueRef::Binary { bytes, .. } => Ok(bytes.to_vec()),
        ValueRef::String(text) => BASE64.decode(text).map_err(|_| auth::failed()),
        other => Err(args.wrong_type("payload", other, "binData")),
    }
}

/// Returns the reply payload in the form of the request's.
fn answered(id: i32, done: bool, payload: &str, args: &Args<'_>) -> Document {
    let payload = match args.value("payload") {
        ValueRef::String(_) => Value::from(BASE64.encode(payload)),
        _ => Value::from(Binary {
            subtype: 0,
            bytes: payload.as_bytes().into(),
        }),
    };
    let mut out = DocumentBuilder::new();
    out.append("conversationId", id)
        .append("done", done)
        .append("payload", payload);
    out.finish()
}
