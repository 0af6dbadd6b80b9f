//! The open connections: so that a shutdown can end them, and an absent client be noticed.

use std::collections::HashMap;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// An open connection.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Its number.
    pub(crate) id: i64,
    stream: TcpStream,
    /// Milliseconds after `epoch` at which the running command began, plus one; 0 if none runs.
    command_began: AtomicU64,
    epoch: Instant,
    closing: AtomicBool,
}

impl Entry {
    pub(crate) fn begin_command(&self) {
        let now = u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        self.command_began.store(now + 1, Ordering::Relaxed);
    }

    pub(crate) fn end_command(&self) {
        self.command_began.store(0, Ordering::Relaxed);
    }

    /// True once the connection is told to end.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// True if a command has been running for at least `time` and the client has hung up.
    fn is_deserted(&self, time: Duration) -> bool {
        let Some(began) = self.command_began.load(Ordering::Relaxed).checked_sub(1) else {
            return false;
        };
        if self.epoch.elapsed() < Duration::from_millis(began) + time {
            return false;
        }
        let mut byte = [0u8];
        let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
        matches!(
            rustix::net::recv(&self.stream, &mut byte, flags),
            Ok((0, _)) | Err(rustix::io::Errno::CONNRESET)
        )
    }

    /// Ends the reading side: a thread that waits for a message wakes and finds the end.
    fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
        // It may have been closed by the client already.
        drop(self.stream.shutdown(Shutdown::Read));
    }
}

/// All open connections.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    entries: Mutex<HashMap<i64, Arc<Entry>>>,
    emptied: Condvar,
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, HashMap<i64, Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters connection `id`, unless `max` are open.
    pub(crate) fn add(
        &self,
        id: i64,
        stream: &TcpStream,
        max: usize,
    ) -> std::io::Result<Option<Arc<Entry>>> {
        let mut entries = self.lock();
        if entries.len() >= max {
            return Ok(None);
        }
        let entry = Arc::new(Entry {
            id,
            stream: stream.try_clone()?,
            command_began: AtomicU64::new(0),
            epoch: Instant::now(),
            closing: AtomicBool::new(false),
        });
        entries.insert(id, entry.clone());
        Ok(Some(entry))
    }

    /// Takes connection `id` out.
    pub(crate) fn remove(&self, id: i64) {
        let mut entries = self.lock();
        entries.remove(&id);
        if entries.is_empty() {
            self.emptied.notify_all();
        }
    }

    /// How many are open.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// The connections whose client has gone while a command runs for at least `time`.
    pub(crate) fn deserted(&self, time: Duration) -> Vec<i64> {
        let entries: Vec<_> = self.lock().values().cloned().collect();
        let gone = entries.iter().filter(|entry| entry.is_deserted(time));
        gone.map(|entry| entry.id).collect()
    }

    /// Ends all connections as soon as their running command is answered.
    pub(crate) fn close_all(&self) {
        for entry in self.lock().values() {
            entry.close();
        }
    }

    /// Waits until no connection is open; false if that takes longer than `time`.
    pub(crate) fn wait_until_empty(&self, time: Duration) -> bool {
        let entries = self.lock();
        let (entries, _) = self
            .emptied
            .wait_timeout_while(entries, time, |entries| !entries.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        entries.is_empty()
    }
}
