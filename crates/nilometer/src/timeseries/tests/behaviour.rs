//! The rules that choose and close buckets, each with its counter.

use std::sync::Arc;

use nilometer_bson::{Decimal128, Document, ObjectId, Value, array, doc};
use nilometer_storage::{Direction, Durability, KeyspaceId, WriteBatch};

use super::{Fixture, at};
use crate::catalog::{Namespace, TimeseriesOptions};
use crate::error::ErrorCode;
use crate::insertion::InsertOptions;
use crate::timeseries::BucketLimits;
use crate::timeseries::format::keyspaces::BucketKeyspaces;

fn limited(limits: BucketLimits) -> Fixture {
    Fixture::with(limits, doc! { "timeField": "t", "metaField": "m" })
}

fn counters(f: &Fixture, expected: &[(&str, i64)]) {
    for (name, value) in expected {
        assert_eq!(f.counter(name), *value, "{name}");
    }
}

/// A string of so many bytes, unlike the others.
fn text(number: usize, bytes: usize) -> String {
    let mut seed = number as u64 + 1;
    let letters = (0..bytes).map(|_| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        char::from(b'!' + (seed >> 33) as u8 % 90)
    });
    letters.collect()
}

fn counts(f: &Fixture) -> Vec<usize> {
    let buckets = f.buckets(false);
    let mut counts: Vec<_> = buckets.iter().map(|b| b.count()).collect();
    counts.sort_unstable();
    counts
}

#[test]
fn a_bucket_closes_at_its_size_as_compressed() {
    cov_mark::check!(bucket_measured_compressed);
    let f = Fixture::new();
    for second in 0..140 {
        let value = text(second, 1024);
        f.insert(&[at(second as i64, "a", value)], true);
    }
    counters(&f, &[("numBucketsClosedDueToSize", 1)]);
    let counts = counts(&f);
    assert!((115..=128).contains(&counts[1]), "{counts:?}");
    // The same string again and again hardly adds to the compressed document.
    let f = Fixture::new();
    for second in 0..300 {
        f.insert(&[at(second, "a", text(1, 1024))], true);
    }
    counters(&f, &[("numBucketsClosedDueToSize", 0)]);
}

#[test]
fn a_bucket_closes_early_under_cache_pressure() {
    let limits = BucketLimits {
        cache_bytes: 80_000,
        bytes_min: 1000,
        ..BucketLimits::default()
    };
    let fill = |f: &Fixture| {
        for second in 0..60 {
            let value = text(second, 500);
            f.insert(&[at(second as i64, "a", value)], true);
        }
    };
    // One active bucket: half of the cache is less than what is filled in.
    let f = limited(limits);
    fill(&f);
    counters(&f, &[("numBucketsClosedDueToCachePressure", 0)]);
    // Four of them have 10,000 bytes each.
    let f = limited(limits);
    for meta in ["b", "c", "d"] {
        f.insert(&[at(0, meta, 1)], true);
    }
    fill(&f);
    counters(
        &f,
        &[
            ("numBucketsClosedDueToCachePressure", 3),
            ("numBucketsClosedDueToSize", 0),
        ],
    );
    // Never below the least size, which may change at any time.
    let f = limited(BucketLimits {
        cache_bytes: 1000,
        ..limits
    });
    f.timeseries.bucket_catalog.set_bytes_min(30_000);
    f.insert(&[at(0, "b", 1)], true);
    fill(&f);
    counters(&f, &[("numBucketsClosedDueToCachePressure", 1)]);
    // Beyond the static limit it is the size, whatever the cache says.
    let f = limited(BucketLimits {
        bytes_max: 5000,
        ..limits
    });
    fill(&f);
    counters(&f, &[("numBucketsClosedDueToCachePressure", 0)]);
    assert!(f.counter("numBucketsClosedDueToSize") > 3);
}

