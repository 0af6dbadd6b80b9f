//! The state shared by the engine's handle, its snapshots and its threads.
//!
//! # Locks, in the order they are taken
//!
//! ```text
//! flushing  (per tree) one flush at a time           compacting  (per tree) one merge at a time
//! list      creating and dropping keyspaces, the first flush of one, checkpoints
//! log       numbering and writing batches            [Log::lock]
//! apply     inserting batches into memtables, rotating memtables
//! read_sequences, trees, queues                      held for a few instructions, never across I/O
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use super::TreeMap;
use super::background::BackgroundWork;
use super::backup::KeyspaceChanges;
use super::commit::CommitQueue;
use super::health::Health;
use super::log::Log;
use super::read_sequences::ReadSequences;
use super::tree::{Tree, TreeContext};
use super::tree_list::TreeList;
use crate::engine::KeyspaceId;
use crate::error::{Error, Result};
use crate::lock::{lock, read, write};

/// Sealed memtables of one tree at which its writers stall.
const SEALED_MAX: usize = 4;

/// Runs in level 0 of one tree at which its writers stall.
const L0_RUNS_MAX: usize = 24;

/// The engine behind its handle.
pub(crate) struct Core {
    pub(crate) context: TreeContext,
    pub(crate) log: Log,
    pub(crate) apply: Mutex<()>,
    pub(crate) read_sequences: Arc<ReadSequences>,
    pub(crate) queue: CommitQueue,
    pub(crate) health: Health,
    pub(crate) work: BackgroundWork,
    pub(crate) list: Mutex<TreeList>,
    pub(crate) keyspace_changes: KeyspaceChanges,
    pub(crate) commits: AtomicU64,
    trees: RwLock<Arc<TreeMap>>,
}

impl Core {
    pub(crate) fn new(
        context: TreeContext,
        log: Log,
        read_sequences: ReadSequences,
        list: TreeList,
        trees: TreeMap,
    ) -> Self {
        Self {
            context,
            log,
            apply: Mutex::new(()),
            read_sequences: Arc::new(read_sequences),
            queue: CommitQueue::default(),
            health: Health::default(),
            work: BackgroundWork::default(),
            list: Mutex::new(list),
            keyspace_changes: KeyspaceChanges::default(),
            commits: AtomicU64::new(0),
            trees: RwLock::new(Arc::new(trees)),
        }
    }

    /// Returns the current trees.
    pub(crate) fn trees(&self) -> Arc<TreeMap> {
        Arc::clone(&read(&self.trees))
    }

    /// Returns one tree.
    pub(crate) fn tree(&self, id: KeyspaceId) -> Result<Arc<Tree>> {
        let trees = self.trees();
        let tree = trees.get(&id).ok_or(Error::UnknownKeyspace { id: id.0 })?;
        Ok(Arc::clone(tree))
    }

    /// Replaces the set of trees. The caller holds `list`, or is closing.
    pub(crate) fn set_trees(&self, trees: TreeMap) {
        let old = std::mem::replace(&mut *write(&self.trees), Arc::new(trees));
        drop(old);
    }

    /// Returns the bytes in all memtables.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.context.memory.load(Ordering::Acquire)
    }

    /// Takes the apply lock.
    pub(crate) fn lock_apply(&self) -> MutexGuard<'_, ()> {
        lock(&self.apply)
    }

    /// Makes versions of trees installed since the last commit visible to new readers. Without it an idle tree would
    /// keep its last memtable forever.
    pub(crate) fn raise_visible(&self) {
        let log = self.log.lock();
        let apply = self.lock_apply();
        // Nothing is in flight: every number drawn is inserted or belongs to a version. After a failure this does not
        // hold.
        if self.health.failure().is_none() {
            self.read_sequences.publish(self.context.sequence.get());
        }
        drop(apply);
        drop(log);
    }

    /// True if all entries of keyspace `id` up to `sequence` are in tables, or the keyspace is dropped.
    pub(crate) fn is_flushed(&self, id: KeyspaceId, sequence: u64) -> bool {
        let trees = read(&self.trees);
        trees
            .get(&id)
            .is_none_or(|tree| tree.flushed_through() >= sequence)
    }

    /// Removes log segments whose batches are all flushed.
    pub(crate) fn remove_flushed_segments(&self) -> Result<()> {
        self.log
            .remove_flushed(|id, sequence| self.is_flushed(id, sequence))
    }

    /// True if writers to `trees` have to stall.
    pub(crate) fn must_wait<'a>(&self, mut trees: impl Iterator<Item = &'a Arc<Tree>>) -> bool {
        let options = &self.context.options;
        self.memory_bytes() >= options.memory_bytes_max
            || self.log.bytes() > options.log_bytes_max
            || trees.any(|tree| tree.sealed_count() >= SEALED_MAX || tree.l0_runs() >= L0_RUNS_MAX)
    }
}
