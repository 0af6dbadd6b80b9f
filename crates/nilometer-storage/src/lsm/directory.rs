//! The database directory: its layout and its lock.
//!
//! ```text
//! LOCK          a file lock, held while any reader or writer of the directory lives
//! FORMAT        "nilometer storage format 4"; written first, and last by a checkpoint. 1 if no flag 4, 8 or 16 was ever in
//!               the list of keyspaces, 2 if 4 was, 3 if 8 was
//! TREES         the list of keyspaces, see tree_list.rs
//! wal/          the log and the list of its files, see log/mod.rs
//! backup/       links to files, while a backup reads them, see backup.rs
//! trees/<id>/   the tables of one keyspace; see first_flush.rs for others
//! ```
//!
//! The directory is created for its owner alone (0700, files 0600). One that exists keeps its permissions. Files of tables
//! have those that the process gives new files; other users cannot enter the directory.
//!
//! A directory without `FORMAT` must be empty; one that holds anything else is refused. The next opening completes an
//! interrupted creation.

use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::error::{Error, Result};
use crate::file_system::{create_private_directory, private_file, sync_directory};
use crate::lock::lock;

/// Version of a directory that any build reads.
pub(crate) const FORMAT_VERSION: u32 = 1;

/// Version of a directory with long keys, which builds that know version 1 alone refuse.
pub(crate) const LONG_KEY_FORMAT_VERSION: u32 = 2;

/// Version of a directory with keyspaces of which no flush has begun, which builds that know the versions before it refuse.
pub(crate) const UNFLUSHED_FORMAT_VERSION: u32 = 3;

/// Version of a directory with keyspaces of large blocks, which builds that know the versions before it refuse.
pub(crate) const LARGE_BLOCK_FORMAT_VERSION: u32 = 4;

/// The newest version.
pub(crate) const FORMAT_VERSION_MAX: u32 = LARGE_BLOCK_FORMAT_VERSION;

const FORMAT_PREFIX: &str = "nilometer storage format ";

pub(super) const FORMAT_FILE: &str = "FORMAT";
pub(super) const LOCK_FILE: &str = "LOCK";

/// The folder of files that a backup reads. It exists while one runs.
pub(super) const BACKUP_FOLDER: &str = "backup";

/// An open, locked database directory.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    lock: Mutex<Option<DirectoryLock>>,
    format_version: AtomicU32,
}

/// Keeps the directory locked while it lives. Each tree has one, because a scan may outlive the engine and would delete
/// files of a new engine.
pub(crate) type DirectoryLock = Arc<LockedFile>;

/// The file that carries the directory's lock.
#[derive(Debug)]
pub(crate) struct LockedFile(File);

impl Drop for LockedFile {
    fn drop(&mut self) {
        // Closing is not enough: a child process between fork and exec still has the file open.
        let _ = self.0.unlock();
    }
}

impl Directory {
    /// Opens `path`. Creates the database directory if it is absent.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        create_private_directory(path).map_err(|source| Error::io("create", path, source))?;
        let path = path
            .canonicalize()
            .map_err(|source| Error::io("resolve", path, source))?;
        let format = read_format(&path)?;
        if format.is_none() {
            refuse_foreign(&path)?;
        }
        let lock = lock_directory(&path)?;
        // Check again under the lock: the directory may have changed before it.
        let version = match read_format(&path)? {
            Some(version) => version,
            None => {
                refuse_foreign(&path)?;
                write_format(&path, FORMAT_VERSION_MAX)?;
                FORMAT_VERSION_MAX
            }
        };
        let directory = Self {
            path,
            lock: Mutex::new(Some(Arc::new(lock))),
            format_version: AtomicU32::new(version),
        };
        for sub in [directory.log(), directory.trees()] {
            create_private_directory(&sub).map_err(|source| Error::io("create", &sub, source))?;
        }
        remove_backup_files(&directory.path)?;
        sync(&directory.path)?;
        Ok(directory)
    }

    /// Marks the directory with a version of the format, unless it has that or a newer one. The caller holds the list of
    /// keyspaces.
    pub(crate) fn raise_format(&self, version: u32) -> Result<()> {
        if self.format_version.load(Ordering::Acquire) < version {
            write_format(&self.path, version)?;
            self.format_version.store(version, Ordering::Release);
        }
        Ok(())
    }

    /// Returns the path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a share in the lock; `None` after [`Directory::release`].
    pub(crate) fn share_lock(&self) -> Option<DirectoryLock> {
        lock(&self.lock).clone()
    }

    /// Releases the engine's own share in the lock.
    pub(crate) fn release(&self) {
        lock(&self.lock).take();
    }

    /// Returns the path of the log.
    pub(crate) fn log(&self) -> PathBuf {
        log_path(&self.path)
    }

    /// Returns the path of the trees.
    pub(crate) fn trees(&self) -> PathBuf {
        trees_path(&self.path)
    }
}

