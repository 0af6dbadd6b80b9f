//! Questions that read a column of every measurement: `cargo run --release -p nilometer-bench --bin wide -- --in-process DIR
//! --hosts 100`. The set is in the library, [`nilometer_bench::sets::wide`].

/// The allocator of the server: decision 0012.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

use std::process::ExitCode;

fn main() -> ExitCode {
    nilometer_bench::sets::run_program("wide", nilometer_bench::sets::wide::run)
}
