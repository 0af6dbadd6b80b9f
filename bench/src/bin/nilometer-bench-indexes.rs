//! The benefit of indexes over buckets: many series in one process, each query with the index and by scanning.
//!
//! ```text
//! cargo run --release -p nilometer-bench --bin nilometer-bench-indexes -- DIR [SERIES] [MEASUREMENTS]
//! ```
//!
//! Creates SERIES series (10,000) of MEASUREMENTS (1,000) each, one every ten seconds, with a metadata object, a float
//! and an integer; runs the queries; then builds an index on a measurement during inserts. The answers of both ways are
//! compared: a wrong answer is not reported as a result.
//!
//! Opened buckets stay cached; so the newest measurement of every series is queried again at the end, with empty and
//! with full caches.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line program talks to its terminal"
)]

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nilometer::{ClientSession, Database, Request};
use nilometer_bson::{Array, Document, DocumentBuilder, Value, array, doc};

#[path = "../processor.rs"]
mod processor;

/// The allocator of the server: decision 0012.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The first time, in ms.
const FROM_MS: i64 = 1_700_000_000_000;
const INTERVAL_MS: i64 = 10_000;
const BATCH: usize = 10_000;
/// Random series to query.
const DRAWS: u64 = 200;

type Outcome<T = ()> = Result<T, String>;

fn call(database: &Database, command: &Document) -> Outcome<Document> {
    let mut body = DocumentBuilder::new();
    for element in command.iter() {
        body.append_element(element);
    }
    body.append("$db", "bench");
    let mut session = ClientSession::embedded();
    let reply = database.run_command(&mut session, &Request::new(body.finish()));
    if reply.get("ok").as_exact_i64() == Some(1) {
        return Ok(reply);
    }
    Err(nilometer_bson::extjson::to_relaxed(reply.as_ref()))
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB) >> 8
}

fn meta(series: u64) -> Document {
    doc! { "host": format!("host_{series}"), "region": format!("region_{}", series % 10) }
}

fn measurement(series: u64, tick: u64) -> Document {
    let mut state = series << 32 | tick;
    let v = (random(&mut state) % 1_000_000) as f64 / 1000.0;
    doc! {
        "t": Value::DateTime(FROM_MS + tick as i64 * INTERVAL_MS),
        "m": meta(series),
        "v": v,
        "n": (tick / 7) as i64,
    }
}

fn insert(database: &Database, batch: Vec<Value>) -> Outcome {
    let insert = doc! { "insert": "ts", "documents": batch, "writeConcern": doc! { "j": false } };
    call(database, &insert).map(drop)
}

fn load(database: &Database, series: u64, ticks: u64) -> Outcome {
    let timeseries = doc! { "timeField": "t", "metaField": "m" };
    call(database, &doc! { "create": "ts", "timeseries": timeseries })?;
    let from = Instant::now();
    let mut waiting = Duration::ZERO;
    let mut batch = Vec::with_capacity(BATCH);
    // Blocks of an hour for some series at a time, as collectors send them.
    for first in (0..series).step_by(100) {
        for tick in 0..ticks {
            for one in first..(first + 100).min(series) {
                batch.push(Value::from(measurement(one, tick)));
            }
            if batch.len() >= BATCH {
                let began = Instant::now();
                insert(database, std::mem::take(&mut batch))?;
                waiting += began.elapsed();
            }
        }
    }
    if !batch.is_empty() {
        insert(database, batch)?;
    }
    let rate = (series * ticks) as f64 / waiting.as_secs_f64();
    println!(
        "loaded {} in {:.0?}, {rate:.0} a second",
        series * ticks,
        from.elapsed()
    );
    Ok(())
}

fn median(mut all: Vec<Duration>) -> Duration {
    all.sort();
    all.get(all.len() / 2).copied().unwrap_or_default()
}

/// Returns the documents of a reply, sorted.
fn answer(reply: &Document) -> Vec<String> {
    let shown =
        |value: nilometer_bson::ValueRef<'_>| nilometer_bson::extjson::value_to_relaxed(value);
    let values = match reply.get("values").as_array() {
        Some(values) => Some(values),
        None => {
            let cursor = reply.get("cursor").as_document();
            cursor.and_then(|cursor| cursor.get("firstBatch").as_array())
        }
    };
    let mut all: Vec<String> = values.map_or_else(Vec::new, |v| v.iter().map(shown).collect());
    all.sort();
    all
}

