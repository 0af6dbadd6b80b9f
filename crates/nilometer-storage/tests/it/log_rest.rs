//! The log shrinks when nothing is written, and when the engine is closed.

use std::time::{Duration, Instant};

use nilometer_storage::testing::contract::{SHORT_LIVED, TOGETHER, put};
use nilometer_storage::{
    Direction, Durability, Engine, KeyspaceId, LsmEngine, LsmOptions, WriteBatch,
};

use crate::support::Scratch;

/// Bytes of the files of the log, spares included.
fn log_file_bytes(directory: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(directory.join("wal")).expect("a log");
    entries
        .filter_map(|entry| entry.ok()?.metadata().ok())
        .map(|metadata| metadata.len())
        .sum()
}

/// Options whose log rests soon, or never, above 3 MiB.
fn resting(rest_period: Duration) -> LsmOptions {
    LsmOptions {
        segment_bytes: 4 << 20,
        log_rest_bytes: 3 << 20,
        rest_period,
        ..LsmOptions::default()
    }
}

/// Writes 12 MiB in values of 1 MiB.
fn fill_log(engine: &LsmEngine, id: KeyspaceId) {
    for key in 0..12u32 {
        put(engine, id, &key.to_be_bytes(), &vec![7; 1 << 20]);
    }
}

fn assert_filled(engine: &LsmEngine, id: KeyspaceId) {
    let view = engine.snapshot().expect("snapshot");
    for key in 0..12u32 {
        let value = view.get(id, &key.to_be_bytes()).expect("get");
        assert_eq!(value.map(|value| value.len()), Some(1 << 20));
    }
}

#[test]
fn a_log_at_rest_shrinks_and_grows_again() {
    let directory = Scratch::new("log-rest");
    let options = resting(Duration::from_millis(60));
    let engine = LsmEngine::open(directory.path(), options).expect("open");
    let id = engine.create_keyspace("k", TOGETHER).expect("create");
    for _ in 0..2 {
        fill_log(&engine, id);
        let deadline = Instant::now() + Duration::from_secs(60);
        while log_file_bytes(directory.path()) > 3 << 20 {
            assert!(Instant::now() < deadline, "the log never rests");
            // The keeper does not report that it removed a file.
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_filled(&engine, id);
    }
}

/// Puts short-lived entries, and deletes each some batches later. Returns the bytes of files of its keyspace.
fn write_short_lived(engine: &LsmEngine, id: KeyspaceId, numbers: std::ops::Range<u64>) -> u64 {
    for number in numbers {
        let mut batch = WriteBatch::new();
        batch.put(id, number.to_be_bytes().to_vec(), vec![7; 1000]);
        if let Some(gone) = number.checked_sub(5) {
            batch.delete(id, gone.to_be_bytes().to_vec());
        }
        engine.commit(batch, Durability::Buffered).expect("commit");
    }
    engine
        .keyspace_statistics(id)
        .expect("statistics")
        .disk_bytes
}

#[test]
fn a_log_of_deleted_entries_shrinks_without_a_flush() {
    let directory = Scratch::new("log-short-lived");
    let options = LsmOptions {
        memory_bytes_max: 1 << 20,
        ..LsmOptions::tiny()
    };
    let log_bytes_max = options.log_bytes_max;
    let open = || LsmEngine::open(directory.path(), options.clone()).expect("open");
    let engine = open();
    let id = engine.create_keyspace("s", SHORT_LIVED).expect("create");
    assert_eq!(write_short_lived(&engine, id, 0..3000), 0);
    assert!(engine.statistics().log_bytes <= 2 * log_bytes_max);
    drop(engine);
    let engine = open();
    let view = engine.snapshot().expect("snapshot");
    let scan = view.scan(id, &[], None, Direction::Forward).expect("scan");
    let keys: Vec<_> = scan
        .map(|entry| entry.expect("readable").0.to_vec())
        .collect();
    let expected = (2995..3000u64).map(|number| number.to_be_bytes().to_vec());
    assert_eq!(keys, expected.collect::<Vec<_>>());
}

#[test]
fn a_long_log_is_flushed_when_the_engine_is_closed() {
    let directory = Scratch::new("log-close");
    let open = || LsmEngine::open(directory.path(), resting(Duration::MAX)).expect("open");
    let engine = open();
    let id = engine.create_keyspace("k", TOGETHER).expect("create");
    fill_log(&engine, id);
    assert!(log_file_bytes(directory.path()) > 3 << 20);
    engine.close().expect("close");
    drop(engine);
    assert!(log_file_bytes(directory.path()) <= 3 << 20);
    assert_filled(&open(), id);
}
