//! The distribution of the memory of the process.
//!
//! | part | default |
//! |---|---|
//! | memtables | 384 MiB, at most an eighth of memory; they take about 1.3 times as much |
//! | blocks of tables for reading | 256 MiB, at most a sixteenth |
//! | opened buckets for queries | 256 MiB, at most a sixteenth (`nilometerBucketCacheBytes`) |
//! | open buckets | a fortieth (`timeseriesIdleBucketExpiryMemoryUsageThreshold`) |
//! | lists and summaries of sealed buckets, numbers of metadata, plans | a sixty-fourth each; about 300, 32 and 32 MiB |
//! | stages of queries | half (`nilometerQueryMemoryBytes`) |
//!
//! Not included: running commands, their messages, threads, small structures. The transport bounds
//! messages; with little memory, batches of several documents are made smaller ([`batch_bytes_max`]), and
//! clients fetch the rest with `getMore`.

use nilometer_storage::LsmOptions;

use super::Database;
use crate::query::exec::REPLY_BYTES_MAX;
use crate::query::planner::access::cache::PLAN_CACHE_BYTES_MAX;
use crate::services::Services;
use crate::timeseries::{BUCKET_CATALOG_BYTES_MAX, ReadCacheBytes};

/// Memory limit of all queries if the memory of the machine is unknown.
const QUERY_MEMORY_UNKNOWN: u64 = 1 << 30;

/// Divisor of memory for open buckets: 2.5 %.
const OPEN_BUCKETS_SHARE: u64 = 40;

/// Divisor of memory for the default bucket cache.
const BUCKET_CACHE_SHARE: u64 = 16;

/// Divisor of memory for each of the small caches.
const SMALL_CACHE_SHARE: u64 = 64;

/// Divisor of memory for a reply of several documents.
const BATCH_SHARE: u64 = 128;

/// Least size of a reply of several documents.
const BATCH_BYTES_MIN: u64 = 1 << 20;

/// Returns the most bytes of a reply of several documents.
pub(super) fn batch_bytes_max(services: &Services) -> usize {
    let share = services.memory_limit().map(|limit| limit / BATCH_SHARE);
    let bytes = share.map(|bytes| bytes.max(BATCH_BYTES_MIN));
    bytes.map_or(REPLY_BYTES_MAX, |bytes| {
        super::size(bytes).min(REPLY_BYTES_MAX)
    })
}

/// The budget of each part, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryBudgets {
    pub(super) memtables: u64,
    pub(super) blocks: u64,
    pub(super) bucket_cache: u64,
    pub(super) open_buckets: u64,
    pub(super) bucket_lists: u64,
    pub(super) meta_numbers: u64,
    pub(super) plans: u64,
    pub(super) queries: u64,
}

impl MemoryBudgets {
    /// Computes the budgets from the parameters and the memory limit.
    pub(super) fn of(services: &Services) -> Self {
        let given = &services.parameters;
        let limit = services.memory_limit();
        let set = |value: i64| u64::try_from(value).ok().filter(|bytes| *bytes > 0);
        let engine = LsmOptions::within(limit);
        let cache = u64::try_from(given.nilometer_bucket_cache_bytes()).unwrap_or(0);
        let cache_unless_set = ReadCacheBytes::DEFAULT_MAX.opened_buckets as u64;
        let small_cache = |most: usize| match limit {
            Some(limit) => (most as u64).min(limit / SMALL_CACHE_SHARE),
            None => most as u64,
        };
        Self {
            memtables: engine.memory_bytes_max / 10 * 13,
            blocks: engine.block_cache_bytes,
            bucket_cache: match limit {
                Some(limit) if cache == cache_unless_set => cache.min(limit / BUCKET_CACHE_SHARE),
                _ => cache,
            },
            open_buckets: set(given.timeseries_idle_bucket_expiry_memory_usage_threshold())
                .or(limit.map(|limit| limit / OPEN_BUCKETS_SHARE))
                .unwrap_or(BUCKET_CATALOG_BYTES_MAX as u64),
            bucket_lists: small_cache(ReadCacheBytes::DEFAULT_MAX.bucket_lists),
            meta_numbers: small_cache(ReadCacheBytes::DEFAULT_MAX.interned),
            plans: small_cache(PLAN_CACHE_BYTES_MAX),
            queries: set(given.nilometer_query_memory_bytes())
                .or(limit.map(|limit| limit / 2))
                .unwrap_or(QUERY_MEMORY_UNKNOWN),
        }
    }

