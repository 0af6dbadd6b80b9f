//! The database as a value: opened by an embedding program or by the server.
//!
//! Opening it connects the modules: engine, catalog, time series, records, cursors. Closing or dropping it
//! stops its threads and releases the directory.

mod buckets;
mod cluster_parameters;
mod collections;
mod hosted;
mod index_builds;
#[cfg(test)]
mod index_tests;
pub(crate) mod indexes;
mod list_catalog;
mod memory;
pub mod offline;
mod oplog;
mod outputs;
mod records;
pub(crate) mod rollups;
mod routed;
pub(crate) mod snapshots;
mod statistics;
mod system_collections;
pub(crate) mod transactions;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nilometer_bson::Document;
pub use nilometer_storage::BackupSource;
use nilometer_storage::{Engine, LogCut, LongKeyEngine, LsmEngine, LsmOptions, MemoryEngine};
use tracing::{info, warn};

use self::rollups::RollupRefresher;
use crate::auth::Authority;
use crate::background::disk::DiskMonitor;
use crate::background::{Background, BackgroundContext};
use crate::catalog::{Catalog, CatalogVersion, Collection};
use crate::change_log::{self, ChangeLog, LoggedEngine};
use crate::commands;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::{Access, Request};
use crate::query::QueryServices;
use crate::query::collector::BatchCollector;
use crate::query::cursor::{CursorLimits, CursorRegistry};
use crate::query::exec::ExecLimits;
use crate::query::exec::memory::MemoryPool;
use crate::query::planner::access::cache::PlanCache;
use crate::retryable_writes::RetryableWrites;
use crate::router::Router;
use crate::services::{Environment, OperationEntry, Services};
use crate::session::{ClientSession, SessionId, UserName};
use crate::timeseries::{BucketLimits, Timeseries};
use crate::validation::Validation;
use crate::write::Records;

pub use buckets::PREFETCH_MAX;
pub(crate) use cluster_parameters::{CHANGE_STREAM_OPTIONS, CLUSTER_PARAMETERS};
pub(crate) use collections::{StoredCollections, check_collation_of_source};
pub(crate) use hosted::AcceptanceMark;
pub use hosted::HostedPartition;
use index_builds::{IndexBuilder, ResumedBuilds};
use memory::MemoryBudgets;
pub(crate) use outputs::routed::{clear, create_anew, dropped, place, placed};
pub use routed::LocalPartition;
use routed::NewestRouter;
use snapshots::Snapshots;
pub(crate) use system_collections::ADMIN;
use transactions::Transactions;

/// The folder in the database directory for spilled query data. Its files are unnamed and disappear when
/// closed.
const SPILL_FOLDER: &str = "spill";

/// An open database.
pub struct Database {
    services: Arc<Services>,
    engine: Arc<dyn Engine>,
    catalog: Arc<Catalog>,
    timeseries: Arc<Timeseries>,
    records: Arc<Records>,
    collections: Arc<StoredCollections>,
    authority: Arc<Authority>,
    retryable_writes: Arc<RetryableWrites>,
    /// The transactions that are open.
    transactions: Arc<Transactions>,
    /// What reads outside of transactions may read again.
    snapshots: Arc<Snapshots>,
    /// What was changed, if this server writes for a replica set.
    change_log: Option<Arc<ChangeLog>>,
    /// The time of the newest change that a view of a set shows.
    view_time: Option<u64>,
    query: QueryServices,
    /// The partitions of a router.
    router: Option<Arc<Router>>,
    rollups: RollupRefresher,
    disk: Arc<DiskMonitor>,
    /// True if the cursors are those of another database.
    has_successor: AtomicBool,
    /// The last of the routers that took each other's place.
    newest: Arc<NewestRouter>,
    /// Stopped when the database is dropped.
    _background: Background,
    /// Stopped when the database is dropped.
    _resumed_builds: ResumedBuilds,
}

impl Drop for Database {
    fn drop(&mut self) {
        if !self.has_successor.load(Ordering::Acquire) {
            self.end_cursors();
        }
    }
}

/// What a database shares with the one that takes its place.
struct SharedParts {
    services: Arc<Services>,
    cursors: Arc<CursorRegistry>,
    memory: Arc<MemoryPool>,
}

