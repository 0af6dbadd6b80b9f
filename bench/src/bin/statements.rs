//! Speed of writes to one document again and again, in process: `cargo run --release -p nilometer-bench --bin statements
//! [STATEMENTS]`; without an argument ten thousand.
//!
//! The command of many statements waits for the disk once. Commands of one statement do not wait (`j: false`), so that
//! the figures are of the work and not of the disk. The count of every answer is checked.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::time::Instant;

use nilometer::{ClientSession, Database, Request};
use nilometer_bson::{Document, DocumentBuilder, Value, array, doc};

/// The allocator of the server: decision 0012.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Documents in tables of which the first is removed again and again.
const STORED: i32 = 24_000;

/// Documents in one insert.
const BATCH: i32 = 1000;

/// Deletes whose time is shown.
const SHOWN: i32 = 200;

/// Documents of the collection in which one is removed and inserted again.
const OTHERS: i32 = 1000;

struct Client {
    database: Database,
    session: ClientSession,
}

impl Client {
    fn run(&mut self, command: Document) -> Document {
        let mut body = DocumentBuilder::new();
        for element in command.iter() {
            body.append_element(element);
        }
        body.append("$db", "test");
        let reply = self
            .database
            .run_command(&mut self.session, &Request::new(body.finish()));
        assert!(
            reply.get("ok").as_exact_i64() == Some(1) && reply.get("writeErrors").is_missing(),
            "{reply:?}"
        );
        reply
    }

    /// Runs commands that change one document each, and prints their time.
    fn time(&mut self, name: &str, count: i32, command: impl Fn(i32) -> Document) {
        let began = Instant::now();
        for at in 0..count {
            let mut timed = DocumentBuilder::new();
            for element in command(at).iter() {
                timed.append_element(element);
            }
            timed.append("writeConcern", doc! { "j": false });
            let reply = self.run(timed.finish());
            let changed = match reply.get("n").as_exact_i64() {
                None => reply
                    .get("lastErrorObject")
                    .as_document()
                    .map(|l| l.get("n")),
                Some(_) => Some(reply.get("n")),
            };
            assert_eq!(changed.and_then(|n| n.as_exact_i64()), Some(1), "{reply:?}");
        }
        println!("{name:<60} {:>10.2?}", began.elapsed());
    }
}

/// Deletes the first document of many in tables, and prints the time of the first deletes and of the last ones.
fn first_of_tables(c: &mut Client, count: i32) {
    for first in (0..STORED).step_by(BATCH as usize) {
        let some: Vec<Value> = (first..first + BATCH)
            .map(|id| doc! { "_id": id, "x": id, "n": 0 }.into())
            .collect();
        c.run(doc! { "insert": "stored", "documents": some });
    }
    c.database.settle().expect("settled");
    let deletes = count.min(STORED);
    let mut began = Instant::now();
    for at in 1..=deletes {
        let delete = doc! { "q": doc! {}, "limit": 1 };
        c.run(doc! { "delete": "stored", "deletes": array![delete], "writeConcern": doc! { "j": false } });
        if at == SHOWN || at == deletes {
            let what = format!("the {SHOWN} deletes of the first document up to the {at}th");
            println!("{what:<60} {:>10.2?}", began.elapsed());
        }
        if at == deletes - SHOWN {
            began = Instant::now();
        }
    }
}

fn main() {
    let argument = std::env::args().nth(1);
    let count: i32 = argument.map_or(10_000, |text| text.parse().expect("a number"));
    let folder = format!("nilometer-statements-{}", std::process::id());
    let directory = std::env::temp_dir().join(folder);
    let mut client = Client {
        database: Database::open(&directory).expect("a database"),
        session: ClientSession::embedded(),
    };
    let c = &mut client;
    c.run(doc! { "insert": "c", "documents": array![doc! { "_id": 1, "x": 0, "n": 0 }] });
    let others: Vec<Value> = (0..OTHERS)
        .map(|id| doc! { "_id": id, "x": id, "n": 0 }.into())
        .collect();
    c.run(doc! { "insert": "many", "documents": others });
    let options = doc! { "timeField": "t", "metaField": "m" };
    c.run(doc! { "create": "ts", "timeseries": options });
    let measurement = doc! { "t": Value::DateTime(1_700_000_000_000), "m": 1, "n": 0 };
    c.run(doc! { "insert": "ts", "documents": array![measurement] });
    let increment = || doc! { "$inc": doc! { "n": 1 } };

    for (name, q) in [("by _id", doc! { "_id": 1 }), ("by scan", doc! { "x": 0 })] {
        let one = || Value::from(doc! { "q": q.clone(), "u": increment() });
        let statements: Vec<Value> = (0..count).map(|_| one()).collect();
        let began = Instant::now();
        let reply = c.run(doc! { "update": "c", "updates": statements });
        assert_eq!(reply.get("n").as_exact_i64(), Some(i64::from(count)));
        let what = format!("one update command of {count} statements, {name}");
        println!("{what:<60} {:>10.2?}", began.elapsed());
    }
    let update = |name: &str, q: Document| {
        let one = doc! { "q": q, "u": increment() };
        doc! { "update": name, "updates": array![one] }
    };
    c.time("update commands, by _id", count, |_| {
        update("c", doc! { "_id": 1 })
    });
    c.time("update commands, by scan", count, |_| {
        update("c", doc! { "x": 0 })
    });
    c.time("findAndModify commands, sorted", count, |_| {
        doc! { "findAndModify": "c", "sort": doc! { "n": 1 }, "update": increment() }
    });
    let half = count / 2;
    let began = Instant::now();
    for _ in 0..half {
        let delete = doc! { "q": doc! {}, "limit": 1 };
        c.run(doc! { "delete": "many", "deletes": array![delete], "writeConcern": doc! { "j": false } });
        let insert = array![doc! { "x": 0, "n": 0 }];
        c.run(doc! { "insert": "many", "documents": insert, "writeConcern": doc! { "j": false } });
    }
    println!(
        "{:<60} {:>10.2?}",
        format!("{half} deletes of the first document, {half} inserts"),
        began.elapsed()
    );
    first_of_tables(c, count);
    c.time("updates of one measurement", count / 10, |_| {
        update("ts", doc! { "m": 1 })
    });
    drop(client);
    drop(std::fs::remove_dir_all(&directory));
}
