//! Reads sealed documents before they are requested, when requests follow the order of the buckets.
//!
//! ```text
//! rows of a block   0  1  2  3  …  34  35
//! requested         ■  ■  ■              two in a row, and the next
//! read                    ├──────────┤   by one scan
//! ```
//!
//! A range of times cuts the first and the last bucket of each series, and these lie side by side: one scan of them costs a third of
//! what looking them up does.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nilometer_storage::{Bytes, Direction, KeyspaceId, Snapshot};

use crate::error::Result;
use crate::timeseries::format::key_range::{bucket_of, end_of};
use crate::timeseries::format::summary::SummaryRow;

/// Rows that were requested side by side before the rows that follow are read ahead.
const NEIGHBOURS: usize = 2;

/// Documents of one scan, at most.
const DOCUMENTS_MAX: usize = 32;

/// The sealed documents of the rows of a block.
#[derive(Default)]
pub(super) struct ReadAhead(Mutex<State>);

#[derive(Default)]
struct State {
    /// Whether each row was requested.
    requested: Vec<bool>,
    /// Documents that were read and not requested yet.
    ready: BTreeMap<[u8; 12], Bytes>,
}

impl State {
    /// Notes that a row is requested. Returns the rows to read with it, if its neighbours were requested.
    fn request(&mut self, row: usize, count: usize) -> Option<RangeInclusive<usize>> {
        self.requested.resize(count, false);
        *self.requested.get_mut(row)? = true;
        let was_requested = |at: Option<usize>| {
            let known = at.and_then(|at| self.requested.get(at));
            known.copied().unwrap_or(false)
        };
        if (1..=NEIGHBOURS).all(|step| was_requested(row.checked_sub(step))) {
            return Some(row..=(row + DOCUMENTS_MAX).min(count) - 1);
        }
        if (1..=NEIGHBOURS).all(|step| was_requested(Some(row + step))) {
            return Some((row + 1).saturating_sub(DOCUMENTS_MAX)..=row);
        }
        None
    }
}

impl ReadAhead {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the sealed document of a row, if there is one. A document that was read ahead is returned once.
    pub(super) fn document(
        &self,
        rows: &[SummaryRow],
        row: usize,
        (snapshot, sealed): (&dyn Snapshot, KeyspaceId),
    ) -> Result<Option<Bytes>> {
        let Some(SummaryRow { id, .. }) = rows.get(row) else {
            return Ok(None);
        };
        let wanted = {
            let mut state = self.lock();
            let wanted = state.request(row, rows.len());
            if let Some(ready) = state.ready.remove(id) {
                return Ok(Some(ready));
            }
            wanted.and_then(|wanted| rows.get(wanted))
        };
        let Some([first, .., last]) = wanted else {
            return Ok(snapshot.get(sealed, id)?);
        };
        #[cfg(test)]
        cov_mark::hit!(documents_read_ahead);
        let mut found = BTreeMap::new();
        let end = end_of(last.id);
        for entry in snapshot.scan(sealed, &first.id, Some(&end), Direction::Forward)? {
            let (key, value) = entry?;
            found.insert(bucket_of(&key)?, value);
        }
        let document = found.remove(id);
        self.lock().ready.append(&mut found);
        Ok(document)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeseries::cache::summary_blocks::OpenedSummaries;
    use crate::timeseries::format::keyspaces::BucketKeyspaces;
    use crate::timeseries::scan::summary_reader::SummaryReader;
    use crate::timeseries::tests::{Fixture, at};

    /// Requests rows of one block in an order.
    fn check(order: &[usize]) {
        let f = Fixture::new();
        for hour in 0..8 {
            f.insert(&[at(hour * 3600, "a", hour)], true);
        }
        f.timeseries.seal_all(&f.collection).unwrap();
        let keyspaces = BucketKeyspaces::of(&f.collection).unwrap();
        let snapshot = &*f.engine.snapshot().unwrap();
        let keyspace = keyspaces.summaries.unwrap();
        let summaries = SummaryReader { snapshot, keyspace };
        let number = summaries.last_block().unwrap().unwrap().number;
        let bytes = summaries.block_bytes(number).unwrap().unwrap();
        let block = OpenedSummaries::open(bytes, &f.timeseries.cache.interner).unwrap();
        assert_eq!(block.rows().len(), 8);
        let ahead = ReadAhead::default();
        for row in order {
            let found = ahead.document(block.rows(), *row, (snapshot, keyspaces.sealed));
            let id = block.rows()[*row].id;
            let expected = snapshot.get(keyspaces.sealed, &id).unwrap();
            assert!(expected.is_some());
            assert_eq!(found.unwrap(), expected);
        }
    }

    #[test]
    fn neighbours_are_read_together() {
        cov_mark::check_count!(documents_read_ahead, 4);
        check(&[0, 1, 2, 3, 4, 5, 6, 7]);
        check(&[7, 6, 5, 4, 3, 2, 1, 0]);
        check(&[3, 4, 5, 6, 7, 2, 1, 0]);
    }

    #[test]
    fn distant_rows_are_looked_up() {
        cov_mark::check_count!(documents_read_ahead, 0);
        check(&[0, 2, 4, 6, 1]);
        check(&[0, 1, 7, 6]);
    }

    #[test]
    fn a_row_may_be_requested_again() {
        cov_mark::check_count!(documents_read_ahead, 3);
        check(&[0, 1, 2, 3, 3, 2, 7, 7]);
    }
}
