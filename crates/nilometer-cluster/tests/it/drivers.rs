//! The clients of conformance in Python and Node.js against three nodes: all that they do on one server, but what [`LEFT_OUT`] names.
//!
//! Needs what `cargo xtask conformance pymongo` and `node` install. Without it a test is skipped, and says so; with `CI=true` in the
//! environment that is a failure, as in conformance.

use std::path::Path;
use std::process::Command;

use crate::checks::{BULK_CHANGES, DRIVER, LOGINS, TOUR};
use crate::clients::{PYTHON, installed, output_of, passed};
use crate::nodes::{node, until_owned};
use crate::server::{Server, url};
use crate::support::Scratch;

/// Parts of checks that a router does not have, and why. The clients say which they have left out.
const LEFT_OUT: [(&str, &str); 2] = [
    (
        "buckets",
        "a router reads measurements: buckets of one time are in several partitions, as documents they are refused (115)",
    ),
    (
        "tailable_cursors",
        "a cursor of a router ends with the documents of its partitions: tailable is refused (115)",
    ),
];

fn three_nodes(url: &str) -> [Server; 3] {
    let first = node(url, &["--partitions", "4"]);
    until_owned(&first, &[&first]);
    let (second, third) = (node(url, &[]), node(url, &[]));
    for server in [&first, &second, &third] {
        until_owned(server, &[&first, &second, &third]);
    }
    [first, second, third]
}

/// Runs a client against nodes of which the first has the catalog: all checks must pass.
fn run(name: &str, client: impl Fn() -> Command, checks: &[&str]) {
    let directory = Scratch::new(name);
    let nodes = three_nodes(&url(directory.path()));
    let left_out = LEFT_OUT.map(|(name, _)| name);
    let typed = |node: &Server| {
        let uri = format!("mongodb://127.0.0.1:{}/", node.port);
        let mut client = client();
        client.env("NILOMETER_URI", uri);
        output_of(client.env("NILOMETER_LEFT_OUT", left_out.join(",")))
    };
    let [_, second, third] = &nodes;
    let mut shown = typed(second);
    // Where processes get no time, a partition may be taken over, which ends open cursors.
    if shown.contains("not ok") {
        eprintln!("{shown}");
        shown = typed(third);
    }
    passed(&shown, checks);
    for (part, reason) in LEFT_OUT {
        let line = format!("left out {part}\n");
        assert!(shown.contains(&line), "{part} ({reason}):\n{shown}");
    }
}

fn in_folder(program: &Path, folder: &Path, script: &str) -> Command {
    let mut client = Command::new(program);
    client.arg(folder.join(script));
    client
}

#[test]
fn pymongo_on_three_nodes() {
    let Some(folder) = installed("pymongo", &[PYTHON]) else {
        return;
    };
    let client = || in_folder(&folder.join(PYTHON), &folder, "check.py");
    let checks = [DRIVER, TOUR, BULK_CHANGES, LOGINS].concat();
    run("drivers-python", client, &checks);
}

#[test]
fn node_js_on_three_nodes() {
    let Some(folder) = installed("node", &["node_modules/mongodb"]) else {
        return;
    };
    let client = || in_folder(Path::new("node"), &folder, "check.mjs");
    run("drivers-node", client, &[DRIVER, TOUR, LOGINS].concat());
}
