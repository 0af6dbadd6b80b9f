//! Runtimes on which callers read what is in memory or on a local disk, without another thread.
//!
//! ```text
//! caller ─► runtime of its own ─► SlateDB: blocks in memory
//!                                    └─ parts of tables ([`crate::table_parts`]) ─ requests to the store ─► threads of the engine
//! ```
//!
//! A scan of SlateDB starts a task for each table it reads. On the threads of the engine such a task costs two switches between
//! threads, most of the time of a short scan; on a runtime of the caller it costs none. Requests to the store stay on the threads
//! of the engine, so that its connections are always driven.
//!
//! Between two calls a runtime of a caller does not run. So a task there must not hold what others wait for: what reads share is
//! either synchronous ([`crate::cache`]) or a task of the engine.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use nilometer_storage::Result;
use tokio::runtime::{Builder, Handle, Runtime, RuntimeFlavor};
use tokio::task::yield_now;

use crate::error::convert;
use crate::lock::lock;

/// Runtimes that are kept for the next calls.
const IDLE_RUNTIMES_MAX: usize = 64;

thread_local! {
    /// Reads of tables on this thread that were left to the threads of the engine.
    static STORE_READS: Cell<u64> = const { Cell::new(0) };
}

/// Counts a read of a table, on the thread of a caller, for which the store is asked.
pub(crate) fn count_store_read() {
    STORE_READS.set(STORE_READS.get() + 1);
}

/// The runtimes of an engine's callers. Clones share them.
#[derive(Clone)]
pub(crate) struct CallerRuntimes {
    engine: Handle,
    /// The path of the database, for errors.
    path: Arc<str>,
    idle: Arc<Mutex<Vec<Runtime>>>,
}

impl CallerRuntimes {
    /// Returns no runtimes yet, for the callers of an engine on `engine`.
    pub(crate) fn new(engine: Handle, path: &str) -> Self {
        Self {
            engine,
            path: path.into(),
            idle: Arc::default(),
        }
    }

    /// The runtime of the engine.
    pub(crate) fn engine(&self) -> &Handle {
        &self.engine
    }

    /// The path of the database.
    pub(crate) fn path(&self) -> &Arc<str> {
        &self.path
    }

    /// True if the engine has one thread, as in simulations: what it does must come in one order, so all of it runs there.
    pub(crate) fn are_simulated(&self) -> bool {
        self.engine.runtime_flavor() == RuntimeFlavor::CurrentThread
    }

    /// Returns a runtime for one scan, or for one read.
    pub(crate) fn take(&self) -> CallerRuntime {
        let idle = || lock(&self.idle).pop();
        // With time, for SlateDB's repetitions of requests.
        let new = || Builder::new_current_thread().enable_time().build().ok();
        CallerRuntime {
            own: match self.are_simulated() {
                true => None,
                false => idle().or_else(new),
            },
            all: self.clone(),
        }
    }
}

/// A runtime for one scan, or for one read.
pub(crate) struct CallerRuntime {
    /// `None` if everything runs on that of the engine.
    own: Option<Runtime>,
    all: CallerRuntimes,
}

impl CallerRuntime {
    /// Runs a call to its end.
    pub(crate) fn block_on<T>(&self, call: impl Future<Output = T>) -> T {
        let Some(own) = &self.own else {
            return self.all.engine.block_on(call);
        };
        let mut call = pin!(call);
        // Most calls end at once: blocks that are read on need no task.
        let entered = own.enter();
        let mut context = Context::from_waker(Waker::noop());
        if let Poll::Ready(outcome) = call.as_mut().poll(&mut context) {
            return outcome;
        }
        drop(entered);
        own.block_on(call)
    }

    /// Runs a call of SlateDB to its end.
    pub(crate) fn wait_for<T>(
        &self,
        call: impl Future<Output = std::result::Result<T, slatedb::Error>>,
    ) -> Result<T> {
        let outcome = self.block_on(call);
        outcome.map_err(|error| convert(&self.all.path, &error))
    }

    /// Returns how often calls on this thread have asked the store; `None` if they run on threads of the engine.
    pub(crate) fn store_reads(&self) -> Option<u64> {
        self.own.as_ref().map(|_| STORE_READS.get())
    }

    /// The runtimes it is one of.
    pub(crate) fn all(&self) -> &CallerRuntimes {
        &self.all
    }
}

impl Drop for CallerRuntime {
    fn drop(&mut self) {
        let Some(own) = self.own.take() else { return };
        if own.metrics().num_alive_tasks() > 0 {
            // Drops the tasks that a scan has aborted, and with them what they hold.
            own.block_on(yield_now());
        }
        let mut idle = lock(&self.all.idle);
        if idle.len() < IDLE_RUNTIMES_MAX {
            idle.push(own);
        }
    }
}
