//! The load generator: TSBS's devops cpu-only set against any server that speaks the MongoDB wire
//! protocol.
//!
//! It makes the documents natively (a Python client saturates long before a database does), loads
//! them in batches, weighs what is on disk, runs every query with random parameters, and checks
//! every answer against the values it generated: a figure for a wrong answer is no figure.
//!
//! ```text
//! cargo xtask bench --uri mongodb://127.0.0.1:27017 --scale 100 --days 1
//! cargo xtask bench --in-process bench-data --scale 100 --days 1
//! ```
//!
//! Data and queries follow TSBS's rules with random numbers of our own: same distributions, not the
//! same numbers. What is measured: for loading, from sending a batch to its acknowledgement, the
//! making of documents left out; for a query, from sending it to having all its batches.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line program talks to its terminal"
)]

/// The allocator of the server: decision 0012.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

mod data;
mod disk;
mod load;
mod options;
mod pattern;
mod queries;
mod reference;
mod report;
mod target;

use std::process::ExitCode;

use data::DataSet;
use options::Options;
use report::Report;
use target::{Outcome, Target};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, rest @ ..] = &arguments[..]
        && first == "pattern"
    {
        return match pattern::run(rest) {
            Ok(()) => ExitCode::SUCCESS,
            Err(message) => {
                eprintln!("nilometer-bench: {message}");
                ExitCode::FAILURE
            }
        };
    }
    if arguments.iter().any(|a| a == "--help" || a == "-h") {
        print!("{}", options::HELP);
        return ExitCode::SUCCESS;
    }
    match Options::parse(&arguments).and_then(|options| run(&options)) {
        Ok(report) if report.all_answers_right() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("nilometer-bench: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Everything that was asked for, in order.
fn run(options: &Options) -> Outcome<Report> {
    let data = DataSet::generate(options);
    eprintln!(
        "{} rows of {} hosts, {} bytes of BSON each",
        data.rows(),
        data.hosts.len(),
        data.encoder(options).document_length()
    );
    let mut target = Target::open(options)?;
    let mut report = Report::new(options, &data);
    if let Some(path) = &options.beside {
        let json = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
        report
            .put_beside(&json)
            .map_err(|e| format!("{path}: {e}"))?;
    }
    if options.load {
        load::prepare(target.first(), options)?;
        report.load = Some(load::run(&mut target.connections, &data, options)?);
    }
    if options.settle_s > 0 {
        target.settle()?;
    }
    report.disk = disk::weigh(target.first(), options)?;
    if options.queries {
        report.queries = queries::run(target.first(), &data, options)?;
    }
    report.print();
    if let Some(path) = &options.json {
        std::fs::write(path, report.to_json()).map_err(|e| format!("{path}: {e}"))?;
    }
    Ok(report)
}
