//! Replacing a collection by one that is filled before it gets the name.
//!
//! ```text
//! prepare ──► keyspaces without a name ── fill ──► install: the name moves in one commit
//!                                         └──► discard
//! ```
//!
//! Until it is installed no entry names the new keyspaces, so a crash leaves nothing: they are dropped when
//! the catalog is opened again.

use std::sync::{Arc, PoisonError};

use nilometer_bson::Document;
use nilometer_storage::{Durability, WriteBatch};

use super::change_notes::logged_options;
use super::index_spec::IndexSpec;
use super::indexes::StoredIndex;
use super::storage::StorageKind;
use super::{Catalog, CatalogEntry, Collection, Namespace, TimeseriesOptions, View};
use crate::error::{Error, ErrorCode, Result};

impl Catalog {
    /// Prepares a collection with the name, options and indexes of `target`, or of a new one; with
    /// `timeseries`, a bucket collection. It is invisible until installed. Its indexes are ready, as it is
    /// empty: inserts maintain them. Returns it with the collection it will replace.
    pub fn prepare_replacement(
        &self,
        target: &Namespace,
        uuid: [u8; 16],
        timeseries: Option<TimeseriesOptions>,
        now_ms: i64,
    ) -> Result<(Collection, Option<Arc<Collection>>)> {
        let replaced = match self.get(target) {
            None => None,
            Some(CatalogEntry::Collection(found)) if found.timeseries == timeseries => Some(found),
            Some(_) => return Err(changed_meanwhile(target)),
        };
        let options = replaced.as_ref().map(|c| c.options.clone());
        let options = options.unwrap_or_default();
        let kind = StorageKind::of(timeseries.as_ref(), &options);
        let known = replaced.as_ref().map(|replaced| replaced.indexes.all());
        let has_default = timeseries.as_ref().is_some_and(|t| t.meta_field.is_some());
        let indexes = known
            .as_ref()
            .map_or(usize::from(has_default), |known| known.len());
        let (storage, keyspaces) = self.create_storage(uuid, kind, indexes)?;
        let fresh = Collection::new(target.clone(), uuid, options, timeseries, storage);
        if let Some(known) = known {
            let mut ready = Vec::new();
            for (known, keyspace) in known.iter().zip(keyspaces) {
                let index = StoredIndex::building(known.spec.clone(), keyspace, now_ms);
                index.stored().ready = true;
                index.publish();
                ready.push(Arc::new(index));
            }
            fresh.indexes.set(ready.into());
        } else {
            fresh.set_default_index(&keyspaces);
        }
        self.note_preparation(&fresh, replaced.as_deref())?;
        Ok((fresh, replaced))
    }

    /// Prepares a collection without indexes. It is invisible until installed.
    pub fn prepare_collection(
        &self,
        target: &Namespace,
        uuid: [u8; 16],
        options: Document,
    ) -> Result<Collection> {
        let (storage, _) = self.create_storage(uuid, StorageKind::of(None, &options), 0)?;
        let fresh = Collection::new(target.clone(), uuid, options, None, storage);
        self.note_preparation(&fresh, None)?;
        Ok(fresh)
    }

    /// Puts the creation of a prepared collection, which has the indexes of `replaced`, into the change log: its documents follow.
    fn note_preparation(&self, fresh: &Collection, replaced: Option<&Collection>) -> Result<()> {
        let mut notes = self.notes_of_preparation(fresh);
        if !notes.are_kept() {
            return Ok(());
        }
        notes.created(logged_options(fresh).as_ref());
        if let Some(replaced) = replaced {
            let indexes = replaced.indexes.all();
            let specs = indexes.iter().map(|index| index.spec.to_document());
            notes.created_indexes(specs);
        }
        let mut batch = WriteBatch::new();
        notes.add_to(&mut batch);
        self.engine.commit(batch, Durability::Buffered)?;
        Ok(())
    }

    /// Gives a prepared collection the name of `old`, which is dropped with its indexes. Fails if the name
    /// stands for another entry by now.
    pub fn install_converted(&self, fresh: &Arc<Collection>, old: &Collection) -> Result<()> {
        let _closed = old.indexes.lock_exclusive();
        let _changing = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let target = &fresh.namespace;
        let known = |c: &Collection| (c.uuid, c.options.clone());
        match self.get(target) {
            Some(CatalogEntry::Collection(now)) if known(&now) == known(old) => {}
            _ => return Err(changed_meanwhile(target)),
        }
        let entry = CatalogEntry::Collection(Arc::clone(fresh));
        let notes = self.notes_of_installation(fresh, Some(old));
        self.commit_changes(vec![(target.clone(), Some(entry))], notes)?;
        self.discard(old)
    }

