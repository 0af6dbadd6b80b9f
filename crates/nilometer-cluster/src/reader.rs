//! A database that is read while another process writes to it, as views of single moments.
//!
//! ```text
//! SlateReader ── refresh ─► SlateView: what was durable then ── snapshots, scans ── closed with the last of them
//!      │                        │
//!      └─ log cache, blocks, ◄──┘   shared by all views
//!         tables on a disk
//! ```
//!
//! A view is an engine that refuses writes. It disturbs no writer and writes nothing: what it reads is kept for as long as
//! garbage is (see [`crate::SlateOptions`]), so a view must not be used for hours. A refresh without newer contents costs the
//! requests of finding that out, and returns no view.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nilometer_storage::{
    Bytes, Direction, DiskWaits, Durability, Engine, EngineStatistics, Error, Keyspace, KeyspaceId,
    KeyspaceStatistics, NewKeyspace, Result, Scan, Snapshot, WriteBatch, copy_into_directory,
};
use object_store::ObjectStore;
use slatedb::config::DbReaderOptions;
use slatedb::{DbReader, DbReaderMode, SstReader};
use tokio::runtime::Runtime;

use crate::cache::BlockCache;
use crate::caller_runtime::CallerRuntimes;
use crate::core::{Reader, Readers};
use crate::disk_cache::DiskCache;
use crate::engine::runtime;
use crate::error::convert;
use crate::gets::get_all;
use crate::keyspaces;
use crate::layout;
use crate::log_cache::LogCache;
use crate::options::SlateOptions;
use crate::requests::{ObservedStore, RequestCounts, Requests};
use crate::scan::SlateScan;
use crate::sizes::Sizes;
use crate::still_clock::StillClock;
use crate::table_parts::TableStore;

/// Age at which a view is replaced although its contents are the newest: the tables that it reads may be merged away.
const VIEW_AGE_MAX: Duration = Duration::from_secs(30 * 60);

/// Opens views of the database at a path.
pub struct SlateReader {
    parts: Arc<ReaderParts>,
    last: Option<LastView>,
}

/// What the views share.
struct ReaderParts {
    store: Arc<dyn ObjectStore>,
    disk_cache: Option<DiskCache>,
    path: Arc<str>,
    callers: CallerRuntimes,
    requests: Arc<Requests>,
    cache: Arc<BlockCache>,
    sizes: Sizes,
    readers: Arc<Readers>,
    /// Last, so that everything is closed before it ends.
    runtime: Runtime,
}

/// The newest view.
struct LastView {
    sequence: u64,
    manifest: u64,
    opened: Instant,
}

/// What was durable at some moment, as an engine that refuses writes.
pub struct SlateView {
    contents: ViewContents,
    sequence: u64,
    is_closed: AtomicBool,
}

/// The contents of a view. Clones share them.
#[derive(Clone)]
struct ViewContents {
    keyspaces: Arc<[Keyspace]>,
    db: Arc<DbReader>,
    /// Last, so that the reader of SlateDB is closed after its scans.
    open: Arc<OpenView>,
}

/// Closes the reader of SlateDB with the last snapshot or scan.
struct OpenView {
    db: Arc<DbReader>,
    parts: Arc<ReaderParts>,
}

impl Drop for OpenView {
    fn drop(&mut self) {
        // Nothing is stored, so nothing can be lost.
        let _ = self.parts.runtime.block_on(self.db.close());
    }
}

impl SlateReader {
    /// Prepares to read the database at `path` in `store`. Reads nothing yet.
    pub fn new(store: Arc<dyn ObjectStore>, path: &str, options: &SlateOptions) -> Result<Self> {
        let requests = Arc::new(Requests::default());
        let runtime = runtime(path, options.threads)?;
        let observed: Arc<dyn ObjectStore> = Arc::new(ObservedStore::new(store, requests.clone()));
        let cache = DiskCache::open(options, observed.clone(), requests.clone())?;
        let handle = runtime.handle().clone();
        let tables = TableStore::new(observed, handle.clone(), cache.parts());
        let disk_cache = options.cache_path.is_some().then_some(cache);
        let store: Arc<dyn ObjectStore> = Arc::new(LogCache::new(Arc::new(tables)));
        let cache = Arc::new(BlockCache::new(options.block_cache_bytes));
        let tables = SstReader::new(path, store.clone(), Some(cache.clone()), None);
        let parts = ReaderParts {
            store,
            disk_cache,
            path: path.into(),
            callers: CallerRuntimes::new(handle, path),
            requests,
            cache,
            sizes: Sizes::new(tables),
            readers: Arc::new(Readers::default()),
            runtime,
        };
        Ok(Self {
            parts: Arc::new(parts),
            last: None,
        })
    }

