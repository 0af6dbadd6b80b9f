//! Spare files for future segments.
//!
//! Overwriting blocks that were written before only needs the data on the device. Growing a file, or writing reserved
//! blocks for the first time, also needs metadata, and waits for other work of the file system. So removed segments are
//! recycled, as long as log and spares together stay below the cap of the log. If there are none, spares are created in
//! the background. They are filled with zeros if commits are small and the log grows slowly: small commits gain from
//! it, a few large ones would only wait for the zeros.
//!
//! Spares are optional. If creating one fails, its partial file is removed and a later commit requests it again. If
//! creating a segment fails, the commit that needs it is refused.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::segment::{SealedSegment, is_unshared};
use crate::error::{Error, Result};
use crate::file_system::{FileSystem, LogFile};
use crate::lock::lock;

/// Bytes of one write of zeros.
const FILL_BYTES: usize = 1 << 20;

/// Maximum log bytes per second at which new files are filled with zeros.
const FILL_RATE_MAX: f64 = 40e6;

/// Maximum mean bytes of a commit at which new files are filled with zeros.
const FILL_RECORD_BYTES_MAX: u64 = 4096;

/// A file with the size of a segment.
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
    /// Adopts the spare files of an earlier process and removes unfinished ones.
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

    /// Takes a spare for a segment of `bytes` bytes, if one is ready.
    pub(super) fn take(&self, bytes: u64) -> Option<Spare> {
        if bytes != self.segment_bytes {
            return None;
        }
        lock(&self.files).pop()
    }

    /// Requests a spare: `records` records with `written` bytes together took `time`.
    pub(super) fn want(&self, written: u64, records: u64, time: Duration) {
        if !self.wanted.load(Ordering::Relaxed) {
            let rate = written as f64 / time.as_secs_f64();
            let small = written <= records.saturating_mul(FILL_RECORD_BYTES_MAX);
            self.filled
                .store(small && rate <= FILL_RATE_MAX, Ordering::Relaxed);
            self.wanted.store(true, Ordering::Relaxed);
        }
    }

    /// Requests a spare regardless of the write rate.
    pub(super) fn ask(&self) {
        self.wanted.store(true, Ordering::Relaxed);
    }

    /// Removes all spares, and forgets a request for one.
    pub(super) fn clear(&self, file_system: &dyn FileSystem) -> Result<()> {
        self.wanted.store(false, Ordering::Relaxed);
        let spares = std::mem::take(&mut *lock(&self.files));
        for spare in spares {
            let removed = file_system.remove(&spare.path);
            removed.map_err(|source| Error::io("remove", &spare.path, source))?;
        }
        Ok(())
    }

    /// Returns the bytes of all spares.
    pub(super) fn bytes(&self) -> u64 {
        lock(&self.files).len() as u64 * self.segment_bytes
    }

    /// Recycles the file of a removed segment, if it has the right size and the spares stay within `room` bytes.
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
            // For example, too many open files. The segment is not needed in any case.
            Err(_) => {
                let removed = file_system.remove(&path);
                removed.map_err(|source| Error::io("remove", &path, source))?;
            }
        }
        Ok(true)
    }

    /// Creates a spare if one is requested and none exists. Holds no lock that a writer needs.
    pub(super) fn prepare(&self, directory: &Path, file_system: &dyn FileSystem) -> Result<()> {
        if !self.wanted.load(Ordering::Relaxed) {
            return Ok(());
        }
        // If it fails, the next commit requests one again.
        self.wanted.store(false, Ordering::Relaxed);
        if lock(&self.files).is_empty() {
            let path = self.new_path(directory);
            let made = self.make(&path, file_system);
            let made = made.inspect_err(|_| {
                // The file may not exist. The next opening removes what remains.
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
        file.write_at(&zeros[..length], offset)?;
        offset += length as u64;
    }
    Ok(())
}
