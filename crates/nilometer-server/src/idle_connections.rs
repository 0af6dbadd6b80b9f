//! The connections that have no thread.
//!
//! ```text
//!   few connections:    serve ── idle for a second ──> IdleConnections ── a byte, or the end ──> its own thread again
//!   many connections:   serve ── answered ──> IdleConnections ── a byte ──> any thread that waits here
//! ```
//!
//! A thread costs far more memory than a connection: its stack and the caches of the allocator. So an idle connection
//! releases its thread. A thousand threads that take turns also cost more time than [`limits::DEDICATED_THREADS_MAX`]
//! that move from one connection to the next. So if more connections are active, a thread releases its connection after
//! each answer and waits here for any connection with input.
//!
//! A connection whose `hello` waits is here, too, until it has input or is due ([`answer_due`]).
//!
//! The thread that takes a connection reads its input, so a slow client delays no other. Commands may take long or wait
//! for each other, so one thread watches whether the others still take connections; if they do not, connections with
//! input get additional threads ([`watch`]), which stay for a second after their last use. `polling` would not be
//! simpler: only one thread at a time can wait in a poller, where many do here, and it would replace only the few calls
//! to epoll.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use tracing::warn;

use crate::awaited_hello::DueTimes;
use crate::connection::IdleConnection;
use crate::limits;
use crate::listener;
use crate::registry::ConnectionEntry;
use crate::server::ServerState;

/// The event of the descriptor that wakes waiting threads. Connections are numbered from 1.
const WAKER: u64 = 0;

/// Maximum events that the watcher receives at a time.
const EVENTS_MAX: usize = 256;

/// The connections without a thread.
pub(crate) struct IdleConnections {
    sockets: OwnedFd,
    waker: OwnedFd,
    waiting: Mutex<HashMap<u64, WaitingConnection>>,
    /// Number of threads.
    serving: AtomicUsize,
    /// Connections here that still count as active.
    active: AtomicUsize,
    /// Threads that wait here for a connection.
    idle: AtomicUsize,
    /// When the connections whose `hello` waits are due.
    due: DueTimes,
    /// Connections that these threads have taken since the start.
    taken: AtomicU64,
    /// Additional threads, used if commands block the others.
    spare: SpareThreads,
    /// Silence after which a connection does not count as active, and a thread ends.
    idle_after: Duration,
}

/// A connection without a thread.
struct WaitingConnection {
    connection: IdleConnection,
    /// When it was inserted, if it still counts as active.
    active_since: Option<Instant>,
}

/// The work of a connection thread.
pub(crate) enum ConnectionWork {
    /// An accepted connection.
    Open(Arc<ConnectionEntry>),
    /// A connection with input.
    Serve(IdleConnection),
}

impl ConnectionWork {
    /// Returns the id of the connection.
    pub(crate) fn id(&self) -> i64 {
        match self {
            Self::Open(entry) => entry.id,
            Self::Serve(connection) => connection.entry().id,
        }
    }
}

/// Counts the calling thread as serving while it lives.
pub(crate) struct ServingGuard<'a>(&'a IdleConnections);

impl Drop for ServingGuard<'_> {
    fn drop(&mut self) {
        self.0.serving.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Recently used threads that wait for work: creating a thread costs more than most commands.
#[derive(Default)]
struct SpareThreads {
    state: Mutex<SpareThreadsState>,
    changed: Condvar,
}

#[derive(Default)]
struct SpareThreadsState {
    threads: usize,
    work: Vec<ConnectionWork>,
    is_closed: bool,
}

impl SpareThreads {
    fn lock(&self) -> MutexGuard<'_, SpareThreadsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for work, at most for `idle_after`.
    fn wait(&self, idle_after: Duration) -> Option<ConnectionWork> {
        let mut state = self.lock();
        state.threads += 1;
        let is_idle = |state: &mut SpareThreadsState| state.work.is_empty() && !state.is_closed;
        let waited = self.changed.wait_timeout_while(state, idle_after, is_idle);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.threads -= 1;
        state.work.pop()
    }

    /// Assigns work to a waiting thread. Returns the work if there is none.
    fn take(&self, work: ConnectionWork) -> Option<ConnectionWork> {
        let mut state = self.lock();
        if state.threads <= state.work.len() {
            return Some(work);
        }
        state.work.push(work);
        drop(state);
        self.changed.notify_one();
        None
    }

    fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }
}

