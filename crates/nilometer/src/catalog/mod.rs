//! The catalog: databases, collections, views and their options.
//!
//! The catalog is held in memory and mirrored in one keyspace; a change is durable before it is visible. A
//! time-series collection is two entries: the bucket collection `system.buckets.<name>`, which holds the
//! data and the options, and the view `<name>` over it.
//!
//! Keyspaces are created before the entry that names them and dropped after it. Keyspaces that no entry
//! names, left by a crash in between, are dropped when the catalog is opened. Filters and validators stay
//! documents: this module evaluates nothing.

mod authorization;
mod capped_sizes;
mod change_notes;
mod collection;
mod compiled;
mod dictionaries;
mod in_transaction;
mod index_changes;
mod index_spec;
mod indexes;
mod measurement_counts;
mod namespace;
mod rename;
mod replacement;
mod rollup_entries;
mod rollup_indexes;
mod rollups;
mod storage;
mod timeseries_options;
mod version;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use nilometer_bson::{Document, doc};
use nilometer_storage::{Direction, Durability, Engine, KeyspaceId, KeyspaceOptions, WriteBatch};

pub use authorization::AuthDocumentKind;
pub use collection::{
    Collection, DuplicateRule, Storage, View, bucket_validator, pipeline_value, uuid_value,
};
pub use dictionaries::StoredDictionary;
pub use index_spec::IndexSpec;
pub use indexes::{IndexList, IndexListGuard, Indexes, StoredIndex};
pub use namespace::{
    ADMIN, BUCKETS_PREFIX, CONFIG, LOCAL, Namespace, OPLOG, SYSTEM_VIEWS, check_database_name,
    is_internal_database,
};
pub use rollups::{
    BINS_VERSION_KEY, HEADER_KEY, OpenBins, RollupList, RollupListGuard, RollupOptions,
    RollupProgress, StoredRollup,
};
pub use timeseries_options::{
    BUCKET_SPAN_SECONDS_MAX, DuplicatePolicy, EXTENSION, Granularity, TimeseriesOptions,
};
pub use version::CatalogVersion;

use self::storage::StorageKind;
use self::version::VersionCell;
use crate::change_entry::ChangeNotes;
use crate::error::{Error, ErrorCode, Result};

/// The keyspace of the catalog itself.
const CATALOG_KEYSPACE: &str = "catalog";

/// The keyspace of the results of retryable writes, if there are any. No entry names it.
pub(crate) const RETRYABLE_WRITES_KEYSPACE: &str = "retryable writes";

/// The keyspace of the placements of a router's collections. No entry names it.
pub(crate) const PLACEMENTS_KEYSPACE: &str = "placements";

/// A collection or a view.
#[derive(Clone, Debug)]
pub enum CatalogEntry {
    /// A collection that holds documents.
    Collection(Arc<Collection>),
    /// A view.
    View(Arc<View>),
}

/// All namespaces, in memory and in one keyspace.
pub struct Catalog {
    engine: Arc<dyn Engine>,
    keyspace: KeyspaceId,
    entries: RwLock<BTreeMap<Namespace, CatalogEntry>>,
    /// Changes with the entries.
    version: VersionCell,
    /// Held while a change is checked, stored and made visible.
    changes: Mutex<()>,
    /// Number of changes that took a name from a collection.
    removals: AtomicU64,
    /// Of a transaction: the catalog that all see.
    below: Option<Arc<Self>>,
}

