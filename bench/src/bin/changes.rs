//! Speed of changes of measurements through a time-series collection, in process and durable: `cargo run --release -p
//! nilometer-bench --bin changes [SERIES] [MEASUREMENTS_PER_SERIES]`; without arguments ten million measurements in
//! 10,000 series.
//!
//! Collections are new, in a new temporary directory, loaded and settled first; one additional series has 100,000
//! measurements. The count of every answer is checked. The second time on a line is processor time of all threads.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::time::{Duration, Instant};

use nilometer::{ClientSession, Database, Request};
use nilometer_bench::TemporaryDirectory;
use nilometer_bson::{Document, DocumentBuilder, Value, array, doc};

#[path = "../processor.rs"]
mod processor;

/// The allocator of the server: decision 0012.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const START_MS: i64 = 1_700_000_000_000;

/// Interval of measurements of a series, in ms.
const STEP_MS: i64 = 1000;

/// Measurements per insert.
const BATCH: i64 = 10_000;

/// Timed updates of one measurement.
const SINGLES: i64 = 200;

/// Measurements of the long series.
const LONG: i64 = 100_000;

/// The series with many measurements.
const LONG_SERIES: i64 = 1_000_000;

/// The times of a command.
#[derive(Clone, Copy)]
struct Timing {
    elapsed: Duration,
    processor: f64,
}

impl std::fmt::Display for Timing {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{:>10.1?} {:>6.2}s", self.elapsed, self.processor)
    }
}

struct Client {
    database: Database,
    session: ClientSession,
    _directory: TemporaryDirectory,
}

impl Client {
    fn new(name: &str) -> Self {
        let directory = TemporaryDirectory::new(&format!("changes-{name}"));
        Self {
            database: Database::open(directory.path()).expect("a database"),
            session: ClientSession::embedded(),
            _directory: directory,
        }
    }

    fn run(&mut self, command: Document) -> Document {
        let mut body = DocumentBuilder::new();
        for element in command.iter() {
            body.append_element(element);
        }
        body.append("$db", "test");
        let reply = self
            .database
            .run_command(&mut self.session, &Request::new(body.finish()));
        assert!(
            reply.get("ok").as_exact_i64() == Some(1) && reply.get("writeErrors").is_missing(),
            "{reply:?}"
        );
        reply
    }

    /// Loads a collection with `per_series` measurements in each of `series` series, and the long series.
    fn load(&mut self, series: i64, per_series: i64) {
        let options = doc! {"timeField": "t", "metaField": "m"};
        self.run(doc! {"create": "ts", "timeseries": options});
        let mut documents: Vec<Value> = Vec::new();
        let all = (0..series).map(|host| (host, per_series));
        for (host, count) in all.chain([(LONG_SERIES, LONG)]) {
            for at in 0..count {
                let time = Value::DateTime(START_MS + at * STEP_MS);
                let document = doc! {
                    "_id": host * LONG + at, "t": time, "m": doc! {"host": host},
                    "usage": (at % 100) as f64 / 2.0, "count": at, "state": "ok",
                };
                documents.push(document.into());
                if documents.len() as i64 == BATCH {
                    let all = std::mem::take(&mut documents);
                    self.run(doc! {"insert": "ts", "documents": all});
                }
            }
        }
        if !documents.is_empty() {
            self.run(doc! {"insert": "ts", "documents": documents});
        }
        self.database.settle().expect("settled");
    }

    /// Returns the times of a command and the `n` of its answer.
    fn time(&mut self, command: Document) -> (Timing, i64) {
        let (from, used) = (Instant::now(), processor::time());
        let reply = self.run(command);
        let took = Timing {
            elapsed: from.elapsed(),
            processor: processor::time() - used,
        };
        (took, reply.get("n").as_exact_i64().unwrap_or(-1))
    }
}

fn per_second(count: i64, took: Timing) -> f64 {
    count as f64 / took.elapsed.as_secs_f64() / 1e6
}

