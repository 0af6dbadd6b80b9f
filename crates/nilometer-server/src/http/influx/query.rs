//! `/query`: statements of InfluxQL, executed in the name of the user.
//!
//! | parameter | |
//! |---|---|
//! | `q` | the statements |
//! | `db`, `rp` | the database of measurements that name none |
//! | `epoch` | the unit of times; RFC 3339 without it |
//! | `chunked`, `chunk_size` | the answer comes in chunks of so many rows |
//! | `params` | values of `$name`, as JSON |
//!
//! They come in the target or as a form in the body. An answer of one part is sent with its length; a longer one is sent while it
//! is computed, and its end tells whether all went well.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use nilometer::{Database, Request};
use nilometer_bson::extjson::parse_document;
use nilometer_bson::{Document, ValueRef};
use nilometer_influx::influxql::{Bindings, Expr, Statement, parse};
use nilometer_influx::line_protocol::{Batches, LineError, Precision, SchemasOf};
use nilometer_influx::mapping::Mapping;
use nilometer_influx::query::{
    CHUNK_ROWS, Output, OutputOptions, RETENTION_POLICY, Store, execute,
};
use nilometer_influx::schema::MeasurementSchema;

use super::measurements::{error_text, is_ok};
use super::{Influx, InfluxRequest, Refusal, write};
use crate::command;
use crate::http::message::{Connection, HttpResponse, RequestHead};
use crate::http::parameters::Parameters;

/// The content type of a form.
const FORM: &str = "application/x-www-form-urlencoded";

/// Rows of a chunk that a request may ask for.
const CHUNK_ROWS_MAX: usize = 1_000_000;

/// Adds the parameters in the body of a POST.
pub(super) fn add_form(
    parameters: &mut Parameters,
    head: &RequestHead,
    body: &[u8],
) -> Result<(), Refusal> {
    let kind = head.field("content-type").unwrap_or(FORM);
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if body.is_empty() {
        return Ok(());
    }
    if !kind.eq_ignore_ascii_case(FORM) {
        return Err(Refusal::new(
            "415 Unsupported Media Type",
            "unsupported media type",
            format!("a query in a body is a form, {FORM}"),
        ));
    }
    let text = std::str::from_utf8(body).map_err(|_| Refusal::bad("the form is no text"))?;
    parameters.add_form(text);
    Ok(())
}

/// Answers a query.
pub(super) fn answer(
    influx: &Influx,
    request: InfluxRequest<'_>,
    connection: &mut Connection,
    head: &RequestHead,
) -> Result<HttpResponse, Refusal> {
    let parameters = request.parameters.clone();
    let Some(text) = parameters.get_text("q") else {
        return Err(Refusal::bad("missing required parameter \"q\""));
    };
    if let Some(policy) = parameters
        .get_text("rp")
        .filter(|name| *name != RETENTION_POLICY)
    {
        return Err(Refusal::not_found(format!(
            "retention policy not found: {policy}"
        )));
    }
    let statements = parse(text, &bindings(&parameters)?)
        .map_err(|problem| Refusal::bad(problem.to_string()))?;
    if head.method == "GET" && !statements.iter().all(Statement::is_reading) {
        return Err(Refusal::bad(
            "statements that change something are sent by POST",
        ));
    }
    let options = options(&parameters)?;
    let store = ServerStore {
        database: request.database,
        request: RefCell::new(request),
        influx,
    };
    let db = parameters.get_text("db");
    let (mut first, mut is_begun) = (Vec::new(), false);
    let mut write = |part: &[u8]| {
        let gone = |problem: std::io::Error| problem.to_string();
        if !is_begun {
            // One part alone is an answer with a length.
            if first.is_empty() && options.chunk_rows.is_none() {
                first.extend_from_slice(part);
                return Ok(());
            }
            is_begun = true;
            let answer = super::with_version(HttpResponse::json("200 OK", String::new()));
            connection.begin_chunks(&answer).map_err(gone)?;
            connection.send_chunk(&[&first]).map_err(gone)?;
        }
        connection.send_chunk(&[part]).map_err(gone)
    };
    let mut output = Output::new(options, &mut write);
    let done = execute(&store, db, &statements, &mut output);
    if done.and_then(|()| output.finish()).is_err() {
        // A part is missing, so the answer must not end as if it were whole.
        connection.abort();
        return Err(Refusal::bad("the connection is gone"));
    }
    let body = String::from_utf8(first)
        .map_err(|_| Refusal::new("500 Internal Server Error", "internal error", "no text"))?;
    Ok(HttpResponse::json("200 OK", body))
}

