//! The cost of the stages of the query language: pipelines over an ordinary collection, in process, on one core, each
//! answer checked. The database is in a temporary directory, so that stages can spill above their 100 MB.
//!
//! ```sh
//! cargo run --release -p nilometer-bench-language            # a million documents
//! cargo run --release -p nilometer-bench-language 100000     # or another number
//! ```
//!
//! A pipeline runs three times; the lowest processor time counts, because other work on the machine disturbs it least
//! (wall time where the system does not provide it). The documents are `{_id, t, k, v, w}`: a position on a line, one
//! of a thousand keys, two numbers.

use std::path::Path;
use std::time::{Duration, Instant};

use nilometer::{ClientSession, Database, Request};
use nilometer_bson::{Document, DocumentBuilder, Value, array, doc};

/// Default number of documents.
const DOCUMENTS: i32 = 1_000_000;

/// Number of group keys.
const KEYS: i32 = 1000;

/// Runs of each pipeline.
const RUNS: usize = 3;

/// Documents per insert.
const DOCUMENTS_PER_INSERT: usize = 10_000;

struct Bench {
    database: Database,
    session: ClientSession,
    count: i32,
}

impl Bench {
    fn new(directory: &Path, count: i32) -> Self {
        let database = match Database::open(directory) {
            Ok(database) => database,
            Err(error) => panic!("{}: {error}", directory.display()),
        };
        Self {
            database,
            session: ClientSession::embedded(),
            count,
        }
    }

    fn run(&mut self, command: &Document) -> Document {
        self.run_on("bench", command)
    }

    fn run_on(&mut self, db: &str, command: &Document) -> Document {
        let mut body = DocumentBuilder::new();
        body.append_all(command.as_ref()).append("$db", db);
        let request = Request::new(body.finish());
        let reply = self.database.run_command(&mut self.session, &request);
        assert_eq!(reply.get("ok").as_exact_i64(), Some(1), "{reply:?}");
        reply
    }

    /// Inserts `documents` into `collection`.
    fn fill(&mut self, collection: &str, documents: impl Iterator<Item = Document>) {
        let mut waiting: Vec<Value> = Vec::new();
        let mut documents = documents.peekable();
        while let Some(document) = documents.next() {
            waiting.push(document.into());
            if waiting.len() == DOCUMENTS_PER_INSERT || documents.peek().is_none() {
                let batch = std::mem::take(&mut waiting);
                self.run(&doc! {"insert": collection, "documents": batch});
            }
        }
    }

    /// Returns the best time of a pipeline that must return the one document `expected`.
    fn time(&mut self, collection: &str, stages: Value, expected: &Document) -> Duration {
        let command = doc! {"aggregate": collection, "pipeline": stages, "cursor": doc! {}};
        let mut best = Duration::MAX;
        for _ in 0..RUNS {
            let (from, used) = (Instant::now(), processor_time());
            let reply = self.run(&command);
            let took = match (used, processor_time()) {
                (Some(before), Some(after)) => after.saturating_sub(before),
                _ => from.elapsed(),
            };
            best = best.min(took);
            let cursor = reply.get("cursor").as_document();
            let found = cursor.and_then(|c| c.get("firstBatch").as_array());
            let found = found.and_then(|batch| batch.get(0).as_document());
            assert_eq!(found.map(|d| d.to_document()).as_ref(), Some(expected));
        }
        best
    }
}

/// Returns the processor time of this thread, where the system provides it.
fn processor_time() -> Option<Duration> {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanos = told.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(nanos))
}

#[expect(clippy::print_stdout, reason = "figures are for who looks")]
fn told(what: &str, time: Duration, per: i32) {
    let nanos = time.as_nanos() / u128::from(per.unsigned_abs().max(1));
    println!("| {what} | {} | {nanos} |", time.as_millis());
}

