//! The duplicate policy of a collection (`timeseries.nilometer.duplicates`): what an insert does with measurements whose
//! series and time are stored already.
//!
//! ```text
//! groups ─► lock the series ─► later than all of the series? ── yes ─► new
//!                                        │ no
//!                              stored at that time? ── no ─► new
//!                                        │ yes
//!                              ignore │ error │ replace
//! ```
//!
//! Promises:
//!
//! - **No duplicates.** Of two inserts of the same key, one finds what the other stored: an insert locks its series from the
//!   lookup to the commit ([`series_locks`]).
//! - **In order is cheap.** A measurement later than all of its series needs no read; neither does one that is a little late
//!   in a series that has had late ones ([`series_locks::KnownTimes`]).
//! - **Acknowledged means stored.** An ignored measurement is acknowledged when the stored one is as durable as asked for.
//!
//! Only inserts follow the policy: an update may give a measurement the time of another, and raw writes of buckets are not
//! checked. Both make the series locks forget what they know of the series.

mod find;
pub(super) mod replace;
mod series_locks;

use super::group_by_series::{GroupedMeasurements, SeriesGroup};
use super::statement::InsertStatement;
use crate::catalog::{
    BUCKETS_PREFIX, Collection, DuplicatePolicy, DuplicateRule, TimeseriesOptions,
};
use crate::error::{Error, ErrorCode, Result};
use crate::insertion::{InsertOptions, WriteError};
use crate::timeseries::format::series_key::SeriesMeta;
use find::{DuplicateMatch, SeriesDuplicates};
use nilometer_bson::{DocumentBuilder, Value, ValueRef, doc, extjson};
use replace::Replacements;
use series_locks::SeriesLockGuard;
pub(crate) use series_locks::SeriesLocks;

/// The result of the policy: what remains to be done once the new measurements are staged.
#[derive(Default)]
#[must_use = "the series stay locked until this is released"]
pub(super) struct PolicyOutcome {
    /// Measurements to write in the place of stored ones.
    pub(super) replacements: Vec<Replacements>,
    /// The series of the command; none where duplicates are kept.
    locked: Option<SeriesLockGuard>,
}

impl PolicyOutcome {
    /// True if another insert waits for a series of the collection.
    pub(super) fn has_waiters(&self) -> bool {
        self.locked
            .as_ref()
            .is_some_and(SeriesLockGuard::has_waiters)
    }

    /// Unlocks the series. What was learnt of them is kept if the measurements were committed.
    pub(super) fn release(self, committed: bool) {
        if let Some(locked) = self.locked
            && committed
        {
            locked.commit();
        }
    }
}

/// Applies the policy to the groups of a command: takes duplicates out of them, and locks their series until the commit.
pub(super) fn apply_policy(
    insert: &InsertStatement<'_>,
    rule: DuplicateRule,
    grouped: &mut GroupedMeasurements<'_>,
) -> Result<PolicyOutcome> {
    let mut outcome = PolicyOutcome::default();
    let Some(timeseries) = &insert.collection.timeseries else {
        return Ok(outcome);
    };
    if rule.policy == DuplicatePolicy::Keep {
        return Ok(outcome);
    }
    let series = grouped.groups.iter();
    let series = series.map(|group| group.key.index_hash);
    let locks = &insert.timeseries.series_locks;
    let locked = locks.lock(insert.collection.uuid, series.collect());
    let locked = outcome.locked.insert(locked);
    let mut errors = Vec::new();
    for (group, known) in grouped.groups.iter_mut().zip(&mut locked.known_times) {
        group.measurements.sort_by_key(|one| one.time_ms);
        let Some(duplicates) = find::duplicates(insert, timeseries, rule, known, group)? else {
            continue;
        };
        match rule.policy {
            DuplicatePolicy::Replace => {
                let replacements = replace::take(group, duplicates, timeseries, insert.options);
                outcome.replacements.extend(replacements);
            }
            DuplicatePolicy::Merge => {
                let merged = replace::take_merged(group, duplicates, timeseries, insert.options);
                outcome.replacements.extend(merged);
            }
            DuplicatePolicy::Error => {
                remove_duplicates(group, &duplicates, |index, meta, time_ms| {
                    let error = duplicate_key(insert.collection, timeseries, meta, time_ms);
                    errors.push(WriteError { index, error });
                })
            }
            DuplicatePolicy::Keep | DuplicatePolicy::Ignore => {
                remove_duplicates(group, &duplicates, |_, _, _| {});
            }
        }
    }
    if !errors.is_empty() {
        add_errors(grouped, errors, insert.options);
    }
    for (group, known) in grouped.groups.iter().zip(&mut locked.known_times) {
        if let Some(window) = &mut known.window {
            let times = group.measurements.iter().map(|one| one.time_ms);
            times.for_each(|time_ms| window.add(time_ms));
        }
    }
    grouped
        .groups
        .retain(|group| !group.measurements.is_empty());
    Ok(outcome)
}

