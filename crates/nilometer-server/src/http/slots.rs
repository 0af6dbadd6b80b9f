//! A counting semaphore with a timeout.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// A bounded number of slots.
pub(super) struct Slots {
    free: Mutex<usize>,
    freed: Condvar,
}

/// An acquired slot, released when it is dropped.
pub(super) struct Slot<'a>(&'a Slots);

impl Slots {
    pub(super) fn new(count: usize) -> Self {
        Self {
            free: Mutex::new(count),
            freed: Condvar::new(),
        }
    }

    /// Acquires a slot. Waits at most `patience`.
    pub(super) fn take(&self, patience: Duration) -> Option<Slot<'_>> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut free, _) = self
            .freed
            .wait_timeout_while(free, patience, |free| *free == 0)
            .unwrap_or_else(PoisonError::into_inner);
        *free = free.checked_sub(1)?;
        Some(Slot(self))
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let slots = self.0;
        *slots.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        slots.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_bounded_and_released() {
        let slots = Slots::new(2);
        let first = slots.take(Duration::ZERO);
        let second = slots.take(Duration::ZERO);
        assert!(first.is_some() && second.is_some());
        assert!(slots.take(Duration::from_millis(1)).is_none());
        drop(first);
        assert!(slots.take(Duration::ZERO).is_some());
    }
}