    /// Returns a view of what is durable now; `None` if that is what the last view shows. Fails if there is no database.
    pub fn refresh(&mut self) -> Result<Option<SlateView>> {
        let ReaderParts { runtime, path, .. } = &*self.parts;
        let failed = |error: slatedb::Error| convert(path, &error);
        let db = runtime.block_on(self.parts.open()).map_err(failed)?;
        let open = Arc::new(OpenView {
            db: Arc::new(db),
            parts: Arc::clone(&self.parts),
        });
        let status = open.db.status();
        let (sequence, manifest) = (status.durable_seq, status.current_manifest.id());
        let is_newest = self.last.as_ref().is_some_and(|last| {
            let is_fresh = last.manifest == manifest || last.opened.elapsed() < VIEW_AGE_MAX;
            last.sequence == sequence && is_fresh
        });
        if is_newest {
            return Ok(None);
        }
        let keyspaces = runtime.block_on(keyspaces::read_keyspaces(&*open.db, path))?;
        self.last = Some(LastView {
            sequence,
            manifest,
            opened: Instant::now(),
        });
        Ok(Some(SlateView {
            contents: ViewContents {
                keyspaces: keyspaces.into(),
                db: Arc::clone(&open.db),
                open,
            },
            sequence,
            is_closed: AtomicBool::new(false),
        }))
    }

    /// Forgets the last view, so that the next refresh returns one.
    pub fn forget(&mut self) {
        self.last = None;
    }

    /// Returns the cache on a disk, for an engine of this process; `None` without a folder for it.
    pub fn disk_cache(&self) -> Option<DiskCache> {
        self.parts.disk_cache.clone()
    }

    /// Returns the requests to the store of all views.
    pub fn requests(&self) -> RequestCounts {
        self.parts.requests.counts()
    }
}

impl ReaderParts {
    async fn open(&self) -> std::result::Result<DbReader, slatedb::Error> {
        DbReader::builder(self.path.to_string(), Arc::clone(&self.store))
            .with_reader_mode(DbReaderMode::FollowLatest)
            .with_options(DbReaderOptions::default())
            .with_system_clock(Arc::new(StillClock::default()))
            .with_db_cache(self.cache.clone(), 0)
            .build()
            .await
    }
}

impl SlateView {
    /// Returns the number of the last batch that the view shows.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    fn check_open(&self) -> Result<()> {
        match self.is_closed.load(Ordering::Acquire) {
            true => Err(Error::Closed),
            false => Ok(()),
        }
    }

    fn parts(&self) -> &ReaderParts {
        &self.contents.open.parts
    }
}

impl ViewContents {
    fn check_exists(&self, id: KeyspaceId) -> Result<()> {
        match self.keyspaces.iter().any(|known| known.id == id) {
            true => Ok(()),
            false => Err(Error::UnknownKeyspace { id: id.0 }),
        }
    }
}

/// A snapshot of a view: the whole of it.
struct ViewSnapshot {
    contents: ViewContents,
    sequence: u64,
    reader: Arc<Reader>,
}

impl Snapshot for ViewSnapshot {
    fn keyspaces(&self) -> Vec<Keyspace> {
        self.contents.keyspaces.to_vec()
    }

    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Bytes>> {
        self.contents.check_exists(keyspace)?;
        let Some(stored) = layout::possible_key(keyspace, key) else {
            return Ok(None);
        };
        let runtime = self.contents.open.parts.callers.take();
        let value = runtime.wait_for(self.contents.db.get(stored))?;
        Ok(value.map(|value| Bytes::copy_from(&value)))
    }

    fn get_all(&self, keyspace: KeyspaceId, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        self.contents.check_exists(keyspace)?;
        let runtime = self.contents.open.parts.callers.take();
        runtime.wait_for(get_all(&*self.contents.db, keyspace, keys))
    }

