//! Threads that help with one query: pieces of its input are worked on at once, their results taken in order.
//!
//! ```text
//! who runs the query     piece 1 ─ piece 2 ─ piece 3 ─ piece 4 …     at most so many on their way
//!                           │         │         │
//!                        worker    worker    nobody had time: done by the one who waits for it
//!                           └────┬────┴─────────┘
//!                         results in the order of the pieces
//! ```
//!
//! Threads are started when a query first has use for them, belong to the database and are joined when it is closed. A
//! piece that no thread has begun when its result is wanted is done then and there, so a query never waits
//! for the pieces of another, and goes on if there is no thread at all.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::error::{Error, ErrorCode, Result};

/// Pieces of one query on their way for each thread: one at work and one to go on with.
const PIECES_PER_THREAD: usize = 2;

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
    waiting: VecDeque<Arc<dyn Piece>>,
    is_closed: bool,
}

/// The threads a query may use.
#[derive(Clone, Debug)]
pub struct Helpers {
    /// Those of the database.
    pub workers: Arc<Workers>,
    /// How many may be busy with the query, the one that runs it among them.
    pub threads: usize,
    /// Batches a query takes alone before it asks for help: with fewer, threads cost more than they bring.
    pub alone_batches: usize,
    /// Batches in a piece. What a piece holds is bounded by it: so many buckets.
    pub piece_batches: usize,
}

/// What [`Helpers::alone_batches`] is where nothing else is said.
const ALONE_BATCHES: usize = 32;

/// What [`Helpers::piece_batches`] is.
const PIECE_BATCHES: usize = 32;

impl Helpers {
    /// Up to `threads` threads, for queries that read many buckets.
    pub fn new(workers: Arc<Workers>, threads: usize) -> Self {
        Self {
            workers,
            threads,
            alone_batches: ALONE_BATCHES,
            piece_batches: PIECE_BATCHES,
        }
    }
}

/// Work that whoever comes first does.
trait Piece: Send + Sync {
    fn run(&self);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Workers {
    /// Hands a piece to the threads, of which there are to be `threads`.
    fn offer(&self, piece: Arc<dyn Piece>, threads: usize) {
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
                // Whoever waits does the work.
                Err(_) => break,
            }
        }
        if running.is_empty() {
            return;
        }
        lock(&self.shared.queue).waiting.push_back(piece);
        drop(running);
        self.shared.arrived.notify_one();
    }

    /// Ends the threads and waits for them. What is offered later is done by those who offer it.
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
            // A panic in a piece is reported to whoever waits for it.
            let _ = thread.join();
        }
    }

    /// How many threads there are.
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
            let piece = loop {
                if queue.is_closed {
                    return;
                }
                if let Some(piece) = queue.waiting.pop_front() {
                    break piece;
                }
                let woken = self.arrived.wait(queue);
                queue = woken.unwrap_or_else(PoisonError::into_inner);
            };
            drop(queue);
            piece.run();
        }
    }
}

type Work<T> = Box<dyn FnOnce() -> Result<T> + Send>;

struct Task<T> {
    state: Mutex<State<T>>,
    done: Condvar,
}

enum State<T> {
    Waiting(Work<T>),
    /// At work, given up, or taken.
    Away,
    Done(Result<T>),
}

impl<T: Send> Piece for Task<T> {
    fn run(&self) {
        let mut state = lock(&self.state);
        let work = match std::mem::replace(&mut *state, State::Away) {
            State::Waiting(work) => work,
            other => {
                *state = other;
                return;
            }
        };
        drop(state);
        let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
            Err(Error::new(
                ErrorCode::InternalError,
                "a thread that helped with the query panicked",
            ))
        });
        *lock(&self.state) = State::Done(result);
        self.done.notify_all();
    }
}

impl<T: Send> Task<T> {
    /// The result; does the work if nobody has begun it.
    fn finish(&self) -> Result<T> {
        self.run();
        let mut state = lock(&self.state);
        loop {
            match std::mem::replace(&mut *state, State::Away) {
                State::Done(result) => return result,
                other => *state = other,
            }
            let woken = self.done.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn give_up(&self) {
        let mut state = lock(&self.state);
        if matches!(*state, State::Waiting(_)) {
            *state = State::Away;
        }
    }
}

/// The pieces of one query that are on their way, in order.
pub(crate) struct Pieces<'w, T: Send + 'static> {
    workers: &'w Workers,
    /// Threads that may work on it, the one that waits among them.
    threads: usize,
    waiting: VecDeque<Arc<Task<T>>>,
}

impl<'w, T: Send + 'static> Pieces<'w, T> {
    /// No piece yet; at most `threads` threads shall be busy with them, the caller's among them.
    pub(crate) fn new(workers: &'w Workers, threads: usize) -> Self {
        Self {
            workers,
            threads,
            waiting: VecDeque::new(),
        }
    }

    /// Adds a piece. If as many are on their way as may be, gives the result of the first.
    pub(crate) fn push(&mut self, work: Work<T>) -> Result<Option<T>> {
        let task = Arc::new(Task {
            state: Mutex::new(State::Waiting(work)),
            done: Condvar::new(),
        });
        self.waiting.push_back(Arc::clone(&task));
        self.workers.offer(task, self.threads.saturating_sub(1));
        if self.waiting.len() <= self.threads.saturating_mul(PIECES_PER_THREAD) {
            return Ok(None);
        }
        self.pop()
    }

    /// The result of the first piece on its way; none if there is none.
    pub(crate) fn pop(&mut self) -> Result<Option<T>> {
        let task = self.waiting.pop_front();
        task.map(|task| task.finish()).transpose()
    }
}

impl<T: Send + 'static> Drop for Pieces<'_, T> {
    /// Pieces whose results nobody wants are not begun; those at work look for interrupts.
    fn drop(&mut self) {
        for task in &self.waiting {
            task.give_up();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn squares(workers: &Workers, threads: usize, count: u64) -> Vec<u64> {
        let mut pieces = Pieces::new(workers, threads);
        let mut out = Vec::new();
        for n in 0..count {
            out.extend(pieces.push(Box::new(move || Ok(n * n))).unwrap());
        }
        while let Some(square) = pieces.pop().unwrap() {
            out.push(square);
        }
        out
    }

    #[test]
    fn results_come_in_order_whoever_works() {
        let workers = Workers::default();
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
        let workers = Workers::default();
        let mut pieces = Pieces::new(&workers, 3);
        assert!(pieces.push(Box::new(|| Ok(1))).unwrap().is_none());
        assert!(
            pieces
                .push(Box::new(|| panic!("on purpose")))
                .unwrap()
                .is_none()
        );
        assert_eq!(pieces.pop().unwrap(), Some(1));
        assert_eq!(pieces.pop().unwrap_err().code, ErrorCode::InternalError);
        assert_eq!(squares(&workers, 3, 10).len(), 10);
    }

    #[test]
    fn few_are_on_their_way() {
        let workers = Workers::default();
        let away = Arc::new(AtomicUsize::new(0));
        let mut pieces = Pieces::new(&workers, 2);
        for _ in 0..100 {
            away.fetch_add(1, Ordering::SeqCst);
            let counter = Arc::clone(&away);
            let work = move || {
                drop(counter);
                Ok(())
            };
            if pieces.push(Box::new(work)).unwrap().is_some() {
                away.fetch_sub(1, Ordering::SeqCst);
            }
            assert!(away.load(Ordering::SeqCst) <= 2 * PIECES_PER_THREAD);
        }
    }
}
