//! The metadata of each series of a collection, for one version of the keyspace it was read from.
//!
//! The registry of series changes with the first and the last bucket of a series, an index that begins with the whole metadata with
//! every bucket that is opened or removed. [`crate::timeseries::scan::series`] fills the lists.

use std::collections::HashMap;
use std::sync::Arc;

use nilometer_storage::KeyspaceId;

use crate::budget::Budgeted;
use crate::timeseries::rewrite::SeriesMetas;
use crate::timeseries::rewrite::series_metas::{FIELD_BYTES, FIELDS_MAX};

/// Series of the longest list that is cached.
pub(crate) const SERIES_MAX: usize = 1 << 17;

/// Overhead of one series, in bytes, with the fields that are sorted.
const SERIES_BYTES: usize = 64 + FIELD_BYTES * FIELDS_MAX;

/// Default limit of all lists together, in bytes.
pub(crate) const SERIES_LIST_BYTES_MAX: usize = 32 << 20;

/// What was read from one version of a keyspace.
struct CachedList {
    version: u64,
    /// `None` if there are too many series to keep.
    metas: Option<Arc<SeriesMetas>>,
    bytes: usize,
}

type Lists = HashMap<KeyspaceId, CachedList>;

/// The lists of one database, by the registry or the index they were read from.
pub(crate) struct SeriesLists(Budgeted<Lists>);

impl Default for SeriesLists {
    fn default() -> Self {
        Self(Budgeted::new(SERIES_LIST_BYTES_MAX))
    }
}

fn bytes_of(lists: &Lists) -> usize {
    lists.values().map(|cached| cached.bytes).sum()
}

impl SeriesLists {
    /// Changes the limit. It takes effect with the next insertion.
    pub(crate) fn set_bytes_max(&self, bytes: usize) {
        self.0.set_bytes_max(bytes);
    }

    /// Returns the memory in use, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        bytes_of(&self.0.lock())
    }

    /// Returns what was read from this version of a keyspace: the list, or `Some(None)` if it is too long.
    pub(crate) fn get(
        &self,
        keyspace: KeyspaceId,
        version: u64,
    ) -> Option<Option<Arc<SeriesMetas>>> {
        let lists = self.0.lock();
        let cached = lists.get(&keyspace)?;
        (cached.version == version).then(|| cached.metas.clone())
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
        let bytes_max = self.0.bytes_max();
        let length = metas.as_ref().map_or(0, |metas| metas.len());
        let bytes = value_bytes + (length + 1) * SERIES_BYTES;
        let (metas, bytes) = match bytes <= bytes_max {
            true => (metas, bytes),
            false => (None, SERIES_BYTES),
        };
        let mut lists = self.0.lock();
        lists.remove(&keyspace);
        if bytes_of(&lists) + bytes > bytes_max {
            lists.clear();
        }
        let list = CachedList {
            version,
            metas,
            bytes,
        };
        lists.insert(keyspace, list);
    }

    /// Removes the list of a keyspace that was dropped.
    pub(crate) fn forget(&self, keyspace: KeyspaceId) {
        self.0.lock().remove(&keyspace);
    }
}
