//! Removal of files left by failed flushes and merges, and by killed processes.
//!
//! `lsm-tree` writes tables under new names and removes unnamed files only when it opens. A step that runs out of space
//! leaves its partial output, and the retry writes it again, so a disk that was full would stay full after space was
//! freed. So a failed step requests a cleanup of its tree, which runs as soon as neither a flush nor a merge is in
//! flight.
//!
//! The manifest pointer is written to a temporary file and then renamed. A process killed in between leaves the
//! temporary file; [`remove_unrenamed`] removes it when the tree is opened.
//!
//! A file is in use if any manifest in the tree's folder names it. There is one manifest for each version that readers
//! hold; it is removed with its version.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use super::manifest;
use super::tree::Tree;
use crate::error::Result;
use crate::lock::try_lock;

/// Folders of the files that manifests name.
const FOLDERS: [&str; 2] = ["tables", "blobs"];

impl Tree {
    /// Records that a flush or merge failed.
    pub(crate) fn note_orphans(&self) {
        self.orphaned_files.store(true, Ordering::Release);
    }

    /// Removes orphaned files. Returns false if the caller has to retry: another step is in flight, or files cannot be
    /// opened at the moment.
    ///
    /// If a manifest is damaged, all files stay; the next opening reports the damage.
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
                    // The next opening removes what cannot be removed now.
                    let _ = fs::remove_file(path);
                }
            }
        }
        true
    }

    /// Returns the files that any manifest of this tree names.
    fn named_files(&self) -> Result<HashSet<(&'static str, u64)>> {
        let current = manifest::verify(&self.path)?;
        let newest = manifest::current_id(&self.path);
        let mut named = files_of(&current)?;
        for (id, path) in numbered(&self.path, "v") {
            match files_of(&path) {
                Ok(files) => named.extend(files),
                // Partially written: its step failed before the version was installed.
                Err(_) if newest.is_some_and(|newest| id > newest) => {}
                // Readers released the version, which removes its manifest.
                Err(_) if !path.exists() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(named)
    }
}

/// Prefix of temporary files that are renamed once they are written.
const TEMPORARY_PREFIX: &str = ".tmp";

/// Removes temporary files of a killed process. The tree must not be open.
pub(super) fn remove_unrenamed(tree: &Path) {
    for entry in fs::read_dir(tree).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_temporary = name
            .to_str()
            .is_some_and(|name| name.starts_with(TEMPORARY_PREFIX));
        if is_temporary && entry.file_type().is_ok_and(|kind| kind.is_file()) {
            // The next opening removes what cannot be removed now.
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

/// Returns the files of a folder whose names are `prefix` and a number.
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
    fn orphaned_files_are_removed_and_files_of_readers_stay() {
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
                // A tree without separated values has no folder for them.
                let _ = fs::write(path, "half a table");
            }
            let written = there();
            assert!(written > 0);
            assert!(tree.remove_orphans());
            assert_eq!(there(), written, "no step failed");
            let flushing = lock(&tree.flushing);
            tree.note_orphans();
            assert!(!tree.remove_orphans(), "a flush is in flight");
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
        assert!(!half.exists(), "left by a killed process");
        drop(engine);
        fs::remove_dir_all(directory).expect("removed");
    }
}
