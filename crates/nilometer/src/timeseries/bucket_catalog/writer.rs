//! Writes the measurements of one command into the open buckets of a collection.
//!
//! ```text
//! measurement ─► open bucket of its series: space? types? ── no ─► close or archive it,
//!                       │ yes                                      reopen one or open another
//!                       ▼
//!                     stage ── bucket full, or end of the series ─► tail entry in the command's batch
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nilometer_storage::{KeyspaceId, WriteBatch};

use super::admission::{AdmissionCheck, BucketStorage, Space};
use super::bucket::{LoggedHeader, Measurement, MemoryUse, OpenBucket};
use super::field_layout::FieldLayout;
use super::reopening;
use super::rollover::Rollover;
use super::series::{Series, SeriesKey};
use super::staging::Stage;
use super::stats::increment;
use super::{BucketCatalog, InFlightEntry};
use crate::catalog::{Collection, Storage};
use crate::change_entry::ChangeNotes;
use crate::error::{Error, Result};
use crate::timeseries::format::series_index;
use crate::timeseries::format::series_key::SeriesMeta;

/// Assigns measurements to buckets, and puts their tail entries into a batch.
pub(crate) struct BucketWriter<'c, 'a> {
    check: AdmissionCheck<'c>,
    tail: KeyspaceId,
    index: KeyspaceId,
    stage: Stage<'a>,
    /// The batch to commit.
    pub(crate) batch: WriteBatch,
    /// What the change log says about it.
    pub(crate) notes: ChangeNotes,
    /// Its entries. They must be finished, committed or not ([`BucketCatalog::finish`]).
    pub(crate) in_flight: Vec<InFlightEntry>,
}

impl BucketCatalog {
    /// Returns a writer for one command on a time-series collection.
    pub(crate) fn writer<'c, 'a>(
        &'c self,
        collection: &'c Collection,
        storage: &'c dyn BucketStorage,
        layout: FieldLayout,
        notes: ChangeNotes,
    ) -> Result<BucketWriter<'c, 'a>> {
        let (Some(options), Storage::Buckets { tail, series, .. }) =
            (&collection.timeseries, collection.storage)
        else {
            return Err(Error::bad_value("not a time-series collection"));
        };
        let check = AdmissionCheck {
            catalog: self,
            collection: collection.uuid,
            limits: self.limits,
            bytes_min: self.bytes_min.load(Ordering::Relaxed),
            options,
            storage,
            counters: self.counters(collection.uuid),
        };
        Ok(BucketWriter {
            check,
            tail,
            index: series,
            stage: Stage::new(layout),
            batch: WriteBatch::new(),
            notes,
            in_flight: Vec::new(),
        })
    }
}

