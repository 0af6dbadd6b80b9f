//! Change streams in process, over a directory: `cargo run --release -p nilometer-bench --bin streams`.
//!
//! Measures the time from an acknowledgement to the event on an idle server, the rate of one stream that reads and of one beside
//! paced ingest, and what open streams cost ingest. Every stream must show every measurement once.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nilometer::services::{Environment, MemberRole, ReplicaSet};
use nilometer::{ClientSession, Database, Request};
use nilometer_bench::TemporaryDirectory;
use nilometer_bson::{Document, DocumentBuilder, Value, array, doc};

#[path = "../processor.rs"]
mod processor;

/// The allocator of the server: decision 0012.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const START_MS: i64 = 1_700_000_000_000;

/// Measurements of an insert.
const BATCH: u64 = 1000;

/// Series.
const HOSTS: u64 = 100;

/// Measurements of a load.
const LOAD: u64 = 2_000_000;

/// Measurements a second that a stream must follow, and for how long.
const PACE: u64 = 300_000;
const PACED: Duration = Duration::from_secs(8);

/// Single inserts whose events are timed.
const SINGLES: usize = 300;

/// Streams that are open beside ingest.
const STREAMS: usize = 1000;

struct Client {
    database: Arc<Database>,
    session: ClientSession,
}

impl Client {
    fn new(database: &Arc<Database>) -> Self {
        Self {
            database: Arc::clone(database),
            session: ClientSession::embedded(),
        }
    }

    fn run(&mut self, command: Document) -> Document {
        let mut body = DocumentBuilder::extending(command);
        body.append("$db", "test");
        let request = Request::new(body.finish());
        let reply = self.database.run_command(&mut self.session, &request);
        assert!(
            reply.get("ok").as_exact_i64() == Some(1) && reply.get("writeErrors").is_missing(),
            "{reply:?}"
        );
        reply
    }
}

/// A database in a new directory, removed at the end.
struct Fresh {
    database: Arc<Database>,
    _directory: TemporaryDirectory,
}

impl Fresh {
    /// `is_set`: with a replica set, and so with a change log.
    fn new(name: &str, is_set: bool) -> Self {
        let directory = TemporaryDirectory::new(&format!("streams-{name}"));
        let set = ReplicaSet::new("rs", "localhost:27017");
        set.update(|state| state.role = MemberRole::Primary);
        let environment = Environment {
            replica_set: is_set.then(|| Arc::new(set)),
            ..Environment::default()
        };
        let database = Database::open_with(directory.path(), environment).expect("a database");
        let database = Arc::new(database);
        let options = doc! {"timeField": "t", "metaField": "m"};
        Client::new(&database).run(doc! {"create": "ts", "timeseries": options});
        Self {
            database,
            _directory: directory,
        }
    }
}

/// Returns the insert that begins with the measurement `from`.
fn insert(from: u64, count: u64) -> Document {
    let measurement = |at: u64| {
        let time = Value::DateTime(START_MS + (at / HOSTS * 1000) as i64);
        let mut document = DocumentBuilder::with_capacity(256);
        document.append("t", time);
        document.append(
            "m",
            doc! {"host": (at % HOSTS) as i64, "region": "eu-central"},
        );
        for (field, name) in ["user", "system", "idle", "nice", "iowait"]
            .iter()
            .enumerate()
        {
            document.append(name, ((at * 7 + field as u64 * 13) % 100) as i64);
        }
        Value::from(document.finish())
    };
    let documents: Vec<Value> = (from..from + count).map(measurement).collect();
    doc! {"insert": "ts", "documents": documents, "ordered": false}
}

/// Loads `count` measurements at full speed. Returns measurements a second of waiting.
fn load(client: &mut Client, count: u64) -> f64 {
    let mut waiting = Duration::ZERO;
    for from in (0..count).step_by(BATCH as usize) {
        let command = insert(from, BATCH);
        let begun = Instant::now();
        client.run(command);
        waiting += begun.elapsed();
    }
    count as f64 / waiting.as_secs_f64()
}

/// An open stream.
struct Stream {
    client: Client,
    id: i64,
    collection: String,
}

impl Stream {
    fn open(database: &Arc<Database>, collection: &str, options: Document) -> Self {
        let mut client = Client::new(database);
        let stages = array![doc! {"$changeStream": options}];
        let open = doc! {"aggregate": collection, "pipeline": stages, "cursor": doc! {}};
        let reply = client.run(open);
        let cursor = reply.get("cursor").as_document().expect("a cursor");
        Self {
            id: cursor.get("id").as_exact_i64().expect("an id"),
            collection: collection.to_owned(),
            client,
        }
    }

    /// Returns the number of events of the next batch.
    fn next(&mut self) -> u64 {
        let more =
            doc! {"getMore": self.id, "collection": self.collection.as_str(), "maxTimeMS": 1000};
        let reply = self.client.run(more);
        let cursor = reply.get("cursor").as_document().expect("a cursor");
        let batch = cursor.get("nextBatch").as_array().expect("a batch");
        batch.len() as u64
    }
}

