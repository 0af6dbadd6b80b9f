//! A value shared by several threads, with a memory budget: the form of every cache whose budget depends on
//! the memory of the process (`database/memory.rs`). Each cache decides what it evicts, and when.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A locked value with a budget in bytes.
#[derive(Debug)]
pub(crate) struct Budgeted<T> {
    value: Mutex<T>,
    bytes_max: AtomicUsize,
}

impl<T: Default> Budgeted<T> {
    /// Makes an empty value with a budget.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            value: Mutex::default(),
            bytes_max: AtomicUsize::new(bytes_max),
        }
    }
}

impl<T> Budgeted<T> {
    /// Locks the value, also after a panic of a holder: a cache may lose entries.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the budget in bytes.
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max.load(Ordering::Relaxed)
    }

    /// Changes the budget. Evicts nothing.
    pub(crate) fn set_bytes_max(&self, bytes: usize) {
        self.bytes_max.store(bytes, Ordering::Relaxed);
    }
}
