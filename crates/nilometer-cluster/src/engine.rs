//! The engine: opening a database in an object store, and the contract of storage over it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::stream::{self, StreamExt};
use nilometer_storage::{
    DiskWaits, Durability, Engine, EngineStatistics, Error, Keyspace, KeyspaceId,
    KeyspaceStatistics, NewKeyspace, Result, Snapshot, WriteBatch, copy_into_directory,
};
use object_store::ObjectStore;
use object_store::path::Path as ObjectPath;
use slatedb::compactor::CompactorBuilder;
use slatedb::config::Settings;
use slatedb::db_cache::CacheTarget;
use slatedb::manifest::SsTableHandle;
use slatedb::{BlockCachePolicy, Db, DbCacheManagerOps, SstReader};
use slatedb_common::clock::{DefaultSystemClock, SystemClock};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::cache::BlockCache;
use crate::caller_runtime::CallerRuntimes;
use crate::commit::{Order, View};
use crate::compactor::announce;
use crate::core::{Core, Readers};
use crate::error::{convert, store_error};
use crate::keyspaces::{self, Purpose};
use crate::lock::lock;
use crate::log_flush::LogFlusher;
use crate::options::SlateOptions;
use crate::requests::{ObservedStore, RequestCounts, Requests};
use crate::retained::{Retained, RetainedFilter};
use crate::schedule::{CompleteMerges, MergeSchedule};
use crate::sizes::Sizes;
use crate::snapshot::SlateSnapshot;
use crate::table_parts::TableStore;

/// Longest time for which an opening reads tables that may be on a local disk.
const TABLES_READ_MAX: Duration = Duration::from_millis(200);

/// Tables that are read at a time.
const TABLES_AT_A_TIME: usize = 16;

/// The engine over an object store. One engine writes to a path: opening it fences the one before.
///
/// Differences to the local engine: a batch committed with `Durability::Buffered` is lost when the process is killed
/// before the next flush of the log, at most five flush intervals later; one keyspace cannot be merged alone.
pub struct SlateEngine {
    core: Arc<Core>,
    commits: AtomicU64,
}

impl SlateEngine {
    /// Opens the database at `path` in `store`; creates it if there is none.
    pub fn open(store: Arc<dyn ObjectStore>, path: &str, options: &SlateOptions) -> Result<Self> {
        Self::open_for(Purpose::Use, store, path, options)
    }

    /// Creates a database at `path`, where there is no object, as the target of a copy. Until [`Self::finish_copy`]
    /// returns, the database cannot be opened again.
    pub fn create_for_copy(
        store: Arc<dyn ObjectStore>,
        path: &str,
        options: &SlateOptions,
    ) -> Result<Self> {
        Self::open_for(Purpose::CopyTarget, store, path, options)
    }

    /// Marks a copy as complete.
    pub fn finish_copy(&self) -> Result<()> {
        self.core.finish_copy()
    }

    /// Opens the database on a runtime of one thread, with a clock and a seed: what follows is the same each time if the
    /// store is.
    #[doc(hidden)]
    pub fn open_simulated(
        store: Arc<dyn ObjectStore>,
        path: &str,
        options: &SlateOptions,
        world: SimulatedWorld,
    ) -> Result<Self> {
        Self::open_in(Purpose::Use, store, path, options, world)
    }

    /// Ends the engine as a kill does: nothing is stored any more.
    #[doc(hidden)]
    pub fn abandon(self) {
        self.core.is_closed.store(true, Ordering::Release);
        self.core.is_abandoned.store(true, Ordering::Release);
    }

    /// Lets the tasks of the engine run for a time by its clock. For simulations, in which they run during calls alone.
    #[doc(hidden)]
    pub fn idle(&self, clock: &dyn SystemClock, time: Duration) {
        self.core.runtime.block_on(clock.sleep(time));
    }

    fn open_for(
        purpose: Purpose,
        store: Arc<dyn ObjectStore>,
        path: &str,
        options: &SlateOptions,
    ) -> Result<Self> {
        let world = SimulatedWorld {
            runtime: runtime(path, options.threads)?,
            clock: Arc::new(DefaultSystemClock::new()),
            seed: None,
        };
        Self::open_in(purpose, store, path, options, world)
    }

