//! A look-alike of RTABench: orders and their events as a time series, 31 questions: `cargo run --release -p nilometer-bench --bin rtabench -- --in-process DIR
//! --orders 100000`. The set is in the library, [`nilometer_bench::sets::rtabench`].

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
    match nilometer_bench::sets::rtabench::run(&arguments, &mut |text| print!("{text}")) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("rtabench: {message}");
            ExitCode::FAILURE
        }
    }
}
