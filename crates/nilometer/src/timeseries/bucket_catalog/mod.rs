//! Which buckets are open, and which of them takes the next measurement.
//!
//! ```text
//! insert ── group by series ──► stripe (of 32, by hash of collection and meta)
//!                                 └─ series ─► open bucket? fits? ── no ─► close it, open another
//!                                                  │ yes
//!                                  rows ─► one tail entry per bucket ─► engine batch of the command
//! ```
//!
//! Inserts do not wait for each other: each command appends its own entries to a bucket's tail, in
//! its own engine batch, and the engine's group commit makes one sync of them. What needs a bucket
//! alone (folding its tail, sealing it) waits until no entry of it is in flight.
//!
//! The catalog is a cache. It holds no measurement, and may forget a bucket, a collection or all of
//! them at any moment; what was committed is in storage and stays readable.

mod bucket;
mod reopening;
mod rollover;
mod staging;
mod stats;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use nilometer_storage::{KeyspaceId, WriteBatch};

pub(crate) use bucket::Measurement;
pub use rollover::BucketLimits;
pub use stats::BucketCounters;
pub(crate) use stats::increment;

use bucket::{Field, MemoryUse, OpenBucket};
pub(crate) use reopening::BucketStorage;
use reopening::Check;
use rollover::Rollover;
use staging::{Stage, StagedEntry};

use super::meta::SeriesMeta;
use super::series_index;
use crate::catalog::{Collection, Storage, TimeseriesOptions};
use crate::error::{Error, Result};

/// Locks the series are spread over.
const STRIPES: usize = 32;

/// Archived buckets kept in memory for one series; the one that starts first closes for another.
const ARCHIVED_PER_SERIES_MAX: usize = 4;

/// Memory of open buckets if nobody says otherwise, in bytes.
const MEMORY_BYTES_MAX: usize = 512 << 20;

/// A tail is folded into its document when it holds at least this many measurements …
const FOLD_ROWS_MIN: usize = 64;

/// A series: its collection and its normalised meta value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SeriesKey {
    pub(crate) collection: [u8; 16],
    pub(crate) meta: SeriesMeta,
}

#[derive(Debug, Default)]
struct Series {
    /// The bucket that takes measurements.
    open: Option<OpenBucket>,
    /// Buckets left for an earlier one, which a later measurement may need again; latest last.
    archived: Vec<OpenBucket>,
    /// Buckets that closed while entries of theirs were in flight.
    closing: Vec<OpenBucket>,
    /// Buckets that are just being removed from storage.
    removing: Vec<[u8; 12]>,
}

impl Series {
    fn is_idle(&self) -> bool {
        self.open.is_none()
            && self.archived.is_empty()
            && self.closing.is_empty()
            && self.removing.is_empty()
    }

    fn buckets_mut(&mut self) -> impl Iterator<Item = &mut OpenBucket> {
        self.open
            .iter_mut()
            .chain(&mut self.archived)
            .chain(&mut self.closing)
    }

    /// Forgets a bucket one of whose entries did not arrive; not before the others have.
    fn abandon(&mut self, id: [u8; 12]) {
        if let Some(bucket) = self.buckets_mut().find(|bucket| bucket.id == id) {
            bucket.in_flight -= 1;
        }
        let opened = self.open.take_if(|bucket| bucket.id == id);
        let at = self.archived.iter().position(|bucket| bucket.id == id);
        let archived = at.map(|at| self.archived.remove(at));
        if let Some(bucket) = opened.or(archived)
            && bucket.in_flight > 0
        {
            self.close(bucket);
        }
        self.closing
            .retain(|bucket| bucket.id != id || bucket.in_flight > 0);
    }

    /// Forgets all buckets but those with entries in flight: the next sequence number of such a
    /// bucket is known only here, so it must not be taken up again before they have arrived.
    fn clear(&mut self) {
        let buckets = self.open.take().into_iter().chain(self.archived.drain(..));
        let busy: Vec<_> = buckets.filter(|bucket| bucket.in_flight > 0).collect();
        for bucket in busy {
            self.close(bucket);
        }
    }

    /// Takes no more measurements into the bucket; it is written out when nothing is in flight.
    fn close(&mut self, mut bucket: OpenBucket) {
        bucket.closing = true;
        self.closing.push(bucket);
    }
}

type Stripe = HashMap<Arc<SeriesKey>, Series>;

/// Work on a bucket that an insert leaves behind.
#[derive(Clone, Debug)]
pub(crate) enum Chore {
    /// Write the bucket's document with its tail folded in; it stays open.
    Fold(Arc<SeriesKey>, [u8; 12]),
    /// Write the bucket's document among the sealed ones; nothing is added any more.
    Seal([u8; 12]),
}

