//! A collection with indexes answers like the same collection without them.
//!
//! Random documents are inserted into "plain" and "indexed"; random indexes are created on the second.
//! Queries of every kind, with the planner's choice and with each index as a hint, must give equal answers,
//! and updates and deletes must leave equal documents. The order of fields and of unsorted documents is
//! ignored.

use nilometer_bson::extjson::value_to_canonical;
use nilometer_bson::order::compare;
use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, array, doc};
use nilometer_storage::testing::{Effort, effort};

use crate::random::Random;
use crate::router::Cluster;
use crate::support::{Fixture, TemporaryDirectory, show};

/// Generated databases of a run.
const DATABASES: Effort = Effort {
    fast: 2,
    long: 25,
    soak: 400,
};

fn scalar(random: &mut Random) -> Value {
    match random.below(10) {
        0..=3 => Value::Int32(random.int(6)),
        4 => Value::Double(f64::from(random.int(12)) / 2.0),
        5 => Value::Int64(i64::from(random.int(6))),
        6 => Value::Null,
        7 => Value::DateTime(i64::from(random.int(3)) * 1000),
        _ => Value::from(*random.pick(&["", "a", "ab", "b", "B"])),
    }
}

fn value(random: &mut Random, arrays: bool) -> Value {
    match random.below(8) {
        0 if arrays => {
            let length = random.below(3);
            let values: Vec<Value> = (0..length).map(|_| scalar(random)).collect();
            values.into()
        }
        1 if arrays => {
            let element = doc! {"x": scalar(random), "y": scalar(random)};
            array![element, doc! {"x": scalar(random)}]
        }
        2 => doc! {"x": scalar(random), "y": scalar(random)}.into(),
        _ => scalar(random),
    }
}

fn documents(random: &mut Random) -> Vec<Document> {
    let arrays = random.below(2) == 0;
    let count = 20 + random.below(60);
    let document = |at: u64, random: &mut Random| {
        let mut out = DocumentBuilder::new();
        out.append("_id", i64::try_from(at).unwrap());
        for name in ["a", "b", "c"] {
            if random.below(6) > 0 {
                // Arrays in one field only: an index of two array fields would refuse them.
                out.append(name, value(random, arrays && name == "a"));
            }
        }
        out.finish()
    };
    (0..count).map(|at| document(at, random)).collect()
}

fn path(random: &mut Random) -> &'static str {
    const PATHS: [&str; 6] = ["a", "b", "c", "a.x", "a.y", "b.x"];
    random.pick::<&str>(&PATHS)
}

fn index(random: &mut Random, number: usize) -> Document {
    let mut key = DocumentBuilder::new();
    let kind = random.below(10);
    match kind {
        0 => {
            key.append("$**", 1);
        }
        1 => {
            const HASHED: [&str; 2] = ["b", "c"];
            let name = random.pick(&HASHED);
            key.append(name, "hashed");
        }
        _ => {
            let mut used = Vec::new();
            for _ in 0..1 + random.below(3) {
                let path = path(random);
                if !used.contains(&path) {
                    used.push(path);
                    key.append(path, if random.below(3) == 0 { -1 } else { 1 });
                }
            }
            if random.below(4) == 0 {
                key.append("_id", 1);
            }
        }
    }
    let mut spec = DocumentBuilder::new();
    spec.append("key", key.finish());
    spec.append("name", format!("i{number}"));
    match random.below(8) {
        0 if kind > 1 => {
            spec.append("sparse", true);
        }
        1 if kind > 1 => {
            spec.append("partialFilterExpression", doc! {"b": doc! {"$gt": 2}});
        }
        2 if kind > 1 => {
            spec.append("collation", doc! {"locale": "en", "strength": 2});
        }
        _ => {}
    }
    spec.finish()
}

