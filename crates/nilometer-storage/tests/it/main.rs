//! All integration tests of the storage crate, in one binary.

#![expect(clippy::print_stderr, reason = "long runs say what they covered")]

mod backup;
mod checkpoint;
mod contract;
mod damage;
#[cfg(target_os = "linux")]
mod dropped;
mod empty_ranges;
mod faults;
mod first_flush;
mod kill;
#[cfg(target_os = "linux")]
mod log_rest;
mod long_keys;
mod memory;
mod model;
mod salvage;
mod separated_scans;
mod sequence_rules;
mod snapshots;
mod support;
mod syncing;
