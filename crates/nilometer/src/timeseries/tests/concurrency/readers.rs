//! Readers beside writers: a scan sees what was acknowledged before it began once, and nothing twice.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use nilometer_storage::testing::effort;
use nilometer_storage::{Engine, MemoryEngine};

use super::{Load, NUMBERS_PER_WRITER, Shared, assert_all_seen, on_disk};
use crate::timeseries::BucketRange;

/// How long each engine is exercised.
fn duration() -> Duration {
    Duration::from_millis(effort(400, 1500, 1500))
}

/// Two series.
const LOAD: Load = Load {
    writers: 4,
    measurements_per_bucket: 100,
    meta: |writer, number| ((writer + number) % 2).into(),
};

impl Shared {
    /// Scans again and again.
    fn read(&self, backward: bool) -> usize {
        let mut scans = 0;
        while !self.is_over() {
            self.check(backward);
            scans += 1;
        }
        scans
    }

    fn check(&self, backward: bool) {
        let before = self.acknowledged();
        let range = BucketRange {
            backward,
            ..BucketRange::default()
        };
        let mut seen = HashSet::new();
        for bucket in self
            .timeseries
            .reader
            .scan(&self.collection, range)
            .unwrap()
        {
            let bucket = bucket.unwrap();
            let ids = bucket.column("_id").unwrap().unwrap();
            let values = bucket.column("v").unwrap().unwrap();
            assert_eq!(ids.len(), bucket.count());
            for row in 0..ids.len() {
                let id = ids.value(row).as_exact_i64().unwrap();
                let number = id % NUMBERS_PER_WRITER;
                assert_eq!(values.value(row).as_exact_i64(), Some(number));
                assert!(seen.insert(id), "{id} twice");
            }
        }
        assert_all_seen(&before, 0, &seen);
    }
}

fn exercise(engine: Arc<dyn Engine>) {
    let shared = &Shared::new(engine, LOAD);
    std::thread::scope(|scope| {
        for writer in 0..LOAD.writers {
            scope.spawn(move || shared.write(writer));
        }
        let readers = [false, true].map(|backward| scope.spawn(move || shared.read(backward)));
        shared.wait(duration(), &readers);
        for reader in readers {
            assert!(reader.join().unwrap() > 0);
        }
    });
    shared.check(false);
    shared.timeseries.seal_all(&shared.collection).unwrap();
    shared.check(true);
}

#[test]
fn in_memory() {
    exercise(Arc::new(MemoryEngine::new()));
}

#[test]
fn on_disk_with_much_flushing() {
    on_disk("scans", exercise);
}
