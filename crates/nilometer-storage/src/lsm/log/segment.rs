//! Segment files: names, creation, and the state kept for each.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::HighestSequences;
use super::record::{RECORD_HEADER_BYTES, RecordHeader, SEGMENT_HEADER_BYTES, SegmentHeader};
use super::spare::{Spare, fill};
use crate::error::{Error, Result};
use crate::file_system::{FileSystem, LogFile};

/// Bytes of a segment without its records.
pub(super) const MIN_BYTES: u64 = (SEGMENT_HEADER_BYTES + RECORD_HEADER_BYTES) as u64;

/// Segments up to this size are filled with zeros when they are created without a spare.
const FILLED_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The segment that takes new batches.
pub(crate) struct ActiveSegment {
    pub(crate) id: u64,
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<dyn LogFile>,
    pub(crate) first_index: u64,
    pub(crate) size: u64,
    pub(crate) begun: Instant,
    /// Offset of the next record.
    pub(crate) offset: u64,
    /// True if a write into the reserved space found no space: what follows `offset` is unknown, and the next batch
    /// goes to the next segment.
    pub(crate) is_torn: bool,
    pub(crate) highest: HighestSequences,
}

/// A segment that is complete.
#[derive(Clone, Debug)]
pub(crate) struct SealedSegment {
    pub(crate) id: u64,
    pub(crate) path: PathBuf,
    pub(crate) first_index: u64,
    pub(crate) bytes: u64,
    /// Bytes from the start that a copy needs: what follows is zeros, or remains of a recycled segment.
    pub(crate) used_bytes: u64,
    pub(crate) highest: HighestSequences,
}

/// Returns the bytes of a segment of `bytes` bytes whose records end at `end`, with the mark after them.
pub(crate) fn used_bytes(end: u64, bytes: u64) -> u64 {
    (end + RECORD_HEADER_BYTES as u64).min(bytes)
}

/// Returns the path of segment `id`.
pub(crate) fn segment_path(directory: &Path, id: u64) -> PathBuf {
    directory.join(format!("{id:020}.log"))
}

/// Parses the id in a segment's file name.
pub(crate) fn segment_id(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".log")?;
    let all_digits = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    if all_digits {
        digits.parse().ok()
    } else {
        None
    }
}

/// Returns the path of a segment that is being created without a spare.
fn temporary_path(directory: &Path) -> PathBuf {
    directory.join("next")
}

/// Creates the segment that `header` describes, from the file `spare` if there is one. It is durable under its name
/// when this returns. If that fails, no file is left under another name.
pub(super) fn create(
    directory: &Path,
    file_system: &dyn FileSystem,
    header: SegmentHeader,
    spare: Option<Spare>,
) -> Result<ActiveSegment> {
    let from = match &spare {
        Some(spare) => spare.path.clone(),
        None => temporary_path(directory),
    };
    let created = create_from(directory, file_system, header, &from, spare);
    created.inspect_err(|_| {
        // The file may not exist. The next opening removes what remains.
        let _ = file_system.remove(&from);
    })
}

fn create_from(
    directory: &Path,
    file_system: &dyn FileSystem,
    header: SegmentHeader,
    from: &Path,
    spare: Option<Spare>,
) -> Result<ActiveSegment> {
    let path = segment_path(directory, header.id);
    let file = match spare {
        Some(spare) => spare.file,
        None => {
            let _ = file_system.remove(from);
            let created = file_system.create(from, header.size);
            let file = created.map_err(|source| Error::io("create", from, source))?;
            if header.size <= FILLED_BYTES_MAX {
                let filled = fill(&*file, header.size);
                filled.map_err(|source| Error::io("fill", from, source))?;
            }
            file
        }
    };
    let mut start = header.encode().to_vec();
    start.resize(SEGMENT_HEADER_BYTES + RECORD_HEADER_BYTES, 0);
    let mark = RecordHeader::end(
        header.first_index,
        header.base_sequence,
        header.first_index - 1,
    );
    mark.encode_into(header.id, &mut start[SEGMENT_HEADER_BYTES..]);
    let written = file.write_at(&start, 0);
    written.map_err(|source| Error::io("write", from, source))?;
    let synced = file.sync();
    synced.map_err(|source| Error::io("sync", from, source))?;
    let renamed = file_system.rename(from, &path);
    renamed.map_err(|source| Error::io("rename", from, source))?;
    let synced = file_system.sync_directory(directory);
    synced.map_err(|source| Error::io("sync", directory, source))?;
    Ok(ActiveSegment {
        id: header.id,
        path,
        file: file.into(),
        first_index: header.first_index,
        size: header.size,
        begun: Instant::now(),
        offset: SEGMENT_HEADER_BYTES as u64,
        is_torn: false,
        highest: HighestSequences::default(),
    })
}

/// True if no checkpoint shares the file, so that it may be overwritten.
#[cfg(unix)]
pub(super) fn is_unshared(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).is_ok_and(|metadata| metadata.nlink() == 1)
}

/// Links cannot be counted here, so no file is overwritten.
#[cfg(not(unix))]
pub(super) fn is_unshared(_path: &Path) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_segments_from_other_files() {
        let path = segment_path(Path::new("w"), 7);
        let name = path.file_name().and_then(|name| name.to_str());
        assert_eq!(name.and_then(segment_id), Some(7));
        for other in ["spare-7", "next", "7.log", "0000000000000000000x.log"] {
            assert_eq!(segment_id(other), None);
        }
    }
}