impl Catalog {
    /// Opens the catalog of the engine; creates an empty one if there is none.
    pub fn open(engine: Arc<dyn Engine>) -> Result<Self> {
        let all = engine.keyspaces();
        let keyspace = match all.iter().find(|k| k.name == CATALOG_KEYSPACE) {
            Some(found) => found.id,
            None => engine.create_keyspace(CATALOG_KEYSPACE, KeyspaceOptions::default())?,
        };
        let mut entries = BTreeMap::new();
        let mut used = BTreeSet::from([keyspace]);
        let scan = engine
            .snapshot()?
            .scan(keyspace, &[], None, Direction::Forward)?;
        for item in scan {
            let (key, value) = item?;
            let beside = [
                authorization::AUTHORIZATION_PREFIX,
                dictionaries::DICTIONARY_PREFIX,
                index_changes::PROGRESS_PREFIX,
                capped_sizes::CAPPED_SIZE_PREFIX,
                measurement_counts::MEASUREMENT_COUNT_PREFIX,
            ];
            if beside.iter().any(|prefix| key.starts_with(prefix)) {
                continue;
            }
            let namespace = decode_key(&key)?;
            let entry = collection::decode(namespace.clone(), &value)?;
            match &entry {
                CatalogEntry::Collection(collection) => used.extend(collection.keyspaces()),
                CatalogEntry::View(view) => {
                    used.extend(view.rollup.iter().flat_map(|r| r.keyspaces()))
                }
            }
            entries.insert(namespace, entry);
        }
        let beside = [RETRYABLE_WRITES_KEYSPACE, PLACEMENTS_KEYSPACE];
        let beside = all.iter().filter(|k| beside.contains(&k.name.as_str()));
        used.extend(beside.map(|k| k.id));
        let is_read_only = engine.is_read_only();
        let orphans = all.iter().filter(|k| !used.contains(&k.id));
        for orphan in orphans.filter(|_| !is_read_only) {
            engine.drop_keyspace(orphan.id)?;
        }
        let catalog = Self {
            engine,
            keyspace,
            entries: RwLock::new(entries),
            version: VersionCell::default(),
            changes: Mutex::new(()),
            removals: AtomicU64::new(0),
            below: None,
        };
        catalog.load_build_progress()?;
        catalog.attach_rollups()?;
        if is_read_only {
            return Ok(catalog);
        }
        catalog.remove_orphans(capped_sizes::CAPPED_SIZE_PREFIX)?;
        catalog.remove_orphans(measurement_counts::MEASUREMENT_COUNT_PREFIX)?;
        catalog.remove_orphans(dictionaries::DICTIONARY_PREFIX)?;
        Ok(catalog)
    }

    /// Removes the values below `prefix`, whose keys continue with the UUID of a collection, if the
    /// collection no longer exists.
    fn remove_orphans(&self, prefix: &[u8]) -> Result<()> {
        let existing: BTreeSet<[u8; 16]> = self.collections().iter().map(|c| c.uuid).collect();
        let mut batch = WriteBatch::new();
        let snapshot = self.engine.snapshot()?;
        for item in snapshot.scan(self.keyspace, prefix, None, Direction::Forward)? {
            let (key, _) = item?;
            let Some(rest) = key.strip_prefix(prefix) else {
                break;
            };
            if let Some(uuid) = rest.first_chunk()
                && !existing.contains(uuid)
            {
                batch.delete(self.keyspace, key.to_vec());
            }
        }
        if !batch.is_empty() {
            self.engine.commit(batch, Durability::Buffered)?;
        }
        Ok(())
    }

    /// Returns the entry called `namespace`.
    pub fn get(&self, namespace: &Namespace) -> Option<CatalogEntry> {
        self.find(&|entries| entries.get(namespace).cloned())
    }

    /// Returns the collection called `namespace`; `None` for a view.
    pub fn collection(&self, namespace: &Namespace) -> Option<Arc<Collection>> {
        match self.get(namespace) {
            Some(CatalogEntry::Collection(found)) => Some(found),
            _ => None,
        }
    }

    /// Returns the collection called `namespace`; an error for a view and for a name without a collection.
    pub fn collection_not_view(&self, namespace: &Namespace) -> Result<Arc<Collection>> {
        match self.get(namespace) {
            Some(CatalogEntry::Collection(found)) => Ok(found),
            Some(CatalogEntry::View(_)) => Err(Error::new(
                ErrorCode::CommandNotSupportedOnView,
                format!("Namespace {namespace} is a view, not a collection"),
            )),
            None => Err(Error::new(
                ErrorCode::NamespaceNotFound,
                format!("ns does not exist: {namespace}"),
            )),
        }
    }

    /// Returns the bucket collection of the time-series collection called `namespace`.
    pub fn timeseries(&self, namespace: &Namespace) -> Option<Arc<Collection>> {
        match self.get(namespace) {
            Some(CatalogEntry::View(view)) if view.unpacks_buckets() => self
                .collection(&namespace.buckets())
                .filter(|c| c.timeseries.is_some()),
            _ => None,
        }
    }

    /// True if this is the name of the oplog, and there is one: it shows the change log and cannot be written.
    pub fn is_oplog(&self, namespace: &Namespace) -> bool {
        namespace.database == LOCAL && namespace.collection == OPLOG && self.log_part().is_some()
    }

    /// Refuses to change the oplog: `action` is what clients cannot do.
    pub fn check_is_not_oplog(&self, namespace: &Namespace, action: &str) -> Result<()> {
        match self.is_oplog(namespace) {
            true => Err(Error::new(
                ErrorCode::IllegalOperation,
                format!("can't {action} live oplog while replicating"),
            )),
            false => Ok(()),
        }
    }

