//! How fast everything is read: whole aggregates and whole answers, in process, on one core.
//! `cargo run --release -p nilometer-bench --bin scan [HOSTS] [MEASUREMENTS_PER_HOST]`; without arguments a million
//! measurements of 100 hosts, ten whole numbers and ten tags each, as TSBS has them.
//!
//! The collection is fresh, in a fresh directory under the system's temporary one, loaded and settled first. Rates are by
//! processor time, which other work on the machine disturbs less; with one thread that is the rate of one core.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::time::{Duration, Instant};

use nilometer::{ClientSession, Database, Request};
use nilometer_bson::{Document, DocumentBuilder, Value, array, doc};

#[path = "../data/names.rs"]
mod names;
#[path = "../processor.rs"]
mod processor;

use names::{METRICS, TAGS};

/// The allocator of the server: decision 0012.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const START_MS: i64 = 1_451_606_400_000;
const STEP_MS: i64 = 10_000;
/// Measurements inserted by one command.
const BATCH: usize = 10_000;
/// Times each question is asked, after as many that are not counted.
const ROUNDS: usize = 10;

struct Client {
    database: Database,
    session: ClientSession,
    directory: std::path::PathBuf,
}

impl Client {
    fn new() -> Self {
        let folder = format!("nilometer-scan-{}", std::process::id());
        let directory = std::env::temp_dir().join(folder);
        Self {
            database: Database::open(&directory).expect("a database"),
            session: ClientSession::embedded(),
            directory,
        }
    }

    fn run(&mut self, db: &str, command: Document) -> Document {
        let mut body = DocumentBuilder::new();
        for element in command.iter() {
            body.append_element(element);
        }
        body.append("$db", db);
        let request = Request::new(body.finish());
        let reply = self.database.run_command(&mut self.session, &request);
        assert!(
            reply.get("ok").as_exact_i64() == Some(1) && reply.get("writeErrors").is_missing(),
            "{reply:?}"
        );
        reply
    }

    fn set(&mut self, name: &str, value: i64) {
        let mut command = DocumentBuilder::new();
        command.append("setParameter", 1).append(name, value);
        self.run("admin", command.finish());
    }

    fn load(&mut self, hosts: usize, per_host: i64) {
        let options = doc! {"timeField": "time", "metaField": "tags"};
        self.run("test", doc! {"create": "cpu", "timeseries": options});
        let mut seed = 0x9E37_79B9_7F4A_7C15u64;
        let mut random = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        let mut levels = vec![[50.0f64; METRICS.len()]; hosts];
        let mut documents: Vec<Value> = Vec::new();
        for at in 0..per_host {
            for (host, levels) in levels.iter_mut().enumerate() {
                let mut out = DocumentBuilder::with_capacity(512);
                out.append("time", Value::DateTime(START_MS + at * STEP_MS));
                out.begin_document("tags");
                out.append("hostname", format!("host_{host}"));
                for (tag, name) in TAGS.iter().skip(1).enumerate() {
                    out.append(name, format!("{name}-{}", (host * 7 + tag) % 9));
                }
                out.end();
                for (name, level) in METRICS.iter().zip(levels) {
                    // Four uniform numbers are normal enough, with a deviation of one.
                    let sum: f64 = (0..4)
                        .map(|_| (random() >> 11) as f64 / (1u64 << 53) as f64)
                        .sum();
                    *level = (*level + (sum - 2.0) * 1.732).clamp(0.0, 100.0);
                    out.append(name, *level as i64);
                }
                documents.push(out.finish().into());
                if documents.len() == BATCH {
                    let all = std::mem::take(&mut documents);
                    self.run("test", doc! {"insert": "cpu", "documents": all});
                }
            }
        }
        if !documents.is_empty() {
            self.run("test", doc! {"insert": "cpu", "documents": documents});
        }
        self.database.settle().expect("settled");
    }

