//! The fields that monitoring tools read, tool by tool: each exists, has the expected type, and changes when it should.
//!
//! The table lists the fields of each tool. Optional fields without a counterpart here (WiredTiger's cache,
//! transactions and tickets; replication; locks) are in [`NOT_THERE`]: they must be absent, not zero.

use std::time::{Duration, Instant};

use nilometer_bson::{Document, Value, ValueRef, array, doc};

use crate::client::{Client, is_ok};
use crate::server::Server;

/// The command that returns the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldSource {
    ServerStatus,
    Diagnosis,
    Top,
    DbStats,
    CollStats,
    SeriesStats,
    HostInfo,
    BuildInfo,
}

/// The expected behaviour of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behaviour {
    /// A number that has grown.
    Growing,
    /// A number that does not shrink.
    Counter,
    /// Any number.
    Number,
    /// A number above zero.
    Positive,
    Text,
    Date,
    Bool,
}

use Behaviour::{Bool, Counter, Date, Growing, Number, Positive, Text};
use FieldSource::{
    BuildInfo, CollStats, DbStats, Diagnosis, HostInfo, SeriesStats, ServerStatus, Top,
};

type FieldRow = (&'static str, FieldSource, &'static str, Behaviour);

/// All fields.
const FIELDS: &[FieldRow] = &[
    ("mongostat", ServerStatus, "host", Text),
    ("mongostat", ServerStatus, "version", Text),
    ("mongostat", ServerStatus, "process", Text),
    ("mongostat", ServerStatus, "pid", Positive),
    ("mongostat", ServerStatus, "uptime", Counter),
    ("mongostat", ServerStatus, "uptimeMillis", Growing),
    ("mongostat", ServerStatus, "uptimeEstimate", Counter),
    ("mongostat", ServerStatus, "localTime", Date),
    ("mongostat", ServerStatus, "asserts.regular", Counter),
    ("mongostat", ServerStatus, "asserts.warning", Counter),
    ("mongostat", ServerStatus, "asserts.msg", Counter),
    ("mongostat", ServerStatus, "asserts.user", Growing),
    ("mongostat", ServerStatus, "asserts.rollovers", Counter),
    ("mongostat", ServerStatus, "connections.current", Growing),
    ("mongostat", ServerStatus, "connections.available", Positive),
    (
        "mongostat",
        ServerStatus,
        "connections.totalCreated",
        Growing,
    ),
    ("mongostat", ServerStatus, "extra_info.note", Text),
    ("mongostat", ServerStatus, "extra_info.page_faults", Counter),
    ("mongostat", ServerStatus, "globalLock.totalTime", Growing),
    (
        "mongostat",
        ServerStatus,
        "globalLock.currentQueue.total",
        Number,
    ),
    (
        "mongostat",
        ServerStatus,
        "globalLock.currentQueue.readers",
        Number,
    ),
    (
        "mongostat",
        ServerStatus,
        "globalLock.currentQueue.writers",
        Number,
    ),
    (
        "mongostat",
        ServerStatus,
        "globalLock.activeClients.total",
        Number,
    ),
    (
        "mongostat",
        ServerStatus,
        "globalLock.activeClients.readers",
        Number,
    ),
    (
        "mongostat",
        ServerStatus,
        "globalLock.activeClients.writers",
        Number,
    ),
    ("mongostat", ServerStatus, "network.bytesIn", Growing),
    ("mongostat", ServerStatus, "network.bytesOut", Growing),
    ("mongostat", ServerStatus, "network.numRequests", Growing),
    ("mongostat", ServerStatus, "opcounters.insert", Growing),
    ("mongostat", ServerStatus, "opcounters.query", Growing),
    ("mongostat", ServerStatus, "opcounters.update", Growing),
    ("mongostat", ServerStatus, "opcounters.delete", Growing),
    ("mongostat", ServerStatus, "opcounters.getmore", Growing),
    ("mongostat", ServerStatus, "opcounters.command", Growing),
    ("mongostat", ServerStatus, "opcountersRepl.insert", Number),
    ("mongostat", ServerStatus, "opcountersRepl.command", Number),
    ("mongostat", ServerStatus, "mem.bits", Positive),
    ("mongostat", ServerStatus, "mem.resident", Positive),
    ("mongostat", ServerStatus, "mem.virtual", Positive),
    ("mongostat", ServerStatus, "mem.supported", Bool),
    ("mongostat", ServerStatus, "storageEngine.name", Text),
    ("mongotop", Top, "totals.test\u{1}c.total.time", Growing),
    ("mongotop", Top, "totals.test\u{1}c.total.count", Growing),
    ("mongotop", Top, "totals.test\u{1}c.readLock.time", Growing),
    ("mongotop", Top, "totals.test\u{1}c.readLock.count", Growing),
    ("mongotop", Top, "totals.test\u{1}c.writeLock.time", Growing),
    (
        "mongotop",
        Top,
        "totals.test\u{1}c.writeLock.count",
        Growing,
    ),
    ("Compass", Top, "totals.test\u{1}c.queries.count", Growing),
    ("Compass", Top, "totals.test\u{1}c.getmore.count", Growing),
    ("Compass", Top, "totals.test\u{1}c.insert.count", Growing),
    ("Compass", Top, "totals.test\u{1}c.update.count", Growing),
    ("Compass", Top, "totals.test\u{1}c.remove.count", Growing),
    ("Compass", Top, "totals.test\u{1}c.commands.count", Counter),
    ("Compass", HostInfo, "os.name", Text),
    ("Compass", HostInfo, "os.type", Text),
    ("Compass", HostInfo, "os.version", Text),
    ("Compass", HostInfo, "extra.versionString", Text),
    ("Compass", HostInfo, "extra.cpuFrequencyMHz", Text),
    ("Compass", HostInfo, "system.cpuArch", Text),
    ("Compass", HostInfo, "system.memSizeMB", Positive),
    ("Compass", HostInfo, "system.numCores", Positive),
    ("Compass", BuildInfo, "version", Text),
    ("Compass", BuildInfo, "gitVersion", Text),
    ("Compass", BuildInfo, "bits", Positive),
    ("Compass", DbStats, "collections", Positive),
    ("Compass", DbStats, "objects", Growing),
    ("Compass", DbStats, "indexes", Positive),
    ("Compass", DbStats, "dataSize", Growing),
    ("Compass", DbStats, "storageSize", Number),
    ("Compass", DbStats, "indexSize", Number),
    ("Compass", CollStats, "count", Growing),
    ("Compass", CollStats, "size", Growing),
    ("Compass", CollStats, "avgObjSize", Positive),
    ("Compass", CollStats, "storageSize", Number),
    ("Compass", CollStats, "freeStorageSize", Number),
    ("Compass", CollStats, "capped", Bool),
    ("Compass", CollStats, "nindexes", Positive),
    ("Compass", CollStats, "totalIndexSize", Number),
    ("Compass", CollStats, "totalSize", Number),
    ("Compass", CollStats, "indexSizes._id_", Number),
    ("Compass", SeriesStats, "timeseries.bucketsNs", Text),
    ("Compass", SeriesStats, "timeseries.bucketCount", Positive),
    ("Compass", SeriesStats, "timeseries.avgBucketSize", Number),
    (
        "Compass",
        SeriesStats,
        "timeseries.numBucketInserts",
        Counter,
    ),
    ("Compass", SeriesStats, "timeseries.numCommits", Growing),
    ("exporter", DbStats, "views", Number),
    ("exporter", DbStats, "avgObjSize", Positive),
    ("exporter", DbStats, "totalSize", Number),
    ("exporter", DbStats, "scaleFactor", Positive),
    ("exporter", DbStats, "freeStorageSize", Number),
    ("exporter", DbStats, "indexFreeStorageSize", Number),
    ("exporter", DbStats, "totalFreeStorageSize", Number),
    ("exporter", Diagnosis, "data.start", Date),
    ("exporter", Diagnosis, "data.end", Date),
    ("exporter", Diagnosis, "data.serverStatus.start", Date),
    ("exporter", Diagnosis, "data.serverStatus.uptime", Counter),
    (
        "exporter",
        Diagnosis,
        "data.serverStatus.connections.current",
        Growing,
    ),
    (
        "exporter",
        Diagnosis,
        "data.serverStatus.connections.active",
        Positive,
    ),
    (
        "exporter",
        Diagnosis,
        "data.serverStatus.connections.threaded",
        Growing,
    ),
    (
        "exporter",
        Diagnosis,
        "data.serverStatus.connections.rejected",
        Counter,
    ),
    (
        "exporter",
        Diagnosis,
        "data.serverStatus.opcounters.insert",
        Growing,
    ),
    (
        "exporter",
        Diagnosis,
        "data.serverStatus.opcounters.query",
        Growing,
    ),
    (
        "exporter",
        Diagnosis,
        "data.serverStatus.opLatencies.reads.latency",
        Growing,
    ),
    (
        "exporter",
        Diagnosis,
        "data.serverStatus.opLatencies.reads.ops",
        Growing,
    ),
    (
        "exporter",
        Diagnosis,
        "data.serverStatus.opLatencies.writes.latency",
        Growing,
    ),
    (
        "exporter",
        Diagnosis,
        "data.serverStatus.opLatencies.writes.ops",
        Growing,
    ),
    (
        "exporter",
        Diagnosis,
        "data.serverStatus.opLatencies.commands.latency",
        Growing,
    ),
    (
        "exporter",
        Diagnosis,
        "data.serverStatus.opLatencies.commands.ops",
        Growing,
    ),
    (
        "exporter",
        Diagnosis,
        "data.serverStatus.network.physicalBytesIn",
        Growing,
    ),
    (
        "exporter",
        Diagnosis,
        "data.serverStatus.network.physicalBytesOut",
        Growing,
    ),
    (
        "exporter",
        Diagnosis,
        "data.serverStatus.metrics.document.inserted",
        Growing,
    ),
    (
        "exporter",
        Diagnosis,
        "data.serverStatus.metrics.document.updated",
        Growing,
    ),
    (
        "exporter",
        Diagnosis,
        "data.serverStatus.metrics.document.deleted",
        Growing,
    ),
    (
        "exporter",
        Diagnosis,
        "data.serverStatus.metrics.document.returned",
        Growing,
    ),
    (
        "exporter",
        Diagnosis,
        "data.serverStatus.metrics.cursor.open.total",
        Growing,
    ),
    (
        "exporter",
        Diagnosis,
        "data.serverStatus.metrics.cursor.open.noTimeout",
        Number,
    ),
    (
        "exporter",
        Diagnosis,
        "data.serverStatus.metrics.cursor.open.pinned",
        Number,
    ),
    (
        "exporter",
        Diagnosis,
        "data.serverStatus.metrics.cursor.timedOut",
        Counter,
    ),
    (
        "exporter",
        Diagnosis,
        "data.serverStatus.metrics.cursor.totalOpened",
        Growing,
    ),
    (
        "exporter",
        Diagnosis,
        "data.serverStatus.metrics.commands.find.total",
        Growing,
    ),
    (
        "exporter",
        Diagnosis,
        "data.serverStatus.metrics.commands.find.failed",
        Growing,
    ),
    (
        "exporter",
        Diagnosis,
        "data.serverStatus.mem.resident",
        Positive,
    ),
    (
        "exporter",
        Diagnosis,
        "data.serverStatus.logicalSessionRecordCache.activeSessionsCount",
        Growing,
    ),
    (
        "exporter",
        Diagnosis,
        "data.serverStatus.catalogStats.collections",
        Positive,
    ),
    (
        "exporter",
        Diagnosis,
        "data.serverStatus.catalogStats.timeseries",
        Positive,
    ),
    (
        "exporter",
        Diagnosis,
        "data.serverStatus.storageEngine.name",
        Text,
    ),
    (
        "exporter",
        Diagnosis,
        "data.serverStatus.storageEngine.log.syncs",
        Growing,
    ),
];