#[test]
fn few_large_measurements_keep_a_bucket_open() {
    cov_mark::check!(large_bucket_kept_open);
    let fill = |limits, count: usize, bytes: usize| {
        let f = limited(limits);
        for second in 0..count {
            f.insert(&[at(second as i64, "a", text(second, bytes))], true);
        }
        f
    };
    // Two for the extremes and three for themselves are 10 MiB; the fourth is over 12.
    let f = fill(BucketLimits::default(), 4, 2 << 20);
    assert_eq!(counts(&f), [1, 3]);
    counters(
        &f,
        &[
            ("numBucketsClosedDueToSize", 1),
            ("numBucketsKeptOpenDueToLargeMeasurements", 1),
        ],
    );
    let f = fill(BucketLimits::default(), 12, 100_000);
    assert_eq!(counts(&f), [2, 10]);
    counters(&f, &[("numBucketsClosedDueToSize", 1)]);
    let limits = BucketLimits {
        count_min: 1,
        ..BucketLimits::default()
    };
    let f = fill(limits, 3, 200_000);
    assert_eq!(counts(&f), [1, 1, 1]);
    counters(
        &f,
        &[
            ("numBucketsClosedDueToSize", 2),
            ("numBucketsKeptOpenDueToLargeMeasurements", 0),
        ],
    );
    // A schema change is found all the same.
    let f = Fixture::new();
    f.insert(&[at(0, "a", text(0, 200_000)), at(1, "a", 1)], true);
    counters(&f, &[("numBucketsClosedDueToSchemaChange", 1)]);
}

#[test]
fn every_change_of_canonical_type_closes_a_bucket() {
    cov_mark::check!(rollover_by_schema_change);
    let f = Fixture::new();
    let steps: Vec<Value> = vec![
        ObjectId::default().into(),
        array![1, 2],
        Value::DateTime(5),
        Value::Undefined,
        "text".into(),
        Decimal128::default().into(),
        doc! { "a": 1 }.into(),
        7.into(),
    ];
    for (second, value) in steps.into_iter().enumerate() {
        let closed = f.counter("numBucketsClosedDueToSchemaChange");
        f.insert(&[at(second as i64, "a", value)], true);
        let now = f.counter("numBucketsClosedDueToSchemaChange");
        assert_eq!(now - closed, i64::from(second > 0), "step {second}");
    }
    // Numbers mix; nested types and `_id` count too; a missing field does not.
    let f = Fixture::new();
    for value in [
        1.into(),
        2i64.into(),
        1.5.into(),
        Decimal128::default().into(),
    ] {
        let value: Value = value;
        f.insert(&[at(0, "a", value)], true);
    }
    f.insert(
        &[doc! { "t": Value::DateTime(0), "m": "a", "_id": 1 }],
        true,
    );
    counters(&f, &[("numBucketsClosedDueToSchemaChange", 0)]);
    f.insert(
        &[doc! { "t": Value::DateTime(0), "m": "a", "_id": "x" }],
        true,
    );
    counters(&f, &[("numBucketsClosedDueToSchemaChange", 1)]);
    for value in [array![1], array!["s"]] {
        f.insert(&[at(0, "b", value)], true);
    }
    counters(&f, &[("numBucketsClosedDueToSchemaChange", 2)]);
}

#[test]
fn times_that_agree_in_an_id_do_not_share_a_bucket() {
    let f = Fixture::new();
    f.insert(&[at(30, "a", 1), at(30 + (1 << 32), "a", 1)], true);
    assert_eq!(f.buckets(false).len(), 2);
    // Rounding goes down before 1970 too.
    let options = doc! { "timeField": "t", "metaField": "m", "granularity": "hours" };
    let f = Fixture::with(BucketLimits::default(), options);
    f.insert(&[at(-3600, "a", 1), at(3600, "a", 1)], true);
    let buckets = f.buckets(false);
    assert!(buckets.iter().all(|b| {
        let start = match b.min("t") {
            nilometer_bson::ValueRef::DateTime(start) => start,
            _ => panic!("no start"),
        };
        start <= 3_600_000
    }));
}

#[test]
fn archived_buckets_are_fetched_and_at_last_closed() {
    cov_mark::check!(buckets_archived_for_memory);
    cov_mark::check!(archived_bucket_reopened);
    let f = Fixture::new();
    f.timeseries.bucket_catalog.set_memory_max(0);
    let insert_all = |second| {
        for number in 0..200 {
            f.insert(&[at(second, &format!("series {number}"), 1)], true);
        }
    };
    insert_all(0);
    let archived = f.counter("numBucketsArchivedDueToMemoryThreshold");
    assert!(archived > 100, "{archived}");
    insert_all(1);
    assert!(f.counter("numBucketsClosedDueToMemoryThreshold") > 50);
    let gauges = f.timeseries.bucket_catalog.gauges();
    // Each of 32 stripes spares the series just written.
    assert!(gauges.open <= 32 && gauges.archived <= 64, "{gauges:?}");
    let taken_up = f.counter("numBucketsFetched") + f.counter("numBucketsQueried");
    assert_eq!(taken_up, f.counter("numBucketsReopened"));
    assert_eq!(f.buckets(false).len(), 200);
    assert_eq!(counts(&f), [2; 200]);

    // With room for ids alone buckets are archived, and found by them.
    cov_mark::check!(archived_bucket_loaded_by_id);
    let f = Fixture::new();
    for round in 0..3 {
        for number in 0..500 {
            f.insert(&[at(round, &format!("series {number}"), 1)], true);
        }
        let bytes = f.timeseries.bucket_catalog.memory_bytes();
        f.timeseries.bucket_catalog.set_memory_max(bytes * 2 / 3);
    }
    assert!(f.counter("numBucketsFetched") > 100);
    assert_eq!(counts(&f), [3; 500]);
}

