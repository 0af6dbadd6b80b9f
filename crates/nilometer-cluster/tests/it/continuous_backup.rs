//! Continuous backups: the log of the local engine in an object store, and restores to any time.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nilometer_cluster::{
    ContinuousBackup, ContinuousEvent, ContinuousOptions, RestorePoint, Retention,
};
use nilometer_storage::testing::contract::{APART, TOGETHER, entries, put};
use nilometer_storage::testing::random::Random;
use nilometer_storage::{Direction, Durability, Engine, LsmEngine, LsmOptions, WriteBatch};
use object_store::ObjectStore;

use crate::faulty::{Faults, FaultyStore};
use crate::support::{Scratch, effort};

use crate::backup::{
    DAY, PASSING, backups, change_object, check_sound, contents, object_names, restored, store,
};

const ACCOUNTS: u64 = 10;
const TOTAL: u64 = 1000;

/// Options with which every step comes soon.
fn soon() -> ContinuousOptions {
    ContinuousOptions {
        interval: Duration::from_millis(40),
        full_interval: Duration::from_millis(400),
        tick: Duration::from_millis(4),
        retry: Duration::from_millis(50),
        retention: Retention::default(),
    }
}

/// Transfers money until `until`, and returns the times before and after each transfer. The number of the transfer is in
/// the same batch; each hundredth is made in a new keyspace, and the one before is dropped.
fn transfer(engine: &LsmEngine, seed: u64, until: Instant) -> Vec<(i64, i64)> {
    let mut random = Random::new(seed);
    let accounts = engine
        .keyspaces()
        .into_iter()
        .find(|keyspace| keyspace.name == "accounts");
    let accounts = accounts.expect("the accounts").id;
    let read = |account: u64| {
        let view = engine.snapshot().expect("snapshot");
        let value = view
            .get(accounts, &account.to_be_bytes())
            .expect("get")
            .expect("an account");
        u64::from_be_bytes(value[..].try_into().expect("a sum"))
    };
    let mut times = Vec::new();
    let mut journal = engine.create_keyspace("journal 0", APART).expect("create");
    while Instant::now() < until {
        let number = times.len() as u64;
        let before = now_ms();
        if number % 100 == 99 {
            let next = engine
                .create_keyspace(&format!("journal {number}"), APART)
                .expect("create");
            let mut batch = WriteBatch::new();
            batch.put(next, b"begun".to_vec(), number.to_be_bytes().to_vec());
            engine.commit(batch, Durability::Sync).expect("commit");
            engine.drop_keyspace(journal).expect("drop");
            journal = next;
        }
        let (from, to) = (random.below(ACCOUNTS), random.below(ACCOUNTS));
        let mut batch = WriteBatch::new();
        if from != to {
            let sum = random.below(read(from) + 1);
            batch.put(
                accounts,
                from.to_be_bytes().to_vec(),
                (read(from) - sum).to_be_bytes().to_vec(),
            );
            batch.put(
                accounts,
                to.to_be_bytes().to_vec(),
                (read(to) + sum).to_be_bytes().to_vec(),
            );
        }
        batch.put(
            accounts,
            b"transfers".to_vec(),
            (number + 1).to_be_bytes().to_vec(),
        );
        batch.put(journal, number.to_be_bytes().to_vec(), vec![1; 200]);
        engine.commit(batch, Durability::Sync).expect("commit");
        times.push((before, now_ms()));
        pause(number);
    }
    times
}

