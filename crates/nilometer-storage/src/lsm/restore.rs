//! Making a database of the files of a backup and of parts of the log behind them.
//!
//! The batches of the parts become further segments of the log, so the next opening replays them as after a crash. `FORMAT`
//! is written last: without it the directory is not a database.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::checkpoint::sync_folders;
use super::directory::{FORMAT_VERSION_MAX, log_path, sync, write_format};
use super::log::record::{
    RECORD_HEADER_BYTES, RecordHeader, RecordKind, SEGMENT_HEADER_BYTES, SegmentHeader, padded,
};
use super::log::replay::{LogEnd, replay};
use super::log::{SegmentRange, segment_path, write_segment_list};
use super::log_part::{KeyspaceChange, LogPart, LogPosition};
use super::tree_list::TreeList;
use crate::checksum::checksum;
use crate::engine::Keyspace;
use crate::error::{Error, Result};
use crate::file_system::{RealFileSystem, private_file};

/// Bytes of records after which a segment ends.
const SEGMENT_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Makes a database of the restored files in `directory`, whose log ends at `end`, and of the parts behind it, up to
/// batch `until`, which is left out; `None` for all. Returns where its log ends.
pub fn complete_restore(
    directory: &Path,
    format_version: u32,
    end: LogPosition,
    parts: &mut dyn Iterator<Item = Result<LogPart>>,
    until: Option<u64>,
) -> Result<LogPosition> {
    if format_version > FORMAT_VERSION_MAX {
        return Err(Error::UnsupportedFormat {
            found: format_version,
            supported: FORMAT_VERSION_MAX,
        });
    }
    let log = log_path(directory);
    let (position, first, last) = read_log(&log, end)?;
    let list = TreeList::read(directory)?;
    let mut list = list.ok_or_else(|| {
        let file = directory.join("TREES");
        Error::corruption(
            "list of keyspaces",
            &file,
            0,
            "a list of the trees",
            "no file",
        )
    })?;
    let mut writer = SegmentWriter {
        log: log.clone(),
        id: last + 1,
        at: position,
        segment_begin: position,
        records: Vec::new(),
    };
    let mut changes = Vec::new();
    for part in parts {
        let part = part?;
        if until.is_some_and(|until| writer.at.next_index >= until) {
            break;
        }
        writer.append(&part, until.unwrap_or(u64::MAX))?;
        changes.extend(part.changes);
    }
    writer.finish()?;
    if writer.at != position {
        apply_changes(&mut list, changes, writer.at.next_index);
    }
    list.write(directory)?;
    let range = SegmentRange {
        first,
        last: writer.id - 1,
    };
    write_segment_list(&log, &RealFileSystem, range)?;
    sync(&log)?;
    sync_folders(directory)?;
    write_format(directory, format_version.max(list.format_version()))?;
    match directory.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync(parent)?,
        _ => {}
    }
    Ok(writer.at)
}

/// Applies the changes before batch `next` to the keyspaces of a checkpoint before it. The entries of those that are new are
/// in the log alone, so that they have no files.
///
/// Some changes may be older than the checkpoint. Ids are never used again, so a keyspace exists if it was created and not
/// dropped, in whatever order that is read.
fn apply_changes(list: &mut TreeList, changes: Vec<(u64, KeyspaceChange)>, next: u64) {
    let mut created = Vec::<Keyspace>::new();
    let mut dropped = Vec::new();
    for (at, change) in changes {
        match change {
            KeyspaceChange::Created(keyspace) if at <= next => {
                list.next_id = list.next_id.max(keyspace.id.0 + 1);
                let mut known = list.keyspaces.iter().chain(&created);
                if !known.any(|known| known.id == keyspace.id) {
                    created.push(keyspace);
                }
            }
            KeyspaceChange::Dropped(id) if at < next => dropped.push(id),
            KeyspaceChange::Created(_) | KeyspaceChange::Dropped(_) => {}
        }
    }
    created.retain(|keyspace| !dropped.contains(&keyspace.id));
    list.unflushed
        .extend(created.iter().map(|keyspace| keyspace.id));
    list.keyspaces.extend(created);
    (list.keyspaces).retain(|keyspace| !dropped.contains(&keyspace.id));
    list.keyspaces.sort_by_key(|keyspace| keyspace.id);
    (list.unflushed).retain(|id| !dropped.contains(id));
}