/// `$match`, arithmetic and `$group`.
fn rows(bench: &mut Bench) {
    let (count, keys) = (bench.count, i64::from(KEYS));
    let matched: Value = doc! {"$match": doc! {"v": doc! {"$gte": 0}}}.into();
    let sum = doc! {"$add": array![doc! {"$multiply": array!["$v", 2]}, "$w"]};
    let project: Value = doc! {"$project": doc! {"k": 1, "x": sum}}.into();
    let group: Value =
        doc! {"$group": doc! {"_id": "$k", "n": doc! {"$sum": 1}, "x": doc! {"$sum": "$x"}}}.into();
    let total = doc! {"_id": Value::Null, "keys": doc! {"$sum": 1}, "n": doc! {"$sum": "$n"}};
    let total: Value = doc! {"$group": total}.into();
    let in_all: Value = doc! {"$group": doc! {"_id": Value::Null, "n": doc! {"$sum": 1}}}.into();
    let everything = doc! {"_id": Value::Null, "n": count};
    let grouped = doc! {"_id": Value::Null, "keys": keys.min(i64::from(count)) as i32, "n": count};
    let scan = bench.time("c", array![in_all], &everything);
    told("read, `$group` into one", scan, count);
    let both = array![group.clone(), total.clone()];
    // Without `x` the second sum has no input.
    let time = bench.time("c", both, &grouped);
    told("read, `$group` by a key, two sums", time, count);
    let all = array![matched, project, group, total];
    let time = bench.time("c", all, &grouped);
    told("`$match`, `$project` of arithmetic, `$group`", time, count);
}

/// A moving average over windows of several sizes.
fn windows(bench: &mut Bench) {
    let count = bench.count;
    for size in [10, 1000, 100_000] {
        let window = doc! {"documents": array![1 - size, "current"]};
        let output = doc! {"m": doc! {"$avg": "$v", "window": window}};
        let stage = doc! {"$setWindowFields": doc! {"sortBy": doc! {"t": 1}, "output": output}};
        let counted = doc! {"_id": Value::Null, "n": doc! {"$sum": 1}, "low": doc! {"$min": "$m"}};
        let stages = array![stage, doc! {"$group": counted}];
        // The first average is the first value, the lowest of all.
        let expected = doc! {"_id": Value::Null, "n": count, "low": 0.0};
        let time = bench.time("c", stages, &expected);
        told(
            &format!("moving average over {size} documents"),
            time,
            count,
        );
    }
}

/// Gaps filled: every second position of a line exists.
fn gaps(bench: &mut Bench) {
    let half = bench.count / 2;
    let line = (0..half).map(|at| doc! {"_id": at, "t": at * 2, "v": f64::from(at) * 2.0});
    bench.fill("line", line);
    bench.run_on(
        "admin",
        &doc! {"setParameter": 1, "internalQueryMaxAllowedDensifyDocs": 10_000_000i64},
    );
    let range = doc! {"step": 1, "bounds": "full"};
    let densify: Value = doc! {"$densify": doc! {"field": "t", "range": range}}.into();
    let output = doc! {"v": doc! {"method": "linear"}};
    let fill: Value = doc! {"$fill": doc! {"sortBy": doc! {"t": 1}, "output": output}}.into();
    let group = doc! {"_id": Value::Null, "n": doc! {"$sum": 1}, "high": doc! {"$max": "$v"}};
    let made = half * 2 - 1;
    let expected = doc! {"_id": Value::Null, "n": made, "high": f64::from(half - 1) * 2.0};
    let stages = array![densify, fill, doc! {"$group": group}];
    let time = bench.time("line", stages, &expected);
    told("`$densify` and `$fill` along a line", time, made);
}

#[expect(clippy::print_stdout, reason = "figures are for who looks")]
fn main() {
    let given = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let name = format!("nilometer-bench-language-{}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    let mut bench = Bench::new(&directory, given.unwrap_or(DOCUMENTS).max(2));
    let count = bench.count;
    let documents = (0..count).map(|at| {
        doc! {"_id": at, "t": at, "k": at % KEYS, "v": f64::from(at), "w": at % 7}
    });
    bench.fill("c", documents);
    println!("| {count} documents | ms | ns each |\n|---|---:|---:|");
    rows(&mut bench);
    windows(&mut bench);
    gaps(&mut bench);
    drop(bench);
    if let Err(error) = std::fs::remove_dir_all(&directory) {
        println!("{}: {error}", directory.display());
    }
}
