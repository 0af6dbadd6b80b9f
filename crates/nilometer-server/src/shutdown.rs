//! Waiting for a shutdown: SIGTERM, SIGINT, or a request within the process.

use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use nilometer::services::StorageEnd;
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

/// Requests and awaits a shutdown.
pub struct ShutdownSignal {
    requested: Receiver<ShutdownReason>,
    handle: Sender<ShutdownReason>,
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
                    if of_thread.send(ShutdownReason::Signal(signal)).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self { requested, handle })
    }

    /// Returns a handle to request a shutdown.
    pub fn handle(&self) -> Sender<ShutdownReason> {
        self.handle.clone()
    }

    /// Returns whether a shutdown was requested. The request is used up.
    pub fn is_requested(&self) -> bool {
        self.requested.try_recv().is_ok()
    }

    /// Blocks until a shutdown is requested.
    pub fn wait(&self) -> ShutdownReason {
        self.requested.recv().unwrap_or(ShutdownReason::Request)
    }
}
