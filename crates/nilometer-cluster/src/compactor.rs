//! A compactor in a process of its own: it merges tables and deletes garbage beside a writer that does neither.
//!
//! SlateDB has one compactor at a time, known by an epoch, as the writer is. One that starts ends the one before, also the
//! one inside a writer, and with it that writer. So a compactor must not start beside a writer that merges by itself:
//!
//! ```text
//! <path>/compactor/separate     there while the writer leaves merging to others
//! writer that merges            delete it, then open: the epoch of compactors rises
//! writer that does not          store it, then open
//! compactor                     read the epoch, look for it, then claim the next epoch: fails if the epoch has risen
//! ```
//!
//! If the writer deletes it before the compactor looks, the compactor is refused. If later, the writer's epoch is a newer
//! one than the compactor has read: either the compactor's claim fails, or the writer ends the compactor.
//!
//! Merges remove the entries of dropped keyspaces. Which are dropped is read from the tables, as they were a while ago: a
//! snapshot of the writer, which this process does not know, may still show a keyspace that was dropped since.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use nilometer_storage::{Error, KeyspaceId, Result};
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStore, ObjectStoreExt};
use slatedb::admin::AdminBuilder;
use slatedb::compactor::{Compactor, CompactorBuilder};
use slatedb::config::DbReaderOptions;
use slatedb::{
    CompactionFilter, CompactionFilterError, CompactionFilterSupplier, CompactionJobContext,
    DbReader, DbReaderMode, GarbageCollectorBuilder,
};
use slatedb_common::clock::{DefaultSystemClock, SystemClock};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::engine::runtime;
use crate::error::{convert, store_error};
use crate::keyspaces::read_retained;
use crate::lock::lock;
use crate::options::SlateOptions;
use crate::retained::RetainedNow;
use crate::retry::repeated;
use crate::schedule::{CompleteMerges, MergeSchedule};

/// The folder of objects of compactors.
pub(crate) const FOLDER: &str = "compactor";

/// The object that allows one.
const SEPARATE: &str = "separate";

/// Interval at which the tables are looked over for keyspaces.
const REFRESH_INTERVAL: Duration = Duration::from_secs(10);

/// Views of the keyspaces that are kept.
const VIEWS_MAX: usize = 1000;

/// Time between two looks at a compactor.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

fn object(path: &str) -> Path {
    Path::from(path).join(FOLDER).join(SEPARATE)
}

/// Says, before a writer opens the database, whether it merges by itself.
pub(crate) async fn announce(
    store: &Arc<dyn ObjectStore>,
    path: &str,
    merges_itself: bool,
) -> Result<()> {
    let object = object(path);
    let done = repeated(async || match merges_itself {
        true => match store.delete(&object).await {
            Ok(()) | Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        },
        false => {
            let contents = "the writer leaves merging to a compactor\n";
            store.put(&object, contents.into()).await.map(drop)
        }
    });
    done.await
        .map_err(|error| store_error("say who merges tables", &error))
}

/// The compactor of a database, until it is dropped.
pub struct SlateCompactor {
    runtime: Runtime,
    compactor: Compactor,
    merges: Option<JoinHandle<std::result::Result<(), slatedb::Error>>>,
    path: String,
}

impl SlateCompactor {
    /// Begins to merge the tables of the database at `path` in `store`, and to delete garbage. A compactor that is at work
    /// ends. Fails if the writer of the database merges by itself.
    pub fn start(store: Arc<dyn ObjectStore>, path: &str, options: &SlateOptions) -> Result<Self> {
        let runtime = runtime(path, options.threads)?;
        let started = runtime.block_on(start(store, path, options, &runtime));
        let (compactor, merges) = started?;
        Ok(Self {
            runtime,
            compactor,
            merges: Some(merges),
            path: path.to_owned(),
        })
    }

