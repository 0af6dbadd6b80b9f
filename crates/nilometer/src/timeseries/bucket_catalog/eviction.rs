//! Taking buckets away from the writers: to change or remove one, to forget a collection.
//!
//! Somebody who rewrites a bucket must be alone with it: an entry that is committed after the bucket
//! was read and before it is written would be lost. So the bucket is taken out of those offered for
//! measurements first; then its entries on their way are waited for; and until
//! [`BucketCatalog::release`] it is not taken up again.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::BucketCatalog;
use super::series::SeriesKey;
use super::stats::increment;
use crate::timeseries::format::series_key::SeriesMeta;

/// A bucket the catalog has forgotten and keeps from being taken up again.
#[derive(Debug)]
#[must_use = "what is evicted must be released"]
pub(crate) struct EvictedBucket {
    key: Arc<SeriesKey>,
    id: [u8; 12],
}

impl BucketCatalog {
    /// Forgets one bucket and keeps it from being taken up again until [`BucketCatalog::release`].
    /// `None` if it is being written to.
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

    /// Like [`BucketCatalog::evict`], but waits for what is on its way into the bucket; it takes
    /// nothing more meanwhile.
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

    /// Ends the change of buckets.
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

    /// Forgets the open buckets of a collection. They stay in storage and may be taken up again.
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

    /// Remembers that a bucket cannot be read or written: it is never again offered.
    pub(crate) fn freeze(&self, collection: [u8; 16], id: [u8; 12]) {
        let mut frozen = self.frozen.lock().unwrap_or_else(PoisonError::into_inner);
        if frozen.insert((collection, id)) {
            increment(&self.counters(collection).frozen, 1);
            self.any_frozen.store(true, Ordering::Release);
        }
    }

    /// True if the bucket was frozen.
    pub(crate) fn is_frozen(&self, collection: [u8; 16], id: [u8; 12]) -> bool {
        // Hardly ever is there one: the common case costs a load.
        self.any_frozen.load(Ordering::Acquire)
            && self
                .frozen
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .contains(&(collection, id))
    }

    /// Another document takes the place of what could not be read.
    fn unfreeze(&self, collection: [u8; 16], id: [u8; 12]) {
        if self.any_frozen.load(Ordering::Acquire) {
            let mut frozen = self.frozen.lock().unwrap_or_else(PoisonError::into_inner);
            frozen.remove(&(collection, id));
        }
    }
}