/// Lets a log in memory grow about as fast as one on a disk: it must not be full before a part of it is stored.
fn pause(number: u64) {
    if number.is_multiple_of(20) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn now_ms() -> i64 {
    let now = std::time::SystemTime::now();
    let since = now
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970");
    i64::try_from(since.as_millis()).expect("a time")
}

fn opened_bank(path: &Path) -> LsmEngine {
    let options = LsmOptions {
        // Larger than what is written in the tests, and flushed all the same.
        log_bytes_max: 64 * 1024 * 1024,
        segment_bytes: 256 * 1024,
        ..LsmOptions::tiny()
    };
    let engine = LsmEngine::open(path, options).expect("open");
    let id = engine
        .create_keyspace("accounts", TOGETHER)
        .expect("create");
    let mut batch = WriteBatch::new();
    for account in 0..ACCOUNTS {
        batch.put(
            id,
            account.to_be_bytes().to_vec(),
            (TOTAL / ACCOUNTS).to_be_bytes().to_vec(),
        );
    }
    engine.commit(batch, Durability::Sync).expect("commit");
    engine
}

/// Opens a restored bank, checks its total, and returns the number of transfers.
fn transfers(path: &Path) -> u64 {
    let engine = LsmEngine::open(path, LsmOptions::tiny()).expect("it opens");
    engine.verify().expect("nothing is damaged");
    let (mut total, mut number) = (0, 0);
    let known = engine
        .keyspaces()
        .into_iter()
        .find(|keyspace| keyspace.name == "accounts");
    let view = engine.snapshot().expect("snapshot");
    for (key, value) in entries(
        &*view,
        known.expect("accounts").id,
        &[],
        None,
        Direction::Forward,
    ) {
        let value = u64::from_be_bytes(value.try_into().expect("a sum"));
        match &key[..] {
            b"transfers" => number = value,
            _ => total += value,
        }
    }
    assert_eq!(total, TOTAL, "money was made or lost");
    number
}

/// What happened so far.
type Events = Arc<Mutex<Vec<ContinuousEvent>>>;

fn start(store: &Arc<dyn ObjectStore>, engine: &LsmEngine) -> (ContinuousBackup, Events) {
    let events = Events::default();
    let noted = Arc::clone(&events);
    let observe = Box::new(move |event| noted.lock().expect("no panic").push(event));
    let source = engine.backup_source().expect("a directory");
    let started = ContinuousBackup::start(backups(store), source, soon(), observe);
    (started.expect("a thread"), events)
}

/// A restore to any time has all that was acknowledged a second before, and nothing that began later.
#[test]
fn every_moment_can_be_restored() {
    for seed in 0..effort(1, 8, 200) {
        let scratch = Scratch::new("moments");
        let store = store();
        let engine = opened_bank(&scratch.path().join("db"));
        let began = now_ms();
        let (continuous, events) = start(&store, &engine);
        let until = Instant::now() + Duration::from_millis(1500);
        let times = transfer(&engine, seed, until);
        continuous.stop();
        let ended = now_ms();
        drop(engine);
        let backups = backups(&store);
        check_sound(&backups);
        assert!(backups.list().expect("listed").len() > 1, "{events:?}");
        let mut random = Random::new(seed);
        let count = |is_over: &dyn Fn(&(i64, i64)) -> bool| {
            times.iter().filter(|time| is_over(time)).count() as u64
        };
        for number in 0..8 {
            let at = began + i64::try_from(random.below((ended - began) as u64)).expect("a time");
            let target = scratch.path().join(format!("restored-{number}"));
            let restored = match backups.restore(&target, RestorePoint::Time(at), &mut |_| true) {
                Ok(restored) => restored,
                Err(error) => {
                    assert!(at < began + 1000, "{error}");
                    continue;
                }
            };
            assert!(restored.time_ms <= at);
            let found = transfers(&target);
            assert!(
                found <= count(&|(before, _)| *before <= at),
                "nothing of later"
            );
            assert!(
                found >= count(&|(_, after)| *after < at - 1000),
                "all of before"
            );
        }
        let target = scratch.path().join("latest");
        backups
            .restore(&target, RestorePoint::Latest, &mut |_| true)
            .expect("restored");
        assert_eq!(
            transfers(&target),
            times.len() as u64,
            "the end was stored: {events:?}"
        );
    }
}

/// A store that fails for a while delays the log and loses nothing of it.
#[test]
fn the_log_waits_for_a_store_that_is_away() {
    let scratch = Scratch::new("away");
    let (store, plan) = FaultyStore::over(store(), 1, PASSING);
    let engine = opened_bank(&scratch.path().join("db"));
    let (continuous, events) = start(&store, &engine);
    wait_for(&events, |event| {
        matches!(event, ContinuousEvent::Completed(_))
    });
    let mut count = 0;
    for is_away in [false, true, false] {
        events.lock().expect("no panic").clear();
        plan.set(Faults {
            permits_nothing: is_away,
            ..PASSING
        });
        count = transfer_more(&engine, count);
        if is_away {
            wait_for(&events, |event| {
                matches!(event, ContinuousEvent::Failing(_))
            });
        }
    }
    wait_for(&events, |event| matches!(event, ContinuousEvent::Recovered));
    continuous.stop();
    drop(engine);
    let backups = backups(&store);
    check_sound(&backups);
    let target = scratch.path().join("restored");
    backups
        .restore(&target, RestorePoint::Latest, &mut |_| true)
        .expect("restored");
    assert_eq!(transfers(&target), count, "{events:?}");
}

/// Counts for some time, as transfers of nothing.
fn transfer_more(engine: &LsmEngine, mut count: u64) -> u64 {
    let id = engine.keyspaces()[0].id;
    let end = Instant::now() + Duration::from_millis(300);
    while Instant::now() < end {
        count += 1;
        put(engine, id, b"transfers", &count.to_be_bytes());
        pause(count);
    }
    count
}

/// Returns the names of the parts of the log in the store, in order.
fn log_parts(store: &Arc<dyn ObjectStore>) -> Vec<String> {
    let mut names = object_names(store);
    names.retain(|name| name.contains("/log/"));
    names
}

fn wait_for(events: &Events, is_it: impl Fn(&ContinuousEvent) -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !events.lock().expect("no panic").iter().any(&is_it) {
        assert!(Instant::now() < end, "it does not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Writers do not wait for a store that is away for long: the backup begins again.
#[test]
fn a_gap_in_the_log_begins_a_new_run() {
    let scratch = Scratch::new("gap");
    let (store, plan) = FaultyStore::over(store(), 1, Faults::default());
    let engine = LsmEngine::open(scratch.path().join("db"), LsmOptions::tiny()).expect("open");
    let id = engine.create_keyspace("k", TOGETHER).expect("create");
    let (continuous, events) = start(&store, &engine);
    wait_for(&events, |event| {
        matches!(event, ContinuousEvent::Completed(_))
    });
    put(&engine, id, b"a", b"1");
    plan.set(Faults {
        permits_nothing: true,
        ..Faults::default()
    });
    for number in 0..2000u32 {
        put(&engine, id, &number.to_be_bytes(), &[1; 1000]);
    }
    let expected = contents(&engine);
    plan.set(Faults::default());
    wait_for(&events, |event| matches!(event, ContinuousEvent::Gap(_)));
    events.lock().expect("no panic").clear();
    wait_for(&events, |event| {
        matches!(event, ContinuousEvent::Completed(_))
    });
    continuous.stop();
    let target = scratch.path().join("restored");
    assert!(restored(&backups(&store), &target, RestorePoint::Latest) == expected);
}

/// The log of a run that lost a part in the store can be restored up to it, and the verification says so.
#[test]
fn a_lost_part_of_the_log_is_named() {
    let scratch = Scratch::new("lost-part");
    let store = store();
    let engine = opened_bank(&scratch.path().join("db"));
    let source = engine.backup_source().expect("a directory");
    let options = ContinuousOptions {
        full_interval: DAY,
        ..soon()
    };
    let is_over = Arc::new(AtomicBool::new(false));
    let noted = Arc::clone(&is_over);
    let observe = Box::new(move |_| noted.store(true, Ordering::SeqCst));
    let continuous = ContinuousBackup::start(backups(&store), source, options, observe);
    let continuous = continuous.expect("a thread");
    while !is_over.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut count = 0;
    while log_parts(&store).len() < 4 {
        count = transfer_more(&engine, count);
    }
    continuous.stop();
    drop(engine);
    let backups = backups(&store);
    check_sound(&backups);
    let parts = log_parts(&store);
    change_object(&store, &parts[1], None);
    let found = backups.verify(&mut |_| true).expect("the store works");
    assert!(
        found
            .problems
            .iter()
            .any(|problem| problem.contains("has no batches")),
        "{found:?}"
    );
    let target = scratch.path().join("restored");
    backups
        .restore(&target, RestorePoint::Latest, &mut |_| true)
        .expect("restored");
    assert!(transfers(&target) < count);
}
