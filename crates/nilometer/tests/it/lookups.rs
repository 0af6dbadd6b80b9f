//! `$lookup` by an index and by a table in memory, and reads by an index that end by a scan: with the answers of a collection without indexes.

use nilometer_bson::extjson::value_to_canonical;
use nilometer_bson::{Document, Value, ValueRef, array, doc};
use nilometer_storage::testing::effort;

use crate::random::Random;
use crate::support::Fixture;

/// Documents of the other collection: indexes are used from 1,000 on.
const OTHERS: u64 = 1_100;

fn insert(fixture: &mut Fixture, collection: &str, documents: &[Document]) {
    let documents: Vec<Value> = documents.iter().cloned().map(Value::from).collect();
    fixture.run(doc! {"insert": collection, "documents": documents});
}

fn answer(
    fixture: &mut Fixture,
    collection: &str,
    stages: Vec<Value>,
    collation: bool,
) -> Vec<String> {
    let mut command =
        doc! {"aggregate": collection, "pipeline": stages, "cursor": doc! {"batchSize": 1_000_000}};
    if collation {
        let strength = doc! {"locale": "en", "strength": 2};
        let fields = command
            .iter()
            .map(|e| (e.name().to_owned(), e.value().to_value()));
        let mut out = nilometer_bson::DocumentBuilder::new();
        for (name, value) in fields {
            out.append(&name, value);
        }
        out.append("collation", strength);
        command = out.finish();
    }
    let reply = fixture.run(command);
    let cursor = reply.get("cursor").as_document().unwrap();
    let batch = cursor.get("firstBatch").as_array().unwrap();
    let mut rows: Vec<String> = batch.iter().map(value_to_canonical).collect();
    rows.sort();
    rows
}

fn value(random: &mut Random) -> Value {
    match random.below(20) {
        0 => Value::Null,
        1 => Value::Missing,
        2 => array![random.int(300), random.int(300)],
        3 => Value::from(*random.pick(&["a", "A", "b"])),
        4 => Value::Double(f64::from(random.int(300))),
        _ => Value::Int32(random.int(300)),
    }
}

/// Sorts the joined array, whose order depends on the way it was read.
fn in_order() -> Value {
    let sorted = doc! {"$sortArray": doc! {"input": "$x", "sortBy": doc! {"_id": 1}}};
    doc! {"$set": doc! {"x": sorted}}.into()
}

#[test]
fn lookups_by_index_and_by_table_give_the_same() {
    for seed in 0..effort(2, 40, 400) {
        let mut random = Random::new(seed);
        let mut fixture = Fixture::new();
        let others: Vec<Document> = (0..OTHERS as i64)
            .map(|id| doc! {"_id": id, "f": value(&mut random), "v": id % 7, "w": "x".repeat(20)})
            .collect();
        let own: Vec<Document> = (0..150i64)
            .map(|id| doc! {"_id": id, "l": value(&mut random), "n": id % 5})
            .collect();
        insert(&mut fixture, "own", &own);
        for other in ["plain", "indexed", "folded"] {
            insert(&mut fixture, other, &others);
        }
        let index = doc! {"key": doc! {"f": 1}, "name": "f"};
        fixture.run(doc! {"createIndexes": "indexed", "indexes": array![index]});
        let folded = doc! {"key": doc! {"f": 1}, "name": "f", "collation": doc! {"locale": "en", "strength": 2}};
        fixture.run(doc! {"createIndexes": "folded", "indexes": array![folded]});
        let group =
            doc! {"$group": doc! {"_id": "$x.v", "n": doc! {"$sum": "$n"}, "c": doc! {"$sum": 1}}};
        let some = array![doc! {"$match": doc! {"v": doc! {"$lt": 3}}}];
        for (collation, pipeline) in [(false, None), (true, None), (false, Some(some))] {
            for later in [
                vec![in_order()],
                vec![doc! {"$unwind": "$x"}.into(), group.clone().into()],
            ] {
                let mut answers = Vec::new();
                for other in ["plain", "indexed", "folded"] {
                    let mut lookup =
                        doc! {"from": other, "localField": "l", "foreignField": "f", "as": "x"};
                    if let Some(pipeline) = &pipeline {
                        lookup = doc! {"from": other, "localField": "l", "foreignField": "f", "as": "x",
                        "pipeline": pipeline.clone()};
                    }
                    let mut stages: Vec<Value> = vec![doc! {"$lookup": lookup}.into()];
                    stages.extend(later.iter().cloned());
                    answers.push(answer(&mut fixture, "own", stages, collation));
                }
                assert!(!answers[0].is_empty());
                assert_eq!(answers[0], answers[1], "seed {seed}");
                assert_eq!(answers[0], answers[2], "seed {seed}");
            }
        }
    }
}

