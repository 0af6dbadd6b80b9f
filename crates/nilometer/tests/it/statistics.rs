//! The time-series sections of `serverStatus`, and the parameters that limit buckets.

use nilometer::Database;
use nilometer::parameters::Parameters;
use nilometer::services::{Environment, HostFacts};
use nilometer_bson::{Document, Value, array, doc};
use nilometer_storage::MemoryEngine;

use crate::support::{Fixture, TemporaryDirectory};

/// Returns a section of `serverStatus`, empty if it is absent.
fn section(fixture: &mut Fixture, name: &str) -> Document {
    let status = fixture.run(doc! { "serverStatus": 1 });
    let section = status.get(name).as_document();
    section.map_or_else(Document::new, |section| section.to_document())
}

fn number(document: &Document, name: &str) -> i64 {
    let value = document.get(name).as_exact_i64();
    value.unwrap_or_else(|| panic!("no {name}"))
}

fn create(fixture: &mut Fixture, name: &str) {
    let options = doc! { "timeField": "t", "metaField": "m" };
    fixture.run(doc! { "create": name, "timeseries": options });
}

fn insert(fixture: &mut Fixture, name: &str, second: i64, meta: i64) {
    let one = doc! { "t": Value::DateTime(second * 1000), "m": meta, "_id": second };
    fixture.run(doc! { "insert": name, "documents": array![one] });
}

#[test]
fn a_collection_counts_its_open_buckets_and_their_tails() {
    let mut f = Fixture::new();
    create(&mut f, "ts");
    create(&mut f, "other");
    insert(&mut f, "other", 7200, 1);
    let counts = |f: &mut Fixture| {
        let reply = f.run(doc! { "collStats": "ts" });
        let stats = reply.get("timeseries").as_document().unwrap();
        [
            "numOpenBuckets",
            "numArchivedBuckets",
            "numBucketsWithTail",
            "numTailMeasurements",
            "tailBytes",
        ]
        .map(|name| stats.get(name).as_exact_i64().unwrap())
    };
    assert_eq!(counts(&mut f), [0; 5]);
    insert(&mut f, "ts", 7200, 1);
    insert(&mut f, "ts", 7201, 1);
    insert(&mut f, "ts", 7200, 2);
    insert(&mut f, "ts", 0, 1);
    let [open, archived, with_tail, in_tails, bytes] = counts(&mut f);
    assert_eq!([open, archived, with_tail, in_tails], [2, 1, 3, 4]);
    assert!(bytes > 0);
}

#[test]
fn the_bucket_catalog_has_a_section_while_it_is_not_empty() {
    let mut f = Fixture::new();
    create(&mut f, "ts");
    assert!(section(&mut f, "bucketCatalog").is_empty());
    insert(&mut f, "ts", 7200, 1);
    insert(&mut f, "ts", 7200, 2);
    insert(&mut f, "ts", 0, 1);
    let status = section(&mut f, "bucketCatalog");
    for (name, value) in [
        ("numBuckets", 3),
        ("numOpenBuckets", 2),
        ("numIdleBuckets", 2),
        ("numArchivedBuckets", 1),
        ("numActiveBuckets", 3),
        ("numBucketInserts", 3),
        ("numBucketsArchivedDueToTimeBackward", 1),
        ("numCommits", 3),
        ("avgNumMeasurementsPerCommit", 1),
    ] {
        assert_eq!(number(&status, name), value, "{name}");
    }
    assert!(number(&status, "memoryUsage") > 0);
    let states = status.get("stateManagement").as_document().unwrap();
    for (name, value) in [
        ("bucketsManaged", 3),
        ("currentEra", 0),
        ("erasWithRemainingBuckets", 1),
        ("trackedClearOperations", 0),
    ] {
        assert_eq!(states.get(name).as_exact_i64(), Some(value), "{name}");
    }
    f.run(doc! { "drop": "ts" });
    assert!(section(&mut f, "bucketCatalog").is_empty());
    // Statistics of the server survive a collection; those of the collection restart.
    create(&mut f, "ts");
    insert(&mut f, "ts", 0, 1);
    let status = section(&mut f, "bucketCatalog");
    assert_eq!(number(&status, "numBucketInserts"), 4);
    let states = status.get("stateManagement").as_document().unwrap();
    assert_eq!(states.get("currentEra").as_exact_i64(), Some(1));
    let stats = f.run(doc! { "collStats": "ts" });
    let timeseries = stats.get("timeseries").as_document().unwrap();
    assert_eq!(timeseries.get("numBucketInserts").as_exact_i64(), Some(1));
    assert!(stats.get("count").is_missing() && stats.get("avgObjSize").is_missing());
}

#[test]
fn raw_writes_and_extended_ranges_are_counted() {
    let mut f = Fixture::new();
    for name in ["near", "far"] {
        create(&mut f, name);
        insert(&mut f, name, 0, 1);
    }
    let extended = |f: &mut Fixture| {
        let stats = section(f, "catalogStats");
        (
            number(&stats, "timeseries"),
            number(&stats, "timeseriesExtendedRange"),
        )
    };
    assert_eq!(extended(&mut f), (2, 0));
    insert(&mut f, "far", 1 << 33, 1);
    assert_eq!(extended(&mut f), (2, 1));
    let change =
        doc! { "q": doc! { "meta": 1 }, "u": doc! { "$set": doc! { "meta": 2 } }, "multi": true };
    f.run(doc! { "update": "system.buckets.far", "updates": array![change] });
    f.run(doc! { "delete": "system.buckets.near", "deletes": array![doc! { "q": doc! {}, "limit": 0 }] });
    let metrics = section(&mut f, "metrics");
    let timeseries = metrics.get("timeseries").as_document().unwrap();
    for (name, value) in [
        ("directUpdated", 2),
        ("directDeleted", 1),
        ("measurementDelete", 0),
        ("measurementUpdate", 0),
        ("metaDelete", 0),
        ("metaUpdate", 0),
    ] {
        assert_eq!(timeseries.get(name).as_exact_i64(), Some(value), "{name}");
    }
}

