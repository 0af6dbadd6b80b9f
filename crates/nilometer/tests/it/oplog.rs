//! `local.oplog.rs` and `applyOps`: the entries of changes, how they are read, and contents rebuilt from them.

use std::collections::BTreeMap;

use nilometer::Database;
use nilometer_bson::testing::with_sorted_fields;
use nilometer_bson::{Document, Timestamp, Value, ValueRef, array, doc};

use crate::support::{Fixture, cursor, primary_environment, show};

fn replica_set() -> Fixture {
    Fixture::of(Database::in_memory_with(primary_environment()).unwrap())
}

/// Returns a document with the fields of both.
fn with(document: Document, others: Document) -> Document {
    let mut out = nilometer_bson::DocumentBuilder::extending(document);
    out.append_all(others.as_ref());
    out.finish()
}

fn find_oplog(filter: Document) -> Document {
    doc! {"find": "oplog.rs", "filter": filter}
}

/// Returns all documents that a cursor returns.
fn read_all(fixture: &mut Fixture, db: &str, command: Document) -> Vec<Document> {
    let reply = fixture.reply_on(db, command);
    assert_eq!(reply.get("ok").as_exact_i64(), Some(1), "{}", show(&reply));
    let (mut id, namespace, mut found) = cursor(&reply, "firstBatch");
    let collection = namespace.split_once('.').unwrap().1;
    while id != 0 {
        let reply = fixture.reply_on(db, doc! {"getMore": id, "collection": collection});
        let (next, _, more) = cursor(&reply, "nextBatch");
        id = next;
        found.extend(more);
    }
    found
}

/// Returns the entries that change something.
fn entries(fixture: &mut Fixture) -> Vec<Document> {
    let filter = doc! {"op": doc! {"$ne": "n"}};
    read_all(fixture, "local", find_oplog(filter))
}

fn time(entry: &Document) -> u64 {
    match entry.get("ts") {
        ValueRef::Timestamp(time) => time.to_u64(),
        other => panic!("{other:?}"),
    }
}

/// Returns an entry without its times and UUIDs.
fn shown(entry: &Document) -> String {
    let mut out = nilometer_bson::DocumentBuilder::new();
    for element in entry.iter() {
        if !matches!(element.name(), "ts" | "t" | "v" | "wall" | "ui") {
            out.append_element(element);
        }
    }
    nilometer_bson::extjson::to_relaxed(out.finish().as_ref())
}