/// Takes the duplicates out of a group, and reports each by its place in the command, its metadata and its time.
fn remove_duplicates(
    group: &mut SeriesGroup<'_>,
    duplicates: &SeriesDuplicates,
    mut report: impl FnMut(usize, &SeriesMeta, i64),
) {
    assert_eq!(group.measurements.len(), duplicates.matches.len());
    let mut matches = duplicates.matches.iter();
    let meta = &group.key.meta;
    group.measurements.retain(|one| {
        let is_new = matches.next() == Some(&DuplicateMatch::None);
        if !is_new {
            report(one.index, meta, one.time_ms);
        }
        is_new
    });
}

/// Reports duplicates as write errors; an ordered insert ends at the first.
fn add_errors(
    grouped: &mut GroupedMeasurements<'_>,
    errors: Vec<WriteError>,
    options: InsertOptions<'_>,
) {
    let outcome = &mut grouped.outcome;
    outcome.inserted -= errors.len();
    outcome.errors.extend(errors);
    outcome.errors.sort_by_key(|error| error.index);
    if !options.ordered {
        return;
    }
    outcome.errors.truncate(1);
    let Some(end) = outcome.errors.first().map(|error| error.index) else {
        return;
    };
    outcome.inserted = end;
    for group in &mut grouped.groups {
        group.measurements.retain(|one| one.index < end);
    }
}

/// Code 11000, worded as for a unique index on metadata and time.
fn duplicate_key(
    collection: &Collection,
    timeseries: &TimeseriesOptions,
    meta: &SeriesMeta,
    time_ms: i64,
) -> Error {
    let (mut pattern, mut key) = (DocumentBuilder::new(), DocumentBuilder::new());
    let mut name = String::new();
    let meta_value = match meta.value() {
        ValueRef::Missing => Value::Null,
        value => value.to_value(),
    };
    let meta_part = timeseries
        .meta_field
        .as_deref()
        .map(|field| (field, meta_value));
    let time_part = (timeseries.time_field.as_str(), Value::DateTime(time_ms));
    let mut shown = Vec::new();
    for (field, value) in meta_part.into_iter().chain([time_part]) {
        let separator = if name.is_empty() { "" } else { "_" };
        name.push_str(&format!("{separator}{field}_1"));
        shown.push(format!(
            "{field}: {}",
            extjson::value_to_relaxed(value.as_ref())
        ));
        pattern.append(field, 1);
        key.append(field, value);
    }
    let database = &collection.namespace.database;
    let view = collection.namespace.collection.as_str();
    let view = view.strip_prefix(BUCKETS_PREFIX).unwrap_or(view);
    Error::new(
        ErrorCode::DuplicateKey,
        format!(
            "E11000 duplicate key error collection: {database}.{view} index: {name} dup key: {{ {} }}",
            shown.join(", ")
        ),
    )
    .with_details(doc! { "keyPattern": pattern.finish(), "keyValue": key.finish() })
}
