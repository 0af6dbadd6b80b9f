//! Batches of documents as commands.
//!
//! ```text
//! one batch         insert     {insert: "cpu", ordered: false}                       documents
//! several batches   bulkWrite  {bulkWrite: 1, ordered: false, nsInfo: [cpu, mem]}    ops: {insert: 0, document: …}…
//! ```
//!
//! A body of Prometheus has a few samples of each of hundreds of metrics. With a command for each, most of the time would go into commands,
//! and each would wait for the disk; `bulkWrite` waits once, also at a router.

use std::sync::Arc;

use nilometer::Request;
use nilometer::operation::DocumentSequence;
use nilometer_bson::{Array, DocRef, Document, Value, ValueRef, doc};
use nilometer_influx::line_protocol::{Batch, LineError};
use nilometer_influx::schema::for_each;

use super::measurements::{error_text, is_ok};
use super::{InfluxRequest, Refusal};
use crate::command;

const TYPE_DOCUMENT: u8 = 0x03;
const TYPE_INT32: u8 = 0x10;

/// Bytes of an operation beside its document: length, `insert`, `document`, end.
const OP_BYTES: usize = 4 + 12 + 10 + 1;

/// Inserts batches. Returns their lines that were refused.
pub(super) fn run(
    request: &mut InfluxRequest<'_>,
    db: &str,
    mut batches: Vec<Batch>,
) -> Result<Vec<LineError>, Refusal> {
    match (batches.pop(), batches.is_empty()) {
        (None, _) => Ok(Vec::new()),
        (Some(one), true) => insert(request, db, one),
        (Some(last), false) => {
            batches.push(last);
            bulk_write(request, db, &batches)
        }
    }
}

fn insert(
    request: &mut InfluxRequest<'_>,
    db: &str,
    batch: Batch,
) -> Result<Vec<LineError>, Refusal> {
    let body = doc! {"insert": batch.measurement.as_str(), "ordered": false, "$db": db};
    let command = with_documents(body, "documents", batch.documents)?;
    let (reply, _) = command::run(request.database, &mut request.session, &command);
    if !is_ok(&reply) {
        return Err(Refusal::of_reply(&reply));
    }
    let errors = reply.get("writeErrors").as_array();
    let errors = errors.iter().flat_map(|errors| errors.iter());
    let line_of = |at: usize| batch.lines.get(at).copied();
    Ok(errors
        .map(|error| refused(error, "index", &line_of))
        .collect())
}

fn bulk_write(
    request: &mut InfluxRequest<'_>,
    db: &str,
    batches: &[Batch],
) -> Result<Vec<LineError>, Refusal> {
    let named = |batch: &Batch| {
        let ns = format!("{db}.{}", batch.measurement);
        Value::Document(doc! {"ns": ns})
    };
    let namespaces: Array = batches.iter().map(named).collect();
    let body = doc! {
        "bulkWrite": 1, "ordered": false, "errorsOnly": true, "nsInfo": namespaces, "$db": "admin",
    };
    let command = with_documents(body, "ops", operations(batches))?;
    let (reply, _) = command::run(request.database, &mut request.session, &command);
    if !is_ok(&reply) {
        return Err(Refusal::of_reply(&reply));
    }
    if reply.get("nErrors").as_exact_i64() == Some(0) {
        return Ok(Vec::new());
    }
    let lines: Vec<usize> = batches
        .iter()
        .flat_map(|batch| batch.lines.iter().copied())
        .collect();
    let line_of = |at: usize| lines.get(at).copied();
    let mut errors = Vec::new();
    // The first reply is there already; the rest comes by getMore.
    let mut first = Some(reply);
    let mut run = |body: Document| match first.take() {
        Some(reply) => Ok(reply),
        None => {
            let (reply, _) =
                command::run(request.database, &mut request.session, &Request::new(body));
            match is_ok(&reply) {
                true => Ok(reply),
                false => Err(error_text(&reply)),
            }
        }
    };
    let read = for_each(&mut run, "admin", Document::new(), &mut |error| {
        errors.push(refused(ValueRef::Document(error), "idx", &line_of));
        Ok(true)
    });
    read.map_err(|text| Refusal::new("500 Internal Server Error", "internal error", text))?;
    Ok(errors)
}

/// Returns the operations of `bulkWrite` that insert the documents of batches; each batch is a namespace.
fn operations(batches: &[Batch]) -> Vec<u8> {
    let bytes = |batch: &Batch| batch.documents.len() + batch.lines.len() * OP_BYTES;
    let mut out = Vec::with_capacity(batches.iter().map(bytes).sum());
    for (namespace, batch) in (0_i32..).zip(batches) {
        let mut rest = &batch.documents[..];
        while let Some(document) = DocRef::new(rest) {
            let document = document.as_bytes();
            let length = u32::try_from(document.len() + OP_BYTES).unwrap_or(u32::MAX);
            out.extend_from_slice(&length.to_le_bytes());
            out.push(TYPE_INT32);
            out.extend_from_slice(b"insert\0");
            out.extend_from_slice(&namespace.to_le_bytes());
            out.push(TYPE_DOCUMENT);
            out.extend_from_slice(b"document\0");
            out.extend_from_slice(document);
            out.push(0);
            rest = &rest[document.len()..];
        }
    }
    out
}

/// Returns a command with a sequence of documents.
fn with_documents(body: Document, name: &str, documents: Vec<u8>) -> Result<Request, Refusal> {
    let span = 0..documents.len();
    let sequence = DocumentSequence::new(name.to_owned(), Arc::new(documents), span);
    let Some(sequence) = sequence else {
        let text = "the points make no documents";
        return Err(Refusal::new(
            "500 Internal Server Error",
            "internal error",
            text,
        ));
    };
    Ok(Request {
        sequences: vec![sequence],
        ..Request::new(body)
    })
}

/// Returns the line and the reason of a write error; `index` is the name of its position among the documents.
fn refused(
    error: ValueRef<'_>,
    index: &str,
    line_of: &dyn Fn(usize) -> Option<usize>,
) -> LineError {
    let error = error.as_document().unwrap_or(DocRef::EMPTY);
    let at = error.get(index).as_exact_i64();
    let line = at.and_then(|at| line_of(usize::try_from(at).ok()?));
    let text = match error.get("errmsg") {
        ValueRef::String(text) => text,
        _ => "the point was refused",
    };
    LineError {
        line: line.unwrap_or(0),
        column: 1,
        message: text.to_owned(),
    }
}
