//! A database as a router, and as a partition of one.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, doc};
use nilometer_storage::Engine;

use super::collections::{StoredCollections, generated};
use super::outputs::routed::place_new;
use super::{Database, HostedPartition, SharedParts};
use crate::args::Args;
use crate::catalog::{
    BUCKETS_PREFIX, CONFIG, Catalog, CatalogEntry, Namespace, PLACEMENTS_KEYSPACE,
    TimeseriesOptions, is_internal_database,
};
use crate::error::{Error, ErrorCode, Result};
use crate::operation::{Access, OperationContext, Request};
use crate::parameters::MONGODB_VERSION;
use crate::query::source::{Collections, Outputs, Resolved, RollupSource};
use crate::router::{
    Coordinator, MOVE_COMMAND, NOTE_COMMAND, PLACE_COMMAND, Partition, PendingReply, Placement,
    Placements, RoutedCollection, Router, SETTLE_COMMAND, read_placement,
};
use crate::services::{Environment, Services};
use crate::session::{ClientSession, UserName};

/// Stages that describe a collection in each partition.
const OF_COLLECTIONS: [&str; 3] = ["$collStats", "$indexStats", "$planCacheStats"];

/// The stage that describes all sharded collections.
const DATA_DISTRIBUTION: &str = "$shardedDataDistribution";

/// More documents than such a stage returns: at most one for each index or cached plan.
const STAGE_DOCUMENTS_MAX: i32 = 100_000;

/// Commands that show what is in the catalog, or ask partitions without the version of a placement, which these could refuse.
const OF_THE_CATALOG: [&str; 12] = [
    "collStats",
    "dbStats",
    "explain",
    "getShardVersion",
    "listCollections",
    "listDatabases",
    "listIndexes",
    "refreshRollup",
    "rolesInfo",
    "rollupStatus",
    "usersInfo",
    "validate",
];

/// Collections of `config` that are stored in the router's own catalog once they have something.
const STORED_CONFIG: [&str; 2] = ["actionlog", "settings"];

/// Stages that describe the process, not its data.
const OF_THE_PROCESS: [&str; 3] = ["$currentOp", "$listLocalSessions", "$listSessions"];

impl Database {
    /// Opens a router over `partitions`. Its `engine` has the catalog, the users and the placement of the cluster; the
    /// documents are in the partitions. It answers clients as a MongoDB router does, and refuses what it does not have.
    ///
    /// The same partitions, with the same names, must be there whenever the router is opened. One router changes a
    /// cluster at a time.
    pub fn router(
        engine: Arc<dyn Engine>,
        environment: Environment,
        partitions: Vec<Arc<dyn Partition>>,
    ) -> Result<Self> {
        Self::open_router(engine, environment, None, partitions, None)
    }

    /// Opens one of several routers over the same partitions. If its `engine` refuses writes, another router has the catalog
    /// and changes it: this one reads it there, and sends changes to `coordinator`. Queries spill into the directory `spill`.
    pub fn router_among(
        engine: Arc<dyn Engine>,
        environment: Environment,
        spill: impl AsRef<Path>,
        partitions: Vec<Arc<dyn Partition>>,
        coordinator: Arc<dyn Coordinator>,
    ) -> Result<Self> {
        let spill = Some(Arc::from(spill.as_ref()));
        Self::open_router(engine, environment, spill, partitions, Some(coordinator))
    }

    /// True if a router has created in an engine all that one needs which reads the catalog there.
    pub fn has_router_catalog(engine: &dyn Engine) -> bool {
        let all = engine.keyspaces();
        // The last one that the router with the catalog creates.
        all.iter().any(|known| known.name == PLACEMENTS_KEYSPACE)
    }

    fn open_router(
        engine: Arc<dyn Engine>,
        environment: Environment,
        spill: Option<Arc<Path>>,
        partitions: Vec<Arc<dyn Partition>>,
        coordinator: Option<Arc<dyn Coordinator>>,
    ) -> Result<Self> {
        if environment.replica_set.is_some() {
            return Err(Error::bad_value("a router is no member of a replica set"));
        }
        let database = Self::assemble(engine, SharedParts::new(environment), spill)?;
        let (engine, ids) = (database.engine.clone(), database.services.ids.clone());
        let options = options_in(&database.catalog);
        let router = Router::open(partitions, coordinator, engine, ids, options)?;
        let placements = router.shown();
        Ok(database.routing_by(Arc::new(router), placements))
    }

