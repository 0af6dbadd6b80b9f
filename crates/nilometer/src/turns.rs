//! Turns of long queries: how many of them run at once, beside each other and beside bulk writes.
//!
//! ```text
//! query ─► runs ─► has used 1 ms of processor time ─► waits for a turn ─► runs for a slice ─► others wait? ─ no ─┐
//!                                                            ▲              ▲                   └ yes ┐          │
//!                                                            │              └─────────────────────────┼──────────┘
//!                                                            └────────────────────────────────────────┘
//! ```
//!
//! Without turns the system divides the processors among all threads that can run. Sixteen wide queries then leave an
//! insert a seventeenth, and a query of 50 microseconds waits behind slices of all of them. So a query that has used
//! [`SHORT`] needs a turn from then on. [`Turns::limit`] bounds the turns: [`TURNS_PER_CORE`] for each processor, and while
//! bulk writes run only those that the writes leave over. Short queries and writes never wait.
//!
//! Between two batches a query calls [`Turn::pace`], and gives up its turn after [`SLICE`] if others wait. A turn is no
//! lock: a query that has waited for [`WAIT_MAX`] runs without one. So nothing stands still if the query that has the turn
//! waits for what the other holds, such as the write lock of a collection.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::error::Result;

/// Processor time of a query that needs no turn.
const SHORT: Duration = Duration::from_millis(1);

/// The time a query runs while others wait for its turn.
const SLICE: Duration = Duration::from_millis(2);

/// The longest wait for a turn.
const WAIT_MAX: Duration = Duration::from_millis(250);

/// The longest wait between two checks for interrupts.
const CHECK_EVERY: Duration = Duration::from_millis(5);

/// Turns for each processor without bulk writes. More than one, because queries also wait for the disk.
const TURNS_PER_CORE: usize = 2;

/// A connection that writes in bulk counts for so long after each write: the next one is on its way.
const BULK_PAUSE: Duration = Duration::from_millis(10);

/// Bulk writes for each turn, if there are more than processors: queries keep a fifth.
const BULK_WRITES_PER_TURN: usize = 4;

/// A write of so many bytes is a bulk write. Smaller ones are short, or wait for the disk.
const BULK_BYTES: usize = 64 * 1024;

/// The turns of all queries of a database.
pub(crate) struct Turns {
    cores: usize,
    /// Reads the processor time of the calling thread, if it is known.
    thread_time: fn() -> Option<Duration>,
    epoch: Instant,
    /// Bulk writes that run.
    writes: AtomicUsize,
    /// When the last bulk write ended, in nanoseconds after `epoch`; 0 if none has.
    write_ended: AtomicU64,
    queue: Mutex<TurnQueue>,
}

#[derive(Default)]
struct TurnQueue {
    /// Queries that have a turn.
    running: usize,
    /// Queries that wait for one, in order.
    waiting: VecDeque<Arc<WaitingQuery>>,
}

/// A query that waits for a turn.
struct WaitingQuery {
    thread: Thread,
    has_turn: AtomicBool,
}

impl TurnQueue {
    /// Gives free turns to the queries that have waited longest.
    fn grant(&mut self, limit: usize) {
        while self.running < limit
            && let Some(next) = self.waiting.pop_front()
        {
            self.running += 1;
            next.has_turn.store(true, Ordering::Release);
            next.thread.unpark();
        }
    }

    fn remove(&mut self, query: &Arc<WaitingQuery>) {
        self.waiting.retain(|other| !Arc::ptr_eq(other, query));
    }
}

impl Turns {
    /// Creates the turns of queries on `cores` processors.
    pub(crate) fn new(cores: usize, thread_time: fn() -> Option<Duration>) -> Self {
        Self {
            cores,
            thread_time,
            epoch: Instant::now(),
            writes: AtomicUsize::new(0),
            write_ended: AtomicU64::new(0),
            queue: Mutex::default(),
        }
    }