fn with_hint(command: &Document) -> Document {
    let mut out = DocumentBuilder::new();
    for element in command.iter() {
        out.append_element(element);
    }
    out.append("hint", doc! { "$natural": 1 });
    out.finish()
}

/// Runs `draws` queries with an index and `scans` of them without.
fn ask(
    database: &Database,
    name: &str,
    draws: u64,
    scans: u64,
    question: &dyn Fn(u64) -> Document,
) -> Outcome {
    let (mut by_index, mut by_scan) = (Vec::new(), Vec::new());
    for draw in 0..draws {
        let command = question(draw);
        let began = Instant::now();
        let found = call(database, &command)?;
        by_index.push(began.elapsed());
        if draw < scans {
            let command = with_hint(&command);
            let began = Instant::now();
            let scanned = call(database, &command)?;
            by_scan.push(began.elapsed());
            if answer(&found) != answer(&scanned) {
                return Err(format!("{name}: other answers with the index"));
            }
        }
    }
    let first = by_index.first().copied().unwrap_or_default();
    let (index, scan) = (median(by_index), median(by_scan));
    let ratio = scan.as_secs_f64() / index.as_secs_f64();
    println!("{name}: {index:.1?} (first {first:.1?}), scanning {scan:.1?}, {ratio:.0} times");
    Ok(())
}

fn questions(database: &Database, series: u64, ticks: u64) -> Outcome {
    let draw = |seed: u64, below: u64| random(&mut (seed * 7919 + 1)) % below.max(1);
    let hours = (ticks as i64 * INTERVAL_MS / 3_600_000).max(1) as u64;
    ask(database, "one series, one hour", DRAWS, 3, &|seed| {
        let from = FROM_MS + draw(seed + 1000, hours) as i64 * 3_600_000;
        let within =
            doc! { "$gte": Value::DateTime(from), "$lt": Value::DateTime(from + 3_600_000) };
        let filter = doc! { "m": meta(draw(seed, series)), "t": within };
        doc! { "find": "ts", "filter": filter, "batchSize": 100_000 }
    })?;
    ask(database, "newest of one series", DRAWS, 3, &|seed| {
        let filter = doc! { "m": meta(draw(seed, series)) };
        doc! { "find": "ts", "filter": filter, "sort": doc! { "t": -1 }, "limit": 1 }
    })?;
    ask(database, "newest of every series", 3, 2, &|_| newest())?;
    ask(
        database,
        "distinct m",
        5,
        2,
        &|_| doc! { "distinct": "ts", "key": "m" },
    )?;
    ask(
        database,
        "distinct m.host",
        5,
        2,
        &|_| doc! { "distinct": "ts", "key": "m.host" },
    )?;
    ask(database, "group by m.region", 5, 2, &|_| by_region(&[]))?;
    // Queries for whole measurements assemble them.
    let whole = doc! { "$replaceRoot": doc! { "newRoot": "$$ROOT" } };
    let whole = by_region(&[whole]);
    unpacked(database, "group by m.region", &by_region(&[]), &whole)
}

/// Returns the pipeline for the newest measurement of every series.
fn newest() -> Document {
    let newest = doc! { "$top": doc! { "sortBy": doc! { "t": -1 }, "output": array!["$t", "$v"] } };
    let group = doc! { "$group": doc! { "_id": "$m", "newest": newest } };
    doc! { "aggregate": "ts", "pipeline": array![group], "cursor": doc! { "batchSize": 100_000 } }
}

