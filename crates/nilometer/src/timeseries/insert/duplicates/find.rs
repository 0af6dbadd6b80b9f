//! Finding the duplicates of a series: which of its stored measurements have the times of new ones.
//!
//! The known times of the series answer first; only times they cannot answer for are looked up in its buckets.

use std::collections::BTreeSet;
use std::sync::Arc;

use nilometer_bson::ValueRef;
use nilometer_storage::Direction;

use super::series_locks::{KnownTimes, TimeWindow};
use crate::catalog::{Collection, DuplicatePolicy, DuplicateRule, TimeseriesOptions};
use crate::error::Result;
use crate::timeseries::Timeseries;
use crate::timeseries::cache::opened_bucket::StoredBucket;
use crate::timeseries::format::keyspaces::BucketKeyspaces;
use crate::timeseries::format::series_index;
use crate::timeseries::format::series_key::SeriesMeta;
use crate::timeseries::insert::group_by_series::SeriesGroup;
use crate::timeseries::insert::statement::InsertStatement;
use crate::timeseries::scan::BucketRange;

/// Whether a measurement is a duplicate, and of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DuplicateMatch {
    /// Nothing has its key.
    None,
    /// An earlier measurement of the same command has its key.
    InCommand,
    /// A stored measurement has its key.
    Stored,
}

/// The duplicates among the measurements of one series.
#[derive(Debug)]
pub(super) struct SeriesDuplicates {
    /// One for each measurement, in their order.
    pub(super) matches: Vec<DuplicateMatch>,
    /// Buckets with the stored ones.
    pub(super) buckets: Vec<[u8; 12]>,
}

/// Finds the duplicates of a group, whose measurements ascend in time, and raises the newest time known of its series.
/// `None` if all are new.
pub(super) fn duplicates(
    insert: &InsertStatement<'_>,
    options: &TimeseriesOptions,
    rule: DuplicateRule,
    known: &mut KnownTimes,
    group: &SeriesGroup<'_>,
) -> Result<Option<SeriesDuplicates>> {
    let series = StoredSeries {
        timeseries: insert.timeseries,
        collection: insert.collection,
        options,
        span_ms: rule.span_ms,
        meta: &group.key.meta,
    };
    let times_ms: Vec<i64> = group.measurements.iter().map(|one| one.time_ms).collect();
    let Some(&last) = times_ms.last() else {
        return Ok(None);
    };
    let newest = match known.newest_ms {
        Some(newest) => newest,
        None => series.newest_ms()?,
    };
    known.newest_ms = Some(newest.max(last));
    let late = times_ms.partition_point(|time| *time <= newest);
    let repeats = times_ms.windows(2).any(|pair| pair.first() == pair.last());
    if late == 0 && !repeats {
        return Ok(None);
    }
    let stored = series.stored_late(rule.policy, known, &times_ms[..late], newest)?;
    if stored.times_ms.is_empty() && !repeats {
        return Ok(None);
    }
    let mut before = None;
    let matches = times_ms.iter().map(|time| {
        let repeated = before.replace(*time) == Some(*time);
        match (stored.times_ms.contains(time), repeated) {
            (true, _) => DuplicateMatch::Stored,
            (false, true) => DuplicateMatch::InCommand,
            (false, false) => DuplicateMatch::None,
        }
    });
    Ok(Some(SeriesDuplicates {
        matches: matches.collect(),
        buckets: stored.buckets,
    }))
}

/// Times of stored measurements of a series, and the buckets that hold them.
#[derive(Debug, Default)]
struct StoredTimes {
    times_ms: BTreeSet<i64>,
    buckets: Vec<[u8; 12]>,
}

/// One series in storage.
struct StoredSeries<'s> {
    timeseries: &'s Arc<Timeseries>,
    collection: &'s Arc<Collection>,
    options: &'s TimeseriesOptions,
    /// The longest span a bucket of the collection may have, in ms.
    span_ms: i64,
    meta: &'s SeriesMeta,
}

