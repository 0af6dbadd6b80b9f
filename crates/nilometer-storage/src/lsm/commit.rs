//! Group commit: batches that arrive while one group is synced form the next group.
//!
//! ```text
//! writer   prepare the batch, stall if memory or log are full, queue it; the first in the queue leads
//! leader   lock log: take the queued batches, number, write, sync if any requests it
//!          lock apply while still holding log (keeps the order), unlock log
//!          insert everything, raise the visible sequence number, unlock apply
//!          wake the group, pass the lead to the first writer in the queue
//! ```
//!
//! A leader leads one group. For a large group it passes the lead on before inserting, so that the next group is
//! written meanwhile; for a small group afterwards, which makes groups larger.
//!
//! A batch is inserted after it is in the log, so a reader never sees a batch that a crash could undo, except as
//! buffered commits allow.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use lsm_tree::Slice;

use super::batch::{PreparedBatch, prepare};
use super::core::Core;
use super::superseded::Remedy;
use super::tree::{Tree, panic_text};
use super::write_buffer::WriteBuffer;
use crate::engine::{Durability, WriteBatch};
use crate::error::{Error, Result};
use crate::lock::lock;

/// Maximum bytes of log records in one group.
const GROUP_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Groups at least this large are inserted while the next is written.
const BIG_GROUP_BYTES: u64 = 64 * 1024;

/// Time after which a stalled writer checks again without being woken.
const STALL_POLL: Duration = Duration::from_millis(20);

/// The queue of batches that wait for a leader.
#[derive(Default)]
pub(crate) struct CommitQueue {
    state: Mutex<CommitQueueState>,
}

#[derive(Default)]
struct CommitQueueState {
    waiting: VecDeque<Arc<CommitRequest>>,
    led: bool,
}

/// One queued batch and the condition its writer waits for.
struct CommitRequest {
    prepared: Mutex<Option<PreparedBatch>>,
    bytes: u64,
    sync: bool,
    outcome: Mutex<CommitOutcome>,
    decided: Condvar,
}

enum CommitOutcome {
    Waiting,
    LeadWork,
    Done(Result<u64>),
}

impl CommitRequest {
    fn decide(&self, outcome: CommitOutcome) {
        *lock(&self.outcome) = outcome;
        self.decided.notify_one();
    }

    /// Waits until the batch is committed (`Some`) or its writer has to lead (`None`).
    fn wait(&self) -> Option<Result<u64>> {
        let mut outcome = lock(&self.outcome);
        loop {
            match std::mem::replace(&mut *outcome, CommitOutcome::Waiting) {
                CommitOutcome::Done(result) => return Some(result),
                CommitOutcome::LeadWork => return None,
                CommitOutcome::Waiting => {
                    let waited = self.decided.wait(outcome);
                    outcome = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
                }
            }
        }
    }
}

impl CommitQueue {
    /// Queues a request. True if its writer has to lead.
    fn push(&self, request: &Arc<CommitRequest>) -> bool {
        let mut state = lock(&self.state);
        state.waiting.push_back(Arc::clone(request));
        !std::mem::replace(&mut state.led, true)
    }

    /// Takes the next group: at least one request, otherwise at most `bytes_max`.
    fn take(&self, bytes_max: u64) -> Vec<Arc<CommitRequest>> {
        let mut state = lock(&self.state);
        let mut group = Vec::new();
        let mut bytes = 0;
        while let Some(request) = state.waiting.front() {
            bytes += request.bytes;
            if !group.is_empty() && bytes > bytes_max {
                break;
            }
            group.extend(state.waiting.pop_front());
        }
        group
    }

    /// Passes the lead to the next writer, if there is one.
    fn pass_lead(&self) {
        let mut state = lock(&self.state);
        match state.waiting.front() {
            Some(next) => next.decide(CommitOutcome::LeadWork),
            None => state.led = false,
        }
    }
}

/// The state that a leader must finish even after a panic.
#[derive(Default)]
struct LeadWork {
    group: Vec<Arc<CommitRequest>>,
    passed_on: bool,
}

impl Core {
    /// Commits one batch and returns its position in the log.
    pub(crate) fn commit(&self, batch: WriteBatch, durability: Durability) -> Result<u64> {
        self.health.check_writable()?;
        let prepared = prepare(batch, &self.trees())?;
        self.stall(&prepared)?;
        let request = Arc::new(CommitRequest {
            bytes: prepared.record.bytes(),
            prepared: Mutex::new(Some(prepared)),
            sync: durability == Durability::Sync,
            outcome: Mutex::new(CommitOutcome::Waiting),
            decided: Condvar::new(),
        });
        if !self.queue.push(&request)
            && let Some(result) = request.wait()
        {
            return result;
        }
        self.lead();
        match request.wait() {
            Some(result) => result,
            None => unreachable!("a leader's own request is in its group"),
        }
    }

    /// Waits while flushes or merges of the batch's trees, or of the whole engine, lag behind.
    fn stall(&self, prepared: &PreparedBatch) -> Result<()> {
        while self.must_wait(prepared.groups.iter().map(|group| &group.tree)) {
            self.health.check_writable()?;
            if let Some(error) = self.health.flush_blocked() {
                return Err(error);
            }
            self.work.wake_flusher();
            self.work.wait_for_progress(STALL_POLL);
        }
        Ok(())
    }

