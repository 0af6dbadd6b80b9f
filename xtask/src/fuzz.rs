//! `cargo xtask fuzz`: the fuzz targets on a stable compiler.
//!
//! A target is a test whose name starts with `fuzz_`, in the crate whose bytes it attacks. It reads its first seed from
//! `NILOMETER_FUZZ_SEED` and the number of seeds from `NILOMETER_FUZZ_RUNS` (default 0 and 200, as in `cargo test`). A
//! failure prints its seed. The libFuzzer shells in `fuzz/` call the same entry functions.
//!
//! `fuzz --inputs N` runs a campaign instead: that many inputs against every entry, by the program in `fuzz/campaign`,
//! optimised and with the checks of a debug build.

use std::process::Command;

use crate::process::{self, Outcome, WORKSPACE, cargo, read};

/// Seeds for each target in the smoke run, from [`SMOKE_SEED`] on, beyond those of `cargo test`.
const SMOKE_RUNS: &str = "1000";
const SMOKE_SEED: &str = "1000";
/// Seeds for one named target unless `--runs` says otherwise.
const NAMED_RUNS: &str = "10000";

/// All crates together, as the tests are built: a single crate would be built with other features of its dependencies,
/// and so would they.
fn tests() -> Command {
    let mut test = cargo(["test", "--quiet", "--lib", "--tests"]);
    test.args(WORKSPACE);
    test
}

/// Runs the targets whose name contains `filter`.
fn run_targets(filter: &str, seed: &str, runs: &str) -> Outcome {
    if !targets()?.iter().any(|name| name.contains(filter)) {
        return Err(format!(
            "no target `{filter}`; `cargo xtask fuzz --list` shows them"
        ));
    }
    process::run(
        tests()
            .arg(filter)
            .env("NILOMETER_FUZZ_SEED", seed)
            .env("NILOMETER_FUZZ_RUNS", runs),
    )
}

/// Names of all targets.
fn targets() -> Outcome<Vec<String>> {
    let list = read(tests().args(["fuzz_", "--", "--list", "--format", "terse"]))?;
    Ok(list
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .filter(|name| is_target(name))
        .map(String::from)
        .collect())
}

fn is_target(name: &str) -> bool {
    name.rsplit("::")
        .next()
        .is_some_and(|leaf| leaf.starts_with("fuzz_"))
}

/// Runs a campaign; the arguments are those of the program.
fn campaign(arguments: &[&str]) -> Outcome {
    let fixed = [
        "run",
        "--profile",
        "checked",
        "--quiet",
        "--package",
        "nilometer-campaign",
        "--",
    ];
    process::run(&mut cargo(fixed.iter().chain(arguments)))
}

/// `fuzz`, `fuzz --list`, `fuzz NAME [--seed N] [--runs N]`, `fuzz --inputs N [--target NAME] [--first SEED]`,
/// `fuzz --target NAME --seed N [--show]`.
pub(crate) fn run(arguments: &[&str]) -> Outcome {
    if arguments
        .iter()
        .any(|word| ["--inputs", "--target"].contains(word))
    {
        return campaign(arguments);
    }
    let (mut name, mut seed, mut runs) = (None, None, None);
    let mut words = arguments.iter().copied();
    while let Some(word) = words.next() {
        let slot = match word {
            "--list" => {
                targets()?.iter().for_each(|name| println!("{name}"));
                return Ok(());
            }
            "--seed" => &mut seed,
            "--runs" => &mut runs,
            other if !other.starts_with('-') && name.is_none() => {
                name = Some(other);
                continue;
            }
            other => return Err(format!("unknown argument `{other}`")),
        };
        let value = words
            .next()
            .ok_or_else(|| format!("{word} needs a number"))?;
        value
            .parse::<u64>()
            .map_err(|_| format!("{word} needs a number, not `{value}`"))?;
        *slot = Some(value);
    }
    match name {
        None => run_targets(
            "fuzz_",
            seed.unwrap_or(SMOKE_SEED),
            runs.unwrap_or(SMOKE_RUNS),
        ),
        Some(name) => {
            // A given seed is replayed alone.
            let default = if seed.is_some() { "1" } else { NAMED_RUNS };
            let target = name.strip_prefix("fuzz_").unwrap_or(name);
            let target = format!("fuzz_{target}");
            run_targets(&target, seed.unwrap_or("0"), runs.unwrap_or(default))
        }
    }
}
