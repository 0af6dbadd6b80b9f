//! Salvage: copies the readable data of a damaged directory into a new database.
//!
//! ```text
//! source ──copy──> working copy ──read past damage──> documents, buckets ──insert──> target
//! ```
//!
//! The source is only read. From a copy of it, the engine of `nilometer-storage` returns all intact
//! entries; their documents and bucket documents are inserted into a new database, with the options and
//! indexes of the catalog. So all derived data is rebuilt: indexes, the series index, counts.
//!
//! Losses are listed: per collection the number of documents, and the buckets that an index still names.
//! Salvage requires the catalog and the list of keyspaces.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nilometer_bson::{DocRef, Document, DocumentBuilder, ObjectId, Value, doc};
use nilometer_storage::{Direction, Engine, KeyspaceId, LongKeyEngine, LsmOptions, SalvageEngine};

use crate::catalog::{Catalog, CatalogEntry, Collection, Namespace, Storage, View};
use crate::client::check;
use crate::database::Database;
use crate::database::indexes::{IndexForm, listed_indexes};
use crate::error::{Error, ErrorCode, Result};
use crate::operation::{DocumentSequence, Request};
use crate::session::ClientSession;
use crate::timeseries::{BucketLimits, BucketRange, Timeseries};
use crate::write::Records;

/// Bytes of documents per insert.
const BATCH_BYTES: usize = 8 * 1024 * 1024;

/// Documents per insert.
const BATCH_DOCUMENTS: usize = 1000;

/// The profile of operations, which is not user data.
const PROFILE: &str = "system.profile";

/// Most losses described per collection; all are counted.
const LOSSES_LISTED_MAX: usize = 100;

/// The result for one collection.
#[derive(Clone, Debug, Default)]
pub struct SalvagedCollection {
    /// The namespace; for time series that of the bucket collection.
    pub namespace: String,
    /// True if buckets are counted.
    pub is_bucketed: bool,
    /// Documents or buckets in the target.
    pub kept: u64,
    /// Lost ones, as far as an index still names them.
    pub lost: u64,
    /// Descriptions of losses, and of indexes that could not be rebuilt.
    pub losses: Vec<String>,
}

impl SalvagedCollection {
    fn lose(&mut self, what: String) {
        if self.losses.len() < LOSSES_LISTED_MAX {
            self.losses.push(what);
        }
    }
}

/// The result of a salvage.
#[derive(Clone, Debug, Default)]
pub struct SalvageReport {
    /// The collections.
    pub collections: Vec<SalvagedCollection>,
    /// Users in the target.
    pub users: u64,
    /// User-defined roles in the target.
    pub roles: u64,
    /// Lost users and roles.
    pub lost_users_and_roles: Vec<String>,
    /// Damage found, with its place in the database.
    pub damage: Vec<String>,
}

impl SalvageReport {
    /// True if nothing was lost.
    pub fn is_whole(&self) -> bool {
        let whole = |c: &SalvagedCollection| c.lost == 0 && c.losses.is_empty();
        self.damage.is_empty()
            && self.lost_users_and_roles.is_empty()
            && self.collections.iter().all(whole)
    }
}

/// Salvages the database in `source`, which is not open, into the empty or missing directory `target`. A
/// working copy exists beside the target meanwhile, so the disk must hold both.
pub fn salvage(source: &Path, target: &Path) -> Result<SalvageReport> {
    let work = working_copy(target)?;
    if work.exists() {
        return Err(Error::bad_value(format!(
            "{} exists: remove it if no other salvage runs",
            work.display()
        )));
    }
    let copied = nilometer_storage::copy_database(source, &work, &mut |_, _| {});
    let salvaged = copied
        .map_err(Error::from)
        .and_then(|()| salvage_copy(&work, target));
    // This function created it.
    let removed = std::fs::remove_dir_all(&work);
    let salvaged = salvaged?;
    removed
        .map_err(|e| Error::new(ErrorCode::InternalError, format!("{}: {e}", work.display())))?;
    Ok(salvaged)
}

/// Returns the path of the working copy beside `target`.
fn working_copy(target: &Path) -> Result<PathBuf> {
    let name = target
        .file_name()
        .ok_or_else(|| Error::bad_value(format!("{} is not a directory name", target.display())))?;
    let mut name = name.to_owned();
    name.push(".salvage");
    Ok(target.with_file_name(name))
}

