//! The catalog that a transaction sees: that of all, and the collections that the transaction has created.
//!
//! ```text
//! create ──► keyspaces that no entry names ──► an entry that the transaction alone sees ──► install, in the batch of the commit
//!                                                                                       └──► discard
//! ```
//!
//! A collection of a transaction gets indexes while it is empty. What statements change of other collections, such as
//! that a field has arrays, is stored at once, as without a transaction.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use nilometer_storage::{Engine, WriteBatch};

use super::version::VersionCell;
use super::{Catalog, CatalogEntry, Collection, Namespace, collection, encode_key};
use crate::error::{Error, ErrorCode, Result};

/// What makes two entries of one name the same collection or view.
fn identity(entry: Option<&CatalogEntry>) -> Option<(Option<[u8; 16]>, &str)> {
    match entry? {
        CatalogEntry::Collection(collection) => Some((Some(collection.uuid), "")),
        CatalogEntry::View(view) => Some((None, &view.view_on)),
    }
}

impl Catalog {
    /// Returns the catalog of a transaction that writes to `overlay`; `removals` are those below before its snapshot.
    pub(crate) fn of_transaction(
        overlay: Arc<dyn Engine>,
        below: &Arc<Self>,
        removals: u64,
    ) -> Self {
        Self {
            engine: overlay,
            keyspace: below.keyspace,
            entries: RwLock::default(),
            version: VersionCell::default(),
            changes: Mutex::default(),
            removals: removals.into(),
            below: Some(below.clone()),
        }
    }

    /// Counts the changes by which a name has another collection, or none, from now on. To be called before they are visible.
    pub(super) fn note_removals(&self, changes: &[(Namespace, Option<CatalogEntry>)]) {
        let takes_name = |(namespace, entry): &&(Namespace, Option<CatalogEntry>)| {
            let known = self.get(namespace);
            known.is_some() && identity(known.as_ref()) != identity(entry.as_ref())
        };
        let taken = changes.iter().filter(takes_name).count() as u64;
        self.removals.fetch_add(taken, Ordering::AcqRel);
    }

    /// Returns the number of changes by which a name had another collection, or none.
    pub(crate) fn removals(&self) -> u64 {
        self.removals.load(Ordering::Acquire)
    }

    /// Fails in a transaction if the collection of a name is another one since its snapshot, or gone.
    pub(crate) fn check_in_snapshot(&self, database: &str, name: &str) -> Result<()> {
        let Some(below) = &self.below else {
            return Ok(());
        };
        if below.removals() == self.removals() {
            return Ok(());
        }
        let namespace = &Namespace {
            database: database.to_owned(),
            collection: name.to_owned(),
        };
        if self.with_entries(|entries| entries.contains_key(namespace)) {
            return Ok(());
        }
        let snapshot = self.engine.snapshot()?;
        for name in [namespace, &namespace.buckets()] {
            let stored = snapshot.get(self.keyspace, &encode_key(name))?;
            let before = stored.map(|stored| collection::decode(name.clone(), &stored));
            let before = before.transpose()?;
            if identity(before.as_ref()) != identity(below.get(name).as_ref()) {
                return Err(Error::new(
                    ErrorCode::SnapshotUnavailable,
                    "Unable to read from a snapshot due to pending collection catalog changes; please retry the operation.",
                ));
            }
        }
        Ok(())
    }

    /// True for the catalog of a transaction.
    pub(crate) fn is_of_transaction(&self) -> bool {
        self.below.is_some()
    }

    /// Returns the collections that the transaction has created.
    pub(crate) fn created(&self) -> Vec<Arc<Collection>> {
        match self.is_of_transaction() {
            true => self.with_entries(|entries| super::collections_in(entries).collect()),
            false => Vec::new(),
        }
    }

    /// True if the transaction has created the collection.
    pub(crate) fn has_created(&self, collection: &Collection) -> bool {
        let mut created = self.created().into_iter();
        created.any(|known| known.uuid == collection.uuid)
    }

    /// Returns the catalog that stores the collection if it is not this one.
    pub(super) fn owner_below(&self, collection: &Collection) -> Option<&Arc<Self>> {
        let below = self.below.as_ref()?;
        (!self.has_created(collection)).then_some(below)
    }

    /// Returns the engine that has the keyspaces.
    pub(super) fn keyspace_engine(&self) -> &Arc<dyn Engine> {
        match &self.below {
            Some(below) => below.keyspace_engine(),
            None => &self.engine,
        }
    }

    /// Returns the part of the change log to which what is changed now is added, if there is a log.
    pub(super) fn log_part(&self) -> Option<u64> {
        self.keyspace_engine().annotation_part()
    }

