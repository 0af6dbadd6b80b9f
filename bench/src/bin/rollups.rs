//! What rollups cost and bring, in process and over a directory: `cargo run --release -p nilometer-bench --bin rollups
//! [DAYS] [INGEST_ROUNDS] [PART]`; without arguments a month of TSBS measurements of 100 hosts every ten seconds, and five rounds.
//! `PART` is `ingest`, `queries` or `late`.
//!
//! ```text
//! ingest   two million measurements: without a rollup, with one by the hour, with a hierarchy of minute, hour and day
//! queries  double-groupby-all by day with the planner's use of the rollup and without it; one series of the rollup by the hour
//!          without and with an index; a rollup whose last hour is dirty
//! late     a refresh after late measurements in one, ten and all parts of a hundred of the bins
//! ```
//!
//! Ratios are of one run: the variants take turns. Every answer is compared with that of the source.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::time::{Duration, Instant};

use nilometer::services::Environment;
use nilometer::{ClientSession, Database, Request};
use nilometer_bench::TemporaryDirectory;
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
const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;

/// Series, and measurements of an insert.
const HOSTS: i64 = 100;
const BATCH: usize = 1000;

/// Measurements of one measured load.
const LOAD: i64 = 2_000_000;

/// Late measurements of the last part.
const LATE: i64 = 1_000_000;

/// Runs of a query; the median counts.
const RUNS: usize = 15;

/// Turns of two variants of a query.
const TURNS: usize = 3;

/// A database in a new directory, removed at the end.
struct Fresh {
    database: Database,
    session: ClientSession,
    _directory: TemporaryDirectory,
}

impl Fresh {
    fn new(name: &str) -> Self {
        let directory = TemporaryDirectory::new(&format!("rollups-{name}"));
        let database = Database::open_with(directory.path(), Environment::default());
        let mut fresh = Self {
            database: database.expect("a database"),
            session: ClientSession::embedded(),
            _directory: directory,
        };
        let options = doc! {"timeField": "time", "metaField": "tags"};
        fresh.run(doc! {"create": "cpu", "timeseries": options});
        fresh
    }

    fn reply(&mut self, db: &str, command: Document) -> Document {
        let mut body = DocumentBuilder::extending(command);
        body.append("$db", db);
        let request = Request::new(body.finish());
        let reply = self.database.run_command(&mut self.session, &request);
        assert!(
            reply.get("ok").as_exact_i64() == Some(1) && reply.get("writeErrors").is_missing(),
            "{reply:?}"
        );
        reply
    }

    fn run(&mut self, command: Document) -> Document {
        self.reply("test", command)
    }

    /// Creates a rollup of the mean of every metric by host, which refreshes every `refresh` seconds.
    fn roll_up(&mut self, name: &str, source: &str, unit: &str, refresh: i64) {
        let is_finer = source == "cpu";
        let host = if is_finer { "$tags.hostname" } else { "$host" };
        let trunc = doc! {"$dateTrunc": doc! {"date": "$time", "unit": unit}};
        let mut group = DocumentBuilder::new();
        group.append("_id", doc! {"host": host, "time": trunc});
        for metric in METRICS {
            group.append(metric, doc! {"$avg": format!("${metric}")});
        }
        let stage = doc! {"$group": group.finish()};
        let rollup = doc! {
            "source": source, "pipeline": array![stage], "lateness": 60, "refresh": refresh,
        };
        self.run(doc! {"create": name, "rollup": rollup});
    }

    fn set(&mut self, name: &str, value: impl Into<Value>) {
        let mut command = DocumentBuilder::new();
        command.append("setParameter", 1).append(name, value);
        self.reply("admin", command.finish());
    }

    /// Returns all documents of an aggregation.
    fn all(&mut self, collection: &str, stages: &Value) -> Vec<Document> {
        let mut reply = self.run(doc! {
            "aggregate": collection, "pipeline": stages.clone(), "cursor": doc! {"batchSize": 1_000_000},
        });
        let mut found = Vec::new();
        loop {
            let cursor = reply.get("cursor").as_document().expect("a cursor");
            for batch in ["firstBatch", "nextBatch"] {
                let rows = cursor.get(batch).as_array();
                let rows = rows.iter().flat_map(|rows| rows.iter());
                found.extend(rows.filter_map(|row| Some(row.as_document()?.to_document())));
            }
            match cursor.get("id").as_exact_i64() {
                Some(0) | None => return found,
                Some(id) => reply = self.run(doc! {"getMore": id, "collection": collection}),
            }
        }
    }