#[test]
fn changes_are_entries_in_the_form_of_an_oplog() {
    let mut fixture = replica_set();
    fixture.run(doc! {"insert": "c", "documents": array![
        doc! {"_id": 1, "a": doc! {"x": 1, "y": 2}, "l": array![1, 2, 3]}, doc! {"_id": 2}
    ]});
    let update = |u: Document| {
        let statement = doc! {"q": doc! {"_id": 1}, "u": u};
        doc! {"update": "c", "updates": array![statement]}
    };
    fixture.run(update(doc! {"$set": doc! {"a.x": 5, "n": 1, "l.1": 9}}));
    fixture.run(update(
        doc! {"$unset": doc! {"n": 1}, "$pop": doc! {"l": 1}},
    ));
    fixture.run(update(doc! {"whole": 1}));
    let delete = doc! {"q": doc! {"_id": 2}, "limit": 1};
    fixture.run(doc! {"delete": "c", "deletes": array![delete]});
    let index = doc! {"key": doc! {"whole": 1}, "name": "w"};
    fixture.run(doc! {"createIndexes": "c", "indexes": array![index]});
    fixture.run(doc! {"dropIndexes": "c", "index": "w"});
    fixture.run(doc! {"collMod": "c", "validationLevel": "off"});
    fixture.run(doc! {"create": "v", "viewOn": "c", "pipeline": array![]});
    fixture.run(doc! {"collMod": "v", "viewOn": "d", "pipeline": array![]});
    fixture.run(doc! {"drop": "v"});
    fixture.reply_on("admin", doc! {"renameCollection": "test.c", "to": "test.d"});
    fixture.run(doc! {"drop": "d"});
    fixture.run(doc! {"dropDatabase": 1});
    let found = entries(&mut fixture);
    let all: Vec<String> = found.iter().map(shown).collect();
    let wanted = [
        r#"{"op":"c","ns":"test.$cmd","o":{"create":"c"}}"#,
        r#"{"op":"i","ns":"test.c","o":{"_id":1,"a":{"x":1,"y":2},"l":[1,2,3]},"o2":{"_id":1}}"#,
        r#"{"op":"i","ns":"test.c","o":{"_id":2},"o2":{"_id":2}}"#,
        r#"{"op":"u","ns":"test.c","o":{"$v":2,"diff":{"u":{"n":1},"sa":{"u":{"x":5}},"sl":{"a":true,"u1":9}}},"o2":{"_id":1}}"#,
        r#"{"op":"u","ns":"test.c","o":{"$v":2,"diff":{"d":{"n":false},"sl":{"a":true,"l":2}}},"o2":{"_id":1}}"#,
        r#"{"op":"u","ns":"test.c","o":{"_id":1,"whole":1},"o2":{"_id":1}}"#,
        r#"{"op":"d","ns":"test.c","o":{"_id":2}}"#,
        r#"{"op":"c","ns":"test.$cmd","o":{"createIndexes":"c","v":2,"key":{"whole":1},"name":"w"}}"#,
        r#"{"op":"c","ns":"test.$cmd","o":{"dropIndexes":"c","index":"w"},"o2":{"v":2,"key":{"whole":1},"name":"w"}}"#,
        r#"{"op":"c","ns":"test.$cmd","o":{"collMod":"c","validationLevel":"off","validationAction":"error"},"o2":{"collectionOptions":{}}}"#,
        r#"{"op":"i","ns":"test.system.views","o":{"_id":"test.v","viewOn":"c","pipeline":[]},"o2":{"_id":"test.v"}}"#,
        r#"{"op":"u","ns":"test.system.views","o":{"_id":"test.v","viewOn":"d","pipeline":[]},"o2":{"_id":"test.v"}}"#,
        r#"{"op":"d","ns":"test.system.views","o":{"_id":"test.v"}}"#,
        r#"{"op":"c","ns":"test.$cmd","o":{"renameCollection":"test.c","to":"test.d","stayTemp":false}}"#,
        r#"{"op":"c","ns":"test.$cmd","o":{"drop":"d"}}"#,
    ];
    for (at, wanted) in wanted.iter().enumerate() {
        assert_eq!(all[at], *wanted);
    }
    for entry in &found {
        assert_eq!(entry.get("t").as_exact_i64(), Some(1));
        assert_eq!(entry.get("v").as_exact_i64(), Some(2));
        assert!(matches!(entry.get("wall"), ValueRef::DateTime(_)));
    }
    assert!(found.iter().map(time).is_sorted_by(|a, b| a < b));
    assert!(!found[1].get("ui").is_missing());
}

