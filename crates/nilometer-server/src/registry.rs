//! The open connections, so that a shutdown can end them and disconnected clients are noticed.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// An open connection.
#[derive(Debug)]
pub(crate) struct ConnectionEntry {
    /// The id of the connection.
    pub(crate) id: i64,
    /// The address of the client, if it was still connected.
    pub(crate) remote: Option<SocketAddr>,
    pub(crate) stream: TcpStream,
    /// Milliseconds after `epoch` at which the running command began, plus one; 0 if none runs.
    command_began: AtomicU64,
    epoch: Instant,
    closing: AtomicBool,
    /// It uses TLS: a closing client sends a TLS notification before the end of the stream.
    tls: AtomicBool,
    /// Its socket is registered with epoll.
    registered: AtomicBool,
}

impl ConnectionEntry {
    pub(crate) fn begin_command(&self) {
        let now = u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        self.command_began.store(now + 1, Ordering::Relaxed);
    }

    pub(crate) fn end_command(&self) {
        self.command_began.store(0, Ordering::Relaxed);
    }

    /// Records that the connection uses TLS.
    pub(crate) fn mark_tls(&self) {
        self.tls.store(true, Ordering::Relaxed);
    }

    /// Records that its socket is registered with epoll.
    pub(crate) fn mark_registered(&self) {
        self.registered.store(true, Ordering::Relaxed);
    }

    /// True if its socket is registered with epoll.
    pub(crate) fn is_registered(&self) -> bool {
        self.registered.load(Ordering::Relaxed)
    }

    /// True once the connection was asked to end.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// True if a command runs.
    fn runs_command(&self) -> bool {
        self.command_began.load(Ordering::Relaxed) > 0
    }

    /// True if a command has been running for at least `time`.
    fn has_run_for(&self, time: Duration) -> bool {
        let began = self.command_began.load(Ordering::Relaxed).checked_sub(1);
        began.is_some_and(|began| self.epoch.elapsed() >= Duration::from_millis(began) + time)
    }

    /// True if the client has disconnected while a command runs, whose input was read. A connection that was asked to
    /// end also finds the end of its stream; its command has time to finish.
    fn is_abandoned(&self) -> bool {
        self.is_at_end() && !self.is_closing()
    }

    fn is_at_end(&self) -> bool {
        if self.tls.load(Ordering::Relaxed) {
            return self.is_closed_by_client();
        }
        let mut byte = [0u8];
        let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
        matches!(
            rustix::net::recv(&self.stream, &mut byte, flags),
            Ok((0, _)) | Err(rustix::io::Errno::CONNRESET)
        )
    }

    /// Looks for input without waiting; `None` if the client has disconnected or the connection is asked to end.
    pub(crate) fn input(&self) -> Option<bool> {
        if self.is_closing() || (self.tls.load(Ordering::Relaxed) && self.is_closed_by_client()) {
            return None;
        }
        let mut byte = [0u8];
        let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
        match rustix::net::recv(&self.stream, &mut byte, flags) {
            Ok((0, _)) => None,
            Ok(_) => Some(true),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Some(false),
            Err(_) => None,
        }
    }

    /// True if the client has closed its side, even if input is unread.
    fn is_closed_by_client(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, poll};
        let mut polled = [PollFd::new(&self.stream, PollFlags::RDHUP)];
        let at_once = rustix::time::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        poll(&mut polled, Some(&at_once)).is_ok() && polled[0].revents().intersects(ended)
    }

    /// Shuts down the reading side: a thread that waits for a message wakes and finds the end of the stream.
    fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
        // The client may have closed it already.
        drop(self.stream.shutdown(Shutdown::Read));
    }
}

/// The stream of a connection, one file descriptor shared by its thread and the registry.
#[derive(Debug)]
pub(crate) struct SharedStream(pub(crate) Arc<ConnectionEntry>);

impl Read for SharedStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&self.0.stream).read(buffer)
    }
}

impl Write for SharedStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&self.0.stream).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&self.0.stream).flush()
    }
}