fn operators(random: &mut Random) -> Document {
    match random.below(12) {
        0 => doc! {"$gt": scalar(random), "$lte": scalar(random)},
        1 => doc! {"$gte": scalar(random)},
        2 => doc! {"$lt": scalar(random)},
        3 => doc! {"$in": array![scalar(random), scalar(random), "ab"]},
        4 => doc! {"$ne": scalar(random)},
        5 => doc! {"$exists": random.below(2) == 0},
        6 => doc! {"$type": "number"},
        7 => doc! {"$elemMatch": doc! {"$gte": scalar(random), "$lt": scalar(random)}},
        8 => doc! {"$regex": "^a"},
        9 => doc! {"$not": doc! {"$gt": scalar(random)}},
        _ => doc! {"$eq": scalar(random)},
    }
}

fn filter(random: &mut Random, depth: u32) -> Document {
    let mut out = DocumentBuilder::new();
    match random.below(6) {
        0 if depth > 0 => {
            let arms = array![filter(random, depth - 1), filter(random, depth - 1)];
            out.append("$or", arms);
            if random.below(2) == 0 {
                out.append(path(random), operators(random));
            }
        }
        1 if depth > 0 => {
            let inner = doc! {"x": operators(random), "y": operators(random)};
            out.append("a", doc! {"$elemMatch": inner});
        }
        2 => {
            out.append("b", operators(random));
            out.append("a", operators(random));
        }
        3 => {
            out.append(
                "_id",
                doc! {"$gte": random.int(30), "$lt": 20 + random.int(40)},
            );
        }
        _ => {
            out.append(path(random), operators(random));
        }
    }
    out.finish()
}

/// Two collections, and their differences.
struct CollectionPair {
    fixture: Fixture,
    indexes: Vec<Document>,
}

fn sorted_fields(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Document(document) => {
            let mut fields: Vec<_> = document.iter().map(|e| (e.name(), e.value())).collect();
            fields.sort_by_key(|(name, _)| *name);
            let mut out = DocumentBuilder::new();
            for (name, value) in fields {
                out.append(name, sorted_fields(value));
            }
            out.finish().into()
        }
        other => other.to_value(),
    }
}

fn as_set(documents: &[Document]) -> Vec<Value> {
    let values = documents.iter();
    let mut values: Vec<Value> = values
        .map(|d| sorted_fields(ValueRef::Document(d.as_ref())))
        .collect();
    values.sort_by(|a, b| compare(a.as_ref(), b.as_ref()));
    values
}

fn is_same(a: &[Value], b: &[Value]) -> bool {
    a.len() == b.len()
        && a.iter()
            .zip(b)
            .all(|(a, b)| compare(a.as_ref(), b.as_ref()).is_eq())
}

fn with(command: &Document, name: &str, collection: &str, more: &Document) -> Document {
    let mut out = DocumentBuilder::new();
    out.append(name, collection);
    for element in command.iter().chain(more.iter()) {
        out.append_element(element);
    }
    out.finish()
}

impl CollectionPair {
    /// Queries both, the second also with every hint that covers all documents.
    fn ask(&mut self, name: &str, command: &Document) {
        let none = Document::new();
        let expected = self.answer(&with(command, name, "plain", &none));
        let mut hints = vec![Document::new()];
        for spec in &self.indexes {
            let whole = ["sparse", "partialFilterExpression"]
                .iter()
                .all(|option| spec.get(option).is_missing());
            let key = spec.get("key").as_document().unwrap();
            if whole && !key.contains("$**") {
                let by_name = ValueRef::String(spec.get("name").as_str().unwrap()).to_value();
                hints.push(doc! {"hint": by_name});
            }
        }
        for hint in hints {
            let command = with(command, name, "indexed", &hint);
            let found = self.answer(&command);
            assert!(
                is_same(&found, &expected),
                "{} with {:?}\n gives {found:?}\n not {expected:?}",
                show(&command),
                self.indexes,
            );
        }
    }

    fn answer(&mut self, command: &Document) -> Vec<Value> {
        let reply = self.fixture.run(command.clone());
        if !reply.get("cursor").is_missing() {
            let rows = self.fixture.rest(reply);
            return if !command.get("sort").is_missing() {
                rows.iter().map(|d| Value::Document(d.clone())).collect()
            } else {
                as_set(&rows)
            };
        }
        let mut values = match reply.get("values").as_array() {
            Some(values) => values.iter().map(|v| v.to_value()).collect(),
            None => vec![reply.get("n").to_value()],
        };
        values.sort_by(|a, b| compare(a.as_ref(), b.as_ref()));
        values
    }

