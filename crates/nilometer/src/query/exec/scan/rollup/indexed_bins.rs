//! Stored bins by an index of the rollup.
//!
//! ```text
//! entry ─► record ─► starts in a stored span? ─► bin of the same snapshot
//! ```
//!
//! Entries of bins that are dirty for the query lie in other spans, and are skipped: those bins are computed.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use nilometer_bson::Document;

use super::RollupPart;
use crate::error::Result;
use crate::index::Index;
use crate::query::exec::ExecContext;
use crate::query::exec::scan::index_fetch::{AccessStats, stream};
use crate::query::exec::scan::index_scan::{KeyStream, Next, ViewAt};
use crate::query::planner::access::{IndexAccess, IndexScanPlan};
use crate::query::source::{Direction, EntryIter, RecordView};
use crate::rollup::view::{TimeSpan, record_time};
use crate::rollup::{RollupView, StoredBin};

/// Entries between two interrupt checks.
const ENTRIES_PER_LOOK: u64 = 128;

/// Reads the bins of stored spans by an index.
pub(super) struct IndexedBins {
    keys: Box<dyn KeyStream>,
    stats: AccessStats,
    /// In order, and not adjacent.
    spans: Vec<TimeSpan>,
    steps: u64,
}

impl IndexedBins {
    /// Reads the stored ones of `parts`, which are in order of time. `None` if bins got arrays since the index was chosen: its bounds
    /// are those of keys without any.
    pub(super) fn new(access: &IndexAccess, parts: &VecDeque<RollupPart>) -> Option<Self> {
        let scans = access.keys.scans();
        if scans.iter().any(IndexScanPlan::has_new_arrays) {
            return None;
        }
        for scan in scans {
            scan.index.stored.count_use();
        }
        let stored = parts.iter().filter_map(|part| match part {
            RollupPart::Stored(from, to) => Some((*from, *to)),
            RollupPart::Indexed | RollupPart::Live(..) => None,
        });
        let stats = AccessStats::of(access);
        Some(Self {
            keys: stream(&access.keys, &stats),
            stats,
            spans: stored.collect(),
            steps: 0,
        })
    }

    /// Returns the next bin. `view` is that by which the parts were chosen; `examined` counts entries.
    pub(super) fn next(
        &mut self,
        view: &RollupView,
        examined: &AtomicU64,
        cx: &ExecContext<'_>,
    ) -> Result<Option<StoredBin>> {
        let at = ViewAt {
            view,
            number: 1,
            memory: &cx.settings.memory,
        };
        loop {
            if self.steps.is_multiple_of(ENTRIES_PER_LOOK) {
                cx.operation.check_interrupt()?;
            }
            self.steps += 1;
            let before = self.stats.keys();
            let next = self.keys.next(at)?;
            examined.fetch_add(self.stats.keys() - before, Ordering::Relaxed);
            let record = match next {
                Next::Entry(entry, _) => entry.record,
                Next::NotYet => continue,
                Next::End => return Ok(None),
            };
            if self.is_stored(&record)
                && let Some(bin) = view.bin_of_record(&record)?
            {
                return Ok(Some(bin));
            }
        }
    }

    /// True if the bin of a record starts in a stored span.
    fn is_stored(&self, record: &[u8]) -> bool {
        let Some(start) = record_time(record) else {
            return false;
        };
        let after = self.spans.partition_point(|(from, _)| *from <= start);
        let span = after.checked_sub(1).and_then(|at| self.spans.get(at));
        span.is_some_and(|(_, to)| start < *to)
    }
}

impl RecordView for RollupView {
    fn entries(
        &self,
        index: &Index,
        start: &[u8],
        end: Option<&[u8]>,
        direction: Direction,
    ) -> Result<EntryIter> {
        let entries = RollupView::entries(self, index, start, end, direction.into())?;
        Ok(Box::new(entries.map(|entry| entry.map(Into::into))))
    }

    fn record(&self, key: &[u8]) -> Result<Option<Document>> {
        let bin = self.bin_of_record(key)?;
        Ok(bin.map(|bin| bin.as_doc().to_document()))
    }
}
