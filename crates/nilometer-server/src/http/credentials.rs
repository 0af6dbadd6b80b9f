//! Logins of clients that send user and password with every request: those of InfluxDB, and those of `/api/query`.
//!
//! They come as `Authorization: Basic`, as `Authorization: Token user:password` or as the parameters `u` and `p`. The user is
//! one of the database `admin`, or of that in the parameter `authSource`. If the server requires no logins, they are ignored.
//!
//! A login costs thousands of hashes, so one that succeeded is remembered for [`LOGIN_AGE_MAX`], by a digest of user, password
//! and the address of the client. A password that was changed is accepted for as long; a user who was dropped is not.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use nilometer::auth::{self, Mechanism};
use nilometer::session::ClientMetadata;
use nilometer::{ClientSession, Database};
use nilometer_bson::doc;

use super::login;
use super::message::{Connection, RequestHead};
use super::parameters::Parameters;
use super::slots::Slots;

/// Time for which a login is remembered.
const LOGIN_AGE_MAX: Duration = Duration::from_secs(60);

/// Logins that are remembered. Beyond that all are forgotten.
const LOGINS_KEPT_MAX: usize = 1_000;

/// Concurrent logins: each costs thousands of hashes, and may have to wait.
const LOGINS_MAX: usize = 4;

/// Time that a login waits for its turn.
const TURN_TIME_MAX: Duration = Duration::from_secs(5);

/// Bytes of the secret in digests.
const SECRET_BYTES: usize = 32;

/// The database of users, unless the request names another.
const DEFAULT_SOURCE: &str = "admin";

/// What a port accepts.
#[derive(Clone, Copy, Debug)]
pub(super) struct CredentialPolicy {
    /// The application that the log names.
    pub(super) application: &'static str,
    /// Passwords are accepted without TLS from other machines, too.
    pub(super) takes_plaintext: bool,
    /// What an error about passwords without TLS advises.
    pub(super) advice: &'static str,
}

/// A refused login: a status and a text.
#[derive(Debug)]
pub(super) struct LoginRefused {
    pub(super) status: &'static str,
    pub(super) text: String,
}

impl LoginRefused {
    pub(super) const UNAUTHORIZED: &'static str = "401 Unauthorized";

    fn new(status: &'static str, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { status, text }
    }

    fn unauthorized(text: &str) -> Self {
        Self::new(Self::UNAUTHORIZED, text)
    }
}

/// User and password.
struct Credentials {
    user: String,
    password: String,
}

/// Logins that succeeded.
pub(super) struct Logins {
    known: Mutex<HashMap<Vec<u8>, (ClientSession, Instant)>>,
    slots: Slots,
    secret: Option<[u8; SECRET_BYTES]>,
}

impl Default for Logins {
    fn default() -> Self {
        Self {
            known: Mutex::default(),
            slots: Slots::new(LOGINS_MAX),
            // Without a secret no login is remembered.
            secret: auth::random_bytes().ok(),
        }
    }
}

impl Logins {
    fn lock(&self) -> MutexGuard<'_, HashMap<Vec<u8>, (ClientSession, Instant)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the session for a request.
    pub(super) fn session(
        &self,
        database: &Database,
        connection: &Connection,
        head: &RequestHead,
        parameters: &Parameters,
        policy: CredentialPolicy,
    ) -> Result<ClientSession, LoginRefused> {
        let client = connection
            .client()
            .map_err(|_| LoginRefused::new("400 Bad Request", "the connection is gone"))?;
        let id = connection.entry().id;
        let same_machine = client.same_machine;
        let client = ClientMetadata {
            document: Some(doc! {"application": doc! {"name": policy.application}}),
            // The first user is created over the database's port.
            same_machine: false,
            ..client
        };
        let mut session = ClientSession::new(id, client);
        if !database.services().access_control {
            return Ok(session);
        }
        let refuse = LoginRefused::unauthorized;
        let Some(given) = credentials(head, parameters)? else {
            return Err(refuse("unable to parse authentication credentials"));
        };
        if !(connection.is_tls() || same_machine || policy.takes_plaintext) {
            let advice = policy.advice;
            return Err(LoginRefused::new(
                "403 Forbidden",
                format!("passwords are not accepted without TLS from another machine: {advice}"),
            ));
        }
        let source = parameters.get_text("authSource").unwrap_or(DEFAULT_SOURCE);
        let key = self.key(&session.client.remote, source, &given);
        if let Some(mut known) = key.as_ref().and_then(|key| self.find(key)) {
            known.connection_id = id;
            known.client = Arc::clone(&session.client);
            if login::is_still_in(database, &mut known) {
                return Ok(known);
            }
        }
        let Some(_turn) = self.slots.take(TURN_TIME_MAX) else {
            return Err(LoginRefused::new(
                "503 Service Unavailable",
                "too many logins are in progress",
            ));
        };
        login::log_in(database, &mut session, source, &given.user, &given.password)
            .map_err(|_| refuse("authorization failed"))?;
        if let Some(key) = key {
            self.remember(key, &session);
        }
        Ok(session)
    }

    /// Returns the digest of credentials and address.
    fn key(&self, remote: &str, source: &str, given: &Credentials) -> Option<Vec<u8>> {
        let secret = self.secret?;
        let address: SocketAddr = remote.parse().ok()?;
        let mut bytes = secret.to_vec();
        let address = address.ip().to_canonical().to_string();
        for part in [address.as_str(), source, &given.user, &given.password] {
            bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
            bytes.extend_from_slice(part.as_bytes());
        }
        Some(Mechanism::Sha256.hash(&bytes))
    }

    fn find(&self, key: &[u8]) -> Option<ClientSession> {
        let known = self.lock();
        let (session, since) = known.get(key)?;
        (since.elapsed() < LOGIN_AGE_MAX).then(|| session.clone())
    }

    fn remember(&self, key: Vec<u8>, session: &ClientSession) {
        let mut known = self.lock();
        if known.len() >= LOGINS_KEPT_MAX {
            known.retain(|_, (_, since)| since.elapsed() < LOGIN_AGE_MAX);
        }
        if known.len() >= LOGINS_KEPT_MAX {
            known.clear();
        }
        known.insert(key, (session.clone(), Instant::now()));
    }
}

/// Returns the credentials of a request, if there are any.
fn credentials(
    head: &RequestHead,
    parameters: &Parameters,
) -> Result<Option<Credentials>, LoginRefused> {
    let refuse = LoginRefused::unauthorized;
    let pair = |text: &str| {
        let (user, password) = text.split_once(':')?;
        Some(Credentials {
            user: user.to_owned(),
            password: password.to_owned(),
        })
    };
    let Some(field) = head.field("authorization") else {
        let user = parameters.get_text("u");
        return Ok(user.map(|user| Credentials {
            user: user.to_owned(),
            password: parameters.get("p").unwrap_or_default().to_owned(),
        }));
    };
    let (scheme, rest) = field.split_once(' ').unwrap_or((field, ""));
    let found = match scheme.to_ascii_lowercase().as_str() {
        "basic" => decode_base64(rest.trim()).and_then(|text| pair(&text)),
        "token" => pair(rest.trim()),
        _ => {
            return Err(refuse(
                "the authorization schemes are Basic and Token user:password",
            ));
        }
    };
    match found {
        Some(found) => Ok(Some(found)),
        None => Err(refuse("unable to parse authentication credentials")),
    }
}

/// Decodes the text behind `Basic`.
fn decode_base64(text: &str) -> Option<String> {
    String::from_utf8(BASE64.decode(text).ok()?).ok()
}