    /// Writes to both; results and documents must be equal.
    fn write(&mut self, name: &str, command: &Document) {
        let none = Document::new();
        let plain = self.fixture.run(with(command, name, "plain", &none));
        let indexed = self.fixture.run(with(command, name, "indexed", &none));
        for field in ["n", "nModified"] {
            let (a, b) = (plain.get(field), indexed.get(field));
            assert!(compare(a, b).is_eq(), "{}: {a:?}, {b:?}", show(command));
        }
        assert!(
            indexed.get("writeErrors").is_missing(),
            "{}",
            show(&indexed)
        );
        let all = doc! {"sort": doc! {"_id": 1}};
        let documents = |fixture: &mut Fixture, of: &str| -> Vec<String> {
            let rows = fixture.all(with(&all, "find", of, &Document::new()));
            let text = |row: &Document| {
                let value = Value::Document(row.clone());
                value_to_canonical(value.as_ref()).to_string()
            };
            rows.iter().map(text).collect()
        };
        let plain = documents(&mut self.fixture, "plain");
        let indexed = documents(&mut self.fixture, "indexed");
        assert_eq!(plain, indexed, "{}", show(command));
    }
}

fn world(fixture: Fixture, random: &mut Random) {
    let mut both = CollectionPair {
        fixture,
        indexes: Vec::new(),
    };
    let documents: Vec<Value> = documents(random).into_iter().map(Value::Document).collect();
    for name in ["plain", "indexed"] {
        let command = doc! {"insert": name, "documents": documents.clone()};
        both.fixture.run(command);
    }
    for number in 0..1 + random.below(4) as usize {
        let spec = index(random, number);
        let create = doc! {"createIndexes": "indexed", "indexes": array![spec.clone()]};
        // Arrays under a hash, or under two parts, are refused: then the index is not created.
        if both.fixture.code(create) == 0 {
            both.indexes.push(spec);
        }
    }
    for _ in 0..6 {
        queries(&mut both, random);
        let filter = filter(random, 1);
        match random.below(5) {
            0 => {
                let delete = doc! {"q": filter, "limit": 0};
                both.write("delete", &doc! {"deletes": array![delete]});
            }
            1 => {
                let update = doc! {
                    "q": filter, "u": doc! {"$inc": doc! {"n": 1}}, "multi": true,
                };
                both.write("update", &doc! {"updates": array![update]});
            }
            2 => {
                let set = doc! {"$set": doc! {"b": scalar(random)}};
                let update = doc! {"q": filter, "u": set, "multi": true};
                both.write("update", &doc! {"updates": array![update]});
            }
            3 => {
                let modify = doc! {
                    "query": filter, "sort": doc! {"_id": -1},
                    "update": doc! {"$set": doc! {"c": scalar(random)}},
                };
                both.write("findAndModify", &modify);
            }
            _ => {
                // Moves keys ahead of a walk over them: each is met once.
                let pipeline = array![doc! {"$set": doc! {"c": doc! {"$add": array!["$c", 1]}}}];
                let numbers = doc! {"c": doc! {"$type": "number"}};
                let update = doc! {"q": numbers, "u": pipeline, "multi": true};
                both.write("update", &doc! {"updates": array![update]});
            }
        }
    }
    let reply = both.fixture.run(doc! {"validate": "indexed"});
    let valid = matches!(reply.get("valid"), ValueRef::Bool(true));
    assert!(valid, "{}", show(&reply));
}

