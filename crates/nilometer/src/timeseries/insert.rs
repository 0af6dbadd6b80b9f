//! Inserting measurements through a time-series collection.
//!
//! 1. Each document is looked at once: its time must be a date, its meta value names its series.
//! 2. Documents are grouped by series, and within a series in order of time.
//! 3. The bucket catalog turns each group into tail entries ([`super::bucket_catalog`]).
//! 4. One engine batch holds all entries of the command; when it is durable the command is answered.
//!
//! Either all accepted documents of the command are stored, or none.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use nilometer_bson::{DocRef, Document, Element, ValueRef, type_code};
use nilometer_storage::{Durability, WriteBatch};

use super::Timeseries;
use super::bucket_catalog::{
    BucketCatalog, BucketStorage, InFlight, Measurement, SeriesKey, SeriesMap,
};
use super::bucket_document::COLUMN_SUBTYPE;
use super::fold::BucketKeyspaces;
use super::index_maintenance::{Maintained, supports_reopening};
use super::measurements::Turn;
use super::meta::SeriesMeta;
use super::series_index;
use crate::catalog::{Catalog, Collection, Duplicates, TimeseriesOptions};
use crate::error::{Error, ErrorCode, Result};
use crate::insertion::{InsertOptions, InsertOutcome, WriteError};

/// The largest bucket document, in bytes: the largest BSON document.
const BUCKET_BYTES_MAX: usize = 16 << 20;

/// Times before this need the extended-range flag, in ms: 1970-01-01.
const ORDINARY_RANGE_MIN_MS: i64 = 0;

/// Times after this need the extended-range flag, in ms: 2^31 - 1 seconds, in 2038.
const ORDINARY_RANGE_MAX_MS: i64 = i32::MAX as i64 * 1000;

/// True for times whose seconds a bucket id can say and order.
pub(crate) fn in_ordinary_range(time_ms: i64) -> bool {
    (ORDINARY_RANGE_MIN_MS..=ORDINARY_RANGE_MAX_MS).contains(&time_ms)
}

/// The measurements of one series.
pub(super) struct Group<'a> {
    pub(super) key: Arc<SeriesKey>,
    /// Why an index does not take the metadata.
    refused: Option<Error>,
    pub(super) measurements: Vec<Measurement<'a>>,
}

/// Groups by series; the bytes of the metadata are looked up first, so that a series is found once.
struct Groups<'g, 'a> {
    catalog: &'g BucketCatalog,
    collection: [u8; 16],
    indexes: &'g Maintained<'g>,
    groups: Vec<Group<'a>>,
    /// By documents as they were sent.
    by_raw: HashMap<&'a [u8], usize, foldhash::fast::RandomState>,
    by_key: SeriesMap<usize>,
    without_meta: Option<usize>,
}

impl<'g, 'a> Groups<'g, 'a> {
    fn new(catalog: &'g BucketCatalog, collection: [u8; 16], indexes: &'g Maintained<'g>) -> Self {
        Self {
            catalog,
            collection,
            indexes,
            groups: Vec::new(),
            by_raw: HashMap::default(),
            by_key: SeriesMap::default(),
            without_meta: None,
        }
    }

    fn add(&mut self, meta: Option<Element<'a>>, measurement: Measurement<'a>) -> Result<()> {
        let at = match meta {
            Some(element) if element.type_code() == type_code::DOCUMENT => {
                match self.by_raw.get(element.value_bytes()) {
                    Some(&at) => at,
                    None => {
                        let key = self.key_of_document(element)?;
                        let at = self.find(key);
                        self.by_raw.insert(element.value_bytes(), at);
                        at
                    }
                }
            }
            Some(element) => {
                refuse_column(element)?;
                self.find(self.key(SeriesMeta::of_element(meta)))
            }
            None => match self.without_meta {
                Some(at) => at,
                None => {
                    let at = self.find(self.key(SeriesMeta::absent()));
                    *self.without_meta.insert(at)
                }
            },
        };
        if let Some(group) = self.groups.get_mut(at) {
            if let Some(error) = &group.refused {
                return Err(error.clone());
            }
            group.measurements.push(measurement);
        }
        Ok(())
    }

    fn key(&self, meta: SeriesMeta) -> Arc<SeriesKey> {
        self.catalog.series_key(self.collection, meta)
    }