    /// Counts a write of `bytes` while the guard lives, if it is a bulk write.
    pub(crate) fn begin_write(&self, bytes: usize) -> Option<BulkWriteGuard<'_>> {
        (bytes >= BULK_BYTES).then(|| {
            self.writes.fetch_add(1, Ordering::Relaxed);
            BulkWriteGuard(self)
        })
    }

    /// Returns how many queries have a turn and how many wait for one.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let queue = self.lock();
        (queue.running, queue.waiting.len())
    }

    /// True if a query should not use more than one thread: bulk writes or other long queries use the processors.
    pub(crate) fn are_scarce(&self) -> bool {
        self.bulk_writes() > 0 || self.lock().running >= self.cores
    }

    fn lock(&self) -> MutexGuard<'_, TurnQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bulk_writes(&self) -> usize {
        let running = self.writes.load(Ordering::Relaxed);
        if running > 0 {
            return running;
        }
        let ended = Duration::from_nanos(self.write_ended.load(Ordering::Relaxed));
        let is_recent = !ended.is_zero() && self.epoch.elapsed() < ended + BULK_PAUSE;
        usize::from(is_recent)
    }

    /// Returns how many queries may have a turn now.
    fn limit(&self) -> usize {
        let limit = match self.bulk_writes() {
            0 => self.cores.saturating_mul(TURNS_PER_CORE),
            writes => {
                let left = self.cores.saturating_sub(writes);
                left.max(writes / BULK_WRITES_PER_TURN)
            }
        };
        limit.max(1)
    }

    /// Waits for a turn. False if the query runs without one after [`WAIT_MAX`].
    fn enter(&self, check_interrupt: &dyn Fn() -> Result<()>) -> Result<bool> {
        let own = Arc::new(WaitingQuery {
            thread: std::thread::current(),
            has_turn: AtomicBool::new(false),
        });
        {
            let mut queue = self.lock();
            queue.waiting.push_back(Arc::clone(&own));
            queue.grant(self.limit());
        }
        let until = Instant::now() + WAIT_MAX;
        let mut checked = Ok(());
        while !own.has_turn.load(Ordering::Acquire) && checked.is_ok() && Instant::now() < until {
            std::thread::park_timeout(CHECK_EVERY);
            checked = check_interrupt();
            // A pause of bulk writes ends without an event.
            self.lock().grant(self.limit());
        }
        let mut queue = self.lock();
        queue.remove(&own);
        let has_turn = own.has_turn.load(Ordering::Acquire);
        drop(queue);
        match checked {
            Ok(()) => Ok(has_turn),
            Err(interrupt) => {
                if has_turn {
                    self.leave();
                }
                Err(interrupt)
            }
        }
    }

    /// Ends a turn.
    fn leave(&self) {
        let mut queue = self.lock();
        queue.running = queue.running.saturating_sub(1);
        queue.grant(self.limit());
    }

    /// True if a query whose slice is over gives up its turn: there are too many, or others wait.
    fn is_requested(&self) -> bool {
        let limit = self.limit();
        let queue = self.lock();
        !queue.waiting.is_empty() || queue.running > limit
    }
}

impl std::fmt::Debug for Turns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (running, waiting) = self.counts();
        f.debug_struct("Turns")
            .field("running", &running)
            .field("waiting", &waiting)
            .finish_non_exhaustive()
    }
}

/// Counts a bulk write while it lives.
pub(crate) struct BulkWriteGuard<'a>(&'a Turns);

