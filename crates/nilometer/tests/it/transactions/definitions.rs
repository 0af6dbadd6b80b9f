//! Collections and indexes that transactions create.

use std::sync::Arc;

use nilometer::Database;
use nilometer_bson::{Document, DocumentBuilder, ValueRef, array, doc};
use nilometer_storage::{Engine, MemoryEngine};

use super::changes::{events, named, watch};
use super::{Session, code, environment, find, fixture, insert, is_transient};
use crate::support::{Fixture, show};

#[test]
fn a_collection_of_a_transaction_is_seen_with_its_commit() {
    let engine = Arc::new(MemoryEngine::new());
    let mut f = Fixture::of(Database::with_engine(engine.clone(), environment()).unwrap());
    let stream = watch(&mut f);
    let index = |name: &str| doc! { "createIndexes": name, "indexes": array![doc! { "key": doc! { "v": 1 }, "name": "v", "unique": true }] };
    let listed = |f: &mut Fixture| f.all(doc! { "listCollections": 1, "nameOnly": true }).len();
    let (before, keyspaces) = (listed(&mut f), engine.keyspaces().len());
    for ends in ["abortTransaction", "commitTransaction"] {
        let mut one = Session::new(if ends == "abortTransaction" { 1 } else { 2 });
        one.run(&mut f, doc! { "create": "new" });
        one.run(&mut f, index("new"));
        one.run(
            &mut f,
            insert("new", vec![doc! { "_id": 1, "v": 1 }.into()]),
        );
        one.run(&mut f, index("indexed"));
        one.run(
            &mut f,
            insert(
                "implicit",
                vec![doc! { "_id": 2, "v": array![1, 2] }.into()],
            ),
        );
        assert_eq!(one.all(&mut f, find("new")).len(), 1);
        let hinted = doc! { "find": "new", "filter": doc! { "v": 1 }, "hint": "v" };
        assert_eq!(one.all(&mut f, hinted).len(), 1);
        let joined =
            doc! { "$lookup": doc! { "from": "implicit", "pipeline": array![], "as": "found" } };
        let joined = one.all(
            &mut f,
            doc! { "aggregate": "new", "pipeline": array![joined], "cursor": doc! {} },
        );
        assert_eq!(joined[0].get("found").as_array().unwrap().iter().count(), 1);
        assert_eq!((listed(&mut f), f.counted("new")), (before, 0));
        assert!(events(&mut f, stream).is_empty());
        one.end(&mut f, ends);
        assert_eq!(
            engine.keyspaces().len() == keyspaces,
            ends == "abortTransaction"
        );
    }
    assert_eq!(listed(&mut f), before + 3);
    assert_eq!(
        named(&events(&mut f, stream)),
        [
            ("create", "new", 0),
            ("createIndexes", "new", 0),
            ("insert", "new", 1),
            ("create", "indexed", 0),
            ("createIndexes", "indexed", 0),
            ("create", "implicit", 0),
            ("insert", "implicit", 2),
        ]
    );
    for collection in ["new", "implicit", "indexed"] {
        let reply = f.run(doc! { "validate": collection, "full": true });
        assert!(matches!(reply.get("valid"), ValueRef::Bool(true)));
    }
    let twice = f.reply(insert("new", vec![doc! { "v": 1 }.into()]));
    assert!(!twice.get("writeErrors").is_missing());
}

