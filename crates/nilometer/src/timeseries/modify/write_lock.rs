//! Statements that change measurements of one collection take turns.
//!
//! A changed measurement may move to another bucket. Were two statements under way at once, one could
//! move a measurement from where the other has not looked yet to where it has, or the other way round:
//! it would be changed twice, or not at all. Inserts do not move anything and do not wait.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::catalog::Collection;
use crate::error::Result;
use crate::timeseries::Timeseries;

/// How long a waiting statement does not look whether it was interrupted.
const INTERRUPT_CHECK_EVERY: Duration = Duration::from_millis(20);

/// Which collections have a statement under way.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    busy: Mutex<HashSet<[u8; 16]>>,
    freed: Condvar,
}

/// The right to change measurements of a collection, until it is dropped.
#[must_use = "the turn ends when this is dropped"]
pub struct Turn<'t> {
    turns: &'t Turns,
    collection: [u8; 16],
}

impl Timeseries {
    /// Waits for the statements before this one.
    pub fn take_turn(
        &self,
        collection: &Collection,
        check_interrupt: &dyn Fn() -> Result<()>,
    ) -> Result<Turn<'_>> {
        let turns = &self.turns;
        let mut busy = turns.busy.lock().unwrap_or_else(PoisonError::into_inner);
        while !busy.insert(collection.uuid) {
            let waited = turns.freed.wait_timeout(busy, INTERRUPT_CHECK_EVERY);
            busy = waited.unwrap_or_else(PoisonError::into_inner).0;
            check_interrupt()?;
        }
        Ok(Turn {
            turns,
            collection: collection.uuid,
        })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let busy = self.turns.busy.lock();
        let mut busy = busy.unwrap_or_else(PoisonError::into_inner);
        busy.remove(&self.collection);
        drop(busy);
        self.turns.freed.notify_all();
    }
}
