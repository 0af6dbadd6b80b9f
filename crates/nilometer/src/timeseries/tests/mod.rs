//! Tests of the write path, against a list of the measurements written.

mod arrival;
mod behaviour;
mod concurrency;
mod raw;
mod simulation;

pub(super) use concurrency::on_disk;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use nilometer_bson::column::scalar_at_path;
use nilometer_bson::{DocRef, Document, DocumentBuilder, ObjectId, Value, ValueRef, array, doc};
use nilometer_storage::{Durability, Engine, MemoryEngine};

use super::format::bucket_document::Layout;
use super::format::keyspaces::BucketKeyspaces;
use super::insert::{InsertStatement, StagedInsert};
use super::scan::bucket_parts;
use super::{BucketLimits, BucketRange, StoredBucket, Timeseries};
use crate::catalog::{Catalog, Collection, Namespace, TimeseriesOptions};
use crate::insertion::{InsertOptions, InsertOutcome};

pub(super) struct Fixture {
    pub(super) engine: Arc<dyn Engine>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) timeseries: Arc<Timeseries>,
    pub(super) collection: Arc<Collection>,
    ids: Cell<u32>,
}

impl Fixture {
    pub(super) fn new() -> Self {
        Self::with(
            BucketLimits::default(),
            doc! { "timeField": "t", "metaField": "m" },
        )
    }

    /// A collection with these limits and time-series options.
    pub(super) fn with(limits: BucketLimits, options: Document) -> Self {
        Self::over(Arc::new(MemoryEngine::new()), limits, options)
    }

    /// The same in this engine.
    pub(super) fn over(engine: Arc<dyn Engine>, limits: BucketLimits, options: Document) -> Self {
        let catalog = Arc::new(Catalog::open(engine.clone()).unwrap());
        let options = TimeseriesOptions::parse(options.as_ref());
        let name = Namespace::new("db", "ts").unwrap();
        let collection = catalog
            .create_timeseries(name, [1; 16], doc! {}, options.unwrap())
            .unwrap();
        let timeseries = Timeseries::new(engine.clone(), catalog.clone(), limits, 7);
        let timeseries = Arc::new(timeseries.unwrap());
        Self {
            engine,
            catalog,
            timeseries,
            collection,
            ids: Cell::new(0),
        }
    }

    /// The same storage with empty memory, as after a crash. Bucket ids start elsewhere, as random ones do.
    pub(super) fn reopened(self) -> Self {
        let Self {
            engine,
            catalog,
            timeseries,
            collection,
            ids,
        } = self;
        // One engine has one owner.
        drop(timeseries);
        ids.set(ids.get() + 1);
        let limits = BucketLimits::default();
        let suffix = u64::from(ids.get()) << 40;
        let timeseries = Timeseries::new(engine.clone(), catalog.clone(), limits, suffix);
        Self {
            timeseries: Arc::new(timeseries.unwrap()),
            engine,
            catalog,
            collection,
            ids,
        }
    }

    pub(super) fn insert(&self, documents: &[Document], ordered: bool) -> InsertOutcome {
        let new_id = || {
            self.ids.set(self.ids.get() + 1);
            let mut id = [0; 12];
            id[8..].copy_from_slice(&self.ids.get().to_be_bytes());
            ObjectId(id)
        };
        let options = InsertOptions {
            ordered,
            durability: Durability::Sync,
            new_id: &new_id,
            record: None,
        };
        let documents = documents.iter().map(Document::as_ref);
        self.timeseries
            .insert(&self.catalog, &self.collection, documents, options)
            .unwrap()
    }

    pub(super) fn stage(&self, documents: &[Document]) -> StagedInsert {
        stage(&self.timeseries, &self.catalog, &self.collection, documents).unwrap()
    }

    /// The steps behind [`Fixture::stage`].
    pub(super) fn arrive(&self, mut staged: StagedInsert) {
        let committed = staged.commit(&*self.engine, Durability::Sync);
        staged.finish(&self.timeseries, committed).unwrap();
    }

