//! Updates that change the shard key of a document: it goes to the partition of its new key, once, whatever fails.

use std::sync::Arc;

use nilometer::Request;
use nilometer_bson::{Document, Value, array, doc};

use crate::random::Random;
use crate::router::Cluster;
use crate::router_moves::{FAULTS, Fault, Wire, check, open, reopen, sharded};
use crate::router_pair::{RouterPair, ok};
use crate::router_writes::{numbered, with};
use crate::support::{Fixture, show};

const IDS: i32 = 30;

fn document(router: &mut Fixture, id: i32) -> Document {
    let mut found = router.all(doc! {"find": "c", "filter": doc! {"_id": id}});
    assert_eq!(found.len(), 1, "{id}");
    found.remove(0)
}

/// Returns an update of a document as it is now, which gives it another key.
fn update(random: &mut Random, before: &Document, number: i64) -> Document {
    let k = random.int(20);
    let q = doc! {
        "_id": before.get("_id").to_value(), "k": before.get("k").to_value(), "x": before.get("x").to_value(),
    };
    let u: Value = match random.below(4) {
        0 => doc! {"$set": doc! {"k": k}, "$inc": doc! {"n": 1}}.into(),
        1 => doc! {"$inc": doc! {"k": 1, "n": 1, "x": 1}}.into(),
        2 => {
            let n = before.get("n").as_exact_i64().unwrap_or(0) + 1;
            doc! {"k": k, "x": random.int(7), "n": n}.into()
        }
        _ => {
            let n = doc! {"$add": array![doc! {"$ifNull": array!["$n", 0]}, 1]};
            array![doc! {"$set": doc! {"k": k, "n": n}}]
        }
    };
    let command = match random.below(3) {
        0 => doc! {"findAndModify": "c", "query": q, "update": u, "new": random.below(2) == 0},
        1 => {
            let ops = array![doc! {"update": 0, "filter": q, "updateMods": u}];
            doc! {"bulkWrite": 1, "ops": ops, "nsInfo": array![doc! {"ns": "test.c"}]}
        }
        _ => doc! {"update": "c", "updates": array![doc! {"q": q, "u": u}]},
    };
    numbered(command, number)
}

fn send(router: &mut Fixture, command: &Document) -> Document {
    let db = match command.get("bulkWrite").is_missing() {
        true => "test",
        false => "admin",
    };
    router.reply_on(db, command.clone())
}

/// True if a reply says that one document has changed.
fn has_changed(reply: &Document) -> bool {
    let is_one = |value: nilometer_bson::ValueRef<'_>| value.as_exact_i64() == Some(1);
    let result = reply.get("lastErrorObject").as_document();
    is_one(reply.get("ok"))
        && (is_one(reply.get("nModified")) && is_one(reply.get("n"))
            || is_one(reply.get("nModified")) && is_one(reply.get("nMatched"))
            || result.is_some_and(|result| is_one(result.get("n"))))
}

#[test]
fn a_document_that_moves_is_lost_and_doubled_by_no_fault() {
    let rounds = nilometer_storage::testing::effort(1, 4, 40);
    let keys = [doc! {"k": 1}, doc! {"k": "hashed"}, doc! {"k": 1, "x": 1}];
    for seed in 0..rounds as u64 {
        for (number, key) in keys.iter().enumerate() {
            let mut random = Random::new(seed * 10 + number as u64 + 1);
            let (mut cluster, wire, mut expected) = sharded(key, IDS);
            spread(&mut cluster, key);
            let mut write = 0;
            for fault in FAULTS {
                for at in 0..25 {
                    write += 1;
                    let id = random.int(IDS);
                    let before = document(&mut cluster.router, id);
                    let command = update(&mut random, &before, write);
                    let text = format!("{seed} {fault:?} at {at}: {}", show(&command));
                    wire.arm(at, fault);
                    let mut reply = send(&mut cluster.router, &command);
                    let has_failed = wire.heal();
                    if has_failed && random.below(2) == 0
                        || matches!(fault, Fault::RouterEnds | Fault::RouterEndsBehind)
                    {
                        reopen(&mut cluster, &wire);
                    }
                    let is_repeated = random.below(3) > 0;
                    if !has_changed(&reply) && is_repeated {
                        reply = send(&mut cluster.router, &command);
                    }
                    if is_repeated || !has_failed {
                        assert!(has_changed(&reply), "{text}: {}", show(&reply));
                    }
                    let after = document(&mut cluster.router, id);
                    let times = |document: &Document| document.get("n").as_exact_i64().unwrap_or(0);
                    match has_changed(&reply) {
                        true => assert_eq!(times(&after), times(&before) + 1, "{text}"),
                        false if times(&after) == times(&before) => {
                            assert_eq!(show(&after), show(&before), "{text}");
                        }
                        false => assert_eq!(times(&after), times(&before) + 1, "{text}"),
                    }
                    expected[usize::try_from(id).unwrap()] = after;
                    check(&mut cluster, &expected, &text);
                }
            }
        }
    }
}

