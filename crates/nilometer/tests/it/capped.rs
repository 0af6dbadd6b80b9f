//! Capped collections against a model that keeps the newest documents; crashes; tailable cursors.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nilometer::Database;
use nilometer_bson::{Array, Document, Value, doc};
use nilometer_storage::testing::effort;
use nilometer_storage::testing::support::SetAtDrop;

use crate::random::Random;
use crate::support::{Fixture, TemporaryDirectory, cursor, show};

/// The model of a capped collection: documents in insertion order, the oldest removed.
#[derive(Clone)]
struct Model {
    size: usize,
    max: usize,
    documents: Vec<(i32, usize)>,
    /// All accepted `_id`s, in order.
    history: Vec<i32>,
}

impl Model {
    fn insert(&mut self, id: i32, bytes: usize) {
        if self.documents.iter().any(|(known, _)| *known == id) || bytes > self.size {
            return;
        }
        self.documents.push((id, bytes));
        self.history.push(id);
        let held = |model: &Self| {
            model
                .documents
                .iter()
                .map(|(_, bytes)| bytes)
                .sum::<usize>()
        };
        while self.documents.len() > self.max || held(self) > self.size {
            self.documents.remove(0);
        }
    }

    fn ids(&self) -> Vec<i32> {
        self.documents.iter().map(|(id, _)| *id).collect()
    }
}

fn ids(fixture: &mut Fixture, command: Document) -> Vec<i32> {
    let documents = fixture.all(command);
    let id = |d: &Document| d.get("_id").as_exact_i64().unwrap() as i32;
    documents.iter().map(id).collect()
}

fn document(id: i32, length: usize) -> Document {
    doc! { "_id": id, "k": id % 7, "s": "x".repeat(length) }
}

fn check(fixture: &mut Fixture, model: &Model) {
    assert_eq!(ids(fixture, doc! { "find": "c" }), model.ids());
    let mut backward = model.ids();
    backward.reverse();
    let newest_first = doc! { "find": "c", "sort": doc! { "$natural": -1 } };
    assert_eq!(ids(fixture, newest_first), backward);
    let count = fixture.run(doc! { "count": "c" });
    assert_eq!(
        count.get("n").as_exact_i64(),
        Some(model.documents.len() as i64)
    );
}

/// Runs one random command on the collection and the model.
fn step(fixture: &mut Fixture, model: &mut Model, random: &mut Random, next: &mut i32) {
    match random.below(12) {
        0 => {
            let id = random.int(*next + 1);
            let one = doc! { "q": doc! { "_id": id }, "limit": 1 };
            fixture.run(doc! { "delete": "c", "deletes": vec![Value::from(one)] });
            model.documents.retain(|(known, _)| *known != id);
        }
        1 => {
            let k = random.int(7);
            let all = doc! { "q": doc! { "k": k }, "limit": 0 };
            fixture.run(doc! { "delete": "c", "deletes": vec![Value::from(all)] });
            model.documents.retain(|(id, _)| id % 7 != k);
        }
        2 => {
            let id = random.int(*next + 1);
            let after = document(id, random.below(400) as usize);
            let bytes = after.as_bytes().len();
            let one = doc! { "q": doc! { "_id": id }, "u": after };
            fixture.run(doc! { "update": "c", "updates": vec![Value::from(one)] });
            for held in model.documents.iter_mut().filter(|(known, _)| *known == id) {
                held.1 = bytes;
            }
        }
        3 => {
            model.size = 256 * (2 + random.below(8) as usize);
            model.max = 1 + random.below(20) as usize;
            let (size, max) = (model.size as i64, model.max as i64);
            fixture.run(doc! { "collMod": "c", "cappedSize": size, "cappedMax": max });
        }
        _ => {
            let mut documents = Vec::new();
            for _ in 0..=random.below(9) {
                // Sometimes an earlier `_id`.
                let id = match random.below(5) {
                    0 => random.int(*next + 1),
                    _ => {
                        *next += 1;
                        *next
                    }
                };
                let made = document(id, random.below(300) as usize);
                model.insert(id, made.as_bytes().len());
                documents.push(Value::from(made));
            }
            let documents: Array = documents.into_iter().collect();
            fixture.run(doc! { "insert": "c", "documents": documents, "ordered": false });
        }
    }
}

fn begin(fixture: &mut Fixture) -> Model {
    fixture.run(doc! { "create": "c", "capped": true, "size": 1024, "max": 12 });
    let index = doc! { "key": doc! { "k": 1 }, "name": "k_1" };
    fixture.run(doc! { "createIndexes": "c", "indexes": vec![Value::from(index)] });
    Model {
        size: 1024,
        max: 12,
        documents: Vec::new(),
        history: Vec::new(),
    }
}

