//! The change log: what was changed, in the order of cluster times, kept by size and time. It exists where a replica set is
//! configured ([decision 0024](../../../../docs/decisions/0024-change-log.md)).
//!
//! ```text
//! writer ─ batch with annotation ─► LoggedEngine ─ assigns the time, adds the entry ─► engine
//!                                        │                                               │ visible
//! ChangeLog:  times in flight  ◄─────────┴───────────────────────────────────────────────┘
//! reader ─ entries up to the last time before the first in flight ─► events
//! ```
//!
//! Promises:
//!
//! - **Atomic.** An entry is in the same engine batch as the change: both survive a crash or neither does.
//! - **In order, without holes.** Times are assigned before batches are committed, and batches become visible in any order. A
//!   reader is shown no time behind one whose batch is neither visible nor refused. So what it has passed stays complete.
//! - **Monotonic.** A time is greater than all before it, also those before a crash or a step of the clock.
//!
//! A batch has as many times as `local.oplog.rs` has entries of it; its entry here has the last of them.
//!
//! The log is a row of keyspaces, its *parts*, named `change log/NUMBER`; the newest takes entries. A part is about a sixteenth
//! of the size that the log may have. Trimming drops the oldest part, so it costs no deletion of keys.
//!
//! ```text
//! 0x00 | uuid (16) | bucket id (12) | columns (2)   header of a bucket: what its tail entries leave out
//! 0x01 | time (8)                                   version 01 | varint wall clock in ms | entries
//! 0x02                                              first time of the part (8)
//! ```
//!
//! Integers are big-endian. The entries are those of [`crate::change_entry`]. A tail entry whose header is not in its part has it
//! in the part before, because a batch may be staged before a part ends and committed behind its end.

mod engine;
mod read;
mod recent;
mod waiting;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nilometer_bson::varint;
use nilometer_storage::{
    Bytes, Direction, Durability, Engine, Keyspace, KeyspaceId, KeyspaceOptions, Snapshot,
    WriteBatch,
};

use crate::change_entry::{self, BucketHeader};
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Clock;
use crate::write::Arrivals;

pub(crate) use engine::LoggedEngine;
pub(crate) use read::LoggedBatch;
pub use recent::StreamScope;

use self::recent::{ChangedNames, RecentBatches};
use self::waiting::WaitingStreams;

/// Names of the keyspaces of the log begin with this.
const KEYSPACE_PREFIX: &str = "change log/";

/// Parts into which the size of the log is divided.
const PARTS: u64 = 16;

/// Parts that are always kept: readers of one may need headers of the one before.
const PARTS_MIN: usize = 2;

/// Times that a new log leaves out for each millisecond of the second in which it begins.
const TIMES_PER_MS: u64 = 1 << 20;

const VERSION: u8 = 1;
const HEADER_KEY: u8 = 0;
const ENTRY_KEY: u8 = 1;
const START_KEY: u8 = 2;

/// Size and age of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeLogOptions {
    /// Bytes above which the oldest entries are removed.
    pub bytes_max: u64,
    /// Time for which entries stay even if the log is larger, in ms.
    pub retention_min_ms: i64,
}

/// The least size that MongoDB chooses for an oplog.
const BYTES_DEFAULT: u64 = 990 << 20;

impl Default for ChangeLogOptions {
    fn default() -> Self {
        Self {
            bytes_max: BYTES_DEFAULT,
            retention_min_ms: 0,
        }
    }
}

/// A keyspace of the log.
#[derive(Clone, Copy, Debug)]
struct LogPart {
    number: u64,
    keyspace: KeyspaceId,
    /// All its entries have this time or a later one.
    start: u64,
    /// Bytes of its entries, about.
    bytes: u64,
    /// `start` is stored, or in a batch.
    has_start: bool,
}

impl LogPart {
    fn put_start(&self, batch: &mut WriteBatch) {
        batch.put(
            self.keyspace,
            vec![START_KEY],
            self.start.to_be_bytes().to_vec(),
        );
    }
}

/// A time whose batch is not shown yet.
struct InFlight {
    names: ChangedNames,
    /// The first of its times.
    first_time: u64,
    /// It is visible, and an earlier one is not.
    is_visible: bool,
}

struct LogState {
    /// The last time that was assigned.
    last: u64,
    /// The last time of a batch that is visible.
    committed: u64,
    /// Times from the first on whose batch is neither visible nor refused.
    in_flight: BTreeMap<u64, InFlight>,
    /// Those in flight whose commits have failed: they were refused if the engine still takes writes.
    failed: Vec<u64>,
    /// From the oldest to the newest.
    parts: VecDeque<LogPart>,
    /// The newest batches.
    recent: RecentBatches,
}