/// The median and the slowest of a hundred.
fn spread(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort();
    let at = |index: usize| times.get(index).copied().unwrap_or_default();
    (at(times.len() / 2), at(times.len() * 99 / 100))
}

/// Updates one measurement at a time; `filter` selects the series.
fn update_one(
    client: &mut Client,
    what: &str,
    (series, per_series): (i64, i64),
    filter: impl Fn(i64) -> Document,
) {
    let used = processor::time();
    let mut times = Vec::new();
    for at in 0..SINGLES {
        let time = Value::DateTime(START_MS + at * 487 % per_series * STEP_MS);
        let mut q = DocumentBuilder::new();
        for element in filter(at * 7919 % series).iter() {
            q.append_element(element);
        }
        q.append("t", time);
        let q = q.finish();
        let u = doc! {"$set": doc! {"usage": at as f64 + 0.25}};
        let updates = array![doc! {"q": q, "u": u}];
        let (took, n) = client.time(doc! {"update": "ts", "updates": updates});
        assert_eq!(n, 1);
        times.push(took.elapsed);
    }
    let (median, slow) = spread(times);
    let each = (processor::time() - used) * 1000.0 / SINGLES as f64;
    println!(
        "updateOne by {what:<14}{SINGLES:>9} of any series {median:>10.1?} median, {slow:.1?} of a hundred the slowest, {each:.2} ms of the processor"
    );
}

fn update_series(client: &mut Client) {
    let update = |u: Document| {
        let q = doc! {"m.host": LONG_SERIES, "count": doc! {"$gte": 0}};
        doc! {"update": "ts", "updates": array![doc! {"q": q, "u": u, "multi": true}]}
    };
    for (what, change) in [
        ("one field           ", doc! {"$set": doc! {"usage": 1.5}}),
        (
            "one field, relative to its value",
            doc! {"$inc": doc! {"usage": 1}},
        ),
        ("another meta        ", doc! {"$inc": doc! {"m.host": 1}}),
    ] {
        let (took, n) = client.time(update(change));
        assert_eq!(n, LONG);
        println!("updateMany {what:<17}{n:>9} of one series {took}");
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|a| a.parse().ok());
    let series: i64 = arguments.next().unwrap_or(10_000);
    let per_series: i64 = arguments.next().unwrap_or(1000);
    let total = series * per_series + LONG;

    let mut client = Client::new("updates");
    client.load(series, per_series);
    let all = (series, per_series);
    let whole = |host| doc! {"m": doc! {"host": host}};
    let part = |host| doc! {"m.host": host};
    update_one(&mut client, "meta, time", all, whole);
    update_one(&mut client, "no index", all, part);
    let index = doc! {"key": doc! {"m.host": 1, "t": 1}, "name": "host"};
    client.run(doc! {"createIndexes": "ts", "indexes": array![index]});
    update_one(&mut client, "m.host, time", all, part);
    update_series(&mut client);
    let until = Value::DateTime(START_MS + per_series / 2 * STEP_MS);
    let q = doc! {"t": doc! {"$lt": until}, "usage": doc! {"$gte": 10}};
    let deletes = array![doc! {"q": q, "limit": 0}];
    let (took, n) = client.time(doc! {"delete": "ts", "deletes": deletes});
    println!(
        "deleteMany by time, value   {n:>9} of {total}  {took}  {:>6.2} M/s removed",
        per_second(n, took)
    );
    drop(client);

    let mut client = Client::new("deletes");
    client.load(series, per_series);
    let q = doc! {"m.host": doc! {"$gte": 0}};
    let deletes = array![doc! {"q": q, "limit": 0}];
    let (took, n) = client.time(doc! {"delete": "ts", "deletes": deletes});
    assert_eq!(n, total);
    println!(
        "deleteMany by meta          {total:>9} of {series} series  {took}  {:>6.2} M/s",
        per_second(n, took)
    );
}
