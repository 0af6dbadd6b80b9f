//! `cargo xtask deny`: licences, sources, duplicates and advisories of all dependencies, checked against `deny.toml`
//! by cargo-deny.
//!
//! If cargo-deny is not installed, the version named here is built from crates.io into the target folder, once. That
//! takes a processor minute, so this is one of the last steps of `ci`.
//!
//! Advisories are in a repository that must be fetched. Where it cannot be reached, the step prints `NOT CHECKED` and
//! passes, so that `ci` works without a network.

use std::path::PathBuf;
use std::process::Command;

use crate::process::{Outcome, cargo, read, root, run, target_folder};

/// The version built if none is installed.
const VERSION: &str = "0.20.2";

/// Checks licences, bans and sources, and advisories if their list can be fetched.
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

/// The installed program, or else one built now.
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
    // Without optimisation it is built in a third of the time, and has little to do.
    let fixed = [
        "install",
        "cargo-deny",
        "--debug",
        "--locked",
        "--no-default-features",
    ];
    run(cargo(fixed)
        .args(["--version", VERSION, "--root"])
        .arg(&folder)
        .arg("--target-dir")
        .arg(&build))?;
    // A folder that cannot be removed does no harm.
    drop(std::fs::remove_dir_all(build));
    Ok(built)
}

fn works(program: &PathBuf) -> bool {
    read(Command::new(program).arg("--version")).is_ok()
}
