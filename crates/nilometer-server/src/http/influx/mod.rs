//! The port for clients of InfluxDB 1.x: line protocol in, InfluxQL answered.
//!
//! | path | answer |
//! |---|---|
//! | `GET /ping` | 204 and the version |
//! | `GET /health` | 200 if writes are accepted, else 503 and the reason, as JSON |
//! | `POST /write` | writes the points of the body, see [`mod@write`] |
//! | `POST /api/v2/write` | the same with the parameters and error texts of InfluxDB 2 |
//! | `POST /api/v1/write` | writes the samples of a remote write of Prometheus |
//! | `GET`, `POST /query` | answers statements of InfluxQL, see [`mod@query`] |
//!
//! A database is a database, a measurement a time-series collection, whose metadata are the tags. All requests become commands
//! of the user who sends them, so roles, audit log and profiler apply. Users are those of the database, see [`super::credentials`].
//!
//! Requests that a browser sends on behalf of a page are refused: without logins such a page could write and read here.

mod collection_cache;
mod insert;
mod measurements;
mod query;
mod write;

use std::io::Read;
use std::time::Duration;

use flate2::read::MultiGzDecoder;
use nilometer::{ClientSession, Database};
use nilometer_bson::extjson::value_to_relaxed;
use nilometer_bson::{Document, ValueRef};

use super::InfluxOptions;
use super::credentials::{CredentialPolicy, LoginRefused, Logins};
use super::message::{Connection, HttpResponse, RequestHead};
use super::parameters::Parameters;
use crate::message_memory::{MemoryShare, MessageMemory};
use measurements::Measurements;

/// The version of InfluxDB whose interface this is.
const INFLUX_VERSION: &str = "1.8.10";

/// Bytes of a body as it is sent; the default of InfluxDB.
const BODY_BYTES_MAX: usize = 25_000_000;

/// Bytes of the form of a query.
const FORM_BYTES_MAX: usize = 1024 * 1024;

/// Bytes of a body after decompression.
const INFLATED_BYTES_MAX: usize = 100_000_000;

/// Bytes that a body takes in memory for each of its own: the text and its documents.
const MEMORY_FACTOR: usize = 3;

/// Time for a body to arrive.
const BODY_PATIENCE: Duration = Duration::from_secs(60);

/// Time that a body waits for memory.
const MEMORY_PATIENCE: Duration = Duration::from_secs(10);

/// The state of the port.
pub(super) struct Influx {
    options: InfluxOptions,
    logins: Logins,
    measurements: Measurements,
    memory: MessageMemory,
}

/// What a handler needs of a request.
struct InfluxRequest<'a> {
    database: &'a Database,
    session: ClientSession,
    parameters: Parameters,
}

/// A refused request: a status, a code of InfluxDB 2 and a text.
#[derive(Debug)]
struct Refusal {
    status: &'static str,
    code: &'static str,
    text: String,
}

impl Refusal {
    fn new(status: &'static str, code: &'static str, text: impl Into<String>) -> Self {
        Self {
            status,
            code,
            text: text.into(),
        }
    }

    fn bad(text: impl Into<String>) -> Self {
        Self::new("400 Bad Request", "invalid", text)
    }

    fn not_found(text: impl Into<String>) -> Self {
        Self::new("404 Not Found", "not found", text)
    }

    /// Returns the refusal for the reply of a failed command.
    fn of_reply(reply: &Document) -> Self {
        let text = reply.get("errmsg").as_str().unwrap_or("the command failed");
        let code = reply.get("code").as_exact_i64().unwrap_or(0);
        let (status, code) = match code {
            CODE_UNAUTHORIZED => ("403 Forbidden", "forbidden"),
            CODE_AUTHENTICATION_FAILED => ("401 Unauthorized", "unauthorized"),
            CODE_INVALID_NAMESPACE => ("400 Bad Request", "invalid"),
            _ => ("500 Internal Server Error", "internal error"),
        };
        Self::new(status, code, text)
    }

    fn answer(&self) -> HttpResponse {
        let text = json_text(&self.text);
        let code = self.code;
        let body = format!("{{\"code\":\"{code}\",\"message\":{text},\"error\":{text}}}\n");
        let answer = HttpResponse::json(self.status, body);
        match self.status.starts_with("401") {
            true => answer.with("WWW-Authenticate", "Basic realm=\"InfluxDB\""),
            false => answer,
        }
    }
}

