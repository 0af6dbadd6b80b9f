//! Sizes and intervals of the engine, and the settings of SlateDB that follow from them.

use std::path::PathBuf;
use std::time::Duration;

use nilometer_storage::Result;
use slatedb::config::{
    CompactionWorkerOptions, CompactorOptions, CompressionCodec, GarbageCollectorDirectoryOptions,
    GarbageCollectorOptions, Settings,
};

use crate::claim::Lease;
use crate::disk_cache::DiskCache;
use crate::table_parts::TableParts;

/// Least age at which an object of the log or a table that is no longer referred to is deleted. A reader or an old
/// writer that is paused for longer may find objects missing.
const GARBAGE_AGE: Duration = Duration::from_secs(6 * 60 * 60);

/// Snapshots are kept for the time of a batch of a scan. This is much longer.
const DROPPED_KEYSPACES_STAY: Duration = Duration::from_secs(60 * 60);

/// Small tables at which writers wait when a separate compactor merges them: it may be started again meanwhile.
const TABLES_WITHOUT_COMPACTOR_MAX: usize = 64;

/// Interval of the garbage collection.
const GARBAGE_INTERVAL: Duration = Duration::from_secs(10 * 60);

/// Least bytes of memtables, of cached blocks, and of parts of tables, on small machines.
const MEMORY_MIN: usize = 8 * 1024 * 1024;

/// Options of a [`SlateEngine`](crate::SlateEngine).
#[derive(Clone, Debug)]
pub struct SlateOptions {
    /// Longest time between a synced commit and the start of the request that stores it. At most one object of the log is
    /// written in this time, so it bounds the cost of requests; a large batch is an object of its own, at once.
    pub flush_interval: Duration,
    /// Bytes of a memtable. After a kill at most about this much of the log is read again.
    pub memtable_bytes: usize,
    /// Bytes of memtables and of the log in memory at which writers wait.
    pub memory_bytes_max: usize,
    /// Bytes of the cache of blocks in memory.
    pub block_cache_bytes: u64,
    /// Bytes of parts of tables in memory: what was read with a block and may be asked for next.
    pub table_parts_bytes: u64,
    /// The folder of a cache of tables on a local disk, if there is to be one.
    pub cache_path: Option<PathBuf>,
    /// Bytes of that cache.
    pub cache_path_bytes: usize,
    /// The cache of a reader in this process, which an engine uses in place of one of its own.
    pub disk_cache: Option<DiskCache>,
    /// The time for which no other process takes over. When it has passed, [`Engine::confirm`] asks the store.
    ///
    /// [`Engine::confirm`]: nilometer_storage::Engine::confirm
    pub lease: Option<Lease>,
    /// Interval at which tables are looked over and merged.
    pub merge_interval: Duration,
    /// True if the engine merges tables and deletes garbage. Otherwise a [`SlateCompactor`](crate::SlateCompactor) must: if
    /// none does, writers wait when there are many small tables.
    pub merges_itself: bool,
    /// Time for which a separate compactor keeps the entries of a dropped keyspace. No snapshot must be older.
    pub dropped_keyspaces_stay: Duration,
    /// True if the store replaces an object only if it is a certain version. Without this an old writer must not be
    /// paused for longer than garbage is kept.
    pub has_conditional_overwrites: bool,
    /// Threads of the runtime.
    pub threads: usize,
}

impl Default for SlateOptions {
    fn default() -> Self {
        Self {
            flush_interval: Duration::from_millis(20),
            memtable_bytes: 16 * 1024 * 1024,
            memory_bytes_max: 128 * 1024 * 1024,
            block_cache_bytes: 256 * 1024 * 1024,
            table_parts_bytes: 32 * 1024 * 1024,
            cache_path: None,
            cache_path_bytes: 16 * 1024 * 1024 * 1024,
            disk_cache: None,
            merge_interval: Duration::from_secs(5),
            merges_itself: true,
            lease: None,
            dropped_keyspaces_stay: DROPPED_KEYSPACES_STAY,
            has_conditional_overwrites: true,
            threads: 4,
        }
    }
}