/// A bucket's entry on its way, to be reported by [`BucketCatalog::finish`].
#[derive(Debug)]
pub(crate) struct InFlight {
    key: Arc<SeriesKey>,
    entry: StagedEntry,
}

/// A bucket the catalog has forgotten and keeps from being reopened.
#[derive(Debug)]
pub(crate) struct Evicted {
    key: Arc<SeriesKey>,
    id: [u8; 12],
}

/// The open buckets of all collections.
pub struct BucketCatalog {
    stripes: Vec<Mutex<Stripe>>,
    hasher: RandomState,
    /// The last eight bytes of the next bucket's id.
    next_suffix: AtomicU64,
    counters: RwLock<HashMap<[u8; 16], Arc<BucketCounters>>>,
    limits: BucketLimits,
    /// Bytes of all open buckets.
    memory: Arc<AtomicUsize>,
    /// Above this many bytes idle buckets are closed.
    memory_max: AtomicUsize,
}

impl BucketCatalog {
    /// An empty catalog; bucket ids go on from `first_suffix`, which should be random.
    pub fn new(limits: BucketLimits, first_suffix: u64) -> Self {
        Self {
            stripes: (0..STRIPES).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            next_suffix: AtomicU64::new(first_suffix),
            counters: RwLock::default(),
            limits,
            memory: Arc::default(),
            memory_max: AtomicUsize::new(MEMORY_BYTES_MAX),
        }
    }

    /// Sets the memory above which idle buckets are closed, in bytes.
    pub fn set_memory_max(&self, bytes: usize) {
        self.memory_max.store(bytes, Ordering::Relaxed);
    }

    /// Bytes of all open buckets.
    pub fn memory_bytes(&self) -> usize {
        self.memory.load(Ordering::Relaxed)
    }

    /// The counters of a collection.
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

    /// The counters of all collections together, and how many buckets are open.
    pub fn totals(&self) -> (BucketCounters, usize) {
        let totals = BucketCounters::default();
        let known = self.counters.read().unwrap_or_else(PoisonError::into_inner);
        known.values().for_each(|counters| totals.add(counters));
        let open = self.stripes.iter().map(|stripe| {
            let stripe = stripe.lock().unwrap_or_else(PoisonError::into_inner);
            stripe
                .values()
                .filter(|series| series.open.is_some())
                .count()
        });
        (totals, open.sum())
    }

    fn stripe(&self, key: &SeriesKey) -> MutexGuard<'_, Stripe> {
        let at = self.hasher.hash_one(key) as usize % STRIPES;
        self.stripes[at]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the tail entries for one series' measurements into `batch`, in the order given.
    ///
    /// Whatever happens, the entries staged so far are in `in_flight` and must be finished.
    // long function: one pass over the measurements under the stripe's lock, with all it borrows
    pub(crate) fn stage<'a>(
        &self,
        collection: &Collection,
        meta: SeriesMeta,
        measurements: &[Measurement<'a>],
        storage: &dyn BucketStorage,
        batch: &mut WriteBatch,
        in_flight: &mut Vec<InFlight>,
    ) -> Result<()> {
        let (
            Some(options),
            Storage::Buckets {
                tail,
                series: index,
                ..
            },
        ) = (&collection.timeseries, collection.storage)
        else {
            return Err(Error::bad_value("not a time-series collection"));
        };
        let key = Arc::new(SeriesKey {
            collection: collection.uuid,
            meta,
        });
        let counters = self.counters(collection.uuid);
        let mut stripe = self.stripe(&key);
        let series = stripe.entry(key.clone()).or_default();
        let mut stage = Stage::default();
        let mut fields = Vec::new();
        let check = Check {
            limits: &self.limits,
            options,
            storage,
            counters: &counters,
            memory: &self.memory,
        };
        let mut sink = Sink {
            key: &key,
            tail,
            index,
            storage,
            batch,
            in_flight,
        };
        for measurement in measurements {
            let had_open = series.open.is_some();
            if let Some(mut bucket) = series.open.take() {
                let rollover = check.run(&mut bucket, measurement, stage.rows(), &mut fields)?;
                let Some(reason) = rollover else {
                    stage.push(&mut bucket, measurement, &fields);
                    series.open = Some(bucket);
                    continue;
                };
                sink.flush(&mut stage, &mut bucket)?;
                counters.count_rollover(reason);
                if reason == Rollover::TimeBackward {
                    archive(series, bucket);
                } else {
                    series.close(bucket);
                }
            }
            let mut bucket = match reopening::reopen(series, &key.meta, measurement, &check)? {
                Some(reopened) => reopened,
                None => {
                    let first = i64::from(!had_open);
                    increment(&counters.opened_due_to_metadata, first);
                    self.open_bucket(options, measurement.time_ms, key.meta.len())
                }
            };
            look_up(&bucket, options, measurement, &mut fields);
            stage.push(&mut bucket, measurement, &fields);
            series.open = Some(bucket);
        }
        match &mut series.open {
            Some(bucket) => sink.flush(&mut stage, bucket),
            None => Ok(()),
        }
    }

