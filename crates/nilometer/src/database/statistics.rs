//! Sizes and counts of collections and databases, for `collStats`, `dbStats` and `$collStats`.

use nilometer_bson::{Array, Document, DocumentBuilder, Value, doc};

use super::Database;
use super::collections::StoredCollections;
use crate::args::Args;
use crate::catalog::{CatalogEntry, Collection, Namespace, Storage};
use crate::error::{Error, ErrorCode, Result};
use crate::services::{LatencyClass, TopEntry};
use crate::write::CappedLimits;

/// Sizes of one collection in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CollectionSizes {
    /// Documents, or buckets.
    pub(crate) count: u64,
    /// Bytes of stored documents, including those in memory.
    pub(crate) data_bytes: u64,
    /// Bytes of their files.
    pub(crate) storage_bytes: u64,
    /// Bytes of stored entries that no file but the log has.
    pub(crate) memory_bytes: u64,
    /// Bytes of index files.
    pub(crate) index_bytes: u64,
    /// Number of indexes.
    pub(crate) indexes: u64,
}

impl StoredCollections {
    /// Returns the sizes of a collection.
    pub(crate) fn sizes(&self, collection: &Collection) -> Result<CollectionSizes> {
        let mut sizes = CollectionSizes::default();
        match collection.storage {
            Storage::Records { records, .. } => {
                let data = self.engine.keyspace_statistics(records)?;
                sizes.count = self.records.count(collection)?;
                let stored = data.disk_bytes + data.memory_bytes;
                sizes.data_bytes = self.records.document_bytes(collection, stored)?;
                sizes.storage_bytes = data.disk_bytes;
                sizes.memory_bytes = data.memory_bytes;
            }
            Storage::Buckets {
                open,
                sealed,
                tail,
                series,
                summaries,
                registry,
            } => {
                sizes.count = self.timeseries.reader.count_buckets(collection)?;
                let derived = summaries.into_iter().chain(registry);
                for keyspace in [open, sealed, tail, series].into_iter().chain(derived) {
                    let data = self.engine.keyspace_statistics(keyspace)?;
                    sizes.data_bytes += data.disk_bytes + data.memory_bytes;
                    sizes.storage_bytes += data.disk_bytes;
                    sizes.memory_bytes += data.memory_bytes;
                }
            }
        }
        for (_, bytes) in self.index_sizes(collection)? {
            sizes.index_bytes += bytes;
            sizes.indexes += 1;
        }
        Ok(sizes)
    }

    /// Returns the indexes of a collection with the bytes of their files.
    pub(super) fn index_sizes(&self, collection: &Collection) -> Result<Vec<(String, u64)>> {
        let mut indexes = Vec::new();
        if let Storage::Records {
            id_index: Some(id_index),
            ..
        } = collection.storage
        {
            indexes.push(("_id_".to_owned(), id_index));
        }
        for index in collection.indexes.all().iter() {
            indexes.push((index.spec.name.clone(), index.keyspace));
        }
        let sized = indexes.into_iter().map(|(name, keyspace)| {
            let bytes = self.engine.keyspace_statistics(keyspace)?.disk_bytes;
            Ok((name, bytes))
        });
        sized.collect()
    }

