//! Indexes of ordinary collections: maintained, built beside writers, resumed, refused.
//!
//! `validate` checks the entries by computing them again from the documents.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nilometer_bson::{Array, Document, DocumentBuilder, Value, ValueRef, array, doc};
use nilometer_storage::{Engine, MemoryEngine};

use super::Database;
use crate::catalog::{Collection, IndexSpec, Namespace, StoredIndex};
use crate::error::Result;
use crate::index::{Index, KeyRange};
use crate::operation::{OperationContext, Request};
use crate::query::source::{Collections, Direction, RecordSource, Resolved};
use crate::services::Environment;
use crate::session::ClientSession;

/// Documents of the build that a crash interrupts.
const CRASH_DOCUMENTS: i32 = 20_000;

fn command(database: &Database, command: Document) -> Document {
    let mut body = DocumentBuilder::new();
    for element in command.iter() {
        body.append_element(element);
    }
    body.append("$db", "db");
    database.run_command(&mut ClientSession::embedded(), &Request::new(body.finish()))
}

fn run(database: &Database, wanted: Document) -> Document {
    let reply = command(database, wanted.clone());
    let ok = reply.get("ok").as_exact_i64() == Some(1) && !reply.get("writeErrors").is_array();
    assert!(ok, "{wanted:?}: {reply:?}");
    reply
}

trait IsArray {
    fn is_array(&self) -> bool;
}

impl IsArray for ValueRef<'_> {
    fn is_array(&self) -> bool {
        matches!(self, ValueRef::Array(_))
    }
}

/// Returns the code of the first write error of a command; 0 if there is none.
fn write_error(database: &Database, wanted: Document) -> (i64, Document) {
    let reply = command(database, wanted);
    let Some(errors) = reply.get("writeErrors").as_array() else {
        return (0, reply);
    };
    let error = errors.get(0).as_document().unwrap();
    let code = error.get("code").as_exact_i64().unwrap();
    (code, error.to_document())
}

fn insert(database: &Database, documents: impl IntoIterator<Item = Document>) {
    let documents: Array = documents.into_iter().map(Value::from).collect();
    run(database, doc! { "insert": "c", "documents": documents });
}

fn collection(database: &Database) -> Arc<Collection> {
    let name = Namespace::new("db", "c").unwrap();
    database.catalog().collection(&name).unwrap()
}

fn spec(key: Document) -> IndexSpec {
    let name: Vec<String> = key.iter().map(|e| e.name().to_owned()).collect();
    IndexSpec {
        name: name.join("_"),
        key,
        ..IndexSpec::default()
    }
}

fn unique(key: Document) -> IndexSpec {
    IndexSpec {
        unique: true,
        ..spec(key)
    }
}

fn create(database: &Database, specs: Vec<IndexSpec>) -> Result<Vec<Arc<StoredIndex>>> {
    let clock = database.services().clock.clone();
    let operation = OperationContext::internal(clock, "db");
    database.create_indexes(&collection(database), &operation, |_| Ok(specs))
}

fn with_indexes(specs: Vec<IndexSpec>) -> Database {
    let database = Database::in_memory().unwrap();
    run(&database, doc! { "create": "c" });
    create(&database, specs).unwrap();
    database
}

/// Fails unless the entries are those of the documents; returns the number of entries of each index.
fn validate(database: &Database) -> Vec<i64> {
    let reply = run(database, doc! { "validate": "c" });
    assert!(
        matches!(reply.get("valid"), ValueRef::Bool(true)),
        "{reply:?}"
    );
    let keys = reply.get("keysPerIndex").as_document().unwrap();
    let counts = keys.iter().map(|e| e.value().as_exact_i64().unwrap());
    counts.skip(1).collect()
}

