//! `cargo xtask fuzz`: the fuzz targets on a stable compiler.
//!
//! A target is a test whose name starts with `fuzz_`, in the crate whose bytes it attacks. It takes
//! its seeds from `NILOMETER_FUZZ_SEED` (first seed) and `NILOMETER_FUZZ_RUNS` (how many), 0 and 200
//! when they are not set, which is what `cargo test` runs; a failure names its seed. The libFuzzer
//! shells in `fuzz/` call the same entry functions.

use crate::process::{self, Outcome, cargo, read};

/// Seeds for each target in the smoke run, from [`SMOKE_SEED`] on, beyond those of `cargo test`.
const SMOKE_RUNS: &str = "1000";
const SMOKE_SEED: &str = "1000";
/// Seeds for one named target unless `--runs` says otherwise.
const NAMED_RUNS: &str = "10000";

/// The crates that may hold targets.
const CRATES: [&str; 4] = [
    "nilometer-bson",
    "nilometer-storage",
    "nilometer",
    "nilometer-server",
];

/// Runs all targets for a short time, or one as the arguments say.
pub(crate) fn run_targets(filter: &str, seed: &str, runs: &str) -> Outcome {
    let mut found = false;
    for package in CRATES {
        if !targets(package)?.iter().any(|name| name.contains(filter)) {
            continue;
        }
        found = true;
        process::run(
            cargo(["test", "--quiet", "--package", package, filter])
                .args(["--lib", "--tests"])
                .env("NILOMETER_FUZZ_SEED", seed)
                .env("NILOMETER_FUZZ_RUNS", runs),
        )?;
    }
    if found {
        Ok(())
    } else {
        Err(format!(
            "no target `{filter}`; `cargo xtask fuzz --list` shows them"
        ))
    }
}

/// The command line of this task.
pub(crate) fn run_list() -> Outcome {
    for package in CRATES {
        for name in targets(package)? {
            println!("{package}  {name}");
        }
    }
    Ok(())
}

/// Names of the targets of a crate.
fn targets(package: &str) -> Outcome<Vec<String>> {
    let list = ["test", "--quiet", "--package", package, "--lib", "--tests"];
    let told = read(cargo(list).args(["fuzz_", "--", "--list", "--format", "terse"]))?;
    Ok(told
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

/// `fuzz`, `fuzz --list`, `fuzz NAME [--seed N] [--runs N]`.
pub(crate) fn run(arguments: &[&str]) -> Outcome {
    let (mut name, mut seed, mut runs) = (None, None, None);
    let mut words = arguments.iter().copied();
    while let Some(word) = words.next() {
        let slot = match word {
            "--list" => return run_list(),
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
            // Replaying a seed means that seed; exploring means many.
            let default = if seed.is_some() { "1" } else { NAMED_RUNS };
            let target = name.strip_prefix("fuzz_").unwrap_or(name);
            let target = format!("fuzz_{target}");
            run_targets(&target, seed.unwrap_or("0"), runs.unwrap_or(default))
        }
    }
}
