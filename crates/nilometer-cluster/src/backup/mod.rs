//! Backups of databases of the local engine in an object store: numbered, incremental, each complete in itself.
//!
//! ```text
//! <path>/backups/begun/<number>        created only if absent, before anything else: the number is taken
//! <path>/backups/files/<number>/<part> files, and packs of small ones, that this backup stored
//! <path>/backups/manifests/<number>    created only if absent, last: the backup is there; or that it was abandoned
//! <path>/backups/removed/<number>      the backup is not to be used any more; its objects are being deleted
//! <path>/backups/log/<run>/<part>      parts of the log behind backup <run>, in the continuous mode
//! ```
//!
//! A file that the last backup has is not stored again. It is known by its place on the disk (device, inode, time and
//! size), else by its SHA-256.
//!
//! # Deleting beside a backup that runs
//!
//! A backup that runs may name, at its end, every object of the backups that were there when it began. No process deletes
//! one of these, whatever the clocks of the machines say:
//!
//! ```text
//! backup    create begun/n   then list removed/   then list manifests/; use objects of those that are not removed
//! removal   create removed/m then list begun/     stop if one of these has no manifest; delete what no manifest needs
//! ```
//!
//! Either the removal sees `begun/n`, and leaves the deletion to a later one; or the backup sees `removed/m`, and uses
//! none of its objects. Names of objects begin with the number of the backup that stored them, so a removal that was
//! paused for long deletes no object of a later backup. `removed/m` goes after `manifests/m`, which would otherwise look
//! usable. A backup whose process died blocks removals until it is abandoned: somebody else creates its manifest
//! without contents, after a day by the clock of the store. If it lives after all, it finds that and fails.

mod catalog;
mod continuous;
mod manifest;
mod objects;
mod restore;
mod retention;
mod upload;
mod verify;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nilometer_storage::{BackupSource, Error, Result};
use object_store::ObjectStore;
use tokio::runtime::Runtime;

use self::catalog::Catalog;
use self::objects::Objects;
use crate::engine::runtime;
use crate::probe::probe;

pub use self::continuous::{ContinuousBackup, ContinuousEvent, ContinuousOptions};
pub use self::restore::{RestorePoint, Restored};
pub use self::retention::{Removed, Retention};
pub use self::verify::BackupVerification;

/// Threads for requests.
const THREADS: usize = 4;

/// Files and objects that are transferred at a time.
const TRANSFERS: usize = 4;

/// The clock of backups: milliseconds since 1970.
pub type BackupClock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// The backups at one path of a store.
pub struct BackupStore {
    catalog: Catalog,
    runtime: Runtime,
    clock: BackupClock,
    /// Age at which an unfinished backup is taken for dead, by the clock of the store.
    abandoned_after: Duration,
}

/// How far a backup, a restore or a verification has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackupProgress {
    /// Files, or objects of a verification.
    pub files: u64,
    /// Files that are done.
    pub files_done: u64,
    /// Bytes sent or received.
    pub bytes: u64,
}

/// Is told the progress. If it returns false, the work ends with [`Error::Closed`].
pub type BackupReport<'a> = dyn FnMut(&BackupProgress) -> bool + 'a;

impl BackupProgress {
    /// Fails if the work is to end.
    fn tell(&self, report: &mut BackupReport<'_>) -> Result<()> {
        match report(self) {
            true => Ok(()),
            false => Err(Error::Closed),
        }
    }
}

/// A backup, as lists show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupInfo {
    /// Its number.
    pub number: u64,
    /// The time of its contents, in milliseconds since 1970.
    pub time_ms: i64,
    /// Its files.
    pub files: u64,
    /// Bytes of a database that is restored from it, without the unused ends of log files.
    pub bytes: u64,
    /// Bytes of its objects that no earlier backup stored.
    pub new_bytes: u64,
    /// The time of the last part of the log that can be restored from it on; `None` if it is none of the continuous
    /// mode, or no part was stored.
    pub until_ms: Option<i64>,
}

impl BackupStore {
    /// Returns the backups at `path` of a store in which objects can be created only if they are absent.
    pub fn new(store: Arc<dyn ObjectStore>, path: &str) -> Result<Self> {
        Ok(Self {
            catalog: Catalog::new(Objects::new(store, path)),
            runtime: runtime(path, THREADS)?,
            clock: Arc::new(system_time_ms),
            abandoned_after: Duration::from_secs(24 * 60 * 60),
        })
    }

    /// Replaces the clock, and the time after which an unfinished backup is taken for dead.
    #[must_use]
    pub fn with_clock(mut self, clock: BackupClock, abandoned_after: Duration) -> Self {
        self.clock = clock;
        self.abandoned_after = abandoned_after;
        self
    }

    /// Fails if the store does not create objects only if they are absent: two backups could have one number.
    pub(crate) fn probe(&self) -> Result<()> {
        let objects = &self.catalog.objects;
        let path = objects.path("trial").to_string();
        let probed = self.runtime.block_on(probe(objects.store(), &path));
        probed.map(drop)
    }

    /// Makes a backup.
    pub fn back_up(
        &self,
        source: &BackupSource,
        report: &mut BackupReport<'_>,
    ) -> Result<BackupInfo> {
        self.probe()?;
        let files = source.files()?;
        let time_ms = (self.clock)();
        let number = self.runtime.block_on(self.catalog.begin())?;
        self.store_files(number, None, time_ms, &files, report)
    }

    /// Lists the backups, oldest first.
    pub fn list(&self) -> Result<Vec<BackupInfo>> {
        self.runtime.block_on(async {
            let mut listed = Vec::new();
            for number in self.catalog.usable().await? {
                let Some(manifest) = self.catalog.manifest(number).await? else {
                    continue;
                };
                let parts = self.catalog.parts_behind(&manifest).await?;
                listed.push(manifest.info(parts.last().map(|part| part.time_ms)));
            }
            Ok(listed)
        })
    }
}

fn system_time_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    i64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(i64::MAX)
}
