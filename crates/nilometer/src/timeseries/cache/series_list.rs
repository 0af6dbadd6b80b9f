//! The metadata of each series of a collection, for one version of the keyspace it was read from.
//!
//! The registry of series changes with the first and the last bucket of a series, an index that begins with the whole metadata with
//! every bucket that is opened or removed. [`crate::timeseries::scan::series`] fills the lists.

use std::sync::Arc;

use nilometer_storage::KeyspaceId;

use super::version_cache::VersionCache;
use crate::timeseries::rewrite::SeriesMetas;
use crate::timeseries::rewrite::series_metas::{FIELD_BYTES, FIELDS_MAX};

/// Series of the longest list that is cached.
pub(crate) const SERIES_MAX: usize = 1 << 17;

/// Overhead of one series, in bytes, with the fields that are sorted.
const SERIES_BYTES: usize = 64 + FIELD_BYTES * FIELDS_MAX;

/// Default limit of all lists together, in bytes.
pub(crate) const SERIES_LIST_BYTES_MAX: usize = 32 << 20;

/// The lists of one database, by the registry or the index they were read from; `None` if there are too many series to keep.
pub(crate) struct SeriesLists(VersionCache<KeyspaceId, Option<Arc<SeriesMetas>>>);

impl Default for SeriesLists {
    fn default() -> Self {
        Self(VersionCache::new(SERIES_LIST_BYTES_MAX))
    }
}

impl SeriesLists {
    /// Changes the limit. It takes effect with the next insertion.
    pub(crate) fn set_bytes_max(&self, bytes: usize) {
        self.0.set_bytes_max(bytes);
    }

    /// Returns the memory in use, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.0.memory_bytes()
    }

    /// Returns what was read from this version of a keyspace: the list, or `Some(None)` if it is too long.
    pub(crate) fn get(
        &self,
        keyspace: KeyspaceId,
        version: u64,
    ) -> Option<Option<Arc<SeriesMetas>>> {
        self.0.get(keyspace, version)
    }

    /// Keeps a list whose values have `value_bytes` bytes, or that there are too many series. All others are evicted if
    /// there is no room.
    pub(crate) fn insert(
        &self,
        keyspace: KeyspaceId,
        version: u64,
        metas: Option<Arc<SeriesMetas>>,
        value_bytes: usize,
    ) {
        let bytes = |metas: &SeriesMetas| value_bytes + (metas.len() + 1) * SERIES_BYTES;
        let bytes = metas.as_deref().map_or(0, bytes);
        if !self.0.insert(keyspace, version, metas, bytes) {
            self.0.insert(keyspace, version, None, 0);
        }
    }

    /// Removes the list of a keyspace that was dropped.
    pub(crate) fn forget(&self, keyspace: KeyspaceId) {
        self.0.forget(keyspace);
    }
}
