//! Maintaining the indexes of an ordinary collection together with its records.
//!
//! ```text
//! write lock ──▶ lock the list ──▶ for each record: keys before, keys after, duplicates?
//!                                     └─▶ entries into the batch of the record ──▶ commit
//! ```
//!
//! A [`IndexMaintenance`] lives for one engine batch, or for several committed in sequence under one write lock,
//! and locks the list of indexes until the last is committed. A new key is compared with the stored ones
//! and with those of the batch.
//!
//! An index that is being built does not refuse a document: a document it cannot hold makes the build fail,
//! as if its walk had met the document.

use std::sync::Arc;

use nilometer_bson::DocRef;
use nilometer_storage::{Durability, Snapshot, WriteBatch};

use super::records::Records;
use crate::catalog::{Catalog, Collection, IndexListGuard};
use crate::error::{Error, Result};
use crate::eval::EvaluationLimits;
use crate::index::{
    self, DocumentKeys, Index, KEYS_BYTES_MAX, PendingKeys, duplicate_key, keys_too_long,
};

/// The indexes of a collection, locked for a writer.
pub(super) struct IndexMaintenance<'c> {
    catalog: &'c Catalog,
    collection: &'c Collection,
    indexes: Vec<MaintainedIndex>,
    _held: IndexListGuard<'c>,
}

/// One index and its changes by the batch.
struct MaintainedIndex {
    index: Arc<Index>,
    /// Parts that met arrays, to be stored before the batch is committed.
    multikey: u32,
    /// For a unique index, the changes by the batch.
    pending: PendingKeys,
}

/// The change of the entries of one record in one index.
struct EntryChange {
    before: DocumentKeys,
    after: DocumentKeys,
    /// The reason why the index, which is being built, cannot hold the record.
    failure: Option<Error>,
}

impl<'c> IndexMaintenance<'c> {
    /// Locks the indexes of a collection. The caller holds its write lock.
    pub(super) fn of(records: &'c Records, collection: &'c Collection) -> Result<Self> {
        let held = collection.indexes.lock_shared();
        let indexes = held
            .iter()
            .map(|stored| {
                Ok(MaintainedIndex {
                    index: Index::of(stored)?,
                    multikey: 0,
                    pending: PendingKeys::default(),
                })
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            catalog: &records.catalog,
            collection,
            indexes,
            _held: held,
        })
    }

    /// Adds the changes that turn the entries of `record` from those of `before` into those of `after` to
    /// `batch`. On an error the batch is unchanged.
    pub(super) fn change(
        &mut self,
        batch: &mut WriteBatch,
        snapshot: &dyn Snapshot,
        record: &[u8],
        (before, after): (Option<DocRef<'_>>, Option<DocRef<'_>>),
        limits: Option<EvaluationLimits<'_>>,
    ) -> Result<()> {
        let mut changes = Vec::with_capacity(self.indexes.len());
        let mut bytes = 0;
        for maintained in &self.indexes {
            // Outside `plan`, whose errors are those of the documents.
            let selected = |document: Option<DocRef<'_>>| match document {
                Some(document) => maintained.index.selects(document, limits),
                None => Ok(false),
            };
            let is_selected = (selected(before)?, selected(after)?);
            let change = self.plan(maintained, snapshot, record, (before, after), is_selected)?;
            bytes += change.after.entry_bytes(record);
            if bytes > KEYS_BYTES_MAX {
                return Err(keys_too_long("all indexes"));
            }
            changes.push(change);
        }
        for (maintained, change) in self.indexes.iter_mut().zip(changes) {
            maintained.apply(batch, record, &change);
            if let Some(failure) = change.failure {
                let stored = &maintained.index.stored;
                self.catalog.fail_build(batch, stored, failure);
            }
        }
        Ok(())
    }

    /// Lets later changes of the batch take the unique keys of a record that the batch will change.
    pub(super) fn release(&mut self, record: &[u8], before: DocRef<'_>) -> Result<()> {
        for maintained in &mut self.indexes {
            let index = &*maintained.index;
            if index.stored.spec.refuses_duplicates() && index.selects(before, None)? {
                // A document whose keys fail has no entries.
                let keys = index.keys_of_selected(before).unwrap_or_default();
                let none = DocumentKeys::default();
                maintained.pending.change(record, &keys, &none);
            }
        }
        Ok(())
    }

    fn plan(
        &self,
        maintained: &MaintainedIndex,
        snapshot: &dyn Snapshot,
        record: &[u8],
        (before, after): (Option<DocRef<'_>>, Option<DocRef<'_>>),
        is_selected: (bool, bool),
    ) -> Result<EntryChange> {
        let index = &*maintained.index;
        // A document whose keys fail has no entries.
        let before = before.filter(|_| is_selected.0);
        let before = before.map_or_else(DocumentKeys::default, |document| {
            index.keys_of_selected(document).unwrap_or_default()
        });
        let Some(document) = after.filter(|_| is_selected.1) else {
            return Ok(EntryChange {
                before,
                after: DocumentKeys::default(),
                failure: None,
            });
        };
        let after = index.keys_of_selected(document).and_then(|after| {
            let pending = &maintained.pending;
            if index.stored.spec.refuses_duplicates()
                && let Some(key) =
                    pending.find_duplicate(index, snapshot, record, (&before, &after))?
            {
                let namespace = &self.collection.namespace;
                return Err(duplicate_key(namespace, index, key, Some(document)));
            }
            Ok(after)
        });
        let (after, failure) = match after {
            Ok(after) => (after, None),
            Err(error) if index.stored.is_ready() => return Err(error),
            Err(error) => (DocumentKeys::default(), Some(error)),
        };
        Ok(EntryChange {
            before,
            after,
            failure,
        })
    }

    /// Makes the multikey marks durable. Must be called before a batch is committed.
    pub(super) fn before_commit(&mut self) -> Result<()> {
        for maintained in &mut self.indexes {
            let stored = &maintained.index.stored;
            self.catalog
                .mark_multikey(self.collection, stored, maintained.multikey)?;
        }
        Ok(())
    }

    /// Must be called after a batch was committed, if another follows with a new snapshot.
    pub(super) fn after_commit(&mut self) {
        for maintained in &mut self.indexes {
            maintained.pending.clear();
        }
    }

    /// Commits a batch, with the steps before and after.
    pub(super) fn commit(
        &mut self,
        records: &Records,
        batch: WriteBatch,
        durability: Durability,
    ) -> Result<()> {
        self.before_commit()?;
        records.claim(self.collection, &batch)?;
        records.engine.commit(batch, durability)?;
        self.after_commit();
        Ok(())
    }
}

impl MaintainedIndex {
    fn apply(&mut self, batch: &mut WriteBatch, record: &[u8], change: &EntryChange) {
        let EntryChange { before, after, .. } = change;
        self.multikey |= after.multikey;
        index::diff_entries(batch, &self.index, before, after, record);
        if self.index.stored.spec.refuses_duplicates() {
            self.pending.change(record, before, after);
        }
    }
}
