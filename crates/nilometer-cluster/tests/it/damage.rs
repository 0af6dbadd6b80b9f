//! Damaged objects are reported, by reads and by verification; no wrong bytes are returned.

use std::path::{Path, PathBuf};

use nilometer_cluster::{SlateEngine, SlateOptions};
use nilometer_storage::testing::contract::{TOGETHER, put};
use nilometer_storage::{Direction, Engine, Error, KeyspaceId};

use crate::support::{Scratch, files, in_files};

const ENTRIES: u32 = 300;

fn value(key: u32) -> Vec<u8> {
    let mut value = key.to_be_bytes().repeat(20);
    value.extend(nilometer_storage::testing::random::Random::new(u64::from(key)).bytes(200));
    value
}

fn open(directory: &Path) -> Result<SlateEngine, Error> {
    let store = files(directory.to_path_buf());
    SlateEngine::open(store, "db", &in_files(SlateOptions::tiny()))
}

fn written(directory: &Path) -> KeyspaceId {
    let engine = open(directory).expect("open");
    let id = engine.create_keyspace("k", TOGETHER).expect("create");
    for key in 0..ENTRIES {
        put(&engine, id, &key.to_be_bytes(), &value(key));
    }
    engine.settle().expect("settle");
    engine.close().expect("close");
    id
}

/// Returns the tables.
fn tables(directory: &Path) -> Vec<PathBuf> {
    let folder = std::fs::read_dir(directory.join("db/compacted")).expect("a folder");
    let mut tables = folder
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "sst"))
        .collect::<Vec<_>>();
    tables.sort();
    tables
}

fn flip(path: &Path, position: usize) {
    let mut bytes = std::fs::read(path).expect("a file");
    bytes[position] ^= 0x55;
    std::fs::write(path, bytes).expect("written");
}

#[test]
fn damaged_blocks_are_reported_and_never_returned() {
    let directory = Scratch::new("damaged-blocks");
    let id = written(directory.path());
    for table in tables(directory.path()) {
        let length = std::fs::metadata(&table).expect("a file").len() as usize;
        flip(&table, length / 3);
    }
    let engine = open(directory.path()).expect("the manifest is whole");
    let damage = engine.verify();
    assert!(
        matches!(damage, Err(Error::Corruption { .. })),
        "{damage:?}"
    );
    let view = engine.snapshot().expect("snapshot");
    let mut reported = 0;
    for key in 0..ENTRIES {
        match view.get(id, &key.to_be_bytes()) {
            Ok(found) => assert_eq!(found.expect("an entry")[..], value(key)),
            Err(error) => {
                assert!(matches!(error, Error::Corruption { .. }), "{error}");
                reported += 1;
            }
        }
    }
    assert!((1..ENTRIES).contains(&reported), "{reported}");
    let scan = view.scan(id, &[], None, Direction::Forward).expect("scan");
    assert!(
        scan.filter(Result::is_err).count() == 1,
        "a scan ends there"
    );
}

#[test]
fn a_missing_table_is_reported() {
    let directory = Scratch::new("missing-table");
    written(directory.path());
    for table in tables(directory.path()) {
        std::fs::remove_file(table).expect("removed");
    }
    let refused = open(directory.path()).err();
    assert!(
        matches!(refused, Some(Error::Corruption { .. })),
        "{refused:?}"
    );
}
