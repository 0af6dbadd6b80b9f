//! The buckets that hold the newest, or the oldest, measurement of each series, for one version of an index.
//!
//! An index of metadata and time changes when a bucket is opened or removed, which is far less often than measurements
//! arrive. [`crate::timeseries::scan::latest_buckets`] fills the lists.

use std::collections::HashMap;
use std::sync::Arc;

use nilometer_storage::KeyspaceId;

use crate::budget::Budgeted;

/// Lists in the cache; most take a few kilobytes.
const LISTS_MAX: usize = 8;

/// Ids of the longest list that is cached.
const LIST_IDS_MAX: usize = 1 << 17;

/// Default limit of all lists together, in bytes.
pub(crate) const LATEST_LIST_BYTES_MAX: usize = LISTS_MAX * LIST_IDS_MAX * size_of::<[u8; 12]>();

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

/// Ids of buckets, ascending, and the version of the index they were read from.
struct CachedList {
    version: u64,
    ids: Arc<[[u8; 12]]>,
}

type Lists = HashMap<LatestListKey, CachedList>;

/// The lists of one database.
pub(crate) struct LatestBucketLists(Budgeted<Lists>);

impl Default for LatestBucketLists {
    fn default() -> Self {
        Self(Budgeted::new(LATEST_LIST_BYTES_MAX))
    }
}

fn bytes_of(lists: &Lists) -> usize {
    lists.values().map(|list| size_of_val(&*list.ids)).sum()
}

impl LatestBucketLists {
    /// Changes the limit. It takes effect with the next insertion.
    pub(crate) fn set_bytes_max(&self, bytes: usize) {
        self.0.set_bytes_max(bytes);
    }

    /// Returns the memory in use, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        bytes_of(&self.0.lock())
    }

    /// Returns the list that was read from this version of the index.
    pub(crate) fn get(&self, key: LatestListKey, version: u64) -> Option<Arc<[[u8; 12]]>> {
        let lists = self.0.lock();
        let list = lists.get(&key)?;
        (list.version == version).then(|| Arc::clone(&list.ids))
    }

    /// Keeps a list unless it is too long. All others are evicted if there is no room.
    pub(crate) fn insert(&self, key: LatestListKey, version: u64, ids: &[[u8; 12]]) {
        let bytes_max = self.0.bytes_max();
        if ids.len() > LIST_IDS_MAX || size_of_val(ids) > bytes_max {
            return;
        }
        let mut lists = self.0.lock();
        if lists.len() >= LISTS_MAX || bytes_of(&lists) + size_of_val(ids) > bytes_max {
            lists.clear();
        }
        let ids = ids.into();
        lists.insert(key, CachedList { version, ids });
    }
}
