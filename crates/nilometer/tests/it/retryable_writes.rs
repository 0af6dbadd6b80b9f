//! Writes with a number are run once, however often they are sent: also over a new start of the database, and after an
//! end of the process between any two engine batches.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use nilometer::operation::Clock;
use nilometer::services::{Environment, MemberRole};
use nilometer::{ClientSession, Database, Request};
use nilometer_bson::extjson::to_relaxed;
use nilometer_bson::order::equal;
use nilometer_bson::{Binary, Document, DocumentBuilder, Value, array, doc};

use crate::support::{Fixture, TemporaryDirectory, primary_environment};

/// A clock that the test moves.
#[derive(Default)]
struct TestClock(AtomicI64);

impl Clock for TestClock {
    fn now_ms(&self) -> i64 {
        1_700_000_000_000 + self.0.load(Ordering::Relaxed)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed).unsigned_abs())
    }
}

fn environment(clock: Arc<TestClock>) -> Environment {
    Environment {
        clock,
        ..primary_environment()
    }
}

fn in_memory() -> Fixture {
    Fixture::of(Database::in_memory_with(environment(Arc::default())).unwrap())
}

fn in_directory(path: &Path) -> Fixture {
    Fixture::of(Database::open_with(path, environment(Arc::default())).unwrap())
}

/// Adds the session and a number to a command.
fn numbered(command: Document, session: u8, number: i64) -> Document {
    let id = Binary {
        subtype: 4,
        bytes: vec![session; 16].into(),
    };
    let mut out = DocumentBuilder::new();
    for element in command.iter() {
        out.append_element(element);
    }
    out.append("lsid", doc! { "id": Value::from(id) });
    out.append("txnNumber", number);
    out.finish()
}

fn insert(ids: &[i32]) -> Document {
    let documents = ids
        .iter()
        .map(|id| Value::from(doc! { "_id": *id, "n": 0 }));
    doc! { "insert": "c", "documents": documents.collect::<Vec<_>>() }
}

fn increment(id: i32) -> Document {
    let statement = doc! { "q": doc! { "_id": id }, "u": doc! { "$inc": doc! { "n": 1 } } };
    doc! { "update": "c", "updates": array![statement] }
}

fn value_of(fixture: &mut Fixture, id: i32) -> i64 {
    let found = fixture.all(doc! { "find": "c", "filter": doc! { "_id": id } });
    found[0].get("n").as_exact_i64().unwrap()
}

/// Fields with the time of a reply.
const TIMES: [&str; 2] = ["operationTime", "$clusterTime"];

/// Returns a reply as text, without its time.
fn show(document: &Document) -> String {
    let mut out = DocumentBuilder::new();
    for element in document.iter().filter(|e| !TIMES.contains(&e.name())) {
        out.append_element(element);
    }
    to_relaxed(out.finish().as_ref())
}

/// Asserts that two replies have the same value in a field.
fn assert_same(first: &Document, again: &Document, name: &str) {
    assert!(
        TIMES.contains(&name) || equal(first.get(name), again.get(name)),
        "{name}: {} {}",
        show(first),
        show(again)
    );
}

