//! A look-alike of JSONBench: a million events of a social network, five questions, three layouts: `cargo run --release -p nilometer-bench --bin jsonbench -- --in-process DIR
//! --events 1000000`. The set is in the library, [`nilometer_bench::sets::jsonbench`].

/// The allocator of the server: decision 0012.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

use std::process::ExitCode;

fn main() -> ExitCode {
    nilometer_bench::sets::run_program("jsonbench", nilometer_bench::sets::jsonbench::run)
}