fn queries(both: &mut CollectionPair, random: &mut Random) {
    for _ in 0..4 {
        let filter = filter(random, 2);
        both.ask("find", &doc! {"filter": filter.clone()});
        both.ask("count", &doc! {"query": filter.clone()});
        let key = path(random);
        both.ask("distinct", &doc! {"key": key, "query": filter.clone()});
        both.ask("distinct", &doc! {"key": key});
        let order = doc! {"b": if random.below(2) == 0 { 1 } else { -1 }, "_id": 1};
        let sorted = doc! {"filter": filter.clone(), "sort": order};
        both.ask("find", &sorted);
        let mut projection = DocumentBuilder::new();
        projection.append("_id", 0).append(key, 1);
        both.ask(
            "find",
            &doc! {"filter": filter.clone(), "projection": projection.finish()},
        );
        let group = doc! {"$group": doc! {"_id": format!("${key}"), "n": doc! {"$sum": 1}}};
        let pipeline = array![doc! {"$match": filter}, group];
        both.ask("aggregate", &doc! {"pipeline": pipeline, "cursor": doc! {}});
        let group = doc! {"$group": doc! {"_id": format!("${key}")}};
        both.ask(
            "aggregate",
            &doc! {"pipeline": array![group], "cursor": doc! {}},
        );
    }
}

#[test]
fn indexes_change_no_answer() {
    for seed in 0..DATABASES.requested() {
        let mut random = Random::new(seed);
        if seed % 5 == 0 {
            let directory = TemporaryDirectory::new();
            world(Fixture::open(&directory.0), &mut random);
        } else {
            world(Fixture::new(), &mut random);
        }
    }
}

/// The same in a cluster, where the collection with indexes is divided among three partitions by a hash or by ranges, and the one
/// without is whole in one of them.
#[test]
fn indexes_change_no_answer_of_a_cluster() {
    for seed in 0..DATABASES.requested() {
        let mut random = Random::new(seed + 9_000);
        let mut cluster = Cluster::new(3);
        cluster.router.run(doc! {"create": "indexed"});
        let key = match random.below(2) {
            0 => doc! {"_id": "hashed"},
            _ => doc! {"_id": 1},
        };
        let is_ranged = key.get("_id").is_number();
        cluster.admin(doc! {"shardCollection": "test.indexed", "key": key});
        for (from, shard) in [(10, "p0001"), (30, "p0002")].iter().filter(|_| is_ranged) {
            let range =
                doc! {"moveRange": "test.indexed", "min": doc! {"_id": *from}, "toShard": *shard};
            cluster.admin(range);
        }
        world(cluster.router, &mut random);
    }
}

#[test]
fn joins_look_up_in_an_index() {
    let mut fixture = Fixture::new();
    let foreign = |at: i32| -> Value {
        let key: Value = match at % 50 {
            0 => Value::Null,
            1 => array![at % 7, "x"],
            2 => Value::from("x"),
            _ => Value::Int32(at % 97),
        };
        doc! {"_id": at, "k": key, "v": at}.into()
    };
    let documents: Vec<Value> = (0..1100).map(foreign).collect();
    for name in ["plain", "indexed"] {
        fixture.run(doc! {"insert": name, "documents": documents.clone()});
    }
    let index = doc! {"key": doc! {"k": 1}, "name": "k_1"};
    fixture.run(doc! {"createIndexes": "indexed", "indexes": array![index]});
    let local = array![
        doc! {"_id": 1, "k": 3},
        doc! {"_id": 2, "k": "x"},
        doc! {"_id": 3},
        doc! {"_id": 4, "k": array![5, 6]},
        doc! {"_id": 5, "k": Value::Null},
        doc! {"_id": 6, "k": 3.0},
        doc! {"_id": 7, "k": 1000},
    ];
    fixture.run(doc! {"insert": "local", "documents": local});
    let mut joined = |from: &str, by: &str| {
        let lookup = doc! {
            "from": from, "localField": "k", "foreignField": by,
            "pipeline": array![doc! {"$sort": doc! {"_id": 1}}], "as": "found",
        };
        let pipeline = array![doc! {"$lookup": lookup}, doc! {"$sort": doc! {"_id": 1}}];
        let aggregate = doc! {"aggregate": "local", "pipeline": pipeline, "cursor": doc! {}};
        as_set(&fixture.all(aggregate))
    };
    for by in ["k", "_id"] {
        let (plain, indexed) = (joined("plain", by), joined("indexed", by));
        assert!(is_same(&plain, &indexed), "{plain:?}\n{indexed:?}");
        assert!(plain.iter().any(|d| format!("{d:?}").len() > 100));
    }
    let stats = array![doc! {"$indexStats": doc! {}}];
    let stats = fixture.all(doc! {"aggregate": "indexed", "pipeline": stats, "cursor": doc! {}});
    let used = stats.iter().any(|index| {
        let accesses = index.get("accesses").as_document();
        index.get("name").as_str() == Some("k_1")
            && accesses.and_then(|a| a.get("ops").as_exact_i64()) > Some(0)
    });
    assert!(used, "{stats:?}");
}

