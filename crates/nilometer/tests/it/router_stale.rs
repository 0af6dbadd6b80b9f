//! A router that reads the catalog of another answers by what was acknowledged there, whatever it had read before.

use std::sync::Arc;

use nilometer::{Database, Request};
use nilometer_bson::{Document, Value, array, doc};
use nilometer_storage::{Engine, MemoryEngine};

use crate::router_pair::{RouterPair, ok, run};
use crate::support::show;

fn on(mut command: Document) -> Document {
    let mut out = nilometer_bson::DocumentBuilder::extending(std::mem::take(&mut command));
    out.append("$db", "test");
    out.finish()
}

fn number(reply: &Document, field: &str) -> Option<i64> {
    reply.get(field).as_exact_i64()
}

/// Returns the first batch of a command.
fn batch(database: &Database, command: Document) -> Vec<Document> {
    let reply = ok(database, on(command));
    let cursor = reply.get("cursor").as_document().unwrap();
    let rows = cursor.get("firstBatch").as_array().unwrap();
    rows.iter()
        .map(|row| row.as_document().unwrap().to_document())
        .collect()
}

/// Makes a collection with another collation than one of the same name had, and returns the second router as it was before.
fn recreated(is_sharded: bool, before: &str, after: &str) -> (RouterPair, Arc<Database>) {
    let routers = RouterPair::new(3);
    let make = |locale: &str| {
        let collation = doc! {"locale": locale, "strength": 1};
        let collation = match locale {
            "simple" => doc! {"locale": "simple"},
            _ => collation,
        };
        ok(
            &routers.first,
            on(doc! {"create": "c", "collation": collation}),
        );
        if is_sharded {
            let shard = doc! {
                "shardCollection": "test.c", "key": doc! {"k": "hashed"},
                "collation": doc! {"locale": "simple"}, "$db": "admin",
            };
            ok(&routers.first, shard);
        }
        let texts = ["a", "A", "b", "B", "c", "C", "d", "D", "e", "E"];
        let list = texts.iter().map(|text| doc! {"k": *text, "n": 0}.into());
        let list: Vec<Value> = list.collect();
        ok(&routers.first, on(doc! {"insert": "c", "documents": list}));
    };
    make(before);
    routers.catch_up();
    let second = routers.second();
    ok(&routers.first, on(doc! {"drop": "c"}));
    make(after);
    (routers, second)
}

#[test]
fn a_collection_with_another_collation_than_before() {
    for is_sharded in [false, true] {
        for (before, after, found) in [("en", "simple", 1), ("simple", "en", 2)] {
            for catches_up in [false, true] {
                let setup = || {
                    let (routers, second) = recreated(is_sharded, before, after);
                    // A command may have begun by the catalog that was replaced meanwhile.
                    if catches_up {
                        routers.catch_up();
                    }
                    (routers, second)
                };
                let text = format!("{is_sharded} {before} {after} {catches_up}");
                let (_routers, second) = setup();
                let find = doc! {"find": "c", "filter": doc! {"k": "a"}};
                assert_eq!(batch(&second, find).len(), found, "{text}");
                let (_routers, second) = setup();
                let group = doc! {"$group": doc! {"_id": "$k"}};
                let groups = doc! {"aggregate": "c", "pipeline": array![group], "cursor": doc! {}};
                assert_eq!(batch(&second, groups).len(), 10 / found, "{text}");
                let (_routers, second) = setup();
                let set = doc! {"$set": doc! {"n": 1}};
                let update = doc! {"q": doc! {"k": "c"}, "u": set, "multi": true};
                let reply = ok(&second, on(doc! {"update": "c", "updates": array![update]}));
                assert_eq!(number(&reply, "n"), Some(found as i64), "{text}");
                let (_routers, second) = setup();
                let delete = doc! {"q": doc! {"k": "d"}, "limit": 0};
                let reply = ok(&second, on(doc! {"delete": "c", "deletes": array![delete]}));
                assert_eq!(number(&reply, "n"), Some(found as i64), "{text}");
            }
        }
    }
}

#[test]
fn writes_to_a_collection_that_was_dropped() {
    for is_sharded in [false, true] {
        let setup = || {
            let (routers, second) = recreated(is_sharded, "simple", "simple");
            routers.catch_up();
            let second_now = routers.second();
            drop(second);
            ok(&routers.first, on(doc! {"drop": "c"}));
            (routers, second_now)
        };
        let set = || doc! {"$set": doc! {"n": 7}};
        let count = |routers: &RouterPair| {
            let reply = ok(&routers.first, on(doc! {"count": "c"}));
            number(&reply, "n")
        };
        let (routers, second) = setup();
        let update = doc! {"q": doc! {"k": "a"}, "u": set()};
        let reply = ok(&second, on(doc! {"update": "c", "updates": array![update]}));
        assert_eq!(
            (number(&reply, "n"), number(&reply, "nModified")),
            (Some(0), Some(0))
        );
        assert_eq!(count(&routers), Some(0));

        let (routers, second) = setup();
        let delete = doc! {"q": doc! {"k": "a"}, "limit": 1};
        let reply = ok(&second, on(doc! {"delete": "c", "deletes": array![delete]}));
        assert_eq!(number(&reply, "n"), Some(0));
        assert_eq!(count(&routers), Some(0));

        let (routers, second) = setup();
        let update = doc! {"q": doc! {"k": "a"}, "u": set(), "upsert": true};
        let reply = ok(&second, on(doc! {"update": "c", "updates": array![update]}));
        assert_eq!(number(&reply, "n"), Some(1), "{}", show(&reply));
        assert_eq!(count(&routers), Some(1), "{is_sharded}");

        for upsert in [false, true] {
            let (routers, second) = setup();
            let modify = doc! {
                "findAndModify": "c", "query": doc! {"k": "a"}, "update": set(), "upsert": upsert,
            };
            let reply = ok(&second, on(modify));
            assert!(
                reply.get("value").as_document().is_none(),
                "{}",
                show(&reply)
            );
            assert_eq!(count(&routers), Some(i64::from(upsert)), "{is_sharded}");
        }

        let (routers, second) = setup();
        let update = doc! {
            "update": 0, "filter": doc! {"k": "a"}, "updateMods": set(), "upsert": true,
        };
        let bulk = doc! {
            "bulkWrite": 1, "ops": array![update], "nsInfo": array![doc! {"ns": "test.c"}],
            "$db": "admin",
        };
        let reply = ok(&second, bulk);
        assert_eq!(number(&reply, "nUpserted"), Some(1), "{}", show(&reply));
        assert_eq!(count(&routers), Some(1), "{is_sharded}");
    }
}

