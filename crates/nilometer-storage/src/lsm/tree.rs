//! One keyspace: a tree of `lsm-tree` and the engine's state for it.
//!
//! Rules for sequence numbers that this module and its callers keep. Breaking one gives wrong reads:
//!
//! 1. The tree gets a *dummy* as its visible counter; see [`super::read_sequences`].
//! 2. Its memtable is rotated only under the log lock and the apply lock together, so that no batch is between
//!    "number drawn" and "inserted". [`Tree::rotate`] takes both guards to prove it.
//! 3. One key occurs once per sequence number; batches are deduplicated first.
//! 4. Every watermark passed down comes from [`ReadSequences::watermark`](super::read_sequences::ReadSequences).
//!
//! Calls into the tree are fenced: read failures become [`Error::Corruption`], and so do panics (the tree asserts on
//! some damage).

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lsm_tree::config::{BlockSizePolicy, RestartIntervalPolicy};
use lsm_tree::{
    AbstractTree, AnyTree, Cache, CompressionType, Config, DescriptorTable, KvSeparationOptions,
    Memtable, SequenceNumberCounter, Slice,
};

use super::batch::memtable_entry;
use super::directory::{self, Directory, DirectoryLock};
use super::empty_ranges::EmptyRanges;
use super::log::LogState;
use super::manifest;
use super::options::LsmOptions;
use super::orphaned_files;
use super::pending_io::PendingIo;
use super::superseded::{Remedy, older_versions, remedy, without_superseded};
use super::write_buffer::{WriteBuffer, WriteBuffers};
use crate::engine::Keyspace;
use crate::error::{Error, Result};
use crate::lock::lock;

/// Entries of a block from one whole key to the next; the entries between store only how they differ. A point read
/// scans this many entries. With the library's 16, the scan took most of the time of finding a bucket by its series
/// among a million.
const RESTART_INTERVAL: u8 = 4;

/// Bytes of a block before compression: the library's default.
const BLOCK_BYTES: u32 = 4096;

/// Bytes of a block in keyspaces with large blocks: see decision 0041.
const LARGE_BLOCK_BYTES: u32 = 8 * 1024;

/// A watermark above every sequence number: for recovery, when there are no readers.
pub(crate) const NO_READERS: u64 = 0x7fff_ffff_ffff_ffff;

/// State shared by all trees of one engine.
pub(crate) struct TreeContext {
    pub(crate) directory: Directory,
    pub(crate) options: LsmOptions,
    pub(crate) sequence: SequenceNumberCounter,
    pub(crate) cache: Arc<Cache>,
    pub(crate) descriptors: Arc<DescriptorTable>,
    /// Bytes in all memtables.
    pub(crate) memory: Arc<AtomicU64>,
    /// File system calls in flight.
    pub(crate) pending_io: Arc<PendingIo>,
    /// Whether the folders of empty trees, without and with separated values, are there; see [`super::first_flush`].
    pub(super) empty_trees: Mutex<[bool; 2]>,
}

/// One keyspace. See the module head.
pub(crate) struct Tree {
    pub(crate) keyspace: Keyspace,
    pub(crate) path: PathBuf,
    pub(crate) inner: AnyTree,
    /// One flush at a time.
    pub(crate) flushing: Mutex<()>,
    /// One round of compaction at a time.
    pub(crate) compacting: Mutex<()>,
    /// Highest sequence number inserted.
    applied_through: AtomicU64,
    /// Every number up to this one is in tables, or its entries are deleted by durable batches.
    flushed_through: AtomicU64,
    /// Rotated and replaced memtables. Once their entries are elsewhere, each is kept until no version refers to it, so
    /// that it is never freed under the tree's lock.
    memtables: Mutex<Memtables>,
    /// Write buffers of a short-lived keyspace. Its memtable only receives entries that are being flushed.
    write_buffers: Option<Mutex<WriteBuffers>>,
    sealed_count: AtomicUsize,
    l0_runs: AtomicUsize,
    /// Versions inserted into the active memtable over an older one of their key; see [`super::superseded`].
    superseded: AtomicUsize,
    /// Where scans need not look.
    pub(super) empty_ranges: EmptyRanges,
    /// Time to the first entry of a scan that is long.
    pub(super) slow_search: Duration,
    dropped: AtomicBool,
    /// True until the first flush begins; see [`super::first_flush`].
    unflushed: AtomicBool,
    /// True if a failed step may have left files; see [`super::orphaned_files`].
    pub(super) orphaned_files: AtomicBool,
    memory: Arc<AtomicU64>,
    /// The open files of all trees.
    descriptors: Arc<DescriptorTable>,
    /// Must be the last field: the directory stays locked while the tree may touch files.
    _lock: Option<DirectoryLock>,
}