impl Drop for BulkWriteGuard<'_> {
    fn drop(&mut self) {
        let now = nanos(self.0.epoch.elapsed());
        self.0.write_ended.store(now.max(1), Ordering::Relaxed);
        self.0.writes.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The part of one operation in the turns. Clones share it. The default takes no part.
#[derive(Clone, Default)]
pub(crate) struct Turn(Option<Arc<TurnState>>);

struct TurnState {
    turns: Arc<Turns>,
    /// When [`Turn::pace`] must look again, in nanoseconds of the operation's clock.
    look_at: AtomicU64,
    progress: Mutex<TurnProgress>,
}

struct TurnProgress {
    phase: TurnPhase,
    has_turn: bool,
}

/// The phase of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TurnPhase {
    /// It has just begun, or has waited for something else.
    New,
    /// The processor time of its thread when that was first read.
    Short(Option<Duration>),
    /// It is long.
    Long,
    /// It has ended.
    Ended,
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Turn {
    /// Returns the part of an operation that begins at `now`.
    pub(crate) fn new(turns: &Arc<Turns>, now: Duration) -> Self {
        Self(Some(Arc::new(TurnState {
            turns: Arc::clone(turns),
            look_at: AtomicU64::new(nanos(now + SHORT)),
            progress: Mutex::new(TurnProgress {
                phase: TurnPhase::New,
                has_turn: false,
            }),
        })))
    }

    /// Waits for a turn if the operation needs one. `clock` is that of the operation.
    pub(crate) fn pace(
        &self,
        clock: &dyn Fn() -> Duration,
        check_interrupt: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        let Some(state) = &self.0 else {
            return Ok(());
        };
        let now = clock();
        if nanos(now) < state.look_at.load(Ordering::Relaxed) {
            return Ok(());
        }
        state.look(now, clock, check_interrupt)
    }

    /// Gives up the turn before the operation waits for something else.
    pub(crate) fn pause(&self) {
        if let Some(state) = &self.0 {
            state.leave(TurnPhase::New);
        }
    }

    /// Gives up the turn when the guard is dropped.
    pub(crate) fn guard(&self) -> TurnGuard {
        TurnGuard(self.clone())
    }
}

impl TurnState {
    fn lock(&self) -> MutexGuard<'_, TurnProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look_after(&self, time: Duration) {
        self.look_at.store(nanos(time), Ordering::Relaxed);
    }

    fn look(
        &self,
        now: Duration,
        clock: &dyn Fn() -> Duration,
        check_interrupt: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        let thread_time = self.turns.thread_time;
        let mut progress = self.lock();
        match progress.phase {
            TurnPhase::Ended => return Ok(()),
            TurnPhase::New => {
                progress.phase = TurnPhase::Short(thread_time());
                self.look_after(now + SHORT);
                return Ok(());
            }
            TurnPhase::Short(from) => {
                let used = thread_time().zip(from);
                if used.is_some_and(|(now, from)| now.saturating_sub(from) < SHORT) {
                    // It was waiting for the processor or for something else.
                    self.look_after(now + SHORT);
                    return Ok(());
                }
            }
            TurnPhase::Long if progress.has_turn && !self.turns.is_requested() => {
                self.look_after(now + SLICE);
                return Ok(());
            }
            TurnPhase::Long => {}
        }
        if std::mem::take(&mut progress.has_turn) {
            self.turns.leave();
        }
        progress.phase = TurnPhase::Long;
        progress.has_turn = self.turns.enter(check_interrupt)?;
        self.look_after(clock() + SLICE);
        Ok(())
    }

    fn leave(&self, phase: TurnPhase) {
        let mut progress = self.lock();
        progress.phase = phase;
        if std::mem::take(&mut progress.has_turn) {
            self.turns.leave();
        }
    }
}

/// Gives up the turn of an operation when it is dropped.
pub(crate) struct TurnGuard(Turn);

