//! The memory cost of snapshots ends with them; a key that is written often does not become slow to read.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nilometer_storage::testing::contract::{TOGETHER, put};
use nilometer_storage::testing::random::Random;
use nilometer_storage::{
    Direction, Durability, Engine, KeyspaceId, LsmEngine, LsmOptions, Snapshot, WriteBatch,
};

use crate::support::{Scratch, scratch_on_disk};

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
    let directory = scratch_on_disk("pinned");
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

/// Returns the versions that a scan of the keyspace steps over.
fn versions(engine: &LsmEngine, id: KeyspaceId) -> u64 {
    let statistics = engine.keyspace_statistics(id).expect("statistics");
    statistics.keys_estimate
}

/// Keys and values.
type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

fn contents(snapshot: &dyn Snapshot, id: KeyspaceId) -> Contents {
    let scan = snapshot.scan(id, &[], None, Direction::Forward);
    let entries = scan.expect("scan").map(|entry| entry.expect("an entry"));
    entries
        .map(|(key, value)| (key.to_vec(), value.to_vec()))
        .collect()
}

#[test]
fn a_key_written_ten_thousand_times_has_few_versions() {
    let directory = Scratch::new("hot-key");
    let engine = LsmEngine::open(directory.path(), LsmOptions::default()).expect("open");
    let id = engine.create_keyspace("k", TOGETHER).expect("create");
    put(&engine, id, b"other", b"0");
    let mut most = 0;
    let mut early = None;
    for count in 0..10_000u32 {
        put(&engine, id, b"hot", &count.to_be_bytes());
        most = most.max(versions(&engine, id));
        if count == 5000 {
            early = Some(engine.snapshot().expect("snapshot"));
        }
    }
    assert!(most <= 100, "{most}");
    let (early, late) = (early.expect("taken"), engine.snapshot().expect("snapshot"));
    for (view, count) in [(early, 5000u32), (late, 9999)] {
        let value = view.get(id, b"hot").expect("get").expect("there");
        assert_eq!(value[..], count.to_be_bytes());
        let all = contents(&*view, id);
        assert_eq!((all.len(), &all[&b"hot"[..]][..]), (2, &value[..]));
    }
    engine.close().expect("close");
    // Recovery inserts the last version alone.
    let engine = LsmEngine::open(directory.path(), LsmOptions::default()).expect("open");
    assert_eq!(versions(&engine, id), 2);
}

#[test]
fn deleted_keys_of_a_young_keyspace_leave_few_marks() {
    let directory = Scratch::new("young-deletions");
    let engine = LsmEngine::open(directory.path(), LsmOptions::default()).expect("open");
    let id = engine.create_keyspace("k", TOGETHER).expect("create");
    for count in 0..5000u32 {
        put(&engine, id, &count.to_be_bytes(), b"x");
        let mut batch = WriteBatch::new();
        batch.delete(id, count.to_be_bytes().to_vec());
        engine.commit(batch, Durability::Buffered).expect("commit");
    }
    assert!(versions(&engine, id) <= 200, "{}", versions(&engine, id));
    engine.settle().expect("settle");
    // With tables behind the memtable a mark may shadow an entry of theirs.
    put(&engine, id, b"settled", b"x");
    engine.settle().expect("settle");
    let mut batch = WriteBatch::new();
    batch.delete(id, b"settled".to_vec());
    engine.commit(batch, Durability::Buffered).expect("commit");
    for count in 0..1000u32 {
        put(&engine, id, b"hot", &count.to_be_bytes());
    }
    let view = engine.snapshot().expect("snapshot");
    assert_eq!(view.get(id, b"settled").expect("get"), None);
    assert_eq!(contents(&*view, id).len(), 1);
}

#[test]
fn snapshots_and_scans_see_their_versions_while_keys_are_written_again_and_again() {
    for (seed, options) in [
        (1, LsmOptions::default()),
        (2, LsmOptions::tiny()),
        (3, LsmOptions::default()),
    ] {
        let directory = Scratch::new(&format!("versions-{seed}"));
        let engine = LsmEngine::open(directory.path(), options).expect("open");
        let id = engine.create_keyspace("k", TOGETHER).expect("create");
        let mut random = Random::new(seed);
        let mut now = BTreeMap::new();
        let mut views: Vec<(Box<dyn Snapshot>, Contents)> = Vec::new();
        let mut scans = Vec::new();
        for step in 0..6000u32 {
            let key = vec![b'a' + u8::try_from(random.below(6)).expect("small")];
            let mut batch = WriteBatch::new();
            if random.below(5) == 0 {
                batch.delete(id, key.clone());
                now.remove(&key);
            } else {
                batch.put(id, key.clone(), step.to_be_bytes().to_vec());
                now.insert(key, step.to_be_bytes().to_vec());
            }
            engine.commit(batch, Durability::Buffered).expect("commit");
            if random.below(40) == 0 {
                views.push((engine.snapshot().expect("snapshot"), now.clone()));
            }
            if random.below(60) == 0 {
                // A scan outlives its snapshot.
                let view = engine.snapshot().expect("snapshot");
                let scan = view.scan(id, &[], None, Direction::Backward).expect("scan");
                scans.push((scan, now.clone()));
            }
            if views.len() > 5 {
                let at = random.index(5);
                let (view, expected) = views.swap_remove(at);
                assert_eq!(contents(&*view, id), expected, "seed {seed}, step {step}");
            }
            if scans.len() > 3 {
                let (scan, expected) = scans.remove(0);
                let entries = scan.map(|entry| entry.expect("an entry"));
                let entries = entries.map(|(key, value)| (key.to_vec(), value.to_vec()));
                assert_eq!(entries.collect::<Contents>(), expected);
            }
        }
        let view = engine.snapshot().expect("snapshot");
        assert_eq!(contents(&*view, id), now);
    }
}
