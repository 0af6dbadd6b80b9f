//! Raw changes of bucket documents, damaged ones, and what writers see of both.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nilometer_bson::{Binary, Document, DocumentBuilder, ObjectId, Value, ValueRef, array, doc};
use nilometer_storage::{Direction, Durability, WriteBatch};

use super::{Draw, Fixture, at, measurements};
use crate::error::{ErrorCode, Result};
use crate::insertion::{InsertOptions, InsertOutcome};
use crate::timeseries::format::keyspaces::BucketKeyspaces;
use crate::timeseries::modify::raw::{BucketChange, RawChangeOptions};
use crate::timeseries::{BucketRange, StoredBucket};

fn put(f: &Fixture, documents: &[Document]) -> InsertOutcome {
    let options = InsertOptions {
        ordered: true,
        durability: Durability::Sync,
        new_id: &ObjectId::default,
        record: None,
    };
    let documents = documents.iter().map(Document::as_ref);
    f.timeseries
        .insert_buckets(&f.catalog, &f.collection, documents, options)
        .unwrap()
}

fn change(f: &Fixture, id: ObjectId, decide: impl Fn(&Document) -> BucketChange) -> Result<()> {
    let how = RawChangeOptions {
        check_interrupt: &|| Ok(()),
        durability: Durability::Sync,
        record: None,
    };
    f.timeseries
        .modify_buckets(&f.catalog, &f.collection, &[id], how, &mut |document| {
            Ok(decide(document))
        })
}

/// The document with one field set.
fn with(document: &Document, name: &str, value: impl Into<Value>) -> Document {
    let mut out = DocumentBuilder::new();
    for element in document.iter().filter(|element| element.name() != name) {
        out.append_element(element);
    }
    out.append(name, value.into());
    out.finish()
}

fn with_control(document: &Document, name: &str, value: impl Into<Value>) -> Document {
    let control = document.get("control").as_document().unwrap().to_document();
    with(document, "control", with(&control, name, value))
}

fn column(hex: &str) -> Value {
    let bytes: Vec<u8> = (0..hex.len() / 2)
        .map(|at| u8::from_str_radix(&hex[at * 2..at * 2 + 2], 16).unwrap())
        .collect();
    Value::Binary(Binary {
        subtype: 7,
        bytes: bytes.into(),
    })
}

#[test]
fn a_bucket_of_a_real_server_reads_back_as_its_measurements() {
    let f = Fixture::with(Default::default(), doc! { "timeField": "t" });
    let id = |last: u8| {
        let mut id = [
            0x63, 0x0f, 0xab, 0xf7, 0xc3, 0x88, 0x45, 0x6f, 0x8a, 0xea, 0x4f, 0,
        ];
        id[11] = last;
        ObjectId(id)
    };
    let bucket = doc! {
        "_id": ObjectId([0x63, 0x0e, 0xa4, 0x80, 0x20, 0x93, 0xf9, 0x98, 0x3f, 0xc3, 0x94, 0xdc]),
        "control": doc! {
            "version": 3,
            "min": doc! { "_id": id(0x2d), "t": Value::DateTime(1_661_904_000_000), "a": 0 },
            "max": doc! { "_id": id(0x2f), "t": Value::DateTime(1_661_904_001_000), "a": 1 },
            "count": 2,
        },
        // The time column need not come first.
        "data": doc! {
            "_id": column("0700630fabf7c388456f8aea4f2d804e0000000000000000"),
            "t": column("0900e89732f18201000080fe7c00000000000000"),
            "a": column("100000000000802e0000000000000000"),
        },
    };
    let outcome = put(&f, std::slice::from_ref(&bucket));
    assert_eq!(outcome.inserted, 1, "{:?}", outcome.errors);
    let check = |buckets: &[std::sync::Arc<StoredBucket>], more: usize| {
        let rows = measurements(&buckets[0]);
        assert_eq!((buckets.len(), rows.len()), (1, 2 + more));
        for (row, (id, time)) in [(id(0x2d), 1_661_904_001_000), (id(0x2f), 1_661_904_000_000)]
            .into_iter()
            .enumerate()
        {
            assert!(matches!(rows[row].get("_id"), ValueRef::ObjectId(found) if found == id));
            assert!(matches!(rows[row].get("t"), ValueRef::DateTime(found) if found == time));
            assert_eq!(rows[row].get("a").as_exact_i64(), Some(row as i64));
        }
    };
    check(&f.buckets(false), 0);
    assert_eq!(f.buckets(false)[0].to_document().unwrap(), bucket);
    // It is reopened like any other, where a search is possible.
    let f = Fixture::new();
    put(&f, &[bucket]);
    f.insert(
        &[doc! { "t": Value::DateTime(1_661_904_002_000), "_id": ObjectId::default(), "a": 5 }],
        true,
    );
    assert_eq!(f.counter("numBucketsQueried"), 1);
    check(&f.buckets(false), 1);
    f.timeseries.seal_all(&f.collection).unwrap();
    check(&f.buckets(false), 1);
}

