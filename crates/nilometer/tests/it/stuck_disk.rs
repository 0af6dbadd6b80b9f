//! A disk that does not answer: its effect on writers, readers and monitoring.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nilometer::services::Environment;
use nilometer::{ClientSession, Database, Request};
use nilometer_bson::{Document, Value, array, doc};
use nilometer_storage::testing::fault::FaultyFileSystem;
use nilometer_storage::{LsmEngine, LsmOptions};

use crate::support::{TemporaryDirectory, show};

/// How long the test waits for an event.
const PATIENCE: Duration = Duration::from_secs(30);

/// Time in ms after which the disk counts as stuck.
const LIMIT_MS: i64 = 50;

fn run(database: &Database, command: Document) -> Document {
    let reply = database.run_command(&mut ClientSession::embedded(), &Request::new(command));
    assert_eq!(reply.get("ok").as_exact_i64(), Some(1), "{}", show(&reply));
    reply
}

/// Inserts one more measurement and one more document.
fn insert(database: &Database, at: i64) {
    let measurement = doc! {"t": Value::DateTime(at * 1000), "m": 1, "_id": at};
    run(
        database,
        doc! {"insert": "ts", "documents": array![measurement], "$db": "test"},
    );
    run(
        database,
        doc! {"insert": "plain", "documents": array![doc! {"_id": at}], "$db": "test"},
    );
}

/// Returns a field of `serverStatus.storageEngine.disk`.
fn figure(database: &Database, name: &str) -> i64 {
    let status = run(database, doc! {"serverStatus": 1, "$db": "admin"});
    let engine = status
        .get("storageEngine")
        .as_document()
        .expect("a section");
    let disk = engine.get("disk").as_document().expect("a part");
    disk.get(name).as_exact_i64().expect("a figure")
}

fn count(database: &Database, collection: &str) -> i64 {
    let reply = run(
        database,
        doc! {"aggregate": collection, "pipeline": array![doc! {"$count": "n"}], "cursor": doc! {}, "$db": "test"},
    );
    let cursor = reply.get("cursor").as_document().expect("a cursor");
    let batch = cursor.get("firstBatch").as_array().expect("a batch");
    let first = batch.get(0).as_document().expect("a count").to_document();
    first.get("n").as_exact_i64().expect("a number")
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn writes_wait_reads_proceed_and_the_state_is_reported() {
    let directory = TemporaryDirectory::new();
    let file_system = FaultyFileSystem::new();
    let options = LsmOptions {
        file_system: Arc::new(file_system.clone()),
        ..LsmOptions::default()
    };
    let engine = LsmEngine::open(&directory.0, options).expect("an engine");
    let environment = Environment::default();
    let limit = LIMIT_MS.to_string();
    let set = environment
        .parameters
        .set_at_startup("nilometerStuckDiskMillis", &limit);
    set.expect("a parameter");
    let database = Database::with_engine(Arc::new(engine), environment).expect("a database");
    let series = doc! {"timeField": "t", "metaField": "m"};
    run(
        &database,
        doc! {"create": "ts", "timeseries": series, "$db": "test"},
    );
    for at in 0..10 {
        insert(&database, at);
    }
    assert_eq!(figure(&database, "stuck"), 0);
    assert!(database.check_writable().is_ok());
    file_system.set_stuck(true);
    let written = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            insert(&database, 10);
            written.store(true, Ordering::Release);
        });
        wait_until("it is noticed", || figure(&database, "stuck") > 0);
        assert!(figure(&database, "stuckMillis") >= LIMIT_MS);
        wait_until("it is counted", || figure(&database, "stuckTotal") > 0);
        let message = database.check_writable().expect_err("a stuck disk").message;
        assert!(message.contains("does not answer"), "{message}");
        // Acknowledged data is read from the waiting series, and from everything else.
        for collection in ["ts", "plain"] {
            assert_eq!(count(&database, collection), 10, "{collection}");
        }
        run(
            &database,
            doc! {"find": "ts", "filter": doc! {"m": 1}, "sort": doc! {"t": -1}, "limit": 1, "$db": "test"},
        );
        run(&database, doc! {"listCollections": 1, "$db": "test"});
        run(&database, doc! {"collStats": "ts", "$db": "test"});
        run(&database, doc! {"currentOp": 1, "$db": "admin"});
        assert!(!written.load(Ordering::Acquire));
        file_system.set_stuck(false);
    });
    assert!(written.load(Ordering::Acquire));
    for collection in ["ts", "plain"] {
        assert_eq!(count(&database, collection), 11, "{collection}");
    }
    wait_until("it is over", || figure(&database, "stuck") == 0);
    assert!(database.check_writable().is_ok());
    assert!(figure(&database, "longestMillis") >= LIMIT_MS);
}
