//! The write-ahead log: makes a commit durable before any tree has it.
//!
//! # Format
//!
//! The log is a sequence of segment files, numbered without gaps. Batches are appended to the last one.
//!
//! ```text
//! wal/00000000000000000007.log     sealed: the header of the next segment records where it ends
//! wal/00000000000000000008.log     active
//! wal/SEGMENTS                     the first and the last of them, see segment_list.rs
//! wal/spare-3                      a future segment, see spare.rs
//!
//! segment  = header (64 bytes), records, end mark, zeros or remains of a recycled segment
//!   header = "NILOLOG1", segment id, index of the first record, sequence number before it,
//!            size of the file, flags (1: SEGMENTS names it), 8 spare bytes,
//!            checksum                                                         (all u64 LE)
//! record   = header (48 bytes), payload, padding to 8 bytes
//!   header = magic u32, payload length u32, index, sequence number, index known durable,
//!            payload checksum, header checksum seeded with the segment id     (u64 LE)
//! ```
//!
//! An end mark follows the last record: a record header with another magic number, without payload, with the index of
//! the next batch, which overwrites it. So a clean end is marked and not merely the absence of records. [`payload`]
//! describes the payload.
//!
//! # Promises
//!
//! - *Nothing acknowledged is lost.* A group of batches is one write and one sync; a commit with
//!   [`Durability::Sync`](crate::Durability::Sync) returns after the sync.
//! - *A torn tail is cut, damage is refused.* Each header records which index was durable when it was written. A
//!   record that does not parse, followed by a header that says it was durable, is damage. Without such a header the
//!   record was never acknowledged or belongs to the last group synced: the log ends there, and recovery reports the
//!   cut, and whether the write may have been acknowledged. Rewriting the end mark when the log falls idle limits the second case to the last tenth of a second before a
//!   crash; a clean close, which begins a new segment, excludes it.
//! - *Recovery only reads.* The header of the next segment records where the previous one ends, so cutting the log
//!   means beginning a segment, and can be repeated after another crash.
//! - *No segment goes missing unnoticed*, neither between two others nor at either end.
//! - *A full disk refuses writes without damage.* Space for a whole segment is reserved when the segment is created,
//!   so running out of space is detected before a byte is written. A file system that copies on write may refuse a write
//!   into the reserved space all the same: the batch is refused, the segment ends before it, and the next one begins when
//!   there is space.
//! - *A log at rest is small.* When nothing was written for [`rest_period`](super::LsmOptions::rest_period), and when the
//!   engine is closed, spares and flushed segments are removed until at most
//!   [`log_rest_bytes`](super::LsmOptions::log_rest_bytes) remain; the memtables that need the log are flushed for it.
//! - *A failed sync ends writing.* The system may have dropped the pages, so the sync is never retried.
//!
//! The log does not know the meaning of operations. The caller says which batches are flushed, so that segments can be
//! removed.

mod append;
pub(crate) mod payload;
pub(crate) mod record;
pub(crate) mod replay;
mod segment;
mod segment_list;
mod spare;

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use self::segment_list::SegmentList;
use self::spare::Spares;
use super::options::LsmOptions;
use crate::engine::KeyspaceId;
use crate::error::{Error, Result};
use crate::file_system::{FileSystem, LogFile};
use crate::lock::lock;

pub(crate) use append::LogRecord;
pub(crate) use segment::{ActiveSegment, SealedSegment, segment_id, segment_path};
pub(crate) use segment_list::{SEGMENTS_FILE, SegmentRange, read_segment_list, write_segment_list};

/// The highest sequence number of each keyspace in a segment.
pub(crate) type HighestSequences = HashMap<KeyspaceId, u64>;

/// Bytes of the first segment after opening if there is no spare, and of that at rest. It is filled with zeros
/// immediately.
const FIRST_SEGMENT_BYTES: u64 = 2 * 1024 * 1024;

/// The log of one open database.
pub(crate) struct Log {
    directory: PathBuf,
    file_system: Arc<dyn FileSystem>,
    segment_bytes: u64,
    state: Mutex<LogState>,
    /// Serialises syncs, so that no sync consumes the error that another one has to report.
    device: Mutex<Option<Error>>,
    /// True while one waiting thread syncs for all of them.
    syncing: Mutex<bool>,
    /// Signalled when that sync ends.
    synced: Condvar,
    spares: Spares,
    /// Changed after the log lock was taken, or without it.
    list: SegmentList,
    /// Serialises removals, so that segments are removed in order.
    removing: Mutex<()>,
    bytes_max: u64,
    syncs: AtomicU64,
    /// Bytes of all segment files, readable without the log lock.
    bytes: AtomicU64,
    /// True while nothing is written: removed segments do not become spares.
    is_resting: AtomicBool,
}

