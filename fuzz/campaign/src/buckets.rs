//! Restored bucket documents: real ones with damage, inserted into the buckets of a time series and read through it.
//!
//! A damaged bucket may be refused on insert or on read, or return other values; it must not cause a crash or harm
//! other data. In the corpus an input is a document in extended JSON, one per line.

use nilometer_bson::extjson::{parse_document, to_canonical};
use nilometer_bson::fuzz::Numbers;
use nilometer_bson::validate::{Limits, validate_document};
use nilometer_bson::{Binary, Document, Value, array, doc};

use crate::bytes::damage;
use crate::commands::{Fixture, is_ok};
use crate::mutation::{mutate, pick};
use crate::runner::Runner;
use crate::scripts::Seeds;
use crate::tree::Node;

/// Inputs of one seed.
const BATCH: u64 = 25;

/// Measurements of each series that fills the buckets.
const MEASUREMENTS: i64 = 40;

const START_MS: i64 = 1_700_000_000_000;

/// Creates the series; the database makes its buckets.
fn series(fixture: &mut Fixture) -> Vec<Document> {
    let options = doc! {"timeField": "t", "metaField": "m"};
    let create = doc! {"create": "ts", "timeseries": options, "$db": "test"};
    assert!(is_ok(&fixture.run(&create)));
    let documents = (0..3 * MEASUREMENTS).map(|at| {
        let meta = doc! {"series": at % 3};
        let time = Value::DateTime(START_MS + at * 1000);
        let inner = doc! {"y": at % 5, "z": array![at, "a"]};
        let value =
            doc! {"t": time, "m": meta, "_id": at, "x": at as f64 / 2.0, "s": "text", "o": inner};
        Value::from(value)
    });
    let documents: Vec<Value> = documents.collect();
    let insert = doc! {"insert": "ts", "documents": documents, "$db": "test"};
    assert!(is_ok(&fixture.run(&insert)));
    let find = doc! {"find": "system.buckets.ts", "$db": "test"};
    let reply = fixture.run(&find);
    let cursor = reply.get("cursor").as_document().expect("a cursor");
    let batch = cursor.get("firstBatch").as_array().expect("a batch");
    let found = batch
        .iter()
        .filter_map(|b| b.as_document().map(|b| b.to_document()));
    found.collect()
}

/// Changes a bucket: its fields like those of any document, and the bytes of its columns.
fn changed(numbers: &mut Numbers, seeds: &Seeds, bucket: &Document) -> Document {
    let mut node = Node::of(bucket.as_ref());
    if numbers.below(3) == 0 {
        mutate(numbers, seeds, &mut node);
    }
    if numbers.below(3) != 0 {
        damage_columns(numbers, &mut node);
    }
    node.document()
}

fn damage_columns(numbers: &mut Numbers, node: &mut Node) {
    match node {
        Node::Leaf(Value::Binary(binary)) if numbers.below(3) == 0 => {
            let mut bytes = binary.bytes.to_vec();
            damage(numbers, &mut bytes);
            *binary = Binary {
                subtype: binary.subtype,
                bytes: bytes.into(),
            };
        }
        Node::Leaf(_) => {}
        Node::Fields(fields) => {
            for (_, inner) in fields {
                damage_columns(numbers, inner);
            }
        }
        Node::Items(items) => items
            .iter_mut()
            .for_each(|item| damage_columns(numbers, item)),
    }
}

/// Inserts a bucket, reads the series in several ways, removes the bucket. True if it was accepted and readable.
fn store_and_read(fixture: &mut Fixture, bucket: &Document) -> bool {
    if validate_document(bucket.as_bytes(), &Limits::default()).is_err() {
        return false;
    }
    let before = count(fixture, "kept");
    let insert =
        doc! {"insert": "system.buckets.fuzz", "documents": array![bucket.clone()], "$db": "test"};
    let taken = fixture.ask(&insert);
    let readable = [
        array![],
        array![doc! {"$match": doc! {"x": doc! {"$gte": 3}, "m.series": 1}}],
        array![doc! {"$group": doc! {"_id": "$m", "n": doc! {"$sum": 1}, "x": doc! {"$max": "$x"}, "t": doc! {"$min": "$t"}}}],
        array![doc! {"$sort": doc! {"t": -1}}, doc! {"$limit": 5}],
    ]
    .map(|pipeline| {
        let aggregate = doc! {"aggregate": "fuzz", "pipeline": pipeline, "cursor": doc! {}, "$db": "test"};
        is_ok(&fixture.ask(&aggregate))
    });
    fixture.ask(&doc! {"validate": "fuzz", "$db": "test"});
    fixture.ask(&doc! {"delete": "system.buckets.fuzz", "deletes": array![doc! {"q": doc! {}, "limit": 0}], "$db": "test"});
    assert_eq!(count(fixture, "kept"), before, "other data is unchanged");
    is_ok(&taken) && taken.get("writeErrors").is_missing() && readable.iter().all(|ok| *ok)
}

fn count(fixture: &mut Fixture, collection: &str) -> i64 {
    let reply = fixture.run(&doc! {"count": collection, "$db": "test"});
    reply.get("n").as_exact_i64().expect("a number")
}

/// Returns a database with the series for the buckets, and one that must not change.
fn fixture() -> (Fixture, Vec<Document>) {
    let mut fixture = Fixture::new();
    let buckets = series(&mut fixture);
    let rename = doc! {"aggregate": "ts", "pipeline": array![doc! {"$out": "kept"}], "cursor": doc! {}, "$db": "test"};
    assert!(is_ok(&fixture.run(&rename)));
    let options = doc! {"timeField": "t", "metaField": "m"};
    assert!(is_ok(&fixture.run(
        &doc! {"create": "fuzz", "timeseries": options, "$db": "test"}
    )));
    (fixture, buckets)
}

/// Runs damaged buckets.
pub fn batch(seeds: &Seeds, seed: u64, runner: &mut Runner) {
    let numbers = &mut Numbers::new(seed);
    let (mut fixture, buckets) = fixture();
    for _ in 0..BATCH {
        let original = pick(numbers, &buckets);
        let bucket = changed(numbers, seeds, original);
        let shown = || to_canonical(bucket.as_ref());
        runner.one(shown, || store_and_read(&mut fixture, &bucket));
    }
}

/// Runs one input of bytes.
pub fn one(bytes: &[u8]) -> bool {
    let sound = validate_document(bytes, &Limits::default()).is_ok();
    let Some(bucket) = nilometer_bson::DocRef::new(bytes).filter(|_| sound) else {
        return false;
    };
    let (mut fixture, _) = fixture();
    store_and_read(&mut fixture, &bucket.to_document())
}

/// Replays buckets, one per line.
pub fn replay(text: &str, runner: &mut Runner) {
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        runner.one(
            || line.to_owned(),
            || parse_document(line).is_ok_and(|b| one(b.as_bytes())),
        );
    }
}
