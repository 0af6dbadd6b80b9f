//! `$out` and `$merge` on a router write what they write on one server, and fail as there.

use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, array, doc};

use crate::random::Random;
use crate::router_writes::{Pair, normal};
use crate::support::show;

/// The collections that the pipelines write, besides those of a [`Pair`].
const TARGETS: [&str; 5] = ["new", "indexed", "valid", "series", "later"];

fn filled(documents: i32) -> Pair {
    let mut pair = Pair::new(doc! {"m.host": "hashed"});
    let measurement = |at: i32| -> Value {
        let time = Value::DateTime(i64::from(at) * 1000);
        doc! {"_id": at, "t": time, "m": doc! {"host": at % 6}, "x": at}.into()
    };
    let list: Vec<Value> = (0..documents).map(measurement).collect();
    for name in ["ts", "a"] {
        let insert = doc! {"insert": name, "documents": list.clone()};
        pair.both("test", &insert);
    }
    create_targets(&mut pair);
    pair
}

fn create_targets(pair: &mut Pair) {
    let series = doc! {"timeField": "t", "metaField": "m"};
    let index = doc! {"key": doc! {"k": 1}, "name": "k_1", "unique": true};
    let validator = doc! {"x": doc! {"$lt": 30}};
    for command in [
        doc! {"create": "indexed"},
        doc! {"createIndexes": "indexed", "indexes": array![index]},
        doc! {"create": "valid", "validator": validator},
        doc! {"create": "series", "timeseries": series},
    ] {
        pair.both("test", &command);
    }
}

fn aggregate(source: &str, pipeline: Vec<Value>) -> Document {
    doc! {"aggregate": source, "pipeline": pipeline, "cursor": doc! {}}
}

/// Returns stages in front of the one that writes: their documents are in an order.
fn first_stages(random: &mut Random) -> Vec<Value> {
    let below = doc! {"$match": doc! {"x": doc! {"$gte": random.int(30)}}};
    let key = doc! {"$set": doc! {"k": doc! {"$mod": array!["$x", 20 + random.int(40)]}}};
    let group = doc! {"$group": doc! {
        "_id": "$m.host", "x": doc! {"$sum": "$x"}, "t": doc! {"$min": "$t"},
    }};
    let none = doc! {"$match": doc! {"x": -1}};
    let order = doc! {"$sort": doc! {"_id": 1}};
    match random.below(8) {
        0 => vec![group.into(), order.into()],
        1 => vec![none.into()],
        2 => vec![
            below.into(),
            order.into(),
            doc! {"$project": doc! {"_id": 0, "m": 1, "t": 1, "x": 1}}.into(),
        ],
        3 => vec![key.into(), order.into()],
        4 => vec![order.into(), doc! {"$unset": "t"}.into()],
        _ => vec![below.into(), key.into(), order.into()],
    }
}

fn out(random: &mut Random) -> Value {
    let target = *random.pick(&TARGETS);
    let db = *random.pick(&["test", "test", "other"]);
    match random.below(6) {
        0 | 1 => target.into(),
        2 | 3 => doc! {"db": db, "coll": target}.into(),
        4 => {
            let series = doc! {"timeField": "t", "metaField": "m"};
            doc! {"db": db, "coll": target, "timeseries": series}.into()
        }
        _ => {
            let series = doc! {"timeField": "t"};
            doc! {"db": "test", "coll": target, "timeseries": series}.into()
        }
    }
}

