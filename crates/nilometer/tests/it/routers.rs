//! Several routers over the same partitions: one has the catalog, the other reads it and is told what has changed.

use std::sync::Arc;

use nilometer::database::HostedPartition;
use nilometer::services::Environment;
use nilometer::{Database, Request};
use nilometer_bson::{Document, Value, array, doc};
use nilometer_storage::{Engine, MemoryEngine};

use crate::router_pair::{RouterPair, ok, run};
use crate::support::show;

fn measurement(at: i64, host: i32) -> Value {
    doc! {"t": Value::DateTime(at * 1000), "m": doc! {"host": host}, "x": at}.into()
}

fn insert(list: Vec<Value>) -> Document {
    doc! {"insert": "ts", "documents": list, "$db": "test"}
}

fn count(database: &Database, query: Document) -> i64 {
    let reply = ok(
        database,
        doc! {"count": "ts", "query": query, "$db": "test"},
    );
    reply.get("n").as_exact_i64().unwrap()
}

fn move_to(host: i32, shard: &str) -> Document {
    doc! {
        "moveRange": "test.ts", "min": doc! {"meta.host": host}, "max": doc! {"meta.host": host + 1},
        "toShard": shard, "$db": "admin",
    }
}

/// The catalog of the second router was read while the first one had stored the collection, but not its placement.
#[test]
fn a_collection_that_was_being_created_is_looked_up_again() {
    let stored = |name: &str| {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let one = Database::with_engine(Arc::clone(&engine), Environment::default()).unwrap();
        let timeseries = doc! {"timeField": "t", "metaField": "m"};
        let create = doc! {"create": name, "timeseries": timeseries, "$db": "test"};
        ok(&one, create.clone());
        let routers = RouterPair::over(engine, 2);
        ok(&routers.first, create);
        (0..4).for_each(|at| {
            let insert =
                doc! {"insert": name, "documents": array![measurement(at, 1)], "$db": "test"};
            ok(&routers.first, insert);
        });
        routers
    };
    let routers = stored("ts");
    let count_all = doc! {"count": "ts", "$db": "test"};
    assert!(
        routers
            .second()
            .asks_for_new_catalog(&Request::new(count_all.clone()))
    );
    assert_eq!(count(&routers.second(), doc! {}), 4);
    assert!(
        !routers
            .second()
            .asks_for_new_catalog(&Request::new(count_all))
    );

    let routers = stored("ts");
    let lookup = doc! {"from": "ts", "pipeline": array![], "as": "all"};
    let pipeline = array![
        doc! {"$documents": array![doc! {"a": 1}]},
        doc! {"$lookup": lookup},
        doc! {"$project": doc! {"n": doc! {"$size": "$all"}}},
    ];
    let joined = doc! {"aggregate": 1, "pipeline": pipeline, "cursor": doc! {}, "$db": "test"};
    let reply = ok(&routers.second(), joined);
    let cursor = reply.get("cursor").as_document().unwrap();
    let batch = cursor.get("firstBatch").as_array().unwrap();
    let first = batch.iter().next().and_then(|first| first.as_document());
    assert_eq!(first.unwrap().get("n").as_exact_i64(), Some(4));

    let routers = stored("ts");
    let delete = doc! {"delete": 0, "filter": doc! {"m.host": 1}, "multi": true};
    let ns_info = array![doc! {"ns": "test.ts"}];
    let bulk = doc! {"bulkWrite": 1, "ops": array![delete], "nsInfo": ns_info, "$db": "admin"};
    let reply = ok(&routers.second(), bulk);
    assert_eq!(reply.get("nDeleted").as_exact_i64(), Some(4));
}

