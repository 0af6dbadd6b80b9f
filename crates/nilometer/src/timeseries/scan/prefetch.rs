//! Opens buckets that were sealed lately before a reader requests them.
//!
//! ```text
//! maintenance seals a bucket ─► PrefetchQueue ─► none sealed for a tick ─► newest first: open into the cache
//!                                                                          newest first: decode columns
//! ```
//!
//! Most queries read the newest measurements, and opening a bucket is most of the cost of a short query that is the first to
//! read it. While buckets are being sealed nothing is prefetched: writers need the processor, and newer buckets follow. The decoded
//! columns are those that readers requested of other buckets with the same columns
//! ([`ColumnNames::requested`](crate::timeseries::cache::interner::ColumnNames::requested)); decision 0015 gives the reason. A prefetch
//! is an ordinary scan from the newest bucket of the collection to the oldest pending one, so it also fills the list of sealed buckets.

use std::sync::Arc;

use super::{BucketRange, BucketReader};
use crate::catalog::Collection;
use crate::timeseries::cache::opened_bucket::StoredBucket;
use crate::timeseries::cache::prefetch::PendingRange;

/// Buckets to open for one collection, at most. Late measurements seal buckets that lie far apart, with others between
/// them.
const OPENED_MAX: usize = 8192;

/// Buckets to open for each pending one, at most.
const OPENED_PER_PENDING_MAX: usize = 2;

/// One part in this many of the cache is left to what readers request. Unread buckets are evicted first, so it can be small.
const RESERVED_SHARE: usize = 8;

impl BucketReader {
    /// Opens pending buckets and decodes columns of theirs, if none was sealed since the last call and the cache has room.
    /// `collection_of` returns the collection with a UUID, `None` if it was dropped. Errors are left to readers.
    pub(crate) fn prefetch(
        self: &Arc<Self>,
        collection_of: impl Fn([u8; 16]) -> Option<Arc<Collection>>,
    ) {
        let has_room = || self.cache.buckets.has_room(RESERVED_SHARE);
        if !has_room() {
            return self.cache.prefetch.clear();
        }
        for (collection, PendingRange { oldest, count }) in self.cache.prefetch.take() {
            let Some(collection) = collection_of(collection) else {
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
            let opened = scan.take((count * OPENED_PER_PENDING_MAX).min(OPENED_MAX));
            let opened = opened.map_while(|bucket| bucket.ok().filter(|_| has_room()));
            let opened: Vec<Arc<StoredBucket>> = opened.collect();
            let decoded = opened.iter().map(|b| b.decode_requested(has_room));
            decoded
                .take_while(|done| done.is_ok() && has_room())
                .count();
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::timeseries::tests::{Fixture, at, measurements};

    #[test]
    fn sealed_buckets_are_opened_before_a_reader_requests_them() {
        let f = Fixture::new();
        for hour in 0..5 {
            f.insert(
                &[at(hour * 3600, "a", 1), at(hour * 3600 + 1, "a", 2)],
                true,
            );
        }
        f.timeseries.wait_for_maintenance().unwrap();
        let opened = || f.timeseries.cache.buckets.memory_bytes();
        f.timeseries.prefetch();
        assert_eq!(opened(), 0, "some were sealed since the last tick");
        f.timeseries.prefetch();
        let before = opened();
        assert!(before > 0);
        let read: Vec<_> = f.buckets(false);
        assert_eq!(read.len(), 5);
        assert_eq!(opened(), before, "all were opened");
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
    fn requested_columns_are_decoded_before_a_reader_requests_them() {
        let f = Fixture::new();
        let seal = |hour: i64| {
            f.insert(
                &[at(hour * 3600, "a", 1), at(hour * 3600 + 1, "a", 2)],
                true,
            );
            f.timeseries.wait_for_maintenance().unwrap();
            f.timeseries.prefetch();
            f.timeseries.prefetch();
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
        assert_eq!(is_decoded(1), without_id, "no column was requested");
        f.buckets(false)[0].column_at(0).unwrap();
        (3..5).for_each(seal);
        assert_eq!(
            is_decoded(3),
            [true, false, false],
            "the times were requested"
        );
    }

    #[test]
    fn a_disabled_cache_prefetches_nothing() {
        let f = Fixture::new();
        f.insert(&[at(0, "a", 1), at(3600, "a", 2)], true);
        f.timeseries.wait_for_maintenance().unwrap();
        f.timeseries.cache.buckets.set_bytes_max(0);
        for _ in 0..3 {
            f.timeseries.prefetch();
        }
        assert_eq!(f.timeseries.cache.buckets.memory_bytes(), 0);
        assert!(f.timeseries.cache.prefetch.is_empty());
    }
}
