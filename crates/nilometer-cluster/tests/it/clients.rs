//! Clients of conformance: whether they are installed, and what they report.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The interpreter of the client in Python, in its folder.
pub(crate) const PYTHON: &str = "target/venv/bin/python";

/// Returns the folder of a client of conformance; `None`, and says so, if one of these files of it is not there. With `CI=true` in
/// the environment that is a failure.
pub(crate) fn installed(name: &str, needed: &[&str]) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance");
    let folder = folder.join(name);
    if needed.iter().all(|file| folder.join(file).exists()) {
        return Some(folder);
    }
    let reason = format!("{name} is not installed: run cargo xtask conformance {name}");
    let is_in_ci = std::env::var_os("CI").is_some_and(|ci| ci == "true" || ci == "1");
    assert!(!is_in_ci, "{reason}");
    eprintln!("skipped: {reason}");
    None
}

/// Runs a client to its end. Returns what it prints.
pub(crate) fn output_of(client: &mut Command) -> String {
    let output = client.output().expect("the client");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    format!("{text}{errors}")
}

/// Checks that a client reports each of these checks as passed, and no failure.
pub(crate) fn passed(shown: &str, checks: &[&str]) {
    for check in checks {
        let line = format!("ok {check}\n");
        assert!(shown.contains(&line), "{check}:\n{shown}");
    }
    assert!(!shown.contains("not ok"), "{shown}");
}

/// Returns a port on which nothing listens at this moment.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    listener.local_addr().expect("an address").port()
}
