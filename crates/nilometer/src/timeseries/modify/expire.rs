//! Removing expired buckets.
//!
//! A bucket is removed as a whole, once the latest time it could hold has expired: its start plus the span of the collection
//! plus `expireAfterSeconds` is past. Where all times lie between 1970 and 2038, the ids of buckets sort as their starts, and
//! the scan ends at the last expired id; otherwise every bucket's start is read.
//!
//! An index on the time with `expireAfterSeconds` and a filter on the metadata expires the buckets it holds, beside the
//! collection's own expiry.

use std::sync::Arc;

use nilometer_bson::key_string::{self, KeyBuilder};
use nilometer_bson::{DocRef, ValueRef};
use nilometer_storage::{Direction, Durability};

use super::bucket_changes::ClaimResult;
use crate::catalog::{Catalog, Collection};
use crate::error::Result;
use crate::eval::{EvalContext, EvaluationCounters, EvaluationLimits, InterruptCheck};
use crate::index::buckets::BucketIndex;
use crate::timeseries::Timeseries;
use crate::timeseries::format::bucket_document::BucketDocument;
use crate::timeseries::scan::BucketRange;
use crate::timeseries::scan::index_scan;

/// Buckets removed in one engine batch, so that inserts never wait long.
const EXPIRE_BATCH_BUCKETS_MAX: usize = 256;

/// Removes the buckets that hold only times before `cutoff_ms` less the collection's span. Returns their number.
pub(super) fn expire(
    timeseries: &Arc<Timeseries>,
    catalog: &Catalog,
    collection: &Arc<Collection>,
    cutoff_ms: i64,
) -> Result<usize> {
    let Some(options) = &collection.timeseries else {
        return Ok(0);
    };
    // What rollups have not frozen yet stays.
    let rollups = collection.rollups.all();
    let direct = rollups.iter().filter(|rollup| rollup.parent().is_none());
    let frozen = direct.map(|rollup| rollup.progress().frozen_ms);
    let cutoff_ms = frozen.fold(cutoff_ms, i64::min);
    let latest_start = cutoff_ms.saturating_sub(options.span_ms());
    let extended = collection.has_extended_range();
    let mut range = BucketRange::default();
    if !extended {
        let Ok(seconds) = u32::try_from(latest_start.div_euclid(1000)) else {
            return Ok(0);
        };
        let mut highest = [0xFF; 12];
        highest[..4].copy_from_slice(&seconds.to_be_bytes());
        range.max = Some(highest);
    }
    let mut removed = 0;
    let mut doomed = Vec::new();
    let expired = |bucket: &BucketDocument<'_>, _: DocRef<'_>| {
        Ok(is_expired(
            bucket.min.get(&options.time_field),
            latest_start,
        ))
    };
    for bucket in timeseries.reader.scan(collection, range)? {
        let bucket = bucket?;
        if is_expired(bucket.min(&options.time_field), latest_start) {
            doomed.push(bucket.id().0);
        }
        if doomed.len() >= EXPIRE_BATCH_BUCKETS_MAX {
            removed += remove_expired(timeseries, catalog, collection, &doomed, &expired)?;
            doomed.clear();
        }
    }
    Ok(removed + remove_expired(timeseries, catalog, collection, &doomed, &expired)?)
}

