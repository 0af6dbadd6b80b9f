//! All integration tests of the crate, in one binary.

#![expect(clippy::print_stderr, reason = "long runs say what they covered")]

mod contract;
mod damage;
mod database;
mod dropped;
mod fencing;
mod kill;
mod model;
mod requests;
mod scans;
mod statistics;
mod support;
mod visibility;