#[test]
fn a_changed_bucket_is_forgotten_by_the_catalog() {
    cov_mark::check!(changed_bucket_evicted);
    let f = Fixture::new();
    f.insert(&[at(0, "a", 1)], true);
    let first = f.buckets(false)[0].id();
    // Removed: the next measurement opens another.
    change(&f, first, |_| BucketChange::Remove).unwrap();
    f.insert(&[at(1, "a", 1)], true);
    let second = f.buckets(false)[0].id();
    assert_eq!(f.buckets(false).len(), 1);
    assert_ne!(first, second);
    // Rewritten with another series: measurements of the first go elsewhere, of the other into it.
    change(&f, second, |d| BucketChange::Replace(with(d, "meta", "b"))).unwrap();
    f.insert(&[at(2, "a", 1), at(2, "b", 1)], true);
    let buckets = f.buckets(false);
    assert_eq!(buckets.len(), 2);
    let moved = buckets.iter().find(|b| b.id() == second).unwrap();
    assert_eq!((moved.meta().as_str(), moved.count()), (Some("b"), 2));
    // Closed: it is read, and takes nothing more, before and after sealing.
    change(&f, second, |d| {
        BucketChange::Replace(with_control(d, "closed", true))
    })
    .unwrap();
    f.insert(&[at(3, "b", 1)], true);
    f.timeseries.seal_all(&f.collection).unwrap();
    f.insert(&[at(4, "b", 1)], true);
    let buckets = f.buckets(false);
    assert_eq!(buckets.len(), 3);
    let closed = buckets.iter().find(|b| b.id() == second).unwrap();
    assert_eq!(closed.count(), 2);
    let control = closed.to_document().unwrap();
    let control = control.get("control").as_document().unwrap();
    assert!(matches!(control.get("closed"), ValueRef::Bool(true)));
    // Opened again it is found again.
    let before = f.counter("numBucketsReopened");
    f.timeseries.bucket_catalog.clear(f.collection.uuid);
    change(&f, second, |d| {
        BucketChange::Replace(with_control(d, "closed", false))
    })
    .unwrap();
    f.insert(&[at(5, "b", 1)], true);
    assert_eq!(f.counter("numBucketsReopened"), before + 1);
    let metrics = f.timeseries.metrics.to_document();
    assert_eq!(metrics.get("directDeleted").as_exact_i64(), Some(1));
    assert_eq!(metrics.get("directUpdated").as_exact_i64(), Some(3));
}

#[test]
fn what_is_no_bucket_is_refused_also_by_a_change() {
    let f = Fixture::new();
    f.insert(&[at(0, "a", 1)], true);
    let good = f.buckets(false)[0].to_document().unwrap();
    let id = f.buckets(false)[0].id();
    let cases = [
        (with(&good, "extra", 1), 121),
        (with(&good, "data", 1), 121),
        (with(&good, "control", 1), 121),
        (with_control(&good, "version", "2"), 121),
        (with_control(&good, "closed", 1), 121),
        (with_control(&good, "count", 0), 121),
        (with_control(&good, "count", "1"), 121),
        (with_control(&good, "min", doc! { "t": 1 }), 121),
        (with_control(&good, "other", 1), 121),
        (
            with_control(
                &good,
                "min",
                doc! { "t": Value::DateTime(0), "_id": 1, "v": "x" },
            ),
            408,
        ),
    ];
    for (bad, code) in cases {
        let error = change(&f, id, |_| BucketChange::Replace(bad.clone())).unwrap_err();
        assert_eq!(error.code.0, code, "{bad:?}");
        let outcome = put(&f, &[with(&bad, "_id", ObjectId([7; 12]))]);
        assert_eq!(outcome.errors[0].error.code.0, code, "{bad:?}");
    }
    assert_eq!(f.buckets(false)[0].to_document().unwrap(), good);
    assert_eq!(put(&f, &[good]).errors[0].error.code.0, 11000);
}

