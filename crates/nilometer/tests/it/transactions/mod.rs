//! Transactions: what they see, what conflicts, and what others see of them, on ordinary collections and on time series.

mod changes;
mod definitions;
mod histories;
mod sessions;

use std::sync::Arc;

use nilometer::Database;
use nilometer::operation::SystemClock;
use nilometer::services::Environment;
use nilometer_bson::{Binary, Document, DocumentBuilder, Value, ValueRef, array, doc};

use crate::support::{Fixture, TemporaryDirectory, primary_environment, show};

fn environment() -> Environment {
    Environment {
        clock: Arc::<SystemClock>::default(),
        ..primary_environment()
    }
}

pub(crate) fn fixture() -> Fixture {
    let mut fixture = Fixture::of(Database::in_memory_with(environment()).unwrap());
    fixture.run(doc! { "create": "c" });
    let options = doc! { "timeField": "t", "metaField": "m" };
    fixture.run(doc! { "create": "ts", "timeseries": options });
    fixture
}

/// A transaction of a session.
#[derive(Clone, Copy)]
struct Session {
    id: u8,
    number: i64,
    begun: bool,
}

impl Session {
    fn new(id: u8) -> Self {
        Self {
            id,
            number: 1,
            begun: false,
        }
    }

    fn lsid(&self) -> Value {
        Value::Binary(Binary {
            subtype: 4,
            bytes: vec![self.id; 16].into(),
        })
    }

    fn with(&mut self, command: Document) -> Document {
        let id = self.lsid();
        let mut out = DocumentBuilder::extending(command);
        out.append("lsid", doc! { "id": id });
        out.append("txnNumber", self.number);
        out.append("autocommit", false);
        if !std::mem::replace(&mut self.begun, true) {
            out.append("startTransaction", true);
        }
        out.finish()
    }

    fn reply(&mut self, fixture: &mut Fixture, command: Document) -> Document {
        let command = self.with(command);
        fixture.reply(command)
    }

    fn run(&mut self, fixture: &mut Fixture, command: Document) -> Document {
        let command = self.with(command);
        fixture.run(command)
    }

    fn all(&mut self, fixture: &mut Fixture, command: Document) -> Vec<Document> {
        let command = self.with(command);
        fixture.all(command)
    }

    /// Ends the transaction; the next statement begins another.
    fn end(&mut self, fixture: &mut Fixture, command: &str) -> Document {
        let mut out = DocumentBuilder::new();
        out.append(command, 1);
        let command = self.with(out.finish());
        self.number += 1;
        self.begun = false;
        fixture.reply_on("admin", command)
    }

    fn commit(&mut self, fixture: &mut Fixture) {
        let reply = self.end(fixture, "commitTransaction");
        assert_eq!(reply.get("ok").as_exact_i64(), Some(1), "{}", show(&reply));
    }
}

pub(crate) fn code(reply: &Document) -> Option<i64> {
    reply.get("code").as_exact_i64()
}

fn is_transient(reply: &Document) -> bool {
    let labels = reply.get("errorLabels").as_array();
    labels.is_some_and(|labels| {
        labels
            .iter()
            .any(|label| label.as_str() == Some("TransientTransactionError"))
    })
}

pub(crate) fn insert(collection: &str, documents: Vec<Value>) -> Document {
    doc! { "insert": collection, "documents": documents }
}

pub(crate) fn update(collection: &str, filter: Document, change: Document) -> Document {
    let statement = doc! { "q": filter, "u": change, "multi": true };
    doc! { "update": collection, "updates": array![statement] }
}

fn find(collection: &str) -> Document {
    doc! { "find": collection, "sort": doc! { "_id": 1 } }
}

pub(crate) fn measurement(id: i64, minute: i64, v: i64) -> Value {
    doc! { "t": Value::DateTime(1_700_000_000_000 + minute * 60_000), "m": id % 3, "_id": id, "v": v }
        .into()
}

