//! Scans in record order that a later query continues: `$_requestResumeToken` and `$_resumeAfter`.

use nilometer_bson::{Document, Value, ValueRef, array, doc};

use crate::support::{Fixture, cursor};

fn token(reply: &Document) -> Document {
    let cursor = reply.get("cursor").as_document().expect("a cursor");
    let token = cursor.get("postBatchResumeToken").as_document();
    token.expect("a token").to_document()
}

fn find(collection: &str, after: Option<Document>) -> Document {
    doc! {
        "find": collection,
        "filter": doc! {"skip": doc! {"$ne": true}},
        "hint": doc! {"$natural": 1},
        "batchSize": 3,
        "singleBatch": true,
        "$_requestResumeToken": true,
        "$_resumeAfter": after,
    }
}

#[test]
fn a_scan_goes_on_after_the_token_of_a_batch() {
    let mut fixture = Fixture::new();
    let documents: Vec<Value> = (0..20)
        .map(|n| doc! {"_id": 100 - n, "skip": n % 5 == 0}.into())
        .collect();
    fixture.run(doc! {"insert": "plain", "documents": documents.clone()});
    let clustered = doc! {"key": doc! {"_id": 1}, "unique": true};
    fixture.run(doc! {"create": "clustered", "clusteredIndex": clustered});
    fixture.run(doc! {"insert": "clustered", "documents": documents});
    fixture.run(doc! {"create": "ts", "timeseries": doc! {"timeField": "t", "metaField": "m"}});
    for meta in 0..10 {
        let measurement = doc! {"t": Value::DateTime(0), "m": meta};
        fixture.run(doc! {"insert": "ts", "documents": array![measurement]});
    }
    for collection in ["plain", "clustered", "system.buckets.ts"] {
        let all = fixture.all(doc! {
            "find": collection, "filter": doc! {"skip": doc! {"$ne": true}},
            "hint": doc! {"$natural": 1},
        });
        let (mut resumed, mut after) = (Vec::new(), None);
        loop {
            let reply = fixture.run(find(collection, after.clone()));
            let (_, _, batch) = cursor(&reply, "firstBatch");
            if batch.is_empty() {
                assert_eq!(Some(token(&reply)), after, "the position stays");
                break;
            }
            after = Some(token(&reply));
            resumed.extend(batch);
        }
        assert_eq!(resumed, all, "{collection}");
    }
}

#[test]
fn later_batches_tell_their_positions_too() {
    let mut fixture = Fixture::new();
    let documents: Vec<Value> = (0..6).map(|n| doc! {"_id": n}.into()).collect();
    fixture.run(doc! {"insert": "c", "documents": documents});
    let open = doc! {
        "find": "c", "hint": doc! {"$natural": 1}, "batchSize": 2, "$_requestResumeToken": true,
    };
    let first = fixture.run(open);
    let (id, _, _) = cursor(&first, "firstBatch");
    let next = fixture.run(doc! {"getMore": id, "collection": "c", "batchSize": 2});
    assert!(token(&first) != token(&next));
    let (_, _, rest) = cursor(&fixture.run(find("c", Some(token(&next)))), "firstBatch");
    assert_eq!(rest, [doc! {"_id": 4}, doc! {"_id": 5}]);
}

#[test]
fn tokens_are_for_scans_in_record_order_and_for_records_that_exist() {
    let mut fixture = Fixture::with_measurements(5);
    fixture.run(doc! {"insert": "c", "documents": array![doc! {"_id": 1}, doc! {"_id": 2}]});
    let after = token(&fixture.run(doc! {
        "find": "c", "hint": doc! {"$natural": 1}, "limit": 1, "$_requestResumeToken": true,
    }));
    let request = doc! {"find": "c", "$_requestResumeToken": true};
    assert_eq!(fixture.code(request), 2);
    let alone = doc! {"find": "c", "hint": doc! {"$natural": 1}, "$_resumeAfter": after.clone()};
    assert_eq!(fixture.code(alone), 2);
    assert_eq!(fixture.code(find("ts", None)), 168);
    assert_eq!(fixture.code(find("c", Some(doc! {"$recordId": "x"}))), 2);
    fixture.run(doc! {"delete": "c", "deletes": array![doc! {"q": doc! {"_id": 1}, "limit": 1}]});
    assert_eq!(fixture.code(find("c", Some(after))), 211);
    let empty = fixture.run(find("none", None));
    assert!(matches!(token(&empty).get("$recordId"), ValueRef::Null));
}