fn salvage_copy(work: &Path, target: &Path) -> Result<SalvageReport> {
    let engine = Arc::new(SalvageEngine::open(work, LsmOptions::default())?);
    let database = Database::open_with(target, super::quiet_environment()?)?;
    let source = DamagedDatabase::open(LongKeyEngine::over(engine.clone())?)?;
    let mut salvaged = SalvageReport::default();
    let mut views = Vec::new();
    for db in source.catalog.databases() {
        for (namespace, entry) in source.catalog.list(&db) {
            match entry {
                // The profiler creates it again.
                CatalogEntry::Collection(_) if namespace.collection == PROFILE => {}
                CatalogEntry::Collection(collection) => {
                    salvaged
                        .collections
                        .push(source.copy(&collection, &database)?);
                }
                // It is created with its buckets.
                CatalogEntry::View(view) if view.is_timeseries() => {}
                CatalogEntry::View(view) => views.push((namespace, view)),
            }
        }
    }
    // A rollup is created after what it stands on.
    views.sort_by_key(|(namespace, view)| {
        let rollup = view.rollup.as_ref();
        let chain = rollup.and_then(|rollup| {
            let catalog = &source.catalog;
            catalog.rollup_chain(&namespace.database, &rollup.source)
        });
        chain.map_or(0, |(below, _)| below.len())
    });
    for (namespace, view) in views {
        if let Err(error) = create_view(&database, &namespace, &view) {
            salvaged
                .damage
                .push(format!("the view {namespace}: {error}"));
        }
    }
    let authority = database.authority();
    (
        salvaged.users,
        salvaged.roles,
        salvaged.lost_users_and_roles,
    ) = authority.salvage(&source.catalog)?;
    let mut names = source.keyspace_names();
    for companion in engine.keyspaces() {
        let of = companion.options.long_keys_of;
        if let Some(of) = of.and_then(|of| names.get(&of).cloned()) {
            names.insert(companion.id, format!("long keys of {of}"));
        }
    }
    for loss in engine.losses() {
        let place = match loss.keyspace {
            None => "the log".to_owned(),
            Some(id) => names
                .get(&id)
                .cloned()
                .unwrap_or_else(|| format!("keyspace {}", id.0)),
        };
        salvaged.damage.push(format!("{place}: {}", loss.what));
    }
    database.settle()?;
    database.close()?;
    Ok(salvaged)
}

fn create_view(database: &Database, namespace: &Namespace, view: &View) -> Result<()> {
    let mut command = DocumentBuilder::new();
    command.append("create", namespace.collection.as_str());
    command.append_all(view.definition().as_ref());
    database
        .call(&namespace.database, command.finish())
        .map(drop)
}

/// The damaged database with the parts needed to read it, without threads that write.
struct DamagedDatabase {
    engine: Arc<dyn Engine>,
    catalog: Arc<Catalog>,
    records: Records,
    timeseries: Arc<Timeseries>,
}

impl DamagedDatabase {
    fn open(engine: Arc<dyn Engine>) -> Result<Self> {
        let catalog = Arc::new(Catalog::open(engine.clone())?);
        let timeseries =
            Timeseries::new(engine.clone(), catalog.clone(), BucketLimits::default(), 0)?;
        Ok(Self {
            records: Records::new(engine.clone(), catalog.clone()),
            timeseries: Arc::new(timeseries),
            engine,
            catalog,
        })
    }

    /// Returns a description of each keyspace.
    fn keyspace_names(&self) -> BTreeMap<KeyspaceId, String> {
        let catalog = "the catalog of collections, users and roles".to_owned();
        let mut names = BTreeMap::from([(self.catalog.keyspace(), catalog)]);
        for collection in self.catalog.collections() {
            let namespace = &collection.namespace;
            for index in collection.indexes.all().iter() {
                let name = format!("the index {} of {namespace}, rebuilt", index.spec.name);
                names.insert(index.keyspace, name);
            }
            let parts = match collection.storage {
                Storage::Records { records, id_index } => vec![
                    (Some(records), "the documents"),
                    (id_index, "the index on _id, rebuilt,"),
                ],
                Storage::Buckets {
                    open,
                    sealed,
                    tail,
                    series,
                    summaries,
                    registry,
                } => vec![
                    (summaries, "the summaries of buckets, made again,"),
                    (registry, "the registry of series, made again,"),
                    (Some(open), "the open buckets"),
                    (Some(sealed), "the sealed buckets"),
                    (Some(tail), "the newest measurements"),
                    (Some(series), "the series index, rebuilt,"),
                ],
            };
            for (id, what) in parts {
                names.extend(id.map(|id| (id, format!("{what} of {namespace}"))));
            }
        }
        names
    }