/// Reads the restored log, which must end at `end`. Also returns its first and its last segment.
fn read_log(log: &Path, end: LogPosition) -> Result<(LogPosition, u64, u64)> {
    let found = replay(log, &mut |_| Ok(()))?;
    let found = found.unwrap_or(LogEnd::before(1, 0));
    let position = LogPosition {
        next_index: found.next_index,
        last_sequence: found.last_sequence,
    };
    if position != end {
        let (expected, found) = (format!("{end:?}"), format!("{position:?}"));
        return Err(Error::corruption("log", log, 0, expected, found));
    }
    let first = found.segments.first().map_or(1, |segment| segment.id);
    let last = found.segments.last().map_or(0, |segment| segment.id);
    Ok((position, first, last))
}

/// Writes batches into new segments.
struct SegmentWriter {
    log: PathBuf,
    /// The id of the next segment.
    id: u64,
    at: LogPosition,
    segment_begin: LogPosition,
    records: Vec<u8>,
}

impl SegmentWriter {
    /// Appends the batches of a part, without those that are there and those from `until` on.
    fn append(&mut self, part: &LogPart, until: u64) -> Result<()> {
        let is_next = part.begin.next_index < self.at.next_index
            || part.begin.next_index == self.at.next_index
                && part.begin.last_sequence == self.at.last_sequence;
        if !is_next {
            let expected = format!("a part of the log that begins at {:?}", self.at);
            let found = format!("one that begins at {:?}", part.begin);
            return Err(Error::corruption("log", &self.log, 0, expected, found));
        }
        let mut failure = None;
        let read = part.each_batch(|index, sequence, payload| {
            if index != self.at.next_index || index >= until || failure.is_some() {
                return;
            }
            if sequence <= self.at.last_sequence {
                let expected = format!("a sequence number above {}", self.at.last_sequence);
                let found = sequence.to_string();
                failure = Some(Error::corruption("log", &self.log, 0, expected, found));
                return;
            }
            failure = self.push(sequence, payload).err();
        });
        match failure {
            Some(error) => Err(error),
            None => read.ok_or_else(|| {
                let found = "other bytes";
                Error::corruption("log", &self.log, 0, "batches of a part", found)
            }),
        }
    }

    fn push(&mut self, sequence: u64, payload: &[u8]) -> Result<()> {
        let start = self.records.len();
        self.records.resize(start + RECORD_HEADER_BYTES, 0);
        self.records.extend(payload);
        let header = RecordHeader {
            kind: RecordKind::Batch,
            // As long as in the log it came from.
            length: payload.len() as u32,
            index: self.at.next_index,
            sequence,
            durable: self.at.next_index - 1,
            payload_checksum: checksum(payload, 0),
        };
        header.encode_into(self.id, &mut self.records[start..]);
        self.records.resize(padded(self.records.len()), 0);
        self.at = LogPosition {
            next_index: self.at.next_index + 1,
            last_sequence: sequence,
        };
        match self.records.len() >= SEGMENT_BYTES_MAX {
            true => self.finish(),
            false => Ok(()),
        }
    }

    /// Writes the gathered records as a segment, if there are any.
    fn finish(&mut self) -> Result<()> {
        if self.records.is_empty() {
            return Ok(());
        }
        let bytes = SEGMENT_HEADER_BYTES + self.records.len() + RECORD_HEADER_BYTES;
        let header = SegmentHeader {
            id: self.id,
            first_index: self.segment_begin.next_index,
            base_sequence: self.segment_begin.last_sequence,
            size: bytes as u64,
            is_listed: true,
        };
        let (next, last) = (self.at.next_index, self.at.last_sequence);
        let mut mark = [0; RECORD_HEADER_BYTES];
        RecordHeader::end(next, last, next - 1).encode_into(self.id, &mut mark);
        let path = segment_path(&self.log, self.id);
        let write = || {
            let mut file = private_file().write(true).create_new(true).open(&path)?;
            file.write_all(&header.encode())?;
            file.write_all(&self.records)?;
            file.write_all(&mark)?;
            file.sync_all()
        };
        write().map_err(|source| Error::io("write", &path, source))?;
        self.id += 1;
        self.segment_begin = self.at;
        self.records.clear();
        Ok(())
    }
}