/// The time from the acknowledgement of an insert to its event, without other work.
fn latency() {
    let fresh = Fresh::new("latency", true);
    let mut client = Client::new(&fresh.database);
    let mut stream = Stream::open(&fresh.database, "ts", doc! {});
    let (sender, arrivals) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        for _ in 0..SINGLES {
            while stream.next() == 0 {}
            sender.send(Instant::now()).expect("a receiver");
        }
    });
    let mut delays = Vec::new();
    for at in 0..SINGLES {
        std::thread::sleep(Duration::from_millis(10));
        client.run(insert(at as u64 * HOSTS, 1));
        let acknowledged = Instant::now();
        let arrived = arrivals.recv().expect("an event");
        delays.push(arrived.saturating_duration_since(acknowledged));
    }
    reader.join().expect("no panic");
    delays.sort_unstable();
    println!(
        "first event after the acknowledgement, idle: median {:.2?}, 99 % {:.2?}, longest {:.2?}",
        delays[SINGLES / 2],
        delays[SINGLES * 99 / 100],
        delays[SINGLES - 1]
    );
}

/// The rate of a stream that reads what is there, and whether one keeps up with paced ingest.
fn rates() {
    let fresh = Fresh::new("rates", true);
    let mut client = Client::new(&fresh.database);
    let mut stream = Stream::open(&fresh.database, "ts", doc! {});
    load(&mut client, LOAD);
    let (begun, used) = (Instant::now(), processor::time());
    let mut shown = 0;
    while shown < LOAD {
        shown += stream.next();
    }
    println!(
        "one stream reading: {:.0} events/s, {:.2} s of processor time for a million",
        LOAD as f64 / begun.elapsed().as_secs_f64(),
        (processor::time() - used) * 1e6 / LOAD as f64
    );
    let count = AtomicU64::new(0);
    let total = PACE * PACED.as_secs();
    let (lag_max, behind) = std::thread::scope(|scope| {
        scope.spawn(|| {
            while count.load(Ordering::Relaxed) < total {
                count.fetch_add(stream.next(), Ordering::Relaxed);
            }
        });
        let (begun, mut lag_max) = (Instant::now(), 0);
        for from in (0..total).step_by(BATCH as usize) {
            let due = begun + PACED.mul_f64(from as f64 / total as f64);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            client.run(insert(LOAD + from, BATCH));
            lag_max = lag_max.max(from + BATCH - count.load(Ordering::Relaxed));
        }
        let ingested = Instant::now();
        println!(
            "paced ingest: {:.0} measurements/s",
            total as f64 / (ingested - begun).as_secs_f64()
        );
        while count.load(Ordering::Relaxed) < total {
            std::thread::sleep(Duration::from_micros(100));
        }
        (lag_max, ingested.elapsed())
    });
    println!("one stream beside it: at most {lag_max} events behind, done {behind:.2?} after it");
}

/// Ingest beside `STREAMS` open streams of a collection.
fn load_beside(collection: &str, streams: usize, reads: bool) -> f64 {
    let fresh = Fresh::new("beside", true);
    let mut client = Client::new(&fresh.database);
    let ends = AtomicBool::new(false);
    let shown = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let mut idle = Vec::new();
        for _ in 0..streams {
            let mut stream = Stream::open(&fresh.database, collection, doc! {});
            if !reads {
                idle.push(stream);
                continue;
            }
            let (ends, shown) = (&ends, &shown);
            scope.spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    shown.fetch_add(stream.next(), Ordering::Relaxed);
                }
            });
        }
        // The collection of the streams changes ten times a second.
        scope.spawn(|| {
            let mut client = Client::new(&fresh.database);
            for at in 0_i64.. {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                client.run(doc! {"insert": "alarms", "documents": array![doc! {"_id": at}]});
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let rate = load(&mut client, LOAD);
        ends.store(true, Ordering::Relaxed);
        rate
    })
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_unstable_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// The cost of the log, and of open streams.
fn costs() {
    const ROUNDS: usize = 5;
    let mut plain = Vec::new();
    let mut logged = Vec::new();
    let mut waiting = Vec::new();
    let mut idle = Vec::new();
    for _ in 0..ROUNDS {
        let without = Fresh::new("plain", false);
        plain.push(load(&mut Client::new(&without.database), LOAD));
        drop(without);
        logged.push(load_beside("alarms", 0, true));
        waiting.push(load_beside("alarms", STREAMS, true));
        idle.push(load_beside("ts", STREAMS, false));
    }
    let (plain, logged) = (median(plain), median(logged));
    println!("ingest without a set: {plain:.0} measurements/s");
    for (what, rate) in [
        ("with the log".to_owned(), logged),
        (
            format!("beside {STREAMS} streams that wait for another collection"),
            median(waiting),
        ),
        (
            format!("beside {STREAMS} open streams of this collection, between two batches"),
            median(idle),
        ),
    ] {
        println!(
            "{what}: {rate:.0} measurements/s, {:.2} of without a set, {:.2} of the log alone",
            rate / plain,
            rate / logged
        );
    }
    let followed = load_beside("ts", 4, true);
    println!(
        "beside 4 streams of this collection that read: {followed:.0} measurements/s, {:.2} of the log alone",
        followed / logged
    );
}

fn main() {
    let only = std::env::args().nth(1);
    let runs = |name: &str| only.as_deref().is_none_or(|only| only == name);
    if runs("latency") {
        latency();
    }
    if runs("rates") {
        rates();
    }
    if runs("costs") {
        costs();
    }
}