impl LogState {
    /// Assigns so many times, and returns the last: seconds in the upper half, a count within them in the lower.
    fn next_times(&mut self, now_ms: i64, count: u64) -> u64 {
        let seconds = u64::try_from(now_ms.div_euclid(1000)).unwrap_or(0);
        let seconds = seconds.min(u64::from(u32::MAX));
        self.last = (self.last + 1).max((seconds << 32) | 1) + (count - 1);
        self.last
    }

    /// Returns the last time that readers are shown.
    fn visible(&self) -> u64 {
        match self.in_flight.first_key_value() {
            Some((_, first)) => first.first_time - 1,
            None => self.last,
        }
    }

    /// Forgets the times that readers are shown now. Returns what their batches change.
    fn advance(&mut self) -> Vec<ChangedNames> {
        let mut changed = Vec::new();
        while let Some(first) = self.in_flight.first_entry() {
            if !first.get().is_visible {
                break;
            }
            changed.push(first.remove().names);
        }
        changed
    }
}

/// Headers of buckets, by collection and bucket.
type KnownHeaders = HashMap<([u8; 16], [u8; 12]), Arc<BucketHeader>>;

/// The log of one database.
pub struct ChangeLog {
    engine: Arc<dyn Engine>,
    clock: Arc<dyn Clock>,
    options: ChangeLogOptions,
    state: Mutex<LogState>,
    waiting: WaitingStreams,
    /// Time for which streams show documents before and after their changes, in seconds; 0 if it is that of the log.
    image_seconds: AtomicI64,
    /// Those that streams have read.
    headers: Mutex<KnownHeaders>,
}

/// Returns the time of the last entry in a keyspace of the log.
fn last_time(snapshot: &dyn Snapshot, part: KeyspaceId) -> Result<Option<u64>> {
    let (start, end) = ([ENTRY_KEY], [START_KEY]);
    let mut scan = snapshot.scan(part, &start, Some(&end), Direction::Backward)?;
    match scan.next().transpose()? {
        Some((key, _)) => read::time_of(&key).map(Some),
        None => Ok(None),
    }
}

/// Returns the time of the newest change in the log that an engine stores; `None` if it has none.
pub(crate) fn newest_time(engine: &dyn Engine) -> Result<Option<u64>> {
    let snapshot = engine.snapshot()?;
    let keyspaces = engine.keyspaces();
    let mut parts: Vec<_> = keyspaces
        .iter()
        .filter_map(|keyspace| Some((part_number(keyspace)?, keyspace.id)))
        .collect();
    parts.sort_unstable();
    for (_, part) in parts.iter().rev() {
        if let Some(time) = last_time(&*snapshot, *part)? {
            return Ok(Some(time));
        }
    }
    Ok(None)
}

/// A batch that has its time.
struct TimedBatch<'l> {
    log: &'l ChangeLog,
    time: u64,
    is_visible: bool,
}

impl Drop for TimedBatch<'_> {
    fn drop(&mut self) {
        self.log.end(self.time, self.is_visible);
    }
}

impl ChangeLog {
    /// Opens the log that `engine` stores; begins one if there is none.
    fn open(
        engine: Arc<dyn Engine>,
        clock: Arc<dyn Clock>,
        options: ChangeLogOptions,
    ) -> Result<Self> {
        let log = Self {
            clock,
            options,
            state: Mutex::new(LogState {
                last: 0,
                committed: 0,
                in_flight: BTreeMap::new(),
                failed: Vec::new(),
                parts: VecDeque::new(),
                recent: RecentBatches::starting(0),
            }),
            waiting: WaitingStreams::default(),
            image_seconds: AtomicI64::new(0),
            headers: Mutex::default(),
            engine,
        };
        let mut parts = Vec::new();
        for keyspace in log.engine.keyspaces() {
            parts.extend(log.part(&keyspace)?);
        }
        parts.sort_unstable_by_key(|part| part.number);
        let mut last = 0;
        for part in parts.iter().rev() {
            last = last.max(part.start - 1);
            if let Some(time) = last_time(&*log.engine.snapshot()?, part.keyspace)? {
                last = last.max(time);
                break;
            }
        }
        // Times that were assigned in this second to batches that failed may have been shown.
        let second = u64::try_from(log.clock.now_ms().div_euclid(1000)).unwrap_or(0);
        let second = second.min(u64::from(u32::MAX) - 1);
        let is_new = parts.is_empty();
        {
            let mut state = log.lock();
            state.last = last.max((second << 32) | u64::from(u32::MAX));
            state.committed = state.last;
            state.parts = parts.into();
        }
        if is_new {
            // An earlier log that was dropped may have assigned times in this second: its tokens must be too old.
            let ms = u64::try_from(log.clock.now_ms().rem_euclid(1000)).unwrap_or(0);
            log.lock().last += ms * TIMES_PER_MS;
            log.begin_log()?;
        }
        {
            let mut state = log.lock();
            state.recent = RecentBatches::starting(state.last + 1);
        }
        Ok(log)
    }

