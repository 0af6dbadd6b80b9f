//! Reading the log: the batches from a time on that readers are shown, and the headers that tail entries refer to.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use nilometer_bson::{DocRef, varint};
use nilometer_storage::{Bytes, Direction, KeyspaceId};

use super::{ChangeLog, ENTRY_KEY, HEADER_KEY, LogPart, StreamScope, VERSION};
use crate::change_entry::BucketHeader;
use crate::error::{Error, ErrorCode, Result};

/// Bytes of batches read at once; a batch is read whole.
const PAGE_BYTES_MAX: usize = 1 << 20;

/// Most batches read at once.
const PAGE_BATCHES_MAX: usize = 1024;

/// Time to wait for the commit of a batch, and the number of waits.
const COMMIT_WAIT: Duration = Duration::from_millis(100);
const COMMIT_WAITS_MAX: usize = 100;

/// Headers of buckets that are kept in memory for all streams.
const HEADERS_MAX: usize = 10_000;

/// The changes of one engine batch.
#[derive(Clone, Debug)]
pub(crate) struct LoggedBatch {
    /// Its cluster time.
    pub(crate) time: u64,
    /// When it was committed, in ms since 1970.
    pub(crate) wall_ms: i64,
    pub(super) value: Bytes,
    /// Where its entries begin.
    pub(super) entries_at: usize,
    /// The keyspaces in which headers are searched.
    pub(super) keyspaces: [Option<KeyspaceId>; 2],
}

impl LoggedBatch {
    /// Returns the bytes of its entries.
    pub(crate) fn entries(&self) -> &[u8] {
        self.value.get(self.entries_at..).unwrap_or_default()
    }

    /// Returns the number of its bytes.
    pub(super) fn bytes(&self) -> usize {
        self.value.len()
    }
}

/// Batches in the order of their times.
#[derive(Clone, Debug)]
pub(crate) struct LogPage {
    /// The batches.
    pub(crate) batches: Vec<LoggedBatch>,
    /// All batches up to this time were read.
    pub(crate) up_to: u64,
}

/// Returns the error of a reader that comes too late.
fn history_lost() -> Error {
    let mut error = Error::new(
        ErrorCode::ChangeStreamHistoryLost,
        "Resume of change stream was not possible, as the resume point may no longer be in the oplog.",
    );
    error.labels.push("NonResumableChangeStreamError");
    error
}

fn damaged(what: &str) -> Error {
    Error::new(
        ErrorCode::DataCorruptionDetected,
        format!("the change log cannot be read: {what}"),
    )
}

/// Returns the time in the key of an entry.
pub(super) fn time_of(key: &[u8]) -> Result<u64> {
    let time = key.strip_prefix(&[ENTRY_KEY]);
    let time = time.and_then(|time| <[u8; 8]>::try_from(time).ok());
    time.map(u64::from_be_bytes)
        .ok_or_else(|| damaged("a key has another length"))
}

impl ChangeLog {
    /// Returns the number of the part that takes entries.
    pub(super) fn newest_part(&self) -> u64 {
        self.lock().parts.back().map_or(0, |part| part.number)
    }

    /// Reads batches from the time `from` on. Those that do not concern `scope` may be left out. Fails with code 286 if some
    /// of them were removed.
    pub(crate) fn read(&self, from: u64, scope: &StreamScope) -> Result<LogPage> {
        self.settle_failed();
        let state = self.lock();
        let visible = state.visible();
        let mut page = LogPage {
            batches: Vec::new(),
            up_to: visible,
        };
        if from > visible {
            page.up_to = from - 1;
            return Ok(page);
        }
        if state.parts.front().is_none_or(|oldest| from < oldest.start) {
            return Err(history_lost());
        }
        if let Some(batches) = state.recent.of(scope, from, visible) {
            let mut bytes = 0;
            for batch in batches {
                bytes += batch.bytes();
                page.batches.push(batch.clone());
                if bytes >= PAGE_BYTES_MAX || page.batches.len() >= PAGE_BATCHES_MAX {
                    page.up_to = batch.time;
                    break;
                }
            }
            return Ok(page);
        }
        let parts = state.parts.clone();
        drop(state);
        self.read_stored(from, visible, &parts)
    }

    /// Returns the time before the oldest entry that is kept.
    pub(crate) fn before_oldest(&self) -> u64 {
        let state = self.lock();
        state.parts.front().map_or(0, |oldest| oldest.start - 1)
    }

    /// True if nothing was removed from the beginning of the log.
    pub(crate) fn is_whole(&self) -> bool {
        let state = self.lock();
        state.parts.front().is_some_and(|oldest| oldest.number == 1)
    }

    /// Returns the number of bytes of the entries, about, and the size above which the oldest are removed.
    pub(crate) fn sizes(&self) -> (u64, u64) {
        let state = self.lock();
        let bytes = state.parts.iter().map(|part| part.bytes).sum();
        (bytes, self.options.bytes_max)
    }

    /// Waits until readers are shown all batches that have their times now: so what another read has seen is among them.
    pub(crate) fn wait_until_visible(&self) {
        let assigned = self.lock().last;
        let arrivals = self.arrivals(&StreamScope::Cluster);
        // A commit that has failed may keep its time for good.
        for _ in 0..COMMIT_WAITS_MAX {
            let known = arrivals.count();
            if self.visible() >= assigned {
                return;
            }
            arrivals.wait(known, COMMIT_WAIT);
        }
    }

