//! A pool of threads that share the work of one query: tasks run concurrently, results are returned in order.
//!
//! ```text
//! query thread     task 1 ─ task 2 ─ task 3 ─ task 4 …     at most two in flight for each thread
//!                    │        │        │
//!                 worker   worker   not started: run by the query thread when it waits
//!                    └────┬───┴────────┘
//!                  results in the order of the tasks
//! ```
//!
//! Threads start when a query first needs them, belong to the database, and are joined when it closes. A
//! task that no worker has started when its result is needed runs on the query thread, and so do later ones while a worker runs that
//! task. So a query never waits for the tasks of another one, and works without any worker. That ordered hand-over is why this is not `rayon-core`,
//! whose pool runs tasks in any order and lets a waiting thread steal those of another query.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::error::{Error, ErrorCode, Result};

/// Tasks of one query in flight for each thread: one running, one queued.
const TASKS_PER_THREAD: usize = 2;

/// The threads of one database.
#[derive(Default)]
pub struct Workers {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    arrived: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Arc<dyn Task>>,
    is_closed: bool,
}

/// The threads a query may use.
#[derive(Clone, Debug)]
pub struct QueryThreads {
    /// The pool of the database.
    pub workers: Arc<Workers>,
    /// Threads that may run the query at once, its own included.
    pub count: usize,
    /// Batches the query's own thread processes first: for fewer, threads cost more than they save.
    pub batches_before: usize,
    /// Batches in a task, which bounds its memory.
    pub batches_per_task: usize,
}

/// The default of [`QueryThreads::batches_before`].
const BATCHES_BEFORE: usize = 32;

/// The default of [`QueryThreads::batches_per_task`].
const BATCHES_PER_TASK: usize = 32;

impl QueryThreads {
    /// Allows up to `threads` threads, for queries that read many buckets.
    pub fn new(workers: Arc<Workers>, threads: usize) -> Self {
        Self {
            workers,
            count: threads,
            batches_before: BATCHES_BEFORE,
            batches_per_task: BATCHES_PER_TASK,
        }
    }
}

/// Work that the first free thread runs.
trait Task: Send + Sync {
    fn run(&self);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Workers {
    /// Queues a task; starts threads until there are `threads`.
    fn offer(&self, task: Arc<dyn Task>, threads: usize) {
        let mut running = lock(&self.threads);
        if lock(&self.shared.queue).is_closed {
            return;
        }
        while running.len() < threads {
            let shared = Arc::clone(&self.shared);
            let name = format!("query-{}", running.len());
            let started = std::thread::Builder::new()
                .name(name)
                .spawn(move || shared.work());
            match started {
                Ok(thread) => running.push(thread),
                // The query thread runs the task when it waits for the result.
                Err(_) => break,
            }
        }
        if running.is_empty() {
            return;
        }
        lock(&self.shared.queue).waiting.push_back(task);
        drop(running);
        self.shared.arrived.notify_one();
    }

    /// Stops the threads and joins them. Tasks that are offered later run on the query thread.
    pub fn close(&self) {
        let threads = {
            let mut running = lock(&self.threads);
            let mut queue = lock(&self.shared.queue);
            queue.is_closed = true;
            queue.waiting.clear();
            std::mem::take(&mut *running)
        };
        self.shared.arrived.notify_all();
        for thread in threads {
            // A panic in a task is reported to the query that waits for it.
            let _ = thread.join();
        }
    }

    /// The number of running threads.
    pub fn running(&self) -> usize {
        lock(&self.threads).len()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for Workers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workers")
            .field("running", &self.running())
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn work(&self) {
        loop {
            let mut queue = lock(&self.queue);
            let task = loop {
                if queue.is_closed {
                    return;
                }
                if let Some(task) = queue.waiting.pop_front() {
                    break task;
                }
                let woken = self.arrived.wait(queue);
                queue = woken.unwrap_or_else(PoisonError::into_inner);
            };
            drop(queue);
            task.run();
        }
    }
}

type Work<T> = Box<dyn FnOnce() -> Result<T> + Send>;

struct TaskSlot<T> {
    state: Mutex<TaskState<T>>,
    done: Condvar,
}

enum TaskState<T> {
    Queued(Work<T>),
    /// Running, abandoned, or its result was taken.
    Taken,
    Done(Result<T>),
}

impl<T: Send> Task for TaskSlot<T> {
    fn run(&self) {
        let mut state = lock(&self.state);
        let work = match std::mem::replace(&mut *state, TaskState::Taken) {
            TaskState::Queued(work) => work,
            other => {
                *state = other;
                return;
            }
        };
        drop(state);
        let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
            Err(Error::new(
                ErrorCode::InternalError,
                "a worker thread of the query panicked",
            ))
        });
        *lock(&self.state) = TaskState::Done(result);
        self.done.notify_all();
    }
}

