//! Changes of stored measurements and buckets: updates and deletes, raw writes, expiry.
//!
//! ```text
//! update, delete ─► measurements: by filter ─┐
//! by metadata ────► series: whole buckets ───┤
//! system.buckets ─► raw ─────────────────────┼─► bucket_changes: claim ─► change ─► one engine batch
//! oplog ──────────► replay ──────────────────┤
//! TTL ────────────► expire ──────────────────┘
//! ```
//!
//! Everything but an insert changes buckets through [`bucket_changes`]. Statements on measurements of one collection run one
//! at a time ([`write_lock`]); inserts run beside them.
//!
//! The caller says what an update makes of a measurement ([`MeasurementAction`]). Buckets marked as closed are skipped,
//! unless the statement asks for them.

mod assemble;
pub(crate) mod bucket_changes;
mod expire;
mod measurements;
pub(super) mod merge;
mod pack;
pub(crate) mod raw;
mod replay;
mod search;
mod series;
mod unregister;
mod write_lock;

use std::sync::Arc;

use nilometer_bson::{DocRef, Document, DocumentBuilder, ObjectId, Value};

use super::Timeseries;
use super::bucket_catalog::field_scanner::examine;
use super::cache::opened_bucket::StoredBucket;
use super::format::bucket_document::Layout;
use super::format::keyspaces::BucketKeyspaces;
use super::format::series_key::SeriesMeta;
use super::scan::bucket_parts;
use super::scan::{BucketRange, StoredBuckets};
use crate::catalog::{Catalog, Collection, TimeseriesOptions};
use crate::error::{Error, Result};
use crate::eval::EvalContext;
use crate::eval::matcher::MatchExpression;
use crate::eval::variables::SharedCollator;
use crate::insertion::{BatchRecord, InsertOptions, InsertOutcome};
use bucket_changes::BucketChanges;
use measurements::ModifyRun;
use raw::{BucketChange, RawChangeOptions};
pub use replay::ReplayedBucket;
use search::BucketSearch;
pub use write_lock::WriteLockGuard;
pub(crate) use write_lock::WriteLocks;

/// Buckets changed in one engine batch at most, so that other writers do not wait long.
const CHANGE_BATCH_BUCKETS_MAX: usize = 64;

/// Bytes of documents in one engine batch, about.
const CHANGE_BATCH_BYTES_MAX: usize = 32 << 20;

/// Buckets read between two checks for an interrupt.
const BUCKETS_PER_INTERRUPT_CHECK: u64 = 64;

/// The measurements a statement selects.
#[derive(Clone, Copy)]
pub struct MeasurementSelection<'a> {
    /// The filter they match.
    pub filter: &'a MatchExpression,
    /// True for all of them, false for any one.
    pub multi: bool,
    /// True to read the latest buckets first.
    pub backward: bool,
    /// Time, variables, randomness.
    pub eval: EvalContext<'a>,
    /// How strings compare, if not by bytes.
    pub collator: Option<&'a SharedCollator>,
    /// Fails once the statement is interrupted.
    pub check_interrupt: &'a dyn Fn() -> Result<()>,
    /// Change nothing: for explain.
    pub dry: bool,
    /// Finds the buckets to read; if `None`, all between two ids are read.
    pub find: Option<&'a FindBuckets<'a>>,
    /// Also read buckets that are marked as closed.
    pub closed_too: bool,
    /// What is stored beside the change of the one measurement, if the statement may be repeated.
    pub record: Option<&'a dyn BatchRecord>,
}

/// Finds the buckets of a range that may hold a match. Called under the write lock, so that it sees the changes of earlier
/// statements.
pub type FindBuckets<'f> = dyn Fn(BucketRange) -> Result<StoredBuckets> + 'f;

/// The change of a measurement.
#[derive(Debug)]
pub enum MeasurementChange {
    /// None.
    Keep,
    /// Replace it by this one.
    Replace(Document),
    /// Remove it.
    Remove,
}