/// Optional fields without a counterpart here.
const NOT_THERE: &[&str] = &["wiredTiger", "repl", "locks", "tcmalloc", "flowControl"];

/// Stands for a dot within a namespace in a path.
const DOT: char = '\u{1}';

fn ask(client: &mut Client, asked: FieldSource) -> Document {
    let (db, command) = match asked {
        ServerStatus => ("admin", doc! {"serverStatus": 1, "recordStats": 0}),
        Diagnosis => ("admin", doc! {"getDiagnosticData": 1}),
        Top => ("admin", doc! {"top": 1}),
        DbStats => ("test", doc! {"dbStats": 1, "scale": 1, "freeStorage": 1}),
        CollStats => ("test", doc! {"collStats": "c"}),
        SeriesStats => ("test", doc! {"collStats": "ts"}),
        HostInfo => ("admin", doc! {"hostInfo": 1}),
        BuildInfo => ("admin", doc! {"buildInfo": 1}),
    };
    let reply = client.run_on(db, &command);
    assert!(is_ok(&reply), "{asked:?}: {reply:?}");
    reply
}

fn at(document: &Document, path: &str) -> Value {
    let mut at = ValueRef::Document(document.as_ref());
    for name in path.split('.') {
        let name = name.replace(DOT, ".");
        at = match at {
            ValueRef::Document(inner) => inner.get(&name),
            _ => ValueRef::Missing,
        };
    }
    at.to_value()
}

