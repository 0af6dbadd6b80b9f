//! `cargo xtask deny`: licences, sources, duplicates and known weaknesses of everything that is linked, as
//! `deny.toml` allows them.
//!
//! The work is cargo-deny's. If it is not installed, the version named here is built from crates.io into the target
//! folder, once: two processor minutes and a half, which is why this is the last step of `ci`.
//!
//! Weaknesses are listed in a repository of their own, which has to be fetched. Where it cannot be reached they are
//! not checked, and the step says so without failing: it would fail on every machine that is kept off the network.

use std::path::PathBuf;
use std::process::Command;

use crate::process::{Outcome, cargo, read, root, run, target_folder};

/// What is built if none is installed.
const VERSION: &str = "0.20.2";

/// Checks everything that can be checked here.
pub(crate) fn all() -> Outcome {
    let tool = tool()?;
    let deny = |arguments: &[&str]| {
        let mut command = Command::new(&tool);
        command.current_dir(root()).args(["--log-level", "error"]);
        command.args(arguments);
        command
    };
    run(&mut deny(&["check", "licenses", "bans", "sources"]))?;
    if let Err(why) = read(&mut deny(&["fetch", "db"])) {
        println!("advisories: NOT CHECKED, their list cannot be fetched:\n{why}");
        return Ok(());
    }
    run(&mut deny(&["check", "--disable-fetch", "advisories"]))
}

/// The program: what is installed, or what is built now.
fn tool() -> Outcome<PathBuf> {
    let installed = PathBuf::from("cargo-deny");
    if works(&installed) {
        return Ok(installed);
    }
    let folder = target_folder().join("tools");
    let built = folder.join("bin").join("cargo-deny");
    if works(&built) {
        return Ok(built);
    }
    let build = folder.join("build");
    let fixed = ["install", "cargo-deny", "--locked", "--no-default-features"];
    run(cargo(fixed)
        .args(["--version", VERSION, "--root"])
        .arg(&folder)
        .arg("--target-dir")
        .arg(&build))?;
    // Only the program is wanted; a folder that stays behind does no harm.
    drop(std::fs::remove_dir_all(build));
    Ok(built)
}

fn works(program: &PathBuf) -> bool {
    read(Command::new(program).arg("--version")).is_ok()
}
