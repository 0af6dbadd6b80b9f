//! The web page of a node, in a browser: the view of the cluster.
//!
//! Needs the modules of `conformance/web`, which `cargo xtask conformance web` installs, and Chromium. Without them the test is
//! skipped, and says so; with `CI=true` in the environment that is a failure, as in conformance.

use std::process::Command;

use crate::clients::{free_port, installed, output_of, passed};
use crate::nodes::{node, until_owned};
use crate::server::url;
use crate::support::Scratch;

/// The checks of `cluster.mjs`.
const CHECKS: [&str; 8] = [
    "cluster_shows_nodes_and_partitions",
    "cluster_shows_ranges_over_time",
    "cluster_shows_moves",
    "cluster_shows_the_balancer",
    "cluster_has_no_buckets_to_show",
    "cluster_is_used_by_keyboard",
    "cluster_fits_narrow_and_dark_screens",
    "cluster_loads_nothing_from_elsewhere",
];

/// The browser, as `conformance/web/browser.mjs` finds it.
fn browser() -> String {
    std::env::var("NILOMETER_CHROMIUM").unwrap_or_else(|_| "/usr/bin/chromium".to_owned())
}

#[test]
fn the_page_shows_the_cluster() {
    let needed = ["node_modules/playwright-core", &browser()];
    let Some(folder) = installed("web", &needed) else {
        return;
    };
    let directory = Scratch::new("web");
    let url = url(directory.path());
    let port = free_port().to_string();
    let first = node(
        &url,
        &["--partitions", "4", "--httpPort", &port, "--webPage"],
    );
    until_owned(&first, &[&first]);
    let (second, third) = (node(&url, &[]), node(&url, &[]));
    for server in [&first, &second, &third] {
        until_owned(server, &[&first, &second, &third]);
    }
    let shown = output_of(
        Command::new("node")
            .arg(folder.join("cluster.mjs"))
            .env(
                "NILOMETER_URI",
                format!("mongodb://127.0.0.1:{}/", first.port),
            )
            .env("NILOMETER_WEB", format!("http://127.0.0.1:{port}")),
    );
    passed(&shown, &CHECKS);
}
