//! The bucket catalog: the open buckets, and which of them takes the next measurement.
//!
//! ```text
//! insert ── group by series ──► stripe (of 32, by hash of collection and meta)
//!                                 └─ series ─► open bucket? fits? ── no ─► close it; reopen or open another
//!                                                  │ yes
//!                                  rows ─► one tail entry per bucket ─► engine batch of the command
//! ```
//!
//! Inserts do not wait for each other: each command appends its own entries to the tail of a bucket, in its own engine batch,
//! and the group commit of the engine syncs them together. An operation that needs a bucket exclusively (fold, seal, change)
//! waits until no entry of it is in flight.
//!
//! The catalog is a cache. It holds no measurement, and may forget a bucket, a collection or everything at any moment;
//! committed measurements stay readable in storage.

mod admission;
mod bucket;
mod evicted_bucket_hints;
mod eviction;
mod field_layout;
pub(crate) mod field_names;
pub(crate) mod field_scanner;
mod memory;
mod reopening;
mod rollover;
mod series;
mod series_cache;
mod staging;
mod stats;
mod writer;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

pub(crate) use bucket::Measurement;
pub(crate) use eviction::EvictedBucket;
pub(crate) use field_layout::{FieldLayout, LayoutField, TextNumbers};
pub(crate) use field_names::{CollectionNames, FieldNames};
pub use memory::CatalogGauges;
pub use rollover::BucketLimits;
pub(crate) use series::SeriesKey;
pub use stats::BucketCounters;
pub(crate) use stats::increment;

pub(crate) use admission::BucketStorage;
use bucket::Usage;
use series::{SeriesHasher, StripeLock};
pub(crate) use series_cache::{CachedSeries, SeriesCache};
use staging::StagedEntry;

use super::format::series_key::SeriesMeta;

/// Locks over which the series are spread.
const STRIPES: usize = 32;

/// Memory of buckets, in bytes, if no limit is set and the machine's memory is unknown.
pub const BUCKET_CATALOG_BYTES_MAX: usize = 512 << 20;

/// Measurements in a tail from which on it is folded, if they are also at least as many as the document has.
const FOLD_ROWS_MIN: usize = 128;

/// A task that an insert leaves for the maintenance queue.
#[derive(Clone, Debug)]
pub(crate) enum MaintenanceTask {
    /// Writes the bucket's document with its tail folded in; the bucket stays open.
    Fold(Arc<SeriesKey>, [u8; 12]),
    /// Writes the document of this collection's bucket as sealed; nothing is added to it any more.
    Seal([u8; 16], [u8; 12]),
    /// Seals a bucket that was evicted from memory. It may be reopened soon, so the task is skipped when the queue is full;
    /// the bucket then keeps its tail until it is reopened, or until the next start.
    SealIdle([u8; 16], [u8; 12]),
}

impl MaintenanceTask {
    /// Returns the collection of the bucket.
    pub(crate) fn collection(&self) -> [u8; 16] {
        match self {
            Self::Fold(key, _) => key.collection,
            Self::Seal(collection, _) | Self::SealIdle(collection, _) => *collection,
        }
    }

    /// Returns the bucket.
    pub(crate) fn bucket(&self) -> [u8; 12] {
        let (Self::Fold(_, id) | Self::Seal(_, id) | Self::SealIdle(_, id)) = self;
        *id
    }
}

/// An entry in flight, to be reported by [`BucketCatalog::finish`].
#[derive(Debug)]
pub(crate) struct InFlightEntry {
    key: Arc<SeriesKey>,
    entry: StagedEntry,
}

/// The open buckets of all collections.
pub struct BucketCatalog {
    stripes: Vec<StripeLock>,
    hasher: SeriesHasher,
    series_cache: SeriesCache,
    /// The last eight bytes of the next bucket's id.
    next_suffix: AtomicU64,
    counters: RwLock<HashMap<[u8; 16], Arc<BucketCounters>>>,
    /// Names of fields, by collection.
    names: Mutex<HashMap<[u8; 16], CollectionNames>>,
    /// Counters of dropped collections.
    of_dropped: BucketCounters,
    limits: BucketLimits,
    usage: Arc<Usage>,
    /// Bytes above which idle buckets are evicted.
    memory_max: AtomicUsize,
    /// The dynamic limit of a bucket's bytes never falls below this.
    bytes_min: AtomicUsize,
    /// Clear operations so far.
    era: AtomicU64,
    /// Buckets that cannot be read, by collection.
    frozen: Mutex<HashSet<([u8; 16], [u8; 12])>>,
    any_frozen: AtomicBool,
}