/// Joins of hundreds of documents read the other collection for several of them at a time.
#[test]
fn joins_of_many_documents_answer_as_without_an_index() {
    let mut random = Random::new(20);
    let mut fixture = Fixture::new();
    let document = |at: i32, key: Value| -> Value {
        let mut out = DocumentBuilder::new();
        out.append("_id", at).append("v", at % 5);
        // A time series of that many buckets is read by its index.
        out.append("m", at)
            .append("t", Value::DateTime(i64::from(at) * 60_000));
        if !key.is_missing() {
            out.append("k", key);
        }
        out.finish().into()
    };
    let key = |random: &mut Random, arrays: bool| match random.below(9) {
        0 => Value::Missing,
        1 => value(random, arrays),
        2 => Value::from(format!("word{}", random.int(40))),
        _ => Value::Int32(random.int(600)),
    };
    let mut foreign = |arrays: bool| -> Vec<Value> {
        let keys = (0..1_300).map(|at| document(at, key(&mut random, arrays && at % 3 == 0)));
        keys.collect()
    };
    // An index on a field of measurements takes no arrays.
    let (documents, measurements) = (foreign(true), foreign(false));
    let series = doc! {"timeField": "t", "metaField": "m"};
    for (plain, indexed) in [("plain", "indexed"), ("plain_series", "indexed_series")] {
        for name in [plain, indexed] {
            let documents = match name.ends_with("series") {
                true => {
                    fixture.run(doc! {"create": name, "timeseries": series.clone()});
                    &measurements
                }
                false => &documents,
            };
            fixture.run(doc! {"insert": name, "documents": documents.clone()});
        }
        let index = doc! {"key": doc! {"k": 1}, "name": "k_1"};
        fixture.run(doc! {"createIndexes": indexed, "indexes": array![index]});
    }
    let many = effort(300, 700, 700).cast_signed() as i32;
    let local: Vec<Value> = (0..many)
        .map(|at| document(at, key(&mut random, true)))
        .collect();
    fixture.run(doc! {"insert": "local", "documents": local});
    let by_id = array![doc! {"$sort": doc! {"_id": 1}}];
    let some = array![
        doc! {"$match": doc! {"$expr": doc! {"$ne": array!["$v", "$$v"]}}},
        doc! {"$sort": doc! {"_id": -1}},
        doc! {"$limit": 3},
    ];
    for (plain, indexed) in [("plain", "indexed"), ("plain_series", "indexed_series")] {
        for (inner, limit) in [(&by_id, many), (&some, many), (&by_id, 1), (&by_id, 18)] {
            let mut joined = |from: &str| {
                let lookup = doc! {
                    "from": from, "localField": "k", "foreignField": "k",
                    "let": doc! {"v": "$v"}, "pipeline": inner.clone(), "as": "found",
                };
                let pipeline = array![
                    doc! {"$sort": doc! {"_id": 1}},
                    doc! {"$lookup": lookup},
                    doc! {"$limit": limit},
                ];
                fixture.all(doc! {"aggregate": "local", "pipeline": pipeline, "cursor": doc! {}})
            };
            let (expected, found) = (joined(plain), joined(indexed));
            assert_eq!(expected.len(), usize::try_from(limit).unwrap());
            for (expected, found) in expected.iter().zip(&found) {
                assert_eq!(show(expected), show(found), "{plain}");
            }
            assert_eq!(expected.len(), found.len());
        }
    }
}

