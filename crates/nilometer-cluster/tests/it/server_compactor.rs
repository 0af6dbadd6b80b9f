//! `nilometer compactor` beside a server with `--noCompactor`, as processes.

use crate::server::{Server, contents, fill, fill_more, nilometer, refused, url};
use crate::support::Scratch;

/// Starts a compactor that merges.
fn compactor(url: &str) -> Server {
    let compactor = Server::begin(&mut nilometer(&["compactor", "--storage", url]));
    compactor.line("Merging tables beside the server");
    compactor
}

#[test]
fn a_compactor_works_beside_a_server() {
    let directory = Scratch::new("server-compactor");
    let url = url(directory.path());
    let told = refused(&["compactor", "--storage", &url], 100);
    assert!(told.contains("there is no database"), "{told}");
    let server = Server::start(&["--storage", &url]);
    let told = refused(&["compactor", "--storage", &url], 100);
    assert!(told.contains("merges by itself"), "{told}");
    server.stop();
    let server = Server::start(&["--storage", &url, "--noCompactor"]);
    let first = compactor(&url);
    fill(&server);
    let expected = contents(&server);
    first.stop();
    let mut second = compactor(&url);
    assert_eq!(contents(&server), expected);
    server.stop();
    // It continues with the next server, and ends with one that merges by itself.
    let server = Server::start(&["--storage", &url, "--noCompactor"]);
    assert_eq!(contents(&server), expected);
    server.stop();
    let server = Server::start(&["--storage", &url]);
    assert_eq!(second.child.wait().expect("its end").code(), Some(102));
    assert_eq!(contents(&server), expected);
    fill_more(&server);
}