#[test]
fn a_filter_on_ts_bounds_the_scan_and_tails_wait() {
    let mut fixture = replica_set();
    let empty = read_all(&mut fixture, "local", find_oplog(doc! {}));
    assert_eq!(empty.len(), 1, "an oplog is never empty");
    assert_eq!(empty[0].get("op").as_str(), Some("n"));
    let documents: Vec<Value> = (0..300).map(|i| doc! {"_id": i}.into()).collect();
    fixture.run(doc! {"insert": "c", "documents": documents});
    for i in 300..320 {
        fixture.run(doc! {"insert": "c", "documents": array![doc! {"_id": i}]});
    }
    let all = read_all(&mut fixture, "local", find_oplog(doc! {}));
    assert_eq!(all.len(), 322);
    assert!(all.iter().map(time).is_sorted_by(|a, b| a < b));
    let mut backward = find_oplog(doc! {});
    backward = with(backward, doc! {"sort": doc! {"$natural": -1}});
    let mut reversed = read_all(&mut fixture, "local", backward);
    reversed.reverse();
    assert_eq!(reversed, all);
    for at in [0, 1, 2, 150, 301, 302, 321] {
        let bound = all[at].get("ts").to_value();
        for (operator, from, to) in [
            ("$gte", at, 322),
            ("$gt", at + 1, 322),
            ("$lt", 0, at),
            ("$lte", 0, at + 1),
            ("$eq", at, at + 1),
        ] {
            let mut condition = nilometer_bson::DocumentBuilder::new();
            condition.append(operator, bound.clone());
            let filter = doc! {"ts": condition.finish()};
            for direction in [1, -1] {
                let mut command = find_oplog(filter.clone());
                command = with(command, doc! {"sort": doc! {"ts": direction}});
                let mut found = read_all(&mut fixture, "local", command.clone());
                if direction < 0 {
                    found.reverse();
                }
                assert_eq!(found, all[from..to], "{operator} {at} {direction}");
                let explained = fixture.reply_on(
                    "local",
                    doc! {"explain": command, "verbosity": "executionStats"},
                );
                let text = show(&explained);
                assert!(
                    text.contains("minRecord") && text.contains("COLLSCAN"),
                    "{text}"
                );
                assert!(!text.contains("SORT"), "{text}");
            }
        }
    }
    // A tail from the end on waits, and shows what comes.
    let last = all.last().map(|entry| entry.get("ts").to_value()).unwrap();
    let tail = doc! {
        "find": "oplog.rs", "filter": doc! {"ts": doc! {"$gt": last}}, "tailable": true,
        "awaitData": true, "oplogReplay": true, "batchSize": 10
    };
    let (id, _, first) = cursor(&fixture.reply_on("local", tail), "firstBatch");
    assert!(id != 0 && first.is_empty());
    let more = doc! {"getMore": id, "collection": "oplog.rs", "maxTimeMS": 1};
    let (_, _, none) = cursor(&fixture.reply_on("local", more.clone()), "nextBatch");
    assert!(none.is_empty());
    fixture.run(doc! {"insert": "c", "documents": array![doc! {"_id": "x"}, doc! {"_id": "y"}]});
    let (id, _, found) = cursor(&fixture.reply_on("local", more.clone()), "nextBatch");
    let ids: Vec<_> = found
        .iter()
        .map(|e| show(&e.get("o").as_document().unwrap().to_document()))
        .collect();
    assert_eq!(ids, [r#"{_id: String("x")}"#, r#"{_id: String("y")}"#]);
    let (id, _, none) = cursor(
        &fixture.reply_on(
            "local",
            doc! {"getMore": id, "collection": "oplog.rs", "maxTimeMS": 1},
        ),
        "nextBatch",
    );
    assert!(id != 0 && none.is_empty());
    // Counted and aggregated.
    let counted = fixture.reply_on("local", doc! {"count": "oplog.rs"});
    assert_eq!(counted.get("n").as_exact_i64(), Some(324));
    let group = doc! {"$group": doc! {"_id": "$op", "n": doc! {"$sum": 1}}};
    let sort = doc! {"$sort": doc! {"_id": 1}};
    let grouped =
        doc! {"aggregate": "oplog.rs", "pipeline": array![group, sort], "cursor": doc! {}};
    let grouped = read_all(&mut fixture, "local", grouped);
    let wanted = [
        doc! {"_id": "c", "n": 1},
        doc! {"_id": "i", "n": 322},
        doc! {"_id": "n", "n": 1},
    ];
    assert_eq!(grouped, wanted);
}

#[test]
fn the_oplog_is_listed_and_cannot_be_written() {
    let mut fixture = replica_set();
    let listed = read_all(&mut fixture, "local", doc! {"listCollections": 1});
    assert_eq!(listed.len(), 1);
    let options = listed[0].get("options").as_document().unwrap();
    assert_eq!(listed[0].get("name").as_str(), Some("oplog.rs"));
    assert!(matches!(options.get("capped"), ValueRef::Bool(true)));
    assert_eq!(options.get("size").as_exact_i64(), Some(990 << 20));
    let databases = fixture.reply_on("admin", doc! {"listDatabases": 1, "nameOnly": true});
    assert!(show(&databases).contains("local"));
    let stats = fixture.reply_on("local", doc! {"collStats": "oplog.rs"});
    assert!(matches!(stats.get("capped"), ValueRef::Bool(true)));
    assert_eq!(stats.get("maxSize").as_exact_i64(), Some(990 << 20));
    assert!(read_all(&mut fixture, "local", doc! {"listIndexes": "oplog.rs"}).is_empty());
    let statement = doc! {"q": doc! {}, "u": doc! {"$set": doc! {"a": 1}}};
    let index = doc! {"key": doc! {"a": 1}, "name": "a"};
    let delete = doc! {"q": doc! {}, "limit": 0};
    let out = doc! {"$out": doc! {"db": "local", "coll": "oplog.rs"}};
    for (command, code) in [
        (
            doc! {"insert": "oplog.rs", "documents": array![doc! {}]},
            73,
        ),
        (
            doc! {"update": "oplog.rs", "updates": array![statement]},
            73,
        ),
        (doc! {"delete": "oplog.rs", "deletes": array![delete]}, 73),
        (doc! {"findAndModify": "oplog.rs", "remove": true}, 73),
        (
            doc! {"createIndexes": "oplog.rs", "indexes": array![index]},
            73,
        ),
        (
            doc! {"create": "oplog.rs", "capped": true, "size": 1000},
            48,
        ),
        (doc! {"drop": "oplog.rs"}, 20),
        (doc! {"collMod": "oplog.rs", "cappedSize": 1000}, 20),
        (doc! {"convertToCapped": "oplog.rs", "size": 1000}, 20),
        (doc! {"dropDatabase": 1}, 20),
    ] {
        let reply = fixture.reply_on("local", command);
        assert_eq!(
            reply.get("code").as_exact_i64(),
            Some(code),
            "{}",
            show(&reply)
        );
    }
    let rename = doc! {"renameCollection": "local.oplog.rs", "to": "local.b"};
    let reply = fixture.reply_on("admin", rename);
    assert_eq!(reply.get("code").as_exact_i64(), Some(20));
    fixture.run(doc! {"insert": "c", "documents": array![doc! {}]});
    let reply = fixture.reply(doc! {"aggregate": "c", "pipeline": array![out], "cursor": doc! {}});
    assert!(!reply.get("code").is_missing(), "{}", show(&reply));
    // Without a replica set the name is free.
    let mut alone = Fixture::new();
    let insert = doc! {"insert": "oplog.rs", "documents": array![doc! {"_id": 1}]};
    assert_eq!(
        alone.reply_on("local", insert).get("n").as_exact_i64(),
        Some(1)
    );
}

/// A generator of small numbers.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    fn small(&mut self, n: u64) -> i32 {
        i32::try_from(self.below(n)).unwrap()
    }
}

