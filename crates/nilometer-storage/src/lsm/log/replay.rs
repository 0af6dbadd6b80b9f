//! Reading the log, and distinguishing a torn tail from damage.
//!
//! Rules, in the order they are applied (the head of [`super`] gives the reasons):
//!
//! 1. Segment ids are consecutive; each file has a valid header with its own id and is not shorter than at creation;
//!    first index and base sequence number continue the segment before. The oldest and the newest are there
//!    (`segment_list.rs`).
//! 2. A segment ends at the first index of the next one. The rest is ignored.
//! 3. The last segment ends at its end mark, or at the first record that does not parse; the latter is reported as a
//!    cut. In both cases a later header that says the next index was durable means damage.
//! 4. A segment without an end mark where the next one says it ends was cut by an earlier recovery. That is reported
//!    as long as the file exists.

use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::record::{
    ALIGNMENT, RECORD_HEADER_BYTES, RecordHeader, RecordKind, SEGMENT_HEADER_BYTES, SegmentHeader,
};
use super::segment::{segment_id, segment_path, used_bytes};
use super::segment_list::check_segment_list;
use crate::checksum::checksum;
use crate::error::{Error, Result};

/// Where recovery ended a log without a clean end: after every record that was provably acknowledged, at the remains of
/// a torn write or at damage.
///
/// A record and the mark or record that follows it are one write, so an interrupted process leaves no whole header
/// after a record that is not whole. A power loss may, because a device writes sectors in any order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogCut {
    /// The segment file.
    pub segment: PathBuf,
    /// Offset of the first ignored byte.
    pub offset: u64,
    /// Number of ignored bytes, up to the last that is not zero.
    pub bytes: u64,
    /// Index of the next commit.
    pub index: u64,
    /// True if the header of the first ignored record is whole.
    pub header_is_whole: bool,
    /// True if the write reached its end: a whole header follows the first ignored record, or the end of the file.
    pub write_is_complete: bool,
}

impl LogCut {
    /// True if ignored records may have been acknowledged: bytes were damaged after they were written, or a power loss
    /// took part of a write.
    pub fn may_be_acknowledged(&self) -> bool {
        self.header_is_whole || self.write_is_complete
    }
}

impl fmt::Display for LogCut {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, offset) = (self.bytes, self.offset);
        write!(
            formatter,
            "the log was cut in {} at byte {offset}: {bytes} bytes, ",
            self.segment.display()
        )?;
        formatter.write_str(match (self.write_is_complete, self.header_is_whole) {
            (true, _) => {
                "a write that reached its end and was damaged, or torn by a power loss; it may have been acknowledged"
            }
            (false, true) => "a record without its end, whose header is whole; it may have been acknowledged",
            (false, false) => "a torn write, never acknowledged",
        })
    }
}

/// One batch in the log.
pub(crate) struct LogBatch<'a> {
    pub(crate) segment: u64,
    pub(crate) path: &'a Path,
    pub(crate) offset: u64,
    pub(crate) sequence: u64,
    pub(crate) payload: &'a [u8],
}

/// A segment read by recovery.
pub(crate) struct ReadSegment {
    pub(crate) id: u64,
    pub(crate) path: PathBuf,
    pub(crate) first_index: u64,
    pub(crate) bytes: u64,
    /// Bytes from the start that a copy needs.
    pub(crate) used_bytes: u64,
}

/// The result of reading the whole log.
pub(crate) struct LogEnd {
    pub(crate) segments: Vec<ReadSegment>,
    pub(crate) next_index: u64,
    pub(crate) last_sequence: u64,
    pub(crate) batches: u64,
    pub(crate) cut: Option<LogCut>,
    /// Where earlier recoveries ended segments that still exist.
    pub(crate) earlier_cuts: Vec<LogCut>,
}

impl LogEnd {
    /// The end of a log before batch `next_index`.
    pub(crate) const fn before(next_index: u64, last_sequence: u64) -> Self {
        Self {
            segments: Vec::new(),
            next_index,
            last_sequence,
            batches: 0,
            cut: None,
            earlier_cuts: Vec::new(),
        }
    }
}