fn number(value: &Value) -> Option<f64> {
    match value.as_ref() {
        ValueRef::Double(number) => Some(number),
        other => other.as_exact_i64().map(|number| number as f64),
    }
}

/// Runs some of everything. Opened cursors stay open.
fn do_something(server: &Server, client: &mut Client, round: i64) -> Vec<Client> {
    let documents: Vec<Value> = (0..200)
        .map(|i| doc! {"_id": round * 1000 + i, "x": i}.into())
        .collect();
    let measurement = |i: i64| -> Value {
        let time = Value::DateTime(1_700_000_000_000 + (round * 1000 + i) * 60_000);
        doc! {"t": time, "m": i % 3, "v": i}.into()
    };
    let measurements: Vec<Value> = (0..100).map(measurement).collect();
    let change = doc! {"q": doc! {"_id": round * 1000}, "u": doc! {"$inc": doc! {"x": 1}}};
    let removal = doc! {"q": doc! {"_id": round * 1000 + 1}, "limit": 1};
    for command in [
        doc! {"insert": "c", "documents": documents},
        doc! {"insert": "ts", "documents": measurements},
        doc! {"update": "c", "updates": array![change]},
        doc! {"delete": "c", "deletes": array![removal]},
        doc! {"count": "c"},
    ] {
        let reply = client.run_on("test", &command);
        assert!(is_ok(&reply), "{reply:?}");
    }
    let find = doc! {"find": "c", "filter": doc! {"x": doc! {"$gte": 0}}, "batchSize": 5};
    let reply = client.run_on("test", &find);
    let id = at(&reply, "cursor.id");
    let more = doc! {"getMore": id, "collection": "c", "batchSize": 5};
    assert!(is_ok(&client.run_on("test", &more)));
    assert!(!is_ok(&client.run_on(
        "test",
        &doc! {"find": "c", "filter": doc! {"x": doc! {"$no": 1}}}
    )));
    assert!(is_ok(&client.run(&doc! {"startSession": 1})));
    let mut others: Vec<Client> = (0..2).map(|_| server.connect()).collect();
    for other in &mut others {
        assert!(is_ok(&other.run(&doc! {"ping": 1})));
    }
    others
}

