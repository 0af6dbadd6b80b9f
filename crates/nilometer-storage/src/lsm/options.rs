//! Limits and sizes of the embedded engine.

use std::sync::Arc;
use std::time::Duration;

use crate::file_system::{FileSystem, RealFileSystem};

const MIB: u64 = 1024 * 1024;

/// Minimum bytes of a segment; smaller options are raised to it.
const SEGMENT_BYTES_MIN: u64 = 4096;

/// Minimum bytes of memtables, and of cached blocks, on small machines.
const MEMORY_MIN: u64 = 8 * MIB;

/// Minimum number of segments at the cap of the log.
const SEGMENTS_MIN: u64 = 4;

/// Options of [`LsmEngine`](super::LsmEngine). All may differ from one opening to the next.
#[derive(Clone)]
pub struct LsmOptions {
    /// Bytes of log files at which commits wait for flushes. Bounds the time of recovery. Default 384 MiB.
    pub log_bytes_max: u64,
    /// Bytes of one log file, at most a quarter of `log_bytes_max`. Default 64 MiB.
    pub segment_bytes: u64,
    /// Bytes of log and spare files above which the log shrinks when the database is closed, or nothing was written for
    /// `rest_period`: the memtables that need it are flushed. Default 16 MiB.
    pub log_rest_bytes: u64,
    /// Default 10 s.
    pub rest_period: Duration,
    /// Size at which the memtable of one keyspace is flushed. Default 64 MiB.
    pub memtable_bytes: u64,
    /// Size of all memtables together at which commits wait. From three quarters of it on the largest is flushed. Real
    /// memory is about 1.3 times as much. Default 384 MiB.
    pub memory_bytes_max: u64,
    /// Bytes of the block cache, shared by all keyspaces. Default 256 MiB.
    pub block_cache_bytes: u64,
    /// Maximum number of open table files. Default 512.
    pub open_files_max: usize,
    /// Values at least this long are separated in keyspaces with `separate_values`. Default 1 KiB.
    pub separation_bytes: u32,
    /// Target size of one file of tables or separated values. Default 64 MiB.
    pub table_bytes: u64,
    /// Threads that merge tables. Default 1. Flushing has a separate thread.
    pub compaction_threads: usize,
    /// Time a scan takes to its first entry from which on later scans begin behind the keys it passed. Default 20 µs.
    pub slow_search: Duration,
    /// The file system of the log. Only tests replace it.
    pub file_system: Arc<dyn FileSystem>,
}

impl Default for LsmOptions {
    fn default() -> Self {
        Self {
            log_bytes_max: 384 * MIB,
            segment_bytes: 64 * MIB,
            log_rest_bytes: 16 * MIB,
            rest_period: Duration::from_secs(10),
            memtable_bytes: 64 * MIB,
            memory_bytes_max: 384 * MIB,
            block_cache_bytes: 256 * MIB,
            open_files_max: 512,
            separation_bytes: 1024,
            table_bytes: 64 * MIB,
            compaction_threads: 1,
            slow_search: Duration::from_micros(20),
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
    /// Returns sizes for tests, so small that a few hundred writes flush, merge, rotate and stall.
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
            slow_search: Duration::ZERO,
            ..Self::default()
        }
    }

    /// Returns the defaults for a process that may use `memory_bytes`, if known: at most an eighth for memtables and a
    /// sixteenth for the block cache.
    pub fn within(memory_bytes: Option<u64>) -> Self {
        let mut options = Self::default();
        if let Some(bytes) = memory_bytes {
            options.memory_bytes_max = options.memory_bytes_max.min(bytes / 8).max(MEMORY_MIN);
            options.memtable_bytes = options.memtable_bytes.min(options.memory_bytes_max / 4);
            options.block_cache_bytes = options.block_cache_bytes.min(bytes / 16).max(MEMORY_MIN);
        }
        options
    }

    /// Returns consistent options.
    pub(crate) fn normalized(mut self) -> Self {
        self.log_bytes_max = self.log_bytes_max.max(SEGMENTS_MIN * SEGMENT_BYTES_MIN);
        let segment_max = self.log_bytes_max / SEGMENTS_MIN;
        self.segment_bytes = self.segment_bytes.clamp(SEGMENT_BYTES_MIN, segment_max);
        self.memtable_bytes = self.memtable_bytes.max(1);
        self.memory_bytes_max = self.memory_bytes_max.max(2 * self.memtable_bytes);
        self.compaction_threads = self.compaction_threads.max(1);
        self
    }

    /// Returns the size at which a write buffer is flushed. It is large because entries deleted before the flush are
    /// never written.
    pub(crate) fn write_buffer_bytes(&self) -> u64 {
        self.memory_bytes_max / 2
    }

    /// Returns the memory at which flushing begins.
    pub(crate) fn memory_flush_bytes(&self) -> u64 {
        self.memory_bytes_max / 4 * 3
    }

    /// Returns the log size at which the trees that hold the oldest segment are flushed.
    pub(crate) fn log_flush_bytes(&self) -> u64 {
        self.log_bytes_max / 4 * 3
    }
}
