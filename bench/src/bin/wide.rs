//! Questions that read a column of every measurement: `cargo run --release -p nilometer-bench --bin wide -- --in-process DIR
//! --hosts 100`. The set is in the library, [`nilometer_bench::sets::wide`].

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
    match nilometer_bench::sets::wide::run(&arguments, &mut |text| print!("{text}")) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("wide: {message}");
            ExitCode::FAILURE
        }
    }
}
