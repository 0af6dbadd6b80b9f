//! `applyOps`: collections that come back with the UUID they had.

use nilometer_bson::{Binary, Document, Value, ValueRef, array, doc};

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
fn a_uuid_of_another_collection_and_unknown_commands_are_refused() {
    let mut fixture = Fixture::new();
    fixture.run(creation(uuid(1), doc! {"create": "c"}));
    assert_eq!(fixture.code(creation(uuid(1), doc! {"create": "d"})), 48);
    assert_eq!(fixture.code(creation(uuid(2), doc! {"create": "c"})), 48);
    let view = doc! {"create": "v", "viewOn": "c", "pipeline": array![]};
    assert_eq!(fixture.code(creation(uuid(3), view)), 72);
    assert_eq!(fixture.code(creation(uuid(4), doc! {"other": "c"})), 115);
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

fn apply(entries: Vec<Value>) -> Document {
    doc! {"applyOps": entries}
}

fn entry(op: &str, o: Document) -> Value {
    doc! {"op": op, "ns": "test.c", "o": o}.into()
}

fn update(id: i32, o: Document) -> Value {
    doc! {"op": "u", "ns": "test.c", "o": o, "o2": doc! {"_id": id}}.into()
}

#[test]
fn entries_are_applied_in_order_to_contents_that_may_be_newer() {
    let mut fixture = Fixture::new();
    let diff = doc! {"$v": 2, "diff": doc! {"u": doc! {"a": 2}, "d": doc! {"b": false}}};
    let reply = fixture.run(apply(vec![
        entry("i", doc! {"_id": 1, "a": 1, "b": 1}),
        update(1, diff.clone()),
        entry("i", doc! {"_id": 2}),
        entry("i", doc! {"_id": 2, "again": true}),
        entry("d", doc! {"_id": 3}),
        // Documents that were removed since: a difference changes nothing, others insert them.
        update(4, diff),
        update(5, doc! {"_id": 5, "whole": 1}),
        update(6, doc! {"$set": doc! {"x": 1}}),
        entry("n", doc! {"msg": "x"}),
    ]));
    assert_eq!(reply.get("applied").as_exact_i64(), Some(9));
    let wanted = [
        doc! {"_id": 1, "a": 2},
        doc! {"_id": 2, "again": true},
        doc! {"_id": 5, "whole": 1},
        doc! {"_id": 6, "x": 1},
    ];
    assert_eq!(
        fixture.all(doc! {"find": "c", "sort": doc! {"_id": 1}}),
        wanted
    );
    let mut strict = apply(vec![update(7, doc! {"_id": 7})]);
    let mut out = nilometer_bson::DocumentBuilder::extending(strict);
    out.append("alwaysUpsert", false);
    strict = out.finish();
    assert_eq!(fixture.code(strict), 213);
    let nested = doc! {"applyOps": array![entry("i", doc! {"_id": 8})]};
    let nested = doc! {"op": "c", "ns": "admin.$cmd", "o": nested};
    fixture.run(apply(vec![nested.into()]));
    assert_eq!(
        fixture
            .all(doc! {"find": "c", "filter": doc! {"_id": 8}})
            .len(),
        1
    );
}

#[test]
fn malformed_entries_are_refused_and_say_how_many_were_applied() {
    let mut fixture = Fixture::new();
    for (entry, code) in [
        (doc! {"ns": "test.c", "o": doc! {"_id": 1}}, 40_414),
        (doc! {"op": "i", "o": doc! {"_id": 1}}, 40_414),
        (doc! {"op": "i", "ns": "test.c"}, 40_414),
        (doc! {"op": "x", "ns": "test.c", "o": doc! {}}, 2),
        (
            doc! {"op": "i", "ns": "test.c", "o": doc! {"_id": 1}, "y": 1},
            40_415,
        ),
        (doc! {"op": "i", "ns": "test.c", "o": doc! {"a": 1}}, 4),
        (doc! {"op": "u", "ns": "test.c", "o": doc! {"a": 1}}, 40_414),
        (doc! {"op": "i", "ns": "test", "o": doc! {"_id": 1}}, 73),
        (
            doc! {"op": "c", "ns": "test.c", "o": doc! {"create": "c"}},
            73,
        ),
        (
            doc! {"op": "c", "ns": "test.$cmd", "o": doc! {"create": "c", "x": 1}},
            40_415,
        ),
        (
            doc! {"op": "i", "ns": "test.system.views", "o": doc! {"_id": "b.c"}},
            2,
        ),
        (
            doc! {"op": "i", "ns": "test.system.buckets.x", "o": doc! {"_id": 1}},
            26,
        ),
    ] {
        assert_eq!(
            fixture.code(apply(vec![entry.clone().into()])),
            code,
            "{entry:?}"
        );
    }
    let wrong = doc! {"op": "u", "ns": "test.c", "o": doc! {"$v": 2, "diff": doc! {"x": 1}}, "o2": doc! {"_id": 1}};
    let reply = fixture.reply(apply(vec![
        entry("i", doc! {"_id": 1}),
        wrong.into(),
        entry("i", doc! {"_id": 2}),
    ]));
    assert_eq!(reply.get("code").as_exact_i64(), Some(9));
    assert_eq!(reply.get("applied").as_exact_i64(), Some(2));
    let results = reply.get("results").as_array().unwrap();
    let results: Vec<_> = results.iter().map(|one| format!("{one:?}")).collect();
    assert_eq!(results, ["Bool(true)", "Bool(false)"]);
    assert_eq!(fixture.all(doc! {"find": "c"}), [doc! {"_id": 1}]);
}

#[test]
fn conditions_are_checked_before_the_first_entry() {
    let mut fixture = Fixture::new();
    fixture.run(doc! {"insert": "c", "documents": array![doc! {"_id": 1, "a": 1}]});
    let command = |wanted: i32| {
        let condition = doc! {"ns": "test.c", "q": doc! {"_id": 1}, "res": doc! {"a": wanted}};
        doc! {"applyOps": array![entry("i", doc! {"_id": 2})], "preCondition": array![condition]}
    };
    let refused = fixture.reply(command(2));
    assert_eq!(refused.get("code").as_exact_i64(), Some(2));
    assert_eq!(
        refused.get("got").as_document().unwrap().to_document(),
        doc! {"_id": 1, "a": 1}
    );
    assert_eq!(fixture.all(doc! {"find": "c"}).len(), 1);
    fixture.run(command(1));
    assert_eq!(fixture.all(doc! {"find": "c"}).len(), 2);
}
