//! The write lock of a collection: statements that change its measurements run one at a time.
//!
//! A changed measurement may move to another bucket. Of two statements at once, one could move a measurement from where the
//! other has yet to look to where it has looked, or the other way round: it would be changed twice, or not at all. Inserts
//! move nothing and do not take this lock, unless they replace duplicates.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::catalog::Collection;
use crate::error::Result;

/// Time between two checks for an interrupt while waiting.
const INTERRUPT_CHECK_EVERY: Duration = Duration::from_millis(20);

/// The write locks of all collections.
#[derive(Debug, Default)]
pub(crate) struct WriteLocks {
    locked: Mutex<HashSet<[u8; 16]>>,
    unlocked: Condvar,
}

/// Holds the write lock of a collection until it is dropped.
#[must_use = "dropping this releases the lock"]
pub struct WriteLockGuard<'t> {
    locks: &'t WriteLocks,
    collection: [u8; 16],
}

impl WriteLocks {
    /// Waits until no other statement holds the lock of the collection.
    pub(crate) fn lock(
        &self,
        collection: &Collection,
        check_interrupt: &dyn Fn() -> Result<()>,
    ) -> Result<WriteLockGuard<'_>> {
        let mut locked = self.locked.lock().unwrap_or_else(PoisonError::into_inner);
        while !locked.insert(collection.uuid) {
            let waited = self.unlocked.wait_timeout(locked, INTERRUPT_CHECK_EVERY);
            locked = waited.unwrap_or_else(PoisonError::into_inner).0;
            check_interrupt()?;
        }
        Ok(WriteLockGuard {
            locks: self,
            collection: collection.uuid,
        })
    }
}

impl Drop for WriteLockGuard<'_> {
    fn drop(&mut self) {
        let locked = self.locks.locked.lock();
        let mut locked = locked.unwrap_or_else(PoisonError::into_inner);
        locked.remove(&self.collection);
        drop(locked);
        self.locks.unlocked.notify_all();
    }
}
