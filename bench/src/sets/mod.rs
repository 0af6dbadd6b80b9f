//! Look-alikes of published benchmarks of documents: generated data of their shape, and their questions as pipelines.
//!
//! ```text
//! a set      generates documents from a seed, collection by collection, and knows some answers
//! a layout   how its collections are created: ordinary, with indexes, as a time series
//! a question one pipeline, the same for all layouts unless a layout has its own, and the same in SQL
//! ```
//!
//! The questions are in `bench/sets/*.json`, the pipeline beside the SQL. Every answer is compared with the one that the
//! generator computes, or with that of the first layout; `cargo xtask bench --peers` compares it with DuckDB's, too.
//! The data is not that of the published benchmark, so figures are comparable only in their order of magnitude.

mod document_set;
pub mod jsonbench;
mod questions;
mod report;
pub mod rtabench;
mod run;
pub mod wide;

pub use report::SetReport;

use std::process::ExitCode;

use crate::options::Options;
use crate::target::{Outcome, Target};

use document_set::DocumentSet;

/// The text of `--help`, after the line of the set.
const HELP: &str = "
  --in-process DIR            the database in DIR, opened by this program
  --uri mongodb://HOST:PORT   or a server                         [mongodb://127.0.0.1:27017]
  --seed N                    of all values                       [123]
  --batch N                   documents in an insert              [10000]
  --layout NAME               one layout                          [all]
  --only NAME                 questions whose names begin so      [all]
  --draws N                   measured runs of each question      [5]
  --no-load                   the data is there
  --no-queries                load only
  --settle SECONDS            0: neither seal nor compact before asking [60]
  --export DIR                write the data as one file of JSON lines for each collection
  --json FILE                 all figures and answers
";

/// The options that a set shares with the load generator.
const SHARED: [&str; 9] = [
    "--in-process",
    "--uri",
    "--seed",
    "--batch",
    "--only",
    "--draws",
    "--settle",
    "--json",
    "--db",
];

/// The options of a set.
pub struct SetOptions {
    /// Those of the load generator.
    pub(crate) common: Options,
    /// Documents or orders to generate.
    pub(crate) size: u64,
    /// The only layout to use.
    pub(crate) layout: Option<String>,
    /// The folder for the data as JSON lines.
    pub(crate) export: Option<String>,
}

impl SetOptions {
    /// Parses the command line of a set whose size is the option `size.0`, by default `size.1`.
    pub(crate) fn parse(arguments: &[String], size: (&str, u64)) -> Outcome<Self> {
        let mut common: Vec<String> = Vec::new();
        let (mut count, mut layout, mut export) = (size.1, None, None);
        let mut draws = vec!["--draws".to_string(), "5".to_string()];
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            if matches!(word.as_str(), "--no-load" | "--no-queries") {
                common.push(word.clone());
                continue;
            }
            let value = words
                .next()
                .ok_or_else(|| format!("{word} needs a value"))?;
            match word.as_str() {
                name if name == size.0 => {
                    count = value
                        .parse()
                        .map_err(|_| format!("{word} needs a number, not {value}"))?;
                }
                "--layout" => layout = Some(value.clone()),
                "--export" => export = Some(value.clone()),
                name if SHARED.contains(&name) => common.extend([word.clone(), value.clone()]),
                _ => return Err(format!("unknown option {word} (see --help)")),
            }
        }
        draws.extend(common);
        if count == 0 {
            return Err(format!("{} is at least 1", size.0));
        }
        Ok(Self {
            common: Options::parse(&draws)?,
            size: count,
            layout,
            export,
        })
    }
}

/// Runs a set as a program of this name, with the arguments of the process.
#[allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line program talks to its terminal"
)]
pub fn run_program(
    name: &str,
    run: impl FnOnce(&[String], &mut dyn FnMut(&str)) -> Outcome<bool>,
) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments, &mut |text| print!("{text}")) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("{name}: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a set from the command line. False if an answer was wrong.
fn run_command_line(
    arguments: &[String],
    (title, size): (&str, (&str, u64)),
    set: impl FnOnce(&SetOptions) -> Box<dyn DocumentSet>,
    print: &mut dyn FnMut(&str),
) -> Outcome<bool> {
    if arguments.iter().any(|a| a == "--help" || a == "-h") {
        let line = format!("  {} N", size.0);
        print(&format!(
            "{title}\n\n{line:<30}size of the data [{}]{HELP}",
            size.1
        ));
        return Ok(true);
    }
    let options = SetOptions::parse(arguments, size)?;
    let set = set(&options);
    let mut target = Target::open(&options.common)?;
    let report = run::run(&*set, &options, &mut target)?;
    print(&report.text());
    if let Some(path) = &options.common.json {
        std::fs::write(path, report.to_json()).map_err(|e| format!("{path}: {e}"))?;
    }
    Ok(report.all_answers_right())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Outcome<SetOptions> {
        let words: Vec<String> = line.split_whitespace().map(String::from).collect();
        SetOptions::parse(&words, ("--events", 1000))
    }

    #[test]
    fn options_of_a_set_are_read_and_others_refused() {
        let options = parse("--events 7 --seed 4 --layout ordinary --no-load").unwrap();
        assert_eq!((options.size, options.common.seed), (7, 4));
        assert_eq!(options.layout.as_deref(), Some("ordinary"));
        assert_eq!(options.common.draws, 5);
        assert!(!options.common.load);
        assert_eq!(parse("--draws 2").unwrap().common.draws, 2);
        assert!(parse("--events 0").is_err());
        assert!(parse("--scale 5").is_err());
        assert!(parse("--events").is_err());
    }
}
