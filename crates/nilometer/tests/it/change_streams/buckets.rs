//! Streams on the buckets of a time series: what they show rebuilds the measurements of each bucket.

use std::collections::BTreeMap;

use nilometer_bson::testing::with_sorted_fields;
use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, array, doc};

use super::{Stream, create, in_memory, kind, kinds, watch};
use crate::support::{Fixture, show};

/// Returns the measurements of a bucket document, as sorted texts.
fn rows(fixture: &mut Fixture, bucket: &Document) -> Vec<String> {
    // The stage unpacks documents of a collection.
    fixture.run(doc! {"drop": "one"});
    fixture.run(doc! {"insert": "one", "documents": array![bucket.clone()]});
    let unpack = doc! {"$_internalUnpackBucket": doc! {
        "timeField": "t", "metaField": "m", "bucketMaxSpanSeconds": 3600
    }};
    let command = doc! {"aggregate": "one", "pipeline": array![unpack], "cursor": doc! {}};
    let found = fixture.all(command);
    let rows = found
        .iter()
        .map(|row| show(&with_sorted_fields(row.as_ref())));
    let mut rows: Vec<String> = rows.collect();
    rows.sort_unstable();
    rows
}

fn id_of(bucket: ValueRef<'_>) -> String {
    format!("{:?}", bucket.as_document().unwrap().get("_id"))
}

/// Returns the measurements that an update adds to a bucket, with its metadata.
fn added(event: &Document, meta: &Value) -> Vec<String> {
    let description = event.get("updateDescription").as_document().unwrap();
    let updated = description.get("updatedFields").as_document().unwrap();
    let mut rows: BTreeMap<u64, DocumentBuilder> = BTreeMap::new();
    for field in updated
        .iter()
        .filter(|field| field.name() != "control.count")
    {
        let path: Vec<&str> = field.name().split('.').collect();
        let ["data", name, row] = path[..] else {
            panic!("{}", field.name());
        };
        let row = rows.entry(row.parse().unwrap()).or_default();
        row.append_renamed(name, field);
    }
    let count = updated.get("control.count").as_exact_i64();
    let last = rows.last_key_value().map(|(row, _)| row + 1);
    assert_eq!(count.map(i64::cast_unsigned), last);
    let rows = rows.into_values().map(|mut row| {
        row.append("m", meta.clone());
        show(&with_sorted_fields(row.finish().as_ref()))
    });
    rows.collect()
}

/// Measurements of buckets, by `_id`, with the metadata.
type Buckets = BTreeMap<String, (Value, Vec<String>)>;

fn apply(fixture: &mut Fixture, known: &mut Buckets, event: &Document) {
    let id = id_of(event.get("documentKey"));
    let whole = |fixture: &mut Fixture| {
        let bucket = event
            .get("fullDocument")
            .as_document()
            .unwrap()
            .to_document();
        let meta = bucket.get("meta").to_value();
        (meta, rows(fixture, &bucket))
    };
    match kind(event) {
        "insert" => {
            let new = whole(fixture);
            assert!(known.insert(id, new).is_none(), "inserted twice");
        }
        "replace" => {
            let new = whole(fixture);
            known.insert(id, new);
        }
        "delete" => {
            known.remove(&id).expect("deleted what is there");
        }
        "update" => {
            let (meta, rows) = known.get_mut(&id).expect("updated what is there");
            rows.extend(added(event, meta));
            rows.sort_unstable();
        }
        other => panic!("{other}"),
    }
}

fn insert(fixture: &mut Fixture, from: i32, count: i32) {
    let one = |i: i32| {
        let t = Value::DateTime(i64::from(i % 50) * 100_000);
        Value::from(doc! {"t": t, "m": i % 3, "_id": i, "v": i})
    };
    let documents: Vec<Value> = (from..from + count).map(one).collect();
    fixture.run(doc! {"insert": "ts", "documents": documents});
}

