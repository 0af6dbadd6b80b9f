//! Copies into object storage and out of it.

use std::sync::Arc;

use nilometer_cluster::{SlateEngine, SlateOptions, SlateSource};
use nilometer_storage::testing::contract::{APART, TOGETHER, entries, put};
use nilometer_storage::testing::random::Random;
use nilometer_storage::{
    Direction, Engine, Error, KeyspaceId, LsmEngine, LsmOptions, Snapshot, copy_contents,
    copy_into_directory,
};
use object_store::ObjectStore;
use object_store::memory::InMemory;

use crate::support::Scratch;

fn open(store: &Arc<dyn ObjectStore>) -> Result<SlateEngine, Error> {
    SlateEngine::open(store.clone(), "db", &SlateOptions::tiny())
}

fn create_for_copy(store: &Arc<dyn ObjectStore>) -> Result<SlateEngine, Error> {
    SlateEngine::create_for_copy(store.clone(), "db", &SlateOptions::tiny())
}

fn store() -> Arc<dyn ObjectStore> {
    Arc::new(InMemory::new())
}

/// Fills two keyspaces, one with large values. One that was dropped leaves a gap in the ids.
fn fill(engine: &dyn Engine) {
    let mut random = Random::new(3);
    for (name, options) in [("a", TOGETHER), ("gone", TOGETHER), ("b", APART)] {
        let id = engine.create_keyspace(name, options).expect("create");
        for number in 0..400u16 {
            let length = 1 + random.index(20);
            let key = [random.bytes(length), number.to_be_bytes().to_vec()].concat();
            let length = random.index(3000);
            put(engine, id, &key, &random.bytes(length));
        }
        if name == "gone" {
            engine.drop_keyspace(id).expect("drop");
        }
    }
    engine.create_keyspace("empty", TOGETHER).expect("create");
}

fn compare(one: &dyn Snapshot, other: &dyn Snapshot) {
    assert_eq!(one.keyspaces(), other.keyspaces());
    for keyspace in one.keyspaces() {
        for direction in [Direction::Forward, Direction::Backward] {
            let read = |view| entries(view, keyspace.id, &[], None, direction);
            let (one, other) = (read(one), read(other));
            assert!(
                one == other,
                "{keyspace:?}: {} and {}",
                one.len(),
                other.len()
            );
        }
    }
}

#[test]
fn a_local_database_goes_to_object_storage_and_back() {
    let directory = Scratch::new("copy");
    let path = |name: &str| directory.path().join(name);
    let local = LsmEngine::open(path("first"), LsmOptions::tiny()).expect("open");
    fill(&local);
    let (local, store) = (local.snapshot().expect("snapshot"), store());
    let engine = create_for_copy(&store).expect("a new database");
    let copied = copy_contents(&*local, &engine, &mut |_| {}).expect("a copy");
    assert_eq!(copied.entries, 800);
    assert_eq!((copied.keyspaces_copied, copied.entries_counted), (3, 800));
    compare(&*local, &*engine.snapshot().expect("snapshot"));
    engine.finish_copy().expect("finished");
    drop(engine);
    let engine = open(&store).expect("whole");
    let new = engine.create_keyspace("new", TOGETHER).expect("create");
    assert!(new > KeyspaceId(4), "no id is used again");
    engine.drop_keyspace(new).expect("drop");
    drop(engine);
    let source = SlateSource::open(store.clone(), "db").expect("a source");
    compare(&*local, &source);
    copy_into_directory(&source, None, &path("last"), &mut |_| {}).expect("a copy");
    let last = LsmEngine::open(path("last"), LsmOptions::tiny()).expect("open");
    last.verify().expect("nothing is damaged");
    compare(&*local, &*last.snapshot().expect("snapshot"));
}

#[test]
fn an_interrupted_copy_is_no_database() {
    let store = store();
    let engine = create_for_copy(&store).expect("a new database");
    fill(&engine);
    drop(engine);
    for _ in 0..2 {
        let refused = open(&store).err();
        assert!(
            matches!(refused, Some(Error::UnfinishedCopy { .. })),
            "{refused:?}"
        );
    }
    let refused = SlateSource::open(store.clone(), "db").err();
    assert!(
        matches!(refused, Some(Error::UnfinishedCopy { .. })),
        "{refused:?}"
    );
    let refused = create_for_copy(&store).err();
    assert!(
        matches!(refused, Some(Error::NotEmpty { .. })),
        "{refused:?}"
    );
}

/// A target that is in use is refused before its writer is fenced, and a source in use is not fenced.
#[test]
fn a_copy_disturbs_no_writer() {
    let store = store();
    let engine = open(&store).expect("open");
    fill(&engine);
    let before = engine.snapshot().expect("snapshot");
    let refused = create_for_copy(&store).err();
    assert!(
        matches!(refused, Some(Error::NotEmpty { .. })),
        "{refused:?}"
    );
    let source = SlateSource::open(store.clone(), "db").expect("a source");
    let id = engine.keyspaces()[0].id;
    put(&engine, id, b"later", b"1");
    engine.settle().expect("settle");
    compare(&*before, &source);
    drop(source);
    put(&engine, id, b"later still", b"1");
    let source = SlateSource::open(store.clone(), "db").expect("a source");
    compare(&*engine.snapshot().expect("snapshot"), &source);
    let missing = source.get(KeyspaceId(2), b"a").err();
    assert!(
        matches!(missing, Some(Error::UnknownKeyspace { id: 2 })),
        "{missing:?}"
    );
    assert_eq!(
        source.get(id, b"later").expect("get"),
        Some(b"1".to_vec().into())
    );
}

/// What was acknowledged and is only in the log is part of a copy after a kill.
#[test]
fn a_source_shows_what_only_the_log_has() {
    let store = store();
    let options = SlateOptions {
        memtable_bytes: 64 * 1024 * 1024,
        memory_bytes_max: 256 * 1024 * 1024,
        ..SlateOptions::tiny()
    };
    let engine = SlateEngine::open(store.clone(), "db", &options).expect("open");
    fill(&engine);
    let source = SlateSource::open(store.clone(), "db").expect("a source");
    compare(&*engine.snapshot().expect("snapshot"), &source);
    // As after a kill: nothing is flushed.
    std::mem::forget(engine);
    assert!(SlateSource::open(store.clone(), "nowhere").is_err());
}