/// Removes every entry of a keyspace directly.
fn wipe(f: &Fixture, keyspace: KeyspaceId) {
    let mut batch = WriteBatch::new();
    let snapshot = f.engine.snapshot().unwrap();
    let scan = snapshot.scan(keyspace, &[], None, Direction::Forward);
    for item in scan.unwrap() {
        batch.delete(keyspace, item.unwrap().0.to_vec());
    }
    f.engine.commit(batch, Durability::Sync).unwrap();
}

#[test]
fn what_left_memory_is_found_without_a_search() {
    const SERIES: usize = 600;
    cov_mark::check!(evicted_bucket_reopened_by_hint);
    let f = Fixture::new();
    let insert_all = |second| {
        let document = |number| at(second, &format!("series {number}"), 1);
        let documents: Vec<_> = (0..SERIES).map(document).collect();
        f.insert(&documents, true);
    };
    // Room for a part of the series, and for the ids of all.
    f.timeseries.bucket_catalog.set_memory_max(150 << 10);
    insert_all(0);
    insert_all(1);
    f.timeseries.wait_for_maintenance().unwrap();
    assert!(f.counter("numBucketsClosedDueToMemoryThreshold") > 150);
    assert_eq!(counts(&f), [2; SERIES]);
    let keyspaces = BucketKeyspaces::of(&f.collection).unwrap();
    wipe(&f, keyspaces.series);
    let before = f.counter("numBucketsQueried");
    insert_all(2);
    // A few ids were overwritten.
    let found = counts(&f);
    let buckets = found.iter().filter(|count| **count == 3).count();
    assert!(buckets > SERIES * 9 / 10, "{buckets}");
    assert!(f.counter("numBucketsQueried") > before + 150);
    // A hint of another hour, or to a bucket that is gone, does no harm.
    insert_all(10_000);
    assert_eq!(counts(&f).len(), found.len() + SERIES);
    f.timeseries
        .expire(&f.catalog, &f.collection, 100_000_000)
        .unwrap();
    assert!(counts(&f).is_empty());
    insert_all(10_001);
    assert_eq!(counts(&f), [1; SERIES]);
}

#[test]
fn without_a_suitable_index_no_search_is_made() {
    let f = Fixture::with(BucketLimits::default(), doc! { "timeField": "t" });
    let one = |second: i64| doc! { "t": Value::DateTime(second * 1000), "_id": 1 };
    f.insert(&[one(0)], true);
    f.timeseries.bucket_catalog.clear(f.collection.uuid);
    f.insert(&[one(1)], true);
    counters(
        &f,
        &[
            ("numBucketsQueried", 0),
            ("numBucketQueriesFailed", 0),
            ("numBucketInserts", 2),
        ],
    );
    // An archived bucket needs no search.
    f.insert(&[one(-4000)], true);
    f.insert(&[one(2)], true);
    counters(&f, &[("numBucketsFetched", 1), ("numBucketInserts", 3)]);
}

#[test]
fn counters_of_one_command_count_buckets_not_documents() {
    let f = Fixture::new();
    f.insert(&[at(0, "a", 1), at(1, "b", 1), at(2, "a", 1)], true);
    counters(
        &f,
        &[
            ("numCommits", 2),
            ("numBucketInserts", 2),
            ("numMeasurementsCommitted", 3),
            ("numBucketQueriesFailed", 2),
        ],
    );
    f.insert(&[at(3, "a", 1)], true);
    counters(
        &f,
        &[
            ("numCommits", 3),
            ("numBucketUpdates", 1),
            ("numBucketQueriesFailed", 2),
            ("numWaits", 0),
            ("numMeasurementsGroupCommitted", 0),
        ],
    );
}

