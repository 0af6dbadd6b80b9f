//! The values of `serverStatus` as OpenMetrics: one table of names, units and paths.

use std::fmt::Write;

use nilometer::{ClientSession, Database, Request};
use nilometer_bson::{DocRef, Document, ValueRef, doc};

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MetricKind {
    /// Grows only, while the process lives.
    Counter,
    /// Rises and falls.
    Gauge,
}

/// A metric family: one value, or one for each label.
struct MetricFamily {
    name: &'static str,
    kind: MetricKind,
    help: &'static str,
    /// The name of the label; empty if there is none.
    label: &'static str,
    /// Values of the label, and paths in `serverStatus`.
    figures: &'static [(&'static str, &'static str)],
}

const fn one(
    name: &'static str,
    kind: MetricKind,
    help: &'static str,
    figures: &'static [(&'static str, &'static str)],
) -> MetricFamily {
    MetricFamily {
        name,
        kind,
        help,
        label: "",
        figures,
    }
}

const fn each(
    name: &'static str,
    kind: MetricKind,
    help: &'static str,
    label: &'static str,
    figures: &'static [(&'static str, &'static str)],
) -> MetricFamily {
    MetricFamily {
        name,
        kind,
        help,
        label,
        figures,
    }
}

use MetricKind::{Counter, Gauge};

