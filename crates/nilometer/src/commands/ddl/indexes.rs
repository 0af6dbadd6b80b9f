//! The parts that commands about indexes share: the collection of a name, and the search for an index.

use std::sync::Arc;

use nilometer_bson::extjson::to_relaxed;
use nilometer_bson::{DocRef, ValueRef};

use super::create_indexes::equal_documents;
use crate::catalog::{CatalogEntry, Collection, Namespace};
use crate::database::Database;
use crate::database::indexes::{IndexForm, ListedIndex, listed_indexes};
use crate::error::{Error, ErrorCode, Result};

/// The number of indexes that are not in the collection's list: that on `_id`.
pub(crate) fn id_indexes(collection: &Collection) -> i32 {
    i32::from(crate::database::indexes::id_index(collection).is_some())
}

/// Returns the number of indexes of a collection.
pub(crate) fn count(collection: &Collection) -> i32 {
    let listed = i32::try_from(collection.indexes.all().len()).unwrap_or(i32::MAX);
    listed.saturating_add(id_indexes(collection))
}

/// The collection that holds the indexes of a name, and the form in which the name describes them.
pub(crate) fn collection(
    database: &Database,
    namespace: &Namespace,
    absent: &str,
) -> Result<(Arc<Collection>, IndexForm)> {
    let catalog = database.catalog();
    if let Some(buckets) = catalog.timeseries(namespace) {
        return Ok((buckets, IndexForm::User));
    }
    match catalog.get(namespace) {
        Some(CatalogEntry::Collection(found)) => Ok((found, IndexForm::Stored)),
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

/// True if a name or key denotes the index on `_id` of a collection that has one.
pub(crate) fn is_id_index(collection: &Collection, which: ValueRef<'_>) -> bool {
    let clustered = collection.options.get("clusteredIndex").as_document();
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
    means_id && id_indexes(collection) > 0
}

/// Returns the index of this name.
pub(crate) fn named(collection: &Collection, side: IndexForm, name: &str) -> Result<ListedIndex> {
    let mut all = listed_indexes(collection, side).into_iter();
    all.find(|index| index.spec.name == name).ok_or_else(|| {
        Error::new(
            ErrorCode::IndexNotFound,
            format!("index not found with name [{name}]"),
        )
    })
}

/// Returns the only index with this key.
pub(crate) fn with_key(
    collection: &Collection,
    side: IndexForm,
    key: DocRef<'_>,
) -> Result<ListedIndex> {
    let wanted = key.to_document();
    let mut found = listed_indexes(collection, side)
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
