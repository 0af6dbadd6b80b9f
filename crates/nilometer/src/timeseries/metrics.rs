//! Counters of changes other than inserts, as `serverStatus.metrics.timeseries` shows them.

use std::sync::atomic::{AtomicI64, Ordering};

use nilometer_bson::{Document, doc};

/// Counters of one database.
#[derive(Debug, Default)]
pub struct TimeseriesMetrics {
    /// Deletes that read measurements.
    pub measurement_delete: AtomicI64,
    /// Updates that read measurements.
    pub measurement_update: AtomicI64,
    /// Deletes of whole buckets by their metadata.
    pub meta_delete: AtomicI64,
    /// Updates of whole buckets by their metadata.
    pub meta_update: AtomicI64,
    /// Bucket documents removed by other than the insert path.
    pub direct_deleted: AtomicI64,
    /// Bucket documents rewritten by other than the insert path.
    pub direct_updated: AtomicI64,
}

impl TimeseriesMetrics {
    /// Returns the counters under their names.
    pub fn to_document(&self) -> Document {
        let value = |counter: &AtomicI64| counter.load(Ordering::Relaxed);
        doc! {
            "directDeleted": value(&self.direct_deleted),
            "directUpdated": value(&self.direct_updated),
            "measurementDelete": value(&self.measurement_delete),
            "measurementUpdate": value(&self.measurement_update),
            "metaDelete": value(&self.meta_delete),
            "metaUpdate": value(&self.meta_update),
        }
    }
}
