//! Background threads of the database: one for maintenance, and one that never blocks and observes the disk
//! and the memory.

pub(crate) mod disk;
mod memory;
mod ttl;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::catalog::Catalog;
use crate::services::Services;
use crate::timeseries::Timeseries;
use crate::write::Records;

use disk::DiskWatch;
use memory::MemoryWatch;
use ttl::TtlMonitor;

/// Interval of maintenance.
const TICK: Duration = Duration::from_millis(500);

/// Interval of the observation of disk and memory.
const WATCH_TICK: Duration = Duration::from_millis(250);

/// The parts of the database that background work uses.
pub(crate) struct Needs {
    pub(crate) services: Arc<Services>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) timeseries: Arc<Timeseries>,
    pub(crate) records: Arc<Records>,
    pub(crate) disk: Arc<DiskWatch>,
    /// Closes cursors idle for too long: the monotonic time now, and the idle limit.
    pub(crate) expire_cursors: Box<dyn Fn(Duration, Duration) + Send>,
}

/// The threads. Dropping it stops them.
pub(crate) struct Background {
    /// Dropped to stop a thread.
    stops: Vec<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Background {
    /// Starts the threads.
    pub(crate) fn start(needs: Needs) -> std::io::Result<Self> {
        let mut background = Self {
            stops: Vec::new(),
            threads: Vec::new(),
        };
        let disk = Arc::clone(&needs.disk);
        let (services, timeseries) = (needs.services.clone(), needs.timeseries.clone());
        let memory = MemoryWatch::new(services, timeseries);
        background.spawn("database-watcher", move |stopped| {
            while stopped.recv_timeout(WATCH_TICK) == Err(RecvTimeoutError::Timeout) {
                disk.look();
                memory.look();
            }
        })?;
        background.spawn("background", move |stopped| run(&needs, &stopped))?;
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

fn run(needs: &Needs, stopped: &Receiver<()>) {
    let mut ttl = TtlMonitor::new(&needs.services);
    while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
        let idle = needs.services.parameters.cursor_timeout_millis();
        let idle = Duration::from_millis(u64::try_from(idle).unwrap_or(0));
        (needs.expire_cursors)(needs.services.clock.monotonic(), idle);
        needs.timeseries.release_dropped();
        if !needs.services.memory_is_short.load(Ordering::Relaxed) {
            needs.timeseries.prefetch();
        }
        ttl.tick(needs, stopped);
    }
}