    fn key_of_document(&self, meta: Element<'a>) -> Result<Arc<SeriesKey>> {
        let raw = meta.value_bytes();
        if let Some(known) = self.catalog.alias(self.collection, raw) {
            return Ok(known);
        }
        refuse_column(meta)?;
        let key = self.key(SeriesMeta::of_element(Some(meta)));
        self.catalog.remember_alias(raw, key.clone());
        Ok(key)
    }

    fn find(&mut self, key: Arc<SeriesKey>) -> usize {
        let next = self.groups.len();
        match self.by_key.get(&key) {
            Some(&at) => at,
            None => {
                self.by_key.insert(key.clone(), next);
                let refused = self.indexes.check_meta(key.meta.value()).err();
                self.groups.push(Group {
                    key,
                    refused,
                    measurements: Vec::new(),
                });
                next
            }
        }
    }
}

/// Looks at one document: its time, and the element that names its series.
pub(super) fn examine<'a>(
    document: DocRef<'a>,
    options: &TimeseriesOptions,
) -> Result<(Option<Element<'a>>, Measurement<'a>)> {
    let (meta, measurement) = examine_fields(document, options)?;
    meta.map_or(Ok(()), refuse_column)?;
    Ok((meta, measurement))
}

/// The same; what the metadata holds is left for a look at the series.
fn examine_fields<'a>(
    document: DocRef<'a>,
    options: &TimeseriesOptions,
) -> Result<(Option<Element<'a>>, Measurement<'a>)> {
    let (mut time, mut meta, mut has_id) = (None, None, false);
    for element in document {
        let name = element.name_bytes();
        if name == options.time_field.as_bytes() {
            time = time.or(Some(element));
        } else if options
            .meta_field
            .as_ref()
            .is_some_and(|m| m.as_bytes() == name)
        {
            meta = meta.or(Some(element));
            continue;
        } else if name == b"_id" {
            has_id = true;
        }
        refuse_column(element)?;
    }
    let Some(ValueRef::DateTime(time_ms)) = time.map(|element| element.value()) else {
        return Err(Error::bad_value(format!(
            "'{}' must be present and contain a valid BSON UTC datetime value",
            options.time_field
        )));
    };
    let meta_bytes = meta.map_or(0, |element| element.value_bytes().len());
    // In a bucket of its own each value stands in data, control.min and control.max.
    let bucket_bytes = (document.as_bytes().len() - meta_bytes) * 3 + meta_bytes;
    if bucket_bytes > BUCKET_BYTES_MAX {
        return Err(Error::new(
            ErrorCode::BSONObjectTooLarge,
            format!(
                "the measurement needs a bucket of {bucket_bytes} bytes; at most {BUCKET_BYTES_MAX} fit"
            ),
        ));
    }
    let measurement = Measurement {
        index: 0,
        time_ms,
        lacks_id: !has_id,
        generated_id: None,
        document,
    };
    Ok((meta, measurement))
}

/// Refuses a value with a compressed column anywhere in it: one cannot be compressed again.
fn refuse_column(element: Element<'_>) -> Result<()> {
    if holds_column(element) {
        return Err(Error::bad_value(
            "a measurement cannot hold binary data of subtype 7, which buckets are made of",
        ));
    }
    Ok(())
}