    /// Returns the limits of the cache of buckets.
    pub(super) fn read_cache(&self) -> ReadCacheBytes {
        ReadCacheBytes {
            opened_buckets: super::size(self.bucket_cache),
            bucket_lists: super::size(self.bucket_lists),
            interned: super::size(self.meta_numbers),
        }
    }

    /// Returns the sum of all budgets.
    pub(super) fn total(&self) -> u64 {
        let parts = [
            self.memtables,
            self.blocks,
            self.bucket_cache,
            self.open_buckets,
            self.bucket_lists,
            self.meta_numbers,
            self.plans,
            self.queries,
        ];
        parts.into_iter().fold(0, u64::saturating_add)
    }
}

/// The use and the budget of one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryPart {
    pub(crate) name: &'static str,
    pub(crate) bytes: u64,
    pub(crate) bytes_max: u64,
}

impl Database {
    /// Returns the use and budget of each part. The overhead of the allocator is not counted.
    pub(crate) fn memory_parts(&self) -> [MemoryPart; 8] {
        let plan = MemoryBudgets::of(&self.services);
        let engine = self.engine().statistics();
        let timeseries = self.timeseries();
        let part = |name, bytes, bytes_max| MemoryPart {
            name,
            bytes,
            bytes_max,
        };
        let memtables = engine.memory_bytes + engine.pinned_bytes;
        let cache = timeseries.cache.memory_bytes();
        let open = timeseries.bucket_catalog.memory_bytes() as u64;
        let plans = self.queries().plans.memory_bytes() as u64;
        [
            part("memtables", memtables, plan.memtables),
            part("blocks", engine.cache_bytes, plan.blocks),
            part(
                "openedBuckets",
                cache.opened_buckets as u64,
                plan.bucket_cache,
            ),
            part("openBuckets", open, plan.open_buckets),
            part("bucketLists", cache.bucket_lists as u64, plan.bucket_lists),
            part("metadataNumbers", cache.interned as u64, plan.meta_numbers),
            part("plans", plans, plan.plans),
            part("queries", self.queries().memory.used(), plan.queries),
        ]
    }

    /// Returns the sum of all budgets in bytes.
    pub fn memory_planned_bytes(&self) -> u64 {
        MemoryBudgets::of(&self.services).total()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::{Environment, HostFacts};

    const MIB: u64 = 1 << 20;

    fn plan(memory_bytes: u64, set: &[(&str, &str)]) -> MemoryBudgets {
        let host = HostFacts {
            memory_limit_bytes: memory_bytes,
            ..HostFacts::default()
        };
        let environment = Environment {
            host,
            ..Environment::default()
        };
        for (name, value) in set {
            let set = environment.parameters.set_at_startup(name, value);
            set.expect("a parameter");
        }
        MemoryBudgets::of(&Services::new(environment))
    }

    #[test]
    fn default_budgets_fit_any_memory() {
        for mib in [256, 512, 1024, 4096, 24_000, 500_000] {
            let planned = plan(mib * MIB, &[]).total();
            assert!(planned <= mib * MIB * 9 / 10, "{planned} of {mib} MiB");
        }
        let large = plan(24_000 * MIB, &[]);
        assert_eq!(large.blocks, 256 * MIB);
        assert_eq!(large.bucket_cache, 256 * MIB);
        let unknown = plan(0, &[]);
        assert_eq!(unknown.queries, QUERY_MEMORY_UNKNOWN);
    }

    #[test]
    fn parameters_override_default_budgets() {
        let set = [
            ("nilometerBucketCacheBytes", "1000000000"),
            ("nilometerQueryMemoryBytes", "2000000000"),
        ];
        let plan = plan(512 * MIB, &set);
        assert_eq!(plan.bucket_cache, 1_000_000_000);
        assert_eq!(plan.queries, 2_000_000_000);
        assert!(plan.total() > 512 * MIB);
    }
}