    /// Returns the median time of an aggregation, and its answer in order.
    fn time(&mut self, collection: &str, stages: &Value) -> (Duration, Vec<String>) {
        let mut times = Vec::new();
        let found = self.repeat(collection, stages, RUNS, &mut times);
        (median_time(times), found)
    }

    /// Adds the times of some runs of an aggregation; returns its answer in order.
    fn repeat(
        &mut self,
        collection: &str,
        stages: &Value,
        runs: usize,
        times: &mut Vec<Duration>,
    ) -> Vec<String> {
        let mut found = Vec::new();
        for _ in 0..runs {
            let begun = Instant::now();
            found = self.all(collection, stages);
            times.push(begun.elapsed());
        }
        let mut found: Vec<String> = found.iter().map(|row| format!("{row:?}")).collect();
        found.sort_unstable();
        found
    }

    /// Returns a count of `serverStatus().metrics.rollups`.
    fn counted(&mut self, name: &str) -> i64 {
        let status = self.reply("admin", doc! {"serverStatus": 1});
        let metrics = status.get("metrics").as_document().expect("metrics");
        let rollups = metrics.get("rollups").as_document().expect("rollups");
        rollups.get(name).as_exact_i64().expect("a count")
    }
}

/// Generates measurements as TSBS does: random walks of whole numbers.
struct Generator {
    seed: u64,
    levels: Vec<[f64; METRICS.len()]>,
    tags: Vec<Document>,
}

impl Generator {
    fn new() -> Self {
        let tags = |host: i64| {
            let mut out = DocumentBuilder::new();
            out.append("hostname", format!("host_{host}"));
            for (tag, name) in (1..).zip(TAGS.iter().skip(1)) {
                out.append(name, format!("{name}-{}", (host * 7 + tag) % 9));
            }
            out.finish()
        };
        Self {
            seed: 0x9E37_79B9_7F4A_7C15,
            levels: vec![[50.0; METRICS.len()]; HOSTS as usize],
            tags: (0..HOSTS).map(tags).collect(),
        }
    }

    fn random(&mut self) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed
    }

    fn measurement(&mut self, host: i64, time_ms: i64) -> Value {
        let at = host as usize;
        let mut out = DocumentBuilder::with_capacity(512);
        out.append("time", Value::DateTime(time_ms));
        out.append("tags", self.tags[at].clone());
        for (metric, name) in METRICS.iter().enumerate() {
            // The sum of four uniform numbers is nearly normal, with a deviation of one.
            let sum: f64 = (0..4)
                .map(|_| (self.random() >> 11) as f64 / (1u64 << 53) as f64)
                .sum();
            let level = &mut self.levels[at][metric];
            *level = (*level + (sum - 2.0) * 1.732).clamp(0.0, 100.0);
            out.append(name, *level as i64);
        }
        out.finish().into()
    }

    /// Inserts the measurements `from` to `to` in order of time. Returns the time spent in inserts.
    fn load(&mut self, fresh: &mut Fresh, from: i64, to: i64) -> Duration {
        let mut waiting = Duration::ZERO;
        let mut documents = Vec::with_capacity(BATCH);
        for at in from..to {
            documents.push(self.measurement(at % HOSTS, START_MS + at / HOSTS * STEP_MS));
            if documents.len() == BATCH || at + 1 == to {
                let documents = std::mem::take(&mut documents);
                let insert = doc! {"insert": "cpu", "documents": documents, "ordered": false};
                let begun = Instant::now();
                fresh.run(insert);
                waiting += begun.elapsed();
            }
        }
        waiting
    }
}

fn median_time(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_unstable_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// What an ingest is called, and its rollups: name, source and unit of the bins.
type Variant = (
    &'static str,
    &'static [(&'static str, &'static str, &'static str)],
);

