//! The numbers of measurements of time-series collections, so that counting them reads no bucket.
//!
//! A collection has several counters: writers commit at the same time, and each uses one of its own. A batch that
//! changes measurements puts the new value of one counter, so the sum in any snapshot is the number of measurements in
//! it. `timeseries::measurement_counts` hands counters to writers.
//!
//! ```text
//! key    FF "count" 00 | UUID of the collection | number of the counter, 2 bytes, big-endian
//! value  int64, little-endian; of a single counter it may be negative
//! ```
//!
//! Counter FFFF is put when the collection is created. A collection without it was written by a version that did not
//! count, and its number is unknown until `validate` counts. Counters of dropped collections are removed when the catalog
//! is opened.

use nilometer_storage::{Direction, Durability, Snapshot, WriteBatch};

use super::Catalog;
use crate::error::{Error, ErrorCode, Result};

/// Prefix of the keys of counters. No namespace starts with the byte FF.
pub(super) const MEASUREMENT_COUNT_PREFIX: &[u8] = b"\xFFcount\0";

/// The counter that a new collection has.
const BASE: u16 = u16::MAX;

/// The counters of one collection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MeasurementCounters {
    /// The counter of a new collection; `None` if the number of measurements is unknown.
    pub base: Option<i64>,
    /// The numbers and values of the others.
    pub others: Vec<(u16, i64)>,
}

impl MeasurementCounters {
    /// Returns the number of measurements, or `None` if it is unknown.
    pub fn total(&self) -> Option<i64> {
        self.base.map(|base| base + self.changes())
    }

    /// Returns the sum of all but the base.
    pub fn changes(&self) -> i64 {
        self.others.iter().map(|(_, value)| value).sum()
    }
}

impl Catalog {
    /// Stores that a new collection has no measurements.
    pub(super) fn begin_measurement_count(&self, uuid: [u8; 16]) -> Result<()> {
        let mut batch = WriteBatch::new();
        self.put_measurement_base(&mut batch, uuid, 0);
        self.engine.commit(batch, Durability::Buffered)?;
        Ok(())
    }

    /// Adds the value of the counter of a new collection to `batch`.
    pub fn put_measurement_base(&self, batch: &mut WriteBatch, uuid: [u8; 16], value: i64) {
        self.put_measurement_counter(batch, uuid, (BASE, value));
    }

    /// Adds the value of a counter to `batch`.
    pub fn put_measurement_counter(
        &self,
        batch: &mut WriteBatch,
        uuid: [u8; 16],
        (number, value): (u16, i64),
    ) {
        let key = [MEASUREMENT_COUNT_PREFIX, &uuid, &number.to_be_bytes()].concat();
        batch.put(self.keyspace, key, value.to_le_bytes().to_vec());
    }

    /// Returns the counters of a collection in a snapshot.
    pub fn measurement_counters(
        &self,
        snapshot: &dyn Snapshot,
        uuid: [u8; 16],
    ) -> Result<MeasurementCounters> {
        let prefix = [MEASUREMENT_COUNT_PREFIX, &uuid].concat();
        let mut counters = MeasurementCounters::default();
        for item in snapshot.scan(self.keyspace, &prefix, None, Direction::Forward)? {
            let (key, value) = item?;
            let Some(number) = key.strip_prefix(&prefix[..]) else {
                break;
            };
            let damaged = || {
                let text = "a counter of measurements cannot be read";
                Error::new(ErrorCode::DataCorruptionDetected, text)
            };
            let number = <[u8; 2]>::try_from(number).map_err(|_| damaged())?;
            let value = <[u8; 8]>::try_from(&value[..]).map_err(|_| damaged())?;
            match (u16::from_be_bytes(number), i64::from_le_bytes(value)) {
                (BASE, value) => counters.base = Some(value),
                other => counters.others.push(other),
            }
        }
        Ok(counters)
    }

    /// Makes the number of measurements unknown.
    #[cfg(test)]
    pub(crate) fn remove_measurement_base(&self, uuid: [u8; 16]) -> Result<()> {
        let mut batch = WriteBatch::new();
        let key = [MEASUREMENT_COUNT_PREFIX, &uuid, &BASE.to_be_bytes()].concat();
        batch.delete(self.keyspace, key);
        self.engine.commit(batch, Durability::Buffered)?;
        Ok(())
    }
}
