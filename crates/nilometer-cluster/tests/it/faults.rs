//! A store that fails, answers late, loses answers and refuses for a while takes nothing that was acknowledged.
//!
//! SlateDB repeats what failed, and recognizes an object of its own whose answer was lost by an id in the object's
//! metadata. What it cannot survive ends the engine with an error.

use std::sync::Arc;

use nilometer_cluster::{SlateEngine, SlateOptions};
use nilometer_storage::testing::contract::{self, Factory, TOGETHER};
use nilometer_storage::testing::model::history;
use nilometer_storage::testing::random::Random;
use nilometer_storage::{Direction, Durability, Engine, Error, KeyspaceId, WriteBatch};
use object_store::ObjectStore;
use object_store::memory::InMemory;

use crate::faulty::{FaultPlan, Faults, FaultyStore};
use crate::support::{Slate, effort};

const WRITERS: u64 = 4;

/// All faults that pass.
const PASSING: Faults = Faults {
    errors: 40,
    lost_replies: 40,
    stretches: 5,
    stretch_length: 4,
    latency_us: 1000,
    ignores_conditions: false,
    refuses_conditions: false,
    drops_metadata: false,
    refuses_puts: false,
    permits_nothing: false,
};

/// The number and the two entries of each batch of a writer.
fn batch(id: KeyspaceId, writer: u64, number: u64) -> WriteBatch {
    let mut batch = WriteBatch::new();
    let key = [writer.to_be_bytes(), number.to_be_bytes()].concat();
    batch.put(id, key, number.to_be_bytes().repeat(30));
    batch.put(
        id,
        [b"last".as_slice(), &writer.to_be_bytes()].concat(),
        number.to_be_bytes().to_vec(),
    );
    batch
}

/// Commits up to `batches` for each writer, each until one fails. Returns how many were acknowledged, and the errors.
fn write(engine: &SlateEngine, id: KeyspaceId, batches: u64) -> (Vec<u64>, Vec<Error>) {
    let mut outcomes = Vec::new();
    std::thread::scope(|scope| {
        let writers = (0..WRITERS).map(|writer| {
            scope.spawn(move || {
                for number in 0..batches {
                    let batch = batch(id, writer, number);
                    if let Err(error) = engine.commit(batch, Durability::Sync) {
                        return (number, Some(error));
                    }
                }
                (batches, None)
            })
        });
        let writers = writers.collect::<Vec<_>>();
        outcomes.extend(
            writers
                .into_iter()
                .map(|writer| writer.join().expect("a writer")),
        );
    });
    let errors = outcomes.iter_mut().filter_map(|(_, error)| error.take());
    let errors = errors.collect();
    (
        outcomes.into_iter().map(|(acked, _)| acked).collect(),
        errors,
    )
}

/// Compares the batches in the engine with those that were acknowledged: of each writer all of these, at most one more,
/// none by half.
fn compare(engine: &SlateEngine, id: KeyspaceId, acknowledged: &[u64]) {
    let view = engine.snapshot().expect("snapshot");
    for (writer, acked) in (0u64..).zip(acknowledged) {
        let (start, end) = (writer.to_be_bytes(), (writer + 1).to_be_bytes());
        let scan = view.scan(id, &start, Some(&end), Direction::Forward);
        let found = scan.expect("scan").map(|entry| entry.expect("readable"));
        let found = found.collect::<Vec<_>>();
        for (number, (key, value)) in (0u64..).zip(&found) {
            assert_eq!(key[8..], number.to_be_bytes());
            assert_eq!(value[..], number.to_be_bytes().repeat(30));
        }
        let there = found.len() as u64;
        assert!(
            (*acked..=acked + 1).contains(&there),
            "writer {writer}: {there} of {acked}"
        );
        let last = [b"last".as_slice(), &writer.to_be_bytes()].concat();
        let last = view.get(id, &last).expect("get");
        let last =
            last.map(|value| u64::from_be_bytes(value[..].try_into().expect("a number")) + 1);
        assert_eq!(last.unwrap_or(0), there, "half a batch");
    }
}

struct Opened {
    store: Arc<dyn ObjectStore>,
    plan: Arc<FaultPlan>,
    engine: SlateEngine,
    id: KeyspaceId,
}

/// Opens an engine with a keyspace over a store that has no faults yet.
fn opened(seed: u64) -> Opened {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let (faulty, plan) = FaultyStore::over(store.clone(), seed, Faults::default());
    let engine = SlateEngine::open(faulty, "db", &SlateOptions::tiny()).expect("open");
    let id = engine.create_keyspace("k", TOGETHER).expect("create");
    Opened {
        store,
        plan,
        engine,
        id,
    }
}

fn reopen(store: &Arc<dyn ObjectStore>) -> SlateEngine {
    SlateEngine::open(store.clone(), "db", &SlateOptions::tiny()).expect("open")
}

