//! Time-series collections: from measurements to buckets and back.
//!
//! ```text
//! insert ─► bucket_catalog ─► tail entries ─► fold ─► bucket document (open) ─► seal ─► sealed
//!                                    └───────────────┴───── read ─────┴──────────────────┘
//! ```
//!
//! [`bucket_catalog`] decides which bucket takes a measurement, [`tail`] is what an insert writes,
//! [`fold`] turns tails into the bucket documents that [`bucket_document`] describes, [`sealed`] is
//! how those lie in storage, and [`read`] walks them in the order of their ids. Whatever else changes
//! or removes a bucket goes through [`change`]: raw writes ([`raw`]), expiry ([`expire`]), updates and
//! deletes of measurements ([`measurements`]). Which measurements are there already is asked of
//! [`duplicates`], where a collection wants to know.
//!
//! Does not know queries or commands.

mod ahead;
#[cfg(test)]
mod behaviour_tests;
mod bucket_cache;
mod bucket_catalog;
mod bucket_document;
mod change;
mod chores;
mod column_names;
mod distinct_metas;
mod duplicates;
mod expire;
mod fold;
mod fresh;
mod grouping;
mod index_build;
pub mod index_conversion;
pub(crate) mod index_maintenance;
mod index_scan;
mod index_validate;
mod index_view;
mod insert;
mod measurements;
mod meta;
mod meta_numbers;
mod metrics;
mod min_max;
mod outermost;
mod raw;
#[cfg(test)]
mod raw_tests;
mod read;
pub mod rewrite;
mod roster;
mod scan;
mod schema;
mod sealed;
mod series_index;
#[cfg(test)]
mod simulation_tests;
mod tail;
#[cfg(test)]
mod tests;
pub mod unpack;
mod validate;
mod walk;
mod walker;

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use nilometer_storage::Engine;

pub use bucket_cache::{BUCKET_CACHE_BYTES_MAX, BucketCache};
pub use bucket_catalog::{
    BUCKET_CATALOG_BYTES_MAX, BucketCatalog, BucketCounters, BucketLimits, Gauges,
};
pub use distinct_metas::MetaPage;
pub use index_build::BucketWalk;
pub use index_scan::{CANDIDATES_MAX, Found, Stream};
pub use index_view::BucketView;
pub use measurements::{
    DecideMeasurement, DecideSeries, ExplainedSelection, FindBuckets, MeasurementAction,
    MeasurementFate, MeasurementSelection, MeasurementsChanged, SeriesFate, Turn,
};
pub use metrics::TimeseriesMetrics;
pub use raw::{BucketFate, RawChange};
pub use read::StoredBucket;
pub use scan::{BucketRange, BucketScan};

use crate::catalog::{Catalog, Collection};
use crate::error::Result;
use chores::ChoreQueue;
use sealed::{Dictionaries, SAMPLES};

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
    turns: measurements::Turns,
    /// Series that inserts are alone with.
    pub(crate) claims: duplicates::Claims,
    /// Opened buckets, for the next reader.
    pub bucket_cache: BucketCache,
    /// Buckets that were sealed lately, to be opened before a reader asks.
    fresh: Arc<fresh::Fresh>,
    start_ranges: index_scan::StartRanges,
    /// The newest and the oldest buckets of each series, as far as they are known.
    outermost: outermost::Outermost,
    /// Which sealed buckets there are, as far as it is known.
    rosters: roster::Rosters,
    /// Numbers that stand for metadata.
    metas: Arc<meta_numbers::MetaNumbers>,
    column_names: column_names::ColumnNames,
    /// Collections that were inserted into, for the chores of their buckets.
    collections: RwLock<HashMap<[u8; 16], Arc<Collection>>>,
}

/// Memory that lists of buckets may take if nothing else is said, in bytes.
pub const BUCKET_LIST_BYTES_MAX: usize = roster::ROSTER_BYTES_MAX + outermost::OUTERMOST_BYTES_MAX;

/// Memory that numbers of metadata may take if nothing else is said, in bytes.
pub const META_NUMBER_BYTES_MAX: usize = meta_numbers::META_NUMBER_BYTES_MAX;

impl Timeseries {
    /// Changes the memory that lists of buckets and numbers of metadata may take.
    pub fn set_list_bytes_max(&self, bucket_lists: usize, meta_numbers: usize) {
        let outermost = (bucket_lists / 4).min(outermost::OUTERMOST_BYTES_MAX);
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
            turns: measurements::Turns::default(),
            claims: duplicates::Claims::default(),
            bucket_cache: BucketCache::default(),
            start_ranges: index_scan::StartRanges::default(),
            outermost: outermost::Outermost::default(),
            rosters: roster::Rosters::default(),
            metas: Arc::default(),
            column_names: column_names::ColumnNames::default(),
            collections: RwLock::default(),
        }
    }
}
