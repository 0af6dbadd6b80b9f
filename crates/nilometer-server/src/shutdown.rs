//! Waiting for a shutdown: SIGTERM, SIGINT, or a request within the process; and for what else the main thread does.

use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Instant;

use nilometer::services::{StepDown, StorageEnd};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Why the server shuts down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownReason {
    /// This signal arrived.
    Signal(i32),
    /// It was requested.
    Request,
    /// The storage of the database has ended.
    Storage(StorageEnd),
}

/// What the main thread of a server waits for.
#[derive(Debug)]
pub enum ServerEvent {
    /// The server shuts down.
    End(ShutdownReason),
    /// The primary steps down, and says when it has.
    StepDown(StepDown, Sender<nilometer::Result<()>>),
}

/// Requests and awaits a shutdown.
pub struct ShutdownSignal {
    requested: Receiver<ServerEvent>,
    handle: Sender<ServerEvent>,
}

impl ShutdownSignal {
    /// Handles SIGTERM and SIGINT. A second signal during the shutdown ends the process immediately, which loses
    /// nothing acknowledged.
    pub fn listen() -> io::Result<Self> {
        let (handle, requested) = mpsc::channel();
        let mut signals = Signals::new([SIGTERM, SIGINT])?;
        let of_thread = handle.clone();
        thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                let mut seen = false;
                for signal in signals.forever() {
                    if seen {
                        std::process::exit(128 + signal);
                    }
                    seen = true;
                    // The receiver is gone if the server is ending already.
                    let _ = of_thread.send(ServerEvent::End(ShutdownReason::Signal(signal)));
                }
            })?;
        Ok(Self { requested, handle })
    }

    /// Returns a handle to request a shutdown or a step-down.
    pub fn handle(&self) -> Sender<ServerEvent> {
        self.handle.clone()
    }

    /// Returns whether a shutdown was requested. The request is used up.
    pub fn is_requested(&self) -> bool {
        self.requested.try_recv().is_ok()
    }

    /// Blocks until something is requested; `None` if it is `due` before, if it is ever.
    pub fn wait_until(&self, due: Option<Instant>) -> Option<ServerEvent> {
        let ended = ServerEvent::End(ShutdownReason::Request);
        let Some(due) = due else {
            return Some(self.requested.recv().unwrap_or(ended));
        };
        let left = due.saturating_duration_since(Instant::now());
        match self.requested.recv_timeout(left) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(ended),
        }
    }
}
