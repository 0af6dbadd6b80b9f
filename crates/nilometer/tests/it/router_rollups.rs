//! Rollups of a cluster answer as those of one server, whatever is stored of them and wherever their measurements are.

use nilometer_bson::{Document, Value, array, doc};

use crate::random::Random;
use crate::rollup_indexes::is_true;
use crate::router_writes::Pair;
use crate::support::show;

const HOUR_MS: i64 = 3_600_000;

fn measurement(random: &mut Random, hour: i64, number: i32) -> Value {
    let host = random.below(6) as i32;
    let at = hour * HOUR_MS + random.below(HOUR_MS as u64) as i64;
    doc! {
        "_id": number, "t": Value::DateTime(at), "m": doc! {"host": host, "rack": host % 2},
        "x": random.below(100) as i32, "y": f64::from(random.below(1000) as i32) / 8.0,
    }
    .into()
}

fn group(key: Document, unit: &str) -> Value {
    let mut id = nilometer_bson::DocumentBuilder::new();
    id.append("at", doc! {"$dateTrunc": doc! {"date": "$t", "unit": unit}});
    id.append_all(key.as_ref());
    doc! {"$group": doc! {
        "_id": id.finish(), "n": doc! {"$count": doc! {}}, "sum": doc! {"$sum": "$x"},
        "mean": doc! {"$avg": "$y"}, "low": doc! {"$min": "$y"}, "high": doc! {"$max": "$x"},
        "most": doc! {"$maxN": doc! {"input": "$x", "n": 3}},
        "p": doc! {"$percentile": doc! {"input": "$x", "p": array![0.5], "method": "approximate"}},
    }}
    .into()
}

fn rollup(name: &str, source: &str, pipeline: Vec<Value>) -> Document {
    doc! {
        "create": name,
        "rollup": doc! {"source": source, "pipeline": pipeline, "lateness": 3600, "refresh": 0},
    }
}

/// The rollups by host and by rack, and one of days on that of racks.
fn definitions() -> Vec<Document> {
    let of_day = doc! {"$group": doc! {
        "_id": doc! {"at": doc! {"$dateTrunc": doc! {"date": "$at", "unit": "day"}}, "rack": "$rack"},
        "mean": doc! {"$avg": "$mean"}, "sum": doc! {"$sum": "$sum"},
    }};
    vec![
        rollup("hosts", "ts", vec![group(doc! {"host": "$m.host"}, "hour")]),
        rollup(
            "racks",
            "ts",
            vec![
                doc! {"$match": doc! {"m.host": doc! {"$lt": 5}}}.into(),
                group(doc! {"rack": "$m.rack"}, "hour"),
            ],
        ),
        rollup("days", "racks", vec![of_day.into()]),
    ]
}

fn questions(random: &mut Random) -> Vec<Document> {
    let from = Value::DateTime(random.below(60) as i64 * HOUR_MS);
    let sort = doc! {"_id": 1};
    let mut all = Vec::new();
    for name in ["hosts", "racks", "days"] {
        all.push(doc! {"find": name, "sort": sort.clone()});
        all.push(doc! {"find": name, "filter": doc! {"at": doc! {"$gte": from.clone()}}, "sort": sort.clone()});
        all.push(doc! {"find": name, "filter": doc! {"_id.rack": 1, "sum": doc! {"$gt": 100}}, "sort": sort.clone()});
        all.push(doc! {"count": name, "query": doc! {"rack": 0}});
        all.push(
            doc! {"distinct": name, "key": "sum", "query": doc! {"host": random.below(6) as i32}},
        );
    }
    let by = doc! {"$group": doc! {"_id": "$host", "most": doc! {"$max": "$mean"}, "n": doc! {"$sum": "$n"}}};
    all.push(doc! {
        "aggregate": "hosts", "pipeline": array![by, doc! {"$sort": sort.clone()}], "cursor": doc! {},
        "collation": doc! {"locale": "en", "strength": 1},
    });
    let union = doc! {"$unionWith": doc! {"coll": "racks", "pipeline": array![doc! {"$match": doc! {"rack": 1}}]}};
    all.push(doc! {
        "aggregate": "hosts",
        "pipeline": array![doc! {"$match": doc! {"host": doc! {"$in": array![1, 2]}}}, union, doc! {"$sort": sort.clone()}],
        "cursor": doc! {},
    });
    // The planner of each partition may use its rollups.
    all.push(doc! {
        "aggregate": "ts", "pipeline": array![group(doc! {"host": "$m.host"}, "day"), doc! {"$sort": sort}],
        "cursor": doc! {},
    });
    all
}