fn holds_column(element: Element<'_>) -> bool {
    // Most values need no decoding to be told apart.
    match element.type_code() {
        type_code::BINARY => matches!(
            element.value(),
            ValueRef::Binary { subtype, .. } if subtype == COLUMN_SUBTYPE
        ),
        type_code::DOCUMENT | type_code::ARRAY => match element.value() {
            ValueRef::Document(inner) => inner.iter().any(holds_column),
            ValueRef::Array(inner) => inner.as_document().iter().any(holds_column),
            _ => false,
        },
        _ => false,
    }
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

    fn find(&self, meta: &SeriesMeta, after_ms: i64, until_ms: i64) -> Result<Vec<[u8; 12]>> {
        let Some(keyspaces) = BucketKeyspaces::of(self.collection) else {
            return Ok(Vec::new());
        };
        let snapshot = self.timeseries.engine.snapshot()?;
        series_index::starting_within(&*snapshot, keyspaces.series, meta, after_ms, until_ms)
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

/// The documents of an insert by series, and what became of those that are none.
pub(super) struct Grouped<'a> {
    pub(super) groups: Vec<Group<'a>>,
    pub(super) outcome: InsertOutcome,
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

    /// The same for a statement that has its turn to change measurements.
    pub fn insert_in_turn<'a>(
        self: &Arc<Self>,
        catalog: &Catalog,
        collection: &Arc<Collection>,
        documents: impl Iterator<Item = DocRef<'a>>,
        options: InsertOptions<'_>,
        turn: Option<&Turn<'_>>,
    ) -> Result<InsertOutcome> {
        let rule = collection.duplicates.read();
        let rule = rule.unwrap_or_else(PoisonError::into_inner);
        if rule.answer != Duplicates::Keep {
            drop(rule);
            return self.insert_once(catalog, collection, documents, options, turn);
        }
        let indexes = Maintained::hold(collection)?;
        let (mut staged, ready) =
            self.stage_insert(catalog, collection, &indexes, documents, options)?;
        let committed = ready.and_then(|()| self.commit_insert(&mut staged, options.durability));
        // A chore that is done at the end holds the list itself.
        drop(indexes);
        drop(rule);
        self.finish_insert(staged, committed)
    }

    /// The first step: finds buckets for the measurements and makes entries of them. Whether they may
    /// be committed comes beside them; either way they must be finished, and `indexes` be held until
    /// they are committed.
    pub(super) fn stage_insert<'a>(
        &self,
        catalog: &Catalog,
        collection: &Arc<Collection>,
        indexes: &Maintained<'_>,
        documents: impl Iterator<Item = DocRef<'a>>,
        options: InsertOptions<'_>,
    ) -> Result<(StagedInsert, Result<()>)> {
        let grouped = self.group(catalog, collection, indexes, documents, options)?;
        Ok(self.stage_grouped(catalog, collection, indexes, grouped, options))
    }

    /// Looks at the documents and groups them by series.
    pub(super) fn group<'a>(
        &self,
        catalog: &Catalog,
        collection: &Arc<Collection>,
        indexes: &Maintained<'_>,
        documents: impl Iterator<Item = DocRef<'a>>,
        options: InsertOptions<'_>,
    ) -> Result<Grouped<'a>> {
        let Some(timeseries) = &collection.timeseries else {
            return Err(Error::bad_value("not a time-series collection"));
        };
        let mut outcome = InsertOutcome::default();
        let mut groups = Groups::new(&self.bucket_catalog, collection.uuid, indexes);
        let mut extended = false;
        for (index, document) in documents.enumerate() {
            let added = examine_fields(document, timeseries).and_then(|(meta, mut measurement)| {
                measurement.index = index;
                indexes.check_measurement(document)?;
                let time_ms = measurement.time_ms;
                groups.add(meta, measurement)?;
                Ok(time_ms)
            });
            match added {
                Ok(time_ms) => {
                    extended |= !in_ordinary_range(time_ms);
                    outcome.inserted += 1;
                }
                Err(error) => {
                    outcome.errors.push(WriteError { index, error });
                    if options.ordered {
                        break;
                    }
                }
            }
        }
        if extended {
            catalog.mark_extended_range(collection)?;
        }
        Ok(Grouped {
            groups: groups.groups,
            outcome,
        })
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
            .stage_groups(&mut staged, grouped.groups, indexes, options)
            .and_then(|()| indexes.mark_multikey(catalog));
        (staged, ready)
    }

    fn stage_groups(
        &self,
        staged: &mut StagedInsert,
        groups: Vec<Group<'_>>,
        indexes: &Maintained<'_>,
        options: InsertOptions<'_>,
    ) -> Result<()> {
        let storage = Stored {
            timeseries: self,
            collection: &staged.collection,
            indexes,
        };
        let mut writer = self.bucket_catalog.writer(&staged.collection, &storage)?;
        let added = groups.into_iter().try_for_each(|mut group| {
            // In order of time a batch fills one bucket after the other, however it was shuffled.
            group
                .measurements
                .sort_by_key(|measurement| measurement.time_ms);
            // Made series by series: ids that count up within a bucket take almost no space.
            for measurement in &mut group.measurements {
                measurement.generated_id = measurement.lacks_id.then(options.new_id);
            }
            writer.add(&group.key, &group.measurements)
        });
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
