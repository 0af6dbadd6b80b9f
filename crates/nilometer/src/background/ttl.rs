//! The TTL monitor: every `ttlMonitorSleepSecs` it removes what has expired.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use nilometer_bson::ValueRef;

use crate::catalog::{Catalog, Collection};
use crate::error::Result;
use crate::services::Services;
use crate::timeseries::Timeseries;

/// How often a change of `ttlMonitorSleepSecs` is noticed.
const TICK: Duration = Duration::from_millis(500);

/// The thread that expires documents. Dropping it ends the thread.
pub(crate) struct TtlMonitor {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl TtlMonitor {
    /// Starts the thread.
    pub(crate) fn start(
        services: Arc<Services>,
        catalog: Arc<Catalog>,
        timeseries: Arc<Timeseries>,
    ) -> std::io::Result<Self> {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new()
            .name("ttl-monitor".into())
            .spawn(move || {
                run(&services, &catalog, &timeseries, &stopped);
            })?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for TtlMonitor {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic in the thread has been reported where it happened.
            let _ = thread.join();
        }
    }
}

fn run(
    services: &Services,
    catalog: &Catalog,
    timeseries: &Arc<Timeseries>,
    stopped: &Receiver<()>,
) {
    let mut last = services.clock.monotonic();
    while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
        let sleep = u64::try_from(services.parameters.ttl_monitor_sleep_secs()).unwrap_or(60);
        if services.clock.monotonic().saturating_sub(last) < Duration::from_secs(sleep) {
            continue;
        }
        last = services.clock.monotonic();
        if services.parameters.ttl_monitor_enabled() != 0 {
            for collection in catalog.collections() {
                // A collection that fails, as one just dropped does, is tried again next time.
                let _ = expire(&collection, timeseries, services.clock.now_ms());
            }
        }
    }
}

/// Removes what has expired from one collection; returns how many buckets went.
fn expire(
    collection: &Arc<Collection>,
    timeseries: &Arc<Timeseries>,
    now_ms: i64,
) -> Result<usize> {
    match expire_after_ms(collection) {
        Some(after) => timeseries.expire(collection, now_ms.saturating_sub(after)),
        None => Ok(0),
    }
}

/// `expireAfterSeconds` of a collection, in ms.
fn expire_after_ms(collection: &Collection) -> Option<i64> {
    match collection.options.get("expireAfterSeconds") {
        ValueRef::Missing => None,
        seconds => seconds
            .as_exact_i64()
            .map(|seconds| seconds.saturating_mul(1000)),
    }
}
