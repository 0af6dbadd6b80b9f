//! `SEGMENTS`: the first and the last file of the log.
//!
//! The segments themselves show a gap between two of them, but not that the newest or the oldest one is missing, as from
//! a copy that forgot it. This file does.
//!
//! ```text
//! two slots, at bytes 0 and 4096, written in turn; the valid one with the higher number counts
//! slot = "NILOSEG1", number of the write, id of the first segment, id of the last (0: none),
//!        checksum                                                          (all u64 LE)
//! ```
//!
//! The last id is written after its segment exists and before a batch in it is acknowledged, the first id before the
//! segments below it are removed. So after a crash the files may reach further than the list at both ends, and never
//! less far. One write of one sector per change cannot be torn, and the other slot would survive it.
//!
//! Headers of segments say whether the list names them: builds before the list wrote none, so it may be absent, or
//! behind if such a build opened the directory since.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::record::SegmentHeader;
use super::segment::segment_path;
use crate::checksum::checksum;
use crate::error::{Error, Result};
use crate::file_system::{FileSystem, LogFile};
use crate::lock::lock;

/// Name of the file, in the folder of the log.
pub(crate) const SEGMENTS_FILE: &str = "SEGMENTS";

/// Name of the file while it is created.
const NEW_FILE: &str = "SEGMENTS.new";

const MAGIC: [u8; 8] = *b"NILOSEG1";

/// Bytes of the fields of a slot.
const SLOT_BYTES: usize = 40;

/// Distance of the slots: no device writes both as one sector.
const SLOT_DISTANCE: u64 = 4096;

/// Number of slots.
const SLOTS: u64 = 2;

/// The first and the last segment of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentRange {
    pub(crate) first: u64,
    /// 0 if there is none.
    pub(crate) last: u64,
}

/// The open file, and what it says.
pub(super) struct SegmentList {
    path: PathBuf,
    state: Mutex<SegmentListState>,
}

struct SegmentListState {
    file: Arc<dyn LogFile>,
    number: u64,
    range: SegmentRange,
}

impl SegmentList {
    /// Creates the list, or replaces that of an earlier process. It is durable when this returns.
    pub(super) fn create(
        directory: &Path,
        file_system: &dyn FileSystem,
        range: SegmentRange,
    ) -> Result<Self> {
        let (path, from) = (directory.join(SEGMENTS_FILE), directory.join(NEW_FILE));
        // An earlier attempt may have left it.
        let _ = file_system.remove(&from);
        let create = || {
            let file = file_system.create(&from, SLOTS * SLOT_DISTANCE)?;
            file.write_at(&encode(0, range), 0)?;
            file.sync()?;
            file_system.rename(&from, &path)?;
            file_system.sync_directory(directory)?;
            Ok(file)
        };
        let file = create().map_err(|source| Error::io("create", &path, source))?;
        Ok(Self {
            state: Mutex::new(SegmentListState {
                file: file.into(),
                number: 0,
                range,
            }),
            path,
        })
    }

    /// Records that the log now ends with segment `last`, unless it does so already.
    pub(super) fn set_last(&self, last: u64) -> Result<()> {
        self.change(|range| SegmentRange { last, ..range })
    }

    /// Records that segments below `first` are not needed.
    pub(super) fn set_first(&self, first: u64) -> Result<()> {
        self.change(|range| SegmentRange {
            first: first.max(range.first),
            ..range
        })
    }

    fn change(&self, change: impl FnOnce(SegmentRange) -> SegmentRange) -> Result<()> {
        let mut state = lock(&self.state);
        let range = change(state.range);
        if range == state.range {
            return Ok(());
        }
        let number = state.number + 1;
        let written = state
            .file
            .write_at(&encode(number, range), number % SLOTS * SLOT_DISTANCE)
            .and_then(|()| state.file.sync());
        written.map_err(|source| Error::io("write", &self.path, source))?;
        (state.number, state.range) = (number, range);
        Ok(())
    }
}