/// All families. Samples of a counter have the suffix `_total`.
const FAMILIES: &[MetricFamily] = &[
    one(
        "nilometer_uptime_seconds",
        Gauge,
        "Seconds since the database was opened.",
        &[("", "uptime")],
    ),
    each(
        "nilometer_connections",
        Gauge,
        "Connections by state.",
        "state",
        &[
            ("current", "connections.current"),
            ("active", "connections.active"),
            ("available", "connections.available"),
        ],
    ),
    one(
        "nilometer_connections_created",
        Counter,
        "Connections accepted.",
        &[("", "connections.totalCreated")],
    ),
    one(
        "nilometer_connections_rejected",
        Counter,
        "Connections refused because too many were open.",
        &[("", "connections.rejected")],
    ),
    each(
        "nilometer_operations",
        Counter,
        "Operations by kind: documents or statements for writes, commands for the others.",
        "kind",
        &[
            ("insert", "opcounters.insert"),
            ("query", "opcounters.query"),
            ("update", "opcounters.update"),
            ("delete", "opcounters.delete"),
            ("getmore", "opcounters.getmore"),
            ("command", "opcounters.command"),
        ],
    ),
    each(
        "nilometer_documents",
        Counter,
        "Documents read and written.",
        "action",
        &[
            ("inserted", "metrics.document.inserted"),
            ("updated", "metrics.document.updated"),
            ("deleted", "metrics.document.deleted"),
            ("returned", "metrics.document.returned"),
        ],
    ),
    each(
        "nilometer_errors",
        Counter,
        "Commands answered with an error, by cause: client or server.",
        "origin",
        &[("client", "asserts.user"), ("server", "asserts.regular")],
    ),
    each(
        "nilometer_network_bytes",
        Counter,
        "Bytes over the network, as sent.",
        "direction",
        &[
            ("in", "network.physicalBytesIn"),
            ("out", "network.physicalBytesOut"),
        ],
    ),
    one(
        "nilometer_network_requests",
        Counter,
        "Messages received.",
        &[("", "network.numRequests")],
    ),
    each(
        "nilometer_operations_running",
        Gauge,
        "Operations running.",
        "access",
        &[
            ("read", "globalLock.activeClients.readers"),
            ("write", "globalLock.activeClients.writers"),
        ],
    ),
    one(
        "nilometer_cursors_open",
        Gauge,
        "Open cursors.",
        &[("", "metrics.cursor.open.total")],
    ),
    one(
        "nilometer_cursors_timed_out",
        Counter,
        "Cursors closed by timeout.",
        &[("", "metrics.cursor.timedOut")],
    ),
    each(
        "nilometer_memory_mebibytes",
        Gauge,
        "Memory of the process.",
        "kind",
        &[
            ("resident", "mem.resident"),
            ("virtual", "mem.virtual"),
            ("limit", "mem.limit"),
        ],
    ),
    each(
        "nilometer_memory_part_bytes",
        Gauge,
        "Memory of components with a limit, as they count it.",
        "part",
        &[
            ("memtables", "mem.parts.memtables.bytes"),
            ("blocks", "mem.parts.blocks.bytes"),
            ("opened_buckets", "mem.parts.openedBuckets.bytes"),
            ("open_buckets", "mem.parts.openBuckets.bytes"),
            ("bucket_lists", "mem.parts.bucketLists.bytes"),
            ("metadata_numbers", "mem.parts.metadataNumbers.bytes"),
            ("plans", "mem.parts.plans.bytes"),
            ("queries", "mem.parts.queries.bytes"),
        ],
    ),
    each(
        "nilometer_memory_part_max_bytes",
        Gauge,
        "Memory limit of each component.",
        "part",
        &[
            ("memtables", "mem.parts.memtables.bytesMax"),
            ("blocks", "mem.parts.blocks.bytesMax"),
            ("opened_buckets", "mem.parts.openedBuckets.bytesMax"),
            ("open_buckets", "mem.parts.openBuckets.bytesMax"),
            ("bucket_lists", "mem.parts.bucketLists.bytesMax"),
            ("metadata_numbers", "mem.parts.metadataNumbers.bytesMax"),
            ("plans", "mem.parts.plans.bytesMax"),
            ("queries", "mem.parts.queries.bytesMax"),
        ],
    ),
    one(
        "nilometer_storage_disk_bytes",
        Gauge,
        "Bytes of all files of the database.",
        &[("", "storageEngine.diskBytes")],
    ),
    one(
        "nilometer_storage_memtable_bytes",
        Gauge,
        "Bytes in memory not yet in tables.",
        &[("", "storageEngine.memtableBytes")],
    ),
    one(
        "nilometer_storage_log_bytes",
        Gauge,
        "Bytes of the log in use.",
        &[("", "storageEngine.log.bytes")],
    ),
    one(
        "nilometer_storage_log_batches",
        Counter,
        "Batches written to the log.",
        &[("", "storageEngine.log.batches")],
    ),
    one(
        "nilometer_storage_log_syncs",
        Counter,
        "Syncs of the log.",
        &[("", "storageEngine.log.syncs")],
    ),
    one(
        "nilometer_storage_disk_stuck",
        Gauge,
        "Writes and syncs in flight for longer than the limit.",
        &[("", "storageEngine.disk.stuck")],
    ),
    one(
        "nilometer_storage_disk_stuck_milliseconds",
        Gauge,
        "Age of the oldest write or sync in flight for longer than the limit.",
        &[("", "storageEngine.disk.stuckMillis")],
    ),
    one(
        "nilometer_storage_disk_stalls",
        Counter,
        "Writes and syncs that took longer than the limit.",
        &[("", "storageEngine.disk.stuckTotal")],
    ),
    one(
        "nilometer_storage_disk_longest_milliseconds",
        Gauge,
        "The longest write or sync since the start.",
        &[("", "storageEngine.disk.longestMillis")],
    ),
    each(
        "nilometer_buckets",
        Gauge,
        "Open buckets.",
        "state",
        &[
            ("open", "bucketCatalog.numOpenBuckets"),
            ("archived", "bucketCatalog.numArchivedBuckets"),
        ],
    ),
    one(
        "nilometer_buckets_memory_bytes",
        Gauge,
        "Memory of open buckets.",
        &[("", "bucketCatalog.memoryUsage")],
    ),
    each(
        "nilometer_namespaces",
        Gauge,
        "Objects in the catalog, by kind.",
        "kind",
        &[
            ("collection", "catalogStats.collections"),
            ("timeseries", "catalogStats.timeseries"),
            ("view", "catalogStats.views"),
        ],
    ),
];

/// Returns the current metrics of `database`.
pub(super) fn of(database: &Database) -> String {
    let request = Request::new(doc! {"serverStatus": 1, "$db": "admin"});
    let status = database.run_command(&mut ClientSession::embedded(), &request);
    let writable = database.check_writable().is_ok();
    let mut out = text(&status);
    begin(
        &mut out,
        "nilometer_writable",
        Gauge,
        "1 if writes are accepted.",
    );
    line(
        &mut out,
        "nilometer_writable",
        "",
        "",
        &u8::from(writable).to_string(),
    );
    out.push_str("# EOF\n");
    out
}