/// Returns the log folder of the database at `path`.
pub(crate) fn log_path(path: &Path) -> PathBuf {
    path.join("wal")
}

/// Returns the folder of trees of the database at `path`.
pub(crate) fn trees_path(path: &Path) -> PathBuf {
    path.join("trees")
}

/// Removes what a backup that was killed has left.
fn remove_backup_files(path: &Path) -> Result<()> {
    let folder = path.join(BACKUP_FOLDER);
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io("remove", &folder, error))
        }
        _ => Ok(()),
    }
}

/// Returns the folder of one tree.
pub(crate) fn tree_path(trees: &Path, id: u64) -> PathBuf {
    trees.join(id.to_string())
}

/// Marks `path` as a database of this format. The last step of a checkpoint.
pub(crate) fn write_format(path: &Path, version: u32) -> Result<()> {
    let text = format!("{FORMAT_PREFIX}{version}\n");
    write_atomically(path, FORMAT_FILE, text.as_bytes())
}

/// Replaces a small file atomically. The change is durable when this returns.
pub(crate) fn write_atomically(directory: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let temporary = directory.join(format!(".{name}.new"));
    let target = directory.join(name);
    let write = || {
        let mut options = private_file();
        options.write(true).create(true).truncate(true);
        let mut file = options.open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, &target)?;
        sync_directory(directory)
    };
    write().map_err(|source| Error::io("write", &target, source))
}

/// Makes the entries of a directory durable.
pub(crate) fn sync(path: &Path) -> Result<()> {
    sync_directory(path).map_err(|source| Error::io("sync", path, source))
}

/// Returns the format version of the directory, if there is one. Fails for an unsupported version.
fn read_format(path: &Path) -> Result<Option<u32>> {
    let file = path.join(FORMAT_FILE);
    let bytes = match fs::read(&file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(Error::io("read", &file, source)),
    };
    let text = std::str::from_utf8(&bytes).ok();
    let version = text.and_then(|text| text.strip_prefix(FORMAT_PREFIX));
    let version = version.and_then(|text| text.strip_suffix('\n'));
    match version.and_then(|text| text.parse().ok()) {
        Some(known @ FORMAT_VERSION..=FORMAT_VERSION_MAX) => Ok(Some(known)),
        Some(found) => Err(Error::UnsupportedFormat {
            found,
            supported: FORMAT_VERSION_MAX,
        }),
        None => Err(Error::ForeignDirectory {
            path: path.to_path_buf(),
        }),
    }
}

/// Refuses a directory with any file that an interrupted creation cannot have left.
fn refuse_foreign(path: &Path) -> Result<()> {
    let list = |source| Error::io("list", path, source);
    for entry in fs::read_dir(path).map_err(list)? {
        let name = entry.map_err(list)?.file_name();
        if name != LOCK_FILE && name != ".FORMAT.new" {
            return Err(Error::ForeignDirectory {
                path: path.to_path_buf(),
            });
        }
    }
    Ok(())
}

/// Locks a directory for reading. Returns `None` if it has no lock file.
pub(super) fn lock_existing(path: &Path) -> Result<Option<LockedFile>> {
    if path.join(LOCK_FILE).exists() {
        return lock_directory(path).map(Some);
    }
    Ok(None)
}

fn lock_directory(path: &Path) -> Result<LockedFile> {
    let file = path.join(LOCK_FILE);
    let locked = private_file()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&file)
        .map_err(|source| Error::io("open", &file, source))?;
    match locked.try_lock() {
        Ok(()) => Ok(LockedFile(locked)),
        Err(TryLockError::WouldBlock) => Err(Error::Locked {
            path: path.to_path_buf(),
        }),
        Err(TryLockError::Error(source)) => Err(Error::io("lock", &file, source)),
    }
}