    /// Returns all entries of `database`, by name.
    pub fn list(&self, database: &str) -> Vec<(Namespace, CatalogEntry)> {
        let mut listed: Vec<_> = self.with_entries(|entries| {
            entries
                .iter()
                .filter(|(namespace, _)| namespace.database == database)
                .map(|(namespace, entry)| (namespace.clone(), entry.clone()))
                .collect()
        });
        if let Some(below) = &self.below {
            listed.extend(below.list(database));
            listed.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        }
        listed
    }

    /// Returns the names of all databases that have entries.
    pub fn databases(&self) -> Vec<String> {
        let below = self.below.as_ref().map(|below| below.databases());
        self.with_entries(|entries| {
            let own = entries.keys().map(|n| n.database.clone());
            let names: BTreeSet<_> = own.chain(below.unwrap_or_default()).collect();
            names.into_iter().collect()
        })
    }

    /// Returns all collections of all databases.
    pub fn collections(&self) -> Vec<Arc<Collection>> {
        let mut all: Vec<_> = self.with_entries(|entries| collections_in(entries).collect());
        if let Some(below) = &self.below {
            all.extend(below.collections());
        }
        all
    }

    /// Creates a collection; with `timeseries`, a bucket collection. The name must be free.
    pub fn create_collection(
        &self,
        namespace: Namespace,
        uuid: [u8; 16],
        options: Document,
        timeseries: Option<TimeseriesOptions>,
    ) -> Result<Arc<Collection>> {
        let _changing = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        self.create(namespace, uuid, options, timeseries)
    }

    /// Creates a collection that clients know by the UUID `shown`, which no other collection may have.
    pub fn create_with_uuid(
        &self,
        namespace: Namespace,
        (uuid, shown): ([u8; 16], [u8; 16]),
        options: Document,
        timeseries: Option<TimeseriesOptions>,
    ) -> Result<Arc<Collection>> {
        let _changing = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = self.by_shown_uuid(shown) {
            return Err(Error::new(
                ErrorCode::NamespaceExists,
                format!(
                    "the collection {} has the UUID asked for {namespace}",
                    other.namespace
                ),
            ));
        }
        self.create_as(namespace, (uuid, shown), options, timeseries)
    }

    /// Returns the ordinary collection of this name, creating it if the name is free. The second value is
    /// true if it was created.
    pub fn find_or_create(
        &self,
        namespace: &Namespace,
        uuid: [u8; 16],
        options: Document,
    ) -> Result<(Arc<Collection>, bool)> {
        let _changing = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        match self.get(namespace) {
            Some(CatalogEntry::Collection(found)) if found.timeseries.is_none() => {
                Ok((found, false))
            }
            _ => Ok((self.create(namespace.clone(), uuid, options, None)?, true)),
        }
    }

    /// Creates a collection. The caller holds `changes`.
    fn create(
        &self,
        namespace: Namespace,
        uuid: [u8; 16],
        options: Document,
        timeseries: Option<TimeseriesOptions>,
    ) -> Result<Arc<Collection>> {
        self.create_as(namespace, (uuid, uuid), options, timeseries)
    }

    /// Creates a collection with an own and a shown UUID. The caller holds `changes`.
    fn create_as(
        &self,
        namespace: Namespace,
        (uuid, shown): ([u8; 16], [u8; 16]),
        options: Document,
        timeseries: Option<TimeseriesOptions>,
    ) -> Result<Arc<Collection>> {
        self.check_name_is_free(&namespace)?;
        let kind = StorageKind::of(timeseries.as_ref(), &options);
        let (storage, _) = self.create_storage(uuid, kind, 0)?;
        let mut created = Collection::new(namespace.clone(), uuid, options, timeseries, storage);
        created.shown_uuid = shown;
        let created = Arc::new(created);
        let mut notes = self.notes_named(&created, &created.namespace);
        notes.created(change_notes::logged_options(&created).as_ref());
        self.commit_changes(
            vec![(namespace, Some(CatalogEntry::Collection(created.clone())))],
            notes,
        )?;
        Ok(created)
    }

