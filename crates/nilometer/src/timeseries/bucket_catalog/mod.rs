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
mod eviction;
mod memory;
mod reopening;
mod rollover;
mod series;
mod staging;
mod stats;

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use nilometer_storage::{KeyspaceId, WriteBatch};

pub(crate) use bucket::Measurement;
pub(crate) use eviction::Evicted;
pub use memory::Gauges;
pub use rollover::BucketLimits;
pub(crate) use series::SeriesKey;
pub use stats::BucketCounters;
pub(crate) use stats::increment;

use bucket::{Field, MemoryUse, OpenBucket, Usage};
pub(crate) use reopening::BucketStorage;
use reopening::Check;
use series::{Series, StripeLock};
use staging::{Stage, StagedEntry};

use super::meta::SeriesMeta;
use super::series_index;
use crate::catalog::{Collection, Storage, TimeseriesOptions};
use crate::error::{Error, Result};

/// Locks the series are spread over.
const STRIPES: usize = 32;

/// Memory of buckets if nobody says otherwise and the machine's is unknown, in bytes.
pub const BUCKET_CATALOG_BYTES_MAX: usize = 512 << 20;

/// A tail is folded into its document when it holds at least this many measurements …
const FOLD_ROWS_MIN: usize = 64;

/// Work on a bucket that an insert leaves behind.
#[derive(Clone, Debug)]
pub(crate) enum Chore {
    /// Write the bucket's document with its tail folded in; it stays open.
    Fold(Arc<SeriesKey>, [u8; 12]),
    /// Write the document of this collection's bucket among the sealed ones; nothing is added any
    /// more.
    Seal([u8; 16], [u8; 12]),
    /// The same for a bucket that left memory for others: it may be wanted again, so nobody waits for
    /// it. Where there is too much to do it keeps its tail, until it is wanted or the next start.
    SealIdle([u8; 16], [u8; 12]),
}

impl Chore {
    /// The collection of the bucket.
    pub(crate) fn collection(&self) -> [u8; 16] {
        match self {
            Self::Fold(key, _) => key.collection,
            Self::Seal(collection, _) | Self::SealIdle(collection, _) => *collection,
        }
    }

    /// The bucket.
    pub(crate) fn bucket(&self) -> [u8; 12] {
        let (Self::Fold(_, id) | Self::Seal(_, id) | Self::SealIdle(_, id)) = self;
        *id
    }
}

/// A bucket's entry on its way, to be reported by [`BucketCatalog::finish`].
#[derive(Debug)]
pub(crate) struct InFlight {
    key: Arc<SeriesKey>,
    entry: StagedEntry,
}

/// The open buckets of all collections.
pub struct BucketCatalog {
    stripes: Vec<StripeLock>,
    hasher: RandomState,
    /// The last eight bytes of the next bucket's id.
    next_suffix: AtomicU64,
    counters: RwLock<HashMap<[u8; 16], Arc<BucketCounters>>>,
    /// What collections that were dropped have counted.
    of_dropped: BucketCounters,
    limits: BucketLimits,
    usage: Arc<Usage>,
    /// Above this many bytes idle buckets leave memory.
    memory_max: AtomicUsize,
    /// The dynamic limit of a bucket's bytes never falls below this.
    bytes_min: AtomicUsize,
    /// Clear operations so far.
    era: AtomicU64,
    /// Buckets that cannot be read, with their collections.
    frozen: Mutex<HashSet<([u8; 16], [u8; 12])>>,
    any_frozen: AtomicBool,
}