    pub(super) fn buckets(&self, backward: bool) -> Vec<Arc<StoredBucket>> {
        let range = BucketRange {
            backward,
            ..BucketRange::default()
        };
        self.timeseries
            .reader
            .scan(&self.collection, range)
            .unwrap()
            .map(Result::unwrap)
            .collect()
    }

    pub(super) fn counter(&self, name: &str) -> i64 {
        let mut out = DocumentBuilder::new();
        self.timeseries
            .bucket_catalog
            .counters(self.collection.uuid)
            .append(&mut out);
        out.finish().get(name).as_exact_i64().unwrap()
    }
}

/// The steps of an insert up to the commit: its entries are staged, and invisible to readers.
pub(super) fn stage(
    timeseries: &Arc<Timeseries>,
    catalog: &Catalog,
    collection: &Arc<Collection>,
    documents: &[Document],
) -> crate::error::Result<StagedInsert> {
    let options = InsertOptions {
        ordered: true,
        durability: Durability::Sync,
        new_id: &ObjectId::default,
        record: None,
    };
    let insert = InsertStatement {
        timeseries,
        catalog,
        collection,
        options,
    };
    insert.stage(documents.iter().map(Document::as_ref))
}

pub(super) fn at(seconds: i64, meta: &str, value: impl Into<Value>) -> Document {
    doc! { "_id": 1, "t": Value::DateTime(seconds * 1000), "m": meta, "v": value.into() }
}

/// The measurements of a bucket as documents with fields in order of name.
pub(super) fn measurements(bucket: &StoredBucket) -> Vec<Document> {
    (0..bucket.count())
        .map(|row| {
            let mut fields: BTreeMap<String, Value> = BTreeMap::new();
            fields.insert("m".into(), bucket.meta().to_value());
            for name in bucket.columns() {
                let column = bucket.column(name).unwrap().unwrap();
                fields.insert(name.to_string(), column.to_value(row));
            }
            from_fields(fields)
        })
        .collect()
}

fn from_fields(fields: BTreeMap<String, Value>) -> Document {
    let mut out = DocumentBuilder::new();
    for (name, value) in fields {
        out.append(&name, value);
    }
    out.finish()
}

pub(super) fn sorted_fields(document: DocRef<'_>) -> Document {
    from_fields(
        document
            .iter()
            .map(|e| (e.name().to_owned(), e.value().to_value()))
            .collect(),
    )
}

fn sorted(mut documents: Vec<Document>) -> Vec<Document> {
    documents.sort_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
    documents
}

#[test]
fn a_bucket_looks_as_documented() {
    let f = Fixture::new();
    f.insert(&[at(70, "a", 5), at(65, "a", 3)], true);
    let buckets = f.buckets(false);
    let bucket = buckets[0].to_document().unwrap();
    let control = bucket.get("control").as_document().unwrap();
    let names: Vec<_> = bucket.iter().map(|e| e.name().to_owned()).collect();
    assert_eq!(names, ["_id", "control", "meta", "data"]);
    assert_eq!(control.get("version").as_exact_i64(), Some(2));
    assert_eq!(control.get("count").as_exact_i64(), Some(2));
    let min = control.get("min").as_document().unwrap();
    assert!(matches!(min.get("t"), ValueRef::DateTime(60_000)));
    assert!(matches!(min.get("v"), ValueRef::Int32(3)));
    let max = control.get("max").as_document().unwrap();
    assert!(matches!(max.get("t"), ValueRef::DateTime(70_000)));
    assert_eq!(buckets[0].id().timestamp_seconds(), 60);
    let data = bucket.get("data").as_document().unwrap();
    assert_eq!(
        data.iter().map(|e| e.name()).collect::<Vec<_>>(),
        ["t", "_id", "v"]
    );
    assert_eq!(bucket.get("meta").as_str(), Some("a"));
}