const START_MS: i64 = 1_700_000_000_000;

fn value(draw: &mut Draw, depth: usize) -> Value {
    match draw.below(if depth > 1 { 2 } else { 4 }) {
        0 => Value::Int32(draw.small(5)),
        1 => ["x", "y"][draw.below(2) as usize].into(),
        2 => {
            let count = draw.below(4);
            let values: Vec<Value> = (0..count).map(|_| value(draw, depth + 1)).collect();
            values.into()
        }
        _ => {
            let mut out = nilometer_bson::DocumentBuilder::new();
            for name in ["x", "y", "0", "z"] {
                if draw.below(2) == 0 {
                    out.append(name, value(draw, depth + 1));
                }
            }
            out.finish().into()
        }
    }
}

/// Changes an ordinary collection at random.
fn change_documents(fixture: &mut Fixture, draw: &mut Draw) {
    let id = draw.small(12);
    let path = ["a", "b", "a.x", "b.y", "a.1", "c.x.y"][draw.below(6) as usize];
    let mut field = nilometer_bson::DocumentBuilder::new();
    field.append(path, value(draw, 0));
    let field = field.finish();
    let update = match draw.below(8) {
        0 | 1 => {
            let statement = doc! {
                "q": doc! {"_id": id}, "u": doc! {"a": value(draw, 0), "b": value(draw, 0)}, "upsert": true
            };
            fixture.reply(doc! {"update": "c", "updates": array![statement]});
            return;
        }
        2 => {
            let statement = doc! {"q": doc! {"_id": id}, "limit": 1};
            fixture.reply(doc! {"delete": "c", "deletes": array![statement]});
            return;
        }
        3 => {
            let many: Vec<Value> = (0..3)
                .map(|i| doc! {"_id": id + i, "a": value(draw, 0)}.into())
                .collect();
            fixture.reply(doc! {"insert": "c", "documents": many, "ordered": false});
            return;
        }
        4 => doc! {"$unset": field},
        5 => doc! {"$rename": doc! {"a": "n", "n": "b"}},
        6 => doc! {"$push": doc! {"a": doc! {"$each": array![1, 2], "$slice": -2}}},
        _ => doc! {"$set": field},
    };
    let statement =
        doc! {"q": doc! {"_id": doc! {"$gte": id}}, "u": update, "multi": draw.below(2) == 0};
    fixture.reply(doc! {"update": "c", "updates": array![statement]});
}