#[test]
fn events_of_buckets_rebuild_them() {
    let mut fixture = in_memory();
    create(&mut fixture);
    let mut raw = watch("ts", doc! {}, vec![]);
    raw = {
        let mut out = DocumentBuilder::extending(raw);
        out.append("rawData", true);
        out.finish()
    };
    let mut by_option = Stream::open(&mut fixture, raw);
    let mut by_name = Stream::open(&mut fixture, watch("system.buckets.ts", doc! {}, vec![]));
    let mut measurements = Stream::open(&mut fixture, watch("ts", doc! {}, vec![]));
    let mut known = Buckets::new();
    let mut passed = 0;
    for round in 0..12 {
        insert(&mut fixture, round * 7, 7);
        match round % 4 {
            1 => {
                let statement = doc! {"q": doc! {"_id": round * 5}, "limit": 0};
                fixture.run(doc! {"delete": "ts", "deletes": array![statement]});
            }
            2 => {
                let set = doc! {"$set": doc! {"m": (round + 1) % 3}};
                let statement = doc! {"q": doc! {"m": round % 3}, "u": set, "multi": true};
                fixture.run(doc! {"update": "ts", "updates": array![statement]});
            }
            3 => {
                let statement = doc! {"q": doc! {"m": round % 3}, "limit": 0};
                fixture.run(doc! {"delete": "ts", "deletes": array![statement]});
            }
            _ => {}
        }
        // One of the streams is left and resumed.
        let token = by_name.token.clone();
        let events = by_name.read(&mut fixture).to_vec();
        for event in &events[passed..] {
            let ns = event.get("ns").as_document().unwrap();
            assert_eq!(ns.get("coll").as_str(), Some("system.buckets.ts"));
            apply(&mut fixture, &mut known, event);
        }
        passed = events.len();
        let again = doc! {"resumeAfter": token};
        let again = watch("system.buckets.ts", again, vec![]);
        let mut again = Stream::open(&mut fixture, again);
        let repeated = again.read(&mut fixture).to_vec();
        assert!(events.ends_with(&repeated) && !repeated.is_empty());
        let stored = fixture.all(doc! {"find": "system.buckets.ts"});
        let mut wanted = BTreeMap::new();
        for bucket in &stored {
            let found = rows(&mut fixture, bucket);
            wanted.insert(format!("{:?}", bucket.get("_id")), found);
        }
        let found = known
            .iter()
            .map(|(id, (_, rows))| (id.clone(), rows.clone()));
        assert_eq!(found.collect::<BTreeMap<_, _>>(), wanted, "round {round}");
    }
    assert_eq!(by_option.read(&mut fixture), &by_name.events[..]);
    // A stream of measurements shows none of it.
    let events = measurements.read(&mut fixture);
    let is_of_view = |event: &Document| show(event).contains("coll: String(\"ts\")");
    assert!(events.iter().all(is_of_view) && events.len() > passed);
    fixture.run(doc! {"drop": "ts"});
    let last = by_name.read(&mut fixture)[passed..].to_vec();
    assert_eq!(kinds(&last), ["drop", "invalidate"]);
}

#[test]
fn buckets_are_looked_up() {
    let mut fixture = in_memory();
    create(&mut fixture);
    let options = doc! {"fullDocument": "updateLookup", "showExpandedEvents": true};
    let mut stream = Stream::open(&mut fixture, watch("system.buckets.ts", options, vec![]));
    for i in 0..2 {
        insert(&mut fixture, i * 3, 1);
    }
    let events = stream.read(&mut fixture).to_vec();
    assert_eq!(kinds(&events), ["insert", "update"]);
    let full = events[1].get("fullDocument").as_document().unwrap();
    let stored = fixture.all(doc! {"find": "system.buckets.ts"});
    assert_eq!(full.as_bytes(), stored[0].as_bytes());
    let description = events[1].get("updateDescription").as_document().unwrap();
    let paths = description.get("disambiguatedPaths").as_document().unwrap();
    let parts: Vec<_> = paths.get("data.v.1").as_array().unwrap().iter().collect();
    assert_eq!(parts.len(), 3);
    assert_eq!(parts[2].as_str(), Some("1"));
}
