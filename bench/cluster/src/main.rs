//! The database on object storage beside the local engine, in one run.
//!
//! ```text
//! cargo run --release -p nilometer-bench-cluster -- [--days N] [--scale N] [--draws N]
//! ```
//!
//! The store is in memory, and each request to it waits: 5 ms, as a store nearby, and 20 ms. Each table has a row for the local
//! engine in a new directory, which syncs. Answers are checked as `nilometer-bench` does.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark prints its figures"
)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nilometer::services::Environment;
use nilometer::{ClientSession, Database, Request};
use nilometer_bench::{Options, Outcome, Report, Target, measure};
use nilometer_bson::{Value, array, doc};
use nilometer_cluster::{RequestCounts, SlateEngine, SlateOptions};
use object_store::ObjectStore;
use object_store::memory::InMemory;
use object_store::throttle::{ThrottleConfig, ThrottledStore};

/// The allocator of the server: decision 0012.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Clients that write one measurement at a time.
const WRITERS: u64 = 64;

/// How long they write.
const WRITING: Duration = Duration::from_secs(5);

/// How long an idle database is watched.
const RESTING: Duration = Duration::from_secs(20);

/// The prefix of the database in the store.
const PREFIX: &str = "db";

/// Queries that are asked of a database that was just opened.
const COLD: [&str; 3] = [
    "single-groupby-1-1-1",
    "cpu-max-all-8",
    "double-groupby-all",
];

/// A place for a database.
struct Place {
    name: String,
    storage: Storage,
}

enum Storage {
    Directory(PathBuf),
    Store {
        store: Arc<dyn ObjectStore>,
        /// A cache on a disk.
        cache: Option<PathBuf>,
    },
}

/// An open database, and its engine if that is one of object storage.
struct Opened {
    database: Arc<Database>,
    engine: Option<Arc<SlateEngine>>,
}

impl Place {
    fn open(&self) -> Outcome<Opened> {
        match &self.storage {
            Storage::Directory(path) => {
                let database = Database::open(path).map_err(|e| e.to_string())?;
                Ok(Opened {
                    database: Arc::new(database),
                    engine: None,
                })
            }
            Storage::Store { store, cache } => {
                let options = SlateOptions {
                    cache_path: cache.clone(),
                    ..SlateOptions::default()
                };
                let engine = SlateEngine::open(Arc::clone(store), PREFIX, &options);
                let engine = Arc::new(engine.map_err(|e| e.to_string())?);
                let database = Database::with_engine(engine.clone(), Environment::default());
                Ok(Opened {
                    database: Arc::new(database.map_err(|e| e.to_string())?),
                    engine: Some(engine),
                })
            }
        }
    }
}

/// Returns a store in memory whose requests take `ms` milliseconds each.
fn delayed(ms: u64) -> Arc<dyn ObjectStore> {
    let wait = Duration::from_millis(ms);
    let config = ThrottleConfig {
        wait_get_per_call: wait,
        wait_put_per_call: wait,
        wait_list_per_call: wait,
        wait_list_with_delimiter_per_call: wait,
        wait_delete_per_call: wait,
        ..ThrottleConfig::default()
    };
    Arc::new(ThrottledStore::new(InMemory::new(), config))
}