    /// Creates a time-series collection: its buckets with the default index, unless they exist already, and
    /// the view.
    pub fn create_timeseries(
        &self,
        namespace: Namespace,
        uuid: [u8; 16],
        options: Document,
        timeseries: TimeseriesOptions,
    ) -> Result<Arc<Collection>> {
        let _changing = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_name_is_free(&namespace)?;
        let buckets = namespace.buckets();
        let mut changes = Vec::new();
        let collection = match self.get(&buckets) {
            Some(CatalogEntry::Collection(found))
                if found.timeseries.as_ref() == Some(&timeseries) && found.options == options =>
            {
                found
            }
            Some(_) => return Err(name_taken(&buckets)),
            None => {
                let indexes = usize::from(timeseries.meta_field.is_some());
                let (storage, indexes) =
                    self.create_storage(uuid, StorageKind::Buckets, indexes)?;
                let created =
                    Collection::new(buckets.clone(), uuid, options, Some(timeseries), storage);
                created.set_default_index(&indexes);
                let created = Arc::new(created);
                changes.push((
                    buckets.clone(),
                    Some(CatalogEntry::Collection(created.clone())),
                ));
                created
            }
        };
        let view = View {
            namespace: namespace.clone(),
            view_on: buckets.collection,
            pipeline: Vec::new(),
            options: Document::new(),
            rollup: None,
        };
        let mut notes = self.notes_named(&collection, &namespace);
        notes.created(change_notes::logged_options(&collection).as_ref());
        changes.push((namespace, Some(CatalogEntry::View(Arc::new(view)))));
        self.commit_changes(changes, notes)?;
        Ok(collection)
    }

    /// Creates a view. The name must be free.
    pub fn create_view(&self, view: View) -> Result<()> {
        let _changing = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_name_is_free(&view.namespace)?;
        let namespace = view.namespace.clone();
        let (definition, mut notes) = self.notes_of_view(&view);
        notes.created(definition.as_ref());
        let entry = Some(CatalogEntry::View(Arc::new(view)));
        self.commit_changes(vec![(namespace, entry)], notes)
    }

    /// Removes the given names and the data of those that are collections. Skips unknown names.
    pub fn remove(&self, namespaces: &[Namespace]) -> Result<()> {
        self.remove_with(namespaces, None)
    }

    /// Removes all names of a database, and the data of those that are collections.
    pub fn remove_database(&self, name: &str, namespaces: &[Namespace]) -> Result<()> {
        self.remove_with(namespaces, Some(name))
    }

    fn remove_with(&self, namespaces: &[Namespace], database: Option<&str>) -> Result<()> {
        let mut removed_rollups = Vec::new();
        let changing = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let found: Vec<_> = namespaces
            .iter()
            .filter_map(|n| Some((n.clone(), self.get(n)?)))
            .collect();
        let mut batch = WriteBatch::new();
        for (_, entry) in &found {
            let mut notes = match entry {
                CatalogEntry::Collection(dropped) => {
                    let mut notes = self.change_notes(dropped);
                    notes.dropped();
                    notes
                }
                CatalogEntry::View(view) if view.unpacks_buckets() => continue,
                CatalogEntry::View(view) => {
                    let (_, mut notes) = self.notes_of_view(view);
                    notes.view_dropped();
                    notes
                }
            };
            notes.add_to(&mut batch);
        }
        if let Some(database) = database {
            let mut notes = self.notes_of_database();
            notes.dropped_database(database);
            notes.add_to(&mut batch);
        }
        let changes = found.iter();
        let changes = changes.map(|(namespace, _)| (namespace.clone(), None));
        self.commit_batch(batch, changes.collect())?;
        for (_, entry) in found {
            match entry {
                CatalogEntry::Collection(dropped) => self.discard(&dropped)?,
                CatalogEntry::View(view) => removed_rollups.extend(view.rollup.clone()),
            }
        }
        drop(changing);
        self.discard_rollups(&removed_rollups)
    }

    /// Changes the options of a collection. Holders of the old version keep the old options.
    pub fn change_options(
        &self,
        collection: &Collection,
        options: Document,
        timeseries: Option<TimeseriesOptions>,
        mixed_schema: bool,
    ) -> Result<()> {
        let _changing = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.current_or_error(collection)?;
        let changed = Arc::new(now.modified(options, timeseries, mixed_schema));
        let mut notes = self.change_notes(&now);
        notes.modified(
            change_notes::logged_options(&changed).as_ref(),
            doc! {"collectionOptions": change_notes::logged_options(&now)}.as_ref(),
        );
        let namespace = changed.namespace.clone();
        let entry = Some(CatalogEntry::Collection(changed));
        self.commit_changes(vec![(namespace, entry)], notes)
    }