impl<T: Send + 'static> TaskSlot<T> {
    /// Queues a task that one of `threads` threads may run, the caller's included.
    fn offer(workers: &Workers, threads: usize, work: Work<T>) -> Arc<Self> {
        let task = Arc::new(Self {
            state: Mutex::new(TaskState::Queued(work)),
            done: Condvar::new(),
        });
        workers.offer(
            Arc::clone(&task) as Arc<dyn Task>,
            threads.saturating_sub(1),
        );
        task
    }

    /// Returns the result; runs the task if no thread has started it.
    fn finish(&self) -> Result<T> {
        self.run();
        let mut state = lock(&self.state);
        loop {
            match std::mem::replace(&mut *state, TaskState::Taken) {
                TaskState::Done(result) => return result,
                other => *state = other,
            }
            let woken = self.done.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn is_done(&self) -> bool {
        matches!(*lock(&self.state), TaskState::Done(_))
    }

    fn give_up(&self) {
        let mut state = lock(&self.state);
        if matches!(*state, TaskState::Queued(_)) {
            *state = TaskState::Taken;
        }
    }
}

/// The tasks of one query in flight, in order.
pub(crate) struct TasksInFlight<T: Send + 'static> {
    workers: Arc<Workers>,
    /// Threads that may run tasks at once, the waiting one included.
    threads: usize,
    waiting: VecDeque<Arc<TaskSlot<T>>>,
}

impl<T: Send + 'static> TasksInFlight<T> {
    /// Creates an empty queue; at most `threads` threads run its tasks, the caller's included.
    pub(crate) fn new(workers: &Arc<Workers>, threads: usize) -> Self {
        Self {
            workers: Arc::clone(workers),
            threads,
            waiting: VecDeque::new(),
        }
    }

    /// Adds a task. Returns the result of the first one if the limit of tasks in flight is reached.
    pub(crate) fn push(&mut self, work: Work<T>) -> Result<Option<T>> {
        let was_full = self.is_full();
        let task = TaskSlot::offer(&self.workers, self.threads, work);
        self.waiting.push_back(task);
        match was_full {
            true => self.pop(),
            false => Ok(None),
        }
    }

    /// True if the limit of tasks in flight is reached.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() >= self.threads.saturating_mul(TASKS_PER_THREAD)
    }

    /// True if the first task in flight has ended.
    pub(crate) fn is_first_done(&self) -> bool {
        self.waiting.front().is_some_and(|first| first.is_done())
    }

    /// Returns the result of the first task in flight; `None` if there is none. While a thread runs it, the caller runs later
    /// ones that no thread has started.
    pub(crate) fn pop(&mut self) -> Result<Option<T>> {
        let Some(first) = self.waiting.pop_front() else {
            return Ok(None);
        };
        first.run();
        for later in &self.waiting {
            if first.is_done() {
                break;
            }
            later.run();
        }
        first.finish().map(Some)
    }
}

impl<T: Send + 'static> Drop for TasksInFlight<T> {
    /// Cancels tasks that no thread has started; running ones check for interrupts.
    fn drop(&mut self) {
        for task in &self.waiting {
            task.give_up();
        }
    }
}

/// One task of a query, whose result is needed later.
pub(crate) struct TaskAhead<T: Send + 'static>(Arc<TaskSlot<T>>);

impl<T: Send + 'static> TaskAhead<T> {
    /// Offers the task to the threads of the query.
    pub(crate) fn offer(threads: &QueryThreads, work: Work<T>) -> Self {
        Self(TaskSlot::offer(&threads.workers, threads.count, work))
    }

    /// Returns the result; runs the task if no thread has started it.
    pub(crate) fn finish(self) -> Result<T> {
        self.0.finish()
    }
}

