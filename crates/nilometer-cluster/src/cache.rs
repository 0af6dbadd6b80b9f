//! The cache of blocks, indexes and filters in memory. It knows how many bytes it has.
//!
//! It never waits, and two reads that miss the same block both load it: a read on the thread of a caller stands still between two
//! calls (see [`crate::caller_runtime`]), so no other read may wait for it.

use std::hash::{BuildHasherDefault, DefaultHasher};

use async_trait::async_trait;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};
use slatedb::Error;
use slatedb::db_cache::{CachedEntry, CachedKey, DbCache};

/// Least bytes of one shard: the largest entry, the index of a large table, must fit into it.
const SHARD_BYTES_MIN: u64 = 32 * 1024 * 1024;

/// Shards of a large cache.
const SHARDS_MAX: u64 = 16;

/// Bytes of an entry, to size the tables of a cache.
const ENTRY_BYTES: u64 = 4096;

/// The hasher of caches here. It has no random state, so that a simulation does the same each time.
pub(crate) type FixedHasher = BuildHasherDefault<DefaultHasher>;

/// A cache with a bound in bytes.
pub(crate) struct BlockCache(Cache<CachedKey, CachedEntry, EntryBytes, FixedHasher>);

/// The bytes of an entry.
#[derive(Clone)]
struct EntryBytes;

impl Weighter<CachedKey, CachedEntry> for EntryBytes {
    fn weight(&self, _: &CachedKey, entry: &CachedEntry) -> u64 {
        // An entry without weight would never leave.
        (entry.size() as u64).max(1)
    }
}

/// Returns an empty cache of at most `bytes_max` bytes, for entries of about `entry_bytes`.
pub(crate) fn bounded<K, V, W>(
    bytes_max: u64,
    entry_bytes: u64,
    weighter: W,
) -> Cache<K, V, W, FixedHasher>
where
    K: Eq + std::hash::Hash,
    V: Clone,
    W: Weighter<K, V> + Clone,
{
    let shards = (bytes_max / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX);
    let entries = (bytes_max / entry_bytes).max(1);
    let options = OptionsBuilder::new()
        .estimated_items_capacity(usize::try_from(entries).unwrap_or(usize::MAX))
        .weight_capacity(bytes_max)
        .shards(usize::try_from(shards).unwrap_or(1))
        .build();
    Cache::with_options(
        options.expect("both capacities are set"),
        weighter,
        FixedHasher::default(),
        DefaultLifecycle::default(),
    )
}

impl BlockCache {
    /// Returns an empty cache of at most `bytes_max` bytes.
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self(bounded(bytes_max, ENTRY_BYTES, EntryBytes))
    }

    /// Returns the bytes of its entries.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.weight()
    }
}

#[async_trait]
impl DbCache for BlockCache {
    async fn get_block(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        Ok(self.0.get(key))
    }

    async fn get_index(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        Ok(self.0.get(key))
    }

    async fn get_filter(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        Ok(self.0.get(key))
    }

    async fn get_stats(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        Ok(self.0.get(key))
    }

    async fn insert(&self, key: CachedKey, value: CachedEntry) {
        self.0.insert(key, value);
    }

    async fn remove(&self, key: &CachedKey) {
        self.0.remove(key);
    }

    fn entry_count(&self) -> u64 {
        self.0.len() as u64
    }
}