/// The state that appending changes. Its lock is the first in the commit protocol.
pub(crate) struct LogState {
    pub(crate) active: ActiveSegment,
    pub(crate) sealed: VecDeque<SealedSegment>,
    /// Index of the next batch.
    next_index: u64,
    /// Sequence number of the last batch.
    last_sequence: u64,
    /// Every record up to this index is durable.
    durable_index: u64,
    /// The highest durable index recorded in a header.
    noted_index: u64,
    /// Checkpoints in flight. Segments are kept while it is not 0.
    pins: usize,
    /// The first batch that a backup has still to read. Its segments are kept while there is space.
    unread_from: Option<u64>,
    buffer: Vec<u8>,
}

impl LogState {
    /// Returns the id of the active segment.
    pub(crate) fn segment(&self) -> u64 {
        self.active.id
    }

    /// Returns the index of the next batch.
    pub(crate) fn next_index(&self) -> u64 {
        self.next_index
    }

    /// Returns the sequence number of the last batch.
    pub(crate) fn last_sequence(&self) -> u64 {
        self.last_sequence
    }

    /// Returns the index of the last batch that is durable.
    pub(crate) fn durable_index(&self) -> u64 {
        self.durable_index
    }

    /// Returns the index of the last batch written.
    pub(crate) fn written_index(&self) -> u64 {
        self.next_index - 1
    }

    /// Bytes of all segment files.
    fn bytes(&self) -> u64 {
        let sealed: u64 = self.sealed.iter().map(|segment| segment.bytes).sum();
        sealed + self.active.size
    }
}

/// Where the log continues after recovery.
pub(crate) struct LogStart {
    /// Segments read by recovery, oldest first.
    pub(crate) sealed: VecDeque<SealedSegment>,
    pub(crate) next_segment: u64,
    pub(crate) next_index: u64,
    pub(crate) last_sequence: u64,
}

impl Log {
    /// Opens the log and begins a new segment after `start`.
    pub(crate) fn start(directory: &Path, options: &LsmOptions, start: LogStart) -> Result<Self> {
        let file_system = Arc::clone(&options.file_system);
        let (segment_bytes, bytes_max) = (options.segment_bytes, options.log_bytes_max);
        let range = SegmentRange {
            first: (start.sealed.front()).map_or(start.next_segment, |segment| segment.id),
            last: start.sealed.back().map_or(0, |segment| segment.id),
        };
        let list = SegmentList::create(directory, &*file_system, range)?;
        let spares = Spares::open(directory, &*file_system, segment_bytes)?;
        let spare = spares.take(segment_bytes);
        let header = record::SegmentHeader {
            id: start.next_segment,
            first_index: start.next_index,
            base_sequence: start.last_sequence,
            size: match &spare {
                Some(_) => segment_bytes,
                None => segment_bytes.min(FIRST_SEGMENT_BYTES),
            },
            is_listed: true,
        };
        let active = segment::create(directory, &*file_system, header, spare)?;
        list.set_last(active.id)?;
        let durable_index = start.next_index - 1;
        let state = LogState {
            active,
            sealed: start.sealed,
            next_index: start.next_index,
            last_sequence: start.last_sequence,
            durable_index,
            noted_index: durable_index,
            pins: 0,
            unread_from: None,
            buffer: Vec::new(),
        };
        Ok(Self {
            directory: directory.to_path_buf(),
            file_system,
            segment_bytes,
            bytes: AtomicU64::new(state.bytes()),
            state: Mutex::new(state),
            device: Mutex::new(None),
            syncing: Mutex::new(false),
            synced: Condvar::new(),
            spares,
            list,
            removing: Mutex::default(),
            bytes_max,
            syncs: AtomicU64::new(0),
            is_resting: AtomicBool::new(false),
        })
    }

