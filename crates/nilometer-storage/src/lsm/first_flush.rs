//! Keyspaces before their first flush, which have no files.
//!
//! Until a keyspace is flushed for the first time, all its entries are in the log, so that it needs no files. Making and
//! syncing them costs milliseconds, and several waits for the device, for each keyspace. The list of trees calls such a
//! keyspace unflushed:
//!
//! ```text
//! create        name the keyspace in the list, unflushed; sync the list
//! open          remove what an interrupted first flush has left
//! first flush   write the files of an empty tree, sync them and their folders; name the keyspace in the list without the
//!               mark; sync the list; flush
//! ```
//!
//! So an unflushed tree has no entry in tables, and the files of every other tree are durable: their absence is damage.
//!
//! `lsm-tree` opens a tree in a folder only, and reads that folder while it opens it. So there is one empty tree of each
//! kind, `trees/empty` and `trees/empty-separated`, which has the name of the unflushed tree for that moment. The first of a process is
//! made by `lsm-tree`; its bytes are those of all others. Nothing of them has to survive a crash.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::core::Core;
use super::directory;
use super::manifest;
use super::tree::{Tree, TreeContext};
use super::tree_list::TreeList;
use crate::engine::Keyspace;
use crate::error::{Error, Result};
use crate::lock::lock;

/// The folders of a tree whose values are separated; others have the first alone.
const FOLDERS: [&str; 2] = ["tables", "blobs"];

/// The folders of empty trees without and with separated values. No id is such a name.
const EMPTY_FOLDERS: [&str; 2] = ["empty", "empty-separated"];

/// What is in the files of an empty tree, for trees without and with separated values.
static EMPTY_TREES: [OnceLock<EmptyTree>; 2] = [OnceLock::new(), OnceLock::new()];

/// The contents of the files of an empty tree.
struct EmptyTree {
    manifest_name: PathBuf,
    manifest: Vec<u8>,
    current: Vec<u8>,
}

impl EmptyTree {
    /// Reads the files of an empty tree.
    fn read(path: &Path) -> Result<Self> {
        let manifest = manifest::verify(path)?;
        let read = |file: &Path| fs::read(file).map_err(|source| Error::io("read", file, source));
        Ok(Self {
            manifest: read(&manifest)?,
            manifest_name: manifest.file_name().map(PathBuf::from).unwrap_or_default(),
            current: read(&path.join("current"))?,
        })
    }

    /// Writes the files without syncing them.
    fn write(&self, path: &Path, separate_values: bool) -> Result<()> {
        let write = || {
            for folder in folders(separate_values) {
                fs::create_dir_all(path.join(folder))?;
            }
            fs::write(path.join(&self.manifest_name), &self.manifest)?;
            fs::write(path.join("current"), &self.current)
        };
        write().map_err(|source| Error::io("create a tree in", path, source))
    }
}

fn folders(separate_values: bool) -> &'static [&'static str] {
    match separate_values {
        true => &FOLDERS,
        false => &FOLDERS[..1],
    }
}

impl Tree {
    /// Opens a keyspace of which no flush has begun.
    pub(super) fn open_unflushed(context: &TreeContext, keyspace: Keyspace) -> Result<Self> {
        let trees = context.directory.trees();
        let path = directory::tree_path(&trees, keyspace.id.0);
        let mut is_made = lock(&context.empty_trees);
        remove_remains(&path)?;
        let kind = usize::from(keyspace.options.separate_values);
        let empty = trees.join(EMPTY_FOLDERS[kind]);
        if !is_made[kind] {
            make_empty(context, &keyspace, &empty)?;
            is_made[kind] = true;
        }
        let rename = |from: &Path, to: &Path| {
            fs::rename(from, to).map_err(|source| Error::io("rename", from, source))
        };
        // Until the tree is open and the folder has its name again it may be lost.
        is_made[kind] = false;
        rename(&empty, &path)?;
        let tree = Self::open_unchecked(context, keyspace, path.clone(), true)?;
        rename(&path, &empty)?;
        is_made[kind] = true;
        Ok(tree)
    }

    /// Writes the files of an empty tree in the place of those that an attempt before may have left.
    fn write_empty(&self) -> Result<()> {
        let separate_values = self.keyspace.options.separate_values;
        let empty = EMPTY_TREES[usize::from(separate_values)].get();
        let empty = empty.expect("an unflushed tree was opened by an empty one");
        empty.write(&self.path, separate_values)
    }

    /// Makes the files durable, and everything they need to be found.
    fn sync_files(&self) -> Result<()> {
        let sync = |path: &Path| {
            let synced = File::open(path).and_then(|file| file.sync_all());
            synced.map_err(|source| Error::io("sync", path, source))
        };
        sync(&manifest::verify(&self.path)?)?;
        sync(&self.path.join("current"))?;
        for folder in folders(self.keyspace.options.separate_values) {
            directory::sync(&self.path.join(folder))?;
        }
        directory::sync(&self.path)?;
        self.path.parent().map_or(Ok(()), directory::sync)
    }
}

/// Removes what an interrupted first flush of an unflushed keyspace has left. Refuses a folder with tables.
fn remove_remains(path: &Path) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    let listed = manifest::verify(path).and_then(|manifest| manifest::list_files(&manifest));
    if let Ok(files) = listed
        && !files.is_empty()
    {
        let found = format!("{} files", files.len());
        let expected = "no file of an unflushed keyspace";
        return Err(Error::corruption("manifest", path, 0, expected, found));
    }
    fs::remove_dir_all(path).map_err(|source| Error::io("remove", path, source))
}

/// Makes the folder of an empty tree of the kind of `keyspace`.
fn make_empty(context: &TreeContext, keyspace: &Keyspace, folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|source| Error::io("remove", folder, source))?;
    }
    let separate_values = keyspace.options.separate_values;
    let empty = &EMPTY_TREES[usize::from(separate_values)];
    if let Some(empty) = empty.get() {
        return empty.write(folder, separate_values);
    }
    let path = folder.to_path_buf();
    drop(Tree::open_unchecked(context, keyspace.clone(), path, true)?);
    let read = EmptyTree::read(folder)?;
    empty.get_or_init(|| read);
    Ok(())
}

impl TreeList {
    /// Makes the files of a tree durable before its first flush. False if it is dropped and has none.
    pub(super) fn begin_flushes(&mut self, context: &TreeContext, tree: &Tree) -> Result<bool> {
        let id = tree.keyspace.id;
        if !self.unflushed.contains(&id) {
            return Ok(!tree.is_unflushed());
        }
        let path = context.directory.path();
        let _wait = (context.pending_io).begin("sync a new tree in", tree.path.as_path());
        tree.write_empty()?;
        tree.sync_files()?;
        let mut changed = self.clone();
        changed.unflushed.remove(&id);
        changed.write(path)?;
        *self = changed;
        tree.note_begun_flushes();
        Ok(true)
    }
}

impl Core {
    /// Makes the files of a tree durable before its first flush. False if it is dropped and has none. The caller holds
    /// [`Tree::flushing`].
    pub(super) fn begin_flushes(&self, tree: &Tree) -> Result<bool> {
        match tree.is_unflushed() {
            true => lock(&self.list).begin_flushes(&self.context, tree),
            false => Ok(true),
        }
    }
}
