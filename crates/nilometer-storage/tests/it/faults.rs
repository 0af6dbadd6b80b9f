//! Behaviour when the disk is full, fails, or loses power.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nilometer_storage::testing::contract::{APART, SHORT_LIVED, TOGETHER};
use nilometer_storage::testing::fault::FaultyFileSystem;
use nilometer_storage::testing::random::Random;
use nilometer_storage::{
    Direction, Durability, Engine, Error, KeyspaceId, LsmEngine, LsmOptions, WriteBatch,
};

use crate::damage::copy;
use crate::support::{Scratch, effort};

fn faulty(file_system: &FaultyFileSystem) -> LsmOptions {
    LsmOptions {
        file_system: Arc::new(file_system.clone()),
        ..LsmOptions::tiny()
    }
}

fn try_put(engine: &LsmEngine, id: KeyspaceId, key: u64) -> Result<u64, Error> {
    let mut batch = WriteBatch::new();
    batch.put(id, key.to_be_bytes().to_vec(), vec![key as u8; 400]);
    engine.commit(batch, Durability::Sync)
}

fn keys(engine: &LsmEngine, id: KeyspaceId) -> Vec<u64> {
    let view = engine.snapshot().expect("snapshot");
    let scan = view.scan(id, &[], None, Direction::Forward).expect("scan");
    let keys = scan.map(|entry| entry.expect("readable").0);
    keys.map(|key| u64::from_be_bytes(key[..8].try_into().expect("eight bytes")))
        .collect()
}