fn options(parameters: &Parameters) -> Result<OutputOptions, Refusal> {
    let epoch = match parameters.get_text("epoch") {
        None => None,
        Some(unit) => Some(
            Precision::parse(unit)
                .ok_or_else(|| Refusal::bad(format!("invalid epoch \"{unit}\"")))?,
        ),
    };
    let is_chunked = matches!(parameters.get("chunked"), Some("true" | "1"));
    let rows = match parameters.get_text("chunk_size") {
        None => CHUNK_ROWS,
        Some(size) => match size.parse() {
            Ok(size @ 1..=CHUNK_ROWS_MAX) => size,
            _ => {
                return Err(Refusal::bad(format!(
                    "chunk_size must be from 1 to {CHUNK_ROWS_MAX}"
                )));
            }
        },
    };
    Ok(OutputOptions {
        epoch,
        chunk_rows: is_chunked.then_some(rows),
    })
}

/// Returns the values of `$name`.
fn bindings(parameters: &Parameters) -> Result<Bindings, Refusal> {
    let Some(text) = parameters.get_text("params") else {
        return Ok(Bindings::new());
    };
    let bad = |why: String| Refusal::bad(format!("error parsing query parameters: {why}"));
    let document = parse_document(text).map_err(|problem| bad(problem.to_string()))?;
    let mut bindings = Bindings::new();
    for element in document.iter() {
        let value = match element.value() {
            ValueRef::Int32(value) => Expr::Integer(value.into()),
            ValueRef::Int64(value) => Expr::Integer(value),
            ValueRef::Double(value) => Expr::Number(value),
            ValueRef::String(text) => Expr::String(text.to_owned()),
            ValueRef::Bool(value) => Expr::Boolean(value),
            _ => {
                return Err(bad(format!(
                    "{} is no number, text or truth value",
                    element.name()
                )));
            }
        };
        bindings.insert(element.name().to_owned(), value);
    }
    Ok(bindings)
}

/// The database, in the name of the user.
struct ServerStore<'a> {
    /// A command borrows it; none runs within another.
    request: RefCell<InfluxRequest<'a>>,
    database: &'a Database,
    influx: &'a Influx,
}

impl Store for ServerStore<'_> {
    fn run(&self, body: Document) -> Result<Document, String> {
        let session = &mut self.request.borrow_mut().session;
        let (reply, _) = command::run(self.database, session, &Request::new(body));
        match is_ok(&reply) {
            true => Ok(reply),
            false => Err(error_text(&reply)),
        }
    }

    fn schema(
        &self,
        db: &str,
        measurement: &str,
        exact: bool,
    ) -> Result<Option<Arc<MeasurementSchema>>, String> {
        let measurements = &self.influx.measurements;
        measurements.read(self.database, db, measurement, exact)
    }

    fn mappings(&self, db: &str) -> Result<BTreeMap<String, Mapping>, String> {
        self.influx.measurements.mappings(self.database, db)
    }

    fn forget(&self, db: &str, measurement: Option<&str>) {
        self.influx.measurements.forget(db, measurement);
    }

    fn write(
        &self,
        db: &str,
        read: &mut dyn FnMut(&mut SchemasOf<'_>) -> Batches,
    ) -> Result<Vec<LineError>, String> {
        let written = write::points(self.influx, &mut self.request.borrow_mut(), db, read);
        written.map_err(|refusal| refusal.text)
    }

    fn now_ms(&self) -> i64 {
        self.database.services().clock.now_ms()
    }
}