    /// Returns the `storageStats` of a collection or time-series collection; sizes divided by `scale`.
    pub(crate) fn storage_stats(&self, namespace: &Namespace, scale: i64) -> Result<Document> {
        if self.catalog.is_oplog(namespace) {
            return self.oplog_stats(scale);
        }
        let mut out = DocumentBuilder::new();
        let (collection, is_view) = match self.catalog.timeseries(namespace) {
            Some(buckets) => (Some(buckets), true),
            None => (self.catalog.collection(namespace), false),
        };
        if collection.is_none() && self.catalog.get(namespace).is_some() {
            return Err(Error::new(
                ErrorCode::CommandNotSupportedOnView,
                format!("Namespace {namespace} is a view, not a collection"),
            ));
        }
        let sizes = collection
            .as_deref()
            .map(|c| self.sizes(c))
            .transpose()?
            .unwrap_or_default();
        let scaled = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX) / scale;
        out.append("size", scaled(sizes.data_bytes));
        if is_view {
            if let Some(collection) = &collection {
                out.append(
                    "timeseries",
                    self.timeseries_stats(namespace, collection, sizes)?,
                );
            }
        } else {
            out.append("count", i64::try_from(sizes.count).unwrap_or(i64::MAX));
            let average = sizes.data_bytes.checked_div(sizes.count);
            out.append(
                "avgObjSize",
                average.map(|bytes| i64::try_from(bytes).unwrap_or(0)),
            );
        }
        out.append("numOrphanDocs", 0i64);
        out.append("storageSize", scaled(sizes.storage_bytes));
        out.append("totalIndexSize", scaled(sizes.index_bytes));
        out.append("totalSize", scaled(sizes.storage_bytes + sizes.index_bytes));
        let index_sizes = match &collection {
            Some(collection) => self.index_sizes(collection)?,
            None => Vec::new(),
        };
        out.begin_document("indexSizes");
        for (name, bytes) in &index_sizes {
            out.append(name, scaled(*bytes));
        }
        out.end();
        append_index_details(&mut out, collection.as_deref(), &index_sizes);
        out.append("freeStorageSize", 0i64);
        out.append("nindexes", i64::try_from(sizes.indexes).unwrap_or(0));
        let capped = collection.as_deref().and_then(CappedLimits::of);
        out.append("capped", capped.is_some());
        if let Some(limits) = capped {
            out.append("max", limits.count_max.unwrap_or(0));
            out.append("maxSize", limits.bytes_max / scale);
        }
        out.append("scaleFactor", scale);
        Ok(out.finish())
    }

    fn timeseries_stats(
        &self,
        namespace: &Namespace,
        collection: &Collection,
        sizes: CollectionSizes,
    ) -> Result<Document> {
        let mut out = DocumentBuilder::new();
        out.append("bucketsNs", namespace.buckets().to_string());
        out.append(
            "bucketCount",
            i64::try_from(sizes.count).unwrap_or(i64::MAX),
        );
        let average = sizes.data_bytes.checked_div(sizes.count);
        out.append(
            "avgBucketSize",
            average.map(|bytes| i64::try_from(bytes).unwrap_or(0)),
        );
        let counters = self.timeseries.bucket_catalog.counters(collection.uuid);
        counters.append(&mut out);
        let gauges = self
            .timeseries
            .bucket_catalog
            .collection_gauges(collection.uuid);
        for (name, count) in [
            ("numOpenBuckets", gauges.open),
            ("numArchivedBuckets", gauges.archived),
            ("numBucketsWithTail", gauges.with_tail),
            ("numTailMeasurements", gauges.in_tails),
        ] {
            out.append(name, i64::try_from(count).unwrap_or(i64::MAX));
        }
        if let Storage::Buckets { tail, .. } = collection.storage {
            let sizes = self.engine.keyspace_statistics(tail)?;
            let bytes = sizes.disk_bytes + sizes.memory_bytes;
            out.append("tailBytes", i64::try_from(bytes).unwrap_or(i64::MAX));
        }
        Ok(out.finish())
    }

    /// Answers `$collStats`.
    pub(super) fn coll_stats_stage(
        &self,
        namespace: &Namespace,
        now_ms: i64,
        host: &str,
        argument: nilometer_bson::DocRef<'_>,
    ) -> Result<Document> {
        let mut out = DocumentBuilder::new();
        out.append("ns", namespace.to_string());
        out.append("host", host);
        out.append("localTime", Value::DateTime(now_ms));
        let stage = Args::new("$collStats", argument);
        let known = ["storageStats", "count", "latencyStats", "queryExecStats"];
        stage.check_names(&known)?;
        for element in argument {
            match element.name() {
                "storageStats" => {
                    // The last three are accepted and do not change the answer.
                    let known = ["scale", "verbose", "waitForLock", "numericOnly"];
                    let options = stage.nested("storageStats", &known)?;
                    for flag in known.iter().skip(1) {
                        options.as_ref().map(|o| o.boolean(flag)).transpose()?;
                    }
                    let scale = options
                        .map(|o| o.integer_at_least("scale", 1))
                        .transpose()?;
                    let is_oplog = self.catalog.is_oplog(namespace);
                    if self.catalog.get(namespace).is_none() && !is_oplog {
                        return Err(collection_not_found("storageStats", namespace));
                    }
                    let scale = scale.flatten().unwrap_or(1);
                    out.append("storageStats", self.storage_stats(namespace, scale)?);
                }
                "count" => {
                    stage.nested("count", &[])?;
                    // As in MongoDB, views and time-series collections have no count.
                    let collection = self.catalog.collection(namespace);
                    let collection =
                        collection.ok_or_else(|| collection_not_found("count", namespace))?;
                    let sizes = self.sizes(&collection)?;
                    out.append("count", i64::try_from(sizes.count).unwrap_or(i64::MAX));
                }
                "latencyStats" => {
                    let options = stage.nested("latencyStats", &["histograms"])?;
                    let asked = options.map(|o| o.boolean("histograms")).transpose()?;
                    let top = self.services.top.entry(&namespace.to_string());
                    let histograms = asked.flatten().unwrap_or(false);
                    out.append("latencyStats", latency_stats(&top, histograms));
                }
                other => {
                    return Err(Error::new(
                        ErrorCode::CommandNotSupported,
                        format!("$collStats.{other} is not supported: scans are not counted"),
                    ));
                }
            }
        }
        Ok(out.finish())
    }

    /// Returns the `dbStats` of a database.
    pub(crate) fn db_stats(&self, database: &str, scale: i64) -> Result<Document> {
        let (mut collections, mut views) = (0i64, 0i64);
        let mut total = CollectionSizes::default();
        for (_, entry) in self.catalog.list(database) {
            match entry {
                CatalogEntry::View(_) => views += 1,
                CatalogEntry::Collection(collection) => {
                    collections += 1;
                    let sizes = self.sizes(&collection)?;
                    total.count += sizes.count;
                    total.data_bytes += sizes.data_bytes;
                    total.storage_bytes += sizes.storage_bytes;
                    total.index_bytes += sizes.index_bytes;
                    total.indexes += sizes.indexes;
                }
            }
        }
        let scaled = |bytes: u64| bytes as f64 / scale as f64;
        let average = if total.count > 0 {
            total.data_bytes as f64 / total.count as f64
        } else {
            0.0
        };
        Ok(doc! {
            "db": database,
            "collections": collections,
            "views": views,
            "objects": i64::try_from(total.count).unwrap_or(i64::MAX),
            "avgObjSize": average,
            "dataSize": scaled(total.data_bytes),
            "storageSize": scaled(total.storage_bytes),
            "indexes": i64::try_from(total.indexes).unwrap_or(0),
            "indexSize": scaled(total.index_bytes),
            "totalSize": scaled(total.storage_bytes + total.index_bytes),
            "scaleFactor": scale,
        })
    }
}

