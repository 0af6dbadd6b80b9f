//! Reopening buckets: a measurement goes to an archived bucket, or to a stored one, if that still takes it.
//!
//! ```text
//! archived bucket in memory ─ no ─► bucket of the hint ─ no ─► search by series and start ─ no ─► the caller opens a new one
//! ```
//!
//! A reopened bucket must hold the same series, have space, not be closed for good, and accept the types of the measurement.

use std::sync::Arc;

use nilometer_bson::{Document, ValueRef};
use nilometer_storage::WriteBatch;

use super::BucketCatalog;
use super::bucket::{Measurement, MemoryUse, OpenBucket};
use super::rollover::{self, BucketLimits, Rollover, RolloverInput};
use super::series::Series;
use super::staging::{MatchedFields, match_fields};
use super::stats::{BucketCounters, increment};
use crate::catalog::TimeseriesOptions;
use crate::error::{ErrorCode, Result};
use crate::timeseries::format::bucket_document::{BucketDocument, Version};
use crate::timeseries::format::series_key::SeriesMeta;

/// The reads of storage that the catalog needs.
pub(crate) trait BucketStorage {
    /// Returns the size of a bucket's document with its tail folded in, in bytes.
    fn measure(&self, id: [u8; 12]) -> Result<usize>;

    /// True if stored buckets may be searched.
    fn may_query(&self) -> bool;

    /// Returns the buckets of a series that start in `(after_ms, until_ms]`, latest first.
    fn find(&self, meta: &SeriesMeta, within: (i64, i64)) -> Result<Vec<[u8; 12]>>;

    /// Returns a bucket's document with its tail folded in, and the next sequence number of the tail.
    fn load(&self, id: [u8; 12]) -> Result<Option<(Document, u32)>>;

    /// Adds the index entries of a new bucket to the batch.
    fn opened(
        &self,
        batch: &mut WriteBatch,
        meta: &SeriesMeta,
        start_ms: i64,
        id: [u8; 12],
    ) -> Result<()>;
}

/// Decides whether a bucket takes a measurement.
pub(super) struct AdmissionCheck<'c> {
    pub(super) catalog: &'c BucketCatalog,
    pub(super) collection: [u8; 16],
    pub(super) limits: BucketLimits,
    /// Bytes below every share of the cache.
    pub(super) bytes_min: usize,
    pub(super) options: &'c TimeseriesOptions,
    pub(super) storage: &'c dyn BucketStorage,
    pub(super) counters: Arc<BucketCounters>,
}

/// The space of a bucket for a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    Free,
    /// Above its limit, but kept open for its few large measurements.
    KeptOpen,
    Exhausted(Rollover),
}

/// Returns a value read from storage; freezes the bucket and returns `None` if the stored bytes are corrupt.
fn readable<T>(check: &AdmissionCheck<'_>, id: [u8; 12], read: Result<T>) -> Result<Option<T>> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.code == ErrorCode::DataCorruptionDetected => {
            #[cfg(test)]
            cov_mark::hit!(unreadable_bucket_frozen);
            check.catalog.freeze(check.collection, id);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

impl AdmissionCheck<'_> {
    pub(super) fn is_frozen(&self, id: [u8; 12]) -> bool {
        self.catalog.is_frozen(self.collection, id)
    }

    fn rollover_input(&self, bucket: &OpenBucket, measurement: &Measurement<'_>) -> RolloverInput {
        let bytes = bucket.bytes_bound();
        let derived_bytes = if bytes > self.bytes_min {
            self.catalog.derived_bytes()
        } else {
            usize::MAX
        };
        // A field's first appearance is stored three times.
        let most = 3 * measurement.document.as_bytes().len();
        let few = bucket.count < self.limits.count_min;
        let matters = bytes + most > rollover::LARGE_BUCKET_BYTES_MAX
            || few && bytes > self.limits.bytes_max.min(derived_bytes);
        RolloverInput {
            start_ms: bucket.start_ms,
            span_ms: self.options.span_ms(),
            time_ms: measurement.time_ms,
            count: bucket.count,
            bytes,
            measurement_bytes: match matters {
                true => added_bytes(bucket, self.options, measurement),
                false => 0,
            },
            derived_bytes,
        }
    }

    /// Returns the bucket's space for a measurement, types aside. `staged` rows of this command are not flushed yet.
    pub(super) fn space(
        &self,
        bucket: &mut OpenBucket,
        measurement: &Measurement<'_>,
        staged: usize,
    ) -> Result<Space> {
        if self.is_frozen(bucket.id) {
            return Ok(Space::Exhausted(Rollover::Frozen));
        }
        let mut input = self.rollover_input(bucket, measurement);
        let mut reason = rollover::decide(&input, &self.limits);
        let limit = self.limits.bytes_max.min(input.derived_bytes);
        let by_size = matches!(reason, Some(Rollover::Size | Rollover::CachePressure))
            || reason.is_none() && input.bytes > limit;
        if by_size && bucket.unmeasured_bytes > 0 && staged == 0 && bucket.in_flight == 0 {
            // The bound counts new values uncompressed; the limit is for the compressed document.
            #[cfg(test)]
            cov_mark::hit!(bucket_measured_compressed);
            let measured = self.storage.measure(bucket.id);
            let Some(bytes) = readable(self, bucket.id, measured)? else {
                return Ok(Space::Exhausted(Rollover::Frozen));
            };
            bucket.measured_bytes = bytes;
            bucket.unmeasured_bytes = 0;
            input = self.rollover_input(bucket, measurement);
            reason = rollover::decide(&input, &self.limits);
        }
        Ok(match reason {
            Some(reason) => Space::Exhausted(reason),
            None if input.bytes > limit => Space::KeptOpen,
            None => Space::Free,
        })
    }

    /// Counts a bucket that is above its limit and takes a measurement.
    pub(super) fn count_space(&self, bucket: &mut OpenBucket, space: Space) {
        if space == Space::KeptOpen && !bucket.kept_open {
            #[cfg(test)]
            cov_mark::hit!(large_bucket_kept_open);
            bucket.kept_open = true;
            increment(&self.counters.kept_open_due_to_large_measurements, 1);
        }
    }

    /// Returns why a reopened bucket does not take the measurement.
    fn rejection(
        &self,
        bucket: &mut OpenBucket,
        measurement: &Measurement<'_>,
    ) -> Result<Option<Rollover>> {
        Ok(match self.space(bucket, measurement, 0)? {
            Space::Exhausted(reason) => Some(reason),
            // The schema is checked even for a large measurement.
            _ if !match_fields(
                bucket,
                self.options,
                measurement,
                &mut MatchedFields::default(),
            ) =>
            {
                Some(Rollover::SchemaChange)
            }
            space => {
                self.count_space(bucket, space);
                None
            }
        })
    }
}

