//! Contents rebuilt from the oplog: of random histories, by the steps of the tools while contents change, and beside writers.

use std::collections::{BTreeMap, BTreeSet};

use nilometer::{ClientSession, Database, Request};
use nilometer_bson::testing::with_sorted_fields;
use nilometer_bson::{Document, Value, array, doc};

use super::{entries, find_oplog, read_all, replica_set, with};
use crate::support::{Fixture, TemporaryDirectory, cursor, primary_environment, show};

/// A generator of small numbers.
pub(super) struct Draw(pub(super) u64);

impl Draw {
    pub(super) fn below(&mut self, n: u64) -> u64 {
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

pub(super) const START_MS: i64 = 1_700_000_000_000;

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
            if draw.below(3) == 0 {
                // The same measurement again and again.
                many.push(doc! {"t": Value::DateTime(START_MS), "m": 0, "_id": "again"}.into());
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
pub(super) fn contents(fixture: &mut Fixture) -> BTreeMap<String, Vec<String>> {
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
pub(super) fn replay(fixture: &mut Fixture, entries: &[Document]) {
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

pub(super) fn create_series(fixture: &mut Fixture) {
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

fn send(database: &Database, session: &mut ClientSession, db: &str, command: Document) -> Document {
    let body = with(command, doc! {"$db": db});
    let reply = database.run_command(session, &Request::new(body));
    assert_eq!(reply.get("ok").as_exact_i64(), Some(1), "{}", show(&reply));
    reply
}

/// Returns all documents that a `find` finds, a few at a time.
fn find_all(
    database: &Database,
    session: &mut ClientSession,
    db: &str,
    find: Document,
) -> Vec<Document> {
    let reply = send(database, session, db, with(find, doc! {"batchSize": 3}));
    let (mut id, namespace, mut found) = cursor(&reply, "firstBatch");
    let collection = namespace.split_once('.').unwrap().1.to_owned();
    while id != 0 {
        let more = doc! {"getMore": id, "collection": &*collection, "batchSize": 3};
        let reply = send(database, session, db, more);
        let (next, _, more) = cursor(&reply, "nextBatch");
        id = next;
        found.extend(more);
    }
    found
}

/// Writers share a series, so that their entries are in the same buckets, and in flight together.
#[test]
fn buckets_of_several_writers_are_restored_as_they_were_at_the_end() {
    const WRITERS: i32 = 4;
    const INSERTS: i32 = 150;
    let directory = TemporaryDirectory::new();
    let database = Database::open_with(&directory.0, primary_environment()).unwrap();
    let mut session = ClientSession::embedded();
    let series = doc! {"timeField": "t", "metaField": "m"};
    let create = doc! {"create": "ts", "timeseries": series.clone()};
    send(&database, &mut session, "test", create);
    let write = |writer: i32| {
        let mut session = ClientSession::embedded();
        for n in 0..INSERTS {
            let one = |k: i32| {
                let t = Value::DateTime(START_MS + i64::from(n) * 100);
                Value::from(doc! {"t": t, "m": k, "_id": writer * 1000 + n, "w": writer, "n": n})
            };
            let documents = array![one(0), one(1)];
            let insert = doc! {"insert": "ts", "documents": documents};
            send(&database, &mut session, "test", insert);
            if n % 40 == 39 {
                let filter = doc! {"w": writer, "n": n - 20};
                let delete = doc! {"q": filter, "limit": 0};
                let delete = doc! {"delete": "ts", "deletes": array![delete]};
                send(&database, &mut session, "test", delete);
            }
        }
    };
    let newest = |session: &mut ClientSession| {
        let sort = doc! {"sort": doc! {"$natural": -1}, "limit": 1};
        let find = with(find_oplog(doc! {}), sort);
        let found = find_all(&database, session, "local", find);
        found[0].get("ts").to_value()
    };
    let mut restore = || {
        let start = newest(&mut session);
        let raw = doc! {"find": "system.buckets.ts"};
        let buckets = find_all(&database, &mut session, "test", raw);
        let end = newest(&mut session);
        let filter = doc! {"ts": doc! {"$gte": start, "$lte": end}, "op": doc! {"$ne": "n"}};
        let during = find_all(&database, &mut session, "local", find_oplog(filter));
        let mut target = replica_set();
        target.run(doc! {"create": "ts", "timeseries": series.clone()});
        for bucket in buckets {
            target.run(doc! {"insert": "system.buckets.ts", "documents": array![bucket]});
        }
        replay(&mut target, &during);
        read_all(&mut target, "test", doc! {"find": "ts"})
    };
    let check = |found: &[Document]| {
        for writer in 0..WRITERS {
            let of_writer = |d: &&Document| d.get("w").as_exact_i64() == Some(writer.into());
            let number = |d: &Document, name: &str| d.get(name).as_exact_i64().unwrap();
            let rows: Vec<_> = found.iter().filter(of_writer).collect();
            let rows: Vec<_> = rows
                .iter()
                .map(|d| (number(d, "n"), number(d, "m")))
                .collect();
            let distinct: BTreeSet<_> = rows.iter().copied().collect();
            assert_eq!(distinct.len(), rows.len(), "a measurement is there twice");
            let count = distinct.last().map_or(0, |(n, _)| n + 1);
            let removed = |last: i64| -> BTreeSet<(i64, i64)> {
                let ends = (39..last).step_by(40);
                ends.flat_map(|end| [(end - 20, 0), (end - 20, 1)])
                    .collect()
            };
            let all: BTreeSet<_> = (0..count).flat_map(|n| [(n, 0), (n, 1)]).collect();
            // The delete behind the last insert may be missing.
            let is_prefix = [count - 1, count].into_iter().any(|last| {
                let wanted: BTreeSet<_> = all.difference(&removed(last)).copied().collect();
                wanted == distinct
            });
            assert!(is_prefix, "writer {writer}: {distinct:?}");
        }
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| scope.spawn(move || write(writer)))
            .collect();
        while writers.iter().any(|writer| !writer.is_finished()) {
            check(&restore());
        }
    });
    let found = restore();
    check(&found);
    assert_eq!(found.len(), (WRITERS * (INSERTS - 3) * 2) as usize);
}