/// Gives each partition a range, if the key is not hashed.
fn spread(cluster: &mut Cluster, key: &Document) {
    if key.get("k").as_str().is_some() {
        return;
    }
    for (at, shard) in [(7, "p0001"), (14, "p0002")] {
        let bound = |k: i32| match key.get("x").is_missing() {
            true => doc! {"k": k},
            false => doc! {"k": k, "x": Value::MinKey},
        };
        let range = doc! {
            "moveRange": "test.c", "min": bound(at), "max": bound(at + 7), "toShard": shard,
        };
        cluster.admin(range);
    }
}

/// A cluster with ten documents for each of three partitions.
fn three() -> (Cluster, Arc<Wire>) {
    let (mut cluster, wire, _) = sharded(&doc! {"k": 1}, 30);
    spread(&mut cluster, &doc! {"k": 1});
    (cluster, wire)
}

/// Returns the code of the first error of a reply.
fn code(reply: &Document) -> i64 {
    let errors = reply.get("writeErrors").as_array();
    let error = errors.and_then(|errors| errors.get(0).as_document());
    let code = match error {
        Some(error) => error.get("code").as_exact_i64(),
        None => reply.get("code").as_exact_i64(),
    };
    code.unwrap_or(0)
}

#[test]
fn which_updates_may_change_a_shard_key() {
    let (mut cluster, _) = three();
    let router = &mut cluster.router;
    let before = router.all(doc! {"find": "c", "sort": doc! {"_id": 1}});
    let set = |k: Value| doc! {"$set": doc! {"k": k}};
    let one = |q: Document, u: Document| doc! {"q": q, "u": u};
    let updates = |list: Vec<Value>| doc! {"update": "c", "updates": list};
    let whole = || doc! {"_id": 3, "k": 3};
    let mut many = one(whole(), set(15.into()));
    many = {
        let mut out = nilometer_bson::DocumentBuilder::extending(many);
        out.append("multi", true);
        out.finish()
    };
    let moving = |at: i32| Value::from(one(doc! {"_id": at, "k": at}, set(15.into())));
    let modify = |query: Document| {
        doc! {"findAndModify": "c", "query": query, "update": doc! {"$inc": doc! {"k": 9}}}
    };
    let mut number = 0;
    let mut numbered = |command: Document| {
        number += 1;
        numbered(command, number)
    };
    let refused = [
        (updates(vec![moving(3)]), 20),
        (updates(vec![one(whole(), set(4.into())).into()]), 20),
        (
            updates(vec![one(whole(), doc! {"$inc": doc! {"k": 1}}).into()]),
            20,
        ),
        (modify(whole()), 20),
        (updates(vec![many.into()]), 72),
        (
            numbered(updates(vec![one(doc! {"_id": 3}, set(15.into())).into()])),
            31_025,
        ),
        (
            numbered(updates(vec![
                one(doc! {"_id": 3, "k": doc! {"$gte": 3}}, set(15.into())).into(),
            ])),
            31_025,
        ),
        (numbered(modify(doc! {"_id": 3})), 31_025),
        (numbered(updates(vec![moving(3), moving(4)])), 72),
        (
            numbered(updates(vec![one(whole(), set(array![1])).into()])),
            61,
        ),
    ];
    for (command, expected) in refused {
        let reply = router.reply(command.clone());
        assert_eq!(
            code(&reply),
            expected,
            "{} {}",
            show(&command),
            show(&reply)
        );
    }
    // What leaves the key as it is needs nothing.
    for u in [
        set(3.into()),
        doc! {"$inc": doc! {"k": 0}},
        doc! {"$min": doc! {"k": 5}},
    ] {
        let reply = router.run(updates(vec![one(whole(), u).into()]));
        assert_eq!(reply.get("n").as_exact_i64(), Some(1), "{}", show(&reply));
    }
    let after = router.all(doc! {"find": "c", "sort": doc! {"_id": 1}});
    assert_eq!(
        before.iter().map(show).collect::<Vec<_>>(),
        after.iter().map(show).collect::<Vec<_>>()
    );
    // Within a partition several statements change keys.
    let list = (0..3).map(|at| Value::from(one(doc! {"_id": at, "k": at}, set((at + 1).into()))));
    let reply = router.run(numbered(updates(list.collect())));
    assert_eq!(
        reply.get("nModified").as_exact_i64(),
        Some(3),
        "{}",
        show(&reply)
    );
}

