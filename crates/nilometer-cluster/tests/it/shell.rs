//! mongosh against three nodes: what people type about a cluster, and the tour of the query language.
//!
//! Needs the modules of `conformance/mongosh`, which `cargo xtask conformance mongosh` installs. Without them the test is skipped,
//! and says so; with `CI=true` in the environment that is a failure, as in conformance.

use std::path::Path;
use std::process::Command;

use crate::clients::{installed, output_of, passed};
use crate::nodes::{node, until_owned};
use crate::server::url;
use crate::support::Scratch;

/// The checks of `cluster.js`.
const CHECKS: [&str; 11] = [
    "cluster_is_shown",
    "collections_are_sharded",
    "distributions_are_shown",
    "ranges_are_split_and_moved",
    "versions_and_shards_are_told",
    "indexes_of_shard_keys_stay",
    "balancer_is_switched",
    "collections_are_left_alone_by_the_balancer",
    "what_is_not_there_is_refused",
    "writes_through_the_router",
    "rollups_and_outputs",
];

/// Least number of checks in `tour.js`.
const TOUR_CHECKS_MIN: usize = 10;

/// Runs a file in mongosh until all its checks pass, twice at most: where processes get no time, a partition may be taken over, which
/// ends open cursors. Returns what it prints.
fn best_of_two(folder: &Path, home: &Path, port: u16, file: &str) -> String {
    let first = typed(folder, home, port, file);
    match first.contains("not ok") {
        true => typed(folder, home, port, file),
        false => first,
    }
}

/// Runs a file in mongosh. Returns what it prints.
fn typed(folder: &Path, home: &Path, port: u16, file: &str) -> String {
    output_of(
        Command::new("node")
            .arg(folder.join("node_modules/mongosh/bin/mongosh.js"))
            .arg(format!("mongodb://127.0.0.1:{port}/"))
            .args(["--quiet", "--norc", "--file"])
            .arg(folder.join(file))
            .env("HOME", home)
            .env("NO_COLOR", "1"),
    )
}

#[test]
fn mongosh_on_three_nodes() {
    let needed = ["node_modules/mongosh/bin/mongosh.js"];
    let Some(folder) = installed("mongosh", &needed) else {
        return;
    };
    let (directory, home) = (Scratch::new("shell"), Scratch::new("shell-home"));
    let url = url(directory.path());
    let first = node(&url, &["--partitions", "4"]);
    until_owned(&first, &[&first]);
    let (second, third) = (node(&url, &[]), node(&url, &[]));
    for server in [&first, &second, &third] {
        until_owned(server, &[&first, &second, &third]);
    }
    let shown = best_of_two(&folder, home.path(), second.port, "cluster.js");
    passed(&shown, &CHECKS);
    let shown = best_of_two(&folder, home.path(), third.port, "tour.js");
    let done = shown.lines().filter(|line| line.starts_with("ok "));
    assert!(done.count() >= TOUR_CHECKS_MIN, "{shown}");
    assert!(!shown.contains("not ok"), "{shown}");
}