/// Receives every batch in order.
pub(crate) type EachBatch<'a> = dyn FnMut(&LogBatch<'_>) -> Result<()> + 'a;

/// Reads every segment in `directory`. Returns `None` if there is none.
pub(crate) fn replay(directory: &Path, each: &mut EachBatch<'_>) -> Result<Option<LogEnd>> {
    let ids = segment_ids(directory)?;
    let Some(first) = ids.first() else {
        check_segment_list(directory, &[])?;
        return Ok(None);
    };
    let mut headers = Vec::with_capacity(ids.len());
    for (expected, id) in (*first..).zip(&ids) {
        if expected != *id {
            return Err(Error::corruption(
                "log",
                &segment_path(directory, expected),
                0,
                "a segment between its neighbours",
                "no file",
            ));
        }
        headers.push(read_header(&segment_path(directory, *id), *id)?);
    }
    check_segment_list(directory, &headers)?;
    let mut end = LogEnd::before(
        headers.first().map_or(1, |header| header.first_index),
        headers.first().map_or(0, |header| header.base_sequence),
    );
    for (position, header) in headers.iter().enumerate() {
        let path = segment_path(directory, header.id);
        check_continuation(&path, header, &end)?;
        let fixed_end = headers.get(position + 1).map(|next| next.first_index);
        let bytes = read_file(&path)?;
        let offset = read_segment(&path, &bytes, header, fixed_end, &mut end, each)?;
        let remains = bytes.get(offset..).unwrap_or_default();
        let is_marked = is_end_mark(remains, header.id, &end);
        let length = bytes.len() as u64;
        match fixed_end {
            // Nothing after the mark was acknowledged.
            Some(_) if is_marked => {}
            Some(_) => {
                let (cut, _) = find_cut(&path, remains, header.id, offset, &end);
                end.earlier_cuts.extend(cut);
            }
            None => end.cut = find_end(&path, remains, header.id, offset, &end)?,
        }
        end.segments.push(ReadSegment {
            id: header.id,
            path,
            first_index: header.first_index,
            bytes: length,
            // What was cut stays to be reported.
            used_bytes: match is_marked {
                true => used_bytes(offset as u64, length),
                false => length,
            },
        });
    }
    Ok(Some(end))
}

/// Checks the records of one segment up to the index `end`, for a scrub.
pub(crate) fn check_segment(path: &Path, id: u64, end: u64) -> Result<()> {
    let header = read_header(path, id)?;
    let mut state = LogEnd::before(header.first_index, header.base_sequence);
    let bytes = read_file(path)?;
    read_segment(
        path,
        &bytes,
        &header,
        Some(end),
        &mut state,
        &mut |_| Ok(()),
    )
    .map(drop)
}

/// Reads the header of segment `id` and checks it against the size of the file.
pub(crate) fn read_header(path: &Path, id: u64) -> Result<SegmentHeader> {
    use std::io::Read;
    let file = File::open(path).map_err(|source| Error::io("open", path, source))?;
    let metadata = file.metadata();
    let length = metadata
        .map_err(|source| Error::io("stat", path, source))?
        .len();
    let mut start = Vec::new();
    let read = file
        .take(SEGMENT_HEADER_BYTES as u64)
        .read_to_end(&mut start);
    read.map_err(|source| Error::io("read", path, source))?;
    let Some(header) = SegmentHeader::decode(&start) else {
        let found = "other bytes";
        return Err(Error::corruption("log", path, 0, "a segment header", found));
    };
    if header.id != id {
        let expected = format!("segment {id}");
        let found = format!("segment {}", header.id);
        return Err(Error::corruption("log", path, 8, expected, found));
    }
    if length < header.size {
        let expected = format!("a file of {} bytes", header.size);
        let found = "the end of the file";
        return Err(Error::corruption("log", path, length, expected, found));
    }
    Ok(header)
}

