//! Errors of storage, one variant for each cause.
//!
//! The text helps a person find the file; code decides by the variant. [`Error::Corruption`] means that stored bytes
//! are not the bytes written: they are reported and never returned as data.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a storage engine.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused a file operation.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// The operation, as a verb: "open", "sync", ...
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// Stored bytes are not the bytes written.
    #[error("damaged {what} in {} at byte {offset}: expected {expected}, found {found}", file.display())]
    Corruption {
        /// The structure that failed its check.
        what: &'static str,
        /// The file (or the directory, if the file is unknown).
        file: PathBuf,
        /// The offset in the file; 0 if the whole file is damaged or absent.
        offset: u64,
        /// The expected content.
        expected: String,
        /// The content found.
        found: String,
    },
    /// The device is full. No part of the refused batch was applied; reads continue, and commits succeed again once
    /// there is space.
    #[error("no space left for {}: the batch was refused, reads continue", path.display())]
    Full {
        /// The file that could not grow.
        path: PathBuf,
    },
    /// An engine that keeps its writes in memory has as many as it may have.
    #[error("the changes of the transaction have more than {bytes_max} bytes")]
    OverlayFull {
        /// The limit, in bytes.
        bytes_max: u64,
    },
    /// The engine was closed.
    #[error("the storage engine is closed")]
    Closed,
    /// The engine shows what another process writes, and writes nothing itself.
    #[error("the database is open for reading alone")]
    ReadOnly,
    /// Another process, or another engine in this one, has the directory open.
    #[error("{} is in use by another process", path.display())]
    Locked {
        /// The database directory.
        path: PathBuf,
    },
    /// The directory holds files, but no database.
    #[error("{} is not empty and holds no Nilometer database", path.display())]
    ForeignDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// The target directory is not empty.
    #[error("{} is not empty", path.display())]
    NotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// A copy into this place was interrupted, so its contents are incomplete.
    #[error("{} holds an unfinished copy: delete it and copy again", path.display())]
    UnfinishedCopy {
        /// The directory, or the path in the object store.
        path: PathBuf,
    },
    /// What a copy contains is not what was written into it.
    #[error("the copy of keyspace {keyspace} has {found} entries instead of {expected}")]
    DifferentCopy {
        /// The id of the keyspace.
        keyspace: u64,
        /// The entries that were copied.
        expected: u64,
        /// The entries of the copy.
        found: u64,
    },
    /// The target of a copy lies within its source.
    #[error("{} lies within {}, the source of the copy", path.display(), database.display())]
    Within {
        /// The target of the copy.
        path: PathBuf,
        /// The database.
        database: PathBuf,
    },
    /// The directory was written by a version this one cannot read.
    #[error("database format {found} is not supported (this version reads up to {supported})")]
    UnsupportedFormat {
        /// The version in the directory.
        found: u32,
        /// The latest version that this build reads.
        supported: u32,
    },
    /// A key is empty or longer than the engine stores.
    #[error("a key of {length} bytes is empty or too long")]
    InvalidKey {
        /// Its length.
        length: usize,
    },
    /// A value or a batch is too large.
    #[error("{what} of {length} bytes: the maximum is {maximum}")]
    TooLarge {
        /// "value" or "batch".
        what: &'static str,
        /// Its size in bytes.
        length: u64,
        /// The largest allowed.
        maximum: u64,
    },
    /// A keyspace was imported whose id may have been in use.
    #[error("keyspace {id} cannot be imported: the next id is {next}")]
    UsedKeyspace {
        /// The id.
        id: u64,
        /// The lowest id that was never in use.
        next: u64,
    },
    /// No keyspace has this id: it was never created, or it was dropped.
    #[error("no keyspace {id}")]
    UnknownKeyspace {
        /// The id.
        id: u64,
    },
    /// A keyspace with this name exists.
    #[error("a keyspace named {name:?} exists already")]
    KeyspaceExists {
        /// The name.
        name: String,
    },
    /// Writing or syncing the log failed, so the content of the device is unknown. Writes are refused until the engine
    /// is opened again; reads continue. It is unknown whether the batches of the failed sync survive.
    #[error("the log failed and refuses writes: {reason}")]
    LogFailed {
        /// What failed first.
        reason: String,
    },
    /// A background task failed. Writes are refused until the engine is opened again; reads continue.
    #[error("storage refuses writes: {reason}")]
    Failed {
        /// What failed first.
        reason: String,
    },
    /// A part of the engine ended. It neither writes nor reads any more, until it is opened again. It is unknown whether
    /// the batch of a commit that failed survives.
    #[error("storage has ended and must be opened again: {reason}")]
    Ended {
        /// What is known of the cause.
        reason: String,
    },
    /// Another process opened the database for writing. This engine neither writes nor reads any more. It is unknown
    /// whether the batch of a commit that failed survives.
    #[error("another process has taken over the database: {reason}")]
    Fenced {
        /// The report of the store.
        reason: String,
    },
    /// The object store did not do what was asked.
    #[error("object storage: {reason}")]
    Store {
        /// The report of the store.
        reason: String,
    },
    /// The engine does not support the operation.
    #[error("{operation} is not supported by this storage engine")]
    Unsupported {
        /// The operation.
        operation: &'static str,
    },
}

impl Error {
    /// Wraps an error of the operating system. A full device becomes [`Error::Full`].
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

    /// True if a retry may succeed: no space, or too many open files.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Error::Full { .. } => true,
            Error::Io { source, .. } => is_out_of_files(source),
            _ => false,
        }
    }

    /// Returns a corruption error.
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

/// True if the device, the user's quota or the limit on file sizes is exhausted.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// Error codes of Linux, macOS and the BSDs for too many open files: in the system, in the process.
const OUT_OF_FILES: [i32; 2] = [23, 24];

/// True if the process or the system has reached its limit of open files.
fn is_out_of_files(error: &io::Error) -> bool {
    cfg!(unix)
        && error
            .raw_os_error()
            .is_some_and(|code| OUT_OF_FILES.contains(&code))
}