    /// Opens a router in the place of this one, over an engine with another state of the catalog: see
    /// [`Self::successor`].
    pub fn router_successor(&self, engine: Arc<dyn Engine>) -> Result<Arc<Self>> {
        let Some(router) = &self.router else {
            return Err(Error::bad_value("the database is no router"));
        };
        let mut successor = self.successor(engine)?;
        let options = options_in(&successor.catalog);
        let placements = router.read_again(successor.engine.clone(), options)?;
        successor.newest = Arc::clone(&self.newest);
        let successor = successor.routing_by(Arc::clone(router), Arc::clone(&placements));
        let successor = Arc::new(successor);
        // Who sees the placements sees the catalog that they belong to.
        self.newest.set(&successor);
        router.show(placements);
        Ok(successor)
    }

    /// Returns the router that has taken the place of this one, as the newest catalog is; `None` if there is none. A command that began
    /// on this one uses it for what it asks of partitions after a placement has changed.
    pub(crate) fn newest_router(&self) -> Option<Arc<Self>> {
        let has_successor = self.has_successor.load(Ordering::Acquire);
        has_successor.then(|| self.newest.get()).flatten()
    }

    /// Makes a router of a database that has the catalog, by the placements in it.
    fn routing_by(mut self, router: Arc<Router>, placements: Arc<Placements>) -> Self {
        self.query.collections = Arc::new(RoutedCollections {
            placements,
            router: Arc::clone(&router),
            services: self.services.clone(),
            own: self.collections.clone(),
        });
        self.router = Some(router);
        self
    }

    /// Runs a command of another router of the cluster, which has checked the privileges of its client. Fails with code 10107
    /// if this router does not have the catalog.
    pub fn run_for_router(&self, request: &Request) -> Document {
        let outcome = match &self.router {
            Some(router) if !self.is_view() => match request.command_name() {
                SETTLE_COMMAND => self.settle_for(router, request),
                PLACE_COMMAND => self.place(router, request),
                NOTE_COMMAND => {
                    let noted = router.note_for(request, &self.of_router());
                    noted.map(|()| doc! {"ok": 1.0})
                }
                MOVE_COMMAND => router.move_document_for(request, &self.of_router()),
                _ => Ok(self.run_command(&mut ClientSession::embedded(), request)),
            },
            _ => Err(Error::new(
                ErrorCode::NotWritablePrimary,
                "this router does not have the catalog of the cluster",
            )),
        };
        Self::reply_of(outcome)
    }

    /// Returns the context of what another router has asked for.
    fn of_router(&self) -> OperationContext {
        OperationContext::internal(self.services.clock.clone(), "admin")
    }

    /// Gives a placement the version that another router was asked for.
    fn settle_for(&self, router: &Router, request: &Request) -> Result<Document> {
        let wanted = request.body.get(SETTLE_COMMAND).as_document();
        let wanted = wanted.ok_or_else(|| Error::bad_value("a placement is missing"))?;
        router.settle_here(&read_placement(wanted)?, &self.of_router())?;
        Ok(doc! {"ok": 1.0})
    }

    /// Creates the target of an `$out` of another router.
    fn place(&self, router: &Router, request: &Request) -> Result<Document> {
        let args = Args::new(PLACE_COMMAND, request.body.as_ref());
        let name = args.required_string(PLACE_COMMAND)?;
        let (database, collection) = name.split_once('.').unwrap_or_default();
        let target = Namespace::new(database, collection)?;
        let partition = router.number_of(args.required_string("partition")?)?;
        let timeseries = args.document("timeseries")?;
        let timeseries = timeseries.map(TimeseriesOptions::parse).transpose()?;
        let id = match args.value("contents") {
            ValueRef::Binary { bytes, .. } => bytes,
            _ => return Err(Error::bad_value("the contents are missing")),
        };
        let by = (&*self.collections, router);
        place_new(by, &target, timeseries.as_ref(), (partition, id))?;
        Ok(doc! {"ok": 1.0})
    }