#[test]
fn creating_in_transactions_has_its_limits() {
    let mut f = fixture();
    let index = |name: &str| doc! { "createIndexes": name, "indexes": array![doc! { "key": doc! { "v": 1 }, "name": "v" }] };
    let options = doc! { "timeField": "t" };
    for (first, command, expected) in [
        (None, doc! { "create": "c" }, Some(48)),
        (
            None,
            doc! { "create": "new", "timeseries": options },
            Some(263),
        ),
        (None, doc! { "create": "new", "viewOn": "c" }, Some(263)),
        (None, index("c"), Some(263)),
        (None, index("ts"), Some(263)),
        (
            Some(insert("new", vec![doc! {}.into()])),
            index("new"),
            Some(263),
        ),
        (Some(doc! { "create": "new" }), index("new"), None),
        (
            Some(doc! { "create": "new", "capped": true, "size": 4096 }),
            insert("new", vec![doc! {}.into()]),
            Some(263),
        ),
        (
            None,
            with_level(doc! { "create": "new" }, "snapshot"),
            Some(72),
        ),
        (Some(find("c")), doc! { "hello": 1 }, None),
        (None, doc! { "hello": 1 }, Some(263)),
    ] {
        let mut one = Session::new(1);
        f.run(doc! { "killAllSessions": array![] });
        f = fixture();
        if let Some(first) = first {
            one.run(&mut f, first);
        }
        let shown = show(&command);
        let reply = one.reply(&mut f, command);
        assert_eq!(code(&reply), expected, "{shown}: {}", show(&reply));
        one.end(&mut f, "abortTransaction");
        assert_eq!(f.counted("new"), 0);
    }
    // The name is taken before the commit.
    let (mut one, mut two) = (Session::new(1), Session::new(2));
    one.run(&mut f, insert("new", vec![doc! { "_id": 1 }.into()]));
    two.run(&mut f, insert("new", vec![doc! { "_id": 2 }.into()]));
    one.commit(&mut f);
    let reply = two.end(&mut f, "commitTransaction");
    assert_eq!((code(&reply), is_transient(&reply)), (Some(112), true));
    two.run(&mut f, insert("new", vec![doc! { "_id": 2 }.into()]));
    two.commit(&mut f);
    assert_eq!(f.counted("new"), 2);
}

fn with_level(command: Document, level: &str) -> Document {
    let mut out = DocumentBuilder::extending(command);
    out.append("readConcern", doc! { "level": level });
    out.finish()
}

#[test]
fn a_collection_that_was_dropped_or_renamed_since_the_snapshot_is_not_read() {
    let mut f = fixture();
    for name in ["dropped", "replaced", "renamed", "kept"] {
        f.run(insert(name, vec![doc! { "_id": 1 }.into()]));
    }
    let mut others = Session::new(1);
    others.run(&mut f, find("kept"));
    let mut sessions = [2, 3, 4, 5, 6, 7, 8].map(Session::new);
    for session in &mut sessions {
        session.run(&mut f, find("kept"));
    }
    f.run(doc! { "drop": "dropped" });
    f.run(doc! { "drop": "replaced" });
    f.run(insert("replaced", vec![doc! { "_id": 2 }.into()]));
    let rename = doc! { "renameCollection": "test.renamed", "to": "test.new name" };
    f.reply_on("admin", rename);
    let nested = |stage: Document| doc! { "aggregate": "kept", "pipeline": array![stage], "cursor": doc! {} };
    let join = doc! { "from": "dropped", "pipeline": array![], "as": "found" };
    let statements = [
        nested(doc! { "$lookup": join }),
        nested(doc! { "$unionWith": "replaced" }),
        find("dropped"),
        insert("dropped", vec![doc! { "_id": 3 }.into()]),
        find("replaced"),
        find("renamed"),
        find("new name"),
    ];
    for (session, statement) in sessions.iter_mut().zip(statements) {
        let reply = session.reply(&mut f, statement);
        assert_eq!((code(&reply), is_transient(&reply)), (Some(246), true));
        assert_eq!(code(&session.end(&mut f, "commitTransaction")), Some(251));
    }
    // The others are as they were, and what it creates is its own.
    assert_eq!(others.all(&mut f, find("kept")).len(), 1);
    others.run(&mut f, insert("own", vec![doc! { "_id": 1 }.into()]));
    assert_eq!(others.all(&mut f, find("own")).len(), 1);
    others.commit(&mut f);
    assert_eq!(f.counted("own"), 1);
}