    /// Stores that `collection` holds measurements outside 1970..2038. Durable when it returns.
    pub fn mark_extended_range(&self, collection: &Collection) -> Result<()> {
        if let Some(owner) = self.owner_below(collection) {
            return owner.mark_extended_range(collection);
        }
        if !collection.has_extended_range() {
            let _changing = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
            collection.set_extended_range();
            // The caller's version may be older than a change of options or name.
            if let Some(now) = self.current(collection) {
                now.set_extended_range();
                self.store_collection(now)?;
            }
        }
        Ok(())
    }

    /// Gives each bucket collection that was made before there were summaries or a registry of series a keyspace for them.
    pub fn add_derived_keyspaces(&self) -> Result<()> {
        let _changing = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changed = Vec::new();
        for collection in self.collections() {
            let mut storage = collection.storage;
            let Storage::Buckets {
                summaries,
                registry,
                ..
            } = &mut storage
            else {
                continue;
            };
            if summaries.is_some() && registry.is_some() {
                continue;
            }
            let uuid: String = collection.uuid.iter().map(|b| format!("{b:02x}")).collect();
            for (kind, keyspace) in [("summaries", summaries), ("registry", registry)] {
                if keyspace.is_none() {
                    let name = format!("{kind}/{uuid}");
                    let options = KeyspaceOptions::default();
                    *keyspace = Some(self.engine.create_keyspace(&name, options)?);
                }
            }
            let namespace = collection.namespace.clone();
            let entry = Arc::new(collection.with_storage(storage));
            changed.push((namespace, Some(CatalogEntry::Collection(entry))));
        }
        match changed.is_empty() {
            true => Ok(()),
            false => self.commit_entries(changed),
        }
    }

    /// Stores a collection whose flags have changed.
    fn store_collection(&self, collection: Arc<Collection>) -> Result<()> {
        let namespace = collection.namespace.clone();
        self.commit_entries(vec![(
            namespace,
            Some(CatalogEntry::Collection(collection)),
        )])
    }

    fn check_name_is_free(&self, namespace: &Namespace) -> Result<()> {
        match self.get(namespace) {
            Some(_) => Err(name_taken(namespace)),
            None if self.is_oplog(namespace) => Err(name_taken(namespace)),
            None => self.check_database_case(&namespace.database),
        }
    }

    /// Fails if a database exists whose name differs from `name` only by case.
    pub(crate) fn check_database_case(&self, name: &str) -> Result<()> {
        let other = self.find(&|entries| {
            let mut names = entries.keys().map(|namespace| namespace.database.as_str());
            let same = |other: &str| other.eq_ignore_ascii_case(name) && other != name;
            names.find(|other| same(other)).map(str::to_owned)
        });
        match other {
            None => Ok(()),
            Some(other) => Err(Error::new(
                ErrorCode::DatabaseDifferCase,
                format!(
                    "db already exists with different case already have: [{other}] trying to create [{name}]"
                ),
            )),
        }
    }

    /// Makes changes durable, then visible. `None` removes a name.
    fn commit_entries(&self, changes: Vec<(Namespace, Option<CatalogEntry>)>) -> Result<()> {
        self.commit_batch(WriteBatch::new(), changes)
    }

    /// Like [`Self::commit_entries`], with what the change log is to say about it.
    fn commit_changes(
        &self,
        changes: Vec<(Namespace, Option<CatalogEntry>)>,
        mut notes: ChangeNotes,
    ) -> Result<()> {
        let mut batch = WriteBatch::new();
        notes.add_to(&mut batch);
        self.commit_batch(batch, changes)
    }

    fn commit_batch(
        &self,
        mut batch: WriteBatch,
        changes: Vec<(Namespace, Option<CatalogEntry>)>,
    ) -> Result<()> {
        for (namespace, entry) in &changes {
            let key = encode_key(namespace);
            match entry {
                Some(CatalogEntry::Collection(c)) => {
                    batch.put(self.keyspace, key, c.encode().into_bytes());
                }
                Some(CatalogEntry::View(v)) => {
                    batch.put(self.keyspace, key, v.encode().into_bytes());
                }
                None => batch.delete(self.keyspace, key),
            }
        }
        if batch.is_empty() {
            return Ok(());
        }
        self.engine.commit(batch, Durability::Sync)?;
        self.note_removals(&changes);
        self.attach_to_new_series(&changes);
        self.change_entries(|entries| {
            for (namespace, entry) in changes {
                match entry {
                    Some(entry) => entries.insert(namespace, entry),
                    None => entries.remove(&namespace),
                };
            }
        });
        Ok(())
    }

