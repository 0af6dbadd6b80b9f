//! `GET`, `POST /api/query`: the result of a query, as documents or as columns.
//!
//! ```text
//! database, collection, pipeline | filter, projection, sort, skip, limit ─► aggregate | find, without documents
//!   ─ getMore ─► batches of rows and of measurements ─► json, ndjson, csv, arrow, parquet ─► chunks of the response
//! ```
//!
//! A request is read-only. Its user is that of `Authorization: Basic` or of the web page's cookie. Batches are read while the
//! response is sent, [`PART_ROWS`] documents at a time, and measurements become columns without documents in between.
//!
//! An error before the first part has a status and JSON with `error`, and `code` and `codeName` of a failed command. A
//! later error ends the response without its last chunk, so that no client takes it for complete; the log names it.

mod output;
mod request;

use std::sync::Arc;
use std::time::Duration;

use nilometer::query::collector::BatchCollector;
use nilometer::{ClientSession, Database, Request};
use nilometer_bson::{DocRef, Document, DocumentBuilder, ValueRef, array, doc};
use tracing::warn;

use super::credentials::{CredentialPolicy, LoginRefused, Logins};
use super::message::{Connection, HttpResponse, RequestHead};
use super::parameters::Parameters;
use super::slots::Slots;
use crate::{command, limits};
use output::Output;
use request::QueryRequest;

/// Bytes of a request's body.
const BODY_BYTES_MAX: usize = 1024 * 1024;

/// Concurrent queries. Leaves connections of the port for other requests.
const QUERIES_MAX: usize = 8;

/// Time that a query waits for a slot.
const TURN_TIME_MAX: Duration = Duration::from_secs(10);

/// Documents that are read before they are sent.
const PART_ROWS: usize = 16_384;

/// Bytes that are read before they are sent, of documents, or eight for each value of a measurement.
const PART_BYTES: usize = 8 * 1024 * 1024;

/// Codes of failed commands.
const CODE_UNAUTHORIZED: i64 = 13;
const CODE_AUTHENTICATION_FAILED: i64 = 18;
const CODE_INTERNAL: i64 = 1;

/// The queries of a port.
pub(super) struct QueryApi {
    logins: Logins,
    turns: Slots,
}

/// Why a query has no answer.
pub(super) struct QueryRefusal {
    status: &'static str,
    text: String,
    code: Option<(i64, String)>,
}

impl QueryRefusal {
    fn new(status: &'static str, text: impl Into<String>) -> Self {
        Self {
            status,
            text: text.into(),
            code: None,
        }
    }

    fn bad(text: impl Into<String>) -> Self {
        Self::new("400 Bad Request", text)
    }

    /// Returns the refusal for the reply of a failed command.
    fn of_reply(reply: &Document) -> Self {
        let code = reply.get("code").as_exact_i64().unwrap_or(0);
        let status = match code {
            CODE_UNAUTHORIZED => "403 Forbidden",
            CODE_AUTHENTICATION_FAILED => LoginRefused::UNAUTHORIZED,
            CODE_INTERNAL => "500 Internal Server Error",
            _ => "400 Bad Request",
        };
        let text = reply.get("errmsg").as_str().unwrap_or("the command failed");
        let name = reply.get("codeName").as_str().unwrap_or_default();
        Self {
            code: Some((code, name.to_owned())),
            ..Self::new(status, text)
        }
    }

    /// Returns the response.
    pub(super) fn answer(self) -> HttpResponse {
        let mut out = DocumentBuilder::new();
        out.append("error", self.text);
        if let Some((code, name)) = self.code {
            out.append("code", code);
            out.append("codeName", name);
        }
        let body = nilometer_bson::extjson::to_relaxed(out.finish().as_ref());
        let answer = HttpResponse::json(self.status, format!("{body}\n"));
        match self.status == LoginRefused::UNAUTHORIZED {
            true => answer.with("WWW-Authenticate", "Basic realm=\"Nilometer\""),
            false => answer,
        }
    }
}

impl From<LoginRefused> for QueryRefusal {
    fn from(refused: LoginRefused) -> Self {
        Self::new(refused.status, refused.text)
    }
}

impl QueryApi {
    pub(super) fn new() -> Self {
        Self {
            logins: Logins::default(),
            turns: Slots::new(QUERIES_MAX),
        }
    }

    /// Answers a request. `cookie_session` returns the session of the web page's cookie, or one without a user if logins are
    /// not required.
    pub(super) fn answer(
        &self,
        database: &Database,
        connection: &mut Connection,
        head: &RequestHead,
        cookie_session: impl FnOnce() -> Option<ClientSession>,
    ) -> HttpResponse {
        connection.entry().begin_command();
        let answered = self.handle(database, connection, head, cookie_session);
        connection.entry().end_command();
        answered.unwrap_or_else(QueryRefusal::answer)
    }

