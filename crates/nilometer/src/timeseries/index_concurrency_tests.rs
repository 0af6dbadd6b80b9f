//! Indexes beside writers, folding, removals and builds: what was acknowledged before a scan by index
//! began is found by it, and afterwards every entry is as computed from scratch.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use nilometer_bson::key_string::{self, KeyBuilder, KeyOrder};
use nilometer_bson::{Document, ObjectId, Value, ValueRef, doc};
use nilometer_storage::{Durability, Engine, LsmEngine, LsmOptions, MemoryEngine};

use super::index_conversion::{CollationOrigin, to_buckets};
use super::{BucketLimits, BucketRange, Timeseries};
use crate::catalog::{Catalog, Collection, IndexSpec, Namespace, StoredIndex, TimeseriesOptions};
use crate::index::buckets::{BucketIndex, KeyPosition, WantedKeys};
use crate::insertion::InsertOptions;

/// How long each engine is exercised in each way.
const DURATION: Duration = Duration::from_millis(1200);

const WRITERS: i64 = 3;

/// Measurements of a writer have numbers from its own range.
const NUMBERS_PER_WRITER: i64 = 1_000_000_000;

/// All keys below a bound.
#[derive(Debug)]
struct Below(Option<Vec<u8>>);

impl WantedKeys for Below {
    fn start(&self) -> Vec<u8> {
        Vec::new()
    }

    fn end(&self) -> Option<Vec<u8>> {
        self.0.clone()
    }

    fn position(&self, _: &[u8]) -> crate::error::Result<KeyPosition> {
        Ok(KeyPosition::Inside)
    }
}

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
        let limits = BucketLimits {
            count_max: 40,
            ..BucketLimits::default()
        };
        Self {
            catalog,
            timeseries: Arc::new(Timeseries::new(engine, limits, 7)),
            collection,
            acknowledged: (0..WRITERS).map(|_| AtomicI64::new(0)).collect(),
            done: AtomicBool::new(false),
        }
    }

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
                    // Arrays now and then, so that an index becomes multikey while it is in use.
                    let meta: Value = match number % 29 {
                        0 => doc! { "k": vec![Value::Int32(1), Value::Int32(2)] }.into(),
                        _ => doc! { "k": (writer + number) % 3 }.into(),
                    };
                    doc! {
                        "_id": writer * NUMBERS_PER_WRITER + number,
                        "t": Value::DateTime(1_700_000_000_000 + number * 5_000 - back),
                        "m": meta,
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

    /// Makes an index over what is there, as `createIndexes` does.
    fn create_index(
        &self,
        name: &str,
        key: Document,
        filter: Option<Document>,
    ) -> Arc<StoredIndex> {
        let options = self.collection.timeseries.as_ref().unwrap();
        let user = IndexSpec {
            key,
            name: name.to_owned(),
            partial_filter: filter,
            ..IndexSpec::default()
        };
        let spec = to_buckets(options, &user, CollationOrigin::default()).unwrap();
        let added = self
            .catalog
            .add_indexes(&self.collection, 0, |_| Ok(vec![spec]))
            .unwrap();
        let mut after = None;
        while let Some(last) = self
            .timeseries
            .build_chunk(&self.catalog, &self.collection, &added, after)
            .unwrap()
            .last
        {
            after = Some(last);
        }
        self.catalog
            .finish_index(&self.collection, &added[0])
            .unwrap();
        added[0].clone()
    }

    fn drop_index(&self, index: &StoredIndex) {
        let keyspace = index.keyspace;
        self.catalog
            .drop_indexes(&self.collection, |_| Ok(vec![keyspace]))
            .unwrap();
    }

    /// Makes and drops indexes of all kinds; the readers' stay.
    fn change_indexes(&self) {
        let kinds = [
            (doc! { "t": -1 }, None),
            (doc! { "m.k": 1, "t": 1 }, None),
            (doc! { "v": 1 }, None),
            (doc! { "m": 1, "v": -1 }, None),
            (doc! { "t": 1 }, Some(doc! { "v": doc! { "$gt": 50 } })),
            (doc! { "m.k": 1 }, Some(doc! { "m.k": doc! { "$gte": 1 } })),
        ];
        let mut made = Vec::new();
        for round in 0.. {
            if self.done.load(Ordering::Relaxed) {
                return;
            }
            let (key, filter) = kinds[round % kinds.len()].clone();
            made.push(self.create_index(&format!("i{round}"), key, filter));
            if made.len() > 4 {
                self.drop_index(&made.remove(0));
            }
        }
    }

    /// Asks an index for the buckets with values from some number on.
    fn read(&self, index: &BucketIndex) -> usize {
        let mut scans = 0;
        while !self.done.load(Ordering::Relaxed) {
            let before: Vec<i64> = self
                .acknowledged
                .iter()
                .map(|count| count.load(Ordering::Acquire))
                .collect();
            let from = before.iter().max().map_or(0, |most| most / 2);
            let mut bound = KeyBuilder::new(KeyOrder::new([true]));
            bound.push(ValueRef::Int64(from));
            let wanted = Below(key_string::prefix_end(bound.finish().0));
            let range = BucketRange::default();
            let found = self
                .timeseries
                .candidates(&self.collection, index, &wanted, range)
                .unwrap()
                .unwrap();
            let mut seen = HashSet::new();
            let buckets = self
                .timeseries
                .scan_listed(&self.collection, found.ids, range)
                .unwrap();
            for bucket in buckets {
                let bucket = bucket.unwrap();
                let ids = bucket.column("_id").unwrap().unwrap();
                for row in 0..ids.len() {
                    let id = ids.value(row).as_exact_i64().unwrap();
                    assert!(seen.insert(id), "{id} twice");
                }
            }
            for (writer, count) in before.iter().enumerate() {
                for number in from..*count {
                    let id = writer as i64 * NUMBERS_PER_WRITER + number;
                    assert!(seen.contains(&id), "{id} was acknowledged and is not there");
                }
            }
            scans += 1;
        }
        scans
    }

    /// Takes buckets out and puts some of them back.
    fn remove(&self) {
        let mut round = 0;
        while !self.done.load(Ordering::Relaxed) {
            round += 1;
            let scan = self
                .timeseries
                .scan(&self.collection, BucketRange::default())
                .unwrap();
            let ids: Vec<_> = scan.take(40).map(|bucket| bucket.unwrap().id().0).collect();
            let mut changes = self.timeseries.change_buckets(&self.collection).unwrap();
            for (at, id) in ids.into_iter().enumerate() {
                let Some(document) = changes.claim(id).unwrap() else {
                    continue;
                };
                match (at + round) % 5 {
                    0 => changes.remove(id).unwrap(),
                    1 => changes.replace(id, document.as_ref()).unwrap(),
                    _ => {}
                }
            }
            changes.commit(&self.catalog, Durability::Buffered).unwrap();
        }
    }

    fn validate(&self) {
        for _ in 0..2 {
            let found = self
                .timeseries
                .validate(&self.collection, &|| Ok(()))
                .unwrap();
            assert_eq!(found.problems, [""; 0]);
            self.timeseries.seal_all(&self.collection).unwrap();
        }
    }
}

