//! Writing memtables into tables, merging tables, and what may be forgotten afterwards.
//!
//! ```text
//! lock log and apply: rotate the memtable, note the highest number in it; unlock
//! sync the log                      a table must never hold what the log may lose
//! write the sealed memtables        flushed_through = that number
//! raise visible                     lets the version before the flush go
//! tidy                              drops versions nobody reads
//! remove log segments               oldest first, each once all its trees are flushed
//! ```
//!
//! Segments go by `flushed_through`, which lives in memory, and not by the highest number a tree
//! finds in its tables: that one falls when merging removes the newest entries.

use std::sync::Arc;

use lsm_tree::AbstractTree;
use lsm_tree::compaction::Leveled;

use super::core::Core;
use super::tree::{Tree, fenced};
use crate::error::{Error, Result};
use crate::lock::lock;

/// Rounds of merging a tree completely, to let files of values that one round empties go.
const SETTLE_ROUNDS_MAX: usize = 4;

impl Core {
    /// Writes the memtables of one tree into tables.
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
            self.log.sync()?;
            let pending_io = &self.context.pending_io;
            let _wait = pending_io.begin("write tables in", tree.path.as_path());
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

    /// Merges tables of one tree until nothing is left to merge.
    pub(crate) fn compact_tree(&self, tree: &Arc<Tree>) -> Result<()> {
        let _compacting = lock(&tree.compacting);
        let options = &self.context.options;
        let strategy = Arc::new(Leveled::default().with_table_target_size(options.table_bytes));
        while !tree.is_dropped() && !self.work.is_stopping() {
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

    /// Settles one tree; a failure is judged.
    pub(crate) fn try_settle_tree(&self, tree: &Arc<Tree>) -> Result<()> {
        self.settle_tree(tree).inspect_err(|error| {
            self.may_retry(tree, error.clone());
        })
    }

    /// Merges all tables of one tree into one run, and lets files of values go.
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

    /// Lets go of versions of a tree and of what failed steps left; what is still held is tried again later.
    pub(crate) fn tidy(&self, tree: &Arc<Tree>) -> Result<()> {
        let is_tidy = tree.tidy(self.read_sequences.watermark())?;
        if !(tree.remove_orphans() && is_tidy) {
            self.work.request_tidying(tree.keyspace.id);
        }
        Ok(())
    }

    /// Judges a failed flush or compaction of `tree`: true when it may be tried again.
    ///
    /// A full disk, or too many open files, is waited out, if the step left no trace. Everything else
    /// ends writing: the tree in memory may not be the tree on disk any more.
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
