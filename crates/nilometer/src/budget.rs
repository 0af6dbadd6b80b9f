//! What several threads remember together, and how much memory it may take: the shape of every cache whose budget follows
//! the memory of the process (`database/memory.rs`). What is let go, and when, is each cache's own matter.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Something behind a lock, with the bytes it may take.
#[derive(Debug)]
pub(crate) struct Budgeted<T> {
    held: Mutex<T>,
    bytes_max: AtomicUsize,
}

impl<T: Default> Budgeted<T> {
    /// Nothing yet; it may take so many bytes until something else is said.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            held: Mutex::default(),
            bytes_max: AtomicUsize::new(bytes_max),
        }
    }
}

impl<T> Budgeted<T> {
    /// What is held, also after a thread that had it panicked: each of these can do without what it has forgotten.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes it may take.
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max.load(Ordering::Relaxed)
    }

    /// Changes what it may take. Nothing is let go here.
    pub(crate) fn set_bytes_max(&self, bytes: usize) {
        self.bytes_max.store(bytes, Ordering::Relaxed);
    }
}
