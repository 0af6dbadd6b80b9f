//! The registry of series beside writers of series that come and go.

use std::sync::Arc;
use std::time::Duration;

use nilometer_storage::testing::effort;
use nilometer_storage::{Engine, MemoryEngine};

use super::{Load, Shared, on_disk};

/// Both writers write to eight series, one after the other, so that each has lost its buckets before it returns: a series returns after
/// more than three hours, and buckets expire after one.
const LOAD: Load = Load {
    writers: 2,
    measurements_per_bucket: 10,
    meta: |_, number| (number / 300 % 8).into(),
};

impl Shared {
    /// Removes what both writers have left behind.
    fn expire(&self) -> usize {
        let mut removed = 0;
        while !self.is_over() {
            let slowest = self.acknowledged().into_iter().min().unwrap_or(0);
            let cutoff_ms = 1_700_000_000_000 + slowest * 5_000;
            let expired = self
                .timeseries
                .expire(&self.catalog, &self.collection, cutoff_ms);
            removed += expired.unwrap();
        }
        removed
    }

    fn check_registered(&self) -> usize {
        let found = self.timeseries.validate(&self.collection, &|| Ok(()));
        let problems = found.unwrap().problems;
        let unregistered = problems
            .iter()
            .find(|problem| problem.contains("registered"));
        assert_eq!(unregistered, None);
        1
    }
}

fn exercise(engine: Arc<dyn Engine>) {
    let shared = Shared::new(engine, LOAD);
    std::thread::scope(|scope| {
        for writer in 0..LOAD.writers {
            let shared = &shared;
            scope.spawn(move || shared.write(writer));
        }
        let removing = scope.spawn(|| shared.expire());
        let checking = scope.spawn(|| {
            let mut checks = 0;
            while !shared.is_over() {
                checks += shared.check_registered();
            }
            checks
        });
        let duration = Duration::from_millis(effort(300, 3000, 60_000));
        shared.wait(duration, &[removing, checking]);
    });
    shared.check_registered();
}

#[test]
fn series_that_return_are_registered_in_memory() {
    exercise(Arc::new(MemoryEngine::new()));
}

#[test]
fn series_that_return_are_registered_on_disk() {
    on_disk("registry", exercise);
}