#[test]
fn a_router_without_the_catalog_sends_changes_to_the_one_that_has_it() {
    let routers = RouterPair::new(2);
    let second = routers.second();
    assert!(second.is_view() && !routers.first.is_view());
    ok(&second, doc! {"create": "plain", "$db": "test"});
    ok(
        &second,
        doc! {"createUser": "ada", "pwd": "x", "roles": array![], "$db": "test"},
    );
    // An insert creates its collection.
    let second = routers.second();
    ok(
        &second,
        doc! {"insert": "new", "documents": array![doc! {"_id": 1}], "$db": "test"},
    );
    for router in [&routers.first, &routers.second()] {
        let listed = ok(
            router,
            doc! {"listCollections": 1, "nameOnly": true, "$db": "test"},
        );
        let text = show(&listed);
        assert!(text.contains("plain") && text.contains("new"), "{text}");
        let users = ok(router, doc! {"usersInfo": "ada", "$db": "test"});
        assert_eq!(users.get("users").as_array().unwrap().iter().count(), 1);
        let found = ok(router, doc! {"find": "new", "$db": "test"});
        assert!(show(&found).contains("_id"), "{}", show(&found));
    }
    let found = |name: &str| {
        let reply = ok(&routers.second(), doc! {"find": name, "$db": "config"});
        show(&reply.get("cursor").as_document().unwrap().to_document())
    };
    assert!(found("mongos").contains("second:2"), "{}", found("mongos"));
    let log = found("changelog");
    for text in ["partition.move", "p1", "first:1", "second:2"] {
        assert!(log.contains(text), "{log}");
    }
    assert!(
        found("version").contains("[9, 9, 9"),
        "{}",
        found("version")
    );
    // What the client may not do is refused here, and what fails there fails here.
    let twice = run(
        &routers.second(),
        doc! {"create": "plain", "capped": true, "size": 5, "$db": "test"},
    );
    assert_eq!(
        twice.get("code").as_exact_i64(),
        Some(48),
        "{}",
        show(&twice)
    );
}

#[test]
fn a_router_asks_for_a_new_catalog_when_it_has_to() {
    let routers = RouterPair::sharded(2);
    let second = routers.second();
    let asks = |command| second.asks_for_new_catalog(&Request::new(command));
    assert!(asks(doc! {"listCollections": 1, "$db": "test"}));
    assert!(asks(doc! {"find": "other", "$db": "test"}));
    assert!(asks(
        doc! {"explain": doc! {"count": "other"}, "$db": "test"}
    ));
    assert!(asks(doc! {"update": "other", "$db": "test"}));
    assert!(!asks(doc! {"find": "ts", "$db": "test"}));
    assert!(!asks(doc! {"update": "ts", "$db": "test"}));
    assert!(!asks(
        doc! {"getMore": 5_i64, "collection": "other", "$db": "test"}
    ));
    assert!(!asks(doc! {"ping": 1, "$db": "test"}));
    // A collection that only the second input of a query names is found, too.
    let created = doc! {"insert": "names", "documents": array![doc! {"_id": 1}], "$db": "test"};
    ok(&routers.first, created);
    ok(&second, insert(vec![measurement(0, 1)]));
    let lookup =
        doc! {"from": "names", "localField": "m.host", "foreignField": "_id", "as": "found"};
    let pipeline = array![
        doc! {"$lookup": lookup},
        doc! {"$match": doc! {"found._id": 1}}
    ];
    let joined = doc! {"aggregate": "ts", "pipeline": pipeline, "cursor": doc! {}, "$db": "test"};
    let joined = ok(&second, joined);
    assert!(show(&joined).contains("found: [{_id"), "{}", show(&joined));
    let first = &routers.first;
    assert!(!first.asks_for_new_catalog(&Request::new(doc! {"find": "other", "$db": "test"})));
}

