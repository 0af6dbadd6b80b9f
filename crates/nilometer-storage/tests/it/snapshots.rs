//! The memory cost of snapshots ends with them.

use std::time::{Duration, Instant};

use nilometer_storage::testing::contract::{TOGETHER, put};
use nilometer_storage::{Engine, KeyspaceId, LsmEngine, LsmOptions};

use crate::support::Scratch;

const VALUE_BYTES: usize = 500;

fn fill(engine: &LsmEngine, id: KeyspaceId, from: u32, count: u32) {
    for key in from..from + count {
        put(engine, id, &(key % 2000).to_be_bytes(), &[1; VALUE_BYTES]);
    }
}

fn wait_until_unpinned(engine: &LsmEngine) {
    let start = Instant::now();
    while engine.statistics().pinned_bytes > 0 {
        assert!(start.elapsed() < Duration::from_secs(5), "memory stays");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn memory_is_bounded_by_the_life_of_snapshots() {
    let directory = Scratch::on_disk("pinned");
    let options = LsmOptions::tiny();
    let memtable_bytes = options.memtable_bytes;
    let engine = LsmEngine::open(directory.path(), options).expect("open");
    let id = engine.create_keyspace("k", TOGETHER).expect("create");
    // Without readers nothing is pinned, also after the last flush.
    fill(&engine, id, 0, 1000);
    wait_until_unpinned(&engine);
    // Short snapshots pin little.
    let mut most = 0;
    for round in 0..20 {
        let view = engine.snapshot().expect("snapshot");
        fill(&engine, id, round * 100, 100);
        assert!(view.get(id, &0u32.to_be_bytes()).expect("get").is_some());
        most = most.max(engine.statistics().pinned_bytes);
    }
    assert!(most <= 8 * memtable_bytes, "{most} bytes pinned");
    wait_until_unpinned(&engine);
    // A long snapshot pins later writes, is reported, and releases them.
    let view = engine.snapshot().expect("snapshot");
    fill(&engine, id, 0, 1000);
    std::thread::sleep(Duration::from_millis(20));
    let held = engine.statistics();
    assert!(held.pinned_bytes > 4 * memtable_bytes);
    assert!(held.oldest_snapshot_ms >= 20 && held.snapshots == 1);
    assert!(view.get(id, &0u32.to_be_bytes()).expect("get").is_some());
    drop(view);
    wait_until_unpinned(&engine);
    assert_eq!(engine.statistics().snapshots, 0);
}

#[test]
fn the_log_is_shortened_and_deleted_keys_do_not_keep_it() {
    let directory = Scratch::new("log-cap");
    let options = LsmOptions::tiny();
    let log_bytes_max = options.log_bytes_max;
    let segment_bytes = options.segment_bytes;
    let engine = LsmEngine::open(directory.path(), options).expect("open");
    let id = engine.create_keyspace("k", TOGETHER).expect("create");
    let idle = engine.create_keyspace("idle", TOGETHER).expect("create");
    put(&engine, idle, b"one", b"small entry");
    for key in 0..3000u32 {
        put(&engine, id, &key.to_be_bytes(), &[1; VALUE_BYTES]);
        let mut batch = nilometer_storage::WriteBatch::new();
        batch.delete(id, key.to_be_bytes().to_vec());
        let buffered = nilometer_storage::Durability::Buffered;
        engine.commit(batch, buffered).expect("commit");
        let log_bytes = engine.statistics().log_bytes;
        // The cap, and the segments that exceeded it.
        assert!(
            log_bytes <= log_bytes_max + 3 * segment_bytes,
            "{log_bytes}"
        );
    }
    engine.settle().expect("settle");
    let log_bytes = engine.statistics().log_bytes;
    assert!(log_bytes <= 3 * segment_bytes, "{log_bytes}");
    let view = engine.snapshot().expect("snapshot");
    let kept = view.get(idle, b"one").expect("get");
    assert_eq!(kept.as_deref(), Some(&b"small entry"[..]));
}
