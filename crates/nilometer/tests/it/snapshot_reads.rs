//! Reads of one moment outside of transactions.

use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, array, doc};
use nilometer_storage::testing::random::Random;

use crate::support::{Fixture, show};
use crate::transactions::{code, fixture, insert, measurement, update};

/// Adds the read concern to a command.
fn at(command: Document, time: Option<&Value>) -> Document {
    let mut concern = DocumentBuilder::new();
    concern.append("level", "snapshot");
    if let Some(time) = time {
        concern.append("atClusterTime", time.clone());
    }
    let mut out = DocumentBuilder::extending(command);
    out.append("readConcern", concern.finish());
    out.finish()
}

/// Returns the documents of a cursor, batch by batch, and the time of the snapshot.
fn read(f: &mut Fixture, command: Document) -> (Vec<Document>, Value) {
    let mut reply = f.run(command);
    let cursor = reply.get("cursor").as_document().unwrap();
    let time = cursor.get("atClusterTime").to_value();
    assert!(matches!(time, Value::Timestamp(_)), "{}", show(&reply));
    let mut documents = Vec::new();
    loop {
        let cursor = reply.get("cursor").as_document().unwrap();
        let batch = ["firstBatch", "nextBatch"].map(|name| cursor.get(name).as_array());
        let batch = batch.into_iter().flatten().next().unwrap();
        documents.extend(
            batch
                .iter()
                .map(|one| one.as_document().unwrap().to_document()),
        );
        let id = cursor.get("id").as_exact_i64().unwrap();
        if id == 0 {
            return (documents, time);
        }
        let ns = cursor.get("ns").as_str().unwrap();
        let collection = ns.split_once('.').unwrap().1;
        let more = doc! { "getMore": id, "collection": collection, "batchSize": 2 };
        reply = f.run(more);
    }
}

fn find(collection: &str) -> Document {
    doc! { "find": collection, "sort": doc! { "_id": 1 }, "batchSize": 2 }
}

#[test]
fn a_time_is_read_again_after_writes() {
    for collection in ["c", "ts"] {
        let mut random = Random::new(5);
        let mut f = fixture();
        f.run(insert(collection, vec![measurement(1, 0, 10)]));
        let mut known: Vec<(Value, Vec<Document>)> = Vec::new();
        for id in 2..12 {
            let (documents, time) = read(&mut f, at(find(collection), None));
            assert_eq!(documents.len() as i64, id - 1);
            // Nothing was written since: it is the same snapshot.
            let again = read(&mut f, at(find(collection), None));
            assert_eq!(
                (&again.0, format!("{:?}", again.1)),
                (&documents, format!("{time:?}"))
            );
            known.push((time, documents));
            f.run(insert(collection, vec![measurement(id, id, id * 10)]));
            if collection == "c" {
                let change = doc! { "$inc": doc! { "v": 1 } };
                f.run(update("c", doc! { "_id": 1 }, change));
            }
            for _ in 0..3 {
                let (time, expected) = &known[random.index(known.len())];
                let (found, same) = read(&mut f, at(find(collection), Some(time)));
                assert_eq!(&found, expected);
                assert_eq!(format!("{same:?}"), format!("{time:?}"));
                let values = doc! { "distinct": collection, "key": "v" };
                let reply = f.run(at(values, Some(time)));
                let distinct = reply.get("values").as_array().unwrap();
                assert_eq!(distinct.len(), expected.len());
                assert!(matches!(reply.get("atClusterTime"), ValueRef::Timestamp(_)));
                let count = array![doc! { "$count": "n" }];
                let pipeline =
                    doc! { "aggregate": collection, "pipeline": count, "cursor": doc! {} };
                let (counted, _) = read(&mut f, at(pipeline, Some(time)));
                assert_eq!(
                    counted[0].get("n").as_exact_i64(),
                    Some(expected.len() as i64)
                );
            }
        }
    }
}

#[test]
fn wrong_times_and_commands_are_refused() {
    let mut f = fixture();
    let (_, time) = read(&mut f, at(find("c"), None));
    let Value::Timestamp(mut later) = time.clone() else {
        panic!("{time:?}")
    };
    later.seconds += 100;
    let refused = |f: &mut Fixture, command: Document| code(&f.reply(command));
    let later = Value::Timestamp(later);
    assert_eq!(refused(&mut f, at(find("c"), Some(&later))), Some(72));
    let first = Value::Timestamp(nilometer_bson::Timestamp {
        seconds: 1,
        increment: 1,
    });
    assert_eq!(refused(&mut f, at(find("c"), Some(&first))), Some(239));
    assert_eq!(refused(&mut f, at(doc! { "count": "c" }, None)), Some(72));
    assert_eq!(
        refused(&mut f, at(insert("c", vec![doc! {}.into()]), None)),
        Some(72)
    );
    let out = array![doc! { "$out": "d" }];
    let out = doc! { "aggregate": "c", "pipeline": out, "cursor": doc! {} };
    assert_eq!(refused(&mut f, at(out, None)), Some(72));
    let local = doc! { "level": "local", "atClusterTime": time };
    let local = doc! { "find": "c", "readConcern": local };
    assert_eq!(refused(&mut f, local), Some(72));
    let mut alone = Fixture::new();
    assert_eq!(refused(&mut alone, at(find("c"), None)), Some(123));
}

#[test]
fn as_many_times_are_kept_as_the_limit_says() {
    let mut f = fixture();
    let mut times = Vec::new();
    for id in 0..70 {
        f.run(insert("c", vec![doc! { "_id": id }.into()]));
        times.push(read(&mut f, at(find("c"), None)).1);
    }
    let mut kept = 0;
    for time in &times {
        let reply = f.reply(at(find("c"), Some(time)));
        match code(&reply) {
            None => kept += 1,
            other => assert_eq!((other, kept), (Some(239), 0)),
        }
    }
    assert_eq!(kept, 64);
}
