//! What of InfluxQL's statements and clauses is supported, with an example of each: the table of COMPATIBILITY.md.

/// A statement or a clause.
#[derive(Clone, Copy, Debug)]
pub struct Support {
    /// What it is.
    pub name: &'static str,
    /// A statement with it.
    pub example: &'static str,
    /// The statement is parsed; else it is refused by name.
    pub is_supported: bool,
    /// How it differs from InfluxDB's.
    pub note: &'static str,
}

const fn yes(name: &'static str, example: &'static str, note: &'static str) -> Support {
    Support {
        name,
        example,
        is_supported: true,
        note,
    }
}

const fn no(name: &'static str, example: &'static str) -> Support {
    Support {
        name,
        example,
        is_supported: false,
        note: "",
    }
}

/// Statements and clauses.
pub const SUPPORT: &[Support] = &[
    yes(
        "`SELECT` of fields, tags, arithmetic, functions, `*`, `/regex/`, `AS`",
        "SELECT a + 1 AS b, /c/, * FROM m",
        "",
    ),
    yes(
        "`FROM` measurements, `db.policy.m`, `/regex/`",
        "SELECT a FROM d.autogen.m, /n/",
        "the only policy is `autogen`",
    ),
    yes(
        "subqueries, also several, nested and beside measurements",
        "SELECT max(b) FROM (SELECT mean(a) AS b FROM m GROUP BY t), (SELECT b FROM n), o",
        "nested at most eight deep; at most 16 MiB of inner rows; names of columns without dots",
    ),
    yes(
        "`WHERE` with `=`, `!=`, `<`, `>`, `=~`, `!~`, `AND`, `OR`, arithmetic",
        "SELECT a FROM m WHERE t = 'x' AND (a > 1 OR b =~ /x/)",
        "conditions on `time` are joined by `AND` only, as in InfluxDB",
    ),
    yes(
        "times: `now()`, RFC 3339, integers, durations, sums of them",
        "SELECT a FROM m WHERE time > now() - 1h AND time < '2026-01-01T00:00:00Z'",
        "",
    ),
    yes(
        "`GROUP BY time(interval, offset)`",
        "SELECT mean(a) FROM m GROUP BY time(1m, 10s)",
        "whole milliseconds",
    ),
    yes(
        "`GROUP BY` tags, `*`, `/regex/`",
        "SELECT a FROM m GROUP BY t, *, /r/",
        "series come in order of their tags, also with `ORDER BY time DESC`",
    ),
    yes(
        "`fill(null)`, `none`, `previous`, `linear`, number",
        "SELECT mean(a) FROM m GROUP BY time(1m) fill(previous)",
        "without a lower bound of the time a series is filled from its first window",
    ),
    yes(
        "`ORDER BY time DESC`, `LIMIT`, `OFFSET`, `SLIMIT`, `SOFFSET`",
        "SELECT a FROM m ORDER BY time DESC LIMIT 1 OFFSET 1 SLIMIT 1 SOFFSET 1",
        "",
    ),
    yes("`tz('…')`", "SELECT a FROM m tz('Europe/Berlin')", ""),
    yes(
        "`::field`, `::tag` and types",
        "SELECT a::field FROM m GROUP BY t::tag",
        "types only choose the field, and convert nothing",
    ),
    yes(
        "several statements, comments, `$name` with `params`",
        "SELECT a FROM m; SHOW DATABASES -- both",
        "",
    ),
    yes(
        "`SHOW DATABASES`",
        "SHOW DATABASES",
        "without `admin`, `config`, `local`; those the user may see",
    ),
    yes(
        "`SHOW MEASUREMENTS`",
        "SHOW MEASUREMENTS WITH MEASUREMENT =~ /m/ WHERE t = 'x' LIMIT 1",
        "every time series, and the [mappings](docs/operating.md#telegraf-grafana-and-other-clients-of-influxdb) in `nilometer.measurements`",
    ),
    yes("`SHOW TAG KEYS`", "SHOW TAG KEYS FROM m WHERE t = 'x'", ""),
    yes(
        "`SHOW TAG VALUES`",
        "SHOW TAG VALUES FROM m WITH KEY IN (t, u) WHERE t = 'x'",
        "with a condition on the time, exactly",
    ),
    yes(
        "`SHOW FIELD KEYS`",
        "SHOW FIELD KEYS FROM m",
        "fields with numbers, texts and truth values",
    ),
    yes("`SHOW SERIES`", "SHOW SERIES FROM m WHERE t = 'x'", ""),
    yes(
        "`SHOW RETENTION POLICIES`",
        "SHOW RETENTION POLICIES ON d",
        "`autogen` alone",
    ),
    yes(
        "`CREATE DATABASE … WITH DURATION`",
        "CREATE DATABASE d WITH DURATION 30d",
        "the duration is that of measurements created later; by POST only",
    ),
    yes(
        "`DROP DATABASE`, `DROP MEASUREMENT`",
        "DROP MEASUREMENT m",
        "by POST only",
    ),
    yes(
        "`INTO`, `:MEASUREMENT`",
        "SELECT a INTO d.autogen.:MEASUREMENT FROM m GROUP BY *",
        "by POST only; tags of `GROUP BY` stay tags, others become fields; a database that does not exist is created; not in subqueries",
    ),
    no("`DELETE`, `DROP SERIES`", "DELETE FROM m"),
    no(
        "`CREATE`, `ALTER`, `DROP RETENTION POLICY`",
        "ALTER RETENTION POLICY a ON d DURATION 1d",
    ),
    no(
        "continuous queries, subscriptions",
        "CREATE CONTINUOUS QUERY a ON d BEGIN SELECT a INTO b FROM m END",
    ),
    no(
        "users: `CREATE USER`, `GRANT`, `SHOW USERS`, …",
        "CREATE USER u WITH PASSWORD 'p'",
    ),
    no(
        "`EXPLAIN`, `KILL QUERY`, `SHOW QUERIES`, `SHOW STATS`, `SHOW SHARDS`, cardinalities",
        "SHOW SERIES CARDINALITY",
    ),
];