/// Returns the error for a field of `$collStats` that requires an existing collection.
fn collection_not_found(asked: &str, namespace: &Namespace) -> Error {
    Error::new(
        ErrorCode::NamespaceNotFound,
        format!(
            "Unable to retrieve {asked} in $collStats stage :: caused by :: Collection [{namespace}] not found."
        ),
    )
}

/// Appends `indexDetails`, and the names of the indexes in build.
fn append_index_details(
    out: &mut DocumentBuilder,
    collection: Option<&Collection>,
    sizes: &[(String, u64)],
) {
    out.begin_document("indexDetails");
    for (name, _) in sizes {
        out.append(name, Document::new());
    }
    out.end();
    let all = collection.map(|c| c.indexes.all()).unwrap_or_default();
    let building = all.iter().filter(|index| !index.is_ready());
    let names = building.map(|index| Value::from(index.spec.name.as_str()));
    out.append("indexBuilds", Value::Array(names.collect::<Array>()));
}

/// Returns the operations on a collection and their times, by class.
fn latency_stats(top: &TopEntry, histograms: bool) -> Document {
    let mut out = DocumentBuilder::new();
    for (name, class) in [
        ("reads", Some(LatencyClass::Read)),
        ("writes", Some(LatencyClass::Write)),
        ("commands", Some(LatencyClass::Command)),
        // Transactions are not timed.
        ("transactions", None),
    ] {
        let latency = class.map(|class| top.latency(class)).unwrap_or_default();
        let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let mut one = DocumentBuilder::new();
        if histograms {
            let buckets = latency.histogram().map(|(micros, count)| {
                Value::from(doc! { "micros": number(micros), "count": number(count) })
            });
            one.append("histogram", Value::Array(buckets.collect::<Array>()));
        }
        one.append("latency", number(latency.total.time_us));
        one.append("ops", number(latency.total.count));
        out.append(name, one.finish());
    }
    out.finish()
}