    /// Commits the group at the head of the queue.
    fn lead(&self) {
        let mut lead = LeadWork::default();
        let result = catch_unwind(AssertUnwindSafe(|| self.commit_group(&mut lead)));
        let outcome = result.unwrap_or_else(|panic| {
            // Half a group may be inserted but is not visible. Nothing may be published after it.
            Err(self.health.fail(Error::Failed {
                reason: format!("a commit panicked: {}", panic_text(&*panic)),
            }))
        });
        let error = outcome.as_ref().err().cloned();
        for (position, request) in lead.group.iter().enumerate() {
            let result = match (&error, &outcome) {
                (None, Ok(first)) => Ok(first + position as u64),
                (Some(error), _) => Err(error.clone()),
                (None, Err(_)) => Err(Error::Closed),
            };
            request.decide(CommitOutcome::Done(result));
        }
        if !lead.passed_on {
            self.queue.pass_lead();
        }
    }

    /// Writes and applies one group; returns the index of its first batch.
    fn commit_group(&self, lead: &mut LeadWork) -> Result<u64> {
        let mut log = self.log.lock();
        lead.group = self
            .queue
            .take(GROUP_BYTES_MAX.min(self.context.options.segment_bytes / 2));
        self.health.check_writable()?;
        let taken = lead.group.iter();
        let taken = taken.filter_map(|request| lock(&request.prepared).take());
        let mut batches = taken.collect::<Vec<_>>();
        assert!(!batches.is_empty(), "a leader's group holds its own batch");
        let bytes: u64 = batches.iter().map(|batch| batch.record.bytes()).sum();
        let sync = lead.group.iter().any(|request| request.sync);
        let records = batches.iter_mut().map(|batch| &mut batch.record);
        let mut records = records.collect::<Vec<_>>();
        let segment = log.segment();
        let appended = self
            .log
            .append(&mut log, &mut records, &self.context.sequence, sync);
        if let Err(error) = appended {
            return Err(match error {
                Error::LogFailed { .. } => self.health.fail(error),
                other => {
                    self.health.note_missing_segment(other.clone());
                    other
                }
            });
        }
        if log.segment() != segment {
            self.health.note_segment();
        }
        let apply = self.lock_apply();
        drop(log);
        if bytes >= BIG_GROUP_BYTES {
            self.queue.pass_lead();
            lead.passed_on = true;
        }
        let first = batches.first().map_or(0, |batch| batch.record.index);
        let last = batches.last().map_or(0, |batch| batch.record.sequence);
        self.commits
            .fetch_add(batches.len() as u64, Ordering::Relaxed);
        self.insert(batches);
        // An earlier group that a panic left half inserted must stay invisible.
        if let Some(error) = self.health.failure() {
            return Err(error);
        }
        self.read_sequences.publish(last + 1);
        drop(apply);
        Ok(first)
    }

    /// Inserts batches into the memtables. The caller holds the apply lock.
    fn insert(&self, batches: Vec<PreparedBatch>) {
        let options = &self.context.options;
        for batch in batches {
            let sequence = batch.record.sequence;
            for group in batch.groups {
                let tree = &group.tree;
                tree.empty_ranges.note_batch(&group.entries, sequence);
                let is_full = match tree.active_write_buffer() {
                    Some(write_buffer) => {
                        self.apply_to(&write_buffer, group.entries, sequence);
                        write_buffer.bytes() >= options.write_buffer_bytes()
                    }
                    None => {
                        let (added, due) = tree.insert(group.entries, sequence);
                        self.context.memory.fetch_add(added, Ordering::AcqRel);
                        if due == Remedy::Replace {
                            self.drop_superseded(tree);
                        }
                        due == Remedy::Flush || tree.memtable_bytes() >= options.memtable_bytes
                    }
                };
                tree.note_applied(sequence);
                if is_full {
                    self.work.request_flush(tree.keyspace.id);
                }
            }
        }
        if self.memory_bytes() >= options.memory_flush_bytes() {
            self.work.wake_flusher();
        }
    }

    /// Drops versions from a memtable that no reader needs. The caller holds the apply lock.
    fn drop_superseded(&self, tree: &Tree) {
        let (freed, is_in_use) = tree.drop_superseded(&self.read_sequences.readers());
        self.context.memory.fetch_sub(freed, Ordering::AcqRel);
        if is_in_use {
            self.work.request_tidying(tree.keyspace.id);
        }
    }

    /// Applies operations to a write buffer and releases deleted entries that no reader needs.
    fn apply_to(
        &self,
        write_buffer: &WriteBuffer,
        entries: Vec<(Slice, Option<Slice>)>,
        sequence: u64,
    ) {
        let memory = &self.context.memory;
        memory.fetch_add(write_buffer.apply(entries, sequence), Ordering::AcqRel);
        let gone = write_buffer.release_deleted(self.read_sequences.watermark());
        memory.fetch_sub(gone, Ordering::AcqRel);
    }
}
