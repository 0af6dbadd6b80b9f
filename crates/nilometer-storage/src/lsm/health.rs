//! Whether the engine still takes writes.
//!
//! Three states end a commit early: the engine was closed; something failed for good (reads go on,
//! writes are refused until the next opening); the disk is full (writes that would have to wait for
//! a flush are refused, and go on by themselves once there is room).

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};
use crate::lock::lock;

/// The state of the engine as a whole.
#[derive(Default)]
pub(crate) struct Health {
    closed: AtomicBool,
    broken: AtomicBool,
    failure: Mutex<Option<Error>>,
    /// Why flushing is held up for now, if it is.
    held_up: Mutex<Option<Error>>,
}

impl Health {
    /// Whether reads may begin.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        Ok(())
    }

    /// Whether writes may begin.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        if self.broken.load(Ordering::Acquire) {
            return Err(self.failure().unwrap_or(Error::Closed));
        }
        Ok(())
    }

    /// Ends writing, for the first reason given.
    pub(crate) fn fail(&self, error: Error) -> Error {
        let mut failure = lock(&self.failure);
        let first = match error {
            Error::LogFailed { .. } | Error::Failed { .. } => error,
            other => Error::Failed {
                reason: other.to_string(),
            },
        };
        let kept = failure.get_or_insert(first).clone();
        self.broken.store(true, Ordering::Release);
        kept
    }

    /// The first failure, if there was one.
    pub(crate) fn failure(&self) -> Option<Error> {
        lock(&self.failure).clone()
    }

    /// Notes what holds up flushing, or that nothing does any more.
    pub(crate) fn hold_up(&self, reason: Option<Error>) {
        *lock(&self.held_up) = reason;
    }

    /// What holds up flushing.
    pub(crate) fn held_up(&self) -> Option<Error> {
        lock(&self.held_up).clone()
    }

    /// Closes; true the first time.
    pub(crate) fn close(&self) -> bool {
        !self.closed.swap(true, Ordering::AcqRel)
    }

    /// True once closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}
