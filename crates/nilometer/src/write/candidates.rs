//! Where to look for the records a statement means, when somebody above knows better than to look
//! everywhere.
//!
//! Whoever implements this promises that every record the selection's filter matches is among the
//! candidates, as far as it is there when they are asked for; others may be. They are asked for under
//! the writing lock, a few at a time, and each is tested again.

use std::collections::HashSet;

use nilometer_bson::Document;

use super::change::{Decide, Selection};
use super::records::Records;
use crate::catalog::Collection;
use crate::error::Result;
use crate::eval::sort_key::{SortKey, SortPattern};

/// Most candidates that are tested before other writers may come in.
const CANDIDATES_PER_LOCK: usize = 256;

/// How many more candidates are asked for each time.
const GROWTH: usize = 4;

/// The key of a record.
pub type CandidateKey = Vec<u8>;

/// Records that may be selected.
pub trait Candidates: Send + Sync {
    /// Begins to name them.
    fn begin(&self) -> Box<dyn CandidateKeys + '_>;

    /// They come in the order the selection asks for.
    fn is_in_order(&self) -> bool;
}

/// Candidates, some at a time.
pub trait CandidateKeys {
    /// The next ones, at most so many, as things are now; `None` at the end. None at all means that
    /// it takes longer to find one.
    fn next(&mut self, most: usize) -> Result<Option<Vec<CandidateKey>>>;
}

impl Records {
    /// Changes what is selected among candidates. A record that a change moved ahead of the walk is
    /// met again and passed over.
    pub(super) fn change_candidates(
        &self,
        collection: &Collection,
        selection: Selection<'_>,
        candidates: &dyn Candidates,
        decide: &mut Decide<'_>,
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

    /// Changes the candidate that comes first in an order they do not have.
    fn change_first_candidate(
        &self,
        collection: &Collection,
        selection: Selection<'_>,
        pattern: &SortPattern,
        candidates: &dyn Candidates,
        decide: &mut Decide<'_>,
    ) -> Result<()> {
        let state = self.state(collection)?;
        let _writing = state.lock();
        let mut best: Option<(SortKey, (CandidateKey, Document))> = None;
        let mut keys = candidates.begin();
        loop {
            (selection.check_interrupt)()?;
            let Some(found) = keys.next(CANDIDATES_PER_LOCK)? else {
                break;
            };
            for key in found {
                let Some(document) = self.fetch(collection, &key)? else {
                    continue;
                };
                let eval = &selection.eval;
                if !selection.filter.matches(document.as_ref(), eval)? {
                    continue;
                }
                let sort_key = pattern.extract(document.as_ref(), eval)?;
                let better = best
                    .as_ref()
                    .is_none_or(|(known, _)| pattern.compare(&sort_key, known).is_lt());
                if better {
                    best = Some((sort_key, (key, document)));
                }
            }
        }
        if let Some((_, found)) = best {
            self.change_chunk(&state, collection, selection, vec![found], decide)?;
        }
        Ok(())
    }
}
