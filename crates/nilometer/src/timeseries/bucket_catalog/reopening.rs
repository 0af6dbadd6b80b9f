//! Taking up a bucket again that was left or closed, or that another process wrote.
//!
//! A measurement that no open bucket takes may still belong to one that exists: an archived one,
//! which is in memory, or one found by its series and start in storage. A bucket taken up again
//! must hold the same series, have room, not be closed for good, and accept the measurement's types.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use nilometer_bson::{Document, ValueRef};
use nilometer_storage::WriteBatch;

use super::super::bucket_document::{BucketDocument, Version};
use super::super::meta::SeriesMeta;
use super::bucket::{Field, Measurement, MemoryUse, OpenBucket};
use super::rollover::{self, BucketLimits, Facts, Rollover};
use super::stats::{BucketCounters, increment};
use super::{Series, look_up};
use crate::catalog::TimeseriesOptions;
use crate::error::Result;

/// What the catalog asks of storage.
pub(crate) trait BucketStorage {
    /// The size of a bucket's document with its tail folded in, in bytes.
    fn measure(&self, id: [u8; 12]) -> Result<usize>;

    /// The buckets of a series that start in `(after_ms, until_ms]`, latest first.
    fn find(&self, meta: &SeriesMeta, after_ms: i64, until_ms: i64) -> Result<Vec<[u8; 12]>>;

    /// A bucket's document with its tail folded in, and the sequence number behind its tail.
    fn load(&self, id: [u8; 12]) -> Result<Option<(Document, u32)>>;

    /// Puts what goes with a bucket's first entry into the batch: its index entries.
    fn opened(
        &self,
        batch: &mut WriteBatch,
        meta: &SeriesMeta,
        start_ms: i64,
        id: [u8; 12],
    ) -> Result<()>;
}

/// What decides whether a bucket takes a measurement.
pub(super) struct Check<'c> {
    pub(super) limits: &'c BucketLimits,
    pub(super) options: &'c TimeseriesOptions,
    pub(super) storage: &'c dyn BucketStorage,
    pub(super) counters: &'c BucketCounters,
    /// Bytes of all open buckets.
    pub(super) memory: &'c Arc<AtomicUsize>,
}

impl Check<'_> {
    fn facts(&self, bucket: &OpenBucket, time_ms: i64) -> Facts {
        Facts {
            start_ms: bucket.start_ms,
            span_ms: self.options.span_ms(),
            time_ms,
            count: bucket.count,
            bytes: bucket.bytes_bound(),
            measurement_bytes: 0,
        }
    }

    /// Why the bucket does not take the measurement; if it does, `fields` tells the columns.
    /// `staged` rows of this command are on their way into it.
    pub(super) fn run<'a>(
        &self,
        bucket: &mut OpenBucket,
        measurement: &Measurement<'a>,
        staged: usize,
        fields: &mut Vec<(Option<usize>, Field<'a>)>,
    ) -> Result<Option<Rollover>> {
        let time_ms = measurement.time_ms;
        let mut reason = rollover::decide(&self.facts(bucket, time_ms), self.limits);
        if reason == Some(Rollover::Size) && staged == 0 && bucket.in_flight == 0 {
            // The bound counts new values uncompressed; the limit is on the compressed document.
            bucket.measured_bytes = self.storage.measure(bucket.id)?;
            bucket.unmeasured_bytes = 0;
            reason = rollover::decide(&self.facts(bucket, time_ms), self.limits);
        }
        if reason.is_some() {
            return Ok(reason);
        }
        if bucket.bytes_bound() > self.limits.bytes_max && !bucket.kept_open {
            bucket.kept_open = true;
            increment(&self.counters.kept_open_due_to_large_measurements, 1);
        }
        let fits = look_up(bucket, self.options, measurement, fields);
        Ok((!fits).then_some(Rollover::SchemaChange))
    }
}

/// The bucket to go on with for `measurement`, if there is one; it is out of `series` then.
pub(super) fn reopen(
    series: &mut Series,
    meta: &SeriesMeta,
    measurement: &Measurement<'_>,
    check: &Check<'_>,
) -> Result<Option<OpenBucket>> {
    let counters = check.counters;
    let mut fields = Vec::new();
    let span = check.options.span_ms();
    let covers = |start: i64| {
        start <= measurement.time_ms
            && measurement
                .time_ms
                .checked_sub(start)
                .is_some_and(|ahead| ahead < span)
    };
    // The latest that starts early enough: later ones are behind it.
    if let Some(at) = series
        .archived
        .iter()
        .rposition(|bucket| covers(bucket.start_ms))
    {
        let mut bucket = series.archived.remove(at);
        match check.run(&mut bucket, measurement, 0, &mut fields)? {
            None => {
                increment(&counters.fetched, 1);
                increment(&counters.reopened, 1);
                return Ok(Some(bucket));
            }
            Some(_) => {
                increment(&counters.fetches_failed, 1);
                series.close(bucket);
            }
        }
    }
    let after = measurement.time_ms.saturating_sub(span);
    for id in check.storage.find(meta, after, measurement.time_ms)? {
        let known = series.buckets_mut().any(|bucket| bucket.id == id);
        if known || series.removing.contains(&id) {
            continue;
        }
        let Some((document, next_sequence)) = check.storage.load(id)? else {
            continue;
        };
        let found = take_up(&document, next_sequence, meta, check);
        let Some(mut bucket) = found else {
            increment(&counters.reopenings_failed, 1);
            continue;
        };
        if check
            .run(&mut bucket, measurement, 0, &mut fields)?
            .is_none()
        {
            increment(&counters.queried, 1);
            increment(&counters.reopened, 1);
            return Ok(Some(bucket));
        }
    }
    increment(&counters.queries_failed, 1);
    Ok(None)
}

/// The catalog's view of a bucket document; `None` if it must not be written to.
fn take_up(
    document: &Document,
    next_sequence: u32,
    meta: &SeriesMeta,
    check: &Check<'_>,
) -> Option<OpenBucket> {
    let time_field = &check.options.time_field;
    let bucket = BucketDocument::parse(document.as_ref(), time_field).ok()?;
    if bucket.closed || SeriesMeta::of(bucket.meta) != *meta {
        return None;
    }
    let (ValueRef::DateTime(start_ms), ValueRef::DateTime(last_ms)) =
        (bucket.min.get(time_field), bucket.max.get(time_field))
    else {
        return None;
    };
    let memory = MemoryUse::new(check.memory.clone());
    let mut open = OpenBucket::new([0; 8], check.options, start_ms, 0, memory);
    open.id = bucket.id;
    open.start_ms = start_ms;
    open.last_ms = last_ms;
    open.sorted = bucket.version != Version::Unsorted;
    open.count = bucket.count;
    open.folded_count = bucket.count;
    open.next_sequence = next_sequence;
    open.header_committed = true;
    open.measured_bytes = document.as_bytes().len();
    open.columns.clear();
    for element in bucket.data {
        let name = element.name();
        open.restore_column(name, bucket.min.get(name), bucket.max.get(name))?;
    }
    let time_first = open
        .columns
        .first()
        .is_some_and(|column| *column.name == **time_field);
    time_first.then_some(open)
}