/// Formats `status`, without the final line.
fn text(status: &Document) -> String {
    let mut out = String::with_capacity(16 * 1024);
    for family in FAMILIES {
        // An absent section, such as that of buckets if there is none, counts as zero.
        begin(&mut out, family.name, family.kind, family.help);
        for (value, path) in family.figures {
            let name = sample_name(family.name, family.kind);
            line(
                &mut out,
                &name,
                family.label,
                value,
                &number(find(status, path)),
            );
        }
    }
    commands(&mut out, status);
    out
}

/// Appends runs and failures of each command that ran.
fn commands(out: &mut String, status: &Document) {
    let metrics = status.get("metrics").as_document().unwrap_or(DocRef::EMPTY);
    let all = metrics
        .get("commands")
        .as_document()
        .unwrap_or(DocRef::EMPTY);
    for (name, field, help) in [
        ("nilometer_commands", "total", "Commands by name."),
        (
            "nilometer_commands_failed",
            "failed",
            "Commands answered with an error, by name.",
        ),
    ] {
        begin(out, name, Counter, help);
        for command in all.iter() {
            let Some(counts) = command.value().as_document() else {
                continue;
            };
            if counts.get("total").as_exact_i64() != Some(0) {
                let sample = sample_name(name, Counter);
                line(
                    out,
                    &sample,
                    "command",
                    command.name(),
                    &number(counts.get(field)),
                );
            }
        }
    }
}

fn sample_name(name: &str, kind: MetricKind) -> String {
    match kind {
        Counter => format!("{name}_total"),
        Gauge => name.to_owned(),
    }
}

fn begin(out: &mut String, name: &str, kind: MetricKind, help: &str) {
    let kind = match kind {
        Counter => "counter",
        Gauge => "gauge",
    };
    // Writing to a String does not fail.
    let _ = writeln!(out, "# TYPE {name} {kind}\n# HELP {name} {help}");
}

fn line(out: &mut String, name: &str, label: &str, value: &str, figure: &str) {
    let _ = match label {
        "" => writeln!(out, "{name} {figure}"),
        label => writeln!(out, "{name}{{{label}=\"{value}\"}} {figure}"),
    };
}

/// Returns the value at a path of fields.
fn find<'a>(document: &'a Document, path: &str) -> ValueRef<'a> {
    let mut at = ValueRef::Document(document.as_ref());
    for name in path.split('.') {
        at = match at {
            ValueRef::Document(document) => document.get(name),
            _ => ValueRef::Missing,
        };
    }
    at
}

fn number(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Double(value) => value.to_string(),
        other => other.as_exact_i64().unwrap_or(0).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_one_that_server_status_has() {
        let database = Database::in_memory().unwrap();
        let ts = database.collection::<bson::Document>("db", "ts");
        ts.create_timeseries("t", Some("m")).unwrap();
        ts.insert_one(bson::doc! { "t": bson::DateTime::now(), "m": 1 })
            .unwrap();
        let request = Request::new(doc! {"serverStatus": 1, "$db": "admin"});
        let status = database.run_command(&mut ClientSession::embedded(), &request);
        for family in FAMILIES {
            for (_, path) in family.figures {
                // An embedded database does not report the memory of the process.
                let of_process = path.starts_with("mem.") && !path.starts_with("mem.parts.");
                let known = of_process || !find(&status, path).is_missing();
                assert!(known, "{}: {path}", family.name);
            }
            assert_eq!(
                family.label.is_empty(),
                family.figures.len() == 1,
                "{}",
                family.name
            );
        }
    }

    #[test]
    fn the_text_is_open_metrics() {
        let database = Database::in_memory().unwrap();
        let text = of(&database);
        assert!(text.ends_with("# EOF\n"));
        let mut family = "";
        for line in text.lines().filter(|line| *line != "# EOF") {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                family = rest.split(' ').next().unwrap();
            } else if !line.starts_with("# HELP ") {
                assert!(line.starts_with(family), "{line}");
                let figure = line.rsplit(' ').next().unwrap();
                assert!(figure.parse::<f64>().is_ok(), "{line}");
            }
        }
        assert!(
            text.contains("nilometer_commands_total{command=\"serverStatus\"} 0")
                || text.contains("nilometer_operations_total{kind=\"insert\"} 0")
        );
        assert!(text.contains("nilometer_writable 1\n"));
    }
}
