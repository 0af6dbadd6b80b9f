//! The load generator as a program of its own.
//!
//! ```text
//! cargo xtask bench --uri mongodb://127.0.0.1:27017 --scale 100 --days 1
//! cargo xtask bench --in-process bench-data --scale 100 --days 1
//! ```

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line program talks to its terminal"
)]

/// The allocator of the server: decision 0012.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

use std::process::ExitCode;

use nilometer_bench::{Options, Outcome, Report, Target, growth, measure, options, pattern};

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

fn run(options: &Options) -> Outcome<Report> {
    let mut target = Target::open(options)?;
    let report = measure(options, &mut target, &mut |told| eprintln!("{told}"))?;
    print!("{}", report.text());
    if let Some(path) = &options.beside {
        let json = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
        let table = growth(&report, &json).map_err(|e| format!("{path}: {e}"))?;
        print!("{table}");
    }
    if let Some(path) = &options.json {
        std::fs::write(path, report.to_json()).map_err(|e| format!("{path}: {e}"))?;
    }
    if let Some(path) = &options.plot {
        let picture = report
            .course_svg()
            .ok_or("--plot needs --points, and a load")?;
        std::fs::write(path, picture).map_err(|e| format!("{path}: {e}"))?;
    }
    Ok(report)
}