#[test]
fn gauges_follow_the_catalog() {
    let f = Fixture::new();
    let bucket_catalog = &f.timeseries.bucket_catalog;
    assert_eq!(bucket_catalog.gauges().open, 0);
    f.insert(&[at(7200, "a", 1), at(7200, "b", 1)], true);
    f.insert(&[at(0, "a", 1)], true);
    let gauges = bucket_catalog.gauges();
    assert_eq!((gauges.open, gauges.idle, gauges.archived), (2, 2, 1));
    assert_eq!((gauges.era, gauges.eras), (0, 1));
    assert_eq!(bucket_catalog.active_buckets(), 3);
    bucket_catalog.clear([9; 16]);
    f.insert(&[at(0, "c", 1)], true);
    let gauges = bucket_catalog.gauges();
    assert_eq!((gauges.era, gauges.eras), (1, 2));
    f.timeseries.forget(&f.collection);
    let gauges = bucket_catalog.gauges();
    assert_eq!((gauges.open, gauges.archived, gauges.eras), (0, 0, 0));
    assert_eq!(bucket_catalog.active_buckets(), 0);
    assert_eq!(bucket_catalog.memory_bytes(), 0);
    // The server's counters keep the counts.
    let totals = bucket_catalog.totals();
    let commits = totals.commits.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(commits, 4);
}

#[test]
fn a_column_within_a_measurement_is_refused() {
    let f = Fixture::new();
    let column = Value::Binary(nilometer_bson::Binary {
        subtype: 7,
        bytes: Arc::from([0u8]),
    });
    let inner = doc! { "a": array![doc! { "b": column.clone() }] };
    for value in [column, inner.into()] {
        let outcome = f.insert(&[at(0, "a", value), at(1, "a", 1)], false);
        assert_eq!((outcome.inserted, outcome.errors[0].error.code.0), (1, 2));
    }
}

#[test]
fn of_a_field_given_twice_the_first_counts() {
    let f = Fixture::new();
    let mut twice = nilometer_bson::DocumentBuilder::new();
    twice.append("t", Value::DateTime(1000)).append("m", "a");
    twice
        .append("v", 1)
        .append("t", "no time")
        .append("v", "text");
    let twice = twice.finish();
    // In a new bucket, and in one that knows the fields.
    for _ in 0..2 {
        assert_eq!(f.insert(std::slice::from_ref(&twice), true).inserted, 1);
    }
    let buckets = f.buckets(false);
    let names: Vec<_> = buckets.iter().map(|bucket| bucket.columns()).collect();
    assert_eq!(buckets.len(), 1, "{names:?}");
    assert_eq!((buckets[0].count(), names[0].len()), (2, 3), "{names:?}");
    let values = buckets[0].column("v").unwrap().unwrap().to_values();
    assert!(
        values.iter().all(|v| matches!(v, Value::Int32(1))),
        "{values:?}"
    );
}

#[test]
fn a_dropped_collection_fails_alone_in_a_batch_of_several() {
    let f = Fixture::new();
    let named = |name: &str, uuid: u8| {
        let options = doc! { "timeField": "t", "metaField": "m" };
        let options = TimeseriesOptions::parse(options.as_ref()).unwrap();
        let name = Namespace::new("db", name).unwrap();
        let made = f
            .catalog
            .create_timeseries(name, [uuid; 16], doc! {}, options);
        made.unwrap()
    };
    let (dropped, other) = (named("dropped", 2), named("other", 3));
    for keyspace in dropped.storage.keyspaces() {
        f.engine.drop_keyspace(keyspace).unwrap();
    }
    let documents = [at(1, "a", 1), at(2, "a", 2)];
    let all = || documents.iter().map(Document::as_ref);
    let inserts = [
        (other, all()),
        (dropped, all()),
        (f.collection.clone(), all()),
    ];
    let options = InsertOptions {
        ordered: false,
        durability: Durability::Buffered,
        new_id: &ObjectId::default,
        record: None,
    };
    let results = f.timeseries.insert_together(&f.catalog, &inserts, options);
    let inserted = results.iter().map(|result| match result {
        Ok(outcome) => outcome.inserted,
        Err(error) => {
            assert_eq!(error.code, ErrorCode::QueryPlanKilled);
            0
        }
    });
    assert_eq!(inserted.collect::<Vec<_>>(), [2, 0, 2]);
    assert_eq!(counts(&f), [2]);
}
