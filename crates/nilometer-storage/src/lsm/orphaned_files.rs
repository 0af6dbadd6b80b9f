//! Files that a failed flush or merge leaves behind, and those of a process that was killed.
//!
//! `lsm-tree` writes tables under new names and removes what no manifest names at the next opening only. A step that
//! finds no room leaves what it wrote so far, and the next try writes it again: a disk that was full would stay full by
//! that alone after others had made room. So a failed step asks for its tree to be looked through, which happens as soon
//! as neither flush nor merge is under way.
//!
//! The pointer to the manifest is written under a name of its own first and then renamed; killed in between, that file
//! stays, and is nobody's. It goes when the tree is opened ([`remove_unrenamed`]).
//!
//! A file is in use if a manifest in the folder of the tree names it. There is one for each version that readers may
//! hold, for it goes with its version.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use super::manifest;
use super::tree::Tree;
use crate::error::Result;
use crate::lock::try_lock;

/// Where a tree keeps the files that its manifests name.
const FOLDERS: [&str; 2] = ["tables", "blobs"];

impl Tree {
    /// Notes that a flush or merge failed.
    pub(crate) fn note_orphans(&self) {
        self.orphaned_files.store(true, Ordering::Release);
    }

    /// Removes what failed steps left. False if it is to be tried again: another step is under way, or no file can be
    /// opened now.
    ///
    /// Where a manifest is damaged all files stay: the next opening will tell of it.
    pub(crate) fn remove_orphans(&self) -> bool {
        if !self.orphaned_files.load(Ordering::Acquire) || self.is_dropped() {
            return true;
        }
        let locks = (try_lock(&self.flushing), try_lock(&self.compacting));
        let (Some(_flushing), Some(_merging)) = locks else {
            return false;
        };
        let named = match self.named_files() {
            Ok(named) => named,
            Err(error) => return !error.may_pass(),
        };
        self.orphaned_files.store(false, Ordering::Release);
        for folder in FOLDERS {
            for (id, path) in numbered(&self.path.join(folder), "") {
                if !named.contains(&(folder, id)) {
                    // What cannot be removed now goes at the next opening.
                    let _ = fs::remove_file(path);
                }
            }
        }
        true
    }

    /// The files that any manifest of this tree names.
    fn named_files(&self) -> Result<HashSet<(&'static str, u64)>> {
        let current = manifest::verify(&self.path)?;
        let newest = manifest::current_id(&self.path);
        let mut named = files_of(&current)?;
        for (id, path) in numbered(&self.path, "v") {
            match files_of(&path) {
                Ok(files) => named.extend(files),
                // Written by halves: the step that made it failed before anybody could hold that version.
                Err(_) if newest.is_some_and(|newest| id > newest) => {}
                // A version that readers let go meanwhile takes its manifest along.
                Err(_) if !path.exists() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(named)
    }
}

/// How the names of files begin that are written before they are renamed.
const HALF: &str = ".tmp";

/// Removes what a process that was killed had not renamed yet. Nobody has the tree open.
pub(super) fn remove_unrenamed(tree: &Path) {
    for entry in fs::read_dir(tree).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_half = name.to_str().is_some_and(|name| name.starts_with(HALF));
        if is_half && entry.file_type().is_ok_and(|kind| kind.is_file()) {
            // What cannot be removed now goes at the next opening.
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn files_of(manifest: &Path) -> Result<HashSet<(&'static str, u64)>> {
    let listed = manifest::list_files(manifest)?;
    Ok(listed
        .into_iter()
        .map(|(folder, id, _)| (folder, id))
        .collect())
}

/// The files of a folder whose names are `prefix` and a number.
fn numbered(folder: &Path, prefix: &str) -> Vec<(u64, PathBuf)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.filter_map(|entry| {
        let name = entry.file_name();
        let number = name.to_str()?.strip_prefix(prefix)?.parse().ok()?;
        Some((number, entry.path()))
    });
    files.collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::lock::lock;
    use crate::testing::contract::{APART, TOGETHER, put};
    use crate::{Engine, LsmEngine, LsmOptions};

    #[test]
    fn what_no_version_names_goes_and_what_readers_hold_stays() {
        let directory = format!("nilometer-{}-orphaned_files", std::process::id());
        let directory = std::env::temp_dir().join(directory);
        let engine = LsmEngine::open(&directory, LsmOptions::tiny()).expect("open");
        for (name, options) in [("together", TOGETHER), ("apart", APART)] {
            let id = engine.create_keyspace(name, options).expect("create");
            let fill = |value: u8| {
                for key in 0..500u32 {
                    put(&engine, id, &key.to_be_bytes(), &[value; 300]);
                }
                engine.settle().expect("settle");
            };
            fill(1);
            let view = engine.snapshot().expect("a snapshot");
            fill(2);
            let tree = engine.core.tree(id).expect("the tree");
            let stray = FOLDERS.map(|folder| tree.path.join(folder).join("99999"));
            let there = || stray.iter().filter(|path| path.exists()).count();
            for path in &stray {
                // A tree whose values are not apart has no folder for them.
                let _ = fs::write(path, "half a table");
            }
            let written = there();
            assert!(written > 0);
            assert!(tree.remove_orphans());
            assert_eq!(there(), written, "nobody said that a step failed");
            let flushing = lock(&tree.flushing);
            tree.note_orphans();
            assert!(!tree.remove_orphans(), "a step is under way");
            drop(flushing);
            while !tree.remove_orphans() {
                std::thread::yield_now();
            }
            assert_eq!(there(), 0);
            for (view, value) in [(view, 1), (engine.snapshot().expect("a snapshot"), 2)] {
                for key in 0..500u32 {
                    let found = view.get(id, &key.to_be_bytes()).expect("get");
                    assert_eq!(found.expect("a value").first(), Some(&value));
                }
            }
            engine.verify().expect("sound");
        }
        let tree = engine.core.trees().values().next().map(Arc::clone);
        let half = tree.expect("a tree").path.join(".tmpAbCdEf");
        drop(engine);
        fs::write(&half, "half a pointer").expect("written");
        let engine = LsmEngine::open(&directory, LsmOptions::tiny()).expect("open");
        assert!(!half.exists(), "a killed process left it");
        drop(engine);
        fs::remove_dir_all(directory).expect("removed");
    }
}