/// Changes a time-series collection at random.
fn change_measurements(fixture: &mut Fixture, draw: &mut Draw, next: &mut i32) {
    match draw.below(8) {
        0 => {
            let filter = doc! {"_id": draw.small(60)};
            let statement = doc! {"q": filter, "limit": 0};
            fixture.run(doc! {"delete": "ts", "deletes": array![statement]});
        }
        1 => {
            let set = doc! {"$set": doc! {"m": draw.small(3)}};
            let statement = doc! {"q": doc! {"m": draw.small(3)}, "u": set, "multi": true};
            fixture.run(doc! {"update": "ts", "updates": array![statement]});
        }
        2 if draw.below(6) == 0 => {
            let statement = doc! {"q": doc! {"m": draw.small(3)}, "limit": 0};
            fixture.run(doc! {"delete": "ts", "deletes": array![statement]});
        }
        _ => {
            let count = 1 + draw.below(5);
            let mut many: Vec<Value> = Vec::new();
            for _ in 0..count {
                *next += 1;
                let at = START_MS + i64::from(draw.small(4000)) * 1000;
                let mut one = doc! {"t": Value::DateTime(at), "m": draw.small(3)};
                if draw.below(4) > 0 {
                    one = with(one, doc! {"_id": *next});
                }
                if draw.below(2) == 0 {
                    one = with(one, doc! {"v": draw.small(3)});
                }
                many.push(one.into());
            }
            fixture.run(doc! {"insert": "ts", "documents": many});
        }
    }
}

fn change(fixture: &mut Fixture, draw: &mut Draw, next: &mut i32) {
    match draw.below(30) {
        0 => drop(fixture.reply(doc! {"drop": "c"})),
        1 => drop(fixture.reply(doc! {"drop": "extra"})),
        2 => drop(fixture.reply(doc! {"create": "extra", "viewOn": "c", "pipeline": array![]})),
        3 => {
            let key = ["a", "b"][draw.below(2) as usize];
            let mut pattern = nilometer_bson::DocumentBuilder::new();
            pattern.append(key, 1);
            let index = doc! {"key": pattern.finish(), "name": key};
            fixture.reply(doc! {"createIndexes": "c", "indexes": array![index]});
        }
        4 => drop(fixture.reply(doc! {"dropIndexes": "c", "index": "a"})),
        5 => {
            let out = doc! {"$out": "copy"};
            fixture.reply(doc! {"aggregate": "c", "pipeline": array![out], "cursor": doc! {}});
        }
        6..16 => change_documents(fixture, draw),
        _ => change_measurements(fixture, draw, next),
    }
}

/// Returns what clients see: the contents of all collections, without order, and their definitions.
fn contents(fixture: &mut Fixture) -> BTreeMap<String, Vec<String>> {
    let mut out = BTreeMap::new();
    for listed in read_all(fixture, "test", doc! {"listCollections": 1}) {
        let name = listed.get("name").as_str().unwrap().to_owned();
        if name.starts_with("system.") {
            continue;
        }
        let is_series = listed.get("type").as_str() == Some("timeseries");
        let found = read_all(fixture, "test", doc! {"find": &*name});
        let mut rows: Vec<String> = match is_series {
            true => found
                .iter()
                .map(|d| show(&with_sorted_fields(d.as_ref())))
                .collect(),
            false => found.iter().map(show).collect(),
        };
        if listed.get("type").as_str() != Some("view") {
            for index in read_all(fixture, "test", doc! {"listIndexes": &*name}) {
                rows.push(show(&index));
            }
        }
        rows.push(show(
            &listed.get("options").as_document().unwrap().to_document(),
        ));
        rows.sort_unstable();
        out.insert(name, rows);
    }
    out
}