#[test]
fn an_old_placement_costs_a_repetition_and_never_an_answer() {
    let routers = RouterPair::sharded(3);
    let hosts = |from: i64| {
        (0..6)
            .map(|host| measurement(from + i64::from(host), host))
            .collect()
    };
    let second = routers.second();
    ok(&second, insert(hosts(0)));
    // The second router does not know of the moves.
    for (host, shard) in [(2, "p0001"), (3, "p0002"), (4, "p0001")] {
        ok(&routers.first, move_to(host, shard));
    }
    ok(&routers.first, insert(hosts(100)));
    for host in 0..6 {
        assert_eq!(count(&second, doc! {"m.host": host}), 2, "{host}");
    }
    assert_eq!(count(&second, doc! {}), 12);
    ok(&routers.first, move_to(5, "p0002"));
    ok(&second, insert(hosts(200)));
    let ordered = doc! {"insert": "ts", "documents": hosts(300), "ordered": true, "$db": "test"};
    ok(&routers.first, move_to(1, "p0002"));
    ok(&second, ordered);
    for router in [&routers.first, &second, &routers.second()] {
        for host in 0..6 {
            assert_eq!(count(router, doc! {"m.host": host}), 4, "{host}");
        }
    }
    // Changes and removals follow, too: also in partitions that the old placement does not name.
    ok(&routers.first, move_to(0, "p0002"));
    ok(&routers.first, insert(hosts(400)));
    let update =
        doc! {"q": doc! {"m.host": 0}, "u": doc! {"$set": doc! {"m.old": true}}, "multi": true};
    let reply = run(
        &second,
        doc! {"update": "ts", "updates": array![update], "$db": "test"},
    );
    assert_eq!(reply.get("n").as_exact_i64(), Some(5), "{}", show(&reply));
    assert_eq!(count(&second, doc! {"m.old": true}), 5);
    ok(&routers.first, move_to(3, "p0000"));
    ok(&routers.first, insert(hosts(500)));
    let delete = doc! {"q": doc! {"m.host": 3}, "limit": 0};
    let reply = ok(
        &second,
        doc! {"delete": "ts", "deletes": array![delete], "$db": "test"},
    );
    assert_eq!(reply.get("n").as_exact_i64(), Some(6), "{}", show(&reply));
}

#[test]
fn a_collection_that_is_sharded_or_dropped_elsewhere() {
    let routers = RouterPair::new(3);
    let timeseries = doc! {"timeField": "t", "metaField": "m"};
    let create = doc! {"create": "ts", "timeseries": timeseries, "$db": "test"};
    ok(&routers.first, create.clone());
    routers.catch_up();
    let second = routers.second();
    let shard =
        doc! {"shardCollection": "test.ts", "key": doc! {"m.host": "hashed"}, "$db": "admin"};
    ok(&routers.first, shard);
    // The second router takes the collection for one that is whole in its primary.
    let list: Vec<Value> = (0..60).map(|at| measurement(at, at as i32 % 12)).collect();
    ok(&second, insert(list));
    let used = routers.partitions.iter().filter(|partition| {
        let found = partition
            .database()
            .command("test", &bson::doc! {"count": "ts"});
        found.unwrap().get_i32("n").unwrap() > 0
    });
    assert!(used.count() > 1, "the new placement was followed");
    for host in 0..12 {
        assert_eq!(count(&routers.first, doc! {"m.host": host}), 5);
    }
    // Dropped and made again: nothing of before is written to.
    let second = routers.second();
    ok(&routers.first, doc! {"drop": "ts", "$db": "test"});
    ok(&routers.first, create);
    ok(&second, insert(vec![measurement(0, 1)]));
    assert_eq!(count(&routers.first, doc! {}), 1);
    assert_eq!(count(&routers.second(), doc! {}), 1);
    ok(&routers.first, doc! {"drop": "ts", "$db": "test"});
    assert_eq!(count(&second, doc! {}), 0);
}

