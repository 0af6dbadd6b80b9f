//! Sizes of keyspaces are those of their entries, in memory and in tables.

use std::sync::Arc;

use nilometer_cluster::{SlateEngine, SlateOptions};
use nilometer_storage::testing::contract::{TOGETHER, put};
use nilometer_storage::testing::random::Random;
use nilometer_storage::{Durability, Engine, Error, KeyspaceId, WriteBatch};
use object_store::ObjectStore;
use object_store::memory::InMemory;

use crate::support::Scratch;

#[test]
fn sizes_are_counted_for_each_keyspace() {
    let options = SlateOptions {
        memtable_bytes: 8 * 1024 * 1024,
        memory_bytes_max: 32 * 1024 * 1024,
        ..SlateOptions::tiny()
    };
    let engine = SlateEngine::open(Arc::new(InMemory::new()), "db", &options).expect("open");
    let [small, large, empty] = ["small", "large", "empty"]
        .map(|name| engine.create_keyspace(name, TOGETHER).expect("create"));
    let mut random = Random::new(3);
    for key in 0..500u32 {
        put(&engine, large, &key.to_be_bytes(), &random.bytes(1000));
    }
    for key in 0..3u32 {
        put(&engine, small, &key.to_be_bytes(), b"v");
    }
    let sizes = |id| engine.keyspace_statistics(id).expect("statistics");
    let keys = |id| engine.keys_estimate(id).expect("an estimate");
    assert_eq!((keys(small), keys(large), keys(empty)), (3, 500, 0));
    assert_eq!(sizes(small).memory_bytes, 3 * 5);
    assert_eq!(sizes(large).memory_bytes, 500 * 1004);
    assert_eq!(sizes(large).disk_bytes, 0);
    engine.settle().expect("settle");
    assert_eq!(sizes(small).keys_estimate, 3);
    assert_eq!(sizes(large).keys_estimate, 500);
    assert_eq!((sizes(large).memory_bytes, sizes(empty).disk_bytes), (0, 0));
    let bytes = sizes(large).disk_bytes;
    assert!((400_000..700_000).contains(&bytes), "{bytes}");
    assert!((1..500).contains(&sizes(small).disk_bytes));
    assert_eq!((keys(small), keys(large), keys(empty)), (3, 500, 0));
    let whole = engine.statistics();
    assert!(whole.disk_bytes >= bytes && whole.log_bytes == 0);
    assert_eq!(whole.commits, 503);
    assert!(whole.syncs > 0 && whole.snapshots == 0);
    let view = engine.snapshot().expect("snapshot");
    assert_eq!(engine.statistics().snapshots, 1);
    drop(view);
    let unknown = engine.keyspace_statistics(KeyspaceId(99));
    assert!(matches!(unknown, Err(Error::UnknownKeyspace { id: 99 })));
}

#[test]
fn an_opening_with_a_cache_on_a_disk_knows_the_sizes() {
    let folder = Scratch::new("sizes");
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let options = SlateOptions {
        cache_path: Some(folder.path().join("objects")),
        ..SlateOptions::tiny()
    };
    let open = || SlateEngine::open(Arc::clone(&store), "db", &options).expect("open");
    let engine = open();
    let id = engine.create_keyspace("k", TOGETHER).expect("create");
    for key in 0..100u32 {
        put(&engine, id, &key.to_be_bytes(), b"v");
    }
    engine.settle().expect("settle");
    drop(engine);
    assert_eq!(open().keys_estimate(id).expect("an estimate"), 100);
}

#[test]
fn deleted_entries_are_counted_until_they_are_merged_away() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let options = SlateOptions {
        memtable_bytes: 8 * 1024 * 1024,
        memory_bytes_max: 32 * 1024 * 1024,
        merges_itself: false,
        ..SlateOptions::tiny()
    };
    let open = || SlateEngine::open(Arc::clone(&store), "db", &options).expect("open");
    let engine = open();
    let id = engine.create_keyspace("k", TOGETHER).expect("create");
    let entries_max = |engine: &SlateEngine| {
        let view = engine.snapshot().expect("snapshot");
        view.entries_max(id)
    };
    for key in 0..100u32 {
        put(&engine, id, &key.to_be_bytes(), b"v");
    }
    let mut batch = WriteBatch::new();
    (0..90u32).for_each(|key| batch.delete(id, key.to_be_bytes().to_vec()));
    engine.commit(batch, Durability::Sync).expect("commit");
    assert_eq!(entries_max(&engine), Some(190));
    drop(engine);
    // What was in memory is there again, and in no count.
    let engine = open();
    let reopened = entries_max(&engine);
    assert!(reopened.is_none_or(|entries| entries >= 10), "{reopened:?}");
    put(&engine, id, b"another", b"v");
    engine.settle().expect("settle");
    // The mark of a deleted entry may replace it.
    engine.keyspace_statistics(id).expect("statistics");
    let settled = entries_max(&engine).expect("everything is in tables");
    assert!((11..=191).contains(&settled), "{settled}");
}
