//! Time of creating collections, in process: `cargo run --release -p nilometer-bench --bin creations [COLLECTIONS [DIRECTORY]]`;
//! without arguments a hundred in a temporary directory, which must be on a disk for the figures to mean something.
//!
//! Each `create` waits for the disk, as do the first measurement or document of the collection, which come after it. Then the
//! database is closed and opened again.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nilometer::{ClientSession, Database, Request};
use nilometer_bench::TemporaryDirectory;
use nilometer_bson::{Document, DocumentBuilder, Value, array, doc};

/// The allocator of the server: decision 0012.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const TIME_MS: i64 = 1_451_606_400_000;

fn run(database: &Database, session: &mut ClientSession, command: &Document) -> Duration {
    let mut body = DocumentBuilder::new();
    for element in command.iter() {
        body.append_element(element);
    }
    body.append("$db", "test");
    let began = Instant::now();
    let reply = database.run_command(session, &Request::new(body.finish()));
    let took = began.elapsed();
    assert!(
        reply.get("ok").as_exact_i64() == Some(1) && reply.get("writeErrors").is_missing(),
        "{reply:?}"
    );
    took
}

/// Prints the median, the slowest and the sum of durations.
fn print(what: &str, mut durations: Vec<Duration>) {
    durations.sort();
    let middle = durations.get(durations.len() / 2).copied();
    let (slowest, sum) = (
        durations.last().copied(),
        durations.iter().sum::<Duration>(),
    );
    println!(
        "{what:<28} median {:>9.2?}  slowest {:>9.2?}  all {:>9.2?}",
        middle.unwrap_or_default(),
        slowest.unwrap_or_default(),
        sum
    );
}

fn create_all(database: &Database, count: usize) {
    let mut session = ClientSession::embedded();
    for kind in ["ordinary", "time series"] {
        let (mut creations, mut inserts) = (Vec::new(), Vec::new());
        for number in 0..count {
            let name = format!("{kind} {number}");
            let mut create = DocumentBuilder::new();
            create.append("create", name.as_str());
            if kind == "time series" {
                create.append("timeseries", doc! {"timeField": "t", "metaField": "m"});
            }
            creations.push(run(database, &mut session, &create.finish()));
            let document = doc! {"t": Value::DateTime(TIME_MS), "m": doc! {"host": "a"}, "v": 1.5};
            let insert = doc! {"insert": name, "documents": array![document]};
            inserts.push(run(database, &mut session, &insert));
        }
        print(&format!("{kind}: create"), creations);
        print(&format!("{kind}: first insert"), inserts);
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let count = arguments.next();
    let count = count.map_or(100, |text| text.parse().expect("a number"));
    let given = arguments.next().map(PathBuf::from);
    let temporary = TemporaryDirectory::new("creations");
    let path: &Path = given.as_deref().unwrap_or_else(|| temporary.path());
    let database = Database::open(path).expect("a database");
    create_all(&database, count);
    let began = Instant::now();
    database.close().expect("closed");
    drop(database);
    println!("{:<28} {:>9.2?}", "close", began.elapsed());
    let began = Instant::now();
    let database = Database::open(path).expect("a database");
    println!("{:<28} {:>9.2?}", "open", began.elapsed());
    drop(database);
}
