//! Threads that use one collection at once: their shared state, and how they write.
//!
//! Each writer numbers its measurements from 0 and publishes how many were acknowledged. A reader that loads these counts before it
//! reads must find at least as many of each, and none twice.

mod indexes;
mod readers;
mod registry;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use nilometer_bson::{Document, ObjectId, Value, doc};
use nilometer_storage::{Durability, Engine, LsmEngine, LsmOptions};

use crate::catalog::{Catalog, Collection, Namespace, TimeseriesOptions};
use crate::insertion::InsertOptions;
use crate::timeseries::{BucketLimits, Timeseries};

/// Measurements of a writer have numbers from its own range.
const NUMBERS_PER_WRITER: i64 = 1_000_000_000;

/// The measurements written.
#[derive(Clone, Copy)]
struct Load {
    writers: i64,
    /// Small buckets, so that many close while others read.
    measurements_per_bucket: usize,
    /// The metadata of a writer's measurement.
    meta: fn(i64, i64) -> Value,
}

/// The shared state of the threads of a test.
struct Shared {
    catalog: Arc<Catalog>,
    timeseries: Arc<Timeseries>,
    collection: Arc<Collection>,
    /// Per writer: measurements acknowledged, numbered from 0.
    acknowledged: Vec<AtomicI64>,
    done: AtomicBool,
    load: Load,
}

impl Shared {
    fn new(engine: Arc<dyn Engine>, load: Load) -> Self {
        let catalog = Arc::new(Catalog::open(engine.clone()).unwrap());
        let options =
            TimeseriesOptions::parse(doc! { "timeField": "t", "metaField": "m" }.as_ref()).unwrap();
        let name = Namespace::new("db", "ts").unwrap();
        let collection = catalog
            .create_timeseries(name, [1; 16], doc! {}, options)
            .unwrap();
        let limits = BucketLimits {
            count_max: load.measurements_per_bucket,
            ..BucketLimits::default()
        };
        let timeseries = Timeseries::new(engine, catalog.clone(), limits, 7).unwrap();
        Self {
            catalog,
            timeseries: Arc::new(timeseries),
            collection,
            acknowledged: (0..load.writers).map(|_| AtomicI64::new(0)).collect(),
            done: AtomicBool::new(false),
            load,
        }
    }

    fn is_over(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }

    /// Loads how many measurements of each writer were acknowledged.
    fn acknowledged(&self) -> Vec<i64> {
        let counts = self.acknowledged.iter();
        counts.map(|count| count.load(Ordering::Acquire)).collect()
    }

    /// Inserts until it is over: numbered measurements, mostly in order.
    fn write(&self, writer: i64) {
        let new_id = ObjectId::default;
        let options = InsertOptions {
            ordered: true,
            durability: Durability::Buffered,
            new_id: &new_id,
            record: None,
        };
        let mut next = 0i64;
        while !self.is_over() {
            let size = next % 7 + 1;
            let documents: Vec<Document> = (next..next + size)
                .map(|number| {
                    let back = if number % 13 == 0 { 4_000_000 } else { 0 };
                    doc! {
                        "_id": writer * NUMBERS_PER_WRITER + number,
                        "t": Value::DateTime(1_700_000_000_000 + number * 5_000 - back),
                        "m": (self.load.meta)(writer, number),
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

    /// Lets the threads run for a while, or until one of `readers` panicked.
    fn wait(&self, duration: Duration, readers: &[ScopedJoinHandle<'_, usize>]) {
        let end = Instant::now() + duration;
        while Instant::now() < end && readers.iter().all(|reader| !reader.is_finished()) {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.done.store(true, Ordering::Relaxed);
    }
}

/// Fails unless all measurements of each writer from `from` to below its count were seen.
fn assert_all_seen(counts: &[i64], from: i64, seen: &std::collections::HashSet<i64>) {
    for (writer, count) in counts.iter().enumerate() {
        for number in from..*count {
            let id = writer as i64 * NUMBERS_PER_WRITER + number;
            assert!(seen.contains(&id), "{id} was acknowledged and is not there");
        }
    }
}

/// Exercises the embedded engine with buffers so small that it flushes all the time.
pub(in super::super) fn on_disk(name: &str, exercise: fn(Arc<dyn Engine>)) {
    let directory = std::env::temp_dir().join(format!(
        "nilometer-concurrency-{name}-{}",
        std::process::id()
    ));
    let _ = std::fs::remove_dir_all(&directory);
    exercise(Arc::new(
        LsmEngine::open(&directory, LsmOptions::tiny()).unwrap(),
    ));
    let _ = std::fs::remove_dir_all(&directory);
}