fn check_valid(fixture: &mut Fixture) {
    for collection in ["c", "ts"] {
        let reply = fixture.run(doc! { "validate": collection, "full": true });
        assert!(
            matches!(reply.get("valid"), ValueRef::Bool(true)),
            "{}",
            show(&reply)
        );
    }
}

#[test]
fn changes_are_seen_by_others_when_they_are_committed() {
    for collection in ["c", "ts"] {
        let mut f = fixture();
        f.run(insert(collection, vec![measurement(1, 0, 10)]));
        let (mut one, mut two) = (Session::new(1), Session::new(2));
        one.run(&mut f, insert(collection, vec![measurement(2, 1, 20)]));
        one.run(&mut f, insert(collection, vec![measurement(4, 2, 40)]));
        assert_eq!(one.all(&mut f, find(collection)).len(), 3);
        assert_eq!(two.all(&mut f, find(collection)).len(), 1);
        assert_eq!(f.counted(collection), 1);
        f.run(insert(collection, vec![measurement(3, 3, 30)]));
        assert_eq!(one.all(&mut f, find(collection)).len(), 3);
        one.commit(&mut f);
        assert_eq!(two.all(&mut f, find(collection)).len(), 1);
        assert_eq!(f.counted(collection), 4);
        two.commit(&mut f);
        one.run(&mut f, insert(collection, vec![measurement(5, 2, 40)]));
        one.end(&mut f, "abortTransaction");
        assert_eq!(f.counted(collection), 4);
        check_valid(&mut f);
    }
}

#[test]
fn the_second_to_commit_a_change_of_the_same_fails() {
    for collection in ["c", "ts"] {
        let mut f = fixture();
        f.run(insert(collection, vec![measurement(1, 0, 10)]));
        let (mut one, mut two) = (Session::new(1), Session::new(2));
        let remove = doc! { "delete": collection, "deletes": array![doc! { "q": doc! { "_id": 1 }, "limit": 0 }] };
        one.run(&mut f, remove.clone());
        // Of a time series the commit fails.
        let mut reply = two.reply(&mut f, remove);
        one.commit(&mut f);
        if collection == "ts" {
            assert_eq!(code(&reply), None);
            reply = two.end(&mut f, "commitTransaction");
        }
        assert_eq!(code(&reply), Some(112), "{}", show(&reply));
        assert!(is_transient(&reply));
        assert_eq!(f.counted(collection), 0);
        check_valid(&mut f);
    }
}

#[test]
fn a_statement_on_what_another_has_changed_fails_at_once() {
    let id = |id: i64| doc! { "_id": id };
    let increase = doc! { "$inc": doc! { "v": 1 } };
    let info = doc! { "ns": "test.c" };
    let of_bulk = doc! { "update": 0, "filter": id(1), "updateMods": increase.clone() };
    for (command, is_elsewhere) in [
        (update("c", id(1), increase.clone()), false),
        (
            doc! { "findAndModify": "c", "query": id(1), "update": increase.clone() },
            false,
        ),
        (
            doc! { "delete": "c", "deletes": array![doc! { "q": id(1), "limit": 1 }] },
            false,
        ),
        // The `_id` is not in the snapshot.
        (insert("c", vec![id(2).into()]), false),
        (
            doc! { "bulkWrite": 1, "ops": array![of_bulk], "nsInfo": array![info], "ordered": false },
            true,
        ),
    ] {
        let mut f = fixture();
        f.run(insert("c", vec![id(1).into()]));
        let mut one = Session::new(1);
        one.all(&mut f, find("c"));
        f.run(update("c", id(1), increase.clone()));
        f.run(insert("c", vec![id(2).into()]));
        assert_eq!(one.all(&mut f, find("c")).len(), 1);
        let reply = match is_elsewhere {
            true => {
                let command = one.with(command);
                f.reply_on("admin", command)
            }
            false => one.reply(&mut f, command),
        };
        assert_eq!(
            (code(&reply), is_transient(&reply)),
            (Some(112), true),
            "{}",
            show(&reply)
        );
        let reply = one.end(&mut f, "commitTransaction");
        assert_eq!((code(&reply), is_transient(&reply)), (Some(251), true));
    }
}

