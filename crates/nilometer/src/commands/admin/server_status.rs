//! `serverStatus` and `getDiagnosticData`: the figures of the server.
//!
//! [`SECTIONS`] is the table of its sections; each is a function from the database to a value. A client may
//! exclude a section (`{metrics: 0}`) or request one that is not shown by default. Only measured figures are
//! shown; what this server does not count is left out.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, array, doc};

use super::replication;
use crate::args::truncated_i64;
use crate::auth::Action;
use crate::commands::server_version::{MONGODB_VERSION, STORAGE_ENGINE};
use crate::commands::{
    Access, Authorization, COMMANDS, CommandContext, CommandSpec, Fields, OnRouter,
};
use crate::database::Database;
use crate::error::Result;
use crate::operation::Request;
use crate::services::{LatencyCounter, Services};

pub(crate) const SPEC: CommandSpec = CommandSpec {
    fields: Fields::Any,
    ..CommandSpec::new(
        "serverStatus",
        "Returns the server's figures.",
        Authorization::OnCluster(&[Action::ServerStatus]),
        OnRouter::Same,
        run,
    )
};

pub(crate) const DIAGNOSTIC_DATA: CommandSpec = CommandSpec {
    admin_only: true,
    ..CommandSpec::new(
        "getDiagnosticData",
        "Returns the figures collected for diagnosis.",
        Authorization::OnCluster(&[Action::ServerStatus]),
        OnRouter::Same,
        diagnostic_data,
    )
};

/// A section of `serverStatus`.
struct Section {
    /// Its field.
    name: &'static str,
    /// False if it is shown only on request.
    by_default: bool,
    /// Returns the value; missing to leave the section out.
    make: fn(&Database) -> Value,
}

const fn section(name: &'static str, make: fn(&Database) -> Value) -> Section {
    Section {
        name,
        by_default: true,
        make,
    }
}

/// All sections, in the order of the reply.
const SECTIONS: &[Section] = &[
    section("asserts", asserts),
    section("bucketCatalog", |database| {
        database.bucket_catalog_status().into()
    }),
    section("catalogStats", |database| database.catalog_stats().into()),
    section("connections", connections),
    section("extra_info", extra_info),
    section("globalLock", global_lock),
    section("logicalSessionRecordCache", logical_sessions),
    section("mem", memory),
    section("metrics", metrics),
    section("network", network),
    section("opLatencies", latencies),
    section("opcounters", opcounters),
    section("opcountersRepl", |_| opcounters_repl()),
    section("repl", replication::status_section),
    section("storageEngine", storage_engine),
    section("transactions", transactions),
];

const MIB: u64 = 1024 * 1024;

fn run(database: &Database, _: &mut CommandContext<'_>, request: &Request) -> Result<Document> {
    Ok(status(database, request.body.as_ref()))
}

/// Returns the status with the sections that `choice` selects.
fn status(database: &Database, choice: nilometer_bson::DocRef<'_>) -> Document {
    let services = database.services();
    let host = &services.host;
    let uptime = services.uptime();
    let seconds = i64::try_from(uptime.as_secs()).unwrap_or(i64::MAX);
    let mut reply = DocumentBuilder::with_capacity(8192);
    let name = if host.port == 0 {
        host.hostname.clone()
    } else {
        format!("{}:{}", host.hostname, host.port)
    };
    reply
        .append("host", name)
        .append("version", MONGODB_VERSION)
        .append("process", host.process.as_str())
        .append("service", array![STORAGE_ENGINE])
        .append("pid", i64::from(host.pid))
        .append("uptime", seconds as f64)
        .append(
            "uptimeMillis",
            i64::try_from(uptime.as_millis()).unwrap_or(i64::MAX),
        )
        .append("uptimeEstimate", seconds)
        .append("localTime", Value::DateTime(services.clock.now_ms()));
    let none = wanted(choice.get("none")) == Some(true);
    for section in SECTIONS {
        let asked = wanted(choice.get(section.name));
        if asked.unwrap_or(section.by_default && !none) {
            reply.append(section.name, (section.make)(database));
        }
    }
    reply.finish()
}

/// Whether the request includes a section; `None` if it does not mention it.
fn wanted(value: ValueRef<'_>) -> Option<bool> {
    match value {
        ValueRef::Missing => None,
        ValueRef::Bool(value) => Some(value),
        ValueRef::Null => Some(false),
        number => Some(truncated_i64(number) != Some(0)),
    }
}

