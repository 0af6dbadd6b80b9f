//! Inserting measurements into a time-series collection.
//!
//! ```text
//! parse ─► group by series ─► duplicate policy ─► stage ─► commit ─► queue maintenance
//!   │            │                   │              │         │
//!   │            │                   │              │         └─ one engine batch for the whole command
//!   │            │                   │              └─ tail entries of open buckets (bucket catalog)
//!   │            │                   └─ keep │ ignore │ replace │ error, series by series
//!   │            └─ normalised metadata names the series
//!   └─ the time field must be a date; positions of the other fields
//! ```
//!
//! [`Timeseries::insert`] is the entry, [`InsertStatement::run`] the road; each step is one call in it.
//! [`Timeseries::insert_together`] takes the same steps for several collections, with one batch for all.
//!
//! Promises: all accepted documents of a command are stored, or none. A command is answered when its batch is as durable as
//! the client asked. Replacements of stored measurements follow after the new measurements are committed.

pub(crate) mod duplicates;
mod group_by_series;
mod reorder_meta;
mod staged_insert;
mod statement;
mod together;

use std::sync::{Arc, PoisonError, RwLockReadGuard};

use nilometer_bson::{DocRef, Document};
use nilometer_storage::Durability;

use super::Timeseries;
use super::index::maintenance::IndexMaintainer;
use super::modify::WriteLockGuard;
use crate::catalog::{Catalog, Collection, DuplicateRule};
use crate::error::{Error, ErrorCode, Result};
use crate::insertion::{InsertOptions, InsertOutcome};
use duplicates::PolicyOutcome;
use duplicates::replace::Replacements;
use group_by_series::GroupedMeasurements;
pub(super) use staged_insert::StagedInsert;
pub(super) use statement::InsertStatement;

/// Rounds in which measurements to be replaced may vanish before they are.
const REPLACE_ROUNDS_MAX: usize = 100;

impl Timeseries {
    /// Inserts measurements. Those it accepts are stored together; `Err` means none was stored. Replacements of stored
    /// measurements are written after the new ones.
    pub fn insert<'a>(
        self: &Arc<Self>,
        catalog: &Catalog,
        collection: &Arc<Collection>,
        documents: impl Iterator<Item = DocRef<'a>>,
        options: InsertOptions<'_>,
    ) -> Result<InsertOutcome> {
        self.insert_with_lock(catalog, collection, documents, options, None)
    }

    /// Like [`Timeseries::insert`], for a statement that may hold the collection's write lock already.
    pub fn insert_with_lock<'a>(
        self: &Arc<Self>,
        catalog: &Catalog,
        collection: &Arc<Collection>,
        documents: impl Iterator<Item = DocRef<'a>>,
        options: InsertOptions<'_>,
        lock: Option<&WriteLockGuard<'_>>,
    ) -> Result<InsertOutcome> {
        let insert = InsertStatement {
            timeseries: self,
            catalog,
            collection,
            options,
        };
        let inserted = insert.run(documents)?;
        let is_synced = inserted.is_synced && inserted.replacements.is_empty();
        insert.replace(inserted.replacements, lock)?;
        if options.durability == Durability::Sync && !is_synced {
            self.engine.sync()?;
        }
        Ok(inserted.outcome)
    }
}

/// Stages the measurements that a transaction inserts. `indexes` are those of the collection, locked until the commit.
pub(super) fn stage_transaction<'a>(
    insert: &InsertStatement<'_>,
    indexes: &IndexMaintainer<'_>,
    documents: impl Iterator<Item = DocRef<'a>>,
) -> Result<StagedInsert> {
    let grouped = group_by_series::group(insert, indexes, documents)?;
    if let Some(refused) = grouped.outcome.errors.first() {
        return Err(refused.error.clone());
    }
    Ok(staged_insert::stage(insert, indexes, grouped))
}

/// An insert between its locks and its commit: one policy and one list of indexes hold for all of it.
struct LockedInsert<'i> {
    insert: &'i InsertStatement<'i>,
    rule: RwLockReadGuard<'i, DuplicateRule>,
    indexes: IndexMaintainer<'i>,
}