fn merge(random: &mut Random) -> Document {
    let target = *random.pick(&TARGETS);
    let mut out = DocumentBuilder::new();
    match random.below(3) {
        0 => out.append("into", doc! {"db": "other", "coll": target}),
        _ => out.append("into", target),
    };
    let on: Value = match (target, random.below(3)) {
        ("indexed", 0 | 1) => "k".into(),
        ("series", _) => array!["t", "m"],
        _ => "_id".into(),
    };
    if random.below(4) > 0 {
        out.append("on", on);
    }
    let whole = doc! {"$set": doc! {"seen": doc! {"$add": array![
        doc! {"$ifNull": array!["$seen", 0]}, "$$new.x", "$$more",
    ]}}};
    let mut is_strict = false;
    match random.below(7) {
        0 => out.append("whenMatched", "replace"),
        1 => {
            is_strict = true;
            out.append("whenMatched", "keepExisting")
        }
        2 => {
            is_strict = true;
            out.append("whenMatched", "fail")
        }
        3 => out
            .append(
                "let",
                doc! {"more": doc! {"$add": array!["$x", "$$given"]}, "new": "$$ROOT"},
            )
            .append("whenMatched", array![whole]),
        4 => out.append("let", doc! {"more": "$$given"}).append(
            "whenMatched",
            array![doc! {"$set": doc! {"text": "$$text", "now": "$$more"}}],
        ),
        5 => out.append("whenMatched", "merge"),
        _ => &mut out,
    };
    match random.below(4) {
        0 if !is_strict => out.append("whenNotMatched", "discard"),
        1 if !is_strict => out.append("whenNotMatched", "fail"),
        2 => out.append("whenNotMatched", "insert"),
        _ => &mut out,
    };
    out.finish()
}

/// Returns the text of a document without an `_id` that was made.
fn row(document: &Document) -> String {
    let mut out = DocumentBuilder::new();
    for element in document.iter() {
        if !matches!(element.value(), ValueRef::ObjectId(_)) {
            out.append_element(element);
        }
    }
    normal(&out.finish())
}

/// Runs a command on both; the replies are the same, but for the code by which a router says that `on` is not unique.
fn both(pair: &mut Pair, command: &Document, text: &str) {
    let expected = pair.single.reply_on("test", command.clone());
    let of_set = ["$clusterTime", "operationTime"];
    let mut clean = DocumentBuilder::new();
    for element in expected.iter().filter(|e| !of_set.contains(&e.name())) {
        clean.append_element(element);
    }
    let expected = normal(&clean.finish());
    let found = normal(&pair.cluster.router.reply_on("test", command.clone()));
    assert_eq!(found.replace("51190", "51183"), expected, "{text}");
}

/// The targets have the same documents, indexes and options.
fn compare(pair: &mut Pair, last: &str) {
    for db in ["test", "other"] {
        for name in TARGETS {
            let find = doc! {"find": name, "batchSize": 1000};
            let indexes = doc! {"listIndexes": name};
            for (command, is_ordered) in [(find, false), (indexes, true)] {
                let mut expected = batch(&pair.single.reply_on(db, command.clone()));
                let mut found = batch(&pair.cluster.router.reply_on(db, command));
                if !is_ordered {
                    expected.sort();
                    found.sort();
                }
                assert_eq!(found, expected, "{db}.{name} after {last}");
            }
        }
        let list = doc! {"listCollections": 1, "nameOnly": true};
        let mut expected = batch(&pair.single.reply_on(db, list.clone()));
        let mut found = batch(&pair.cluster.router.reply_on(db, list));
        expected.sort();
        found.sort();
        assert_eq!(found, expected, "{db} after {last}");
    }
}

fn batch(reply: &Document) -> Vec<String> {
    let cursor = reply.get("cursor").as_document();
    let batch = cursor.and_then(|cursor| cursor.get("firstBatch").as_array());
    let documents = batch.iter().flat_map(|batch| batch.iter());
    let documents = documents.filter_map(ValueRef::as_document);
    documents
        .map(|document| row(&document.to_document()))
        .collect()
}

#[test]
fn outputs_are_those_of_one_server() {
    let rounds = nilometer_storage::testing::effort(40, 200, 2000);
    for seed in [1, 2] {
        let mut random = Random::new(seed);
        let mut pair = filled(60);
        for number in 0..rounds {
            let mut pipeline = first_stages(&mut random);
            pipeline.push(match random.below(3) {
                0 => doc! {"$out": out(&mut random)}.into(),
                _ => doc! {"$merge": merge(&mut random)}.into(),
            });
            let source = *random.pick(&["ts", "a", "a", "none"]);
            let mut command = DocumentBuilder::extending(aggregate(source, pipeline));
            let text = doc! {"$literal": "$x"};
            command.append("let", doc! {"given": random.int(5), "text": text});
            if random.below(10) == 0 {
                command.append("bypassDocumentValidation", true);
            }
            let command = command.finish();
            let text = format!("{seed}/{number}: {}", show(&command));
            both(&mut pair, &command, &text);
            compare(&mut pair, &text);
            if random.below(6) == 0 {
                let name = *random.pick(&TARGETS);
                let db = *random.pick(&["test", "other"]);
                pair.both(db, &doc! {"drop": name});
            }
            if random.below(40) == 0 {
                for name in TARGETS {
                    pair.both("test", &doc! {"drop": name});
                }
                create_targets(&mut pair);
            }
        }
    }
}

