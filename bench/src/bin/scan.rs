//! Speed of full reads: whole aggregates and whole answers, in process, on one core. `cargo run --release -p
//! nilometer-bench --bin scan [HOSTS] [MEASUREMENTS_PER_HOST]`; without arguments a million measurements of 100 hosts,
//! ten integers and ten tags each, as in TSBS.
//!
//! The collection is new, in a new temporary directory, loaded and settled first. Rates use processor time, which other
//! work on the machine disturbs less; with one thread that is the rate of one core.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use nilometer_bson::{Document, DocumentBuilder, array, doc};

#[path = "../data/names.rs"]
mod names;
#[path = "../processor.rs"]
mod processor;
#[path = "../settled.rs"]
mod settled;

use names::METRICS;
use settled::Client;

/// The allocator of the server: decision 0012.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measured runs of each query, after as many warm-up runs.
const ROUNDS: usize = 10;

/// Returns the pipeline for averages of the first metrics by hour and host, over everything.
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
            let (_, used, elapsed, _) = client.measure(&averages(metrics), ROUNDS);
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
        let (bytes, used, elapsed, first) = client.measure(&command, ROUNDS);
        println!(
            "{what:<20}{:>8.1} MB, {:>8.1} ms of the processor, {:>8.1} of the clock, {:>7.0} MB a second, first batch after {first:.2?}",
            bytes as f64 / 1e6,
            used * 1e3,
            elapsed * 1e3,
            bytes as f64 / 1e6 / used
        );
    }
}
