//! The binary. See [`nilometer_server::cli`].

use std::process::ExitCode;

/// The allocator: decision 0012.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    nilometer_server::cli::main(std::env::args_os().collect())
}
