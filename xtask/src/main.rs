//! The tasks around the code: `cargo xtask TASK`.
//!
//! `cargo xtask ci` is the whole of continuous integration; each of its steps is a task of its own. This crate depends on
//! the standard library alone, so that it builds in seconds, and on no crate of the workspace, so that it works when they
//! do not compile.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line program talks to its terminal"
)]

mod azurite;
mod bench;
mod budget;
mod ci;
mod code;
mod conformance;
mod deny;
mod dist;
mod fuzz;
mod imports;
mod object_store;
mod package;
mod process;
mod soak;
mod tidy;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask TASK

  verify                    format, tidy, lint, tests, documentation; changes no file
  fix                       what tools can repair: lints, tables of COMPATIBILITY.md, line ends, format
  ci                        verify with the long tests, and the clients; what a change must pass
  budgets                   what building and testing cost, against what they may
  fmt | lint | test | docs  one step of verify
  histories                 tests that the fast suite shortens, at full length
  tidy                      house rules: imports, lengths, module heads, links, text
  imports [FOLDER]... [--revision REV] [--edges]
                            imports, levels and cycles of a folder's modules, beside those of an older state
  fuzz                      every fuzz target, for a short time
  fuzz NAME [--seed N] [--runs N]
                            one target from a seed on; a failure names the seed to replay
  fuzz --list               the targets
  fuzz --inputs N [--target NAME] [--first SEED]
                            a campaign against every input; also --target NAME --seed N [--show]
  guide                     docs/operating.md word by word, with mongosh for its shell commands
  pictures                  make the pictures of the README: the demo and the web page
  dist                      the release build, reproducible byte for byte
  package [--program FILE]  a Debian package of the release build, or of FILE
  soak [--minutes N] [--seed N]
                            a mixed load on one server with kills (default 30)
  conformance [CLIENT]...   real clients against the built server
                            (pymongo pymongo_suite node mongosh mongoose web go java spring debezium rust tools; default: all)
  features                  code behind Cargo features: Parquet
  cluster                   lint and tests of object storage, which the other tasks leave out, also over versitygw
  azure                     tests of object storage over Azurite, which npm installs
  deny                      licences, sources and advisories of dependencies (cargo-deny)
  compatibility             rewrite the tables of COMPATIBILITY.md from the code's
  figures                   the cost of connections, TLS and authorization
  bench [SET] ARGS...       the load generator, jsonbench, rtabench or wide, optimised (ARGS: see its `--help`)
  bench [SET] --peers ARGS... [--threads N] [--query-seconds N] [--rounds N]
                            the same beside DuckDB (and ClickHouse) over the same data, in one table
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["ci"] => ci::all(),
        ["verify"] => ci::verify(),
        ["budgets"] => ci::budgets(),
        ["fix"] => ci::fix(),
        ["fmt"] => ci::format(),
        ["lint"] => ci::lint(),
        ["test"] => ci::test(),
        ["histories"] => ci::histories(),
        ["docs"] => ci::docs(),
        ["deny"] => deny::all(),
        ["features"] => ci::features(),
        ["cluster"] => ci::cluster(false),
        ["azure"] => azurite::run_tests(),
        ["tidy"] => tidy::run(),
        ["imports", rest @ ..] => imports::run(rest),
        ["fuzz", rest @ ..] => fuzz::run(rest),
        ["soak", rest @ ..] => soak::long(rest),
        ["guide"] => conformance::guide(),
        ["pictures"] => conformance::pictures(),
        ["dist"] => dist::build(),
        ["package"] => package::build(None),
        ["package", "--program", program] => package::build(Some(program)),
        ["conformance", clients @ ..] => conformance::run(clients),
        ["figures"] => ci::figures(),
        ["compatibility"] => ci::rewrite_compatibility(),
        ["bench", rest @ ..] => bench::bench(rest),
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