    /// What a view has of the log is in no count.
    fn entries_max(&self, keyspace: KeyspaceId) -> Option<u64> {
        let parts = &self.contents.open.parts;
        parts.sizes.entries_max(keyspace, self.sequence)
    }

    fn scan(
        &self,
        keyspace: KeyspaceId,
        start: &[u8],
        end: Option<&[u8]>,
        direction: Direction,
    ) -> Result<Scan> {
        self.contents.check_exists(keyspace)?;
        let Some(range) = layout::range(keyspace, start, end) else {
            return Ok(Box::new(std::iter::empty()));
        };
        let contents = &self.contents;
        let parts = &contents.open.parts;
        Ok(Box::new(SlateScan::new(
            Arc::clone(&contents.db),
            &parts.callers,
            (keyspace, range),
            direction,
            (Arc::clone(&self.reader), Arc::clone(&contents.open)),
        )))
    }

    /// All snapshots of a view show the same.
    fn version(&self, keyspace: KeyspaceId) -> Option<u64> {
        let exists = self.contents.check_exists(keyspace);
        exists.is_ok().then_some(self.sequence)
    }
}

fn read_only<T>() -> Result<T> {
    Err(Error::ReadOnly)
}

impl Engine for SlateView {
    fn create_keyspaces(&self, _: &[NewKeyspace<'_>]) -> Result<Vec<KeyspaceId>> {
        read_only()
    }

    fn keyspaces(&self) -> Vec<Keyspace> {
        self.contents.keyspaces.to_vec()
    }

    fn drop_keyspace(&self, _: KeyspaceId) -> Result<()> {
        read_only()
    }

    fn commit(&self, _: WriteBatch, _: Durability) -> Result<u64> {
        read_only()
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>> {
        self.check_open()?;
        Ok(Box::new(ViewSnapshot {
            contents: self.contents.clone(),
            sequence: self.sequence,
            reader: Arc::new(self.parts().readers.add()),
        }))
    }

    /// Everything is durable.
    fn sync(&self) -> Result<()> {
        self.check_open()
    }

    fn settle(&self) -> Result<()> {
        read_only()
    }

    /// Writes a database of the local engine.
    fn checkpoint(&self, target: &Path) -> Result<()> {
        let view = self.snapshot()?;
        copy_into_directory(&*view, None, target, &mut |_| {}).map(drop)
    }

    fn verify(&self) -> Result<()> {
        let view = self.snapshot()?;
        for keyspace in &*self.contents.keyspaces {
            for entry in view.scan(keyspace.id, &[], None, Direction::Forward)? {
                entry?;
            }
        }
        Ok(())
    }

    fn keyspace_statistics(&self, id: KeyspaceId) -> Result<KeyspaceStatistics> {
        self.contents.check_exists(id)?;
        let parts = self.parts();
        let manifest = self.contents.db.manifest();
        let updated = parts.runtime.block_on(parts.sizes.update(&manifest));
        updated.map_err(|error| convert(&parts.path, &error))?;
        let share = parts.sizes.in_tables(id);
        Ok(KeyspaceStatistics {
            disk_bytes: share.bytes,
            memory_bytes: 0,
            keys_estimate: share.entries,
        })
    }

    fn keys_estimate(&self, id: KeyspaceId) -> Result<u64> {
        self.contents.check_exists(id)?;
        Ok(self.parts().sizes.in_tables(id).entries)
    }

    fn statistics(&self) -> EngineStatistics {
        let parts = self.parts();
        let (snapshots, oldest) = parts.readers.count_and_age();
        EngineStatistics {
            disk_bytes: parts.sizes.table_bytes(),
            snapshots: snapshots as u64,
            oldest_snapshot_ms: u64::try_from(oldest.as_millis()).unwrap_or(u64::MAX),
            cache_bytes: parts.cache.bytes(),
            ..EngineStatistics::default()
        }
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn disk_waits(&self) -> DiskWaits {
        self.parts().requests.waits()
    }

    fn close(&self) -> Result<()> {
        self.is_closed.store(true, Ordering::Release);
        Ok(())
    }
}
