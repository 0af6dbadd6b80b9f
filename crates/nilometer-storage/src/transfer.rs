//! Copying the contents of one engine into another, of whatever kind.
//!
//! The keyspaces keep their ids, names and options, so that records which name keyspaces stay true. The copy shows the
//! source as it is when the copy begins; writers continue meanwhile. When the function returns, the copy is durable, and was
//! read once to compare the number of its entries.

use std::fs;
use std::path::{Path, PathBuf};

use crate::engine::{Direction, Durability, Engine, KeyspaceId, Snapshot, WriteBatch};
use crate::error::{Error, Result};
use crate::lsm::{LsmEngine, LsmOptions, make_empty, sync};

/// Bytes of keys and values in one batch of a copy, except for a larger entry.
const COPY_BATCH_BYTES: u64 = 4 * 1024 * 1024;

/// Entries between two reports while a copy is counted.
const COUNTS_PER_REPORT: u64 = 100_000;

/// End of the name of a directory with an unfinished copy.
const UNFINISHED: &str = ".unfinished";

/// How far a copy has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyProgress {
    /// The keyspaces to copy.
    pub keyspaces: usize,
    /// The keyspaces that are complete.
    pub keyspaces_copied: usize,
    /// Entries copied.
    pub entries: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// Entries of the copy that were counted after it was complete.
    pub entries_counted: u64,
}

/// Copies everything that `from` shows into `to`, which is empty, and reports after each batch.
///
/// Both engines must have the same view of long keys: both are [`LongKeyEngine`](crate::LongKeyEngine)s, or neither.
pub fn copy_contents(
    from: &dyn Snapshot,
    to: &dyn Engine,
    report: &mut dyn FnMut(&CopyProgress),
) -> Result<CopyProgress> {
    if !to.keyspaces().is_empty() {
        return Err(Error::Unsupported {
            operation: "copying into a database that has contents",
        });
    }
    let keyspaces = from.keyspaces();
    let mut progress = CopyProgress {
        keyspaces: keyspaces.len(),
        ..CopyProgress::default()
    };
    for keyspace in &keyspaces {
        to.import_keyspace(keyspace)?;
    }
    let mut copied = Vec::new();
    for keyspace in &keyspaces {
        let before = progress.entries;
        copy_entries(from, to, keyspace.id, &mut progress, report)?;
        copied.push((keyspace.id, progress.entries - before));
        progress.keyspaces_copied += 1;
        report(&progress);
    }
    to.sync()?;
    let copy = to.snapshot()?;
    for (id, expected) in copied {
        let found = count_entries(&*copy, id, &mut progress, report)?;
        if found != expected {
            return Err(Error::DifferentCopy {
                keyspace: id.0,
                expected,
                found,
            });
        }
    }
    report(&progress);
    Ok(progress)
}

fn copy_entries(
    from: &dyn Snapshot,
    to: &dyn Engine,
    id: KeyspaceId,
    progress: &mut CopyProgress,
    report: &mut dyn FnMut(&CopyProgress),
) -> Result<()> {
    let mut batch = WriteBatch::new();
    for entry in from.scan(id, &[], None, Direction::Forward)? {
        let (key, value) = entry?;
        progress.entries += 1;
        progress.bytes += (key.len() + value.len()) as u64;
        batch.put(id, key.to_vec(), value.to_vec());
        if batch.bytes() >= COPY_BATCH_BYTES {
            to.commit(std::mem::take(&mut batch), Durability::Buffered)?;
            report(progress);
        }
    }
    if !batch.is_empty() {
        to.commit(batch, Durability::Buffered)?;
    }
    Ok(())
}

fn count_entries(
    copy: &dyn Snapshot,
    id: KeyspaceId,
    progress: &mut CopyProgress,
    report: &mut dyn FnMut(&CopyProgress),
) -> Result<u64> {
    let mut found = 0;
    for entry in copy.scan(id, &[], None, Direction::Forward)? {
        entry?;
        found += 1;
        progress.entries_counted += 1;
        if progress.entries_counted.is_multiple_of(COUNTS_PER_REPORT) {
            report(progress);
        }
    }
    Ok(found)
}

/// Copies everything that `from` shows into a new database of the local engine in the empty or absent directory
/// `target`, which must not lie in the directory `source`. An interrupted copy is in a directory beside it.
pub fn copy_into_directory(
    from: &dyn Snapshot,
    source: Option<&Path>,
    target: &Path,
    report: &mut dyn FnMut(&CopyProgress),
) -> Result<CopyProgress> {
    // Without a slash at its end, behind which the directory beside it would be in it.
    let target = target.components().as_path();
    let mut unfinished = target.as_os_str().to_owned();
    unfinished.push(UNFINISHED);
    let unfinished = PathBuf::from(unfinished);
    if let Some(source) = source {
        make_empty(target, source)?;
    }
    // Also shows that the target may be made.
    make_empty(target, &unfinished)?;
    make_empty(&unfinished, target)?;
    let copy = LsmEngine::open(&unfinished, LsmOptions::default())?;
    let copied = copy_contents(from, &copy, report)?;
    copy.close()?;
    drop(copy);
    let failed = |source| Error::io("rename", &unfinished, source);
    fs::rename(&unfinished, target).map_err(failed)?;
    match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync(parent)?,
        _ => {}
    }
    Ok(copied)
}
