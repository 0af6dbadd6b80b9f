//! The second half of an insert: groups become tail entries, the entries one engine batch; the batch is committed, and the bucket
//! catalog learns the result.
//!
//! ```text
//! groups ─► stage ─► StagedInsert ─► commit ─► finish ─► maintenance queue
//! ```
//!
//! A staged entry is invisible to readers, and blocks operations that need its bucket exclusively. So a [`StagedInsert`] must be
//! finished, whether or not it was committed.

use std::sync::Arc;

use nilometer_bson::Document;
use nilometer_storage::{Durability, Engine, WriteBatch};

use super::group_by_series::{GroupedMeasurements, SeriesGroup};
use super::statement::InsertStatement;
use crate::catalog::Collection;
use crate::error::Result;
use crate::insertion::{BatchRecord, InsertOutcome};
use crate::timeseries::Timeseries;
use crate::timeseries::bucket_catalog::{BucketStorage, FieldLayout, InFlightEntry, Measurement};
use crate::timeseries::format::keyspaces::BucketKeyspaces;
use crate::timeseries::format::registry::SeriesRegistrar;
use crate::timeseries::format::series_index;
use crate::timeseries::format::series_key::SeriesMeta;
use crate::timeseries::index::maintenance::{IndexMaintainer, supports_reopening};
use crate::timeseries::measurement_counts::CountedChange;
use crate::timeseries::scan::bucket_parts;

/// Tail entries of one command, not committed yet.
#[must_use = "what is staged must be finished"]
pub(in crate::timeseries) struct StagedInsert {
    collection: Arc<Collection>,
    batch: WriteBatch,
    in_flight: Vec<InFlightEntry>,
    outcome: InsertOutcome,
    /// The counter that the batch changes.
    count: Option<CountedChange>,
    /// Why the entries must not be committed.
    pub(super) ready: Result<()>,
}

/// Makes tail entries of grouped measurements.
pub(super) fn stage(
    insert: &InsertStatement<'_>,
    indexes: &IndexMaintainer<'_>,
    grouped: GroupedMeasurements<'_>,
) -> StagedInsert {
    insert.timeseries.maintenance.register(insert.collection);
    let mut staged = StagedInsert {
        collection: insert.collection.clone(),
        batch: WriteBatch::new(),
        in_flight: Vec::new(),
        outcome: grouped.outcome,
        count: None,
        ready: Ok(()),
    };
    let groups = grouped.groups.iter();
    let measurements: usize = groups.map(|group| group.measurements.len()).sum();
    staged.ready = staged
        .add_groups(insert, indexes, grouped.groups, grouped.layout)
        .and_then(|()| indexes.mark_multikey(insert.catalog))
        .and_then(|()| staged.count_measurements(insert, measurements));
    staged
}