fn compare(pair: &mut Pair, question: &Document) {
    if question.get("count").is_missing() && question.get("distinct").is_missing() {
        let expected = pair.single.all(question.clone());
        let found = pair.cluster.router.all(question.clone());
        let rows = |list: Vec<Document>| list.iter().map(show).collect::<Vec<_>>();
        assert_eq!(rows(found), rows(expected), "{}", show(question));
    } else {
        pair.both("test", question);
    }
}

fn history(seed: u64, key: Document, is_moved: bool) {
    let mut random = Random::new(seed);
    let mut pair = Pair::new(key.clone());
    for definition in definitions() {
        pair.both("test", &definition);
    }
    for (name, key) in [
        ("hosts", doc! {"host": 1, "at": 1}),
        ("racks", doc! {"rack": 1, "sum": -1}),
    ] {
        let index = doc! {"key": key, "name": "by key"};
        pair.both(
            "test",
            &doc! {"createIndexes": name, "indexes": array![index]},
        );
    }
    let mut number = 0;
    for round in 0..nilometer_storage::testing::effort(25, 80, 600) {
        if is_moved && random.below(2) == 0 {
            let from = random.below(6) as i32;
            let range = doc! {
                "moveRange": "test.ts", "min": doc! {"m.host": from}, "max": doc! {"m.host": from + 1},
                "toShard": format!("p000{}", random.below(3)),
            };
            pair.cluster.admin(range);
        }
        let latest = round as i64 / 2 + 5;
        match random.below(6) {
            0..=2 => {
                let list: Vec<Value> = (0..=random.below(30))
                    .map(|_| {
                        number += 1;
                        let hour = match random.below(4) {
                            0 => random.below(latest as u64 + 1) as i64,
                            _ => latest,
                        };
                        measurement(&mut random, hour, number)
                    })
                    .collect();
                pair.both("test", &doc! {"insert": "ts", "documents": list});
            }
            3 => {
                let query = doc! {"_id": random.below(number as u64 + 1) as i32};
                let list = array![doc! {"q": query, "limit": 1}];
                pair.both("test", &doc! {"delete": "ts", "deletes": list});
            }
            4 => {
                let query = doc! {"m.host": random.below(6) as i32, "x": random.below(100) as i32};
                let list =
                    array![doc! {"q": query, "u": doc! {"$inc": doc! {"x": 7}}, "multi": true}];
                pair.both("test", &doc! {"update": "ts", "updates": list});
            }
            _ => {
                for name in ["hosts", "racks", "days"] {
                    pair.both("test", &doc! {"refreshRollup": name});
                }
            }
        }
        for question in questions(&mut random) {
            compare(&mut pair, &question);
        }
    }
    for name in ["hosts", "racks"] {
        let checked = pair.cluster.router.run(doc! {"validate": name});
        assert!(is_true(checked.get("valid")), "{}", show(&checked));
        assert_eq!(checked.get("nIndexes").as_exact_i64(), Some(1));
    }
}

#[test]
fn rollups_of_a_sharded_series_answer_as_those_of_one_server() {
    history(11, doc! {"m.host": 1}, true);
    history(12, doc! {"m.host": "hashed"}, false);
    history(13, doc! {"t": 1}, false);
}

