//! Writes over the wire: sequences, limits, unacknowledged ones, and their state after a shutdown.

use nilometer_bson::{Document, Value, array, doc};

use crate::client::{Client, body, code, is_ok, op_msg, sequence};
use crate::server::{Directory, Server, nilometer};

fn insert(collection: &str) -> Document {
    doc! {"insert": collection, "$db": "test"}
}

fn insert_sequence(client: &mut Client, collection: &str, documents: &[Document]) -> Document {
    let sections = [body(&insert(collection)), sequence("documents", documents)];
    client.ask(&op_msg(0, &sections))
}

fn count(client: &mut Client, collection: &str) -> i64 {
    let reply = client.run_on("test", &doc! {"count": collection});
    reply.get("n").as_exact_i64().expect("a count")
}

fn measurement(at: i64) -> Document {
    doc! {"time": Value::DateTime(at * 1000), "tag": "a", "value": at as f64}
}

fn create_timeseries(client: &mut Client, name: &str) {
    let options = doc! {"timeField": "time", "metaField": "tag"};
    let reply = client.run_on("test", &doc! {"create": name, "timeseries": options});
    assert!(is_ok(&reply), "{reply:?}");
}

#[test]
fn documents_come_as_a_sequence_or_in_the_body() {
    let server = Server::start();
    let mut client = server.connect();
    create_timeseries(&mut client, "ts");
    let documents: Vec<_> = (0..2500).map(measurement).collect();
    let reply = insert_sequence(&mut client, "ts", &documents);
    assert_eq!(reply.get("n").as_exact_i64(), Some(2500), "{reply:?}");
    let inline = doc! {"insert": "ts", "documents": array![measurement(5000)]};
    assert!(is_ok(&client.run_on("test", &inline)));
    assert_eq!(count(&mut client, "ts"), 2501);
    let status = client.run(&doc! {"serverStatus": 1});
    let counters = status.get("opcounters").as_document().expect("a section");
    assert_eq!(counters.get("insert").as_exact_i64(), Some(2501));
    let top = client.run(&doc! {"top": 1});
    let totals = top.get("totals").as_document().expect("totals");
    let of_ts = totals.get("test.ts").as_document().expect("figures");
    let inserts = of_ts.get("insert").as_document().expect("figures");
    assert_eq!(inserts.get("count").as_exact_i64(), Some(2));
}

#[test]
fn the_same_field_may_not_come_twice() {
    let server = Server::start();
    let mut client = server.connect();
    let twice = doc! {"insert": "c", "documents": array![doc! {}], "$db": "test"};
    let sections = [body(&twice), sequence("documents", &[doc! {}])];
    assert_eq!(code(&client.ask(&op_msg(0, &sections))), 40_413);
    let one = sequence("documents", &[doc! {}]);
    let sections = [body(&insert("c")), one.clone(), one];
    assert_eq!(code(&client.ask(&op_msg(0, &sections))), 40_413);
}

#[test]
fn a_batch_has_at_most_100_000_writes() {
    let server = Server::start();
    let mut client = server.connect();
    let documents = vec![doc! {}; 100_001];
    assert_eq!(code(&insert_sequence(&mut client, "c", &documents)), 16);
    assert_eq!(code(&insert_sequence(&mut client, "c", &[])), 16);
    assert_eq!(count(&mut client, "c"), 0);
}

#[test]
fn a_document_that_is_too_large_is_refused() {
    let server = Server::start();
    let mut client = server.connect();
    // Larger than a stored document may be, but small enough for a command.
    let large = doc! {"x": "y".repeat(16 * 1024 * 1024)};
    let reply = insert_sequence(&mut client, "c", &[large]);
    let failed = !is_ok(&reply) || !reply.get("writeErrors").is_missing();
    assert!(failed);
    // Larger than any document.
    let huge = doc! {"x": "y".repeat(17 * 1024 * 1024)};
    assert_eq!(code(&insert_sequence(&mut client, "c", &[huge])), 10_334);
    assert_eq!(count(&mut client, "c"), 0);
}

#[test]
fn an_unacknowledged_write_is_done_and_not_answered() {
    let server = Server::start();
    let mut client = server.connect();
    let command = doc! {"insert": "c", "writeConcern": doc! {"w": 0}, "$db": "test"};
    let sections = [body(&command), sequence("documents", &[doc! {"a": 1}])];
    client.send(&op_msg(2, &sections));
    // Commands of one connection run in order.
    assert_eq!(count(&mut client, "c"), 1);
}

#[test]
fn a_damaged_document_in_a_batch_stores_nothing() {
    let server = Server::start();
    let mut client = server.connect();
    let mut sections = [
        body(&insert("c")),
        sequence("documents", &[doc! {"a": 1}, doc! {"b": true}]),
    ];
    // The boolean, before the end of its document.
    let at = sections[1].len() - 2;
    sections[1][at] = 7;
    assert_eq!(code(&client.ask(&op_msg(0, &sections))), 22);
    assert_eq!(count(&mut client, "c"), 0);
}

#[test]
fn what_was_acknowledged_is_there_after_a_restart() {
    let directory = Directory::new();
    let path = directory.0.join("data");
    let arguments = ["serve", "--port", "0", "--dbpath", path.to_str().unwrap()];
    let mut server = Server::spawn(&mut nilometer(&arguments));
    let mut client = server.connect();
    create_timeseries(&mut client, "ts");
    let documents: Vec<_> = (0..1500).map(measurement).collect();
    assert!(is_ok(&insert_sequence(&mut client, "ts", &documents)));
    assert!(is_ok(&client.run(&doc! {"fsync": 1})));
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    let mut server = Server::spawn(&mut nilometer(&arguments));
    let mut client = server.connect();
    assert_eq!(count(&mut client, "ts"), 1500);
    assert!(is_ok(&insert_sequence(
        &mut client,
        "ts",
        &[measurement(2000)]
    )));
    server.signal("KILL");
    server.wait();
    let server = Server::spawn(&mut nilometer(&arguments));
    assert_eq!(count(&mut server.connect(), "ts"), 1501);
}

#[test]
fn a_directory_is_served_once() {
    let directory = Directory::new();
    let path = directory.0.join("data");
    let arguments = ["serve", "--port", "0", "--dbpath", path.to_str().unwrap()];
    let _first = Server::spawn(&mut nilometer(&arguments));
    let second = nilometer(&arguments).output().expect("the program runs");
    assert_eq!(second.status.code(), Some(100));
    let told = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(told.contains(path.to_str().unwrap()), "{told}");
}

#[test]
fn a_directory_that_is_none_is_told_plainly() {
    let directory = Directory::new();
    let file = directory.0.join("file");
    std::fs::write(&file, "not a directory").unwrap();
    let foreign = directory.0.join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("precious.txt"), "keep me").unwrap();
    for path in [&file, &foreign] {
        let path = path.to_str().unwrap();
        let ended = nilometer(&["serve", "--port", "0", "--dbpath", path]).output();
        let ended = ended.expect("the program runs");
        assert_eq!(ended.status.code(), Some(100));
        let told = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(told.contains(path), "{told}");
    }
    assert!(foreign.join("precious.txt").exists());
}