#[test]
fn dropping_an_index_ends_its_readers() {
    let mut fixture = Fixture::new();
    let documents: Vec<Value> = (0..1000)
        .map(|at| doc! {"_id": at, "a": at}.into())
        .collect();
    fixture.run(doc! {"insert": "c", "documents": documents});
    let index = doc! {"key": doc! {"a": 1}, "name": "a_1"};
    fixture.run(doc! {"createIndexes": "c", "indexes": array![index]});
    let find = doc! {"find": "c", "filter": doc! {"a": doc! {"$gte": 0}}, "batchSize": 2};
    let reply = fixture.run(find);
    let (id, _, first) = crate::support::cursor(&reply, "firstBatch");
    assert_eq!(first.len(), 2);
    fixture.run(doc! {"dropIndexes": "c", "index": "a_1"});
    // Entries already read are still returned.
    let more = doc! {"getMore": id, "collection": "c"};
    const QUERY_PLAN_KILLED: i64 = 175;
    assert_eq!(fixture.code(more), QUERY_PLAN_KILLED);
}

#[test]
fn arrays_inserted_while_a_cursor_is_open_are_read_whole() {
    let filters = [doc! {"a": doc! {"$gte": 0}}, doc! {"a": doc! {"$ne": 5}}];
    let expected: [&[Document]; 2] = [&[doc! {"a": array![5, 6000, 7000]}], &[]];
    for (filter, expected) in filters.into_iter().zip(expected) {
        let mut fixture = Fixture::new();
        let documents = (0..5000).map(|at| doc! {"_id": at, "a": at}.into());
        let documents: Vec<Value> = documents.collect();
        fixture.run(doc! {"insert": "c", "documents": documents});
        let index = doc! {"key": doc! {"a": 1}, "name": "a_1"};
        fixture.run(doc! {"createIndexes": "c", "indexes": array![index]});
        let find = doc! {"find": "c", "filter": filter, "projection": doc! {"_id": 0, "a": 1},
        "hint": "a_1", "batchSize": 10};
        let (id, _, _) = crate::support::cursor(&fixture.run(find), "firstBatch");
        let late = array![doc! {"_id": 9999, "a": array![5, 6000, 7000]}];
        fixture.run(doc! {"insert": "c", "documents": late});
        let more = fixture.run(doc! {"getMore": id, "collection": "c"});
        let (_, _, rows) = crate::support::cursor(&more, "nextBatch");
        let late = rows
            .into_iter()
            .filter(|row| row.get("a").as_exact_i64().is_none_or(|a| a > 4999));
        assert_eq!(late.collect::<Vec<_>>(), expected);
    }
}

#[test]
fn arrays_sort_by_elements_beyond_min_and_max() {
    let mut fixture = Fixture::new();
    let documents = array![doc! {"_id": 1, "a": array![3, 9]}, doc! {"_id": 2, "a": 4}];
    fixture.run(doc! {"insert": "c", "documents": documents});
    let index = doc! {"key": doc! {"a": 1}, "name": "a_1"};
    fixture.run(doc! {"createIndexes": "c", "indexes": array![index]});
    let found = fixture.all(doc! {"find": "c", "hint": "a_1", "min": doc! {"a": 2},
    "max": doc! {"a": 5}, "sort": doc! {"a": -1}, "projection": doc! {"_id": 1}});
    assert_eq!(found, [doc! {"_id": 1}, doc! {"_id": 2}]);
}

#[test]
fn a_partial_filter_on_texts_is_understood_by_collation() {
    let mut fixture = Fixture::new();
    let numeric = doc! {"locale": "en", "numericOrdering": true};
    fixture.run(doc! {"create": "c", "collation": numeric});
    let documents: Vec<Value> = ["3", "25", "30", "99", "100"]
        .into_iter()
        .enumerate()
        .map(|(at, a)| doc! {"_id": at as i32, "a": a}.into())
        .collect();
    fixture.run(doc! {"insert": "c", "documents": documents});
    let partial = doc! {"a": doc! {"$lt": "25"}};
    let index = |key: Document, name: &str| {
        doc! {"key": key, "name": name,
        "partialFilterExpression": partial.clone()}
    };
    let indexes = array![index(doc! {"a": 1}, "a_1"), index(doc! {"$**": 1}, "all")];
    fixture.run(doc! {"createIndexes": "c", "indexes": indexes});
    // By bytes "100" is below "25".
    for (below, count, is_inside) in [("100", 4, false), ("25", 1, true), ("4", 1, true)] {
        let find = doc! {"find": "c", "filter": doc! {"a": doc! {"$lt": below}}};
        assert_eq!(fixture.all(find.clone()).len(), count, "{below}");
        let explain = doc! {"explain": find, "verbosity": "queryPlanner"};
        let plan = show(&fixture.run(explain));
        assert_eq!(plan.contains("IXSCAN"), is_inside, "{below}");
    }
    // A hint does not make a wildcard index cover documents it leaves out.
    let hinted = doc! {"find": "c", "filter": doc! {"a": doc! {"$lt": "100"}}, "hint": "all"};
    assert_eq!(fixture.all(hinted).len(), 4);
}

