//! Changes of transactions: each is an event, and conflicts with another change of the same alone.

use nilometer_bson::{Document, Value, array, doc};

use super::{Session, check_valid, code, fixture, insert, measurement, update};
use crate::support::{Fixture, cursor};

/// Opens a stream on the database `test`.
pub(super) fn watch(fixture: &mut Fixture) -> i64 {
    let stream = doc! { "$changeStream": doc! { "showExpandedEvents": true } };
    let watch = doc! { "aggregate": 1, "pipeline": array![stream], "cursor": doc! {} };
    cursor(&fixture.run(watch), "firstBatch").0
}

/// Reads the events of a stream: the kind, the collection, and the `_id` or the new value.
pub(super) fn events(fixture: &mut Fixture, stream: i64) -> Vec<(String, String, i64)> {
    let more = doc! { "getMore": stream, "collection": "$cmd.aggregate", "maxTimeMS": 1 };
    let (_, _, events) = cursor(&fixture.run(more), "nextBatch");
    let of = |event: &Document| {
        let at = |path: &[&str]| {
            let mut value = Value::Document(event.clone());
            for name in path {
                value = match value.as_ref().as_document() {
                    Some(inner) => inner.get(name).to_value(),
                    None => Value::Null,
                };
            }
            value.as_ref().as_exact_i64()
        };
        let changed = at(&["updateDescription", "updatedFields", "v"]);
        let ns = event.get("ns").as_document().unwrap();
        (
            event.get("operationType").as_str().unwrap().to_owned(),
            ns.get("coll").as_str().unwrap().to_owned(),
            changed.or(at(&["documentKey", "_id"])).unwrap_or(0),
        )
    };
    events.iter().map(of).collect()
}

pub(super) fn named(events: &[(String, String, i64)]) -> Vec<(&str, &str, i64)> {
    let named = events.iter();
    named
        .map(|(kind, name, value)| (&**kind, &**name, *value))
        .collect()
}

#[test]
fn each_change_of_a_statement_is_an_event() {
    let mut f = fixture();
    f.run(doc! { "create": "b" });
    f.run(insert("c", vec![doc! { "_id": 1, "v": 1 }.into()]));
    let stream = watch(&mut f);
    let mut one = Session::new(1);
    let set = |v: i64| doc! { "$set": doc! { "v": v } };
    let remove = |id: i64| doc! { "delete": "b", "deletes": array![doc! { "q": doc! { "_id": id }, "limit": 1 }] };
    one.run(&mut f, update("c", doc! { "_id": 1 }, set(20)));
    one.run(
        &mut f,
        insert(
            "b",
            vec![doc! { "_id": 7 }.into(), doc! { "_id": 8 }.into()],
        ),
    );
    one.run(&mut f, insert("ts", vec![measurement(5, 1, 1)]));
    one.run(&mut f, update("b", doc! { "_id": 7 }, set(30)));
    one.run(&mut f, remove(8));
    // In the end the document is as it was.
    one.run(&mut f, update("c", doc! { "_id": 1 }, set(1)));
    one.commit(&mut f);
    assert_eq!(
        named(&events(&mut f, stream)),
        [
            ("update", "c", 20),
            ("insert", "b", 7),
            ("insert", "b", 8),
            ("update", "b", 30),
            ("delete", "b", 8),
            ("update", "c", 1),
            ("insert", "ts", 5),
        ]
    );
    one.run(&mut f, update("c", doc! { "_id": 1 }, set(2)));
    one.end(&mut f, "abortTransaction");
    assert!(events(&mut f, stream).is_empty());
    check_valid(&mut f);
}

#[test]
fn what_is_in_the_end_as_it_was_conflicts_too() {
    let mut f = fixture();
    f.run(insert("c", vec![doc! { "_id": 1, "v": 1 }.into()]));
    let set = |v: i64| doc! { "$set": doc! { "v": v } };
    let mut one = Session::new(1);
    one.run(&mut f, update("c", doc! { "_id": 1 }, set(2)));
    one.run(&mut f, update("c", doc! { "_id": 1 }, set(1)));
    f.run(update("c", doc! { "_id": 1 }, set(3)));
    assert_eq!(code(&one.end(&mut f, "commitTransaction")), Some(112));
    one.run(&mut f, insert("c", vec![doc! { "_id": 2 }.into()]));
    let delete =
        doc! { "delete": "c", "deletes": array![doc! { "q": doc! { "_id": 2 }, "limit": 1 }] };
    one.run(&mut f, delete);
    f.run(insert("c", vec![doc! { "_id": 2 }.into()]));
    assert_eq!(code(&one.end(&mut f, "commitTransaction")), Some(112));
    // A collection that got another name would be called by the old one in events.
    one.run(&mut f, update("c", doc! { "_id": 1 }, set(2)));
    let rename = doc! { "renameCollection": "test.c", "to": "test.d" };
    f.reply_on("admin", rename);
    assert_eq!(code(&one.end(&mut f, "commitTransaction")), Some(112));
}

#[test]
fn measurements_of_one_bucket_are_changed_apart() {
    let mut f = fixture();
    let rows = (0..30).map(|id| measurement(id * 3, id, id)).collect();
    f.run(insert("ts", rows));
    let remove = |id: i64| doc! { "delete": "ts", "deletes": array![doc! { "q": doc! { "_id": id }, "limit": 0 }] };
    let (mut one, mut two, mut three) = (Session::new(1), Session::new(2), Session::new(3));
    one.run(&mut f, remove(3));
    two.run(&mut f, remove(6));
    three.run(&mut f, remove(3));
    // Folded, sealed, and with a measurement more.
    f.run(insert("ts", vec![measurement(90, 31, 1)]));
    f.database.settle().unwrap();
    one.commit(&mut f);
    two.commit(&mut f);
    assert_eq!(code(&three.end(&mut f, "commitTransaction")), Some(112));
    assert_eq!(f.counted("ts"), 29);
    let all = doc! { "delete": "ts", "deletes": array![doc! { "q": doc! {}, "limit": 0 }] };
    one.run(&mut f, all);
    f.run(insert("ts", vec![measurement(93, 32, 1)]));
    one.commit(&mut f);
    assert_eq!(f.counted("ts"), 1);
    // All measurements of a bucket have its metadata.
    let move_all = update("ts", doc! { "m": 0 }, doc! { "$set": doc! { "m": 1 } });
    one.run(&mut f, move_all.clone());
    f.run(insert("ts", vec![measurement(96, 33, 1)]));
    assert_eq!(code(&one.end(&mut f, "commitTransaction")), Some(112));
    one.run(&mut f, move_all);
    one.commit(&mut f);
    let moved = doc! { "find": "ts", "filter": doc! { "m": 1 } };
    assert_eq!(f.all(moved).len(), 2);
    check_valid(&mut f);
}
