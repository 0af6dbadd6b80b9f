//! A compactor in a process of its own, beside a writer that does not merge.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nilometer_cluster::{SlateCompactor, SlateEngine, SlateOptions};
use nilometer_storage::testing::contract::{self, TOGETHER, entries, put};
use nilometer_storage::testing::model::history;
use nilometer_storage::testing::random::Random;
use nilometer_storage::{Direction, Durability, Engine, Error, WriteBatch};
use object_store::ObjectStore;
use object_store::memory::InMemory;

use crate::faulty::{Faults, FaultyStore};
use crate::support::{Scratch, SetAtDrop, Slate, effort, files, in_files};

/// The directory of the child's database.
const DIRECTORY: &str = "NILOMETER_COMPACTOR_DIRECTORY";

/// Options of a writer that does not merge, and of its compactor.
fn options() -> SlateOptions {
    SlateOptions {
        merges_itself: false,
        dropped_keyspaces_stay: Duration::from_millis(50),
        ..SlateOptions::tiny()
    }
}

fn store() -> Arc<dyn ObjectStore> {
    Arc::new(InMemory::new())
}

fn open(store: &Arc<dyn ObjectStore>, options: &SlateOptions) -> SlateEngine {
    SlateEngine::open(store.clone(), "db", options).expect("an engine opens")
}

/// Runs `work` beside a compactor.
fn beside_a_compactor(store: &Arc<dyn ObjectStore>, path: &str, work: impl FnOnce()) {
    let compactor = SlateCompactor::start(store.clone(), path, &options()).expect("a compactor");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let end = SetAtDrop(&is_over);
        let merging = scope.spawn(|| compactor.run(|| is_over.load(Ordering::Acquire)));
        work();
        drop(end);
        merging.join().expect("no panic").expect("it worked");
    });
}

/// Writes far more than fits into memory and small tables, and reads it.
fn write_much(engine: &SlateEngine, seed: u64, megabytes: usize) {
    let id = engine
        .create_keyspace(&format!("much {seed}"), TOGETHER)
        .expect("create");
    let mut random = Random::new(seed);
    let mut expected = std::collections::BTreeMap::new();
    for _ in 0..megabytes * 20 {
        let mut batch = WriteBatch::new();
        for _ in 0..10 {
            let (key, value) = (random.bytes(2), random.bytes(5000));
            expected.insert(key.clone(), value.clone());
            batch.put(id, key, value);
        }
        engine.commit(batch, Durability::Buffered).expect("commit");
    }
    engine.sync().expect("sync");
    let view = engine.snapshot().expect("snapshot");
    let found = entries(&*view, id, &[], None, Direction::Forward);
    assert!(found.into_iter().eq(expected), "seed {seed}");
}

fn table_count(store: &Arc<dyn ObjectStore>) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let admin = slatedb::admin::AdminBuilder::new("db", store.clone()).build();
    let manifest = runtime
        .expect("a runtime")
        .block_on(admin.read_manifest(None));
    let manifest = manifest.expect("readable").expect("a manifest");
    manifest.l0().len() as u64
}

#[test]
fn a_separate_compactor_merges_what_the_writer_writes() {
    let store = store();
    let engine = open(&store, &options());
    write_much(&engine, 1, 1);
    engine
        .settle()
        .expect("the request returns although no process merges");
    let before = table_count(&store);
    assert!(before > 4, "{before}");
    beside_a_compactor(&store, "db", || {
        write_much(&engine, 2, effort(6, 30, 300) as usize);
        let end = Instant::now() + Duration::from_secs(60);
        while table_count(&store) >= before {
            assert!(Instant::now() < end, "{} tables", table_count(&store));
            std::thread::sleep(Duration::from_millis(20));
        }
        engine.verify().expect("nothing is damaged");
    });
    drop(engine);
    open(&store, &options())
        .verify()
        .expect("nothing is damaged");
}

#[test]
fn the_contract_holds_beside_a_compactor() {
    let store = store();
    let slate = Slate::over(store.clone(), options());
    // The compactor of a path needs a database there.
    drop(SlateEngine::open(store.clone(), "bank", &options()).expect("open"));
    beside_a_compactor(&store, "bank", || {
        assert!(contract::bank(&slate, effort(60, 500, 10_000)) > 0);
    });
    for seed in 0..effort(1, 10, 200) {
        history(&slate, 7000 + seed, 60);
    }
}