#[test]
fn rollups_follow_their_series() {
    let mut random = Random::new(5);
    let mut cluster = crate::router::Cluster::new(3);
    // A rollup may be there before its source.
    for definition in definitions().into_iter().rev() {
        cluster.router.run(definition);
    }
    assert_eq!(cluster.router.counted("hosts"), 0);
    cluster.router.run(crate::router::create());
    let mut insert = |cluster: &mut crate::router::Cluster, from: i32| {
        let list: Vec<Value> = (from..from + 200)
            .map(|number| measurement(&mut random, i64::from(number) / 20, number))
            .collect();
        cluster.router.run(doc! {"insert": "ts", "documents": list});
    };
    insert(&mut cluster, 0);
    let count = |cluster: &mut crate::router::Cluster| {
        let sum = doc! {"$group": doc! {"_id": 1, "n": doc! {"$sum": "$n"}}};
        let all = doc! {"aggregate": "hosts", "pipeline": array![sum], "cursor": doc! {}};
        cluster.router.all(all)[0].get("n").as_exact_i64()
    };
    assert_eq!(count(&mut cluster), Some(200));
    cluster.router.run(doc! {"refreshRollup": "hosts"});
    let status = cluster.router.run(doc! {"rollupStatus": "hosts"});
    assert!(!status.get("storedBefore").is_missing() && status.get("shards").is_missing());
    // Sharded with measurements, and moved afterwards.
    cluster.admin(doc! {"shardCollection": "test.ts", "key": doc! {"m.host": 1}});
    for (host, shard) in [(1, "p0001"), (2, "p0002"), (4, "p0001")] {
        cluster.admin(doc! {
            "moveRange": "test.ts", "min": doc! {"m.host": host}, "max": doc! {"m.host": host + 1},
            "toShard": shard,
        });
    }
    insert(&mut cluster, 200);
    cluster.router.run(doc! {"refreshRollup": "hosts"});
    insert(&mut cluster, 100);
    assert_eq!(count(&mut cluster), Some(600));
    let status = cluster.router.run(doc! {"rollupStatus": "hosts"});
    let shards = status.get("shards").as_document().unwrap();
    assert_eq!(shards.iter().count(), 3, "{}", show(&status));
    assert_ne!(show(&status).find("from"), None, "{}", show(&status));
    // What stands under a rollup stays; its options and its name are those of one server.
    assert_eq!(cluster.router.code(doc! {"drop": "ts"}), 96);
    let rename = doc! {"renameCollection": "test.ts", "to": "test.other"};
    assert_eq!(cluster.admin_code(rename), 96);
    let rename = doc! {"renameCollection": "test.days", "to": "test.other"};
    assert_eq!(cluster.admin_code(rename), 166);
    cluster
        .router
        .run(doc! {"collMod": "days", "rollup": doc! {"lateness": 7200}});
    let listed = cluster
        .router
        .all(doc! {"listCollections": 1, "filter": doc! {"name": "days"}});
    assert!(show(&listed[0]).contains("7200"), "{}", show(&listed[0]));
    let write = doc! {"insert": "days", "documents": array![doc! {"_id": 1}]};
    assert_eq!(cluster.router.code(write), 166);
    let explain = doc! {"explain": doc! {"find": "hosts"}};
    let shown = cluster.router.run(explain);
    assert!(show(&shown).contains("ROLLUP"), "{}", show(&shown));
    // A name that is used again is another rollup, in all partitions.
    cluster.router.run(doc! {"drop": "days"});
    assert_eq!(cluster.router.counted("days"), 0);
    let other = rollup("days", "ts", vec![group(doc! {}, "day")]);
    cluster.router.run(other);
    assert_eq!(cluster.router.counted("days"), 1);
    for name in ["days", "racks", "hosts", "ts"] {
        cluster.router.run(doc! {"drop": name});
    }
    assert_eq!(cluster.router.code(doc! {"refreshRollup": "hosts"}), 26);
}
