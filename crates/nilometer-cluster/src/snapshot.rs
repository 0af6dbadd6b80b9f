//! Snapshots: a snapshot of SlateDB and the keyspaces of the same moment.

use std::sync::Arc;

use nilometer_storage::{Bytes, Direction, Keyspace, KeyspaceId, Result, Scan, Snapshot};

use crate::commit::View;
use crate::core::{Core, Reader};
use crate::gets::get_all;
use crate::keyspaces::find;
use crate::layout;
use crate::scan::SlateScan;

/// A snapshot of a [`SlateEngine`](crate::SlateEngine).
pub(crate) struct SlateSnapshot {
    pub(crate) view: Arc<View>,
    pub(crate) reader: Arc<Reader>,
    /// Last, so that SlateDB is closed after its snapshots.
    pub(crate) core: Arc<Core>,
}

impl Snapshot for SlateSnapshot {
    fn keyspaces(&self) -> Vec<Keyspace> {
        let known = self.view.keyspaces.values();
        known.map(|known| known.keyspace.clone()).collect()
    }

    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Bytes>> {
        find(&self.view.keyspaces, keyspace)?;
        let Some(stored) = layout::possible_key(keyspace, key) else {
            return Ok(None);
        };
        let value = self.core.read(self.view.snapshot.get(stored))?;
        // Copied, so that a cached value does not keep its block in memory.
        Ok(value.map(|value| Bytes::copy_from(&value)))
    }

    fn get_all(&self, keyspace: KeyspaceId, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        find(&self.view.keyspaces, keyspace)?;
        self.core
            .read(get_all(&*self.view.snapshot, keyspace, keys))
    }

    /// Batches of before the opening are in no count of the memory.
    fn entries_max(&self, keyspace: KeyspaceId) -> Option<u64> {
        self.core.sizes.entries_max(keyspace, self.core.opened_at)
    }

    fn scan(
        &self,
        keyspace: KeyspaceId,
        start: &[u8],
        end: Option<&[u8]>,
        direction: Direction,
    ) -> Result<Scan> {
        find(&self.view.keyspaces, keyspace)?;
        let Some(range) = layout::range(keyspace, start, end) else {
            return Ok(Box::new(std::iter::empty()));
        };
        let core = &self.core;
        Ok(Box::new(SlateScan::new(
            Arc::clone(&self.view.snapshot),
            &core.callers,
            (keyspace, range),
            direction,
            // The view retains its keyspaces. The core is last, so that SlateDB is closed after its snapshots.
            (
                Arc::clone(&self.view),
                Arc::clone(&self.reader),
                Arc::clone(core),
            ),
        )))
    }

    fn version(&self, keyspace: KeyspaceId) -> Option<u64> {
        let changed = self.view.keyspaces.get(&keyspace)?.changed();
        (changed <= self.view.snapshot.seq()).then_some(changed)
    }
}
