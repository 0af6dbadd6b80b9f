//! What readers of buckets keep in memory: one cache with named parts and one set of limits.
//!
//! ```text
//! scan ─► sealed_lists ─► opened buckets ─► columns of the query
//!         latest_lists      │
//! plan ─► series_lists      │
//!         index_entries     │      of small indexes
//! scan ─► summary_blocks ───┤   headers and totals, many buckets in a block
//! seal ─► prefetch queue    └─ interner: ids of metadata and constants, names of columns
//! ```
//!
//! Every entry answers for one version of what it was made from, which the reader's snapshot shows, so no writer
//! invalidates anything: [`version_cache`] for the lists of an index or a registry. Each part can be emptied at any moment: a scan then reads storage again.
//!
//! Does not read storage and does not decide which buckets a query reads: that is [`super::scan`].

pub(crate) mod bucket_cache;
pub(crate) mod document_content;
pub(crate) mod index_entries;
pub(crate) mod interner;
pub(crate) mod latest_bucket_list;
pub(crate) mod opened_bucket;
pub(crate) mod prefetch;
pub(crate) mod sealed_bucket_list;
pub(crate) mod series_list;
pub(crate) mod summary_blocks;
mod tail_columns;
pub(crate) mod tail_content;
mod version_cache;

use std::sync::Arc;

use super::format::keyspaces::BucketKeyspaces;

use bucket_cache::{BUCKET_CACHE_BYTES_MAX, BucketCache};
use index_entries::{INDEX_ENTRIES_BYTES_MAX, IndexEntriesCache};
use interner::{INTERNER_BYTES_MAX, Interner};
use latest_bucket_list::{LATEST_LIST_BYTES_MAX, LatestBucketLists};
use prefetch::PrefetchQueue;
use sealed_bucket_list::{SEALED_LIST_BYTES_MAX, SealedBucketLists};
use series_list::{SERIES_LIST_BYTES_MAX, SeriesLists};
use summary_blocks::{SUMMARY_BYTES_MAX, SummaryBlocks};

/// The lists of latest buckets, those of series, and entries of indexes, each take at most one part in this many of the limit of all lists.
const LIST_SHARE: usize = 4;

/// Memory of the parts of the cache, in bytes: in use, or allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadCacheBytes {
    /// Opened buckets with their decoded columns.
    pub opened_buckets: usize,
    /// Lists of sealed buckets, of the latest buckets of each series, and of series; entries of indexes; summaries of buckets.
    pub bucket_lists: usize,
    /// Ids of metadata and constants, names of columns.
    pub interned: usize,
}

impl ReadCacheBytes {
    /// The default limits.
    pub const DEFAULT_MAX: Self = Self {
        opened_buckets: BUCKET_CACHE_BYTES_MAX,
        bucket_lists: SEALED_LIST_BYTES_MAX
            + LATEST_LIST_BYTES_MAX
            + SERIES_LIST_BYTES_MAX
            + INDEX_ENTRIES_BYTES_MAX
            + SUMMARY_BYTES_MAX,
        interned: INTERNER_BYTES_MAX,
    };
}

/// The cache of one database.
pub struct ReadCache {
    pub(crate) buckets: BucketCache,
    pub(crate) sealed_lists: SealedBucketLists,
    pub(crate) latest_lists: LatestBucketLists,
    pub(crate) series_lists: SeriesLists,
    pub(crate) index_entries: IndexEntriesCache,
    pub(crate) summary_blocks: SummaryBlocks,
    pub(crate) interner: Arc<Interner>,
    /// Buckets that were sealed lately, to be opened before a reader requests them.
    pub(crate) prefetch: Arc<PrefetchQueue>,
}

impl ReadCache {
    /// Returns an empty cache with the default limits, which prefetches the buckets of `prefetch`.
    pub(crate) fn new(prefetch: Arc<PrefetchQueue>) -> Self {
        Self {
            buckets: BucketCache::default(),
            sealed_lists: SealedBucketLists::default(),
            latest_lists: LatestBucketLists::default(),
            series_lists: SeriesLists::default(),
            index_entries: IndexEntriesCache::default(),
            summary_blocks: SummaryBlocks::default(),
            interner: Arc::default(),
            prefetch,
        }
    }

    /// Changes the limits. Opened buckets beyond theirs are evicted now, the other parts shrink with the next insertion.
    pub fn set_limits(&self, limits: ReadCacheBytes) {
        let summaries = (limits.bucket_lists / 3 * 2).min(SUMMARY_BYTES_MAX);
        self.summary_blocks.set_bytes_max(summaries);
        let lists = limits.bucket_lists - summaries;
        let share = lists / LIST_SHARE;
        let latest = share.min(LATEST_LIST_BYTES_MAX);
        let series = share.min(SERIES_LIST_BYTES_MAX);
        let entries = share.min(INDEX_ENTRIES_BYTES_MAX);
        self.latest_lists.set_bytes_max(latest);
        self.series_lists.set_bytes_max(series);
        self.index_entries.set_bytes_max(entries);
        self.sealed_lists
            .set_bytes_max(lists - latest - series - entries);
        self.interner.set_bytes_max(limits.interned);
        self.set_opened_bytes_max(limits.opened_buckets);
    }

    /// Changes the limit of opened buckets alone; 0 keeps none.
    pub fn set_opened_bytes_max(&self, bytes: usize) {
        self.buckets.set_bytes_max(bytes);
    }

    /// Returns the memory in use.
    pub fn memory_bytes(&self) -> ReadCacheBytes {
        ReadCacheBytes {
            opened_buckets: self.buckets.memory_bytes(),
            bucket_lists: self.sealed_lists.memory_bytes()
                + self.latest_lists.memory_bytes()
                + self.series_lists.memory_bytes()
                + self.index_entries.memory_bytes()
                + self.summary_blocks.memory_bytes(),
            interned: self.interner.memory_bytes(),
        }
    }

    /// Evicts all opened buckets.
    pub fn clear_opened(&self) {
        self.buckets.clear();
    }

    /// Removes what it keeps of a dropped collection.
    pub(crate) fn forget(&self, keyspaces: BucketKeyspaces) {
        self.sealed_lists.forget(keyspaces.sealed);
        if let Some(summaries) = keyspaces.summaries {
            self.summary_blocks.forget(summaries);
        }
        if let Some(registry) = keyspaces.registry {
            self.series_lists.forget(registry);
        }
    }
}
