//! When the log is stored.
//!
//! ```text
//! synced batch    ─┬─ at once, or when the flush interval since the last object began has passed ─► one object with all of them
//! large batch     ─┤  at once
//! buffered batch  ─┴─ with one of the others, or after BUFFERED_INTERVALS
//! ```
//!
//! SlateDB stores one object after the other. A buffered batch, such as one of the background, does not begin one that a synced
//! batch would then have to wait for.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::{join, select};
use slatedb::Db;
use slatedb::config::{FlushOptions, FlushType};
use slatedb_common::clock::SystemClock;
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use crate::lock::lock;

/// Flush intervals for which a buffered batch waits for a synced one.
const BUFFERED_INTERVALS: u32 = 5;

/// Stores what the log has in memory.
pub(crate) const LOG_FLUSH: FlushOptions = FlushOptions {
    flush_type: FlushType::Wal,
};

/// How soon a batch is to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    /// Its writer does not wait.
    Buffered,
    /// Its writer waits, and may share the object with others.
    Synced,
    /// Its writer waits, and it fills an object by itself.
    Large,
}

/// Stores the log.
#[derive(Default)]
pub(crate) struct LogFlusher {
    /// The most urgent of the batches that the next flush stores.
    wanted: Mutex<Option<Urgency>>,
    changed: Notify,
}

impl LogFlusher {
    /// Starts to store the log of a database.
    pub(crate) fn start(
        runtime: &Runtime,
        db: &Db,
        clock: Arc<dyn SystemClock>,
        interval: Duration,
    ) -> Arc<Self> {
        let flusher = Arc::new(Self::default());
        runtime.spawn(Arc::clone(&flusher).run(db.clone(), clock, interval));
        flusher
    }

    /// Notes that a batch was committed.
    pub(crate) fn add(&self, urgency: Urgency) {
        let mut wanted = lock(&self.wanted);
        if *wanted < Some(urgency) {
            *wanted = Some(urgency);
            self.changed.notify_one();
        }
    }

    /// Waits for a batch that is at least so urgent.
    async fn until(&self, urgency: Urgency) {
        while *lock(&self.wanted) < Some(urgency) {
            self.changed.notified().await;
        }
    }

    /// Stores the log until the database is closed.
    async fn run(self: Arc<Self>, db: Db, clock: Arc<dyn SystemClock>, interval: Duration) {
        let status = db.subscribe();
        while status.borrow().close_reason.is_none() {
            self.until(Urgency::Buffered).await;
            let patience = pin!(clock.sleep(interval.saturating_mul(BUFFERED_INTERVALS)));
            select(pin!(self.until(Urgency::Synced)), patience).await;
            // Batches are noted after they are in the log, so this flush stores all that were noted until here.
            *lock(&self.wanted) = None;
            let (large, pause) = (
                pin!(self.until(Urgency::Large)),
                pin!(clock.sleep(interval)),
            );
            let pause = select(large, pause);
            // SlateDB repeats requests that fail. If it does not, it closes the database.
            let _ = join(db.flush_with_options(LOG_FLUSH), pause).await;
        }
    }
}