#[test]
fn faults_that_pass_take_nothing_and_refuse_nothing() {
    let mut injected = 0;
    for seed in 0..effort(3, 40, 1000) {
        let Opened {
            store,
            plan,
            engine,
            id,
        } = opened(seed);
        plan.set(PASSING);
        let (acknowledged, errors) = write(&engine, id, 60);
        assert!(errors.is_empty(), "seed {seed}: {errors:?}");
        injected += plan.injected();
        compare(&engine, id, &acknowledged);
        drop(engine);
        compare(&reopen(&store), id, &acknowledged);
    }
    assert!(injected > 0);
}

#[test]
fn histories_over_a_faulty_store() {
    for seed in 0..effort(2, 20, 500) {
        let (store, plan) = FaultyStore::over(Arc::new(InMemory::new()), seed, PASSING);
        history(&Slate::over(store, SlateOptions::tiny()), 5000 + seed, 100);
        assert!(plan.injected() > 0);
    }
}

#[test]
fn the_bank_balances_over_a_faulty_store() {
    let (store, plan) = FaultyStore::over(Arc::new(InMemory::new()), 1, PASSING);
    let factory: &dyn Factory = &Slate::over(store, SlateOptions::tiny());
    let sums = contract::bank(factory, effort(20, 200, 5000));
    assert!(sums > 0 && plan.injected() > 0);
}

/// While a writer is at work on a failing store, another takes over. What the first acknowledged before is there, and it
/// acknowledges nothing after.
#[test]
fn a_takeover_over_a_faulty_store_takes_nothing() {
    for seed in 0..effort(3, 40, 1000) {
        let Opened {
            store,
            plan,
            engine,
            id,
        } = opened(seed);
        plan.set(PASSING);
        let (second, (acknowledged, errors)) = std::thread::scope(|scope| {
            let wait = Random::new(seed).below(300);
            let store = &store;
            let second = scope.spawn(move || {
                // A moment of the first writer's work, by the seed.
                std::thread::sleep(std::time::Duration::from_millis(wait));
                reopen(store)
            });
            let written = write(&engine, id, 100_000);
            (second.join().expect("an engine"), written)
        });
        for error in errors {
            assert!(
                matches!(error, Error::Fenced { .. }),
                "seed {seed}: {error:?}"
            );
        }
        compare(&second, id, &acknowledged);
        assert!(engine.snapshot().is_err());
        let late = engine.commit(batch(id, 0, acknowledged[0]), Durability::Sync);
        assert!(matches!(late, Err(Error::Fenced { .. })), "{late:?}");
        drop(engine);
        compare(&second, id, &acknowledged);
    }
}

/// Without the metadata a writer cannot recognize its own object when the answer was lost, and takes it for that of
/// another writer.
#[test]
fn a_lost_reply_without_metadata_is_an_error_and_loses_nothing() {
    for seed in 0..effort(3, 20, 500) {
        let Opened {
            store,
            plan,
            engine,
            id,
        } = opened(seed);
        plan.set(Faults {
            lost_replies: 30,
            drops_metadata: true,
            ..Faults::default()
        });
        let (acknowledged, errors) = write(&engine, id, 100_000);
        assert_eq!(errors.len() as u64, WRITERS);
        for error in errors {
            let ends = matches!(error, Error::Fenced { .. } | Error::Ended { .. });
            assert!(ends, "seed {seed}: {error:?}");
        }
        assert!(engine.check_writable().is_err());
        drop(engine);
        compare(&reopen(&store), id, &acknowledged);
    }
}

#[test]
fn a_store_that_takes_no_objects_any_more_ends_the_engine() {
    let Opened {
        store,
        plan,
        engine,
        id,
    } = opened(1);
    let (acknowledged, _) = write(&engine, id, 5);
    plan.set(Faults {
        refuses_puts: true,
        ..Faults::default()
    });
    let refused = engine.commit(batch(id, 0, 5), Durability::Sync);
    assert!(refused.is_err());
    let refused = engine.check_writable();
    assert!(matches!(refused, Err(Error::Ended { .. })), "{refused:?}");
    assert!(engine.snapshot().is_err());
    drop(engine);
    compare(&reopen(&store), id, &acknowledged);
}

/// A store that refuses everything for now is waited for, which can be seen.
#[test]
fn a_store_that_is_away_is_waited_for() {
    let Opened {
        store,
        plan,
        engine,
        id,
    } = opened(1);
    plan.set(Faults {
        permits_nothing: true,
        ..Faults::default()
    });
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| engine.commit(batch(id, 0, 0), Durability::Sync));
        while !engine
            .disk_waits()
            .in_flight
            .iter()
            .any(|wait| wait.what.contains("which fails"))
        {
            std::thread::yield_now();
        }
        assert!(!waiting.is_finished());
        plan.set(Faults::default());
        waiting.join().expect("a writer").expect("a commit");
    });
    assert_eq!(engine.disk_waits().in_flight, []);
    drop(engine);
    compare(&reopen(&store), id, &[1]);
}
