//! Adding, changing and removing indexes.
//!
//! An index is stored as "building", and its keyspace exists, before any writer makes entries; it is stored
//! as ready before any query may use it. The progress of a build is one key per index beside the entries of
//! collections, written in the batch that holds the index entries: `FF "build" 00, keyspace (8 bytes,
//! big-endian)`.
//!
//! Lock order: the gate of the index list, then `changes`. A writer that holds the list may therefore mark
//! an index as multikey.

use std::sync::{Arc, PoisonError};

use nilometer_bson::doc;
use nilometer_storage::{Direction, Durability, KeyspaceId, WriteBatch};

use super::collection::Collection;
use super::index_spec::IndexSpec;
use super::indexes::{IndexList, StoredIndex};
use super::{Catalog, CatalogEntry};
use crate::error::{Error, ErrorCode, Result};

/// Prefix of the keys of build progress. No namespace starts with the byte FF.
pub(super) const PROGRESS_PREFIX: &[u8] = b"\xFFbuild\0";

/// Stored in place of the progress of a build that cannot succeed. No record has an empty key.
const FAILED: &[u8] = b"";

impl Catalog {
    /// Adds the indexes that `choose` returns, given the current list; `choose` may fail. When this
    /// returns, every writer maintains the new indexes, which have no entries for older documents yet.
    pub fn add_indexes(
        &self,
        collection: &Collection,
        now_ms: i64,
        choose: impl FnOnce(&[Arc<StoredIndex>]) -> Result<Vec<IndexSpec>>,
    ) -> Result<Vec<Arc<StoredIndex>>> {
        let _closed = collection.indexes.lock_exclusive();
        let _changing = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.current_or_error(collection)?;
        let there = now.indexes.all();
        let mut added = Vec::new();
        let specs = choose(&there)?;
        let keyspaces = self.create_index_keyspaces(now.uuid, specs.len())?;
        for (spec, keyspace) in specs.into_iter().zip(keyspaces) {
            added.push(Arc::new(StoredIndex::building(spec, keyspace, now_ms)));
        }
        if !added.is_empty() {
            let all = there.iter().chain(&added).cloned().collect();
            self.store_indexes(&now, all, WriteBatch::new())?;
        }
        Ok(added)
    }

    /// Stores that `index` is complete, then lets queries use it.
    pub fn finish_index(&self, collection: &Collection, index: &StoredIndex) -> Result<()> {
        let _changing = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.current_or_error(collection)?;
        index.stored().ready = true;
        let mut batch = WriteBatch::new();
        batch.delete(self.keyspace, progress_key(index.keyspace));
        let mut notes = self.change_notes(&now);
        notes.created_indexes(std::iter::once(index.spec.to_document()));
        notes.add_to(&mut batch);
        let stored = self.store_indexes(&now, now.indexes.all().to_vec(), batch);
        if stored.is_err() {
            index.stored().ready = false;
        }
        stored?;
        index.publish();
        Ok(())
    }

    /// Adds to `batch` that the build of `index` has processed all records up to `after`.
    pub fn put_build_progress(&self, batch: &mut WriteBatch, index: &StoredIndex, after: &[u8]) {
        batch.put(self.keyspace, progress_key(index.keyspace), after.to_vec());
    }

    /// Records that the build of `index` cannot succeed, for instance because it is unique and a writer
    /// stored a duplicate. Survives a crash once `batch` is committed.
    pub fn fail_build(&self, batch: &mut WriteBatch, index: &StoredIndex, failure: Error) {
        batch.put(self.keyspace, progress_key(index.keyspace), FAILED.to_vec());
        index.set_build_failure(failure);
    }

