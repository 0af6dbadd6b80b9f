//! A look-alike of JSONBench: a million events of a social network, five questions, three layouts: `cargo run --release -p nilometer-bench --bin jsonbench -- --in-process DIR
//! --events 1000000`. The set is in the library, [`nilometer_bench::sets::jsonbench`].

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line program talks to its terminal"
)]

/// The allocator of the server: decision 0012.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match nilometer_bench::sets::jsonbench::run(&arguments, &mut |text| print!("{text}")) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("jsonbench: {message}");
            ExitCode::FAILURE
        }
    }
}