/// True if a field with the values `before` and `after` does not behave as expected.
fn wrong(before: &Value, after: &Value, is: Behaviour) -> bool {
    let (earlier, later) = (number(before), number(after));
    match is {
        Growing => earlier.unwrap_or(0.0) >= later.unwrap_or(-1.0),
        Counter => later.is_none() || earlier > later,
        Number => later.is_none(),
        Positive => !later.is_some_and(|n| n > 0.0),
        Text => !matches!(after, Value::String(_)),
        Date => !matches!(after, Value::DateTime(_)),
        Bool => !matches!(after, Value::Bool(_)),
    }
}

#[test]
fn every_field_that_tools_read_is_there_and_moves() {
    let server = Server::start();
    let mut client = server.connect();
    let options = doc! {"timeField": "t", "metaField": "m"};
    let create = doc! {"create": "ts", "timeseries": options};
    assert!(is_ok(&client.run_on("test", &create)));
    let _first = do_something(&server, &mut client, 1);
    let asked = [
        ServerStatus,
        Diagnosis,
        Top,
        DbStats,
        CollStats,
        SeriesStats,
        HostInfo,
        BuildInfo,
    ];
    let before = asked.map(|asked| (asked, ask(&mut client, asked)));
    std::thread::sleep(Duration::from_millis(5));
    let _second = do_something(&server, &mut client, 2);
    let after = asked.map(|asked| (asked, ask(&mut client, asked)));
    let find = |of: &[(FieldSource, Document)], asked: FieldSource, path: &str| {
        let reply = of.iter().find(|(known, _)| *known == asked);
        at(&reply.expect("it was asked").1, path)
    };
    let bad: Vec<String> = FIELDS
        .iter()
        .filter_map(|(tool, asked, path, is)| {
            let (earlier, later) = (find(&before, *asked, path), find(&after, *asked, path));
            wrong(&earlier, &later, *is)
                .then(|| format!("{tool}: {asked:?} {path} is {is:?}: {earlier:?}, then {later:?}"))
        })
        .collect();
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    for name in NOT_THERE {
        let found = find(&after, ServerStatus, name);
        assert!(matches!(found, Value::Missing), "{name}: {found:?}");
    }
}

