//! All entries of small indexes over buckets, each for one version of its index.
//!
//! A narrow query looks up a few runs of entries, and in a storage of many layers each look-up costs as much as reading a bucket that
//! is in memory. An index of metadata and time changes when a bucket is opened or removed, which is far less often than it is read.
//! [`crate::timeseries::scan::index_view`] fills the cache.

use std::sync::Arc;

use nilometer_storage::{Bytes, KeyspaceId};

use super::version_cache::VersionCache;

/// Entries of the largest index that is kept.
pub(crate) const INDEX_ENTRIES_MAX: u64 = 1 << 13;

/// Look-ups in one version of an index before its entries are read, as a part of their number.
const ENTRIES_PER_LOOK_UP: u64 = if cfg!(test) { 1 << 10 } else { 32 };

/// Default limit of all entries together, in bytes.
pub(crate) const INDEX_ENTRIES_BYTES_MAX: usize = 16 << 20;

/// Memory of an entry beside its bytes: two handles and their allocations.
const ENTRY_BYTES: usize = size_of::<(Bytes, Bytes)>() + 32;

/// The entries of an index in the order of their keys.
pub(crate) type IndexEntries = Vec<(Bytes, Bytes)>;

/// What is known of one version of an index.
#[derive(Clone, Default)]
struct CachedIndex {
    look_ups: u64,
    /// A reader was told to read the entries.
    was_read: bool,
    entries: Option<Arc<IndexEntries>>,
}

/// The entries of the indexes of one database.
pub(crate) struct IndexEntriesCache(VersionCache<KeyspaceId, CachedIndex>);

impl Default for IndexEntriesCache {
    fn default() -> Self {
        Self(VersionCache::new(INDEX_ENTRIES_BYTES_MAX))
    }
}

impl IndexEntriesCache {
    /// Changes the limit. It takes effect with the next insertion.
    pub(crate) fn set_bytes_max(&self, bytes: usize) {
        self.0.set_bytes_max(bytes);
    }

    /// Returns the memory in use, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.0.memory_bytes()
    }

    /// Returns the entries of a version of an index.
    pub(crate) fn get(&self, index: KeyspaceId, version: u64) -> Option<Arc<IndexEntries>> {
        self.0.get(index, version)?.entries
    }

    /// Counts a look-up in a version of an index that has about `entries` entries. Returns whether so many look-ups were made that
    /// reading all entries pays; true for one reader of each version.
    pub(crate) fn ask(&self, index: KeyspaceId, version: u64, entries: u64) -> bool {
        self.0.change(index, version, |known| {
            known.look_ups += 1;
            let pays = entries <= INDEX_ENTRIES_MAX
                && known.look_ups.saturating_mul(ENTRIES_PER_LOOK_UP) >= entries;
            // If they could not be kept, the next reader does not read them again.
            let is_told = pays && !known.was_read;
            known.was_read |= is_told;
            is_told
        })
    }

    /// Keeps the entries of a version of an index. All others are evicted if there is no room.
    pub(crate) fn insert(&self, index: KeyspaceId, version: u64, entries: &Arc<IndexEntries>) {
        let sizes = entries.iter();
        let bytes: usize = sizes
            .map(|(key, value)| ENTRY_BYTES + key.len() + value.len())
            .sum();
        let cached = CachedIndex {
            look_ups: 0,
            was_read: true,
            entries: Some(Arc::clone(entries)),
        };
        self.0.insert(index, version, cached, bytes);
    }
}