    /// Removes the indexes that `choose` selects from the current list, with their entries.
    pub fn drop_indexes(
        &self,
        collection: &Collection,
        choose: impl FnOnce(&[Arc<StoredIndex>]) -> Result<Vec<KeyspaceId>>,
    ) -> Result<()> {
        let _closed = collection.indexes.lock_exclusive();
        let _changing = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.current_or_error(collection)?;
        let there = now.indexes.all();
        let gone = choose(&there)?;
        if gone.is_empty() {
            return Ok(());
        }
        let mut batch = WriteBatch::new();
        for keyspace in &gone {
            batch.delete(self.keyspace, progress_key(*keyspace));
        }
        let shown = there.iter().filter(|i| gone.contains(&i.keyspace));
        let mut shown = shown.filter(|i| i.is_ready()).peekable();
        if shown.peek().is_some() {
            let mut notes = self.change_notes(&now);
            notes.dropped_indexes(shown.map(|index| index.spec.to_document()));
            notes.add_to(&mut batch);
        }
        let kept = there.iter().filter(|i| !gone.contains(&i.keyspace));
        self.store_indexes(&now, kept.cloned().collect(), batch)?;
        for keyspace in gone {
            self.keyspace_engine().drop_keyspace(keyspace)?;
        }
        Ok(())
    }

    /// Changes the definition of the index in `keyspace`. The change must not affect its entries.
    pub fn modify_index(
        &self,
        collection: &Collection,
        keyspace: KeyspaceId,
        change: impl FnOnce(&mut IndexSpec),
    ) -> Result<Arc<StoredIndex>> {
        let _changing = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.current_or_error(collection)?;
        let mut all = now.indexes.all().to_vec();
        let Some(found) = all.iter_mut().find(|i| i.keyspace == keyspace) else {
            return Err(Error::new(
                ErrorCode::IndexNotFound,
                format!("the index is no longer there in {}", now.namespace),
            ));
        };
        let mut spec = found.spec.clone();
        change(&mut spec);
        let mut notes = self.change_notes(&now);
        notes.modified(
            doc! {"index": spec.to_document()}.as_ref(),
            doc! {"indexOptions": found.spec.to_document()}.as_ref(),
        );
        let mut batch = WriteBatch::new();
        notes.add_to(&mut batch);
        let modified = Arc::new(found.modified(spec));
        *found = modified.clone();
        self.store_indexes(&now, all, batch)?;
        Ok(modified)
    }

    /// Stores that documents had arrays at the parts in `bits`. Durable when it returns, so that the
    /// entries may be committed. A collection that is not installed yet is stored when it is installed.
    pub fn mark_multikey(
        &self,
        collection: &Collection,
        index: &StoredIndex,
        bits: u32,
    ) -> Result<()> {
        if index.multikey() & bits == bits {
            return Ok(());
        }
        if let Some(owner) = self.owner_below(collection) {
            return owner.mark_multikey(collection, index, bits);
        }
        let _changing = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        index.stored().multikey |= bits;
        if let Ok(now) = self.current_or_error(collection) {
            self.store_indexes(&now, now.indexes.all().to_vec(), WriteBatch::new())?;
        }
        index.publish();
        Ok(())
    }

    /// Returns the indexes whose build is running or was interrupted by a crash.
    pub fn unfinished_indexes(&self, collection: &Collection) -> Vec<Arc<StoredIndex>> {
        let all = collection.indexes.all();
        all.iter().filter(|i| !i.is_ready()).cloned().collect()
    }

    /// Loads the progress of interrupted builds.
    pub(super) fn load_build_progress(&self) -> Result<()> {
        let unfinished: Vec<_> = self
            .collections()
            .iter()
            .flat_map(|c| self.unfinished_indexes(c))
            .collect();
        let snapshot = self.engine.snapshot()?;
        for item in snapshot.scan(self.keyspace, PROGRESS_PREFIX, None, Direction::Forward)? {
            let (key, after) = item?;
            let found = unfinished
                .iter()
                .find(|index| progress_key(index.keyspace) == *key);
            if let Some(index) = found {
                if after[..] == *FAILED {
                    index.set_build_failure(Error::new(
                        ErrorCode::OperationFailed,
                        "a document that was written during the build cannot be indexed",
                    ));
                }
                index.set_resume_after(after.to_vec());
            }
        }
        Ok(())
    }

