//! Committing a transaction: what it wrote becomes one batch of the engine below.

use std::sync::Arc;

use nilometer_bson::ObjectId;
use nilometer_storage::{Durability, Engine, OverlayWrites, Snapshot, WriteBatch};

use super::Transaction;
use crate::catalog::{Collection, Storage};
use crate::database::Database;
use crate::error::{Error, Result};
use crate::insertion::{BatchRecord, InsertOptions};
use crate::timeseries::{MeasurementChanges, TransactionCommit};
use crate::write::RecordChanges;

/// What a commit depends on.
#[derive(Clone, Copy)]
pub(crate) struct CommitContext<'c> {
    pub(crate) durability: Durability,
    /// What is stored beside the changes, so that a repetition is recognized.
    pub(crate) record: &'c dyn BatchRecord,
    pub(crate) new_id: &'c dyn Fn() -> ObjectId,
    pub(crate) check_interrupt: &'c dyn Fn() -> Result<()>,
}

/// What a transaction has changed.
struct TransactionChanges {
    records: Vec<RecordChanges>,
    measurements: Vec<MeasurementChanges>,
}

impl Transaction {
    /// Makes the changes visible in `database`, below the transaction. Code 112 if another write has changed the same
    /// since the transaction began; then nothing is changed.
    pub(crate) fn commit(self, database: &Database, context: CommitContext<'_>) -> Result<()> {
        let changes = self.changes(database)?;
        if !changes.records.is_empty() || !changes.measurements.is_empty() {
            commit_changes(&changes, database, context)?;
        }
        // The sync keeps no one out. What a transaction without changes has read is durable, too.
        if context.durability == Durability::Sync {
            database.engine.sync()?;
        }
        Ok(())
    }

    /// Compares the writes with the snapshot below. Code 112 if a collection was dropped since.
    fn changes(&self, database: &Database) -> Result<TransactionChanges> {
        let (below, writes) = (self.overlay.base(), self.overlay.writes());
        let after = self.overlay.snapshot()?;
        let known = database.engine.keyspaces();
        if writes
            .keys()
            .any(|written| known.iter().all(|known| known.id != *written))
        {
            return Err(Error::write_conflict());
        }
        let mut collections = database.catalog.collections();
        collections.sort_unstable_by_key(|collection| collection.uuid);
        let mut found = TransactionChanges {
            records: Vec::new(),
            measurements: Vec::new(),
        };
        for collection in collections {
            found.add(collection, &*below, (&writes, &*after))?;
        }
        Ok(found)
    }
}

/// Makes one batch of the changes and commits it.
fn commit_changes(
    changes: &TransactionChanges,
    database: &Database,
    context: CommitContext<'_>,
) -> Result<()> {
    let of_measurements = TransactionCommit {
        catalog: &database.catalog,
        options: InsertOptions {
            ordered: true,
            durability: Durability::Buffered,
            new_id: context.new_id,
            record: None,
        },
        check_interrupt: context.check_interrupt,
    };
    let records = &database.records;
    records.commit_together(&changes.records, WriteBatch::new(), |batch| {
        let timeseries = &database.timeseries;
        timeseries.commit_together(
            &changes.measurements,
            of_measurements,
            batch,
            |mut batch| {
                context.record.add_to(&mut batch);
                database.engine.commit(batch, Durability::Buffered)?;
                Ok(())
            },
        )
    })
}

impl TransactionChanges {
    fn add(
        &mut self,
        collection: Arc<Collection>,
        below: &dyn Snapshot,
        (writes, after): (&OverlayWrites, &dyn Snapshot),
    ) -> Result<()> {
        match collection.storage {
            Storage::Records { records, .. } => {
                if let Some(written) = writes.get(&records) {
                    let changes = RecordChanges::new(collection, below, (records, written))?;
                    if !changes.is_empty() {
                        self.records.push(changes);
                    }
                }
            }
            Storage::Buckets { .. } => {
                let changes = MeasurementChanges::new(collection, below, (writes, after))?;
                if !changes.is_empty() {
                    self.measurements.push(changes);
                }
            }
        }
        Ok(())
    }
}