#[test]
fn a_document_that_cannot_be_where_its_key_leads_stays() {
    let (mut cluster, _) = three();
    let router = &mut cluster.router;
    // The same `_id` in another partition, and the same unique key.
    router.run(doc! {"insert": "c", "documents": array![doc! {"_id": 3, "k": 15, "x": 9}]});
    let index = doc! {"key": doc! {"k": 1, "s": 1}, "name": "ks", "unique": true};
    let clean = doc! {"delete": "c", "deletes": array![doc! {"q": doc! {"_id": doc! {"$gte": 20}}, "limit": 0}]};
    router.run(clean);
    router.run(doc! {"createIndexes": "c", "indexes": array![index]});
    let rule = doc! {"k": doc! {"$ne": 16}};
    router.run(doc! {"collMod": "c", "validator": rule});
    let s = router.all(doc! {"find": "c", "filter": doc! {"_id": 5}});
    let s = s[0].get("s").to_value();
    router.run(doc! {"insert": "c", "documents": array![doc! {"_id": 50, "k": 17, "s": s}]});
    let before = router.all(doc! {"find": "c", "sort": doc! {"_id": 1, "k": 1}});
    let tries = [
        (3, 15, 11_000),
        (3, 18, 11_000),
        (4, 16, 121),
        (5, 17, 11_000),
    ];
    for (number, (id, k, expected)) in tries.into_iter().enumerate() {
        let q = doc! {"_id": id, "k": id};
        let u = doc! {"$set": doc! {"k": k}};
        for command in [
            doc! {"update": "c", "updates": array![doc! {"q": q.clone(), "u": u.clone()}]},
            doc! {"findAndModify": "c", "query": q.clone(), "update": u.clone()},
        ] {
            let reply = router.reply(numbered(command, number as i64 + 1));
            assert_eq!(code(&reply), expected, "{id} {k} {}", show(&reply));
        }
    }
    let after = router.all(doc! {"find": "c", "sort": doc! {"_id": 1, "k": 1}});
    assert_eq!(
        before.iter().map(show).collect::<Vec<_>>(),
        after.iter().map(show).collect::<Vec<_>>()
    );
}

#[test]
fn an_open_cursor_goes_on_while_a_document_moves() {
    let (mut cluster, _) = three();
    let router = &mut cluster.router;
    let opened = router.run(doc! {"find": "c", "batchSize": 2});
    let id = opened.get("cursor").as_document().unwrap().get("id");
    let id = id.as_exact_i64().unwrap();
    let update = doc! {"q": doc! {"_id": 29, "k": 9}, "u": doc! {"$set": doc! {"k": 15}}};
    let reply = router.run(numbered(doc! {"update": "c", "updates": array![update]}, 1));
    assert_eq!(
        reply.get("nModified").as_exact_i64(),
        Some(1),
        "{}",
        show(&reply)
    );
    let rest = router.run(doc! {"getMore": id, "collection": "c", "batchSize": 100});
    let rest = rest.get("cursor").as_document().unwrap();
    let rest = rest.get("nextBatch").as_array().unwrap().iter().count();
    assert!((26..=29).contains(&rest), "{rest}");
}

