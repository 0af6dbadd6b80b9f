//! How fast measurements are changed through a time-series collection, in process and durable:
//! `cargo run --release -p nilometer-bench --bin changes [SERIES] [MEASUREMENTS_PER_SERIES]`.
//!
//! Each figure is of a fresh collection in a fresh directory under the system's temporary one, loaded and
//! settled first; every count a command answers with is checked.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::time::{Duration, Instant};

use nilometer::{ClientSession, Database, Request};
use nilometer_bson::{Document, DocumentBuilder, Value, array, doc};

/// The allocator of the server: decision 0012.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const START_MS: i64 = 1_700_000_000_000;

/// Between two measurements of a series, in ms.
const STEP_MS: i64 = 1000;

/// Measurements inserted by one command.
const BATCH: i64 = 10_000;

/// Updates of one measurement that are timed.
const SINGLES: i64 = 200;

struct Client {
    database: Database,
    session: ClientSession,
    directory: std::path::PathBuf,
}

impl Client {
    fn new(name: &str) -> Self {
        let folder = format!("nilometer-changes-{}-{name}", std::process::id());
        let directory = std::env::temp_dir().join(folder);
        Self {
            database: Database::open(&directory).expect("a database"),
            session: ClientSession::embedded(),
            directory,
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

    /// A collection with so many measurements in each of the series.
    fn load(&mut self, series: i64, per_series: i64) {
        let options = doc! {"timeField": "t", "metaField": "m"};
        self.run(doc! {"create": "ts", "timeseries": options});
        let mut documents: Vec<Value> = Vec::new();
        for host in 0..series {
            for at in 0..per_series {
                let time = Value::DateTime(START_MS + at * STEP_MS);
                let id = host * per_series + at;
                let document = doc! {
                    "_id": id, "t": time, "m": doc! {"host": host},
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

    /// How long a command takes, and what `n` it answers.
    fn time(&mut self, command: Document) -> (Duration, i64) {
        let from = Instant::now();
        let reply = self.run(command);
        let took = from.elapsed();
        (took, reply.get("n").as_exact_i64().unwrap_or(-1))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // What stays behind is in the system's temporary directory.
        drop(std::fs::remove_dir_all(&self.directory));
    }
}

fn per_second(count: i64, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64() / 1e6
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|a| a.parse().ok());
    let series: i64 = arguments.next().unwrap_or(1000);
    let per_series: i64 = arguments.next().unwrap_or(1000);
    let total = series * per_series;

    let mut client = Client::new("meta");
    client.load(series, per_series);
    let q = doc! {"m.host": doc! {"$gte": 0}};
    let deletes = array![doc! {"q": q, "limit": 0}];
    let (took, n) = client.time(doc! {"delete": "ts", "deletes": deletes});
    assert_eq!(n, total);
    println!(
        "deleteMany by meta          {total:>9} of {series} series  {took:>10.1?}  {:>6.2} M/s",
        per_second(n, took)
    );
    drop(client);

    let mut client = Client::new("range");
    client.load(series, per_series);
    let until = Value::DateTime(START_MS + per_series / 2 * STEP_MS);
    let q = doc! {"t": doc! {"$lt": until}, "usage": doc! {"$gte": 10}};
    let deletes = array![doc! {"q": q, "limit": 0}];
    let (took, n) = client.time(doc! {"delete": "ts", "deletes": deletes});
    println!(
        "deleteMany by time, value   {n:>9} of {total}  {took:>10.1?}  {:>6.2} M/s removed, {:.2} M/s looked at",
        per_second(n, took),
        per_second(total, took)
    );
    drop(client);

    let mut client = Client::new("series");
    client.load(1, 100_000);
    let update = |u: Document| {
        let q = doc! {"m.host": 0, "count": doc! {"$gte": 0}};
        doc! {"update": "ts", "updates": array![doc! {"q": q, "u": u, "multi": true}]}
    };
    let (took, n) = client.time(update(doc! {"$set": doc! {"usage": 1.5}}));
    assert_eq!(n, 100_000);
    println!("updateMany of one field     {n:>9} of one series  {took:>10.1?}");
    let (took, n) = client.time(update(doc! {"$inc": doc! {"m.host": 1}}));
    assert_eq!(n, 100_000);
    println!("updateMany to another meta  {n:>9} of one series  {took:>10.1?}");
    let mut times = Vec::new();
    for at in 0..SINGLES {
        let time = Value::DateTime(START_MS + at * 487 * STEP_MS);
        let q = doc! {"m.host": 1, "t": time};
        let u = doc! {"$set": doc! {"usage": at as f64}};
        let updates = array![doc! {"q": q, "u": u}];
        let (took, n) = client.time(doc! {"update": "ts", "updates": updates});
        assert_eq!(n, 1);
        times.push(took);
    }
    times.sort();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    println!("updateOne by meta and time  median of {SINGLES}  {median:>10.1?}");
}
