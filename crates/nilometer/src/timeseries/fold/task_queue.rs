//! The tasks that wait for the maintenance thread.
//!
//! ```text
//! insert ─► add ─┬─► due tasks ─► the thread, in order, several seals of a collection at once
//!                └─► delayed folds: due after some seconds, dropped if the bucket is sealed meanwhile
//! ```
//!
//! Buckets of many series often close at the same moment, so thousands of seals arrive at once. They need not be done at once: a
//! bucket that waits costs the memory of its tail. Above [`TASKS_SOFT_MAX`] each insert waits until the thread has done a small part of
//! the excess: many inserts wait a little instead of one for long. Tasks above [`TASKS_MAX`] are left to the insert.

use std::collections::{HashSet, VecDeque};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::catalog::Collection;
use crate::timeseries::bucket_catalog::MaintenanceTask;

/// Due tasks from which on inserts wait for a part of the excess.
const TASKS_SOFT_MAX: usize = 4096;

/// An insert waits for one of this many tasks above [`TASKS_SOFT_MAX`].
const EXCESS_SHARE: usize = 64;

/// Time that an insert waits, at most.
const WAIT_MAX: Duration = Duration::from_millis(500);

/// Due tasks, at most.
const TASKS_MAX: usize = 131_072;

/// Delay of a fold.
const FOLD_DELAY: Duration = Duration::from_secs(5);

/// Folds that are delayed; more are due at once.
const DELAYED_FOLDS_MAX: usize = 65_536;

pub(super) type QueuedTask = (Arc<Collection>, MaintenanceTask);

/// What the thread does next.
pub(super) enum NextStep {
    /// Tasks of one collection: one, or several seals.
    Tasks(Vec<QueuedTask>),
    /// Everything queued before is done, delayed folds included: to be answered.
    Barrier(SyncSender<()>),
    /// Nothing is due.
    Idle,
    /// The queue is closed.
    End,
}

enum DueStep {
    Task(QueuedTask),
    Barrier(SyncSender<()>),
}

/// Folds that wait, each bucket once, in the order in which they are due.
#[derive(Default)]
struct DelayedFolds {
    waiting: VecDeque<(Instant, QueuedTask)>,
    buckets: HashSet<([u8; 16], [u8; 12])>,
}

impl DelayedFolds {
    /// Delays a fold; returns any other task, and a fold that is too many.
    fn delay(&mut self, queued: QueuedTask) -> Option<QueuedTask> {
        let (collection, task) = &queued;
        let bucket = (collection.uuid, task.bucket());
        if !matches!(task, MaintenanceTask::Fold(..)) {
            self.buckets.remove(&bucket);
            return Some(queued);
        }
        if self.waiting.len() >= DELAYED_FOLDS_MAX {
            return Some(queued);
        }
        if self.buckets.insert(bucket) {
            self.waiting
                .push_back((Instant::now() + FOLD_DELAY, queued));
        }
        None
    }

    /// Time until the next is due.
    fn next_in(&self) -> Option<Duration> {
        let (due, _) = self.waiting.front()?;
        Some(due.saturating_duration_since(Instant::now()))
    }

    /// Takes the next that is due and whose bucket was not sealed meanwhile.
    fn take_due(&mut self) -> Option<QueuedTask> {
        while self.next_in().is_some_and(|left| left.is_zero()) {
            let (_, queued) = self.waiting.pop_front()?;
            if self.take_wanted(&queued) {
                return Some(queued);
            }
        }
        None
    }

    /// Takes all, due or not.
    fn take_all(&mut self) -> Vec<QueuedTask> {
        let all = std::mem::take(&mut self.waiting);
        let wanted = all.into_iter().map(|(_, queued)| queued);
        wanted.filter(|queued| self.take_wanted(queued)).collect()
    }

    fn take_wanted(&mut self, (collection, task): &QueuedTask) -> bool {
        self.buckets.remove(&(collection.uuid, task.bucket()))
    }
}

#[derive(Default)]
struct TaskQueueState {
    due: VecDeque<DueStep>,
    folds: DelayedFolds,
    /// Due tasks that were taken so far, and done.
    done: u64,
    /// The lowest value of `done` for which an insert waits.
    wake_at: Option<u64>,
    is_closed: bool,
}

/// See the module.
#[derive(Default)]
pub(super) struct TaskQueue {
    state: Mutex<TaskQueueState>,
    added: Condvar,
    progress: Condvar,
}