/// A part that begins after the first reply follows the placement of the query's begin, which the partitions refuse.
#[test]
fn a_part_that_begins_after_a_document_has_moved_ends_the_cursor() {
    let (mut cluster, _) = three();
    let router = &mut cluster.router;
    let union = array![doc! {"$unionWith": "c"}];
    let opened =
        router.run(doc! {"aggregate": "c", "pipeline": union, "cursor": doc! {"batchSize": 2}});
    let id = opened.get("cursor").as_document().unwrap().get("id");
    let id = id.as_exact_i64().unwrap();
    let update = doc! {"q": doc! {"_id": 29, "k": 9}, "u": doc! {"$set": doc! {"k": 15}}};
    router.run(numbered(doc! {"update": "c", "updates": array![update]}, 1));
    let code = router.code(doc! {"getMore": id, "collection": "c"});
    assert_eq!(code, 175);
    assert_eq!(router.all(doc! {"find": "c"}).len(), 30);
}

/// Returns the update of the first document with one key, which gives it another one.
fn rekey(random: u64, (from, to): (i32, i32), number: i64) -> Document {
    let (q, u) = (
        doc! {"k": from},
        doc! {"$set": doc! {"k": to}, "$inc": doc! {"n": 1}},
    );
    let command = match random {
        0 => doc! {"update": "c", "updates": array![doc! {"q": q, "u": u}]},
        _ => doc! {"findAndModify": "c", "query": q, "update": u},
    };
    numbered(command, number)
}

/// Runs a command on a router of its own; `meanwhile` runs behind the reply to the request of this number.
pub(crate) fn run_with(
    cluster: &mut Cluster,
    wire: &Arc<Wire>,
    command: &Document,
    (at, meanwhile): (usize, Document),
) -> Document {
    let router = Arc::new(open(cluster, wire));
    let other = Arc::clone(&router);
    wire.behind(at, move || {
        ok(&other, meanwhile);
    });
    let reply = ok(&router, with(command.clone(), "$db", "test"));
    drop(router);
    reopen(cluster, wire);
    reply
}

#[test]
fn a_repetition_that_is_faster_changes_one_document() {
    for kind in 0..2 {
        for to in [5, 15] {
            // Three questions for a repetition, and the update.
            for at in 0..4 {
                let (mut cluster, wire) = three();
                let command = rekey(kind, (3, to), 1);
                let again = with(command.clone(), "$db", "test");
                let reply = run_with(&mut cluster, &wire, &command, (at, again));
                let text = format!("{kind} to {to} at {at}: {}", show(&reply));
                assert!(has_changed(&reply), "{text}");
                let router = &mut cluster.router;
                let all = router.all(doc! {"find": "c", "sort": doc! {"_id": 1}});
                assert_eq!(all.len(), 30, "{text}");
                let changed = all.iter().filter(|one| one.get("n").is_number());
                assert_eq!(changed.count(), 1, "{text}");
                check(&mut cluster, &all, &text);
            }
        }
    }
}

#[test]
fn a_key_is_allowed_only_while_its_chunk_stays() {
    for kind in 0..2 {
        for at in 0..8 {
            let (mut cluster, wire) = three();
            let command = rekey(kind, (3, 5), 1);
            let range = doc! {
                "moveRange": "test.c", "min": doc! {"k": 5}, "max": doc! {"k": 6}, "toShard": "p0001",
                "$db": "admin",
            };
            let reply = run_with(&mut cluster, &wire, &command, (at, range));
            let text = format!("{kind} at {at}: {}", show(&reply));
            assert!(has_changed(&reply), "{text}");
            let all = cluster
                .router
                .all(doc! {"find": "c", "sort": doc! {"_id": 1}});
            let changed = all.iter().filter(|one| one.get("n").is_number());
            assert_eq!(changed.count(), 1, "{text}");
            check(&mut cluster, &all, &text);
        }
    }
}