/// Fails with the rows that only one of two contents has.
fn assert_same(
    found: &BTreeMap<String, Vec<String>>,
    wanted: &BTreeMap<String, Vec<String>>,
    seed: u64,
) {
    assert!(
        found.keys().eq(wanted.keys()),
        "seed {seed}: {:?} {:?}",
        found.keys(),
        wanted.keys()
    );
    for (name, rows) in wanted {
        let found = &found[name];
        let only = |these: &[String], others: &[String]| -> Vec<String> {
            let mut left = others.to_vec();
            let mut only = these.to_vec();
            only.retain(|row| match left.iter().position(|other| other == row) {
                Some(at) => {
                    left.swap_remove(at);
                    false
                }
                None => true,
            });
            only
        };
        let (more, less) = (only(found, rows), only(rows, found));
        assert!(
            more.is_empty() && less.is_empty(),
            "seed {seed}, {name}: more {more:#?} less {less:#?}"
        );
    }
}

/// Applies entries as `mongorestore --oplogReplay` does: one by one, without UUIDs.
fn replay(fixture: &mut Fixture, entries: &[Document]) {
    for entry in entries {
        let mut sent = nilometer_bson::DocumentBuilder::new();
        for element in entry.iter().filter(|e| e.name() != "ui") {
            sent.append_element(element);
        }
        let reply = fixture.reply_on("admin", doc! {"applyOps": array![sent.finish()]});
        assert_eq!(
            reply.get("ok").as_exact_i64(),
            Some(1),
            "{} {}",
            show(entry),
            show(&reply)
        );
    }
}

fn create_series(fixture: &mut Fixture) {
    let options = doc! {"timeField": "t", "metaField": "m"};
    fixture.run(doc! {"create": "ts", "timeseries": options});
}

#[test]
fn contents_rebuilt_from_the_oplog_are_the_same() {
    for seed in 0..12 {
        let mut source = replica_set();
        create_series(&mut source);
        let (mut draw, mut next) = (Draw(seed), 0);
        for _ in 0..80 {
            change(&mut source, &mut draw, &mut next);
        }
        let all = entries(&mut source);
        let wanted = contents(&mut source);
        let mut target = replica_set();
        replay(&mut target, &all);
        assert_same(&contents(&mut target), &wanted, seed);
        // Once more, over contents that are newer than the entries.
        replay(&mut target, &all);
        assert_same(&contents(&mut target), &wanted, seed);
    }
}

/// Copies collections as `mongodump` does, while `between` is called after each batch that is read.
fn dump(
    source: &mut Fixture,
    between: &mut dyn FnMut(&mut Fixture),
) -> Vec<(Document, Vec<Document>)> {
    let mut dumped = Vec::new();
    for listed in read_all(source, "test", doc! {"listCollections": 1}) {
        between(source);
        let name = listed.get("name").as_str().unwrap().to_owned();
        if matches!(listed.get("type").as_str(), Some("view" | "timeseries"))
            || name == "system.views"
        {
            dumped.push((listed, Vec::new()));
            continue;
        }
        let first = source.reply(doc! {"find": &*name, "batchSize": 2, "hint": doc! {"_id": 1}});
        let mut documents = Vec::new();
        if first.get("ok").as_exact_i64() == Some(1) {
            let (mut id, _, mut batch) = cursor(&first, "firstBatch");
            loop {
                documents.append(&mut batch);
                between(source);
                if id == 0 {
                    break;
                }
                let more = source.reply(doc! {"getMore": id, "collection": &*name, "batchSize": 2});
                if more.get("ok").as_exact_i64() != Some(1) {
                    break;
                }
                (id, _, batch) = cursor(&more, "nextBatch");
            }
        }
        dumped.push((listed, documents));
    }
    dumped
}

fn restore(target: &mut Fixture, dumped: &[(Document, Vec<Document>)]) {
    for (listed, _) in dumped {
        let name = listed.get("name").as_str().unwrap();
        if name.starts_with("system.") {
            continue;
        }
        let mut create = doc! {"create": name};
        create = with(
            create,
            listed.get("options").as_document().unwrap().to_document(),
        );
        target.run(create);
    }
    for (listed, documents) in dumped {
        let name = listed.get("name").as_str().unwrap();
        for document in documents {
            let reply = target.run(doc! {"insert": name, "documents": array![document.clone()]});
            assert_eq!(reply.get("n").as_exact_i64(), Some(1), "{}", show(&reply));
        }
    }
}

