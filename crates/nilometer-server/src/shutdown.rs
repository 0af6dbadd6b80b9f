//! Waiting for the end: SIGTERM and SIGINT, or somebody who asks for it inside the process.

use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Why the server shall end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownReason {
    /// This signal came.
    Signal(i32),
    /// It was asked for.
    Request,
}

/// Where a shutdown is asked for and awaited.
pub struct ShutdownSignal {
    requested: Receiver<ShutdownReason>,
    handle: Sender<ShutdownReason>,
}

impl ShutdownSignal {
    /// Takes over SIGTERM and SIGINT. A second signal while the first is being obeyed ends the
    /// process at once; nothing acknowledged is lost by that.
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

    /// A handle by which others ask for the end.
    pub fn handle(&self) -> Sender<ShutdownReason> {
        self.handle.clone()
    }

    /// Blocks until the end is asked for.
    pub fn wait(&self) -> ShutdownReason {
        self.requested.recv().unwrap_or(ShutdownReason::Request)
    }
}
