//! The binary. What it does is [`nilometer_server::cli`]'s.

use std::process::ExitCode;

fn main() -> ExitCode {
    nilometer_server::cli::main(std::env::args_os().collect())
}
