//! Reads of one moment outside of transactions: `readConcern: {level: "snapshot"}`.
//!
//! ```text
//! snapshot ────────────────────► the last cluster time ─► a snapshot of the engine ─► kept by its time
//! snapshot, atClusterTime: T ──► the kept one of T ◄─────────────────────────────────────┘
//! ```
//!
//! The first read names no time and is told its own; later ones ask for it. A snapshot holds all changes up to its time. It is a
//! [`Database`] over the engine as it was, whose writes are not committed anywhere. Snapshots are kept for [`KEPT`], and
//! [`KEPT_MAX`] of them; a time of which there is none has code 239.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nilometer_bson::Timestamp;
use nilometer_storage::OverlayEngine;

use super::Database;
use crate::change_log::ChangeLog;
use crate::error::{Error, ErrorCode, Result};

/// Time for which a snapshot can be read again, that of MongoDB.
const KEPT: Duration = Duration::from_secs(5 * 60);

/// Snapshots that are kept. Each keeps the tables of the engine that it reads.
const KEPT_MAX: usize = 64;

/// Longest wait for earlier batches that are being committed, and time between two checks.
const WAIT_MAX: Duration = Duration::from_secs(5);
const WAIT_INTERVAL: Duration = Duration::from_micros(50);

/// What a database showed at a time.
struct KeptSnapshot {
    time: u64,
    /// When it was taken, by the monotonic clock.
    taken: Duration,
    database: Arc<Database>,
}

/// The snapshots of a database, the oldest first.
#[derive(Default)]
pub(crate) struct Snapshots(Mutex<VecDeque<KeptSnapshot>>);

/// A snapshot, and its cluster time.
pub(crate) struct SnapshotAt {
    pub(crate) time: Timestamp,
    pub(crate) database: Arc<Database>,
}

impl Snapshots {
    /// Returns the snapshot of the time `at`, or of now.
    pub(crate) fn open(
        &self,
        database: &Database,
        log: &ChangeLog,
        at: Option<Timestamp>,
    ) -> Result<SnapshotAt> {
        // Everything acknowledged has this time or an earlier one.
        let now = log.last_committed();
        let time = at.map_or(now, Timestamp::to_u64);
        if time > now {
            return Err(Error::invalid_options(format!(
                "readConcern atClusterTime value must not be greater than the current clusterTime. Requested clusterTime: {time}; current clusterTime: {now}"
            )));
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kept.iter().rev().find(|known| known.time == time);
        let found = found.map(|known| known.database.clone());
        let database = match found {
            Some(found) => found,
            None if time < now => {
                return Err(Error::new(
                    ErrorCode::SnapshotTooOld,
                    format!("no snapshot of the clusterTime {time} is kept"),
                ));
            }
            None => {
                wait_for(database, log, time)?;
                let taken = Arc::new(database.snapshot()?);
                if kept.len() >= KEPT_MAX {
                    kept.pop_front();
                }
                kept.push_back(KeptSnapshot {
                    time,
                    taken: database.services.clock.monotonic(),
                    database: taken.clone(),
                });
                taken
            }
        };
        Ok(SnapshotAt {
            time: Timestamp::from_u64(time),
            database,
        })
    }

    /// Forgets old snapshots. To be called at intervals.
    pub(crate) fn expire(&self, now: Duration) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|known| now.saturating_sub(known.taken) < KEPT);
    }
}

/// Waits until all batches up to `time` are visible.
fn wait_for(database: &Database, log: &ChangeLog, time: u64) -> Result<()> {
    let clock = &database.services.clock;
    let end = clock.monotonic() + WAIT_MAX;
    while log.visible() < time {
        if clock.monotonic() > end {
            return Err(Error::new(
                ErrorCode::SnapshotUnavailable,
                "changes before the clusterTime of the snapshot are being written",
            ));
        }
        std::thread::sleep(WAIT_INTERVAL);
    }
    Ok(())
}

impl Database {
    /// Returns a database that shows what this one shows now. Its cursors are those of this one.
    fn snapshot(&self) -> Result<Self> {
        // Nothing writes to it.
        let removals = self.catalog.removals();
        let overlay = Arc::new(OverlayEngine::over(self.engine.clone(), 0)?);
        Ok(self.over((overlay, removals), Some(self.query.cursors.clone())))
    }
}
