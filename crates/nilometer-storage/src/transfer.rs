//! Copying the contents of one engine into another, of whatever kind.
//!
//! The keyspaces keep their ids, names and options, so that records which name keyspaces stay true. The copy shows the
//! source as it is when the copy begins; writers go on meanwhile. It is durable when the function returns.

use std::fs;
use std::path::{Path, PathBuf};

use crate::engine::{Direction, Durability, Engine, WriteBatch};
use crate::error::{Error, Result};
use crate::lsm::{LsmEngine, LsmOptions, make_empty, sync};

/// Bytes of keys and values in one batch of a copy, except for a larger entry.
const COPY_BATCH_BYTES: u64 = 4 * 1024 * 1024;

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
}

/// Copies all keyspaces of `from` into `to`, which has none, and reports after each batch.
///
/// Both engines must have the same view of long keys: both are [`LongKeyEngine`](crate::LongKeyEngine)s, or neither.
pub fn copy_contents(
    from: &dyn Engine,
    to: &dyn Engine,
    report: &mut dyn FnMut(&CopyProgress),
) -> Result<CopyProgress> {
    if !to.keyspaces().is_empty() {
        return Err(Error::Unsupported {
            operation: "copying into a database that has contents",
        });
    }
    let view = from.snapshot()?;
    let keyspaces = view.keyspaces();
    let mut progress = CopyProgress {
        keyspaces: keyspaces.len(),
        ..CopyProgress::default()
    };
    for keyspace in &keyspaces {
        to.import_keyspace(keyspace)?;
    }
    for keyspace in keyspaces {
        let mut batch = WriteBatch::new();
        for entry in view.scan(keyspace.id, &[], None, Direction::Forward)? {
            let (key, value) = entry?;
            progress.entries += 1;
            progress.bytes += (key.len() + value.len()) as u64;
            batch.put(keyspace.id, key.to_vec(), value.to_vec());
            if batch.bytes() >= COPY_BATCH_BYTES {
                to.commit(std::mem::take(&mut batch), Durability::Buffered)?;
                report(&progress);
            }
        }
        if !batch.is_empty() {
            to.commit(batch, Durability::Buffered)?;
        }
        progress.keyspaces_copied += 1;
        report(&progress);
    }
    to.sync()?;
    Ok(progress)
}

/// Copies all keyspaces of `from` into a new database of the local engine in the empty or absent directory `target`.
/// An interrupted copy is in a directory beside it.
pub fn copy_into_directory(
    from: &dyn Engine,
    target: &Path,
    report: &mut dyn FnMut(&CopyProgress),
) -> Result<CopyProgress> {
    let mut unfinished = target.as_os_str().to_owned();
    unfinished.push(UNFINISHED);
    let unfinished = PathBuf::from(unfinished);
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
