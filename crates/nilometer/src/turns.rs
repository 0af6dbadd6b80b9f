//! Turns of long queries: how many of them run at once, beside each other and beside bulk writes.
//!
//! ```text
//! query ─► runs ─► has used 0.25 ms of processor time ─► waits for a turn ─► runs for a slice ─► others wait? ─ no ─┐
//!                                                            ▲              ▲                   └ yes ┐             │
//!                                                            │              └─────────────────────────┼─────────────┘
//!                                                            └────────────────────────────────────────┘
//! ```
//!
//! Without turns the system divides the processors among all threads that can run. Sixteen wide queries then leave an
//! insert a seventeenth, and a query of 50 microseconds waits behind slices of all of them. So a query that has used
//! [`SHORT`] needs a turn from then on. [`Turns::limit`] bounds the turns: [`TURNS_PER_CORE`] for each processor, and while
//! bulk writes run only those that the writes leave over. If they leave over a single one, it rests after each slice for as long as the slice took while others wait. Short queries and writes never wait.
//!
//! Queries that have used little get turns before others: each is due after a multiple of what it has used ([`USED_WEIGHT`]).
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
const SHORT: Duration = Duration::from_micros(250);

/// The time a query runs while others wait for its turn.
const SLICE: Duration = Duration::from_millis(2);

/// The longest wait for a turn.
const WAIT_MAX: Duration = Duration::from_millis(250);

/// The longest wait of the query that is next between two looks at the bulk writes, whose pause ends without an event.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The longest wait between two checks for interrupts.
const CHECK_EVERY: Duration = Duration::from_millis(20);

/// A query is due for a turn after this many times what it has used.
const USED_WEIGHT: u32 = 50;

/// A query is due after no more.
const DUE_AFTER_MAX: Duration = Duration::from_millis(150);

/// The longest rest after a turn.
const REST_MAX: Duration = Duration::from_millis(4);

/// Turns for each processor without bulk writes. More than one, because queries also wait for the disk.
const TURNS_PER_CORE: usize = 2;

/// After a bulk write the next one is expected for as long as the write took, and at least so long.
const BULK_PAUSE_MIN: Duration = Duration::from_millis(10);

/// At most so long.
const BULK_PAUSE_MAX: Duration = Duration::from_millis(100);

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
    /// When the next bulk write is no longer expected, in nanoseconds after `epoch`.
    writes_until: AtomicU64,
    queue: Mutex<TurnQueue>,
}

#[derive(Default)]
struct TurnQueue {
    /// Queries that have a turn.
    running: usize,
    /// Queries that wait for one, in order.
    waiting: VecDeque<Arc<WaitingQuery>>,
    /// No turn is given before.
    rest_until: Option<Instant>,
}

/// A query that waits for a turn.
struct WaitingQuery {
    thread: Thread,
    has_turn: AtomicBool,
    /// Queries get turns in the order of these.
    due: Instant,
}

impl TurnQueue {
    /// Returns how long no turn is given; `None` if one may be.
    fn rest(&self) -> Option<Duration> {
        let rest = self.rest_until?.saturating_duration_since(Instant::now());
        (!rest.is_zero()).then_some(rest)
    }

    fn add(&mut self, query: &Arc<WaitingQuery>) {
        let at = self.waiting.partition_point(|other| other.due <= query.due);
        self.waiting.insert(at, Arc::clone(query));
    }

    /// Gives free turns to the queries that are due first.
    fn grant(&mut self, limit: usize) {
        if self.rest().is_some() {
            return;
        }
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

    /// Returns how long a query waits before it looks again.
    fn wait_of(&self, query: &Arc<WaitingQuery>) -> Duration {
        match self.waiting.front() {
            Some(first) if Arc::ptr_eq(first, query) => {
                self.rest().map_or(LOOK_EVERY, |rest| rest.min(LOOK_EVERY))
            }
            _ => CHECK_EVERY,
        }
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
            writes_until: AtomicU64::new(0),
            queue: Mutex::default(),
        }
    }