#[test]
fn what_is_larger_than_a_message_goes_in_batches() {
    let mut pair = Pair::new(doc! {"m.host": "hashed"});
    for at in 0..28 {
        let document = doc! {"_id": at, "text": "x".repeat(2 << 20)};
        pair.both("test", &doc! {"insert": "a", "documents": array![document]});
    }
    let write = |stage: Document| {
        aggregate(
            "a",
            vec![doc! {"$sort": doc! {"_id": 1}}.into(), stage.into()],
        )
    };
    let clash = doc! {"$merge": doc! {"into": "merged", "whenMatched": "fail"}};
    for stage in [
        doc! {"$out": "copy"},
        doc! {"$merge": "merged"},
        // Fails in each batch, and ends with the first one that does.
        clash,
    ] {
        pair.both("test", &write(stage));
    }
    for name in ["copy", "merged"] {
        let lengths = doc! {"$group": doc! {"_id": 1, "n": doc! {"$sum": 1}, "bytes": doc! {"$sum": doc! {"$strLenBytes": "$text"}}}};
        pair.both("test", &aggregate(name, vec![lengths.into()]));
    }
}

#[test]
fn what_cannot_be_written_on_a_router_is_refused() {
    let mut pair = filled(12);
    let router = &mut pair.cluster.router;
    let code = |router: &mut crate::support::Fixture, stage: Document| {
        router.code(aggregate("a", vec![stage.into()]))
    };
    router.run(doc! {"create": "view", "viewOn": "a", "pipeline": array![]});
    router.run(doc! {"create": "capped", "capped": true, "size": 1000});
    let series = doc! {"timeField": "t", "metaField": "m"};
    let into =
        |coll: &str| doc! {"$out": doc! {"db": "test", "coll": coll, "timeseries": series.clone()}};
    for (stage, expected) in [
        (doc! {"$out": "ts"}, 28_769),
        (into("ts"), 28_769),
        (doc! {"$merge": "ts"}, 115),
        (doc! {"$out": "view"}, 166),
        (doc! {"$merge": "view"}, 166),
        (doc! {"$out": "capped"}, 17_152),
        (into("b"), 7_268_700),
        (doc! {"$merge": doc! {"into": "b", "on": "x"}}, 51_190),
        (doc! {"$out": doc! {"db": "config", "coll": "x"}}, 31_321),
        (
            doc! {"$merge": doc! {"into": doc! {"db": "admin", "coll": "x"}}},
            31_320,
        ),
    ] {
        assert_eq!(code(router, stage.clone()), expected, "{}", show(&stage));
    }
    // The contents of a target that is not replaced stay, and nothing is left of the others.
    let same = doc! {"$set": doc! {"k": 1}};
    let fill = vec![
        doc! {"$set": doc! {"k": "$x"}}.into(),
        doc! {"$out": "indexed"}.into(),
    ];
    router.run(aggregate("a", fill));
    let clash = vec![same.into(), doc! {"$out": "indexed"}.into()];
    assert_eq!(router.code(aggregate("a", clash)), 11_000);
    let count = router.run(doc! {"count": "indexed"});
    assert_eq!(count.get("n").as_exact_i64(), Some(12));
    let names = |database: &nilometer::Database| {
        let list = bson::doc! {"listCollections": 1, "nameOnly": true};
        database.command("test", &list).unwrap().to_string()
    };
    for partition in &pair.cluster.partitions {
        let found = names(partition.database());
        assert!(!found.contains("tmp"), "{found}");
    }
}
