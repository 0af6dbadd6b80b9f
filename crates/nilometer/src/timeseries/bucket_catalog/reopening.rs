//! Reopening buckets: a measurement goes to an archived bucket, or to a stored one, if that still takes it.
//!
//! ```text
//! archived bucket in memory ─ no ─► bucket of the hint ─ no ─► search by series and start ─ no ─► the caller opens a new one
//! ```
//!
//! A reopened bucket must hold the same series, have space, not be closed for good, and accept the types of the measurement.

use nilometer_bson::{Document, ValueRef};

use super::admission::{AdmissionCheck, readable};
use super::bucket::{Measurement, MemoryUse, OpenBucket};
use super::series::Series;
use super::stats::increment;
use crate::error::Result;
use crate::timeseries::format::bucket_document::{BucketDocument, Version};
use crate::timeseries::format::series_key::SeriesMeta;

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