#[test]
fn parameters_limit_buckets_at_start_and_while_running() {
    let parameters = Parameters::default();
    for (name, value) in [
        ("timeseriesBucketMaxCount", "3"),
        ("timeseriesBucketMinSize", "2000000"),
        ("timeseriesIdleBucketExpiryMaxCountPerAttempt", "2"),
    ] {
        parameters.set_at_startup(name, value).unwrap();
    }
    for (name, value) in [
        ("timeseriesBucketMaxCount", "0"),
        ("timeseriesBucketMaxSize", "0"),
        ("timeseriesBucketMinCount", "x"),
        ("timeseriesIdleBucketExpiryMaxCountPerAttempt", "1"),
        ("timeseriesSideBucketCatalogMemoryUsageThreshold", "1"),
    ] {
        assert!(parameters.set_at_startup(name, value).is_err(), "{name}");
    }
    let environment = Environment {
        parameters,
        host: HostFacts {
            memory_bytes: 1 << 30,
            ..HostFacts::default()
        },
        ..Environment::default()
    };
    let engine = std::sync::Arc::new(MemoryEngine::new());
    let mut f = Fixture::of(Database::with_engine(engine, environment).unwrap());
    create(&mut f, "ts");
    for second in 0..7 {
        insert(&mut f, "ts", second, 1);
    }
    let stats = section(&mut f, "bucketCatalog");
    assert_eq!(number(&stats, "numBucketsClosedDueToCount"), 2);
    // With a threshold of one byte every series but the last written one is archived; each of 32 locks
    // keeps one.
    let threshold = doc! { "setParameter": 1, "timeseriesIdleBucketExpiryMemoryUsageThreshold": 1 };
    let reply = f.reply_on("admin", threshold);
    assert_eq!(reply.get("ok").as_exact_i64(), Some(1));
    for meta in 0..200 {
        insert(&mut f, "ts", 0, meta);
    }
    let stats = section(&mut f, "bucketCatalog");
    assert!(number(&stats, "numBucketsArchivedDueToMemoryThreshold") > 100);
    assert!(number(&stats, "numOpenBuckets") <= 32);
}

#[test]
fn command_times_are_reported_by_class() {
    let mut f = Fixture::new();
    let count = |f: &mut Fixture| {
        let all = section(f, "opLatencies");
        ["reads", "writes", "commands", "transactions"].map(|class| {
            let one = all.get(class).as_document().expect("a class");
            assert!(number(&one.to_document(), "latency") >= 0);
            number(&one.to_document(), "ops")
        })
    };
    let before = count(&mut f);
    f.run(doc! {"insert": "c", "documents": array![doc! {"_id": 1}, doc! {"_id": 2}]});
    f.run(doc! {"find": "c"});
    f.run(doc! {"count": "c"});
    let after = count(&mut f);
    assert_eq!(after[0] - before[0], 2);
    assert_eq!(after[1] - before[1], 1);
    assert!(after[2] > before[2], "serverStatus is a command itself");
    assert_eq!(after[3], 0);
}

/// Returns size, count and average of `collStats`, and the `dataSize` of the database.
fn document_sizes(fixture: &mut Fixture) -> (i64, i64, i64, i64) {
    let stats = fixture.run(doc! { "collStats": "c" });
    let all = fixture.run(doc! { "dbStats": 1 });
    let average = number(&stats, "avgObjSize");
    (
        number(&stats, "size"),
        number(&stats, "count"),
        average,
        number(&all, "dataSize"),
    )
}

#[test]
fn sizes_of_an_ordinary_collection_are_bytes_of_its_documents() {
    let directory = TemporaryDirectory::new();
    let small = doc! { "_id": 1, "a": "x" };
    let large = doc! { "_id": 2, "a": "x".repeat(1000) };
    let changed = doc! { "_id": 1, "a": "x".repeat(77) };
    let bytes = |documents: &[&Document]| -> i64 {
        documents.iter().map(|d| d.as_bytes().len() as i64).sum()
    };
    let mut f = Fixture::open(&directory.0);
    f.run(doc! { "insert": "c", "documents": array![small.clone(), large.clone()] });
    let both = bytes(&[&small, &large]);
    assert_eq!(document_sizes(&mut f), (both, 2, both / 2, both));
    let update = doc! { "q": doc! { "_id": 1 }, "u": changed.clone() };
    f.run(doc! { "update": "c", "updates": array![update] });
    let both = bytes(&[&changed, &large]);
    assert_eq!(document_sizes(&mut f), (both, 2, both / 2, both));
    let delete = doc! { "q": doc! { "_id": 2 }, "limit": 1 };
    f.run(doc! { "delete": "c", "deletes": array![delete] });
    let one = bytes(&[&changed]);
    assert_eq!(document_sizes(&mut f), (one, 1, one, one));
    drop(f);
    // After a start the documents are read.
    let mut f = Fixture::open(&directory.0);
    assert_eq!(document_sizes(&mut f), (one, 1, one, one));
}