#[derive(Default)]
struct Memtables {
    sealed: Vec<Arc<Memtable>>,
    flushed: Vec<Arc<Memtable>>,
}

impl Tree {
    /// Opens the files of a keyspace that was flushed before.
    pub(crate) fn open(context: &TreeContext, keyspace: Keyspace) -> Result<Self> {
        let path = directory::tree_path(&context.directory.trees(), keyspace.id.0);
        orphaned_files::remove_unrenamed(&path);
        manifest::verify(&path)?;
        Self::open_unchecked(context, keyspace, path, false)
    }

    /// Opens the files at `path`. `lsm-tree` creates them if there are none.
    pub(super) fn open_unchecked(
        context: &TreeContext,
        keyspace: Keyspace,
        path: PathBuf,
        unflushed: bool,
    ) -> Result<Self> {
        let options = &context.options;
        let separation = keyspace.options.separate_values.then(|| {
            KvSeparationOptions::default()
                .compression(CompressionType::None)
                .separation_threshold(options.separation_bytes)
                .file_target_size(options.table_bytes)
                .age_cutoff(1.0)
        });
        let dummy_visible = SequenceNumberCounter::default();
        let block_bytes = match keyspace.options.large_blocks {
            true => LARGE_BLOCK_BYTES,
            false => BLOCK_BYTES,
        };
        let config = Config::new(&path, context.sequence.clone(), dummy_visible)
            .use_cache(Arc::clone(&context.cache))
            .use_descriptor_table(Some(Arc::clone(&context.descriptors)))
            .data_block_size_policy(BlockSizePolicy::all(block_bytes))
            .data_block_restart_interval_policy(RestartIntervalPolicy::all(RESTART_INTERVAL))
            .with_kv_separation(separation);
        let inner = fenced(&path, "open", || config.open())?;
        let persisted = inner.get_highest_persisted_seqno().unwrap_or(0);
        let fronted = keyspace.options.short_lived && !keyspace.options.separate_values;
        let tree = Self {
            keyspace,
            path,
            flushing: Mutex::new(()),
            compacting: Mutex::new(()),
            applied_through: AtomicU64::new(persisted),
            flushed_through: AtomicU64::new(persisted),
            memtables: Mutex::default(),
            write_buffers: fronted.then(Mutex::default),
            sealed_count: AtomicUsize::new(0),
            l0_runs: AtomicUsize::new(0),
            superseded: AtomicUsize::new(0),
            empty_ranges: EmptyRanges::default(),
            slow_search: options.slow_search,
            dropped: AtomicBool::new(false),
            unflushed: AtomicBool::new(unflushed),
            orphaned_files: AtomicBool::new(false),
            memory: Arc::clone(&context.memory),
            descriptors: Arc::clone(&context.descriptors),
            _lock: context.directory.share_lock(),
            inner,
        };
        tree.count_l0();
        Ok(tree)
    }

