//! The storage engines of Nilometer: ordered, durable bytes.
//!
//! [`engine`] states the contract. [`LsmEngine`] implements it in a directory; [`MemoryEngine`] implements it in memory
//! and is the test oracle for the other. [`LongKeyEngine`] adds keys of any length to either. This crate does not know
//! documents or anything built from them.

pub mod bytes;
mod checksum;
pub mod engine;
pub mod error;
pub mod file_system;
mod forward;
mod lock;
mod long_keys;
pub mod lsm;
pub mod memory;
mod overlay;
#[doc(hidden)]
pub mod testing;
mod transfer;

pub use bytes::Bytes;
pub use engine::{
    Direction, DiskWait, DiskWaits, Durability, Engine, EngineStatistics, Keyspace, KeyspaceId,
    KeyspaceOptions, KeyspaceStatistics, NewKeyspace, Operation, Scan, ScanEntries, Snapshot,
    WriteBatch, seek,
};
pub use error::{Error, Result};
pub use long_keys::LongKeyEngine;
pub use lsm::{
    BackupFile, BackupFiles, BackupSource, Gap, KeyspaceChange, LogCut, LogPart, LogPosition,
    LogReader, Loss, LsmEngine, LsmOptions, Moment, Recovery, SalvageEngine, complete_restore,
    copy_database, describe_file,
};
pub use memory::MemoryEngine;
pub use overlay::{OverlayEngine, OverlayKeyspace, OverlayWrites};
pub use transfer::{CopyProgress, copy_contents, copy_into_directory};
