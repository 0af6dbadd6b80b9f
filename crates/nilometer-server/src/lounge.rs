//! Where connections rest that nobody has said anything on for a while.
//!
//! ```text
//!   serve ── nothing for a second ──> lounge ── a byte, or the end ──> a thread of its own again
//! ```
//!
//! A thread costs far more memory than a connection: its stack and what the allocator keeps for it. So a connection gives
//! its thread up when it rests, and one thread watches all sockets at rest. What comes is not read here: the new thread
//! does that, so that a client that is slow holds up nobody.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use tracing::warn;

use crate::connection::Resting;
use crate::limits;
use crate::listener;
use crate::server::Shared;

/// Stands for the descriptor that wakes the watcher; connections count from 1.
const WAKER: u64 = 0;

/// Sockets that are told of at a time.
const EVENTS_MAX: usize = 256;

/// The connections at rest.
pub(crate) struct Lounge {
    sockets: OwnedFd,
    waker: OwnedFd,
    resting: Mutex<HashMap<u64, Resting>>,
}

impl Lounge {
    /// An empty one.
    pub(crate) fn new() -> io::Result<Self> {
        let sockets = epoll::create(CreateFlags::CLOEXEC)?;
        let waker = eventfd(0, EventfdFlags::CLOEXEC)?;
        epoll::add(&sockets, &waker, EventData::new_u64(WAKER), EventFlags::IN)?;
        Ok(Self {
            sockets,
            waker,
            resting: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Resting>> {
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a connection that rests. What came meanwhile is noticed at once.
    pub(crate) fn enter(&self, connection: Resting) -> io::Result<()> {
        let entry = connection.shared_entry();
        let id = entry.id.unsigned_abs();
        // Before it is watched: it may be called out at once.
        self.lock().insert(id, connection);
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ONESHOT;
        let added = epoll::add(&self.sockets, &entry.stream, EventData::new_u64(id), flags);
        if let Err(problem) = added {
            self.lock().remove(&id);
            return Err(problem.into());
        }
        Ok(())
    }

    /// The connection `id`, which is no longer watched.
    fn leave(&self, id: u64) -> Option<Resting> {
        let connection = self.lock().remove(&id)?;
        // A socket that was closed is not watched either.
        let _ = epoll::delete(&self.sockets, &connection.entry().stream);
        Some(connection)
    }

    /// Connections at rest.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Lets the watcher end.
    pub(crate) fn close(&self) {
        if let Err(problem) = rustix::io::write(&self.waker, &1_u64.to_ne_bytes()) {
            warn!(c = "NETWORK", id = 22_999, error = %problem, "Waking the watcher failed");
        }
    }
}

/// Gives connections a thread when something comes, until [`Lounge::close`].
pub(crate) fn watch(shared: &Arc<Shared>) {
    let lounge = &shared.lounge;
    let mut events = [MaybeUninit::uninit(); EVENTS_MAX];
    loop {
        let (ready, _) = match epoll::wait(&lounge.sockets, &mut events, None) {
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
            if let Some(connection) = lounge.leave(id) {
                listener::resume(shared, connection);
            }
        }
    }
}