    fn open_in(
        purpose: Purpose,
        store: Arc<dyn ObjectStore>,
        path: &str,
        options: &SlateOptions,
        world: SimulatedWorld,
    ) -> Result<Self> {
        let SimulatedWorld {
            runtime,
            clock,
            seed,
        } = world;
        let stores = Stores::open(store, options, &runtime)?;
        let Stores { store, tables, .. } = stores;
        let retained = Arc::new(Retained::default());
        let cache = Arc::new(BlockCache::new(options.block_cache_bytes));
        // Before the opening, which would fence a writer.
        if purpose == Purpose::CopyTarget && !runtime.block_on(is_empty(&store, path))? {
            return Err(Error::NotEmpty { path: path.into() });
        }
        runtime.block_on(announce(&store, path, options.merges_itself))?;
        let merges = Arc::new(CompleteMerges::default());
        let parts = EngineParts {
            cache: cache.clone(),
            clock: clock.clone(),
            seed,
            merges: merges.clone(),
        };
        let built = build(path, &tables, options, &runtime, &retained, parts);
        let failed = |error: slatedb::Error| convert(path, &error);
        let db = runtime.block_on(built).map_err(failed)?;
        // What the opening itself writes is in no keyspace of the user's.
        let opened_at = db.snapshot().map_err(failed)?.seq();
        let loaded = runtime.block_on(keyspaces::load(&db, path, purpose));
        let loaded = loaded.inspect_err(|_| drop(runtime.block_on(db.close())))?;
        retained.begin(loaded.keyspaces.keys().copied(), loaded.next_id);
        let reader = SstReader::new(path, tables, Some(cache.clone()), None);
        let waits = options.cache_path.is_some() && seed.is_none();
        let bytes_max = waits.then_some(options.block_cache_bytes / 2);
        let sizes = follow_sizes(&db, reader, &runtime, bytes_max);
        let flusher = LogFlusher::start(&runtime, &db, clock, options.flush_interval);
        let order = Order::new(loaded);
        let view = View::newest(&db, &order).map_err(failed)?;
        let core = Core {
            status: db.subscribe(),
            db,
            callers: CallerRuntimes::new(runtime.handle().clone(), path),
            runtime,
            store,
            path: path.into(),
            requests: stores.requests,
            cache,
            flusher,
            order: order.into(),
            opened_at,
            visible: Arc::new(view).into(),
            retained,
            merges,
            sizes,
            readers: Arc::new(Readers::default()),
            merges_itself: options.merges_itself,
            lease: options.lease.clone(),
            is_closed: AtomicBool::new(false),
            is_abandoned: AtomicBool::new(false),
        };
        Ok(Self {
            core: Arc::new(core),
            commits: AtomicU64::new(0),
        })
    }

    /// Returns the number of writers that have opened the database, this one included.
    pub fn epoch(&self) -> u64 {
        self.core.db.manifest().writer_epoch()
    }

    /// True if another writer has opened the database, so that this engine neither writes nor reads any more.
    pub fn is_fenced(&self) -> bool {
        matches!(self.core.check_open(), Err(Error::Fenced { .. }))
    }

    /// Returns the requests to the store since the engine was opened.
    pub fn requests(&self) -> RequestCounts {
        self.core.requests.counts()
    }
}

/// The store of an engine.
struct Stores {
    /// The store, whose requests are counted.
    store: Arc<dyn ObjectStore>,
    /// The same with parts of its tables, for SlateDB.
    tables: Arc<dyn ObjectStore>,
    requests: Arc<Requests>,
}

impl Stores {
    /// Opens the parts of tables that the options describe: those of the cache of this process if there is one.
    fn open(
        store: Arc<dyn ObjectStore>,
        options: &SlateOptions,
        runtime: &Runtime,
    ) -> Result<Self> {
        let (parts, (store, requests)) = match &options.disk_cache {
            Some(cache) => (cache.parts(), cache.below()),
            None => {
                let requests = Arc::new(Requests::default());
                let store: Arc<dyn ObjectStore> =
                    Arc::new(ObservedStore::new(store, requests.clone()));
                (Arc::new(options.table_parts()?), (store, requests))
            }
        };
        let handle = runtime.handle().clone();
        let tables = Arc::new(TableStore::new(store.clone(), handle, parts));
        Ok(Self {
            store,
            tables,
            requests,
        })
    }
}

/// What SlateDB is built of.
struct EngineParts {
    cache: Arc<BlockCache>,
    clock: Arc<dyn SystemClock>,
    seed: Option<u64>,
    merges: Arc<CompleteMerges>,
}

