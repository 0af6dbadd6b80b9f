//! The database on object storage beside the local engine, in one run.
//!
//! ```text
//! cargo run --release -p nilometer-bench-cluster -- \
//!     [--days N] [--scale N] [--draws N] [--only QUERY] [--place WORDS] [--no-rates] [--openings N] [--prefetch-ms N]
//! ```
//!
//! `--place` measures beside the local engine only places whose names contain the words, `--no-rates` neither writers nor an idle
//! database. The first answers are those of three queries, of those that `--only` selects, or with `--openings` of all, as the first
//! query of each of `--openings` new openings (9), of which the median counts. An opening
//! reads the newest measurements for as long as that of a server does, or for `--prefetch-ms` at most; 0 reads none.
//! A first answer is compared with the median of later ones to the same question, and with the median of those before which the
//! caches of the processor were cleared: after an opening these have little of the code that answers, wherever the data is.
//!
//! The store is in memory, and each request to it waits: 5 ms, as a store nearby, and 20 ms. Each table has a row for the local
//! engine in a new directory, which syncs. Answers are checked as `nilometer-bench` does. Each draw of a query is asked once before it is
//! measured.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark prints its figures"
)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nilometer::database::PREFETCH_MAX;
use nilometer::services::Environment;
use nilometer::{ClientSession, Database, Request};
use nilometer_bench::{Options, Outcome, Questions, Report, Target, measure};
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

/// Time for merges to end before a database is asked or watched, and how long an idle one is watched.
const MERGING: Duration = Duration::from_secs(12);
const RESTING: Duration = Duration::from_secs(20);

/// A flush interval that is shorter than the default.
const SHORT_FLUSH: Duration = Duration::from_millis(5);

/// The prefix of the database in the store.
const PREFIX: &str = "db";

/// Queries that are asked of a database that was just opened.
const COLD: [&str; 3] = [
    "single-groupby-1-1-1",
    "cpu-max-all-8",
    "double-groupby-all",
];

/// Openings for each of them, unless an option says otherwise.
const OPENINGS: usize = 9;

/// Times that the question of a first answer is asked again.
const LATER: usize = 9;

/// More than the caches of a processor have.
const PROCESSOR_CACHE_BYTES: usize = 128 << 20;

/// Bytes that a processor reads at a time.
const CACHE_LINE_BYTES: usize = 64;

/// A place for a database.
struct Place {
    name: String,
    storage: Storage,
    /// True if nothing is loaded and asked there.
    only_writers: bool,
}