impl TaskQueue {
    fn lock(&self) -> MutexGuard<'_, TaskQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the tasks of an insert of this many measurements, and waits if the queue is long. Returns the tasks that it cannot take, which the
    /// insert performs.
    pub(super) fn add_all(&self, tasks: Vec<QueuedTask>, measurements: usize) -> Vec<QueuedTask> {
        let mut state = self.lock();
        if state.is_closed {
            return tasks;
        }
        let was_empty = state.due.is_empty();
        let mut left = Vec::new();
        for queued in tasks {
            let Some(queued) = state.folds.delay(queued) else {
                continue;
            };
            let may_skip = matches!(queued.1, MaintenanceTask::SealIdle(..));
            match state.due.len() {
                TASKS_SOFT_MAX.. if may_skip => {}
                TASKS_MAX.. => left.push(queued),
                _ => state.due.push_back(DueStep::Task(queued)),
            }
        }
        if was_empty && !state.due.is_empty() {
            self.added.notify_one();
        }
        self.wait_for_part(state, measurements);
        left
    }

    /// Waits for a part of the tasks above the limit: at most one task for each measurement.
    fn wait_for_part(&self, mut state: MutexGuard<'_, TaskQueueState>, measurements: usize) {
        let excess = state.due.len().saturating_sub(TASKS_SOFT_MAX);
        let part = excess.div_ceil(EXCESS_SHARE).min(measurements);
        let until = state.done + part as u64;
        let end = Instant::now() + WAIT_MAX;
        while state.done < until && state.due.len() > TASKS_SOFT_MAX && !state.is_closed {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state.wake_at = Some(state.wake_at.map_or(until, |other| other.min(until)));
            let waited = self.progress.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until everything queued so far is done.
    pub(super) fn add_barrier(&self, done: SyncSender<()>) {
        let mut state = self.lock();
        if !state.is_closed {
            state.due.push_back(DueStep::Barrier(done));
            self.added.notify_one();
        }
    }

    /// Returns what is to be done next, at most `seals_max` seals; waits for it up to `patience`.
    pub(super) fn next(&self, seals_max: usize, patience: Duration) -> NextStep {
        let mut state = self.lock();
        if state.due.is_empty() && !state.is_closed {
            let patience = state.folds.next_in().unwrap_or(patience);
            let waited = self.added.wait_timeout(state, patience);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.is_closed {
            return NextStep::End;
        }
        match state.due.pop_front() {
            Some(DueStep::Barrier(done)) => NextStep::Barrier(done),
            Some(DueStep::Task(first)) => {
                let mut tasks = vec![first];
                while tasks.len() < seals_max && state.continues(&tasks) {
                    let Some(DueStep::Task(next)) = state.due.pop_front() else {
                        break;
                    };
                    tasks.push(next);
                }
                NextStep::Tasks(tasks)
            }
            None => match state.folds.take_due() {
                Some(fold) => NextStep::Tasks(vec![fold]),
                None => NextStep::Idle,
            },
        }
    }

    /// Takes all delayed folds, due or not.
    pub(super) fn take_folds(&self) -> Vec<QueuedTask> {
        self.lock().folds.take_all()
    }

    /// True if no fold is delayed.
    pub(super) fn has_no_folds(&self) -> bool {
        self.lock().folds.waiting.is_empty()
    }

    /// Records that tasks are done, and wakes the inserts that waited for that.
    pub(super) fn note_done(&self, tasks: usize) {
        let mut state = self.lock();
        state.done += tasks as u64;
        if state.wake_at.is_some_and(|at| at <= state.done) {
            state.wake_at = None;
            self.progress.notify_all();
        }
    }

    /// Closes the queue. Tasks that are not done are found again at the next start. Inserts and barriers stop waiting.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        // Barriers are dropped, which ends the waiting for them.
        state.due.clear();
        self.added.notify_all();
        self.progress.notify_all();
    }
}

impl TaskQueueState {
    /// True if the next task is a seal of the same collection as these, and of another bucket.
    fn continues(&self, tasks: &[QueuedTask]) -> bool {
        let is_seal = |task: &MaintenanceTask| !matches!(task, MaintenanceTask::Fold(..));
        let Some(DueStep::Task((collection, next))) = self.due.front() else {
            return false;
        };
        let bucket = next.bucket();
        let fits = |(of, task): &QueuedTask| {
            is_seal(task) && of.uuid == collection.uuid && task.bucket() != bucket
        };
        is_seal(next) && tasks.iter().all(fits)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use nilometer_bson::ValueRef;

    use super::*;
    use crate::timeseries::format::series_key::SeriesMeta;
    use crate::timeseries::tests::Fixture;

    const NOW: Duration = Duration::ZERO;

    /// The collection, and its series as tasks name it.
    struct Tasks(Fixture);

    impl Tasks {
        fn seal(&self, bucket: u32) -> QueuedTask {
            let collection = self.0.collection.clone();
            let task = MaintenanceTask::Seal(collection.uuid, id(bucket));
            (collection, task)
        }

        fn seal_idle(&self, bucket: u32) -> QueuedTask {
            let collection = self.0.collection.clone();
            let task = MaintenanceTask::SealIdle(collection.uuid, id(bucket));
            (collection, task)
        }

        fn fold(&self, bucket: u32) -> QueuedTask {
            let collection = self.0.collection.clone();
            let meta = SeriesMeta::of(ValueRef::Missing);
            let catalog = &self.0.timeseries.bucket_catalog;
            let key = catalog.series_key(collection.uuid, meta);
            (collection, MaintenanceTask::Fold(key, id(bucket)))
        }
    }

    fn id(bucket: u32) -> [u8; 12] {
        let mut id = [0; 12];
        id[8..].copy_from_slice(&bucket.to_be_bytes());
        id
    }

    /// The buckets of the next tasks; empty if there are none.
    fn next(queue: &TaskQueue, seals_max: usize) -> Vec<[u8; 12]> {
        match queue.next(seals_max, NOW) {
            NextStep::Tasks(tasks) => tasks.iter().map(|(_, task)| task.bucket()).collect(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn seals_of_different_buckets_are_taken_together() {
        let (queue, of) = (TaskQueue::default(), Tasks(Fixture::new()));
        let tasks = [1, 2, 3, 4, 4, 5].map(|bucket| of.seal(bucket));
        assert!(queue.add_all(tasks.to_vec(), 10).is_empty());
        let (done, _waiting) = sync_channel(1);
        queue.add_barrier(done);
        queue.add_all(vec![of.seal_idle(6)], 10);
        assert_eq!(next(&queue, 3), [1, 2, 3].map(id));
        assert_eq!(next(&queue, 3), [id(4)]);
        assert_eq!(next(&queue, 3), [4, 5].map(id));
        assert!(matches!(queue.next(3, NOW), NextStep::Barrier(_)));
        assert_eq!(next(&queue, 3), [id(6)]);
        assert!(matches!(queue.next(3, NOW), NextStep::Idle));
    }

    #[test]
    fn folds_wait_and_end_when_their_bucket_is_sealed() {
        let (queue, of) = (TaskQueue::default(), Tasks(Fixture::new()));
        let tasks = [of.fold(1), of.fold(2), of.fold(1), of.seal(2)];
        assert!(queue.add_all(tasks.to_vec(), 10).is_empty());
        assert_eq!(next(&queue, 3), [id(2)]);
        assert!(!queue.has_no_folds());
        let folds = queue.take_folds();
        let folds: Vec<_> = folds.iter().map(|(_, task)| task.bucket()).collect();
        assert_eq!(folds, [id(1)]);
        assert!(queue.has_no_folds());
    }

    #[test]
    fn inserts_wait_for_a_part_of_what_is_too_much() {
        let (queue, of) = (TaskQueue::default(), Tasks(Fixture::new()));
        let most = TASKS_SOFT_MAX as u32;
        queue.add_all((0..most).map(|bucket| of.seal(bucket)).collect(), 10_000);
        // The bucket keeps its tail.
        queue.add_all(vec![of.seal_idle(most)], 10_000);
        assert_eq!(queue.lock().due.len(), TASKS_SOFT_MAX);
        let excess = 2 * EXCESS_SHARE as u32;
        let more: Vec<_> = (most..most + excess)
            .map(|bucket| of.seal(bucket))
            .collect();
        std::thread::scope(|scope| {
            let insert = scope.spawn(|| queue.add_all(more, 10_000));
            while queue.lock().wake_at.is_none() {
                std::thread::yield_now();
            }
            for done in 0..2 {
                assert_eq!(queue.lock().wake_at, Some(2), "{done}");
                queue.next(1, NOW);
                queue.note_done(1);
            }
            assert!(insert.join().unwrap().is_empty());
        });
        assert_eq!(queue.lock().due.len(), TASKS_SOFT_MAX + 126);
        // An insert of one measurement waits for one task, and not for ever.
        queue.add_all(Vec::new(), 1);
        queue.close();
        assert_eq!(queue.add_all(vec![of.seal(1)], 10_000).len(), 1);
        assert!(matches!(queue.next(1, NOW), NextStep::End));
    }
}