/// What rollups cost ingest in order.
fn ingest(rounds: usize) {
    let variants: [Variant; 3] = [
        ("without a rollup", &[]),
        ("one rollup by the hour", &[("hourly", "cpu", "hour")]),
        (
            "a hierarchy of minute, hour and day",
            &[
                ("minutely", "cpu", "minute"),
                ("hourly", "minutely", "hour"),
                ("daily", "hourly", "day"),
            ],
        ),
    ];
    let mut rates = vec![Vec::new(); variants.len()];
    let mut used = vec![Vec::new(); variants.len()];
    for round in 0..rounds {
        for at in 0..variants.len() {
            // Each variant is the first as often as the others.
            let at = (at + round) % variants.len();
            let mut fresh = Fresh::new("ingest");
            for (name, source, unit) in variants[at].1 {
                fresh.roll_up(name, source, unit, 1);
            }
            let before = processor::time();
            let waiting = Generator::new().load(&mut fresh, 0, LOAD);
            used[at].push(processor::time() - before);
            rates[at].push(LOAD as f64 / waiting.as_secs_f64());
        }
    }
    println!("| ingest in order | measurements a second | of without | seconds of the processor |");
    println!("|---|---:|---:|---:|");
    let plain = median(rates[0].clone());
    for ((name, _), (rates, used)) in variants.iter().zip(rates.into_iter().zip(used)) {
        let (rate, used) = (median(rates), median(used));
        println!("| {name} | {rate:.0} | {:.2} | {used:.2} |", rate / plain);
    }
}

fn milliseconds(of: Duration) -> f64 {
    of.as_secs_f64() * 1e3
}

/// Returns double-groupby-all by day.
fn by_day() -> Value {
    let trunc = doc! {"$dateTrunc": doc! {"date": "$time", "unit": "day"}};
    let mut group = DocumentBuilder::new();
    group.append("_id", doc! {"day": trunc, "hostname": "$tags.hostname"});
    for metric in METRICS {
        group.append(
            &format!("mean_{metric}"),
            doc! {"$avg": format!("${metric}")},
        );
    }
    array![doc! {"$group": group.finish()}]
}

/// Loads the month, with rollups by hour and day that are refreshed.
fn month(days: i64) -> (Fresh, Generator, i64) {
    let mut fresh = Fresh::new("month");
    fresh.roll_up("hourly", "cpu", "hour", 0);
    fresh.roll_up("daily", "hourly", "day", 0);
    let mut generator = Generator::new();
    let rows = days * DAY_MS / STEP_MS * HOSTS;
    generator.load(&mut fresh, 0, rows);
    fresh.database.settle().expect("settled");
    for name in ["hourly", "daily"] {
        let begun = Instant::now();
        fresh.run(doc! {"refreshRollup": name});
        println!(
            "first refresh of {name} over {rows} measurements: {:.2?}",
            begun.elapsed()
        );
    }
    // The bins are flushed and merged before queries are timed.
    fresh.database.settle().expect("settled");
    (fresh, generator, rows)
}

/// The planner's own use of rollups, and dirty bins.
fn queries(fresh: &mut Fresh, generator: &mut Generator, rows: i64) {
    let stages = by_day();
    let rule = "internalNilometerDisabledRules";
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        let found = fresh.repeat("cpu", &stages, RUNS, &mut with);
        fresh.set(rule, array!["UseRollup"]);
        let expected = fresh.repeat("cpu", &stages, RUNS / TURNS, &mut without);
        fresh.set(rule, array![]);
        assert_eq!(found, expected, "the rollup answers as the source");
    }
    let (with, without) = (median_time(with), median_time(without));
    fresh.set(rule, array!["UseRollup"]);
    fresh.set("nilometerBucketCacheBytes", 0);
    let (uncached, _) = fresh.time("cpu", &stages);
    fresh.set("nilometerBucketCacheBytes", 256 << 20);
    fresh.set(rule, array![]);
    println!("| double-groupby-all by day, {rows} measurements | ms | times the rollup |");
    println!("|---|---:|---:|");
    for (name, took) in [
        ("by the rollup", with),
        ("from the measurements", without),
        ("from the measurements, nothing cached", uncached),
    ] {
        let times = took.as_secs_f64() / with.as_secs_f64();
        println!("| {name} | {:.2} | {times:.1} |", milliseconds(took));
    }

    one_series(fresh);

    let end = START_MS + rows / HOSTS * STEP_MS;
    let from = Value::DateTime(end - DAY_MS);
    let all = array![];
    let last_day = array![doc! {"$match": doc! {"time": doc! {"$gte": from}}}];
    let clean = [
        fresh.time("hourly", &all).0,
        fresh.time("hourly", &last_day).0,
    ];
    // The last hour that is closed.
    let late = (0..HOSTS).map(|host| generator.measurement(host, end - 2 * HOUR_MS + 1));
    let late: Vec<Value> = late.collect();
    fresh.run(doc! {"insert": "cpu", "documents": late});
    let dirty = [
        fresh.time("hourly", &all).0,
        fresh.time("hourly", &last_day).0,
    ];
    println!("| rollup by the hour | clean, ms | last hour dirty, ms | ratio |");
    println!("|---|---:|---:|---:|");
    for (name, (clean, dirty)) in ["all hours", "the last day"]
        .iter()
        .zip(clean.iter().zip(dirty))
    {
        println!(
            "| {name} | {:.2} | {:.2} | {:.2} |",
            milliseconds(*clean),
            milliseconds(dirty),
            dirty.as_secs_f64() / clean.as_secs_f64()
        );
    }
}

