//! Memory budgets that depend on the memory of the process (`database/memory.rs`): a value shared by several threads,
//! the form of every cache, which decides what it evicts, and when; and the memory of all running queries.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
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

/// Memory shared by all running queries.
#[derive(Debug)]
pub struct MemoryPool {
    used: AtomicU64,
    most: AtomicU64,
}

impl Default for MemoryPool {
    /// Creates a pool without a limit.
    fn default() -> Self {
        Self {
            used: AtomicU64::new(0),
            most: AtomicU64::new(u64::MAX),
        }
    }
}

impl MemoryPool {
    /// Sets the limit to `most` bytes; bytes already held stay held.
    pub(crate) fn set_most(&self, most: u64) {
        self.most.store(most, Ordering::Relaxed);
    }

    /// Returns the bytes held by stages and evaluations.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the limit.
    pub(crate) fn most(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }

    /// Takes `bytes` if that many are free.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let most = self.most();
        let more = |used: u64| used.checked_add(bytes).filter(|used| *used <= most);
        let taken = self
            .used
            .try_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.is_ok()
    }

    /// Takes `bytes` even if they are not free.
    pub(crate) fn overdraw(&self, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns `bytes` to the pool. Zero is skipped to avoid contention on the counter.
    pub(crate) fn give_back(&self, bytes: u64) {
        if bytes > 0 {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}