/// Decides the change of a measurement.
pub type DecideMeasurement<'d> = dyn FnMut(&Document) -> Result<MeasurementChange> + 'd;

/// Decides the change of a bucket, given a document with its metadata, and the number of its measurements.
pub type DecideSeries<'d> = dyn FnMut(&Document, u64) -> Result<SeriesChange> + 'd;

/// What a statement does with the measurements it selects.
pub enum MeasurementAction<'d> {
    /// Removes them.
    Remove,
    /// Decides for each.
    Decide(&'d mut DecideMeasurement<'d>),
}

/// The change of all measurements of a bucket.
#[derive(Debug)]
pub enum SeriesChange {
    /// None.
    Keep,
    /// Set their metadata; missing for none.
    Meta(Value),
    /// Remove them.
    Remove,
}

/// Counts of a statement.
#[derive(Clone, Copy, Debug, Default)]
pub struct ModifyStats {
    /// Measurements that were selected.
    pub matched: u64,
    /// Buckets whose measurements were read.
    pub unpacked: u64,
}

/// A filter on measurements, split as explain shows it.
#[derive(Clone, Debug)]
pub struct ExplainedSelection {
    /// The part evaluated on buckets.
    pub bucket_filter: Document,
    /// The part evaluated on measurements.
    pub residual_filter: Document,
    /// The ids between which buckets are read; `None` if no bucket can hold a match.
    pub range: Option<BucketRange>,
}

