//! The memory of the catalog: eviction of idle buckets, and the figures that `serverStatus` shows.
//!
//! ```text
//! idle series ─► its bucket is archived: only the id stays ─► its bucket is closed: the id becomes a hint
//! ```
//!
//! An insert that finds the catalog above its limit looks at the oldest idle series under the lock it holds. A series takes one
//! step each time it comes up; one that was written to since it was queued goes to the back of the queue once. A hint finds the
//! bucket without the series ([`super::evicted_bucket_hints`]).

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use super::series::{SeriesKey, Stripe};
use super::stats::increment;
use super::{BucketCatalog, MaintenanceTask};

/// Series examined by one attempt to release memory.
const EXAMINED_SERIES_MAX: usize = 64;

/// Counts of what is in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CatalogGauges {
    /// Buckets that take measurements.
    pub open: usize,
    /// Of them, those with nothing in flight.
    pub idle: usize,
    /// Buckets that may be reopened by their id.
    pub archived: usize,
    /// Distinct eras of buckets: clear operations before they were opened.
    pub eras: usize,
    /// Clear operations so far.
    pub era: u64,
}

/// Counts of a collection's buckets in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectionGauges {
    /// Buckets that take measurements, or have some in flight.
    pub open: usize,
    /// Buckets that may be reopened by their id.
    pub archived: usize,
    /// Buckets with measurements that are not in their document yet. Not of archived ones of which only the id is in memory.
    pub with_tail: usize,
    /// Those measurements.
    pub in_tails: usize,
}

impl BucketCatalog {
    /// Sets the memory above which idle buckets are evicted, in bytes.
    pub fn set_memory_max(&self, bytes: usize) {
        self.memory_max.store(bytes, Ordering::Relaxed);
    }

    /// Sets `timeseriesBucketMinSize`: the dynamic limit of a bucket's size never falls below it.
    pub fn set_bytes_min(&self, bytes: usize) {
        self.bytes_min.store(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes of all buckets in memory.
    pub fn memory_bytes(&self) -> usize {
        self.usage.bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of open and archived buckets.
    pub fn active_buckets(&self) -> usize {
        self.usage.buckets.load(Ordering::Relaxed)
    }

    /// Counts what is in memory.
    pub fn gauges(&self) -> CatalogGauges {
        let mut gauges = CatalogGauges {
            era: self.era.load(Ordering::Relaxed),
            ..CatalogGauges::default()
        };
        let mut eras = BTreeSet::new();
        for lock in &self.stripes {
            for series in lock.lock().series.values() {
                let mut open = series.open.iter();
                gauges.open += open.len() + series.closing.len();
                gauges.idle += usize::from(open.any(|bucket| bucket.in_flight == 0));
                gauges.archived += series.archived.len();
                let archived = series.archived.iter().map(|archived| archived.era);
                eras.extend(archived.chain(series.buckets().map(|bucket| bucket.era)));
            }
        }
        gauges.eras = eras.len();
        gauges
    }

    /// Counts what is in memory of a collection.
    pub fn collection_gauges(&self, collection: [u8; 16]) -> CollectionGauges {
        let mut gauges = CollectionGauges::default();
        for lock in &self.stripes {
            let stripe = lock.lock();
            let all = stripe.series.iter();
            for (_, series) in all.filter(|(key, _)| key.collection == collection) {
                gauges.open += usize::from(series.open.is_some()) + series.closing.len();
                gauges.archived += series.archived.len();
                for bucket in series.buckets() {
                    let in_tail = bucket.count.saturating_sub(bucket.folded_count);
                    gauges.with_tail += usize::from(in_tail > 0);
                    gauges.in_tails += in_tail;
                }
            }
        }
        gauges
    }

    /// Evicts idle series of a stripe, except `spared`, while the catalog is above its limit.
    pub(super) fn evict_idle(
        &self,
        stripe: &mut Stripe,
        spared: &SeriesKey,
        tasks: &mut Vec<MaintenanceTask>,
    ) {
        let mut left = self.limits.expiry_count_max;
        for _ in 0..EXAMINED_SERIES_MAX {
            let enough = self.memory_bytes() <= self.memory_max.load(Ordering::Relaxed);
            if enough || left == 0 {
                return;
            }
            let Some(key) = stripe.idle.pop_front() else {
                return;
            };
            let Some(series) = stripe.series.get_mut(&key) else {
                continue;
            };
            if *key == *spared || series.is_busy() || series.touched {
                series.touched = false;
                stripe.idle.push_back(key);
                continue;
            }
            left -= 1;
            let counters = self.counters(key.collection);
            let archived = series.shrink(key.meta.len());
            if archived > 0 {
                #[cfg(test)]
                cov_mark::hit!(buckets_archived_for_memory);
                increment(&counters.archived_due_to_memory_threshold, archived as i64);
                stripe.idle.push_back(key);
                continue;
            }
            series.queued = false;
            if let Some(last) = series.archived.last() {
                let memory_max = self.memory_max.load(Ordering::Relaxed);
                let hints = &mut stripe.hints;
                hints.keep(key.hash(), last.id, memory_max, &self.usage);
            }
            for bucket in series.archived.drain(..) {
                increment(&counters.closed_due_to_memory_threshold, 1);
                tasks.push(MaintenanceTask::SealIdle(key.collection, bucket.id));
            }
            stripe.remove_if_empty(&key);
        }
    }
}