#[test]
fn a_change_that_failed_half_way_stops_nobody() {
    let routers = RouterPair::sharded(2);
    for (at, database) in [routers.second(), Arc::clone(&routers.first)]
        .iter()
        .enumerate()
    {
        let number = 1000 * (at as i64 + 1);
        for partition in &routers.partitions {
            let raise = doc! {"_raisePlacement": doc! {"ns": "test.ts", "number": number}};
            let reply = partition.run(&Request::new(raise));
            assert_eq!(reply.get("ok").as_exact_i64(), Some(1), "{}", show(&reply));
        }
        ok(database, insert(vec![measurement(0, 1)]));
        assert_eq!(count(database, doc! {}), at as i64 + 1);
    }
    // A partition knows it when it is opened again, and later changes have greater versions.
    let database = Arc::clone(routers.partitions[0].database());
    let again = HostedPartition::new(database).unwrap();
    let placement = nilometer::operation::PlacementVersion {
        namespace: "test.ts".to_owned(),
        number: 1999,
    };
    let mut old = Request::new(doc! {"count": "ts", "$db": "test"});
    old.routed = Some(Arc::new(nilometer::operation::RoutedRequest {
        placement: Some(placement),
        ..Default::default()
    }));
    assert_eq!(again.run(&old).get("code").as_exact_i64(), Some(13388));
    ok(&routers.first, move_to(1, "p0001"));
    ok(&routers.second(), insert(vec![measurement(1, 1)]));
    assert_eq!(count(&routers.first, doc! {"m.host": 1}), 3);
}

#[test]
fn a_numbered_write_has_one_effect_through_any_router() {
    let routers = RouterPair::sharded(3);
    for host in [2, 4] {
        ok(&routers.first, move_to(host, "p0001"));
    }
    let session =
        doc! {"id": Value::from(nilometer_bson::Binary { subtype: 4, bytes: vec![7; 16].into() })};
    let numbered = |mut command: Document, number: i64| {
        let mut out = nilometer_bson::DocumentBuilder::extending(std::mem::take(&mut command));
        out.append("lsid", session.clone());
        out.append("txnNumber", number);
        out.finish()
    };
    // Neighbours in different partitions, so that one partition is sent several batches.
    let list: Vec<Value> = (0..10).map(|at| measurement(at, at as i32 % 5)).collect();
    let plain = array![doc! {"_id": 1, "n": 0}];
    ok(
        &routers.first,
        doc! {"insert": "plain", "documents": plain, "$db": "test"},
    );
    let mut unordered = nilometer_bson::DocumentBuilder::extending(insert(list.clone()));
    unordered.append("ordered", false);
    let update = doc! {"q": doc! {"_id": 1}, "u": doc! {"$inc": doc! {"n": 1}}};
    let update = doc! {"update": "plain", "updates": array![update], "$db": "test"};
    let modify = doc! {
        "findAndModify": "plain", "query": doc! {}, "update": doc! {"$inc": doc! {"n": 10}},
        "new": true, "$db": "test",
    };
    let commands = [insert(list), unordered.finish(), update, modify];
    for (number, command) in (1..).zip(commands) {
        let second = routers.second();
        for database in [&second, &routers.first, &second] {
            let reply = ok(database, numbered(command.clone(), number));
            if let Some(value) = reply.get("value").as_document() {
                assert_eq!(value.get("n").as_exact_i64(), Some(11), "{}", show(&reply));
            }
        }
    }
    assert_eq!(count(&routers.first, doc! {}), 20);
    // Also if the ranges of its documents have moved since, twice.
    for (number, ordered) in [(5, true), (6, false)] {
        let list: Vec<Value> = (0..10).map(|at| measurement(at, at as i32 % 5)).collect();
        let mut command = nilometer_bson::DocumentBuilder::extending(insert(list));
        command.append("ordered", ordered);
        let command = numbered(command.finish(), number);
        for shard in ["p0002", "p0001", "p0000"] {
            for host in 0..5 {
                ok(&routers.first, move_to(host, shard));
            }
            let reply = ok(&routers.second(), command.clone());
            assert_eq!(reply.get("n").as_exact_i64(), Some(10), "{}", show(&reply));
        }
    }
    assert_eq!(count(&routers.first, doc! {}), 40);
    let transaction = numbered(
        doc! {"find": "plain", "startTransaction": true, "autocommit": false, "$db": "test"},
        9,
    );
    let refused = run(&routers.first, transaction);
    assert_eq!(
        refused.get("code").as_exact_i64(),
        Some(115),
        "{}",
        show(&refused)
    );
}

