//! Candidates: records that a caller found through an index, so that a statement need not scan the
//! collection.
//!
//! An implementation promises that every record the filter of the selection matches at the time of the call
//! is among the candidates; others may be. They are requested under the write lock, a few at a time, and
//! each is tested again.

use std::collections::HashSet;

use super::change::{DecideChange, FirstMatch, Selection};
use super::records::Records;
use crate::catalog::Collection;
use crate::error::Result;
use crate::eval::sort_key::SortPattern;

/// Most candidates tested under one acquisition of the write lock.
const CANDIDATES_PER_LOCK: usize = 256;

/// Factor by which the number of requested candidates grows.
const GROWTH: usize = 4;

/// The key of a record.
pub type CandidateKey = Vec<u8>;

/// Records that may be selected.
pub trait Candidates: Send + Sync {
    /// Starts an enumeration.
    fn begin(&self) -> Box<dyn CandidateKeys + '_>;

    /// True if the candidates come in the sort order of the selection.
    fn is_in_order(&self) -> bool;
}

/// An enumeration of candidates.
pub trait CandidateKeys {
    /// Returns at most `most` further candidates of the current state; `None` at the end. An empty vector
    /// means that the search continues in the next call.
    fn next(&mut self, most: usize) -> Result<Option<Vec<CandidateKey>>>;
}

impl Records {
    /// Changes the selected records among the candidates. A record that a change moved ahead of the
    /// enumeration is met again and skipped.
    pub(super) fn change_candidates(
        &self,
        collection: &Collection,
        selection: Selection<'_>,
        candidates: &dyn Candidates,
        decide: &mut DecideChange<'_>,
    ) -> Result<()> {
        if let Some(pattern) = selection.sort
            && !selection.multi
            && !candidates.is_in_order()
        {
            return self.change_first_candidate(collection, selection, pattern, candidates, decide);
        }
        let state = self.state(collection)?;
        let mut keys = candidates.begin();
        let mut seen: HashSet<CandidateKey> = HashSet::new();
        let mut most = if selection.multi {
            CANDIDATES_PER_LOCK
        } else {
            1
        };
        loop {
            (selection.check_interrupt)()?;
            let _writing = state.lock();
            let Some(found) = keys.next(most)? else {
                return Ok(());
            };
            most = (most * GROWTH).min(CANDIDATES_PER_LOCK);
            let mut chunk = Vec::with_capacity(found.len());
            for key in found {
                if seen.insert(key.clone())
                    && let Some(document) = self.fetch(collection, &key)?
                {
                    chunk.push((key, document));
                }
            }
            if self.change_chunk(&state, collection, selection, chunk, decide)? {
                return Ok(());
            }
        }
    }

    /// Changes the first selected candidate in the sort order, when candidates come in another order.
    fn change_first_candidate(
        &self,
        collection: &Collection,
        selection: Selection<'_>,
        pattern: &SortPattern,
        candidates: &dyn Candidates,
        decide: &mut DecideChange<'_>,
    ) -> Result<()> {
        let state = self.state(collection)?;
        let _writing = state.lock();
        let mut first = FirstMatch::new(selection, pattern);
        let mut keys = candidates.begin();
        loop {
            (selection.check_interrupt)()?;
            let Some(found) = keys.next(CANDIDATES_PER_LOCK)? else {
                break;
            };
            for key in found {
                if let Some(document) = self.fetch(collection, &key)? {
                    first.offer(key, document)?;
                }
            }
        }
        if let Some(found) = first.into_record() {
            self.change_chunk(&state, collection, selection, vec![found], decide)?;
        }
        Ok(())
    }
}