    /// Commits `batch` and the list, then makes the list visible.
    fn store_indexes(
        &self,
        now: &Arc<Collection>,
        all: Vec<Arc<StoredIndex>>,
        mut batch: WriteBatch,
    ) -> Result<()> {
        let key = super::encode_key(&now.namespace);
        batch.put(self.keyspace, key, now.encode_with(&all).into_bytes());
        self.engine.commit(batch, Durability::Sync)?;
        now.indexes.set(all.into());
        Ok(())
    }
}

fn progress_key(keyspace: KeyspaceId) -> Vec<u8> {
    [PROGRESS_PREFIX, &keyspace.0.to_be_bytes()].concat()
}

impl CatalogEntry {
    /// Returns the indexes of a collection; `None` for a view.
    pub fn indexes(&self) -> Option<&Arc<IndexList>> {
        match self {
            Self::Collection(found) => Some(&found.indexes),
            Self::View(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Namespace;
    use nilometer_bson::doc;
    use nilometer_storage::{Engine, MemoryEngine};

    fn spec(name: &str) -> IndexSpec {
        IndexSpec {
            key: doc! { "x": 1 },
            name: name.to_owned(),
            ..IndexSpec::default()
        }
    }

    #[test]
    fn indexes_are_stored_and_dropped_with_their_collection() {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let catalog = Catalog::open(engine.clone()).unwrap();
        let name = Namespace::new("db", "c").unwrap();
        let collection = catalog
            .create_collection(name.clone(), [1; 16], doc! {}, None)
            .unwrap();
        let before = engine.keyspaces().len();
        let added = catalog
            .add_indexes(&collection, 5, |there| {
                assert!(there.is_empty());
                Ok(vec![spec("a"), spec("b")])
            })
            .unwrap();
        assert_eq!(engine.keyspaces().len(), before + 2);
        assert!(!added[0].is_ready());
        catalog.finish_index(&collection, &added[0]).unwrap();
        catalog.mark_multikey(&collection, &added[0], 1).unwrap();
        assert!(added[0].is_usable());
        let mut batch = WriteBatch::new();
        catalog.put_build_progress(&mut batch, &added[1], b"at");
        engine.commit(batch, Durability::Sync).unwrap();
        let hidden = catalog
            .modify_index(&collection, added[0].keyspace, |spec| spec.hidden = true)
            .unwrap();
        assert!(hidden.is_ready() && !hidden.is_usable());

        let again = Catalog::open(engine.clone()).unwrap();
        let found = again.collection(&name).unwrap();
        let indexes = found.indexes.all();
        assert_eq!(indexes[0].spec, hidden.spec);
        assert!(indexes[0].is_ready());
        assert_eq!(indexes[0].multikey(), 1);
        assert_eq!(indexes[1].resume_after().as_deref(), Some(&b"at"[..]));
        assert_eq!(again.unfinished_indexes(&found).len(), 1);

        let keyspace = indexes[1].keyspace;
        again.drop_indexes(&found, |_| Ok(vec![keyspace])).unwrap();
        assert_eq!(engine.keyspaces().len(), before + 1);
        assert!(found.indexes.named("b").is_none());
        again.remove(&[name]).unwrap();
        assert_eq!(engine.keyspaces().len(), 1);
    }

    #[test]
    fn a_locked_list_does_not_change() {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let catalog = Catalog::open(engine).unwrap();
        let name = Namespace::new("db", "c").unwrap();
        let collection = catalog
            .create_collection(name, [1; 16], doc! {}, None)
            .unwrap();
        let held = collection.indexes.lock_shared();
        std::thread::scope(|scope| {
            let adding = scope.spawn(|| {
                catalog
                    .add_indexes(&collection, 0, |_| Ok(vec![spec("a")]))
                    .unwrap()
            });
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!adding.is_finished());
            assert!(held.is_empty());
            drop(held);
            adding.join().unwrap();
        });
        assert_eq!(collection.indexes.lock_shared().len(), 1);
    }
}
