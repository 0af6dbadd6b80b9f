//! Appending: one write and at most one sync for a group of batches.

use std::path::Path;
use std::sync::atomic::Ordering;

use lsm_tree::SequenceNumberCounter;

use super::record::{RECORD_HEADER_BYTES, RecordHeader, RecordKind, SegmentHeader, padded};
use super::segment::{self, ActiveSegment, SealedSegment};
use super::{Log, LogState, note_failure};
use crate::checksum::checksum;
use crate::engine::KeyspaceId;
use crate::error::{Error, Result, is_full};
use crate::lock::lock;

/// A batch to append. The writer builds and checksums it without holding a lock.
pub(crate) struct LogRecord {
    /// Space for the header, the payload, padding.
    bytes: Vec<u8>,
    payload_length: u32,
    payload_checksum: u64,
    /// The keyspaces the batch touches.
    keyspaces: Vec<KeyspaceId>,
    /// Index in the log, set by appending.
    pub(crate) index: u64,
    /// Sequence number in the trees, set by appending.
    pub(crate) sequence: u64,
}

impl LogRecord {
    /// Returns an empty buffer with space for the header.
    pub(crate) fn buffer(payload_capacity: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(padded(payload_capacity) + 2 * RECORD_HEADER_BYTES);
        bytes.resize(RECORD_HEADER_BYTES, 0);
        bytes
    }

    /// Makes a record of `buffer`, a [`LogRecord::buffer`] followed by the payload.
    pub(crate) fn new(mut buffer: Vec<u8>, keyspaces: Vec<KeyspaceId>) -> Result<Self> {
        let payload = &buffer[RECORD_HEADER_BYTES..];
        let payload_checksum = checksum(payload, 0);
        let length = payload.len();
        let payload_length = u32::try_from(length).map_err(|_| Error::TooLarge {
            what: "batch",
            length: length as u64,
            maximum: u64::from(u32::MAX),
        })?;
        buffer.resize(padded(buffer.len()), 0);
        Ok(Self {
            bytes: buffer,
            payload_length,
            payload_checksum,
            keyspaces,
            index: 0,
            sequence: 0,
        })
    }

    /// Returns the bytes of the record in the log.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Returns the payload.
    pub(crate) fn payload(&self) -> &[u8] {
        let end = RECORD_HEADER_BYTES + self.payload_length as usize;
        &self.bytes[RECORD_HEADER_BYTES..end]
    }
}

impl Log {
    /// Appends `records` in order, assigns their index and sequence number, and syncs if `sync` is set.
    ///
    /// After [`Error::Full`] nothing has changed. After [`Error::LogFailed`] it is unknown which records survive, and
    /// the log refuses writes. A file system that copies on write may have no space for a write into the reserved space
    /// either: that is [`Error::Full`] as well, and the next batch goes to a new segment.
    pub(crate) fn append(
        &self,
        state: &mut LogState,
        records: &mut [&mut LogRecord],
        sequence: &SequenceNumberCounter,
        sync: bool,
    ) -> Result<()> {
        if let Some(error) = self.failure() {
            return Err(error);
        }
        let bytes: u64 = records.iter().map(|record| record.bytes()).sum();
        if state.active.is_torn || state.active.offset + bytes > state.active.size {
            self.rotate(state, bytes.max(self.segment_bytes - segment::MIN_BYTES))?;
        }
        self.list_active(state)?;
        let before = (state.next_index, state.last_sequence, state.noted_index);
        for record in records.iter_mut() {
            stamp(state, record, sequence.next());
        }
        if let Err(error) = self.write(state, records) {
            (state.next_index, state.last_sequence, state.noted_index) = before;
            if matches!(error, Error::Full { .. }) {
                self.tear(state);
            }
            return Err(error);
        }
        for record in records.iter() {
            for keyspace in &record.keyspaces {
                state.active.highest.insert(*keyspace, record.sequence);
            }
        }
        if sync {
            self.sync_file(&*state.active.file, &state.active.path)?;
            state.durable_index = state.written_index();
        }
        if state.active.offset > state.active.size / 2 {
            let active = &state.active;
            let records = state.next_index - active.first_index;
            self.spares
                .want(active.offset, records, active.begun.elapsed());
        }
        Ok(())
    }

    /// Writes stamped records followed by the end mark.
    fn write(&self, state: &mut LogState, records: &mut [&mut LogRecord]) -> Result<()> {
        let mark = RecordHeader::end(state.next_index, state.last_sequence, state.durable_index);
        let active = &mut state.active;
        let (end, written) = match records {
            [record] => {
                let length = record.bytes.len();
                let end = active.offset + length as u64;
                push_end_mark(active, end, &mark, &mut record.bytes);
                let written = active.file.write_at(&record.bytes, active.offset);
                record.bytes.truncate(length);
                (end, written)
            }
            _ => {
                state.buffer.clear();
                for record in records.iter() {
                    state.buffer.extend_from_slice(&record.bytes);
                }
                let end = active.offset + state.buffer.len() as u64;
                push_end_mark(active, end, &mark, &mut state.buffer);
                (end, active.file.write_at(&state.buffer, active.offset))
            }
        };
        self.noted_write(&active.path, written)?;
        active.offset = end;
        Ok(())
    }

    /// Records a failed write, after which the log refuses writes, unless there was no space.
    fn noted_write(&self, path: &Path, written: std::io::Result<()>) -> Result<()> {
        written.map_err(|source| {
            if is_full(&source) {
                return Error::Full {
                    path: path.to_path_buf(),
                };
            }
            let mut device = lock(&self.device);
            note_failure(&mut device, "write", path, &source)
        })
    }

