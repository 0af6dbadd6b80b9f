//! The server is killed while capped and clustered collections are written to.
//!
//! Afterwards a capped collection holds a contiguous run of the inserted documents, up to the last acknowledged one or
//! beyond, and never more than its limit; a clustered one holds everything acknowledged, in order; `validate` agrees.
//! Conversions to capped collections are complete or did not happen.

use std::time::Duration;

use nilometer_bson::{Document, Value, ValueRef, doc};
use nilometer_storage::testing::Effort;

use crate::client::{Client, body, is_ok, op_msg, sequence};
use crate::server::{Directory, Server, nilometer};

/// Kills of the server.
const KILLS: Effort = Effort {
    fast: 2,
    long: 8,
    soak: 100,
};
const COUNT_MAX: usize = 40;
const BYTES_MAX: usize = 8192;

/// The inserts of one writer.
#[derive(Default)]
struct SentInserts {
    /// The last id sent, and the last acknowledged.
    last: i64,
    acknowledged: i64,
}

fn documents(from: i64, count: i64, seed: i64) -> Vec<Document> {
    let text = |id: i64| "x".repeat(((id * 31 + seed) % 300) as usize);
    let made = (from..from + count).map(|id| doc! {"_id": id, "k": (id % 7) as i32, "s": text(id)});
    made.collect()
}

fn insert(client: &mut Client, collection: &str, documents: &[Document]) -> Option<Document> {
    let command = doc! {"insert": collection, "$db": "test"};
    client.ask_or_lose(&op_msg(
        0,
        &[body(&command), sequence("documents", documents)],
    ))
}

/// Inserts ascending ids until the connection is lost.
fn write(port: u16, collection: &str, sent: &mut SentInserts, seed: i64) {
    let mut client = Client::connect(port);
    loop {
        let count = 1 + (sent.last + seed) % 9;
        let batch = documents(sent.last + 1, count, seed);
        sent.last += count;
        let Some(reply) = insert(&mut client, collection, &batch) else {
            return;
        };
        assert!(
            is_ok(&reply) && reply.get("writeErrors").is_missing(),
            "{reply:?}"
        );
        sent.acknowledged = sent.last;
    }
}

/// Converts a collection repeatedly until the connection is lost.
fn convert(port: u16) {
    let mut client = Client::connect(port);
    loop {
        let command = doc! {"convertToCapped": "turned", "size": 1_000_000, "$db": "test"};
        match client.ask_or_lose(&op_msg(0, &[body(&command)])) {
            Some(reply) => assert!(is_ok(&reply), "{reply:?}"),
            None => return,
        }
    }
}

fn ids(client: &mut Client, collection: &str) -> Vec<i64> {
    let found = client.find_all("test", &doc! {"find": collection});
    let id = |d: &Document| d.get("_id").as_exact_i64().expect("an _id");
    found.iter().map(id).collect()
}

fn validate(client: &mut Client, collection: &str) {
    let reply = client.run_on("test", &doc! {"validate": collection});
    assert!(
        matches!(reply.get("valid"), ValueRef::Bool(true)),
        "{reply:?}"
    );
}

fn check(client: &mut Client, log: &mut SentInserts, ordered: &mut SentInserts) {
    let left = ids(client, "log");
    let bytes: usize = client
        .find_all("test", &doc! {"find": "log"})
        .iter()
        .map(|d| d.as_bytes().len())
        .sum();
    assert!(left.len() <= COUNT_MAX && bytes <= BYTES_MAX, "{left:?}");
    let newest = left.last().copied().unwrap_or(0);
    assert!((log.acknowledged..=log.last).contains(&newest), "{left:?}");
    assert!(
        left.windows(2).all(|pair| pair[0] + 1 == pair[1]),
        "{left:?}"
    );
    log.last = newest;
    log.acknowledged = newest;

    let all = ids(client, "ordered");
    let newest = all.last().copied().unwrap_or(0);
    assert!((ordered.acknowledged..=ordered.last).contains(&newest));
    assert_eq!(all, (1..=newest).collect::<Vec<_>>());
    ordered.last = newest;
    ordered.acknowledged = newest;

    assert_eq!(ids(client, "turned"), (1..=500).collect::<Vec<_>>());
    for collection in ["log", "ordered", "turned"] {
        validate(client, collection);
    }
}

#[test]
fn capped_and_clustered_collections_outlive_kills() {
    let directory = Directory::new();
    let path = directory.0.to_str().expect("a path");
    let start = || Server::spawn(&mut nilometer(&["serve", "--dbpath", path, "--port", "0"]));
    let (mut log, mut ordered) = (SentInserts::default(), SentInserts::default());
    let kills = KILLS.requested();
    for kill in 0..=kills {
        let mut server = start();
        let mut client = server.connect();
        if kill == 0 {
            let size = (BYTES_MAX as i64, COUNT_MAX as i64);
            client.run_on(
                "test",
                &doc! {"create": "log", "capped": true, "size": size.0, "max": size.1},
            );
            let index = doc! {"key": doc! {"_id": 1}, "unique": true};
            client.run_on("test", &doc! {"create": "ordered", "clusteredIndex": index});
            for collection in ["log", "ordered"] {
                let index = doc! {"key": doc! {"k": 1}, "name": "k_1"};
                let indexes = vec![Value::from(index)];
                client.run_on(
                    "test",
                    &doc! {"createIndexes": collection, "indexes": indexes},
                );
            }
            insert(&mut client, "turned", &documents(1, 500, 0)).expect("a reply");
        }
        check(&mut client, &mut log, &mut ordered);
        if kill == kills {
            break;
        }
        let port = server.port;
        std::thread::scope(|scope| {
            scope.spawn(|| write(port, "log", &mut log, 7));
            scope.spawn(|| write(port, "ordered", &mut ordered, 3));
            scope.spawn(|| convert(port));
            std::thread::sleep(Duration::from_millis(60 + kill * 40));
            server.signal("KILL");
            server.wait();
        });
    }
    assert!(log.last > COUNT_MAX as i64 && ordered.last > 0);
}