impl BucketCatalog {
    /// An empty catalog. Bucket ids count up from `first_suffix`, which should be random.
    pub fn new(limits: BucketLimits, first_suffix: u64) -> Self {
        Self {
            stripes: (0..STRIPES).map(|_| StripeLock::default()).collect(),
            hasher: SeriesHasher::default(),
            series_cache: SeriesCache::default(),
            next_suffix: AtomicU64::new(first_suffix),
            counters: RwLock::default(),
            names: Mutex::default(),
            of_dropped: BucketCounters::default(),
            limits,
            usage: Arc::default(),
            memory_max: AtomicUsize::new(BUCKET_CATALOG_BYTES_MAX),
            bytes_min: AtomicUsize::new(limits.bytes_min),
            era: AtomicU64::new(0),
            frozen: Mutex::default(),
            any_frozen: AtomicBool::new(false),
        }
    }

    /// Returns the counters of a collection.
    pub fn counters(&self, collection: [u8; 16]) -> Arc<BucketCounters> {
        let known = self.counters.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known.get(&collection) {
            return found.clone();
        }
        drop(known);
        let mut known = self
            .counters
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        known.entry(collection).or_default().clone()
    }

    /// Returns the known names of a collection.
    pub(crate) fn names(&self, collection: [u8; 16]) -> CollectionNames {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.get(&collection).cloned().unwrap_or_default()
    }

    /// Stores names, of fields or of metadata, if they are more than those stored.
    pub(crate) fn store_names(
        &self,
        collection: [u8; 16],
        which: fn(&mut CollectionNames) -> &mut FieldNames,
        found: &FieldNames,
    ) {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let known = which(names.entry(collection).or_default());
        if known.len() < found.len() {
            *known = found.clone();
        }
    }

    /// Returns the sum of all counters, those of dropped collections included.
    pub fn totals(&self) -> BucketCounters {
        let totals = BucketCounters::default();
        totals.add(&self.of_dropped);
        let known = self.counters.read().unwrap_or_else(PoisonError::into_inner);
        known.values().for_each(|counters| totals.add(counters));
        totals
    }

    fn stripe(&self, key: &SeriesKey) -> &StripeLock {
        &self.stripes[key.share(STRIPES)]
    }

    /// Returns the key of a series.
    pub(crate) fn series_key(&self, collection: [u8; 16], meta: SeriesMeta) -> Arc<SeriesKey> {
        let key = SeriesKey::new(collection, meta, &self.hasher);
        let stripe = self.stripe(&key).lock();
        // The shared key, if the series is known: then equal pointers decide.
        match stripe.series.get_key_value(&key) {
            Some((known, _)) => known.clone(),
            None => Arc::new(key),
        }
    }

    /// True if a series is written to, or has buckets that take more measurements.
    pub(crate) fn has_series(&self, collection: [u8; 16], meta: SeriesMeta) -> bool {
        let key = SeriesKey::new(collection, meta, &self.hasher);
        self.stripe(&key).lock().series.contains_key(&key)
    }

    /// The cache of series by metadata as sent.
    pub(crate) fn series_cache(&self) -> &SeriesCache {
        &self.series_cache
    }

    /// Returns the share of the cache of each active bucket, in bytes.
    fn derived_bytes(&self) -> usize {
        let bytes_min = self.bytes_min.load(Ordering::Relaxed);
        self.limits.derived_bytes(self.active_buckets(), bytes_min)
    }

    /// Returns a new id for a bucket that starts at `start_ms`.
    pub(crate) fn new_bucket_id(&self, start_ms: i64) -> [u8; 12] {
        let suffix = self.next_suffix.fetch_add(1, Ordering::Relaxed);
        bucket::id_of(start_ms, suffix.to_be_bytes())
    }