    fn open_bucket(&self, options: &TimeseriesOptions, time: i64, meta: usize) -> OpenBucket {
        let suffix = self.next_suffix.fetch_add(1, Ordering::Relaxed);
        let memory = MemoryUse::new(self.memory.clone());
        OpenBucket::new(suffix.to_be_bytes(), options, time, meta, memory)
    }

    /// Closes idle buckets of `collection` if all open buckets together take too much memory: some
    /// of those under the same lock as the series just written, which is spared.
    fn expire_idle(&self, stripe: &mut Stripe, spared: &SeriesKey, chores: &mut Vec<Chore>) {
        if self.memory_bytes() <= self.memory_max.load(Ordering::Relaxed) {
            return;
        }
        let counters = self.counters(spared.collection);
        let is_idle = |(key, series): &(&Arc<SeriesKey>, &Series)| {
            let mut buckets = series
                .open
                .iter()
                .chain(&series.archived)
                .chain(&series.closing);
            key.collection == spared.collection
                && ***key != *spared
                && series.removing.is_empty()
                && buckets.all(|bucket| bucket.in_flight == 0)
        };
        let idle = stripe.iter().filter(is_idle);
        let idle: Vec<_> = idle
            .take(self.limits.expiry_count_max)
            .map(|(key, _)| key.clone())
            .collect();
        for key in idle {
            let Some(series) = stripe.remove(&key) else {
                continue;
            };
            let buckets = series
                .open
                .into_iter()
                .chain(series.archived)
                .chain(series.closing);
            for bucket in buckets {
                increment(&counters.closed_due_to_memory_threshold, 1);
                chores.push(Chore::Seal(bucket.id));
            }
        }
    }

    /// Reports the end of a commit and collects what is to be done about the buckets.
    ///
    /// After a failed commit the catalog forgets the buckets: what they hold is only in storage.
    pub(crate) fn finish(&self, in_flight: Vec<InFlight>, committed: bool) -> Vec<Chore> {
        let mut chores = Vec::new();
        for InFlight { key, entry } in in_flight {
            let counters = self.counters(key.collection);
            let mut stripe = self.stripe(&key);
            let Some(series) = stripe.get_mut(&key) else {
                continue;
            };
            if !committed {
                series.abandon(entry.bucket);
                continue;
            }
            increment(&counters.commits, 1);
            increment(&counters.measurements_committed, entry.rows as i64);
            let written = if entry.opens_bucket {
                &counters.bucket_inserts
            } else {
                &counters.bucket_updates
            };
            increment(written, 1);
            increment(&counters.converted_to_unsorted, i64::from(entry.unsorts));
            let Some(bucket) = series
                .buckets_mut()
                .find(|bucket| bucket.id == entry.bucket)
            else {
                continue;
            };
            bucket.in_flight -= 1;
            bucket.header_committed |= entry.with_header;
            for at in entry.named {
                if let Some(column) = bucket.columns.get_mut(at) {
                    column.committed = true;
                }
            }
            let unfolded = bucket.count - bucket.folded_count;
            if bucket.in_flight == 0
                && !bucket.closing
                && unfolded >= FOLD_ROWS_MIN.max(bucket.folded_count)
            {
                chores.push(Chore::Fold(key.clone(), bucket.id));
            }
            series.closing.retain(|bucket| {
                let done = bucket.in_flight == 0;
                if done {
                    chores.push(Chore::Seal(bucket.id));
                }
                !done
            });
            self.expire_idle(&mut stripe, &key, &mut chores);
        }
        chores
    }

    /// If nothing of the bucket is in flight: the sequence number up to which its tail may be folded.
    pub(crate) fn begin_fold(&self, key: &SeriesKey, id: [u8; 12]) -> Option<u32> {
        let stripe = self.stripe(key);
        let bucket = stripe
            .get(key)?
            .open
            .as_ref()
            .filter(|bucket| bucket.id == id)?;
        (bucket.in_flight == 0).then_some(bucket.next_sequence)
    }