    /// Works until `is_ended` says so. Fails with [`Error::Fenced`] if another compactor, or a writer that merges by itself,
    /// has begun.
    pub fn run(mut self, is_ended: impl Fn() -> bool) -> Result<()> {
        let Some(merges) = self.merges.take() else {
            return Ok(());
        };
        while !is_ended() {
            if merges.is_finished() {
                let ended = self.runtime.block_on(merges);
                return match ended {
                    Ok(Err(error)) => Err(convert(&self.path, &error)),
                    Ok(Ok(())) | Err(_) => Err(Error::Ended {
                        reason: "the compactor of SlateDB has ended".to_owned(),
                    }),
                };
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
        let stopped = self.runtime.block_on(self.compactor.stop());
        stopped.map_err(|error| convert(&self.path, &error))
    }
}

async fn start(
    store: Arc<dyn ObjectStore>,
    path: &str,
    options: &SlateOptions,
    runtime: &Runtime,
) -> Result<(
    Compactor,
    JoinHandle<std::result::Result<(), slatedb::Error>>,
)> {
    let failed = |error: slatedb::Error| convert(path, &error);
    let admin = AdminBuilder::new(path.to_owned(), store.clone()).build();
    let manifest = admin.read_manifest(None).await.map_err(failed)?;
    let manifest = manifest.ok_or_else(|| Error::Store {
        reason: format!("there is no database at {path}"),
    })?;
    // After the epoch was read.
    match repeated(async || store.head(&object(path)).await).await {
        Ok(_) => {}
        Err(StoreError::NotFound { .. }) => {
            return Err(Error::Store {
                reason: "the server of this database merges by itself: start it without a compactor first".to_owned(),
            });
        }
        Err(error) => return Err(store_error("look for who merges tables", &error)),
    }
    let clock: Arc<dyn SystemClock> = Arc::new(DefaultSystemClock::new());
    let filter = Arc::new(DelayedFilter::open(&store, path, options).await?);
    let settings = options.settings_of_compactor();
    let mut builder = CompactorBuilder::new(path.to_owned(), store.clone())
        .with_runtime(runtime.handle().clone())
        .with_system_clock(clock.clone())
        .with_expected_epoch(manifest.compactor_epoch())
        .with_scheduler_supplier(Arc::new(MergeSchedule(Arc::new(CompleteMerges::default()))))
        .with_compaction_filter_supplier(filter.clone());
    if let Some(options) = settings.compactor_options {
        builder = builder.with_options(options);
    }
    let compactor = builder.build();
    let running = compactor.clone();
    let merges = tokio::spawn(async move { running.run().await });
    if let Some(options) = settings.garbage_collector_options {
        let collector = GarbageCollectorBuilder::new(path.to_owned(), store)
            .with_options(options)
            .with_system_clock(clock)
            .build();
        // It fails with the store, and continues with it.
        tokio::spawn(async move { collector.run().await });
    }
    tokio::spawn(async move {
        loop {
            filter.look().await;
            tokio::time::sleep(REFRESH_INTERVAL.min(filter.delay)).await;
        }
    });
    Ok((compactor, merges))
}

/// Retains the keyspaces of a while ago, and those that are newer.
struct DelayedFilter {
    reader: DbReader,
    path: String,
    delay: Duration,
    views: Mutex<VecDeque<(Instant, Arc<KeyspacesSeen>)>>,
}

/// The keyspaces of one look.
struct KeyspacesSeen {
    ids: BTreeSet<KeyspaceId>,
    /// The lowest id that was never in use.
    next_id: u64,
}

impl DelayedFilter {
    async fn open(
        store: &Arc<dyn ObjectStore>,
        path: &str,
        options: &SlateOptions,
    ) -> Result<Self> {
        let delay = options.dropped_keyspaces_stay;
        let reader = DbReader::builder(path.to_owned(), store.clone())
            .with_reader_mode(DbReaderMode::FollowLatest)
            .with_options(DbReaderOptions {
                manifest_poll_interval: REFRESH_INTERVAL.min(delay),
                skip_wal_replay: true,
                ..DbReaderOptions::default()
            })
            .with_db_cache_disabled()
            .build()
            .await
            .map_err(|error| convert(path, &error))?;
        Ok(Self {
            reader,
            path: path.to_owned(),
            delay,
            views: Mutex::default(),
        })
    }

    /// Reads which keyspaces there are. What cannot be read is read later.
    async fn look(&self) {
        let Ok((ids, next_id)) = read_retained(&self.reader, &self.path).await else {
            return;
        };
        let mut views = lock(&self.views);
        views.push_back((Instant::now(), Arc::new(KeyspacesSeen { ids, next_id })));
        let is_old = |views: &VecDeque<(Instant, _)>| {
            let second = views.get(1);
            second.is_some_and(|(at, _)| at.elapsed() >= self.delay)
        };
        while views.len() > VIEWS_MAX || is_old(&views) {
            views.pop_front();
        }
    }
}

#[async_trait]
impl CompactionFilterSupplier for DelayedFilter {
    async fn create_compaction_filter(
        &self,
        _context: &CompactionJobContext,
    ) -> std::result::Result<Box<dyn CompactionFilter>, CompactionFilterError> {
        let views = lock(&self.views);
        let old = views.front().filter(|(at, _)| at.elapsed() >= self.delay);
        Ok(Box::new(match old {
            Some((_, seen)) => RetainedNow::new(seen.ids.clone(), seen.next_id),
            // Everything, until it is known what was dropped a while ago.
            None => RetainedNow::new(BTreeSet::new(), 0),
        }))
    }
}
