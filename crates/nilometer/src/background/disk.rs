//! Detection of a disk that does not answer, on a thread that never waits for the disk.
//!
//! Four times a second the pending calls to the disk are examined. One older than the parameter
//! `nilometerStuckDiskMillis` is logged, again whenever its age has doubled, and once more when it returns.
//! Nothing is cancelled or refused: waiting writes continue when the disk does, and reads proceed
//! meanwhile. [`DiskMonitor::status`] feeds `serverStatus` and the health check.
//!
//! The engine refuses writes when the disk is full or cannot be written; the start, with the reason, and
//! the end are logged. An engine that has ended, or whose database another process has taken over, serves nothing any more:
//! the process is asked to end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nilometer_storage::{DiskWait, Engine, Error};
use tracing::{error, info, warn};

use crate::services::{Services, StorageEnd};

/// Observes slow calls to the disk.
pub(crate) struct DiskMonitor {
    engine: Arc<dyn Engine>,
    services: Arc<Services>,
    logged: Mutex<LoggedEvents>,
}

/// The events logged so far.
#[derive(Debug, Default)]
struct LoggedEvents {
    /// Logged calls that have not returned, with the age at which each is logged again.
    stuck: BTreeMap<u64, (DiskWait, Duration)>,
    /// The number of logged calls.
    total: u64,
    /// True if the refusal of writes was logged.
    refuses: bool,
}

/// An event to log.
#[derive(Debug, PartialEq, Eq)]
enum DiskEvent {
    /// A call has not returned.
    Stuck(DiskWait),
    /// The call has returned. Its age is the last observed one.
    Returned(DiskWait),
}

/// The state of the disk for writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct DiskStatus {
    /// Calls that exceed the limit now.
    pub(crate) stuck: usize,
    /// The oldest of them.
    pub(crate) oldest: Option<DiskWait>,
    /// Their number since opening.
    pub(crate) total: u64,
    /// The longest call since opening.
    pub(crate) longest: Duration,
}

impl DiskMonitor {
    pub(crate) fn new(engine: Arc<dyn Engine>, services: Arc<Services>) -> Self {
        Self {
            engine,
            services,
            logged: Mutex::default(),
        }
    }

    /// Returns the current state of the disk.
    pub(crate) fn status(&self) -> DiskStatus {
        let limit = self.limit();
        let mut waits = self.engine.disk_waits();
        waits.in_flight.retain(|wait| wait.age >= limit);
        DiskStatus {
            stuck: waits.in_flight.len(),
            total: self.logged().total,
            longest: waits.longest,
            oldest: waits.in_flight.into_iter().max_by_key(|wait| wait.age),
        }
    }

    /// Examines the pending calls once and logs events.
    pub(super) fn observe(&self) {
        self.observe_writes();
        let waits = self.engine.disk_waits().in_flight;
        let events = self.logged().compare(waits, self.limit());
        for event in events {
            match event {
                DiskEvent::Stuck(wait) => warn!(
                    c = "STORAGE",
                    id = 22_440,
                    what = wait.what,
                    waitingMillis = millis(wait.age),
                    "The disk does not answer; writes wait for it"
                ),
                DiskEvent::Returned(wait) => info!(
                    c = "STORAGE",
                    id = 22_441,
                    what = wait.what,
                    waitedMillis = millis(wait.age),
                    "The disk has answered"
                ),
            }
        }
    }

    fn observe_writes(&self) {
        let refusal = match self.engine.check_writable() {
            // The caller that closed the engine knows.
            Err(Error::Closed) => return,
            outcome => outcome.err(),
        };
        let end = match &refusal {
            Some(Error::Fenced { .. }) => Some(StorageEnd::TakenOver),
            Some(Error::Ended { .. }) => Some(StorageEnd::Failed),
            _ => None,
        };
        if let (Some(end), Some(request)) = (end, self.services.storage_ended.get()) {
            // Again each time: the process may have been starting.
            request(end);
        }
        let refused_before = std::mem::replace(&mut self.logged().refuses, refusal.is_some());
        match (refusal, refused_before) {
            (Some(Error::Fenced { reason }), false) => error!(
                c = "STORAGE",
                id = 22_446,
                reason,
                "Another process has taken over the database; this one can neither read nor write it any more"
            ),
            (Some(Error::Ended { reason }), false) => error!(
                c = "STORAGE",
                id = 22_447,
                reason,
                "Storage has ended; nothing can be read or written until the database is opened again"
            ),
            (Some(reason), false) => warn!(
                c = "STORAGE",
                id = 22_444,
                reason = %reason,
                "Writes are refused; reads proceed"
            ),
            (None, true) => info!(c = "STORAGE", id = 22_445, "Writes are accepted again"),
            _ => {}
        }
    }

    fn limit(&self) -> Duration {
        let limit = self.services.parameters.nilometer_stuck_disk_millis();
        // The table of parameters keeps it above zero.
        Duration::from_millis(u64::try_from(limit).unwrap_or(u64::MAX))
    }

    fn logged(&self) -> std::sync::MutexGuard<'_, LoggedEvents> {
        self.logged.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LoggedEvents {
    /// Compares the pending calls with the logged ones.
    fn compare(&mut self, in_flight: Vec<DiskWait>, limit: Duration) -> Vec<DiskEvent> {
        let mut events = Vec::new();
        let mut before = std::mem::take(&mut self.stuck);
        for wait in in_flight {
            let again = match before.remove(&wait.id) {
                Some((_, again)) => again,
                None if wait.age < limit => continue,
                None => {
                    self.total += 1;
                    wait.age
                }
            };
            let next = match wait.age >= again {
                true => {
                    events.push(DiskEvent::Stuck(wait.clone()));
                    wait.age.saturating_mul(2)
                }
                false => again,
            };
            self.stuck.insert(wait.id, (wait, next));
        }
        let over = before
            .into_values()
            .map(|(wait, _)| DiskEvent::Returned(wait));
        events.extend(over);
        events
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(id: u64, age_ms: u64) -> DiskWait {
        DiskWait {
            id,
            what: format!("sync {id}"),
            age: Duration::from_millis(age_ms),
        }
    }

    #[test]
    fn a_call_is_logged_at_the_limit_at_doublings_and_at_its_end() {
        let mut logged = LoggedEvents::default();
        let limit = Duration::from_millis(100);
        let mut look = |in_flight: &[(u64, u64)]| {
            let in_flight = in_flight.iter().map(|(id, age)| wait(*id, *age));
            logged.compare(in_flight.collect(), limit)
        };
        assert_eq!(look(&[(1, 99)]), []);
        assert_eq!(look(&[(1, 110)]), [DiskEvent::Stuck(wait(1, 110))]);
        assert_eq!(look(&[(1, 219), (2, 20)]), []);
        assert_eq!(look(&[(1, 220), (2, 90)]), [DiskEvent::Stuck(wait(1, 220))]);
        assert_eq!(
            look(&[(1, 300), (2, 120)]),
            [DiskEvent::Stuck(wait(2, 120))]
        );
        assert_eq!(
            look(&[(1, 500)]),
            [
                DiskEvent::Stuck(wait(1, 500)),
                DiskEvent::Returned(wait(2, 120))
            ]
        );
        assert_eq!(look(&[]), [DiskEvent::Returned(wait(1, 500))]);
        assert_eq!(look(&[]), []);
        assert_eq!(logged.total, 2);
    }
}
