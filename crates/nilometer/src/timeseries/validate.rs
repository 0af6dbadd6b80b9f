//! Checking stored buckets against what they claim.

use std::sync::Arc;

use nilometer_bson::{Value, ValueRef, order};

use super::Timeseries;
use super::fold::BucketKeyspaces;
use super::meta::SeriesMeta;
use super::min_max::{Extreme, Side};
use super::read::{BucketRange, StoredBucket};
use super::series_index;
use crate::catalog::{Collection, TimeseriesOptions};
use crate::error::{Error, Result};
use crate::validation::Validation;

impl Timeseries {
    /// Checks every bucket: count, column lengths, extremes, order of times, start, id, and that the
    /// series index leads to it.
    pub fn validate(
        self: &Arc<Self>,
        collection: &Arc<Collection>,
        check_interrupt: &dyn Fn() -> Result<()>,
    ) -> Result<Validation> {
        let (Some(keyspaces), Some(options)) =
            (BucketKeyspaces::of(collection), &collection.timeseries)
        else {
            return Err(Error::bad_value("not a bucket collection"));
        };
        let mut found = Validation::default();
        for bucket in self.scan(collection, BucketRange::default())? {
            check_interrupt()?;
            let bucket = match bucket {
                Ok(bucket) => bucket,
                Err(error) => {
                    found.add(vec![error.message]);
                    continue;
                }
            };
            let mut problems = match problems_of(&bucket, options) {
                Ok(problems) => problems,
                Err(error) => vec![error.message],
            };
            if let ValueRef::DateTime(start) = bucket.min(&options.time_field) {
                let key = series_index::key(&SeriesMeta::of(bucket.meta()), start, bucket.id().0);
                if self
                    .engine
                    .snapshot()?
                    .get(keyspaces.series, &key)?
                    .is_none()
                {
                    problems.push("the series index does not lead to it".to_owned());
                }
            }
            problems.extend(self.missing_entries(collection, bucket.id().0)?);
            let id = bucket.id().to_hex();
            found.add(
                problems
                    .into_iter()
                    .map(|p| format!("bucket {id}: {p}"))
                    .collect(),
            );
        }
        let indexes = self.validate_indexes(collection, check_interrupt)?;
        found.problems.extend(indexes.problems);
        found.keys_per_index = indexes.entries;
        Ok(found)
    }
}

fn problems_of(bucket: &StoredBucket, options: &TimeseriesOptions) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for name in bucket.columns() {
        let Some(column) = bucket.column(name)? else {
            continue;
        };
        let (mut min, mut max) = (Extreme::none(), Extreme::none());
        for value in column.iter() {
            min.update(value, Side::Min);
            max.update(value, Side::Max);
        }
        if **name == *options.time_field {
            let times = column.to_values();
            check_times(&times, bucket, options, &mut problems);
        } else if !same(bucket.min(name), &min.to_value()) {
            problems.push(format!("control.min.{name} is not the least value"));
        }
        if !same(bucket.max(name), &max.to_value()) {
            problems.push(format!("control.max.{name} is not the greatest value"));
        }
    }
    Ok(problems)
}

fn same(stored: ValueRef<'_>, found: &Value) -> bool {
    order::compare(stored, found.as_ref()).is_eq()
}

fn check_times(
    times: &[Value],
    bucket: &StoredBucket,
    options: &TimeseriesOptions,
    problems: &mut Vec<String>,
) {
    let dates: Vec<i64> = times
        .iter()
        .filter_map(|time| match time {
            Value::DateTime(ms) => Some(*ms),
            _ => None,
        })
        .collect();
    if dates.len() != bucket.count() {
        problems.push(format!(
            "{} of {} measurements have a time",
            dates.len(),
            bucket.count()
        ));
    }
    if bucket.is_sorted() && !dates.is_sorted() {
        problems.push("version 2 promises ascending times".to_owned());
    }
    let ValueRef::DateTime(start) = bucket.min(&options.time_field) else {
        problems.push("control.min has no time".to_owned());
        return;
    };
    if dates.iter().any(|time| *time < start) {
        problems.push("a time lies before control.min".to_owned());
    }
    let seconds = start.div_euclid(1000) as u32;
    if bucket.id().timestamp_seconds() != seconds {
        problems.push("the _id does not carry the time of control.min".to_owned());
    }
}