/// Removes the buckets expired at `now_ms` under indexes on the time, which select buckets by their metadata. Returns their
/// number.
pub(super) fn expire_by_indexes(
    timeseries: &Timeseries,
    catalog: &Catalog,
    collection: &Arc<Collection>,
    now_ms: i64,
    check_interrupt: &dyn Fn() -> Result<()>,
) -> Result<usize> {
    let (interrupt, counters) = (
        InterruptCheck(check_interrupt),
        EvaluationCounters::default(),
    );
    let limits = counters.limits(&interrupt);
    let Some(options) = &collection.timeseries else {
        return Ok(0);
    };
    let mut removed = 0;
    for stored in collection.indexes.all().iter() {
        let Some(seconds) = stored.spec.expire_after_seconds else {
            continue;
        };
        let index = BucketIndex::of(stored, &options.time_field)?;
        let on_time = index.time_part() == Some(0) && index.index().parts().len() == 1;
        if stored.is_ready() && on_time {
            let cutoff_ms = now_ms.saturating_sub(seconds.saturating_mul(1000));
            let latest_start = cutoff_ms.saturating_sub(options.span_ms());
            removed += expire_by_index(
                timeseries,
                catalog,
                collection,
                (&index, latest_start),
                limits,
            )?;
        }
    }
    Ok(removed)
}

fn expire_by_index(
    timeseries: &Timeseries,
    catalog: &Catalog,
    collection: &Arc<Collection>,
    (index, latest_start): (&BucketIndex, i64),
    limits: EvaluationLimits<'_>,
) -> Result<usize> {
    let time_field = collection
        .timeseries
        .as_ref()
        .map_or("", |t| &*t.time_field);
    let kept = index.index();
    let expired = |bucket: &BucketDocument<'_>, document: DocRef<'_>| {
        let picked = match kept.partial_filter() {
            Some(filter) => {
                let context = EvalContext {
                    collator: kept.collation().collator(),
                    limits: Some(limits),
                    ..EvalContext::default()
                };
                filter.matches(document, &context)?
            }
            None => true,
        };
        Ok(picked && is_expired(bucket.min.get(time_field), latest_start))
    };
    let mut edge = KeyBuilder::new(kept.order());
    edge.push(ValueRef::DateTime(latest_start));
    let edge = edge.finish().0;
    let (mut start, end) = match kept.order().is_descending(0) {
        false => (Vec::new(), key_string::prefix_end(edge)),
        true => (edge, None),
    };
    let mut removed = 0;
    loop {
        limits.interrupt.check_interrupt()?;
        let snapshot = timeseries.engine.snapshot()?;
        let keyspace = index.stored.keyspace;
        let scan = snapshot.scan(keyspace, &start, end.as_deref(), Direction::Forward)?;
        let mut doomed = Vec::new();
        for item in scan.take(EXPIRE_BATCH_BUCKETS_MAX) {
            let (entry, _) = item?;
            doomed.push(index_scan::split(&entry)?.1);
            start = [&entry[..], &[0]].concat();
        }
        removed += remove_expired(timeseries, catalog, collection, &doomed, &expired)?;
        if doomed.len() < EXPIRE_BATCH_BUCKETS_MAX {
            return Ok(removed);
        }
    }
}

/// Removes those of the buckets that are still expired. Buckets with entries in flight stay until the next run.
fn remove_expired(
    timeseries: &Timeseries,
    catalog: &Catalog,
    collection: &Arc<Collection>,
    doomed: &[[u8; 12]],
    is_expired: &dyn Fn(&BucketDocument<'_>, DocRef<'_>) -> Result<bool>,
) -> Result<usize> {
    let Some(options) = &collection.timeseries else {
        return Ok(0);
    };
    if doomed.is_empty() {
        return Ok(0);
    }
    let mut changes = timeseries.change_buckets(collection)?;
    let mut removed = 0;
    for id in doomed {
        let ClaimResult::Taken(document) = changes.try_claim(*id)? else {
            continue;
        };
        let bucket = BucketDocument::parse(document.as_ref(), &options.time_field)?;
        if is_expired(&bucket, document.as_ref())? {
            changes.notes.bucket_removed(document.as_ref());
            changes.remove(*id)?;
            removed += 1;
        }
    }
    changes.commit(catalog, Durability::Buffered)?;
    Ok(removed)
}

fn is_expired(start: ValueRef<'_>, latest_start: i64) -> bool {
    matches!(start, ValueRef::DateTime(start) if start <= latest_start)
}
