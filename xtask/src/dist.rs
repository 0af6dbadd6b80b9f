//! `cargo xtask dist`: the release build, independent of the machine.
//!
//! | difference | removed by |
//! |---|---|
//! | folders of source, registry, toolchain and output, in panics and debug information | `--remap-path-prefix`, for C `-ffile-prefix-map` |
//! | time of the build | `SOURCE_DATE_EPOCH` is the commit's |
//! | the commit | `NILOMETER_COMMIT`, else the commit of the work tree |
//! | versions of packages | `--locked` |
//! | order of parallel work | no incremental build; rustc's output does not depend on it |
//!
//! The same commit, compiler (`rustc -Vv`), C compiler and linker give the same bytes in any folder. Other versions of
//! these tools may give other bytes; the container file pins them.

use std::path::PathBuf;
use std::process::Command;

use crate::process::{Outcome, cargo, read, root, run, target_folder};

/// Applies to packages in C, too.
const PROFILE: &str = "release";

/// The program that [`build`] makes.
pub(crate) fn program() -> PathBuf {
    folder().join(PROFILE).join("nilometer")
}

fn folder() -> PathBuf {
    target_folder().join("dist")
}

/// Builds, and prints the hash of the program.
pub(crate) fn build() -> Outcome {
    let target = folder();
    let mut build = cargo(["build", "--locked", "--package", "nilometer-server"]);
    build
        .args(["--profile", PROFILE, "--target-dir"])
        .arg(&target);
    let places = places(&target)?;
    let flags = places
        .iter()
        .map(|(from, to)| format!("--remap-path-prefix={from}={to}"));
    let flags: Vec<String> = flags.collect();
    let c_flags = places
        .iter()
        .map(|(from, to)| format!("-ffile-prefix-map={from}={to}"));
    let c_flags: Vec<String> = c_flags.collect();
    build
        // A separator that no path contains.
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
        .env("CFLAGS", c_flags.join(" "))
        .env("CARGO_INCREMENTAL", "0")
        .env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo");
    if std::env::var_os("SOURCE_DATE_EPOCH").is_none()
        && let Ok(time) = git(&["log", "-1", "--format=%ct"])
    {
        build.env("SOURCE_DATE_EPOCH", time);
    }
    if std::env::var_os("NILOMETER_COMMIT").is_none() {
        let dirty = git(&["status", "--porcelain", "--untracked-files=no"]);
        if dirty.is_ok_and(|changes| !changes.is_empty()) {
            println!("uncommitted changes: the program will name the commit without them");
        }
    }
    run(&mut build)?;
    let hash = read(Command::new("sha256sum").arg(program()))?;
    print!("{hash}");
    println!(
        "built by {}",
        read(Command::new("rustc").arg("--version"))?.trim()
    );
    Ok(())
}

/// Folders whose names would be in the program, and their replacements. Later entries win, so the widest come first.
fn places(target: &std::path::Path) -> Outcome<Vec<(String, &'static str)>> {
    let home = std::env::var_os("HOME")
        .map(PathBuf::from)
        .unwrap_or_default();
    let cargo_home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let sysroot = read(Command::new("rustc").args(["--print", "sysroot"]))?;
    let places = [
        (cargo_home.unwrap_or_else(|| home.join(".cargo")), "/cargo"),
        (PathBuf::from(sysroot.trim()), "/rust"),
        (root(), "/nilometer"),
        (target.to_path_buf(), "/target"),
    ];
    Ok(places
        .map(|(from, to)| (from.to_string_lossy().into_owned(), to))
        .into())
}

fn git(arguments: &[&str]) -> Outcome<String> {
    let mut command = Command::new("git");
    let output = read(command.args(arguments).current_dir(root()))?;
    Ok(output.trim().to_owned())
}
