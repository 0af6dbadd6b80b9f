//! What the parts of an open engine share: SlateDB, the runtime it runs on, and what is visible.
//!
//! Snapshots and scans hold the core, so SlateDB is closed with the last of them. The background tasks hold parts of it,
//! never the whole: it is dropped on a thread that may block.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use nilometer_storage::{Error, Result};
use object_store::ObjectStore;
use slatedb::{Db, DbStatus};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::cache::BlockCache;
use crate::caller_runtime::CallerRuntimes;
use crate::claim::Lease;
use crate::commit::{Order, View};
use crate::error::{closed, convert};
use crate::lock::{lock, read};
use crate::log_flush::{LOG_FLUSH, LogFlusher};
use crate::requests::Requests;
use crate::retained::Retained;
use crate::schedule::CompleteMerges;
use crate::sizes::Sizes;

/// An open engine.
pub(crate) struct Core {
    pub(crate) db: Db,
    /// What SlateDB says about itself.
    pub(crate) status: watch::Receiver<DbStatus>,
    /// Runtimes of the threads that read.
    pub(crate) callers: CallerRuntimes,
    pub(crate) runtime: Runtime,
    /// The store below SlateDB, observed.
    pub(crate) store: Arc<dyn ObjectStore>,
    /// The path of the database in the store.
    pub(crate) path: Arc<str>,
    pub(crate) requests: Arc<Requests>,
    pub(crate) flusher: Arc<LogFlusher>,
    pub(crate) order: Mutex<Order>,
    pub(crate) visible: RwLock<Arc<View>>,
    pub(crate) cache: Arc<BlockCache>,
    pub(crate) retained: Arc<Retained>,
    pub(crate) merges: Arc<CompleteMerges>,
    pub(crate) merges_itself: bool,
    pub(crate) lease: Option<Lease>,
    pub(crate) sizes: Arc<Sizes>,
    /// The last batch that was there when the engine was opened.
    pub(crate) opened_at: u64,
    pub(crate) readers: Arc<Readers>,
    pub(crate) is_closed: AtomicBool,
    /// True if the process counts as killed: nothing is written any more.
    pub(crate) is_abandoned: AtomicBool,
}

impl Core {
    /// Fails if the engine was closed.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        // Not `Db::status`, which copies the manifest.
        let reason = self.status.borrow().close_reason;
        reason.map_or(Ok(()), |reason| Err(closed(reason)))
    }

    /// Runs a call of SlateDB to its end. Must not be called on a thread of the runtime.
    pub(crate) fn wait_for<T>(
        &self,
        call: impl Future<Output = std::result::Result<T, slatedb::Error>>,
    ) -> Result<T> {
        self.runtime
            .block_on(call)
            .map_err(|error| self.convert(&error))
    }

    /// Runs a call of SlateDB that reads, as far as possible on this thread.
    pub(crate) fn read<T>(
        &self,
        call: impl Future<Output = std::result::Result<T, slatedb::Error>>,
    ) -> Result<T> {
        match self.callers.are_simulated() {
            true => self.wait_for(call),
            false => self.callers.take().wait_for(call),
        }
    }

    /// Stores what the log has in memory.
    pub(crate) fn flush_log(&self) -> Result<()> {
        self.wait_for(self.db.flush_with_options(LOG_FLUSH))
    }

    pub(crate) fn convert(&self, error: &slatedb::Error) -> Error {
        convert(&self.path, error)
    }

    /// Returns what is visible now.
    pub(crate) fn view(&self) -> Arc<View> {
        Arc::clone(&read(&self.visible))
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if self.is_abandoned.load(Ordering::Acquire) {
            return;
        }
        // Everything synced is durable without this; it shortens the next opening.
        let _ = self.runtime.block_on(self.db.close());
    }
}

/// The snapshots that are open, with the time at which they were taken.
#[derive(Default)]
pub(crate) struct Readers {
    open: Mutex<(u64, BTreeMap<u64, Instant>)>,
}

impl Readers {
    /// Counts a snapshot.
    pub(crate) fn add(self: &Arc<Self>) -> Reader {
        let mut open = lock(&self.open);
        open.0 += 1;
        let id = open.0;
        open.1.insert(id, Instant::now());
        Reader {
            id,
            readers: Arc::clone(self),
        }
    }

    /// Returns the number of open snapshots and the age of the oldest.
    pub(crate) fn count_and_age(&self) -> (usize, Duration) {
        let open = lock(&self.open);
        let oldest = open.1.values().next().map(Instant::elapsed);
        (open.1.len(), oldest.unwrap_or_default())
    }
}

/// An open snapshot, or the scans of one.
pub(crate) struct Reader {
    id: u64,
    readers: Arc<Readers>,
}

impl Drop for Reader {
    fn drop(&mut self) {
        lock(&self.readers.open).1.remove(&self.id);
    }
}
