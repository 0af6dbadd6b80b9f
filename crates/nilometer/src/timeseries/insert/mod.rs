//! Inserting measurements through a time-series collection.
//!
//! 1. Each document is looked at once: its time must be a date, its meta value names its series.
//! 2. Documents are grouped by series ([`self::group_by_series`]), and within a series in order of time.
//! 3. The bucket catalog turns each group into tail entries ([`super::bucket_catalog`]).
//! 4. One engine batch holds all entries of the command; when it is durable the command is answered.
//!
//! Either all accepted documents of the command are stored, or none.

pub(crate) mod duplicates;
pub(crate) mod field_scanner;
pub(crate) mod group_by_series;
pub(crate) mod normalize_meta;

use std::sync::Arc;

use nilometer_bson::{DocRef, Document};
use nilometer_storage::{Durability, WriteBatch};

use self::group_by_series::{Group, Grouped};
use super::Timeseries;
use super::bucket_catalog::{BucketStorage, InFlight, Measurement, Plan};
use super::fold::BucketKeyspaces;
use super::format::series_index;
use super::format::series_key::SeriesMeta;
use super::index::maintenance::{Maintained, supports_reopening};
use crate::catalog::{Catalog, Collection};
use crate::error::Result;
use crate::insertion::{InsertOptions, InsertOutcome};

/// Times before this need the extended-range flag, in ms: 1970-01-01.
const ORDINARY_RANGE_MIN_MS: i64 = 0;

/// Times after this need the extended-range flag, in ms: 2^31 - 1 seconds, in 2038.
const ORDINARY_RANGE_MAX_MS: i64 = i32::MAX as i64 * 1000;

/// True for times whose seconds a bucket id can say and order.
pub(crate) fn in_ordinary_range(time_ms: i64) -> bool {
    (ORDINARY_RANGE_MIN_MS..=ORDINARY_RANGE_MAX_MS).contains(&time_ms)
}

/// The buckets of one collection as the catalog asks for them.
struct Stored<'t> {
    timeseries: &'t Timeseries,
    collection: &'t Collection,
    indexes: &'t Maintained<'t>,
}

impl BucketStorage for Stored<'_> {
    fn measure(&self, id: [u8; 12]) -> Result<usize> {
        self.timeseries.measure(self.collection, id)
    }

    fn may_query(&self) -> bool {
        supports_reopening(self.collection)
    }

    fn find(&self, meta: &SeriesMeta, within: (i64, i64)) -> Result<Vec<[u8; 12]>> {
        let Some(keyspaces) = BucketKeyspaces::of(self.collection) else {
            return Ok(Vec::new());
        };
        let snapshot = self.timeseries.engine.snapshot()?;
        series_index::starting_within(&*snapshot, keyspaces.series, meta, within)
    }

    fn load(&self, id: [u8; 12]) -> Result<Option<(Document, u32)>> {
        self.timeseries.load(self.collection, id)
    }

    fn opened(
        &self,
        batch: &mut WriteBatch,
        meta: &SeriesMeta,
        start_ms: i64,
        id: [u8; 12],
    ) -> Result<()> {
        self.indexes
            .bucket_opened(batch, meta.value(), start_ms, id)
    }
}

/// An insert between its steps: bucket entries that nobody sees yet, and that hold up whoever wants
/// one of the buckets for himself. It must be finished.
#[must_use = "what is staged must be finished"]
pub(super) struct StagedInsert {
    collection: Arc<Collection>,
    batch: WriteBatch,
    in_flight: Vec<InFlight>,
    outcome: InsertOutcome,
}

impl StagedInsert {
    /// True if there is nothing to commit.
    pub(super) fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }
}

impl Timeseries {
    /// Inserts measurements. Those it accepts are stored together; `Err` means none was stored. Where
    /// some take the place of others those follow behind.
    pub fn insert<'a>(
        self: &Arc<Self>,
        catalog: &Catalog,
        collection: &Arc<Collection>,
        documents: impl Iterator<Item = DocRef<'a>>,
        options: InsertOptions<'_>,
    ) -> Result<InsertOutcome> {
        self.insert_in_turn(catalog, collection, documents, options, None)
    }

    /// Makes entries of grouped measurements.
    pub(super) fn stage_grouped(
        &self,
        catalog: &Catalog,
        collection: &Arc<Collection>,
        indexes: &Maintained<'_>,
        grouped: Grouped<'_>,
        options: InsertOptions<'_>,
    ) -> (StagedInsert, Result<()>) {
        self.remember(collection);
        let mut staged = StagedInsert {
            collection: collection.clone(),
            batch: WriteBatch::new(),
            in_flight: Vec::new(),
            outcome: grouped.outcome,
        };
        let ready = self
            .stage_groups(
                &mut staged,
                (grouped.groups, grouped.plan),
                indexes,
                options,
            )
            .and_then(|()| indexes.mark_multikey(catalog));
        (staged, ready)
    }

    fn stage_groups(
        &self,
        staged: &mut StagedInsert,
        (groups, plan): (Vec<Group<'_>>, Plan),
        indexes: &Maintained<'_>,
        options: InsertOptions<'_>,
    ) -> Result<()> {
        let storage = Stored {
            timeseries: self,
            collection: &staged.collection,
            indexes,
        };
        let catalog = &self.bucket_catalog;
        let mut writer = catalog.writer(&staged.collection, &storage, plan)?;
        let added = groups.into_iter().try_for_each(|mut group| {
            // In order of time a batch fills one bucket after the other, however it was shuffled.
            let by_time = |measurement: &Measurement<'_>| measurement.time_ms;
            if !group.measurements.is_sorted_by_key(by_time) {
                group.measurements.sort_by_key(by_time);
            }
            // Made series by series: ids that count up within a bucket take almost no space.
            for measurement in &mut group.measurements {
                measurement.generated_id = measurement.lacks_id.then(options.new_id);
            }
            writer.add(&group.key, &group.measurements)
        });
        writer.leave_names();
        staged.batch = writer.batch;
        staged.in_flight = writer.in_flight;
        added
    }

    /// The second step: makes the entries visible and durable.
    pub(super) fn commit_insert(
        &self,
        staged: &mut StagedInsert,
        durability: Durability,
    ) -> Result<()> {
        let batch = std::mem::take(&mut staged.batch);
        if !batch.is_empty() {
            self.engine.commit(batch, durability)?;
        }
        Ok(())
    }

    /// The last step: tells the catalog how it ended, and leaves the chores that follow from it.
    pub(super) fn finish_insert(
        &self,
        staged: StagedInsert,
        committed: Result<()>,
    ) -> Result<InsertOutcome> {
        let in_flight = staged.in_flight;
        let collection = staged.collection.uuid;
        let chores = self
            .bucket_catalog
            .finish(collection, in_flight, committed.is_ok());
        self.hand_over(chores);
        committed.map(|()| staged.outcome)
    }
}
