//! The cache of tables on a local disk, which the views of a server share with the engine that it opens when it writes.
//!
//! ```text
//! views ─► objects of the log in memory ─┬─► parts of tables in memory, and in files below `SlateOptions::cache_path` ─► store
//! engine ────────────────────────────────┘
//! ```
//!
//! Tables never change, so what one of them has read is true for all. One cache has one bound: two over one folder would each
//! count their own files alone.

use std::fmt;
use std::sync::Arc;

use nilometer_storage::Result;
use object_store::ObjectStore;

use crate::options::SlateOptions;
use crate::requests::Requests;
use crate::table_parts::TableParts;

/// The cache. Clones share it.
#[derive(Clone)]
pub struct DiskCache {
    parts: Arc<TableParts>,
    below: Arc<dyn ObjectStore>,
    requests: Arc<Requests>,
}

impl fmt::Debug for DiskCache {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("DiskCache")
    }
}

impl DiskCache {
    /// Opens the cache that the options describe, of a store whose requests are counted.
    pub(crate) fn open(
        options: &SlateOptions,
        below: Arc<dyn ObjectStore>,
        requests: Arc<Requests>,
    ) -> Result<Self> {
        Ok(Self {
            parts: Arc::new(options.table_parts()?),
            below,
            requests,
        })
    }

    /// Returns its parts of tables.
    pub(crate) fn parts(&self) -> Arc<TableParts> {
        Arc::clone(&self.parts)
    }

    /// Returns the store without the cache, and its requests.
    pub(crate) fn below(&self) -> (Arc<dyn ObjectStore>, Arc<Requests>) {
        (Arc::clone(&self.below), Arc::clone(&self.requests))
    }
}
