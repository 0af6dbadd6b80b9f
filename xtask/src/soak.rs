//! `cargo xtask soak`: the soak test of the server (`tests/it/soak`) for minutes or hours. The head of the test says
//! what must hold at the end.

use crate::process::{Outcome, WORKSPACE, cargo, run};

/// Minutes unless `--minutes` says otherwise.
const MINUTES: u64 = 30;

/// Seconds of the soak in `ci`, in the debug build.
const CI_SECONDS: u64 = 30;

const TEST: &str = "soak_ends_with";

/// `soak [--minutes N] [--seed N]`, optimised and with every check of a debug build.
pub(crate) fn long(arguments: &[&str]) -> Outcome {
    let (mut minutes, mut seed) = (MINUTES, None);
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let number = words.next().and_then(|text| text.parse::<u64>().ok());
        let number = number.ok_or_else(|| format!("{word} needs a number"))?;
        match *word {
            "--minutes" => minutes = number,
            "--seed" => seed = Some(number),
            other => return Err(format!("unknown argument `{other}`")),
        }
    }
    let mut command = cargo(["test", "--profile", "checked", "--quiet"]);
    command.args(["--package", "nilometer-server", "--test", "it"]);
    command.args(["--", TEST, "--nocapture"]);
    command.env("NILOMETER_SOAK_SECONDS", (minutes * 60).to_string());
    // By default each run makes other choices; it prints its seed.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let chosen = now.map_or(0, |now| now.as_secs());
    command.env("NILOMETER_SEED", seed.unwrap_or(chosen).to_string());
    run(&mut command)
}

/// The step of `ci`.
pub(crate) fn short() -> Outcome {
    let test = ["--quiet", "--lib", "--tests", "--"];
    run(cargo(["test"])
        .args(WORKSPACE)
        .args(test)
        .args([TEST, "--nocapture"])
        .env("NILOMETER_SOAK_SECONDS", CI_SECONDS.to_string()))
}
