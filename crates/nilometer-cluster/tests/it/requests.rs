//! The requests to the store, which somebody pays for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nilometer_cluster::{SlateEngine, SlateOptions};
use nilometer_storage::testing::contract::{TOGETHER, put};
use nilometer_storage::{Durability, Engine, WriteBatch};
use object_store::memory::InMemory;

#[test]
fn an_idle_engine_stores_nothing() {
    let options = SlateOptions::tiny();
    let engine = SlateEngine::open(Arc::new(InMemory::new()), "db", &options).expect("open");
    let id = engine.create_keyspace("k", TOGETHER).expect("create");
    put(&engine, id, b"a", b"1");
    engine.settle().expect("settle");
    let stored = || {
        let requests = engine.requests();
        (requests.puts, requests.log_puts)
    };
    // What a merge left to be written comes soon.
    let mut before = stored();
    let mut quiet = Instant::now();
    while quiet.elapsed() < Duration::from_millis(300) {
        // Time has to pass: nothing may happen in it.
        std::thread::sleep(Duration::from_millis(20));
        if stored() != before {
            (before, quiet) = (stored(), Instant::now());
        }
    }
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(stored(), before);
    assert_eq!(engine.disk_waits().in_flight, []);
}

/// Looking for a newer writer and for merges costs a few requests a second, which are the price of an idle database.
#[test]
fn an_idle_engine_asks_seldom() {
    let options = SlateOptions::default();
    let engine = SlateEngine::open(Arc::new(InMemory::new()), "db", &options).expect("open");
    let id = engine.create_keyspace("k", TOGETHER).expect("create");
    put(&engine, id, b"a", b"1");
    let asked = || {
        let requests = engine.requests();
        (requests.gets, requests.lists, requests.others)
    };
    let (gets, lists, others) = asked();
    // Time has to pass: a request may be due in it.
    std::thread::sleep(Duration::from_secs(6));
    let now = asked();
    let (gets, lists, others) = (now.0 - gets, now.1 - lists, now.2 - others);
    eprintln!("{gets} gets, {lists} lists, {others} others in 6 s");
    assert!(
        gets <= 30 && lists <= 2 && others == 0,
        "{gets}, {lists}, {others}"
    );
}

#[test]
fn one_object_of_the_log_is_stored_in_a_flush_interval() {
    let options = SlateOptions {
        flush_interval: Duration::from_millis(50),
        ..SlateOptions::default()
    };
    let engine = SlateEngine::open(Arc::new(InMemory::new()), "db", &options).expect("open");
    let id = engine.create_keyspace("k", TOGETHER).expect("create");
    let (start, before) = (Instant::now(), engine.requests().log_puts);
    std::thread::scope(|scope| {
        for writer in 0..8u64 {
            let engine = &engine;
            scope.spawn(move || {
                for number in 0..10u64 {
                    let mut batch = WriteBatch::new();
                    let key = [writer.to_be_bytes(), number.to_be_bytes()].concat();
                    batch.put(id, key, vec![1; 100]);
                    engine.commit(batch, Durability::Sync).expect("commit");
                }
            });
        }
    });
    let intervals = start.elapsed().as_millis() as u64 / 50 + 2;
    let stored = engine.requests().log_puts - before;
    assert!(
        stored <= intervals,
        "{stored} objects in {intervals} intervals"
    );
    assert!(stored <= 80, "{stored} objects for 80 commits");
}

/// A batch whose writer does not wait shares the object of the next one whose writer does, or is stored after a while.
#[test]
fn a_buffered_batch_begins_no_object_before_a_synced_one() {
    let options = SlateOptions {
        flush_interval: Duration::from_millis(200),
        ..SlateOptions::default()
    };
    let engine = SlateEngine::open(Arc::new(InMemory::new()), "db", &options).expect("open");
    let id = engine.create_keyspace("k", TOGETHER).expect("create");
    let commit = |key: &[u8], durability| {
        let mut batch = WriteBatch::new();
        batch.put(id, key.to_vec(), vec![1; 100]);
        engine.commit(batch, durability).expect("commit");
    };
    let before = engine.requests().log_puts;
    let start = Instant::now();
    commit(b"buffered", Durability::Buffered);
    commit(b"synced", Durability::Sync);
    // On a machine that stopped between the two, the first may have been stored.
    if start.elapsed() < Duration::from_secs(1) {
        assert_eq!(engine.requests().log_puts, before + 1);
    }
    let before = engine.requests().log_puts;
    commit(b"alone", Durability::Buffered);
    let end = Instant::now() + Duration::from_secs(30);
    while engine.requests().log_puts == before {
        assert!(Instant::now() < end, "it is not stored");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The first synced batch after a pause does not wait for the flush interval.
#[test]
fn a_synced_batch_after_a_pause_is_stored_at_once() {
    let options = SlateOptions {
        flush_interval: Duration::from_secs(3600),
        ..SlateOptions::default()
    };
    let engine = SlateEngine::open(Arc::new(InMemory::new()), "db", &options).expect("open");
    engine.create_keyspace("k", TOGETHER).expect("create");
}
