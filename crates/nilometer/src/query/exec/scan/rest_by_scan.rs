//! The rest of a read by index, by a scan of the collection: once the index has led to so many documents one by one that reading all of them
//! in order would have cost no more.
//!
//! ```text
//! index   ─► 1 ─► 700 ─► 12 ─► … ─► an eighth of the collection searched for      then: all records in order,
//!                                                                                 without those that were returned
//! ```
//!
//! So a read by index costs at most twice what the cheaper of both ways costs, and nothing has to be estimated before it starts. The order of
//! the documents changes, so the operator does this only where no stage relies on the order of the index. Records that follow each other are
//! read by one scan anyway (`write/near_reads.rs`) and do not count.

use std::collections::HashSet;
use std::sync::Arc;

use super::ExecContext;
use crate::error::Result;
use crate::query::exec::memory::{MemoryGauge, MemoryPool};
use crate::query::planner::access::{IndexAccess, IndexScanPlan, KeyPlan};
use crate::query::planner::physical::RecordInput;
use crate::query::source::{RecordIter, RecordKey, RecordScanOptions};

/// A search for one record costs about as much as so many records read in order.
const SEARCH_COST: u64 = 8;

/// Searches before the sizes are compared first.
const SEARCHES_MIN: u64 = 512;

/// Largest distance of record ids that are read by one scan.
const NEAR_MAX: u64 = 12;

/// Bytes of a returned record in the set besides its key.
const RECORD_BYTES: usize = 72;

/// The records that an index led to.
pub(super) struct RestByScan {
    returned: HashSet<RecordKey>,
    memory: MemoryGauge,
    last: Option<u64>,
    searches: u64,
    /// The number of searches at which the sizes are compared next.
    compare_at: u64,
}

impl RestByScan {
    /// Returns the state of a read that may end by a scan; `None` if its order or its keys matter.
    pub(super) fn new(
        input: &RecordInput,
        access: &IndexAccess,
        pool: &Arc<MemoryPool>,
    ) -> Option<Self> {
        let is_text = |scan: &IndexScanPlan| scan.index.text().is_some();
        let may = !matches!(access.keys, KeyPlan::Merge(..))
            && access.covering.is_none()
            && access.distinct.is_none()
            && !access.adds_keys
            && !access.keys.scans().iter().any(is_text)
            && input.forced.is_none()
            && input.choice.order.is_none()
            && !input.is_tail;
        may.then(|| Self {
            returned: HashSet::new(),
            memory: MemoryGauge::of_pool("IXSCAN", Arc::clone(pool)),
            last: None,
            searches: 0,
            compare_at: SEARCHES_MIN,
        })
    }

    /// Notes a record that was fetched.
    pub(super) fn note_fetched(&mut self, record: &RecordKey) {
        let id = <[u8; 8]>::try_from(&record[..])
            .ok()
            .map(u64::from_be_bytes);
        let before = std::mem::replace(&mut self.last, id);
        let distance = id
            .zip(before)
            .and_then(|(id, before)| id.checked_sub(before));
        let is_near = distance.is_some_and(|by| by <= NEAR_MAX);
        self.searches += u64::from(!is_near);
    }

    /// Notes a record that was returned; false if there is no memory to remember it.
    pub(super) fn note_returned(&mut self, record: &RecordKey) -> bool {
        let bytes = record.len() + RECORD_BYTES;
        self.returned.insert(record.clone()) && self.memory.add(bytes).is_ok()
    }

    /// True if the rest is to be scanned.
    pub(super) fn is_due(&mut self, input: &RecordInput) -> Result<bool> {
        if self.searches < self.compare_at {
            return Ok(false);
        }
        self.compare_at = self.searches.saturating_mul(2);
        let Some(count) = input.source.known_count()? else {
            return Ok(false);
        };
        let affordable = count / SEARCH_COST;
        self.compare_at = self.compare_at.min(affordable.max(self.searches + 1));
        Ok(self.searches >= affordable)
    }

    /// Begins the scan.
    pub(super) fn begin(self, input: &RecordInput) -> Result<Rest> {
        Ok(Rest {
            records: input.source.scan(&RecordScanOptions::default())?,
            returned: self.returned,
            _memory: self.memory,
        })
    }
}

/// The scan of the rest.
pub(super) struct Rest {
    records: RecordIter,
    returned: HashSet<RecordKey>,
    _memory: MemoryGauge,
}

impl Rest {
    /// Returns the next record that passes the filter, or no record if this one does not; `None` at the end.
    pub(super) fn next(
        &mut self,
        input: &RecordInput,
        cx: &ExecContext<'_>,
    ) -> Result<Option<Option<(RecordKey, nilometer_bson::Document)>>> {
        let Some(record) = self.records.next() else {
            return Ok(None);
        };
        let (key, document) = record?;
        let is_new = !self.returned.contains(&key);
        let passes = is_new
            && match &input.filter {
                Some(filter) => filter.matches(document.as_ref(), &cx.eval)?,
                None => true,
            };
        Ok(Some(passes.then_some((key, document))))
    }
}