#[test]
fn counters_follow_the_worked_example() {
    let f = Fixture::new();
    f.insert(&[at(0, "a", 1), at(1, "a", 2), at(2, "a", 3)], true);
    for (name, value) in [
        ("numBucketInserts", 1),
        ("numBucketsOpenedDueToMetadata", 1),
        ("numCommits", 1),
        ("numMeasurementsCommitted", 3),
    ] {
        assert_eq!(f.counter(name), value, "{name}");
    }
    let many: Vec<_> = (0..1100).map(|i| at(i, "b", i as i32)).collect();
    f.insert(&many, true);
    for (name, value) in [
        ("numBucketInserts", 3),
        ("numBucketsClosedDueToCount", 1),
        ("numBucketsOpenedDueToMetadata", 2),
        ("numCommits", 3),
    ] {
        assert_eq!(f.counter(name), value, "{name}");
    }
    assert_eq!(f.buckets(false).len(), 3);

    let f = Fixture::new();
    for minute in (0..10).rev() {
        f.insert(&[at(minute * 60, "a", 1)], true);
    }
    assert_eq!(f.counter("numBucketInserts"), 10);
    assert_eq!(f.counter("numBucketUpdates"), 0);
    assert_eq!(f.counter("numBucketsArchivedDueToTimeBackward"), 9);
    assert_eq!(f.counter("numBucketsOpenedDueToMetadata"), 1);
    assert_eq!(f.counter("numBucketQueriesFailed"), 10);
}

#[test]
fn times_going_back_between_commits_unsort_a_bucket() {
    cov_mark::check_count!(bucket_becomes_unsorted, 1);
    let f = Fixture::new();
    f.insert(&[at(30, "a", 1)], true);
    f.insert(&[at(30, "a", 2)], true);
    assert!(f.buckets(false)[0].is_sorted());
    f.insert(&[at(20, "a", 3)], true);
    let buckets = f.buckets(false);
    assert_eq!((buckets.len(), buckets[0].version()), (1, 3));
    assert_eq!(f.counter("numCompressedBucketsConvertedToUnsorted"), 1);
}

#[test]
fn a_shuffled_batch_fills_few_buckets() {
    let f = Fixture::new();
    let shuffled: Vec<_> = (0..2000)
        .map(|i| at(i * 7919 % 20_000, "a", i as i32))
        .collect();
    f.insert(&shuffled, true);
    let buckets = f.buckets(false);
    assert_eq!(buckets.len(), 6);
    assert!(buckets.iter().all(|bucket| bucket.is_sorted()));
}

#[test]
fn schema_changes_and_spans_close_buckets() {
    let f = Fixture::new();
    let steps: [Value; 6] = [
        1.into(),
        "s".into(),
        array![1],
        Value::DateTime(5),
        doc! { "a": 1 }.into(),
        2.5.into(),
    ];
    for (second, value) in steps.into_iter().enumerate() {
        f.insert(&[at(second as i64, "a", value)], true);
    }
    assert_eq!(f.counter("numBucketsClosedDueToSchemaChange"), 5);
    f.insert(&[at(3600, "a", 1)], true);
    assert_eq!(f.counter("numBucketsClosedDueToTimeForward"), 1);
    // Five schemas in the first hour: the last number went back to the first bucket.
    assert_eq!(f.buckets(false).len(), 6);
}

#[test]
fn documents_without_a_date_are_refused_alone() {
    let f = Fixture::new();
    let bad = doc! { "t": "yesterday", "m": "a" };
    let docs = [at(0, "a", 1), bad.clone(), at(1, "a", 2), doc! { "m": 1 }];
    let outcome = f.insert(&docs, false);
    assert_eq!(outcome.inserted, 2);
    assert_eq!(
        outcome.errors.iter().map(|e| e.index).collect::<Vec<_>>(),
        [1, 3]
    );
    assert_eq!(outcome.errors[0].error.code.0, 2);
    let outcome = f.insert(&[at(2, "a", 1), bad, at(3, "a", 1)], true);
    assert_eq!((outcome.inserted, outcome.errors.len()), (1, 1));
    let large = at(5, "a", "x".repeat(6 << 20));
    assert_eq!(f.insert(&[large], true).errors[0].error.code.0, 10334);
}

