//! Values of any length in `_id`, in indexed fields and in metadata.
//!
//! The randomized tests of this folder run over cut keys as well (`Fixture::new`). These tests have values that are long in
//! every database.

use nilometer::Database;
use nilometer_bson::extjson::value_to_canonical;
use nilometer_bson::{Array, Binary, Document, Value, ValueRef, array, doc};
use nilometer_storage::testing::effort;

use crate::random::Random;
use crate::support::{Fixture, TemporaryDirectory, show};

/// Texts longer than a key that is stored as it is, most of them with the same beginning.
fn texts(random: &mut Random, count: usize) -> Vec<String> {
    let ends = ["", "a", "b", "ba", "\0", "\u{10FFFF}"];
    let mut texts = vec![String::new(), "x".to_owned(), "y".to_owned()];
    while texts.len() < count {
        let length = *random.pick(&[10, 65_530, 65_531, 65_532, 66_000, 98_304, 200_000]);
        let text = "x".repeat(length) + *random.pick(&ends[..]);
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts
}

fn insert(fixture: &mut Fixture, collection: &str, documents: &[Document]) {
    for document in documents {
        fixture.run(doc! {"insert": collection, "documents": array![document.clone()]});
    }
}

fn validate(fixture: &mut Fixture, collection: &str) {
    let reply = fixture.run(doc! {"validate": collection, "full": true});
    let valid = matches!(reply.get("valid"), ValueRef::Bool(true));
    assert!(valid, "{:.2000}", show(&reply));
}

fn ids(found: &[Document]) -> Vec<i64> {
    let ids = found.iter().map(|d| d.get("n").as_exact_i64());
    ids.map(|id| id.expect("a number")).collect()
}

/// Both engines, the one on disk opened again before it is asked.
fn fixtures(fill: impl Fn(&mut Fixture)) -> (TemporaryDirectory, [Fixture; 2]) {
    let directory = TemporaryDirectory::new();
    let mut stored = Fixture::open(&directory.0);
    fill(&mut stored);
    stored.database.close().expect("close");
    drop(stored);
    let mut memory = Fixture::of(Database::in_memory().expect("a database"));
    fill(&mut memory);
    let stored = Fixture::open(&directory.0);
    (directory, [memory, stored])
}

#[test]
fn long_ids_are_stored_in_order_and_once() {
    let mut random = Random::new(1);
    let mut texts = texts(&mut random, 14);
    let documents: Vec<Document> = (0..)
        .zip(&texts)
        .map(|(n, text)| doc! {"_id": text.as_str(), "n": n})
        .collect();
    let clustered = doc! {"key": doc! {"_id": 1}, "unique": true};
    let fill = |fixture: &mut Fixture| {
        fixture.run(doc! {"create": "clustered", "clusteredIndex": clustered.clone()});
        insert(fixture, "plain", &documents);
        insert(fixture, "clustered", &documents);
    };
    let (_directory, fixtures) = fixtures(fill);
    let number = |text: &String| {
        documents
            .iter()
            .position(|d| d.get("_id").as_str() == Some(text))
    };
    let mut sorted = texts.clone();
    sorted.sort();
    let sorted: Vec<i64> = sorted
        .iter()
        .map(|text| number(text).unwrap() as i64)
        .collect();
    texts.retain(|text| text.len() > 60_000);
    for mut fixture in fixtures {
        for collection in ["plain", "clustered"] {
            for direction in [1, -1] {
                let mut wanted = sorted.clone();
                if direction < 0 {
                    wanted.reverse();
                }
                let found = fixture.all(doc! {
                    "find": collection, "sort": doc! {"_id": direction}, "projection": doc! {"n": 1, "_id": 0},
                });
                assert_eq!(ids(&found), wanted);
            }
            for text in &texts {
                let id = text.as_str();
                let one = doc! {"_id": id};
                let found = fixture.all(doc! {"find": collection, "filter": one.clone()});
                assert_eq!(ids(&found), [number(text).unwrap() as i64]);
                let below = sorted.iter().position(|n| *n == ids(&found)[0]).unwrap();
                let range = doc! {"_id": doc! {"$lt": id}};
                let found = fixture
                    .all(doc! {"find": collection, "filter": range, "sort": doc! {"_id": 1}});
                assert_eq!(ids(&found), sorted[..below]);
                let again = doc! {"insert": collection, "documents": array![one.clone()]};
                let reply = fixture.run(again);
                let errors = reply.get("writeErrors").as_array().unwrap();
                let code = errors
                    .iter()
                    .next()
                    .unwrap()
                    .as_document()
                    .unwrap()
                    .get("code");
                assert_eq!(code.as_exact_i64(), Some(11000));
                let update = array![doc! {"q": one, "u": doc! {"$inc": doc! {"hits": 1}}}];
                let reply = fixture.run(doc! {"update": collection, "updates": update});
                assert_eq!(reply.get("nModified").as_exact_i64(), Some(1));
            }
            validate(&mut fixture, collection);
            let delete = array![doc! {"q": doc! {"_id": texts[0].as_str()}, "limit": 1}];
            let reply = fixture.run(doc! {"delete": collection, "deletes": delete});
            assert_eq!(reply.get("n").as_exact_i64(), Some(1));
            validate(&mut fixture, collection);
        }
    }
}

/// Ranges, sorts, covered and distinct scans, bounds by `min` and `max`: the answer is that of a collection without the index.
#[test]
fn long_indexed_values_give_the_answers_of_a_collection_without_indexes() {
    let mut random = Random::new(2);
    let texts = texts(&mut random, 16);
    let value = |random: &mut Random| -> Value {
        let text = random.pick(&texts).as_str();
        match random.below(6) {
            0 => array![text, random.pick(&texts).as_str(), 5],
            1 => doc! {"x": text}.into(),
            2 => Value::Binary(Binary {
                subtype: 0,
                bytes: text.as_bytes().into(),
            }),
            3 => random.int(3).into(),
            _ => text.into(),
        }
    };
    let documents: Vec<Document> = (0..effort(24, 40, 40).cast_signed())
        .map(|n| doc! {"_id": n, "n": n, "a": value(&mut random), "b": random.int(3)})
        .collect();
    let mut fixture = Fixture::new();
    insert(&mut fixture, "plain", &documents);
    insert(&mut fixture, "indexed", &documents[..20]);
    let index = |key: Document, name: &str| doc! {"key": key, "name": name};
    let indexes = array![
        index(doc! {"a": 1}, "up"),
        index(doc! {"a": -1, "b": 1}, "down"),
        index(doc! {"b": 1, "a": 1}, "second"),
        index(doc! {"$**": 1}, "wild"),
        index(doc! {"a.x": "hashed"}, "hashed")
    ];
    // Some documents are there when the indexes are built, others come later. A hash refuses arrays.
    let reply = fixture.reply(doc! {"createIndexes": "indexed", "indexes": indexes.clone()});
    let hashes = reply.get("ok").as_exact_i64() == Some(1);
    if !hashes {
        let ordered: Array = match indexes.as_ref() {
            ValueRef::Array(all) => all.iter().take(4).map(|one| one.to_value()).collect(),
            _ => unreachable!("an array"),
        };
        fixture.run(doc! {"createIndexes": "indexed", "indexes": ordered});
    }
    insert(&mut fixture, "indexed", &documents[20..]);
    validate(&mut fixture, "indexed");
    let same = |fixture: &mut Fixture, rest: Document, hints: &[&str]| {
        let ask = |fixture: &mut Fixture, collection: &str, hint: Option<&str>| {
            let mut find = nilometer_bson::DocumentBuilder::new();
            find.append("find", collection);
            for element in rest.iter() {
                find.append_element(element);
            }
            if let Some(hint) = hint {
                find.append("hint", hint);
            }
            let mut found = ids(&fixture.all(find.finish()));
            found.sort_unstable();
            found
        };
        let wanted = ask(fixture, "plain", None);
        for hint in hints.iter().map(|hint| Some(*hint)).chain([None]) {
            assert_eq!(
                ask(fixture, "indexed", hint),
                wanted,
                "{hint:?} {:.300}",
                show(&rest)
            );
        }
    };
    for _ in 0..60 {
        let (one, other) = (value(&mut random), value(&mut random));
        let condition = match random.below(5) {
            0 => doc! {"a": one},
            1 => doc! {"a": doc! {"$in": array![one, other]}},
            2 => doc! {"a": doc! {"$gt": one}},
            3 => doc! {"a": doc! {"$lte": one}, "b": random.int(3)},
            _ => doc! {"a": doc! {"$gte": one, "$lt": other}},
        };
        let hints = &["up", "down", "second"];
        same(&mut fixture, doc! {"filter": condition.clone()}, hints);
        let sorted = doc! {"filter": condition, "sort": doc! {"a": 1, "n": 1}, "limit": 1000};
        same(&mut fixture, sorted, hints);
    }
    // The order itself.
    for direction in [1, -1] {
        let ask =
            |collection: &str| doc! {"find": collection, "sort": doc! {"a": direction, "_id": 1}};
        assert_eq!(
            ids(&fixture.all(ask("indexed"))),
            ids(&fixture.all(ask("plain")))
        );
    }
    let distinct = |fixture: &mut Fixture, collection: &str| {
        let reply = fixture.run(doc! {"distinct": collection, "key": "a"});
        let values = reply.get("values").as_array().unwrap();
        let mut values: Vec<String> = values.iter().map(value_to_canonical).collect();
        values.sort();
        values
    };
    let indexed = distinct(&mut fixture, "indexed");
    assert!(indexed == distinct(&mut fixture, "plain"));
    // Covered: the values come from the keys.
    let text = texts.iter().max_by_key(|text| text.len()).unwrap().as_str();
    let only = doc! {"_id": -1, "a": text, "b": 7, "n": -1};
    insert(&mut fixture, "covered", &[only]);
    let key = index(doc! {"b": 1, "a": -1}, "both");
    fixture.run(doc! {"createIndexes": "covered", "indexes": array![key]});
    let find = doc! {
        "find": "covered", "filter": doc! {"b": 7}, "projection": doc! {"_id": 0, "a": 1}, "hint": "both",
    };
    assert_eq!(fixture.all(find), [doc! {"a": text}]);
    let bounds = doc! {
        "find": "covered", "min": doc! {"b": 7, "a": text}, "max": doc! {"b": 7, "a": "x"}, "hint": "both",
    };
    assert_eq!(ids(&fixture.all(bounds)), [-1]);
}

#[test]
fn unique_indexes_compare_whole_values() {
    let mut fixture = Fixture::new();
    let index = doc! {"key": doc! {"a": 1}, "name": "a", "unique": true};
    fixture.run(doc! {"createIndexes": "c", "indexes": array![index]});
    let long = "x".repeat(300_000);
    let texts = [long.clone() + "a", long.clone() + "b", long];
    for text in &texts {
        insert(&mut fixture, "c", &[doc! {"a": text.as_str()}]);
    }
    for text in &texts {
        let reply =
            fixture.run(doc! {"insert": "c", "documents": array![doc! {"a": text.as_str()}]});
        assert!(!reply.get("writeErrors").is_missing());
    }
    let up = array![
        doc! {"q": doc! {"a": texts[0].as_str()}, "u": doc! {"$set": doc! {"a": texts[1].as_str()}}}
    ];
    let reply = fixture.run(doc! {"update": "c", "updates": up});
    assert!(!reply.get("writeErrors").is_missing());
    validate(&mut fixture, "c");
}

#[test]
fn the_error_of_a_long_duplicate_shows_its_beginning() {
    let mut fixture = Fixture::new();
    let index = doc! {"key": doc! {"a": 1}, "name": "a", "unique": true};
    fixture.run(doc! {"createIndexes": "c", "indexes": array![index]});
    let long = "x\u{e9}".repeat(400_000);
    let mut error = |one: Document, other: Document| {
        let documents = array![one, other];
        let reply = fixture.run(doc! {"insert": "c", "documents": documents});
        let errors = reply.get("writeErrors").as_array().unwrap();
        let error = errors.iter().next().unwrap().as_document().unwrap();
        error.to_document()
    };
    let id = doc! {"_id": long.as_str(), "a": 1};
    let value = |id: i32| doc! {"_id": id, "a": long.as_str()};
    for found in [error(id.clone(), id), error(value(1), value(2))] {
        assert_eq!(found.get("code").as_exact_i64(), Some(11000));
        let text = found.get("errmsg").as_str().unwrap();
        assert!(
            text.contains("dup key: { ") && text.contains("xéxé"),
            "{text}"
        );
        assert!(text.ends_with("… }") && text.len() < 2000, "{text}");
        assert!(found.get("keyValue").is_missing());
        assert!(!found.get("keyPattern").is_missing());
    }
    let found = error(doc! {"_id": "short", "a": 2}, doc! {"_id": "short", "a": 3});
    assert!(!found.get("keyValue").is_missing());
}

/// Of a command with `_id`s of every length all are stored; one that is longer than a clustered collection takes fails alone.
#[test]
fn one_bad_id_in_an_unordered_insert_fails_only_itself() {
    let mut fixture = Fixture::new();
    let clustered = doc! {"key": doc! {"_id": 1}, "unique": true};
    fixture.run(doc! {"create": "clustered", "clusteredIndex": clustered});
    let id = |bytes: usize| Value::from("x".repeat(bytes));
    let documents = array![
        doc! {"_id": 1},
        doc! {"_id": id(70_000)},
        doc! {"_id": id(9 << 20)},
        doc! {"_id": id(2 << 20)},
        doc! {"_id": 2}
    ];
    let insert = |to: &str| doc! {"insert": to, "documents": documents.clone(), "ordered": false};
    let reply = fixture.run(insert("plain"));
    assert_eq!(reply.get("n").as_exact_i64(), Some(5), "{}", show(&reply));
    let reply = fixture.run(insert("clustered"));
    assert_eq!(reply.get("n").as_exact_i64(), Some(4));
    let errors = reply.get("writeErrors").as_array().unwrap();
    let errors: Vec<_> = errors.iter().map(|e| e.as_document().unwrap()).collect();
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0].get("index").as_exact_i64(), Some(2));
    assert_eq!(errors[0].get("code").as_exact_i64(), Some(17280));
    for collection in ["plain", "clustered"] {
        validate(&mut fixture, collection);
    }
}

