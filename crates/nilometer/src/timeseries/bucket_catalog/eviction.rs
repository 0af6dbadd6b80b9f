//! Taking buckets away from the writers: to change or remove one, to forget a collection.
//!
//! A bucket that is rewritten must be claimed exclusively: an entry committed between reading and writing it would be lost. So the
//! bucket is evicted from those that take measurements; then its entries in flight are waited for; and it cannot be reopened
//! until [`BucketCatalog::release`].

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::BucketCatalog;
use super::series::SeriesKey;
use super::stats::increment;
use crate::timeseries::format::series_key::SeriesMeta;

/// A bucket that the catalog has forgotten and does not reopen.
#[derive(Debug)]
#[must_use = "what is evicted must be released"]
pub(crate) struct EvictedBucket {
    key: Arc<SeriesKey>,
    id: [u8; 12],
}

impl BucketCatalog {
    /// Forgets one bucket and blocks its reopening until [`BucketCatalog::release`]. `None` if an entry of it is in flight.
    pub(crate) fn evict(
        &self,
        collection: [u8; 16],
        meta: SeriesMeta,
        id: [u8; 12],
    ) -> Option<EvictedBucket> {
        let key = self.series_key(collection, meta);
        let mut stripe = self.stripe(&key).lock();
        let series = stripe.series.entry(key.clone()).or_default();
        if series.buckets().any(|b| b.id == id && b.in_flight > 0) {
            return None;
        }
        series.remove(id);
        series.closing.retain(|bucket| bucket.id != id);
        series.removing.push(id);
        drop(stripe);
        self.unfreeze(collection, id);
        Some(EvictedBucket { key, id })
    }

    /// Like [`BucketCatalog::evict`], but waits for the entries in flight. New measurements go to another bucket meanwhile.
    pub(crate) fn evict_waiting(
        &self,
        collection: [u8; 16],
        meta: SeriesMeta,
        id: [u8; 12],
    ) -> EvictedBucket {
        let key = self.series_key(collection, meta);
        let lock = self.stripe(&key);
        let mut stripe = lock.lock();
        let series = stripe.series.entry(key.clone()).or_default();
        series.remove(id);
        series.removing.push(id);
        while stripe.series.get(&key).is_some_and(|series| {
            let mut busy = series.buckets().filter(|b| b.id == id && b.in_flight > 0);
            busy.next().is_some()
        }) {
            stripe = lock.wait(stripe);
        }
        drop(stripe);
        self.unfreeze(collection, id);
        EvictedBucket { key, id }
    }

    /// Calls `read` while no entry of a bucket is in flight, and none is staged: what it reads of the bucket are its first rows, in
    /// the order in which they were staged.
    pub(crate) fn while_settled<T>(
        &self,
        collection: [u8; 16],
        meta: SeriesMeta,
        id: [u8; 12],
        read: impl FnOnce() -> T,
    ) -> T {
        let key = self.series_key(collection, meta.clone());
        let stripe = self.stripe(&key).lock();
        let is_busy = stripe.series.get(&key).is_some_and(|series| {
            let mut busy = series.buckets().filter(|b| b.id == id && b.in_flight > 0);
            busy.next().is_some()
        });
        if !is_busy {
            return read();
        }
        drop(stripe);
        let evicted = self.evict_waiting(collection, meta, id);
        let found = read();
        self.release(vec![evicted]);
        found
    }

    /// Allows the buckets to be reopened.
    pub(crate) fn release(&self, evicted: Vec<EvictedBucket>) {
        for EvictedBucket { key, id } in evicted {
            let mut stripe = self.stripe(&key).lock();
            if let Some(series) = stripe.series.get_mut(&key) {
                if let Some(at) = series.removing.iter().position(|other| *other == id) {
                    series.removing.swap_remove(at);
                }
                stripe.remove_if_empty(&key);
            }
        }
    }

    /// Forgets the open buckets of a collection. They stay in storage and may be reopened.
    pub fn clear(&self, collection: [u8; 16]) {
        self.era.fetch_add(1, Ordering::Relaxed);
        for lock in &self.stripes {
            let mut stripe = lock.lock();
            stripe.series.retain(|key, series| {
                if key.collection == collection {
                    series.clear();
                }
                !series.is_empty()
            });
            stripe.idle.retain(|key| key.collection != collection);
            for (key, series) in &mut stripe.series {
                series.queued &= key.collection != collection;
            }
            if stripe.series.is_empty() {
                stripe.hints.clear(&self.usage);
            }
        }
    }

    /// Forgets the open buckets and the counters of a collection that was dropped.
    pub fn forget(&self, collection: [u8; 16]) {
        self.clear(collection);
        let mut counters = self
            .counters
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(gone) = counters.remove(&collection) {
            self.of_dropped.add(&gone);
        }
        drop(counters);
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.remove(&collection);
        drop(names);
        let mut frozen = self.frozen.lock().unwrap_or_else(PoisonError::into_inner);
        frozen.retain(|(of, _)| *of != collection);
    }

    /// Freezes a bucket that cannot be read or written: it takes no measurements any more.
    pub(crate) fn freeze(&self, collection: [u8; 16], id: [u8; 12]) {
        let mut frozen = self.frozen.lock().unwrap_or_else(PoisonError::into_inner);
        if frozen.insert((collection, id)) {
            increment(&self.counters(collection).frozen, 1);
            self.any_frozen.store(true, Ordering::Release);
        }
    }

    /// True if the bucket is frozen.
    pub(crate) fn is_frozen(&self, collection: [u8; 16], id: [u8; 12]) -> bool {
        // There is rarely one: the common case costs a load.
        self.any_frozen.load(Ordering::Acquire)
            && self
                .frozen
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .contains(&(collection, id))
    }

    /// Unfreezes a bucket, whose document is replaced.
    fn unfreeze(&self, collection: [u8; 16], id: [u8; 12]) {
        if self.any_frozen.load(Ordering::Acquire) {
            let mut frozen = self.frozen.lock().unwrap_or_else(PoisonError::into_inner);
            frozen.remove(&(collection, id));
        }
    }
}
