//! Targets of the languages of InfluxDB: bodies of line protocol, and statements of InfluxQL on a database in memory.
//!
//! Every document that comes of a body must be valid, and every line must be a document or an error. A statement may fail; its
//! answer must be written.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use nilometer::{ClientSession, Database, Request};
use nilometer_bson::fuzz::Numbers;
use nilometer_bson::validate::{Limits, validate_prefix};
use nilometer_bson::{Document, Value, doc};
use nilometer_influx::influxql::{Bindings, parse};
use nilometer_influx::line_protocol::{Batches, LineError, Precision, Schema, SchemasOf};
use nilometer_influx::mapping::{self, Mapping};
use nilometer_influx::query::{Output, OutputOptions, Store, execute};
use nilometer_influx::schema::MeasurementSchema;

use crate::bytes::damage;
use crate::mutation::pick;
use crate::runner::Runner;
use crate::scripts::Seeds;

/// Inputs of one seed.
const BATCH: u64 = 100;

/// The time of all queries, in ms.
const NOW_MS: i64 = 120_000;

const LINES: [&str; 4] = [
    "cpu,host=a,region=eu\\ west usage=64.2,cores=8i,name=\"a \\\"b\\\"\",up=t 1590488773254\ncpu,host=b usage=1e3 1\n",
    "# comment\r\n\r\nm v=1u,w=-5i,x=false\r\nm\\,n,t\\=u=\\\\ s=\"two\nlines\" -7\n",
    "a b=1\na b=2i\na,c=d b=3 99999999999999999999\nsystem.x y=1\na time=1,_id=2\n",
    "x,y=z k=\"open\nx,y=z k=.5,l=5.,m=+1i 12\nx,y=z,y=q k=1 5\n",
];

const QUERIES: [&str; 14] = [
    "SELECT mean(\"usage\") FROM \"cpu\" WHERE (\"host\"::tag = 'a' OR host =~ /^b$/) AND time >= 0ms and time <= 60000ms GROUP BY time(10s), \"host\"::tag fill(null) ORDER BY time DESC LIMIT 5",
    "SELECT derivative(max(usage), 1s), cumulative_sum(count(n)), moving_average(mean(n), 2) FROM cpu WHERE time > now() - 2m GROUP BY time(7s, 3s), * fill(linear) tz('Europe/Berlin')",
    "SELECT top(usage, host, 2), n FROM cpu WHERE usage - n > 0.5 AND state !~ /u+/",
    "SELECT last(*), usage FROM /c.*/ GROUP BY /re/; SELECT * FROM cpu WHERE time = '1970-01-01T00:00:10Z' SLIMIT 1 SOFFSET 1",
    "SELECT usage * 2 + n % 3 AS x, pow(usage, 2), difference(n) FROM d.autogen.cpu",
    "SELECT count(distinct(state)), percentile(usage, 90), median(n), stddev(usage), spread(n) FROM cpu GROUP BY region fill(7)",
    "SHOW TAG VALUES ON d FROM cpu WITH KEY IN (host, \"region\") WHERE host != '' LIMIT 3 OFFSET 1",
    "SHOW MEASUREMENTS WITH MEASUREMENT =~ /m/; SHOW TAG KEYS; SHOW FIELD KEYS FROM cpu; SHOW SERIES; SHOW RETENTION POLICIES ON d",
    "CREATE DATABASE \"e\" WITH DURATION 1h30m REPLICATION 1; SHOW DATABASES; DROP DATABASE e",
    "SELECT distinct(usage) FROM cpu WHERE 1 < usage AND true -- note\n GROUP BY time(1h) /* x */ fill(previous)",
    "SELECT a FROM (SELECT b FROM c); DELETE FROM cpu; SELECT sample(a, 1) INTO b FROM c",
    "SELECT usage AS \"u\", n, host, state INTO e.autogen.:MEASUREMENT FROM /./ GROUP BY *, rack LIMIT 9",
    "SELECT max(usage), mean(missing) AS x INTO \"a b\" FROM cpu GROUP BY time(5s), host fill(1)",
    "SELECT non_negative_derivative(usage, 10ms) FROM cpu, mem WHERE time > -9223372036854775808 AND time < 9223372036854775807",
];

/// Runs bodies of line protocol.
pub fn lines_batch(_: &Seeds, seed: u64, runner: &mut Runner) {
    let numbers = &mut Numbers::new(seed);
    for _ in 0..BATCH {
        let mut bytes: Vec<u8> = Vec::new();
        for _ in 0..=numbers.below(3) {
            bytes.extend_from_slice(pick(numbers, &LINES).as_bytes());
        }
        for _ in 0..numbers.below(4) {
            damage(numbers, &mut bytes);
        }
        runner.one(
            || String::from_utf8_lossy(&bytes).into_owned(),
            || lines(&bytes),
        );
    }
}

/// Runs one body.
pub fn lines(bytes: &[u8]) -> bool {
    let mut valid = 0;
    for precision in [Precision::Nanosecond, Precision::Hour] {
        let read = Batches::read(bytes, precision, NOW_MS, &mut |name| match name {
            "refused" => Err("no".to_owned()),
            _ => Ok(Arc::new(Schema::default())),
        });
        valid += check_documents(&read);
        let feeds = bytes.iter().filter(|byte| **byte == b'\n').count();
        let last = read.rejections.iter().map(|rejection| rejection.line).max();
        assert!(last.unwrap_or(0) <= feeds + 1, "a line that is not there");
    }
    valid > 0
}