#[test]
fn writes_of_both_routers_while_ranges_move() {
    const ROUNDS: i64 = 40;
    let routers = RouterPair::sharded(3);
    std::thread::scope(|scope| {
        for writer in 0..4_i64 {
            let routers = &routers;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let at = (writer * ROUNDS + round) * 10;
                    let list = (0..6)
                        .map(|host| measurement(at + i64::from(host), host))
                        .collect();
                    let router = match writer % 2 {
                        0 => Arc::clone(&routers.first),
                        _ => routers.second(),
                    };
                    ok(&router, insert(list));
                    // What was acknowledged is read, through any router and by the shard key.
                    let at = Value::DateTime((at + 3) * 1000);
                    let own = doc! {"m.host": 3, "t": at};
                    assert_eq!(count(&routers.second(), own.clone()), 1);
                    assert_eq!(count(&routers.first, own), 1);
                }
            });
        }
        for round in 0..ROUNDS {
            let shard = format!("p000{}", round % 3);
            ok(&routers.first, move_to((round % 6) as i32, &shard));
        }
    });
    for router in [&routers.first, &routers.second()] {
        for host in 0..6 {
            assert_eq!(count(router, doc! {"m.host": host}), 4 * ROUNDS, "{host}");
        }
    }
}

#[test]
fn bulk_writes_upserts_and_rollups_through_the_router_without_the_catalog() {
    let routers = RouterPair::sharded(3);
    for (host, shard) in [(1, "p0001"), (2, "p0002")] {
        ok(&routers.first, move_to(host, shard));
    }
    let second = routers.second();
    let group = doc! {"$group": doc! {
        "_id": doc! {"at": doc! {"$dateTrunc": doc! {"date": "$t", "unit": "hour"}}},
        "n": doc! {"$count": doc! {}},
    }};
    let rollup = doc! {"source": "ts", "pipeline": array![group], "refresh": 0};
    ok(
        &second,
        doc! {"create": "hours", "rollup": rollup, "$db": "test"},
    );
    let filter = |at: i64, host: i32| doc! {"t": Value::DateTime(at * 1000), "m.host": host};
    let ops = array![
        doc! {"insert": 0, "document": doc! {"t": Value::DateTime(1000), "m": doc! {"host": 1}}},
        doc! {"insert": 1, "document": doc! {"_id": 1}},
        doc! {"update": 0, "filter": filter(1, 2), "updateMods": doc! {"$set": doc! {"x": 2}}, "upsert": true},
        doc! {"update": 0, "filter": filter(1, 2), "updateMods": doc! {"$set": doc! {"m.host": 5}}},
    ];
    let infos = array![doc! {"ns": "test.ts"}, doc! {"ns": "test.other"}];
    let session =
        doc! {"id": Value::from(nilometer_bson::Binary { subtype: 4, bytes: vec![9; 16].into() })};
    let bulk = doc! {
        "bulkWrite": 1, "ops": ops, "nsInfo": infos, "lsid": session, "txnNumber": 3_i64, "$db": "admin",
    };
    for router in [&routers.second(), &routers.first, &routers.second()] {
        let reply = ok(router, bulk.clone());
        let number = |name: &str| reply.get(name).as_exact_i64();
        assert_eq!(
            (
                number("nInserted"),
                number("nUpserted"),
                number("nModified")
            ),
            (Some(2), Some(1), Some(1)),
            "{}",
            show(&reply)
        );
    }
    for router in [&routers.first, &routers.second()] {
        assert_eq!(count(router, doc! {"m.host": 5}), 1);
        assert_eq!(count(router, doc! {}), 2);
        let found = ok(router, doc! {"find": "hours", "$db": "test"});
        assert!(show(&found).contains("n: Int32(2)"), "{}", show(&found));
    }
    // Another router has dropped the rollup and created it again.
    ok(&routers.first, doc! {"drop": "hours", "$db": "test"});
    let group = doc! {"$group": doc! {
        "_id": doc! {"at": doc! {"$dateTrunc": doc! {"date": "$t", "unit": "hour"}}},
        "most": doc! {"$max": "$x"},
    }};
    let rollup = doc! {"source": "ts", "pipeline": array![group], "refresh": 0};
    ok(
        &routers.first,
        doc! {"create": "hours", "rollup": rollup, "$db": "test"},
    );
    // A command that has begun by the definition of before does not merge what is another rollup's.
    let find = doc! {"find": "hours", "$db": "test"};
    for _ in 0..2 {
        let found = ok(&routers.second(), find.clone());
        assert!(show(&found).contains("most: Int32(2)"), "{}", show(&found));
    }
}

