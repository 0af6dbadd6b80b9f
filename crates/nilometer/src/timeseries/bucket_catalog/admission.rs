//! Admission: does a bucket take the next measurement?
//!
//! Every measurement for an open bucket passes [`AdmissionCheck::space`], and every candidate for a reopening
//! [`AdmissionCheck::rejection`]. The check collects the facts and asks [`rollover::decide`]; it measures the compressed document
//! before a bucket closes for its size, because the running bound counts new values uncompressed.

use std::sync::Arc;

use nilometer_bson::Document;
use nilometer_storage::WriteBatch;

use super::BucketCatalog;
use super::bucket::{Measurement, OpenBucket};
use super::rollover::{self, BucketLimits, Rollover, RolloverInput};
use super::staging::{MatchedFields, match_fields};
use super::stats::{BucketCounters, increment};
use crate::catalog::TimeseriesOptions;
use crate::error::{ErrorCode, Result};
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
pub(super) fn readable<T>(
    check: &AdmissionCheck<'_>,
    id: [u8; 12],
    read: Result<T>,
) -> Result<Option<T>> {
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
    pub(super) fn rejection(
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
