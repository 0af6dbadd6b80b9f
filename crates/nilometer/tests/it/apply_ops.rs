//! `applyOps`: collections that come back with the UUID they had.

use nilometer_bson::{Binary, Document, DocumentBuilder, Value, ValueRef, array, doc};

use crate::support::{Fixture, TemporaryDirectory, cursor};

fn bytes(last: u8) -> Vec<u8> {
    let mut bytes = vec![7; 15];
    bytes.push(last);
    bytes
}

fn uuid(last: u8) -> Value {
    Value::from(Binary {
        subtype: 4,
        bytes: bytes(last).into(),
    })
}

fn creation(uuid: Value, object: Document) -> Document {
    let operation = doc! {"op": "c", "ns": "test.$cmd", "ui": uuid, "o": object};
    doc! {"applyOps": array![operation]}
}

fn listed_uuid(fixture: &mut Fixture, name: &str) -> Option<Vec<u8>> {
    let list = doc! {"listCollections": 1, "filter": doc! {"name": name}};
    let (_, _, listed) = cursor(&fixture.run(list), "firstBatch");
    let info = listed.first()?.get("info").as_document()?;
    match info.get("uuid") {
        ValueRef::Binary { subtype: 4, bytes } => Some(bytes.to_vec()),
        _ => None,
    }
}

#[test]
fn a_collection_is_created_with_the_uuid_given_and_keeps_it() {
    let directory = TemporaryDirectory::new();
    let mut fixture = Fixture::open(&directory.0);
    let options = doc! {"timeField": "t", "metaField": "m"};
    fixture.run(creation(uuid(1), doc! {"create": "c"}));
    let buckets = doc! {"create": "system.buckets.ts", "timeseries": options};
    fixture.run(creation(uuid(2), buckets));
    fixture.run(doc! {"insert": "c", "documents": array![doc! {"_id": 1}]});
    // The same again is no error.
    fixture.run(creation(uuid(1), doc! {"create": "c"}));
    fixture.reply_on("admin", doc! {"renameCollection": "test.c", "to": "test.d"});
    drop(fixture);
    let mut fixture = Fixture::open(&directory.0);
    assert_eq!(listed_uuid(&mut fixture, "d"), Some(bytes(1)));
    assert_eq!(
        listed_uuid(&mut fixture, "system.buckets.ts"),
        Some(bytes(2))
    );
    let find = |wanted| doc! {"find": "d", "collectionUUID": wanted};
    let (_, _, found) = cursor(&fixture.run(find(uuid(1))), "firstBatch");
    assert_eq!(found, [doc! {"_id": 1}]);
    assert_eq!(fixture.code(find(uuid(3))), 361);
    // After a drop the UUID is free again, and nothing of the old collection comes back.
    fixture.run(doc! {"drop": "d"});
    fixture.run(creation(uuid(1), doc! {"create": "d"}));
    let (_, _, found) = cursor(&fixture.run(find(uuid(1))), "firstBatch");
    assert_eq!(found.len(), 0);
}

#[test]
fn a_uuid_of_another_collection_and_other_operations_are_refused() {
    let mut fixture = Fixture::new();
    fixture.run(creation(uuid(1), doc! {"create": "c"}));
    assert_eq!(fixture.code(creation(uuid(1), doc! {"create": "d"})), 48);
    assert_eq!(fixture.code(creation(uuid(2), doc! {"create": "c"})), 48);
    assert_eq!(
        fixture.code(creation(Value::Missing, doc! {"create": "e"})),
        40_414
    );
    let view = doc! {"create": "v", "viewOn": "c", "pipeline": array![]};
    assert_eq!(fixture.code(creation(uuid(3), view)), 72);
    let mut refused = DocumentBuilder::new();
    refused.append("op", "i");
    refused.append("ns", "test.c");
    refused.append("o", doc! {"_id": 1});
    let insert = doc! {"applyOps": array![refused.finish()]};
    assert_eq!(fixture.code(insert), 115);
    assert_eq!(fixture.code(creation(uuid(4), doc! {"drop": "c"})), 115);
    let reply = fixture.reply(creation(uuid(1), doc! {"create": "d"}));
    assert_eq!(reply.get("applied").as_exact_i64(), Some(1));
    assert_eq!(listed_uuid(&mut fixture, "d"), None);
}

#[test]
fn a_collection_is_found_by_its_uuid() {
    let mut fixture = Fixture::new();
    fixture.run(creation(uuid(1), doc! {"create": "c"}));
    fixture.run(doc! {"insert": "c", "documents": array![doc! {"_id": 1}]});
    assert_eq!(fixture.all(doc! {"find": uuid(1)}), [doc! {"_id": 1}]);
    assert_eq!(
        fixture.run(doc! {"count": uuid(1)}).get("n").as_exact_i64(),
        Some(1)
    );
    assert_eq!(fixture.all(doc! {"listIndexes": uuid(1)}).len(), 1);
    assert_eq!(fixture.code(doc! {"find": uuid(2)}), 26);
    let elsewhere = fixture.reply_on("other", doc! {"find": uuid(1)});
    assert_eq!(elsewhere.get("code").as_exact_i64(), Some(26));
}