/// The entries of a dropped keyspace go, those of others stay, also of keyspaces that are newer than the compactor.
#[test]
fn a_separate_compactor_removes_dropped_keyspaces() {
    let store = store();
    let engine = open(&store, &options());
    let kept = engine.create_keyspace("kept", TOGETHER).expect("create");
    let dropped = engine.create_keyspace("dropped", TOGETHER).expect("create");
    for number in 0..200u32 {
        for id in [kept, dropped] {
            put(&engine, id, &number.to_be_bytes(), &[1; 1000]);
        }
    }
    let bytes = || engine.statistics().disk_bytes;
    beside_a_compactor(&store, "db", || {
        engine.drop_keyspace(dropped).expect("drop");
        let new = engine.create_keyspace("new", TOGETHER).expect("create");
        let end = Instant::now() + Duration::from_secs(60);
        let mut number = 0u32;
        let is_gone = || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.expect("a runtime").block_on(async {
                let reader = slatedb::DbReader::builder("db", store.clone())
                    .build()
                    .await;
                let reader = reader.expect("a reader");
                let start = dropped.0.to_be_bytes().to_vec();
                let end = (dropped.0 + 1).to_be_bytes().to_vec();
                let mut scan = reader.scan(start..end).await.expect("a scan");
                let is_gone = scan.next().await.expect("readable").is_none();
                reader.close().await.expect("closed");
                is_gone
            })
        };
        while !is_gone() {
            assert!(Instant::now() < end, "{} bytes", bytes());
            for _ in 0..40 {
                number += 1;
                put(&engine, new, &number.to_be_bytes(), &[2; 1000]);
            }
            engine.settle().expect("settle");
        }
        let view = engine.snapshot().expect("snapshot");
        let count = |id| entries(&*view, id, &[], None, Direction::Forward).len();
        assert_eq!((count(kept), count(new)), (200, number as usize));
    });
}

#[test]
fn a_compactor_does_not_begin_beside_a_writer_that_merges() {
    let store = store();
    let merging = SlateOptions {
        merges_itself: true,
        ..options()
    };
    let refused = |text: &str| {
        let refused = SlateCompactor::start(store.clone(), "db", &options()).err();
        let told = refused.expect("refused").to_string();
        assert!(told.contains(text), "{told}");
    };
    refused("there is no database");
    let engine = open(&store, &merging);
    refused("merges by itself");
    let id = engine.create_keyspace("k", TOGETHER).expect("create");
    put(&engine, id, b"a", b"1");
    drop(engine);
    refused("merges by itself");
    let engine = open(&store, &options());
    let compactor = SlateCompactor::start(store.clone(), "db", &options()).expect("a compactor");
    put(&engine, id, b"b", b"1");
    // A second one ends the first.
    let second = SlateCompactor::start(store.clone(), "db", &options()).expect("a compactor");
    assert!(matches!(compactor.run(|| false), Err(Error::Fenced { .. })));
    put(&engine, id, b"c", b"1");
    // So does a writer that merges, which is not disturbed.
    let engine = open(&store, &merging);
    assert!(matches!(second.run(|| false), Err(Error::Fenced { .. })));
    refused("merges by itself");
    put(&engine, id, b"d", b"1");
    engine.settle().expect("it merges");
    let view = engine.snapshot().expect("snapshot");
    assert_eq!(entries(&*view, id, &[], None, Direction::Forward).len(), 4);
}

#[test]
fn faults_that_pass_end_no_compactor() {
    for seed in 0..effort(1, 20, 500) {
        let faults = Faults {
            errors: 30,
            lost_replies: 30,
            latency_us: 500,
            ..Faults::default()
        };
        let (store, plan) = FaultyStore::over(store(), seed, Faults::default());
        let engine = open(&store, &options());
        beside_a_compactor(&store, "db", || {
            plan.set(faults);
            write_much(&engine, seed, 3);
            plan.set(Faults::default());
        });
        engine.verify().expect("nothing is damaged");
    }
}

/// The child: merges until it is killed.
#[test]
#[ignore = "only as the child of the test below"]
fn child() {
    if let Ok(directory) = std::env::var(DIRECTORY) {
        let store = files(directory.into());
        let compactor = SlateCompactor::start(store, "db", &in_files(options()));
        let ended = compactor.expect("a compactor").run(|| false);
        panic!("it ended: {ended:?}");
    }
}

fn start_child(directory: &Scratch) -> Child {
    let mut child = Command::new(std::env::current_exe().expect("this binary"));
    let child = child.args(["compactor::child", "--exact", "--ignored", "--nocapture"]);
    let child = child.env(DIRECTORY, directory.path()).stdout(Stdio::null());
    child.spawn().expect("the child starts")
}

/// Writer and compactor are two processes; the compactor is killed again and again.
#[test]
fn a_compactor_that_is_killed_takes_nothing() {
    let directory = Scratch::new("compactor-kill");
    let store = files(directory.path().to_path_buf());
    let engine = open(&store, &in_files(options()));
    let mut random = Random::new(1);
    for round in 0..effort(4, 20, 300) {
        let mut child = start_child(&directory);
        let wait = Duration::from_millis(200 + random.below(600));
        let begun = Instant::now();
        write_much(&engine, round, 1);
        std::thread::sleep(wait.saturating_sub(begun.elapsed()));
        child.kill().expect("killed");
        child.wait().expect("its end");
        engine.verify().expect("nothing is damaged");
    }
    drop(engine);
    let engine = open(&store, &in_files(SlateOptions::tiny()));
    engine.settle().expect("the writer merges");
    engine.verify().expect("nothing is damaged");
    for keyspace in engine.keyspaces() {
        let view = engine.snapshot().expect("snapshot");
        assert!(!entries(&*view, keyspace.id, &[], None, Direction::Forward).is_empty());
    }
}
