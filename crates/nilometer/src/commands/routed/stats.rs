//! `collStats` and `dbStats` on a router: the sums of the partitions.

use std::collections::BTreeMap;

use nilometer_bson::{DocRef, Document, DocumentBuilder, ValueRef};

use super::change::without_ok;
use super::{number, read, router_of, sum};
use crate::args::Args;
use crate::catalog::Namespace;
use crate::commands::CommandContext;
use crate::database::Database;
use crate::error::Result;
use crate::operation::Request;

/// Fields of `collStats` that are added.
const COLLECTION_SUMS: [&str; 6] = [
    "size",
    "count",
    "storageSize",
    "freeStorageSize",
    "totalIndexSize",
    "totalSize",
];

/// Fields of `dbStats` that are added. What there is of collections and views is in the router's catalog.
const DATABASE_SUMS: [&str; 4] = ["dataSize", "storageSize", "indexSize", "totalSize"];

/// Fields of a partition that hold for all.
const COMMON: [&str; 5] = ["capped", "max", "maxSize", "nindexes", "scaleFactor"];

pub(super) fn collection(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let router = router_of(database);
    let args = Args::new("collStats", request.body.as_ref());
    let namespace = Namespace::new(context.database_name(), args.command_target("collStats")?)?;
    let Some(placement) = router.placement(&namespace) else {
        return (context.spec.handler)(database, context, request);
    };
    let operation = &context.operation;
    let asked = read(request.body.as_ref(), &[]);
    let targets = placement.partitions(router.count());
    let replies = router.ask_all(&targets, &operation.database, &asked, operation)?;
    let mut out = DocumentBuilder::new();
    out.append("sharded", placement.sharding.is_some());
    out.append("ns", namespace.to_string());
    sums(&mut out, &replies, &COLLECTION_SUMS);
    let (size, count) = (sum(&replies, "size"), sum(&replies, "count"));
    if let Some(average) = size.checked_div(count) {
        out.append("avgObjSize", average);
    }
    let first = replies.first();
    for name in COMMON {
        let value = first.map_or(ValueRef::Missing, |reply| reply.get(name));
        out.append_ref(name, value);
    }
    out.append("indexSizes", sums_of_all(&replies, "indexSizes"));
    if first.is_some_and(|reply| !reply.get("timeseries").is_missing()) {
        out.append("timeseries", timeseries(&replies));
    }
    match &placement.sharding {
        None => out.append("primary", router.name(placement.primary)),
        Some(sharding) => out.append(
            "nchunks",
            i64::try_from(sharding.chunks.len()).unwrap_or(i64::MAX),
        ),
    };
    out.begin_document("shards");
    for (target, reply) in targets.iter().zip(&replies) {
        out.append(router.name(*target), without_ok(reply));
    }
    out.end();
    Ok(out.finish())
}

pub(super) fn database(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let router = router_of(database);
    // Checks the options, and counts what the router's catalog has.
    let own = (context.spec.handler)(database, context, request)?;
    let operation = &context.operation;
    let asked = read(request.body.as_ref(), &[]);
    let all: Vec<usize> = (0..router.count()).collect();
    let replies = router.ask_all(&all, &operation.database, &asked, operation)?;
    let mut out = DocumentBuilder::new();
    out.begin_document("raw");
    for (partition, reply) in replies.iter().enumerate() {
        let name = format!("{}/{}", router.name(partition), router.host(partition));
        out.append(&name, without_ok(reply));
    }
    out.end();
    let counted = ["db", "collections", "views", "indexes", "scaleFactor"];
    for name in counted {
        out.append_ref(name, own.get(name));
    }
    let objects = sum(&replies, "objects");
    out.append("objects", objects);
    let total = |name: &str| {
        replies
            .iter()
            .map(|reply| double(reply.get(name)))
            .sum::<f64>()
    };
    let average = match objects {
        0 => 0.0,
        count => total("dataSize") / count as f64,
    };
    out.append("avgObjSize", average);
    for name in DATABASE_SUMS {
        out.append(name, total(name));
    }
    Ok(out.finish())
}

fn double(value: ValueRef<'_>) -> f64 {
    match value {
        ValueRef::Double(number) => number,
        other => number(other) as f64,
    }
}

fn sums(out: &mut DocumentBuilder, replies: &[Document], names: &[&str]) {
    for name in names {
        if replies.iter().any(|reply| !reply.get(name).is_missing()) {
            out.append(name, sum(replies, name));
        }
    }
}

/// Adds the numbers of a document of each reply by name.
pub(super) fn sums_of_all(replies: &[Document], field: &str) -> Document {
    let mut totals = BTreeMap::<String, i64>::new();
    for reply in replies {
        for element in reply.get(field).as_document().into_iter().flatten() {
            *totals.entry(element.name().to_owned()).or_default() += number(element.value());
        }
    }
    let mut out = DocumentBuilder::new();
    for (name, total) in totals {
        out.append(&name, total);
    }
    out.finish()
}

/// Averages of time series, and the counter by which those of partitions are weighed.
const AVERAGES: [(&str, &str); 2] = [
    ("avgBucketSize", "bucketCount"),
    ("avgNumMeasurementsPerCommit", "numCommits"),
];

/// Adds the counters of time series, in the order of the first partition.
fn timeseries(replies: &[Document]) -> Document {
    let parts: Vec<DocRef<'_>> = replies
        .iter()
        .filter_map(|reply| reply.get("timeseries").as_document())
        .collect();
    let mut out = DocumentBuilder::new();
    for element in parts.iter().take(1).flat_map(|part| part.iter()) {
        let name = element.name();
        match element.value().as_exact_i64() {
            Some(_) => {
                let average = AVERAGES.iter().find(|(average, _)| *average == name);
                let weight = |part: &DocRef<'_>| average.map_or(1, |(_, of)| number(part.get(of)));
                let sum: i64 = parts.iter().map(|p| number(p.get(name)) * weight(p)).sum();
                let all = average.map_or(1, |_| parts.iter().map(weight).sum());
                out.append(name, sum.checked_div(all).unwrap_or(0));
            }
            None => {
                out.append_element(element);
            }
        }
    }
    out.finish()
}
