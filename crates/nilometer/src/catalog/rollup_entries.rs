//! Rollups as entries of the catalog: created, found, changed and removed.
//!
//! Locks are taken in this order: the list of rollups of a collection, then `changes`. Writers hold the list while they
//! change the catalog.

use std::sync::{Arc, PoisonError};

use nilometer_bson::Document;
use nilometer_storage::KeyspaceOptions;

use super::rollups::{RollupList, RollupOptions, RollupProgress, StoredRollup};
use super::{Catalog, CatalogEntry, Collection, Namespace, View};
use crate::error::{Error, ErrorCode, Result};

/// Rollups on rollups, the first included.
const ROLLUP_DEPTH_MAX: usize = 8;

/// Rollups on each other, the nearest first, and the time series at the bottom.
pub(super) type RollupChain = (Vec<(Namespace, Arc<StoredRollup>)>, Arc<Collection>);

impl Catalog {
    /// Returns the rollup called `namespace`.
    pub fn rollup(&self, namespace: &Namespace) -> Option<Arc<StoredRollup>> {
        match self.get(namespace) {
            Some(CatalogEntry::View(view)) => view.rollup.clone(),
            _ => None,
        }
    }

    /// Returns all rollups of all databases.
    pub fn rollups(&self) -> Vec<(Namespace, Arc<StoredRollup>)> {
        self.with_entries(|entries| {
            let rollups = entries.iter().filter_map(|(name, entry)| match entry {
                CatalogEntry::View(view) => Some((name.clone(), view.rollup.clone()?)),
                CatalogEntry::Collection(_) => None,
            });
            rollups.collect()
        })
    }

    /// Returns the rollups below `source`, the nearest first, and the time series at the bottom; `None` if there is none.
    pub fn rollup_chain(&self, database: &str, source: &str) -> Option<RollupChain> {
        let mut below = Vec::new();
        let mut name = source.to_owned();
        while below.len() < ROLLUP_DEPTH_MAX {
            let namespace = Namespace {
                database: database.to_owned(),
                collection: name,
            };
            if let Some(buckets) = self.timeseries(&namespace) {
                return Some((below, buckets));
            }
            let rollup = self.rollup(&namespace)?;
            name = rollup.source.clone();
            below.push((namespace, rollup));
        }
        None
    }

    /// Returns the names of the rollups that stand directly on `namespace`.
    pub fn rollups_on(&self, namespace: &Namespace) -> Vec<Namespace> {
        self.with_entries(|entries| {
            let rollups = entries.iter().filter(|(name, entry)| {
                name.database == namespace.database
                    && matches!(entry, CatalogEntry::View(view)
                        if view.rollup.as_ref().is_some_and(|r| r.source == namespace.collection))
            });
            rollups.map(|(name, _)| name.clone()).collect()
        })
    }

    /// Fails if rollups stand on `namespace`: `action` is what cannot be done to it.
    pub fn check_has_no_rollups(&self, namespace: &Namespace, action: &str) -> Result<()> {
        match self.rollups_on(namespace).first() {
            None => Ok(()),
            // Not code 20: drivers take it for a server without retryable writes, and hide the message.
            Some(rollup) => Err(Error::new(
                ErrorCode::OperationFailed,
                format!("cannot {action} {namespace}: the rollup {rollup} stands on it"),
            )),
        }
    }

    /// Creates a rollup over `bottom`, directly or not. The name must be free.
    pub fn create_rollup(
        &self,
        namespace: &Namespace,
        bottom: &Collection,
        uuid: [u8; 16],
        definition: (String, Vec<Document>),
        options: RollupOptions,
    ) -> Result<Arc<StoredRollup>> {
        // Writers that do not know the rollup have committed when the list is locked.
        let mut list = bottom.rollups.lock_exclusive();
        let _changing = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_name_is_free(namespace)?;
        let (source, pipeline) = definition;
        let Some((below, _)) = self.rollup_chain(&namespace.database, &source) else {
            return Err(Error::new(
                ErrorCode::NamespaceNotFound,
                format!("ns does not exist: {}.{source}", namespace.database),
            ));
        };
        let parent = below.first().map(|(_, parent)| parent.clone());
        let rollup = self.add_rollup(namespace, uuid, (source, pipeline), options)?;
        bottom.rollups.attach_locked(&mut list, &rollup, parent);
        self.attach_waiting(&bottom.rollups, &mut list, namespace, Some(&rollup));
        Ok(rollup)
    }

    /// Creates a rollup whose source does not exist yet: it is empty until a time series or rollup gets the name. False if
    /// the source exists by now.
    ///
    /// `mongorestore` creates collections in any order.
    pub fn create_waiting_rollup(
        &self,
        namespace: &Namespace,
        uuid: [u8; 16],
        definition: (String, Vec<Document>),
        options: RollupOptions,
    ) -> Result<bool> {
        let _changing = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_name_is_free(namespace)?;
        if self
            .rollup_chain(&namespace.database, &definition.0)
            .is_some()
        {
            return Ok(false);
        }
        self.check_is_no_circle(namespace, &definition.0)?;
        self.add_rollup(namespace, uuid, definition, options)?;
        Ok(true)
    }