    /// Creates the collection in `target` and copies its readable documents.
    fn copy(&self, collection: &Arc<Collection>, target: &Database) -> Result<SalvagedCollection> {
        let mut salvaged = SalvagedCollection {
            namespace: collection.namespace.to_string(),
            is_bucketed: collection.timeseries.is_some(),
            ..SalvagedCollection::default()
        };
        if !self.has_data(collection) {
            salvaged.lose("it has no data: it was dropped, and the log lost that".to_owned());
            return Ok(salvaged);
        }
        let view = collection.namespace.timeseries_view();
        let view = view.filter(|view| self.catalog.timeseries(view).is_some());
        if let Err(error) = create(target, collection, view.as_ref()) {
            salvaged.lose(format!("it cannot be created: {error}"));
            return Ok(salvaged);
        }
        let mut inserter = Inserter::new(target, &collection.namespace);
        match collection.storage {
            Storage::Records { records, id_index } => {
                for record in self.records.scan(collection, false, None)? {
                    match record {
                        Ok((_, document)) => inserter.add(document.as_ref(), &mut salvaged)?,
                        Err(error) => salvaged.lose(format!("a document: {error}")),
                    }
                }
                inserter.flush(&mut salvaged)?;
                let named = super::count_entries(&*self.engine, id_index.unwrap_or(records))?;
                salvaged.lost = named.saturating_sub(salvaged.kept);
            }
            Storage::Buckets { series, .. } => {
                let mut seen = HashSet::new();
                for bucket in self
                    .timeseries
                    .reader
                    .scan(collection, BucketRange::default())?
                {
                    let document = bucket.and_then(|b| Ok((b.id().0, b.to_document()?)));
                    match document {
                        Ok((id, document)) => {
                            seen.insert(id);
                            inserter.add(document.as_ref(), &mut salvaged)?;
                        }
                        Err(error) => salvaged.lose(error.to_string()),
                    }
                }
                inserter.flush(&mut salvaged)?;
                self.name_lost_buckets(series, &seen, &mut salvaged)?;
            }
        }
        for index in listed_indexes(collection, IndexForm::Stored) {
            if let Err(error) =
                create_index(target, &collection.namespace, index.spec.to_document())
            {
                salvaged.lose(format!("the index {}: {error}", index.spec.name));
            }
        }
        Ok(salvaged)
    }

    /// False if the keyspaces of a collection were dropped, and the record that removes it from the catalog is lost.
    fn has_data(&self, collection: &Collection) -> bool {
        let stored: HashSet<KeyspaceId> = self.engine.keyspaces().iter().map(|k| k.id).collect();
        match collection.storage {
            Storage::Records { records, id_index } => {
                stored.contains(&records) && id_index.is_none_or(|id| stored.contains(&id))
            }
            Storage::Buckets {
                open,
                sealed,
                tail,
                series,
                ..
            } => [open, sealed, tail, series]
                .iter()
                .all(|id| stored.contains(id)),
        }
    }

    /// Adds the buckets that are in the series index but were not readable to the losses.
    fn name_lost_buckets(
        &self,
        series: KeyspaceId,
        seen: &HashSet<[u8; 12]>,
        salvaged: &mut SalvagedCollection,
    ) -> Result<()> {
        let mut lost = HashSet::new();
        let scan = self
            .engine
            .snapshot()?
            .scan(series, &[], None, Direction::Forward)?;
        for item in scan {
            let (key, _) = item?;
            let Some(id) = key.last_chunk::<12>() else {
                continue;
            };
            if !seen.contains(id) && lost.insert(*id) {
                salvaged.lose(format!("bucket {}", ObjectId(*id).to_hex()));
            }
        }
        salvaged.lost += u64::try_from(lost.len()).unwrap_or(u64::MAX);
        Ok(())
    }
}