fn diagnostic_data(
    database: &Database,
    _: &mut CommandContext<'_>,
    _: &Request,
) -> Result<Document> {
    let now = || Value::DateTime(database.services().clock.now_ms());
    let start = now();
    let mut status_with_times = DocumentBuilder::with_capacity(8192);
    status_with_times.append("start", now());
    for element in status(database, Document::new().as_ref()).iter() {
        status_with_times.append_element(element);
    }
    status_with_times.append("ok", 1.0).append("end", now());
    Ok(doc! {"data": doc! {
        "start": start,
        "serverStatus": status_with_times.finish(),
        "end": now(),
    }})
}

/// Only on a member of a replica set: others have none.
fn transactions(database: &Database) -> Value {
    if database.services().replica_set.is_none() {
        return Value::Missing;
    }
    let counts = database.retryable_writes().counts();
    let int = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let transactions = database.transactions();
    let of = |count: &AtomicU64| int(count.load(Ordering::Relaxed));
    doc! {
        "retriedCommandsCount": int(counts.commands),
        "retriedStatementsCount": int(counts.statements),
        "currentOpen": int(transactions.open() as u64),
        "totalStarted": of(&transactions.counts.started),
        "totalCommitted": of(&transactions.counts.committed),
        "totalAborted": of(&transactions.counts.aborted),
    }
    .into()
}

fn asserts(database: &Database) -> Value {
    let asserts = &database.services().counters.asserts;
    doc! {
        "regular": asserts.regular.as_i64(),
        "warning": 0i64,
        "msg": 0i64,
        "user": asserts.user.as_i64(),
        "rollovers": 0i64,
    }
    .into()
}

fn connections(database: &Database) -> Value {
    let connections = &database.services().counters.connections;
    let current = connections.current.as_i64();
    doc! {
        "current": current,
        "available": (connections.max.as_i64() - current).max(0),
        "totalCreated": connections.total_created.as_i64(),
        "rejected": connections.rejected.as_i64(),
        "active": connections.active.as_i64(),
        "threaded": current,
        "exhaustIsMaster": connections.exhaust_is_master.as_i64(),
        "exhaustHello": connections.exhaust_hello.as_i64(),
        "awaitingTopologyChanges": connections.awaiting_topology_changes.as_i64(),
    }
    .into()
}

fn extra_info(database: &Database) -> Value {
    let mut told = DocumentBuilder::new();
    told.append("note", "fields vary by platform");
    if let Some(used) = (database.services().host.memory_use)() {
        let faults = i64::try_from(used.page_faults).unwrap_or(i64::MAX);
        told.append("page_faults", faults);
    }
    told.finish().into()
}

fn global_lock(database: &Database) -> Value {
    let services = database.services();
    let operations = services.operations.list();
    let count = |access| {
        let found = operations.iter().filter(|o| o.access == access).count();
        i64::try_from(found).unwrap_or(i64::MAX)
    };
    let (readers, writers) = (count(Access::Read), count(Access::Write));
    let waiting = i64::try_from(services.turns.counts().1).unwrap_or(i64::MAX);
    doc! {
        "totalTime": i64::try_from(services.uptime().as_micros()).unwrap_or(i64::MAX),
        // Commands do not queue for a lock. Long queries wait for a turn.
        "currentQueue": doc! {"total": waiting, "readers": waiting, "writers": 0i64},
        "activeClients": doc! {
            "total": readers + writers,
            "readers": readers,
            "writers": writers,
        },
    }
    .into()
}

fn logical_sessions(database: &Database) -> Value {
    let open = database.services().sessions.len();
    doc! {"activeSessionsCount": i64::try_from(open).unwrap_or(i64::MAX)}.into()
}

fn memory(database: &Database) -> Value {
    let host = &database.services().host;
    let mut parts = DocumentBuilder::new();
    for part in database.memory_parts() {
        let bytes = |bytes| i64::try_from(bytes).unwrap_or(i64::MAX);
        let told = doc! {"bytes": bytes(part.bytes), "bytesMax": bytes(part.bytes_max)};
        parts.append(part.name, told);
    }
    let parts = parts.finish();
    let Some(used) = (host.memory_use)() else {
        return doc! {"bits": 64, "supported": false, "parts": parts}.into();
    };
    let megabytes = |bytes: u64| i32::try_from(bytes / MIB).unwrap_or(i32::MAX);
    doc! {
        "bits": 64,
        "resident": megabytes(used.resident_bytes),
        "virtual": megabytes(used.virtual_bytes),
        "supported": true,
        "limit": megabytes(database.services().memory_limit().unwrap_or(0)),
        "short": database.services().memory_is_short.load(Ordering::Relaxed),
        "parts": parts,
    }
    .into()
}

