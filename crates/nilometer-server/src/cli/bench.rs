//! `nilometer bench`: measures a server, or this machine, with generated data of any size.
//!
//! Data, queries and results are those of the project's load generator ([`nilometer_bench`]): hosts with ten tags and
//! ten metrics each, eighteen queries, every answer checked. This module adds logins and TLS, limits of time and size,
//! and protection of other data: it refuses a database that has collections, and drops the one it creates.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use nilometer_bench::{Options, Outcome, Target, measure};
use nilometer_bson::{Document, doc};

use super::Failure;
use super::connect::{self, Login, ServerArgs};
use crate::machine::make_new_files_private;

/// Maximum measurements of a run. Their values are kept in memory, ten bytes each, to check the answers.
const MEASUREMENTS_MAX: usize = 100_000_000;

/// Maximum connections of a run.
const CONNECTIONS_MAX: usize = 1000;

/// Maximum time for a database in this process to settle before its size is measured.
const SETTLE_SECONDS: u64 = 30;

/// Options of `bench`.
#[derive(Args, Clone, Debug)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Measure a database in this process, without a server, in this new or empty directory
    #[arg(long, value_name = "DIR", conflicts_with_all = ["uri", "password_file"])]
    dbpath: Option<PathBuf>,
    /// Database for the data; it must have no collections, and is dropped at the end
    #[arg(long, default_value = "nilometer_bench")]
    db: String,
    /// Number of hosts
    #[arg(long, default_value_t = 100)]
    hosts: usize,
    /// Hours of measurements, also fractions
    #[arg(long, default_value_t = 24.0)]
    hours: f64,
    /// Seconds between two measurements of a host
    #[arg(long, default_value_t = 10)]
    interval: i64,
    /// Seed of values and of the queries' parameters
    #[arg(long, default_value_t = 123)]
    seed: u64,
    /// Connections that load concurrently
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// Measurements per insert
    #[arg(long, default_value_t = 1000)]
    batch: usize,
    /// Runs of each query
    #[arg(long, default_value_t = 20)]
    draws: usize,
    /// Maximum seconds for loading, and for all queries together
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Shard the data by a hash of the host first, in a cluster
    #[arg(long, conflicts_with = "dbpath")]
    sharded: bool,
    /// File for all results, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep the data
    #[arg(long)]
    keep: bool,
}

/// Measures and prints the results.
pub(super) fn run(given: &BenchArgs) -> Result<(), Failure> {
    let mut options = given.options()?;
    let outcome = match &given.dbpath {
        Some(folder) => {
            check_is_empty(folder)?;
            make_new_files_private();
            let shown = folder.display().to_string();
            options.address = format!("in process, {shown}");
            options.in_process = Some(shown.clone());
            options.dbpath = Some(shown);
            options.settle_s = SETTLE_SECONDS;
            Target::open(&options).and_then(|mut target| measured(given, &options, &mut target))
        }
        None => {
            let login = given.server.login()?;
            options.address = login.address();
            let mut server = login.open()?;
            check_is_free(&mut server, &given.db)?;
            let outcome = Target::connect(options.connections, || reach(&login))
                .and_then(|mut target| measured(given, &options, &mut target));
            if !given.keep {
                server.run(&given.db, &doc! {"dropDatabase": 1})?;
            }
            outcome
        }
    };
    outcome.map_err(Failure::Other)
}

impl BenchArgs {
    fn options(&self) -> Result<Options, Failure> {
        let refused = |told: String| Err(Failure::Options(told));
        let options = Options {
            database: self.db.clone(),
            scale: self.hosts,
            days: self.hours / 24.0,
            interval_s: self.interval,
            seed: self.seed,
            connections: self.connections,
            batch: self.batch,
            draws: self.draws,
            seconds: Some(self.seconds),
            sharded: self.sharded,
            settle_s: 0,
            ..Options::default()
        };
        if self.interval < 1 || !self.hours.is_finite() || options.ticks() == 0 {
            return refused("--hours is shorter than one --interval".into());
        }
        let batches = 1..=nilometer::limits::WRITE_BATCH_MAX;
        if self.hosts == 0 || self.draws == 0 || !batches.contains(&self.batch) {
            return refused(format!(
                "--hosts and --draws are at least 1, --batch is from 1 to {}",
                nilometer::limits::WRITE_BATCH_MAX
            ));
        }
        if !(1..=CONNECTIONS_MAX).contains(&self.connections) {
            return refused(format!("--connections is from 1 to {CONNECTIONS_MAX}"));
        }
        let all = options.ticks().saturating_mul(self.hosts);
        if all > MEASUREMENTS_MAX {
            return refused(format!(
                "{all} measurements exceed the {MEASUREMENTS_MAX} that can be kept in memory to check the answers: use fewer --hosts or --hours"
            ));
        }
        Ok(options)
    }
}

/// Measures. A wrong answer is an error, after the results.
fn measured(given: &BenchArgs, options: &Options, target: &mut Target) -> Outcome {
    let mut say = |told: &str| {
        let written = writeln!(std::io::stderr(), "{told}");
        // Ignore a closed output; the results count.
        drop(written);
    };
    let report = measure(options, target, &mut say)?;
    if let Some(path) = &given.json {
        std::fs::write(path, report.to_json()).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    let mut out = std::io::stdout().lock();
    write!(out, "{}", report.text()).map_err(|e| e.to_string())?;
    match report.all_answers_right() {
        true => Ok(()),
        false => Err("some answers were wrong".into()),
    }
}

/// The connection used by the benchmark.
struct BenchConnection(connect::Connection);

fn reach(login: &Login) -> Outcome<Box<dyn nilometer_bench::Connection>> {
    let server = login.open().map_err(|e| e.to_string())?;
    Ok(Box::new(BenchConnection(server)))
}

impl nilometer_bench::Connection for BenchConnection {
    fn call(&mut self, command: &Document, documents: Option<Arc<Vec<u8>>>) -> Outcome<Document> {
        let documents = documents.as_ref().map(|d| d.as_slice());
        self.0.call(command, documents).map_err(|e| e.to_string())
    }
}

fn check_is_free(server: &mut connect::Connection, database: &str) -> Result<(), Failure> {
    let found = server.run(database, &doc! {"listCollections": 1, "nameOnly": true})?;
    let cursor = found.get("cursor").as_document();
    let first = cursor.and_then(|cursor| cursor.get("firstBatch").as_array());
    if first.is_some_and(|first| first.is_empty()) {
        return Ok(());
    }
    Err(Failure::Options(format!(
        "the database {database} has collections: choose another with --db, or drop it"
    )))
}

fn check_is_empty(folder: &std::path::Path) -> Result<(), Failure> {
    let there = std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
    if there || folder.is_file() {
        return Err(Failure::Options(format!(
            "{} is not an empty directory",
            folder.display()
        )));
    }
    Ok(())
}