    /// The limits of buckets.
    pub(crate) fn limits(&self) -> BucketLimits {
        self.limits
    }

    /// Clear operations so far.
    fn era(&self) -> u64 {
        self.era.load(Ordering::Relaxed)
    }

    /// Reports the end of a commit to one collection; returns the tasks it leaves.
    ///
    /// After a failed commit the catalog forgets the buckets: only storage knows their contents.
    pub(crate) fn finish(
        &self,
        collection: [u8; 16],
        in_flight: Vec<InFlightEntry>,
        committed: bool,
    ) -> Vec<MaintenanceTask> {
        let mut tasks = Vec::new();
        let mut committed_counts = CommitCounts::default();
        for InFlightEntry { key, entry } in in_flight {
            let lock = self.stripe(&key);
            let mut stripe = lock.lock();
            let Some(series) = stripe.series.get_mut(&key) else {
                continue;
            };
            if !committed {
                series.abandon(entry.bucket);
                stripe.remove_if_empty(&key);
                lock.notify(&stripe);
                continue;
            }
            committed_counts.count(&entry);
            let of_entry = series.buckets_mut().find(|b| b.id == entry.bucket);
            if let Some(bucket) = of_entry {
                bucket.entry_committed(&entry);
                let unfolded = bucket.count - bucket.folded_count;
                if bucket.in_flight == 0
                    && !bucket.closing
                    && unfolded >= FOLD_ROWS_MIN.max(bucket.folded_count)
                    && bucket.count >= bucket.fold_asked_at + FOLD_ROWS_MIN
                {
                    bucket.fold_asked_at = bucket.count;
                    tasks.push(MaintenanceTask::Fold(key.clone(), bucket.id));
                }
                series.closing.retain(|bucket| {
                    let done = bucket.in_flight == 0;
                    if done {
                        tasks.push(MaintenanceTask::Seal(key.collection, bucket.id));
                    }
                    !done
                });
                stripe.queue_idle(&key);
                self.evict_idle(&mut stripe, &key, &mut tasks);
            }
            lock.notify(&stripe);
        }
        if committed {
            committed_counts.report(&self.counters(collection));
        }
        tasks
    }

    /// Returns the sequence number up to which the bucket's tail may be folded; `None` if an entry is in flight.
    pub(crate) fn begin_fold(&self, key: &SeriesKey, id: [u8; 12]) -> Option<u32> {
        let stripe = self.stripe(key).lock();
        let bucket = stripe
            .series
            .get(key)?
            .open
            .as_ref()
            .filter(|bucket| bucket.id == id)?;
        (bucket.in_flight == 0).then_some(bucket.next_sequence)
    }

    /// Reports that the bucket's document was written with `rows` measurements in `bytes`.
    pub(crate) fn end_fold(&self, key: &SeriesKey, id: [u8; 12], rows: usize, bytes: usize) {
        let mut stripe = self.stripe(key).lock();
        let series = stripe.series.get_mut(key);
        let open = series.and_then(|series| series.open.as_mut());
        if let Some(bucket) = open.filter(|bucket| bucket.id == id) {
            bucket.folded_count = rows;
            if rows == bucket.count {
                bucket.measured_bytes = bytes;
                bucket.unmeasured_bytes = 0;
            }
        }
    }
}

/// Counts of committed entries.
#[derive(Debug, Default)]
struct CommitCounts {
    entries: i64,
    measurements: i64,
    opening: i64,
    unsorting: i64,
}

impl CommitCounts {
    fn count(&mut self, entry: &StagedEntry) {
        self.entries += 1;
        self.measurements += entry.rows as i64;
        self.opening += i64::from(entry.opens_bucket);
        self.unsorting += i64::from(entry.unsorts);
    }

    fn report(&self, counters: &BucketCounters) {
        increment(&counters.commits, self.entries);
        increment(&counters.measurements_committed, self.measurements);
        increment(&counters.bucket_inserts, self.opening);
        increment(&counters.bucket_updates, self.entries - self.opening);
        increment(&counters.converted_to_unsorted, self.unsorting);
    }
}
