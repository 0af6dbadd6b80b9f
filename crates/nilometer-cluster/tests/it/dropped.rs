//! The entries of dropped keyspaces are removed by merges, but not while a reader shows them.

use std::sync::Arc;

use nilometer_cluster::{SlateEngine, SlateOptions};
use nilometer_storage::testing::contract::{TOGETHER, entries};
use nilometer_storage::{Direction, Durability, Engine, KeyspaceId, WriteBatch};
use object_store::memory::InMemory;

const ENTRIES: u32 = 2000;

fn fill(engine: &SlateEngine, id: KeyspaceId) {
    let mut batch = WriteBatch::new();
    for key in 0..ENTRIES {
        batch.put(id, key.to_be_bytes().to_vec(), vec![key as u8; 500]);
    }
    engine.commit(batch, Durability::Sync).expect("commit");
}

/// Returns the bytes of the tables after a complete merge.
fn merged_bytes(engine: &SlateEngine, any: KeyspaceId) -> u64 {
    engine.settle().expect("settle");
    // Counts the new tables.
    engine.keyspace_statistics(any).expect("statistics");
    engine.statistics().disk_bytes
}

#[test]
fn merges_remove_dropped_keyspaces() {
    let store = Arc::new(InMemory::new());
    let open = || SlateEngine::open(store.clone(), "db", &SlateOptions::tiny()).expect("open");
    let engine = open();
    let [kept, gone, later] = ["kept", "gone", "later"]
        .map(|name| engine.create_keyspace(name, TOGETHER).expect("create"));
    for id in [kept, gone, later] {
        fill(&engine, id);
    }
    let all = merged_bytes(&engine, kept);
    let view = engine.snapshot().expect("snapshot");
    engine.drop_keyspace(gone).expect("drop");
    assert!(
        merged_bytes(&engine, kept) >= all * 9 / 10,
        "a reader shows it"
    );
    let found = entries(&*view, gone, &[], None, Direction::Backward);
    assert_eq!(found.len(), ENTRIES as usize);
    let scan = view
        .scan(gone, &[], None, Direction::Forward)
        .expect("scan");
    drop(view);
    assert!(
        merged_bytes(&engine, kept) >= all * 9 / 10,
        "a scan shows it"
    );
    assert_eq!(scan.filter(Result::is_ok).count(), ENTRIES as usize);
    let two = merged_bytes(&engine, kept);
    assert!(two < all * 3 / 4, "{two} of {all}");
    // One that is dropped and not merged before the next opening.
    engine.drop_keyspace(later).expect("drop");
    engine.close().expect("close");
    drop(engine);
    let engine = open();
    let one = merged_bytes(&engine, kept);
    assert!(one < all / 2, "{one} of {all}");
    let view = engine.snapshot().expect("snapshot");
    let found = entries(&*view, kept, &[], None, Direction::Forward);
    assert_eq!(found.len(), ENTRIES as usize);
}
