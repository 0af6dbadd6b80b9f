//! What the engine's handle, its snapshots and its threads share.
//!
//! # Locks, in the order they are taken
//!
//! ```text
//! list      keyspaces are created and dropped, checkpoints taken, one at a time
//! flushing  (of a tree) one flush at a time          compacting  (of a tree) likewise
//! log       batches get numbers and are written      [Log::lock]
//! apply     batches are inserted into memtables, memtables rotated
//! read_sequences, trees, queues                            held for a few instructions, never across I/O
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use super::TreeMap;
use super::background::BackgroundWork;
use super::commit::CommitQueue;
use super::health::Health;
use super::log::Log;
use super::read_sequences::ReadSequences;
use super::tree::{Tree, TreeContext};
use super::tree_list::TreeList;
use crate::engine::KeyspaceId;
use crate::error::{Error, Result};
use crate::lock::{lock, read, write};

/// Memtables of one tree that wait to be written before its writers wait.
const SEALED_MAX: usize = 4;

/// Runs in level 0 of one tree before its writers wait.
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
            commits: AtomicU64::new(0),
            trees: RwLock::new(Arc::new(trees)),
        }
    }

    /// The trees there are now.
    pub(crate) fn trees(&self) -> Arc<TreeMap> {
        Arc::clone(&read(&self.trees))
    }

    /// One tree.
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

    /// Bytes in all memtables.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.context.memory.load(Ordering::Acquire)
    }

    /// Takes the lock under which batches are inserted.
    pub(crate) fn lock_apply(&self) -> MutexGuard<'_, ()> {
        lock(&self.apply)
    }

    /// Lets new readers see versions of trees made since the last commit. Without it an idle tree
    /// would keep its last memtable for ever.
    pub(crate) fn raise_visible(&self) {
        let log = self.log.lock();
        let apply = self.lock_apply();
        // Nothing is in flight: every number drawn is inserted, or was a version's. After a failure
        // that need not be so.
        if self.health.failure().is_none() {
            self.read_sequences.publish(self.context.sequence.get());
        }
        drop(apply);
        drop(log);
    }

    /// Whether everything of keyspace `id` up to `sequence` is in tables, or gone with it.
    pub(crate) fn is_flushed(&self, id: KeyspaceId, sequence: u64) -> bool {
        let trees = read(&self.trees);
        trees
            .get(&id)
            .is_none_or(|tree| tree.flushed_through() >= sequence)
    }

    /// Removes log segments nobody needs any more.
    pub(crate) fn remove_flushed_segments(&self) -> Result<()> {
        self.log
            .remove_flushed(|id, sequence| self.is_flushed(id, sequence))
    }

    /// Why writers to `trees` have to wait, if they do.
    pub(crate) fn must_wait<'a>(&self, mut trees: impl Iterator<Item = &'a Arc<Tree>>) -> bool {
        let options = &self.context.options;
        self.memory_bytes() >= options.memory_bytes_max
            || self.log.bytes() > options.log_bytes_max
            || trees.any(|tree| tree.sealed_count() >= SEALED_MAX || tree.l0_runs() >= L0_RUNS_MAX)
    }
}