#[test]
fn buckets_are_taken_up_again() {
    // Archived for an earlier bucket, and reopened.
    let f = Fixture::new();
    for second in [7200, 0, 7210, 5, 7220] {
        f.insert(&[at(second, "a", 1)], true);
    }
    assert_eq!(f.buckets(false).len(), 2);
    assert_eq!(f.counter("numBucketsFetched"), 2);
    assert_eq!(f.counter("numBucketsReopened"), 3);
    // After a restart, found by a search in storage, open or sealed.
    let f = f.reopened();
    f.insert(&[at(7230, "a", 1)], true);
    assert_eq!(
        (f.buckets(false).len(), f.counter("numBucketsQueried")),
        (2, 1)
    );
    f.timeseries.seal_all(&f.collection).unwrap();
    f.insert(&[at(7240, "a", 1)], true);
    assert_eq!(
        (f.buckets(false).len(), f.counter("numBucketsQueried")),
        (2, 2)
    );
    // Not by another series, nor one of another type, nor with another schema.
    f.insert(&[at(7250, "b", 1)], true);
    f.timeseries.seal_all(&f.collection).unwrap();
    f.insert(&[at(7250, "b", "text")], true);
    assert_eq!(f.buckets(false).len(), 4);
    f.timeseries.seal_all(&f.collection).unwrap();
    f.insert(&[at(7255, "b", 2)], true);
    assert_eq!(
        f.buckets(false).len(),
        4,
        "the earlier schema's bucket is taken up"
    );
    // Full buckets are not reopened.
    let f = Fixture::new();
    f.insert(&(0..1000).map(|i| at(i, "a", 1)).collect::<Vec<_>>(), true);
    f.timeseries.seal_all(&f.collection).unwrap();
    f.insert(&[at(1000, "a", 1)], true);
    assert_eq!(f.buckets(false).len(), 2);
}

#[test]
fn idle_buckets_leave_memory() {
    let f = Fixture::new();
    f.insert(&[at(0, "first", 1)], true);
    let one = f.timeseries.bucket_catalog.memory_bytes();
    assert!(one > 0);
    f.timeseries.bucket_catalog.set_memory_max(one * 100);
    for round in 0..3 {
        let documents: Vec<_> = (0..800)
            .map(|i| at(round, &format!("series {i}"), i))
            .collect();
        f.insert(&documents, true);
    }
    f.timeseries.wait_for_maintenance().unwrap();
    let memory = f.timeseries.bucket_catalog.memory_bytes();
    // Each of 32 stripes may still hold a few.
    assert!(memory < one * 300, "{memory} of {one}");
    assert!(f.counter("numBucketsClosedDueToMemoryThreshold") > 400);
    let buckets = f.buckets(false);
    assert_eq!(buckets.len(), 801);
    assert_eq!(buckets.iter().map(|b| b.count()).sum::<usize>(), 2401);
    // Forgotten buckets release their memory.
    f.timeseries.bucket_catalog.clear(f.collection.uuid);
    assert_eq!(f.timeseries.bucket_catalog.memory_bytes(), 0);
}