fn encode(number: u64, range: SegmentRange) -> [u8; SLOT_BYTES] {
    let mut bytes = [0; SLOT_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    bytes[16..24].copy_from_slice(&range.first.to_le_bytes());
    bytes[24..32].copy_from_slice(&range.last.to_le_bytes());
    let sum = checksum(&bytes[..32], 0);
    bytes[32..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Decodes the slot at the start of `bytes`: its number and range.
fn decode(bytes: &[u8]) -> Option<(u64, SegmentRange)> {
    let u64_at = |offset: usize| {
        let field = bytes.get(offset..offset + 8)?;
        Some(u64::from_le_bytes(field.try_into().ok()?))
    };
    let is_whole = bytes.get(..8)? == MAGIC && u64_at(32)? == checksum(bytes.get(..32)?, 0);
    let (first, last) = (u64_at(16)?, u64_at(24)?);
    is_whole.then_some((u64_at(8)?, SegmentRange { first, last }))
}

/// Reads the list in `directory`. Returns `None` if there is none.
pub(crate) fn read_segment_list(directory: &Path) -> Result<Option<SegmentRange>> {
    let path = directory.join(SEGMENTS_FILE);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(Error::io("read", &path, source)),
    };
    let slots = bytes.chunks(SLOT_DISTANCE as usize).take(SLOTS as usize);
    let newest = slots.filter_map(decode).max_by_key(|(number, _)| *number);
    match newest {
        Some((_, range)) => Ok(Some(range)),
        None => {
            let (expected, found) = ("a list of the log's segments", "other bytes");
            Err(Error::corruption("log", &path, 0, expected, found))
        }
    }
}

/// Fails if the list names a segment at either end that is not among `headers`, those of all segments in `directory`.
pub(super) fn check_segment_list(directory: &Path, headers: &[SegmentHeader]) -> Result<()> {
    let missing =
        |path: &Path, expected: &str| Err(Error::corruption("log", path, 0, expected, "no file"));
    let Some(range) = read_segment_list(directory)? else {
        if headers.iter().any(|header| header.is_listed) {
            let expected = "a list of the log's segments";
            return missing(&directory.join(SEGMENTS_FILE), expected);
        }
        return Ok(());
    };
    let newest = headers.last();
    if newest.map_or(0, |header| header.id) < range.last {
        let path = segment_path(directory, range.last);
        return missing(&path, "the newest segment");
    }
    // A build that does not know the list wrote the newest segment, and may have removed others.
    let is_behind = newest.is_none_or(|header| !header.is_listed);
    if !is_behind
        && headers
            .first()
            .is_some_and(|header| header.id > range.first)
    {
        let path = segment_path(directory, range.first);
        return missing(&path, "the oldest segment");
    }
    Ok(())
}

/// Writes the list of a copy of the log. It is durable when this returns, apart from its name.
pub(crate) fn write_segment_list(
    directory: &Path,
    file_system: &dyn FileSystem,
    range: SegmentRange,
) -> Result<()> {
    SegmentList::create(directory, file_system, range).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_system::RealFileSystem;

    #[test]
    fn a_slot_survives_the_round_trip_and_no_flipped_bit() {
        let range = SegmentRange { first: 3, last: 70 };
        let bytes = encode(9, range);
        assert_eq!(decode(&bytes), Some((9, range)));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&flipped), None, "bit {bit}");
        }
        for cut in 0..bytes.len() {
            assert_eq!(decode(&bytes[..cut]), None);
        }
    }

    #[test]
    fn golden_slot_bytes() {
        let bytes = encode(1, SegmentRange { first: 2, last: 3 });
        assert_eq!(&bytes[..16], b"NILOSEG1\x01\0\0\0\0\0\0\0");
        assert_eq!(&bytes[16..32], b"\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0");
        assert_eq!(bytes[32..], checksum(&bytes[..32], 0).to_le_bytes());
    }

    #[test]
    fn a_build_that_does_not_know_the_list_may_have_written_since() {
        let name = format!("nilometer-{}-segment-list", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).expect("a directory");
        let check = |ids: &[(u64, bool)]| {
            let headers = ids.iter().map(|(id, is_listed)| SegmentHeader {
                id: *id,
                first_index: 1,
                base_sequence: 0,
                size: 4096,
                is_listed: *is_listed,
            });
            let headers: Vec<SegmentHeader> = headers.collect();
            check_segment_list(&directory, &headers).is_ok()
        };
        assert!(check(&[]) && check(&[(1, false), (2, false)]));
        assert!(!check(&[(1, false), (2, true)]), "the list is missing");
        let range = SegmentRange { first: 3, last: 5 };
        let list = SegmentList::create(&directory, &RealFileSystem, range).expect("a list");
        assert!(check(&[(3, true), (4, true), (5, true)]));
        assert!(check(&[
            (2, true),
            (3, true),
            (4, true),
            (5, true),
            (6, true)
        ]));
        assert!(!check(&[(4, true), (5, true)]) && !check(&[(3, true), (4, true)]));
        assert!(!check(&[]));
        // The older build began 6 and 7, and removed 3 to 5.
        assert!(check(&[(6, false), (7, false)]) && !check(&[(3, false), (4, false)]));
        list.set_last(6).expect("written");
        list.set_first(5).expect("written");
        list.set_first(4).expect("the first never falls");
        drop(list);
        let found = read_segment_list(&directory).expect("readable");
        assert_eq!(found, Some(SegmentRange { first: 5, last: 6 }));
        fs::remove_dir_all(&directory).expect("removed");
    }
}
