//! Scrubbing: reads every stored byte and compares it with its checksum.
//!
//! Normal reads check only the blocks they touch, and opening reads no data. A scrub reads the files themselves,
//! bypassing all caches:
//!
//! - each manifest, and each file of tables and separated values against the whole-file checksum in the manifest;
//! - every entry of every tree, for its own checksum;
//! - every segment of the log up to its durable end.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use lsm_tree::AbstractTree;
use xxhash_rust::xxh3::Xxh3Default;

use super::core::Core;
use super::log::replay::check_segment;
use super::manifest;
use super::snapshot::LsmSnapshot;
use super::tree::Tree;
use crate::engine::{Direction, Snapshot};
use crate::error::{Error, Result};

impl Core {
    /// Reads everything. The first damage found is the error.
    pub(crate) fn verify(&self) -> Result<()> {
        self.health.check_open()?;
        for tree in self.trees().values() {
            if !tree.is_unflushed() {
                verify_files(tree)?;
            }
        }
        self.verify_entries()?;
        self.verify_log()
    }

    /// Reads every entry of every tree.
    fn verify_entries(&self) -> Result<()> {
        for id in self.trees().keys() {
            let snapshot = LsmSnapshot {
                trees: self.trees(),
                sequence: self.read_sequences.open(),
            };
            let entries = snapshot.scan(*id, &[], None, Direction::Forward);
            drop(snapshot);
            match entries {
                Ok(entries) => {
                    for entry in entries {
                        entry?;
                    }
                }
                // The keyspace was dropped meanwhile.
                Err(Error::UnknownKeyspace { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads every segment of the log.
    fn verify_log(&self) -> Result<()> {
        self.log.sync()?;
        self.log.pin();
        let mut segments = self.log.segments_to_check().into_iter();
        let result = segments.try_for_each(|(path, id, end)| check_segment(&path, id, end));
        self.log.unpin();
        result
    }
}

/// Compares the files of a tree with the checksums in its manifest.
fn verify_files(tree: &Tree) -> Result<()> {
    // The version keeps its files while they are read.
    let (version, listed) = {
        let history = tree.inner.get_version_history_lock();
        let version = history.latest_version();
        let manifest = manifest::verify(&tree.path)?;
        (version, manifest::list_files(&manifest)?)
    };
    for (folder, id, expected) in listed {
        let path = tree.path.join(folder).join(id.to_string());
        let found = file_checksum(&path)?;
        if found != expected {
            return Err(Error::corruption(
                folder,
                &path,
                0,
                format!("checksum {expected:032x}"),
                format!("{found:032x}"),
            ));
        }
    }
    drop(version);
    Ok(())
}

/// Returns the xxh3-128 of a whole file.
pub(crate) fn file_checksum(path: &Path) -> Result<u128> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::corruption("tree", path, 0, "a file", "no file"));
        }
        Err(source) => return Err(Error::io("open", path, source)),
    };
    let mut hasher = Xxh3Default::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut buffer);
        let length = read.map_err(|source| Error::io("read", path, source))?;
        if length == 0 {
            return Ok(hasher.digest128());
        }
        hasher.update(&buffer[..length]);
    }
}
