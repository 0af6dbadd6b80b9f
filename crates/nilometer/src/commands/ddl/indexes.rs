//! The parts that commands about indexes share: what has the indexes of a name, and the search for one.

use std::sync::Arc;

use nilometer_bson::extjson::to_relaxed;
use nilometer_bson::{DocRef, Document, ValueRef};
use nilometer_storage::KeyspaceId;

use super::create_indexes::equal_documents;
use crate::catalog::{CatalogEntry, Collection, IndexSpec, Namespace, StoredIndex, StoredRollup};
use crate::database::Database;
use crate::database::indexes::{IndexForm, ListedIndex, id_index, listed_indexes, rollup_indexes};
use crate::error::{Error, ErrorCode, Result};

/// What has the indexes of a name.
#[derive(Clone)]
pub(crate) enum IndexOwner {
    /// A collection, and the form in which the name describes its indexes.
    Collection(Arc<Collection>, IndexForm),
    /// A rollup, whose indexes are those of its bins.
    Rollup(Namespace, Arc<StoredRollup>),
}

/// Returns what has the indexes of a name.
pub(crate) fn owner(
    database: &Database,
    namespace: &Namespace,
    absent: &str,
) -> Result<IndexOwner> {
    let catalog = database.catalog();
    if let Some(buckets) = catalog.timeseries(namespace) {
        return Ok(IndexOwner::Collection(buckets, IndexForm::User));
    }
    if let Some(rollup) = catalog.rollup(namespace) {
        return Ok(IndexOwner::Rollup(namespace.clone(), rollup));
    }
    match catalog.get(namespace) {
        Some(CatalogEntry::Collection(found)) => {
            Ok(IndexOwner::Collection(found, IndexForm::Stored))
        }
        Some(CatalogEntry::View(_)) => Err(Error::new(
            ErrorCode::CommandNotSupportedOnView,
            format!("Namespace {namespace} is a view, not a collection"),
        )),
        None => Err(Error::new(
            ErrorCode::NamespaceNotFound,
            format!("{absent} {namespace}"),
        )),
    }
}

/// The number of indexes that are not in the collection's list: that on `_id`.
pub(crate) fn id_indexes(collection: &Collection) -> i32 {
    i32::from(id_index(collection).is_some())
}

/// Returns the number of indexes of a collection.
pub(crate) fn count(collection: &Collection) -> i32 {
    let listed = i32::try_from(collection.indexes.all().len()).unwrap_or(i32::MAX);
    listed.saturating_add(id_indexes(collection))
}

impl IndexOwner {
    /// Returns its collection; `None` for a rollup.
    pub(crate) fn collection(&self) -> Option<&Arc<Collection>> {
        match self {
            Self::Collection(collection, _) => Some(collection),
            Self::Rollup(..) => None,
        }
    }

    /// Returns the indexes, except the index of `_id`.
    pub(crate) fn listed(&self) -> Vec<ListedIndex> {
        match self {
            Self::Collection(collection, side) => listed_indexes(collection, *side),
            Self::Rollup(_, rollup) => rollup_indexes(rollup),
        }
    }

    /// Returns the keyspaces of all indexes, also of those that the name does not show.
    pub(crate) fn keyspaces(&self) -> Vec<KeyspaceId> {
        let all = match self {
            Self::Collection(collection, _) => collection.indexes.all(),
            Self::Rollup(_, rollup) => rollup.indexes.all(),
        };
        all.iter().map(|index| index.keyspace).collect()
    }

    /// Returns the index on `_id`, as listed.
    pub(crate) fn id_index(&self) -> Option<Document> {
        id_index(self.collection()?)
    }

    /// Returns the number of indexes.
    pub(crate) fn count(&self) -> i32 {
        match self {
            Self::Collection(collection, _) => count(collection),
            Self::Rollup(_, rollup) => {
                i32::try_from(rollup.indexes.all().len()).unwrap_or(i32::MAX)
            }
        }
    }

    /// True if a name or key denotes the index on `_id`, and there is one.
    pub(crate) fn is_id_index(&self, which: ValueRef<'_>) -> bool {
        let collection = self.collection();
        let clustered = collection.and_then(|c| c.options.get("clusteredIndex").as_document());
        let own = clustered.and_then(|index| index.get("name").as_str());
        let means_id = match which {
            ValueRef::String(name) => name == own.unwrap_or("_id_"),
            ValueRef::Document(key) => {
                let mut parts = key.iter();
                parts
                    .next()
                    .is_some_and(|p| p.name() == "_id" && p.value().as_exact_i64() == Some(1))
                    && parts.next().is_none()
            }
            _ => false,
        };
        means_id && self.id_index().is_some()
    }

    /// Returns the index of this name.
    pub(crate) fn named(&self, name: &str) -> Result<ListedIndex> {
        let mut all = self.listed().into_iter();
        all.find(|index| index.spec.name == name).ok_or_else(|| {
            Error::new(
                ErrorCode::IndexNotFound,
                format!("index not found with name [{name}]"),
            )
        })
    }

    /// Returns the only index with this key.
    pub(crate) fn with_key(&self, key: DocRef<'_>) -> Result<ListedIndex> {
        let wanted = key.to_document();
        let mut found = self
            .listed()
            .into_iter()
            .filter(|index| equal_documents(Some(&index.spec.key), Some(&wanted)));
        match (found.next(), found.next()) {
            (None, _) => Err(Error::new(
                ErrorCode::IndexNotFound,
                format!("can't find index with key: {}", to_relaxed(key)),
            )),
            (Some(index), None) => Ok(index),
            (Some(first), Some(second)) => Err(Error::new(
                ErrorCode::AmbiguousIndexKeyPattern,
                format!(
                    "{} indexes found for key: {}, identify by name instead. Conflicting indexes: {}, {}",
                    2 + found.count(),
                    to_relaxed(key),
                    first.spec.name,
                    second.spec.name
                ),
            )),
        }
    }

    /// Removes the indexes in these keyspaces. Skips those that another command has removed.
    pub(crate) fn drop(&self, database: &Database, gone: &[KeyspaceId]) -> Result<()> {
        let catalog = database.catalog();
        match self {
            Self::Collection(collection, _) => catalog.drop_indexes(collection, |there| {
                let keyspaces = there.iter().map(|index| index.keyspace);
                Ok(keyspaces.filter(|k| gone.contains(k)).collect())
            }),
            Self::Rollup(namespace, rollup) => {
                let _refreshing = rollup.lock_refresh();
                let there = rollup.indexes.all();
                let keyspaces = there.iter().map(|index| index.keyspace);
                let gone: Vec<_> = keyspaces.filter(|k| gone.contains(k)).collect();
                catalog.drop_rollup_indexes(namespace, rollup, &gone)
            }
        }
    }

    /// Changes the definition of the index in `keyspace`. The change must not affect its entries.
    pub(crate) fn modify(
        &self,
        database: &Database,
        keyspace: KeyspaceId,
        change: impl FnOnce(&mut IndexSpec),
    ) -> Result<Arc<StoredIndex>> {
        let catalog = database.catalog();
        match self {
            Self::Collection(collection, _) => catalog.modify_index(collection, keyspace, change),
            Self::Rollup(namespace, rollup) => {
                let _refreshing = rollup.lock_refresh();
                catalog.modify_rollup_index(namespace, rollup, keyspace, change)
            }
        }
    }
}
