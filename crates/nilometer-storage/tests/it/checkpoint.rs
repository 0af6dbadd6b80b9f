//! Checkpoints taken while writers write.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nilometer_storage::testing::contract::{APART, SHORT_LIVED, TOGETHER};
use nilometer_storage::{
    Direction, Durability, Engine, Error, KeyspaceId, LsmEngine, LsmOptions, WriteBatch,
};

use crate::support::{Scratch, SetAtDrop};

/// Commits batch `number` of the writer.
fn write(engine: &LsmEngine, ids: [KeyspaceId; 3], number: u64) {
    let mut batch = WriteBatch::new();
    for id in ids {
        batch.put(id, number.to_be_bytes().to_vec(), vec![number as u8; 300]);
    }
    engine.commit(batch, Durability::Sync).expect("commit");
}

#[test]
fn a_checkpoint_has_what_was_acknowledged_before_and_a_prefix_of_the_rest() {
    let directory = Scratch::new("checkpoint");
    let engine = LsmEngine::open(directory.path().join("db"), LsmOptions::tiny()).expect("open");
    let ids = [
        engine.create_keyspace("t", TOGETHER).expect("create"),
        engine.create_keyspace("a", APART).expect("create"),
        engine.create_keyspace("s", SHORT_LIVED).expect("create"),
    ];
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let end = SetAtDrop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                let number = written.load(Ordering::Acquire);
                write(&engine, ids, number);
                written.store(number + 1, Ordering::Release);
            }
        });
        for round in 0..6 {
            std::thread::sleep(std::time::Duration::from_millis(60));
            let target = directory.path().join(format!("copy-{round}"));
            let before = written.load(Ordering::Acquire);
            engine.checkpoint(&target).expect("checkpoint");
            let after = written.load(Ordering::Acquire) + 1;
            let copy = LsmEngine::open(&target, LsmOptions::tiny()).expect("the copy opens");
            copy.verify().expect("the copy is whole");
            let view = copy.snapshot().expect("snapshot");
            for id in ids {
                let scan = view.scan(id, &[], None, Direction::Forward).expect("scan");
                let mut count = 0u64;
                for entry in scan {
                    let (key, _) = entry.expect("readable");
                    assert_eq!(key[..], count.to_be_bytes());
                    count += 1;
                }
                assert!(
                    (before..=after).contains(&count),
                    "{before} {count} {after}"
                );
            }
        }
        drop(end);
    });
}

#[test]
fn foreign_directories_are_refused() {
    let directory = Scratch::new("foreign");
    let path = directory.path();
    std::fs::write(path.join("letter.txt"), "dear").expect("a file");
    let foreign = LsmEngine::open(path, LsmOptions::tiny()).err();
    assert!(matches!(foreign, Some(Error::ForeignDirectory { .. })));
    assert!(!path.join("LOCK").exists(), "nothing is left in it");
    let db = path.join("db");
    let engine = LsmEngine::open(&db, LsmOptions::tiny()).expect("open");
    let second = LsmEngine::open(&db, LsmOptions::tiny()).err();
    assert!(matches!(second, Some(Error::Locked { .. })));
    let onto = engine.checkpoint(path).err();
    assert!(matches!(onto, Some(Error::NotEmpty { .. })));
    for inside in [db.clone(), db.join("copy"), db.join("x/../y")] {
        let inside = engine.checkpoint(&inside).err();
        assert!(matches!(inside, Some(Error::Within { .. })), "{inside:?}");
    }
    assert!(!db.join("copy").exists());
    engine
        .checkpoint(&db.join("../beside"))
        .expect("beside it is not within");
    engine.close().expect("close");
    LsmEngine::open(&db, LsmOptions::tiny()).expect("open again");
    std::fs::write(db.join("FORMAT"), "nilometer storage format 9\n").expect("write");
    let newer = LsmEngine::open(&db, LsmOptions::tiny()).err();
    let expected = Error::UnsupportedFormat {
        found: 9,
        supported: 4,
    };
    assert_eq!(newer.map(|e| e.to_string()), Some(expected.to_string()));
}

#[test]
fn a_directory_stays_locked_while_a_scan_reads_it() {
    let directory = Scratch::new("locked");
    let engine = LsmEngine::open(directory.path(), LsmOptions::tiny()).expect("open");
    let id = engine.create_keyspace("t", TOGETHER).expect("create");
    let view = engine.snapshot().expect("snapshot");
    let scan = view.scan(id, &[], None, Direction::Forward).expect("scan");
    drop(view);
    engine.close().expect("close");
    drop(engine);
    let locked = LsmEngine::open(directory.path(), LsmOptions::tiny()).err();
    assert!(matches!(locked, Some(Error::Locked { .. })));
    drop(scan);
    LsmEngine::open(directory.path(), LsmOptions::tiny()).expect("open");
}

#[test]
#[cfg(unix)]
fn programs_started_meanwhile_do_not_keep_the_lock() {
    let directory = Scratch::new("started");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let end = SetAtDrop(&done);
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let status = std::process::Command::new("true").status();
                assert!(status.is_ok_and(|status| status.success()));
            }
        });
        for _ in 0..40 {
            let engine = LsmEngine::open(directory.path(), LsmOptions::tiny());
            engine.and_then(|engine| engine.close()).expect("closed");
        }
        drop(end);
    });
}