/// The steps of `mongodump --oplog` and `mongorestore --oplogReplay`, while the contents change.
#[test]
fn a_dump_with_the_oplog_restores_the_contents_of_its_end() {
    for seed in 100..125 {
        let mut source = replica_set();
        create_series(&mut source);
        let (mut draw, mut next) = (Draw(seed), 0);
        for _ in 0..60 {
            change(&mut source, &mut draw, &mut next);
        }
        let newest = |fixture: &mut Fixture| {
            let mut command = find_oplog(doc! {});
            command = with(command, doc! {"sort": doc! {"$natural": -1}, "limit": 1});
            let found = read_all(fixture, "local", command);
            found[0].get("ts").to_value()
        };
        let start = newest(&mut source);
        let dumped = dump(&mut source, &mut |source| {
            for _ in 0..draw.below(4) {
                change(source, &mut draw, &mut next);
            }
        });
        let end = newest(&mut source);
        let wanted = contents(&mut source);
        // What comes later is not restored.
        for _ in 0..10 {
            change(&mut source, &mut draw, &mut next);
        }
        let filter = doc! {"ts": doc! {"$gte": start, "$lte": end}, "op": doc! {"$ne": "n"}};
        let during = read_all(&mut source, "local", find_oplog(filter));
        let mut target = replica_set();
        restore(&mut target, &dumped);
        replay(&mut target, &during);
        let mut restored = contents(&mut target);
        // The tool builds the indexes of the dump.
        let without_indexes = |all: &mut BTreeMap<String, Vec<String>>| {
            for rows in all.values_mut() {
                rows.retain(|row| !row.contains("key: {"));
            }
        };
        let mut wanted = wanted;
        without_indexes(&mut restored);
        without_indexes(&mut wanted);
        assert_same(&restored, &wanted, seed);
    }
}

fn in_session(last: u8, number: i64, command: Document) -> Document {
    let uuid = nilometer_bson::Binary {
        subtype: 4,
        bytes: vec![last; 16].into(),
    };
    let session = doc! {
        "lsid": doc! {"id": Value::from(uuid)}, "txnNumber": number, "autocommit": false
    };
    with(command, session)
}

#[test]
fn a_transaction_is_one_entry() {
    let mut fixture = replica_set();
    create_series(&mut fixture);
    fixture.run(doc! {"create": "c"});
    let before = entries(&mut fixture).len();
    let mut first = in_session(
        1,
        1,
        doc! {"insert": "c", "documents": array![doc! {"_id": 1}, doc! {"_id": 2}]},
    );
    first = with(first, doc! {"startTransaction": true});
    fixture.run(first);
    let measurement = doc! {"t": Value::DateTime(START_MS), "m": 1, "_id": 7};
    fixture.run(in_session(
        1,
        1,
        doc! {"insert": "ts", "documents": array![measurement]},
    ));
    let commit = in_session(1, 1, doc! {"commitTransaction": 1});
    assert_eq!(
        fixture.reply_on("admin", commit).get("ok").as_exact_i64(),
        Some(1)
    );
    let all = entries(&mut fixture);
    assert_eq!(all.len(), before + 1);
    let entry = all.last().unwrap();
    assert_eq!(entry.get("ns").as_str(), Some("admin.$cmd"));
    assert_eq!(entry.get("txnNumber").as_exact_i64(), Some(1));
    let lsid = entry.get("lsid").as_document().unwrap();
    assert!(!lsid.get("uid").is_missing());
    let inner = entry
        .get("o")
        .as_document()
        .unwrap()
        .get("applyOps")
        .as_array()
        .unwrap();
    let kinds: Vec<_> = inner
        .iter()
        .map(|one| one.as_document().unwrap().get("ns").as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["test.c", "test.c", "test.system.buckets.ts"]);
    let counted = fixture.reply_on("local", doc! {"count": "oplog.rs"});
    assert_eq!(
        counted.get("n").as_exact_i64(),
        Some(i64::try_from(all.len()).unwrap() + 1)
    );
    let mut target = replica_set();
    replay(&mut target, &all);
    assert_eq!(contents(&mut target), contents(&mut fixture));
    // Events of a transaction say which it was.
    let stream = doc! {"$changeStream": doc! {"startAtOperationTime": entry.get("ts").to_value()}};
    let watch = doc! {"aggregate": 1, "pipeline": array![stream], "cursor": doc! {}};
    let (_, _, events) = cursor(&fixture.run(watch), "firstBatch");
    assert_eq!(events.len(), 3);
    for event in &events {
        assert_eq!(event.get("txnNumber").as_exact_i64(), Some(1));
        let shown = event.get("lsid").as_document().unwrap();
        assert_eq!(shown.as_bytes(), lsid.as_bytes());
    }
}

