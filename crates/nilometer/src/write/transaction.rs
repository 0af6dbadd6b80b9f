//! The commit of a transaction on ordinary collections.
//!
//! A transaction reads and writes over a snapshot. When it commits, its records are compared with what is stored now, and
//! what has changed since the snapshot is a conflict, also of records that are in the end as they were: the change log has the
//! changes of each statement. Index entries are computed from the documents again, because the list of indexes may have
//! changed, and other records may have taken unique keys.
//!
//! The write locks of all its collections are held from the comparison to the commit. The caller names the collections in
//! the order of their UUIDs, so that two transactions do not wait for each other.

use std::sync::Arc;

use nilometer_bson::Document;
use nilometer_storage::{Bytes, KeyspaceId, OverlayWrites, Snapshot, WriteBatch};

use super::capped::CollectionSize;
use super::maintenance::IndexMaintenance;
use super::records::{CollectionState, Records, document, id_key, keyspaces};
use crate::catalog::Collection;
use crate::error::{Error, ErrorCode, Result};

/// The change of a record by a transaction.
struct RecordChange {
    key: Vec<u8>,
    /// The stored bytes before the transaction.
    stored: Option<Bytes>,
    before: Option<Document>,
    after: Option<Document>,
}

/// The changes of the records of a collection by a transaction.
pub(crate) struct RecordChanges {
    collection: Arc<Collection>,
    changes: Vec<RecordChange>,
    /// The `_id`s that it has taken or freed, by their keys, and the records that had them before.
    ids: Vec<(Vec<u8>, Option<Bytes>)>,
}

impl RecordChanges {
    /// Compares the writes to the records of a collection with the snapshot below them.
    pub(crate) fn new(
        collection: Arc<Collection>,
        below: &dyn Snapshot,
        writes: &OverlayWrites,
    ) -> Result<Self> {
        let (records, id_index) = keyspaces(&collection)?;
        let written = |keyspace: &KeyspaceId| writes.get(keyspace).into_iter();
        let mut changes = Vec::new();
        for (key, after) in written(&records).flat_map(|writes| &**writes) {
            let stored = below.get(records, key)?;
            let parse = |bytes: Option<&Bytes>| bytes.map(|bytes| document(bytes)).transpose();
            changes.push(RecordChange {
                key: key.clone(),
                before: parse(stored.as_ref())?,
                after: parse(after.as_ref())?,
                stored,
            });
        }
        let id_writes = id_index.iter().flat_map(written);
        let ids = id_writes.flat_map(|writes| writes.keys());
        let ids = ids.map(|key| {
            let stored = id_index.map(|keyspace| below.get(keyspace, key));
            Ok((key.clone(), stored.transpose()?.flatten()))
        });
        Ok(Self {
            ids: ids.collect::<Result<_>>()?,
            collection,
            changes,
        })
    }
}

impl Records {
    /// Adds the changes of a transaction to `batch`, and calls `commit` with it, all under the write locks of the collections.
    /// Code 112 if a record was changed, or a unique key taken, since the transaction began.
    pub(crate) fn commit_together(
        &self,
        all: &[RecordChanges],
        mut batch: WriteBatch,
        commit: impl FnOnce(WriteBatch) -> Result<()>,
    ) -> Result<()> {
        let states = all.iter().map(|of| self.state(&of.collection));
        let states = states.collect::<Result<Vec<_>>>()?;
        let _writing: Vec<_> = states.iter().map(|state| state.lock()).collect();
        let snapshot = self.engine.snapshot()?;
        let mut staged = Vec::with_capacity(all.len());
        for (of, state) in all.iter().zip(&states) {
            let mut collection = StagedCollection {
                state,
                maintenance: IndexMaintenance::of(self, &of.collection)?,
                size: CollectionSize::default(),
            };
            collection.stage(of, &*snapshot, &mut batch)?;
            staged.push(collection);
        }
        for collection in &mut staged {
            collection.maintenance.before_commit()?;
        }
        commit(batch)?;
        for collection in staged {
            collection.state.size.add(collection.size);
            collection.state.arrivals.notify();
        }
        Ok(())
    }

    /// Returns the last of a range of record ids that no one else uses, before the first: a transaction inserts with them.
    pub(super) fn reserve_ids(&self, collection: &Collection) -> Result<u64> {
        /// More than a transaction can insert.
        const RESERVED: u64 = 1 << 20;
        let state = self.state(collection)?;
        let _writing = state.lock();
        let last = self.last_id(collection, &state, &*self.engine.snapshot()?, None)?;
        let end = last.saturating_add(RESERVED);
        state
            .last_id
            .store(end, std::sync::atomic::Ordering::Release);
        Ok(last)
    }
}

/// The part of a commit in one collection.
struct StagedCollection<'c> {
    state: &'c CollectionState,
    maintenance: IndexMaintenance<'c>,
    size: CollectionSize,
}

impl StagedCollection<'_> {
    /// Adds the changes to a batch. What is removed comes first: other records may take its keys.
    fn stage(
        &mut self,
        of: &RecordChanges,
        snapshot: &dyn Snapshot,
        batch: &mut WriteBatch,
    ) -> Result<()> {
        let (records, id_index) = keyspaces(&of.collection)?;
        if let Some(id_index) = id_index {
            for (key, stored) in &of.ids {
                if snapshot.get(id_index, key)?.as_deref() != stored.as_deref() {
                    return Err(Error::write_conflict());
                }
            }
        }
        for change in &of.changes {
            if snapshot.get(records, &change.key)?.as_deref() != change.stored.as_deref() {
                return Err(Error::write_conflict());
            }
            let Some(before) = &change.before else {
                continue;
            };
            self.maintenance.release(&change.key, before.as_ref())?;
            self.size.remove(before);
            if change.after.is_none() {
                batch.delete(records, change.key.clone());
                if let Some(id_index) = id_index {
                    batch.delete(id_index, self.id_key(before));
                }
            }
        }
        for change in &of.changes {
            if let (Some(id_index), None, Some(after)) = (id_index, &change.before, &change.after) {
                batch.put(id_index, self.id_key(after), change.key.clone());
            }
            self.stage_document(change, records, snapshot, batch)?;
        }
        Ok(())
    }

    /// Adds the document after a change, and the index entries.
    fn stage_document(
        &mut self,
        change: &RecordChange,
        records: KeyspaceId,
        snapshot: &dyn Snapshot,
        batch: &mut WriteBatch,
    ) -> Result<()> {
        let before = change.before.as_ref().map(Document::as_ref);
        let after = change.after.as_ref().map(Document::as_ref);
        let entries = self
            .maintenance
            .change(batch, snapshot, &change.key, (before, after), None);
        entries.map_err(|error| match error.code {
            ErrorCode::DuplicateKey => Error::write_conflict(),
            _ => error,
        })?;
        if let Some(after) = &change.after {
            self.size.add(after);
            batch.put(records, change.key.clone(), after.as_bytes().to_vec());
        }
        Ok(())
    }

    fn id_key(&self, document: &Document) -> Vec<u8> {
        id_key(document.get("_id"), &self.state.collation)
    }
}