#[test]
fn the_first_statement_takes_the_read_concern_of_all() {
    let mut f = fixture();
    let mut one = Session::new(1);
    for level in ["local", "majority", "snapshot", "linearizable", "available"] {
        let mut command = DocumentBuilder::extending(insert("c", vec![doc! {}.into()]));
        command.append("readConcern", doc! { "level": level });
        let reply = one.reply(&mut f, command.finish());
        let is_known = ["local", "majority", "snapshot"].contains(&level);
        assert_eq!(code(&reply), (!is_known).then_some(72), "{level}");
        one.end(&mut f, "abortTransaction");
    }
    let linearizable = doc! { "level": "linearizable" };
    f.run(doc! { "find": "c", "readConcern": linearizable.clone() });
    let refused = doc! { "insert": "c", "documents": array![doc! {}], "readConcern": linearizable };
    assert!(code(&f.reply(refused)).is_some());
}

#[test]
fn unique_keys_conflict_between_transactions() {
    let mut f = fixture();
    let index = doc! { "name": "v", "key": doc! { "v": 1 }, "unique": true };
    f.run(doc! { "createIndexes": "c", "indexes": array![index] });
    let (mut one, mut two) = (Session::new(1), Session::new(2));
    one.run(&mut f, insert("c", vec![doc! { "_id": 1, "v": 7 }.into()]));
    two.run(&mut f, insert("c", vec![doc! { "_id": 2, "v": 7 }.into()]));
    one.commit(&mut f);
    let reply = two.end(&mut f, "commitTransaction");
    assert_eq!((code(&reply), is_transient(&reply)), (Some(112), true));
    // Run again, it meets the key in a statement, which aborts it.
    let reply = two.reply(&mut f, insert("c", vec![doc! { "_id": 2, "v": 7 }.into()]));
    let errors = reply.get("writeErrors").as_array().unwrap();
    let first = errors.iter().next().unwrap().as_document().unwrap();
    assert_eq!(first.get("code").as_exact_i64(), Some(11_000));
    let reply = two.end(&mut f, "commitTransaction");
    assert_eq!((code(&reply), is_transient(&reply)), (Some(251), true));
    // A key moves from one document to another.
    f.run(insert("c", vec![doc! { "_id": 9, "v": 8 }.into()]));
    one.run(
        &mut f,
        update("c", doc! { "_id": 9 }, doc! { "$set": doc! { "v": 1 } }),
    );
    one.run(
        &mut f,
        update("c", doc! { "_id": 1 }, doc! { "$set": doc! { "v": 8 } }),
    );
    one.run(
        &mut f,
        update("c", doc! { "_id": 9 }, doc! { "$set": doc! { "v": 7 } }),
    );
    one.commit(&mut f);
    let hinted = doc! { "find": "c", "filter": doc! { "v": 7 }, "hint": "v" };
    assert_eq!(f.all(hinted)[0].get("_id").as_exact_i64(), Some(9));
    check_valid(&mut f);
}