    /// Changes what is visible, and with it the version.
    fn change_entries(&self, change: impl FnOnce(&mut BTreeMap<Namespace, CatalogEntry>)) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut entries);
        self.version.renew();
    }

    /// Returns the version. Entries that are read after it are current while it does not change.
    pub fn version(&self) -> CatalogVersion {
        self.version.get()
    }

    /// Looks into the entries of a transaction first, then into those that all see.
    fn find<T>(&self, look: &dyn Fn(&BTreeMap<Namespace, CatalogEntry>) -> Option<T>) -> Option<T> {
        let own = self.with_entries(look);
        own.or_else(|| self.below.as_ref()?.find(look))
    }

    fn with_entries<T>(&self, look: impl FnOnce(&BTreeMap<Namespace, CatalogEntry>) -> T) -> T {
        look(&self.entries.read().unwrap_or_else(PoisonError::into_inner))
    }
}

fn collections_in(
    entries: &BTreeMap<Namespace, CatalogEntry>,
) -> impl Iterator<Item = Arc<Collection>> {
    entries.values().filter_map(|entry| match entry {
        CatalogEntry::Collection(found) => Some(found.clone()),
        CatalogEntry::View(_) => None,
    })
}

fn name_taken(namespace: &Namespace) -> Error {
    Error::new(
        ErrorCode::NamespaceExists,
        format!("Collection {namespace} already exists."),
    )
}

/// Returns `database NUL collection`. Names hold no NUL, so keys sort by database, then collection.
fn encode_key(namespace: &Namespace) -> Vec<u8> {
    [
        namespace.database.as_bytes(),
        &[0],
        namespace.collection.as_bytes(),
    ]
    .concat()
}

fn decode_key(key: &[u8]) -> Result<Namespace> {
    std::str::from_utf8(key)
        .ok()
        .and_then(|text| text.split_once('\0'))
        .map(|(database, collection)| Namespace {
            database: database.to_owned(),
            collection: collection.to_owned(),
        })
        .ok_or_else(|| {
            Error::new(
                ErrorCode::DataCorruptionDetected,
                "the catalog has a key that is not a namespace",
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::doc;
    use nilometer_storage::MemoryEngine;

    fn options() -> TimeseriesOptions {
        TimeseriesOptions::parse(doc! { "timeField": "t", "metaField": "m" }.as_ref()).unwrap()
    }

    #[test]
    fn entries_survive_reopening() {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let catalog = Catalog::open(engine.clone()).unwrap();
        let name = |c: &str| Namespace::new("db", c).unwrap();
        let made = catalog
            .create_collection(name("c"), [1; 16], doc! {}, None)
            .unwrap();
        let series = catalog
            .create_timeseries(name("ts"), [2; 16], doc! {}, options())
            .unwrap();
        let view = View {
            namespace: name("v"),
            view_on: "c".into(),
            pipeline: vec![doc! { "$limit": 1 }],
            options: doc! {},
            rollup: None,
        };
        catalog.create_view(view.clone()).unwrap();
        catalog.mark_extended_range(&series).unwrap();
        let error = catalog
            .create_collection(name("v"), [3; 16], doc! {}, None)
            .unwrap_err();
        assert_eq!(error.code, ErrorCode::NamespaceExists);

        let again = Catalog::open(engine.clone()).unwrap();
        assert_eq!(again.collection(&name("c")).unwrap().storage, made.storage);
        let found = again.timeseries(&name("ts")).unwrap();
        assert_eq!(found.timeseries, Some(options()));
        assert!(found.has_extended_range());
        assert!(matches!(again.get(&name("v")), Some(CatalogEntry::View(v)) if *v == view));
        assert_eq!(again.databases(), ["db"]);
        assert_eq!(again.list("db").len(), 4);
        assert_ne!(again.version(), catalog.version());

        again
            .remove(&[name("ts"), name("ts").buckets(), name("absent")])
            .unwrap();
        assert!(
            Catalog::open(engine)
                .unwrap()
                .timeseries(&name("ts"))
                .is_none()
        );
    }

    #[test]
    fn orphaned_keyspaces_are_dropped_at_opening() {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        engine
            .create_keyspace("records/ff", KeyspaceOptions::default())
            .unwrap();
        Catalog::open(engine.clone()).unwrap();
        assert_eq!(engine.keyspaces().len(), 1);
    }
}
