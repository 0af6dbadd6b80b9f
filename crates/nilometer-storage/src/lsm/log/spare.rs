//! Files that wait to become segments.
//!
//! Writing into a file whose blocks were written before needs nothing but the data on the device;
//! growing a file, or filling reserved blocks for the first time, needs its metadata as well, and
//! waits for whatever else the file system has to make durable. So segments that are done with are
//! used again, as long as log and spares together stay under the cap of the log. While there are
//! none, new ones are made in the background, and filled with zeros if commits are small
//! and the log grows slowly: those gain from it, a few large ones would only wait for the zeros.
//!
//! A spare is a convenience. One that cannot be made, for whatever reason, is no harm to the log: what was
//! begun is removed, and the next commits ask again. If a segment itself cannot be made, the commit that
//! needs it is refused.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::segment::{SealedSegment, is_unshared};
use crate::error::{Error, Result};
use crate::file_system::{FileSystem, LogFile};
use crate::lock::lock;

/// Bytes of zeros in one write.
const FILL_BYTES: usize = 1 << 20;

/// Bytes a second up to which new files are filled with zeros.
const FILL_RATE_MAX: f64 = 40e6;

/// Bytes that commits have on average up to which they are.
const FILL_RECORD_BYTES_MAX: u64 = 4096;

/// A file of the size of a segment.
pub(super) struct Spare {
    pub(super) path: PathBuf,
    pub(super) file: Box<dyn LogFile>,
}

/// The spare files of a log.
pub(super) struct Spares {
    segment_bytes: u64,
    files: Mutex<Vec<Spare>>,
    wanted: AtomicBool,
    filled: AtomicBool,
    next_number: AtomicU64,
}

impl Spares {
    /// Takes over the spare files an earlier process left, and removes unfinished ones.
    pub(super) fn open(
        directory: &Path,
        file_system: &dyn FileSystem,
        segment_bytes: u64,
    ) -> Result<Self> {
        let failed = |source| Error::io("list", directory, source);
        let mut files = Vec::new();
        let mut next_number = 0;
        for entry in std::fs::read_dir(directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let path = entry.path();
            let name = entry.file_name();
            let Some(number) = name.to_str().and_then(|name| name.strip_prefix("spare-")) else {
                continue;
            };
            let number = number.parse::<u64>();
            let fits = entry.metadata().is_ok_and(|m| m.len() == segment_bytes);
            match number {
                Ok(number) if fits => {
                    next_number = next_number.max(number + 1);
                    let file = file_system.open(&path);
                    let file = file.map_err(|source| Error::io("open", &path, source))?;
                    files.push(Spare { path, file });
                }
                _ => {
                    let removed = file_system.remove(&path);
                    removed.map_err(|source| Error::io("remove", &path, source))?;
                }
            }
        }
        Ok(Self {
            segment_bytes,
            files: Mutex::new(files),
            wanted: AtomicBool::new(false),
            filled: AtomicBool::new(false),
            next_number: AtomicU64::new(next_number),
        })
    }

    /// A file for a segment of `bytes` bytes, if one is ready.
    pub(super) fn take(&self, bytes: u64) -> Option<Spare> {
        if bytes != self.segment_bytes {
            return None;
        }
        lock(&self.files).pop()
    }

    /// Says that one will be needed soon: `records` of `written` bytes together took `time`.
    pub(super) fn want(&self, written: u64, records: u64, time: Duration) {
        if !self.wanted.load(Ordering::Relaxed) {
            let rate = written as f64 / time.as_secs_f64();
            let small = written <= records.saturating_mul(FILL_RECORD_BYTES_MAX);
            self.filled
                .store(small && rate <= FILL_RATE_MAX, Ordering::Relaxed);
            self.wanted.store(true, Ordering::Relaxed);
        }
    }

    /// Says that one is needed, whatever is written.
    pub(super) fn ask(&self) {
        self.wanted.store(true, Ordering::Relaxed);
    }

    /// Bytes of all of them.
    pub(super) fn bytes(&self) -> u64 {
        lock(&self.files).len() as u64 * self.segment_bytes
    }

    /// Keeps the file of a segment that is done with, if it fits and `room` allows it.
    pub(super) fn keep(
        &self,
        directory: &Path,
        file_system: &dyn FileSystem,
        segment: &SealedSegment,
        room: u64,
    ) -> Result<bool> {
        if segment.bytes != self.segment_bytes
            || self.bytes() + segment.bytes > room
            || !is_unshared(&segment.path)
        {
            return Ok(false);
        }
        let path = self.new_path(directory);
        if file_system.rename(&segment.path, &path).is_err() {
            return Ok(false);
        }
        match file_system.open(&path) {
            Ok(file) => lock(&self.files).push(Spare { path, file }),
            // Too many open files, for one. The segment is no longer needed in any case.
            Err(_) => {
                let removed = file_system.remove(&path);
                removed.map_err(|source| Error::io("remove", &path, source))?;
            }
        }
        Ok(true)
    }

    /// Makes a file, if one is wanted and none is there. A background task; holds no lock
    /// that a writer needs.
    pub(super) fn prepare(&self, directory: &Path, file_system: &dyn FileSystem) -> Result<()> {
        if !self.wanted.load(Ordering::Relaxed) {
            return Ok(());
        }
        // If it fails, the next commit asks again.
        self.wanted.store(false, Ordering::Relaxed);
        if lock(&self.files).is_empty() {
            let path = self.new_path(directory);
            let made = self.make(&path, file_system);
            let made = made.inspect_err(|_| {
                // It may not even be there; what is left is removed at the next opening.
                let _ = file_system.remove(&path);
            });
            let file = made.map_err(|source| Error::io("create", &path, source))?;
            lock(&self.files).push(Spare { path, file });
        }
        Ok(())
    }

    fn make(&self, path: &Path, file_system: &dyn FileSystem) -> std::io::Result<Box<dyn LogFile>> {
        let file = file_system.create(path, self.segment_bytes)?;
        if self.filled.load(Ordering::Relaxed) {
            fill(&*file, self.segment_bytes)?;
            file.sync()?;
        }
        Ok(file)
    }

    fn new_path(&self, directory: &Path) -> PathBuf {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        directory.join(format!("spare-{number}"))
    }
}

/// Writes `bytes` zeros.
pub(super) fn fill(file: &dyn LogFile, bytes: u64) -> std::io::Result<()> {
    let zeros = vec![0; FILL_BYTES];
    let mut offset = 0;
    while offset < bytes {
        let length = usize::try_from(bytes - offset).map_or(FILL_BYTES, |l| l.min(FILL_BYTES));
        file.write_at(zeros.get(..length).unwrap_or(&zeros), offset)?;
        offset += length as u64;
    }
    Ok(())
}