/// Returns acknowledged measurements a second of clients that send one at a time, and the objects of the log in that time.
fn single_writers(opened: &Opened) -> Outcome<(f64, u64)> {
    let database = &opened.database;
    let mut session = ClientSession::embedded();
    let timeseries = doc! {"timeField": "t", "metaField": "m"};
    let create = doc! {"create": "single", "timeseries": timeseries, "$db": "benchmark"};
    let reply = database.run_command(&mut session, &Request::new(create));
    check(&reply)?;
    let log_puts = || opened.engine.as_ref().map_or(0, |e| e.requests().log_puts);
    let (count, before, began) = (AtomicU64::new(0), log_puts(), Instant::now());
    let outcomes: Vec<Outcome> = std::thread::scope(|scope| {
        let writer = |at: u64| {
            let (count, database) = (&count, &database);
            move || -> Outcome {
                let mut session = ClientSession::embedded();
                for n in 0.. {
                    if began.elapsed() >= WRITING {
                        break;
                    }
                    let time = Value::DateTime(1_700_000_000_000 + n * 1000);
                    let one = doc! {"t": time, "m": at as i64, "v": n};
                    let insert =
                        doc! {"insert": "single", "documents": array![one], "$db": "benchmark"};
                    check(&database.run_command(&mut session, &Request::new(insert)))?;
                    count.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            }
        };
        let writers: Vec<_> = (0..WRITERS).map(|at| scope.spawn(writer(at))).collect();
        let joined = writers.into_iter().map(|writer| writer.join());
        let died = |_| Err("a writer died".to_string());
        joined.map(|outcome| outcome.unwrap_or_else(died)).collect()
    });
    let rate = count.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64();
    let puts = log_puts() - before;
    outcomes.into_iter().collect::<Outcome<Vec<()>>>()?;
    Ok((rate, puts))
}

fn check(reply: &nilometer_bson::Document) -> Outcome {
    let is_ok = reply.get("ok").as_exact_i64() == Some(1) && reply.get("writeErrors").is_missing();
    is_ok.then_some(()).ok_or_else(|| format!("{reply:?}"))
}

/// Returns the requests of an idle database in a minute.
fn idle_requests(engine: &SlateEngine) -> RequestCounts {
    let before = engine.requests();
    std::thread::sleep(RESTING);
    let after = engine.requests();
    let in_a_minute = |after: u64, before: u64| (after - before) * 60 / RESTING.as_secs();
    RequestCounts {
        puts: in_a_minute(after.puts, before.puts),
        log_puts: in_a_minute(after.log_puts, before.log_puts),
        gets: in_a_minute(after.gets, before.gets),
        lists: in_a_minute(after.lists, before.lists),
        others: in_a_minute(after.others, before.others),
    }
}

/// The figures of one place.
struct Figures {
    name: String,
    writers: f64,
    log_puts: u64,
    idle: Option<RequestCounts>,
    report: Report,
    /// The first answer after opening, for each of [`COLD`].
    cold: Vec<f64>,
}

/// Loads, asks, and asks again what is cold.
fn figures(place: &Place, options: &Options) -> Outcome<Figures> {
    eprintln!("{}", place.name);
    let opened = place.open()?;
    let mut target = Target::embedded(Arc::clone(&opened.database), 1);
    let report = measure(options, &mut target, &mut |_| ())?;
    if !report.all_answers_right() {
        return Err(format!("{}: {}", place.name, report.text()));
    }
    let (writers, log_puts) = single_writers(&opened)?;
    let idle = opened.engine.as_deref().map(idle_requests);
    drop((target, opened));
    let mut cold = Vec::new();
    for name in COLD {
        cold.push(first_answer(place, name, options)?);
    }
    Ok(Figures {
        name: place.name.clone(),
        writers,
        log_puts,
        idle,
        report,
        cold,
    })
}

/// Returns the milliseconds of a query that is the first of an open database.
fn first_answer(place: &Place, name: &str, options: &Options) -> Outcome<f64> {
    let opened = place.open()?;
    let mut target = Target::embedded(opened.database, 1);
    let options = Options {
        load: false,
        only: name.to_string(),
        draws: 1,
        warm_up: 0,
        settle_s: 0,
        ..options.clone()
    };
    let report = measure(&options, &mut target, &mut |_| ())?;
    let first = report.medians_ms().into_iter().next();
    match first {
        Some((_, ms)) if report.all_answers_right() => Ok(ms),
        _ => Err(format!("{name}: {}", report.text())),
    }
}

fn print(all: &[Figures]) {
    let Some(local) = all.first() else { return };
    println!(
        "| | one measurement each, 64 clients, a second | objects of the log a second | batches of 10,000, measurements a second | of local | idle, a minute: PUT / GET / LIST |"
    );
    println!("|---|---:|---:|---:|---:|---|");
    for one in all {
        let rate = |figures: &Figures| figures.report.load_rate().unwrap_or(0.0);
        let idle = one.idle.map_or("-".to_string(), |idle| {
            format!("{} / {} / {}", idle.puts, idle.gets, idle.lists)
        });
        println!(
            "| {} | {:.0} | {:.0} | {:.0} | {:.2} | {idle} |",
            one.name,
            one.writers,
            one.log_puts as f64 / WRITING.as_secs_f64(),
            rate(one),
            rate(one) / rate(local)
        );
    }
    print!("\n| query, ms |");
    all.iter().for_each(|one| print!(" {} |", one.name));
    println!("\n|---|{}", "---:|".repeat(all.len()));
    for (at, (name, _)) in local.report.medians_ms().into_iter().enumerate() {
        print!("| {name} |");
        let medians = all.iter().map(|one| one.report.medians_ms());
        let row: Vec<f64> = medians.filter_map(|of| Some(of.get(at)?.1)).collect();
        for ms in &row {
            print!(" {ms:.2} ({:.2}) |", ms / row[0]);
        }
        println!();
    }
    for (at, name) in COLD.iter().enumerate() {
        print!("| first after opening: {name} |");
        for one in all {
            print!(" {:.1} |", one.cold[at]);
        }
        println!();
    }
}

fn run(arguments: &[String]) -> Outcome {
    let mut options = Options {
        with_id: false,
        index: true,
        ..Options::default()
    };
    let mut words = arguments.iter();
    while let (Some(word), value) = (words.next(), words.next()) {
        let number = value.and_then(|value| value.parse::<f64>().ok());
        let number = number.ok_or_else(|| format!("{word} takes a number"))?;
        match word.as_str() {
            "--days" => options.days = number,
            "--scale" => options.scale = number as usize,
            "--draws" => options.draws = number as usize,
            _ => return Err(format!("unknown option {word}")),
        }
    }
    let scratch = std::env::temp_dir().join(format!("nilometer-cluster-{}", std::process::id()));
    let figures = all_figures(&scratch, &options);
    // What cannot be removed is in the system's directory for temporary files.
    drop(std::fs::remove_dir_all(&scratch));
    print(&figures?);
    Ok(())
}

fn all_figures(scratch: &Path, options: &Options) -> Outcome<Vec<Figures>> {
    let place = |name: &str, storage| Place {
        name: name.to_string(),
        storage,
    };
    let store = |ms| Storage::Store {
        store: delayed(ms),
        cache: None,
    };
    let cached = Storage::Store {
        store: delayed(20),
        cache: Some(scratch.join("cache")),
    };
    let places = [
        place("local", Storage::Directory(scratch.join("local"))),
        place("store, 5 ms", store(5)),
        place("store, 20 ms", store(20)),
        place("store, 20 ms, cache on disk", cached),
    ];
    places.iter().map(|place| figures(place, options)).collect()
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("nilometer-bench-cluster: {message}");
            ExitCode::FAILURE
        }
    }
}