fn check_continuation(path: &Path, header: &SegmentHeader, end: &LogEnd) -> Result<()> {
    if header.first_index != end.next_index {
        let expected = format!("a segment that begins with index {}", end.next_index);
        let found = format!("index {}", header.first_index);
        return Err(Error::corruption("log", path, 16, expected, found));
    }
    if header.base_sequence != end.last_sequence {
        let expected = format!("a segment after sequence number {}", end.last_sequence);
        let found = format!("{}", header.base_sequence);
        return Err(Error::corruption("log", path, 24, expected, found));
    }
    Ok(())
}

/// Returns the ids of the segments in `directory`, ascending.
pub(crate) fn segment_ids(directory: &Path) -> Result<Vec<u64>> {
    let entries = fs::read_dir(directory).map_err(|source| Error::io("list", directory, source))?;
    let mut ids = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|source| Error::io("list", directory, source))?;
        ids.extend(entry.file_name().to_str().and_then(segment_id));
    }
    ids.sort_unstable();
    Ok(ids)
}

/// Reads a segment and syncs it, so that the device holds what was read: flushes may write these batches into tables,
/// and tables must never hold a batch that the log may lose.
fn read_file(path: &Path) -> Result<Vec<u8>> {
    let bytes = fs::read(path).map_err(|source| Error::io("read", path, source))?;
    let file = File::open(path).map_err(|source| Error::io("open", path, source))?;
    file.sync_all()
        .map_err(|source| Error::io("sync", path, source))?;
    Ok(bytes)
}

/// Reads the records of one segment. Returns the offset after the last.
fn read_segment(
    path: &Path,
    bytes: &[u8],
    header: &SegmentHeader,
    fixed_end: Option<u64>,
    end: &mut LogEnd,
    each: &mut EachBatch<'_>,
) -> Result<usize> {
    let mut offset = SEGMENT_HEADER_BYTES;
    loop {
        if fixed_end == Some(end.next_index) {
            return Ok(offset);
        }
        let Some((record, payload)) = parse(bytes, offset, header.id, end) else {
            break;
        };
        each(&LogBatch {
            segment: header.id,
            path,
            offset: offset as u64,
            sequence: record.sequence,
            payload,
        })?;
        end.next_index += 1;
        end.last_sequence = record.sequence;
        end.batches += 1;
        offset += record.record_bytes();
    }
    if let Some(fixed_end) = fixed_end {
        let expected = format!(
            "the record of batch {} of {}",
            end.next_index,
            fixed_end - 1
        );
        return Err(damaged(path, offset, expected));
    }
    Ok(offset)
}

/// Returns the record at `offset` and its payload, if it is whole and the next one.
fn parse<'a>(
    bytes: &'a [u8],
    offset: usize,
    segment: u64,
    end: &LogEnd,
) -> Option<(RecordHeader, &'a [u8])> {
    let record = RecordHeader::decode(bytes.get(offset..)?, segment)?;
    let fits = record.kind == RecordKind::Batch
        && record.index == end.next_index
        && record.durable < record.index
        && record.sequence > end.last_sequence;
    let start = offset + RECORD_HEADER_BYTES;
    let payload = bytes.get(start..start.checked_add(record.length as usize)?)?;
    let whole = checksum(payload, 0) == record.payload_checksum;
    (fits && whole).then_some((record, payload))
}