    fn handle(
        &self,
        database: &Database,
        connection: &mut Connection,
        head: &RequestHead,
        cookie_session: impl FnOnce() -> Option<ClientSession>,
    ) -> Result<HttpResponse, QueryRefusal> {
        let parameters = Parameters::of_query(&head.query);
        let body = match head.method.as_str() {
            "GET" => None,
            "POST" => {
                let gone = |_| QueryRefusal::bad("the connection is gone");
                connection.accept_body(head).map_err(gone)?;
                let read = connection.read_body_or_chunks(head, BODY_BYTES_MAX);
                let body = read.map_err(|refused| {
                    QueryRefusal::new(refused.status(), refused.body().trim_end())
                })?;
                Some(body)
            }
            other => {
                let text = format!("/api/query takes GET and POST, not {other}");
                return Err(QueryRefusal::new("405 Method Not Allowed", text));
            }
        };
        let mut session = match head.field("authorization") {
            Some(_) => {
                let policy = CredentialPolicy {
                    application: "Nilometer query",
                    takes_plaintext: false,
                    advice: "use --tlsMode, or a tunnel: ssh -L",
                };
                let none = Parameters::default();
                self.logins
                    .session(database, connection, head, &none, policy)?
            }
            None => cookie_session().ok_or_else(|| {
                QueryRefusal::new(
                    LoginRefused::UNAUTHORIZED,
                    "logins are required: send Authorization: Basic",
                )
            })?,
        };
        let request = QueryRequest::parse(&parameters, body.as_deref(), head.field("accept"))?;
        let Some(_turn) = self.turns.take(TURN_TIME_MAX) else {
            let text = format!("there are {QUERIES_MAX} other queries: try again in a moment");
            return Err(QueryRefusal::new("503 Service Unavailable", text));
        };
        let patience = connection.extend_send_patience(limits::STALL_TIMEOUT);
        patience.map_err(|_| QueryRefusal::bad("the connection is gone"))?;
        let mut output = Output::new(&request, connection)?;
        let mut query = RunningQuery::begin(database, &mut session, &request)?;
        let outcome = query.run(&mut output);
        let outcome = outcome.and_then(|()| output.finish().map_err(QueryRefusal::bad));
        query.end();
        match outcome {
            Ok(()) => Ok(HttpResponse::no_content()),
            Err(refusal) if connection.has_begun() => {
                connection.abort();
                let error = refusal.text.as_str();
                warn!(
                    c = "NETWORK",
                    id = 23_030,
                    error,
                    "A query over HTTP broke off"
                );
                Ok(HttpResponse::no_content())
            }
            Err(refusal) => Err(refusal),
        }
    }
}

/// A query with its cursor.
struct RunningQuery<'a> {
    database: &'a Database,
    session: &'a mut ClientSession,
    db: &'a str,
    collection: String,
    cursor: i64,
}

impl<'a> RunningQuery<'a> {
    /// Opens the cursor of a query, without documents.
    fn begin(
        database: &'a Database,
        session: &'a mut ClientSession,
        request: &'a QueryRequest,
    ) -> Result<Self, QueryRefusal> {
        let mut query = Self {
            database,
            session,
            db: &request.database,
            collection: String::new(),
            cursor: 0,
        };
        let reply = query.command(request.command.clone())?;
        let cursor = cursor_of(&reply);
        let namespace = cursor.get("ns").as_str().unwrap_or_default();
        let collection = namespace.split_once('.').map_or("", |(_, name)| name);
        query.collection = collection.to_owned();
        query.cursor = cursor.get("id").as_exact_i64().unwrap_or(0);
        Ok(query)
    }

    fn command(&mut self, body: Document) -> Result<Document, QueryRefusal> {
        let (reply, _) = command::run(self.database, self.session, &Request::new(body));
        match reply.get("ok").as_exact_i64() {
            Some(1) => Ok(reply),
            _ => Err(QueryRefusal::of_reply(&reply)),
        }
    }

    /// Gives `output` all batches.
    fn run(&mut self, output: &mut Output<'_>) -> Result<(), QueryRefusal> {
        if self.cursor == 0 {
            return Ok(());
        }
        let collector = Arc::new(BatchCollector::new(PART_ROWS, PART_BYTES));
        let collects = self
            .database
            .collect_batches(self.cursor, Arc::clone(&collector));
        if !collects {
            return Err(QueryRefusal::bad(
                "the result of this query has no end, or is gone",
            ));
        }
        while self.cursor != 0 {
            let more = doc! {
                "getMore": self.cursor,
                "collection": self.collection.as_str(),
                "$db": self.db,
            };
            let reply = self.command(more)?;
            self.cursor = cursor_of(&reply).get("id").as_exact_i64().unwrap_or(0);
            for batch in collector.take() {
                output.push(batch).map_err(QueryRefusal::bad)?;
            }
        }
        Ok(())
    }

    /// Closes the cursor, unless all of it was read.
    fn end(mut self) {
        if self.cursor != 0 {
            let close = doc! {
                "killCursors": self.collection.as_str(),
                "cursors": array![self.cursor],
                "$db": self.db,
            };
            // It may be gone already.
            drop(self.command(close));
        }
    }
}

fn cursor_of(reply: &Document) -> DocRef<'_> {
    match reply.get("cursor") {
        ValueRef::Document(cursor) => cursor,
        _ => DocRef::EMPTY,
    }
}

/// Parses a line as the parameters of a target, and the bytes behind it as the body. True if they are a query.
pub(super) fn fuzz_request(bytes: &[u8]) -> bool {
    let line = bytes.iter().position(|byte| *byte == b'\n');
    let (line, body) = bytes.split_at(line.unwrap_or(bytes.len()));
    let Ok(line) = std::str::from_utf8(line) else {
        return false;
    };
    let parameters = Parameters::of_query(line);
    let body = body.strip_prefix(b"\n");
    [None, Some("text/csv, */*;q=0.5")].iter().all(|accept| {
        let request = QueryRequest::parse(&parameters, body, *accept);
        if let Ok(request) = &request {
            let limits = nilometer_bson::validate::Limits::default();
            let command = request.command.as_bytes();
            assert!(nilometer_bson::validate::validate_prefix(command, &limits).is_ok());
        }
        request.is_ok()
    })
}
