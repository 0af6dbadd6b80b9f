//! An unchanged pymongo program writes while the server that writes is killed, and continues.
//!
//! Needs the virtual environment of `conformance/pymongo`, which `cargo xtask conformance pymongo` makes. Without it the test
//! is skipped, and says so; with `CI=true` in the environment that is a failure, as in conformance.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::clients::{PYTHON, installed};
use crate::members::{is_primary, is_secondary, until};
use crate::server::{Server, url};
use crate::support::Scratch;

/// Rounds of the program.
const ROUNDS: u32 = 60;

/// Rounds after which the server that writes is killed, and after which its successor is stopped.
const KILLED_AFTER: u32 = 15;
const STOPPED_AFTER: u32 = 35;

#[test]
fn a_pymongo_program_goes_on_when_the_writer_is_killed() {
    let Some(folder) = installed("pymongo", &[PYTHON]) else {
        return;
    };
    let python = folder.join(PYTHON);
    let directory = Scratch::new("pymongo");
    let url = url(directory.path());
    let first = Server::stand_by(&url);
    until(&first, "primary", is_primary);
    let second = Server::stand_by(&url);
    let third = Server::stand_by(&url);
    for server in [&second, &third] {
        until(server, "secondary", is_secondary);
    }
    // A driver forgets the servers that the primary does not name.
    until(&first, "others", |told| {
        told.get_array("hosts").is_ok_and(|hosts| hosts.len() == 3)
    });
    let ports = [first.port, second.port, third.port];
    let hosts = ports.map(|port| format!("127.0.0.1:{port}")).join(",");
    let uri = format!("mongodb://{hosts}/?replicaSet=nilometer&retryWrites=true");
    let mut program = Command::new(python)
        .arg(folder.join("failover.py"))
        .args([&uri, &ROUNDS.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program");
    let output = program.stdout.take().expect("its output");
    let (mut killed, mut servers) = (Some(first), vec![second, third]);
    let mut last = String::new();
    for (line, number) in BufReader::new(output)
        .lines()
        .map_while(Result::ok)
        .zip(1..)
    {
        if number == KILLED_AFTER {
            drop(killed.take());
        }
        if number == STOPPED_AFTER {
            let writes = |server: &Server| line.contains(&format!("{})", server.port));
            let at = servers.iter().position(writes).expect("a primary");
            servers.remove(at).stop();
        }
        last = line;
    }
    assert!(program.wait().expect("its end").success(), "{last}");
    assert_eq!(last, format!("all {ROUNDS} rounds were done once"));
}