impl SharedParts {
    fn new(environment: Environment) -> Self {
        Self {
            services: Arc::new(Services::new(environment)),
            cursors: Arc::new(CursorRegistry::new(CursorLimits::default())),
            memory: Arc::default(),
        }
    }
}

impl Database {
    /// Opens the database in the directory `path`, which is created if it is missing or empty.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, Environment::default())
    }

    /// Opens the database in the directory `path` with an environment.
    pub fn open_with(path: impl AsRef<Path>, environment: Environment) -> Result<Self> {
        let memory = environment.memory_limit();
        let engine = LsmEngine::open(path.as_ref(), LsmOptions::within(memory))?;
        if let Some(cut) = &engine.recovery().cut {
            warn_about_cut(cut);
        }
        let spill = Arc::from(path.as_ref().join(SPILL_FOLDER));
        let shared = SharedParts::new(environment);
        Self::assemble(Arc::new(engine), shared, Some(spill))
    }

    /// Opens an empty database in memory.
    pub fn in_memory() -> Result<Self> {
        Self::in_memory_with(Environment::default())
    }

    /// Opens an empty database in memory with an environment.
    pub fn in_memory_with(environment: Environment) -> Result<Self> {
        Self::with_engine(Arc::new(MemoryEngine::new()), environment)
    }

    /// Opens the database stored by `engine`. Its queries never spill to disk.
    pub fn with_engine(engine: Arc<dyn Engine>, environment: Environment) -> Result<Self> {
        Self::assemble(engine, SharedParts::new(environment), None)
    }

    /// Opens the database stored by `engine`. Queries spill to unnamed files in the directory `spill`, which is created
    /// when it is needed.
    pub fn with_engine_and_spill(
        engine: Arc<dyn Engine>,
        environment: Environment,
        spill: impl AsRef<Path>,
    ) -> Result<Self> {
        let shared = SharedParts::new(environment);
        Self::assemble(engine, shared, Some(Arc::from(spill.as_ref())))
    }

    /// Opens the database stored by `engine` to take the place of this one, with the same services and cursors. Cursors that
    /// are open continue on what this one shows. Commands that run on this one end as if there were no other.
    pub fn successor(&self, engine: Arc<dyn Engine>) -> Result<Self> {
        let shared = SharedParts {
            services: self.services.clone(),
            cursors: self.query.cursors.clone(),
            memory: self.query.memory.clone(),
        };
        let successor = Self::assemble(engine, shared, self.query.spill.clone())?;
        self.has_successor.store(true, Ordering::Release);
        Ok(successor)
    }

    // long function: builds the parts in order, each from the ones before
    fn assemble(
        engine: Arc<dyn Engine>,
        shared: SharedParts,
        spill: Option<Arc<Path>>,
    ) -> Result<Self> {
        let engine = LongKeyEngine::over(engine)?;
        let is_read_only = engine.is_read_only();
        let SharedParts {
            services,
            cursors,
            memory,
        } = shared;
        let view_time = time_of_view(&*engine, &services)?;
        let (engine, change_log) = with_change_log(engine, &services)?;
        let catalog = Arc::new(Catalog::open(engine.clone())?);
        let authority = Arc::new(Authority::open(catalog.clone())?);
        let (limits, seed) = (bucket_limits(&services), services.ids.random());
        let timeseries = Timeseries::new(engine.clone(), catalog.clone(), limits, seed)?;
        let timeseries = Arc::new(timeseries);
        let plans = Arc::<PlanCache>::default();
        apply_parameters(&services, &timeseries, &memory, &plans);
        let records = Arc::new(Records::new(engine.clone(), catalog.clone()));
        if !is_read_only {
            catalog.add_derived_keyspaces()?;
            for collection in catalog.collections() {
                timeseries.seal_unsealed(&collection)?;
            }
        }
        let transactions = Arc::<Transactions>::default();
        let collections = Arc::new(StoredCollections {
            services: services.clone(),
            engine: engine.clone(),
            catalog: catalog.clone(),
            timeseries: timeseries.clone(),
            records: records.clone(),
            plans: plans.clone(),
            authority: authority.clone(),
            cursors: cursors.clone(),
            change_log: change_log.clone(),
            transactions: Arc::downgrade(&transactions),
        });
        collections.apply_change_stream_options()?;
        let query = QueryServices {
            collections: collections.clone(),
            cursors: cursors.clone(),
            limits: ExecLimits {
                batch_bytes_max: memory::batch_bytes_max(&services),
                ..ExecLimits::default()
            },
            memory,
            spill,
            ids: services.ids.clone(),
            plans: plans.clone(),
            workers: Arc::default(),
        };
        let rollups = RollupRefresher::new(services.clone(), collections.clone(), &query);
        let disk = Arc::new(DiskMonitor::new(engine.clone(), services.clone()));
        let retryable_writes = Arc::new(RetryableWrites::new(engine.clone()));
        let snapshots = Arc::<Snapshots>::default();
        let expiring = (transactions.clone(), snapshots.clone());
        let background = Background::start(BackgroundContext {
            is_read_only,
            retryable_writes: retryable_writes.clone(),
            change_log: change_log.clone(),
            disk: disk.clone(),
            services: services.clone(),
            catalog: catalog.clone(),
            timeseries: timeseries.clone(),
            records: records.clone(),
            expire_cursors: Box::new(move |now, idle| {
                cursors.expire(now, idle);
            }),
            refresh_rollups: Some(rollups::schedule(rollups.clone())),
            freeze_rollups: rollups::freezing(rollups.clone()),
            expire_transactions: Box::new(move |now, lifetime| {
                expiring.0.expire(now, lifetime);
                expiring.1.expire(now);
            }),
        })
        .map_err(no_thread)?;
        let resumed_builds = ResumedBuilds::start(IndexBuilder {
            services: services.clone(),
            engine: engine.clone(),
            catalog: catalog.clone(),
            records: records.clone(),
            timeseries: timeseries.clone(),
        })
        .map_err(no_thread)?;
        Ok(Self {
            services,
            engine,
            catalog,
            timeseries,
            records,
            collections,
            authority,
            retryable_writes,
            transactions,
            snapshots,
            change_log,
            view_time,
            query,
            router: None,
            rollups,
            disk,
            has_successor: AtomicBool::new(false),
            newest: Arc::default(),
            _background: background,
            _resumed_builds: resumed_builds,
        })
    }

    /// Applies the current parameters to the parts of the database.
    pub(crate) fn apply_parameters(&self) {
        apply_parameters(
            &self.services,
            &self.timeseries,
            &self.query.memory,
            &self.query.plans,
        );
    }

    /// Returns the shared services of commands.
    pub fn services(&self) -> &Arc<Services> {
        &self.services
    }

    /// Returns the version of the catalog: while it is the same, so are names, kinds, options and UUIDs of all collections.
    pub fn catalog_version(&self) -> CatalogVersion {
        self.catalog.version()
    }

    /// Runs one command and returns its reply; a failure is a reply too (`ok: 0`).
    pub fn run_command(&self, session: &mut ClientSession, request: &Request) -> Document {
        commands::run(self, session, request)
    }

    /// Makes the later batches of an open cursor go to `collector`, not into the replies of `getMore`. False if it is in use or
    /// gone, or is a change stream.
    pub fn collect_batches(&self, cursor: i64, collector: Arc<BatchCollector>) -> bool {
        self.query.cursors.collect_into(cursor, collector)
    }

    /// Returns whether a command reads or writes.
    pub(crate) fn access_of(request: &Request) -> Access {
        commands::access_of(request)
    }

    /// Returns the reply for an outcome outside of a command.
    pub(crate) fn reply_of(outcome: Result<Document>) -> Document {
        outcome.unwrap_or_else(|error| commands::error_reply(&error))
    }

    /// Ends a user's logical session and closes its cursors.
    pub(crate) fn end_session(&self, id: SessionId, user: Option<&UserName>) {
        self.services.sessions.end(id, user);
        self.transactions.forget(&(id, user.cloned()));
        self.query
            .cursors
            .kill_where(|_, lsid, by| lsid == Some(id) && by == user);
    }

    /// Ends the sessions that `concerns` selects by id and user, aborts their transactions, and interrupts their operations but
    /// `own`.
    pub(crate) fn kill_sessions_where(
        &self,
        own: Option<i32>,
        concerns: impl Fn(SessionId, Option<&UserName>) -> bool,
    ) {
        let services = &self.services;
        let concerned = |operation: &OperationEntry| {
            let user = operation.user.as_ref();
            Some(operation.id) != own && operation.lsid.is_some_and(|id| concerns(id, user))
        };
        services
            .operations
            .kill_where(ErrorCode::Interrupted, concerned);
        // Includes operations of sessions that have expired.
        let cursors = &self.query.cursors;
        cursors.kill_where(|_, lsid, user| lsid.is_some_and(|id| concerns(id, user)));
        self.transactions
            .abort_where(|(id, user)| concerns(*id, user.as_ref()));
        for session in services.sessions.list(services.clock.now_ms()) {
            if concerns(session.id, session.user.as_ref()) {
                services.sessions.end(session.id, session.user.as_ref());
            }
        }
    }

    /// Flushes and compacts everything: for benches and for copies of the directory.
    pub fn settle(&self) -> Result<()> {
        for collection in self.catalog.collections() {
            self.timeseries.seal_all(&collection)?;
        }
        self.engine.settle()?;
        Ok(())
    }

    /// Copies the database, concurrently with writers, into the empty or missing directory `target`.
    pub fn checkpoint(&self, target: impl AsRef<Path>) -> Result<()> {
        Ok(self.engine.checkpoint(target.as_ref())?)
    }

    /// Returns what a backup elsewhere reads; `None` if the database is not in a directory.
    pub fn backup_source(&self) -> Option<BackupSource> {
        self.engine.backup_source()
    }

    /// Syncs and releases the directory; later commands fail.
    pub fn close(&self) -> Result<()> {
        self.end_cursors();
        self.query.workers.close();
        self.timeseries.wait_for_maintenance()?;
        Ok(self.engine.close()?)
    }

    /// Releases the storage at once, so that another process can open it: folding and sealing that are queued are left to
    /// that. Later commands fail.
    pub fn hand_over(&self) -> Result<()> {
        self.query.workers.close();
        Ok(self.engine.close()?)
    }

    /// Fails with the reason if writes are refused now. Never waits for the disk.
    pub fn check_writable(&self) -> Result<()> {
        self.engine.check_writable()?;
        match self.disk.status().oldest {
            None => Ok(()),
            Some(wait) => Err(Error::new(
                ErrorCode::ExceededTimeLimit,
                format!(
                    "the disk does not answer: to {} takes {} s so far; writes wait for it",
                    wait.what,
                    wait.age.as_secs()
                ),
            )),
        }
    }

    /// Checks one collection: its documents or buckets, and its indexes in both directions.
    pub(crate) fn validate(
        &self,
        collection: &Arc<Collection>,
        check_interrupt: &dyn Fn() -> Result<()>,
    ) -> Result<Validation> {
        match collection.timeseries {
            Some(_) => self.timeseries.validate(collection, check_interrupt),
            None => self.records.validate(collection, check_interrupt),
        }
    }

    /// Closes every cursor. A cursor and its collections refer to each other.
    pub fn end_cursors(&self) {
        self.query.cursors.kill_where(|_, _, _| true);
    }

    pub(crate) fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    pub(crate) fn disk(&self) -> &DiskMonitor {
        &self.disk
    }

    pub(crate) fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    pub(crate) fn retryable_writes(&self) -> &RetryableWrites {
        &self.retryable_writes
    }

    /// True if the database shows what another process writes, as a secondary does.
    pub fn is_view(&self) -> bool {
        self.engine.is_read_only()
    }

    /// Returns the time of the newest change that is shown; `None` without a replica set.
    pub(crate) fn cluster_time(&self) -> Option<u64> {
        let log = self.change_log.as_ref();
        log.map(|log| log.last_committed()).or(self.view_time)
    }

    /// Returns the change log; `None` without a replica set, and on a member that does not write.
    pub(crate) fn change_log(&self) -> Option<&Arc<ChangeLog>> {
        self.change_log.as_ref()
    }

    /// Returns the snapshots that may be read again.
    pub(crate) fn snapshots(&self) -> &Snapshots {
        &self.snapshots
    }

    /// Returns what refreshes rollups.
    pub(crate) fn rollups(&self) -> &RollupRefresher {
        &self.rollups
    }

    /// Returns the open transactions.
    pub(crate) fn transactions(&self) -> &Arc<Transactions> {
        &self.transactions
    }

    pub(crate) fn timeseries(&self) -> &Arc<Timeseries> {
        &self.timeseries
    }

    pub(crate) fn records(&self) -> &Arc<Records> {
        &self.records
    }

    pub(crate) fn collections(&self) -> &Arc<StoredCollections> {
        &self.collections
    }

    pub(crate) fn queries(&self) -> &QueryServices {
        &self.query
    }
}