fn metrics(database: &Database) -> Value {
    let services = database.services();
    let documents = &services.counters.documents;
    let cursors = database.queries().cursors.counts();
    let count = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    doc! {
        "commands": command_metrics(services),
        "cursor": doc! {
            "timedOut": count(cursors.timed_out),
            "totalOpened": count(cursors.total_opened),
            "open": doc! {
                "noTimeout": count(cursors.no_timeout),
                "pinned": count(cursors.pinned),
                "total": count(cursors.open),
            },
        },
        "document": doc! {
            "deleted": documents.deleted.as_i64(),
            "inserted": documents.inserted.as_i64(),
            "returned": documents.returned.as_i64(),
            "updated": documents.updated.as_i64(),
        },
        "operation": doc! {
            "killedDueToMaxTimeMSExpired": services.counters.time_limit_exceeded.as_i64(),
        },
        "timeseries": database.timeseries().metrics.to_document(),
        "rollups": database.rollups().counters.to_document(),
    }
    .into()
}

fn command_metrics(services: &Services) -> Document {
    let mut commands = DocumentBuilder::with_capacity(4096);
    let counters = &services.counters;
    commands.append("<UNKNOWN>", counters.unknown_commands.as_i64());
    for (command, counter) in COMMANDS.iter().zip(counters.commands(COMMANDS.len())) {
        commands.append(
            command.name,
            doc! {
                "failed": counter.failed.as_i64(),
                "total": counter.total.as_i64(),
            },
        );
    }
    commands.finish()
}

fn network(database: &Database) -> Value {
    let network = &database.services().counters.network;
    doc! {
        "bytesIn": network.bytes_in.as_i64(),
        "bytesOut": network.bytes_out.as_i64(),
        "physicalBytesIn": network.physical_bytes_in.as_i64(),
        "physicalBytesOut": network.physical_bytes_out.as_i64(),
        "numRequests": network.requests.as_i64(),
    }
    .into()
}

fn latencies(database: &Database) -> Value {
    let latencies = &database.services().counters.latencies;
    let one = |counter: &LatencyCounter| {
        doc! {"latency": counter.time_us.as_i64(), "ops": counter.count.as_i64()}
    };
    doc! {
        "reads": one(&latencies.reads),
        "writes": one(&latencies.writes),
        "commands": one(&latencies.commands),
        // There are none.
        "transactions": doc! {"latency": 0i64, "ops": 0i64},
    }
    .into()
}

fn opcounters(database: &Database) -> Value {
    let operations = &database.services().counters.operations;
    doc! {
        "insert": operations.insert.as_i64(),
        "query": operations.query.as_i64(),
        "update": operations.update.as_i64(),
        "delete": operations.delete.as_i64(),
        "getmore": operations.getmore.as_i64(),
        "command": operations.command.as_i64(),
    }
    .into()
}

/// Operations for other members of a replica set: there are none.
fn opcounters_repl() -> Value {
    doc! {
        "insert": 0i64,
        "query": 0i64,
        "update": 0i64,
        "delete": 0i64,
        "getmore": 0i64,
        "command": 0i64,
    }
    .into()
}

fn storage_engine(database: &Database) -> Value {
    let engine = database.engine().statistics();
    let disk = database.disk().status();
    let figure = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    doc! {
        "name": STORAGE_ENGINE,
        "persistent": true,
        "diskBytes": figure(engine.disk_bytes),
        "memtableBytes": figure(engine.memory_bytes),
        "log": doc! {
            "batches": figure(engine.commits),
            "syncs": figure(engine.syncs),
            "bytes": figure(engine.log_bytes),
        },
        "disk": doc! {
            "stuck": figure(disk.stuck as u64),
            "stuckMillis": millis(disk.oldest.map_or(Duration::ZERO, |wait| wait.age)),
            "stuckTotal": figure(disk.total),
            "longestMillis": millis(disk.longest),
        },
    }
    .into()
}
