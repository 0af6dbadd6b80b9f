//! Running other programs, with errors that name the command.
//!
//! Output is passed through, so that a long step shows its progress. A failed command is an error that repeats its line.

use std::ffi::OsStr;
use std::net::TcpListener;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

/// The result of a task; the error is a text for a person.
pub(crate) type Outcome<T = ()> = Result<T, String>;

/// Options of cargo for all crates but that of object storage and its benchmark, whose dependencies take longer to build
/// than all others. Its checks are a step of `ci`.
pub(crate) const WORKSPACE: [&str; 5] = [
    "--workspace",
    "--exclude",
    "nilometer-cluster",
    "--exclude",
    "nilometer-bench-cluster",
];

/// The ports that servers get here. They lie below those that the system gives to outgoing connections (from 32,768 on Linux): such a
/// port, free when it is chosen, may belong to a connection of a client when the server opens it.
const PORTS: Range<u16> = 30_000..31_000;

/// The folder that holds the workspace.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// The folder cargo builds into.
pub(crate) fn target_folder() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => root().join(folder),
        None => root().join("target"),
    }
}

/// True where a skipped check counts as a failed one.
pub(crate) fn in_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| value == "true" || value == "1")
}

/// Returns a free port, another at each call; an error if none is left.
pub(crate) fn free_port() -> Outcome<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(PORTS.start);
    loop {
        let port = NEXT.fetch_add(1, Ordering::Relaxed);
        if !PORTS.contains(&port) {
            return Err(format!("no port of {PORTS:?} is free"));
        }
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
}

/// A command for the `cargo` that runs this task, in the workspace's root.
pub(crate) fn cargo<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root());
    command
}

/// Runs to the end; any status but 0 is an error.
pub(crate) fn run(command: &mut Command) -> Outcome {
    let line = describe(command);
    println!("$ {line}");
    let status = command
        .stdin(Stdio::null())
        .status()
        .map_err(|e| format!("cannot start `{line}`: {e}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("`{line}` failed ({status})"))
    }
}

/// Runs to the end without output; any status but 0 is an error.
pub(crate) fn run_quietly(command: &mut Command) -> Outcome {
    read(command).map(drop)
}

/// Runs to the end and returns standard output; errors carry the end of standard error.
pub(crate) fn read(command: &mut Command) -> Outcome<String> {
    let line = describe(command);
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("cannot start `{line}`: {e}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let tail: Vec<&str> = errors.lines().rev().take(12).collect();
    let tail: Vec<&str> = tail.into_iter().rev().collect();
    Err(format!(
        "`{line}` failed ({})\n{}",
        output.status,
        tail.join("\n")
    ))
}

/// True when `program` can be started with `argument` (a version flag).
pub(crate) fn exists(program: &str, argument: &str) -> bool {
    Command::new(program)
        .arg(argument)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// True if the user is root.
pub(crate) fn is_root() -> bool {
    read(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0")
}

/// The command line as typed into a shell.
fn describe(command: &Command) -> String {
    let mut line = Path::new(command.get_program())
        .file_name()
        .unwrap_or(command.get_program())
        .to_string_lossy()
        .into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}