/// What an engine runs in: threads, time and chance.
#[doc(hidden)]
pub struct SimulatedWorld {
    /// The runtime of its tasks.
    pub runtime: Runtime,
    /// Its clock.
    pub clock: Arc<dyn SystemClock>,
    /// The seed of its random numbers; `None` for different ones each time.
    pub seed: Option<u64>,
}

/// Starts the threads for the database at `path`.
pub(crate) fn runtime(path: &str, threads: usize) -> Result<Runtime> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name("object storage")
        .enable_all()
        .build();
    runtime.map_err(|source| Error::Io {
        operation: "start threads for",
        path: path.into(),
        source: Arc::new(source),
    })
}

/// True if there is no object below `path`.
pub(crate) async fn is_empty(store: &Arc<dyn ObjectStore>, path: &str) -> Result<bool> {
    let mut objects = store.list(Some(&ObjectPath::from(path)));
    match objects.next().await {
        None => Ok(true),
        Some(Ok(_)) => Ok(false),
        Some(Err(error)) => Err(store_error("list its objects", &error)),
    }
}

/// Opens SlateDB. Its last writer is fenced when this returns.
async fn build(
    path: &str,
    store: &Arc<dyn ObjectStore>,
    options: &SlateOptions,
    runtime: &Runtime,
    retained: &Arc<Retained>,
    parts: EngineParts,
) -> std::result::Result<Db, slatedb::Error> {
    let EngineParts {
        cache,
        clock,
        seed,
        merges,
    } = parts;
    let mut settings: Settings = options.settings();
    let compactor = settings.compactor_options.take().map(|options| {
        CompactorBuilder::new(path.to_owned(), store.clone())
            .with_runtime(runtime.handle().clone())
            .with_system_clock(clock.clone())
            .with_scheduler_supplier(Arc::new(MergeSchedule(merges)))
            .with_compaction_filter_supplier(Arc::new(RetainedFilter(retained.clone())))
            .with_options(options)
    });
    let mut builder = Db::builder(path.to_owned(), store.clone())
        .with_settings(settings)
        .with_db_cache(cache, 0)
        .with_block_cache_policy(cached_targets())
        .with_system_clock(clock);
    if let Some(seed) = seed {
        builder = builder.with_seed(seed);
    }
    if let Some(mut compactor) = compactor {
        if let Some(seed) = seed {
            compactor = compactor.with_seed(seed);
        }
        builder = builder.with_compactor_builder(compactor);
    }
    builder.build().await
}

/// Returns the sizes of keyspaces, which follow the tables of a database. With `bytes_max` as many bytes of tables are read first.
fn follow_sizes(
    db: &Db,
    reader: SstReader,
    runtime: &Runtime,
    bytes_max: Option<u64>,
) -> Arc<Sizes> {
    let sizes = Arc::new(Sizes::new(reader));
    if let Some(bytes_max) = bytes_max {
        let reads = read_tables(db, &sizes, bytes_max);
        // What was not read in time is read when it is asked for.
        let _ = runtime.block_on(async { timeout(TABLES_READ_MAX, reads).await });
    }
    runtime.spawn(Arc::clone(&sizes).follow(db.subscribe()));
    sizes
}

/// Reads the indexes and filters of tables, at most `bytes_max` bytes, and the sizes of all tables: the first look-ups need them, and
/// until the sizes are known queries are planned without them.
async fn read_tables(db: &Db, sizes: &Sizes, bytes_max: u64) {
    let manifest = db.manifest();
    let mut bytes = 0;
    let tables = manifest.all_sst_views().map(|view| &view.sst);
    let tables = tables.take_while(|table| {
        bytes += table.info.index_len + table.info.filter_len;
        bytes <= bytes_max
    });
    let read = |table: &SsTableHandle| {
        let id = table.id;
        async move {
            let targets = [CacheTarget::Index, CacheTarget::Filters];
            db.warm_sst(id, &targets).await
        }
    };
    let reads: Vec<_> = tables.map(read).collect();
    let mut reads = stream::iter(reads).buffer_unordered(TABLES_AT_A_TIME);
    while reads.next().await.is_some() {}
    let _ = sizes.update(&manifest).await;
}

/// Returns what tables that are written put into the cache of blocks. That of merges, too: their input is in it, and is read no more.
fn cached_targets() -> BlockCachePolicy {
    let all = [
        CacheTarget::data::<&[u8], _>(..),
        CacheTarget::Index,
        CacheTarget::Filters,
    ];
    BlockCachePolicy::default()
        .with_flush_targets(&all)
        .with_compaction_output_targets(&all)
}