    /// True once the keyspace is dropped.
    pub(crate) fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
    }

    /// Marks the keyspace as dropped. The last reference removes its files.
    pub(crate) fn mark_dropped(&self) {
        self.dropped.store(true, Ordering::Release);
    }

    /// True until the first flush begins.
    pub(super) fn is_unflushed(&self) -> bool {
        self.unflushed.load(Ordering::Acquire)
    }

    /// Records that the files are durable.
    pub(super) fn note_begun_flushes(&self) {
        self.unflushed.store(false, Ordering::Release);
    }

    /// Records that a batch was inserted.
    pub(crate) fn note_applied(&self, sequence: u64) {
        self.applied_through.fetch_max(sequence, Ordering::AcqRel);
    }

    /// Returns the highest sequence number inserted.
    pub(crate) fn applied_through(&self) -> u64 {
        self.applied_through.load(Ordering::Acquire)
    }

    /// Every number up to this one is in tables, or its entries are deleted by durable batches.
    pub(crate) fn flushed_through(&self) -> u64 {
        self.flushed_through.load(Ordering::Acquire)
    }

    /// Raises [`Tree::flushed_through`] after a flush.
    pub(crate) fn note_flushed(&self, through: u64) {
        self.flushed_through.fetch_max(through, Ordering::AcqRel);
    }

    /// True if no entry of a batch up to `through` has to be flushed: all are deleted by batches in the log, or in tables. The caller
    /// holds [`Tree::flushing`].
    pub(crate) fn needs_no_log(&self, through: u64) -> bool {
        let Some(write_buffers) = &self.write_buffers else {
            return false;
        };
        // A batch in a sealed log segment may not be inserted yet.
        if self.applied_through() < through
            || self.inner.active_memtable().size() > 0
            || !lock(&self.memtables).sealed.is_empty()
        {
            return false;
        }
        let write_buffers = lock(write_buffers);
        let active = Arc::clone(write_buffers.active());
        let is_flushed = write_buffers.waiting().is_empty();
        drop(write_buffers);
        is_flushed && !active.needs_flush(through)
    }

    /// Inserts entries of one batch into the active memtable. Returns the bytes they added, and what to do about
    /// superseded versions. The caller holds the apply lock.
    pub(crate) fn insert(
        &self,
        entries: Vec<(Slice, Option<Slice>)>,
        sequence: u64,
    ) -> (u64, Remedy) {
        let memtable = self.inner.active_memtable();
        let (mut added, mut due) = (0, Remedy::Nothing);
        for (key, value) in entries {
            added += memtable
                .insert(memtable_entry(key.clone(), value, sequence))
                .0;
            if older_versions(&memtable, &key, sequence, 1) > 0 {
                let superseded = self.superseded.fetch_add(1, Ordering::AcqRel) + 1;
                if due == Remedy::Nothing {
                    due = remedy(&memtable, &key, sequence, superseded);
                }
            }
        }
        (added, due)
    }

    /// Replaces the active memtable by one without superseded versions that no reader needs; returns the bytes of those,
    /// and whether older readers keep the old memtable. The caller holds the apply lock. `readers` are the numbers of
    /// the open readers and the visible one, ascending.
    pub(crate) fn drop_superseded(&self, readers: &[u64]) -> (u64, bool) {
        let old = self.inner.active_memtable();
        let is_lowest = self.inner.table_count() == 0 && self.inner.sealed_memtable_count() == 0;
        let new = without_superseded(&old, readers, is_lowest);
        self.superseded.store(0, Ordering::Release);
        let freed = old.size().saturating_sub(new.size());
        let mut history = self.inner.get_version_history_lock();
        let mut latest = history.latest_version();
        assert!(
            Arc::ptr_eq(&latest.active_memtable, &old),
            "a memtable is sealed under the apply lock"
        );
        latest.active_memtable = new;
        history.replace_latest_version(latest);
        drop(history);
        if Arc::strong_count(&old) == 1 {
            return (freed, false);
        }
        lock(&self.memtables).flushed.push(old);
        (freed, true)
    }

    /// Seals the active memtable. Returns the highest sequence number that is sealed or in tables, and whether anything
    /// is sealed.
    ///
    /// Takes both guards: see rule 2 in the module head.
    pub(crate) fn rotate(
        &self,
        _log: &MutexGuard<'_, LogState>,
        _apply: &MutexGuard<'_, ()>,
    ) -> (u64, bool) {
        self.rotate_alone()
    }

    /// [`Tree::rotate`] during recovery, when nothing is in flight.
    pub(crate) fn rotate_alone(&self) -> (u64, bool) {
        let count = self.rotate_memtable();
        let write_buffer = self.write_buffers.as_ref().is_some_and(|f| lock(f).seal());
        let through = self.applied_through.load(Ordering::Acquire);
        (through, write_buffer || count > 0)
    }

    fn rotate_memtable(&self) -> usize {
        let mut memtables = lock(&self.memtables);
        self.superseded.store(0, Ordering::Release);
        memtables.sealed.extend(self.inner.rotate_memtable());
        let count = memtables.sealed.len();
        self.sealed_count.store(count, Ordering::Release);
        count
    }

    /// Flushes sealed memtables and write buffers into tables. The caller holds [`Tree::flushing`].
    pub(crate) fn flush_sealed(&self, context: &TreeContext, watermark: u64) -> Result<()> {
        let Some(write_buffers) = &self.write_buffers else {
            return self.flush_memtables(watermark);
        };
        self.write_buffers_out(write_buffers, watermark);
        self.flush_memtables(watermark)?;
        lock(write_buffers).note_in_tables(context.sequence.get());
        Ok(())
    }

    /// Moves the entries of sealed write buffers into a memtable and seals it. It must be one memtable, however large:
    /// recovery skips every batch up to the highest sequence number in tables, so tables must not hold a part of those
    /// batches.
    ///
    /// No batch is inserted into that memtable, so rule 2 holds.
    fn write_buffers_out(&self, write_buffers: &Mutex<WriteBuffers>, watermark: u64) {
        let memtable = self.inner.active_memtable();
        let mut added = 0;
        let waiting = lock(write_buffers).waiting();
        for write_buffer in &waiting {
            write_buffer.write_out(watermark, |key, value, sequence| {
                added += memtable.insert(memtable_entry(key, value, sequence)).0;
            });
        }
        drop(memtable);
        self.memory.fetch_add(added, Ordering::AcqRel);
        let left = lock(write_buffers).note_in_memtables();
        self.memory.fetch_sub(left, Ordering::AcqRel);
        self.rotate_memtable();
    }

    fn flush_memtables(&self, watermark: u64) -> Result<()> {
        if lock(&self.memtables).sealed.is_empty() {
            return Ok(());
        }
        fenced(&self.path, "flush", || {
            let guard = self.inner.get_flush_lock();
            self.inner.flush(&guard, watermark)
        })?;
        if self.keyspace.options.separate_values {
            // The tree syncs each file of values, but not its directory.
            directory::sync(&self.path.join("blobs"))?;
        }
        let mut memtables = lock(&self.memtables);
        let flushed = std::mem::take(&mut memtables.sealed);
        let bytes: u64 = flushed.iter().map(|memtable| memtable.size()).sum();
        memtables.flushed.extend(flushed);
        self.sealed_count.store(0, Ordering::Release);
        drop(memtables);
        self.memory.fetch_sub(bytes, Ordering::AcqRel);
        self.count_l0();
        Ok(())
    }

    /// Drops versions that no reader at or above `watermark` needs. True if none remains for older readers.
    pub(crate) fn tidy(&self, watermark: u64) -> Result<bool> {
        let left = fenced(&self.path, "tidy", || {
            let mut history = self.inner.get_version_history_lock();
            history.maintenance(&self.path, watermark)?;
            Ok(history.free_list_len())
        })?;
        let mut memtables = lock(&self.memtables);
        let unused = memtables
            .flushed
            .extract_if(.., |memtable| Arc::strong_count(memtable) == 1)
            .collect::<Vec<_>>();
        drop(memtables);
        drop(unused);
        let fronts_left = self
            .write_buffers
            .as_ref()
            .is_some_and(|f| !lock(f).remove_unneeded(watermark));
        Ok(left == 0 && !fronts_left)
    }

    /// Counts the runs of level 0.
    pub(crate) fn count_l0(&self) {
        let runs = self.inner.l0_run_count();
        self.l0_runs.store(runs, Ordering::Release);
    }

    /// Returns the runs of level 0, as last counted.
    pub(crate) fn l0_runs(&self) -> usize {
        self.l0_runs.load(Ordering::Acquire)
    }

    /// Returns the sealed memtables, as last counted.
    pub(crate) fn sealed_count(&self) -> usize {
        self.sealed_count.load(Ordering::Acquire)
    }

    /// Returns the bytes in memory that are not in tables.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let sealed = &lock(&self.memtables).sealed;
        let sealed: u64 = sealed.iter().map(|memtable| memtable.size()).sum();
        sealed + self.inner.active_memtable().size() + self.buffered_size().0
    }

    /// Returns the bytes inserted into the active memtable.
    pub(crate) fn memtable_bytes(&self) -> u64 {
        self.inner.active_memtable().size()
    }

    fn buffered_size(&self) -> (u64, usize) {
        self.write_buffers
            .as_ref()
            .map_or((0, 0), |f| lock(f).size())
    }

    /// Estimates the number of entries, deleted ones that are not yet dropped included.
    pub(crate) fn entries_estimate(&self) -> u64 {
        (self.inner.approximate_len() + self.buffered_size().1) as u64
    }

    /// True if entries are freed one by one, not with their memtable.
    pub(crate) fn releases_entries_singly(&self) -> bool {
        self.write_buffers.is_some()
    }

    /// Returns the write buffer that takes batches in place of the memtable, if there is one.
    pub(crate) fn active_write_buffer(&self) -> Option<Arc<WriteBuffer>> {
        let write_buffers = self.write_buffers.as_ref()?;
        Some(Arc::clone(lock(write_buffers).active()))
    }

    /// Returns the write buffers that a reader at `at` searches before the tree, newest first.
    pub(crate) fn write_buffers_for(&self, at: u64) -> Vec<Arc<WriteBuffer>> {
        let write_buffers = self.write_buffers.as_ref();
        write_buffers.map_or_else(Vec::new, |write_buffers| lock(write_buffers).for_reader(at))
    }

    /// Returns the bytes of memtables and write buffers kept only for older readers.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        let flushed = &lock(&self.memtables).flushed;
        let memtables: u64 = flushed.iter().map(|memtable| memtable.size()).sum();
        let write_buffers = self
            .write_buffers
            .as_ref()
            .map_or(0, |f| lock(f).pinned_bytes());
        memtables + write_buffers
    }

    /// Returns the bytes of its files.
    pub(crate) fn disk_bytes(&self) -> u64 {
        let folders = [
            self.path.clone(),
            self.path.join("tables"),
            self.path.join("blobs"),
        ];
        folders.iter().map(|folder| files_bytes(folder)).sum()
    }

    /// Returns the open file of separated values with an id.
    pub(super) fn values_file(&self, id: u64) -> lsm_tree::Result<Arc<fs::File>> {
        let listed = (self.inner.id(), id).into();
        if let Some(opened) = self.descriptors.access_for_blob_file(&listed) {
            return Ok(opened);
        }
        let opened = fs::File::open(self.path.join("blobs").join(id.to_string()))?;
        let opened = Arc::new(opened);
        self.descriptors
            .insert_for_blob_file(listed, Arc::clone(&opened));
        Ok(opened)
    }

    /// Removes its files from the descriptor table, which would otherwise keep them open, and their space allocated,
    /// until other files need the slots.
    fn close_files(&self) {
        let version = self.inner.current_version();
        let tree = self.inner.id();
        for table in version.iter_tables() {
            self.descriptors
                .remove_for_table(&(tree, table.id()).into());
        }
        for file in version.blob_files.iter() {
            self.descriptors
                .remove_for_blob_file(&(tree, file.id()).into());
        }
    }

    /// True if the tree on disk is the tree in memory, so that a failed flush or compaction may be retried.
    pub(crate) fn is_consistent(&self) -> bool {
        self.is_unflushed()
            || manifest::current_id(&self.path) == Some(self.inner.current_version().id())
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        self.memory.fetch_sub(self.memory_bytes(), Ordering::AcqRel);
        if self.is_dropped() {
            // The list of trees no longer names the directory; the next opening removes what remains.
            let _ = fs::remove_dir_all(&self.path);
            self.close_files();
        }
    }
}