impl From<LoginRefused> for Refusal {
    fn from(refused: LoginRefused) -> Self {
        let code = match refused.status.get(..3) {
            Some("401") => "unauthorized",
            Some("403") => "forbidden",
            Some("503") => "unavailable",
            _ => "invalid",
        };
        Self::new(refused.status, code, refused.text)
    }
}

const CODE_UNAUTHORIZED: i64 = 13;
const CODE_AUTHENTICATION_FAILED: i64 = 18;
const CODE_INVALID_NAMESPACE: i64 = 73;

/// Returns a text as JSON.
fn json_text(text: &str) -> String {
    value_to_relaxed(ValueRef::String(text))
}

impl Influx {
    pub(super) fn new(options: InfluxOptions) -> Self {
        Self {
            options,
            logins: Logins::default(),
            measurements: Measurements::default(),
            memory: MessageMemory::new(options.memory_bytes),
        }
    }

    /// Answers a request.
    pub(super) fn answer(
        &self,
        database: &Database,
        connection: &mut Connection,
        head: &RequestHead,
    ) -> HttpResponse {
        connection.entry().begin_command();
        let answered = self.handle(database, connection, head);
        connection.entry().end_command();
        with_version(answered.unwrap_or_else(|refusal| refusal.answer()))
    }

    fn handle(
        &self,
        database: &Database,
        connection: &mut Connection,
        head: &RequestHead,
    ) -> Result<HttpResponse, Refusal> {
        check_sender(head)?;
        let parameters = Parameters::of_query(&head.query);
        let reads = matches!(head.method.as_str(), "GET" | "HEAD");
        match (head.path.as_str(), head.method.as_str()) {
            ("/ping", _) if reads => Ok(match parameters.get("verbose") {
                None | Some("" | "false" | "0") => HttpResponse::no_content(),
                Some(_) => {
                    HttpResponse::json("200 OK", format!("{{\"version\":\"{INFLUX_VERSION}\"}}\n"))
                }
            }),
            ("/health", _) if reads => Ok(health(database)),
            (path @ ("/write" | "/api/v2/write"), "POST") => {
                let mut request = self.request(database, connection, head, parameters)?;
                let (body, _memory) = self.body(connection, head, BODY_BYTES_MAX)?;
                write::answer(self, &mut request, path, &body)
            }
            ("/api/v1/write", "POST") => {
                check_remote_write(head)?;
                let mut request = self.request(database, connection, head, parameters)?;
                let (body, _memory) = self.body(connection, head, BODY_BYTES_MAX)?;
                write::answer_samples(self, &mut request, &body)
            }
            ("/query", "GET" | "POST") => {
                let mut parameters = parameters;
                if head.method == "POST" {
                    let (body, _memory) = self.body(connection, head, FORM_BYTES_MAX)?;
                    query::add_form(&mut parameters, head, &body)?;
                }
                let request = self.request(database, connection, head, parameters)?;
                query::answer(self, request, connection, head)
            }
            ("/ping" | "/health" | "/write" | "/api/v2/write" | "/api/v1/write" | "/query", _) => {
                Err(Refusal::new(
                    "405 Method Not Allowed",
                    "method not allowed",
                    format!("{} does not take {}", head.path, head.method),
                ))
            }
            _ => Err(Refusal::not_found(
                "there are /ping, /health, /write, /api/v2/write, /api/v1/write and /query",
            )),
        }
    }

