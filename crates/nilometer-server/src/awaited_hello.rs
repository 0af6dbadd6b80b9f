//! A `hello` that waits for a change of the topology, and its stream of answers.
//!
//! ```text
//! hello {topologyVersion, maxAwaitTimeMS} ─► waits without a thread ─► the time is over ─► answered
//!                                             ▲                     └─ input           ─► answered, the stream ends
//!                                             └── exhaust allowed: waits again ◄─────── with `moreToCome`
//! ```
//!
//! A wait takes its whole time, unless the description of this server changes, or the client knows another version of it: then
//! it is answered at once. A message that arrives meanwhile ends the wait, and the end of the
//! connection or a shutdown ends it without an answer.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nilometer::commands::topology_wait;
use nilometer::services::{Counter, ReplicaSet, Services};
use nilometer::{Database, Request};

use crate::limits;
use crate::wire::ReplyForm;

/// The version of this server's description that a client knows.
#[derive(Clone)]
pub(crate) struct KnownTopology {
    set: Option<Arc<ReplicaSet>>,
    counter: i64,
}

impl KnownTopology {
    fn now(services: &Services) -> Self {
        let set = services.replica_set.clone();
        Self {
            counter: set.as_ref().map_or(0, |set| set.counter()),
            set,
        }
    }

    /// True if the description has changed.
    pub(crate) fn has_changed(&self) -> bool {
        let now = self.set.as_ref().map_or(0, |set| set.counter());
        now != self.counter
    }
}

impl fmt::Debug for KnownTopology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counter.fmt(f)
    }
}

/// A `hello` that waits for a change of the topology.
#[derive(Debug)]
pub(crate) struct AwaitedHello {
    pub(crate) request: Request,
    /// The form of the next answer.
    pub(crate) form: ReplyForm,
    /// True if the client takes several answers.
    pub(crate) streams: bool,
    /// The longest wait before each answer.
    time: Duration,
    due: Instant,
    known: KnownTopology,
    /// Counts the connection as one with a stream, from the first answer on.
    stream: Option<ConnectionGuard>,
}

impl AwaitedHello {
    /// Returns the wait of a request; `None` if it is answered at once and by one answer. `streams` says whether the
    /// client takes several.
    pub(crate) fn new(
        database: &Database,
        request: &Request,
        form: ReplyForm,
        streams: bool,
    ) -> Option<Box<Self>> {
        let is_large = request.body.as_bytes().len() > limits::AWAITED_HELLO_BYTES_MAX;
        if is_large || !request.sequences.is_empty() {
            return None;
        }
        let known = KnownTopology::now(database.services());
        let wait = topology_wait(database, request)?;
        if !wait.is_current && !streams {
            return None;
        }
        let time = wait.time.min(limits::HELLO_AWAIT_MAX);
        let now = Instant::now();
        Some(Box::new(Self {
            request: request.clone(),
            form,
            streams,
            time,
            due: if wait.is_current { now + time } else { now },
            known,
            stream: None,
        }))
    }

    /// Returns the time of the next answer.
    pub(crate) fn due(&self) -> Instant {
        self.due
    }

    /// True if the wait is over.
    pub(crate) fn is_due(&self) -> bool {
        Instant::now() >= self.due || self.known.has_changed()
    }

    /// Returns what the client knows.
    pub(crate) fn known(&self) -> KnownTopology {
        self.known.clone()
    }

    /// To be called before an answer is made.
    pub(crate) fn begin_answer(&mut self, services: &Services) {
        self.known = KnownTopology::now(services);
    }

    /// Waits again, after the answer `request_id`, which the next one answers.
    pub(crate) fn continue_after(&mut self, services: &Arc<Services>, request_id: i32) {
        self.form.response_to = request_id;
        self.due = Instant::now() + self.time.max(limits::HELLO_STREAM_INTERVAL_MIN);
        if self.stream.is_none() {
            let counts = match self.request.command_name() {
                "hello" => ConnectionCount::ExhaustHello,
                _ => ConnectionCount::ExhaustIsMaster,
            };
            self.stream = Some(ConnectionGuard::new(services, counts));
        }
    }
}