impl LockedInsert<'_> {
    /// Groups the documents by series, and applies the duplicate policy, which locks the series.
    fn group<'a>(
        &self,
        documents: impl Iterator<Item = DocRef<'a>>,
    ) -> Result<(GroupedMeasurements<'a>, PolicyOutcome)> {
        let mut grouped = group_by_series::group(self.insert, &self.indexes, documents)?;
        let duplicates = duplicates::apply_policy(self.insert, *self.rule, &mut grouped)?;
        Ok((grouped, duplicates))
    }

    fn stage(&self, grouped: GroupedMeasurements<'_>) -> StagedInsert {
        staged_insert::stage(self.insert, &self.indexes, grouped)
    }
}

/// The result of one run down the road.
struct InsertPass {
    outcome: InsertOutcome,
    /// Measurements to write in the place of stored ones.
    replacements: Vec<Replacements>,
    /// The log was synced after the last write.
    is_synced: bool,
}

impl InsertStatement<'_> {
    /// Locks the duplicate policy of the collection and its list of indexes.
    fn lock(&self) -> Result<LockedInsert<'_>> {
        let rule = self.collection.duplicates.read();
        Ok(LockedInsert {
            insert: self,
            rule: rule.unwrap_or_else(PoisonError::into_inner),
            indexes: IndexMaintainer::lock(self.collection)?,
        })
    }

    /// Stores the new measurements among the documents, and returns those that replace stored ones.
    fn run<'a>(&self, documents: impl Iterator<Item = DocRef<'a>>) -> Result<InsertPass> {
        let timeseries = self.timeseries;
        let locked = self.lock()?;
        let (grouped, mut duplicates) = locked.group(documents)?;
        let replacements = std::mem::take(&mut duplicates.replacements);
        let mut staged = locked.stage(grouped);
        // A repeated replacement changes nothing, and it is not in this batch.
        if replacements.is_empty() {
            staged.record(self.options.record);
        }
        // Other inserts may wait for the series; they do not wait for the disk.
        let durability = match duplicates.has_waiters() {
            true => Durability::Buffered,
            false => self.options.durability,
        };
        // With nothing to commit there is no sync: an ignored duplicate must still become as durable as its twin.
        let is_synced = durability == Durability::Sync && !staged.is_empty();
        let committed = staged.commit(&*timeseries.engine, durability);
        duplicates.release(committed.is_ok());
        drop(locked);
        let outcome = staged.finish(timeseries, committed)?;
        Ok(InsertPass {
            outcome,
            replacements,
            is_synced,
        })
    }

    /// Writes measurements in the place of stored ones. One whose place is gone meanwhile is new, and is inserted.
    fn replace(
        &self,
        mut replacements: Vec<Replacements>,
        lock: Option<&WriteLockGuard<'_>>,
    ) -> Result<()> {
        let mut rounds = 0;
        while !replacements.is_empty() {
            rounds += 1;
            if rounds > REPLACE_ROUNDS_MAX {
                return Err(Error::new(
                    ErrorCode::WriteConflict,
                    "other statements keep changing the measurements to be replaced",
                ));
            }
            let vanished = duplicates::replace::write(self, replacements, lock)?;
            let vanished = vanished.iter().map(Document::as_ref);
            replacements = self.run(vanished)?.replacements;
        }
        Ok(())
    }
}

#[cfg(test)]
impl InsertStatement<'_> {
    /// The road up to the commit, for tests that interleave the steps of several inserts. No index may be added meanwhile.
    pub(super) fn stage<'a>(
        &self,
        documents: impl Iterator<Item = DocRef<'a>>,
    ) -> Result<StagedInsert> {
        let indexes = IndexMaintainer::lock(self.collection)?;
        let grouped = group_by_series::group(self, &indexes, documents)?;
        let staged = staged_insert::stage(self, &indexes, grouped);
        match staged.ready.clone() {
            Ok(()) => Ok(staged),
            Err(error) => {
                staged.finish(self.timeseries, Err(error.clone()))?;
                Err(error)
            }
        }
    }
}