impl<'a> BucketWriter<'_, 'a> {
    /// Stores the names it learned, for later commands.
    pub(crate) fn store_names(&self) {
        let names = &self.stage.layout.names;
        let (catalog, collection) = (self.check.catalog, self.check.collection);
        catalog.store_names(collection, |known| &mut known.fields, names);
    }

    /// Puts the tail entries of one series' measurements into the batch, in the order given.
    pub(crate) fn add(
        &mut self,
        key: &Arc<SeriesKey>,
        measurements: &[Measurement<'a>],
    ) -> Result<()> {
        let mut stripe = self.check.catalog.stripe(key).lock();
        let stripe = &mut *stripe;
        let mut hint = None;
        let series = match stripe.series.get_mut(key) {
            Some(series) => series,
            None => {
                hint = stripe.hints.take(key.hash());
                stripe.series.entry(key.clone()).or_default()
            }
        };
        let mut current = series.open.take();
        let added = self.add_all(key, series, &mut current, hint, measurements);
        if let Some(bucket) = current {
            if added.is_ok() {
                series.open = Some(bucket);
            } else {
                // It counts measurements that are in no entry.
                series.discard(*bucket);
            }
        }
        if added.is_err() {
            self.stage.clear();
        }
        added
    }

    /// Adds measurements to `current` and to buckets that follow it; the first of these may be the evicted bucket `hint`.
    /// On return every bucket with entries in flight is in `current` or in the series.
    fn add_all(
        &mut self,
        key: &Arc<SeriesKey>,
        series: &mut Series,
        current: &mut Option<Box<OpenBucket>>,
        mut hint: Option<[u8; 12]>,
        measurements: &[Measurement<'a>],
    ) -> Result<()> {
        for measurement in measurements {
            let had_open = current.is_some();
            if let Some(bucket) = current {
                let Some(reason) = self.push(bucket, measurement)? else {
                    continue;
                };
                self.flush(key, bucket)?;
                self.check.counters.count_rollover(reason);
            }
            if let Some(bucket) = current.take() {
                let backward = measurement.time_ms < bucket.start_ms;
                if backward && !self.check.is_frozen(bucket.id) {
                    series.archive(bucket, key.meta.len());
                } else {
                    series.close(*bucket);
                }
            }
            let (meta, check) = (&key.meta, &self.check);
            let hint = hint.take();
            let mut bucket = match reopening::reopen(series, meta, measurement, hint, check)? {
                Some(reopened) => reopened,
                None => {
                    let first = i64::from(!had_open);
                    increment(&self.check.counters.opened_due_to_metadata, first);
                    Box::new(self.open(measurement.time_ms, meta.len()))
                }
            };
            self.stage
                .push(&mut bucket, self.check.options, measurement);
            *current = Some(bucket);
        }
        match current {
            Some(bucket) => self.flush(key, bucket),
            None => Ok(()),
        }
    }

    /// Adds a measurement to a bucket; returns the reason if the bucket does not take it.
    fn push(
        &mut self,
        bucket: &mut OpenBucket,
        measurement: &Measurement<'a>,
    ) -> Result<Option<Rollover>> {
        let space = self.check.space(bucket, measurement, self.stage.rows())?;
        if let Space::Exhausted(reason) = space {
            return Ok(Some(reason));
        }
        // The schema is checked even for a large measurement.
        if !self.stage.push(bucket, self.check.options, measurement) {
            #[cfg(test)]
            cov_mark::hit!(rollover_by_schema_change);
            return Ok(Some(Rollover::SchemaChange));
        }
        self.check.count_space(bucket, space);
        Ok(None)
    }

    fn open(&mut self, time_ms: i64, meta_bytes: usize) -> OpenBucket {
        let catalog = self.check.catalog;
        let suffix = catalog.next_suffix.fetch_add(1, Ordering::Relaxed);
        let memory = MemoryUse::new(catalog.usage.clone());
        let (suffix, options) = (suffix.to_be_bytes(), self.check.options);
        let mut bucket = self
            .stage
            .open(suffix, options, time_ms, meta_bytes, memory);
        bucket.era = catalog.era();
        bucket
    }

    /// Turns the rows staged for `bucket` into a tail entry, if there are any.
    fn flush(&mut self, key: &Arc<SeriesKey>, bucket: &mut OpenBucket) -> Result<()> {
        if self.stage.rows() == 0 {
            return Ok(());
        }
        let meta = &key.meta;
        let (entry_key, value, mut entry) = self.stage.take_entry(bucket, meta)?;
        if entry.with_header {
            let (start_ms, id) = (bucket.start_ms, bucket.id);
            let found_by = series_index::key(meta, start_ms, id);
            self.batch.put(self.index, found_by, Vec::new());
            let storage = self.check.storage;
            storage.opened(&mut self.batch, meta, start_ms, id)?;
        }
        if self.notes.are_kept() {
            entry.logged = log(&mut self.notes, bucket, meta);
            let before = bucket.count.saturating_sub(entry.rows);
            self.notes.measurements(bucket.id, before, &value);
        }
        self.batch.put(self.tail, entry_key, value);
        self.in_flight.push(InFlightEntry {
            key: key.clone(),
            entry,
        });
        Ok(())
    }
}

/// Notes the header of a bucket, unless the change log has it with all columns.
fn log(notes: &mut ChangeNotes, bucket: &OpenBucket, meta: &SeriesMeta) -> Option<LoggedHeader> {
    let wanted = LoggedHeader {
        part: notes.part(),
        columns: bucket.columns.len(),
    };
    if bucket.logged >= wanted {
        return None;
    }
    let columns = bucket.columns.iter().map(|column| &*column.name);
    notes.header(bucket.id, (bucket.start_ms, meta.value()), columns);
    Some(wanted)
}