#[test]
fn a_read_by_index_of_much_of_a_collection_ends_by_a_scan() {
    let mut fixture = Fixture::new();
    let mut random = Random::new(1);
    let documents: Vec<Document> = (0..6_000i64)
        .map(|id| doc! {"_id": id, "a": random.int(1_000), "b": id % 3})
        .collect();
    for chunk in documents.chunks(1_000) {
        insert(&mut fixture, "c", chunk);
    }
    fixture.run(
        doc! {"createIndexes": "c", "indexes": array![doc! {"key": doc! {"a": 1}, "name": "a"}]},
    );
    for (below, limit) in [(10, 0), (600, 0), (600, 2_500), (1_001, 0)] {
        let filter = doc! {"a": doc! {"$lt": below}, "b": doc! {"$gt": 0}};
        let mut wanted: Vec<i64> = documents
            .iter()
            .filter(|d| {
                d.get("a").as_exact_i64().unwrap() < below && d.get("b").as_exact_i64().unwrap() > 0
            })
            .map(|d| d.get("_id").as_exact_i64().unwrap())
            .collect();
        let command =
            doc! {"find": "c", "filter": filter.clone(), "batchSize": 10_000, "limit": limit};
        let reply = fixture.run(command.clone());
        let batch = reply
            .get("cursor")
            .as_document()
            .unwrap()
            .get("firstBatch")
            .as_array()
            .unwrap();
        let ids = batch.iter().map(|d| match d {
            ValueRef::Document(d) => d.get("_id").as_exact_i64().unwrap(),
            _ => panic!("no document"),
        });
        let mut ids: Vec<i64> = ids.collect();
        ids.sort_unstable();
        match limit {
            0 => assert_eq!(ids, wanted),
            _ => {
                assert_eq!(ids.len() as i64, limit.min(wanted.len() as i64));
                wanted.retain(|id| ids.contains(id));
                assert_eq!(ids, wanted, "each once");
            }
        }
        let explained = fixture.run(doc! {"explain": command, "verbosity": "executionStats"});
        let stats = explained.get("executionStats").as_document().unwrap();
        let keys = stats.get("totalKeysExamined").as_exact_i64().unwrap();
        let all = documents
            .iter()
            .filter(|d| d.get("a").as_exact_i64().unwrap() < below)
            .count() as i64;
        assert_eq!(keys < all, below > 10, "{keys} of {all} keys");
        // With an order the index is read to its end.
        let sorted =
            doc! {"find": "c", "filter": filter, "sort": doc! {"a": 1}, "batchSize": 10_000};
        let explained = fixture.run(doc! {"explain": sorted, "verbosity": "executionStats"});
        let stats = explained.get("executionStats").as_document().unwrap();
        assert!(stats.get("totalKeysExamined").as_exact_i64().unwrap() >= all);
    }
}