/// Returns the bytes a measurement adds to a bucket, uncompressed.
fn added_bytes(
    bucket: &OpenBucket,
    options: &TimeseriesOptions,
    measurement: &Measurement<'_>,
) -> usize {
    let mut hint = 0;
    let fields = measurement.fields(options.meta_field.as_deref());
    let bytes = fields.map(|field| match bucket.find_column(field.name, hint) {
        Some(at) => {
            hint = at + 1;
            field.bytes
        }
        None => 3 * field.bytes,
    });
    bytes.sum()
}

/// Returns a bucket to reopen for `measurement`, taken out of `series`. `hint` is the last bucket of the series before it
/// was evicted.
pub(super) fn reopen(
    series: &mut Series,
    meta: &SeriesMeta,
    measurement: &Measurement<'_>,
    hint: Option<[u8; 12]>,
    check: &AdmissionCheck<'_>,
) -> Result<Option<Box<OpenBucket>>> {
    if let Some(found) = reopen_archived(series, meta, measurement, check)? {
        return Ok(Some(found));
    }
    if !check.storage.may_query() {
        return Ok(None);
    }
    let within = (
        measurement.time_ms.saturating_sub(check.options.span_ms()),
        measurement.time_ms,
    );
    let hint = hint.filter(|id| may_start_within(*id, within));
    if let Some(id) = hint
        && let Some(found) = reopen_stored(series, meta, measurement, id, check)?
    {
        #[cfg(test)]
        cov_mark::hit!(evicted_bucket_reopened_by_hint);
        return Ok(Some(found));
    }
    for id in check.storage.find(meta, within)? {
        if Some(id) != hint
            && let Some(found) = reopen_stored(series, meta, measurement, id, check)?
        {
            return Ok(Some(found));
        }
    }
    increment(&check.counters.queries_failed, 1);
    Ok(None)
}

/// True if the seconds in a bucket's id are within `(after_ms, until_ms]`. Ids of extended ranges are not ordered so.
fn may_start_within(id: [u8; 12], (after_ms, until_ms): (i64, i64)) -> bool {
    let [a, b, c, d, ..] = id;
    let start_ms = i64::from(u32::from_be_bytes([a, b, c, d])) * 1000;
    after_ms < start_ms && start_ms <= until_ms
}