#[test]
fn gauges_of_work_count_what_is_at_work() {
    let server = Server::start();
    let mut client = server.connect();
    let documents: Vec<Value> = (0..300).map(|i| doc! {"_id": i}.into()).collect();
    assert!(is_ok(
        &client.run_on("test", &doc! {"insert": "c", "documents": documents})
    ));
    let mut slow = server.connect();
    let slow = std::thread::spawn(move || {
        // 300³ iterations: does not end by itself in this test.
        let all = |inner: Value| -> Value {
            array![
                doc! {"$lookup": doc! {"from": "c", "as": "a", "pipeline": inner}},
                doc! {"$unwind": "$a"}
            ]
        };
        let pipeline = all(all(array![]));
        let aggregate = doc! {
            "aggregate": "c", "pipeline": pipeline, "cursor": doc! {}, "maxTimeMS": 3000,
        };
        slow.run_on("test", &aggregate)
    });
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let status = ask(&mut client, ServerStatus);
        let readers = number(&at(&status, "globalLock.activeClients.readers"));
        let active = number(&at(&status, "connections.active"));
        // The values are read one after the other; the query may begin in between.
        if readers == Some(1.0) && active >= Some(2.0) {
            break;
        }
        assert!(
            Instant::now() < end,
            "the query is not seen: {readers:?}, {active:?}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(slow.join().expect("no panic"));
}