    /// True if a router that reads the catalog of another should look for a newer one before it runs a command: the command
    /// is about the catalog, or names a collection that is not in it, or is there without a placement: then it was being
    /// created.
    pub fn asks_for_new_catalog(&self, request: &Request) -> bool {
        let Some(router) = self.router.as_ref().filter(|_| self.is_view()) else {
            return false;
        };
        let name = request.command_name();
        let is_of_catalog = OF_THE_CATALOG.contains(&name);
        if is_of_catalog || writes_output(request) || describes_collection(request) {
            return true;
        }
        let named = match name {
            "delete" | "findAndModify" | "findandmodify" | "update" => Some(request.body.as_ref()),
            _ if Self::access_of(request) == Access::Read => Some(request.body.as_ref()),
            _ => None,
        };
        let collection = named.and_then(|command| command.iter().next()?.value().as_str());
        let database = request.body.get("$db").as_str();
        match (database, collection) {
            (Some(database), Some(collection)) if name != "getMore" => {
                let namespace = Namespace::new(database, collection);
                namespace.is_ok_and(|namespace| match self.catalog.get(&namespace) {
                    None => true,
                    Some(CatalogEntry::View(view)) if !view.is_timeseries() => {
                        let rollup = view.rollup.as_ref();
                        rollup.is_some_and(|rollup| !self.knows_series(database, &rollup.source))
                    }
                    Some(_) => router.placement(&namespace).is_none(),
                })
            }
            _ => false,
        }
    }

    /// True if the router knows where the measurements of a rollup's source are.
    fn knows_series(&self, database: &str, source: &str) -> bool {
        let chain = self.catalog.rollup_chain(database, source);
        let series = chain.and_then(|(_, bottom)| bottom.namespace.timeseries_view());
        let router = self.router.as_ref();
        series.is_some_and(|series| router.is_some_and(|r| r.placement(&series).is_some()))
    }

    /// Returns the router inside; `None` on a server that has its documents itself.
    pub(crate) fn as_router(&self) -> Option<&Arc<Router>> {
        self.router.as_ref()
    }
}

/// The last of the routers of a process that took each other's place.
#[derive(Default)]
pub(super) struct NewestRouter(RwLock<Weak<Database>>);

impl NewestRouter {
    fn set(&self, newest: &Arc<Database>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(newest);
    }

    fn get(&self) -> Option<Arc<Database>> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .upgrade()
    }
}

/// True if the last stage of an `aggregate` writes a collection, whose options matter.
fn writes_output(request: &Request) -> bool {
    let pipeline = request.body.get("pipeline").as_array();
    let last = pipeline.and_then(|stages| stages.iter().last()?.as_document());
    let name = last.and_then(|last| last.iter().next());
    name.is_some_and(|stage| ["$merge", "$out"].contains(&stage.name()))
}

/// True if the first stage of an `aggregate` asks the partitions of a collection for what they know of it.
fn describes_collection(request: &Request) -> bool {
    let pipeline = request.body.get("pipeline").as_array();
    let first = pipeline.and_then(|stages| stages.iter().next()?.as_document());
    let name = first.and_then(|first| first.iter().next());
    name.is_some_and(|stage| {
        OF_COLLECTIONS.contains(&stage.name()) || stage.name() == DATA_DISTRIBUTION
    })
}

/// Returns what finds the options of a time series.
fn options_in(catalog: &Arc<Catalog>) -> impl Fn(&Namespace) -> Option<TimeseriesOptions> {
    let catalog = Arc::clone(catalog);
    move |namespace| {
        let collection = catalog.timeseries(namespace);
        collection.and_then(|collection| collection.timeseries.clone())
    }
}

/// The collections of a cluster: the router's own catalog says what there is, partitions have the documents.
pub(super) struct RoutedCollections {
    pub(super) router: Arc<Router>,
    /// Those of the router's own catalog. It may have newer ones than the catalog here.
    placements: Arc<Placements>,
    services: Arc<Services>,
    /// Those of the router's own catalog.
    pub(super) own: Arc<StoredCollections>,
}

impl Collections for RoutedCollections {
    fn resolve(&self, db: &str, coll: &str) -> Result<Resolved> {
        if db == CONFIG && STORED_CONFIG.contains(&coll) {
            match self.own.resolve(db, coll)? {
                Resolved::Absent => {}
                stored => return Ok(stored),
            }
        }
        if db == CONFIG
            && let Some(documents) = self.router.config_documents(coll, MONGODB_VERSION)
        {
            return Ok(generated(documents));
        }
        if is_internal_database(db) {
            return self.own.resolve(db, coll);
        }
        if coll.starts_with(BUCKETS_PREFIX) {
            return Err(Error::new(
                ErrorCode::CommandNotSupported,
                "buckets are not read as documents on a router",
            ));
        }
        let own = self.own.resolve(db, coll)?;
        let namespace = match own {
            Resolved::Ordinary(_) | Resolved::TimeSeries(_) | Resolved::Absent => {
                let Ok(namespace) = Namespace::new(db, coll) else {
                    return Ok(own);
                };
                namespace
            }
            Resolved::Rollup(rollup) => return self.rollup(Namespace::new(db, coll)?, rollup),
            _ => return Ok(own),
        };
        // What only the process has, such as `system.profile`, is not placed.
        Ok(match self.placement(&namespace)? {
            None => own,
            Some(placement) => {
                let router = Arc::clone(&self.router);
                Resolved::Partitioned(Arc::new(RoutedCollection {
                    router,
                    namespace,
                    series: None,
                    placement,
                }))
            }
        })
    }