/// Options derived from others, not passed to `create`.
const DERIVED_OPTIONS: [&str; 2] = ["validator", "clusteredIndex"];

/// Creates a collection; with `view`, a time-series collection.
fn create(target: &Database, collection: &Collection, view: Option<&Namespace>) -> Result<()> {
    let namespace = &collection.namespace;
    let name = view.unwrap_or(namespace).collection.as_str();
    let mut command = DocumentBuilder::new();
    command.append("create", name);
    for element in collection.listed_options().iter() {
        if view.is_none() || !DERIVED_OPTIONS.contains(&element.name()) {
            command.append_element(element);
        }
    }
    target.call(&namespace.database, command.finish())?;
    if collection.may_have_mixed_schema() {
        let mixed = doc! { "collMod": name, "timeseriesBucketsMayHaveMixedSchemaData": true };
        target.call(&namespace.database, mixed)?;
    }
    Ok(())
}

fn create_index(target: &Database, namespace: &Namespace, spec: Document) -> Result<()> {
    let indexes: Vec<Value> = vec![spec.into()];
    let command = doc! { "createIndexes": namespace.collection.as_str(), "indexes": indexes };
    target.call(&namespace.database, command).map(drop)
}

/// Inserts documents unchanged, in batches.
struct Inserter<'t> {
    target: &'t Database,
    namespace: &'t Namespace,
    session: ClientSession,
    bytes: Vec<u8>,
    count: usize,
}

impl<'t> Inserter<'t> {
    fn new(target: &'t Database, namespace: &'t Namespace) -> Self {
        Self {
            target,
            namespace,
            session: ClientSession::embedded(),
            bytes: Vec::new(),
            count: 0,
        }
    }

    fn add(&mut self, document: DocRef<'_>, salvaged: &mut SalvagedCollection) -> Result<()> {
        self.bytes.extend_from_slice(document.as_bytes());
        self.count += 1;
        if self.bytes.len() >= BATCH_BYTES || self.count >= BATCH_DOCUMENTS {
            self.flush(salvaged)?;
        }
        Ok(())
    }

    fn flush(&mut self, salvaged: &mut SalvagedCollection) -> Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        let bytes = Arc::new(std::mem::take(&mut self.bytes));
        let span = 0..bytes.len();
        let documents = DocumentSequence::new("documents".to_owned(), bytes, span);
        let documents = documents.ok_or_else(|| Error::bad_value("not BSON documents"))?;
        let request = Request {
            body: doc! {
                "insert": self.namespace.collection.as_str(),
                "ordered": false,
                "bypassDocumentValidation": true,
                "bypassEmptyTsReplacement": true,
                "$db": self.namespace.database.as_str(),
            },
            sequences: vec![documents],
            routed: None,
        };
        let reply = self.target.run_command(&mut self.session, &request);
        let inserted = reply.get("n").as_exact_i64();
        salvaged.kept += inserted.and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
        match reply.get("writeErrors").as_array() {
            Some(errors) => {
                for error in errors.iter().filter_map(|e| e.as_document()) {
                    let text = error.get("errmsg").as_str().unwrap_or_default();
                    salvaged.lost += 1;
                    salvaged.lose(text.to_owned());
                }
            }
            None => check(&reply)?,
        }
        self.count = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_storage::MemoryEngine;

    #[test]
    fn a_collection_whose_removal_was_lost_is_reported_and_the_rest_is_saved() {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let catalog = Catalog::open(engine.clone()).unwrap();
        let create = |name: &str, uuid: u8| {
            let namespace = Namespace::new("db", name).unwrap();
            catalog
                .create_collection(namespace, [uuid; 16], doc! {}, None)
                .unwrap()
        };
        let (gone, there) = (create("gone", 1), create("there", 2));
        for keyspace in gone.keyspaces() {
            engine.drop_keyspace(keyspace).unwrap();
        }
        let source = DamagedDatabase::open(engine).unwrap();
        let target = Database::in_memory().unwrap();
        let report = source.copy(&gone, &target).unwrap();
        assert_eq!(report.losses.len(), 1, "{:?}", report.losses);
        let report = source.copy(&there, &target).unwrap();
        assert!(report.losses.is_empty(), "{:?}", report.losses);
    }
}