/// An engine, and the change log that it keeps.
type EngineAndLog = (Arc<dyn Engine>, Option<Arc<ChangeLog>>);

/// Keeps a change log in the engine of a server that writes for a replica set. Without a set, the log of an earlier run is
/// dropped when the catalog is opened: it would lack what is changed now.
fn with_change_log(engine: Arc<dyn Engine>, services: &Services) -> Result<EngineAndLog> {
    if services.replica_set.is_none() || engine.is_read_only() {
        return Ok((engine, None));
    }
    let (engine, log) = LoggedEngine::over(engine, services.clock.clone(), services.change_log)?;
    Ok((engine, Some(log)))
}

/// Returns the time of the newest change that a database of a set shows if it cannot change; `None` for others.
fn time_of_view(engine: &dyn Engine, services: &Services) -> Result<Option<u64>> {
    match services.replica_set.is_some() && engine.is_read_only() {
        true => change_log::newest_time(engine),
        false => Ok(None),
    }
}

/// Logs where recovery cut the log: a warning, shown to every shell, if acknowledged writes may be lost.
fn warn_about_cut(cut: &LogCut) {
    let file = cut.segment.display().to_string();
    if cut.may_be_acknowledged() {
        warn!(
            c = "STORAGE",
            id = 22_444,
            startup = true,
            file,
            offset = cut.offset,
            bytes = cut.bytes,
            headerIsWhole = cut.header_is_whole,
            writeIsComplete = cut.write_is_complete,
            "The log ended with a damaged or torn write, which was ignored; it may have been acknowledged"
        );
    } else {
        info!(
            c = "STORAGE",
            id = 22_445,
            file,
            offset = cut.offset,
            bytes = cut.bytes,
            "The log ended with a torn write, never acknowledged, which was ignored"
        );
    }
}