impl SlateOptions {
    /// Returns the defaults for a process that may use `memory_bytes`, if known: at most an eighth for memtables and the
    /// log, a sixteenth for the cache of blocks, and a 64th for parts of tables.
    pub fn within(memory_bytes: Option<u64>) -> Self {
        let mut options = Self::default();
        if let Some(bytes) = memory_bytes {
            let eighth = usize::try_from(bytes / 8).unwrap_or(usize::MAX);
            options.memory_bytes_max = options.memory_bytes_max.min(eighth).max(MEMORY_MIN);
            options.memtable_bytes = options.memtable_bytes.min(options.memory_bytes_max / 4);
            let sixteenth = (bytes / 16).max(MEMORY_MIN as u64);
            options.block_cache_bytes = options.block_cache_bytes.min(sixteenth);
            let parts = (bytes / 64).max(MEMORY_MIN as u64);
            options.table_parts_bytes = options.table_parts_bytes.min(parts);
        }
        options
    }

    /// Returns options with which every step comes soon. For tests.
    #[doc(hidden)]
    pub fn tiny() -> Self {
        Self {
            flush_interval: Duration::from_millis(1),
            memtable_bytes: 64 * 1024,
            memory_bytes_max: 1024 * 1024,
            block_cache_bytes: 1024 * 1024,
            table_parts_bytes: 2 * 1024 * 1024,
            merge_interval: Duration::from_millis(10),
            threads: 2,
            ..Self::default()
        }
    }

    /// Opens the parts of tables that are kept, those on the disk included.
    pub(crate) fn table_parts(&self) -> Result<TableParts> {
        let file_bytes = self.cache_path_bytes as u64;
        match &self.cache_path {
            Some(folder) => TableParts::in_folder(self.table_parts_bytes, folder, file_bytes),
            None => Ok(TableParts::in_memory(self.table_parts_bytes)),
        }
    }

    /// Returns the settings of an engine.
    pub(crate) fn settings(&self) -> Settings {
        let mut settings = self.settings_of_compactor();
        if !self.merges_itself {
            settings.compactor_options = None;
            settings.garbage_collector_options = None;
            settings.l0_max_ssts = TABLES_WITHOUT_COMPACTOR_MAX;
            settings.l0_max_ssts_per_key = TABLES_WITHOUT_COMPACTOR_MAX;
        }
        settings
    }

    /// Returns the settings with those of merges and of the garbage collection.
    pub(crate) fn settings_of_compactor(&self) -> Settings {
        let compression_codec = Some(CompressionCodec::Lz4);
        let worker = CompactionWorkerOptions {
            compactions_poll_interval: self.merge_interval,
            compression_codec,
            ..CompactionWorkerOptions::default()
        };
        let compactor = CompactorOptions {
            poll_interval: self.merge_interval,
            commit_compacted_interval: self.merge_interval.min(Duration::from_secs(1)),
            worker: Some(worker),
            ..CompactorOptions::default()
        };
        Settings {
            // `log_flush` does this.
            flush_interval: None,
            l0_sst_size_bytes: self.memtable_bytes,
            max_unflushed_bytes: self.memory_bytes_max,
            compression_codec,
            compactor_options: Some(compactor),
            garbage_collector_options: Some(self.garbage_options()),
            ..Settings::default()
        }
    }

    fn garbage_options(&self) -> GarbageCollectorOptions {
        let directory = Some(GarbageCollectorDirectoryOptions {
            interval: Some(GARBAGE_INTERVAL),
            min_age: GARBAGE_AGE,
            dry_run: false,
        });
        GarbageCollectorOptions {
            manifest_options: directory,
            wal_options: directory,
            // A fence that is deleted would let an old writer write again.
            wal_fence_options: None,
            compacted_options: directory,
            compactions_options: directory,
            boundary_files_enabled: self.has_conditional_overwrites,
            ..GarbageCollectorOptions::default()
        }
    }
}
