//! The binary: its allocator. What it does is [`nilometer_server::cli`]'s.

use std::ffi::OsString;
use std::process::ExitCode;

/// The allocator: decision 0012.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What the allocator is told of the milliseconds it may keep memory that was freed.
#[cfg(unix)]
const PURGE_DELAY: (&str, &str) = ("MIMALLOC_PURGE_DELAY", "100");

/// Begins a server anew with what the allocator shall be told, if nobody told it. It reads its environment before
/// `main`, and no other way to tell it is free of unsafe code. Where that does not go, the server takes more memory.
#[cfg(unix)]
fn tell_the_allocator(arguments: &[OsString]) {
    use std::os::unix::process::CommandExt;
    let (name, milliseconds) = PURGE_DELAY;
    let [program, command, rest @ ..] = arguments else {
        return;
    };
    if command != "serve" || std::env::var_os(name).is_some() {
        return;
    }
    let Ok(own) = std::env::current_exe() else {
        return;
    };
    // Comes back only if it failed.
    let _ = std::process::Command::new(own)
        .arg0(program)
        .arg(command)
        .args(rest)
        .env(name, milliseconds)
        .exec();
}

#[cfg(not(unix))]
fn tell_the_allocator(_: &[OsString]) {}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    tell_the_allocator(&arguments);
    nilometer_server::cli::main(arguments)
}
