//! The command `bench`, at a small size.

use nilometer::auth::Mechanism;
use nilometer_bson::{array, doc};

use crate::client::is_ok;
use crate::server::{Directory, Server, nilometer};
use crate::transfer::run_at;

/// Number of queries.
const QUERIES: usize = 18;

const SMALL: [&str; 9] = [
    "bench",
    "--hosts",
    "5",
    "--hours",
    "1",
    "--interval",
    "60",
    "--draws",
    "2",
];

#[test]
fn a_server_is_measured_and_left_as_it_was() {
    let server = Server::start_with(&["--auth"]);
    let directory = Directory::new();
    let json = directory.0.join("figures.json");
    let json = json.to_str().expect("a path");
    let mut root = server.connect();
    let create = doc! {"createUser": "root", "pwd": "pencil", "roles": array!["root"]};
    assert!(is_ok(&root.run(&create)));
    root.log_in(Mechanism::Sha256, "admin", "root", "pencil");
    let uri = format!("mongodb://root:pencil@127.0.0.1:{}", server.port);
    let more = ["--connections", "2", "--batch", "7", "--json", json];
    let (code, told) = run_at(&uri, &[&SMALL[..], &more].concat(), &[], "");
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("| measurements loaded | 300 |"), "{told}");
    assert_eq!(told.matches("| right |").count(), QUERIES, "{told}");
    assert!(!told.contains("pencil"));
    let figures = std::fs::read_to_string(json).expect("figures");
    let figures: serde_json::Value = serde_json::from_str(&figures).expect("JSON");
    assert_eq!(figures["queries"].as_array().map(Vec::len), Some(QUERIES));
    let names = |root: &mut crate::client::Client| {
        let found = root.find_all("nilometer_bench", &doc! {"listCollections": 1});
        found.len()
    };
    assert_eq!(names(&mut root), 0, "all is dropped");
    // At the time limit loading ends after a tick that all connections have loaded.
    let keep = ["--seconds", "0", "--keep"];
    let (code, told) = run_at(&uri, &[&SMALL[..], &keep].concat(), &[], "");
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("| measurements loaded | 5 |"), "{told}");
    assert_eq!(told.matches("| right |").count(), QUERIES, "{told}");
    let there = names(&mut root);
    assert!(there > 0);
    let (code, told) = run_at(&uri, &SMALL, &[], "");
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("nilometer_bench has collections"), "{told}");
    assert_eq!(
        names(&mut root),
        there,
        "existing collections are not touched"
    );
}

#[test]
fn a_directory_is_measured_without_a_server() {
    let directory = Directory::new();
    let data = directory.0.join("data");
    let run = |more: &[&str]| {
        let path = data.to_str().expect("a path");
        let mut command = nilometer(&[&SMALL[..], &["--dbpath", path], more].concat());
        let ended = command.output().expect("the program ends");
        let told = [ended.stdout, ended.stderr].concat();
        let told = String::from_utf8(told).expect("text");
        (ended.status.code(), told)
    };
    let (code, told) = run(&["--hours", "0.001"]);
    assert_eq!(code, Some(2), "given twice: {told}");
    let (code, told) = run(&["--connections", "0"]);
    assert_eq!(code, Some(2), "{told}");
    let (code, told) = run(&[]);
    assert_eq!(code, Some(0), "{told}");
    assert_eq!(told.matches("| right |").count(), QUERIES, "{told}");
    let (code, told) = run(&[]);
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("is not an empty directory"), "{told}");
}