#[test]
fn buckets_are_copied_byte_for_byte() {
    let f = Fixture::new();
    f.insert(
        &(0..50).map(|i| at(i, "a", i as i32)).collect::<Vec<_>>(),
        true,
    );
    f.insert(&[at(-9000, "b", array![1])], true);
    let given: Vec<_> = f
        .buckets(false)
        .iter()
        .map(|b| b.to_document().unwrap())
        .collect();
    let copy = Fixture::new();
    let put = |documents: &[Document]| {
        let options = InsertOptions {
            ordered: false,
            durability: Durability::Sync,
            new_id: &ObjectId::default,
            record: None,
        };
        let documents = documents.iter().map(Document::as_ref);
        copy.timeseries
            .insert_buckets(&copy.catalog, &copy.collection, documents, options)
            .unwrap()
    };
    assert_eq!(put(&given).inserted, 2);
    let found: Vec<_> = copy
        .buckets(false)
        .iter()
        .map(|b| b.to_document().unwrap())
        .collect();
    assert_eq!(found, given);
    assert!(copy.collection.has_extended_range());
    let again = put(&given);
    assert_eq!(
        again
            .errors
            .iter()
            .map(|e| e.error.code.0)
            .collect::<Vec<_>>(),
        [11000, 11000]
    );
    // A restored bucket is reopened like any other.
    copy.insert(&[at(55, "a", 5)], true);
    assert_eq!(copy.buckets(false).len(), 2);

    let mut mixed = DocumentBuilder::new();
    for element in given[0].iter() {
        mixed.append_element(element);
    }
    mixed.append("surprise", 1);
    assert_eq!(put(&[mixed.finish(), doc! { "_id": 1 }]).errors.len(), 2);
}

#[test]
fn only_wholly_expired_buckets_go() {
    let f = Fixture::new();
    let hours: Vec<_> = (0..5).map(|hour| at(hour * 3600 + 30, "a", 1)).collect();
    f.insert(&hours, true);
    // The second bucket starts at 3600 s and could hold times up to 7200 s.
    assert_eq!(
        f.timeseries
            .expire(&f.catalog, &f.collection, 7_199_999)
            .unwrap(),
        1
    );
    assert_eq!(
        f.timeseries
            .expire(&f.catalog, &f.collection, 7_200_000)
            .unwrap(),
        1
    );
    assert_eq!(f.buckets(false).len(), 3);
    // The open bucket goes too; inserts use another.
    assert_eq!(
        f.timeseries
            .expire(&f.catalog, &f.collection, i64::from(u32::MAX) * 1000)
            .unwrap(),
        3
    );
    f.insert(&[at(4 * 3600 + 40, "a", 2)], true);
    assert_eq!(f.buckets(false).len(), 1);
    // Outside 1970 to 2038 ids do not order buckets; starts do.
    f.insert(&[at(-10_000, "a", 1), at(1 << 33, "a", 1)], true);
    assert_eq!(
        f.timeseries.expire(&f.catalog, &f.collection, 0).unwrap(),
        1
    );
    assert_eq!(f.buckets(false).len(), 2);
}

/// A small generator: no crate is needed to draw a few thousand numbers.
pub(super) struct Draw(u64);

impl Draw {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5DEE_CE66)
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    fn value(&mut self) -> Value {
        match self.below(12) {
            0 => Value::Missing,
            1 => "text".into(),
            2 => (self.below(100) as f64 / 8.0).into(),
            3 => Value::Null,
            4 => array![1, "x"],
            5 => doc! { "a": self.below(5) as i32 }.into(),
            6 => Value::Int64(self.below(1 << 40) as i64),
            _ => (self.below(50) as i32).into(),
        }
    }
}

