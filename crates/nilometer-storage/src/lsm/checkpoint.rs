//! Online copies of the database, made of hard links.
//!
//! ```text
//! block creating and dropping of keyspaces; pin the log
//! each tree that was ever flushed: hold its version lock; link current, the manifest it names, tables/*, blobs/*; unlock
//! begin a new segment; link all sealed ones and list them; copy the list of trees
//! sync, and write FORMAT last: without it the copy is not a database
//! ```
//!
//! Tables never change and `current` is replaced by renaming, so links are safe. The log is linked after the trees and
//! reaches at least as far. Linked segments are not recycled. Where links cannot be made (another file system), files
//! are copied.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use lsm_tree::AbstractTree;

use super::core::Core;
use super::directory::{log_path, sync, tree_path, trees_path, write_format};
use super::log::{SealedSegment, SegmentRange, write_segment_list};
use super::manifest;
use super::tree::Tree;
use crate::error::{Error, Result};
use crate::file_system::{copy_private, create_private_directory};
use crate::lock::lock;

/// Folders of a tree whose files never change once a manifest names them.
const FOLDERS: [&str; 2] = ["tables", "blobs"];

impl Core {
    /// Copies the current database into the empty or absent directory `target`.
    pub(crate) fn checkpoint(&self, target: &Path) -> Result<()> {
        self.health.check_writable()?;
        make_empty(target, self.context.directory.path())?;
        let linked = self.link_files(target)?;
        write_format(target, linked.format_version)?;
        if let Some(parent) = target
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
        {
            sync(parent)?;
        }
        Ok(())
    }

    /// Links the files of the current database, `FORMAT` apart, into the empty directory `target`.
    pub(crate) fn link_files(&self, target: &Path) -> Result<LinkedFiles> {
        let list = lock(&self.list);
        let pinned = LogPin::new(self);
        create(&trees_path(target))?;
        for (id, tree) in self.trees().iter() {
            // The copy needs no files of an unflushed tree.
            if !list.unflushed.contains(id) {
                link_tree(tree, &tree_path(&trees_path(target), id.0))?;
            }
        }
        sync(&trees_path(target))?;
        let log = log_path(target);
        create(&log)?;
        let linked = self.seal_log(list.format_version())?;
        for segment in &linked.segments {
            link(&segment.path, &log)?;
        }
        drop(pinned);
        let range = SegmentRange {
            first: linked.segments.first().map_or(0, |segment| segment.id),
            last: linked.segments.last().map_or(0, |segment| segment.id),
        };
        write_segment_list(&log, &*self.context.options.file_system, range)?;
        sync(&log)?;
        list.write(target)?;
        Ok(linked)
    }

    /// Begins a new segment and returns all sealed ones.
    fn seal_log(&self, format_version: u32) -> Result<LinkedFiles> {
        let mut log = self.log.lock();
        self.log.begin_segment(&mut log)?;
        Ok(LinkedFiles {
            segments: log.sealed.iter().cloned().collect(),
            next_segment: log.segment(),
            next_index: log.next_index(),
            last_sequence: log.last_sequence(),
            format_version,
        })
    }
}

/// What a checkpoint has linked.
pub(crate) struct LinkedFiles {
    pub(crate) segments: Vec<SealedSegment>,
    /// The segment with the batches after the checkpoint.
    pub(crate) next_segment: u64,
    /// Index of the first of them.
    pub(crate) next_index: u64,
    /// Sequence number of the batch before it.
    pub(crate) last_sequence: u64,
    pub(crate) format_version: u32,
}

/// Pins the segments of the log while it lives.
struct LogPin<'a>(&'a Core);

impl<'a> LogPin<'a> {
    fn new(core: &'a Core) -> Self {
        core.log.pin();
        Self(core)
    }
}

impl Drop for LogPin<'_> {
    fn drop(&mut self) {
        self.0.log.unpin();
    }
}

/// Creates the empty directory `target`. Refuses one that is not empty or lies within `source`.
pub(crate) fn make_empty(target: &Path, source: &Path) -> Result<()> {
    if lies_within(target, source) {
        return Err(Error::Within {
            path: target.to_path_buf(),
            database: source.to_path_buf(),
        });
    }
    create(target)?;
    let mut entries = fs::read_dir(target).map_err(|source| Error::io("list", target, source))?;
    if entries.next().is_some() {
        return Err(Error::NotEmpty {
            path: target.to_path_buf(),
        });
    }
    Ok(())
}

/// True if `target`, which need not exist, is the folder `source` or lies in it.
fn lies_within(target: &Path, source: &Path) -> bool {
    let named = |path: &Path| match path.as_os_str().is_empty() {
        true => fs::canonicalize("."),
        false => fs::canonicalize(path),
    };
    let nearest = target.ancestors().find_map(|path| named(path).ok());
    nearest
        .zip(named(source).ok())
        .is_some_and(|(target, source)| target.starts_with(source))
}

/// Makes the entries of a folder and of all folders in it durable.
pub(super) fn sync_folders(folder: &Path) -> Result<()> {
    let failed = |source| Error::io("list", folder, source);
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            sync_folders(&path)?;
        }
    }
    sync(folder)
}

fn create(path: &Path) -> Result<()> {
    create_private_directory(path).map_err(|source| Error::io("create", path, source))
}

/// Links the newest version of one tree.
fn link_tree(tree: &Tree, target: &Path) -> Result<()> {
    create(target)?;
    // While this is held, no version is installed and no file of a version is removed.
    let history = tree.inner.get_version_history_lock();
    let manifest = manifest::verify(&tree.path)?;
    link(&tree.path.join("current"), target)?;
    link(&manifest, target)?;
    for folder in FOLDERS {
        let source = tree.path.join(folder);
        if source.exists() {
            link_files(&source, &target.join(folder))?;
        }
    }
    drop(history);
    for folder in FOLDERS {
        let folder = target.join(folder);
        if folder.exists() {
            sync(&folder)?;
        }
    }
    sync(target)
}

/// Links every file of a folder. A file that vanishes meanwhile belongs to no version.
fn link_files(source: &Path, target: &Path) -> Result<()> {
    create(target)?;
    let failed = |error| Error::io("list", source, error);
    for entry in fs::read_dir(source).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let hidden = path.file_name().and_then(OsStr::to_str);
        if hidden.is_none_or(|name| name.starts_with('.')) {
            continue;
        }
        match link(&path, target) {
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
            other => other?,
        }
    }
    Ok(())
}

/// Links `file` into the directory `target`, or copies it.
fn link(file: &Path, target: &Path) -> Result<()> {
    let name = file.file_name().expect("a file of a tree has a name");
    let target = target.join(name);
    let linked = match fs::hard_link(file, &target) {
        Err(error) if error.kind() == std::io::ErrorKind::CrossesDevices => {
            copy_private(file, &target).map(drop)
        }
        other => other,
    };
    linked.map_err(|source| Error::io("link", file, source))
}