    /// All bytes of an answer, and how long its first batch took.
    fn answer(&mut self, command: &Document) -> (usize, Duration) {
        let from = Instant::now();
        let mut reply = self.run("test", command.clone());
        let first = from.elapsed();
        let mut bytes = reply.as_bytes().len();
        loop {
            let cursor = reply.get("cursor").as_document().expect("a cursor");
            match cursor.get("id").as_exact_i64() {
                Some(0) | None => return (bytes, first),
                Some(id) => {
                    reply = self.run("test", doc! {"getMore": id, "collection": "cpu"});
                    bytes += reply.as_bytes().len();
                }
            }
        }
    }

    /// Asks again and again. Gives bytes of one answer, seconds of the processor and of the clock for one, and the
    /// median time of the first batch.
    fn measure(&mut self, command: &Document) -> (usize, f64, f64, Duration) {
        for _ in 0..ROUNDS {
            self.answer(command);
        }
        let (from, used) = (Instant::now(), processor::time());
        let mut first = Vec::new();
        let mut bytes = 0;
        for _ in 0..ROUNDS {
            let (size, time) = self.answer(command);
            bytes = size;
            first.push(time);
        }
        let each = |all: f64| all / ROUNDS as f64;
        let (used, elapsed) = (processor::time() - used, from.elapsed().as_secs_f64());
        first.sort();
        let median = first.get(ROUNDS / 2).copied().unwrap_or_default();
        (bytes, each(used), each(elapsed), median)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // What stays behind is in the system's temporary directory.
        drop(std::fs::remove_dir_all(&self.directory));
    }
}

/// The averages of the first few metrics by hour and host, of everything.
fn averages(metrics: usize) -> Document {
    let mut group = DocumentBuilder::new();
    let hour = doc! {"$dateTrunc": doc! {"date": "$time", "unit": "hour"}};
    group.append("_id", doc! {"hour": hour, "host": "$tags.hostname"});
    for name in METRICS.iter().take(metrics) {
        group.append(name, doc! {"$avg": format!("${name}")});
    }
    let pipeline = array![doc! {"$group": group.finish()}];
    doc! {"aggregate": "cpu", "pipeline": pipeline, "cursor": doc! {"batchSize": 1_000_000}}
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|a| a.parse().ok());
    let hosts: i64 = arguments.next().unwrap_or(100);
    let per_host: i64 = arguments.next().unwrap_or(10_000);
    let rows = hosts * per_host;
    let mut client = Client::new();
    client.load(usize::try_from(hosts).unwrap_or(1), per_host);
    println!("{rows} measurements of {hosts} hosts");
    for (what, threads, cache) in [
        ("one thread, columns decoded before", 1, 1 << 30),
        ("one thread, decoded each time", 1, 0),
        ("all cores, columns decoded before", 0, 1 << 30),
    ] {
        client.set("nilometerQueryThreads", threads);
        client.set("nilometerBucketCacheBytes", cache);
        for metrics in [1, 10] {
            let (_, used, elapsed, _) = client.measure(&averages(metrics));
            let values = rows as f64 * metrics as f64 / 1e6;
            println!(
                "averages of {metrics:>2} by hour and host, {what:<36}{:>8.1} ms of the processor, {:>8.1} of the clock, {:>7.0} million values a second",
                used * 1e3,
                elapsed * 1e3,
                values / used
            );
        }
    }
    client.set("nilometerQueryThreads", 1);
    for (what, command) in [
        ("find", doc! {"find": "cpu"}),
        (
            "find, some fields",
            doc! {"find": "cpu", "projection": doc! {"_id": 0, "time": 1, "usage_user": 1}},
        ),
    ] {
        let (bytes, used, elapsed, first) = client.measure(&command);
        println!(
            "{what:<20}{:>8.1} MB, {:>8.1} ms of the processor, {:>8.1} of the clock, {:>7.0} MB a second, first batch after {first:.2?}",
            bytes as f64 / 1e6,
            used * 1e3,
            elapsed * 1e3,
            bytes as f64 / 1e6 / used
        );
    }
}