/// Reopens an archived bucket.
fn reopen_archived(
    series: &mut Series,
    meta: &SeriesMeta,
    measurement: &Measurement<'_>,
    check: &AdmissionCheck<'_>,
) -> Result<Option<Box<OpenBucket>>> {
    let time_ms = measurement.time_ms;
    // The latest that starts early enough.
    let behind = series
        .archived
        .partition_point(|bucket| bucket.start_ms <= time_ms);
    let span = check.options.span_ms();
    let Some(at) = behind.checked_sub(1).filter(|at| {
        let ahead = time_ms.checked_sub(series.archived[*at].start_ms);
        ahead.is_some_and(|ahead| ahead < span)
    }) else {
        return Ok(None);
    };
    let archived = series.archived.remove(at);
    let failed = || increment(&check.counters.fetches_failed, 1);
    let mut bucket = match archived.known {
        Some(known) => known,
        None => {
            #[cfg(test)]
            cov_mark::hit!(archived_bucket_loaded_by_id);
            let loaded = check.storage.load(archived.id);
            let Some(Some((document, next_sequence))) = readable(check, archived.id, loaded)?
            else {
                failed();
                return Ok(None);
            };
            match open_document(&document, next_sequence, meta, check) {
                ReopenCandidate::Usable(bucket) => bucket,
                ReopenCandidate::Unsuitable => {
                    failed();
                    return Ok(None);
                }
                ReopenCandidate::Damaged => {
                    failed();
                    increment(&check.counters.reopenings_failed, 1);
                    return Ok(None);
                }
            }
        }
    };
    match check.rejection(&mut bucket, measurement) {
        Ok(None) => {
            #[cfg(test)]
            cov_mark::hit!(archived_bucket_reopened);
            increment(&check.counters.fetched, 1);
            increment(&check.counters.reopened, 1);
            Ok(Some(bucket))
        }
        Ok(Some(_)) => {
            failed();
            series.close(*bucket);
            Ok(None)
        }
        Err(error) => {
            series.discard(*bucket);
            Err(error)
        }
    }
}

/// Reopens a stored bucket if it takes the measurement.
fn reopen_stored(
    series: &mut Series,
    meta: &SeriesMeta,
    measurement: &Measurement<'_>,
    id: [u8; 12],
    check: &AdmissionCheck<'_>,
) -> Result<Option<Box<OpenBucket>>> {
    let counters = &check.counters;
    let failed = || {
        increment(&counters.reopenings_failed, 1);
        Ok(None)
    };
    if series.knows(id) {
        return Ok(None);
    }
    if check.is_frozen(id) {
        return failed();
    }
    let Some(loaded) = readable(check, id, check.storage.load(id))? else {
        return failed();
    };
    let Some((document, next_sequence)) = loaded else {
        return Ok(None);
    };
    let mut bucket = match open_document(&document, next_sequence, meta, check) {
        ReopenCandidate::Usable(bucket) => bucket,
        ReopenCandidate::Unsuitable => return Ok(None),
        ReopenCandidate::Damaged => return failed(),
    };
    if check.rejection(&mut bucket, measurement)?.is_some() {
        return Ok(None);
    }
    series.archived.retain(|archived| archived.id != id);
    increment(&counters.queried, 1);
    increment(&counters.reopened, 1);
    Ok(Some(bucket))
}

/// A bucket that was found.
enum ReopenCandidate {
    Usable(Box<OpenBucket>),
    /// Of another series, full, or closed for good: searches skip it.
    Unsuitable,
    /// Would be usable, but must not be written to.
    Damaged,
}

/// Opens a bucket from its document.
fn open_document(
    document: &Document,
    next_sequence: u32,
    meta: &SeriesMeta,
    check: &AdmissionCheck<'_>,
) -> ReopenCandidate {
    let time_field = &check.options.time_field;
    let Ok(bucket) = BucketDocument::parse(document.as_ref(), time_field) else {
        return ReopenCandidate::Damaged;
    };
    let full = bucket.count >= check.limits.count_max;
    if bucket.closed || full || SeriesMeta::of(bucket.meta) != *meta {
        return ReopenCandidate::Unsuitable;
    }
    let (ValueRef::DateTime(start_ms), ValueRef::DateTime(last_ms)) =
        (bucket.min.get(time_field), bucket.max.get(time_field))
    else {
        return ReopenCandidate::Damaged;
    };
    let memory = MemoryUse::new(check.catalog.usage.clone());
    let mut names = check.catalog.names(check.collection).fields;
    let (options, meta_bytes) = (check.options, meta.len());
    let mut open = OpenBucket::new([0; 8], options, start_ms, meta_bytes, memory, &mut names);
    open.id = bucket.id;
    open.start_ms = start_ms;
    open.last_ms = last_ms;
    open.sorted = bucket.version != Version::Unsorted;
    open.count = bucket.count;
    open.folded_count = bucket.count;
    open.fold_asked_at = bucket.count;
    open.next_sequence = next_sequence;
    open.header_committed = true;
    open.measured_bytes = document.as_bytes().len();
    open.era = check.catalog.era();
    if bucket.data.get(time_field).is_missing() {
        return ReopenCandidate::Damaged;
    }
    // The time column comes first, as in a folded bucket.
    let (times, others): (Vec<_>, Vec<_>) =
        bucket.data.iter().partition(|e| *e.name() == **time_field);
    open.columns.clear();
    for element in times.into_iter().chain(others) {
        let name = element.name();
        let (min, max) = (bucket.min.get(name), bucket.max.get(name));
        let restored = open.restore_column(name, min, max, &mut names);
        if restored.is_none() {
            return ReopenCandidate::Damaged;
        }
    }
    ReopenCandidate::Usable(Box::new(open))
}