impl Drop for TurnGuard {
    fn drop(&mut self) {
        if let Some(state) = &self.0.0 {
            state.leave(TurnPhase::Ended);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, ErrorCode};

    /// A thread whose processor time is not known: elapsed time counts instead.
    fn turns(cores: usize) -> Arc<Turns> {
        Arc::new(Turns::new(cores, || None))
    }

    /// A query, and a clock that moves by the call.
    struct Query {
        turn: Turn,
        now: std::cell::Cell<Duration>,
    }

    impl Query {
        fn new(turns: &Arc<Turns>) -> Self {
            Self {
                turn: Turn::new(turns, Duration::ZERO),
                now: std::cell::Cell::new(Duration::ZERO),
            }
        }

        fn pace(&self, time: Duration) -> Result<()> {
            self.now.set(self.now.get() + time);
            self.turn.pace(&|| self.now.get(), &|| Ok(()))
        }

        /// Runs until it is long.
        fn long(turns: &Arc<Turns>) -> Self {
            let query = Self::new(turns);
            query.pace(SHORT).expect("short");
            query.pace(SHORT).expect("a turn");
            query
        }
    }

    #[test]
    fn bulk_writes_leave_turns_over_and_never_none() {
        let limits = |cores, writes: &[usize]| -> Vec<usize> {
            let turns = turns(cores);
            let limit = |writes: &usize| {
                let _writes: Vec<_> = (0..*writes)
                    .map(|_| turns.begin_write(BULK_BYTES))
                    .collect();
                turns.limit()
            };
            writes.iter().map(limit).collect()
        };
        assert_eq!(limits(2, &[0, 1, 2, 3, 8, 64]), [4, 1, 1, 1, 2, 16]);
        assert_eq!(limits(8, &[0, 1, 8, 9]), [16, 7, 2, 2]);
        assert_eq!(limits(0, &[0]), [1]);
    }

    #[test]
    fn a_short_query_needs_no_turn() {
        let turns = turns(1);
        let query = Query::new(&turns);
        query.pace(SHORT / 2).expect("no turn");
        query.pace(SHORT).expect("no turn");
        assert_eq!(turns.counts(), (0, 0));
        query.pace(SHORT).expect("a turn");
        assert_eq!(turns.counts(), (1, 0));
        drop(query.turn.guard());
        assert_eq!(turns.counts(), (0, 0));
        query.pace(SHORT).expect("it has ended");
        assert_eq!(turns.counts(), (0, 0));
    }

    #[test]
    fn a_query_that_used_no_processor_time_stays_short() {
        let turns = Arc::new(Turns::new(1, || Some(Duration::ZERO)));
        let query = Query::new(&turns);
        for _ in 0..10 {
            query.pace(2 * SHORT).expect("no turn");
        }
        assert_eq!(turns.counts(), (0, 0));
    }

    #[test]
    fn a_waiting_query_gets_the_turn_of_one_whose_slice_is_over() {
        let turns = turns(1);
        let write = turns.begin_write(BULK_BYTES).expect("a bulk write");
        assert!(turns.begin_write(BULK_BYTES - 1).is_none());
        let first = Query::long(&turns);
        assert_eq!(turns.counts(), (1, 0));
        std::thread::scope(|scope| {
            let second = scope.spawn(|| drop(Query::long(&turns).turn.guard()));
            while turns.counts() != (1, 1) {
                std::thread::yield_now();
            }
            // Within its slice the first keeps its turn.
            first.pace(SLICE / 2).expect("its turn");
            assert_eq!(turns.counts(), (1, 1));
            first.pace(SLICE).expect("its next turn");
            second.join().expect("a thread");
        });
        assert_eq!(turns.counts(), (1, 0));
        drop(write);
        first.turn.pause();
        assert_eq!(turns.counts(), (0, 0));
    }

    #[test]
    fn an_interrupted_query_stops_waiting() {
        let turns = turns(1);
        let _write = turns.begin_write(BULK_BYTES);
        let first = Query::long(&turns);
        let interrupt = || Err(Error::new(ErrorCode::Interrupted, "killed"));
        let error = turns.enter(&interrupt).expect_err("killed");
        assert_eq!(error.code, ErrorCode::Interrupted);
        assert_eq!(turns.counts(), (1, 0));
        drop(first.turn.guard());
        assert_eq!(turns.counts(), (0, 0));
    }

    #[test]
    fn a_query_runs_without_a_turn_rather_than_wait_forever() {
        let turns = turns(1);
        let _write = turns.begin_write(BULK_BYTES);
        let _first = Query::long(&turns);
        let second = Query::long(&turns);
        assert_eq!(turns.counts(), (1, 0), "the second has no turn");
        second.pace(SLICE / 4).expect("no turn");
        drop(second.turn.guard());
        assert_eq!(turns.counts(), (1, 0));
    }

    #[test]
    fn queries_use_one_thread_beside_bulk_writes_and_many_others() {
        let turns = turns(2);
        assert!(!turns.are_scarce());
        let write = turns.begin_write(BULK_BYTES);
        assert!(turns.are_scarce());
        drop(write);
        std::thread::sleep(BULK_PAUSE);
        assert!(!turns.are_scarce());
        let _queries = [Query::long(&turns), Query::long(&turns)];
        assert!(turns.are_scarce());
    }
}