impl Database {
    /// Returns `serverStatus.bucketCatalog`; `None` while the catalog is empty.
    pub(crate) fn bucket_catalog_status(&self) -> Option<Document> {
        let bucket_catalog = &self.timeseries().bucket_catalog;
        let gauges = bucket_catalog.gauges();
        let active = gauges.open + gauges.archived;
        if active == 0 {
            return None;
        }
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let mut out = DocumentBuilder::new();
        out.append("numBuckets", count(active));
        out.append("numOpenBuckets", count(gauges.open));
        out.append("numIdleBuckets", count(gauges.idle));
        out.append("numArchivedBuckets", count(gauges.archived));
        out.append("numActiveBuckets", count(active));
        out.append("memoryUsage", count(bucket_catalog.memory_bytes()));
        bucket_catalog.totals().append(&mut out);
        out.append(
            "stateManagement",
            doc! {
                "bucketsManaged": count(active),
                "currentEra": i64::try_from(gauges.era).unwrap_or(i64::MAX),
                "erasWithRemainingBuckets": count(gauges.eras),
                // Clear operations are complete when they return.
                "trackedClearOperations": 0i64,
            },
        );
        Some(out.finish())
    }

    /// Returns `serverStatus.catalogStats`.
    pub(crate) fn catalog_stats(&self) -> Document {
        let (mut collections, mut timeseries, mut views) = (0i32, 0i32, 0i32);
        let (mut internal_collections, mut internal_views, mut extended) = (0i32, 0i32, 0i32);
        let entries = self.catalog().databases().into_iter();
        for (namespace, entry) in entries.flat_map(|name| self.catalog().list(&name)) {
            let counter = match entry {
                CatalogEntry::Collection(found) => {
                    let outside = found.timeseries.is_some() && found.has_extended_range();
                    extended += i32::from(outside);
                    match namespace.is_system() {
                        true => &mut internal_collections,
                        false => &mut collections,
                    }
                }
                CatalogEntry::View(view) if view.is_timeseries() => &mut timeseries,
                CatalogEntry::View(_) if namespace.is_system() => &mut internal_views,
                CatalogEntry::View(_) => &mut views,
            };
            *counter += 1;
        }
        doc! {
            "collections": collections,
            "capped": 0,
            "clustered": 0,
            "timeseries": timeseries,
            "views": views,
            "internalCollections": internal_collections,
            "internalViews": internal_views,
            "timeseriesExtendedRange": extended,
        }
    }
}
