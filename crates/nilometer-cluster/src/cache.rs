//! The cache of blocks, indexes and filters in memory. It knows how many bytes it has.

use async_trait::async_trait;
use moka::future::Cache;
use slatedb::Error;
use slatedb::db_cache::{CachedEntry, CachedKey, DbCache};

/// A cache with a bound in bytes.
pub(crate) struct BlockCache(Cache<CachedKey, CachedEntry>);

impl BlockCache {
    /// Returns an empty cache of at most `bytes_max` bytes.
    pub(crate) fn new(bytes_max: u64) -> Self {
        let weigh =
            |_: &CachedKey, entry: &CachedEntry| u32::try_from(entry.size()).unwrap_or(u32::MAX);
        let cache = Cache::builder().weigher(weigh).max_capacity(bytes_max);
        Self(cache.build())
    }

    /// Returns the bytes of its entries.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.weighted_size()
    }
}

#[async_trait]
impl DbCache for BlockCache {
    async fn get_block(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        Ok(self.0.get(key).await)
    }

    async fn get_index(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        Ok(self.0.get(key).await)
    }

    async fn get_filter(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        Ok(self.0.get(key).await)
    }

    async fn get_stats(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        Ok(self.0.get(key).await)
    }

    async fn insert(&self, key: CachedKey, value: CachedEntry) {
        self.0.insert(key, value).await;
    }

    async fn remove(&self, key: &CachedKey) {
        self.0.remove(key).await;
    }

    fn entry_count(&self) -> u64 {
        self.0.entry_count()
    }
}