impl<T: Send + 'static> Drop for TaskAhead<T> {
    /// Cancels the task if no thread has started it.
    fn drop(&mut self) {
        self.0.give_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    fn squares(workers: &Arc<Workers>, threads: usize, count: u64) -> Vec<u64> {
        let mut tasks = TasksInFlight::new(workers, threads);
        let mut out = Vec::new();
        for n in 0..count {
            out.extend(tasks.push(Box::new(move || Ok(n * n))).unwrap());
        }
        while let Some(square) = tasks.pop().unwrap() {
            out.push(square);
        }
        out
    }

    #[test]
    fn the_caller_runs_later_tasks_while_it_waits() {
        let workers = Arc::<Workers>::default();
        let mut tasks = TasksInFlight::new(&workers, 2);
        let (sender, receiver) = std::sync::mpsc::channel();
        // The only thread of the pool waits in the first task for the second.
        let first = move || Ok(receiver.recv_timeout(Duration::from_secs(60)).is_ok());
        let second = move || Ok(sender.send(()).is_ok());
        assert!(tasks.push(Box::new(first)).unwrap().is_none());
        while !lock(&workers.shared.queue).waiting.is_empty() {
            std::thread::yield_now();
        }
        assert!(tasks.push(Box::new(second)).unwrap().is_none());
        assert_eq!(tasks.pop().unwrap(), Some(true));
        assert_eq!(tasks.pop().unwrap(), Some(true));
    }

    #[test]
    fn results_come_in_order_whoever_works() {
        let workers = Arc::<Workers>::default();
        let expected: Vec<u64> = (0..500).map(|n| n * n).collect();
        for threads in [1, 2, 5] {
            assert_eq!(squares(&workers, threads, 500), expected);
            assert_eq!(workers.running(), threads - 1);
        }
        workers.close();
        assert_eq!(workers.running(), 0);
        assert_eq!(squares(&workers, 4, 500), expected);
        assert_eq!(workers.running(), 0);
    }

    #[test]
    fn a_panic_is_an_error_and_harms_nobody_else() {
        let workers = Arc::<Workers>::default();
        let mut tasks = TasksInFlight::new(&workers, 3);
        assert!(tasks.push(Box::new(|| Ok(1))).unwrap().is_none());
        assert!(
            tasks
                .push(Box::new(|| panic!("on purpose")))
                .unwrap()
                .is_none()
        );
        assert_eq!(tasks.pop().unwrap(), Some(1));
        assert_eq!(tasks.pop().unwrap_err().code, ErrorCode::InternalError);
        assert_eq!(squares(&workers, 3, 10).len(), 10);
    }

    #[test]
    fn a_task_ahead_is_run_once_or_cancelled() {
        let workers = Arc::new(Workers::default());
        for count in [1, 2] {
            let threads = QueryThreads::new(Arc::clone(&workers), count);
            let ahead = TaskAhead::offer(&threads, Box::new(|| Ok(7)));
            assert_eq!(ahead.finish().unwrap(), 7);
            let failed = TaskAhead::<()>::offer(&threads, Box::new(|| panic!("on purpose")));
            let code = failed.finish().unwrap_err().code;
            assert_eq!(code, ErrorCode::InternalError);
        }
        workers.close();
        let ran = Arc::new(AtomicUsize::new(0));
        let threads = QueryThreads::new(workers, 2);
        for is_needed in [false, true] {
            let counter = Arc::clone(&ran);
            let work = move || Ok(counter.fetch_add(1, Ordering::SeqCst));
            let ahead = TaskAhead::offer(&threads, Box::new(work));
            if is_needed {
                assert_eq!(ahead.finish().unwrap(), 0);
            }
        }
        assert_eq!(ran.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn few_are_in_flight() {
        let workers = Arc::<Workers>::default();
        let away = Arc::new(AtomicUsize::new(0));
        let mut tasks = TasksInFlight::new(&workers, 2);
        for _ in 0..100 {
            away.fetch_add(1, Ordering::SeqCst);
            let counter = Arc::clone(&away);
            let work = move || {
                drop(counter);
                Ok(())
            };
            if tasks.push(Box::new(work)).unwrap().is_some() {
                away.fetch_sub(1, Ordering::SeqCst);
            }
            assert!(away.load(Ordering::SeqCst) <= 2 * TASKS_PER_THREAD);
        }
    }
}