/// Returns a small document of values that often coincide.
fn random_document(seed: u64) -> Document {
    let at = |salt: u64| (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> salt) as i32;
    let value = |salt: u64| match at(salt) & 7 {
        0 => Value::Null,
        1 => array![],
        2 => array![at(salt + 3) & 3, at(salt + 5) & 3],
        3 => Value::from(doc! { "c": at(salt + 3) & 3 }),
        4 => array![doc! { "c": at(salt + 3) & 3 }, doc! { "c": array![1, 2] }],
        5 => Value::from(f64::from(at(salt + 3) & 7)),
        6 => Value::from("text"),
        _ => Value::from(at(salt + 3) & 7),
    };
    let place = array![at(9) & 63, at(17) & 63];
    match at(7) & 1 {
        0 => doc! { "a": value(20), "b": at(13) & 3, "h": at(11) & 15, "p": place },
        _ => doc! { "a": value(20), "h": at(11) & 15 },
    }
}

fn kinds() -> Vec<IndexSpec> {
    vec![
        spec(doc! { "a": 1 }),
        spec(doc! { "b": -1, "a.c": 1 }),
        spec(doc! { "h": "hashed" }),
        spec(doc! { "$**": 1 }),
        spec(doc! { "p": "2dsphere", "a": 1 }),
        spec(doc! { "p": "2d", "h": -1 }),
        IndexSpec {
            sparse: true,
            ..spec(doc! { "a.c": 1, "x": 1 })
        },
        IndexSpec {
            partial_filter: Some(doc! { "h": doc! { "$gt": 7 } }),
            ..spec(doc! { "h": 1, "b": 1 })
        },
    ]
}

#[test]
fn entries_follow_documents_through_every_kind_of_change() {
    let database = with_indexes(kinds());
    insert(&database, (0..300).map(random_document));
    assert!(validate(&database).iter().all(|count| *count > 0));
    let update = |filter: Document, change: Value, multi: bool| {
        let one = doc! { "q": filter, "u": change, "multi": multi, "upsert": false };
        run(&database, doc! { "update": "c", "updates": array![one] });
    };
    update(
        doc! { "h": 3 },
        doc! { "$set": doc! { "a": array![7, 8] } }.into(),
        true,
    );
    update(doc! {}, doc! { "$inc": doc! { "h": 1 } }.into(), true);
    update(doc! { "b": 1 }, doc! { "x": 1 }.into(), false);
    update(
        doc! { "b": 2 },
        array![doc! { "$set": doc! { "x": "$h" } }],
        true,
    );
    run(
        &database,
        doc! { "delete": "c", "deletes": array![doc! { "q": doc! { "h": 5 }, "limit": 0 }] },
    );
    run(
        &database,
        doc! { "findAndModify": "c", "query": doc! { "h": 100 }, "upsert": true,
        "update": doc! { "$set": doc! { "a.c": array![1, 2] } } },
    );
    run(
        &database,
        doc! { "findAndModify": "c", "query": doc! { "h": 9 }, "remove": true },
    );
    validate(&database);
    run(
        &database,
        doc! { "delete": "c", "deletes": array![doc! { "q": doc! {}, "limit": 0 }] },
    );
    assert!(validate(&database).iter().all(|count| *count == 0));
}

#[test]
fn built_indexes_equal_maintained_ones() {
    let database = with_indexes(Vec::new());
    let documents = nilometer_storage::testing::effort(800, 2500, 2500);
    insert(&database, (0..documents).map(random_document));
    let built = create(&database, kinds()).unwrap();
    assert!(built.iter().all(|index| index.is_usable()));
    let of_build = validate(&database);
    let maintained = with_indexes(kinds());
    insert(&maintained, (0..documents).map(random_document));
    assert_eq!(validate(&maintained), of_build);
    let bits = |database: &Database| -> Vec<u32> {
        let all = collection(database).indexes.all();
        all.iter().map(|index| index.multikey()).collect()
    };
    assert_eq!(bits(&maintained), bits(&database));
}