    /// Ends the active segment after a write that found no space: part of the refused records may be in the file. If the
    /// end mark cannot be written over them now, a crash before the next segment exists may bring them back.
    fn tear(&self, state: &mut LogState) {
        state.active.is_torn = true;
        let mark = RecordHeader::end(state.next_index, state.last_sequence, state.durable_index);
        let mut bytes = Vec::new();
        push_end_mark(&state.active, state.active.offset, &mark, &mut bytes);
        let _ = state.active.file.write_at(&bytes, state.active.offset);
    }

    /// Tries to create what a commit was refused for: a spare, the segment after a torn one, the entry in the list of
    /// segments. Called by the keeper.
    pub(crate) fn retry_segment(&self) -> Result<()> {
        self.make_spare_now()?;
        let mut state = self.lock();
        if state.active.is_torn {
            self.begin_segment(&mut state)?;
        }
        self.list_active(&state)
    }

    /// Names the active segment in the list of segments, before a batch in it is acknowledged.
    pub(super) fn list_active(&self, state: &LogState) -> Result<()> {
        self.noted_list(self.list.set_last(state.active.id))
    }

    /// Seals the active segment and begins the next, with space for `bytes` of records.
    ///
    /// After [`Error::Full`] the old segment stays active.
    pub(crate) fn rotate(&self, state: &mut LogState, bytes: u64) -> Result<()> {
        if state.active.is_torn {
            self.tear(state);
        }
        if state.durable_index < state.written_index() {
            self.sync_file(&*state.active.file, &state.active.path)?;
            state.durable_index = state.written_index();
        }
        let header = SegmentHeader {
            id: state.active.id + 1,
            first_index: state.next_index,
            base_sequence: state.last_sequence,
            size: bytes + segment::MIN_BYTES,
            is_listed: true,
        };
        let spare = self.spares.take(header.size);
        let next = segment::create(&self.directory, &*self.file_system, header, spare);
        let next = next.map_err(|error| self.not_rotated(header.id, error))?;
        let old = std::mem::replace(&mut state.active, next);
        state.noted_index = state.written_index();
        state.sealed.push_back(SealedSegment {
            id: old.id,
            path: old.path,
            first_index: old.first_index,
            bytes: old.size,
            used_bytes: segment::used_bytes(old.offset, old.size),
            highest: old.highest,
        });
        self.bytes.store(state.bytes(), Ordering::Release);
        Ok(())
    }

    /// Seals the active segment and begins one of ordinary size.
    pub(crate) fn begin_segment(&self, state: &mut LogState) -> Result<()> {
        self.rotate(state, self.segment_bytes - segment::MIN_BYTES)
    }

    /// Ends the log at a clean close: the header of an empty segment records where it ends.
    pub(crate) fn end(&self, state: &mut LogState) -> Result<()> {
        self.rotate(state, 0)?;
        self.list_active(state)
    }

    /// An existing segment ends the one before it. If its creation failed after the file appeared, recovery would
    /// ignore batches appended to the old segment, so the log must refuse writes.
    fn not_rotated(&self, id: u64, error: Error) -> Error {
        let path = segment::segment_path(&self.directory, id);
        if matches!(path.try_exists(), Ok(false)) {
            return error;
        }
        let failed = Error::LogFailed {
            reason: error.to_string(),
        };
        lock(&self.device).get_or_insert(failed).clone()
    }

    /// Rewrites the end mark if the log is idle and no header records how far it is durable.
    pub(crate) fn note_durable(&self) -> Result<()> {
        let mut state = self.lock();
        let recorded = state.noted_index == state.written_index() || state.active.is_torn;
        if recorded || state.durable_index < state.written_index() {
            return Ok(());
        }
        if let Some(error) = self.failure() {
            return Err(error);
        }
        let mark = RecordHeader::end(state.next_index, state.last_sequence, state.durable_index);
        let mut bytes = Vec::new();
        push_end_mark(&state.active, state.active.offset, &mark, &mut bytes);
        let written = state.active.file.write_at(&bytes, state.active.offset);
        let noted = self.noted_write(&state.active.path, written);
        state.active.is_torn = matches!(noted, Err(Error::Full { .. }));
        noted?;
        state.noted_index = state.durable_index;
        Ok(())
    }
}

/// Appends the end mark for records that end at `end`, if the segment has space for it.
fn push_end_mark(active: &ActiveSegment, end: u64, mark: &RecordHeader, bytes: &mut Vec<u8>) {
    if end + RECORD_HEADER_BYTES as u64 <= active.size {
        let start = bytes.len();
        bytes.resize(start + RECORD_HEADER_BYTES, 0);
        mark.encode_into(active.id, &mut bytes[start..]);
    }
}

/// Assigns the numbers of one record and encodes its header.
fn stamp(state: &mut LogState, record: &mut LogRecord, sequence: u64) {
    record.index = state.next_index;
    record.sequence = sequence;
    let header = RecordHeader {
        kind: RecordKind::Batch,
        length: record.payload_length,
        index: record.index,
        sequence,
        durable: state.durable_index,
        payload_checksum: record.payload_checksum,
    };
    header.encode_into(state.active.id, &mut record.bytes);
    state.next_index += 1;
    state.last_sequence = sequence;
    state.noted_index = state.noted_index.max(state.durable_index);
}
