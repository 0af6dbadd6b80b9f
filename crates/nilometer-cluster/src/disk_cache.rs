//! The cache of tables on a local disk, which the views of a server share with the engine that it opens when it writes.
//!
//! ```text
//! views ─► objects of the log in memory ─┬─► files below `SlateOptions::cache_path` ─► store
//! engine ────────────────────────────────┘
//! ```
//!
//! Tables never change, so what one of them has read is true for all. One cache has one bound: two over one folder would each
//! count their own files alone.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use nilometer_storage::Result;
use object_store::ObjectStore;
#[expect(
    deprecated,
    reason = "the settings of SlateDB's engine use it, too, and its successor is not complete"
)]
use slatedb::cached_object_store::CachedObjectStore;
use tokio::runtime::Runtime;

use crate::error::convert;
use crate::options::SlateOptions;
use crate::requests::Requests;

/// The cache. Clones share it. Its tasks run on the runtime of the reader that made it.
#[derive(Clone)]
pub struct DiskCache {
    cached: Arc<dyn ObjectStore>,
    below: Arc<dyn ObjectStore>,
    requests: Arc<Requests>,
}

impl fmt::Debug for DiskCache {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("DiskCache")
    }
}

impl DiskCache {
    /// Opens the cache in `folder`, as the options say, over a store whose requests are counted.
    pub(crate) fn open(
        folder: &Path,
        options: &SlateOptions,
        (below, requests): (Arc<dyn ObjectStore>, Arc<Requests>),
        runtime: &Runtime,
    ) -> Result<Self> {
        #[expect(deprecated, reason = "see above")]
        let builder = CachedObjectStore::builder(folder, Arc::clone(&below))
            .with_max_cache_size_bytes(Some(options.cache_path_bytes))
            .with_scan_interval(Some(options.cache_scan_interval))
            .with_cache_on_flush(true)
            .with_cache_on_compaction(true);
        let cached = runtime.block_on(builder.build());
        let cached = cached.map_err(|error| convert(&folder.display().to_string(), &error))?;
        Ok(Self {
            cached,
            below,
            requests,
        })
    }

    /// Returns the store with the cache before it.
    pub(crate) fn cached(&self) -> Arc<dyn ObjectStore> {
        Arc::clone(&self.cached)
    }

    /// Returns the store without the cache, and its requests.
    pub(crate) fn below(&self) -> (Arc<dyn ObjectStore>, Arc<Requests>) {
        (Arc::clone(&self.below), Arc::clone(&self.requests))
    }
}
