//! Committing a transaction: what it wrote becomes one batch of the engine below.

use std::sync::Arc;

use nilometer_bson::ObjectId;
use nilometer_storage::{Durability, Engine, OverlayWrites, Snapshot, WriteBatch};

use super::Transaction;
use crate::catalog::{Catalog, Collection, Namespace, Storage};
use crate::change_entry::{Entries, Entry};
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
#[derive(Default)]
struct TransactionChanges {
    created: Vec<Arc<Collection>>,
    records: Vec<RecordChanges>,
    /// What its statements have noted for the change log, in their order; measurements are noted by the commit.
    noted: Vec<u8>,
    measurements: Vec<MeasurementChanges>,
}

impl Transaction {
    /// Makes the changes visible in `database`, below the transaction. Code 112 if another write has changed the same
    /// since the transaction began; then nothing is changed.
    pub(crate) fn commit(self, database: &Database, context: CommitContext<'_>) -> Result<()> {
        let changes = self.changes(database)?;
        if !changes.is_empty() {
            commit_changes(&changes, database, context)?;
            // They are in the catalog that all see.
            self.database.catalog.forget_created();
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
        let created = self.database.catalog.created();
        let mut collections = database.catalog.collections();
        collections.extend(created.iter().cloned());
        collections.sort_unstable_by_key(|collection| collection.uuid);
        let mut found = TransactionChanges {
            created,
            noted: self.overlay.annotation(),
            ..TransactionChanges::default()
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
    let mut batch = WriteBatch::new();
    batch.annotate(changes.noted.clone());
    records.commit_together(&changes.records, batch, |batch| {
        check_names(changes, &database.catalog)?;
        let timeseries = &database.timeseries;
        timeseries.commit_together(
            &changes.measurements,
            of_measurements,
            batch,
            |mut batch| {
                context.record.add_to(&mut batch);
                let commit = |batch| {
                    database.engine.commit(batch, Durability::Buffered)?;
                    Ok(())
                };
                let created = changes.created.clone();
                database.catalog.install_created(created, batch, commit)
            },
        )
    })
}

/// Fails if a collection was renamed since a statement noted a change of it: the change log would call it by the old name.
fn check_names(changes: &TransactionChanges, catalog: &Catalog) -> Result<()> {
    let known = |uuid, name: &str| {
        let is_it = |collection: &Arc<Collection>| {
            collection.uuid == uuid && collection.namespace.to_string() == name
        };
        let (database, short) = name.split_once('.').unwrap_or((name, ""));
        let namespace = Namespace {
            database: database.to_owned(),
            collection: short.to_owned(),
        };
        let now = catalog.collection(&namespace);
        changes.created.iter().chain(&now).any(is_it)
    };
    for entry in Entries::new(&changes.noted) {
        if let Entry::Namespace(noted) = entry?
            && !known(noted.uuid, noted.name)
        {
            return Err(Error::write_conflict());
        }
    }
    Ok(())
}

impl TransactionChanges {
    fn is_empty(&self) -> bool {
        self.created.is_empty()
            && self.records.is_empty()
            && self.noted.is_empty()
            && self.measurements.is_empty()
    }

    fn add(
        &mut self,
        collection: Arc<Collection>,
        below: &dyn Snapshot,
        (writes, after): (&OverlayWrites, &dyn Snapshot),
    ) -> Result<()> {
        match collection.storage {
            Storage::Records { records, .. } => {
                if writes.contains_key(&records) {
                    let changes = RecordChanges::new(collection, below, writes)?;
                    self.records.push(changes);
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
