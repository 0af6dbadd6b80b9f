//! Work the database does by itself, on a thread it owns and joins.

mod ttl;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::catalog::Catalog;
use crate::services::Services;
use crate::timeseries::Timeseries;
use crate::write::Records;

use ttl::TtlMonitor;

/// How often the thread looks whether something is to be done.
const TICK: Duration = Duration::from_millis(500);

/// What background work needs of the database.
pub(crate) struct Needs {
    pub(crate) services: Arc<Services>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) timeseries: Arc<Timeseries>,
    pub(crate) records: Arc<Records>,
    /// Closes cursors nobody has asked for too long: the monotonic time now, and how long that is.
    pub(crate) expire_cursors: Box<dyn Fn(Duration, Duration) + Send>,
}

/// The thread. Dropping it ends it.
pub(crate) struct Background {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts the thread.
    pub(crate) fn start(needs: Needs) -> std::io::Result<Self> {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new()
            .name("background".into())
            .spawn(move || run(&needs, &stopped))?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic in the thread has been reported where it happened.
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
        ttl.tick(needs, stopped);
    }
}
