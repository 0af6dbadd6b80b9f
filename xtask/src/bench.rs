//! `cargo xtask bench`: the load generator and the look-alikes of published benchmarks, optimised; with `--peers` beside
//! other databases over the same data.
//!
//! The peers live in `bench/peers`, a Python program; its libraries come from PyPI at pinned versions into a virtual
//! environment beside it, as those of conformance clients do. Nilometer runs first and has ended when the peers start.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{Outcome, cargo, read, root, run, target_folder};

/// Programs of the crate besides the load generator, each with the peers' name of its set.
const SETS: [&str; 3] = ["jsonbench", "rtabench", "wide"];

/// The flag that the peers are measured, too.
const PEERS: &str = "--peers";

/// Options that the peers receive instead of Nilometer.
const OF_PEERS: [&str; 3] = ["--threads", "--query-seconds", "--rounds"];

/// Runs the load generator or a set.
pub(crate) fn bench(arguments: &[&str]) -> Outcome {
    let (set, rest) = match arguments {
        [first, rest @ ..] if SETS.contains(first) => (Some(*first), rest),
        all => (None, all),
    };
    if !rest.contains(&PEERS) {
        return run(&mut program(set, rest.iter().copied()));
    }
    beside_peers(set, rest)
}

/// Returns the command for one program of the crate.
fn program<'a>(set: Option<&'a str>, arguments: impl Iterator<Item = &'a str>) -> Command {
    let name = set.unwrap_or("nilometer-bench");
    let fixed = [
        "run",
        "--release",
        "--quiet",
        "--package",
        "nilometer-bench",
    ];
    let mut command = cargo(fixed);
    command.args(["--bin", name, "--"]).args(arguments);
    command
}

/// Runs Nilometer with its data exported, then the peers, and prints one table.
fn beside_peers(set: Option<&str>, arguments: &[&str]) -> Outcome {
    let (own, peers) = divide(arguments)?;
    let work = target_folder().join("bench-peers");
    remove(&work)?;
    std::fs::create_dir_all(&work).map_err(|e| format!("{}: {e}", work.display()))?;
    let path = |name: &str| work.join(name).to_string_lossy().into_owned();
    let (database, export, json) = (path("nilometer"), path("export"), path("nilometer.json"));
    let mut all: Vec<&str> = own;
    if !all.iter().any(|a| matches!(*a, "--uri" | "--in-process")) {
        all.extend(["--in-process", &database]);
    }
    all.extend(["--export", &export, "--json", &json]);
    let python = install()?;
    let outcome = run(&mut program(set, all.into_iter()));
    // The peers need the space and the memory.
    remove(Path::new(&database))?;
    let script = folder().join("run.py").to_string_lossy().into_owned();
    let mut compare = Command::new(python);
    compare.args([&script, set.unwrap_or("tsbs")]).arg(&work);
    compare.args(peers).current_dir(root());
    let outcome = outcome.and_then(|()| run(&mut compare));
    remove(&work)?;
    outcome
}

/// Divides the arguments into those of Nilometer and those of the peers.
fn divide<'a>(arguments: &[&'a str]) -> Outcome<(Vec<&'a str>, Vec<&'a str>)> {
    let (mut own, mut peers) = (Vec::new(), Vec::new());
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        if *word == PEERS {
            continue;
        }
        if !OF_PEERS.contains(word) {
            own.push(*word);
            continue;
        }
        let value = words.next();
        let value = value.ok_or_else(|| format!("{word} needs a value"))?;
        peers.extend([*word, *value]);
    }
    Ok((own, peers))
}

/// Creates the virtual environment unless it has the pinned libraries. Returns its Python.
fn install() -> Outcome<PathBuf> {
    let pins = folder().join("requirements.txt");
    let failed = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
    let pinned = std::fs::read_to_string(&pins).map_err(|e| failed(&pins, e))?;
    let environment = folder().join("target/venv");
    let stamp = folder().join("target/installed");
    let python = environment.join("bin/python");
    if std::fs::read_to_string(&stamp).is_ok_and(|old| old == pinned) {
        return Ok(python);
    }
    remove(&folder().join("target"))?;
    read(
        Command::new("python3")
            .args(["-m", "venv"])
            .arg(&environment),
    )?;
    let pip = ["-m", "pip", "install", "--quiet", "--requirement"];
    read(Command::new(&python).args(pip).arg(&pins))?;
    std::fs::write(&stamp, pinned).map_err(|e| failed(&stamp, e))?;
    Ok(python)
}

fn folder() -> PathBuf {
    root().join("bench/peers")
}

/// Removes a folder if it is there.
fn remove(folder: &Path) -> Outcome {
    match std::fs::remove_dir_all(folder) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {e}", folder.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_receive_their_options_alone() {
        let all = ["--peers", "--scale", "5", "--threads", "1", "--days", "2"];
        let (own, peers) = divide(&all).unwrap();
        assert_eq!(own, ["--scale", "5", "--days", "2"]);
        assert_eq!(peers, ["--threads", "1"]);
        assert!(divide(&["--threads"]).is_err());
    }
}