impl Engine for SlateEngine {
    fn create_keyspaces(&self, new: &[NewKeyspace<'_>]) -> Result<Vec<KeyspaceId>> {
        self.core
            .add_keyspaces(|next_id| Keyspace::with_ids_from(next_id, new))
    }

    fn import_keyspace(&self, keyspace: &Keyspace) -> Result<()> {
        let keyspaces = |_| vec![keyspace.clone()];
        self.core.add_keyspaces(keyspaces).map(drop)
    }

    fn keyspaces(&self) -> Vec<Keyspace> {
        let view = self.core.view();
        let known = view.keyspaces.values();
        known.map(|known| known.keyspace.clone()).collect()
    }

    fn drop_keyspace(&self, id: KeyspaceId) -> Result<()> {
        self.core.drop_keyspace(id)
    }

    fn commit(&self, batch: WriteBatch, durability: Durability) -> Result<u64> {
        let position = self.core.commit(batch, durability)?;
        self.commits.fetch_add(1, Ordering::Relaxed);
        Ok(position)
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>> {
        self.core.check_open()?;
        Ok(Box::new(SlateSnapshot {
            view: self.core.view(),
            reader: Arc::new(self.core.readers.add()),
            core: Arc::clone(&self.core),
        }))
    }

    /// Asks the store whether there is a newer writer, unless the lease says that there is none.
    fn confirm(&self) -> Result<()> {
        self.core.check_open()?;
        match &self.core.lease {
            Some(lease) if !lease.is_valid() => {
                self.core.wait_for(self.core.db.refresh_manifest())?;
                self.core.check_open()
            }
            _ => Ok(()),
        }
    }

    fn sync(&self) -> Result<()> {
        self.core.check_open()?;
        self.core.flush_log()
    }

    fn settle(&self) -> Result<()> {
        self.core.settle()
    }

    /// Writes a database of the local engine.
    fn checkpoint(&self, target: &Path) -> Result<()> {
        let view = self.snapshot()?;
        copy_into_directory(&*view, None, target, &mut |_| {}).map(drop)
    }

    fn verify(&self) -> Result<()> {
        self.core.verify()
    }

    fn keyspace_statistics(&self, id: KeyspaceId) -> Result<KeyspaceStatistics> {
        self.core.check_open()?;
        let sizes = &self.core.sizes;
        self.core.wait_for(sizes.update(&self.core.db.manifest()))?;
        let keys_estimate = self.keys_estimate(id)?;
        Ok(KeyspaceStatistics {
            disk_bytes: sizes.in_tables(id).bytes,
            memory_bytes: sizes.unflushed(Some(id)).bytes,
            keys_estimate,
        })
    }

    fn keys_estimate(&self, id: KeyspaceId) -> Result<u64> {
        self.core.check_open()?;
        keyspaces::find(&self.core.view().keyspaces, id)?;
        let sizes = &self.core.sizes;
        Ok(sizes.in_tables(id).entries + sizes.unflushed(Some(id)).entries)
    }

    fn statistics(&self) -> EngineStatistics {
        let sizes = &self.core.sizes;
        let unflushed = sizes.unflushed(None).bytes;
        let (snapshots, oldest) = self.core.readers.count_and_age();
        EngineStatistics {
            // The log has what is not yet in tables.
            disk_bytes: sizes.table_bytes() + unflushed,
            log_bytes: unflushed,
            memory_bytes: unflushed,
            commits: self.commits.load(Ordering::Relaxed),
            syncs: self.core.requests.counts().log_puts,
            snapshots: snapshots as u64,
            oldest_snapshot_ms: u64::try_from(oldest.as_millis()).unwrap_or(u64::MAX),
            pinned_bytes: 0,
            cache_bytes: self.core.cache.bytes(),
        }
    }

    fn check_writable(&self) -> Result<()> {
        self.core.check_open()
    }

    fn disk_waits(&self) -> DiskWaits {
        self.core.requests.waits()
    }

    /// Makes everything durable. SlateDB is closed with the last snapshot or scan.
    fn close(&self) -> Result<()> {
        if self.core.is_closed.load(Ordering::Acquire) {
            return Ok(());
        }
        let flushed = self.sync();
        // After the flush, and not while a batch is written.
        let _order = lock(&self.core.order);
        self.core.is_closed.store(true, Ordering::Release);
        match flushed {
            Err(Error::Closed) => Ok(()),
            other => other,
        }
    }
}

impl Drop for SlateEngine {
    fn drop(&mut self) {
        // Callers that need the result call `close` first.
        let _ = self.close();
    }
}