#[test]
fn a_version_1_bucket_is_compressed_when_it_is_next_written() {
    let f = Fixture::new();
    let bounds = |v: i32, ms: i64| doc! { "t": Value::DateTime(ms), "_id": 1, "v": v };
    put(
        &f,
        &[doc! {
            "_id": ObjectId([0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]),
            "control": doc! { "version": 1, "min": bounds(5, 0), "max": bounds(5, 1000) },
            "meta": "a",
            "data": doc! {
                "_id": doc! { "0": 1, "1": 1 },
                "t": doc! { "0": Value::DateTime(0), "1": Value::DateTime(1000) },
                "v": doc! { "1": 5 },
            },
        }],
    );
    assert_eq!(f.buckets(false)[0].version(), 1);
    f.timeseries.seal_all(&f.collection).unwrap();
    assert_eq!(f.buckets(false)[0].version(), 1);
    f.insert(&[at(2, "a", 6)], true);
    let buckets = f.buckets(false);
    assert_eq!((buckets.len(), buckets[0].version()), (1, 2));
    let values: Vec<_> = measurements(&buckets[0])
        .iter()
        .map(|m| m.get("v").as_exact_i64())
        .collect();
    assert_eq!(values, [None, Some(5), Some(6)]);
}

#[test]
fn writers_lose_nothing_to_changes_of_their_buckets() {
    let f = Fixture::new();
    let done = AtomicBool::new(false);
    let removed = Mutex::new(BTreeSet::new());
    let (catalog, collection, timeseries) = (&f.catalog, &f.collection, &f.timeseries);
    let write = |writer: i64| {
        let options = InsertOptions {
            ordered: true,
            durability: Durability::Buffered,
            new_id: &ObjectId::default,
            record: None,
        };
        let mut next = writer * 1_000_000;
        while !done.load(Ordering::Relaxed) {
            let documents: Vec<_> = (next..next + 5)
                .map(|id| {
                    let time = Value::DateTime(id % 1_000_000 * 300);
                    doc! { "_id": id, "t": time, "m": "a", "v": id }
                })
                .collect();
            let documents = documents.iter().map(Document::as_ref);
            timeseries
                .insert(catalog, collection, documents, options)
                .unwrap();
            next += 5;
        }
        next
    };
    let ids_of = |bucket: &StoredBucket| -> Vec<i64> {
        let rows = measurements(bucket);
        rows.iter()
            .map(|m| m.get("_id").as_exact_i64().unwrap())
            .collect()
    };
    let change = |seed: u64| {
        let mut draw = Draw::new(seed);
        let how = RawChangeOptions {
            check_interrupt: &|| Ok(()),
            durability: Durability::Buffered,
            record: None,
        };
        while !done.load(Ordering::Relaxed) {
            let scan = timeseries
                .reader
                .scan(collection, BucketRange::default())
                .unwrap();
            let ids: Vec<_> = scan.map(|bucket| bucket.unwrap().id()).collect();
            let newest = ids.iter().rev().take(3).copied().collect::<Vec<_>>();
            let mut gone = Vec::new();
            timeseries
                .modify_buckets(catalog, collection, &newest, how, &mut |document| {
                    let bucket = StoredBucket::from_document(document.clone(), "t").unwrap();
                    Ok(match draw.below(4) {
                        0 => {
                            gone.extend(ids_of(&bucket));
                            BucketChange::Remove
                        }
                        1 => BucketChange::Replace(with_control(document, "closed", true)),
                        2 => BucketChange::Replace(document.clone()),
                        _ => BucketChange::Keep,
                    })
                })
                .unwrap();
            removed.lock().unwrap().extend(gone);
        }
    };
    let ends: Vec<i64> = std::thread::scope(|scope| {
        let write = &write;
        let writers: Vec<_> = (0..3).map(|n| scope.spawn(move || write(n))).collect();
        let change = &change;
        let changers: Vec<_> = (0..2).map(|n| scope.spawn(move || change(n))).collect();
        let end = Instant::now()
            + Duration::from_millis(nilometer_storage::testing::effort(400, 1200, 1200));
        // On a busy machine no bucket may be removed in that time.
        let is_over = || Instant::now() >= end && !removed.lock().unwrap().is_empty();
        while !is_over() && changers.iter().all(|c| !c.is_finished()) {
            std::thread::sleep(Duration::from_millis(20));
        }
        done.store(true, Ordering::Relaxed);
        for changer in changers {
            changer.join().unwrap();
        }
        writers.into_iter().map(|w| w.join().unwrap()).collect()
    });
    let removed = removed.into_inner().unwrap();
    assert!(!removed.is_empty());
    let mut found = removed;
    for bucket in f.buckets(false) {
        for id in ids_of(&bucket) {
            assert!(found.insert(id), "{id} is there twice, or was removed");
        }
    }
    let written: BTreeSet<i64> = ends
        .iter()
        .enumerate()
        .flat_map(|(writer, end)| writer as i64 * 1_000_000..*end)
        .collect();
    assert!(found == written, "{} of {}", found.len(), written.len());
    let validation = f.timeseries.validate(&f.collection, &|| Ok(())).unwrap();
    assert_eq!(validation.problems, Vec::<String>::new());
}

