//! Commits: their order, and the moment at which they are visible.
//!
//! ```text
//! order lock ─┬─ SlateDB: batch in the log and memtable, in memory ── snapshot of exactly this moment
//!             │
//!             └─ wait until the last synced batch up to here is durable ── publish the snapshot
//! ```
//!
//! A batch that is committed with `Durability::Sync` is visible only when it is durable, so no reader sees what a killed
//! or fenced writer then loses. Batches are visible in the order of their positions, so a buffered batch waits for the
//! synced ones before it, but not for itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use nilometer_storage::engine::KEY_BYTES_MAX;
use nilometer_storage::{Durability, KeyspaceId, Operation, Result, WriteBatch};
use slatedb::{Db, DbSnapshot, WriteHandle};

use crate::core::Core;
use crate::keyspaces::{KeyspaceMap, KnownKeyspace, LoadedRecords, find};
use crate::layout;
use crate::lock::{lock, write};
use crate::log_flush::Urgency;
use crate::sizes::Share;

/// Bytes of a synced batch that is stored at once. A smaller one waits for the next flush, so that others share its object.
const FLUSHED_BYTES_MIN: u64 = 256 * 1024;

/// What commits change, one at a time.
pub(crate) struct Order {
    pub(crate) keyspaces: Arc<KeyspaceMap>,
    pub(crate) next_id: u64,
    /// Batches without a position.
    own_batches: u64,
    /// The last batch that must be durable before it is visible.
    last_synced: Option<WriteHandle>,
}

/// What a snapshot shows.
pub(crate) struct View {
    pub(crate) snapshot: Arc<DbSnapshot>,
    pub(crate) keyspaces: Arc<KeyspaceMap>,
}

impl View {
    /// Returns what is visible in a database that was opened.
    pub(crate) fn newest(db: &Db, order: &Order) -> std::result::Result<Self, slatedb::Error> {
        Ok(Self {
            snapshot: db.snapshot()?,
            keyspaces: Arc::clone(&order.keyspaces),
        })
    }
}

/// A batch that is in memory and not yet visible.
pub(crate) struct Turn {
    position: u64,
    last_synced: Option<WriteHandle>,
    view: View,
}

impl Order {
    /// Returns the order of a database that was opened.
    pub(crate) fn new(loaded: LoadedRecords) -> Self {
        Self {
            keyspaces: Arc::new(loaded.keyspaces),
            next_id: loaded.next_id,
            own_batches: loaded.own_batches,
            last_synced: None,
        }
    }
}

impl Core {
    /// Commits a batch and returns its position.
    pub(crate) fn commit(&self, batch: WriteBatch, durability: Durability) -> Result<u64> {
        batch.check(KEY_BYTES_MAX)?;
        self.check_open()?;
        let keyspaces = Arc::clone(&lock(&self.order).keyspaces);
        let (operations, annotation) = batch.into_parts();
        let mut touched: Touched = BTreeMap::new();
        for (id, key, operation) in &operations {
            let known = find(&keyspaces, *id)?;
            let (_, share) = touched
                .entry(*id)
                .or_insert_with(|| (Arc::clone(known), Share::default()));
            share.add(key, operation);
        }
        let mut stored = slatedb::WriteBatch::new();
        if operations.is_empty() || !annotation.is_empty() {
            stored.put_bytes(layout::annotation_key(), annotation.into());
        }
        for (id, key, operation) in operations {
            let key = layout::entry_key(id, &key);
            match operation {
                Operation::Put(value) => stored.put_bytes(key, value.into()),
                Operation::Delete => stored.delete(key),
            }
        }
        let mut order = lock(&self.order);
        let turn = self.write(&mut order, stored, durability, touched)?;
        drop(order);
        self.finish(turn)
    }

    /// Writes a batch that changes the keyspaces.
    pub(crate) fn write_keyspaces(
        &self,
        order: &mut Order,
        mut batch: slatedb::WriteBatch,
        keyspaces: KeyspaceMap,
    ) -> Result<Turn> {
        let own_batches = order.own_batches + 1;
        batch.put(layout::own_batches_key(), own_batches.to_be_bytes());
        let mut turn = self.write(order, batch, Durability::Sync, Touched::new())?;
        order.own_batches = own_batches;
        order.keyspaces = Arc::new(keyspaces);
        turn.view.keyspaces = Arc::clone(&order.keyspaces);
        Ok(turn)
    }

    fn write(
        &self,
        order: &mut Order,
        batch: slatedb::WriteBatch,
        durability: Durability,
        touched: Touched,
    ) -> Result<Turn> {
        let written = self.wait_for(self.db.write(batch))?;
        let sequence = written.seqnum();
        for (known, _) in touched.values() {
            known.set_changed(sequence);
        }
        let bytes = touched.values().map(|(_, share)| share.bytes).sum::<u64>();
        let shares = touched.into_iter().map(|(id, (_, share))| (id, share));
        self.sizes.add_unflushed(sequence, shares);
        self.flusher.add(match durability {
            Durability::Buffered => Urgency::Buffered,
            Durability::Sync if bytes < FLUSHED_BYTES_MIN => Urgency::Synced,
            Durability::Sync => Urgency::Large,
        });
        if durability == Durability::Sync {
            order.last_synced = Some(written);
        }
        let snapshot = self.db.snapshot().map_err(|error| self.convert(&error))?;
        Ok(Turn {
            position: sequence - order.own_batches,
            last_synced: order.last_synced.clone(),
            view: View {
                snapshot,
                keyspaces: Arc::clone(&order.keyspaces),
            },
        })
    }

    /// Makes a batch visible and returns its position.
    pub(crate) fn finish(&self, turn: Turn) -> Result<u64> {
        if let Some(synced) = turn.last_synced {
            self.wait_for(synced.await_durable())?;
        }
        let mut visible = write(&self.visible);
        if turn.view.snapshot.seq() > visible.snapshot.seq() {
            *visible = Arc::new(turn.view);
        }
        Ok(turn.position)
    }
}

/// The keyspaces that a batch changes, with what it adds to each.
type Touched = BTreeMap<KeyspaceId, (Arc<KnownKeyspace>, Share)>;
