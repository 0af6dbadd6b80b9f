//! The records that a scan has returned, so that it returns each once.

use std::collections::HashSet;
use std::sync::Arc;

use crate::error::Result;
use crate::query::exec::memory::{MemoryGauge, MemoryPool};
use crate::query::source::RecordKey;

/// Bytes of a record in the set besides its key: the vector, its place in the table, and what the allocator adds.
const RECORD_BYTES: usize = 72;

/// The keys of records, which count as memory of the query.
pub(crate) struct ReturnedRecords {
    keys: HashSet<RecordKey>,
    stage: &'static str,
    gauge: Option<MemoryGauge>,
}

impl ReturnedRecords {
    /// Makes an empty set of a stage.
    pub(crate) fn new(stage: &'static str) -> Self {
        Self {
            keys: HashSet::new(),
            stage,
            gauge: None,
        }
    }

    /// Adds a record; false if the scan has returned it before. Error 292 if the pool has too little memory.
    pub(crate) fn insert(&mut self, record: &RecordKey, pool: &Arc<MemoryPool>) -> Result<bool> {
        if !self.keys.insert(record.clone()) {
            return Ok(false);
        }
        let gauge = || MemoryGauge::of_pool(self.stage, Arc::clone(pool));
        let gauge = self.gauge.get_or_insert_with(gauge);
        gauge.add(record.len() + RECORD_BYTES)?;
        Ok(true)
    }
}