enum Storage {
    Directory(PathBuf),
    Store {
        store: Arc<dyn ObjectStore>,
        /// A cache on a disk.
        cache: Option<PathBuf>,
        flush_interval: Duration,
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
            Storage::Store {
                store,
                cache,
                flush_interval,
            } => {
                let options = SlateOptions {
                    cache_path: cache.clone(),
                    flush_interval: *flush_interval,
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

/// Returns acknowledged measurements a second of clients that send one at a time, and the requests of a minute.
fn single_writers(opened: &Opened) -> Outcome<(f64, Option<RequestCounts>)> {
    let database = &opened.database;
    let mut session = ClientSession::embedded();
    let timeseries = doc! {"timeField": "t", "metaField": "m"};
    let create = doc! {"create": "single", "timeseries": timeseries, "$db": "benchmark"};
    let reply = database.run_command(&mut session, &Request::new(create));
    check(&reply)?;
    let requests = || opened.engine.as_ref().map(|engine| engine.requests());
    let (count, before, began) = (AtomicU64::new(0), requests(), Instant::now());
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
    let took = began.elapsed();
    let rate = count.load(Ordering::Relaxed) as f64 / took.as_secs_f64();
    let both = before.zip(requests());
    outcomes.into_iter().collect::<Outcome<Vec<()>>>()?;
    Ok((rate, both.map(|both| in_a_minute(both, took))))
}

/// Returns the requests of a minute, from the counts before and after some time.
fn in_a_minute((before, after): (RequestCounts, RequestCounts), took: Duration) -> RequestCounts {
    let scaled = |after: u64, before: u64| {
        ((after - before) as f64 * 60.0 / took.as_secs_f64()).round() as u64
    };
    RequestCounts {
        puts: scaled(after.puts, before.puts),
        log_puts: scaled(after.log_puts, before.log_puts),
        gets: scaled(after.gets, before.gets),
        lists: scaled(after.lists, before.lists),
        others: scaled(after.others, before.others),
    }
}

fn check(reply: &nilometer_bson::Document) -> Outcome {
    let is_ok = reply.get("ok").as_exact_i64() == Some(1) && reply.get("writeErrors").is_missing();
    is_ok.then_some(()).ok_or_else(|| format!("{reply:?}"))
}

/// Returns the requests of an idle database in a minute.
fn idle_requests(engine: &SlateEngine) -> RequestCounts {
    std::thread::sleep(MERGING);
    let before = engine.requests();
    std::thread::sleep(RESTING);
    in_a_minute((before, engine.requests()), RESTING)
}

/// The figures of one place.
struct Figures {
    name: String,
    writers: f64,
    /// Requests of a minute while they write, and without load.
    loaded: Option<RequestCounts>,
    idle: Option<RequestCounts>,
    /// `None` if only the writers were measured.
    report: Option<Report>,
    cold: Vec<FirstAnswer>,
}

/// The first answer to a query after an opening: its milliseconds, those of a later answer to the same question, also with the caches
/// of the processor cleared before, and those of the opening, and the objects or ranges read meanwhile.
#[derive(Clone, Copy)]
struct FirstAnswer {
    name: &'static str,
    ms: f64,
    later_ms: f64,
    cleared_ms: f64,
    opening_ms: f64,
    gets: Option<u64>,
}

/// What is asked of a database that was just opened.
struct ColdQuestions {
    openings: usize,
    /// Longest time for which each opening reads the newest measurements.
    prefetch: Duration,
    /// True if all queries are asked, not those of [`COLD`] alone.
    all: bool,
    questions: Questions,
}

/// Replaces what the caches of the processor have.
fn clear_processor_caches() {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let bytes = BYTES.get_or_init(|| vec![1; PROCESSOR_CACHE_BYTES]);
    let lines = bytes.iter().step_by(CACHE_LINE_BYTES);
    std::hint::black_box(lines.map(|byte| u64::from(*byte)).sum::<u64>());
}

/// Loads, asks, and asks again what is cold.
fn figures(
    place: &Place,
    options: &Options,
    cold: &ColdQuestions,
    with_rates: bool,
) -> Outcome<Figures> {
    eprintln!("{}", place.name);
    let opened = place.open()?;
    if place.only_writers {
        let (writers, loaded) = single_writers(&opened)?;
        return Ok(Figures {
            name: place.name.clone(),
            writers,
            loaded,
            idle: None,
            report: None,
            cold: Vec::new(),
        });
    }
    let mut target = Target::embedded(Arc::clone(&opened.database), 1);
    let loading = Options {
        queries: false,
        ..options.clone()
    };
    measure(&loading, &mut target, &mut |_| ())?;
    std::thread::sleep(MERGING);
    let asking = Options {
        load: false,
        settle_s: 0,
        ..options.clone()
    };
    let report = measure(&asking, &mut target, &mut |_| ())?;
    if !report.all_answers_right() {
        return Err(format!("{}: {}", place.name, report.text()));
    }
    let (writers, loaded) = match with_rates {
        true => single_writers(&opened)?,
        false => (0.0, None),
    };
    opened.database.settle().map_err(|e| e.to_string())?;
    let engine = opened.engine.as_deref().filter(|_| with_rates);
    let idle = engine.map(idle_requests);
    drop((target, opened));
    let asked = report.medians_ms().into_iter().map(|(name, _)| name);
    let asked = asked.filter(|name| cold.all || COLD.contains(name));
    let cold = asked.map(|name| median(cold.openings, || first_answer(place, name, cold)));
    let cold = cold.collect::<Outcome<_>>()?;
    Ok(Figures {
        name: place.name.clone(),
        writers,
        loaded,
        idle,
        report: Some(report),
        cold,
    })
}

/// Returns the median of the answers in several openings.
fn median(
    openings: usize,
    mut answer: impl FnMut() -> Outcome<FirstAnswer>,
) -> Outcome<FirstAnswer> {
    let answers = (0..openings).map(|_| answer());
    let mut answers = answers.collect::<Outcome<Vec<_>>>()?;
    answers.sort_by(|one, other| one.ms.total_cmp(&other.ms));
    let median = answers.get(openings / 2);
    median.copied().ok_or_else(|| "no openings".to_string())
}

/// Returns what a query costs that is the first of an opening, and what the same question costs later.
fn first_answer(place: &Place, name: &'static str, cold: &ColdQuestions) -> Outcome<FirstAnswer> {
    let began = Instant::now();
    let opened = place.open()?;
    opened.database.prefetch_newest(cold.prefetch);
    let opening_ms = began.elapsed().as_secs_f64() * 1000.0;
    let gets = || opened.engine.as_ref().map(|engine| engine.requests().gets);
    let mut target = Target::embedded(Arc::clone(&opened.database), 1);
    let mut ask = || {
        let report = cold.questions.ask(name, 1, &mut target)?;
        let right = report.all_answers_right().then_some(());
        right.ok_or_else(|| format!("{name}: {}", report.text()))?;
        let median = report.medians_ms().into_iter().next();
        median
            .map(|(_, ms)| ms)
            .ok_or_else(|| format!("{name}: no such query"))
    };
    let before = gets();
    let ms = ask()?;
    let gets = gets().zip(before).map(|(after, before)| after - before);
    let mut later = |prepare: fn()| {
        let answers = (0..LATER).map(|_| {
            prepare();
            ask()
        });
        let mut later = answers.collect::<Outcome<Vec<f64>>>()?;
        later.sort_by(f64::total_cmp);
        Ok::<_, String>(later.get(LATER / 2).copied().unwrap_or(0.0))
    };
    Ok(FirstAnswer {
        name,
        ms,
        later_ms: later(|| ())?,
        cleared_ms: later(clear_processor_caches)?,
        opening_ms,
        gets,
    })
}

/// Prints the rates and requests of all places.
fn print_rates(all: &[Figures], local: &Report) {
    println!(
        "| | one measurement each, 64 clients, a second | meanwhile, a minute: PUT (of the log) / GET / LIST | batches of 10,000, measurements a second | of local | idle, a minute: PUT / GET / LIST |"
    );
    println!("|---|---:|---|---:|---:|---|");
    for one in all {
        let loaded = one.loaded.map_or("-".to_string(), |loaded| {
            let RequestCounts {
                puts,
                log_puts,
                gets,
                lists,
                ..
            } = loaded;
            format!("{puts} ({log_puts}) / {gets} / {lists}")
        });
        let idle = one.idle.map_or("-".to_string(), |idle| {
            format!("{} / {} / {}", idle.puts, idle.gets, idle.lists)
        });
        let rate = one.report.as_ref().and_then(Report::load_rate);
        let rate = rate.map_or("- | -".to_string(), |rate| {
            format!("{rate:.0} | {:.2}", rate / local.load_rate().unwrap_or(0.0))
        });
        println!(
            "| {} | {:.0} | {loaded} | {rate} | {idle} |",
            one.name, one.writers
        );
    }
}

fn print(all: &[Figures]) {
    let Some(local) = all.first().and_then(|local| local.report.as_ref()) else {
        return;
    };
    print_rates(all, local);
    let asked = || all.iter().filter(|one| one.report.is_some());
    print!("\n| query, ms |");
    asked().for_each(|one| print!(" {} |", one.name));
    println!("\n|---|{}", "---:|".repeat(asked().count()));
    for (at, (name, _)) in local.medians_ms().into_iter().enumerate() {
        print!("| {name} |");
        let medians = asked().filter_map(|one| Some(one.report.as_ref()?.medians_ms()));
        let row: Vec<f64> = medians.filter_map(|of| Some(of.get(at)?.1)).collect();
        for ms in &row {
            print!(" {ms:.2} ({:.2}) |", ms / row[0]);
        }
        println!();
    }
    print_cold(all);
}

/// Prints first answers, with their ratios to later ones to the same question.
fn print_cold(all: &[Figures]) {
    println!(
        "\n| first after opening, ms, and ratios to later ones and to those with cleared caches of the processor | |"
    );
    let asked = || {
        let all = all.iter().filter(|one| one.report.is_some());
        all.map(|one| &one.cold)
    };
    let queries = asked().next().map_or(0, |cold| cold.len());
    for at in 0..queries {
        for (of, cold) in asked().enumerate() {
            let first = cold[at];
            if of == 0 {
                print!("| {} |", first.name);
            }
            let gets = first.gets;
            let gets = gets.map_or(String::new(), |gets| format!(", {gets} GETs"));
            let [later, cleared] = [first.later_ms, first.cleared_ms].map(|ms| first.ms / ms);
            print!(" {:.2} ({later:.1}, {cleared:.1}){gets} |", first.ms);
        }
        println!();
    }
    print!("| the opening |");
    for cold in asked() {
        let mut openings: Vec<f64> = cold.iter().map(|cold| cold.opening_ms).collect();
        openings.sort_by(f64::total_cmp);
        let median = openings.get(openings.len() / 2);
        print!(" {:.0} |", median.copied().unwrap_or(0.0));
    }
    println!();
}

fn run(arguments: &[String]) -> Outcome {
    let mut options = Options {
        with_id: false,
        index: true,
        ..Options::default()
    };
    let mut words = arguments.iter();
    let mut place = String::new();
    let mut with_rates = true;
    let mut prefetch = PREFETCH_MAX;
    let mut openings = None;
    while let Some(word) = words.next() {
        if word == "--no-rates" {
            with_rates = false;
            continue;
        }
        let value = words.next();
        match (word.as_str(), value) {
            ("--only", Some(value)) => {
                options.only = value.clone();
                continue;
            }
            ("--place", Some(value)) => {
                place = value.clone();
                continue;
            }
            _ => {}
        }
        let number = value.and_then(|value| value.parse::<f64>().ok());
        let number = number.ok_or_else(|| format!("{word} takes a number"))?;
        match word.as_str() {
            "--days" => options.days = number,
            "--scale" => options.scale = number as usize,
            "--draws" => options.draws = number as usize,
            "--prefetch-ms" => prefetch = Duration::from_millis(number as u64),
            "--openings" => openings = Some(number as usize),
            _ => return Err(format!("unknown option {word}")),
        }
    }
    options.warm_up = options.draws;
    let scratch = std::env::temp_dir().join(format!("nilometer-cluster-{}", std::process::id()));
    let cold = ColdQuestions {
        openings: openings.unwrap_or(OPENINGS),
        prefetch,
        all: openings.is_some() || !options.only.is_empty(),
        questions: Questions::new(options.clone()),
    };
    let figures = all_figures(&scratch, &options, &cold, &place, with_rates);
    // What cannot be removed is in the system's directory for temporary files.
    drop(std::fs::remove_dir_all(&scratch));
    print(&figures?);
    Ok(())
}

fn all_figures(
    scratch: &Path,
    options: &Options,
    cold: &ColdQuestions,
    words: &str,
    with_rates: bool,
) -> Outcome<Vec<Figures>> {
    let place = |name: &str, storage| Place {
        name: name.to_string(),
        storage,
        only_writers: false,
    };
    let default = SlateOptions::default().flush_interval;
    let store = |ms, cache, flush_interval| Storage::Store {
        store: delayed(ms),
        cache,
        flush_interval,
    };
    let often = format!("store, 5 ms, flushed every {} ms", SHORT_FLUSH.as_millis());
    let places = [
        place("local", Storage::Directory(scratch.join("local"))),
        place("store, 5 ms", store(5, None, default)),
        Place {
            only_writers: true,
            ..place(&often, store(5, None, SHORT_FLUSH))
        },
        place("store, 20 ms", store(20, None, default)),
        place(
            "store, 20 ms, cache on disk",
            store(20, Some(scratch.join("cache")), default),
        ),
    ];
    let measured = |at: usize, place: &Place| at == 0 || place.name.contains(words);
    let places = places.iter().enumerate();
    let places = places.filter(|(at, place)| measured(*at, place));
    let figures = places.map(|(_, place)| figures(place, options, cold, with_rates));
    figures.collect()
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
