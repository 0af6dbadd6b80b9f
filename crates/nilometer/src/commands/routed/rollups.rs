//! Rollups on a router.
//!
//! Each partition of a time series keeps the rollups of its own measurements, so a rollup needs no placement: it is where its
//! series is, and follows the version of that. Queries merge the bins that several partitions have parts of
//! ([decision 0035](../../../../../docs/decisions/0035-rollups-behind-a-router.md)).

use std::sync::Arc;

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, doc};

use super::change::without_ok;
use super::{first_batch, is_true, read, router_of};
use crate::catalog::Namespace;
use crate::commands::CommandContext;
use crate::commands::ddl::refresh_rollup::named_rollup;
use crate::commands::ddl::rollup_status::DIRTY_SPANS_MAX;
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::{OperationContext, Request};
use crate::router::Placement;

/// Returns the time series at the bottom of a rollup; `None` if the name is no rollup, or if it waits for its source.
pub(super) fn series_of(database: &Database, namespace: &Namespace) -> Option<Namespace> {
    let catalog = database.catalog();
    let rollup = catalog.rollup(namespace)?;
    let (_, bottom) = catalog.rollup_chain(&namespace.database, &rollup.source)?;
    bottom.namespace.timeseries_view()
}

/// Returns where a collection or a rollup is; `None` if it is nowhere.
pub(super) fn place_of(database: &Database, namespace: &Namespace) -> Option<Arc<Placement>> {
    let router = router_of(database);
    match router.placement(namespace) {
        Some(placement) => Some(placement),
        None => router.placement(&series_of(database, namespace)?),
    }
}

/// Returns the command that creates a collection as it is in the router's catalog.
pub(super) fn creation_of(database: &Database, namespace: &Namespace) -> Result<Document> {
    let (db, name) = (&namespace.database, namespace.collection.as_str());
    let list = doc! {"listCollections": 1, "filter": doc! {"name": name}};
    let listed = first_batch(&database.call(db, list)?);
    let options = listed.first().map(|entry| entry.get("options").to_value());
    let options = options
        .as_ref()
        .and_then(|options| options.as_ref().as_document());
    let mut create = DocumentBuilder::new();
    create.append("create", name);
    for option in options.iter().flat_map(|options| options.iter()) {
        create.append_element(option);
    }
    Ok(create.finish())
}

/// Creates the rollups that stand on a time series, directly or not, with their indexes, in partitions that may lack them.
pub(super) fn spread(
    database: &Database,
    operation: &OperationContext,
    series: &Namespace,
    partitions: &[usize],
) -> Result<()> {
    let router = router_of(database);
    let mut open = database.catalog().rollups_on(series);
    while let Some(rollup) = open.pop() {
        let create = creation_of(database, &rollup)?;
        router.ask_all(partitions, &rollup.database, &create, operation)?;
        open.extend(database.catalog().rollups_on(&rollup));
    }
    Ok(())
}

/// `refreshRollup`: in all partitions of the series.
pub(super) fn refresh(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    asked(database, context, request).map(|_| Document::new())
}

/// `rollupStatus`: stored, frozen and expired is what is so in each partition that has measurements.
pub(super) fn status(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let (partitions, replies) = asked(database, context, request)?;
    if let [only] = replies.as_slice() {
        return Ok(without_ok(only));
    }
    let (mut spans, is_every) = dirty_of(&replies);
    let is_every = is_every && spans.len() <= DIRTY_SPANS_MAX;
    spans.truncate(DIRTY_SPANS_MAX);
    let dirty: Vec<Value> = spans
        .into_iter()
        .map(|(from, to)| doc! {"from": Value::DateTime(from), "to": Value::DateTime(to)}.into())
        .collect();
    let mut out = DocumentBuilder::new();
    for name in ["ns", "source"] {
        let value = replies
            .first()
            .map_or(ValueRef::Missing, |reply| reply.get(name));
        out.append_ref(name, value);
    }
    for name in ["storedBefore", "frozenBefore", "expiredBefore"] {
        let instants = replies.iter().filter_map(|reply| instant(reply.get(name)));
        out.append(name, instants.min().map_or(Value::Null, Value::DateTime));
    }
    out.append("dirty", dirty);
    out.append("isEveryDirtySpanShown", is_every);
    out.begin_document("shards");
    let router = router_of(database);
    for (partition, reply) in partitions.iter().zip(&replies) {
        out.append(router.name(*partition), without_ok(reply));
    }
    out.end();
    Ok(out.finish())
}

/// Asks all partitions of a rollup to run the command. Returns them and their replies.
fn asked(
    database: &Database,
    context: &CommandContext<'_>,
    request: &Request,
) -> Result<(Vec<usize>, Vec<Document>)> {
    let router = router_of(database);
    let (namespace, _) = named_rollup(database, context, request, context.spec.name)?;
    let placement = place_of(database, &namespace).ok_or_else(|| {
        Error::new(
            ErrorCode::NamespaceNotFound,
            format!("the source of the rollup {namespace} does not exist"),
        )
    })?;
    let partitions = placement.partitions(router.count());
    let operation = &context.operation;
    let body = read(request.body.as_ref(), &[]);
    let replies = router.ask_all(&partitions, &namespace.database, &body, operation)?;
    Ok((partitions, replies))
}

fn instant(value: ValueRef<'_>) -> Option<i64> {
    match value {
        ValueRef::DateTime(at) => Some(at),
        _ => None,
    }
}

/// A span of time: its first instant, and the first after it.
type Span = (i64, i64);

/// Returns the spans that are dirty in some partition, in order and without those that touch. False if there may be more.
fn dirty_of(replies: &[Document]) -> (Vec<Span>, bool) {
    let is_every = replies
        .iter()
        .all(|reply| is_true(reply.get("isEveryDirtySpanShown")));
    let span = |span: DocRef<'_>| Some((instant(span.get("from"))?, instant(span.get("to"))?));
    let mut all: Vec<Span> = Vec::new();
    for reply in replies {
        let list = reply.get("dirty").as_array();
        let list = list.iter().flat_map(|list| list.iter());
        all.extend(list.filter_map(ValueRef::as_document).filter_map(span));
    }
    all.sort_unstable();
    let mut joined: Vec<Span> = Vec::new();
    for (from, to) in all {
        match joined.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => joined.push((from, to)),
        }
    }
    (joined, is_every)
}
