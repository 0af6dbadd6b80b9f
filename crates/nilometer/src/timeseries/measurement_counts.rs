//! Counting measurements: each batch that changes their number also changes a durable counter.
//!
//! ```text
//! writer ── add(+1000) ──▶ a free counter, its new value in the writer's batch ── commit ──▶ free again, value known
//!                                                                              └─ failed ──▶ free again, value read
//! count  ── sum of the counters in a snapshot
//! ```
//!
//! Writers of one collection commit concurrently and wait for the disk, so a single counter would make them wait for
//! each other. Each takes a counter that no other one uses: a collection has as many as it ever had batches in flight.
//! The stored form is in `catalog::measurement_counts`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nilometer_storage::{Durability, Engine, Snapshot, WriteBatch};

use crate::catalog::Catalog;
use crate::error::{Error, ErrorCode, Result};
use crate::validation::Miscount;

/// The counters of all time-series collections of a database.
pub(crate) struct MeasurementCounts {
    engine: Arc<dyn Engine>,
    catalog: Arc<Catalog>,
    collections: Mutex<HashMap<[u8; 16], Arc<FreeCounters>>>,
}

/// The counters of a collection that no batch uses.
#[derive(Debug, Default)]
struct FreeCounters(Mutex<FreeState>);

#[derive(Debug, Default)]
struct FreeState {
    counters: Vec<Counter>,
    /// The number of the next new counter.
    next: u16,
}

#[derive(Clone, Copy, Debug)]
struct Counter {
    number: u16,
    /// The stored value; `None` after a commit that failed.
    value: Option<i64>,
}

/// A counter whose new value is in a batch. Dropped without [`CountedChange::committed`], it becomes free as one whose
/// stored value is unknown.
#[must_use = "the counter is used by a batch"]
pub(crate) struct CountedChange {
    free: Arc<FreeCounters>,
    counter: Counter,
    after: i64,
}

impl CountedChange {
    /// Ends the use of the counter after its batch was committed.
    pub(crate) fn committed(mut self) {
        self.counter.value = Some(self.after);
    }
}

impl Drop for CountedChange {
    fn drop(&mut self) {
        self.free.lock().counters.push(self.counter);
    }
}

impl FreeCounters {
    fn lock(&self) -> MutexGuard<'_, FreeState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MeasurementCounts {
    pub(super) fn new(engine: Arc<dyn Engine>, catalog: Arc<Catalog>) -> Self {
        Self {
            engine,
            catalog,
            collections: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<[u8; 16], Arc<FreeCounters>>> {
        let collections = self.collections.lock();
        collections.unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the free counters of a collection. The first call reads them: no batch uses one yet.
    fn free_counters(&self, uuid: [u8; 16]) -> Result<Arc<FreeCounters>> {
        let mut collections = self.lock();
        if let Some(known) = collections.get(&uuid) {
            return Ok(Arc::clone(known));
        }
        let stored = self
            .catalog
            .measurement_counters(&*self.engine.snapshot()?, uuid)?;
        let numbers = stored.others.iter().map(|(number, _)| *number);
        let next = numbers.max().map_or(0, |last| last.saturating_add(1));
        let counters = stored.others.into_iter().map(|(number, value)| Counter {
            number,
            value: Some(value),
        });
        let free = Arc::new(FreeCounters(Mutex::new(FreeState {
            counters: counters.collect(),
            next,
        })));
        collections.insert(uuid, Arc::clone(&free));
        Ok(free)
    }

    /// Adds a change of the number of measurements to a batch; `None` if the number stays the same.
    pub(crate) fn add(
        &self,
        batch: &mut WriteBatch,
        uuid: [u8; 16],
        change: i64,
    ) -> Result<Option<CountedChange>> {
        if change == 0 {
            return Ok(None);
        }
        let free = self.free_counters(uuid)?;
        let counter = {
            let mut state = free.lock();
            match state.counters.pop() {
                Some(counter) => counter,
                None => {
                    let number = state.next;
                    state.next = number.checked_add(1).ok_or_else(|| {
                        let text = "too many writes of one collection are in flight";
                        Error::new(ErrorCode::WriteConflict, text)
                    })?;
                    Counter {
                        number,
                        value: Some(0),
                    }
                }
            }
        };
        let mut used = CountedChange {
            free,
            counter: Counter {
                value: None,
                ..counter
            },
            after: 0,
        };
        let before = match counter.value {
            Some(known) => known,
            None => self.stored(uuid, counter.number)?,
        };
        used.after = before + change;
        let value = (counter.number, used.after);
        self.catalog.put_measurement_counter(batch, uuid, value);
        Ok(Some(used))
    }

    fn stored(&self, uuid: [u8; 16], number: u16) -> Result<i64> {
        let snapshot = self.engine.snapshot()?;
        let counters = self.catalog.measurement_counters(&*snapshot, uuid)?;
        let found = counters.others.iter().find(|(other, _)| *other == number);
        Ok(found.map_or(0, |(_, value)| *value))
    }

    /// Returns the number of measurements of a collection, or `None` if it is unknown.
    pub(crate) fn count(&self, uuid: [u8; 16]) -> Result<Option<u64>> {
        let snapshot = self.engine.snapshot()?;
        let counters = self.catalog.measurement_counters(&*snapshot, uuid)?;
        let total = counters.total();
        Ok(total.map(|count| u64::try_from(count).unwrap_or(0)))
    }

    /// Compares the counters in a snapshot with the number of measurements in it; `None` if they agree.
    pub(super) fn compare(
        &self,
        snapshot: &dyn Snapshot,
        uuid: [u8; 16],
        found: i64,
    ) -> Result<Option<Miscount>> {
        let counters = self.catalog.measurement_counters(snapshot, uuid)?;
        let agrees = counters.total() == Some(found);
        Ok((!agrees).then(|| Miscount {
            counted: counters.total(),
            base: found - counters.changes(),
            found,
        }))
    }

    /// Corrects the counters. Changes since the snapshot of the comparison stay counted, because writers do not use the
    /// counter that is written.
    pub(super) fn correct(&self, uuid: [u8; 16], miscount: Miscount) -> Result<()> {
        let mut batch = WriteBatch::new();
        self.catalog
            .put_measurement_base(&mut batch, uuid, miscount.base);
        self.engine.commit(batch, Durability::Buffered)?;
        Ok(())
    }

    /// Forgets a dropped collection.
    pub(super) fn forget(&self, uuid: [u8; 16]) {
        self.lock().remove(&uuid);
    }
}