    fn lock(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the part in a keyspace; `None` if the keyspace is no part. One without entries and start is dropped: it was new.
    fn part(&self, keyspace: &Keyspace) -> Result<Option<LogPart>> {
        let Some(number) = part_number(keyspace) else {
            return Ok(None);
        };
        let snapshot = self.engine.snapshot()?;
        let stored = snapshot.get(keyspace.id, &[START_KEY])?;
        let stored = stored.and_then(|start| start.first_chunk().copied());
        let (first, end) = ([ENTRY_KEY], [START_KEY]);
        let mut scan = snapshot.scan(keyspace.id, &first, Some(&end), Direction::Forward)?;
        // Of its first batches, the one with the start may have been lost in a crash.
        let first = scan.next().transpose()?;
        let start = match (stored, first) {
            (Some(start), _) => u64::from_be_bytes(start),
            (None, Some((key, _))) => read::time_of(&key)?,
            (None, None) => {
                self.engine.drop_keyspace(keyspace.id)?;
                return Ok(None);
            }
        };
        let statistics = self.engine.keyspace_statistics(keyspace.id)?;
        Ok(Some(LogPart {
            number,
            keyspace: keyspace.id,
            start: start.max(1),
            bytes: statistics.disk_bytes + statistics.memory_bytes,
            has_start: true,
        }))
    }

    /// Creates a part, which takes the entries from then on. Its first batch stores its start.
    fn begin_part(&self, number: u64) -> Result<()> {
        let options = KeyspaceOptions {
            separate_values: true,
            ..KeyspaceOptions::default()
        };
        let name = format!("{KEYSPACE_PREFIX}{number:016x}");
        let keyspace = self.engine.create_keyspace(&name, options)?;
        let mut state = self.lock();
        let part = LogPart {
            number,
            keyspace,
            start: state.last + 1,
            bytes: 0,
            has_start: false,
        };
        state.parts.push_back(part);
        Ok(())
    }

    /// Begins an empty log. Its start is stored at once: what is resumed from it is not too old.
    fn begin_log(&self) -> Result<()> {
        self.begin_part(1)?;
        let mut state = self.lock();
        let Some(part) = state.parts.back_mut() else {
            return Ok(());
        };
        part.has_start = true;
        let mut batch = WriteBatch::new();
        part.put_start(&mut batch);
        drop(state);
        self.engine.commit(batch, Durability::Sync)?;
        Ok(())
    }

    /// Assigns a time to a batch and adds its entry.
    fn begin(&self, batch: &mut WriteBatch, annotation: &[u8]) -> Result<TimedBatch<'_>> {
        let now_ms = self.clock.now_ms();
        let mut value = Vec::with_capacity(annotation.len() + 16);
        value.push(VERSION);
        varint::put(&mut value, u64::try_from(now_ms).unwrap_or(0));
        let entries_at = value.len();
        let taken = change_entry::split(annotation, &mut value)?;
        let names = taken.names.iter().map(|name| Box::from(*name));
        let names: ChangedNames = names.collect();
        let kept = Bytes::copy_from(&value);
        self.settle_failed();
        let mut state = self.lock();
        let times = (taken.operations as u64).max(1);
        let time = state.next_times(now_ms, times);
        let Some(part) = state.parts.back_mut() else {
            return Err(Error::new(
                ErrorCode::InternalError,
                "the change log has no part",
            ));
        };
        part.bytes += annotation.len() as u64;
        if !std::mem::replace(&mut part.has_start, true) {
            part.put_start(batch);
        }
        let keyspace = part.keyspace;
        let before = state.parts.len().checked_sub(2);
        let before = before.and_then(|at| state.parts.get(at));
        let logged = LoggedBatch {
            time,
            wall_ms: now_ms,
            value: kept,
            entries_at,
            keyspaces: [Some(keyspace), before.map(|part| part.keyspace)],
        };
        state.recent.push(logged, Arc::clone(&names));
        let in_flight = InFlight {
            names,
            first_time: time - (times - 1),
            is_visible: false,
        };
        state.in_flight.insert(time, in_flight);
        drop(state);
        for header in taken.headers {
            let key = [
                &[HEADER_KEY][..],
                &header.uuid,
                &header.bucket,
                &header.columns.to_be_bytes(),
            ];
            batch.put(keyspace, key.concat(), header.document.as_bytes().to_vec());
        }
        let key = [&[ENTRY_KEY][..], &time.to_be_bytes()].concat();
        batch.put(keyspace, key, value);
        Ok(TimedBatch {
            log: self,
            time,
            is_visible: false,
        })
    }

