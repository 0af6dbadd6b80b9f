//! Indexes beside writers, folding, removals and builds: a scan by index finds what was acknowledged before it began, and afterwards
//! every entry is as computed from scratch.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use nilometer_bson::key_string::{self, KeyBuilder, KeyOrder};
use nilometer_bson::{Document, Value, ValueRef, doc};
use nilometer_storage::testing::effort;
use nilometer_storage::{Durability, Engine, MemoryEngine};

use super::{Load, Shared, assert_all_seen, on_disk};
use crate::catalog::{IndexSpec, StoredIndex};
use crate::index::buckets::{BucketIndex, IndexKeyFilter, KeyPosition};
use crate::timeseries::BucketRange;
use crate::timeseries::index::spec::{CollationOrigin, to_buckets};

/// How long each engine is exercised in each way.
fn duration() -> Duration {
    Duration::from_millis(effort(400, 1200, 1200))
}

/// Arrays now and then, so that an index becomes multikey while it is in use.
const LOAD: Load = Load {
    writers: 3,
    measurements_per_bucket: 40,
    meta: |writer, number| match number % 29 {
        0 => doc! { "k": vec![Value::Int32(1), Value::Int32(2)] }.into(),
        _ => doc! { "k": (writer + number) % 3 }.into(),
    },
};

/// All keys below a bound.
#[derive(Debug)]
struct Below(Option<Vec<u8>>);

impl IndexKeyFilter for Below {
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

impl Shared {
    /// Builds an index over the stored buckets, as `createIndexes` does.
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
            .walk(&self.collection)
            .build_chunk(&self.catalog, &added, after, None)
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

    /// Builds and drops indexes of all kinds; those of the readers stay.
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
            if self.is_over() {
                return;
            }
            let (key, filter) = kinds[round % kinds.len()].clone();
            made.push(self.create_index(&format!("i{round}"), key, filter));
            if made.len() > 4 {
                self.drop_index(&made.remove(0));
            }
        }
    }

    /// Reads the buckets with values from some number on by an index.
    fn read_by(&self, index: &BucketIndex) -> usize {
        let mut scans = 0;
        while !self.is_over() {
            let before = self.acknowledged();
            let from = before.iter().max().map_or(0, |most| most / 2);
            let mut bound = KeyBuilder::new(KeyOrder::new([true]));
            bound.push(ValueRef::Int64(from));
            let wanted = Below(key_string::prefix_end(bound.finish().0));
            let range = BucketRange::default();
            let found = self
                .timeseries
                .reader
                .candidates(&self.collection, index, (&wanted, None), range)
                .unwrap()
                .unwrap();
            let mut seen = HashSet::new();
            let buckets = self
                .timeseries
                .reader
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
            assert_all_seen(&before, from, &seen);
            scans += 1;
        }
        scans
    }

    /// Removes buckets and restores some of them.
    fn remove(&self) {
        let mut round = 0;
        while !self.is_over() {
            round += 1;
            let scan = self
                .timeseries
                .reader
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

/// Readers by index beside writers and builds.
fn readers(engine: Arc<dyn Engine>) {
    let shared = Shared::new(engine, LOAD);
    let by_value = shared.create_index("v", doc! { "v": -1 }, None);
    let index = BucketIndex::of(&by_value, "t").unwrap();
    std::thread::scope(|scope| {
        let shared = &shared;
        for writer in 0..LOAD.writers {
            scope.spawn(move || shared.write(writer));
        }
        scope.spawn(|| shared.change_indexes());
        let reading = [0, 1].map(|_| scope.spawn(|| shared.read_by(&index)));
        shared.wait(duration(), &reading);
        for reader in reading {
            assert!(reader.join().unwrap() > 0);
        }
    });
    shared.validate();
}

/// Removals and raw writes beside writers and builds.
fn removals(engine: Arc<dyn Engine>) {
    let shared = Shared::new(engine, LOAD);
    std::thread::scope(|scope| {
        let shared = &shared;
        for writer in 0..LOAD.writers {
            scope.spawn(move || shared.write(writer));
        }
        scope.spawn(|| shared.change_indexes());
        scope.spawn(|| shared.remove());
        shared.wait(duration(), &[]);
    });
    shared.validate();
}

#[test]
fn readers_in_memory() {
    readers(Arc::new(MemoryEngine::new()));
}

#[test]
fn readers_on_disk_with_much_flushing() {
    on_disk("index-readers", readers);
}

#[test]
fn removals_in_memory() {
    removals(Arc::new(MemoryEngine::new()));
}

#[test]
fn removals_on_disk_with_much_flushing() {
    on_disk("index-removals", removals);
}