    /// Fails if `namespace` is among what a rollup over `source` stands on.
    fn check_is_no_circle(&self, namespace: &Namespace, source: &str) -> Result<()> {
        let mut below = Namespace {
            database: namespace.database.clone(),
            collection: source.to_owned(),
        };
        for _ in 0..ROLLUP_DEPTH_MAX {
            if below == *namespace {
                return Err(Error::bad_value(format!(
                    "the rollup {namespace} cannot stand on itself"
                )));
            }
            match self.rollup(&below) {
                Some(rollup) => below.collection.clone_from(&rollup.source),
                None => break,
            }
        }
        Ok(())
    }

    /// Stores the entry of a rollup without bins. The caller holds `changes`, and has checked that the name is free.
    fn add_rollup(
        &self,
        namespace: &Namespace,
        uuid: [u8; 16],
        definition: (String, Vec<Document>),
        options: RollupOptions,
    ) -> Result<Arc<StoredRollup>> {
        let name: String = uuid.iter().map(|b| format!("{b:02x}")).collect();
        let keyspace = self
            .engine
            .create_keyspace(&format!("rollup/{name}"), KeyspaceOptions::default())?;
        let rollup = Arc::new(StoredRollup::new(uuid, keyspace, definition, options));
        let view = View {
            namespace: namespace.clone(),
            view_on: rollup.source.clone(),
            pipeline: rollup.pipeline.clone(),
            options: Document::new(),
            rollup: Some(rollup.clone()),
        };
        let (definition, mut notes) = self.notes_of_view(&view);
        notes.created(definition.as_ref());
        let entry = Some(CatalogEntry::View(Arc::new(view)));
        self.commit_changes(vec![(namespace.clone(), entry)], notes)?;
        Ok(rollup)
    }

    /// Adds rollups that were created before their time series to the lists of the series among `changes`. The caller has not
    /// published `changes`, so no writer holds one of these lists.
    pub(super) fn attach_to_new_series(&self, changes: &[(Namespace, Option<CatalogEntry>)]) {
        // A transaction may end without its collections.
        if self.below.is_some() {
            return;
        }
        for (_, entry) in changes {
            let Some(CatalogEntry::Collection(collection)) = entry else {
                continue;
            };
            let is_new = self
                .get(&collection.namespace)
                .is_none_or(|known| !matches!(known, CatalogEntry::Collection(known) if known.uuid == collection.uuid));
            if let Some(view) = collection.namespace.timeseries_view()
                && is_new
                && collection.timeseries.is_some()
            {
                let list = &collection.rollups;
                self.attach_waiting(list, &mut list.lock_exclusive(), &view, None);
            }
        }
    }

    /// Adds the rollups that wait for `source`, and those on them, to the list of their time series, which is locked.
    fn attach_waiting(
        &self,
        list: &Arc<RollupList>,
        locked: &mut Vec<Arc<StoredRollup>>,
        source: &Namespace,
        parent: Option<&Arc<StoredRollup>>,
    ) {
        for name in self.rollups_on(source) {
            let waiting = self.rollup(&name).filter(|rollup| rollup.list().is_none());
            if let Some(rollup) = waiting {
                list.attach_locked(locked, &rollup, parent.cloned());
                self.attach_waiting(list, locked, &name, Some(&rollup));
            }
        }
    }

    /// Changes the options of a rollup.
    pub fn modify_rollup(&self, namespace: &Namespace, options: RollupOptions) -> Result<()> {
        let _changing = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(CatalogEntry::View(view)) = self.get(namespace) else {
            return Err(Error::new(
                ErrorCode::NamespaceNotFound,
                format!("ns does not exist: {namespace}"),
            ));
        };
        let Some(rollup) = &view.rollup else {
            return Ok(());
        };
        let before = rollup.options();
        rollup.set_options(options);
        let (definition, mut notes) = self.notes_of_view(&view);
        notes.view_changed(definition.as_ref());
        let entry = Some(CatalogEntry::View(view.clone()));
        let stored = self.commit_changes(vec![(namespace.clone(), entry)], notes);
        if stored.is_err() {
            rollup.set_options(before);
        }
        stored
    }

    /// Adds all rollups to the lists of their collections, after the catalog was read.
    pub(super) fn attach_rollups(&self) -> Result<()> {
        let views: Vec<Arc<View>> = self.with_entries(|entries| {
            let views = entries.values().filter_map(|entry| match entry {
                CatalogEntry::View(view) => Some(view.clone()),
                CatalogEntry::Collection(_) => None,
            });
            views.filter(|view| view.rollup.is_some()).collect()
        });
        if views.is_empty() {
            return Ok(());
        }
        let snapshot = self.engine.snapshot()?;
        for view in views {
            let Some(rollup) = &view.rollup else { continue };
            rollup.set_progress(RollupProgress::read(&*snapshot, rollup.keyspace)?);
            let database = &view.namespace.database;
            if let Some((below, bottom)) = self.rollup_chain(database, &rollup.source) {
                let parent = below.into_iter().next().map(|(_, parent)| parent);
                let mut list = bottom.rollups.lock_exclusive();
                bottom.rollups.attach_locked(&mut list, rollup, parent);
            }
        }
        Ok(())
    }

    /// Removes rollups that no entry names, and their bins. The caller does not hold `changes`.
    pub(super) fn discard_rollups(&self, removed: &[Arc<StoredRollup>]) -> Result<()> {
        for rollup in removed {
            if let Some(list) = rollup.list() {
                RollupList::detach(&list, rollup);
            }
            let _refreshing = rollup.lock_refresh();
            for keyspace in rollup.keyspaces() {
                self.engine.drop_keyspace(keyspace)?;
            }
        }
        Ok(())
    }
}