impl StagedInsert {
    /// True if there is nothing to commit.
    pub(in crate::timeseries) fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }

    /// Adds to the batch what the command stores beside its measurements.
    pub(super) fn record(&mut self, record: Option<&dyn BatchRecord>) {
        let Some(record) = record.filter(|_| !self.batch.is_empty()) else {
            return;
        };
        let mut refused = self.outcome.errors.iter().map(|error| error.index);
        let mut next_refused = refused.next();
        let considered = self.outcome.inserted + self.outcome.errors.len();
        for index in 0..considered {
            if next_refused == Some(index) {
                next_refused = refused.next();
            } else {
                record.inserted(index);
            }
        }
        record.add_to(&mut self.batch);
    }

    fn count_measurements(&mut self, insert: &InsertStatement<'_>, added: usize) -> Result<()> {
        let added = i64::try_from(added).unwrap_or(i64::MAX);
        let counts = &insert.timeseries.counts;
        self.count = counts.add(&mut self.batch, self.collection.uuid, added)?;
        Ok(())
    }

    fn add_groups(
        &mut self,
        insert: &InsertStatement<'_>,
        indexes: &IndexMaintainer<'_>,
        groups: Vec<SeriesGroup<'_>>,
        layout: FieldLayout,
    ) -> Result<()> {
        let registry = BucketKeyspaces::of(insert.collection).and_then(|known| known.registry);
        let storage = CollectionBuckets {
            timeseries: insert.timeseries,
            collection: insert.collection,
            indexes,
            registrar: SeriesRegistrar::new(&*insert.timeseries.engine, registry),
        };
        let bucket_catalog = &insert.timeseries.bucket_catalog;
        let notes = insert.catalog.change_notes(insert.collection);
        let mut writer = bucket_catalog.writer(insert.collection, &storage, layout, notes)?;
        let added = groups.into_iter().try_for_each(|mut group| {
            // In order of time a batch fills one bucket after the other, however it was shuffled.
            let by_time = |measurement: &Measurement<'_>| measurement.time_ms;
            if !group.measurements.is_sorted_by_key(by_time) {
                group.measurements.sort_by_key(by_time);
            }
            // Made series by series: ids that count up within a bucket take almost no space.
            for measurement in &mut group.measurements {
                measurement.generated_id = measurement.lacks_id.then(insert.options.new_id);
            }
            if let Some(rollups) = indexes.rollups() {
                let times = group
                    .measurements
                    .iter()
                    .map(|measurement| measurement.time_ms);
                rollups.mark_times(&mut writer.batch, group.key.meta.value(), times)?;
            }
            writer.add(&group.key, &group.measurements)
        });
        writer.store_names();
        writer.notes.add_to(&mut writer.batch);
        self.batch = writer.batch;
        self.in_flight = writer.in_flight;
        added
    }

    /// Makes the entries visible, and durable as asked; fails if they could not all be staged.
    pub(in crate::timeseries) fn commit(
        &mut self,
        engine: &dyn Engine,
        durability: Durability,
    ) -> Result<()> {
        let batch = self.take_batch()?;
        if !batch.is_empty() {
            engine.commit(batch, durability)?;
        }
        self.committed();
        Ok(())
    }

    /// Returns the batch to commit; fails if not all entries could be staged.
    pub(in crate::timeseries) fn take_batch(&mut self) -> Result<WriteBatch> {
        self.ready.clone()?;
        Ok(std::mem::take(&mut self.batch))
    }

    /// Ends the use of the counter after the batch was committed.
    pub(in crate::timeseries) fn committed(&mut self) {
        if let Some(count) = self.count.take() {
            count.committed();
        }
    }

    /// Reports the end of the commit to the bucket catalog, and queues the maintenance that follows from it.
    pub(in crate::timeseries) fn finish(
        self,
        timeseries: &Timeseries,
        committed: Result<()>,
    ) -> Result<InsertOutcome> {
        let uuid = self.collection.uuid;
        let bucket_catalog = &timeseries.bucket_catalog;
        let tasks = bucket_catalog.finish(uuid, self.in_flight, committed.is_ok());
        timeseries.maintenance.add_all(tasks, self.outcome.inserted);
        committed.map(|()| self.outcome)
    }
}

/// The stored buckets of one collection, as the bucket catalog asks for them.
struct CollectionBuckets<'t> {
    timeseries: &'t Timeseries,
    collection: &'t Collection,
    indexes: &'t IndexMaintainer<'t>,
    registrar: SeriesRegistrar<'t>,
}

impl BucketStorage for CollectionBuckets<'_> {
    fn measure(&self, id: [u8; 12]) -> Result<usize> {
        bucket_parts::document_bytes(&*self.timeseries.engine, self.collection, id)
    }

    fn may_query(&self) -> bool {
        self.timeseries.reopens_buckets && supports_reopening(self.collection)
    }

    fn find(&self, meta: &SeriesMeta, within: (i64, i64)) -> Result<Vec<[u8; 12]>> {
        let Some(keyspaces) = BucketKeyspaces::of(self.collection) else {
            return Ok(Vec::new());
        };
        let snapshot = self.timeseries.engine.snapshot()?;
        series_index::starting_within(&*snapshot, keyspaces.series, meta, within)
    }

    fn load(&self, id: [u8; 12]) -> Result<Option<(Document, u32)>> {
        bucket_parts::load(&*self.timeseries.engine, self.collection, id)
    }

    fn opened(
        &self,
        batch: &mut WriteBatch,
        meta: &SeriesMeta,
        start_ms: i64,
        id: [u8; 12],
    ) -> Result<()> {
        self.registrar.register(batch, meta.value())?;
        self.indexes
            .bucket_opened(batch, meta.value(), start_ms, id)
    }
}