    fn find_by_id(&self, db: &str, coll: &str, id: ValueRef<'_>) -> Result<Option<Document>> {
        match is_internal_database(db) {
            true => self.own.find_by_id(db, coll, id),
            false => Ok(None),
        }
    }

    fn outputs(&self) -> Option<&dyn Outputs> {
        Some(self)
    }

    fn introspect(
        &self,
        db: &str,
        coll: Option<&str>,
        stage: &str,
        argument: DocRef<'_>,
        user: Option<&UserName>,
    ) -> Result<Vec<Document>> {
        if OF_THE_PROCESS.contains(&stage) {
            return self.own.introspect(db, coll, stage, argument, user);
        }
        if let Some(coll) = coll.filter(|_| OF_COLLECTIONS.contains(&stage)) {
            let namespace = Namespace::new(db, coll)?;
            return match self.router.placement(&namespace) {
                Some(placement) => self.of_partitions(&namespace, &placement, stage, argument),
                None => self.own.introspect(db, Some(coll), stage, argument, user),
            };
        }
        if stage == DATA_DISTRIBUTION {
            return match (db, coll, argument.is_empty()) {
                ("admin", None, true) => self.data_distribution(),
                _ => Err(Error::new(
                    ErrorCode::InvalidNamespace,
                    "$shardedDataDistribution: {} must be run against the 'admin' database with {aggregate: 1}",
                )),
            };
        }
        Err(Error::new(
            ErrorCode::CommandNotSupported,
            format!("{stage} is not supported on a router"),
        ))
    }
}

impl RoutedCollections {
    /// Returns where the documents of a collection are, by the state of the catalog that has its options; by a newer one if that has no
    /// placement. A partition refuses one that was replaced.
    fn placement(&self, namespace: &Namespace) -> Result<Option<Arc<Placement>>> {
        match self.placements.now().get(namespace) {
            Some(known) => Ok(Some(Arc::clone(known))),
            None => self.router.newest_placement(namespace),
        }
    }

    /// Returns the bins of a rollup: each partition has those of its measurements.
    fn rollup(&self, namespace: Namespace, rollup: Arc<RollupSource>) -> Result<Resolved> {
        let (_, buckets) = rollup.series_namespace.split_once('.').unwrap_or_default();
        let series = Namespace {
            database: namespace.database.clone(),
            collection: buckets
                .strip_prefix(BUCKETS_PREFIX)
                .unwrap_or(buckets)
                .to_owned(),
        };
        let Some(placement) = self.placement(&series)? else {
            // It is about to be dropped, or created.
            return Ok(Resolved::Absent);
        };
        let source = RoutedCollection {
            router: Arc::clone(&self.router),
            namespace,
            series: Some((series, rollup.definitions())),
            placement,
        };
        Ok(Resolved::PartitionedRollup(rollup, Arc::new(source)))
    }

    /// Returns for each sharded collection what each partition has of it. Nothing is orphaned: a bucket stays where it is, and
    /// queries ask all partitions that may have one.
    fn data_distribution(&self) -> Result<Vec<Document>> {
        let mut out = Vec::new();
        for (namespace, placement) in &*self.router.placements() {
            let Some(sharding) = &placement.sharding else {
                continue;
            };
            let database = &namespace.database;
            let operation = OperationContext::internal(self.services.clock.clone(), database);
            let partitions = placement.partitions(self.router.count());
            let asked = doc! {"collStats": namespace.collection.as_str()};
            let replies = self
                .router
                .ask_all(&partitions, database, &asked, &operation)?;
            let describe = |(partition, reply): (usize, Document)| {
                let series = reply.get("timeseries").as_document();
                let buckets = match series {
                    Some(series) => series.get("bucketCount").as_exact_i64(),
                    None => reply.get("count").as_exact_i64(),
                };
                let bytes = reply.get("size").as_exact_i64();
                Value::from(doc! {
                    "shardName": self.router.name(partition), "numOrphanedDocs": 0_i64,
                    "numOwnedDocuments": buckets.unwrap_or(0), "orphanedSizeBytes": 0_i64,
                    "ownedSizeBytes": bytes.unwrap_or(0),
                })
            };
            let shards = partitions.into_iter().zip(replies).map(describe);
            out.push(doc! {
                "ns": sharding.key.namespace(namespace), "shards": shards.collect::<Vec<_>>(),
            });
        }
        Ok(out)
    }