#[test]
fn geographic_indexes_change_no_answer() {
    let mut random = Random::new(7);
    let mut fixture = Fixture::new();
    let mut place = |spread: i32| -> (f64, f64) {
        let degrees = |n: i32| f64::from(n - spread) / 10.0;
        (
            degrees(random.int(2 * spread)),
            degrees(random.int(2 * spread)),
        )
    };
    let documents: Vec<Value> = (0..300)
        .map(|at| {
            let (x, y) = place(400);
            let point = doc! {"type": "Point", "coordinates": array![x, y]};
            match at % 10 {
                0 => doc! {"_id": at, "g": point}.into(),
                1 => doc! {"_id": at, "p": array![x, y]}.into(),
                _ => doc! {"_id": at, "g": point, "p": array![x, y], "n": at % 5}.into(),
            }
        })
        .collect();
    for name in ["plain", "indexed"] {
        fixture.run(doc! {"insert": name, "documents": documents.clone()});
    }
    let indexes = array![
        doc! {"key": doc! {"g": "2dsphere"}, "name": "sphere"},
        doc! {"key": doc! {"n": 1, "g": "2dsphere"}, "name": "both"},
        doc! {"key": doc! {"p": "2d"}, "name": "plane"},
    ];
    fixture.run(doc! {"createIndexes": "indexed", "indexes": indexes});
    let mut by_index = 0;
    let rounds = effort(8, 30, 30) as usize;
    for _ in 0..rounds {
        let (x, y) = place(300);
        let sphere = doc! {"$geoWithin": doc! {"$centerSphere": array![array![x, y], 0.2]}};
        let corners = array![array![x - 9.0, y - 4.0], array![x + 9.0, y + 4.0]];
        let plane = doc! {"$geoWithin": doc! {"$box": corners}};
        for filter in [
            doc! {"g": sphere.clone()},
            doc! {"g": sphere, "n": doc! {"$gte": 3}},
            doc! {"p": plane},
        ] {
            let find = |of: &str| doc! {"find": of, "filter": filter.clone()};
            let (plain, indexed) = (fixture.all(find("plain")), fixture.all(find("indexed")));
            assert!(is_same(&as_set(&plain), &as_set(&indexed)), "{filter:?}");
            let explain = doc! {"explain": find("indexed"), "verbosity": "queryPlanner"};
            let plan = show(&fixture.run(explain));
            by_index += usize::from(plan.contains("IXSCAN"));
        }
    }
    assert_eq!(by_index, 3 * rounds);
}