fn no_thread(error: std::io::Error) -> Error {
    Error::new(
        ErrorCode::InternalError,
        format!("cannot start a thread: {error}"),
    )
}

/// Returns the bucket limits of the start-up parameters.
fn bucket_limits(services: &Services) -> BucketLimits {
    let given = &services.parameters;
    // The table of parameters keeps them at 1 or more.
    let size = |value: i64| usize::try_from(value).unwrap_or(1);
    BucketLimits {
        count_max: size(given.timeseries_bucket_max_count()),
        bytes_max: size(given.timeseries_bucket_max_size()),
        count_min: size(given.timeseries_bucket_min_count()),
        bytes_min: size(given.timeseries_bucket_min_size()),
        expiry_count_max: size(given.timeseries_idle_bucket_expiry_max_count_per_attempt()),
        cache_bytes: cache_bytes(services.host.memory_bytes),
    }
}

/// Returns the cache size MongoDB would use on such a machine: half of the memory beyond one GiB, at least
/// 256 MB; 0 if the memory is unknown. Active buckets share it.
fn cache_bytes(memory_bytes: u64) -> u64 {
    const CACHE_BYTES_MIN: u64 = 256_000_000;
    match memory_bytes {
        0 => 0,
        known => (known.saturating_sub(1 << 30) / 2).max(CACHE_BYTES_MIN),
    }
}

/// Applies the run-time parameters to queries and the bucket catalog.
fn apply_parameters(
    services: &Services,
    timeseries: &Timeseries,
    memory: &MemoryPool,
    plans: &PlanCache,
) {
    let plan = MemoryBudgets::of(services);
    memory.set_most(plan.queries);
    plans.set_bytes_max(size(plan.plans));
    timeseries.cache.set_limits(plan.read_cache());
    let bucket_catalog = &timeseries.bucket_catalog;
    let given = &services.parameters;
    if let Ok(bytes) = usize::try_from(given.timeseries_bucket_min_size()) {
        bucket_catalog.set_bytes_min(bytes);
    }
    bucket_catalog.set_memory_max(size(plan.open_buckets));
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
