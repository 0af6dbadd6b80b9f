//! A keyspace that was never flushed needs no files; others do.

use std::fs;
use std::path::Path;

use nilometer_storage::testing::contract::{APART, LARGE_BLOCKS, SHORT_LIVED, TOGETHER, put};
use nilometer_storage::{Engine, Error, KeyspaceId, LsmEngine, LsmOptions};

use crate::damage::copy;
use crate::support::Scratch;

const KEYS: u32 = 40;

fn open(path: &Path) -> LsmEngine {
    let options = LsmOptions {
        memtable_bytes: 1 << 20,
        memory_bytes_max: 4 << 20,
        log_bytes_max: 4 << 20,
        ..LsmOptions::tiny()
    };
    LsmEngine::open(path, options).expect("open")
}

fn fill(engine: &LsmEngine, ids: &[KeyspaceId], from: u32) {
    for id in ids {
        for key in from..from + KEYS {
            put(engine, *id, &key.to_be_bytes(), &[key as u8; 300]);
        }
    }
}

fn check(engine: &LsmEngine, ids: &[KeyspaceId], keys: u32) {
    let view = engine.snapshot().expect("snapshot");
    for id in ids {
        for key in 0..keys {
            let found = view.get(*id, &key.to_be_bytes()).expect("get");
            assert_eq!(found, Some(vec![key as u8; 300].into()), "{id:?} {key}");
        }
    }
}

fn tree(path: &Path, id: KeyspaceId) -> std::path::PathBuf {
    path.join("trees").join(id.0.to_string())
}

/// Its name, and what it does to the folder of a tree.
type Loss = (&'static str, fn(&Path));

/// What may happen to a folder.
const LOSSES: [Loss; 5] = [
    ("the folder", |tree| {
        fs::remove_dir_all(tree).expect("removed");
    }),
    ("all in it", |tree| {
        fs::remove_dir_all(tree).expect("removed");
        fs::create_dir(tree).expect("created");
    }),
    ("the pointer", |tree| {
        fs::remove_file(tree.join("current")).expect("removed");
    }),
    ("the bytes of the pointer", |tree| {
        fs::write(tree.join("current"), "").expect("written");
    }),
    ("the bytes of the manifest", |tree| {
        let length = fs::read(tree.join("v0")).expect("read").len();
        fs::write(tree.join("v0"), vec![0; length]).expect("written");
    }),
];

/// Each keyspace is without a folder, or has what a crash in its first flush has left.
#[test]
fn unflushed_keyspaces_need_no_files() {
    let directory = Scratch::new("unflushed");
    let running = directory.path().join("running");
    let engine = open(&running);
    let new = [("t", TOGETHER), ("a", APART), ("s", SHORT_LIVED)];
    let ids = engine.create_keyspaces(&new).expect("create");
    fill(&engine, &ids, 0);
    let empty_of = |image: &Path, id: KeyspaceId| {
        let name = match id == ids[1] {
            true => "empty-separated",
            false => "empty",
        };
        image.join("trees").join(name)
    };
    let whole: Loss = ("whole", |_| {});
    let rounds = [None, Some(whole)].into_iter().chain(LOSSES.map(Some));
    for loss in rounds {
        let (what, lose) = loss.unzip();
        let what = what.unwrap_or("nothing");
        let image = directory.path().join(what);
        copy(&running, &image);
        for id in &ids {
            assert!(
                !tree(&image, *id).exists(),
                "no file before the first flush"
            );
            if let Some(lose) = lose {
                copy(&empty_of(&image, *id), &tree(&image, *id));
                lose(&tree(&image, *id));
            }
        }
        if let Some(lose) = lose {
            lose(&empty_of(&image, ids[0]));
            lose(&empty_of(&image, ids[1]));
        }
        let engine = open(&image);
        check(&engine, &ids, KEYS);
        engine
            .verify()
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        fill(&engine, &ids, KEYS);
        engine.settle().expect("settle");
        engine.close().expect("close");
        drop(engine);
        let engine = open(&image);
        check(&engine, &ids, 2 * KEYS);
        engine
            .verify()
            .unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}

#[test]
fn files_of_flushed_keyspaces_may_not_be_lost() {
    let directory = Scratch::new("flushed");
    let running = directory.path().join("running");
    let engine = open(&running);
    let new = [("t", TOGETHER), ("a", APART), ("s", SHORT_LIVED)];
    let ids = engine.create_keyspaces(&new).expect("create");
    fill(&engine, &ids, 0);
    engine.settle().expect("settle");
    engine.close().expect("close");
    drop(engine);
    for id in &ids {
        for (what, lose) in &LOSSES[..4] {
            let image = directory.path().join(format!("{what} of {}", id.0));
            copy(&running, &image);
            lose(&tree(&image, *id));
            let opened = LsmEngine::open(&image, LsmOptions::tiny()).err();
            let refused = matches!(opened, Some(Error::Corruption { .. }));
            assert!(refused, "{what}: {opened:?}");
        }
    }
}

/// A database of an older build, whose keyspaces are all flushed and whose format is 1, gets the newer format with the
/// first keyspace that is created.
#[test]
fn an_older_format_is_raised_by_a_new_keyspace() {
    let directory = Scratch::new("raised");
    let path = directory.path().join("db");
    let engine = open(&path);
    let old = engine.create_keyspace("old", APART).expect("create");
    fill(&engine, &[old], 0);
    engine.settle().expect("settle");
    let older = directory.path().join("older");
    engine.checkpoint(&older).expect("checkpoint");
    let format = || fs::read_to_string(older.join("FORMAT")).expect("a format");
    assert_eq!(format(), "nilometer storage format 1\n");
    let engine = open(&older);
    check(&engine, &[old], KEYS);
    assert_eq!(format(), "nilometer storage format 1\n");
    let new = engine.create_keyspace("new", APART).expect("create");
    assert_eq!(format(), "nilometer storage format 3\n");
    let large = engine.create_keyspace("large", LARGE_BLOCKS);
    let large = large.expect("create");
    assert_eq!(format(), "nilometer storage format 4\n");
    fill(&engine, &[new, large], 0);
    engine.settle().expect("settle");
    let newer = directory.path().join("newer");
    engine.checkpoint(&newer).expect("checkpoint");
    drop(engine);
    for path in [older, newer] {
        assert_eq!(
            fs::read_to_string(path.join("FORMAT")).expect("a format"),
            "nilometer storage format 4\n"
        );
        let engine = open(&path);
        check(&engine, &[old, new, large], KEYS);
        let keyspaces = engine.keyspaces();
        let found = keyspaces.iter().find(|keyspace| keyspace.id == large);
        assert_eq!(found.map(|found| found.options), Some(LARGE_BLOCKS));
    }
}