#[test]
fn ends_and_wrong_uses_have_their_codes() {
    let mut f = fixture();
    let mut one = Session::new(1);
    let mut before = one;
    one.run(&mut f, insert("c", vec![doc! { "_id": 1 }.into()]));
    let mut again = one;
    one.commit(&mut f);
    // A commit that is sent again is answered again; what follows it is refused.
    let reply = again.end(&mut f, "commitTransaction");
    assert_eq!(reply.get("ok").as_exact_i64(), Some(1));
    again.number -= 1;
    again.begun = true;
    let reply = again.end(&mut f, "abortTransaction");
    assert_eq!(code(&reply), Some(256));
    assert_eq!(code(&before.reply(&mut f, find("c"))), Some(117));
    // No such transaction.
    one.begun = true;
    let reply = one.reply(&mut f, find("c"));
    assert_eq!((code(&reply), is_transient(&reply)), (Some(251), true));
    one.begun = false;
    // What cannot be in one aborts it.
    for command in [
        doc! { "count": "c" },
        doc! { "aggregate": "c", "pipeline": array![doc! { "$out": "d" }], "cursor": doc! {} },
        insert("system.buckets.ts", vec![doc! { "_id": 1 }.into()]),
        doc! { "drop": "c" },
    ] {
        one.run(&mut f, find("c"));
        assert_eq!(code(&one.reply(&mut f, command)), Some(263));
        assert_eq!(code(&one.end(&mut f, "commitTransaction")), Some(251));
    }
    // Databases of the server are not read, and cursors come from statements.
    let others = [
        ("local", find("oplog.rs")),
        ("config", find("c")),
        ("db", doc! { "killCursors": "c", "cursors": array![1_i64] }),
        ("db", doc! { "getMore": 1_i64, "collection": "c" }),
    ];
    for (database, command) in others {
        let command = one.with(command);
        assert_eq!(code(&f.reply_on(database, command)), Some(263));
        assert_eq!(code(&one.end(&mut f, "abortTransaction")), Some(251));
    }
    let outside = f.reply_on("admin", doc! { "commitTransaction": 1 });
    assert_eq!(code(&outside), Some(125));
    let status = f.run(doc! { "serverStatus": 1 });
    let counts = status.get("transactions").as_document().unwrap();
    assert_eq!(counts.get("totalCommitted").as_exact_i64(), Some(1));
    assert_eq!(counts.get("currentOpen").as_exact_i64(), Some(0));
}

#[test]
fn a_killed_session_has_no_transaction() {
    let mut f = fixture();
    let (mut one, mut two) = (Session::new(1), Session::new(2));
    one.run(&mut f, insert("c", vec![doc! { "_id": 1 }.into()]));
    two.run(&mut f, insert("c", vec![doc! { "_id": 2 }.into()]));
    f.run(doc! { "killSessions": array![doc! { "id": one.lsid() }] });
    assert_eq!(code(&one.end(&mut f, "commitTransaction")), Some(251));
    two.commit(&mut f);
    one.run(&mut f, insert("c", vec![doc! { "_id": 1 }.into()]));
    f.run(doc! { "killAllSessions": array![] });
    assert_eq!(code(&one.end(&mut f, "commitTransaction")), Some(251));
    assert_eq!(f.counted("c"), 1);
}

#[test]
fn the_profile_is_no_part_of_a_transaction_and_its_size_is_limited() {
    let mut f = fixture();
    f.run(doc! { "profile": 2 });
    let mut one = Session::new(1);
    one.run(&mut f, insert("c", vec![doc! { "_id": 1 }.into()]));
    one.end(&mut f, "abortTransaction");
    assert!(!f.all(find("system.profile")).is_empty());
    assert_eq!(f.counted("c"), 0);
    let large = "x".repeat(15 << 20);
    let mut replies = (0..5).map(|id| {
        let document = doc! { "_id": id, "s": large.as_str() };
        one.reply(&mut f, insert("c", vec![document.into()]))
    });
    assert!(replies.any(|reply| code(&reply) == Some(257)));
}

#[test]
fn a_commit_is_known_after_a_new_start() {
    let directory = TemporaryDirectory::new();
    let mut one = Session::new(1);
    let open = || Fixture::of(Database::open_with(&directory.0, environment()).unwrap());
    let mut f = open();
    f.run(doc! { "create": "c" });
    one.run(&mut f, insert("c", vec![doc! { "_id": 1 }.into()]));
    let mut again = one;
    one.commit(&mut f);
    drop(f);
    let mut f = open();
    again.commit(&mut f);
    assert_eq!(f.counted("c"), 1);
    // One that was open is gone.
    one.run(&mut f, insert("c", vec![doc! { "_id": 2 }.into()]));
    drop(f);
    let mut f = open();
    assert_eq!(code(&one.end(&mut f, "commitTransaction")), Some(251));
    assert_eq!(f.counted("c"), 1);
}
