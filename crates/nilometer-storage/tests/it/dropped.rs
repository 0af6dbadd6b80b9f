//! A dropped keyspace releases its files.

use std::path::{Path, PathBuf};

use nilometer_storage::testing::contract::{APART, TOGETHER, put};
use nilometer_storage::{Engine, LsmEngine, LsmOptions};

use crate::support::Scratch;

/// Returns the removed files of a directory that this process still holds open.
fn removed_but_open(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir("/proc/self/fd").expect("descriptors");
    let targets = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let is_removed = |target: &PathBuf| {
        target.starts_with(directory) && target.to_string_lossy().ends_with(" (deleted)")
    };
    targets.filter(is_removed).collect()
}

#[test]
fn files_of_dropped_keyspaces_are_closed() {
    let directory = Scratch::new("dropped");
    let path = directory.path().canonicalize().expect("a directory");
    let engine = LsmEngine::open(&path, LsmOptions::tiny()).expect("open");
    for options in [TOGETHER, APART] {
        let id = engine.create_keyspace("k", options).expect("create");
        for key in 0..2000u32 {
            put(&engine, id, &key.to_be_bytes(), &[7; 500]);
        }
        engine.settle().expect("settle");
        let view = engine.snapshot().expect("snapshot");
        for key in 0..2000u32 {
            assert!(view.get(id, &key.to_be_bytes()).expect("get").is_some());
        }
        engine.drop_keyspace(id).expect("drop");
        // Readers keep the files.
        assert!(view.get(id, &0u32.to_be_bytes()).expect("get").is_some());
        drop(view);
        assert_eq!(removed_but_open(&path), Vec::<PathBuf>::new());
    }
}