impl StoredSeries<'_> {
    /// Returns which of the times, none later than the newest stored one, measurements of the series have. Asks the time
    /// window first, and storage for what it cannot answer.
    fn stored_late(
        &self,
        policy: DuplicatePolicy,
        known: &mut KnownTimes,
        late: &[i64],
        newest: i64,
    ) -> Result<StoredTimes> {
        let mut stored = StoredTimes::default();
        let mut unknown = BTreeSet::new();
        for time in late {
            let in_window = known
                .window
                .as_ref()
                .and_then(|window| window.contains(*time));
            match in_window {
                // To be replaced it must be found.
                Some(true) if !policy.changes_stored() => {
                    stored.times_ms.insert(*time);
                }
                Some(false) => {}
                _ => {
                    unknown.insert(*time);
                }
            }
        }
        if !late.is_empty() && known.window.is_none() {
            known.window = newest.checked_add(1).map(TimeWindow::new);
        }
        if unknown.is_empty() {
            return Ok(stored);
        }
        let unknown: Vec<i64> = unknown.into_iter().collect();
        let mut found = self.stored_at(&unknown)?;
        found.times_ms.append(&mut stored.times_ms);
        Ok(found)
    }

    /// Returns the time of the newest stored measurement, in ms; `i64::MIN` if there is none.
    fn newest_ms(&self) -> Result<i64> {
        let Some(keyspaces) = BucketKeyspaces::of(self.collection) else {
            return Ok(i64::MIN);
        };
        let snapshot = self.timeseries.engine.snapshot()?;
        let mut ids = Vec::new();
        let mut earliest = i64::MIN;
        let starts = series_index::starts(
            &*snapshot,
            keyspaces.series,
            self.meta,
            (i64::MIN, i64::MAX),
            Direction::Backward,
        )?;
        for entry in starts {
            let (start_ms, id) = entry?;
            // A bucket that starts a span earlier ends before this one's first measurement.
            if ids.is_empty() && !self.collection.has_extended_range() {
                earliest = start_ms.saturating_sub(self.span_ms);
            }
            if start_ms < earliest {
                break;
            }
            ids.push(id);
        }
        let mut newest = i64::MIN;
        self.each_bucket(ids, |bucket| {
            if let ValueRef::DateTime(last_ms) = bucket.max(&self.options.time_field) {
                newest = newest.max(last_ms);
            }
            Ok(())
        })?;
        Ok(newest)
    }

    /// Returns which of the times, which ascend, stored measurements have.
    fn stored_at(&self, wanted_ms: &[i64]) -> Result<StoredTimes> {
        let mut found = StoredTimes::default();
        let (Some(keyspaces), Some(&first), Some(&last)) = (
            BucketKeyspaces::of(self.collection),
            wanted_ms.first(),
            wanted_ms.last(),
        ) else {
            return Ok(found);
        };
        let anywhere = self.collection.has_extended_range();
        let within = match anywhere {
            true => (i64::MIN, i64::MAX),
            false => (first.saturating_sub(self.span_ms), last),
        };
        let snapshot = self.timeseries.engine.snapshot()?;
        let mut ids = Vec::new();
        let starts = series_index::starts(
            &*snapshot,
            keyspaces.series,
            self.meta,
            within,
            Direction::Forward,
        )?;
        for entry in starts {
            let (start_ms, id) = entry?;
            let next = wanted_ms.partition_point(|at| *at < start_ms);
            let next = wanted_ms.get(next);
            let holds = next.is_some_and(|at| *at < start_ms.saturating_add(self.span_ms));
            if holds || anywhere {
                ids.push(id);
            }
        }
        drop(snapshot);
        self.each_bucket(ids, |bucket| {
            if SeriesMeta::of(bucket.meta()) != *self.meta {
                return Ok(());
            }
            let before = found.times_ms.len();
            self.times_within(bucket, wanted_ms, &mut found.times_ms)?;
            if found.times_ms.len() > before {
                found.buckets.push(bucket.id().0);
            }
            Ok(())
        })?;
        Ok(found)
    }

    fn each_bucket(
        &self,
        mut ids: Vec<[u8; 12]>,
        mut read: impl FnMut(&StoredBucket) -> Result<()>,
    ) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        ids.sort_unstable();
        let range = BucketRange::default();
        for bucket in self
            .timeseries
            .reader
            .scan_listed(self.collection, ids, range)?
        {
            read(&*bucket?)?;
        }
        Ok(())
    }

    /// Adds those of the times that measurements of the bucket have.
    fn times_within(
        &self,
        bucket: &StoredBucket,
        wanted_ms: &[i64],
        found: &mut BTreeSet<i64>,
    ) -> Result<()> {
        let time_field = &self.options.time_field;
        let bounds = (bucket.min(time_field), bucket.max(time_field));
        if let (ValueRef::DateTime(min), ValueRef::DateTime(max)) = bounds {
            let next = wanted_ms.partition_point(|at| *at < min);
            if wanted_ms.get(next).is_none_or(|at| *at > max) {
                return Ok(());
            }
        }
        let Some(times) = bucket.column(time_field)? else {
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
}