#[test]
fn statistics_of_a_collection_that_was_sharded_and_a_rollup_whose_series_is_new() {
    let routers = RouterPair::new(3);
    let group = doc! {"$group": doc! {
        "_id": doc! {"at": doc! {"$dateTrunc": doc! {"date": "$t", "unit": "hour"}}},
        "n": doc! {"$count": doc! {}},
    }};
    let rollup = doc! {"source": "ts", "pipeline": array![group], "refresh": 0};
    ok(
        &routers.first,
        on(doc! {"create": "hours", "rollup": rollup}),
    );
    ok(
        &routers.first,
        on(doc! {"insert": "c", "documents": array![doc! {"k": 1}]}),
    );
    routers.catch_up();
    let series = doc! {"timeField": "t", "metaField": "m"};
    ok(
        &routers.first,
        on(doc! {"create": "ts", "timeseries": series}),
    );
    let list = array![doc! {"t": Value::DateTime(1000), "m": 1}];
    ok(&routers.first, on(doc! {"insert": "ts", "documents": list}));
    let make = doc! {"key": doc! {"k": 1}, "name": "k_1"};
    ok(
        &routers.first,
        on(doc! {"createIndexes": "c", "indexes": array![make]}),
    );
    let shard = doc! {"shardCollection": "test.c", "key": doc! {"k": 1}, "$db": "admin"};
    ok(&routers.first, shard);
    let high = doc! {
        "moveRange": "test.c", "min": doc! {"k": 5}, "max": doc! {"k": Value::MaxKey},
        "toShard": "p0000", "$db": "admin",
    };
    let low = doc! {
        "moveRange": "test.c", "min": doc! {"k": Value::MinKey}, "max": doc! {"k": 5},
        "toShard": "p0001", "$db": "admin",
    };
    ok(&routers.first, high);
    ok(&routers.first, low);
    let list = (0..10)
        .map(|k| doc! {"k": k}.into())
        .collect::<Vec<Value>>();
    ok(&routers.first, on(doc! {"insert": "c", "documents": list}));

    let second = routers.second();
    let asks = |command: Document| second.asks_for_new_catalog(&Request::new(on(command)));
    assert!(asks(doc! {"find": "hours"}));
    for command in ["collStats", "validate", "rollupStatus", "refreshRollup"] {
        let mut of = nilometer_bson::DocumentBuilder::new();
        of.append(command, "c");
        assert!(asks(of.finish()), "{command}");
    }
    let stats = doc! {"$collStats": doc! {"count": doc! {}}};
    assert!(asks(
        doc! {"aggregate": "c", "pipeline": array![stats], "cursor": doc! {}}
    ));
    assert!(!asks(doc! {"find": "c"}));
    // As the server does then.
    routers.catch_up();
    let second = routers.second();
    assert_eq!(batch(&second, doc! {"find": "hours"}).len(), 1);
    let asks = second.asks_for_new_catalog(&Request::new(on(doc! {"find": "hours"})));
    assert!(!asks);
    let reply = ok(&second, on(doc! {"collStats": "c"}));
    assert_eq!(number(&reply, "count"), Some(11), "{}", show(&reply));
}

#[test]
fn a_router_that_gets_the_catalog_while_a_command_begins() {
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
    let routers = RouterPair::over(Arc::clone(&engine), 2);
    let before = routers.second();
    let after = before.router_successor(engine).unwrap();
    assert!(before.is_view() && !after.is_view());
    ok(
        &before,
        on(doc! {"create": "c", "capped": true, "size": 4096}),
    );
    ok(
        &before,
        on(doc! {"insert": "d", "documents": array![doc! {"_id": 1}]}),
    );
    let user = doc! {"createUser": "ada", "pwd": "x", "roles": array![]};
    ok(&before, on(user));
    let again = run(&before, on(doc! {"create": "c"}));
    assert_eq!(number(&again, "code"), Some(48), "{}", show(&again));
    assert_eq!(batch(&after, doc! {"listCollections": 1}).len(), 2);
    assert_eq!(batch(&after, doc! {"find": "d"}).len(), 1);
}