#[test]
fn near_equals_measuring_all_documents() {
    let mut random = Random::new(11);
    let mut fixture = Fixture::new();
    let mut place = |spread: i32| -> (f64, f64) {
        let degrees = |n: i32| f64::from(n - spread) / 10.0;
        let x = degrees(random.int(2 * spread));
        (x, degrees(random.int(2 * spread)))
    };
    let documents: Vec<Value> = (0..300)
        .map(|at| {
            let ((x, y), (u, v)) = (place(800), place(800));
            let point = doc! {"type": "Point", "coordinates": array![x, y]};
            let line =
                doc! {"type": "LineString", "coordinates": array![array![x, y], array![u, v]]};
            match at % 10 {
                0 => doc! {"_id": at, "n": 1}.into(),
                1 => doc! {"_id": at, "g": line, "p": array![array![x, y], array![u, v]]}.into(),
                2 => doc! {"_id": at, "g": array![point], "p": array![x, y]}.into(),
                _ => doc! {"_id": at, "g": point, "p": array![x, y], "n": at % 5}.into(),
            }
        })
        .collect();
    for name in ["measured", "bounded"] {
        fixture.run(doc! {"insert": name, "documents": documents.clone()});
        let indexes = array![
            doc! {"key": doc! {"g": "2dsphere"}, "name": "sphere"},
            doc! {"key": doc! {"p": "2d"}, "name": "plane"},
        ];
        fixture.run(doc! {"createIndexes": name, "indexes": indexes});
    }
    let mut by_index = 0;
    let rounds = effort(8, 30, 30) as usize;
    for round in 0..rounds {
        let (x, y) = place(800);
        let from = doc! {"type": "Point", "coordinates": array![x, y]};
        let max = [0.0, 300_000.0, 3_000_000.0, 3e7][round % 4];
        let degrees = max / 111_000.0;
        let sphere = doc! {"$near": doc! {"$geometry": from.clone(), "$maxDistance": max}};
        let ring = doc! {"$nearSphere": doc! {"$geometry": from, "$minDistance": max}};
        let plane = doc! {"$near": array![x, y], "$maxDistance": degrees};
        let globe = doc! {"$nearSphere": array![x, y], "$maxDistance": degrees.to_radians()};
        for filter in [
            doc! {"g": sphere.clone()},
            doc! {"g": sphere, "n": doc! {"$gte": 3}},
            doc! {"g": ring},
            doc! {"g": globe.clone()},
            doc! {"p": globe},
            doc! {"p": plane},
            doc! {"p": doc! {"$near": array![x, y]}},
        ] {
            let mut find = DocumentBuilder::new();
            find.append("find", "measured");
            find.append("filter", filter.clone());
            find.append("hint", doc! {"$natural": 1});
            let measured = fixture.all(find.finish());
            let find = doc! {"find": "bounded", "filter": filter.clone()};
            let bounded = fixture.all(find.clone());
            // Equal distances may come in either order.
            assert!(is_same(&as_set(&measured), &as_set(&bounded)), "{filter:?}");
            let explain = doc! {"explain": find, "verbosity": "queryPlanner"};
            let plan = show(&fixture.run(explain));
            by_index += usize::from(plan.contains("IXSCAN") && plan.contains("GEO_NEAR_2D"));
            // The nearest few are the first of all; all places, and so all distances, are different.
            let find = doc! {"find": "bounded", "filter": filter.clone(), "skip": 2, "limit": 5};
            let few: Vec<Document> = measured.iter().skip(2).take(5).cloned().collect();
            assert_eq!(fixture.all(find), few, "{filter:?}");
        }
    }
    assert_eq!(by_index, 7 * rounds);
    let from = doc! {"type": "Point", "coordinates": array![5, 5]};
    let near = |of: &str, limit: i32| {
        let stage =
            doc! {"$geoNear": doc! {"near": from.clone(), "key": "g", "distanceField": "d"}};
        doc! {"aggregate": of, "cursor": doc! {}, "pipeline": array![stage, doc! {"$limit": limit}]}
    };
    let all = fixture.all(near("measured", 5000));
    assert_eq!(fixture.all(near("bounded", 7)), all[..7]);
    let explain = doc! {"explain": near("bounded", 7), "verbosity": "executionStats"};
    let stats = fixture.run(explain).get("stages").to_value();
    let cursor = stats.as_ref().as_array().unwrap().get(0).to_value();
    let cursor = cursor
        .as_ref()
        .as_document()
        .unwrap()
        .get("$geoNearCursor")
        .to_value();
    let stats = cursor
        .as_ref()
        .as_document()
        .unwrap()
        .get("executionStats")
        .to_value();
    let examined = stats
        .as_ref()
        .as_document()
        .unwrap()
        .get("totalDocsExamined")
        .as_exact_i64();
    assert!(
        examined.is_some_and(|examined| examined < 150),
        "{examined:?}"
    );
}
