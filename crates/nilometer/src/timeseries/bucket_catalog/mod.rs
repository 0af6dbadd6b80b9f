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
mod rollover;
mod staging;
mod stats;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use nilometer_storage::WriteBatch;

pub(crate) use bucket::Measurement;
pub use rollover::BucketLimits;
pub use stats::BucketCounters;
pub(crate) use stats::increment;

use bucket::{Field, OpenBucket};
use rollover::{Facts, Rollover};
use staging::{Stage, StagedEntry};

use super::meta::SeriesMeta;
use crate::catalog::{Collection, Storage, TimeseriesOptions};
use crate::error::{Error, Result};

/// Locks the series are spread over.
const STRIPES: usize = 32;

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
    /// Buckets that closed while entries of theirs were in flight.
    closing: Vec<OpenBucket>,
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

/// The open buckets of all collections.
pub struct BucketCatalog {
    stripes: Vec<Mutex<Stripe>>,
    hasher: RandomState,
    /// The last eight bytes of the next bucket's id.
    next_suffix: AtomicU64,
    counters: RwLock<HashMap<[u8; 16], Arc<BucketCounters>>>,
    limits: BucketLimits,
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
        }
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
    /// `measure` tells the size of an open bucket's document as stored with its tail, in bytes.
    /// Whatever happens, the entries staged so far are in `in_flight` and must be finished.
    pub(crate) fn stage<'a>(
        &self,
        collection: &Collection,
        meta: SeriesMeta,
        measurements: &[Measurement<'a>],
        measure: &dyn Fn([u8; 12]) -> Result<usize>,
        batch: &mut WriteBatch,
        in_flight: &mut Vec<InFlight>,
    ) -> Result<()> {
        let (Some(options), Storage::Buckets { tail, .. }) =
            (&collection.timeseries, collection.storage)
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
        let mut flush = |stage: &mut Stage<'a>, bucket: &mut OpenBucket| -> Result<()> {
            if stage.rows() > 0 {
                let staged = std::mem::take(stage);
                let (entry_key, value, entry) = staged.into_entry(bucket, &key.meta)?;
                batch.put(tail, entry_key, value);
                in_flight.push(InFlight {
                    key: key.clone(),
                    entry,
                });
            }
            Ok(())
        };
        for measurement in measurements {
            if let Some(mut bucket) = series.open.take() {
                let staged = stage.rows();
                let rollover = self.check(
                    &mut bucket,
                    options,
                    measurement,
                    staged,
                    &mut fields,
                    measure,
                    &counters,
                )?;
                let Some(reason) = rollover else {
                    stage.push(&mut bucket, measurement, &fields);
                    series.open = Some(bucket);
                    continue;
                };
                flush(&mut stage, &mut bucket)?;
                counters.count_rollover(reason);
                bucket.closing = true;
                series.closing.push(bucket);
            } else {
                increment(&counters.opened_due_to_metadata, 1);
            }
            let mut bucket = self.open_bucket(options, measurement.time_ms, key.meta.len());
            look_up(&bucket, options, measurement, &mut fields);
            stage.push(&mut bucket, measurement, &fields);
            series.open = Some(bucket);
        }
        match &mut series.open {
            Some(bucket) => flush(&mut stage, bucket),
            None => Ok(()),
        }
    }

    fn open_bucket(&self, options: &TimeseriesOptions, time: i64, meta: usize) -> OpenBucket {
        let suffix = self.next_suffix.fetch_add(1, Ordering::Relaxed);
        OpenBucket::new(suffix.to_be_bytes(), options, time, meta)
    }

    /// Why the bucket does not take the measurement; if it does, `fields` tells the columns.
    #[allow(
        clippy::too_many_arguments,
        reason = "one caller, which holds all of this apart"
    )]
    fn check<'a>(
        &self,
        bucket: &mut OpenBucket,
        options: &TimeseriesOptions,
        measurement: &Measurement<'a>,
        staged: usize,
        fields: &mut Vec<(Option<usize>, Field<'a>)>,
        measure: &dyn Fn([u8; 12]) -> Result<usize>,
        counters: &BucketCounters,
    ) -> Result<Option<Rollover>> {
        let facts = |bucket: &OpenBucket| Facts {
            start_ms: bucket.start_ms,
            span_ms: options.span_ms(),
            time_ms: measurement.time_ms,
            count: bucket.count,
            bytes: bucket.bytes_bound(),
            measurement_bytes: 0,
        };
        let mut reason = rollover::decide(&facts(bucket), &self.limits);
        if reason == Some(Rollover::Size) && staged == 0 && bucket.in_flight == 0 {
            // The bound counts new values uncompressed; the limit is on the compressed document.
            bucket.measured_bytes = measure(bucket.id)?;
            bucket.unmeasured_bytes = 0;
            reason = rollover::decide(&facts(bucket), &self.limits);
        }
        if reason.is_some() {
            return Ok(reason);
        }
        if bucket.bytes_bound() > self.limits.bytes_max && !bucket.kept_open {
            bucket.kept_open = true;
            increment(&counters.kept_open_due_to_large_measurements, 1);
        }
        let fits = look_up(bucket, options, measurement, fields);
        Ok((!fits).then_some(Rollover::SchemaChange))
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
                series.open.take_if(|bucket| bucket.id == entry.bucket);
                series.closing.retain(|bucket| bucket.id != entry.bucket);
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
                .open
                .iter_mut()
                .chain(series.closing.iter_mut())
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

    /// Forgets one bucket so that it can be rewritten or removed; false if it is being written to.
    pub(crate) fn evict(&self, collection: [u8; 16], meta: SeriesMeta, id: [u8; 12]) -> bool {
        let key = SeriesKey { collection, meta };
        let mut stripe = self.stripe(&key);
        let Some(series) = stripe.get_mut(&key) else {
            return true;
        };
        let mut buckets = series.open.iter().chain(&series.closing);
        if buckets.any(|bucket| bucket.id == id && bucket.in_flight > 0) {
            return false;
        }
        series.open.take_if(|bucket| bucket.id == id);
        series.closing.retain(|bucket| bucket.id != id);
        true
    }

    /// Forgets the open buckets of a collection.
    pub(crate) fn clear(&self, collection: [u8; 16]) {
        for stripe in &self.stripes {
            let mut stripe = stripe.lock().unwrap_or_else(PoisonError::into_inner);
            stripe.retain(|key, _| key.collection != collection);
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
