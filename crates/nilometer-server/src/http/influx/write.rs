//! `/write` and `/api/v2/write`: points as inserts; `/api/v1/write`: samples of Prometheus, which are points, too.
//!
//! ```text
//! body ─► lines ─► types of fields ─► collections made ─► insert, or bulkWrite of several measurements, unordered
//!           └──────────┴─ rejected lines ─┬──────────────────┘ write errors
//!                                         ▼
//!          204, or 400 with the number and column of each line that was not written
//! ```
//!
//! All other lines are written, and durable when the answer is sent. The fields of a point of a series and time that
//! exist are added to the stored one, and replace those of the same names. Times finer than a millisecond are rounded down.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::Arc;

use nilometer_influx::line_protocol::{Batches, FieldType, LineError, Precision, SchemasOf};
use nilometer_influx::query::RETENTION_POLICY;
use nilometer_influx::remote_write;

use super::measurements::ClaimError;
use super::{Influx, InfluxRequest, Refusal, insert};
use crate::http::message::HttpResponse;

/// Rejected lines that an answer describes. All are counted.
const REJECTIONS_SHOWN_MAX: usize = 20;

/// Bytes of a line that an answer repeats.
const LINE_BYTES_SHOWN: usize = 80;

/// Documents of all measurements that one command inserts: the most operations of `bulkWrite`.
const BULK_DOCUMENTS_MAX: usize = 100_000;

/// Bytes of documents after which the next command begins.
const BULK_BYTES: usize = 16 * 1024 * 1024;

/// How often types are checked again because another write added fields.
const ATTEMPTS_MAX: usize = 10;

/// Answers a write. `path` is one of the two paths.
pub(super) fn answer(
    influx: &Influx,
    request: &mut InfluxRequest<'_>,
    path: &str,
    body: &[u8],
) -> Result<HttpResponse, Refusal> {
    let (db, precision) = target(request, path)?;
    let now_ms = request.database.services().clock.now_ms();
    let read = checked_batches(influx, request, &db, &mut |schemas| {
        let schema = &mut |name: &str| schemas(&[name]).pop().unwrap_or_else(|| Ok(Arc::default()));
        Ok(Batches::read(body, precision, now_ms, schema))
    })?;
    let rejections = insert_all(influx, request, &db, read)?;
    match rejections.is_empty() {
        true => Ok(HttpResponse::no_content()),
        false => Err(Refusal::bad(partial_write(&rejections, body))),
    }
}

/// Answers a remote write of Prometheus, whose body is decompressed.
pub(super) fn answer_samples(
    influx: &Influx,
    request: &mut InfluxRequest<'_>,
    body: &[u8],
) -> Result<HttpResponse, Refusal> {
    let db = request.parameters.get_text("db");
    let db = db
        .ok_or_else(|| Refusal::bad("database is required"))?
        .to_owned();
    let read = checked_batches(influx, request, &db, &mut |schemas| {
        remote_write::read(body, schemas)
    })?;
    let rejections = insert_all(influx, request, &db, read)?;
    if rejections.is_empty() {
        return Ok(HttpResponse::no_content());
    }
    let shown = rejections.iter().take(REJECTIONS_SHOWN_MAX);
    let shown: Vec<String> = shown
        .map(|one| format!("series {}: {}", one.line, one.message))
        .collect();
    let (shown, dropped) = (shown.join("; "), rejections.len());
    Err(Refusal::bad(format!(
        "partial write: {shown} dropped={dropped}"
    )))
}