#[test]
fn whatever_is_inserted_is_read_back() {
    for seed in 0..nilometer_storage::testing::effort(3, 16, 16) {
        let mut draw = Draw(seed);
        let mut f = Fixture::new();
        let mut given = Vec::new();
        let numbers_only = seed % 2 == 0;
        for _ in 0..draw.below(30) + 1 {
            let batch: Vec<Document> = (0..draw.below(120) + 1)
                .map(|_| {
                    let mut out = DocumentBuilder::new();
                    let time = draw.below(9000) as i64 * 1000;
                    out.append("_id", draw.below(1000) as i32);
                    if draw.below(2) == 0 {
                        out.append("t", Value::DateTime(time));
                    }
                    out.append("m", ["a", "b", "c"][draw.below(3) as usize]);
                    let number: Value = (draw.below(50) as i32).into();
                    out.append("v", if numbers_only { number } else { draw.value() });
                    out.append(
                        ["x", "y", "z"][draw.below(3) as usize],
                        draw.below(9) as i32,
                    );
                    let with_time = out.clone().finish();
                    if with_time.get("t").is_missing() {
                        out.append("t", Value::DateTime(time));
                    }
                    out.finish()
                })
                .collect();
            assert!(f.insert(&batch, true).errors.is_empty());
            given.extend(batch.iter().map(|d| sorted_fields(d.as_ref())));
            match draw.below(12) {
                0 => f = f.reopened(),
                1 => f.timeseries.wait_for_maintenance().unwrap(),
                2 => f.timeseries.seal_all(&f.collection).unwrap(),
                3..6 => f.timeseries.prefetch(),
                6..10 => check_states(&f),
                _ => {}
            }
        }
        let given = sorted(given);
        let check = |f: &Fixture| {
            let buckets = f.buckets(false);
            for bucket in &buckets {
                check_bucket(bucket);
            }
            let found = buckets.iter().flat_map(|b| measurements(b)).collect();
            same(&sorted(found), &given, seed);
            let mut backward: Vec<_> = f.buckets(true).iter().map(|b| b.id()).collect();
            backward.reverse();
            assert_eq!(backward, buckets.iter().map(|b| b.id()).collect::<Vec<_>>());
        };
        check(&f);
        f.timeseries.wait_for_maintenance().unwrap();
        check(&f);
        f.timeseries.seal_all(&f.collection).unwrap();
        check(&f);
        check(&f.reopened());
    }
}

/// Compares the buckets that readers see, which may begin with documents in the cache, with those folded from storage alone.
fn check_states(f: &Fixture) {
    let keyspaces = BucketKeyspaces::of(&f.collection).unwrap();
    let options = f.collection.timeseries.as_ref().unwrap();
    let layout = Layout::of(&f.collection, options).unwrap();
    let snapshot = f.engine.snapshot().unwrap();
    for bucket in f.buckets(false) {
        let id = bucket.id().0;
        let parts = bucket_parts::read_parts(&*snapshot, keyspaces, id, None).unwrap();
        let folded = parts.document(id, &layout).unwrap();
        assert_eq!(Some(bucket.to_document().unwrap()), folded);
        let folded = StoredBucket::from_document(folded.unwrap(), layout.time_field).unwrap();
        check_same(&bucket, &folded);
    }
}

/// Returns the values of the field `a` below a column if they are found without objects, which they must equal.
fn scalars_below(bucket: &StoredBucket, at: usize) -> Option<Vec<Document>> {
    let found = bucket.path_at(at, "a").unwrap()?;
    let column = bucket.column_at(at).unwrap().unwrap();
    let expected = column.iter().map(|value| scalar_at_path(value, "a"));
    let expected = expected.map(|value| doc! {"": value.expect("a scalar").to_value()});
    let found = found.iter().map(|value| doc! {"": value.to_value()});
    let found: Vec<Document> = found.collect();
    assert_eq!(found, expected.collect::<Vec<_>>());
    Some(found)
}

