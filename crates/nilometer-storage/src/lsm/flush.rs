//! Flushing memtables, merging tables, and dropping old versions.
//!
//! ```text
//! lock log and apply: rotate the memtable, note its highest sequence number; unlock
//! before the first flush of a tree  sync its files, see first_flush.rs
//! sync the log                      a table must never hold a batch that the log may lose
//! flush the sealed memtables        flushed_through = that number
//! raise visible                     releases the version before the flush
//! tidy                              drops versions that have no readers
//! remove log segments               oldest first, each once all its trees are flushed
//! ```
//!
//! The entries of a short-lived keyspace that hold the oldest segment are mostly deleted when the log is long: then nothing is
//! flushed ([`Core::free_log`]). Segments are removed by `flushed_through`, which lives in memory, not by the highest number in the tables of a tree:
//! that number falls when a merge removes the newest entries.

use std::sync::Arc;

use lsm_tree::AbstractTree;
use lsm_tree::compaction::Leveled;

use super::core::Core;
use super::tree::{Tree, fenced};
use crate::error::{Error, Result};
use crate::lock::lock;

/// Rounds of merging a whole tree. One round may empty files of values that the next can remove.
const SETTLE_ROUNDS_MAX: usize = 4;

impl Core {
    /// Flushes the memtables of one tree.
    pub(crate) fn flush_tree(&self, tree: &Arc<Tree>) -> Result<()> {
        let _flushing = lock(&tree.flushing);
        if tree.is_dropped() {
            return Ok(());
        }
        let (through, any) = {
            let log = self.log.lock();
            let apply = self.lock_apply();
            tree.rotate(&log, &apply)
        };
        if any {
            if !self.begin_flushes(tree)? {
                return Ok(());
            }
            self.log.sync()?;
            let pending_io = &self.context.pending_io;
            let _wait = pending_io.begin("flush tables in", tree.path.as_path());
            tree.flush_sealed(&self.context, self.read_sequences.watermark())?;
        }
        tree.note_flushed(through);
        if any {
            self.raise_visible();
            self.tidy(tree)?;
        }
        self.remove_flushed_segments()?;
        self.work.note_progress();
        self.work.request_compaction(tree.keyspace.id);
        Ok(())
    }

    /// Makes the log up to `through` unnecessary for one tree: flushes it, unless all its entries up to there are deleted or in
    /// tables.
    pub(crate) fn free_log(&self, tree: &Arc<Tree>, through: u64) -> Result<()> {
        let flushing = lock(&tree.flushing);
        if !tree.needs_no_log(through) {
            drop(flushing);
            return self.flush_tree(tree);
        }
        // The deletions must survive a crash: what they delete does not.
        self.log.sync()?;
        tree.note_flushed(through);
        drop(flushing);
        self.remove_flushed_segments()?;
        self.work.note_progress();
        Ok(())
    }

    /// Merges tables of one tree until none has to be merged.
    pub(crate) fn compact_tree(&self, tree: &Arc<Tree>) -> Result<()> {
        let _compacting = lock(&tree.compacting);
        let options = &self.context.options;
        let strategy = Arc::new(Leveled::default().with_table_target_size(options.table_bytes));
        while !tree.is_dropped() && !tree.is_unflushed() && !self.work.is_stopping() {
            let before = tree.inner.current_version().id();
            let watermark = self.read_sequences.watermark();
            fenced(&tree.path, "compact", || {
                tree.inner.compact(Arc::clone(&strategy) as _, watermark)
            })?;
            tree.count_l0();
            if tree.inner.current_version().id() == before {
                break;
            }
            self.raise_visible();
            self.tidy(tree)?;
            self.work.note_progress();
        }
        Ok(())
    }

    /// Settles one tree, and decides whether a failure ends writing.
    pub(crate) fn try_settle_tree(&self, tree: &Arc<Tree>) -> Result<()> {
        self.settle_tree(tree).inspect_err(|error| {
            self.may_retry(tree, error.clone());
        })
    }

    /// Merges all tables of one tree into one run, and removes stale files of values.
    pub(crate) fn settle_tree(&self, tree: &Arc<Tree>) -> Result<()> {
        self.flush_tree(tree)?;
        self.compact_tree(tree)?;
        let _compacting = lock(&tree.compacting);
        let mut stale = u64::MAX;
        for _ in 0..SETTLE_ROUNDS_MAX {
            if tree.is_dropped() || tree.inner.table_count() == 0 {
                break;
            }
            let watermark = self.read_sequences.watermark();
            let table_bytes = self.context.options.table_bytes;
            fenced(&tree.path, "compact", || {
                tree.inner.major_compact(table_bytes, watermark)
            })?;
            tree.count_l0();
            self.raise_visible();
            self.tidy(tree)?;
            let left = tree.inner.stale_blob_bytes();
            if left == 0 || left >= stale {
                break;
            }
            stale = left;
        }
        Ok(())
    }

    /// Drops old versions and orphaned files of a tree. Schedules another attempt for those still in use.
    pub(crate) fn tidy(&self, tree: &Arc<Tree>) -> Result<()> {
        let is_tidy = tree.tidy(self.read_sequences.watermark())?;
        if !(tree.remove_orphans() && is_tidy) {
            self.work.request_tidying(tree.keyspace.id);
        }
        Ok(())
    }

    /// Decides about a failed flush or compaction of `tree`. True if it may be retried.
    ///
    /// A full disk and too many open files are waited out if the step left the tree consistent. Any other failure ends
    /// writing, because the tree in memory may differ from the tree on disk.
    pub(crate) fn may_retry(&self, tree: &Tree, error: Error) -> bool {
        if error.may_pass() && tree.is_consistent() {
            tree.note_orphans();
            self.work.request_tidying(tree.keyspace.id);
            return true;
        }
        self.health.fail(error);
        self.work.note_progress();
        false
    }
}
