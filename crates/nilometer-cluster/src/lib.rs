//! The database on object storage: an engine whose only disk is an S3-compatible store, Azure, Google or a directory.
//!
//! [`SlateEngine`] has the contract of [`nilometer_storage::engine`] over [SlateDB](https://slatedb.io), an LSM tree of
//! immutable objects with one writer, which fences its predecessor when it opens. This crate is the only one with an
//! async runtime; its interface is synchronous. SlateDB leaves the following to its user:
//!
//! | | |
//! |---|---|
//! | keyspaces in one ordered space of keys | [`layout`], [`keyspaces`] |
//! | positions, and what readers may see of commits in flight | [`commit`] |
//! | when the log is stored | [`log_flush`] |
//! | blocking calls; scans with read-ahead | [`core`], [`scan`] |
//! | reads of what is in memory, on the thread of the caller | [`caller_runtime`] |
//! | removing the entries of dropped keyspaces | [`retained`] |
//! | merging everything | [`merge`], [`schedule`] |
//! | merging in a process of its own | [`compactor`] |
//! | sizes of keyspaces | [`sizes`] |
//! | a cache that knows its bytes; parts of tables in memory and on a disk, for all that a server opens | [`cache`]; [`table_parts`], [`disk_cache`] |
//! | requests in flight and their count; repeating those that failed | [`requests`], [`retry`] |
//! | the store of a URL; refusing stores in which two writers could be at work | [`url`], [`mod@probe`] |
//! | reading without disturbing a writer, for copies; all databases of a cluster at once | [`source`]; [`cluster_copy`] |
//! | the same, again and again, for secondaries | [`reader`], [`log_cache`] |
//! | which of several processes writes; which are there | [`claim`], [`presence`] |
//! | what the processes of a cluster of several databases know of it; their claims and presence, by one list | [`description`]; [`board`] |
//!
//! Backups of databases of the local engine in an object store are in [`backup`].

mod backup;
mod board;
mod cache;
mod caller_runtime;
mod claim;
mod cluster_copy;
mod commit;
mod compactor;
mod core;
mod description;
mod disk_cache;
mod engine;
mod error;
mod gets;
mod keyspaces;
mod layout;
mod lock;
mod log_cache;
mod log_flush;
mod merge;
mod options;
mod presence;
mod probe;
mod reader;
mod requests;
mod retained;
mod retry;
mod scan;
mod schedule;
mod sizes;
mod snapshot;
mod source;
mod still_clock;
mod table_parts;
mod url;
mod verify;

pub use backup::{
    BackupClock, BackupInfo, BackupProgress, BackupReport, BackupStore, BackupVerification,
    ContinuousBackup, ContinuousEvent, ContinuousOptions, Removed, RestorePoint, Restored,
    Retention,
};
pub use board::{BoardLook, ClaimBoard, FreeUnit, NODES_MAX, UnitLook, UnitWriter};
pub use claim::{Claim, ClaimIntervals, Claimant, Lease, Look};
pub use cluster_copy::{ClusterSource, ClusterTarget};
pub use compactor::SlateCompactor;
pub use description::ClusterDescription;
pub use disk_cache::DiskCache;
#[doc(hidden)]
pub use engine::SimulatedWorld;
pub use engine::SlateEngine;
pub use options::SlateOptions;
pub use presence::{MemberReport, Presence, SeenMember};
pub use probe::{StoreAbilities, probe};
pub use reader::{SlateReader, SlateView};
pub use requests::RequestCounts;
pub use source::SlateSource;
pub use url::{InvalidUrl, StorageUrl};