#[test]
fn outputs_through_the_router_without_the_catalog() {
    let routers = RouterPair::sharded(3);
    let list: Vec<Value> = (0..30).map(|at| measurement(at, 1)).collect();
    ok(&routers.first, insert(list));
    let write = |stage: Document| {
        let sort = doc! {"$sort": doc! {"_id": 1}};
        doc! {"aggregate": "ts", "pipeline": array![sort, stage], "cursor": doc! {}, "$db": "test"}
    };
    let counted = |database: &Database, name: &str| {
        let reply = ok(database, doc! {"count": name, "$db": "test"});
        reply.get("n").as_exact_i64().unwrap()
    };
    let series = doc! {"timeField": "t", "metaField": "m"};
    let series = doc! {"$out": doc! {"db": "test", "coll": "series", "timeseries": series}};
    // Both routers create targets, replace those of the other, and drop them.
    for turn in 0..6 {
        let both = [routers.first.clone(), routers.second()];
        let (writer, other) = (&both[turn % 2], &both[(turn / 2) % 2]);
        for (stage, name) in [
            (doc! {"$out": "out"}, "out"),
            (doc! {"$merge": "merged"}, "merged"),
            (series.clone(), "series"),
        ] {
            ok(writer, write(stage.clone()));
            assert_eq!(counted(&routers.first, name), 30, "{turn} {name}");
            assert_eq!(counted(&routers.second(), name), 30, "{turn} {name}");
            ok(&routers.second(), write(stage));
            assert_eq!(counted(&routers.first, name), 30, "{turn} {name}");
            if turn % 2 == 0 {
                ok(other, doc! {"drop": name, "$db": "test"});
                routers.catch_up();
                assert_eq!(counted(&routers.second(), name), 0, "{turn} {name}");
            }
        }
    }
    let listed = ok(&routers.first, doc! {"listCollections": 1, "$db": "test"});
    assert!(show(&listed).contains("timeField"), "{}", show(&listed));
}

#[test]
fn outputs_while_another_router_drops_the_target() {
    let routers = RouterPair::sharded(2);
    let list: Vec<Value> = (0..200).map(|at| measurement(at, 1)).collect();
    ok(&routers.first, insert(list));
    let rounds = nilometer_storage::testing::effort(20, 60, 300);
    std::thread::scope(|scope| {
        let droppers = scope.spawn(|| {
            for _ in 0..rounds * 3 {
                for name in ["out", "merged"] {
                    let dropped = run(&routers.first, doc! {"drop": name, "$db": "test"});
                    let code = dropped.get("code").as_exact_i64();
                    assert!(matches!(code, None | Some(26)), "{}", show(&dropped));
                }
            }
        });
        for _ in 0..rounds {
            for stage in [doc! {"$out": "out"}, doc! {"$merge": "merged"}] {
                let pipeline = array![stage];
                let reply = run(
                    &routers.second(),
                    doc! {"aggregate": "ts", "pipeline": pipeline, "cursor": doc! {}, "$db": "test"},
                );
                // It was changed meanwhile, or dropped.
                let code = reply.get("code").as_exact_i64();
                assert!(matches!(code, None | Some(125 | 175)), "{}", show(&reply));
            }
        }
        droppers.join().unwrap();
    });
    // What is there afterwards is whole, and in one partition.
    for (stage, name) in [
        (doc! {"$out": "out"}, "out"),
        (doc! {"$merge": "merged"}, "merged"),
    ] {
        let pipeline = array![stage];
        ok(
            &routers.second(),
            doc! {"aggregate": "ts", "pipeline": pipeline, "cursor": doc! {}, "$db": "test"},
        );
        let reply = ok(&routers.first, doc! {"count": name, "$db": "test"});
        assert_eq!(reply.get("n").as_exact_i64(), Some(200), "{name}");
    }
}