/// Every stored value of a bucket: keyspace, key, bytes.
fn stored(f: &Fixture) -> Vec<(nilometer_storage::KeyspaceId, Vec<u8>, Vec<u8>)> {
    let keyspaces = BucketKeyspaces::of(&f.collection).unwrap();
    let snapshot = f.engine.snapshot().unwrap();
    let mut all = Vec::new();
    for keyspace in [keyspaces.open, keyspaces.sealed, keyspaces.tail] {
        for item in snapshot
            .scan(keyspace, &[], None, Direction::Forward)
            .unwrap()
        {
            let (key, value) = item.unwrap();
            all.push((keyspace, key.to_vec(), value.to_vec()));
        }
    }
    all
}

fn overwrite(f: &Fixture, place: &(nilometer_storage::KeyspaceId, Vec<u8>, Vec<u8>)) {
    let mut batch = WriteBatch::new();
    batch.put(place.0, place.1.clone(), place.2.clone());
    f.engine.commit(batch, Durability::Sync).unwrap();
}

#[test]
fn damage_is_reported_and_never_read_as_measurements() {
    let f = Fixture::new();
    f.insert(
        &(0..40)
            .map(|i| at(i, "sealed", i as i32))
            .collect::<Vec<_>>(),
        true,
    );
    f.timeseries.seal_all(&f.collection).unwrap();
    let doubled = array![1, 2.5, "x"];
    f.insert(&[at(0, "tail", doubled)], true);
    let expected: Vec<_> = f
        .buckets(false)
        .iter()
        .flat_map(|b| measurements(b))
        .collect();
    let mut draw = Draw::new(1);
    for place in stored(&f) {
        for _ in 0..nilometer_storage::testing::effort(50, 150, 150) {
            let mut damaged = place.clone();
            let at = draw.below(damaged.2.len() as u64) as usize;
            damaged.2[at] ^= 1 << draw.below(8);
            overwrite(&f, &damaged);
            let scan = f
                .timeseries
                .reader
                .scan(&f.collection, BucketRange::default())
                .unwrap();
            let mut errors = 0;
            for bucket in scan {
                match bucket {
                    Ok(bucket) => {
                        for measurement in measurements(&bucket) {
                            assert!(expected.contains(&measurement));
                        }
                    }
                    Err(error) => {
                        assert_eq!(error.code, ErrorCode::DataCorruptionDetected);
                        errors += 1;
                    }
                }
            }
            assert_eq!(errors, 1);
            let found = f.timeseries.validate(&f.collection, &|| Ok(())).unwrap();
            assert_eq!(found.invalid, 1, "{:?}", found.problems);
        }
        overwrite(&f, &place);
    }
    let found = f.timeseries.validate(&f.collection, &|| Ok(())).unwrap();
    assert_eq!(found.invalid, 0);
}

