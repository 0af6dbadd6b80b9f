//! Statistics of a database directory: collections, buckets and their fill, the sizes of columns, tails,
//! indexes, the log.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use nilometer_bson::ValueRef;
use nilometer_storage::{Engine, EngineStatistics, Recovery};

use crate::catalog::{CatalogEntry, Collection, Storage};
use crate::database::Database;
use crate::error::Result;
use crate::timeseries::BucketRange;

/// Most damaged buckets described; all are counted.
const DAMAGE_LISTED_MAX: usize = 20;

/// The statistics of a directory.
#[derive(Clone, Debug)]
pub struct DirectoryReport {
    /// The recovery of the log at opening.
    pub recovery: Recovery,
    /// Statistics of the engine.
    pub engine: EngineStatistics,
    /// Views that are not time-series collections.
    pub views: Vec<String>,
    /// The collections.
    pub collections: Vec<CollectionReport>,
}

/// The type of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectionKind {
    /// Buckets of measurements.
    TimeSeries,
    /// Ordinary documents.
    Ordinary,
    /// Ordinary documents in the order of `_id`.
    Clustered,
}

/// The size of a column over all buckets.
#[derive(Clone, Copy, Debug, Default)]
pub struct ColumnReport {
    /// Buckets that have the column.
    pub buckets: u64,
    /// Measurements of those buckets.
    pub measurements: u64,
    /// Its bytes in the bucket documents that clients read.
    pub bytes: u64,
    /// Its stored bytes.
    pub stored_bytes: u64,
}

/// The statistics of one collection.
#[derive(Clone, Debug)]
pub struct CollectionReport {
    /// The namespace; for time series that of the bucket collection.
    pub namespace: String,
    /// The type.
    pub kind: CollectionKind,
    /// Documents, or buckets.
    pub count: u64,
    /// Bytes of files.
    pub disk_bytes: u64,
    /// Bytes that are in the log only.
    pub memory_bytes: u64,
    /// Measurements, for time series.
    pub measurements: u64,
    /// Buckets by version.
    pub versions: BTreeMap<i32, u64>,
    /// Documents of open buckets.
    pub open_documents: u64,
    /// Documents of sealed buckets.
    pub sealed_documents: u64,
    /// Entries of tails: measurements not yet folded into a document.
    pub tail_entries: u64,
    /// Columns by name.
    pub columns: BTreeMap<String, ColumnReport>,
    /// Indexes by name with the bytes of their files.
    pub indexes: Vec<(String, u64)>,
    /// Descriptions of unreadable buckets.
    pub damage: Vec<String>,
    /// Number of unreadable buckets.
    pub damaged: u64,
}

/// Reads the statistics of the database in `path`, which must exist and not be open. Damage is reported,
/// not repaired.
pub fn inspect(path: &Path) -> Result<DirectoryReport> {
    let (database, recovery) = super::open(path)?;
    let inspection = report(&database, recovery)?;
    // The statistics are read; failures to write back concern `verify`.
    let _ = database.close();
    Ok(inspection)
}

/// Does so for an engine that refuses writes, and shows one moment of a database.
pub fn inspect_view(engine: Arc<dyn Engine>) -> Result<DirectoryReport> {
    report(&super::open_view(engine)?, Recovery::default())
}

fn report(database: &Database, recovery: Recovery) -> Result<DirectoryReport> {
    let mut inspection = DirectoryReport {
        recovery,
        engine: EngineStatistics::default(),
        views: Vec::new(),
        collections: Vec::new(),
    };
    for db in database.catalog.databases() {
        for (namespace, entry) in database.catalog.list(&db) {
            match entry {
                CatalogEntry::Collection(collection) => {
                    inspection.collections.push(database.figures(&collection)?);
                }
                CatalogEntry::View(view) if view.is_timeseries() => {}
                CatalogEntry::View(_) => inspection.views.push(namespace.to_string()),
            }
        }
    }
    // An engine in an object store learns its sizes with those of the collections.
    inspection.engine = database.engine.statistics();
    Ok(inspection)
}

impl Database {
    fn figures(&self, collection: &Arc<Collection>) -> Result<CollectionReport> {
        let sizes = self.collections.sizes(collection)?;
        let kind = match collection.storage {
            Storage::Buckets { .. } => CollectionKind::TimeSeries,
            Storage::Records { id_index: None, .. } => CollectionKind::Clustered,
            Storage::Records { .. } => CollectionKind::Ordinary,
        };
        let mut figures = CollectionReport {
            namespace: collection.namespace.to_string(),
            kind,
            count: sizes.count,
            disk_bytes: sizes.storage_bytes,
            memory_bytes: sizes.memory_bytes,
            measurements: 0,
            versions: BTreeMap::new(),
            open_documents: 0,
            sealed_documents: 0,
            tail_entries: 0,
            columns: BTreeMap::new(),
            indexes: self.collections.index_sizes(collection)?,
            damage: Vec::new(),
            damaged: 0,
        };
        if let Storage::Buckets {
            open, sealed, tail, ..
        } = collection.storage
        {
            self.count_buckets_into(collection, &mut figures)?;
            for (keyspace, count) in [
                (open, &mut figures.open_documents),
                (sealed, &mut figures.sealed_documents),
                (tail, &mut figures.tail_entries),
            ] {
                match super::count_entries(&*self.engine, keyspace) {
                    Ok(entries) => *count = entries,
                    Err(error) => figures.damage.push(error.to_string()),
                }
            }
        }
        Ok(figures)
    }

    fn count_buckets_into(
        &self,
        collection: &Arc<Collection>,
        figures: &mut CollectionReport,
    ) -> Result<()> {
        figures.count = 0;
        for bucket in self
            .timeseries
            .reader
            .scan(collection, BucketRange::default())?
        {
            let bucket = bucket.and_then(|bucket| Ok((bucket.to_document()?, bucket)));
            let (document, bucket) = match bucket {
                Ok(found) => found,
                Err(error) => {
                    figures.damaged += 1;
                    if figures.damage.len() < DAMAGE_LISTED_MAX {
                        figures.damage.push(error.to_string());
                    }
                    continue;
                }
            };
            let measurements = u64::try_from(bucket.count()).unwrap_or(u64::MAX);
            figures.count += 1;
            figures.measurements += measurements;
            *figures.versions.entry(bucket.version()).or_default() += 1;
            let data = document.get("data").as_document();
            for element in data.into_iter().flatten() {
                let column = figures
                    .columns
                    .entry(element.name().to_owned())
                    .or_default();
                column.buckets += 1;
                column.measurements += measurements;
                let bytes = match element.value() {
                    ValueRef::Binary { bytes, .. } => bytes.len(),
                    ValueRef::Document(entries) => entries.as_bytes().len(),
                    _ => 0,
                };
                column.bytes += bytes as u64;
                let stored = bucket.stored_column_bytes(element.name());
                column.stored_bytes += stored.unwrap_or(bytes) as u64;
            }
        }
        Ok(())
    }
}