/// Replays the whole records of segment `id` of a damaged log that follow `end`. For salvage only: batches may be
/// missing between them. Returns the number of missing batches, as far as later indexes show it.
pub(crate) fn read_remains(
    directory: &Path,
    id: u64,
    end: &mut LogEnd,
    each: &mut EachBatch<'_>,
) -> Result<u64> {
    let path = segment_path(directory, id);
    let bytes = fs::read(&path).map_err(|source| Error::io("read", &path, source))?;
    // Remains of a torn write after the last batch are not part of the log.
    let next = segment_path(directory, id + 1);
    let fixed_end = read_header(&next, id + 1).map_or(u64::MAX, |header| header.first_index);
    let mut lost = 0;
    let mut offset = SEGMENT_HEADER_BYTES;
    while let Some(rest) = bytes.get(offset..).filter(|rest| !rest.is_empty()) {
        let record = RecordHeader::decode(rest, id).filter(|record| {
            record.kind == RecordKind::Batch
                && record.durable < record.index
                && record.sequence > end.last_sequence
        });
        let Some(record) = record else {
            offset += ALIGNMENT;
            continue;
        };
        if record.index >= fixed_end {
            break;
        }
        let payload = rest.get(RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + record.length as usize);
        if let Some(payload) = payload.filter(|p| checksum(p, 0) == record.payload_checksum) {
            // The first record read may be the first of the log.
            if end.batches > 0 {
                lost += record.index.saturating_sub(end.next_index);
            }
            each(&LogBatch {
                segment: id,
                path: &path,
                offset: offset as u64,
                sequence: record.sequence,
                payload,
            })?;
            end.next_index = record.index + 1;
            end.last_sequence = record.sequence;
            end.batches += 1;
        }
        offset += record.record_bytes();
    }
    Ok(lost)
}

/// True if `remains`, what follows the last record of a segment, begins with its end mark.
fn is_end_mark(remains: &[u8], segment: u64, end: &LogEnd) -> bool {
    RecordHeader::decode(remains, segment).is_some_and(|mark| {
        mark.kind == RecordKind::End
            && mark.index == end.next_index
            && mark.sequence == end.last_sequence
            && mark.durable < end.next_index
    })
}

/// Decides how the last segment ends, whose batches end at `offset`.
fn find_end(
    path: &Path,
    remains: &[u8],
    segment: u64,
    offset: usize,
    end: &LogEnd,
) -> Result<Option<LogCut>> {
    let (cut, durable_at) = find_cut(path, remains, segment, offset, end);
    match durable_at {
        None => Ok(cut),
        Some(at) => {
            let next = end.next_index;
            let expected = format!("the record of batch {next}, which byte {at} says was durable");
            Err(damaged(path, offset, expected))
        }
    }
}

/// Returns the cut of a segment whose batches end at `offset`, unless its end is clean. Also returns the offset of the
/// first later header that says the next batch was durable.
fn find_cut(
    path: &Path,
    remains: &[u8],
    segment: u64,
    offset: usize,
    end: &LogEnd,
) -> (Option<LogCut>, Option<usize>) {
    let is_marked = is_end_mark(remains, segment, end);
    // A full segment has no space for a mark.
    let is_clean = is_marked || remains.len() < RECORD_HEADER_BYTES;
    let record = RecordHeader::decode(remains, segment)
        .filter(|record| record.kind == RecordKind::Batch && record.index == end.next_index);
    let fills = |record: RecordHeader| record.record_bytes() + RECORD_HEADER_BYTES > remains.len();
    let mut write_is_complete = record.is_some_and(fills);
    let mut durable_at = None;
    let from = if is_marked { RECORD_HEADER_BYTES } else { 0 };
    for at in (from..remains.len()).step_by(ALIGNMENT) {
        let header = remains.get(at..);
        let Some(header) = header.and_then(|bytes| RecordHeader::decode(bytes, segment)) else {
            continue;
        };
        write_is_complete |= at > 0;
        if header.durable >= end.next_index {
            durable_at = Some(offset + at);
            break;
        }
    }
    if is_clean && !write_is_complete {
        return (None, durable_at);
    }
    let last = remains.iter().rposition(|byte| *byte != 0);
    let cut = LogCut {
        segment: path.to_path_buf(),
        offset: offset as u64,
        bytes: last.map_or(0, |last| last as u64 + 1),
        index: end.next_index,
        header_is_whole: record.is_some(),
        write_is_complete,
    };
    (Some(cut), durable_at)
}

fn damaged(path: &Path, offset: usize, expected: String) -> Error {
    let found = "other bytes";
    Error::corruption("log", path, offset as u64, expected, found)
}
