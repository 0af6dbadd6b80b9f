//! Renaming collections and time series, and redefining views.
//!
//! Renaming moves an entry, never data: the keyspaces of a collection are found through its entry. One
//! batch removes the old name and the entry that had the new one, and puts the entry under its new name, so
//! a crash leaves all of it or nothing.

use std::sync::{Arc, PoisonError};

use super::{Catalog, CatalogEntry, Collection, Namespace, View, name_taken};
use crate::error::{Error, ErrorCode, Result};

impl Catalog {
    /// Returns the collection that clients know by this UUID.
    pub fn by_shown_uuid(&self, uuid: [u8; 16]) -> Option<Arc<Collection>> {
        self.find(&|entries| {
            entries.values().find_map(|entry| match entry {
                CatalogEntry::Collection(found) if found.shown_uuid == uuid => Some(found.clone()),
                _ => None,
            })
        })
    }

    /// Returns the collection with this identity under its current name.
    fn by_uuid(&self, uuid: [u8; 16]) -> Option<Arc<Collection>> {
        self.find(&|entries| {
            entries.values().find_map(|entry| match entry {
                CatalogEntry::Collection(found) if found.uuid == uuid => Some(found.clone()),
                _ => None,
            })
        })
    }

    /// Returns the current version of `collection`, which may have other options or another name.
    pub(super) fn current(&self, collection: &Collection) -> Option<Arc<Collection>> {
        self.collection(&collection.namespace)
            .filter(|now| now.uuid == collection.uuid)
            .or_else(|| self.by_uuid(collection.uuid))
    }

    /// Returns the current version of `collection`. Fails with `NamespaceNotFound` if it was dropped.
    pub(super) fn current_or_error(&self, collection: &Collection) -> Result<Arc<Collection>> {
        self.current(collection).ok_or_else(|| {
            Error::new(
                ErrorCode::NamespaceNotFound,
                format!("ns does not exist: {}", collection.namespace),
            )
        })
    }

    /// Renames `from` to `to`. An existing collection `to` is dropped if `replace` returns true for it.
    /// Returns the dropped collection.
    pub fn rename(
        &self,
        from: &Namespace,
        to: &Namespace,
        replace: &dyn Fn(&Collection) -> Result<bool>,
    ) -> Result<Option<Arc<Collection>>> {
        let changing = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(source) = self.collection(from) else {
            return Err(no_source(from));
        };
        let replaced = match self.get(to) {
            None => None,
            Some(CatalogEntry::Collection(there)) if replace(&there)? => Some(there),
            Some(CatalogEntry::Collection(_)) => {
                return Err(target_exists());
            }
            Some(CatalogEntry::View(_)) => {
                return Err(is_a_view(to));
            }
        };
        let renamed = CatalogEntry::Collection(Arc::new(source.renamed(to.clone())));
        self.check_database_case(&to.database)?;
        let dropped = replaced.as_ref().map(|replaced| replaced.uuid);
        let notes = self.notes_of_renaming(&source, (from, to), dropped);
        self.commit_changes(
            vec![(from.clone(), None), (to.clone(), Some(renamed))],
            notes,
        )?;
        drop(changing);
        self.drop_keyspaces_of(replaced)
    }

