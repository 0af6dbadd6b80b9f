//! When rollups are refreshed, and how much of the machine that takes: at most half of one thread.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::{RefreshExtent, RollupRefresher};
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
        let catalog = &refresher.collections.catalog;
        let mut rollups = catalog.rollups();
        // A rollup reads the bins that the one below has just stored.
        rollups.sort_by_cached_key(|(namespace, rollup)| {
            let chain = catalog.rollup_chain(&namespace.database, &rollup.source);
            chain.map_or(0, |(below, _)| below.len())
        });
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
    if rollup.take_touch() {
        let extent = RefreshExtent::StoredBelow;
        if refresher.refresh(namespace, rollup, extent, &pace).is_err() {
            rollup.touch();
        }
    }
}

/// Returns what completes the rollups on a collection before its measurements expire.
pub(crate) fn freezing(refresher: RollupRefresher) -> FreezeRollups {
    Box::new(move |collection: &Arc<Collection>, cutoff_ms, check| {
        refresher.freeze_series(collection, cutoff_ms, check)
    })
}

#[cfg(test)]
mod tests {
    use bson::{DateTime, doc};

    use super::*;
    use crate::Database;
    use crate::background::Background;
    use crate::rollup::RollupView;

    const MINUTE_MS: i64 = 60_000;

    /// A database with a time series and a minutely, an hourly and a daily rollup, whose names are in the opposite order.
    /// No thread refreshes them.
    struct Hierarchy {
        database: Database,
        next_ms: i64,
    }

    impl Hierarchy {
        /// `refresh` is that of the minutely rollup in seconds.
        fn new(refresh: i32, lateness: [i32; 3]) -> Self {
            let mut database = Database::in_memory().unwrap();
            database._background = Background::none();
            let series = database.collection::<bson::Document>("db", "ts");
            series.create_timeseries("t", Some("m")).unwrap();
            for (at, (name, source, unit)) in
                [("c", "ts", "minute"), ("b", "c", "hour"), ("a", "b", "day")]
                    .into_iter()
                    .enumerate()
            {
                let trunc = doc! {"$dateTrunc": {"date": "$t", "unit": unit}};
                let sum = doc! {"$sum": "$v"};
                let stage = doc! {"$group": {"_id": {"t": trunc}, "v": sum}};
                let refresh = if at == 0 { refresh } else { 60 };
                let rollup = doc! {
                    "source": source, "pipeline": [stage], "lateness": lateness[at], "refresh": refresh,
                };
                database
                    .command("db", &doc! {"create": name, "rollup": rollup})
                    .unwrap();
            }
            Self {
                database,
                next_ms: 0,
            }
        }

        /// Inserts a measurement a minute.
        fn insert(&mut self, minutes: i64) {
            let series = self.database.collection::<bson::Document>("db", "ts");
            let first = self.next_ms;
            let measurements = (0..minutes)
                .map(|at| doc! {"t": DateTime::from_millis(first + at * MINUTE_MS), "v": 1});
            series.insert_many(measurements).unwrap();
            self.next_ms += minutes * MINUTE_MS;
        }

        fn rollup(&self, name: &str) -> Arc<StoredRollup> {
            let namespace = Namespace::new("db", name).unwrap();
            self.database.catalog().rollup(&namespace).unwrap()
        }

        /// Returns up to which hour the rollups have stored bins, from the minutely one on.
        fn stored_hours(&self) -> [i64; 3] {
            ["c", "b", "a"].map(|name| {
                let view = RollupView::open(self.database.rollups().engine(), &self.rollup(name));
                view.unwrap().progress.closed_ms.max(-1) / (60 * MINUTE_MS)
            })
        }

        fn bins_stored(&self) -> i64 {
            let counts = self.database.rollups().counters.to_document();
            counts.get("binsStored").as_exact_i64().unwrap()
        }

        /// Checks the sums of all days.
        fn check_sum(&self) {
            let days = self.database.collection::<bson::Document>("db", "a");
            let sum: i64 = days
                .find(doc! {})
                .unwrap()
                .map(|day| day.unwrap().get_i32("v").map(i64::from).unwrap())
                .sum();
            assert_eq!(sum, self.next_ms / MINUTE_MS);
        }
    }

    #[test]
    fn rollups_are_refreshed_after_those_they_stand_on() {
        let mut hierarchy = Hierarchy::new(60, [60, 60, 60]);
        let mut refresh = schedule(hierarchy.database.rollups().clone());
        hierarchy.insert(51 * 60);
        refresh(&|| Ok(()));
        // Each in one pass, and none stays touched.
        assert_eq!(hierarchy.stored_hours(), [50, 50, 48]);
        assert_eq!(hierarchy.bins_stored(), 51 * 60 - 2 + 50 + 2);
        let is_touched = ["a", "b", "c"].map(|name| hierarchy.rollup(name).is_touched());
        assert_eq!(is_touched, [false; 3]);
        hierarchy.check_sum();
    }

    #[test]
    fn a_rollup_stores_no_bin_that_is_open_below() {
        let mut hierarchy = Hierarchy::new(60, [60, 60, 3 * 3600]);
        let rollups = hierarchy.database.rollups().clone();
        hierarchy.insert(51 * 60);
        let refresh = |name: &str| {
            let namespace = Namespace::new("db", name).unwrap();
            let rollup = rollups.collections.catalog.rollup(&namespace).unwrap();
            refresh_at_ease(&rollups, &namespace, &rollup, &|| Ok(()));
            rollup.is_touched()
        };
        assert!(refresh("b"), "it waits for the rollup below");
        assert_eq!(hierarchy.stored_hours()[1..], [0, 0]);
        assert!(!refresh("c"));
        assert!(!refresh("b"));
        assert!(!refresh("a"));
        // The last is open for three hours more.
        assert_eq!(hierarchy.stored_hours(), [50, 50, 24]);
        hierarchy.check_sum();
    }

    #[test]
    fn a_rollup_does_not_wait_for_one_that_is_refreshed_less_often() {
        for refresh in [0, 61] {
            let mut hierarchy = Hierarchy::new(refresh, [60, 60, 60]);
            let rollups = hierarchy.database.rollups().clone();
            hierarchy.insert(51 * 60);
            let namespace = Namespace::new("db", "b").unwrap();
            refresh_at_ease(&rollups, &namespace, &hierarchy.rollup("b"), &|| Ok(()));
            assert_eq!(hierarchy.stored_hours(), [0, 50, 0]);
            hierarchy.check_sum();
        }
    }
}