    /// Takes the log lock.
    pub(crate) fn lock(&self) -> MutexGuard<'_, LogState> {
        lock(&self.state)
    }

    /// Bytes of all segment files.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Bytes of all segment files and spares.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.bytes() + self.spares.bytes()
    }

    /// True from [`Log::rest`] to [`Log::end_rest`].
    pub(crate) fn is_resting(&self) -> bool {
        self.is_resting.load(Ordering::Acquire)
    }

    /// Removes the spares and begins a small segment, so that the large ones can be removed once they are flushed.
    pub(crate) fn rest(&self) -> Result<()> {
        self.shed_spares()?;
        let bytes = self.segment_bytes.min(FIRST_SEGMENT_BYTES);
        let mut state = self.lock();
        if state.active.size > bytes {
            self.rotate(&mut state, bytes - segment::MIN_BYTES)?;
            self.list_active(&state)?;
        }
        Ok(())
    }

    /// Removes the spares; until [`Log::end_rest`] no removed segment becomes one.
    pub(crate) fn shed_spares(&self) -> Result<()> {
        self.is_resting.store(true, Ordering::Release);
        self.spares.clear(&*self.file_system)
    }

    /// Lets removed segments become spares again.
    pub(crate) fn end_rest(&self) {
        self.is_resting.store(false, Ordering::Release);
    }

    /// Returns the number of syncs of segments since opening.
    pub(crate) fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    /// Makes every batch written so far durable, without holding the log lock meanwhile. Of concurrent callers one
    /// syncs for all that arrived before it began.
    pub(crate) fn sync(&self) -> Result<()> {
        let wanted = self.lock().written_index();
        let mut syncing = lock(&self.syncing);
        loop {
            if self.lock().durable_index >= wanted {
                return self.failure().map_or(Ok(()), Err);
            }
            if !std::mem::replace(&mut *syncing, true) {
                break;
            }
            let waited = self.synced.wait(syncing);
            syncing = waited.unwrap_or_else(PoisonError::into_inner);
        }
        drop(syncing);
        let synced = self.sync_written();
        *lock(&self.syncing) = false;
        self.synced.notify_all();
        synced
    }

    fn sync_written(&self) -> Result<()> {
        let (file, path, index) = {
            let state = self.lock();
            let active = &state.active;
            (
                Arc::clone(&active.file),
                active.path.clone(),
                state.written_index(),
            )
        };
        self.sync_file(&*file, &path)?;
        let mut state = self.lock();
        state.durable_index = state.durable_index.max(index);
        Ok(())
    }

    /// True if a batch is written but not yet durable.
    pub(crate) fn is_dirty(&self) -> bool {
        let state = self.lock();
        state.durable_index < state.written_index()
    }

    /// Returns why the log refuses writes, if it does.
    pub(crate) fn failure(&self) -> Option<Error> {
        lock(&self.device).clone()
    }

    /// Syncs one file. After the first failure every later call fails.
    fn sync_file(&self, file: &dyn LogFile, path: &Path) -> Result<()> {
        let mut device = lock(&self.device);
        if let Some(error) = &*device {
            return Err(error.clone());
        }
        self.syncs.fetch_add(1, Ordering::Relaxed);
        match file.sync() {
            Ok(()) => Ok(()),
            Err(source) => Err(note_failure(&mut device, "sync", path, &source)),
        }
    }

    /// Keeps every segment until [`Log::unpin`].
    pub(crate) fn pin(&self) {
        self.lock().pins += 1;
    }

    /// Ends one [`Log::pin`].
    pub(crate) fn unpin(&self) {
        let mut state = self.lock();
        assert!(state.pins > 0, "unpin follows pin");
        state.pins -= 1;
    }

    /// Keeps the segments with batch `index` and later ones until the next call, unless the log is nearly full: writers
    /// must not wait for a backup.
    pub(crate) fn keep_unread(&self, index: Option<u64>) {
        self.lock().unread_from = index;
    }

    /// Returns the keyspaces that prevent removal of the oldest sealed segment, with their highest sequence numbers in it.
    pub(crate) fn blockers(
        &self,
        flushed: impl Fn(KeyspaceId, u64) -> bool,
    ) -> Vec<(KeyspaceId, u64)> {
        let state = self.lock();
        let Some(oldest) = state.sealed.front() else {
            return Vec::new();
        };
        let holding = oldest.highest.iter();
        let holding = holding.filter(|(id, highest)| !flushed(**id, **highest));
        holding.map(|(id, highest)| (*id, *highest)).collect()
    }

    /// Removes sealed segments, oldest first, whose batches are all in tables.
    pub(crate) fn remove_flushed(&self, flushed: impl Fn(KeyspaceId, u64) -> bool) -> Result<()> {
        let _removing = lock(&self.removing);
        let is_flushed = |segment: &SealedSegment| {
            let mut highest = segment.highest.iter();
            highest.all(|(id, highest)| flushed(*id, *highest))
        };
        let last = {
            let state = self.lock();
            let is_nearly_full = state.bytes() > self.bytes_max / 8 * 7;
            let is_read = |next: u64| state.unread_from.is_none_or(|unread| next <= unread);
            let ends = state.sealed.iter().skip(1).map(|next| next.first_index);
            let ends = ends.chain([state.active.first_index]);
            let mut removable = state.sealed.iter().zip(ends).take_while(|(segment, next)| {
                is_flushed(segment) && (is_nearly_full || is_read(*next))
            });
            match (state.pins, removable.by_ref().last()) {
                (0, Some((segment, _))) => segment.id,
                _ => return Ok(()),
            }
        };
        self.noted_list(self.list.set_first(last + 1))?;
        loop {
            let segment = {
                let mut state = self.lock();
                let oldest = state.sealed.front().map(|segment| segment.id);
                if state.pins > 0 || oldest.is_none_or(|id| id > last) {
                    return Ok(());
                }
                let oldest = state.sealed.pop_front();
                self.bytes.store(state.bytes(), Ordering::Release);
                oldest
            };
            let Some(segment) = segment else {
                return Ok(());
            };
            self.remove_segment(&segment)?;
        }
    }

    /// Removes a segment file or recycles it as a spare.
    fn remove_segment(&self, segment: &SealedSegment) -> Result<()> {
        let room = match self.is_resting() {
            true => 0,
            false => self.bytes_max.saturating_sub(self.bytes()),
        };
        let file_system = &*self.file_system;
        if !self
            .spares
            .keep(&self.directory, file_system, segment, room)?
        {
            let removed = file_system.remove(&segment.path);
            removed.map_err(|source| Error::io("remove", &segment.path, source))?;
        }
        // Sync after each: a later segment must not be gone while an earlier one exists.
        let synced = file_system.sync_directory(&self.directory);
        synced.map_err(|source| Error::io("sync", &self.directory, source))
    }

    /// Records a failed change of the list of segments, after which the log refuses writes, unless there was no space.
    fn noted_list(&self, changed: Result<()>) -> Result<()> {
        changed.map_err(|error| match error {
            full @ Error::Full { .. } => full,
            error => {
                let failed = Error::LogFailed {
                    reason: error.to_string(),
                };
                lock(&self.device).get_or_insert(failed).clone()
            }
        })
    }

    /// Returns every segment: path, id, and the index after its last durable batch.
    pub(crate) fn segments_to_check(&self) -> Vec<(PathBuf, u64, u64)> {
        let state = self.lock();
        let ends = state.sealed.iter().skip(1).map(|next| next.first_index);
        let ends = ends.chain([state.active.first_index, state.durable_index + 1]);
        let sealed = state.sealed.iter();
        let segments = sealed.map(|segment| (segment.path.clone(), segment.id));
        let active = (state.active.path.clone(), state.active.id);
        let segments = segments.chain([active]);
        let ends = if state.sealed.is_empty() {
            vec![state.durable_index + 1]
        } else {
            ends.collect()
        };
        let segments = segments.zip(ends);
        segments.map(|((path, id), end)| (path, id, end)).collect()
    }

    /// Creates a spare after a commit failed to create a segment.
    fn make_spare_now(&self) -> Result<()> {
        self.spares.ask();
        self.prepare_spare()
    }

    /// Creates a spare if one is requested. Called by the keeper.
    pub(crate) fn prepare_spare(&self) -> Result<()> {
        self.spares.prepare(&self.directory, &*self.file_system)
    }
}

/// Records the first failure, after which the log refuses writes.
fn note_failure(
    device: &mut Option<Error>,
    operation: &str,
    path: &Path,
    source: &std::io::Error,
) -> Error {
    let error = Error::LogFailed {
        reason: format!("{operation} {}: {source}", path.display()),
    };
    device.get_or_insert(error).clone()
}