#[test]
fn duplicates_of_unique_keys_are_refused() {
    let sparse = IndexSpec {
        sparse: true,
        ..unique(doc! { "s": 1 })
    };
    let partial = IndexSpec {
        partial_filter: Some(doc! { "p": doc! { "$gt": 5 } }),
        ..unique(doc! { "p": 1 })
    };
    let database = with_indexes(vec![unique(doc! { "a": 1, "b": 1 }), sparse, partial]);
    insert(
        &database,
        [
            doc! { "_id": 1, "a": 1, "b": 1, "p": 1 },
            doc! { "_id": 2, "a": 1, "b": array![2, 3], "p": 1 },
            doc! { "_id": 3, "a": 2, "p": 6, "s": 1 },
        ],
    );
    let try_insert = |document: Document| {
        let documents = array![document];
        write_error(&database, doc! { "insert": "c", "documents": documents })
    };
    let (code, error) = try_insert(doc! { "a": 1, "b": array![9, 3.0] });
    assert_eq!(code, 11000);
    assert_eq!(
        error.get("keyPattern").as_document().unwrap().to_document(),
        doc! { "a": 1, "b": 1 }
    );
    let text = error.get("errmsg").as_str().unwrap();
    let expected =
        "E11000 duplicate key error collection: db.c index: a_b dup key: { a: 1, b: 3.0 }";
    assert_eq!(text, expected);
    assert_eq!(try_insert(doc! { "a": 2 }).0, 11000);
    assert_eq!(try_insert(doc! { "a": 3, "s": 1 }).0, 11000);
    assert_eq!(try_insert(doc! { "a": 4, "p": 6 }).0, 11000);
    assert_eq!(try_insert(doc! { "a": 5, "p": 1 }).0, 0);
    // Within one batch.
    let twice = array![doc! { "a": 6 }, doc! { "a": 6 }, doc! { "a": 7 }];
    let unordered = doc! { "insert": "c", "documents": twice, "ordered": false };
    let (code, reply) = write_error(&database, unordered);
    assert_eq!((code, reply.get("index").as_exact_i64()), (11000, Some(1)));
    // Updates; a key freed by an earlier statement may be reused by a later one only.
    let update = |filter: Document, change: Document, multi: bool| {
        let one = doc! { "q": filter, "u": change, "multi": multi };
        write_error(&database, doc! { "update": "c", "updates": array![one] }).0
    };
    assert_eq!(
        update(doc! { "_id": 3 }, doc! { "$set": doc! { "a": 6 } }, false),
        11000
    );
    assert_eq!(
        update(doc! { "_id": 1 }, doc! { "$set": doc! { "b": 1.0 } }, false),
        0
    );
    assert_eq!(
        update(doc! { "_id": 1 }, doc! { "$set": doc! { "b": 5 } }, false),
        0
    );
    assert_eq!(
        update(doc! { "_id": 2 }, doc! { "$set": doc! { "b": 1 } }, false),
        0
    );
    let up = doc! { "$inc": doc! { "a": -1 } };
    assert_eq!(update(doc! { "a": doc! { "$gte": 6 } }, up, true), 11000);
    let up = doc! { "$inc": doc! { "a": 100 } };
    assert_eq!(update(doc! { "a": doc! { "$gte": 6 } }, up, true), 0);
    validate(&database);
}

#[test]
fn an_unindexable_document_is_refused() {
    let database = with_indexes(vec![
        spec(doc! { "a": 1, "b": 1 }),
        spec(doc! { "h": "hashed" }),
    ]);
    let code = |document: Document| {
        let documents = array![document];
        write_error(&database, doc! { "insert": "c", "documents": documents }).0
    };
    assert_eq!(code(doc! { "a": array![1], "b": array![1] }), 171);
    assert_eq!(code(doc! { "h": array![1] }), 16766);
    // A hundred keys of two megabytes.
    let many: nilometer_bson::Array = (0..100).map(Value::Int32).collect();
    assert_eq!(code(doc! { "a": many, "b": "x".repeat(2 << 20) }), 17280);
    assert_eq!(validate(&database), [0, 0]);
}

