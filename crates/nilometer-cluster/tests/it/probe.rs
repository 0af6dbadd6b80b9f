//! Stores in which two writers could be at work are refused.

use std::sync::Arc;

use futures::StreamExt;
use nilometer_cluster::{SlateOptions, StorageUrl, StoreAbilities, probe};
use nilometer_storage::testing::contract::{TOGETHER, put};
use nilometer_storage::{Engine, Error};
use object_store::ObjectStore;
use object_store::memory::InMemory;

use crate::faulty::{Faults, FaultyStore};
use crate::support::{Scratch, files};

fn run(store: &Arc<dyn ObjectStore>) -> Result<StoreAbilities, Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.enable_all().build().expect("a runtime");
    let probed = runtime.block_on(probe(store, "db"));
    let left = runtime.block_on(store.list(None).count());
    assert_eq!(left, 0, "nothing is left behind");
    probed
}

fn refusal(faults: Faults) -> String {
    let (store, _) = FaultyStore::over(Arc::new(InMemory::new()), 1, faults);
    let refused = run(&store).expect_err("refused");
    assert!(matches!(refused, Error::Store { .. }), "{refused:?}");
    refused.to_string()
}

#[test]
fn memory_and_files_create_objects_only_once() {
    let directory = Scratch::new("probe");
    let memory: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let abilities = run(&memory).expect("fit");
    assert!(abilities.has_conditional_overwrites);
    let abilities = run(&files(directory.path().to_path_buf())).expect("fit");
    assert!(!abilities.has_conditional_overwrites);
}

#[test]
fn a_store_that_ignores_the_condition_is_refused() {
    let refusal = refusal(Faults {
        ignores_conditions: true,
        ..Faults::default()
    });
    assert!(
        refusal.contains("8 of 8 concurrent requests to create one object succeeded"),
        "{refusal}"
    );
    assert!(
        refusal.contains("two writers could be at work at once"),
        "{refusal}"
    );
}

#[test]
fn a_store_that_refuses_the_condition_is_refused() {
    let refusal = refusal(Faults {
        refuses_conditions: true,
        ..Faults::default()
    });
    assert!(
        refusal.contains("refuses to create an object only if it is absent"),
        "{refusal}"
    );
}

/// An answer that is lost is no reason to refuse a store.
#[test]
fn lost_replies_do_not_make_two_winners() {
    let mut injected = 0;
    for seed in 0..20 {
        let faults = Faults {
            latency_us: 500,
            lost_replies: 30,
            ..Faults::default()
        };
        let (store, plan) = FaultyStore::over(Arc::new(InMemory::new()), seed, faults);
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        match runtime.block_on(probe(&store, "db")) {
            Ok(_) => {}
            // Reading or removing an object is not repeated here; the client of a real store repeats it.
            Err(refused) => assert!(refused.to_string().contains("cannot"), "{refused}"),
        }
        injected += plan.injected();
    }
    assert!(injected > 0);
}

#[test]
fn a_url_of_a_directory_opens_a_database_in_synced_files() {
    let directory = Scratch::new("url");
    let url = format!("file://{}/data", directory.path().display());
    let url = StorageUrl::parse(&url, None, None).expect("a URL");
    assert!(url.open_source().is_err(), "there is none");
    let open = || url.open(SlateOptions::tiny()).expect("open");
    let engine = open();
    let id = engine.create_keyspace("k", TOGETHER).expect("create");
    put(&engine, id, b"a", b"1");
    drop(engine);
    let engine = open();
    let view = engine.snapshot().expect("snapshot");
    assert_eq!(view.get(id, b"a").expect("get"), Some(b"1".to_vec().into()));
}

#[test]
fn a_store_that_permits_nothing_says_so() {
    let faults = Faults {
        permits_nothing: true,
        ..Faults::default()
    };
    let (store, plan) = FaultyStore::over(Arc::new(InMemory::new()), 1, faults);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let refused = runtime.block_on(probe(&store, "db")).expect_err("refused");
    assert!(
        refused
            .to_string()
            .contains("the credentials do not permit it"),
        "{refused}"
    );
    plan.set(Faults::default());
    run(&store).expect("fit");
}
