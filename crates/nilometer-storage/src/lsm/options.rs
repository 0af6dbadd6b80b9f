//! Limits and sizes of the embedded engine.

use std::sync::Arc;

use crate::file_system::{FileSystem, RealFileSystem};

const MIB: u64 = 1024 * 1024;

/// Fewest bytes of a segment; smaller options are raised to it.
const SEGMENT_BYTES_MIN: u64 = 4096;

/// Fewest bytes of memtables, and of cached blocks, however little memory there is.
const MEMORY_MIN: u64 = 8 * MIB;

/// Segments the log may hold at its cap, at least.
const SEGMENTS_MIN: u64 = 4;

/// Options of [`LsmEngine`](super::LsmEngine). All may differ from one opening to the next.
#[derive(Clone)]
pub struct LsmOptions {
    /// Bytes of log files before commits wait for memtables to be written out. Bounds the time a
    /// start after a crash takes. Default 384 MiB.
    pub log_bytes_max: u64,
    /// Bytes of one log file, at most a quarter of `log_bytes_max`. Default 64 MiB.
    pub segment_bytes: u64,
    /// Size at which the memtable of one keyspace is written out. Default 64 MiB.
    pub memtable_bytes: u64,
    /// Size of all memtables together before commits wait. Writing out the largest begins at three
    /// quarters of it. Real memory is about 1.3 times as much. Default 384 MiB.
    pub memory_bytes_max: u64,
    /// Bytes of blocks kept in memory for reading, for all keyspaces together. Default 256 MiB.
    pub block_cache_bytes: u64,
    /// Files of tables kept open. Default 512.
    pub open_files_max: usize,
    /// Values at least this long are kept apart in keyspaces with `separate_values`. Default 1 KiB.
    pub separation_bytes: u32,
    /// Target size of one file of tables or separated values. Default 64 MiB.
    pub table_bytes: u64,
    /// Threads that merge tables. Default 1; flushing has a thread of its own.
    pub compaction_threads: usize,
    /// File operations of the log; only tests replace them.
    pub file_system: Arc<dyn FileSystem>,
}

impl Default for LsmOptions {
    fn default() -> Self {
        Self {
            log_bytes_max: 384 * MIB,
            segment_bytes: 64 * MIB,
            memtable_bytes: 64 * MIB,
            memory_bytes_max: 384 * MIB,
            block_cache_bytes: 256 * MIB,
            open_files_max: 512,
            separation_bytes: 1024,
            table_bytes: 64 * MIB,
            compaction_threads: 1,
            file_system: Arc::new(RealFileSystem),
        }
    }
}

impl std::fmt::Debug for LsmOptions {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("LsmOptions")
            .field("log_bytes_max", &self.log_bytes_max)
            .field("segment_bytes", &self.segment_bytes)
            .field("memtable_bytes", &self.memtable_bytes)
            .field("memory_bytes_max", &self.memory_bytes_max)
            .field("block_cache_bytes", &self.block_cache_bytes)
            .finish_non_exhaustive()
    }
}

impl LsmOptions {
    /// Sizes for tests: everything is small, so that a few hundred writes flush, merge, rotate and
    /// stall.
    pub fn tiny() -> Self {
        Self {
            log_bytes_max: 256 * 1024,
            segment_bytes: 32 * 1024,
            memtable_bytes: 32 * 1024,
            memory_bytes_max: 128 * 1024,
            block_cache_bytes: 256 * 1024,
            open_files_max: 16,
            separation_bytes: 128,
            table_bytes: 64 * 1024,
            ..Self::default()
        }
    }

    /// The defaults for a process that may have so many bytes of memory, if that is known: memtables take no more
    /// than an eighth of them, blocks for reading a sixteenth.
    pub fn within(memory_bytes: Option<u64>) -> Self {
        let mut options = Self::default();
        if let Some(bytes) = memory_bytes {
            options.memory_bytes_max = options.memory_bytes_max.min(bytes / 8).max(MEMORY_MIN);
            options.memtable_bytes = options.memtable_bytes.min(options.memory_bytes_max / 4);
            options.block_cache_bytes = options.block_cache_bytes.min(bytes / 16).max(MEMORY_MIN);
        }
        options
    }

    /// The same options, made to fit each other.
    pub(crate) fn normalized(mut self) -> Self {
        self.log_bytes_max = self.log_bytes_max.max(SEGMENTS_MIN * SEGMENT_BYTES_MIN);
        let segment_max = self.log_bytes_max / SEGMENTS_MIN;
        self.segment_bytes = self.segment_bytes.clamp(SEGMENT_BYTES_MIN, segment_max);
        self.memtable_bytes = self.memtable_bytes.max(1);
        self.memory_bytes_max = self.memory_bytes_max.max(2 * self.memtable_bytes);
        self.compaction_threads = self.compaction_threads.max(1);
        self
    }

    /// Size at which what takes the batches of a short-lived keyspace is written out. Large: what is deleted before
    /// that is never written.
    pub(crate) fn write_buffer_bytes(&self) -> u64 {
        self.memory_bytes_max / 2
    }

    /// Memory at which writing out begins.
    pub(crate) fn memory_flush_bytes(&self) -> u64 {
        self.memory_bytes_max / 4 * 3
    }

    /// Log size at which the trees that hold the oldest segment are written out.
    pub(crate) fn log_flush_bytes(&self) -> u64 {
        self.log_bytes_max / 4 * 3
    }
}