#[test]
fn a_large_transaction_is_several_entries() {
    let mut fixture = replica_set();
    fixture.run(doc! {"create": "c"});
    let text = "x".repeat(3 << 20);
    for i in 0..7 {
        let document = doc! {"_id": i, "text": &*text};
        let mut insert = in_session(1, 1, doc! {"insert": "c", "documents": array![document]});
        if i == 0 {
            insert = with(insert, doc! {"startTransaction": true});
        }
        fixture.run(insert);
    }
    let commit = in_session(1, 1, doc! {"commitTransaction": 1});
    fixture.reply_on("admin", commit);
    let all = entries(&mut fixture);
    let parts: Vec<_> = all[1..]
        .iter()
        .map(|e| e.get("o").as_document().unwrap())
        .collect();
    assert_eq!(parts.len(), 4);
    assert!(matches!(parts[0].get("partialTxn"), ValueRef::Bool(true)));
    assert_eq!(parts[3].get("count").as_exact_i64(), Some(7));
    for (before, entry) in all[1..].iter().zip(&all[2..]) {
        let linked = entry.get("prevOpTime").as_document().unwrap().get("ts");
        assert_eq!(format!("{linked:?}"), format!("{:?}", before.get("ts")));
        assert!(time(before) < time(entry));
    }
    let mut backward = find_oplog(doc! {"op": "c"});
    backward = with(backward, doc! {"sort": doc! {"$natural": -1}});
    let mut reversed = read_all(&mut fixture, "local", backward);
    reversed.reverse();
    assert_eq!(reversed, all);
}

#[test]
fn old_entries_are_removed_and_a_tail_behind_them_says_so() {
    use nilometer::change_log::ChangeLogOptions;
    let mut environment = primary_environment();
    environment.change_log = ChangeLogOptions {
        bytes_max: 1 << 20,
        retention_min_ms: 0,
    };
    let mut fixture = Fixture::of(Database::in_memory_with(environment).unwrap());
    fixture.run(doc! {"insert": "c", "documents": array![doc! {"_id": 0}]});
    let tail = doc! {"find": "oplog.rs", "tailable": true, "awaitData": true, "batchSize": 1};
    let (id, _, _) = cursor(&fixture.reply_on("local", tail), "firstBatch");
    let first = read_all(&mut fixture, "local", find_oplog(doc! {}));
    assert!(show(&first[0]).contains("initiating set"));
    let text = "x".repeat(100_000);
    let started = std::time::Instant::now();
    let mut i = 0;
    loop {
        i += 1;
        fixture.run(doc! {"insert": "c", "documents": array![doc! {"_id": i, "text": &*text}]});
        let mut oldest = find_oplog(doc! {});
        oldest = with(oldest, doc! {"limit": 2});
        let now = read_all(&mut fixture, "local", oldest);
        if time(&now[0]) > time(&first[1]) {
            assert!(show(&now[0]).contains("older entries were removed"));
            assert!(time(&now[0]) < time(&now[1]));
            break;
        }
        assert!(started.elapsed().as_secs() < 60, "the log is never trimmed");
        if i > 40 {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
    let more = doc! {"getMore": id, "collection": "oplog.rs", "maxTimeMS": 1};
    let reply = fixture.reply_on("local", more);
    assert_eq!(
        reply.get("code").as_exact_i64(),
        Some(136),
        "{}",
        show(&reply)
    );
}

#[test]
fn a_timestamp_is_the_key_of_an_entry() {
    let mut fixture = replica_set();
    fixture.run(doc! {"insert": "c", "documents": array![doc! {"_id": 0}]});
    let mut command =
        find_oplog(doc! {"ts": doc! {"$gt": Value::Timestamp(Timestamp::from_u64(0))}});
    command = with(command, doc! {"showRecordId": true});
    for entry in read_all(&mut fixture, "local", command) {
        assert_eq!(
            entry.get("$recordId").as_exact_i64(),
            Some(time(&entry).cast_signed())
        );
    }
}
