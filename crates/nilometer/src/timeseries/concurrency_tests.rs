//! Readers beside writers: what was acknowledged before a scan began is in it once, and nothing twice.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use nilometer_bson::{Document, ObjectId, Value, doc};
use nilometer_storage::{Durability, Engine, LsmEngine, LsmOptions, MemoryEngine};

use super::{BucketLimits, BucketRange, Timeseries};
use crate::catalog::{Catalog, Collection, Namespace, TimeseriesOptions};
use crate::insertion::InsertOptions;

/// How long each engine is exercised.
const DURATION: Duration = Duration::from_millis(1500);

const WRITERS: i64 = 4;

struct Shared {
    catalog: Catalog,
    timeseries: Arc<Timeseries>,
    collection: Arc<Collection>,
    /// Per writer: measurements acknowledged, numbered from 0.
    acknowledged: Vec<AtomicI64>,
    done: AtomicBool,
}

impl Shared {
    fn new(engine: Arc<dyn Engine>) -> Self {
        let catalog = Catalog::open(engine.clone()).unwrap();
        let options =
            TimeseriesOptions::parse(doc! { "timeField": "t", "metaField": "m" }.as_ref()).unwrap();
        let name = Namespace::new("db", "ts").unwrap();
        let collection = catalog
            .create_timeseries(name, [1; 16], doc! {}, options)
            .unwrap();
        // Small buckets, so that many close while others read.
        let limits = BucketLimits {
            count_max: 100,
            ..BucketLimits::default()
        };
        let timeseries = Arc::new(Timeseries::new(engine, limits, 7));
        let acknowledged = (0..WRITERS).map(|_| AtomicI64::new(0)).collect();
        Self {
            catalog,
            timeseries,
            collection,
            acknowledged,
            done: AtomicBool::new(false),
        }
    }

    /// Inserts until it is over: numbered measurements, mostly in order, over two series.
    fn write(&self, writer: i64) {
        let new_id = ObjectId::default;
        let options = InsertOptions {
            ordered: true,
            durability: Durability::Buffered,
            new_id: &new_id,
        };
        let mut next = 0i64;
        while !self.done.load(Ordering::Relaxed) {
            let size = next % 7 + 1;
            let documents: Vec<Document> = (next..next + size)
                .map(|number| {
                    let back = if number % 13 == 0 { 4_000_000 } else { 0 };
                    doc! {
                        "_id": writer * 1_000_000_000 + number,
                        "t": Value::DateTime(1_700_000_000_000 + number * 5_000 - back),
                        "m": (writer + number) % 2,
                        "v": number,
                    }
                })
                .collect();
            let documents = documents.iter().map(Document::as_ref);
            let outcome = self
                .timeseries
                .insert(&self.catalog, &self.collection, documents, options)
                .unwrap();
            assert!(outcome.errors.is_empty());
            next += size;
            self.acknowledged[writer as usize].store(next, Ordering::Release);
        }
    }

    /// Scans again and again, both ways.
    fn read(&self, backward: bool) -> usize {
        let mut scans = 0;
        while !self.done.load(Ordering::Relaxed) {
            self.check(backward);
            scans += 1;
        }
        scans
    }

    fn check(&self, backward: bool) {
        let before: Vec<i64> = self
            .acknowledged
            .iter()
            .map(|count| count.load(Ordering::Acquire))
            .collect();
        let range = BucketRange {
            backward,
            ..BucketRange::default()
        };
        let mut seen = HashSet::new();
        for bucket in self.timeseries.scan(&self.collection, range).unwrap() {
            let bucket = bucket.unwrap();
            let ids = bucket.column("_id").unwrap().unwrap();
            let values = bucket.column("v").unwrap().unwrap();
            assert_eq!(ids.len(), bucket.count());
            for row in 0..ids.len() {
                let id = ids.value(row).as_exact_i64().unwrap();
                assert_eq!(values.value(row).as_exact_i64(), Some(id % 1_000_000_000));
                assert!(seen.insert(id), "{id} twice");
            }
        }
        for (writer, count) in before.iter().enumerate() {
            for number in 0..*count {
                let id = writer as i64 * 1_000_000_000 + number;
                assert!(seen.contains(&id), "{id} was acknowledged and is not there");
            }
        }
    }
}

fn exercise(engine: Arc<dyn Engine>) {
    let shared = Shared::new(engine);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let shared = &shared;
            scope.spawn(move || shared.write(writer));
        }
        let readers = [false, true].map(|backward| {
            let shared = &shared;
            scope.spawn(move || shared.read(backward))
        });
        let end = Instant::now() + DURATION;
        while Instant::now() < end && readers.iter().all(|reader| !reader.is_finished()) {
            std::thread::sleep(Duration::from_millis(20));
        }
        shared.done.store(true, Ordering::Relaxed);
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
    let directory =
        std::env::temp_dir().join(format!("nilometer-concurrency-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    exercise(Arc::new(
        LsmEngine::open(&directory, LsmOptions::tiny()).unwrap(),
    ));
    let _ = std::fs::remove_dir_all(&directory);
}
