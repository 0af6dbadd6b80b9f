//! Index filters: the indexes that queries of one shape may use, as `planCacheSetFilter` sets them.
//!
//! They live in memory until the server stops or the collection is dropped. A filter comes before a hint, as in
//! MongoDB; the range of `min` and `max` needs the index it names and comes before a filter.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nilometer_bson::order::compare;
use nilometer_bson::{Document, ValueRef};

use super::hint::Hint;
use crate::error::{Error, ErrorCode, Result};
use crate::index::Index;

/// The maximum number of filters of all collections.
pub const INDEX_FILTERS_MAX: usize = 10_000;

/// The indexes that queries of one shape may use.
#[derive(Clone, Debug)]
pub struct IndexFilter {
    /// The filter as `planCacheListFilters` shows it.
    pub described: Document,
    /// The indexes. Those that do not exist are ignored.
    pub indexes: Vec<Hint>,
}

impl IndexFilter {
    /// True if queries may use `index`.
    pub fn allows(&self, index: &Index) -> bool {
        let spec = &index.stored.spec;
        self.indexes.iter().any(|allowed| match allowed {
            Hint::Name(name) => **name == *spec.name,
            Hint::Key(key) => {
                let own = ValueRef::Document(spec.key.as_ref());
                compare(ValueRef::Document(key.as_ref()), own).is_eq()
            }
        })
    }
}

type FiltersByShape = BTreeMap<(String, u32), Arc<IndexFilter>>;

/// All index filters, by namespace and shape.
#[derive(Debug, Default)]
pub struct IndexFilters {
    /// True once there was a filter: until then queries do not compute their shapes.
    is_used: AtomicBool,
    filters: Mutex<FiltersByShape>,
}

impl IndexFilters {
    fn lock(&self) -> MutexGuard<'_, FiltersByShape> {
        self.filters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes queries compute their shapes from now on.
    pub fn begin(&self) {
        self.is_used.store(true, Ordering::Relaxed);
    }

    /// True if queries compute their shapes.
    pub fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// Returns the filter for a query; `shape` computes the hash of its shape.
    pub fn get(&self, namespace: &str, shape: impl FnOnce() -> u32) -> Option<Arc<IndexFilter>> {
        if !self.is_used() {
            return None;
        }
        let key = (namespace.to_owned(), shape());
        self.lock().get(&key).cloned()
    }

    /// Sets the filter of a shape.
    pub fn set(&self, namespace: &str, shape: u32, filter: IndexFilter) -> Result<()> {
        let mut filters = self.lock();
        let key = (namespace.to_owned(), shape);
        if filters.len() >= INDEX_FILTERS_MAX && !filters.contains_key(&key) {
            return Err(Error::new(
                ErrorCode::ExceededMemoryLimit,
                format!("too many index filters: {INDEX_FILTERS_MAX}"),
            ));
        }
        filters.insert(key, Arc::new(filter));
        Ok(())
    }

    /// Removes the filters of a collection, or that of one shape.
    pub fn clear(&self, namespace: &str, shape: Option<u32>) {
        let mut filters = self.lock();
        filters.retain(|(own, of), _| own != namespace || shape.is_some_and(|shape| shape != *of));
    }

    /// Returns the filters of a collection, as `planCacheListFilters` shows them.
    pub fn list(&self, namespace: &str) -> Vec<Document> {
        let filters = self.lock();
        let of_namespace = filters.iter().filter(|((own, _), _)| own == namespace);
        of_namespace.map(|(_, f)| f.described.clone()).collect()
    }
}