    /// Renames a time-series collection, which is its buckets and the view over them. An existing collection `to` is
    /// dropped if `replace` returns true for it. Returns the dropped collection.
    pub fn rename_timeseries(
        &self,
        from: &Namespace,
        to: &Namespace,
        replace: &dyn Fn(&Collection) -> Result<bool>,
    ) -> Result<Option<Arc<Collection>>> {
        let changing = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(CatalogEntry::View(view)), Some(source)) =
            (self.get(from), self.timeseries(from))
        else {
            return Err(no_source(from));
        };
        let there = match self.get(to) {
            None => self.collection(&to.buckets()),
            Some(CatalogEntry::Collection(there)) => Some(there),
            Some(CatalogEntry::View(there)) => match self.timeseries(to) {
                Some(buckets) if there.unpacks_buckets() => Some(buckets),
                _ => {
                    return Err(is_a_view(to));
                }
            },
        };
        if let Some(there) = &there
            && !replace(there)?
        {
            return Err(target_exists());
        }
        let (old, new) = (from.buckets(), to.buckets());
        let view = View {
            namespace: to.clone(),
            view_on: new.collection.clone(),
            ..View::clone(&view)
        };
        let buckets = Arc::new(source.renamed(new.clone()));
        self.check_database_case(&to.database)?;
        let dropped = there.as_ref().map(|there| there.uuid);
        let notes = self.notes_of_renaming(&source, (from, to), dropped);
        let changes = vec![
            (from.clone(), None),
            (old, None),
            (to.clone(), Some(CatalogEntry::View(Arc::new(view)))),
            (new, Some(CatalogEntry::Collection(buckets))),
        ];
        self.commit_changes(changes, notes)?;
        drop(changing);
        self.drop_keyspaces_of(there)
    }

    /// Drops the data of a collection that the catalog no longer names; returns the collection.
    fn drop_keyspaces_of(
        &self,
        dropped: Option<Arc<Collection>>,
    ) -> Result<Option<Arc<Collection>>> {
        for keyspace in dropped.iter().flat_map(|dropped| dropped.keyspaces()) {
            self.engine.drop_keyspace(keyspace)?;
        }
        Ok(dropped)
    }

    /// Changes the definition of an existing view.
    pub fn modify_view(&self, view: View) -> Result<()> {
        let _changing = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        match self.get(&view.namespace) {
            Some(CatalogEntry::View(_)) => {
                let namespace = view.namespace.clone();
                let (definition, mut notes) = self.notes_of_view(&view);
                notes.view_changed(definition.as_ref());
                let entry = Some(CatalogEntry::View(Arc::new(view)));
                self.commit_changes(vec![(namespace, entry)], notes)
            }
            Some(_) => Err(name_taken(&view.namespace)),
            None => Err(Error::new(
                ErrorCode::NamespaceNotFound,
                format!("ns does not exist: {}", view.namespace),
            )),
        }
    }
}

fn no_source(from: &Namespace) -> Error {
    Error::new(
        ErrorCode::NamespaceNotFound,
        format!("Source collection {from} does not exist"),
    )
}

fn target_exists() -> Error {
    Error::new(ErrorCode::NamespaceExists, "target namespace exists")
}

fn is_a_view(to: &Namespace) -> Error {
    Error::new(
        ErrorCode::NamespaceExists,
        format!("a view already exists with that name: {to}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::doc;
    use nilometer_storage::{Engine, MemoryEngine};

    #[test]
    fn renaming_keeps_uuid_and_storage_across_reopening() {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let catalog = Catalog::open(engine.clone()).unwrap();
        let name = |db: &str, c: &str| Namespace::new(db, c).unwrap();
        let create = |n: &Namespace, uuid: u8| {
            catalog
                .create_collection(n.clone(), [uuid; 16], doc! {}, None)
                .unwrap()
        };
        let (a, b) = (name("db", "a"), name("other", "b"));
        let first = create(&a, 1);
        let second = create(&b, 2);
        let refused = catalog.rename(&a, &b, &|_| Ok(false)).unwrap_err();
        assert_eq!(refused.code, ErrorCode::NamespaceExists);
        let dropped = catalog.rename(&a, &b, &|_| Ok(true)).unwrap().unwrap();
        assert_eq!(dropped.uuid, second.uuid);
        assert_eq!(
            catalog.rename(&a, &b, &|_| Ok(true)).unwrap_err().code,
            ErrorCode::NamespaceNotFound
        );
        // The current version is found from the old one.
        assert_eq!(catalog.current(&first).unwrap().namespace, b);
        let keyspaces = engine.keyspaces().len();
        let again = Catalog::open(engine.clone()).unwrap();
        assert!(again.get(&a).is_none());
        let found = again.collection(&b).unwrap();
        assert_eq!((found.uuid, found.storage), (first.uuid, first.storage));
        assert_eq!(engine.keyspaces().len(), keyspaces);
    }
}