/// Compares all that readers see of two buckets.
fn check_same(bucket: &StoredBucket, other: &StoredBucket) {
    let bounds = |bucket: &StoredBucket, at| {
        let (min, max) = bucket.bounds_at(at);
        doc! {"min": min.to_value(), "max": max.to_value()}
    };
    let values = |bucket: &StoredBucket, at| {
        let column = bucket.column_at(at).unwrap().unwrap();
        assert_eq!(column.len(), bucket.count());
        let values = column.iter().map(|value| doc! {"": value.to_value()});
        values.collect::<Vec<_>>()
    };
    let header = |bucket: &StoredBucket| {
        let meta = bucket.meta().to_value();
        doc! {"id": bucket.id(), "count": bucket.count() as i64, "meta": meta, "closed": bucket.is_closed()}
    };
    assert_eq!(header(bucket), header(other));
    let shown = |bucket: &StoredBucket| {
        let shown = bucket.shown().map(|(at, name)| (at, name.clone()));
        shown.collect::<Vec<_>>()
    };
    assert_eq!(shown(bucket), shown(other));
    for (at, name) in other.columns().iter().enumerate() {
        assert_eq!(bounds(bucket, at), bounds(other, at), "{name}");
        assert_eq!(
            bucket.min(name).to_value().type_code(),
            other.min(name).type_code()
        );
        assert_eq!(values(bucket, at), values(other, at), "{name}");
        let below = scalars_below(bucket, at);
        assert!(
            below.is_none() || below == scalars_below(other, at),
            "{name}"
        );
        // Only numbers that are stored as such have a total.
        let totals = [bucket, other].map(|bucket| bucket.known_total_at(at).unwrap());
        if let [Some(total), Some(other)] = totals {
            assert_eq!(total, other);
        }
    }
    assert_eq!(bucket.version(), other.version());
    // A value is only known to be constant if that is cheap to find out.
    let others = other.constants().unwrap();
    for constant in bucket.constants().unwrap().as_ref() {
        let found = others.get(constant.name()).to_value();
        assert_eq!(doc! {"": constant.value().to_value()}, doc! {"": found});
    }
}

#[test]
fn a_bucket_with_a_tail_continues_the_state_of_the_last_reader() {
    cov_mark::check_count!(bucket_continued, 24);
    cov_mark::check!(document_of_earlier_state);
    let f = Fixture::new();
    let insert = |second: i64, name: &str| {
        let mut out = DocumentBuilder::new();
        out.append("t", Value::DateTime(second * 1000))
            .append("m", "a");
        out.append(name, second);
        assert!(f.insert(&[out.finish()], true).errors.is_empty());
    };
    // A column comes later, one ends, and times go back.
    for (second, name) in [(10, "v"), (20, "v"), (30, "w"), (25, "w"), (40, "v")] {
        insert(second, name);
        check_states(&f);
    }
    // Two entries at once, and no new one.
    insert(50, "v");
    insert(51, "x");
    check_states(&f);
    check_states(&f);
    // From here on there is a document in front of the tail.
    f.timeseries.seal_all(&f.collection).unwrap();
    check_states(&f);
    // So many that the segments of the states are merged.
    for second in 52..72 {
        insert(second, ["v", "w", "x"][second as usize % 3]);
        check_states(&f);
    }
    assert_eq!(f.buckets(false).len(), 1);
    let memory = f.timeseries.reader.cache.memory_bytes().opened_buckets;
    assert!((1000..20_000).contains(&memory), "{memory}");
}

/// Compares one by one: a whole list is no readable message.
fn same(found: &[Document], given: &[Document], seed: u64) {
    let first = found
        .iter()
        .zip(given)
        .find(|(found, given)| found != given);
    assert!(first.is_none(), "seed {seed}: {first:?}");
    assert_eq!(found.len(), given.len(), "seed {seed}");
}

/// Checks the invariants of every bucket.
fn check_bucket(bucket: &StoredBucket) {
    let times = bucket.column("t").unwrap().unwrap().to_values();
    assert_eq!(times.len(), bucket.count());
    let times: Vec<i64> = times
        .iter()
        .map(|t| match t {
            Value::DateTime(time) => *time,
            other => panic!("{other:?}"),
        })
        .collect();
    let ValueRef::DateTime(start) = bucket.min("t") else {
        panic!("no start")
    };
    assert_eq!(start % 60_000, 0);
    assert!(times.iter().all(|t| (start..start + 3_600_000).contains(t)));
    assert!(matches!(bucket.max("t"), ValueRef::DateTime(t) if t == *times.iter().max().unwrap()));
    assert_eq!(times.is_sorted(), bucket.is_sorted() || times.is_sorted());
    assert!(bucket.count() <= 1000);
}