    fn end(&self, time: u64, is_visible: bool) {
        let mut state = self.lock();
        if !is_visible {
            state.failed.push(time);
            return;
        }
        if let Some(in_flight) = state.in_flight.get_mut(&time) {
            in_flight.is_visible = true;
        }
        state.committed = state.committed.max(time);
        let changed = state.advance();
        drop(state);
        self.waiting.wake(&changed);
    }

    /// Readers may pass the times of failed commits if the engine continues: then they were refused. An engine that does not
    /// may have written them, and shows them when it is opened again.
    fn settle_failed(&self) {
        let failed = std::mem::take(&mut self.lock().failed);
        if failed.is_empty() {
            return;
        }
        // Asked after the commits have failed: a time that comes later waits for the next question.
        let was_refused = self.engine.check_writable().is_ok();
        let mut state = self.lock();
        for time in failed {
            if was_refused {
                state.in_flight.remove(&time);
                state.recent.remove(time);
            } else {
                state.failed.push(time);
            }
        }
        let changed = state.advance();
        drop(state);
        self.waiting.wake(&changed);
    }

    /// Returns the last time that was assigned.
    pub(crate) fn assigned(&self) -> u64 {
        self.lock().last
    }

    /// Returns the last time of a batch that is visible: all that was acknowledged so far has it or an earlier one.
    pub(crate) fn last_committed(&self) -> u64 {
        self.lock().committed
    }

    /// Returns the last time that readers are shown.
    pub(crate) fn visible(&self) -> u64 {
        self.settle_failed();
        self.lock().visible()
    }

    /// Sets the time for which streams show documents before and after their changes, in seconds.
    pub(crate) fn set_image_expiry(&self, seconds: Option<i64>) {
        self.image_seconds
            .store(seconds.unwrap_or(0), Ordering::Relaxed);
    }

    /// True if streams show documents before and after the changes of this time.
    pub(crate) fn shows_images_of(&self, wall_ms: i64) -> bool {
        let seconds = self.image_seconds.load(Ordering::Relaxed);
        let age_ms = self.clock.now_ms().saturating_sub(wall_ms);
        seconds == 0 || age_ms < seconds.saturating_mul(1000)
    }

    /// Returns what wakes streams of a scope that wait for changes.
    pub(crate) fn arrivals(&self, scope: &StreamScope) -> Arc<Arrivals> {
        self.waiting.of(scope)
    }

    /// Begins the next part if the newest is full, and removes the oldest ones if the log is too large. To be called at
    /// intervals.
    pub(crate) fn maintain(&self) -> Result<()> {
        let newest = self.lock().parts.back().copied();
        if let Some(newest) = newest
            && newest.bytes >= self.options.bytes_max / PARTS
        {
            self.begin_part(newest.number + 1)?;
        }
        while let Some(oldest) = self.next_to_drop() {
            match self.engine.drop_keyspace(oldest.keyspace) {
                Ok(()) | Err(nilometer_storage::Error::UnknownKeyspace { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Takes the oldest part out of the log, if the log is too large without regard to it.
    fn next_to_drop(&self) -> Option<LogPart> {
        let now_ms = self.clock.now_ms();
        let mut state = self.lock();
        let bytes: u64 = state.parts.iter().map(|part| part.bytes).sum();
        if state.parts.len() <= PARTS_MIN || bytes <= self.options.bytes_max {
            return None;
        }
        // The second begins where the oldest ends.
        let ended_ms = i64::try_from(state.parts.get(1)?.start >> 32).ok()?;
        let age_ms = now_ms.saturating_sub(ended_ms.saturating_mul(1000));
        if age_ms < self.options.retention_min_ms {
            return None;
        }
        state.parts.pop_front()
    }
}

/// Returns the number of the part in a keyspace.
fn part_number(keyspace: &Keyspace) -> Option<u64> {
    let number = keyspace.name.strip_prefix(KEYSPACE_PREFIX)?;
    u64::from_str_radix(number, 16).ok()
}
