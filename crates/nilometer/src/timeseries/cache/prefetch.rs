//! Buckets that were sealed a moment ago, opened before a reader asks.
//!
//! ```text
//! a chore seals a bucket ─► it is noted here ─► nothing sealed for a tick ─► newest first, opened into the cache
//!                                                                        then newest first, columns decoded
//! ```
//!
//! Readers ask most for what was measured last, and opening a bucket is most of what a short answer costs the first time.
//! While buckets are being sealed nothing is done: writers need the processor, and what is sealed next is newer. Decoded are
//! the columns that readers asked for of other buckets with the same columns ([`super::column_names`]), or all but the identities as
//! long as nobody asked for any; decision 0015 says why. Buckets are read as any reader reads them ([`crate::timeseries::scan`]), from the newest of the collection to the
//! oldest that waits, so the cache answers for that state of them and no other, and which buckets there are is known
//! too ([`super::sealed_bucket_list`]). Nothing here is needed for a right answer, and nothing survives a restart.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::opened_bucket::StoredBucket;
use crate::timeseries::Timeseries;
use crate::timeseries::scan::BucketRange;

/// Buckets that are opened for those of one collection that wait, at most: late measurements seal buckets far apart, so
/// there are others between them.
const OPENED_MAX: usize = 8192;

/// So many buckets are passed for each that waits.
const PASSED_MAX: usize = 2;

/// One part in so many of the cache is left to what readers ask for. What nobody asked for goes first, so it need not be much.
const CACHE_LEFT: usize = 8;

/// Those that wait.
#[derive(Default)]
pub(crate) struct Fresh(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    /// By collection.
    sealed: HashMap<[u8; 16], Stretch>,
    /// Some came since the last tick.
    is_moving: bool,
}

/// The buckets of one collection that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stretch {
    oldest: [u8; 12],
    count: usize,
}

impl Fresh {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A bucket was sealed.
    pub(crate) fn add(&self, collection: [u8; 16], id: [u8; 12]) {
        let mut waiting = self.lock();
        let new = Stretch {
            oldest: id,
            count: 0,
        };
        let stretch = waiting.sealed.entry(collection).or_insert(new);
        stretch.oldest = id.min(stretch.oldest);
        stretch.count += 1;
        waiting.is_moving = true;
    }

    /// All of them, if none came since this was last asked.
    fn take(&self) -> HashMap<[u8; 16], Stretch> {
        let mut waiting = self.lock();
        if std::mem::take(&mut waiting.is_moving) {
            return HashMap::new();
        }
        std::mem::take(&mut waiting.sealed)
    }

    fn clear(&self) {
        self.lock().sealed.clear();
    }
}

impl Timeseries {
    /// Opens some of the buckets that were sealed lately, if no more are being sealed and the cache has room, and decodes
    /// columns of theirs. To be called again and again.
    pub(crate) fn open_fresh(self: &Arc<Self>) {
        if !self.bucket_cache.has_room(CACHE_LEFT) {
            return self.fresh.clear();
        }
        for (collection, Stretch { oldest, count }) in self.fresh.take() {
            // One that was dropped has nothing to open.
            let Some(collection) = self.maintenance.collection(collection) else {
                continue;
            };
            let range = BucketRange {
                min: Some(oldest),
                max: None,
                backward: true,
            };
            let Ok(scan) = self.scan(&collection, range) else {
                continue;
            };
            // What cannot be opened is told to who reads it.
            let room = || self.bucket_cache.has_room(CACHE_LEFT);
            let opened = scan.take((count * PASSED_MAX).min(OPENED_MAX));
            let opened = opened.map_while(|bucket| bucket.ok().filter(|_| room()));
            let opened: Vec<Arc<StoredBucket>> = opened.collect();
            let decoded = opened.iter().map(|bucket| bucket.decode_asked(room));
            decoded.take_while(|done| done.is_ok() && room()).count();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeseries::tests::{Fixture, at, measurements};

    #[test]
    fn sealed_buckets_are_at_hand_before_they_are_read() {
        let f = Fixture::new();
        for hour in 0..5 {
            f.insert(
                &[at(hour * 3600, "a", 1), at(hour * 3600 + 1, "a", 2)],
                true,
            );
        }
        f.timeseries.wait_for_maintenance().unwrap();
        let opened = || f.timeseries.bucket_cache.memory_bytes();
        f.timeseries.open_fresh();
        assert_eq!(opened(), 0, "some were sealed since the last tick");
        f.timeseries.open_fresh();
        let before = opened();
        assert!(before > 0);
        let read: Vec<_> = f.buckets(false);
        assert_eq!(read.len(), 5);
        assert_eq!(opened(), before, "all were there");
        let values: Vec<_> = read.iter().flat_map(|b| measurements(b)).collect();
        assert_eq!(
            values,
            f.reopened()
                .buckets(false)
                .iter()
                .flat_map(|b| measurements(b))
                .collect::<Vec<_>>()
        );
    }

    #[test]
    fn columns_that_readers_asked_for_are_decoded_before_they_are_read() {
        let f = Fixture::new();
        let seal = |hour: i64| {
            f.insert(
                &[at(hour * 3600, "a", 1), at(hour * 3600 + 1, "a", 2)],
                true,
            );
            f.timeseries.wait_for_maintenance().unwrap();
            f.timeseries.open_fresh();
            f.timeseries.open_fresh();
        };
        let is_decoded = |hour: usize| {
            let read = f.buckets(false);
            let places = 0..read[hour].columns().len();
            places
                .map(|at| read[hour].has_column_at(at))
                .collect::<Vec<_>>()
        };
        (0..3).for_each(seal);
        let without_id: Vec<_> = f.buckets(false)[1]
            .columns()
            .iter()
            .map(|name| **name != *"_id")
            .collect();
        assert_eq!(is_decoded(1), without_id, "nobody asked");
        f.buckets(false)[0].column_at(0).unwrap();
        (3..5).for_each(seal);
        assert_eq!(
            is_decoded(3),
            [true, false, false],
            "the times were asked for"
        );
    }

    #[test]
    fn nothing_is_opened_where_nothing_is_kept() {
        let f = Fixture::new();
        f.insert(&[at(0, "a", 1), at(3600, "a", 2)], true);
        f.timeseries.wait_for_maintenance().unwrap();
        f.timeseries.bucket_cache.set_bytes_max(0);
        for _ in 0..3 {
            f.timeseries.open_fresh();
        }
        assert_eq!(f.timeseries.bucket_cache.memory_bytes(), 0);
        assert!(f.timeseries.fresh.lock().sealed.is_empty());
    }

    #[test]
    fn what_waits_is_taken_once_nothing_moves() {
        let fresh = Fresh::default();
        for id in [7, 3, 9] {
            fresh.add([1; 16], [id; 12]);
        }
        fresh.add([2; 16], [5; 12]);
        assert!(fresh.take().is_empty(), "some came since");
        let taken = fresh.take();
        let stretch = |id, count| Stretch {
            oldest: [id; 12],
            count,
        };
        assert_eq!(taken.get(&[1; 16]), Some(&stretch(3, 3)));
        assert_eq!(taken.get(&[2; 16]), Some(&stretch(5, 1)));
        assert!(fresh.take().is_empty());
        fresh.add([1; 16], [1; 12]);
        fresh.clear();
        assert!(fresh.take().is_empty() && fresh.take().is_empty());
    }
}
