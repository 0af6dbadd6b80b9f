//! Time-series collections: measurements are stored in buckets, column by column.
//!
//! ```text
//! insert ─► bucket_catalog ─► tail entries ─► fold ─► open bucket document ─► seal ─► sealed bucket
//!                                  └────────────────────┴──────── scan ────────┴──────────┘
//! ```
//!
//! In reading order:
//!
//! - [`insert`] groups measurements by series; [`bucket_catalog`] chooses a bucket for each and writes tail entries.
//! - [`mod@format`] describes the stored bytes; [`fold`] merges tails into bucket documents, and seals them.
//! - [`scan`] reads buckets by id or by index; [`cache`] keeps opened buckets; [`index`] maintains indexes over buckets.
//! - [`modify`] changes and removes stored measurements and buckets.
//! - [`transaction`] commits changes and inserts of several collections together.
//! - [`measurement_counts`] counts measurements without reading them.
//! - [`rewrite`] turns predicates on measurements into predicates on buckets; [`unpack`] reads a bucket document for a query.
//!
//! [`Timeseries`] owns the parts. Its methods stand in the `mod.rs` of the folder that does the work. Does not import queries
//! or commands.

mod insert;

mod bucket_catalog;
mod fold;
pub(crate) mod format;

pub(crate) mod cache;
pub mod index;
mod scan;

mod modify;

pub mod rewrite;
pub mod unpack;

mod measurement_counts;
mod metrics;
mod transaction;
mod validate;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use nilometer_storage::Engine;

pub use bucket_catalog::{
    BUCKET_CATALOG_BYTES_MAX, BucketCatalog, BucketCounters, BucketLimits, CatalogGauges,
};
pub use cache::opened_bucket::StoredBucket;
pub use cache::{ReadCache, ReadCacheBytes};
pub use index::build::BucketWalk;
pub use index::view::BucketView;
pub use metrics::TimeseriesMetrics;
pub use modify::raw::{BucketChange, RawChangeOptions};
pub use modify::{
    DecideMeasurement, DecideSeries, ExplainedSelection, FindBuckets, MeasurementAction,
    MeasurementChange, MeasurementSelection, ModifyStats, ReplayedBucket, SeriesChange,
    WriteLockGuard,
};
pub use scan::distinct_metas::MetaPage;
pub use scan::index_scan::{BucketCandidates, CANDIDATES_MAX, IndexStream};
pub use scan::summarized::ScannedBucket;
pub use scan::summarized::SummarizedBuckets;
pub use scan::summarized_bucket::SummarizedBucket;
pub use scan::summarized_list::SummarizedList;
pub use scan::summary_run::SummaryRun;
pub use scan::{BucketRange, BucketReader, StoredBuckets};
pub(crate) use transaction::{MeasurementChanges, TransactionCommit, check_insertable};

use crate::catalog::{Catalog, Collection};
use crate::error::Result;
use fold::queue::MaintenanceQueue;
use format::keyspaces::BucketKeyspaces;
use format::sealed::{Dictionaries, SAMPLES};
use measurement_counts::MeasurementCounts;

/// The time-series collections of one database.
pub struct Timeseries {
    engine: Arc<dyn Engine>,
    /// The open buckets.
    pub bucket_catalog: Arc<BucketCatalog>,
    /// Counts of changes other than inserts.
    pub metrics: TimeseriesMetrics,
    /// Headers and texts that the stored buckets of a collection share.
    dictionaries: Arc<Dictionaries>,
    /// The durable numbers of measurements.
    pub(crate) counts: MeasurementCounts,
    /// Folds and seals buckets behind the inserts.
    maintenance: MaintenanceQueue,
    /// Held by statements that change measurements.
    write_locks: modify::WriteLocks,
    /// Held by inserts that look for duplicates.
    pub(crate) series_locks: insert::duplicates::SeriesLocks,
    /// What readers of buckets keep in memory.
    pub cache: Arc<ReadCache>,
    /// Reads buckets.
    pub reader: Arc<BucketReader>,
    /// Inserts search stored buckets that take more measurements.
    reopens_buckets: bool,
}

impl Timeseries {
    /// Starts with no bucket open. `first_suffix` should be random: bucket ids count up from it.
    pub fn new(
        engine: Arc<dyn Engine>,
        catalog: Arc<Catalog>,
        limits: BucketLimits,
        first_suffix: u64,
    ) -> Result<Self> {
        let bucket_catalog = Arc::new(BucketCatalog::new(limits, first_suffix));
        let dictionaries = Arc::new(Dictionaries::open(catalog, SAMPLES)?);
        let maintenance =
            MaintenanceQueue::start(engine.clone(), bucket_catalog.clone(), dictionaries.clone());
        Ok(Self::with_maintenance(
            engine,
            bucket_catalog,
            dictionaries,
            maintenance,
        ))
    }

    fn with_maintenance(
        engine: Arc<dyn Engine>,
        bucket_catalog: Arc<BucketCatalog>,
        dictionaries: Arc<Dictionaries>,
        maintenance: MaintenanceQueue,
    ) -> Self {
        let cache = Arc::new(ReadCache::new(maintenance.prefetch_queue()));
        let counts = MeasurementCounts::new(engine.clone(), dictionaries.catalog().clone());
        Self {
            counts,
            dictionaries,
            reader: Arc::new(BucketReader::new(engine.clone(), cache.clone())),
            cache,
            engine,
            bucket_catalog,
            metrics: TimeseriesMetrics::default(),
            maintenance,
            write_locks: modify::WriteLocks::default(),
            series_locks: insert::duplicates::SeriesLocks::default(),
            reopens_buckets: true,
        }
    }

    /// Returns the time-series collections that a transaction sees in `engine`, a view of what these store. What it inserts goes
    /// to buckets of its own.
    pub(crate) fn of_transaction(
        &self,
        engine: Arc<dyn Engine>,
        limits: BucketLimits,
        first_suffix: u64,
    ) -> Self {
        let bucket_catalog = Arc::new(BucketCatalog::new(limits, first_suffix));
        let dictionaries = self.dictionaries.clone();
        let maintenance = MaintenanceQueue::of_transaction(
            engine.clone(),
            bucket_catalog.clone(),
            dictionaries.clone(),
        );
        Self {
            reopens_buckets: false,
            ..Self::with_maintenance(engine, bucket_catalog, dictionaries, maintenance)
        }
    }

    /// True if changes are noted in a change log.
    pub(crate) fn keeps_changes(&self) -> bool {
        self.engine.annotation_part().is_some()
    }

    /// Opens buckets that were sealed lately, before a reader requests them. To be called at intervals.
    pub(crate) fn prefetch(&self) {
        self.reader
            .prefetch(|uuid| self.maintenance.collection(uuid));
    }

    /// Forgets what is in memory of a collection that was dropped.
    pub fn forget(&self, collection: &Collection) {
        let uuid = collection.uuid;
        self.bucket_catalog.forget(uuid);
        self.series_locks.forget(uuid);
        self.dictionaries.forget(uuid);
        self.counts.forget(uuid);
        if let Some(keyspaces) = BucketKeyspaces::of(collection) {
            self.cache.forget(keyspaces);
        }
        self.maintenance.unregister(uuid);
    }
}