/// A counter of `serverStatus.connections`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ConnectionCount {
    /// `awaitingTopologyChanges`.
    Awaiting,
    /// `exhaustHello`.
    ExhaustHello,
    /// `exhaustIsMaster`.
    ExhaustIsMaster,
}

/// Counts a connection while it lives.
pub(crate) struct ConnectionGuard {
    services: Arc<Services>,
    counts: ConnectionCount,
}

impl ConnectionGuard {
    pub(crate) fn new(services: &Arc<Services>, counts: ConnectionCount) -> Self {
        let guard = Self {
            services: Arc::clone(services),
            counts,
        };
        guard.counter().increment();
        guard
    }

    fn counter(&self) -> &Counter {
        let counters = &self.services.counters.connections;
        match self.counts {
            ConnectionCount::Awaiting => &counters.awaiting_topology_changes,
            ConnectionCount::ExhaustHello => &counters.exhaust_hello,
            ConnectionCount::ExhaustIsMaster => &counters.exhaust_is_master,
        }
    }
}

impl fmt::Debug for ConnectionGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counts.fmt(f)
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.counter().decrement();
    }
}

/// When the connections that wait are due, at most one entry for each wait.
#[derive(Default)]
pub(crate) struct DueTimes {
    state: Mutex<DueTimesState>,
    changed: Condvar,
}

#[derive(Default)]
struct DueTimesState {
    due: BTreeSet<(Instant, u64)>,
    is_closed: bool,
}

impl DueTimes {
    fn lock(&self) -> MutexGuard<'_, DueTimesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds connection `id`.
    pub(crate) fn insert(&self, due: Instant, id: u64) {
        let mut state = self.lock();
        state.due.insert((due, id));
        let is_first = state.due.first() == Some(&(due, id));
        drop(state);
        if is_first {
            self.changed.notify_all();
        }
    }

    /// Removes connection `id`, if it is here.
    pub(crate) fn remove(&self, due: Instant, id: u64) {
        self.lock().due.remove(&(due, id));
    }

    /// Removes and returns the next connection when it is due; `None` once closed.
    pub(crate) fn next(&self) -> Option<u64> {
        let mut state = self.lock();
        while !state.is_closed {
            let now = Instant::now();
            state = match state.due.first().copied() {
                Some((due, id)) if due <= now => {
                    state.due.pop_first();
                    return Some(id);
                }
                Some((due, _)) => {
                    let waited = self.changed.wait_timeout(state, due - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
            };
        }
        None
    }

    /// Makes all connections due.
    pub(crate) fn advance_all(&self) {
        let mut state = self.lock();
        let now = Instant::now();
        let ids = std::mem::take(&mut state.due).into_iter();
        state.due = ids.map(|(_, id)| (now, id)).collect();
        drop(state);
        self.changed.notify_all();
    }

    /// Ends the thread that waits.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_due_in_order_of_their_times() {
        let times = DueTimes::default();
        let now = Instant::now();
        let after = |ms| now + Duration::from_millis(ms);
        for (ms, id) in [(30, 1), (10, 2), (20, 3), (10, 4), (0, 5)] {
            times.insert(after(ms), id);
        }
        times.remove(after(20), 3);
        times.remove(after(20), 2);
        let order: Vec<_> = (0..4).filter_map(|_| times.next()).collect();
        assert_eq!(order, [5, 2, 4, 1]);
        assert!(now.elapsed() >= Duration::from_millis(30));
        std::thread::scope(|scope| {
            let next = scope.spawn(|| times.next());
            times.insert(Instant::now() + Duration::from_secs(3600), 6);
            times.insert(Instant::now(), 7);
            assert_eq!(next.join().expect("a thread"), Some(7));
            times.insert(Instant::now() + Duration::from_secs(3600), 8);
            times.advance_all();
            let both: BTreeSet<_> = (0..2).filter_map(|_| times.next()).collect();
            assert_eq!(both, BTreeSet::from([6, 8]));
            let none = scope.spawn(|| times.next());
            times.close();
            assert_eq!(none.join().expect("a thread"), None);
        });
    }
}
