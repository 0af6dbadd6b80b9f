//! The buckets that hold the newest, or the oldest, measurement of each series, for one version of an index.
//!
//! An index of metadata and time changes when a bucket is opened or removed, which is far less often than measurements
//! arrive. [`crate::timeseries::scan::latest_buckets`] fills the lists.

use std::sync::Arc;

use nilometer_storage::KeyspaceId;

use super::version_cache::VersionCache;

/// Ids of the longest list that is cached. Most lists take a few kilobytes.
const LIST_IDS_MAX: usize = 1 << 17;

/// Default limit of all lists together, in bytes: eight of the longest.
pub(crate) const LATEST_LIST_BYTES_MAX: usize = 8 * LIST_IDS_MAX * size_of::<[u8; 12]>();

/// What a list was made for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LatestListKey {
    /// The keyspace of the index.
    pub(crate) index: KeyspaceId,
    /// How many of the index's values make a series.
    pub(crate) components: usize,
    /// The newest measurements, not the oldest.
    pub(crate) newest: bool,
    /// The time span of a bucket.
    pub(crate) span_ms: i64,
}

/// The lists of one database: ids of buckets, ascending, by the version of the index they were read from.
pub(crate) struct LatestBucketLists(VersionCache<LatestListKey, Arc<[[u8; 12]]>>);

impl Default for LatestBucketLists {
    fn default() -> Self {
        Self(VersionCache::new(LATEST_LIST_BYTES_MAX))
    }
}

impl LatestBucketLists {
    /// Changes the limit. It takes effect with the next insertion.
    pub(crate) fn set_bytes_max(&self, bytes: usize) {
        self.0.set_bytes_max(bytes);
    }

    /// Returns the memory in use, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.0.memory_bytes()
    }

    /// Returns the list that was read from this version of the index.
    pub(crate) fn get(&self, key: LatestListKey, version: u64) -> Option<Arc<[[u8; 12]]>> {
        self.0.get(key, version)
    }

    /// Keeps a list unless it is too long. All others are evicted if there is no room.
    pub(crate) fn insert(&self, key: LatestListKey, version: u64, ids: &[[u8; 12]]) {
        if ids.len() <= LIST_IDS_MAX {
            self.0.insert(key, version, ids.into(), size_of_val(ids));
        }
    }
}
