//! Speed of the codecs on one core: `cargo run --release -p nilometer-bench-micro [FILTER]`.
//!
//! By default columns are as long as in a bucket. `--long` makes them 100 times longer, which shows the cost of
//! allocation and of first use of memory.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

mod column;
mod measure;

fn main() {
    let mut long = false;
    let mut filter = String::new();
    for argument in std::env::args().skip(1) {
        if argument == "--long" {
            long = true;
        } else {
            filter = argument;
        }
    }
    column::run(if long { 100_000 } else { 1000 }, &filter);
}
