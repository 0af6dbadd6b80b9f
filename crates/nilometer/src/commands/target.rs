//! The collection that a command means, before anything else reads it.
//!
//! `{find: UUID("…")}` becomes `{find: "name"}`, and `{find: "ts", rawData: true}` on a time series becomes
//! `{find: "system.buckets.ts"}`. Authorization, the handler, the profile and the cursor see that name: `rawData`
//! needs the privileges that a command on the buckets needs, and does what it does. On other collections and on views
//! it changes nothing, and neither does it in the stages of a pipeline that name other collections.

use std::borrow::Cow;

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef};

use super::generic::RAW_DATA;
use super::security::authorization;
use super::{COMMANDS, CommandSpec, Fields, find_command};
use crate::args::Args;
use crate::auth::{Action, Target};
use crate::catalog::Namespace;
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;
use crate::session::ClientSession;

/// The commands that take a UUID in place of a name.
const TAKE_UUID: [&str; 3] = ["count", "find", "listIndexes"];

/// Returns the request with the name of the collection that it means.
pub(super) fn resolve<'r>(
    database: &Database,
    session: &mut ClientSession,
    spec: &CommandSpec,
    db: &str,
    request: &'r Request,
) -> Result<Cow<'r, Request>> {
    let named = named(database, session, spec, db, request)?;
    let is_explain = spec.name == "explain";
    let stored = match named.body.get("explain").as_document() {
        Some(inner) if is_explain => explained(database, db, &named.body, inner)?,
        _ => stored(database, spec, db, &named)?,
    };
    Ok(stored.map_or(named, Cow::Owned))
}

/// Returns the request with the current name of the collection whose UUID it gives. A client needs the action `useUUID`:
/// without it, a client cannot find out which UUIDs exist.
fn named<'r>(
    database: &Database,
    session: &mut ClientSession,
    spec: &CommandSpec,
    db: &str,
    request: &'r Request,
) -> Result<Cow<'r, Request>> {
    let first = request.body.iter().next();
    let Some(ValueRef::Binary { subtype: 4, bytes }) = first.map(|first| first.value()) else {
        return Ok(Cow::Borrowed(request));
    };
    if !TAKE_UUID.contains(&spec.name) {
        return Ok(Cow::Borrowed(request));
    }
    if !authorization::may(database, session, &Target::Cluster, Action::UseUUID) {
        return Err(authorization::not_authorized(spec, db, &request.body));
    }
    let uuid = bytes.try_into().map_err(|_| {
        Error::new(
            ErrorCode::InvalidUUID,
            "the UUID of a collection has 16 bytes",
        )
    })?;
    let named = database.catalog().by_shown_uuid(uuid);
    let Some(named) = named.filter(|found| found.namespace.database == db) else {
        return Err(Error::new(
            ErrorCode::NamespaceNotFound,
            format!(
                "the database {db} has no collection with the UUID that {} names",
                spec.name
            ),
        ));
    };
    let name = named.namespace.collection.as_str();
    Ok(Cow::Owned(Request {
        body: with_first(request.body.as_ref(), name),
        sequences: request.sequences.clone(),
        routed: request.routed.clone(),
    }))
}

/// Returns the request on the buckets, if `rawData` is true and it names time series.
fn stored(
    database: &Database,
    spec: &CommandSpec,
    db: &str,
    request: &Request,
) -> Result<Option<Request>> {
    let body = request.body.as_ref();
    if !asks_for_buckets(spec, body)? {
        return Ok(None);
    }
    if spec.name == "bulkWrite" {
        return stored_namespaces(database, request);
    }
    let name = first(body).as_str();
    Ok(name
        .and_then(|name| buckets(database, db, name))
        .map(|buckets| Request {
            body: with_first(body, buckets.collection.as_str()),
            sequences: request.sequences.clone(),
            routed: request.routed.clone(),
        }))
}

/// Returns an `explain` whose command is on the buckets, if that command asks for them.
fn explained(
    database: &Database,
    db: &str,
    body: &Document,
    inner: DocRef<'_>,
) -> Result<Option<Request>> {
    let name = inner.iter().next().map_or("", |first| first.name());
    let Some(spec) = find_command(name).and_then(|at| COMMANDS.get(at)) else {
        return Ok(None);
    };
    // The handler refuses a command that it cannot explain.
    let inner = Request::new(inner.to_document());
    let inner = stored(database, spec, db, &inner)?;
    Ok(inner.map(|inner| Request::new(with_first(body.as_ref(), inner.body))))
}

/// Returns a `bulkWrite` on the buckets of the time series in `nsInfo`.
fn stored_namespaces(database: &Database, request: &Request) -> Result<Option<Request>> {
    let Some(namespaces) = request.documents("bulkWrite", "nsInfo")? else {
        return Ok(None);
    };
    let mut has_buckets = false;
    let mut out: Vec<Value> = Vec::new();
    for namespace in namespaces {
        let name = namespace.get("ns").as_str().unwrap_or("");
        let buckets = name
            .split_once('.')
            .and_then(|(db, name)| buckets(database, db, name));
        let Some(buckets) = buckets else {
            out.push(namespace.to_document().into());
            continue;
        };
        has_buckets = true;
        let mut on_buckets = DocumentBuilder::new();
        for element in namespace {
            match element.name() {
                "ns" => on_buckets.append("ns", buckets.to_string()),
                _ => on_buckets.append_element(element),
            };
        }
        out.push(on_buckets.finish().into());
    }
    if !has_buckets {
        return Ok(None);
    }
    let mut body = DocumentBuilder::with_capacity(request.body.as_bytes().len());
    for element in request.body.iter().filter(|e| e.name() != "nsInfo") {
        body.append_element(element);
    }
    body.append("nsInfo", out);
    let mut sequences = request.sequences.clone();
    sequences.retain(|sequence| sequence.name() != "nsInfo");
    Ok(Some(Request {
        body: body.finish(),
        sequences,
        routed: request.routed.clone(),
    }))
}

/// True if the command takes `rawData`, and it is true.
fn asks_for_buckets(spec: &CommandSpec, body: DocRef<'_>) -> Result<bool> {
    match spec.fields {
        Fields::Only(known) if known.contains(&RAW_DATA) => {
            let asks = Args::new(spec.name, body).boolean(RAW_DATA)?;
            Ok(asks.unwrap_or(false))
        }
        _ => Ok(false),
    }
}

/// Returns the namespace of a time series' buckets; `None` for other collections and views.
fn buckets(database: &Database, db: &str, name: &str) -> Option<Namespace> {
    let namespace = Namespace::new(db, name).ok()?;
    let is_series = database.catalog().timeseries(&namespace).is_some();
    is_series.then(|| namespace.buckets())
}

fn first(body: DocRef<'_>) -> ValueRef<'_> {
    body.iter()
        .next()
        .map(|first| first.value())
        .unwrap_or_default()
}

/// Returns a command with another value in its first field.
fn with_first(body: DocRef<'_>, value: impl Into<Value>) -> Document {
    let mut out = DocumentBuilder::with_capacity(body.as_bytes().len() + 64);
    let mut value = Some(value.into());
    for element in body {
        match value.take() {
            Some(value) => out.append(element.name(), value),
            None => out.append_element(element),
        };
    }
    out.finish()
}