#[test]
fn a_repeated_insert_inserts_nothing() {
    let mut fixture = in_memory();
    let command = || numbered(insert(&[1, 2, 3]), 7, 1);
    let first = fixture.run(command());
    assert_eq!(show(&first), r#"{"n":3,"ok":1.0}"#);
    let again = fixture.run(command());
    assert_eq!(show(&again), r#"{"n":3,"retriedStmtIds":[0,1,2],"ok":1.0}"#);
    assert_eq!(fixture.counted("c"), 3);
    // The next number is another command.
    let next = fixture.reply(numbered(insert(&[1]), 7, 2));
    assert!(show(&next).contains("11000"), "{}", show(&next));
    // Another session knows nothing of it.
    let other = fixture.reply(numbered(insert(&[2]), 8, 1));
    assert!(show(&other).contains("11000"), "{}", show(&other));
}

#[test]
fn the_statements_that_failed_run_again() {
    let mut fixture = in_memory();
    fixture.run(insert(&[2]));
    let mut unordered = DocumentBuilder::new();
    for element in insert(&[1, 2, 3]).iter() {
        unordered.append_element(element);
    }
    unordered.append("ordered", false);
    let command = numbered(unordered.finish(), 1, 5);
    let first = fixture.reply(command.clone());
    assert_eq!(first.get("n").as_exact_i64(), Some(2));
    let second = fixture.reply(command.clone());
    assert_eq!(second.get("n").as_exact_i64(), Some(2));
    assert!(show(&second).contains(r#""retriedStmtIds":[0,2]"#));
    assert!(show(&second).contains(r#""index":1"#), "{}", show(&second));
    fixture.run(
        doc! { "delete": "c", "deletes": array![doc! { "q": doc! { "_id": 2 }, "limit": 1 }] },
    );
    let third = fixture.run(command);
    assert_eq!(third.get("n").as_exact_i64(), Some(3));
    assert_eq!(fixture.counted("c"), 3);
}

#[test]
fn repeated_changes_change_nothing_and_say_what_they_did() {
    let mut fixture = in_memory();
    fixture.run(insert(&[1, 2]));
    let first = fixture.run(numbered(increment(1), 1, 1));
    let again = fixture.run(numbered(increment(1), 1, 1));
    assert_eq!(show(&first), r#"{"n":1,"nModified":1,"ok":1.0}"#);
    assert_eq!(
        show(&again),
        r#"{"n":1,"nModified":1,"retriedStmtIds":[0],"ok":1.0}"#
    );
    assert_eq!(value_of(&mut fixture, 1), 1);

    let upsert =
        doc! { "q": doc! { "_id": 9 }, "u": doc! { "$inc": doc! { "n": 4 } }, "upsert": true };
    let upsert = numbered(doc! { "update": "c", "updates": array![upsert] }, 1, 2);
    fixture.run(upsert.clone());
    let again = fixture.run(upsert);
    assert_eq!(
        show(&again),
        r#"{"n":1,"upserted":[{"index":0,"_id":9}],"nModified":0,"retriedStmtIds":[0],"ok":1.0}"#
    );
    assert_eq!(value_of(&mut fixture, 9), 4);

    let delete = doc! { "q": doc! { "n": doc! { "$gte": 0 } }, "limit": 1 };
    let delete = numbered(doc! { "delete": "c", "deletes": array![delete] }, 1, 3);
    fixture.run(delete.clone());
    let again = fixture.run(delete);
    assert_eq!(show(&again), r#"{"n":1,"retriedStmtIds":[0],"ok":1.0}"#);
    assert_eq!(fixture.counted("c"), 2);
}

#[test]
fn a_repeated_find_and_modify_returns_the_same_document() {
    let mut fixture = in_memory();
    fixture.run(insert(&[1]));
    for (number, new) in [(1, false), (2, true)] {
        let command = doc! {
            "findAndModify": "c",
            "query": doc! { "_id": 1 },
            "update": doc! { "$inc": doc! { "n": 1 } },
            "new": new,
        };
        let first = fixture.run(numbered(command.clone(), 1, number));
        let again = fixture.run(numbered(command, 1, number));
        assert_eq!(again.get("retriedStmtId").as_exact_i64(), Some(0));
        assert_same(&first, &again, "value");
        assert_same(&first, &again, "lastErrorObject");
    }
    assert_eq!(value_of(&mut fixture, 1), 2);
    let remove = doc! { "findAndModify": "c", "query": doc! { "_id": 1 }, "remove": true };
    let first = fixture.run(numbered(remove.clone(), 1, 3));
    let again = fixture.run(numbered(remove, 1, 3));
    assert_same(&first, &again, "value");
    let upsert = doc! {
        "findAndModify": "c",
        "query": doc! { "_id": 5 },
        "update": doc! { "$set": doc! { "n": 1 } },
        "upsert": true,
    };
    let first = fixture.run(numbered(upsert.clone(), 1, 4));
    let again = fixture.run(numbered(upsert, 1, 4));
    assert_same(&first, &again, "lastErrorObject");
    assert_same(&first, &again, "value");
}

#[test]
fn a_repeated_bulk_write_runs_what_did_not_run() {
    let mut fixture = in_memory();
    fixture.run(insert(&[1]));
    let command = || {
        doc! {
            "bulkWrite": 1,
            "ops": array![
                doc! { "insert": 0, "document": doc! { "_id": 2, "n": 0 } },
                doc! { "update": 0, "filter": doc! { "_id": 1 }, "updateMods": doc! { "$inc": doc! { "n": 1 } } },
                doc! { "insert": 0, "document": doc! { "_id": 1 } },
                doc! { "delete": 0, "filter": doc! { "_id": 2 } },
            ],
            "nsInfo": array![doc! { "ns": "test.c" }],
            "ordered": false,
        }
    };
    let first = fixture.reply_on("admin", numbered(command(), 1, 1));
    let again = fixture.reply_on("admin", numbered(command(), 1, 1));
    for (name, count) in [
        ("nInserted", 1),
        ("nModified", 1),
        ("nDeleted", 1),
        ("nErrors", 1),
    ] {
        assert_eq!(first.get(name).as_exact_i64(), Some(count), "{name}");
        assert_eq!(again.get(name).as_exact_i64(), Some(count), "{name}");
    }
    assert!(
        show(&again).contains(r#""retriedStmtIds":[0,1,3]"#),
        "{}",
        show(&again)
    );
    assert_eq!(value_of(&mut fixture, 1), 1);
}

#[test]
fn measurements_are_inserted_and_removed_once() {
    let mut fixture = in_memory();
    fixture.run(doc! { "create": "ts", "timeseries": doc! { "timeField": "t", "metaField": "m" } });
    let at = |ms: i64| Value::DateTime(1_700_000_000_000 + ms);
    let documents = (0..5).map(|n| Value::from(doc! { "t": at(n), "m": 1, "n": n }));
    let insert = doc! { "insert": "ts", "documents": documents.collect::<Vec<_>>() };
    fixture.run(numbered(insert.clone(), 1, 1));
    let again = fixture.run(numbered(insert, 1, 1));
    assert_eq!(again.get("n").as_exact_i64(), Some(5));
    assert_eq!(fixture.counted("ts"), 5);
    let delete = doc! { "delete": "ts", "deletes": array![doc! { "q": doc! { "n": doc! { "$gte": 2 } }, "limit": 1 }] };
    fixture.run(numbered(delete.clone(), 1, 2));
    fixture.run(numbered(delete, 1, 2));
    assert_eq!(fixture.counted("ts"), 4);
}

#[test]
fn results_survive_a_new_start() {
    let directory = TemporaryDirectory::new();
    let commands = || {
        let ids: Vec<i32> = (10..200).collect();
        let statements = ids.iter().map(|id| {
            Value::from(doc! { "q": doc! { "_id": *id }, "u": doc! { "$inc": doc! { "n": 1 } } })
        });
        [
            numbered(insert(&ids), 1, 1),
            numbered(
                doc! { "update": "c", "updates": statements.collect::<Vec<_>>() },
                2,
                1,
            ),
            numbered(
                doc! { "findAndModify": "c", "query": doc! { "_id": 10 }, "remove": true },
                3,
                8,
            ),
        ]
    };
    let mut fixture = in_directory(&directory.0);
    let first = commands().map(|command| fixture.run(command));
    drop(fixture);
    let mut fixture = in_directory(&directory.0);
    let again = commands().map(|command| fixture.run(command));
    for (first, again) in first.iter().zip(&again) {
        for element in first.iter() {
            assert_same(first, again, element.name());
        }
        assert!(show(again).contains("retriedStmtId"));
    }
    assert_eq!(value_of(&mut fixture, 11), 1);
    assert_eq!(fixture.code(numbered(increment(11), 3, 7)), 225);
}

#[test]
fn numbers_that_do_not_fit_are_refused() {
    let mut fixture = in_memory();
    fixture.run(numbered(insert(&[1]), 1, 5));
    assert_eq!(fixture.code(numbered(insert(&[2]), 1, 4)), 225);
    assert_eq!(fixture.code(numbered(insert(&[2]), 1, -1)), 72);
    // The same number for another statement.
    assert_eq!(
        fixture
            .reply(numbered(increment(1), 1, 5))
            .get("writeErrors")
            .as_array()
            .map(|e| e.iter().count()),
        Some(1)
    );
    let many = doc! { "q": doc! {}, "u": doc! { "$set": doc! { "n": 1 } }, "multi": true };
    let many = doc! { "update": "c", "updates": array![many] };
    assert_eq!(fixture.code(numbered(many, 1, 6)), 72);
    let all = doc! { "delete": "c", "deletes": array![doc! { "q": doc! {}, "limit": 0 }] };
    assert_eq!(fixture.code(numbered(all, 1, 7)), 72);
    assert_eq!(fixture.code(numbered(doc! { "find": "c" }, 1, 8)), 50_768);
    // Without a set there are no numbers.
    let mut alone = Fixture::new();
    assert_eq!(alone.code(numbered(insert(&[1]), 1, 1)), 20);
}

#[test]
fn results_expire_with_their_session() {
    let clock = Arc::new(TestClock::default());
    let database = Database::in_memory_with(environment(clock.clone())).unwrap();
    let mut fixture = Fixture::of(database);
    fixture.run(numbered(insert(&[1]), 1, 9));
    clock.0.fetch_add(29 * 60_000, Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(fixture.code(numbered(insert(&[2]), 1, 8)), 225, "not yet");
    clock.0.fetch_add(31 * 60_000, Ordering::Relaxed);
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while fixture.code(numbered(insert(&[2]), 1, 8)) == 225 {
        assert!(std::time::Instant::now() < until, "the number is forgotten");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn two_commands_of_a_session_run_one_after_the_other() {
    let mut fixture = in_memory();
    fixture.run(insert(&[1]));
    let database = &fixture.database;
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut session = ClientSession::embedded();
                for number in 1..=50 {
                    let mut body = DocumentBuilder::new();
                    for element in numbered(increment(1), 1, number).iter() {
                        body.append_element(element);
                    }
                    body.append("$db", "test");
                    // The others may be ahead.
                    database.run_command(&mut session, &Request::new(body.finish()));
                }
            });
        }
    });
    assert_eq!(value_of(&mut fixture, 1), 50);
}

#[test]
fn a_member_that_is_no_primary_refuses_writes_and_unprepared_reads() {
    let environment = environment(Arc::default());
    let set = environment.replica_set.clone().unwrap();
    let mut fixture = Fixture::of(Database::in_memory_with(environment).unwrap());
    fixture.run(insert(&[1]));
    set.update(|state| {
        state.role = MemberRole::Secondary;
        state.primary = Some("roof:1".to_owned());
    });
    let refused = fixture.reply(numbered(insert(&[2]), 1, 1));
    assert_eq!(refused.get("code").as_exact_i64(), Some(10_107));
    let text = show(&refused);
    assert!(text.contains("the primary is roof:1"), "{text}");
    assert!(
        text.contains("RetryableWriteError") && text.contains("topologyVersion"),
        "{text}"
    );
    assert!(!show(&fixture.reply(insert(&[2]))).contains("RetryableWriteError"));
    assert_eq!(fixture.code(doc! { "find": "c" }), 13_435);
    let found = doc! { "find": "c", "$readPreference": doc! { "mode": "secondaryPreferred" } };
    assert_eq!(fixture.all(found.clone()).len(), 1);
    let hello = fixture.run(doc! { "hello": 1 });
    let text = show(&hello);
    assert!(
        text.contains(r#""setName":"rs""#) && text.contains(r#""isWritablePrimary":false"#),
        "{text}"
    );
    assert!(
        text.contains(r#""secondary":true"#) && text.contains(r#""primary":"roof:1""#),
        "{text}"
    );
    set.update(|state| {
        state.role = MemberRole::Recovering;
        state.primary = None;
    });
    assert_eq!(fixture.code(found), 13_436);
    assert_eq!(fixture.code(insert(&[2])), 10_107);
    assert_eq!(fixture.code(doc! { "ping": 1 }), 0);
    let status = fixture.reply_on("admin", doc! { "replSetGetStatus": 1 });
    assert_eq!(status.get("myState").as_exact_i64(), Some(3));
    let config = fixture.reply_on("admin", doc! { "replSetGetConfig": 1 });
    assert!(show(&config).contains(r#""_id":"rs""#));
}

#[test]
fn writes_on_storage_that_has_ended_may_be_repeated_elsewhere() {
    let mut fixture = in_memory();
    fixture.run(insert(&[1]));
    fixture.run(doc! { "create": "ts", "timeseries": doc! { "timeField": "t", "metaField": "m" } });
    // As while a server that ends hands over: a command that was let in before finds the storage closed.
    fixture.database.hand_over().unwrap();
    let measurement = doc! { "t": Value::DateTime(1_700_000_000_000_i64), "m": 1 };
    let change = doc! { "$inc": doc! { "v": 1 } };
    let ops = |op: Document| doc! { "bulkWrite": 1, "ops": array![op], "nsInfo": array![doc! { "ns": "test.c" }] };
    let commands = [
        insert(&[2]),
        doc! { "insert": "c", "documents": array![doc! { "_id": 3 }, doc! { "_id": 4 }], "ordered": false },
        doc! { "insert": "ts", "documents": array![measurement] },
        increment(1),
        doc! { "delete": "c", "deletes": array![doc! { "q": doc! { "_id": 1 }, "limit": 1 }] },
        doc! { "findAndModify": "c", "query": doc! { "_id": 1 }, "update": change.clone() },
        ops(doc! { "insert": 0, "document": doc! { "_id": 5 } }),
        ops(doc! { "update": 0, "filter": doc! { "_id": 1 }, "updateMods": change }),
    ];
    for (number, command) in (1..).zip(commands) {
        let db = match command.get("bulkWrite").is_missing() {
            true => "test",
            false => "admin",
        };
        let text = show(&fixture.reply_on(db, numbered(command, 1, number)));
        // Drivers look for the code and the label in the reply, not in its entries.
        assert!(
            text.contains(r#""ok":0"#) && text.contains(r#""code":11600"#),
            "{text}"
        );
        assert!(
            text.contains("RetryableWriteError") && !text.contains("writeErrors"),
            "{text}"
        );
    }
}
