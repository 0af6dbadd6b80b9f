//! The indexes of a collection as `listIndexes`, `$indexStats` and `$listCatalog` show them.
//!
//! A time-series collection shows the indexes of its buckets in terms of measurement fields. An index that
//! has no such form is shown on the bucket collection only. Buckets are clustered by `_id`, which is not an
//! index of its own, and bins of a rollup by their time and key.

use std::sync::Arc;

use nilometer_bson::{Document, DocumentBuilder, Value, doc};

use super::collections::StoredCollections;
use crate::catalog::{Collection, IndexSpec, Namespace, Storage, StoredIndex, StoredRollup};
use crate::error::Result;
use crate::query::planner::access::ID_INDEX;
use crate::timeseries::index::spec;

/// The fields an index is shown in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IndexForm {
    /// Fields of measurements.
    User,
    /// Fields of stored documents.
    Stored,
}

/// An index with its definition as shown.
pub(crate) struct ListedIndex {
    pub(crate) stored: Arc<StoredIndex>,
    pub(crate) spec: IndexSpec,
}

/// Returns the indexes of a collection, except the index of `_id`.
pub(crate) fn listed_indexes(collection: &Collection, side: IndexForm) -> Vec<ListedIndex> {
    let all = collection.indexes.all();
    all.iter()
        .filter_map(|stored| {
            let spec = match (&collection.timeseries, side) {
                (Some(options), IndexForm::User) => spec::to_user(options, &stored.spec)?,
                _ => stored.spec.clone(),
            };
            Some(ListedIndex {
                stored: stored.clone(),
                spec,
            })
        })
        .collect()
}

/// Returns the indexes of a rollup.
pub(crate) fn rollup_indexes(rollup: &StoredRollup) -> Vec<ListedIndex> {
    let all = rollup.indexes.all();
    let listed = all.iter().map(|stored| ListedIndex {
        stored: Arc::clone(stored),
        spec: stored.spec.clone(),
    });
    listed.collect()
}

/// Returns the index on `_id`, if there is one, with the collation of the collection.
pub(crate) fn id_index(collection: &Collection) -> Option<Document> {
    match collection.storage {
        Storage::Records { id_index: None, .. } => clustered_index(collection),
        Storage::Records { .. } => Some(doc! {
            "v": 2,
            "key": doc! { "_id": 1 },
            "name": "_id_",
            "collation": collection.options.get("collation").to_value(),
        }),
        Storage::Buckets { .. } => None,
    }
}

/// Returns the clustered index, as listed.
fn clustered_index(collection: &Collection) -> Option<Document> {
    let known = collection.options.get("clusteredIndex").as_document()?;
    let mut out = DocumentBuilder::new();
    for element in known {
        out.append_element(element);
    }
    out.append("clustered", true);
    for name in ["collation", "expireAfterSeconds"] {
        out.append_ref(name, collection.options.get(name));
    }
    Some(out.finish())
}

impl StoredCollections {
    /// Returns the `$indexStats` of a collection; empty if it does not exist.
    pub(super) fn index_stats(&self, namespace: &Namespace) -> Result<Vec<Document>> {
        let (collection, indexes) = match self.catalog.rollup(namespace) {
            Some(rollup) => (None, rollup_indexes(&rollup)),
            None => {
                let (collection, side) = match self.catalog.timeseries(namespace) {
                    Some(buckets) => (Some(buckets), IndexForm::User),
                    None => (self.catalog.collection(namespace), IndexForm::Stored),
                };
                let indexes = collection.as_ref().map(|c| listed_indexes(c, side));
                (collection, indexes.unwrap_or_default())
            }
        };
        let host = &self.services.host;
        let host = format!("{}:{}", host.hostname, host.port);
        let entry = |name: &str, spec: Document, uses: u64, since_ms: i64, building: bool| {
            let mut out = DocumentBuilder::new();
            out.append("name", name);
            out.append("key", spec.get("key").to_value());
            out.append("host", host.as_str());
            out.begin_document("accesses");
            out.append("ops", i64::try_from(uses).unwrap_or(i64::MAX));
            out.append("since", Value::DateTime(since_ms));
            out.end();
            out.append("spec", spec);
            if building {
                out.append("building", true);
            }
            out.finish()
        };
        let started = self.services.started_ms();
        let mut out = Vec::new();
        if let Some((collection, spec)) =
            collection.and_then(|c| id_index(&c).map(|spec| (c, spec)))
        {
            let name = spec.get("name").as_str().unwrap_or(ID_INDEX).to_owned();
            out.push(entry(
                &name,
                spec,
                collection.indexes.id_uses(),
                started,
                false,
            ));
        }
        for index in indexes {
            let stored = &index.stored;
            let since = stored.since_ms().max(started);
            let spec = index.spec.to_document();
            out.push(entry(
                &index.spec.name,
                spec,
                stored.uses(),
                since,
                !stored.is_ready(),
            ));
        }
        Ok(out)
    }
}