#[test]
fn a_failed_build_leaves_no_index() {
    let database = with_indexes(Vec::new());
    let documents =
        (0..3000).map(|i| doc! { "_id": i, "a": i % 2999, "b": array![i], "c": array![1] });
    insert(&database, documents);
    let keyspaces = database.engine().keyspaces().len();
    let code = |specs: Vec<IndexSpec>| create(&database, specs).unwrap_err().code.0;
    assert_eq!(
        code(vec![spec(doc! { "b": 1 }), unique(doc! { "a": 1 })]),
        11000
    );
    assert_eq!(code(vec![spec(doc! { "b": 1, "c": 1 })]), 171);
    let clock = database.services().clock.clone();
    let mut operation = OperationContext::internal(clock, "db");
    operation.set_time_limit(Some(Duration::ZERO));
    let ended = database.create_indexes(&collection(&database), &operation, |_| {
        Ok(vec![spec(doc! { "a": 1 })])
    });
    assert_eq!(ended.unwrap_err().code.0, 50);
    assert!(collection(&database).indexes.all().is_empty());
    assert_eq!(database.engine().keyspaces().len(), keyspaces);
    create(&database, vec![spec(doc! { "a": 1 })]).unwrap();
    assert_eq!(validate(&database), [3000]);
}

#[test]
fn a_write_that_violates_an_index_in_build_fails_the_build() {
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
    let open = || Database::with_engine(engine.clone(), Environment::default()).unwrap();
    let database = open();
    run(&database, doc! { "create": "c" });
    let add = |database: &Database| {
        let specs = |_: &[Arc<StoredIndex>]| Ok(vec![unique(doc! { "a": 1, "b": 1 })]);
        let added = database
            .catalog()
            .add_indexes(&collection(database), 0, specs);
        added.unwrap().remove(0)
    };
    let index = add(&database);
    insert(&database, [doc! { "a": 1 }, doc! { "a": 1 }]);
    assert_eq!(index.build_failure().unwrap().code.0, 11000);
    drop(database);
    // The reason survives the process, and the index is removed.
    let wait = |database: &Database| {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !database
            .catalog()
            .unfinished_indexes(&collection(database))
            .is_empty()
        {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    let database = open();
    wait(&database);
    assert!(collection(&database).indexes.all().is_empty());
    let one = doc! { "q": doc! {}, "limit": 1 };
    run(&database, doc! { "delete": "c", "deletes": array![one] });
    // Without a reason the index is built.
    add(&database);
    drop(database);
    let database = open();
    wait(&database);
    assert_eq!(validate(&database), [1]);
}

#[test]
fn dropping_an_index_aborts_its_build() {
    let database = with_indexes(Vec::new());
    insert(&database, (0..5000).map(|i| doc! { "_id": i, "a": i }));
    let keyspaces = database.engine().keyspaces().len();
    let clock = database.services().clock.clone();
    let operation = OperationContext::internal(clock, "db");
    let collection = collection(&database);
    let outcome = std::thread::scope(|scope| {
        let building = scope.spawn(|| {
            database.create_indexes(&collection, &operation, |_| Ok(vec![spec(doc! { "a": 1 })]))
        });
        while operation
            .progress()
            .now()
            .is_none_or(|(_, done, _)| done == 0)
        {
            std::thread::yield_now();
        }
        let dropped = database.catalog().drop_indexes(&collection, |there| {
            Ok(there.iter().map(|index| index.keyspace).collect())
        });
        dropped.unwrap();
        building.join().unwrap()
    });
    // The build may already be complete.
    assert!(outcome.is_ok() || outcome.is_err_and(|e| e.code.0 == 276));
    assert!(collection.indexes.all().is_empty());
    assert_eq!(database.engine().keyspaces().len(), keyspaces);
    assert_eq!(validate(&database), [0; 0]);
}

#[test]
fn writers_proceed_while_indexes_are_built() {
    let database = with_indexes(Vec::new());
    for chunk in 0..nilometer_storage::testing::effort(1, 4, 4) {
        insert(
            &database,
            (chunk * 1000..(chunk + 1) * 1000).map(random_document),
        );
    }
    let built = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..3u64 {
            let (database, built) = (&database, &built);
            scope.spawn(move || {
                let mut at = writer;
                while !built.load(Ordering::Acquire) {
                    at += 3;
                    insert(
                        database,
                        (0..5).map(|i| random_document(1_000_000 + at * 5 + i)),
                    );
                    let by = doc! { "q": doc! { "h": (at % 16) as i32 }, "limit": 1 };
                    run(database, doc! { "delete": "c", "deletes": array![by] });
                    let set = doc! { "$set": random_document(at) };
                    let one = doc! { "q": doc! { "b": (at % 4) as i32 }, "u": set };
                    run(database, doc! { "update": "c", "updates": array![one] });
                }
            });
        }
        let [first, second] = [&kinds()[..3], &kinds()[3..]].map(|some| {
            let (database, some) = (&database, some.to_vec());
            scope.spawn(move || create(database, some).unwrap())
        });
        first.join().unwrap();
        second.join().unwrap();
        built.store(true, Ordering::Release);
    });
    assert_eq!(validate(&database).len(), kinds().len());
}

