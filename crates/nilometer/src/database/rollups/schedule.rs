//! When rollups are refreshed, and how much of the machine that takes: at most half of one thread.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::RollupRefresher;
use crate::background::{FreezeRollups, RefreshRollups};
use crate::catalog::{Collection, Namespace, StoredRollup};
use crate::error::Result;

/// The longest rest after a step.
const REST_MAX: Duration = Duration::from_millis(100);

/// Returns the work of the thread of rollups: each call refreshes those that are due.
pub(crate) fn schedule(refresher: RollupRefresher) -> RefreshRollups {
    let mut last = HashMap::<[u8; 16], Duration>::new();
    Box::new(move |check| {
        let clock = Arc::clone(&refresher.services.clock);
        let rollups = refresher.collections.catalog.rollups();
        last.retain(|uuid, _| rollups.iter().any(|(_, rollup)| rollup.uuid == *uuid));
        for (namespace, rollup) in rollups {
            let interval_ms = rollup.options().refresh_ms;
            let interval = Duration::from_millis(u64::try_from(interval_ms).unwrap_or(0));
            let now = clock.monotonic();
            let is_due = last
                .get(&rollup.uuid)
                .is_none_or(|then| now.saturating_sub(*then) >= interval);
            if interval.is_zero() || !is_due || check().is_err() {
                continue;
            }
            last.insert(rollup.uuid, now);
            refresh_at_ease(&refresher, &namespace, &rollup, check);
        }
    })
}

/// Refreshes a rollup, and rests after each step as long as it took.
fn refresh_at_ease(
    refresher: &RollupRefresher,
    namespace: &Namespace,
    rollup: &Arc<StoredRollup>,
    check: &dyn Fn() -> Result<()>,
) {
    let clock = &refresher.services.clock;
    let began = Cell::new(clock.monotonic());
    let pace = || {
        let worked = clock.monotonic().saturating_sub(began.get());
        std::thread::sleep(worked.min(REST_MAX));
        began.set(clock.monotonic());
        check()
    };
    // What fails, for instance because the rollup was dropped, is tried again.
    let _ = refresher.expire(namespace, rollup, &pace);
    if rollup.take_touch() && refresher.refresh(namespace, rollup, &pace).is_err() {
        rollup.touch();
    }
}

/// Returns what completes the rollups on a collection before its measurements expire.
pub(crate) fn freezing(refresher: RollupRefresher) -> FreezeRollups {
    Box::new(move |collection: &Arc<Collection>, cutoff_ms, check| {
        refresher.freeze_series(collection, cutoff_ms, check)
    })
}