#[test]
fn both_routers_write_a_sharded_ordinary_collection_while_ranges_move() {
    let routers = RouterPair::sharded(3);
    let shard = doc! {"shardCollection": "test.c", "key": doc! {"k": 1}, "$db": "admin"};
    ok(&routers.second(), shard);
    let rounds = nilometer_storage::testing::effort(60, 150, 500);
    let kept = (0..50).map(|at| doc! {"_id": -1 - at, "k": at * 4, "kept": true}.into());
    let kept: Vec<Value> = kept.collect();
    let insert = doc! {"insert": "c", "documents": kept, "$db": "test"};
    ok(&routers.first, insert);
    let all_kept = |router: &Database| {
        let kept = doc! {"count": "c", "query": doc! {"kept": true}, "$db": "test"};
        assert_eq!(ok(router, kept).get("n").as_exact_i64(), Some(50));
    };
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            for turn in 0..rounds * 2 {
                match turn % 2 {
                    0 => all_kept(&routers.first),
                    _ => all_kept(&routers.second()),
                }
            }
        });
        let mover = scope.spawn(|| {
            for turn in 0..rounds * 2 {
                // Ranges from those that are written to those that are not yet.
                let from = (turn % 40) as i32 * 5;
                let range = doc! {
                    "moveRange": "test.c", "min": doc! {"k": from}, "max": doc! {"k": from + 5},
                    "toShard": format!("p000{}", turn % 3), "$db": "admin",
                };
                ok(&routers.first, range);
            }
        });
        let writers = [0, 1].map(|writer| {
            let routers = &routers;
            scope.spawn(move || {
                for turn in 0..rounds as i32 {
                    let router = match writer {
                        0 => routers.first.clone(),
                        _ => routers.second(),
                    };
                    let k = turn * 200 / rounds as i32;
                    let id = turn * 2 + writer;
                    let one = doc! {"_id": id, "k": k, "by": writer};
                    let insert = doc! {"insert": "c", "documents": array![one], "$db": "test"};
                    let reply = ok(&router, insert);
                    assert_eq!(reply.get("n").as_exact_i64(), Some(1), "{}", show(&reply));
                    let q = doc! {"_id": id};
                    let u = doc! {"$inc": doc! {"n": 1}};
                    let update = doc! {"update": "c", "updates": array![doc! {"q": q, "u": u}], "$db": "test"};
                    let reply = ok(&router, update);
                    assert_eq!(reply.get("n").as_exact_i64(), Some(1), "{}", show(&reply));
                }
            })
        });
        mover.join().unwrap();
        reader.join().unwrap();
        for writer in writers {
            writer.join().unwrap();
        }
    });
    let count = |query: Document| {
        let count = doc! {"count": "c", "query": query, "$db": "test"};
        ok(&routers.second(), count)
            .get("n")
            .as_exact_i64()
            .unwrap()
    };
    assert_eq!(count(doc! {"n": 1}), 2 * rounds as i64);
    let by_key: i64 = (0..200).map(|k| count(doc! {"k": k})).sum();
    assert_eq!(by_key, 2 * rounds as i64 + 50);
}