fn validate(fixture: &mut Fixture) {
    let reply = fixture.run(doc! { "validate": "c" });
    assert_eq!(
        reply.get("nInvalidDocuments").as_exact_i64(),
        Some(0),
        "{}",
        show(&reply)
    );
}

#[test]
fn fuzz_capped_collections_keep_the_newest_documents() {
    for seed in 0..effort(12, 60, 60) {
        let mut random = Random::new(seed);
        let mut fixture = Fixture::new();
        let mut model = begin(&mut fixture);
        let mut next = 0;
        for _ in 0..60 {
            step(&mut fixture, &mut model, &mut random, &mut next);
            check(&mut fixture, &model);
        }
        validate(&mut fixture);
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Truncates the newest log file.
fn tear(directory: &Path, bytes: u64) {
    let mut logs = Vec::new();
    let mut folders = vec![directory.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "log") {
                logs.push(path);
            }
        }
    }
    logs.sort();
    let newest = fs::OpenOptions::new()
        .write(true)
        .open(logs.last().unwrap())
        .unwrap();
    let length = newest.metadata().unwrap().len();
    newest.set_len(length.saturating_sub(bytes)).unwrap();
}

/// The files at any moment are those a kill leaves. All acknowledged documents survive; with a truncated
/// log, a run of the inserts survives, and never more than the limits.
#[test]
fn a_crash_leaves_no_more_than_the_limits() {
    let directory = TemporaryDirectory::new();
    let mut fixture = Fixture::open(&directory.0);
    let mut model = begin(&mut fixture);
    let mut random = Random::new(5);
    let mut next = 0;
    for round in 0..12u64 {
        for _ in 0..6 {
            let mut documents = Vec::new();
            for _ in 0..=random.below(5) {
                next += 1;
                let made = document(next, random.below(200) as usize);
                model.insert(next, made.as_bytes().len());
                documents.push(Value::from(made));
            }
            fixture.run(doc! { "insert": "c", "documents": documents });
        }
        let killed = TemporaryDirectory::new();
        copy(&directory.0, &killed.0);
        let mut after = Fixture::open(&killed.0);
        check(&mut after, &model);
        // The size is loaded, not counted again.
        let mut later = model.clone();
        for id in 100_000..100_004 {
            let made = document(id, 100 + (id % 7) as usize);
            later.insert(id, made.as_bytes().len());
            after.run(doc! { "insert": "c", "documents": vec![Value::from(made)] });
            check(&mut after, &later);
        }
        validate(&mut after);
        drop(after);

        let torn = TemporaryDirectory::new();
        copy(&directory.0, &torn.0);
        tear(&torn.0, 1 + round * 37);
        let Ok(database) = Database::open(&torn.0) else {
            continue;
        };
        let mut after = Fixture::of(database);
        let left = ids(&mut after, doc! { "find": "c" });
        let bytes: usize = after
            .all(doc! { "find": "c" })
            .iter()
            .map(|d| d.as_bytes().len())
            .sum();
        assert!(left.len() <= model.max && bytes <= model.size, "{left:?}");
        let run = model.history.windows(left.len()).any(|run| run == left);
        assert!(run, "{left:?} of {:?}", model.history);
        validate(&mut after);
    }
}

#[test]
fn an_emptied_collection_accepts_inserts_after_reopening() {
    let directory = TemporaryDirectory::new();
    for round in 0..3 {
        let mut fixture = Fixture::open(&directory.0);
        if round == 0 {
            begin(&mut fixture);
        }
        for id in 0..30 {
            let made = vec![Value::from(document(id, 20))];
            fixture.run(doc! { "insert": "c", "documents": made });
        }
        let left = ids(&mut fixture, doc! { "find": "c" });
        assert_eq!(left, (18..30).collect::<Vec<_>>(), "round {round}");
        let all = doc! { "q": doc! {}, "limit": 0 };
        fixture.run(doc! { "delete": "c", "deletes": vec![Value::from(all)] });
        validate(&mut fixture);
    }
}

