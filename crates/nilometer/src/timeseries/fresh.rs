//! Buckets that were sealed a moment ago, opened before a reader asks.
//!
//! ```text
//! a chore seals a bucket ─► its id waits here ─► nothing sealed for a tick ─► newest first, opened into the cache
//! ```
//!
//! Readers ask most for what was measured last, and opening a bucket is most of what a short answer costs the first time.
//! While buckets are being sealed nothing is done: writers need the processor, and what is sealed next is newer. Columns are
//! decoded when they are asked for. Buckets are read as any reader reads them ([`super::scan`]), from the newest of the collection to the
//! oldest that waits, so the cache answers for that state of them and no other, and which buckets there are is known
//! too ([`super::roster`]). Nothing here is needed for a right answer, and nothing survives a restart.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Timeseries;
use super::scan::BucketRange;

/// Ids that wait: the newest of them.
const FRESH_MAX: usize = 1 << 14;

/// Buckets opened in one tick.
const OPENED_MAX: usize = 4096;

/// So many buckets are passed for each that waits: late measurements seal buckets far apart.
const PASSED_MAX: usize = 2;

/// Of the cache this part is filled so, the rest is left to what readers asked for.
const CACHE_SHARE: usize = 2;

/// Sealed buckets: their collection, and their id.
type Sealed = ([u8; 16], [u8; 12]);

/// Those that wait.
#[derive(Default)]
pub(super) struct Fresh(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    /// The newest last.
    ids: Vec<Sealed>,
    /// Some came since the last tick.
    is_moving: bool,
}

impl Fresh {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A bucket was sealed.
    pub(super) fn add(&self, collection: [u8; 16], id: [u8; 12]) {
        let mut waiting = self.lock();
        if waiting.ids.len() >= FRESH_MAX {
            waiting.ids.drain(..FRESH_MAX / 2);
        }
        waiting.ids.push((collection, id));
        waiting.is_moving = true;
    }

    /// The newest, if none came since this was last asked.
    fn take(&self) -> Vec<Sealed> {
        let mut waiting = self.lock();
        if std::mem::take(&mut waiting.is_moving) {
            return Vec::new();
        }
        let from = waiting.ids.len().saturating_sub(OPENED_MAX);
        waiting.ids.split_off(from)
    }

    fn clear(&self) {
        self.lock().ids = Vec::new();
    }
}

impl Timeseries {
    /// Opens some of the buckets that were sealed lately, if no more are being sealed and the cache has room. To be called
    /// again and again.
    pub(crate) fn open_fresh(self: &Arc<Self>) {
        if !self.bucket_cache.has_room(CACHE_SHARE) {
            return self.fresh.clear();
        }
        let mut oldest: HashMap<[u8; 16], ([u8; 12], usize)> = HashMap::new();
        for (collection, id) in self.fresh.take() {
            let (oldest, count) = oldest.entry(collection).or_insert((id, 0));
            *oldest = id.min(*oldest);
            *count += 1;
        }
        for (collection, (oldest, count)) in oldest {
            // One that was dropped has nothing to open.
            let Some(collection) = self.collection_at_hand(collection) else {
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
            let room = || self.bucket_cache.has_room(CACHE_SHARE);
            let opened = scan.take(count * PASSED_MAX);
            let opened = opened.take_while(|bucket| bucket.is_ok() && room());
            opened.for_each(drop);
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
        f.timeseries.wait_for_chores().unwrap();
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
    fn nothing_is_opened_where_nothing_is_kept() {
        let f = Fixture::new();
        f.insert(&[at(0, "a", 1), at(3600, "a", 2)], true);
        f.timeseries.wait_for_chores().unwrap();
        f.timeseries.bucket_cache.set_bytes_max(0);
        for _ in 0..3 {
            f.timeseries.open_fresh();
        }
        assert_eq!(f.timeseries.bucket_cache.memory_bytes(), 0);
        assert!(f.timeseries.fresh.lock().ids.is_empty());
    }

    #[test]
    fn the_newest_come_first_and_only_once_nothing_moves() {
        let fresh = Fresh::default();
        let id = |number: usize| {
            let mut id = [0; 12];
            id[8..].copy_from_slice(&u32::try_from(number).unwrap().to_be_bytes());
            id
        };
        for number in 0..OPENED_MAX + 10 {
            fresh.add([1; 16], id(number));
        }
        assert!(fresh.take().is_empty(), "some came since");
        let first = fresh.take();
        assert_eq!(first.len(), OPENED_MAX);
        assert_eq!(first.first(), Some(&([1; 16], id(10))));
        assert_eq!(fresh.take().len(), 10);
        for number in 0..2 * FRESH_MAX {
            fresh.add([1; 16], id(number));
            assert!(fresh.lock().ids.len() <= FRESH_MAX);
        }
        fresh.clear();
        assert!(fresh.take().is_empty() && fresh.take().is_empty());
    }
}