#[test]
fn a_document_that_expires_before_its_move_ends_does_not_come_back() {
    let mut expired = 0;
    for kind in 0..2 {
        for at in 0..20 {
            let (mut cluster, wire) = three();
            let delete =
                doc! {"delete": "c", "deletes": array![doc! {"q": doc! {"_id": 23}, "limit": 1}]};
            cluster.router.run(delete);
            let command = rekey(kind, (3, 15), 1);
            wire.arm(at, Fault::RouterEndsBehind);
            cluster.router.reply(command.clone());
            wire.heal();
            // What a TTL index does, which asks no router.
            let target = cluster.partitions[2].database();
            let expire = bson::doc! {"delete": "c", "deletes": [{"q": {"_id": 3}, "limit": 1}]};
            let gone = target.command("test", &expire).unwrap().get_i32("n");
            let is_gone = gone.unwrap() == 1;
            expired += usize::from(is_gone);
            // Another write of the session forgets the result of the update.
            let is_forgotten = at % 2 == 0;
            if is_forgotten {
                let insert =
                    doc! {"insert": "other", "documents": array![doc! {"_id": 1}], "$db": "test"};
                let to = doc! {"name": "p0002"};
                let message = with(numbered(insert, 2), "$partition", to);
                let addressed = nilometer::router::addressed(&Request::new(message));
                let (_, request) = addressed.unwrap().unwrap();
                let reply = cluster.partitions[2].run(&request);
                assert_eq!(reply.get("n").as_exact_i64(), Some(1), "{}", show(&reply));
            }
            reopen(&mut cluster, &wire);
            let text = format!("{kind} at {at}, {is_gone}");
            let all = cluster
                .router
                .all(doc! {"find": "c", "sort": doc! {"_id": 1}});
            assert_eq!(all.len(), 29 - usize::from(is_gone), "{text}");
            check(&mut cluster, &all, &text);
            let reply = cluster.router.reply(command);
            if is_forgotten {
                assert_eq!(code(&reply), 225, "{text}: {}", show(&reply));
            } else {
                assert!(has_changed(&reply), "{text}: {}", show(&reply));
                let found = cluster
                    .router
                    .all(doc! {"find": "c", "filter": doc! {"_id": 3}});
                assert_eq!(found.len(), usize::from(!is_gone), "{text}");
            }
        }
    }
    assert!(expired > 2, "{expired}");
}

#[test]
fn keys_change_through_both_routers_while_others_read() {
    let routers = RouterPair::sharded(3);
    let shard = doc! {"shardCollection": "test.c", "key": doc! {"k": 1}, "$db": "admin"};
    ok(&routers.second(), shard);
    for (at, shard) in [(10, "p0001"), (20, "p0002")] {
        let range = doc! {
            "moveRange": "test.c", "min": doc! {"k": at}, "max": doc! {"k": at + 10}, "toShard": shard,
            "$db": "admin",
        };
        ok(&routers.first, range);
    }
    let list: Vec<Value> = (0..20)
        .map(|id| doc! {"_id": id, "k": id, "n": 0}.into())
        .collect();
    ok(
        &routers.first,
        doc! {"insert": "c", "documents": list, "$db": "test"},
    );
    let rounds = nilometer_storage::testing::effort(40, 100, 500);
    let count = |router: &nilometer::Database, query: Document| {
        let count = doc! {"count": "c", "query": query, "$db": "test"};
        ok(router, count).get("n").as_exact_i64()
    };
    std::thread::scope(|scope| {
        let writers = [0, 1].map(|writer| {
            let routers = &routers;
            scope.spawn(move || {
                let mut random = Random::new(writer as u64 + 1);
                let mut keys: Vec<i32> = (0..20).collect();
                for turn in 0..rounds as i64 {
                    let router = match writer {
                        0 => Arc::clone(&routers.first),
                        _ => routers.second(),
                    };
                    let id = random.int(10) * 2 + writer;
                    let k = &mut keys[usize::try_from(id).unwrap()];
                    let q = doc! {"_id": id, "k": *k};
                    *k = random.int(30);
                    let u = doc! {"$set": doc! {"k": *k}, "$inc": doc! {"n": 1}};
                    let session = nilometer_bson::Binary {
                        subtype: 4,
                        bytes: vec![writer as u8; 16].into(),
                    };
                    let update = doc! {
                        "update": "c", "updates": array![doc! {"q": q, "u": u}], "$db": "test",
                        "lsid": doc! {"id": Value::from(session)}, "txnNumber": turn,
                    };
                    let reply = ok(&router, update);
                    assert_eq!(reply.get("n").as_exact_i64(), Some(1), "{}", show(&reply));
                }
            })
        });
        let reader = scope.spawn(|| {
            for turn in 0..rounds * 2 {
                let found = match turn % 2 {
                    0 => count(&routers.first, doc! {}),
                    _ => count(&routers.second(), doc! {}),
                };
                assert_eq!(found, Some(20));
            }
        });
        for thread in writers.into_iter().chain([reader]) {
            thread.join().unwrap();
        }
    });
    let by_key = (0..30).map(|k| count(&routers.second(), doc! {"k": k}).unwrap());
    assert_eq!(by_key.sum::<i64>(), 20);
}
