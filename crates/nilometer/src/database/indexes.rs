//! The indexes of a collection as they are shown: by `listIndexes`, `$indexStats` and `$listCatalog`.
//!
//! A time-series collection shows those of its buckets in the user's fields; one that no user could
//! have asked for is left out there, and seen on the buckets only. Buckets are clustered by `_id`,
//! which is no index of its own.

use std::sync::Arc;

use nilometer_bson::{Document, DocumentBuilder, Value, doc};

use super::collections::StoredCollections;
use crate::catalog::{Collection, IndexSpec, Namespace, Storage, StoredIndex};
use crate::error::Result;
use crate::query::planner::access::ID_INDEX;
use crate::timeseries::index::spec;

/// Whose fields an index is shown in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IndexSide {
    /// Those of measurements.
    User,
    /// Those of what is stored.
    Stored,
}

/// An index beside its definition as it is shown.
pub(crate) struct ShownIndex {
    pub(crate) stored: Arc<StoredIndex>,
    pub(crate) spec: IndexSpec,
}

/// The indexes a collection shows on one side, besides that of `_id`.
pub(crate) fn shown_indexes(collection: &Collection, side: IndexSide) -> Vec<ShownIndex> {
    let all = collection.indexes.all();
    all.iter()
        .filter_map(|stored| {
            let spec = match (&collection.timeseries, side) {
                (Some(options), IndexSide::User) => spec::to_user(options, &stored.spec)?,
                _ => stored.spec.clone(),
            };
            Some(ShownIndex {
                stored: stored.clone(),
                spec,
            })
        })
        .collect()
}

/// The index on `_id`, where there is one, with the collection's collation.
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

/// The index a clustered collection is made with, as listed.
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
    /// What `$indexStats` shows of a collection; nothing if there is none.
    pub(super) fn index_stats(&self, namespace: &Namespace) -> Result<Vec<Document>> {
        let (collection, side) = match self.catalog.timeseries(namespace) {
            Some(buckets) => (Some(buckets), IndexSide::User),
            None => (self.catalog.collection(namespace), IndexSide::Stored),
        };
        let Some(collection) = collection else {
            return Ok(Vec::new());
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
        if let Some(spec) = id_index(&collection) {
            let name = spec.get("name").as_str().unwrap_or(ID_INDEX).to_owned();
            out.push(entry(
                &name,
                spec,
                collection.indexes.id_uses(),
                started,
                false,
            ));
        }
        for index in shown_indexes(&collection, side) {
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
