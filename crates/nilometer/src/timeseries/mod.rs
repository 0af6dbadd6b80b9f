//! Time-series collections: from measurements to buckets and back.
//!
//! ```text
//! insert ─► bucket_catalog ─► tail entries ─► fold ─► bucket document (open) ─► seal ─► sealed
//!                                    └───────────────┴───── read ─────┴──────────────────┘
//! ```
//!
//! [`bucket_catalog`] decides which bucket takes a measurement, [`format::tail`] is what an insert writes,
//! [`fold`] turns tails into the bucket documents that [`format::bucket_document`] describes, [`format::sealed`] is
//! how those lie in storage, and [`cache::opened_bucket`] walks them in the order of their ids. Whatever else changes
//! or removes a bucket goes through [`modify::bucket_changes`]: raw writes ([`modify::raw`]), expiry ([`modify::expire`]), updates and
//! deletes of measurements ([`modify`]). Which measurements are there already is asked of
//! [`insert::duplicates`], where a collection wants to know.
//!
//! Does not know queries or commands.

mod bucket_catalog;
pub(crate) mod cache;
mod fold;
pub(crate) mod format;
pub mod index;
mod insert;
mod metrics;
mod modify;
pub mod rewrite;
mod scan;
pub mod unpack;
mod validate;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use nilometer_storage::Engine;

pub use bucket_catalog::{
    BUCKET_CATALOG_BYTES_MAX, BucketCatalog, BucketCounters, BucketLimits, Gauges,
};
pub use cache::bucket_cache::{BUCKET_CACHE_BYTES_MAX, BucketCache};
pub use cache::opened_bucket::StoredBucket;
pub use index::build::BucketWalk;
pub use index::view::BucketView;
pub use metrics::TimeseriesMetrics;
pub use modify::raw::{BucketFate, RawChange};
pub use modify::{
    DecideMeasurement, DecideSeries, ExplainedSelection, FindBuckets, MeasurementAction,
    MeasurementFate, MeasurementSelection, MeasurementsChanged, SeriesFate, Turn,
};
pub use scan::distinct_metas::MetaPage;
pub use scan::index_scan::{CANDIDATES_MAX, Found, Stream};
pub use scan::{BucketRange, BucketScan};

use crate::catalog::{Catalog, Collection};
use crate::error::Result;
use fold::queue::ChoreQueue;
use format::sealed::{Dictionaries, SAMPLES};

/// Everything that time-series collections of one database share.
pub struct Timeseries {
    engine: Arc<dyn Engine>,
    /// Which buckets are open.
    pub bucket_catalog: Arc<BucketCatalog>,
    /// What happened to measurements and buckets other than by inserting.
    pub metrics: TimeseriesMetrics,
    /// What stored buckets of each collection have in common.
    dictionaries: Arc<Dictionaries>,
    chores: ChoreQueue,
    turns: modify::Turns,
    /// Series that inserts are alone with.
    pub(crate) claims: insert::duplicates::Claims,
    /// Opened buckets, for the next reader.
    pub bucket_cache: BucketCache,
    /// Buckets that were sealed lately, to be opened before a reader asks.
    fresh: Arc<cache::prefetch::Fresh>,
    start_ranges: scan::index_scan::StartRanges,
    /// The newest and the oldest buckets of each series, as far as they are known.
    outermost: scan::latest_buckets::Outermost,
    /// Which sealed buckets there are, as far as it is known.
    rosters: cache::sealed_bucket_list::Rosters,
    /// Numbers that stand for metadata.
    metas: Arc<cache::meta_ids::MetaNumbers>,
    column_names: cache::column_names::ColumnNames,
    /// Collections that were inserted into, for the chores of their buckets.
    collections: RwLock<HashMap<[u8; 16], Arc<Collection>>>,
}

/// Memory that lists of buckets may take if nothing else is said, in bytes.
pub const BUCKET_LIST_BYTES_MAX: usize =
    cache::sealed_bucket_list::ROSTER_BYTES_MAX + scan::latest_buckets::OUTERMOST_BYTES_MAX;

/// Memory that numbers of metadata may take if nothing else is said, in bytes.
pub const META_NUMBER_BYTES_MAX: usize = cache::meta_ids::META_NUMBER_BYTES_MAX;

impl Timeseries {
    /// Changes the memory that lists of buckets and numbers of metadata may take.
    pub fn set_list_bytes_max(&self, bucket_lists: usize, meta_numbers: usize) {
        let outermost = (bucket_lists / 4).min(scan::latest_buckets::OUTERMOST_BYTES_MAX);
        self.outermost.set_bytes_max(outermost);
        self.rosters.set_bytes_max(bucket_lists - outermost);
        self.metas.set_bytes_max(meta_numbers);
    }

    /// Memory of the lists of buckets, and of the numbers of metadata.
    pub fn list_bytes(&self) -> (usize, usize) {
        let lists = self.rosters.memory_bytes() + self.outermost.memory_bytes();
        (lists, self.metas.memory_bytes())
    }

    /// Starts with no bucket open. `first_suffix` should be random: bucket ids count up from it.
    pub fn new(
        engine: Arc<dyn Engine>,
        catalog: Arc<Catalog>,
        limits: BucketLimits,
        first_suffix: u64,
    ) -> Result<Self> {
        let bucket_catalog = Arc::new(BucketCatalog::new(limits, first_suffix));
        let dictionaries = Arc::new(Dictionaries::open(catalog, SAMPLES)?);
        let chores =
            ChoreQueue::start(engine.clone(), bucket_catalog.clone(), dictionaries.clone());
        Ok(Self::with_chores(
            engine,
            bucket_catalog,
            dictionaries,
            chores,
        ))
    }

    fn with_chores(
        engine: Arc<dyn Engine>,
        bucket_catalog: Arc<BucketCatalog>,
        dictionaries: Arc<Dictionaries>,
        chores: ChoreQueue,
    ) -> Self {
        Self {
            dictionaries,
            engine,
            bucket_catalog,
            metrics: TimeseriesMetrics::default(),
            fresh: chores.fresh(),
            chores,
            turns: modify::Turns::default(),
            claims: insert::duplicates::Claims::default(),
            bucket_cache: BucketCache::default(),
            start_ranges: scan::index_scan::StartRanges::default(),
            outermost: scan::latest_buckets::Outermost::default(),
            rosters: cache::sealed_bucket_list::Rosters::default(),
            metas: Arc::default(),
            column_names: cache::column_names::ColumnNames::default(),
            collections: RwLock::default(),
        }
    }
}