    /// Reads at most `batches_max` batches up to the time `to`, the last one first. They are visible.
    pub(crate) fn read_back(&self, to: u64, batches_max: usize) -> Result<Vec<LoggedBatch>> {
        let to = to.min(self.visible());
        let parts = self.lock().parts.clone();
        let snapshot = self.engine.snapshot()?;
        let end = [&[ENTRY_KEY][..], &(to.saturating_add(1)).to_be_bytes()].concat();
        let (mut batches, mut bytes) = (Vec::new(), 0);
        for (at, part) in parts.iter().enumerate().rev() {
            let scan = snapshot.scan(part.keyspace, &[ENTRY_KEY], Some(&end), Direction::Backward);
            let before = at.checked_sub(1).and_then(|at| parts.get(at));
            for item in scan.map_err(of_dropped)? {
                let (key, value) = item.map_err(of_dropped)?;
                bytes += value.len();
                batches.push(batch(&key, value, (part, before))?);
                if bytes >= PAGE_BYTES_MAX || batches.len() >= batches_max.min(PAGE_BATCHES_MAX) {
                    return Ok(batches);
                }
            }
        }
        Ok(batches)
    }

    /// Reads batches from storage.
    fn read_stored(&self, from: u64, visible: u64, parts: &VecDeque<LogPart>) -> Result<LogPage> {
        let mut page = LogPage {
            batches: Vec::new(),
            up_to: visible,
        };
        // Taken after `visible`, so all batches up to that time are in it.
        let snapshot = self.engine.snapshot()?;
        let first = parts.partition_point(|part| part.start <= from);
        let first = first.saturating_sub(1);
        let end = [&[ENTRY_KEY][..], &(visible + 1).to_be_bytes()].concat();
        let mut bytes = 0;
        for (at, part) in parts.iter().enumerate().skip(first) {
            let start = [&[ENTRY_KEY][..], &from.to_be_bytes()].concat();
            let scan = snapshot.scan(part.keyspace, &start, Some(&end), Direction::Forward);
            let scan = scan.map_err(of_dropped)?;
            let before = at.checked_sub(1).and_then(|at| parts.get(at));
            for item in scan {
                let (key, value) = item.map_err(of_dropped)?;
                bytes += value.len();
                let batch = batch(&key, value, (part, before))?;
                let time = batch.time;
                page.batches.push(batch);
                if bytes >= PAGE_BYTES_MAX || page.batches.len() >= PAGE_BATCHES_MAX {
                    page.up_to = time;
                    return Ok(page);
                }
            }
        }
        Ok(page)
    }

    /// Returns the header of a bucket, which names at least so many columns, for a tail entry of `batch`. Fails with code 286
    /// if it was removed.
    pub(crate) fn header(
        &self,
        batch: &LoggedBatch,
        (uuid, bucket): ([u8; 16], [u8; 12]),
        columns: usize,
    ) -> Result<Arc<BucketHeader>> {
        let known = self.headers.lock();
        let known = known.unwrap_or_else(PoisonError::into_inner);
        let found = known.get(&(uuid, bucket)).cloned();
        drop(known);
        if let Some(found) = found.filter(|header| header.names.len() >= columns) {
            return Ok(found);
        }
        let stored = Arc::new(self.stored_header(batch, (uuid, bucket))?);
        let known = self.headers.lock();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        if known.len() >= HEADERS_MAX {
            known.clear();
        }
        known.insert((uuid, bucket), Arc::clone(&stored));
        Ok(stored)
    }

    fn stored_header(
        &self,
        batch: &LoggedBatch,
        (uuid, bucket): ([u8; 16], [u8; 12]),
    ) -> Result<BucketHeader> {
        let snapshot = self.engine.snapshot()?;
        let prefix = [&[HEADER_KEY][..], &uuid, &bucket].concat();
        let end = [&prefix[..], &[0xFF; 3]].concat();
        for keyspace in batch.keyspaces.into_iter().flatten() {
            let scan = snapshot.scan(keyspace, &prefix, Some(&end), Direction::Backward);
            let found = scan.map_err(of_dropped)?.next().transpose();
            if let Some((_, value)) = found.map_err(of_dropped)? {
                let header = DocRef::new(&value).and_then(BucketHeader::of);
                return header.ok_or_else(|| damaged("a header is malformed"));
            }
        }
        Err(history_lost())
    }
}

/// A part that was dropped after the list was taken is an entry that was removed.
fn of_dropped(error: nilometer_storage::Error) -> Error {
    match error {
        nilometer_storage::Error::UnknownKeyspace { .. } => history_lost(),
        other => other.into(),
    }
}

fn batch(
    key: &[u8],
    value: Bytes,
    (part, before): (&LogPart, Option<&LogPart>),
) -> Result<LoggedBatch> {
    let mut rest = match value.split_first() {
        Some((&VERSION, rest)) => rest,
        _ => return Err(damaged("an entry has an unknown version")),
    };
    let wall_ms = varint::take(&mut rest).ok_or_else(|| damaged("an entry is too short"))?;
    let entries_at = value.len() - rest.len();
    Ok(LoggedBatch {
        time: time_of(key)?,
        wall_ms: i64::try_from(wall_ms).unwrap_or(i64::MAX),
        entries_at,
        value,
        keyspaces: [Some(part.keyspace), before.map(|part| part.keyspace)],
    })
}