#[test]
fn a_bucket_that_cannot_be_read_is_frozen() {
    cov_mark::check!(unreadable_bucket_frozen);
    let f = Fixture::new();
    f.insert(&[at(0, "a", 1)], true);
    f.timeseries.seal_all(&f.collection).unwrap();
    let id = f.buckets(false)[0].id();
    let good = stored(&f).remove(0);
    let mut damaged = good.clone();
    *damaged.2.last_mut().unwrap() ^= 1;
    overwrite(&f, &damaged);
    for second in 1..4 {
        f.insert(&[at(second, "a", 1)], true);
    }
    assert_eq!(f.counter("numBucketsFrozen"), 1);
    assert_eq!(f.counter("numBucketReopeningsFailed"), 1);
    assert_eq!(f.counter("numBucketInserts"), 2);
    // It stays frozen when a fold finds it, and once it is readable again.
    overwrite(&f, &good);
    f.timeseries.bucket_catalog.clear(f.collection.uuid);
    f.timeseries.seal_all(&f.collection).unwrap();
    let counts: Vec<_> = f.buckets(false).iter().map(|b| b.count()).collect();
    assert_eq!(counts, [1, 3]);
    // A raw change unfreezes it.
    change(&f, id, |d| BucketChange::Replace(d.clone())).unwrap();
    assert!(
        !f.timeseries
            .bucket_catalog
            .is_frozen(f.collection.uuid, id.0)
    );
}

#[test]
fn validation_says_what_is_wrong() {
    let f = Fixture::new();
    f.insert(&[at(5, "a", 1), at(7, "a", 3)], true);
    f.timeseries.seal_all(&f.collection).unwrap();
    let good = f.buckets(false)[0].to_document().unwrap();
    let bounds = |v: i32, ms: i64| doc! { "t": Value::DateTime(ms), "_id": 1, "v": v };
    let with_bounds = |side: &str, bounds: Document| with_control(&good, side, bounds);
    let cases = [
        (with_bounds("max", bounds(9, 7000)), "control.max.v"),
        (with_bounds("max", bounds(3, 8000)), "control.max.t"),
        (with_bounds("min", bounds(0, 0)), "control.min.v"),
        (with_bounds("min", bounds(1, 6000)), "before control.min"),
        (
            with_bounds("min", with(&bounds(1, 0), "w", 1)),
            "control.min.w bounds a field",
        ),
        (with_bounds("min", bounds(1, -60_000)), "_id does not carry"),
    ];
    for (lie, told) in cases {
        let id = f.buckets(false)[0].id();
        change(&f, id, |_| BucketChange::Replace(lie.clone())).unwrap();
        let found = f.timeseries.validate(&f.collection, &|| Ok(())).unwrap();
        assert!(
            found.problems.iter().any(|p| p.contains(told)),
            "{told}: {:?}",
            found.problems
        );
    }
    let id = f.buckets(false)[0].id();
    change(&f, id, |_| BucketChange::Replace(good.clone())).unwrap();
    let problems = |f: &Fixture| {
        let found = f.timeseries.validate(&f.collection, &|| Ok(()));
        found.unwrap().problems
    };
    assert!(problems(&f).is_empty());
    // The series index: an entry too many, one too few, a bucket stored twice.
    let keyspaces = BucketKeyspaces::of(&f.collection).unwrap();
    let snapshot = f.engine.snapshot().unwrap();
    let mut scan = snapshot
        .scan(keyspaces.series, &[], None, Direction::Forward)
        .unwrap();
    let (key, _) = scan.next().unwrap().unwrap();
    let mut other = key.to_vec();
    other[0] ^= 1;
    overwrite(&f, &(keyspaces.series, other.clone(), Vec::new()));
    assert!(problems(&f)[0].contains("that is not so"));
    let mut batch = WriteBatch::new();
    batch.delete(keyspaces.series, other);
    batch.delete(keyspaces.series, key.to_vec());
    f.engine.commit(batch, Durability::Sync).unwrap();
    assert!(problems(&f)[0].contains("does not lead to it"));
    overwrite(&f, &(keyspaces.series, key.to_vec(), Vec::new()));
    let sealed = stored(&f).remove(0);
    overwrite(&f, &(keyspaces.open, sealed.1, sealed.2));
    assert!(problems(&f)[0].contains("twice"));
}
