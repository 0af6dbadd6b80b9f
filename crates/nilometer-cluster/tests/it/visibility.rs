//! What readers see of batches that are not yet durable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nilometer_cluster::{SlateEngine, SlateOptions};
use nilometer_storage::testing::contract::{TOGETHER, put};
use nilometer_storage::{Durability, Engine, WriteBatch};
use object_store::memory::InMemory;

/// A synced batch waits for its flush. Until then no reader sees it, nor what was committed after it.
#[test]
fn a_synced_batch_is_visible_when_it_is_durable() {
    let options = SlateOptions {
        flush_interval: Duration::from_secs(3600),
        ..SlateOptions::tiny()
    };
    // Durable already: the records of an engine that flushes soon.
    let store = Arc::new(InMemory::new());
    let first = SlateEngine::open(store.clone(), "db", &SlateOptions::tiny()).expect("open");
    let id = first.create_keyspace("k", TOGETHER).expect("create");
    first.close().expect("close");
    drop(first);
    let engine = SlateEngine::open(store, "db", &options).expect("open");
    // The next synced batch waits for the flush interval.
    put(&engine, id, b"first", b"1");
    let get = |key: &[u8]| {
        let view = engine.snapshot().expect("snapshot");
        view.get(id, key).expect("get")
    };
    let buffered = |key: &[u8]| {
        let mut batch = WriteBatch::new();
        batch.put(id, key.to_vec(), b"1".to_vec());
        engine.commit(batch, Durability::Buffered).expect("commit")
    };
    let position = buffered(b"before");
    assert!(get(b"before").is_some(), "its writer reads it");
    let acknowledged = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(put(&engine, id, b"synced", b"1"), position + 1);
            acknowledged.store(true, Ordering::Release);
        });
        // The batch is in the memtable when its size is counted.
        while engine.keys_estimate(id).expect("an estimate") < 3 {
            std::thread::yield_now();
        }
        scope.spawn(|| buffered(b"after"));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!acknowledged.load(Ordering::Acquire));
        assert!(get(b"synced").is_none() && get(b"after").is_none());
        let view = engine.snapshot().expect("snapshot");
        assert_eq!(view.version(id), None, "a batch is in flight");
        engine.sync().expect("sync");
    });
    assert!(get(b"synced").is_some() && get(b"after").is_some());
    let view = engine.snapshot().expect("snapshot");
    assert!(view.version(id).is_some());
}

/// The versions of two snapshots are equal only if they show the same entries.
#[test]
fn a_version_changes_with_its_keyspace_alone() {
    let engine = SlateEngine::open(Arc::new(InMemory::new()), "db", &SlateOptions::tiny());
    let engine = engine.expect("open");
    let [one, other] = ["one", "other"].map(|name| engine.create_keyspace(name, TOGETHER));
    let (one, other) = (one.expect("create"), other.expect("create"));
    let version = |id| engine.snapshot().expect("snapshot").version(id);
    let first = version(one).expect("a version");
    put(&engine, other, b"a", b"1");
    assert_eq!(version(one), Some(first));
    put(&engine, one, b"a", b"1");
    assert!(version(one).expect("a version") > first);
    let before = version(one);
    engine.settle().expect("settle");
    assert_eq!(version(one), before);
    engine.drop_keyspace(one).expect("drop");
    assert_eq!(version(one), None);
}
