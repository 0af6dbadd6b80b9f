//! The tasks around the code: `cargo xtask TASK`.
//!
//! One command is the whole of continuous integration (`cargo xtask ci`); everything it does can be
//! run on its own. This crate depends on the standard library alone, so that a fresh clone has it
//! built in seconds, and on none of the workspace's crates, so that it still works when they do not.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line program talks to its terminal"
)]

mod ci;
mod code;
mod conformance;
mod deny;
mod dist;
mod fuzz;
mod imports;
mod process;
mod soak;
mod tidy;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask TASK

  ci                        everything below but bench; what CI runs and what a change must pass
  fmt | lint | test | docs  one step of ci
  histories                 tests that are short in the fast suite, at full length
  tidy                      house rules: imports, lengths, module heads, links, text
  imports [FOLDER]... [--revision REV] [--edges]
                            imports, levels and cycles of a folder's modules, beside those of an older state
  fuzz                      every fuzz target, for a short time
  fuzz NAME [--seed N] [--runs N]
                            one target from a seed on; a failure names the seed to replay
  fuzz --list               the targets
  fuzz --inputs N [--target NAME] [--first SEED]
                            a campaign against every way in; also --target NAME --seed N [--show]
  guide                     docs/operating.md word by word, with mongosh for what is typed into a shell
  pictures                  make the pictures of the README again: the demo and the web page
  dist                      the release build, the same bytes from the same commit wherever it is built
  soak [--minutes N] [--seed N]
                            everything at once on one server, which is killed now and then (default 30)
  conformance [CLIENT]...   real clients against the built server
                            (pymongo node mongosh mongoose web go java spring rust; all when none is named)
  features                  what stands behind Cargo features: Parquet
  deny                      licences, sources and known weaknesses of what is linked (cargo-deny)
  compatibility             rewrite the tables of COMPATIBILITY.md from the code's
  figures                   what connections, TLS and authorization cost
  bench ARGS...             the load generator, optimised (ARGS as `--help` there explains)
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["ci"] => ci::all(),
        ["fmt"] => ci::format(),
        ["lint"] => ci::lint(),
        ["test"] => ci::test().map(drop),
        ["histories"] => ci::histories(),
        ["docs"] => ci::docs(),
        ["deny"] => deny::all(),
        ["features"] => ci::features(),
        ["tidy"] => tidy::run(),
        ["imports", rest @ ..] => imports::run(rest),
        ["fuzz", rest @ ..] => fuzz::run(rest),
        ["soak", rest @ ..] => soak::long(rest),
        ["guide"] => conformance::guide(),
        ["pictures"] => conformance::pictures(),
        ["dist"] => dist::build(),
        ["conformance", clients @ ..] => conformance::run(clients),
        ["figures"] => ci::figures(),
        ["compatibility"] => ci::rewrite_compatibility(),
        ["bench", rest @ ..] => ci::bench(rest),
        [] | ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        _ => Err(format!("unknown task or arguments\n\n{HELP}")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