#[test]
fn documents_of_out_and_merge_are_indexed() {
    let database = with_indexes(kinds());
    insert(&database, (0..50).map(random_document));
    let from = doc! { "insert": "from", "documents": (100..400)
    .map(random_document).map(Value::from).collect::<Array>() };
    run(&database, from);
    let write = |stage: Document| {
        let pipeline = array![stage];
        run(
            &database,
            doc! { "aggregate": "from", "pipeline": pipeline, "cursor": doc! {} },
        );
    };
    write(doc! { "$out": "c" });
    let counts = validate(&database);
    assert!(
        counts.len() == kinds().len() && counts[2] == 300,
        "{counts:?}"
    );
    run(
        &database,
        doc! { "update": "from", "updates": array![doc! { "q": doc! {}, "multi": true,
        "u": doc! { "$set": doc! { "a": array![5, 6, 7] } } }] },
    );
    write(doc! { "$merge": "c" });
    assert!(validate(&database)[0] == 900);
}

#[test]
fn an_index_compares_by_its_collation() {
    let collation = doc! { "locale": "en", "strength": 2 };
    let database = with_indexes(vec![IndexSpec {
        collation: Some(collation),
        ..unique(doc! { "a": 1 })
    }]);
    insert(&database, ["b", "a", "C"].map(|a| doc! { "a": a }));
    insert(
        &database,
        [
            doc! { "a": 1 },
            doc! { "a": array!["x", doc! { "y": "z" }] },
        ],
    );
    let documents = array![doc! { "a": "c" }];
    let (code, error) = write_error(&database, doc! { "insert": "c", "documents": documents });
    assert_eq!(code, 11000);
    assert_eq!(
        error
            .get("keyValue")
            .as_document()
            .unwrap()
            .get("a")
            .as_str(),
        Some("c")
    );
    let all = scan(
        &database,
        "a",
        vec![(vec![], vec![0xFF])],
        Direction::Forward,
    );
    let texts: Vec<_> = all.iter().filter_map(|d| d.get("a").as_str()).collect();
    assert_eq!(texts, ["a", "b", "C"]);
    assert_eq!(validate(&database), [6]);
}

/// Returns the entries in ranges of the index called `name`, with documents.
fn scan(
    database: &Database,
    name: &str,
    ranges: Vec<KeyRange>,
    direction: Direction,
) -> Vec<Document> {
    let source = source(database);
    let index = source.indexes().unwrap();
    let index = index
        .into_iter()
        .find(|i| i.stored.spec.name == name)
        .unwrap();
    let view = source.view().unwrap().unwrap();
    let entries = |start: &[u8], end: &[u8]| -> Vec<_> {
        let entries = view.entries(&index, start, Some(end), direction).unwrap();
        entries.map(|e| e.unwrap()).collect()
    };
    let mut all = Vec::new();
    let mut ordered: Vec<_> = ranges.iter().collect();
    if direction == Direction::Backward {
        ordered.reverse();
    }
    for (start, end) in ordered {
        let found = entries(start, end);
        // Resuming after any entry returns the entries that followed it.
        for at in (0..found.len()).step_by(17) {
            let position = found[at].position();
            let rest = match direction {
                Direction::Forward => entries(&[&position[..], &[0]].concat(), end),
                Direction::Backward => entries(start, &position),
            };
            let rest = rest.iter().map(|e| e.position());
            assert!(rest.eq(found[at + 1..].iter().map(|e| e.position())));
        }
        all.extend(found);
    }
    let documents = all.iter().map(|entry| view.record(&entry.record).unwrap());
    documents.map(|document| document.unwrap()).collect()
}

