//! Whether the engine accepts writes.
//!
//! Four states refuse a commit. Closed: for good. Failed: until the next opening; reads continue. Flush blocked,
//! because the disk is full or no file can be opened: writes that would have to wait for a flush are refused until it
//! succeeds. Missing segment: writes that need the log's next segment are refused; the state is recorded for status
//! queries, and the next commit tries again.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::lock::lock;

/// Interval between attempts to create the log's next segment.
const SEGMENT_RETRY_PERIOD: Duration = Duration::from_millis(500);

/// The state of the whole engine.
#[derive(Default)]
pub(crate) struct Health {
    closed: AtomicBool,
    broken: AtomicBool,
    failure: Mutex<Option<Error>>,
    /// Why flushing is blocked, if it is.
    flush_blocked: Mutex<Option<Error>>,
    /// Why the log's next segment could not be created, and when that was last tried.
    missing_segment: Mutex<Option<(Error, Instant)>>,
}

impl Health {
    /// Fails if the engine is closed.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        Ok(())
    }

    /// Fails if the engine is closed or failed.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        if self.broken.load(Ordering::Acquire) {
            return Err(self.failure().unwrap_or(Error::Closed));
        }
        Ok(())
    }

    /// Ends writing. Records the first error and returns it.
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

    /// Returns the first failure, if there was one.
    pub(crate) fn failure(&self) -> Option<Error> {
        lock(&self.failure).clone()
    }

    /// Records why flushing is blocked, or that it is not.
    pub(crate) fn set_flush_blocked(&self, reason: Option<Error>) {
        *lock(&self.flush_blocked) = reason;
    }

    /// Returns why flushing is blocked, if it is.
    pub(crate) fn flush_blocked(&self) -> Option<Error> {
        lock(&self.flush_blocked).clone()
    }

    /// Records that a commit was refused because the log's next segment could not be created.
    pub(crate) fn note_missing_segment(&self, reason: Error) {
        *lock(&self.missing_segment) = Some((reason, Instant::now()));
    }

    /// Records that the log's next segment was created.
    pub(crate) fn note_segment(&self) {
        *lock(&self.missing_segment) = None;
    }

    /// Returns why the log's next segment cannot be created, if so.
    pub(crate) fn missing_segment(&self) -> Option<Error> {
        lock(&self.missing_segment)
            .as_ref()
            .map(|(reason, _)| reason.clone())
    }

    /// Tries to create the log's next segment, if the retry interval has passed. Waits for the disk.
    pub(crate) fn retry_segment(&self, make: impl FnOnce() -> Result<()>) {
        match &mut *lock(&self.missing_segment) {
            Some((_, tried)) if tried.elapsed() >= SEGMENT_RETRY_PERIOD => *tried = Instant::now(),
            _ => return,
        }
        if make().is_ok() {
            self.note_segment();
        }
    }

    /// Closes the engine. True the first time.
    pub(crate) fn close(&self) -> bool {
        !self.closed.swap(true, Ordering::AcqRel)
    }
}
