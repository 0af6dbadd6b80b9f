//! Which times the measurements of a series have: what is asked when the mark does not answer.

use std::collections::BTreeSet;
use std::sync::Arc;

use nilometer_bson::ValueRef;
use nilometer_storage::Direction;

use crate::catalog::{Collection, TimeseriesOptions};
use crate::error::Result;
use crate::timeseries::Timeseries;
use crate::timeseries::cache::opened_bucket::StoredBucket;
use crate::timeseries::fold::BucketKeyspaces;
use crate::timeseries::format::series_index;
use crate::timeseries::format::series_key::SeriesMeta;
use crate::timeseries::scan::BucketRange;

/// Times that measurements of a series have, and the buckets they are in.
#[derive(Debug, Default)]
pub(crate) struct Existing {
    pub(crate) times_ms: BTreeSet<i64>,
    pub(crate) buckets: Vec<[u8; 12]>,
}

impl Timeseries {
    /// The time of the newest measurement of a series; the least there is if it has none.
    pub(super) fn newest_of(
        self: &Arc<Self>,
        collection: &Arc<Collection>,
        options: &TimeseriesOptions,
        span_ms: i64,
        meta: &SeriesMeta,
    ) -> Result<i64> {
        let Some(keyspaces) = BucketKeyspaces::of(collection) else {
            return Ok(i64::MIN);
        };
        let snapshot = self.engine.snapshot()?;
        let mut ids = Vec::new();
        let mut earliest = i64::MIN;
        let starts = series_index::starts(
            &*snapshot,
            keyspaces.series,
            meta,
            (i64::MIN, i64::MAX),
            Direction::Backward,
        )?;
        for entry in starts {
            let (start_ms, id) = entry?;
            // A bucket that starts a span earlier ends before this one's first measurement.
            if ids.is_empty() && !collection.has_extended_range() {
                earliest = start_ms.saturating_sub(span_ms);
            }
            if start_ms < earliest {
                break;
            }
            ids.push(id);
        }
        let mut newest = i64::MIN;
        self.each_bucket(collection, ids, |bucket| {
            if let ValueRef::DateTime(last_ms) = bucket.max(&options.time_field) {
                newest = newest.max(last_ms);
            }
            Ok(())
        })?;
        Ok(newest)
    }

    /// Which of the times, ascending, measurements of a series have.
    pub(super) fn existing(
        self: &Arc<Self>,
        collection: &Arc<Collection>,
        options: &TimeseriesOptions,
        span_ms: i64,
        meta: &SeriesMeta,
        wanted_ms: &[i64],
    ) -> Result<Existing> {
        let mut found = Existing::default();
        let (Some(keyspaces), Some(&first), Some(&last)) = (
            BucketKeyspaces::of(collection),
            wanted_ms.first(),
            wanted_ms.last(),
        ) else {
            return Ok(found);
        };
        let anywhere = collection.has_extended_range();
        let within = match anywhere {
            true => (i64::MIN, i64::MAX),
            false => (first.saturating_sub(span_ms), last),
        };
        let snapshot = self.engine.snapshot()?;
        let mut ids = Vec::new();
        let starts = series_index::starts(
            &*snapshot,
            keyspaces.series,
            meta,
            within,
            Direction::Forward,
        )?;
        for entry in starts {
            let (start_ms, id) = entry?;
            let next = wanted_ms.partition_point(|at| *at < start_ms);
            let next = wanted_ms.get(next);
            let holds = next.is_some_and(|at| *at < start_ms.saturating_add(span_ms));
            if holds || anywhere {
                ids.push(id);
            }
        }
        drop(snapshot);
        self.each_bucket(collection, ids, |bucket| {
            if SeriesMeta::of(bucket.meta()) != *meta {
                return Ok(());
            }
            let before = found.times_ms.len();
            times_within(bucket, options, wanted_ms, &mut found.times_ms)?;
            if found.times_ms.len() > before {
                found.buckets.push(bucket.id().0);
            }
            Ok(())
        })?;
        Ok(found)
    }

    fn each_bucket(
        self: &Arc<Self>,
        collection: &Arc<Collection>,
        mut ids: Vec<[u8; 12]>,
        mut read: impl FnMut(&StoredBucket) -> Result<()>,
    ) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        ids.sort_unstable();
        for bucket in self.scan_listed(collection, ids, BucketRange::default())? {
            read(&*bucket?)?;
        }
        Ok(())
    }
}

/// Adds those of the times that measurements of the bucket have.
fn times_within(
    bucket: &StoredBucket,
    options: &TimeseriesOptions,
    wanted_ms: &[i64],
    found: &mut BTreeSet<i64>,
) -> Result<()> {
    let bounds = (
        bucket.min(&options.time_field),
        bucket.max(&options.time_field),
    );
    if let (ValueRef::DateTime(min), ValueRef::DateTime(max)) = bounds {
        let next = wanted_ms.partition_point(|at| *at < min);
        if wanted_ms.get(next).is_none_or(|at| *at > max) {
            return Ok(());
        }
    }
    let Some(times) = bucket.column(&options.time_field)? else {
        return Ok(());
    };
    for row in 0..bucket.count() {
        if let ValueRef::DateTime(at) = times.value(row)
            && wanted_ms.binary_search(&at).is_ok()
        {
            found.insert(at);
        }
    }
    Ok(())
}
