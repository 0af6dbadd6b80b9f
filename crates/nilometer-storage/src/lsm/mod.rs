//! The embedded engine: a write-ahead log in front of the trees of `lsm-tree`.
//!
//! ```text
//!   commit ──> log (one write and sync per group) ──> memtables ──> visible
//!                                                                 │ flush
//!   snapshot = a sequence number ──> memtables + tables <──────────┘ merge
//! ```
//!
//! The log makes a batch durable and atomic; one tree per keyspace indexes it. `lsm-tree` provides memtables, tables,
//! filters, merging and key-value separation. It leaves the following to its user:
//!
//! | | |
//! |---|---|
//! | durability, atomic batches over trees, group commit | [`commit`], [`log`] |
//! | sequence numbers and what readers may see; taking a snapshot | [`read_sequences`], rules in [`tree`] |
//! | reading from a snapshot | [`snapshot`] |
//! | keyspaces with short-lived entries | [`write_buffer`] |
//! | scans that begin with deleted entries | [`empty_ranges`] |
//! | keys that are written again and again | [`superseded`] |
//! | when to flush and merge, which versions to drop | [`flush`], [`background`] |
//! | opening after a crash | [`recovery`] |
//! | files left by failed steps | [`orphaned_files`] |
//! | checksums of manifests and of separated values | [`manifest`], [`separated_value`] |
//! | reading many separated values | [`separated_scan`] |
//! | the list of trees; dropping a tree that has readers | [`tree_list`], [`keyspaces`] |
//! | trees that were never flushed | [`first_flush`] |
//! | reporting a disk that does not answer | [`pending_io`] |
//! | online copies; scrubbing | [`checkpoint`], [`verify`] |
//! | backups elsewhere, of files and of the log; making a database of them | [`backup`], [`log_part`]; [`restore`] |
//! | reading a damaged directory | [`salvage`] |
//! | offline copies; describing a file | [`copy`], [`describe`] |
//!
//! Hidden calls of `lsm-tree` in use: `get_version_history_lock` with `maintenance`, `latest_version`,
//! `get_version_for_snapshot`, `replace_latest_version` and `free_list_len`; `Tree::create_internal_range`; `current_version().id()`; `Memtable::new`, `insert` with
//! `InternalValue`, and `items`. They are the reason for the exact version pin.

mod background;
mod backup;
mod batch;
mod checkpoint;
mod commit;
mod copy;
mod core;
mod describe;
mod directory;
mod empty_ranges;
mod first_flush;
mod flush;
mod health;
mod keyspaces;
mod log;
mod log_part;
mod manifest;
mod options;
mod orphaned_files;
mod pending_io;
mod read_sequences;
mod recovery;
mod restore;
mod salvage;
mod separated_scan;
mod separated_value;
mod snapshot;
mod superseded;
mod tree;
mod tree_list;
mod verify;
mod write_buffer;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use self::core::Core;
use self::snapshot::LsmSnapshot;
use self::tree::{Tree, files_bytes};
use crate::engine::{
    DiskWaits, Durability, Engine, EngineStatistics, Keyspace, KeyspaceId, KeyspaceStatistics,
    NewKeyspace, Snapshot, WriteBatch,
};
use crate::error::Result;
use crate::lock::lock;

pub use self::backup::{BackupFile, BackupFiles, BackupSource, LogReader};
pub(crate) use self::checkpoint::make_empty;
pub use self::copy::copy_database;
pub use self::describe::describe_file;
pub(crate) use self::directory::sync;
pub use self::log::replay::LogCut;
pub use self::log_part::{KeyspaceChange, LogPart, LogPosition, Moment};
pub use self::options::LsmOptions;
pub use self::recovery::Recovery;
pub use self::restore::complete_restore;
pub use self::salvage::{Gap, Loss, SalvageEngine};

/// The trees of an engine.
type TreeMap = BTreeMap<KeyspaceId, Arc<Tree>>;

/// The embedded [`Engine`]: one directory, one process. See the module head.
pub struct LsmEngine {
    core: Arc<Core>,
    recovery: Recovery,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl LsmEngine {
    /// Opens the database in the directory `path`. Creates it if the directory is absent or empty.
    ///
    /// Fails with [`Error::Locked`](crate::Error::Locked) if it is open already, and with
    /// [`Error::Corruption`](crate::Error::Corruption) if it is damaged.
    pub fn open(path: impl AsRef<Path>, options: LsmOptions) -> Result<Self> {
        let (core, recovery) = recovery::open(path.as_ref(), options.normalized())?;
        let core = Arc::new(core);
        let threads = background::start(&core).inspect_err(|_| core.work.stop())?;
        for (id, tree) in core.trees().iter() {
            if tree.memory_bytes() >= core.context.options.memtable_bytes {
                core.work.request_flush(*id);
            }
            core.work.request_compaction(*id);
        }
        core.work.wake_flusher();
        Ok(Self {
            core,
            recovery,
            threads: Mutex::new(threads),
        })
    }

    /// Returns the result of recovery.
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }
}

