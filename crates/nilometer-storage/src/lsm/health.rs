//! Whether the engine still takes writes.
//!
//! Four states end a commit early: the engine was closed; something failed for good (reads go on,
//! writes are refused until the next opening); the disk is full (writes that would have to wait for
//! a flush are refused, and go on by themselves once there is room); the log's next segment cannot be made (writes
//! that need it are refused). The last is noted for those who ask; the next commit tries again in any case.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::lock::lock;

/// How often it is tried whether the log's next segment can be made again.
const SEGMENT_RETRY_PERIOD: Duration = Duration::from_millis(500);

/// The state of the engine as a whole.
#[derive(Default)]
pub(crate) struct Health {
    closed: AtomicBool,
    broken: AtomicBool,
    failure: Mutex<Option<Error>>,
    /// Why flushing is held up for now, if it is.
    flush_blocked: Mutex<Option<Error>>,
    /// Why the log's next segment could not be made, and when that was last tried.
    missing_segment: Mutex<Option<(Error, Instant)>>,
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
    pub(crate) fn set_flush_blocked(&self, reason: Option<Error>) {
        *lock(&self.flush_blocked) = reason;
    }

    /// What holds up flushing.
    pub(crate) fn flush_blocked(&self) -> Option<Error> {
        lock(&self.flush_blocked).clone()
    }

    /// Notes that a commit was refused as the log's next segment could not be made.
    pub(crate) fn note_missing_segment(&self, reason: Error) {
        *lock(&self.missing_segment) = Some((reason, Instant::now()));
    }

    /// Notes that the log's next segment was made.
    pub(crate) fn note_segment(&self) {
        *lock(&self.missing_segment) = None;
    }

    /// Why the log's next segment cannot be made.
    pub(crate) fn missing_segment(&self) -> Option<Error> {
        lock(&self.missing_segment)
            .as_ref()
            .map(|(reason, _)| reason.clone())
    }

    /// Tries, if it is time, whether the log's next segment can be made again. PendingIo for the disk.
    pub(crate) fn retry_segment(&self, make: impl FnOnce() -> Result<()>) {
        match &mut *lock(&self.missing_segment) {
            Some((_, tried)) if tried.elapsed() >= SEGMENT_RETRY_PERIOD => *tried = Instant::now(),
            _ => return,
        }
        if make().is_ok() {
            self.note_segment();
        }
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