    /// Gives a prepared collection its name, and drops the collection that had it. Fails if the entry or
    /// its options have changed since the preparation. New buckets get the view `view`.
    pub fn install_replacement(
        &self,
        fresh: &Arc<Collection>,
        replaced: Option<&Collection>,
        view: Option<&Namespace>,
    ) -> Result<()> {
        // No index is added to the collection that is dropped.
        let _closed = replaced.map(|old| old.indexes.lock_exclusive());
        let _changing = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let target = &fresh.namespace;
        let now = match self.get(target) {
            None => None,
            Some(CatalogEntry::Collection(found)) => Some(found),
            Some(CatalogEntry::View(_)) => return Err(changed_meanwhile(target)),
        };
        let known = |c: &Collection| {
            let indexes = c.indexes.all();
            let specs: Vec<IndexSpec> = indexes.iter().map(|i| i.spec.clone()).collect();
            (c.uuid, c.options.clone(), specs)
        };
        let is_as_prepared = replaced.is_none_or(|old| known(old).2 == known(fresh).2);
        if now.as_deref().map(known) != replaced.map(known) || !is_as_prepared {
            return Err(changed_meanwhile(target));
        }
        let mut changes = vec![(
            target.clone(),
            Some(CatalogEntry::Collection(Arc::clone(fresh))),
        )];
        if let Some(name) = view
            && now.is_none()
        {
            self.check_name_is_free(name)?;
            let view = View {
                namespace: name.clone(),
                view_on: target.collection.clone(),
                pipeline: Vec::new(),
                options: Document::new(),
                rollup: None,
            };
            changes.push((name.clone(), Some(CatalogEntry::View(Arc::new(view)))));
        }
        let notes = self.notes_of_installation(fresh, now.as_deref());
        self.commit_changes(changes, notes)?;
        match now {
            Some(old) => self.discard(&old),
            None => Ok(()),
        }
    }

    /// Drops the keyspaces of a collection that no entry names. Builds of its indexes find the indexes
    /// removed.
    pub fn discard(&self, collection: &Collection) -> Result<()> {
        let keyspaces = collection.keyspaces();
        collection.indexes.set(Arc::default());
        for keyspace in keyspaces {
            self.keyspace_engine().drop_keyspace(keyspace)?;
        }
        Ok(())
    }
}

fn changed_meanwhile(target: &Namespace) -> Error {
    Error::new(
        ErrorCode::CommandFailed,
        format!("collection {target} changed while it was being replaced"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::doc;
    use nilometer_storage::{Engine, MemoryEngine};

    #[test]
    fn the_name_moves_and_no_keyspace_is_orphaned() {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let catalog = Catalog::open(engine.clone()).unwrap();
        let name = Namespace::new("db", "c").unwrap();
        let options = doc! { "storageEngine": doc! {} };
        catalog
            .create_collection(name.clone(), [1; 16], options.clone(), None)
            .unwrap();
        let target = catalog.collection(&name).unwrap();
        let spec = IndexSpec {
            key: doc! { "x": 1 },
            name: "x_1".into(),
            ..IndexSpec::default()
        };
        catalog
            .add_indexes(&target, 0, |_| Ok(vec![spec.clone()]))
            .unwrap();
        let before = engine.keyspaces().len();

        let (fresh, replaced) = catalog
            .prepare_replacement(&name, [2; 16], None, 0)
            .unwrap();
        assert_eq!(catalog.collection(&name).unwrap().uuid, [1; 16]);
        let fresh = Arc::new(fresh);
        catalog
            .install_replacement(&fresh, replaced.as_deref(), None)
            .unwrap();
        let found = catalog.collection(&name).unwrap();
        assert_eq!((found.uuid, &found.options), ([2; 16], &options));
        let index = found.indexes.named("x_1").unwrap();
        assert!(index.is_usable() && index.spec == spec);
        assert_eq!(engine.keyspaces().len(), before);

        // A crash removes a collection that was not installed.
        catalog
            .prepare_replacement(&name, [3; 16], None, 0)
            .unwrap();
        assert_ne!(engine.keyspaces().len(), before);
        let again = Catalog::open(engine.clone()).unwrap();
        assert_eq!(engine.keyspaces().len(), before);
        assert_eq!(again.collection(&name).unwrap().uuid, [2; 16]);
    }

    #[test]
    fn install_fails_if_the_name_was_taken() {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let catalog = Catalog::open(engine).unwrap();
        let name = Namespace::new("db", "c").unwrap();
        let (fresh, replaced) = catalog
            .prepare_replacement(&name, [2; 16], None, 0)
            .unwrap();
        assert!(replaced.is_none());
        catalog
            .create_collection(name.clone(), [1; 16], doc! {}, None)
            .unwrap();
        let error = catalog
            .install_replacement(&Arc::new(fresh), None, None)
            .unwrap_err();
        assert_eq!(error.code, ErrorCode::CommandFailed);
        assert_eq!(catalog.collection(&name).unwrap().uuid, [1; 16]);
    }
}