#[test]
fn an_insert_wakes_a_waiting_cursor() {
    let mut fixture = Fixture::new();
    begin(&mut fixture);
    let documents = vec![Value::from(document(1, 1))];
    fixture.run(doc! { "insert": "c", "documents": documents });
    let opened = fixture.run(doc! { "find": "c", "tailable": true, "awaitData": true });
    let (id, ..) = cursor(&opened, "firstBatch");
    assert_ne!(id, 0);
    let shared = Arc::new(fixture.database);
    let writer = Arc::clone(&shared);
    let late = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        let mut session = nilometer::ClientSession::embedded();
        let documents = vec![Value::from(document(2, 1))];
        let command = doc! { "insert": "c", "documents": documents, "$db": "test" };
        writer.run_command(&mut session, &nilometer::Request::new(command));
    });
    let started = Instant::now();
    let mut session = nilometer::ClientSession::embedded();
    let more = doc! { "getMore": id, "collection": "c", "maxTimeMS": 30_000, "$db": "test" };
    let reply = shared.run_command(&mut session, &nilometer::Request::new(more));
    late.join().unwrap();
    let (same, _, batch) = cursor(&reply, "nextBatch");
    assert_eq!((same, batch.len()), (id, 1), "{}", show(&reply));
    assert!(started.elapsed() < Duration::from_secs(20));
}

fn run_on(database: &Database, command: Document) -> Document {
    let mut body = nilometer_bson::DocumentBuilder::new();
    for element in command.iter() {
        body.append_element(element);
    }
    body.append("$db", "test");
    let mut session = nilometer::ClientSession::embedded();
    database.run_command(&mut session, &nilometer::Request::new(body.finish()))
}

/// Concurrent writers and a tailable cursor: every document is read once, in one order.
#[test]
fn a_tailable_cursor_reads_every_document_once() {
    const WRITERS: i32 = 3;
    const EACH: i32 = 300;
    let database = Database::in_memory().unwrap();
    let create = doc! { "create": "c", "capped": true, "size": 10_000_000 };
    run_on(&database, create);
    run_on(
        &database,
        doc! { "insert": "c", "documents": vec![Value::from(document(-1, 1))] },
    );
    let opened = run_on(
        &database,
        doc! { "find": "c", "tailable": true, "awaitData": true },
    );
    let (id, _, first) = cursor(&opened, "firstBatch");
    let mut seen: Vec<i64> = first
        .iter()
        .filter_map(|d| d.get("_id").as_exact_i64())
        .collect();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let database = &database;
            scope.spawn(move || {
                for n in 0..EACH {
                    let made = document(writer * EACH + n, 10);
                    let reply = run_on(
                        database,
                        doc! { "insert": "c", "documents": vec![Value::from(made)] },
                    );
                    assert_eq!(reply.get("n").as_exact_i64(), Some(1), "{}", show(&reply));
                }
            });
        }
        while seen.len() <= (WRITERS * EACH) as usize {
            let more = doc! { "getMore": id, "collection": "c", "maxTimeMS": 1000 };
            let (same, _, batch) = cursor(&run_on(&database, more), "nextBatch");
            assert_eq!(same, id);
            seen.extend(batch.iter().filter_map(|d| d.get("_id").as_exact_i64()));
        }
    });
    let stored = run_on(&database, doc! { "find": "c", "batchSize": 10_000 });
    let (_, _, stored) = cursor(&stored, "firstBatch");
    let stored: Vec<i64> = stored
        .iter()
        .filter_map(|d| d.get("_id").as_exact_i64())
        .collect();
    assert_eq!(seen, stored);
}

/// Acknowledged documents survive a concurrent conversion of the collection.
#[test]
fn a_conversion_loses_no_acknowledged_document() {
    let database = Database::in_memory().unwrap();
    run_on(
        &database,
        doc! { "insert": "c", "documents": vec![Value::from(document(-1, 1))] },
    );
    let done = std::sync::atomic::AtomicBool::new(false);
    let acknowledged = std::thread::scope(|scope| {
        let end = SetAtDrop(&done);
        let writer = scope.spawn(|| {
            let (mut n, mut acknowledged, mut codes) = (0, Vec::new(), Vec::new());
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                let made = vec![Value::from(document(n, 1))];
                let reply = run_on(&database, doc! { "insert": "c", "documents": made });
                match reply.get("n").as_exact_i64() {
                    Some(1) => acknowledged.push(n),
                    _ => codes.push(show(&reply)),
                }
                n += 1;
            }
            assert!(codes.is_empty(), "{codes:?}");
            acknowledged
        });
        for _ in 0..30 {
            let convert = doc! { "convertToCapped": "c", "size": 100_000_000 };
            let reply = run_on(&database, convert);
            assert_eq!(reply.get("ok").as_exact_i64(), Some(1), "{}", show(&reply));
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(end);
        writer.join().unwrap()
    });
    let stored = run_on(&database, doc! { "find": "c", "batchSize": 1_000_000 });
    let (_, _, stored) = cursor(&stored, "firstBatch");
    let stored: Vec<i32> = stored
        .iter()
        .filter_map(|d| d.get("_id").as_exact_i64())
        .map(|id| id as i32)
        .filter(|id| *id >= 0)
        .collect();
    assert_eq!(stored, acknowledged);
}
