//! Memory for large messages, shared by all connections.
//!
//! Each connection has at most one message at a time, of at most 48 MB, which is no limit with thousands of
//! connections. So a message of [`limits::LARGE_MESSAGE_BYTES`] or more reserves its size from a shared budget before
//! memory is allocated, and releases it after processing; a reply of that size releases it after the client has read
//! it. Small messages are not counted: their number is bounded by the connections.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::limits;

/// The budget.
#[derive(Debug)]
pub(crate) struct MessageMemory {
    free: Mutex<usize>,
    freed: Condvar,
    most: usize,
}

/// The reservation of a message, released when it is dropped.
#[derive(Debug)]
pub(crate) struct MemoryShare<'a> {
    of: &'a MessageMemory,
    bytes: usize,
}

impl MessageMemory {
    /// Returns a budget of `most` bytes, at least one message of maximum size.
    pub(crate) fn new(most: usize) -> Self {
        let most = most.max(limits::MESSAGE_BYTES_MAX);
        Self {
            free: Mutex::new(most),
            freed: Condvar::new(),
            most,
        }
    }

    /// Reserves `bytes`. Waits at most `patience`, then returns `None`.
    pub(crate) fn take(&self, bytes: usize, patience: Duration) -> Option<MemoryShare<'_>> {
        if bytes < limits::LARGE_MESSAGE_BYTES {
            return Some(MemoryShare { of: self, bytes: 0 });
        }
        // A reply may be larger than a message; it must not be refused forever.
        let bytes = bytes.min(self.most);
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .freed
            .wait_timeout_while(free, patience, |free| *free < bytes);
        let (mut free, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if *free < bytes {
            return None;
        }
        *free -= bytes;
        Some(MemoryShare { of: self, bytes })
    }
}

impl Drop for MemoryShare<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            *self.of.free.lock().unwrap_or_else(PoisonError::into_inner) += self.bytes;
            self.of.freed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: usize = limits::MESSAGE_BYTES_MAX;

    #[test]
    fn large_messages_wait_for_each_other_and_small_ones_do_not() {
        let memory = MessageMemory::new(LARGE + LARGE / 2);
        let first = memory.take(LARGE, Duration::ZERO).expect("room");
        assert!(memory.take(LARGE, Duration::from_millis(10)).is_none());
        let half = memory.take(LARGE / 2, Duration::ZERO).expect("room");
        assert!(
            memory
                .take(limits::LARGE_MESSAGE_BYTES, Duration::ZERO)
                .is_none()
        );
        assert!(memory.take(1000, Duration::ZERO).is_some());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| memory.take(LARGE, Duration::from_secs(20)).is_some());
            drop(first);
            assert!(waits.join().expect("a thread"));
        });
        drop(half);
        assert!(
            memory.take(3 * LARGE, Duration::ZERO).is_some(),
            "at most the budget"
        );
    }
}