impl Engine for LsmEngine {
    fn create_keyspaces(&self, new: &[NewKeyspace<'_>]) -> Result<Vec<KeyspaceId>> {
        self.core.create_keyspaces(new)
    }

    fn import_keyspace(&self, keyspace: &Keyspace) -> Result<()> {
        self.core.import_keyspace(keyspace.clone())
    }

    fn keyspaces(&self) -> Vec<Keyspace> {
        let trees = self.core.trees();
        trees.values().map(|tree| tree.keyspace.clone()).collect()
    }

    fn drop_keyspace(&self, id: KeyspaceId) -> Result<()> {
        self.core.drop_keyspace(id)
    }

    fn commit(&self, batch: WriteBatch, durability: Durability) -> Result<u64> {
        self.core.commit(batch, durability)
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>> {
        self.core.health.check_open()?;
        // Order matters: a tree created after the sequence number was taken is empty at it.
        let sequence = self.core.read_sequences.open();
        Ok(Box::new(LsmSnapshot {
            trees: self.core.trees(),
            sequence,
        }))
    }

    fn sync(&self) -> Result<()> {
        self.core.health.check_open()?;
        match self.core.log.sync() {
            Ok(()) => Ok(()),
            Err(error) => Err(self.core.health.fail(error)),
        }
    }

    fn settle(&self) -> Result<()> {
        self.core.health.check_writable()?;
        for tree in self.core.trees().values() {
            self.core.try_settle_tree(tree)?;
        }
        self.core.remove_flushed_segments()
    }

    fn settle_keyspace(&self, id: KeyspaceId) -> Result<()> {
        self.core.health.check_writable()?;
        self.core.try_settle_tree(&self.core.tree(id)?)
    }

    fn checkpoint(&self, target: &Path) -> Result<()> {
        self.core.checkpoint(target)
    }

    fn backup_source(&self) -> Option<BackupSource> {
        Some(BackupSource::new(Arc::clone(&self.core)))
    }

    fn verify(&self) -> Result<()> {
        self.core.verify()
    }

    fn keyspace_statistics(&self, id: KeyspaceId) -> Result<KeyspaceStatistics> {
        self.core.health.check_open()?;
        let tree = self.core.tree(id)?;
        Ok(KeyspaceStatistics {
            disk_bytes: tree.disk_bytes(),
            memory_bytes: tree.memory_bytes(),
            keys_estimate: tree.entries_estimate(),
        })
    }

    fn keys_estimate(&self, id: KeyspaceId) -> Result<u64> {
        self.core.health.check_open()?;
        let tree = self.core.tree(id)?;
        Ok(tree.entries_estimate())
    }

    fn statistics(&self) -> EngineStatistics {
        let core = &self.core;
        let log_files = files_bytes(&core.context.directory.log());
        let trees = core.trees();
        let tables: u64 = trees.values().map(|tree| tree.disk_bytes()).sum();
        EngineStatistics {
            disk_bytes: tables + log_files + files_bytes(core.context.directory.path()),
            log_bytes: core.log.bytes(),
            memory_bytes: core.memory_bytes(),
            commits: core.commits.load(Ordering::Relaxed),
            syncs: core.log.syncs(),
            snapshots: core.read_sequences.open_count(),
            oldest_snapshot_ms: u64::try_from(core.read_sequences.oldest_age().as_millis())
                .unwrap_or(u64::MAX),
            pinned_bytes: trees.values().map(|tree| tree.pinned_bytes()).sum(),
            cache_bytes: core.context.cache.size(),
        }
    }

    fn check_writable(&self) -> Result<()> {
        self.core.health.check_writable()?;
        let health = &self.core.health;
        health
            .flush_blocked()
            .or_else(|| health.missing_segment())
            .map_or(Ok(()), Err)
    }

    fn disk_waits(&self) -> DiskWaits {
        self.core.context.pending_io.list()
    }

    fn close(&self) -> Result<()> {
        if !self.core.health.close() {
            return Ok(());
        }
        self.core.work.stop();
        for thread in lock(&self.threads).drain(..) {
            // A panic is recorded where it happens.
            let _ = thread.join();
        }
        let ended = self.core.end_log();
        self.core.set_trees(TreeMap::new());
        self.core.context.directory.release();
        ended
    }
}

impl Drop for LsmEngine {
    fn drop(&mut self) {
        // Callers that need the result call `close` first.
        let _ = self.close();
    }
}
