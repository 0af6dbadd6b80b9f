//! Validation: checks stored buckets against their headers, and the series index against the buckets.

use std::sync::Arc;

use nilometer_bson::{Value, ValueRef, order};
use nilometer_storage::Direction;

use super::Timeseries;
use super::cache::opened_bucket::StoredBucket;
use super::format::keyspaces::BucketKeyspaces;
use super::format::min_max::{Extreme, Side};
use super::format::registry;
use super::format::series_index;
use super::format::series_key::SeriesMeta;
use super::index::validate::IndexValidator;
use super::scan::BucketRange;
use super::scan::bucket_parts;
use super::scan::summarized::ScannedBucket;
use super::scan::summary_reader::SummaryReader;
use crate::catalog::{Collection, TimeseriesOptions};
use crate::error::{Error, Result};
use crate::eval::Collation;
use crate::validation::{Miscount, Validation};

/// Entries of the series index checked under one snapshot.
const INDEX_CHUNK_ENTRIES: usize = 512;

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
        let collation = Collation::of_stored(collection.options.as_ref())?;
        let mut found = Validation::default();
        let indexes = IndexValidator {
            engine: &*self.engine,
            collection,
        };
        for bucket in self.reader.scan(collection, BucketRange::default())? {
            check_interrupt()?;
            let bucket = match bucket {
                Ok(bucket) => bucket,
                Err(error) => {
                    found.add(vec![error.message]);
                    continue;
                }
            };
            let mut problems = match problems_of(&bucket, options, &collation) {
                Ok(problems) => problems,
                Err(error) => vec![error.message],
            };
            if !self.series_index_leads_to(keyspaces, options, &bucket)? {
                problems.push("the series index does not lead to it".to_owned());
            }
            if !self.is_registered(keyspaces, options, &bucket)? {
                problems.push("its series is not registered".to_owned());
            }
            let id = bucket.id();
            let snapshot = self.engine.snapshot()?;
            let twice = snapshot.get(keyspaces.open, &id.0)?.is_some()
                && snapshot.get(keyspaces.sealed, &id.0)?.is_some();
            if twice {
                problems.push("it is stored twice, as open and as sealed".to_owned());
            }
            problems.extend(indexes.missing_entries(id.0, check_interrupt)?);
            let id = id.to_hex();
            found.add(
                problems
                    .into_iter()
                    .map(|p| format!("bucket {id}: {p}"))
                    .collect(),
            );
        }
        self.validate_series_index(keyspaces, options, &mut found, check_interrupt)?;
        self.validate_registry(keyspaces, &mut found, check_interrupt)?;
        self.validate_summaries(collection, &mut found, check_interrupt)?;
        indexes.check_entries(&mut found, check_interrupt)?;
        if found.invalid == 0 {
            found.miscount = self.miscount(collection, check_interrupt)?;
        }
        Ok(found)
    }

    /// Compares the summaries of sealed buckets with the buckets.
    fn validate_summaries(
        &self,
        collection: &Arc<Collection>,
        found: &mut Validation,
        check_interrupt: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        if let Some(summaries) = BucketKeyspaces::of(collection).and_then(|k| k.summaries) {
            let snapshot = self.engine.snapshot()?;
            let summaries = SummaryReader {
                snapshot: &*snapshot,
                keyspace: summaries,
            };
            for block in summaries.blocks()? {
                check_interrupt()?;
                if let Err(error) = block.and_then(|block| summaries.block(block)) {
                    found.note(error.message);
                }
            }
        }
        let scan = self
            .reader
            .scan_summarized(collection, BucketRange::default())?;
        for bucket in scan {
            check_interrupt()?;
            // An unreadable bucket was reported with the buckets.
            if let Ok(ScannedBucket::Summarized(bucket)) = bucket
                && let Ok(Some(difference)) = bucket.difference()
            {
                let id = bucket.id().to_hex();
                found.note(format!("the summary of bucket {id} has {difference}"));
            }
        }
        Ok(())
    }

    /// Compares the counters of measurements with the buckets, both in one snapshot; `None` if they agree.
    fn miscount(
        &self,
        collection: &Arc<Collection>,
        check_interrupt: &dyn Fn() -> Result<()>,
    ) -> Result<Option<Miscount>> {
        let snapshot = self.engine.snapshot()?;
        let found = self
            .reader
            .count_at(&*snapshot, collection, check_interrupt)?;
        self.counts.compare(&*snapshot, collection.uuid, found)
    }

    /// Corrects the counters of a collection by what [`Self::validate`] found, beside writers.
    pub fn correct_count(&self, collection: &Collection, miscount: Miscount) -> Result<()> {
        if self.engine.is_read_only() {
            return Ok(());
        }
        self.counts.correct(collection.uuid, miscount)
    }

    /// False if the bucket has no entry in the series index, unless it was removed or changed since it was read.
    fn series_index_leads_to(
        &self,
        keyspaces: BucketKeyspaces,
        options: &TimeseriesOptions,
        bucket: &StoredBucket,
    ) -> Result<bool> {
        let ValueRef::DateTime(start) = bucket.min(&options.time_field) else {
            return Ok(true);
        };
        let id = bucket.id().0;
        let snapshot = self.engine.snapshot()?;
        let has_entry = |meta: &SeriesMeta, start| {
            let key = series_index::key(meta, start, id);
            Ok::<_, Error>(snapshot.get(keyspaces.series, &key)?.is_some())
        };
        if has_entry(&SeriesMeta::of(bucket.meta()), start)? {
            return Ok(true);
        }
        let now = bucket_parts::read_parts(&*snapshot, keyspaces, id, None)?;
        match now.series(id, &options.time_field) {
            Ok(Some((meta, start))) => has_entry(&meta, start),
            Ok(None) => Ok(true),
            Err(_) => Ok(false),
        }
    }

    /// False if the series of the bucket is not in a complete registry, unless the bucket was removed or changed since it was
    /// read.
    fn is_registered(
        &self,
        keyspaces: BucketKeyspaces,
        options: &TimeseriesOptions,
        bucket: &StoredBucket,
    ) -> Result<bool> {
        let Some(registry) = keyspaces.registry else {
            return Ok(true);
        };
        let snapshot = self.engine.snapshot()?;
        let has = |meta| Ok::<_, Error>(snapshot.get(registry, &registry::key(meta))?.is_some());
        if has(bucket.meta())? || !registry::is_complete(&*snapshot, registry)? {
            return Ok(true);
        }
        let now = bucket_parts::read_parts(&*snapshot, keyspaces, bucket.id().0, None)?;
        match now.opened_as(&options.time_field)? {
            Some((meta, _)) => has(meta.as_ref()),
            None => Ok(true),
        }
    }

    /// Reads every entry of the registry of series.
    fn validate_registry(
        &self,
        keyspaces: BucketKeyspaces,
        found: &mut Validation,
        check_interrupt: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        let Some(registry) = keyspaces.registry else {
            return Ok(());
        };
        let (mut from, end) = (registry::ALL.0.to_vec(), registry::ALL.1);
        loop {
            check_interrupt()?;
            let snapshot = self.engine.snapshot()?;
            let scan = snapshot.scan(registry, &from, Some(&end), Direction::Forward)?;
            let mut entries = 0;
            for item in scan.take(INDEX_CHUNK_ENTRIES) {
                let (key, _) = item?;
                entries += 1;
                from = [&key[..], &[0]].concat();
                if let Err(error) = registry::meta_of(&key) {
                    found.note(error.message);
                }
            }
            if entries < INDEX_CHUNK_ENTRIES {
                return Ok(());
            }
        }
    }

    /// Checks that every entry of the series index leads to a bucket of that series and start.
    fn validate_series_index(
        &self,
        keyspaces: BucketKeyspaces,
        options: &TimeseriesOptions,
        found: &mut Validation,
        check_interrupt: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        let mut from = Vec::new();
        loop {
            check_interrupt()?;
            let snapshot = self.engine.snapshot()?;
            let scan = snapshot.scan(keyspaces.series, &from, None, Direction::Forward)?;
            let mut entries = 0;
            for item in scan.take(INDEX_CHUNK_ENTRIES) {
                let (key, _) = item?;
                entries += 1;
                from = [&key[..], &[0]].concat();
                let Some(id) = key.last_chunk::<12>() else {
                    found.note("the series index has an entry that is too short".to_owned());
                    continue;
                };
                // An unreadable bucket was reported with the buckets.
                let Ok(parts) = bucket_parts::read_parts(&*snapshot, keyspaces, *id, None) else {
                    continue;
                };
                let Ok(series) = parts.series(*id, &options.time_field) else {
                    continue;
                };
                let leads_here = series.is_some_and(|(meta, start)| {
                    series_index::key(&meta, start, *id)[..] == key[..]
                });
                if !leads_here {
                    found.note(format!(
                        "the series index has an entry for bucket {} that is not so",
                        nilometer_bson::ObjectId(*id).to_hex()
                    ));
                }
            }
            if entries < INDEX_CHUNK_ENTRIES {
                return Ok(());
            }
        }
    }
}

fn problems_of(
    bucket: &StoredBucket,
    options: &TimeseriesOptions,
    collation: &Collation,
) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for (at, name) in bucket.shown() {
        let Some(column) = bucket.column_at(at)? else {
            continue;
        };
        let (mut min, mut max) = (Extreme::none(), Extreme::none());
        for value in column.iter() {
            min.update(value, Side::Min, collation);
            max.update(value, Side::Max, collation);
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
    for side in ["min", "max"] {
        let control = bucket.control_bounds(side);
        for element in control.into_iter().flatten() {
            let known = bucket
                .columns()
                .iter()
                .any(|name| **name == *element.name());
            if !known {
                let name = element.name();
                problems.push(format!(
                    "control.{side}.{name} bounds a field that is not there"
                ));
            }
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
