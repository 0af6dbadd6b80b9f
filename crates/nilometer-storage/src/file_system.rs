//! The file system interface of the write-ahead log.
//!
//! A trait, because tests need these calls to fail or lose power: `testing::fault` implements it with injected faults.
//! Only the log uses it; `lsm-tree` opens the files of tables itself.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

/// File operations of the log.
pub trait FileSystem: Send + Sync {
    /// Creates a file of `bytes` zeros with reserved space, so that writes inside it cannot run out of space. The file
    /// must not exist.
    fn create(&self, path: &Path, bytes: u64) -> io::Result<Box<dyn LogFile>>;
    /// Opens an existing file for writing in place.
    fn open(&self, path: &Path) -> io::Result<Box<dyn LogFile>>;
    /// Renames a file and replaces the target.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes creations, renames and removals in `directory` durable.
    fn sync_directory(&self, directory: &Path) -> io::Result<()>;
}

/// One file of the log, open for writing.
pub trait LogFile: Send + Sync {
    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Makes everything written durable.
    fn sync(&self) -> io::Result<()>;
}

/// The file system of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealFileSystem;

impl FileSystem for RealFileSystem {
    fn create(&self, path: &Path, bytes: u64) -> io::Result<Box<dyn LogFile>> {
        let file = private_file().write(true).create_new(true).open(path)?;
        if let Err(error) = reserve(&file, bytes) {
            drop(file);
            // Report the failed reservation. The next opening removes what remains.
            let _ = fs::remove_file(path);
            return Err(error);
        }
        Ok(Box::new(file))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn LogFile>> {
        Ok(Box::new(OpenOptions::new().write(true).open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        sync_directory(directory)
    }
}

impl LogFile for File {
    #[cfg(unix)]
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(self, bytes, offset)
    }

    #[cfg(not(unix))]
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        use std::io::{Seek, SeekFrom, Write};
        // The log writes under its lock, so one thread at a time.
        let mut file = self;
        file.seek(SeekFrom::Start(offset))?;
        file.write_all(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// Reserves `bytes` of space. Writes zeros if the file system cannot reserve.
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{FallocateFlags, fallocate};
        use rustix::io::Errno;
        match fallocate(file, FallocateFlags::empty(), 0, bytes) {
            Ok(()) => return Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    let zeros = vec![0; 1 << 20];
    let mut offset = 0;
    while offset < bytes {
        let length = zeros
            .len()
            .min(usize::try_from(bytes - offset).unwrap_or(usize::MAX));
        LogFile::write_at(file, &zeros[..length], offset)?;
        offset += length as u64;
    }
    Ok(())
}

/// Creates a directory and those above it that are absent, for the owner alone.
pub(crate) fn create_private_directory(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(path)
}

/// Returns options that create files for the owner alone.
pub(crate) fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Copies a file durably into a new one for the owner alone. Returns its bytes.
pub(crate) fn copy_private(from: &Path, to: &Path) -> io::Result<u64> {
    let mut source = File::open(from)?;
    let mut target = private_file().write(true).create_new(true).open(to)?;
    let bytes = io::copy(&mut source, &mut target)?;
    target.sync_all()?;
    Ok(bytes)
}

/// Makes the entries of a directory durable.
pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    #[cfg(unix)]
    File::open(directory)?.sync_all()?;
    #[cfg(not(unix))]
    let _ = directory;
    Ok(())
}