    /// Reports that the bucket's document was written with `rows` measurements in `bytes`.
    pub(crate) fn end_fold(&self, key: &SeriesKey, id: [u8; 12], rows: usize, bytes: usize) {
        let mut stripe = self.stripe(key);
        let open = stripe.get_mut(key).and_then(|series| series.open.as_mut());
        if let Some(bucket) = open.filter(|bucket| bucket.id == id) {
            bucket.folded_count = rows;
            if rows == bucket.count {
                bucket.measured_bytes = bytes;
                bucket.unmeasured_bytes = 0;
            }
        }
    }

    /// Forgets one bucket so that it can be removed from storage, and keeps it from being reopened
    /// until [`BucketCatalog::release`]. `None` if it is being written to.
    pub(crate) fn evict(
        &self,
        collection: [u8; 16],
        meta: SeriesMeta,
        id: [u8; 12],
    ) -> Option<Evicted> {
        let key = SeriesKey { collection, meta };
        let mut stripe = self.stripe(&key);
        let key = Arc::new(key);
        let series = stripe.entry(key.clone()).or_default();
        let mut buckets = series.buckets_mut();
        if buckets.any(|bucket| bucket.id == id && bucket.in_flight > 0) {
            return None;
        }
        drop(buckets);
        series.open.take_if(|bucket| bucket.id == id);
        series.archived.retain(|bucket| bucket.id != id);
        series.closing.retain(|bucket| bucket.id != id);
        series.removing.push(id);
        Some(Evicted { key, id })
    }

    /// Ends the removal of buckets.
    pub(crate) fn release(&self, evicted: Vec<Evicted>) {
        for Evicted { key, id } in evicted {
            let mut stripe = self.stripe(&key);
            if let Some(series) = stripe.get_mut(&key) {
                series.removing.retain(|removing| *removing != id);
                if series.is_idle() {
                    stripe.remove(&key);
                }
            }
        }
    }

    /// Forgets the open buckets of a collection. They stay in storage and may be taken up again.
    pub fn clear(&self, collection: [u8; 16]) {
        for stripe in &self.stripes {
            let mut stripe = stripe.lock().unwrap_or_else(PoisonError::into_inner);
            stripe.retain(|key, series| {
                if key.collection == collection {
                    series.clear();
                }
                !series.is_idle()
            });
        }
    }

    /// Forgets the open buckets and the counters of a collection that was dropped.
    pub fn forget(&self, collection: [u8; 16]) {
        self.clear(collection);
        let mut counters = self
            .counters
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        counters.remove(&collection);
    }
}

/// Where the entries of one series go.
struct Sink<'s> {
    key: &'s Arc<SeriesKey>,
    tail: KeyspaceId,
    index: KeyspaceId,
    storage: &'s dyn BucketStorage,
    batch: &'s mut WriteBatch,
    in_flight: &'s mut Vec<InFlight>,
}

impl Sink<'_> {
    /// Makes an entry of the rows collected for `bucket`, if there are any.
    fn flush(&mut self, stage: &mut Stage<'_>, bucket: &mut OpenBucket) -> Result<()> {
        if stage.rows() == 0 {
            return Ok(());
        }
        let (entry_key, value, entry) = std::mem::take(stage).into_entry(bucket, &self.key.meta)?;
        if entry.with_header {
            let key = series_index::key(&self.key.meta, bucket.start_ms, bucket.id);
            self.batch.put(self.index, key, Vec::new());
            let meta = &self.key.meta;
            self.storage.opened(self.batch, meta, bucket.start_ms, bucket.id)?;
        }
        self.batch.put(self.tail, entry_key, value);
        self.in_flight.push(InFlight {
            key: self.key.clone(),
            entry,
        });
        Ok(())
    }
}

/// Leaves a bucket for one that starts earlier; it may be needed again.
fn archive(series: &mut Series, bucket: OpenBucket) {
    series.archived.push(bucket);
    series.archived.sort_by_key(|bucket| bucket.start_ms);
    if series.archived.len() > ARCHIVED_PER_SERIES_MAX {
        let earliest = series.archived.remove(0);
        series.close(earliest);
    }
}

/// Finds the measurement's columns in the bucket; false if one of them does not accept its value.
fn look_up<'a>(
    bucket: &OpenBucket,
    options: &TimeseriesOptions,
    measurement: &Measurement<'a>,
    fields: &mut Vec<(Option<usize>, Field<'a>)>,
) -> bool {
    fields.clear();
    let mut hint = 0;
    for field in measurement.fields(options.meta_field.as_deref()) {
        let column = bucket.find_column(field.name, hint);
        if let Some(at) = column {
            hint = at + 1;
            if !bucket.accepts(at, &field) {
                return false;
            }
        }
        fields.push((column, field));
    }
    true
}
