//! Background threads of the database: one for maintenance, and one that never blocks and observes the disk
//! and the memory.

pub(crate) mod disk;
mod memory;
mod ttl;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::catalog::{Catalog, Collection};
use crate::change_log::ChangeLog;
use crate::error::{Error, ErrorCode, Result};
use crate::retryable_writes::RetryableWrites;
use crate::services::Services;
use crate::timeseries::Timeseries;
use crate::write::Records;

use disk::DiskMonitor;
use memory::MemoryMonitor;
use ttl::TtlMonitor;

/// Interval of maintenance.
const MAINTENANCE_INTERVAL: Duration = Duration::from_millis(500);

/// Interval of the observation of disk and memory.
const MONITOR_INTERVAL: Duration = Duration::from_millis(250);

/// The parts of the database that background work uses.
pub(crate) struct BackgroundContext {
    pub(crate) services: Arc<Services>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) timeseries: Arc<Timeseries>,
    pub(crate) records: Arc<Records>,
    pub(crate) disk: Arc<DiskMonitor>,
    pub(crate) retryable_writes: Arc<RetryableWrites>,
    pub(crate) change_log: Option<Arc<ChangeLog>>,
    /// True if another process writes to the database, which expires what is to expire.
    pub(crate) is_read_only: bool,
    /// Closes cursors idle for too long: the monotonic time now, and the idle limit.
    pub(crate) expire_cursors: Box<dyn Fn(Duration, Duration) + Send>,
    /// Aborts transactions that are open for too long, and forgets old snapshots: the monotonic time now, and the lifetime.
    pub(crate) expire_transactions: Box<dyn Fn(Duration, Duration) + Send>,
    /// Refreshes the rollups that are due, until the check fails.
    pub(crate) refresh_rollups: Option<RefreshRollups>,
    /// Completes the rollups on a collection before measurements of this time expire. False if they may not yet.
    pub(crate) freeze_rollups: FreezeRollups,
}

/// Work on rollups, which ends when the check fails.
pub(crate) type RefreshRollups = Box<dyn FnMut(&dyn Fn() -> Result<()>) + Send>;

/// Completes the rollups on a collection.
pub(crate) type FreezeRollups =
    Box<dyn Fn(&Arc<Collection>, i64, &dyn Fn() -> Result<()>) -> Result<bool> + Send>;

/// The threads. Dropping it stops them.
pub(crate) struct Background {
    /// Dropped to stop a thread.
    stops: Vec<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Background {
    /// Returns no threads.
    pub(crate) fn none() -> Self {
        Self {
            stops: Vec::new(),
            threads: Vec::new(),
        }
    }

    /// Starts the threads.
    pub(crate) fn start(mut context: BackgroundContext) -> std::io::Result<Self> {
        let mut background = Self {
            stops: Vec::new(),
            threads: Vec::new(),
        };
        let disk = Arc::clone(&context.disk);
        let (services, timeseries) = (context.services.clone(), context.timeseries.clone());
        let memory = MemoryMonitor::new(services, timeseries);
        background.spawn("database-watcher", move |stopped| {
            while stopped.recv_timeout(MONITOR_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                disk.observe();
                memory.observe();
            }
        })?;
        let refresh_rollups = context.refresh_rollups.take();
        if let Some(mut refresh) = refresh_rollups.filter(|_| !context.is_read_only) {
            background.spawn("rollups", move |stopped| {
                while stopped.recv_timeout(MAINTENANCE_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    refresh(&|| check_running(&stopped));
                }
            })?;
        }
        // The first interval begins when the database is opened, not when the thread starts.
        let ttl = TtlMonitor::new(&context.services);
        background.spawn("background", move |stopped| run(&context, ttl, &stopped))?;
        Ok(background)
    }

    fn spawn(
        &mut self,
        name: &str,
        work: impl FnOnce(Receiver<()>) + Send + 'static,
    ) -> std::io::Result<()> {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new().name(name.to_owned());
        self.threads.push(thread.spawn(move || work(stopped))?);
        self.stops.push(stop);
        Ok(())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stops.clear();
        for thread in self.threads.drain(..) {
            // A panic in a thread was reported when it occurred.
            let _ = thread.join();
        }
    }
}

/// Fails when the thread is to stop.
pub(super) fn check_running(stopped: &Receiver<()>) -> Result<()> {
    match stopped.try_recv() {
        Err(TryRecvError::Empty) => Ok(()),
        _ => Err(Error::new(
            ErrorCode::InterruptedAtShutdown,
            "interrupted at shutdown",
        )),
    }
}

fn run(context: &BackgroundContext, mut ttl: TtlMonitor, stopped: &Receiver<()>) {
    while stopped.recv_timeout(MAINTENANCE_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        let idle = context.services.parameters.cursor_timeout_millis();
        let idle = Duration::from_millis(u64::try_from(idle).unwrap_or(0));
        let now = context.services.clock.monotonic();
        (context.expire_cursors)(now, idle);
        let lifetime = context
            .services
            .parameters
            .transaction_lifetime_limit_seconds();
        let lifetime = Duration::from_secs(u64::try_from(lifetime).unwrap_or(0));
        (context.expire_transactions)(now, lifetime);
        context.timeseries.release_dropped();
        if !context.services.memory_is_short.load(Ordering::Relaxed) {
            context.timeseries.prefetch();
        }
        if context.is_read_only {
            continue;
        }
        // What could not be removed now is removed later.
        let _ = context
            .retryable_writes
            .expire(context.services.clock.now_ms());
        if let Some(log) = &context.change_log {
            let _ = log.maintain();
        }
        ttl.tick(context, stopped);
    }
}
