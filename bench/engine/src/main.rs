//! The storage engine compared with fjall: the same work, the same process, one table.
//!
//! ```text
//! nilometer-bench-engine [directory] [seconds per figure] [commits,buckets,blocks,recovery]
//! ```
//!
//! Bytes written are those that the process passes to `write`, from `/proc/self/io`: log, flushes, merges and
//! manifests, for both engines.

#![expect(clippy::print_stdout, reason = "the table is what this program is for")]

mod blocks;
mod recovery;
mod store;
mod workload;

use std::path::{Path, PathBuf};
use std::time::Duration;

use store::{FjallStore, NilometerStore, Store};
use workload::Figure;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next();
    if first.as_deref() == Some(recovery::CHILD) {
        recovery::child(Path::new(&arguments.next().expect("a directory")));
        return;
    }
    let directory = first.map_or_else(std::env::temp_dir, PathBuf::from);
    let directory = directory.join(format!("bench-engine-{}", std::process::id()));
    let seconds = arguments.next().and_then(|text| text.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(5));
    let sections = arguments.next();
    let sections = sections
        .as_deref()
        .unwrap_or("commits,buckets,blocks,recovery");
    if sections.contains("commits") {
        measure_commits(&directory, time);
    }
    if sections.contains("buckets") {
        measure_buckets(&directory);
    }
    if sections.contains("blocks") {
        blocks::measure(&directory, time);
        remove(&directory);
    }
    if sections.contains("recovery") {
        recovery::measure(&directory);
        remove(&directory);
    }
}

fn measure_commits(directory: &Path, time: Duration) {
    println!("| workload | engine | rate | p50 | p99 |");
    println!("|---|---|---|---|---|");
    for (name, threads, records) in [
        ("1 thread x 10 records", 1, 10),
        ("8 threads x 10 records", 8, 10),
        ("1 thread x 1000 records", 1, 1000),
        ("8 threads x 1000 records", 8, 1000),
    ] {
        for engine in ["nilometer", "fjall"] {
            let store = open(engine, directory);
            let figure = workload::records(&*store, threads, records, time);
            print_figure(name, engine, &figure, records);
            drop(store);
            remove(directory);
        }
    }
    println!();
}

fn measure_buckets(directory: &Path) {
    println!("| 6 KB value + 20 index puts | values/s | written/byte | after merging |");
    println!("|---|---|---|---|");
    for engine in ["nilometer", "fjall"] {
        let store = open(engine, directory);
        let report = workload::buckets(&*store, 60_000);
        println!(
            "| {engine} | {:.0} | {:.2} | {:.2} |",
            report.rate, report.written, report.settled
        );
        drop(store);
        remove(directory);
    }
    println!();
}

fn open(engine: &str, directory: &Path) -> Box<dyn Store> {
    match engine {
        "fjall" => Box::new(FjallStore::open(directory)),
        _ => Box::new(NilometerStore::open(directory)),
    }
}

fn print_figure(name: &str, engine: &str, figure: &Figure, records: usize) {
    println!(
        "| {name} | {engine} | {:.0} commits/s, {:.0} records/s | {:.2} ms | {:.2} ms |",
        figure.rate,
        figure.rate * records as f64,
        figure.p50.as_secs_f64() * 1e3,
        figure.p99.as_secs_f64() * 1e3,
    );
}

fn remove(directory: &Path) {
    let _ = std::fs::remove_dir_all(directory);
    // Wait, so that the removal of the files does not affect the next engine.
    std::thread::sleep(Duration::from_millis(500));
}
