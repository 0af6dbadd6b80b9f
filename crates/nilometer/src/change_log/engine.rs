//! An engine that stores the annotations of batches in the change log. All other calls go to the engine below.

use std::sync::Arc;

use nilometer_storage::{Durability, Engine, Keyspace, Result, WriteBatch, forward_engine};

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
    forward_engine!(inner: create_keyspaces, import_keyspace, drop_keyspace, confirm, snapshot,
        sync, settle, settle_keyspace, checkpoint, backup_source, verify, keyspace_statistics,
        keys_estimate, key_bytes_max, statistics, is_read_only, check_writable, disk_waits, close);

    /// Returns the keyspaces without those of the log, which are no one else's.
    fn keyspaces(&self) -> Vec<Keyspace> {
        let mut listed = self.inner.keyspaces();
        listed.retain(|keyspace| part_number(keyspace).is_none());
        listed
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

    fn annotation_part(&self) -> Option<u64> {
        Some(self.log.newest_part())
    }
}