/// Checks the documents of all batches. Returns their number.
fn check_documents(read: &Batches) -> usize {
    let mut valid = 0;
    for batch in &read.batches {
        let mut rest = batch.documents.as_slice();
        for _ in &batch.lines {
            let length = validate_prefix(rest, &Limits::default()).expect("a valid document");
            rest = &rest[length..];
            valid += 1;
        }
        assert!(rest.is_empty(), "a document without a line");
    }
    valid
}

/// Runs statements, on one database for each seed.
pub fn influxql_batch(_: &Seeds, seed: u64, runner: &mut Runner) {
    let numbers = &mut Numbers::new(seed);
    let store = &MemoryStore::new();
    for _ in 0..BATCH {
        let mut bytes = pick(numbers, &QUERIES).as_bytes().to_vec();
        if numbers.below(3) == 0 {
            // The end of another one.
            let other = pick(numbers, &QUERIES).as_bytes();
            let at = numbers.below(bytes.len() as u64) as usize;
            let from = numbers.below(other.len() as u64) as usize;
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
        for _ in 0..numbers.below(3) {
            damage(numbers, &mut bytes);
        }
        runner.one(
            || String::from_utf8_lossy(&bytes).into_owned(),
            || statements(store, &bytes),
        );
    }
}

/// Runs one text of statements.
pub fn influxql(bytes: &[u8]) -> bool {
    statements(&MemoryStore::new(), bytes)
}

fn statements(store: &MemoryStore, bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return false;
    };
    let Ok(parsed) = parse(text, &Bindings::new()) else {
        return false;
    };
    for options in [
        OutputOptions::default(),
        OutputOptions {
            epoch: Some(Precision::Second),
            chunk_rows: Some(2),
        },
    ] {
        let mut length = 0;
        let mut write = |part: &[u8]| {
            length += part.len();
            Ok(())
        };
        let mut output = Output::new(options, &mut write);
        execute(store, Some("d"), &parsed, &mut output).expect("the answer is written");
        output.finish().expect("the answer is written");
        assert!(length > 0, "an empty answer");
    }
    true
}

/// A database with some series.
struct MemoryStore {
    database: Database,
    session: RefCell<ClientSession>,
}

impl MemoryStore {
    fn new() -> Self {
        let store = Self {
            database: Database::in_memory().expect("a database"),
            session: RefCell::new(ClientSession::embedded()),
        };
        for name in ["cpu", "mem"] {
            let timeseries = doc! {"timeField": "time", "metaField": "tags"};
            let create = doc! {"create": name, "timeseries": timeseries, "$db": "d"};
            store.run(create).expect("a collection");
            let documents = (0..12_i64).map(|at| {
                let tags = match at % 3 {
                    0 => doc! {"host": "a", "region": "eu"},
                    1 => doc! {"host": "b"},
                    _ => doc! {"host": "c", "rack": at},
                };
                let state = if at % 2 == 0 { "up" } else { "down" };
                Value::from(doc! {
                    "time": Value::DateTime(at * 5_000), "tags": tags, "usage": at as f64 / 2.0, "n": at, "state": state,
                })
            });
            let documents = Value::Array(documents.collect());
            let insert = doc! {"insert": name, "documents": documents, "$db": "d"};
            store.run(insert).expect("documents");
        }
        store
    }
}

impl Store for MemoryStore {
    fn run(&self, command: Document) -> Result<Document, String> {
        let request = Request::new(command);
        let reply = self
            .database
            .run_command(&mut self.session.borrow_mut(), &request);
        if reply.get("ok").as_exact_i64() == Some(1) {
            return Ok(reply);
        }
        // The code of a bug.
        assert_ne!(reply.get("code").as_exact_i64(), Some(1), "{reply:?}");
        Err(reply.get("errmsg").as_str().unwrap_or_default().to_owned())
    }

    fn schema(
        &self,
        db: &str,
        measurement: &str,
        _: bool,
    ) -> Result<Option<Arc<MeasurementSchema>>, String> {
        let read = mapping::read(&mut |command| self.run(command), db, measurement)?;
        Ok(read.map(Arc::new))
    }

    fn mappings(&self, db: &str) -> Result<BTreeMap<String, Mapping>, String> {
        mapping::all(&mut |command| self.run(command), db)
    }

    fn forget(&self, _: &str, _: Option<&str>) {}

    /// Checks the points and writes none.
    fn write(
        &self,
        _: &str,
        read: &mut dyn FnMut(&mut SchemasOf<'_>) -> Batches,
    ) -> Result<Vec<LineError>, String> {
        let mut unknown = |names: &[&str]| names.iter().map(|_| Ok(Arc::default())).collect();
        let read = read(&mut unknown);
        check_documents(&read);
        Ok(read.rejections)
    }

    fn now_ms(&self) -> i64 {
        NOW_MS
    }
}