    /// Adds the entries of collections that a transaction has created to `batch`, calls `commit` with it, and makes them
    /// visible. Code 112 if a name was taken since.
    pub(crate) fn install_created(
        &self,
        created: Vec<Arc<Collection>>,
        mut batch: WriteBatch,
        commit: impl FnOnce(WriteBatch) -> Result<()>,
    ) -> Result<()> {
        if created.is_empty() {
            return commit(batch);
        }
        let _changing = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        for collection in &created {
            if self.check_name_is_free(&collection.namespace).is_err() {
                return Err(Error::write_conflict());
            }
            let key = encode_key(&collection.namespace);
            batch.put(self.keyspace, key, collection.encode().into_bytes());
        }
        commit(batch)?;
        self.change_entries(|entries| {
            for collection in created {
                let namespace = collection.namespace.clone();
                entries.insert(namespace, CatalogEntry::Collection(collection));
            }
        });
        Ok(())
    }

    /// Forgets the collections that the transaction has created, which are installed by now.
    pub(crate) fn forget_created(&self) {
        if self.is_of_transaction() {
            self.change_entries(BTreeMap::clear);
        }
    }

    /// Drops the keyspaces of collections that a transaction has created and that are not installed. Those that cannot be
    /// dropped now are dropped when the catalog is opened.
    pub(crate) fn discard_created(&self) {
        for collection in self.created() {
            let _ = self.discard(&collection);
        }
        self.forget_created();
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::doc;
    use nilometer_storage::{Durability, Engine, MemoryEngine, OverlayEngine};

    use super::*;
    use crate::catalog::{IndexSpec, Namespace};
    use crate::error::ErrorCode;

    fn catalogs() -> (Arc<dyn Engine>, Arc<Catalog>, Catalog) {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let all = Arc::new(Catalog::open(engine.clone()).unwrap());
        let overlay = OverlayEngine::over(engine.clone(), 1 << 20).unwrap();
        let own = Catalog::of_transaction(Arc::new(overlay), &all, all.removals());
        (engine, all, own)
    }

    fn name(collection: &str) -> Namespace {
        Namespace::new("db", collection).unwrap()
    }

    #[test]
    fn created_collections_are_visible_when_they_are_installed() {
        let (engine, all, own) = catalogs();
        let old = all
            .create_collection(name("old"), [1; 16], doc! {}, None)
            .unwrap();
        let (new, is_new) = own.find_or_create(&name("new"), [2; 16], doc! {}).unwrap();
        assert!(is_new);
        let spec = IndexSpec {
            key: doc! { "x": 1 },
            name: "x_1".into(),
            ..IndexSpec::default()
        };
        let added = own.add_indexes(&new, 0, |_| Ok(vec![spec])).unwrap();
        own.finish_index(&new, &added[0]).unwrap();
        own.mark_multikey(&new, &added[0], 1).unwrap();
        assert!(
            !own.find_or_create(&name("old"), [3; 16], doc! {})
                .unwrap()
                .1
        );
        assert_eq!((own.list("db").len(), all.list("db").len()), (2, 1));
        assert_eq!((own.collections().len(), all.collections().len()), (2, 1));
        assert!(own.has_created(&new) && !own.has_created(&old));

        let commit = |batch| Ok(engine.commit(batch, Durability::Buffered).map(|_| ())?);
        all.install_created(own.created(), WriteBatch::new(), commit)
            .unwrap();
        own.forget_created();
        own.discard_created();
        for catalog in [&all, &Arc::new(Catalog::open(engine.clone()).unwrap())] {
            let found = catalog.collection(&name("new")).unwrap();
            let index = found.indexes.named("x_1").unwrap();
            assert!(index.is_ready() && index.multikey() == 1);
        }
    }

    #[test]
    fn a_name_that_is_taken_meanwhile_is_a_conflict_and_no_keyspace_remains() {
        let (engine, all, own) = catalogs();
        own.find_or_create(&name("c"), [1; 16], doc! {}).unwrap();
        all.create_collection(name("c"), [2; 16], doc! {}, None)
            .unwrap();
        let taken = all.install_created(own.created(), WriteBatch::new(), |_| Ok(()));
        assert_eq!(taken.unwrap_err().code, ErrorCode::WriteConflict);
        let before = engine.keyspaces().len();
        own.discard_created();
        assert_eq!(engine.keyspaces().len(), before - 2);
        assert_eq!(all.collection(&name("c")).unwrap().uuid, [2; 16]);
    }
}
