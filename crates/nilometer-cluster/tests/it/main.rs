//! All integration tests of the crate, in one binary.

#![expect(clippy::print_stderr, reason = "long runs say what they covered")]

mod azure;
mod backup;
mod board;
mod campaign;
mod claim;
// The list of conformance.
#[path = "../../../../xtask/src/conformance/checks.rs"]
#[allow(dead_code, reason = "conformance has more clients")]
mod checks;
mod clients;
mod cluster_copy;
mod compactor;
mod continuous_backup;
mod contract;
mod copy;
mod damage;
mod database;
mod drivers;
mod dropped;
mod faults;
mod faulty;
mod fencing;
mod kill;
mod members;
mod model;
mod nodes;
mod nodes_campaign;
mod nodes_outage;
mod nodes_work;
mod probe;
mod proxy;
mod pymongo;
mod reader;
mod register;
mod requests;
mod s3;
mod scans;
mod server;
mod server_backup;
mod server_compactor;
mod shell;
mod simulation;
mod statistics;
mod support;
mod visibility;
mod web;