/// Eight megabytes of metadata, one bucket each.
#[test]
fn metadata_of_eight_megabytes_has_a_bucket_of_its_own() {
    let length = (effort(1, 8, 8) << 20) as usize;
    let meta = |n: i32| doc! {"long": "m".repeat(length), "n": n};
    let at = |minute: i64| Value::DateTime(1_700_000_040_000 + minute * 60_000);
    let fill = |fixture: &mut Fixture| {
        fixture.run(doc! {"create": "ts", "timeseries": doc! {"timeField": "t", "metaField": "m"}});
        let index = doc! {"key": doc! {"m.long": 1, "m.n": -1}, "name": "long"};
        fixture.run(doc! {"createIndexes": "ts", "indexes": array![index]});
        for minute in 0..2 {
            for n in 0..2 {
                let documents = array![doc! {"t": at(minute), "m": meta(n), "n": n}];
                let reply = fixture.run(doc! {"insert": "ts", "documents": documents});
                assert_eq!(reply.get("n").as_exact_i64(), Some(1), "{}", show(&reply));
            }
        }
    };
    let (_directory, fixtures) = fixtures(fill);
    for mut fixture in fixtures {
        fixture.database.settle().expect("settle");
        let count = fixture.run(doc! {"count": "system.buckets.ts"});
        assert_eq!(count.get("n").as_exact_i64(), Some(2));
        let project = doc! {"n": 1, "_id": 0};
        for (filter, wanted) in [
            (doc! {"m": meta(1)}, vec![1, 1]),
            (doc! {"m.n": 0}, vec![0, 0]),
            (
                doc! {"m.long": "m".repeat(length), "m.n": doc! {"$gt": 0}},
                vec![1, 1],
            ),
            (doc! {"m.long": "m"}, vec![]),
        ] {
            let find = doc! {"find": "ts", "filter": filter, "projection": project.clone()};
            assert_eq!(ids(&fixture.all(find)), wanted);
        }
        let delete = array![doc! {"q": doc! {"m": meta(0)}, "limit": 0}];
        let reply = fixture.run(doc! {"delete": "ts", "deletes": delete});
        assert_eq!(reply.get("n").as_exact_i64(), Some(2));
        let find = doc! {"find": "ts", "projection": project.clone(), "sort": doc! {"m": -1}};
        assert_eq!(ids(&fixture.all(find)), [1, 1]);
        validate(&mut fixture, "ts");
    }
}