#[test]
fn conditions_on_measurements_come_before_the_equality() {
    let mut fixture = Fixture::with_oracle();
    let mut random = Random::new(3);
    let measurements: Vec<Value> = (0..3_000i64)
        .map(|id| {
            let time = Value::DateTime(1_700_000_000_000 + id * 60_000);
            doc! {"_id": id, "t": time, "m": random.int(4), "o": random.int(50), "v": random.int(9)}
                .into()
        })
        .collect();
    fixture.insert_into_both(&measurements);
    let index = doc! {"key": doc! {"o": 1}, "name": "o"};
    fixture.run(doc! {"createIndexes": "ts", "indexes": array![index]});
    let own: Vec<Document> = (0..80i64)
        .map(|id| doc! {"_id": id, "l": id - 10})
        .collect();
    insert(&mut fixture, "own", &own);
    let from = Value::DateTime(1_700_000_000_000 + 600 * 60_000);
    let conditions = [
        doc! {"m": 2, "t": doc! {"$gte": from}},
        doc! {"m": doc! {"$in": array![1, 3]}, "v": doc! {"$ne": 4}},
        // An expression that fails on some documents of other orders would fail the query.
        doc! {"m": 1, "$expr": doc! {"$gt": array![doc! {"$divide": array![12, doc! {"$add": array!["$v", 1]}]}, 3]}},
    ];
    for condition in conditions {
        for more in [
            array![],
            array![doc! {"$sort": doc! {"_id": 1}}, doc! {"$limit": 1}],
        ] {
            let mut pipeline = vec![Value::from(doc! {"$match": condition.clone()})];
            pipeline.extend(
                more.as_ref()
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(ValueRef::to_value),
            );
            let mut answers = Vec::new();
            for other in ["ts", "plain"] {
                let lookup = doc! {"from": other, "localField": "l", "foreignField": "o", "as": "x",
                "pipeline": pipeline.clone()};
                let group = doc! {"$group": doc! {"_id": "$_id", "n": doc! {"$sum": doc! {"$size": "$x"}}, "x": doc! {"$first": "$x"}}};
                let stages = vec![doc! {"$lookup": lookup}.into(), in_order(), group.into()];
                answers.push(answer(&mut fixture, "own", stages, false));
            }
            let is_found = answers[0].iter().any(|row| row.contains("\"v\""));
            assert!(is_found, "{:?}", answers[0]);
            // The order of fields differs between measurements and documents.
            assert_eq!(answers[0].len(), answers[1].len());
            let ids = |rows: &[String]| {
                rows.iter()
                    .map(|row| row.matches("\"_id\"").count())
                    .collect::<Vec<_>>()
            };
            assert_eq!(ids(&answers[0]), ids(&answers[1]));
        }
    }
}

/// Twenty measurements in each of 1,200 buckets: rows are joined in parts, each by a scan, before all is read.
#[test]
fn lookups_of_measurements_in_parts_give_the_same() {
    for seed in 0..effort(1, 10, 100) {
        let mut random = Random::new(seed);
        let mut fixture = Fixture::with_oracle();
        let measurements: Vec<Value> = (0..24_000i64)
            .map(|id| {
                let time = Value::DateTime(1_700_000_000_000 + id);
                let f = match id % 5 {
                    0 => value(&mut random),
                    _ => Value::Int32(1_000),
                };
                doc! {"_id": id, "t": time, "m": id % 1_200, "f": f, "v": id % 7}.into()
            })
            .collect();
        fixture.insert_into_both(&measurements);
        let own: Vec<Document> = (0..1_500i64)
            .map(|id| doc! {"_id": id, "l": value(&mut random)})
            .collect();
        insert(&mut fixture, "own", &own);
        let some = array![
            doc! {"$match": doc! {"v": doc! {"$lt": 3}}},
            doc! {"$sort": doc! {"_id": 1}},
            doc! {"$limit": 2},
        ];
        for (collation, pipeline) in [(false, array![]), (true, array![]), (false, some)] {
            let ids = doc! {"$project": doc! {"x._id": 1}};
            let unwound = doc! {"$unwind": "$x"};
            let group = doc! {"$group": doc! {"_id": "$x.v", "n": doc! {"$sum": "$_id"}}};
            for later in [array![in_order(), ids], array![unwound, group]] {
                let answers = ["plain", "ts"].map(|other| {
                    let lookup = doc! {"from": other, "localField": "l", "foreignField": "f", "as": "x",
                    "pipeline": pipeline.clone()};
                    let mut stages: Vec<Value> = vec![doc! {"$lookup": lookup}.into()];
                    let later = later.as_ref().as_array().unwrap().iter();
                    stages.extend(later.map(ValueRef::to_value));
                    answer(&mut fixture, "own", stages, collation)
                });
                assert!(answers[0].len() > 2, "{:?}", answers[0]);
                assert_eq!(answers[0], answers[1], "seed {seed}");
            }
        }
    }
}
