//! The sequence numbers at which readers read.
//!
//! Every batch has a sequence number; a reader at sequence number `s` sees batches with numbers below `s`. *Visible* is
//! the number that a new reader gets: one more than the last batch whose entries are all in memtables. It is kept here
//! because the trees would raise it over a batch that is half inserted.
//!
//! Trees keep old versions of themselves for readers. The *watermark* passed to them must not exceed any open read
//! sequence, so readers register, and the watermark is computed, under one lock.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::lock::lock;

/// The visible sequence number and the open ones.
#[derive(Default)]
pub(crate) struct ReadSequences {
    state: Mutex<ReadSequencesState>,
}

#[derive(Default)]
struct ReadSequencesState {
    visible: u64,
    open: BTreeMap<u64, Readers>,
}

/// The readers at one sequence number.
struct Readers {
    count: u64,
    since: Instant,
}

impl ReadSequences {
    pub(crate) fn new(visible: u64) -> Self {
        Self {
            state: Mutex::new(ReadSequencesState {
                visible,
                open: BTreeMap::new(),
            }),
        }
    }

    /// Raises the visible sequence number.
    ///
    /// The caller holds the apply lock, so no batch below `visible` is half inserted.
    pub(crate) fn publish(&self, visible: u64) {
        let mut state = lock(&self.state);
        state.visible = state.visible.max(visible);
    }

    /// Registers a reader at the visible sequence number.
    pub(crate) fn open(self: &Arc<Self>) -> ReadSequence {
        let mut state = lock(&self.state);
        let at = state.visible;
        let readers = state.open.entry(at).or_insert_with(|| Readers {
            count: 0,
            since: Instant::now(),
        });
        readers.count += 1;
        ReadSequence {
            at,
            sequences: Arc::clone(self),
        }
    }

    /// Returns the watermark: no current or future reader reads below it.
    pub(crate) fn watermark(&self) -> u64 {
        let state = lock(&self.state);
        let oldest = state.open.keys().next().copied();
        oldest.map_or(state.visible, |oldest| oldest.min(state.visible))
    }

    /// Returns the numbers that readers read at, ascending: those of the registered ones, and the visible one, at which
    /// the next one registers.
    pub(crate) fn readers(&self) -> Vec<u64> {
        let state = lock(&self.state);
        let mut readers: Vec<u64> = state.open.keys().copied().collect();
        if readers.last() != Some(&state.visible) {
            readers.push(state.visible);
        }
        readers
    }

    /// Returns the number of registered readers.
    pub(crate) fn open_count(&self) -> u64 {
        let state = lock(&self.state);
        state.open.values().map(|readers| readers.count).sum()
    }

    /// Returns how long the oldest open sequence number has had readers.
    pub(crate) fn oldest_age(&self) -> Duration {
        let state = lock(&self.state);
        let oldest = state.open.values().next();
        oldest.map_or(Duration::ZERO, |readers| readers.since.elapsed())
    }
}

/// A registered reader.
pub(crate) struct ReadSequence {
    pub(crate) at: u64,
    sequences: Arc<ReadSequences>,
}

impl ReadSequence {
    /// Registers another reader at the same sequence number.
    pub(crate) fn again(&self) -> Self {
        let mut state = lock(&self.sequences.state);
        let readers = state.open.get_mut(&self.at);
        readers.expect("an open read sequence is registered").count += 1;
        Self {
            at: self.at,
            sequences: Arc::clone(&self.sequences),
        }
    }
}

impl Drop for ReadSequence {
    fn drop(&mut self) {
        let mut state = lock(&self.sequences.state);
        let readers = state.open.get_mut(&self.at);
        let readers = readers.expect("an open read sequence is registered");
        readers.count -= 1;
        if readers.count == 0 {
            state.open.remove(&self.at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watermark_never_passes_an_open_instant() {
        let sequences = Arc::new(ReadSequences::new(1));
        let first = sequences.open();
        sequences.publish(5);
        let second = sequences.open();
        let third = sequences.open();
        assert_eq!((first.at, second.at), (1, 5));
        assert_eq!(sequences.watermark(), 1);
        drop(first);
        assert_eq!(sequences.watermark(), 5);
        sequences.publish(9);
        assert_eq!(sequences.readers(), [5, 9]);
        drop(second);
        assert_eq!(sequences.watermark(), 5);
        assert_eq!(sequences.open_count(), 1);
        drop(third);
        assert_eq!(sequences.watermark(), 9);
        assert_eq!(sequences.readers(), [9]);
    }
}