fn wait(scope: &[std::thread::ScopedJoinHandle<'_, usize>], shared: &Shared) {
    let end = Instant::now() + DURATION;
    while Instant::now() < end && scope.iter().all(|thread| !thread.is_finished()) {
        std::thread::sleep(Duration::from_millis(20));
    }
    shared.done.store(true, Ordering::Relaxed);
}

/// Readers by index beside writers and builds.
fn readers(engine: Arc<dyn Engine>) {
    let shared = Shared::new(engine);
    let by_value = shared.create_index("v", doc! { "v": -1 }, None);
    let index = BucketIndex::of(&by_value, "t").unwrap();
    std::thread::scope(|scope| {
        let shared = &shared;
        for writer in 0..WRITERS {
            scope.spawn(move || shared.write(writer));
        }
        scope.spawn(|| shared.change_indexes());
        let reading = [0, 1].map(|_| scope.spawn(|| shared.read(&index)));
        wait(&reading, shared);
        for reader in reading {
            assert!(reader.join().unwrap() > 0);
        }
    });
    shared.validate();
}

/// Removals and raw writes beside writers and builds.
fn removals(engine: Arc<dyn Engine>) {
    let shared = Shared::new(engine);
    std::thread::scope(|scope| {
        let shared = &shared;
        for writer in 0..WRITERS {
            scope.spawn(move || shared.write(writer));
        }
        scope.spawn(|| shared.change_indexes());
        scope.spawn(|| shared.remove());
        wait(&[], shared);
    });
    shared.validate();
}

fn on_disk(name: &str, exercise: fn(Arc<dyn Engine>)) {
    let directory =
        std::env::temp_dir().join(format!("nilometer-ix-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    exercise(Arc::new(
        LsmEngine::open(&directory, LsmOptions::tiny()).unwrap(),
    ));
    let _ = std::fs::remove_dir_all(&directory);
}

#[test]
fn readers_in_memory() {
    readers(Arc::new(MemoryEngine::new()));
}

#[test]
fn readers_on_disk_with_much_flushing() {
    on_disk("readers", readers);
}

#[test]
fn removals_in_memory() {
    removals(Arc::new(MemoryEngine::new()));
}

#[test]
fn removals_on_disk_with_much_flushing() {
    on_disk("removals", removals);
}