/// Prints wall and processor time of a query with cached and with uncached buckets.
fn opening(database: &Database, name: &str, question: &Document) -> Outcome {
    /// Runs of each query.
    const ROUNDS: usize = 7;
    let keep = |bytes: i64| {
        let body = doc! { "setParameter": 1, "nilometerBucketCacheBytes": bytes, "$db": "admin" };
        let mut session = ClientSession::embedded();
        database.run_command(&mut session, &Request::new(body));
    };
    let (mut first, mut again) = (Vec::new(), Vec::new());
    let timed = || -> Outcome<(Duration, Duration)> {
        let (began, worked) = (Instant::now(), processor::time());
        call(database, question)?;
        let worked = Duration::try_from_secs_f64(processor::time() - worked).unwrap_or_default();
        Ok((began.elapsed(), worked))
    };
    for _ in 0..ROUNDS {
        keep(0);
        keep(256 << 20);
        first.push(timed()?);
        again.push(timed()?);
    }
    for (which, taken) in [("nothing kept", first), ("kept", again)] {
        let (clock, worked): (Vec<_>, Vec<_>) = taken.into_iter().unzip();
        let least = worked.iter().min().copied().unwrap_or_default();
        let (clock, worked) = (median(clock), median(worked));
        println!("{name}, {which}: {clock:.1?}, of a processor {worked:.1?} (least {least:.1?})");
    }
    Ok(())
}

/// Returns the pipeline for the least host of each region, after the stages `before`.
fn by_region(before: &[Document]) -> Document {
    let group = doc! { "$group": doc! { "_id": "$m.region", "a": doc! { "$min": "$m.host" } } };
    let stages = before.iter().cloned().chain([group]);
    let pipeline: Array = stages.map(Value::from).collect();
    doc! { "aggregate": "ts", "pipeline": Value::Array(pipeline), "cursor": doc! { "batchSize": 100_000 } }
}

/// Runs the same query with the index and on unpacked measurements.
fn unpacked(database: &Database, name: &str, question: &Document, whole: &Document) -> Outcome {
    let timed = |command: &Document| -> Outcome<(Duration, Vec<String>)> {
        let began = Instant::now();
        let found = call(database, command)?;
        Ok((began.elapsed(), answer(&found)))
    };
    let ((index, found), (unpacking, expected)) = (timed(question)?, timed(whole)?);
    if found != expected {
        return Err(format!("{name}: other answers with the index"));
    }
    let ratio = unpacking.as_secs_f64() / index.as_secs_f64();
    println!("{name}: {index:.1?}, unpacking the measurements {unpacking:.1?}, {ratio:.0} times");
    Ok(())
}

/// Builds `{v: 1}` while another thread inserts.
fn build(database: &Database, series: u64, ticks: u64) -> Outcome {
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let write = || {
        let mut tick = ticks;
        while !stop.load(Ordering::Relaxed) {
            let batch: Vec<Value> = (0..1000)
                .map(|n| Value::from(measurement(series + n, tick)))
                .collect();
            if insert(database, batch).is_err() {
                return;
            }
            written.fetch_add(1000, Ordering::Relaxed);
            tick += 1;
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(write);
        std::thread::sleep(Duration::from_secs(1));
        let before = written.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_secs(3));
        let alone = (written.load(Ordering::Relaxed) - before) as f64 / 3.0;
        let from = written.load(Ordering::Relaxed);
        let began = Instant::now();
        let index = doc! { "key": doc! { "v": 1 }, "name": "v_1" };
        let made = call(
            database,
            &doc! { "createIndexes": "ts", "indexes": array![index] },
        );
        let took = began.elapsed().as_secs_f64();
        let beside = (written.load(Ordering::Relaxed) - from) as f64 / took;
        stop.store(true, Ordering::Relaxed);
        made?;
        let rate = (series * ticks) as f64 / took;
        println!(
            "{{v: 1}} over {}: {took:.2} s, {rate:.0} a second; inserts {alone:.0} a second alone, \
             {beside:.0} beside it",
            series * ticks
        );
        Ok(())
    })
}

fn run() -> Outcome {
    let mut words = std::env::args().skip(1);
    let directory = words.next().ok_or("which directory?")?;
    let mut number = |default: u64| match words.next() {
        Some(word) => word.parse().map_err(|_| format!("{word} is no number")),
        None => Ok(default),
    };
    let (series, ticks) = (number(10_000)?, number(1000)?);
    let database = Database::open(&directory).map_err(|error| error.to_string())?;
    load(&database, series, ticks)?;
    questions(&database, series, ticks)?;
    database.settle().map_err(|error| error.to_string())?;
    println!("sealed and compacted:");
    questions(&database, series, ticks)?;
    opening(&database, "newest of every series", &newest())?;
    opening(&database, "by a scan", &with_hint(&newest()))?;
    build(&database, series, ticks)
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("nilometer-bench-indexes: {message}");
            ExitCode::FAILURE
        }
    }
}
