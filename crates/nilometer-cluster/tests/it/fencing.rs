//! A second writer fences the first, whose commits then fail and are never visible.

use std::sync::Arc;

use nilometer_cluster::{SlateEngine, SlateOptions};
use nilometer_storage::testing::contract::{TOGETHER, put};
use nilometer_storage::{Durability, Engine, Error, WriteBatch};
use object_store::ObjectStore;
use object_store::memory::InMemory;

#[test]
fn a_second_writer_fences_the_first() {
    let store = Arc::new(InMemory::new());
    let open = || SlateEngine::open(store.clone(), "db", &SlateOptions::tiny()).expect("open");
    let first = open();
    let id = first.create_keyspace("k", TOGETHER).expect("create");
    put(&first, id, b"a", b"first");
    let second = open();
    let get = |key: &[u8]| {
        let view = second.snapshot().expect("snapshot");
        view.get(id, key).expect("get")
    };
    assert_eq!(get(b"a"), Some(b"first".to_vec().into()));
    let refused = || {
        let mut batch = WriteBatch::new();
        batch.put(id, b"a".to_vec(), b"late".to_vec());
        first.commit(batch, Durability::Sync).err()
    };
    for _ in 0..3 {
        let refused = refused();
        assert!(matches!(refused, Some(Error::Fenced { .. })), "{refused:?}");
    }
    let refused = first.check_writable();
    assert!(matches!(refused, Err(Error::Fenced { .. })), "{refused:?}");
    assert!(
        first.snapshot().is_err(),
        "it may show what is no longer true"
    );
    let made = first.create_keyspace("late", TOGETHER);
    assert!(matches!(made, Err(Error::Fenced { .. })), "{made:?}");
    put(&second, id, b"b", b"second");
    drop(first);
    assert_eq!(get(b"a"), Some(b"first".to_vec().into()));
    assert_eq!(second.keyspaces().len(), 1);
    drop(second);
    let third = open();
    let view = third.snapshot().expect("snapshot");
    assert_eq!(
        view.get(id, b"b").expect("get"),
        Some(b"second".to_vec().into())
    );
}

/// A batch that the first writer has in memory, buffered, is lost and not half there.
#[test]
fn what_a_fenced_writer_did_not_flush_is_not_there() {
    let store = Arc::new(InMemory::new());
    let slow = SlateOptions {
        flush_interval: std::time::Duration::from_secs(3600),
        ..SlateOptions::tiny()
    };
    let first = SlateEngine::open(store.clone(), "db", &SlateOptions::tiny()).expect("open");
    let id = first.create_keyspace("k", TOGETHER).expect("create");
    first.close().expect("close");
    drop(first);
    let first = SlateEngine::open(store.clone(), "db", &slow).expect("open");
    let mut batch = WriteBatch::new();
    batch.put(id, b"a".to_vec(), b"1".to_vec());
    first.commit(batch, Durability::Buffered).expect("commit");
    let second = SlateEngine::open(store, "db", &SlateOptions::tiny()).expect("open");
    let synced = first.sync();
    assert!(matches!(synced, Err(Error::Fenced { .. })), "{synced:?}");
    let view = second.snapshot().expect("snapshot");
    assert_eq!(view.get(id, b"a").expect("get"), None);
}

#[test]
fn foreign_databases_are_refused() {
    let store: Arc<dyn object_store::ObjectStore> = Arc::new(InMemory::new());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let db = slatedb::Db::open("db", store.clone()).await.expect("open");
        db.put(b"a", b"1").await.expect("put");
        db.close().await.expect("close");
    });
    let refused = SlateEngine::open(store, "db", &SlateOptions::tiny()).err();
    assert!(
        matches!(refused, Some(Error::ForeignDirectory { .. })),
        "{refused:?}"
    );
}

/// An engine whose lease has passed does not trust what it has in memory.
#[test]
fn an_engine_without_a_lease_asks_whether_there_is_a_newer_writer() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let open = |lease| {
        let options = SlateOptions {
            lease,
            ..SlateOptions::tiny()
        };
        SlateEngine::open(store.clone(), "db", &options).expect("open")
    };
    let first = open(Some(nilometer_cluster::Lease::default()));
    first.confirm().expect("it is the last writer");
    let second = open(None);
    let refused = first.confirm();
    assert!(matches!(refused, Err(Error::Fenced { .. })), "{refused:?}");
    second.confirm().expect("it is the last writer");
}
