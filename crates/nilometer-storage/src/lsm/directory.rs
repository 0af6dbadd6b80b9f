//! The database directory: who may open it, and what is where.
//!
//! ```text
//! LOCK          held (a file lock) while any reader or writer of the directory lives
//! FORMAT        "nilometer storage format 1"; written first, and last by a checkpoint
//! TREES         the list of keyspaces, see tree_list.rs
//! wal/          the log, see log/mod.rs
//! trees/<id>/   the tables of one keyspace
//! ```
//!
//! A directory without `FORMAT` must be empty to be taken; one that holds anything else belongs to
//! somebody and is refused. A creation that was interrupted is finished at the next opening.

use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::error::{Error, Result};
use crate::file_system::sync_directory;
use crate::lock::lock;

/// Version of everything in the directory.
pub(crate) const FORMAT_VERSION: u32 = 1;

const FORMAT_PREFIX: &str = "nilometer storage format ";

pub(super) const FORMAT_FILE: &str = "FORMAT";
pub(super) const LOCK_FILE: &str = "LOCK";

/// An open, locked database directory.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    lock: Mutex<Option<DirectoryLock>>,
}

/// Keeps the directory locked while it lives. Each tree has one: a scan of an old table may outlive
/// the engine, and would delete files under a new one.
pub(crate) type DirectoryLock = Arc<LockedFile>;

/// The file whose lock is the directory's.
#[derive(Debug)]
pub(crate) struct LockedFile(File);

impl Drop for LockedFile {
    fn drop(&mut self) {
        // Closing is not enough: a program that the process starts at this moment has the open file, too,
        // until it has become itself.
        let _ = self.0.unlock();
    }
}

impl Directory {
    /// Opens `path`, creating the database directory when there is none.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        fs::create_dir_all(path).map_err(|source| Error::io("create", path, source))?;
        let path = path
            .canonicalize()
            .map_err(|source| Error::io("resolve", path, source))?;
        let format = read_format(&path)?;
        if format.is_none() {
            refuse_foreign(&path)?;
        }
        let lock = lock_directory(&path)?;
        // Only now is the directory ours to look at: what was true before the lock may have changed.
        if read_format(&path)?.is_none() {
            refuse_foreign(&path)?;
            write_format(&path)?;
        }
        let directory = Self {
            path,
            lock: Mutex::new(Some(Arc::new(lock))),
        };
        for sub in [directory.log(), directory.trees()] {
            fs::create_dir_all(&sub).map_err(|source| Error::io("create", &sub, source))?;
        }
        sync(&directory.path)?;
        Ok(directory)
    }

    /// The directory itself.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A share in the lock; `None` after [`Directory::release`].
    pub(crate) fn share_lock(&self) -> Option<DirectoryLock> {
        lock(&self.lock).clone()
    }

    /// Gives up the engine's own share in the lock.
    pub(crate) fn release(&self) {
        lock(&self.lock).take();
    }

    /// Where the log is.
    pub(crate) fn log(&self) -> PathBuf {
        log_path(&self.path)
    }

    /// Where the trees are.
    pub(crate) fn trees(&self) -> PathBuf {
        trees_path(&self.path)
    }
}

/// The log of the database at `path`.
pub(crate) fn log_path(path: &Path) -> PathBuf {
    path.join("wal")
}

/// The trees of the database at `path`.
pub(crate) fn trees_path(path: &Path) -> PathBuf {
    path.join("trees")
}

/// The directory of one tree.
pub(crate) fn tree_path(trees: &Path, id: u64) -> PathBuf {
    trees.join(id.to_string())
}

/// Makes `path` a database of this format. The last step of a checkpoint.
pub(crate) fn write_format(path: &Path) -> Result<()> {
    let text = format!("{FORMAT_PREFIX}{FORMAT_VERSION}\n");
    write_atomically(path, FORMAT_FILE, text.as_bytes())
}

/// Replaces a small file whole, durable when this returns.
pub(crate) fn write_atomically(directory: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let temporary = directory.join(format!(".{name}.new"));
    let target = directory.join(name);
    let write = || {
        let mut file = File::create(&temporary)?;
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

/// The format the directory claims, once it is one we read.
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
        Some(FORMAT_VERSION) => Ok(Some(FORMAT_VERSION)),
        Some(found) => Err(Error::UnsupportedFormat {
            found,
            supported: FORMAT_VERSION,
        }),
        None => Err(Error::ForeignDirectory {
            path: path.to_path_buf(),
        }),
    }
}

/// Refuses a directory with anything in it that an interrupted creation cannot have left.
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

/// Locks a directory that is only read, if it has ever been open.
pub(super) fn lock_existing(path: &Path) -> Result<Option<LockedFile>> {
    if path.join(LOCK_FILE).exists() {
        return lock_directory(path).map(Some);
    }
    Ok(None)
}

fn lock_directory(path: &Path) -> Result<LockedFile> {
    let file = path.join(LOCK_FILE);
    let locked = File::options()
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
