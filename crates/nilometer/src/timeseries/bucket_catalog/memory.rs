//! How much the catalog holds: giving memory back, and the figures `serverStatus` shows.
//!
//! Each insert that finds the catalog above its threshold looks at the series under the lock it
//! holds anyway, those queued first in front, and lets some go: a bucket is archived first, so that
//! only its id is remembered with its series; when its turn comes again it is closed, and its id is kept where it may be
//! found without the series ([`super::evicted_bucket_hints`]). A series that was written to since it was queued goes to the back once.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use super::series::{SeriesKey, Stripe};
use super::stats::increment;
use super::{BucketCatalog, MaintenanceTask};

/// Series looked at by one attempt to give memory back.
const LOOKS_MAX: usize = 64;

/// What is in memory now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CatalogGauges {
    /// Buckets with their columns in memory that take measurements.
    pub open: usize,
    /// Of them, those with nothing on its way.
    pub idle: usize,
    /// Buckets that may be taken up again by their id.
    pub archived: usize,
    /// Different numbers of clear operations before the buckets were opened.
    pub eras: usize,
    /// Clear operations so far.
    pub era: u64,
}

impl BucketCatalog {
    /// Sets the memory above which idle buckets are archived and closed, in bytes.
    pub fn set_memory_max(&self, bytes: usize) {
        self.memory_max.store(bytes, Ordering::Relaxed);
    }

    /// Sets `timeseriesBucketMinSize`: the dynamic limit of a bucket's size never falls below it.
    pub fn set_bytes_min(&self, bytes: usize) {
        self.bytes_min.store(bytes, Ordering::Relaxed);
    }

    /// Bytes of all buckets in memory.
    pub fn memory_bytes(&self) -> usize {
        self.usage.bytes.load(Ordering::Relaxed)
    }

    /// Buckets open or archived.
    pub fn active_buckets(&self) -> usize {
        self.usage.buckets.load(Ordering::Relaxed)
    }

    /// What is in memory now, counted.
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

    /// Gives memory back if there is too little, from a stripe and not from the series just written.
    pub(super) fn evict_idle(
        &self,
        stripe: &mut Stripe,
        spared: &SeriesKey,
        tasks: &mut Vec<MaintenanceTask>,
    ) {
        let mut left = self.limits.expiry_count_max;
        for _ in 0..LOOKS_MAX {
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