    /// Returns a request with the session of its user.
    fn request<'a>(
        &self,
        database: &'a Database,
        connection: &Connection,
        head: &RequestHead,
        parameters: Parameters,
    ) -> Result<InfluxRequest<'a>, Refusal> {
        let policy = CredentialPolicy {
            application: "InfluxDB client",
            takes_plaintext: self.options.takes_plaintext,
            advice: "use --tlsMode, or allow it with --influxPlaintext",
        };
        let session = self
            .logins
            .session(database, connection, head, &parameters, policy)?;
        Ok(InfluxRequest {
            database,
            session,
            parameters,
        })
    }

    /// Reads the body, of at most `bytes_max` as it is sent, decompressed, and returns it with its share of memory.
    fn body(
        &self,
        connection: &mut Connection,
        head: &RequestHead,
        bytes_max: usize,
    ) -> Result<(Vec<u8>, MemoryShare<'_>), Refusal> {
        let gone = |_| Refusal::bad("the connection is gone");
        let length = head.field("content-length").map(str::parse::<usize>);
        let length = match length {
            Some(Ok(length)) => length.min(bytes_max),
            _ => bytes_max,
        };
        let packing = match head.field("content-encoding") {
            None | Some("" | "identity") => Packing::None,
            Some(coding) if coding.eq_ignore_ascii_case("gzip") => Packing::Gzip,
            Some(coding) if coding.eq_ignore_ascii_case("snappy") => Packing::Snappy,
            Some(coding) => {
                return Err(Refusal::new(
                    "415 Unsupported Media Type",
                    "unsupported media type",
                    format!(
                        "the content encoding {} is not supported; gzip and snappy are",
                        coding.escape_default()
                    ),
                ));
            }
        };
        // What a packed body needs is known when it was read; most are a tenth of their contents.
        let estimate = length.saturating_mul(if packing == Packing::None { 1 } else { 10 });
        let estimate = estimate.min(INFLATED_BYTES_MAX) * MEMORY_FACTOR;
        let Some(memory) = self.memory.take(estimate, MEMORY_PATIENCE) else {
            return Err(Refusal::new(
                "503 Service Unavailable",
                "unavailable",
                "too many writes are in progress",
            ));
        };
        connection.accept_body(head).map_err(gone)?;
        connection.extend_deadline(BODY_PATIENCE);
        let body = connection
            .read_body_or_chunks(head, bytes_max)
            .map_err(|refused| {
                Refusal::new(refused.status(), "invalid", refused.body().trim_end())
            })?;
        Ok((unpack(body, packing)?, memory))
    }
}

/// Adds the fields that name the version.
fn with_version(answer: HttpResponse) -> HttpResponse {
    answer
        .with("X-Influxdb-Version", INFLUX_VERSION)
        .with("X-Influxdb-Build", "Nilometer")
}

/// How a body is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packing {
    None,
    Gzip,
    /// A block without frames, as Prometheus sends it.
    Snappy,
}

/// Decompresses a body.
fn unpack(body: Vec<u8>, packing: Packing) -> Result<Vec<u8>, Refusal> {
    let too_large = || {
        Refusal::new(
            "413 Content Too Large",
            "request too large",
            format!("the body has more than {INFLATED_BYTES_MAX} bytes after decompression"),
        )
    };
    let unpacked = match packing {
        Packing::None => body,
        Packing::Gzip => {
            let mut out = Vec::new();
            let limit = INFLATED_BYTES_MAX as u64 + 1;
            let read = MultiGzDecoder::new(&*body)
                .take(limit)
                .read_to_end(&mut out);
            read.map_err(|problem| Refusal::bad(format!("the body is not gzip: {problem}")))?;
            out
        }
        Packing::Snappy => {
            let bad = |problem| Refusal::bad(format!("the body is not snappy: {problem}"));
            if snap::raw::decompress_len(&body).map_err(bad)? > INFLATED_BYTES_MAX {
                return Err(too_large());
            }
            let unpacked = snap::raw::Decoder::new().decompress_vec(&body);
            unpacked.map_err(bad)?
        }
    };
    match unpacked.len() <= INFLATED_BYTES_MAX {
        true => Ok(unpacked),
        false => Err(too_large()),
    }
}

/// Fails unless a remote write is of version 1.
fn check_remote_write(head: &RequestHead) -> Result<(), Refusal> {
    let kind = head.field("content-type").unwrap_or_default();
    match kind.contains("io.prometheus.write.v2") {
        false => Ok(()),
        true => Err(Refusal::new(
            "415 Unsupported Media Type",
            "unsupported media type",
            "remote write is supported in version 1, prometheus.WriteRequest",
        )),
    }
}

/// Fails if a browser sends the request for a page.
fn check_sender(head: &RequestHead) -> Result<(), Refusal> {
    let is_page = matches!(
        head.field("sec-fetch-site"),
        Some("cross-site" | "same-site" | "same-origin")
    );
    match is_page || head.field("origin").is_some() {
        true => Err(Refusal::new(
            "403 Forbidden",
            "forbidden",
            "requests of web pages are not accepted",
        )),
        false => Ok(()),
    }
}

fn health(database: &Database) -> HttpResponse {
    let (http, message, status) = match database.check_writable() {
        Ok(()) => ("200 OK", "ready for queries and writes".to_owned(), "pass"),
        Err(error) => ("503 Service Unavailable", error.message, "fail"),
    };
    let message = json_text(&message);
    HttpResponse::json(
        http,
        format!(
            "{{\"name\":\"influxdb\",\"message\":{message},\"status\":\"{status}\",\"checks\":[],\
             \"version\":\"{INFLUX_VERSION}\"}}\n"
        ),
    )
}