#[test]
fn a_full_disk_refuses_writes_and_serves_reads() {
    let directory = Scratch::new("full");
    let file_system = FaultyFileSystem::new();
    let options = LsmOptions {
        // Nothing is flushed, so no segment is recycled.
        memtable_bytes: 1 << 30,
        memory_bytes_max: 1 << 30,
        log_bytes_max: 1 << 30,
        segment_bytes: 16 * 1024,
        ..faulty(&file_system)
    };
    let engine = LsmEngine::open(directory.path(), options).expect("open");
    let id = engine.create_keyspace("t", TOGETHER).expect("create");
    let mut expected = Vec::new();
    for key in 0..100 {
        try_put(&engine, id, key).expect("commit");
        expected.push(key);
    }
    file_system.set_full(true);
    let mut refused = 0;
    for key in 100..300 {
        match try_put(&engine, id, key) {
            Ok(_) => expected.push(key),
            Err(Error::Full { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused > 100);
    assert_eq!(keys(&engine, id), expected);
    file_system.set_full(false);
    for key in 300..400 {
        try_put(&engine, id, key).expect("there is room again");
        expected.push(key);
    }
    assert_eq!(keys(&engine, id), expected);
    drop(engine);
    let engine = LsmEngine::open(directory.path(), LsmOptions::tiny()).expect("open");
    assert_eq!(engine.recovery().cut, None);
    assert_eq!(keys(&engine, id), expected);
}

#[test]
fn a_write_that_finds_no_space_in_a_reserved_file_is_refused_until_there_is_some() {
    // Nothing is written; part of an end mark; an end mark, but neither a batch nor the header of a segment.
    for room in [0, 20, 64] {
        let directory = Scratch::new("copy-on-write");
        let file_system = FaultyFileSystem::new();
        let engine = LsmEngine::open(directory.path().join("db"), faulty(&file_system));
        let engine = engine.expect("open");
        let id = engine.create_keyspace("t", TOGETHER).expect("create");
        let mut expected = Vec::new();
        let mut key = 0;
        for round in 0..4 {
            for _ in 0..10 {
                try_put(&engine, id, key).expect("commit");
                expected.push(key);
                key += 1;
            }
            file_system.set_room_per_write(Some(room));
            for _ in 0..10 {
                let refused = try_put(&engine, id, key);
                assert!(matches!(refused, Err(Error::Full { .. })), "{refused:?}");
                key += 1;
            }
            let told = engine.check_writable();
            assert!(matches!(told, Err(Error::Full { .. })), "{told:?}");
            assert_eq!(keys(&engine, id), expected);
            // What a crash leaves now has the acknowledged batches and no other.
            let copied = directory.path().join(format!("crashed-{round}"));
            copy(&directory.path().join("db"), &copied);
            let crashed = LsmEngine::open(&copied, LsmOptions::tiny()).expect("open");
            assert_eq!(keys(&crashed, id), expected, "room for {room} bytes");
            file_system.set_room_per_write(None);
            if round % 2 == 0 {
                // Also without writers.
                let end = Instant::now() + Duration::from_secs(20);
                while let Err(error) = engine.check_writable() {
                    assert!(Instant::now() < end, "{error}");
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        }
        try_put(&engine, id, key).expect("there is room again");
        expected.push(key);
        engine.verify().expect("nothing is damaged");
        engine.close().expect("close");
        drop(engine);
        let engine = LsmEngine::open(directory.path().join("db"), LsmOptions::tiny());
        let engine = engine.expect("open");
        let recovery = engine.recovery();
        assert_eq!((&recovery.cut, recovery.earlier_cuts.len()), (&None, 0));
        assert_eq!(keys(&engine, id), expected);
        engine.verify().expect("nothing is damaged");
    }
}

/// Error codes of Linux: too many open files; access denied; read-only file system.
const NO_FILES: [i32; 3] = [24, 13, 30];

#[test]
fn a_log_file_that_cannot_be_made_refuses_commits_until_it_can() {
    for code in NO_FILES {
        let directory = Scratch::new("files");
        let file_system = FaultyFileSystem::new();
        let options = LsmOptions {
            segment_bytes: 16 * 1024,
            ..faulty(&file_system)
        };
        let engine = LsmEngine::open(directory.path(), options).expect("open");
        let id = engine.create_keyspace("t", TOGETHER).expect("create");
        let mut expected = Vec::new();
        for key in 0..200 {
            try_put(&engine, id, key).expect("commit");
            expected.push(key);
        }
        file_system.set_no_files(Some(code));
        // Prepared space may take many writes. The keeper runs every 50 ms and must meet the fault, too.
        let (mut refused, mut key, began) = (0, 200, Instant::now());
        while refused < 10 || began.elapsed() < Duration::from_millis(200) {
            match try_put(&engine, id, key) {
                Ok(_) => expected.push(key),
                Err(Error::Io { .. }) => refused += 1,
                Err(error) => panic!("{code}: {error}"),
            }
            key += 1;
            assert!(key < 10_000, "{code}: {refused} are refused");
            std::thread::sleep(Duration::from_millis(2));
        }
        let told = engine.check_writable();
        assert!(matches!(told, Err(Error::Io { .. })), "{code}: {told:?}");
        assert_eq!(keys(&engine, id), expected);
        file_system.set_no_files(None);
        // Also without writers.
        let end = Instant::now() + Duration::from_secs(20);
        while let Err(error) = engine.check_writable() {
            assert!(Instant::now() < end, "{code}: {error}");
            std::thread::sleep(Duration::from_millis(20));
        }
        for key in key..key + 180 {
            let put = try_put(&engine, id, key);
            put.unwrap_or_else(|error| panic!("{code}: after the fault: {error}"));
            expected.push(key);
        }
        assert_eq!(keys(&engine, id), expected);
        drop(engine);
        let engine = LsmEngine::open(directory.path(), LsmOptions::tiny()).expect("open");
        assert_eq!(keys(&engine, id), expected);
        engine.verify().expect("nothing is damaged");
    }
}

#[test]
fn a_failed_sync_ends_writing_and_not_reading() {
    for writes in [false, true] {
        let directory = Scratch::new("sync");
        let file_system = FaultyFileSystem::new();
        let engine = LsmEngine::open(directory.path(), faulty(&file_system)).expect("open");
        let id = engine.create_keyspace("t", TOGETHER).expect("create");
        for key in 0..20 {
            try_put(&engine, id, key).expect("commit");
        }
        if writes {
            file_system.set_writes_fail(true);
        } else {
            file_system.set_syncs_fail(true);
        }
        let failed = try_put(&engine, id, 20);
        assert!(matches!(failed, Err(Error::LogFailed { .. })), "{failed:?}");
        file_system.set_writes_fail(false);
        file_system.set_syncs_fail(false);
        let refused = try_put(&engine, id, 21);
        assert!(
            matches!(refused, Err(Error::LogFailed { .. })),
            "{refused:?}"
        );
        assert!(engine.check_writable().is_err());
        assert!(engine.create_keyspace("u", TOGETHER).is_err());
        assert_eq!(keys(&engine, id), (0..20).collect::<Vec<_>>());
        assert!(engine.close().is_err());
        drop(engine);
        let engine = LsmEngine::open(directory.path(), LsmOptions::tiny()).expect("open");
        let found = keys(&engine, id);
        // The batch whose sync failed may or may not survive.
        assert!(found == (0..20).collect::<Vec<_>>() || found == (0..21).collect::<Vec<_>>());
        try_put(&engine, id, 22).expect("writable again");
    }
}

#[test]
fn a_stuck_disk_is_reported_and_readers_continue() {
    const LONG_ENOUGH: Duration = Duration::from_millis(50);
    let directory = Scratch::new("stuck");
    let file_system = FaultyFileSystem::new();
    let engine = LsmEngine::open(directory.path(), faulty(&file_system)).expect("open");
    let id = engine.create_keyspace("t", TOGETHER).expect("create");
    for key in 0..10 {
        try_put(&engine, id, key).expect("commit");
    }
    file_system.set_stuck(true);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| try_put(&engine, id, 10));
        let waits = loop {
            let mut waits = engine.disk_waits();
            waits.in_flight.retain(|wait| wait.age >= LONG_ENOUGH);
            if !waits.in_flight.is_empty() {
                break waits;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert!(
            waits.in_flight[0].what.contains("the log in"),
            "{:?}",
            waits.in_flight
        );
        assert!(waits.longest >= LONG_ENOUGH);
        // Neither readers nor status queries wait for it.
        assert_eq!(keys(&engine, id), (0..10).collect::<Vec<_>>());
        assert!(engine.statistics().commits >= 10);
        engine.check_writable().expect("nothing failed");
        assert!(!writer.is_finished());
        file_system.set_stuck(false);
        writer.join().expect("no panic").expect("it was late");
    });
    assert_eq!(keys(&engine, id), (0..11).collect::<Vec<_>>());
    let longest = engine.disk_waits().longest;
    assert!(longest >= LONG_ENOUGH, "{longest:?}");
}

/// Cuts the power while writers write, then opens what an unlucky device kept.
#[test]
fn power_loss_takes_nothing_acknowledged() {
    let rounds = effort(8, 40, 2000);
    let mut cuts = 0;
    for seed in 0..rounds {
        cuts += lose_power(seed);
    }
    eprintln!("{rounds} power losses, {cuts} torn ends");
}

const WRITERS: u64 = 3;

/// Batches after which a writer deletes its short-lived entry.
const SHORT_LIFE: u64 = 4;

fn lose_power(seed: u64) -> u64 {
    let directory = Scratch::new("power");
    let file_system = FaultyFileSystem::new();
    let mut random = Random::new(seed);
    let options = LsmOptions {
        // The log rests whenever no writer came between two looks of the keeper.
        log_rest_bytes: if seed.is_multiple_of(2) { u64::MAX } else { 0 },
        rest_period: Duration::ZERO,
        ..faulty(&file_system)
    };
    let engine = LsmEngine::open(directory.path(), options).expect("open");
    let ids = [
        engine.create_keyspace("t", TOGETHER).expect("create"),
        engine.create_keyspace("a", APART).expect("create"),
        engine.create_keyspace("s", SHORT_LIVED).expect("create"),
    ];
    let synced: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
    let until = 20 + random.below(200);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (engine, synced) = (&engine, &synced[writer as usize]);
            let mut random = Random::new(seed * WRITERS + writer);
            scope.spawn(move || {
                for number in 0u64.. {
                    let mut batch = WriteBatch::new();
                    let mut key = writer.to_be_bytes().to_vec();
                    key.extend(number.to_be_bytes());
                    for id in ids {
                        let length = random.index(900);
                        batch.put(id, key.clone(), random.bytes(length));
                    }
                    if let Some(gone) = number.checked_sub(SHORT_LIFE) {
                        let gone = [writer.to_be_bytes(), gone.to_be_bytes()].concat();
                        batch.delete(ids[2], gone);
                    }
                    let sync = random.one_in(6);
                    let durability = if sync {
                        Durability::Sync
                    } else {
                        Durability::Buffered
                    };
                    match engine.commit(batch, durability) {
                        Ok(_) if sync => synced.store(number + 1, Ordering::Release),
                        Ok(_) => {}
                        Err(_) => return,
                    }
                }
            });
        }
        while synced
            .iter()
            .map(|s| s.load(Ordering::Acquire))
            .sum::<u64>()
            < until
        {
            std::thread::yield_now();
        }
        file_system.cut_power();
    });
    drop(engine);
    file_system.lose_unsynced(&mut random).expect("undo");
    let engine = LsmEngine::open(directory.path(), LsmOptions::tiny());
    let engine = engine.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    engine.verify().expect("nothing is damaged");
    let view = engine.snapshot().expect("snapshot");
    for writer in 0..WRITERS {
        let (start, end) = (writer.to_be_bytes(), (writer + 1).to_be_bytes());
        let keys = ids.map(|id| {
            let scan = view.scan(id, &start, Some(&end), Direction::Forward);
            let keys = scan.expect("scan").map(|entry| entry.expect("readable").0);
            keys.map(|key| key[8..].to_vec()).collect::<Vec<_>>()
        });
        let counts = [&keys[0], &keys[1]].map(|keys| keys.len() as u64);
        assert_eq!(counts[0], counts[1], "half a batch, seed {seed}");
        let all = |from: u64| (from..counts[0]).map(|number| number.to_be_bytes().to_vec());
        let short_lived = counts[0].saturating_sub(SHORT_LIFE);
        let expected = [0, 0, short_lived].map(|from| all(from).collect::<Vec<_>>());
        assert!(keys == expected, "a hole, seed {seed}");
        let synced = synced[writer as usize].load(Ordering::Acquire);
        assert!(
            counts[0] >= synced,
            "seed {seed}: {} of {synced}",
            counts[0]
        );
    }
    u64::from(engine.recovery().cut.is_some())
}

/// Cuts the power after each call of a history in which segments begin, are removed and recycled, and a checkpoint is
/// taken: no state between two calls may refuse to open.
#[test]
fn every_step_of_the_log_leaves_a_directory_that_opens() {
    let step = if effort(0, 1, 1) == 0 { 10 } else { 1 };
    let mut whole = false;
    let mut histories = 0u64;
    for calls in (0..).step_by(step) {
        whole = step_until(calls);
        histories += 1;
        if whole {
            break;
        }
    }
    assert!(whole);
    eprintln!("{histories} histories");
}

/// Runs the history until the power fails after `calls` calls, and checks what is left. True if it did not fail.
fn step_until(calls: u64) -> bool {
    let directory = Scratch::new("step");
    let file_system = FaultyFileSystem::new();
    file_system.cut_power_after(calls);
    let options = LsmOptions {
        segment_bytes: 4096,
        // Closing flushes the log and removes its segments.
        log_rest_bytes: 0,
        ..faulty(&file_system)
    };
    let path = directory.path().join("db");
    let mut acknowledged = 0;
    let mut id = None;
    let mut run = || -> Result<(), Error> {
        let mut engine = LsmEngine::open(&path, options.clone())?;
        let keyspace = engine.create_keyspace("t", TOGETHER)?;
        id = Some(keyspace);
        for round in 0..3 {
            for _ in 0..25 {
                try_put(&engine, keyspace, acknowledged)?;
                acknowledged += 1;
            }
            if round == 0 {
                engine.checkpoint(&directory.path().join("copy"))?;
            }
            engine.settle()?;
            if round == 1 {
                engine.close()?;
                drop(engine);
                engine = LsmEngine::open(&path, options.clone())?;
            }
        }
        engine.close()
    };
    let ended = run();
    let mut random = Random::new(calls);
    file_system.lose_unsynced(&mut random).expect("undo");
    assert!(ended.is_ok() || file_system.is_powerless(), "{ended:?}");
    let engine = LsmEngine::open(&path, LsmOptions::tiny());
    let engine = engine.unwrap_or_else(|error| panic!("after {calls} calls: {error}"));
    engine.verify().expect("nothing is damaged");
    if let Some(id) = id {
        let found = keys(&engine, id);
        let acknowledged = acknowledged as usize;
        let extra = found.len().checked_sub(acknowledged);
        assert!(
            matches!(extra, Some(0 | 1)),
            "{} of {acknowledged}",
            found.len()
        );
    }
    let copied = directory.path().join("copy");
    if copied.join("FORMAT").exists() {
        let engine = LsmEngine::open(&copied, LsmOptions::tiny());
        engine.unwrap_or_else(|error| panic!("the copy after {calls} calls: {error}"));
    }
    ended.is_ok()
}