fn source(database: &Database) -> Arc<dyn RecordSource> {
    match database.collections().resolve("db", "c").unwrap() {
        Resolved::Ordinary(source) => source,
        _ => panic!("an ordinary collection"),
    }
}

#[test]
fn ranges_are_read_in_order_both_ways() {
    let database = with_indexes(vec![spec(doc! { "a": 1 })]);
    insert(
        &database,
        (0..500).map(|i| doc! { "_id": i, "a": (i * 7) % 100 }),
    );
    let index = Index::of(&collection(&database).indexes.all()[0]).unwrap();
    let key = |a: i32| {
        index
            .keys(doc! { "a": a }.as_ref())
            .unwrap()
            .keys
            .remove(0)
            .key
    };
    let ranges = vec![
        (key(10), key(20)),
        (key(30), key(30)),
        (key(95), vec![0xFF]),
    ];
    let wanted: Vec<i64> = (10..20).chain(95..100).flat_map(|a| [a; 5]).collect();
    let values = |documents: Vec<Document>| -> Vec<i64> {
        let values = documents.iter().map(|d| d.get("a").as_exact_i64().unwrap());
        values.collect()
    };
    let forward = values(scan(&database, "a", ranges.clone(), Direction::Forward));
    assert_eq!(forward, wanted);
    let mut backward = values(scan(&database, "a", ranges, Direction::Backward));
    backward.reverse();
    assert_eq!(backward, wanted);
}

#[test]
fn a_build_interrupted_by_a_crash_is_resumed() {
    let directory = tempfile::tempdir().unwrap();
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "database::index_tests::crash_while_building",
            "--nocapture",
        ])
        .env("NILOMETER_CRASH_IN", directory.path())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(!status.success());
    let database = Database::open(directory.path()).unwrap();
    let collection = collection(&database);
    assert_eq!(collection.indexes.all().len(), 2);
    assert!(collection.indexes.all()[0].resume_after().is_some());
    let deadline = Instant::now() + Duration::from_secs(60);
    while collection.indexes.all().iter().any(|i| !i.is_ready()) {
        assert!(Instant::now() < deadline, "the build was not resumed");
        std::thread::sleep(Duration::from_millis(5));
    }
    let count = i64::from(CRASH_DOCUMENTS);
    assert_eq!(validate(&database), [count, 2 * count]);
    let again = doc! { "_id": -1, "a": 5 };
    let twice = doc! { "insert": "c", "documents": array![again] };
    assert_eq!(write_error(&database, twice).0, 11000);
}

/// The process that crashes; does nothing unless started by the test above.
#[test]
fn crash_while_building() {
    let Some(directory) = std::env::var_os("NILOMETER_CRASH_IN") else {
        return;
    };
    let database = Database::open(Path::new(&directory)).unwrap();
    run(&database, doc! { "create": "c" });
    for chunk in 0..CRASH_DOCUMENTS / 1000 {
        let ids = chunk * 1000..(chunk + 1) * 1000;
        insert(
            &database,
            ids.map(|i| doc! { "_id": i, "a": i, "b": array![i, -i - 1] }),
        );
    }
    let clock = database.services().clock.clone();
    let operation = OperationContext::internal(clock, "db");
    let progress = operation.progress().clone();
    std::thread::spawn(move || {
        loop {
            if progress
                .now()
                .is_some_and(|(_, done, total)| done * 3 > total)
            {
                std::process::abort();
            }
        }
    });
    let specs = vec![unique(doc! { "a": 1 }), spec(doc! { "b": 1 })];
    drop(database.create_indexes(&collection(&database), &operation, |_| Ok(specs)));
}