/// One series of the rollup by the hour, without and with an index.
fn one_series(fresh: &mut Fresh) {
    let of_host = array![doc! {"$match": doc! {"host": "host_42"}}];
    let (scanned, expected) = fresh.time("hourly", &of_host);
    let index = doc! {"key": doc! {"host": 1, "time": 1}, "name": "host_1_time_1"};
    let begun = Instant::now();
    fresh.run(doc! {"createIndexes": "hourly", "indexes": array![index]});
    let made = begun.elapsed();
    let (indexed, found) = fresh.time("hourly", &of_host);
    assert_eq!(found, expected, "the index leads to all bins");
    println!(
        "| one series of the rollup by the hour | ms |\n|---|---:|\n| without an index | {:.2} |\n| by an index, made in {made:.2?} | {:.2} |",
        milliseconds(scanned),
        milliseconds(indexed)
    );
    // Refreshes that follow are those of a rollup without indexes.
    fresh.run(doc! {"dropIndexes": "hourly", "index": "host_1_time_1"});
}

/// Refreshes after late measurements in some of the bins.
fn late(fresh: &mut Fresh, generator: &mut Generator, rows: i64) {
    let hours = rows / HOSTS * STEP_MS / HOUR_MS - 1;
    let last = array![doc! {"$sort": doc! {"_id": 1}}];
    println!("| late measurements | dirty bins | insert, s | refresh, s | ms for each dirty bin |");
    println!("|---|---:|---:|---:|---:|");
    for share in [1, 10, 100] {
        // Bins that are far from each other: every hundredth, every tenth, every one.
        let step = 100 / share;
        let bins = hours * HOSTS / step;
        let begun = Instant::now();
        let mut documents = Vec::with_capacity(BATCH);
        for at in 0..LATE {
            let bin = at % bins * step;
            let within = (generator.random() % HOUR_MS as u64) as i64;
            let time_ms = START_MS + bin / HOSTS * HOUR_MS + within;
            documents.push(generator.measurement((bin + bin / HOSTS) % HOSTS, time_ms));
            if documents.len() == BATCH || at + 1 == LATE {
                let documents = std::mem::take(&mut documents);
                fresh.run(doc! {"insert": "cpu", "documents": documents, "ordered": false});
            }
        }
        let inserted = begun.elapsed();
        let before = fresh.counted("binsStored");
        let begun = Instant::now();
        fresh.run(doc! {"refreshRollup": "hourly"});
        let took = begun.elapsed();
        let stored = fresh.counted("binsStored") - before;
        assert!(
            stored >= bins,
            "{stored} bins were stored, {bins} were dirty"
        );
        println!(
            "| {LATE} | {bins} ({stored} stored) | {:.1} | {:.2} | {:.3} |",
            inserted.as_secs_f64(),
            took.as_secs_f64(),
            milliseconds(took) / bins as f64
        );
    }
    let found = fresh.all("hourly", &last);
    assert_eq!(found.len() as i64, (hours + 1) * HOSTS);
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).and_then(|a| a.parse::<i64>().ok());
    let days = number(0).unwrap_or(30);
    let rounds = usize::try_from(number(1).unwrap_or(5)).unwrap_or(5);
    let part = arguments.get(2).map(String::as_str);
    let runs = |name: &str| part.is_none_or(|part| part == name);
    if runs("ingest") {
        ingest(rounds);
    }
    if runs("queries") || runs("late") {
        let (mut fresh, mut generator, rows) = month(days);
        if runs("queries") {
            queries(&mut fresh, &mut generator, rows);
        }
        if runs("late") {
            late(&mut fresh, &mut generator, rows);
        }
    }
}