/// Returns the bytes of the files in a directory. Files that vanish meanwhile count as 0.
pub(crate) fn files_bytes(directory: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else {
        return 0;
    };
    let sizes = entries.flatten().filter_map(|entry| {
        let metadata = entry.metadata().ok()?;
        metadata.is_file().then_some(metadata.len())
    });
    sizes.sum()
}

/// Runs a call into the tree and converts its errors and panics.
pub(crate) fn fenced<T>(
    path: &Path,
    operation: &'static str,
    call: impl FnOnce() -> lsm_tree::Result<T>,
) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(explain(path, operation, error)),
        Err(panic) => {
            let text = panic_text(&*panic);
            let expected = "files that can be read";
            Err(Error::corruption("tree", path, 0, expected, text))
        }
    }
}

/// Returns the message of a panic.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic").to_owned()
}

fn explain(path: &Path, operation: &'static str, error: lsm_tree::Error) -> Error {
    use std::io::ErrorKind;
    match error {
        lsm_tree::Error::Io(source) => match source.kind() {
            // InvalidInput results from seeking before the start of a truncated file.
            ErrorKind::UnexpectedEof
            | ErrorKind::NotFound
            | ErrorKind::InvalidData
            | ErrorKind::InvalidInput => {
                let found = source.to_string();
                Error::corruption("tree", path, 0, "complete files", found)
            }
            _ => Error::io(operation, path, source),
        },
        lsm_tree::Error::ChecksumMismatch { got, expected } => Error::corruption(
            "block of a tree",
            path,
            0,
            format!("checksum {expected}"),
            format!("{got}"),
        ),
        other => {
            let found = other.to_string();
            Error::corruption("tree", path, 0, "files that can be read", found)
        }
    }
}
