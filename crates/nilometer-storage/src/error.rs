//! What can go wrong in storage, each cause by name.
//!
//! One type for the whole crate. The text is for a person who has to find the file; code decides by
//! the variant. [`Error::Corruption`] means that stored bytes are not what was written: they are
//! reported here and never handed out as data.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Everything a storage engine reports.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused a file operation.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// What was tried, as a verb: "open", "sync", ...
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's answer.
        source: Arc<io::Error>,
    },
    /// Stored bytes are not what was written.
    #[error("damaged {what} in {} at byte {offset}: expected {expected}, found {found}", file.display())]
    Corruption {
        /// The structure that failed its check.
        what: &'static str,
        /// The file it lies in (or the directory, when the file cannot be told).
        file: PathBuf,
        /// Where in the file; 0 when the whole file or its absence is meant.
        offset: u64,
        /// What would have been right.
        expected: String,
        /// What was there.
        found: String,
    },
    /// The device has no room. Nothing of the refused batch was applied; reads go on, and commits
    /// succeed again once there is room.
    #[error("no space left for {}: the batch was refused, reads go on", path.display())]
    Full {
        /// The file that could not grow.
        path: PathBuf,
    },
    /// The engine was closed.
    #[error("the storage engine is closed")]
    Closed,
    /// Another process, or another engine in this one, has the directory open.
    #[error("{} is in use by another process", path.display())]
    Locked {
        /// The database directory.
        path: PathBuf,
    },
    /// The directory holds files, but none of ours.
    #[error("{} is not empty and holds no database of this kind", path.display())]
    ForeignDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// A directory that is to be filled holds something.
    #[error("{} is not empty", path.display())]
    NotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// A copy would become part of what is copied.
    #[error("{} lies within {}, which is to be copied", path.display(), database.display())]
    Within {
        /// Where the copy was to be.
        path: PathBuf,
        /// The database.
        database: PathBuf,
    },
    /// The directory was written by a version this one cannot read.
    #[error("database format {found} is not supported (this version reads {supported})")]
    UnsupportedFormat {
        /// The version in the directory.
        found: u32,
        /// The version this build reads and writes.
        supported: u32,
    },
    /// A key is empty or longer than 65,535 bytes.
    #[error("a key of {length} bytes: keys have 1 to 65535")]
    InvalidKey {
        /// Its length.
        length: usize,
    },
    /// A value, or a whole batch, is too large to be stored.
    #[error("{length} bytes in one {what}: at most {maximum}")]
    TooLarge {
        /// "value" or "batch".
        what: &'static str,
        /// Its size in bytes.
        length: u64,
        /// The largest allowed.
        maximum: u64,
    },
    /// No keyspace has this id: never created, or dropped.
    #[error("no keyspace {id}")]
    UnknownKeyspace {
        /// The id asked for.
        id: u64,
    },
    /// The name is taken.
    #[error("a keyspace named {name:?} exists")]
    KeyspaceExists {
        /// The name.
        name: String,
    },
    /// Writing (or syncing) the log failed, so what the device holds is unknown. Writes are refused
    /// until the engine is opened again; reads go on. Whether the batches of the failed sync
    /// survive is unknown.
    #[error("the log can no longer be trusted with writes: {reason}")]
    LogFailed {
        /// What failed first.
        reason: String,
    },
    /// A background task failed. Writes are refused until the engine is opened again; reads go on.
    #[error("storage stopped accepting writes: {reason}")]
    Failed {
        /// What failed first.
        reason: String,
    },
    /// This engine does not offer the operation.
    #[error("{operation} is not supported by this storage engine")]
    Unsupported {
        /// The operation.
        operation: &'static str,
    },
}

impl Error {
    /// Wraps an error of the operating system, telling a full device apart.
    pub(crate) fn io(operation: &'static str, path: &Path, source: io::Error) -> Self {
        if is_full(&source) {
            return Error::Full {
                path: path.to_path_buf(),
            };
        }
        Error::Io {
            operation,
            path: path.to_path_buf(),
            source: Arc::new(source),
        }
    }

    /// True when the cause lies outside, and may be gone at the next try: no room, no file to open.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Error::Full { .. } => true,
            Error::Io { source, .. } => is_out_of_files(source),
            _ => false,
        }
    }

    /// Names damage.
    pub(crate) fn corruption(
        what: &'static str,
        file: &Path,
        offset: u64,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        Error::Corruption {
            what,
            file: file.to_path_buf(),
            offset,
            expected: expected.into(),
            found: found.into(),
        }
    }
}

/// True when the device, the user's quota or the limit on the size of files is exhausted.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// Codes of Linux, macOS and the BSDs for too many open files: in the system, in the process.
const OUT_OF_FILES: [i32; 2] = [23, 24];

/// True when this process, or the system, has as many files open as it may.
fn is_out_of_files(error: &io::Error) -> bool {
    cfg!(unix)
        && error
            .raw_os_error()
            .is_some_and(|code| OUT_OF_FILES.contains(&code))
}