impl Timeseries {
    /// Takes the write lock of a collection: waits for the statements that hold it.
    pub fn lock_writes(
        &self,
        collection: &Collection,
        check_interrupt: &dyn Fn() -> Result<()>,
    ) -> Result<WriteLockGuard<'_>> {
        self.write_locks.lock(collection, check_interrupt)
    }

    /// Changes or removes measurements. Does not wait for the disk.
    pub fn modify_measurements(
        self: &Arc<Self>,
        _lock: &WriteLockGuard<'_>,
        catalog: &Catalog,
        collection: &Arc<Collection>,
        selection: MeasurementSelection<'_>,
        action: MeasurementAction<'_>,
    ) -> Result<ModifyStats> {
        ModifyRun::new(self, catalog, collection, selection, action)?.run()
    }

    /// Changes or removes whole buckets by their metadata alone. Does not wait for the disk.
    pub fn modify_series(
        self: &Arc<Self>,
        _lock: &WriteLockGuard<'_>,
        catalog: &Catalog,
        collection: &Arc<Collection>,
        selection: MeasurementSelection<'_>,
        decide: &mut DecideSeries<'_>,
    ) -> Result<()> {
        series::modify(self, catalog, collection, &selection, decide)
    }

    /// True if the filter depends on metadata alone, or on nothing.
    pub fn is_by_series(
        &self,
        collection: &Collection,
        selection: &MeasurementSelection<'_>,
    ) -> Result<bool> {
        Ok(BucketSearch::new(collection, options_of(collection)?, selection)?.is_by_series())
    }

    /// Shows how a statement's filter is split.
    pub fn explain_selection(
        &self,
        collection: &Collection,
        selection: &MeasurementSelection<'_>,
    ) -> Result<ExplainedSelection> {
        let search = BucketSearch::new(collection, options_of(collection)?, selection)?;
        Ok(ExplainedSelection {
            bucket_filter: search.bucket_filter(),
            residual_filter: search.residual.to_document(),
            range: search.range(),
        })
    }

    /// Returns a measurement as it is stored: its time must be a date, its metadata is normalised.
    pub fn stored_form(&self, collection: &Collection, document: Document) -> Result<Document> {
        let (meta, _) = examine(document.as_ref(), options_of(collection)?)?;
        let Some(meta) = meta else {
            return Ok(document);
        };
        let normal = SeriesMeta::of_element(Some(meta));
        let mut out = DocumentBuilder::with_capacity(document.as_bytes().len());
        for element in document.iter() {
            if element.name_bytes() == meta.name_bytes() {
                out.append_ref(element.name(), normal.value());
            } else {
                out.append_element(element);
            }
        }
        Ok(out.finish())
    }

    /// Inserts bucket documents. Those it accepts are stored together; `Err` means none was stored.
    pub fn insert_buckets<'a>(
        &self,
        catalog: &Catalog,
        collection: &Arc<Collection>,
        documents: impl Iterator<Item = DocRef<'a>>,
        options: InsertOptions<'_>,
    ) -> Result<InsertOutcome> {
        raw::insert_buckets(self, catalog, collection, documents, options)
    }

    /// Changes the buckets with these ids as `decide` says, which sees each when no other statement can change it. Changes
    /// decided before an error are made.
    pub fn modify_buckets(
        &self,
        catalog: &Catalog,
        collection: &Arc<Collection>,
        ids: &[ObjectId],
        how: RawChangeOptions<'_>,
        decide: &mut dyn FnMut(&Document) -> Result<BucketChange>,
    ) -> Result<()> {
        raw::modify_buckets(self, catalog, collection, ids, how, decide)
    }

    /// Applies an entry of an oplog that adds measurements to a bucket, which may have them.
    pub fn replay_bucket(
        &self,
        catalog: &Catalog,
        collection: &Arc<Collection>,
        bucket: ReplayedBucket<'_>,
    ) -> Result<()> {
        replay::replay(self, catalog, collection, bucket)
    }

    /// Removes the buckets that hold only times before `cutoff_ms` less the collection's span. Returns their number.
    pub fn expire(
        self: &Arc<Self>,
        catalog: &Catalog,
        collection: &Arc<Collection>,
        cutoff_ms: i64,
    ) -> Result<usize> {
        expire::expire(self, catalog, collection, cutoff_ms)
    }

    /// Removes the buckets expired at `now_ms` under indexes on the time, which select buckets by their metadata. Returns
    /// their number.
    pub fn expire_by_indexes(
        &self,
        catalog: &Catalog,
        collection: &Arc<Collection>,
        now_ms: i64,
        check_interrupt: &dyn Fn() -> Result<()>,
    ) -> Result<usize> {
        expire::expire_by_indexes(self, catalog, collection, now_ms, check_interrupt)
    }

    /// Returns the document of a bucket with its first rows, in the order in which they were staged: entries in flight are waited
    /// for. `None` if it is gone.
    pub(crate) fn settled_document(
        &self,
        collection: &Collection,
        bucket: &StoredBucket,
    ) -> Result<Option<Document>> {
        let options = options_of(collection)?;
        let Some(keyspaces) = BucketKeyspaces::of(collection) else {
            return Ok(None);
        };
        let (id, meta) = (bucket.id().0, SeriesMeta::of(bucket.meta()));
        let catalog = &self.bucket_catalog;
        let snapshot = catalog.while_settled(collection.uuid, meta, id, || self.engine.snapshot());
        let parts = bucket_parts::read_parts(&*snapshot?, keyspaces, id, None)?;
        parts.document(id, &Layout::of(collection, options)?)
    }

    /// Begins to change buckets of a collection. Waits for other changes.
    pub(crate) fn change_buckets<'t>(
        &'t self,
        collection: &'t Arc<Collection>,
    ) -> Result<BucketChanges<'t>> {
        BucketChanges::begin(self, collection)
    }
}

fn options_of(collection: &Collection) -> Result<&TimeseriesOptions> {
    let options = collection.timeseries.as_ref();
    options.ok_or_else(|| Error::bad_value("not a time-series collection"))
}

/// Returns the buckets to read for a selection.
fn buckets_of(
    timeseries: &Arc<Timeseries>,
    collection: &Arc<Collection>,
    selection: &MeasurementSelection<'_>,
    range: BucketRange,
) -> Result<StoredBuckets> {
    match selection.find {
        Some(find) => find(range),
        None => timeseries.reader.scan(collection, range),
    }
}
