//! An engine that stores the annotations of batches in the change log. All other calls go to the engine below.

use std::path::Path;
use std::sync::Arc;

use nilometer_storage::{
    BackupSource, DiskWaits, Durability, Engine, EngineStatistics, Keyspace, KeyspaceId,
    KeyspaceStatistics, NewKeyspace, Result, Snapshot, WriteBatch,
};

use super::{ChangeLog, ChangeLogOptions, part_number};
use crate::operation::Clock;

/// The engine of a database that keeps a change log.
pub(crate) struct LoggedEngine {
    inner: Arc<dyn Engine>,
    log: Arc<ChangeLog>,
}

impl LoggedEngine {
    /// Keeps a change log in `inner`.
    pub(crate) fn over(
        inner: Arc<dyn Engine>,
        clock: Arc<dyn Clock>,
        options: ChangeLogOptions,
    ) -> crate::error::Result<(Arc<dyn Engine>, Arc<ChangeLog>)> {
        let log = Arc::new(ChangeLog::open(inner.clone(), clock, options)?);
        let engine = Self {
            inner,
            log: log.clone(),
        };
        Ok((Arc::new(engine), log))
    }
}

impl Engine for LoggedEngine {
    fn create_keyspaces(&self, new: &[NewKeyspace<'_>]) -> Result<Vec<KeyspaceId>> {
        self.inner.create_keyspaces(new)
    }

    fn import_keyspace(&self, keyspace: &Keyspace) -> Result<()> {
        self.inner.import_keyspace(keyspace)
    }

    /// Returns the keyspaces without those of the log, which are no one else's.
    fn keyspaces(&self) -> Vec<Keyspace> {
        let mut listed = self.inner.keyspaces();
        listed.retain(|keyspace| part_number(keyspace).is_none());
        listed
    }

    fn drop_keyspace(&self, id: KeyspaceId) -> Result<()> {
        self.inner.drop_keyspace(id)
    }

    fn commit(&self, mut batch: WriteBatch, durability: Durability) -> Result<u64> {
        let annotation = batch.take_annotation();
        if annotation.is_empty() {
            return self.inner.commit(batch, durability);
        }
        let timed = self.log.begin(&mut batch, &annotation);
        let mut timed = timed.map_err(|error| nilometer_storage::Error::Failed {
            reason: error.message,
        })?;
        let committed = self.inner.commit(batch, durability);
        timed.is_visible = committed.is_ok();
        committed
    }

    fn confirm(&self) -> Result<()> {
        self.inner.confirm()
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>> {
        self.inner.snapshot()
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn settle(&self) -> Result<()> {
        self.inner.settle()
    }

    fn settle_keyspace(&self, id: KeyspaceId) -> Result<()> {
        self.inner.settle_keyspace(id)
    }

    fn checkpoint(&self, target: &Path) -> Result<()> {
        self.inner.checkpoint(target)
    }

    fn backup_source(&self) -> Option<BackupSource> {
        self.inner.backup_source()
    }

    fn verify(&self) -> Result<()> {
        self.inner.verify()
    }

    fn keyspace_statistics(&self, id: KeyspaceId) -> Result<KeyspaceStatistics> {
        self.inner.keyspace_statistics(id)
    }

    fn keys_estimate(&self, id: KeyspaceId) -> Result<u64> {
        self.inner.keys_estimate(id)
    }

    fn key_bytes_max(&self) -> usize {
        self.inner.key_bytes_max()
    }

    fn statistics(&self) -> EngineStatistics {
        self.inner.statistics()
    }

    fn annotation_part(&self) -> Option<u64> {
        Some(self.log.newest_part())
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn check_writable(&self) -> Result<()> {
        self.inner.check_writable()
    }

    fn disk_waits(&self) -> DiskWaits {
        self.inner.disk_waits()
    }

    fn close(&self) -> Result<()> {
        self.inner.close()
    }
}