impl IdleConnections {
    /// Returns an empty set.
    pub(crate) fn new(idle_after: Duration) -> io::Result<Self> {
        let sockets = epoll::create(CreateFlags::CLOEXEC)?;
        let waker = eventfd(0, EventfdFlags::CLOEXEC)?;
        epoll::add(&sockets, &waker, EventData::new_u64(WAKER), EventFlags::IN)?;
        Ok(Self {
            sockets,
            waker,
            waiting: Mutex::default(),
            serving: AtomicUsize::new(0),
            active: AtomicUsize::new(0),
            idle: AtomicUsize::new(0),
            due: DueTimes::default(),
            taken: AtomicU64::new(0),
            spare: SpareThreads::default(),
            idle_after,
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, WaitingConnection>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the calling thread as serving a connection.
    pub(crate) fn serving(&self) -> ServingGuard<'_> {
        self.serving.fetch_add(1, Ordering::Relaxed);
        ServingGuard(self)
    }

    /// True if so many connections are active that they share threads.
    pub(crate) fn shares_threads(&self) -> bool {
        let serving = self.serving.load(Ordering::Relaxed);
        serving + self.active.load(Ordering::Relaxed) > limits::DEDICATED_THREADS_MAX
    }

    /// Adds a connection that is idle, or active but sharing threads. Input that arrived meanwhile is noticed
    /// immediately.
    pub(crate) fn enter(&self, connection: IdleConnection, is_active: bool) -> io::Result<()> {
        let entry = connection.entry_handle();
        let id = entry.id.unsigned_abs();
        let due = connection.due();
        let known = connection.known_topology();
        let waiting = WaitingConnection {
            connection,
            active_since: is_active.then(Instant::now),
        };
        if is_active {
            self.active.fetch_add(1, Ordering::Relaxed);
        }
        // Insert before registering with epoll: the event may arrive immediately.
        self.lock().insert(id, waiting);
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ONESHOT;
        let data = EventData::new_u64(id);
        let registered = if entry.is_registered() {
            epoll::modify(&self.sockets, &entry.stream, data, flags)
        } else {
            entry.mark_registered();
            epoll::add(&self.sockets, &entry.stream, data, flags)
        };
        if let Err(problem) = registered {
            drop(self.leave(id));
            return Err(problem.into());
        }
        // After the registration: a thread that took the connection before it could register it, too.
        if let Some(due) = due {
            self.due.insert(due, id);
        }
        // A change after the look at it and before the insertion made others due.
        if known.is_some_and(|known| known.has_changed()) {
            self.due.insert(Instant::now(), id);
        }
        Ok(())
    }

    /// Removes the connection `id`. Its socket stays registered with epoll, without events until the connection is
    /// added again.
    fn leave(&self, id: u64) -> Option<IdleConnection> {
        let WaitingConnection {
            connection,
            active_since,
        } = self.lock().remove(&id)?;
        if active_since.is_some() {
            self.active.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(due) = connection.due() {
            self.due.remove(due, id);
        }
        Some(connection)
    }

    /// Assigns work to a spare thread. Returns the work if there is none.
    pub(crate) fn give(&self, work: ConnectionWork) -> Option<ConnectionWork> {
        self.spare.take(work)
    }

    /// Returns the next connection with input, for a thread that has released its own. Returns `None` after
    /// `idle_after` without input and when the set is closed: then the thread ends.
    pub(crate) fn next(&self) -> Option<ConnectionWork> {
        let is_one_of_few =
            self.idle.fetch_add(1, Ordering::Relaxed) < limits::DEDICATED_THREADS_MAX;
        let next = is_one_of_few.then(|| self.wait_for_ready());
        self.idle.fetch_sub(1, Ordering::Relaxed);
        match next {
            Some(next) => next.map(ConnectionWork::Serve),
            None => self.spare.wait(self.idle_after),
        }
    }

    /// Returns the next work that [`IdleConnections::give`] assigns, for a thread whose connection waits. Returns `None`
    /// after `idle_after` and when the set is closed: then the thread ends. Others may be due soon, and to
    /// start a thread for each costs more than its answer.
    pub(crate) fn next_given(&self) -> Option<ConnectionWork> {
        self.spare.wait(self.idle_after)
    }

    fn wait_for_ready(&self) -> Option<IdleConnection> {
        let until = Instant::now() + self.idle_after;
        let mut events = [MaybeUninit::uninit(); 1];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let (ready, _) = match epoll::wait(&self.sockets, &mut events, Some(&timespec(left))) {
                Ok(ready) => ready,
                Err(rustix::io::Errno::INTR) => continue,
                // The watcher logs it.
                Err(_) => return None,
            };
            match ready.first().map(|event| event.data.u64()) {
                None | Some(WAKER) => return None,
                Some(id) => {
                    if let Some(connection) = self.leave(id) {
                        self.taken.fetch_add(1, Ordering::Relaxed);
                        return Some(connection);
                    }
                }
            }
        }
    }

    /// Answers the connections that wait for a change of the topology.
    pub(crate) fn topology_changed(&self) {
        self.due.advance_all();
    }

    /// Stops counting connections as active that have been here for `idle_after`.
    fn settle(&self) {
        let mut waiting = self.lock();
        for one in waiting.values_mut() {
            let is_over = |since: &Instant| since.elapsed() >= self.idle_after;
            if one.active_since.as_ref().is_some_and(is_over) {
                one.active_since = None;
                self.active.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// True if threads take connections from here.
    fn is_shared(&self) -> bool {
        self.idle.load(Ordering::Relaxed) > 0 || self.shares_threads()
    }

    /// Returns the number of connections without a thread.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Returns the number of threads.
    #[cfg(test)]
    pub(crate) fn threads(&self) -> usize {
        self.serving.load(Ordering::Relaxed)
            + self.idle.load(Ordering::Relaxed)
            + self.spare.lock().threads
    }

    /// Wakes and ends all waiting threads.
    pub(crate) fn close(&self) {
        self.spare.close();
        self.due.close();
        if let Err(problem) = rustix::io::write(&self.waker, &1_u64.to_ne_bytes()) {
            warn!(c = "NETWORK", id = 22_999, error = %problem, "Waking the watcher failed");
        }
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec::try_from(time).unwrap_or(Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    })
}

/// Assigns threads to connections whose `hello` is due, until [`IdleConnections::close`].
pub(crate) fn answer_due(shared: &Arc<ServerState>) {
    let idle_connections = &shared.idle_connections;
    while let Some(id) = idle_connections.due.next() {
        if let Some(connection) = idle_connections.leave(id) {
            listener::resume(shared, connection);
        }
    }
}

/// Assigns threads to connections with input that no waiting thread takes, until [`IdleConnections::close`].
pub(crate) fn watch(shared: &Arc<ServerState>) {
    let idle_connections = &shared.idle_connections;
    let mut events = [MaybeUninit::uninit(); EVENTS_MAX];
    let mut settled = Instant::now();
    loop {
        let is_shared = idle_connections.is_shared();
        if is_shared {
            let taken = idle_connections.taken.load(Ordering::Relaxed);
            std::thread::sleep(limits::SHARED_THREADS_TIMEOUT);
            if settled.elapsed() >= idle_connections.idle_after {
                idle_connections.settle();
                settled = Instant::now();
            }
            if idle_connections.taken.load(Ordering::Relaxed) != taken && !shared.is_shutting_down()
            {
                continue;
            }
        }
        let timeout = is_shared.then(|| timespec(Duration::ZERO));
        let (ready, _) = match epoll::wait(&idle_connections.sockets, &mut events, timeout.as_ref())
        {
            Ok(ready) => ready,
            Err(rustix::io::Errno::INTR) => continue,
            Err(problem) => {
                warn!(c = "NETWORK", id = 22_999, error = %problem, "Watching connections failed");
                std::thread::sleep(limits::ACCEPT_PAUSE);
                continue;
            }
        };
        for event in ready {
            let id = event.data.u64();
            if id == WAKER {
                return;
            }
            if let Some(connection) = idle_connections.leave(id) {
                listener::resume(shared, connection);
            }
        }
    }
}
