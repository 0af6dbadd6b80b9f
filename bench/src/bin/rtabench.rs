//! A look-alike of RTABench: orders and their events as a time series, 31 questions: `cargo run --release -p nilometer-bench --bin rtabench -- --in-process DIR
//! --orders 100000`. The set is in the library, [`nilometer_bench::sets::rtabench`].

/// The allocator of the server: decision 0012.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

use std::process::ExitCode;

fn main() -> ExitCode {
    nilometer_bench::sets::run_program("rtabench", nilometer_bench::sets::rtabench::run)
}