impl BucketCatalog {
    /// An empty catalog; bucket ids go on from `first_suffix`, which should be random.
    pub fn new(limits: BucketLimits, first_suffix: u64) -> Self {
        Self {
            stripes: (0..STRIPES).map(|_| StripeLock::default()).collect(),
            hasher: RandomState::new(),
            next_suffix: AtomicU64::new(first_suffix),
            counters: RwLock::default(),
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

    /// The counters of all collections together, those dropped since included.
    pub fn totals(&self) -> BucketCounters {
        let totals = BucketCounters::default();
        totals.add(&self.of_dropped);
        let known = self.counters.read().unwrap_or_else(PoisonError::into_inner);
        known.values().for_each(|counters| totals.add(counters));
        totals
    }

    fn stripe(&self, key: &SeriesKey) -> &StripeLock {
        let at = self.hasher.hash_one(key) as usize % STRIPES;
        &self.stripes[at]
    }

    /// The share of the cache that each active bucket has now, in bytes.
    fn derived_bytes(&self) -> usize {
        let bytes_min = self.bytes_min.load(Ordering::Relaxed);
        self.limits.derived_bytes(self.active_buckets(), bytes_min)
    }

    /// Puts the tail entries for one series' measurements into `batch`, in the order given.
    ///
    /// Whatever happens, the entries staged so far are in `in_flight` and must be finished.
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
        let derived_bytes = || self.derived_bytes();
        let is_frozen = |id| self.is_frozen(collection.uuid, id);
        let freeze = |id| self.freeze(collection.uuid, id);
        let check = Check {
            limits: &self.limits,
            bytes_min: self.bytes_min.load(Ordering::Relaxed),
            derived_bytes: &derived_bytes,
            is_frozen: &is_frozen,
            freeze: &freeze,
            options,
            storage,
            counters: &counters,
            usage: &self.usage,
            era: self.era.load(Ordering::Relaxed),
        };
        let mut stripe = self.stripe(&key).lock();
        let series = stripe.series.entry(key.clone()).or_default();
        let mut sink = Sink {
            key: &key,
            tail,
            index,
            storage,
            batch,
            in_flight,
        };
        let mut current = series.open.take();
        let staged = self.stage_all(series, &mut current, &mut sink, measurements, &check);
        if let Some(bucket) = current {
            if staged.is_ok() {
                series.open = Some(bucket);
            } else {
                // It counts measurements that are in no entry.
                series.let_go(*bucket);
            }
        }
        staged
    }

    /// Puts measurements into `current` or what comes after it. Whatever happens, a bucket that may
    /// have entries in flight is in `current` or in the series.
    fn stage_all<'a>(
        &self,
        series: &mut Series,
        current: &mut Option<Box<OpenBucket>>,
        sink: &mut Sink<'_>,
        measurements: &[Measurement<'a>],
        check: &Check<'_>,
    ) -> Result<()> {
        let mut stage = Stage::default();
        let mut fields = Vec::new();
        let meta_bytes = sink.key.meta.len();
        for measurement in measurements {
            let had_open = current.is_some();
            if let Some(bucket) = current {
                let rollover = check.run(bucket, measurement, stage.rows(), &mut fields)?;
                let Some(reason) = rollover else {
                    stage.push(bucket, measurement, &fields);
                    continue;
                };
                sink.flush(&mut stage, bucket)?;
                check.counters.count_rollover(reason);
            }
            if let Some(bucket) = current.take() {
                let backward = measurement.time_ms < bucket.start_ms;
                if backward && !(check.is_frozen)(bucket.id) {
                    series.archive(bucket, meta_bytes);
                } else {
                    series.close(*bucket);
                }
            }
            let mut bucket = match reopening::reopen(series, &sink.key.meta, measurement, check)? {
                Some(reopened) => reopened,
                None => {
                    let first = i64::from(!had_open);
                    increment(&check.counters.opened_due_to_metadata, first);
                    Box::new(self.open_bucket(check, measurement.time_ms, meta_bytes))
                }
            };
            look_up(&bucket, check.options, measurement, &mut fields);
            stage.push(&mut bucket, measurement, &fields);
            *current = Some(bucket);
        }
        match current {
            Some(bucket) => sink.flush(&mut stage, bucket),
            None => Ok(()),
        }
    }

    /// A new id for a bucket that begins at `start_ms`.
    pub(crate) fn new_bucket_id(&self, start_ms: i64) -> [u8; 12] {
        let suffix = self.next_suffix.fetch_add(1, Ordering::Relaxed);
        bucket::id_of(start_ms, suffix.to_be_bytes())
    }

    /// The limits of buckets.
    pub(crate) fn limits(&self) -> BucketLimits {
        self.limits
    }

    fn open_bucket(&self, check: &Check<'_>, time: i64, meta: usize) -> OpenBucket {
        let suffix = self.next_suffix.fetch_add(1, Ordering::Relaxed);
        let memory = MemoryUse::new(self.usage.clone());
        let mut bucket = OpenBucket::new(suffix.to_be_bytes(), check.options, time, meta, memory);
        bucket.era = check.era;
        bucket
    }

    /// Reports the end of a commit and collects what is to be done about the buckets.
    ///
    /// After a failed commit the catalog forgets the buckets: what they hold is only in storage.
    pub(crate) fn finish(&self, in_flight: Vec<InFlight>, committed: bool) -> Vec<Chore> {
        let mut chores = Vec::new();
        for InFlight { key, entry } in in_flight {
            let counters = self.counters(key.collection);
            let lock = self.stripe(&key);
            let mut stripe = lock.lock();
            let Some(series) = stripe.series.get_mut(&key) else {
                continue;
            };
            lock.tell();
            if !committed {
                series.abandon(entry.bucket);
                stripe.tidy(&key);
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
                    chores.push(Chore::Seal(key.collection, bucket.id));
                }
                !done
            });
            stripe.tidy(&key);
            stripe.queue(&key);
            self.expire_idle(&mut stripe, &key, &mut chores);
        }
        chores
    }

    /// If nothing of the bucket is in flight: the sequence number up to which its tail may be folded.
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
            self.storage
                .opened(self.batch, meta, bucket.start_ms, bucket.id)?;
        }
        self.batch.put(self.tail, entry_key, value);
        self.in_flight.push(InFlight {
            key: self.key.clone(),
            entry,
        });
        Ok(())
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