    /// Returns what a stage returns in each partition of a collection, with the name of the partition.
    fn of_partitions(
        &self,
        namespace: &Namespace,
        placement: &Placement,
        stage: &str,
        argument: DocRef<'_>,
    ) -> Result<Vec<Document>> {
        let database = &namespace.database;
        let operation = OperationContext::internal(self.services.clock.clone(), database);
        let mut pipeline = DocumentBuilder::new();
        pipeline.append(stage, argument.to_document());
        let pipeline = vec![Value::from(pipeline.finish())];
        let aggregate = doc! {
            "aggregate": namespace.collection.as_str(), "pipeline": pipeline,
            "cursor": doc! {"batchSize": STAGE_DOCUMENTS_MAX},
        };
        let partitions = placement.partitions(self.router.count());
        let replies = self
            .router
            .ask_all(&partitions, database, &aggregate, &operation)?;
        let mut out = Vec::new();
        for (partition, reply) in partitions.into_iter().zip(replies) {
            let cursor = reply.get("cursor").as_document();
            let batch = cursor.and_then(|cursor| cursor.get("firstBatch").as_array());
            let documents = batch.iter().flat_map(|batch| batch.iter());
            for document in documents.filter_map(ValueRef::as_document) {
                let mut named = DocumentBuilder::extending(with_bucket_counts(document));
                named.append("shard", self.router.name(partition));
                out.push(named.finish());
            }
        }
        Ok(out)
    }
}

/// Returns what `$collStats` says of a collection in one partition, with the number and the mean size of the buckets of a time
/// series as those of documents: `getShardDistribution()` of mongosh computes with these.
fn with_bucket_counts(document: DocRef<'_>) -> Document {
    let storage = document.get("storageStats").as_document();
    let series = storage.and_then(|storage| storage.get("timeseries").as_document());
    let (Some(storage), Some(series)) = (storage, series) else {
        return document.to_document();
    };
    let mut counted = DocumentBuilder::extending(storage.to_document());
    for (name, of) in [("count", "bucketCount"), ("avgObjSize", "avgBucketSize")] {
        if storage.get(name).is_missing() {
            counted.append(name, series.get(of).as_exact_i64().unwrap_or(0));
        }
    }
    let counted = counted.finish();
    let mut out = DocumentBuilder::new();
    for field in document {
        match field.name() {
            "storageStats" => out.append("storageStats", counted.clone()),
            _ => out.append_element(field),
        };
    }
    out.finish()
}

/// A database of this process as a partition of a router: for tests, and for programs that embed several.
///
/// Each request runs on a thread of its own.
pub struct LocalPartition {
    name: String,
    hosted: Arc<HostedPartition>,
}

impl LocalPartition {
    /// Calls a database the partition `name`. Several routers may have it.
    pub fn new(name: &str, hosted: Arc<HostedPartition>) -> Self {
        Self {
            name: name.to_owned(),
            hosted,
        }
    }
}

impl Partition for LocalPartition {
    fn name(&self) -> &str {
        &self.name
    }

    fn host(&self) -> String {
        let host = &self.hosted.database().services.host;
        format!("{}:{}", host.hostname, host.port)
    }

    fn send(&self, request: Request) -> Box<dyn PendingReply> {
        let (sender, receiver) = sync_channel(1);
        let hosted = Arc::clone(&self.hosted);
        let run = move || {
            let reply = hosted.run(&request);
            // The router may have stopped waiting.
            let _ = sender.send(reply);
        };
        let thread = std::thread::Builder::new().name("partition".to_owned());
        // Without a thread the sender is dropped, and the reply is an error.
        let _ = thread.spawn(run);
        Box::new(LocalReply(receiver))
    }
}

struct LocalReply(Receiver<Document>);

impl PendingReply for LocalReply {
    fn wait(&mut self, at_most: Duration) -> Result<Option<Document>> {
        match self.0.recv_timeout(at_most) {
            Ok(reply) => Ok(Some(reply)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Error::new(
                ErrorCode::InternalError,
                "the partition did not run the command",
            )),
        }
    }
}