/// All open connections.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    entries: Mutex<HashMap<i64, Arc<ConnectionEntry>>>,
    emptied: Condvar,
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, HashMap<i64, Arc<ConnectionEntry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds connection `id`. Returns its stream, still open, if `max` are open.
    pub(crate) fn add(
        &self,
        id: i64,
        stream: TcpStream,
        max: usize,
    ) -> Result<Arc<ConnectionEntry>, TcpStream> {
        let mut entries = self.lock();
        if entries.len() >= max {
            return Err(stream);
        }
        let entry = Arc::new(ConnectionEntry {
            id,
            remote: stream.peer_addr().ok(),
            stream,
            command_began: AtomicU64::new(0),
            epoch: Instant::now(),
            closing: AtomicBool::new(false),
            tls: AtomicBool::new(false),
            registered: AtomicBool::new(false),
        });
        entries.insert(id, entry.clone());
        Ok(entry)
    }

    /// Removes connection `id`.
    pub(crate) fn remove(&self, id: i64) -> Option<Arc<ConnectionEntry>> {
        let mut entries = self.lock();
        let removed = entries.remove(&id);
        if entries.is_empty() {
            self.emptied.notify_all();
        }
        removed
    }

    /// Returns the number of open connections.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Returns the connections whose client has disconnected while a command runs for at least `time`.
    pub(crate) fn abandoned(&self, time: Duration) -> Vec<i64> {
        let entries = self.lock();
        let busy = entries.values().filter(|entry| entry.has_run_for(time));
        let busy: Vec<_> = busy.cloned().collect();
        drop(entries);
        let gone = busy.iter().filter(|entry| entry.is_abandoned());
        gone.map(|entry| entry.id).collect()
    }

    /// Ends all connections after the answer to their running command.
    pub(crate) fn close_all(&self) {
        for entry in self.lock().values() {
            entry.close();
        }
    }

    /// Ends the connections that run no command.
    pub(crate) fn close_idle(&self) {
        let entries = self.lock();
        let idle = entries.values().filter(|entry| !entry.runs_command());
        idle.for_each(|entry| entry.close());
    }

    /// Waits until no connection is open. False after `time`.
    pub(crate) fn wait_until_empty(&self, time: Duration) -> bool {
        let entries = self.lock();
        let (entries, _) = self
            .emptied
            .wait_timeout_while(entries, time, |entries| !entries.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn a_client_that_left_during_a_command_is_noticed() {
        let registry = Registry::default();
        let (mut client, stream) = pair();
        let entry = registry.add(7, stream, 1).expect("there is room");
        let abandoned = || registry.abandoned(Duration::ZERO);
        assert!(abandoned().is_empty());
        entry.begin_command();
        assert!(abandoned().is_empty(), "still connected");
        client.write_all(b"x").unwrap();
        assert!(abandoned().is_empty(), "connected, and has sent more");
        let mut byte = [0];
        (&entry.stream).read_exact(&mut byte).unwrap();
        drop(client);
        while abandoned() != [7] {
            std::thread::yield_now();
        }
        assert!(registry.abandoned(Duration::from_secs(3600)).is_empty());
        entry.end_command();
        assert!(abandoned().is_empty());
    }

    #[test]
    fn a_command_whose_connection_is_asked_to_end_is_not_abandoned() {
        let registry = Registry::default();
        let (_client, stream) = pair();
        let entry = registry.add(7, stream, 1).expect("there is room");
        entry.begin_command();
        registry.close_all();
        assert_eq!((&entry.stream).read(&mut [0]).unwrap(), 0);
        assert!(registry.abandoned(Duration::ZERO).is_empty());
    }

    #[test]
    fn there_is_a_limit_and_an_end() {
        let registry = Registry::default();
        let (_client, stream) = pair();
        let entry = registry.add(1, stream, 1).expect("there is room");
        let (_client, stream) = pair();
        assert!(registry.add(2, stream, 1).is_err());
        assert!(!registry.wait_until_empty(Duration::ZERO));
        entry.begin_command();
        registry.close_idle();
        assert!(!entry.is_closing(), "a command runs");
        entry.end_command();
        registry.close_idle();
        assert!(entry.is_closing());
        registry.close_all();
        assert_eq!((&entry.stream).read(&mut [0]).unwrap(), 0);
        registry.remove(1);
        assert!(registry.wait_until_empty(Duration::ZERO));
    }
}
