//! Buckets that were sealed lately and wait to be opened before a reader requests them.
//!
//! Maintenance adds a bucket when it seals it; [`crate::timeseries::scan::prefetch`] opens the pending ones. The queue holds
//! one range of ids per collection, not the buckets. Nothing depends on it, and it is empty after a restart.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The pending buckets of all collections.
#[derive(Default)]
pub(crate) struct PrefetchQueue(Mutex<Pending>);

#[derive(Default)]
struct Pending {
    /// By collection.
    sealed: HashMap<[u8; 16], PendingRange>,
    /// The lowest id of a bucket whose summary is to be read, by collection.
    summaries: HashMap<[u8; 16], [u8; 12]>,
    /// A bucket was added since the last call of [`PrefetchQueue::take`].
    is_growing: bool,
}

/// The pending buckets of one collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PendingRange {
    /// The lowest id.
    pub(crate) oldest: [u8; 12],
    /// How many buckets were added.
    pub(crate) count: usize,
}

impl PrefetchQueue {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a bucket that was sealed.
    pub(crate) fn add(&self, collection: [u8; 16], id: [u8; 12]) {
        let mut pending = self.lock();
        let new = PendingRange {
            oldest: id,
            count: 0,
        };
        let range = pending.sealed.entry(collection).or_insert(new);
        range.oldest = id.min(range.oldest);
        range.count += 1;
        let oldest = pending.summaries.entry(collection).or_insert(id);
        *oldest = id.min(*oldest);
        pending.is_growing = true;
    }

    /// Returns the collections whose summaries are to be read, each with the lowest id of a bucket, unless buckets were added since the
    /// last call of [`PrefetchQueue::take`].
    pub(crate) fn summaries(&self) -> Vec<([u8; 16], [u8; 12])> {
        let pending = self.lock();
        let summaries = pending.summaries.iter().filter(|_| !pending.is_growing);
        summaries.map(|(of, oldest)| (*of, *oldest)).collect()
    }

    /// Removes a collection whose summaries were read.
    pub(crate) fn remove_summaries(&self, collection: [u8; 16]) {
        self.lock().summaries.remove(&collection);
    }

    /// Removes and returns all pending buckets, unless some were added since the last call.
    pub(crate) fn take(&self) -> HashMap<[u8; 16], PendingRange> {
        let mut pending = self.lock();
        if std::mem::take(&mut pending.is_growing) {
            return HashMap::new();
        }
        std::mem::take(&mut pending.sealed)
    }

    /// True if no bucket is pending.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().sealed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_buckets_are_taken_once_none_is_added() {
        let queue = PrefetchQueue::default();
        for id in [7, 3, 9] {
            queue.add([1; 16], [id; 12]);
        }
        queue.add([2; 16], [5; 12]);
        assert!(queue.summaries().is_empty() && queue.take().is_empty());
        let mut summaries = queue.summaries();
        summaries.sort_unstable();
        assert_eq!(summaries, [([1; 16], [3; 12]), ([2; 16], [5; 12])]);
        queue.remove_summaries([1; 16]);
        assert_eq!(queue.summaries(), [([2; 16], [5; 12])]);
        let taken = queue.take();
        let range = |id, count| PendingRange {
            oldest: [id; 12],
            count,
        };
        assert_eq!(taken.get(&[1; 16]), Some(&range(3, 3)));
        assert_eq!(taken.get(&[2; 16]), Some(&range(5, 1)));
        assert!(queue.take().is_empty());
    }
}
