//! Adding, changing and removing indexes of rollups.
//!
//! The caller of all that changes the list or the entries of an index holds the lock of the rollup
//! ([`StoredRollup::lock_refresh`]), so an index is stored once it is complete. A crash before that leaves a keyspace that no
//! entry of the catalog names, and that is removed when the catalog is opened.

use std::sync::{Arc, PoisonError};

use nilometer_bson::doc;
use nilometer_storage::KeyspaceId;

use super::index_spec::IndexSpec;
use super::indexes::{Indexes, StoredIndex};
use super::rollups::StoredRollup;
use super::{Catalog, CatalogEntry, Namespace, View};
use crate::change_entry::ChangeNotes;
use crate::error::{Error, ErrorCode, Result};

impl Catalog {
    /// Makes indexes of a rollup without entries, each with a keyspace.
    pub fn prepare_rollup_indexes(
        &self,
        rollup: &StoredRollup,
        specs: Vec<IndexSpec>,
        now_ms: i64,
    ) -> Result<Vec<Arc<StoredIndex>>> {
        let keyspaces = self.create_index_keyspaces(rollup.uuid, specs.len())?;
        let new = specs.into_iter().zip(keyspaces);
        let new = new.map(|(spec, keyspace)| StoredIndex::complete(spec, keyspace, now_ms));
        Ok(new.map(Arc::new).collect())
    }

    /// Removes what was prepared.
    pub fn discard_rollup_indexes(&self, prepared: &[Arc<StoredIndex>]) -> Result<()> {
        for index in prepared {
            self.keyspace_engine().drop_keyspace(index.keyspace)?;
        }
        Ok(())
    }

    /// Adds indexes that have the entries of all bins.
    pub fn add_rollup_indexes(
        &self,
        namespace: &Namespace,
        rollup: &StoredRollup,
        built: &[Arc<StoredIndex>],
    ) -> Result<()> {
        self.change_rollup_indexes(namespace, rollup, |there, notes| {
            notes.created_indexes(built.iter().map(|index| index.spec.to_document()));
            Ok(there.iter().chain(built).cloned().collect())
        })
    }

    /// Removes the indexes in these keyspaces, with their entries.
    pub fn drop_rollup_indexes(
        &self,
        namespace: &Namespace,
        rollup: &StoredRollup,
        gone: &[KeyspaceId],
    ) -> Result<()> {
        if gone.is_empty() {
            return Ok(());
        }
        self.change_rollup_indexes(namespace, rollup, |there, notes| {
            let (gone, kept): (Vec<_>, Vec<_>) = there
                .iter()
                .cloned()
                .partition(|index| gone.contains(&index.keyspace));
            notes.dropped_indexes(gone.iter().map(|index| index.spec.to_document()));
            Ok(kept.into())
        })?;
        for keyspace in gone {
            self.keyspace_engine().drop_keyspace(*keyspace)?;
        }
        Ok(())
    }

    /// Changes the definition of the index in `keyspace`. The change must not affect its entries.
    pub fn modify_rollup_index(
        &self,
        namespace: &Namespace,
        rollup: &StoredRollup,
        keyspace: KeyspaceId,
        change: impl FnOnce(&mut IndexSpec),
    ) -> Result<Arc<StoredIndex>> {
        let mut changed = None;
        self.change_rollup_indexes(namespace, rollup, |there, notes| {
            let mut all = there.to_vec();
            let found = all.iter_mut().find(|index| index.keyspace == keyspace);
            let found = found.ok_or_else(|| index_gone(namespace))?;
            let mut spec = found.spec.clone();
            change(&mut spec);
            notes.modified(
                doc! {"index": spec.to_document()}.as_ref(),
                doc! {"indexOptions": found.spec.to_document()}.as_ref(),
            );
            *found = Arc::new(found.modified(spec));
            changed = Some(Arc::clone(found));
            Ok(all.into())
        })?;
        changed.ok_or_else(|| index_gone(namespace))
    }

    /// Stores that bins have arrays at the parts in `bits`. Durable when it returns, so that the entries may be committed.
    pub fn mark_rollup_multikey(
        &self,
        namespace: &Namespace,
        rollup: &StoredRollup,
        index: &StoredIndex,
        bits: u32,
    ) -> Result<()> {
        if index.multikey() & bits == bits {
            return Ok(());
        }
        self.change_rollup_indexes(namespace, rollup, |there, _| {
            index.stored().multikey |= bits;
            Ok(there.clone())
        })?;
        index.publish();
        Ok(())
    }

    /// Stores the list of indexes that `change` returns, then makes it visible.
    fn change_rollup_indexes(
        &self,
        namespace: &Namespace,
        rollup: &StoredRollup,
        change: impl FnOnce(&Indexes, &mut ChangeNotes) -> Result<Indexes>,
    ) -> Result<()> {
        let _changing = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let view = self.view_of_rollup(namespace, rollup)?;
        let (_, mut notes) = self.notes_of_view(&view);
        let before = rollup.indexes.all();
        let after = change(&before, &mut notes)?;
        // The entry is encoded from the list. An index that is not durable yet has its entries; one whose removal is not
        // durable yet is not used any more.
        rollup.indexes.set(after);
        let entry = Some(CatalogEntry::View(view));
        let stored = self.commit_changes(vec![(namespace.clone(), entry)], notes);
        if stored.is_err() {
            rollup.indexes.set(before);
        }
        stored
    }

    /// Returns the entry of a rollup; fails if it was dropped.
    fn view_of_rollup(&self, namespace: &Namespace, rollup: &StoredRollup) -> Result<Arc<View>> {
        match self.get(namespace) {
            Some(CatalogEntry::View(view))
                if view
                    .rollup
                    .as_ref()
                    .is_some_and(|own| own.uuid == rollup.uuid) =>
            {
                Ok(view)
            }
            _ => Err(Error::new(
                ErrorCode::NamespaceNotFound,
                format!("ns does not exist: {namespace}"),
            )),
        }
    }
}

fn index_gone(namespace: &Namespace) -> Error {
    Error::new(
        ErrorCode::IndexNotFound,
        format!("the index is no longer there in {namespace}"),
    )
}