    /// Counts a write of `bytes` while the guard lives, if it is a bulk write.
    pub(crate) fn begin_write(&self, bytes: usize) -> Option<BulkWriteGuard<'_>> {
        (bytes >= BULK_BYTES).then(|| {
            self.writes.fetch_add(1, Ordering::Relaxed);
            BulkWriteGuard {
                turns: self,
                began: Instant::now(),
            }
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
        usize::from(nanos(self.epoch.elapsed()) < self.writes_until.load(Ordering::Relaxed))
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

    /// True if bulk writes leave over a single turn: their background work and the clients need processors, too.
    fn is_single(&self) -> bool {
        self.bulk_writes() > 0 && self.limit() == 1
    }

    /// Waits for a turn of a query that has used `used`. False if the query runs without one after [`WAIT_MAX`].
    fn enter(&self, used: Duration, check_interrupt: &dyn Fn() -> Result<()>) -> Result<bool> {
        let now = Instant::now();
        let own = Arc::new(WaitingQuery {
            thread: std::thread::current(),
            has_turn: AtomicBool::new(false),
            due: now + used.saturating_mul(USED_WEIGHT).min(DUE_AFTER_MAX),
        });
        self.lock().add(&own);
        let until = now + WAIT_MAX;
        let mut checked = Ok(());
        loop {
            let wait = {
                let mut queue = self.lock();
                queue.grant(self.limit());
                queue.wait_of(&own)
            };
            if own.has_turn.load(Ordering::Acquire) || checked.is_err() || Instant::now() >= until {
                break;
            }
            std::thread::park_timeout(wait);
            checked = check_interrupt();
        }
        let mut queue = self.lock();
        queue.remove(&own);
        let has_turn = own.has_turn.load(Ordering::Acquire);
        drop(queue);
        match checked {
            Ok(()) => Ok(has_turn),
            Err(interrupt) => {
                if has_turn {
                    self.leave(Duration::ZERO);
                }
                Err(interrupt)
            }
        }
    }

    /// Ends a turn after the time it took.
    fn leave(&self, took: Duration) {
        let is_single = self.is_single();
        let mut queue = self.lock();
        queue.running = queue.running.saturating_sub(1);
        if is_single && !queue.waiting.is_empty() {
            queue.rest_until = Some(Instant::now() + took.min(REST_MAX));
            // It waits until the rest is over.
            if let Some(first) = queue.waiting.front() {
                first.thread.unpark();
            }
        }
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
pub(crate) struct BulkWriteGuard<'a> {
    turns: &'a Turns,
    began: Instant,
}

impl Drop for BulkWriteGuard<'_> {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        let until = self.turns.epoch.elapsed() + took.clamp(BULK_PAUSE_MIN, BULK_PAUSE_MAX);
        self.turns
            .writes_until
            .fetch_max(nanos(until), Ordering::Relaxed);
        self.turns.writes.fetch_sub(1, Ordering::Relaxed);
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
    /// When its turn began, if it has one.
    turn: Option<Instant>,
    /// What it has used, as it counts for its next turn.
    used: Duration,
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
                // Beside bulk writes its time counts from the beginning.
                phase: match turns.bulk_writes() {
                    0 => TurnPhase::New,
                    _ => TurnPhase::Short((turns.thread_time)()),
                },
                turn: None,
                used: Duration::ZERO,
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
            TurnPhase::Long if progress.turn.is_some() && !self.turns.is_requested() => {
                self.look_after(now + SLICE);
                return Ok(());
            }
            TurnPhase::Long => {}
        }
        let took = progress.leave(&self.turns).unwrap_or(SHORT);
        progress.used += took;
        progress.phase = TurnPhase::Long;
        let has_turn = self.turns.enter(progress.used, check_interrupt)?;
        progress.turn = has_turn.then(Instant::now);
        self.look_after(clock() + SLICE);
        Ok(())
    }

    fn leave(&self, phase: TurnPhase) {
        let mut progress = self.lock();
        progress.phase = phase;
        progress.leave(&self.turns);
    }
}

impl TurnProgress {
    /// Ends the turn, if there is one. Returns how long it took.
    fn leave(&mut self, turns: &Turns) -> Option<Duration> {
        let took = self.turn.take()?.elapsed();
        turns.leave(took);
        Some(took)
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

    fn waiting(due: Instant) -> Arc<WaitingQuery> {
        Arc::new(WaitingQuery {
            thread: std::thread::current(),
            has_turn: AtomicBool::new(false),
            due,
        })
    }

    #[test]
    fn turns_are_given_in_the_order_in_which_they_are_due() {
        let now = Instant::now();
        let queries = [3, 1, 2, 1].map(|due| waiting(now + due * SLICE));
        let mut queue = TurnQueue::default();
        queries.iter().for_each(|query| queue.add(query));
        let mut order = Vec::new();
        for limit in 1..=4 {
            queue.grant(limit);
            let has_turn = |query: &Arc<WaitingQuery>| query.has_turn.load(Ordering::Relaxed);
            let next = (0..4).find(|at| has_turn(&queries[*at]) && !order.contains(at));
            order.extend(next);
        }
        assert_eq!(order, [1, 3, 2, 0]);
    }

    #[test]
    fn no_turn_is_given_during_a_rest() {
        let mut queue = TurnQueue::default();
        let (first, second) = (waiting(Instant::now()), waiting(Instant::now() + SLICE));
        queue.add(&first);
        queue.add(&second);
        queue.rest_until = Some(Instant::now() + WAIT_MAX);
        queue.grant(1);
        assert_eq!((queue.running, queue.waiting.len()), (0, 2));
        assert!(queue.wait_of(&first) <= LOOK_EVERY);
        assert_eq!(queue.wait_of(&second), CHECK_EVERY);
        queue.rest_until = Some(Instant::now());
        queue.grant(1);
        assert_eq!((queue.running, queue.waiting.len()), (1, 1));
    }

    #[test]
    fn a_turn_rests_only_beside_bulk_writes_and_queries_that_wait() {
        let rests = |writes: usize, others: usize| {
            let turns = turns(2);
            let _writes: Vec<_> = (0..writes).map(|_| turns.begin_write(BULK_BYTES)).collect();
            turns.lock().running = 1;
            // It holds another turn, so none is left for those that wait.
            turns.lock().running += turns.limit();
            (0..others).for_each(|_| turns.lock().add(&waiting(Instant::now())));
            turns.leave(SLICE);
            turns.lock().rest_until.is_some()
        };
        assert!(!rests(0, 1));
        assert!(!rests(1, 0));
        assert!(rests(1, 1));
        assert!(!rests(8, 1), "there are two turns");
    }

    #[test]
    fn an_interrupted_query_stops_waiting() {
        let turns = turns(1);
        let _write = turns.begin_write(BULK_BYTES);
        let first = Query::long(&turns);
        let interrupt = || Err(Error::new(ErrorCode::Interrupted, "killed"));
        let error = turns.enter(SHORT, &interrupt).expect_err("killed");
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
        // The write may have taken long on a busy machine.
        std::thread::sleep(BULK_PAUSE_MAX);
        assert!(!turns.are_scarce());
        let _queries = [Query::long(&turns), Query::long(&turns)];
        assert!(turns.are_scarce());
    }
}