/// Writes the points that `read` returns. Returns those that were rejected.
pub(super) fn points(
    influx: &Influx,
    request: &mut InfluxRequest<'_>,
    db: &str,
    read: &mut dyn FnMut(&mut SchemasOf<'_>) -> Batches,
) -> Result<Vec<LineError>, Refusal> {
    let read = checked_batches(influx, request, db, &mut |schemas| Ok(read(schemas)))?;
    insert_all(influx, request, db, read)
}

/// Inserts all batches. Returns what was rejected before and by them.
fn insert_all(
    influx: &Influx,
    request: &mut InfluxRequest<'_>,
    db: &str,
    read: Batches,
) -> Result<Vec<LineError>, Refusal> {
    let mut rejections = read.rejections;
    let mut failure = None;
    let mut batches = read.batches.into_iter().peekable();
    while let Some(first) = batches.next() {
        let (mut documents, mut bytes) = (first.lines.len(), first.documents.len());
        let mut together = vec![first];
        while let Some(next) = batches.next_if(|next| {
            documents + next.lines.len() <= BULK_DOCUMENTS_MAX
                && bytes + next.documents.len() <= BULK_BYTES
        }) {
            documents += next.lines.len();
            bytes += next.documents.len();
            together.push(next);
        }
        let measurements: Vec<String> =
            together.iter().map(|one| one.measurement.clone()).collect();
        match insert::run(request, db, together) {
            Ok(refused) => rejections.extend(refused),
            Err(refusal) => {
                for measurement in &measurements {
                    influx.measurements.forget(db, Some(measurement));
                }
                failure.get_or_insert(refusal);
            }
        }
    }
    rejections.sort_by_key(|rejection| rejection.line);
    match failure {
        Some(failure) => Err(failure),
        None => Ok(rejections),
    }
}

/// Returns the database and the unit of times.
fn target(request: &InfluxRequest<'_>, path: &str) -> Result<(String, Precision), Refusal> {
    let parameters = &request.parameters;
    let (db, policy) = match path {
        "/write" => (parameters.get_text("db"), parameters.get_text("rp")),
        _ => match parameters.get_text("bucket") {
            None => return Err(Refusal::not_found("bucket is required")),
            Some(bucket) => match bucket.split_once('/') {
                None => (Some(bucket), None),
                Some((db, policy)) => (Some(db), Some(policy).filter(|name| !name.is_empty())),
            },
        },
    };
    let db = db.ok_or_else(|| Refusal::bad("database is required"))?;
    if let Some(other) = policy.filter(|name| *name != RETENTION_POLICY) {
        return Err(Refusal::not_found(format!(
            "retention policy not found: {other}; there is {RETENTION_POLICY}"
        )));
    }
    let precision = parameters.get("precision").unwrap_or_default();
    let precision = Precision::parse(precision).ok_or_else(|| {
        Refusal::bad(format!(
            "invalid precision \"{precision}\" (use n, u, ms, s, m or h)"
        ))
    })?;
    Ok((db.to_owned(), precision))
}

/// Reads the body by `read`, creates the collections that are missing and adds the new fields to what is known. Types are checked again if
/// another write adds fields meanwhile.
fn checked_batches(
    influx: &Influx,
    request: &mut InfluxRequest<'_>,
    db: &str,
    read: &mut dyn FnMut(&mut SchemasOf<'_>) -> Result<Batches, String>,
) -> Result<Batches, Refusal> {
    let database = request.database;
    let measurements = &influx.measurements;
    for _ in 0..ATTEMPTS_MAX {
        let mut missing = HashSet::new();
        let read = read(&mut |names| {
            let found = match measurements.schemas(database, db, names) {
                Ok(found) => found,
                Err(text) => return names.iter().map(|_| Err(text.clone())).collect(),
            };
            let schemas = names.iter().zip(found).map(|(name, found)| {
                let found = found?;
                if found.is_none() {
                    missing.insert((*name).to_owned());
                }
                Ok(found.unwrap_or_default())
            });
            schemas.collect()
        });
        let read = read.map_err(Refusal::bad)?;
        for batch in &read.batches {
            if missing.remove(&batch.measurement) {
                measurements.create(database, &mut request.session, db, &batch.measurement)?;
            }
        }
        let mut is_current = true;
        for (measurement, fields) in by_measurement(&read) {
            match measurements.claim(database, db, measurement, &fields) {
                Ok(()) => {}
                Err(ClaimError::Conflict) => is_current = false,
                Err(ClaimError::Refused(text)) => return Err(Refusal::bad(text)),
            }
        }
        if is_current {
            return Ok(read);
        }
    }
    Err(Refusal::new(
        "503 Service Unavailable",
        "unavailable",
        "other writes change the types of the same fields",
    ))
}

/// Returns the new fields of each measurement.
fn by_measurement(read: &Batches) -> Vec<(&str, Vec<(String, FieldType)>)> {
    let mut all: Vec<(&str, Vec<(String, FieldType)>)> = Vec::new();
    for (measurement, name, kind) in &read.new_fields {
        let field = (name.clone(), *kind);
        match all.last_mut() {
            Some((last, fields)) if *last == measurement => fields.push(field),
            _ => all.push((measurement, vec![field])),
        }
    }
    all
}

/// Returns the text for lines that were not written.
fn partial_write(rejections: &[LineError], body: &[u8]) -> String {
    let mut out = String::from("partial write: ");
    let mut lines = body.split(|byte| *byte == b'\n');
    let mut next = 1;
    for rejection in rejections.iter().take(REJECTIONS_SHOWN_MAX) {
        if !out.ends_with(": ") {
            out.push_str("; ");
        }
        // Several rejections may concern one line.
        let line = match rejection.line.checked_sub(next) {
            Some(ahead) => {
                next = rejection.line + 1;
                lines.nth(ahead).unwrap_or_default()
            }
            None => &[],
        };
        let shown = line.get(..LINE_BYTES_SHOWN).unwrap_or(line);
        let shown = String::from_utf8_lossy(shown);
        // Writing to a String does not fail.
        let _ = write!(
            out,
            "line {}, column {}: unable to parse '{}': {}",
            rejection.line,
            rejection.column,
            shown.trim_end(),
            rejection.message
        );
    }
    if rejections.len() > REJECTIONS_SHOWN_MAX {
        let more = rejections.len() - REJECTIONS_SHOWN_MAX;
        let _ = write!(out, "; and {more} more");
    }
    let _ = write!(out, " dropped={}", rejections.len());
    out
}
