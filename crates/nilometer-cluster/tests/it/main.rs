//! All integration tests of the crate, in one binary.

#![expect(clippy::print_stderr, reason = "long runs say what they covered")]

mod claim;
mod contract;
mod copy;
mod damage;
mod database;
mod dropped;
mod faults;
mod faulty;
mod fencing;
mod kill;
mod model;
mod probe;
mod requests;
mod s3;
mod scans;
mod server;
mod statistics;
mod support;
mod visibility;
