//! `rawData: true`: commands on the buckets of a time series by its own name.

use std::sync::Arc;

use nilometer::Request;
use nilometer::operation::DocumentSequence;
use nilometer::session::ClientSession;
use nilometer_bson::{Document, DocumentBuilder, Value, array, doc};

use crate::support::{Fixture, show};

/// Returns a command with `rawData: true` at its end.
fn raw(command: Document) -> Document {
    with(command, true)
}

fn with(command: Document, value: impl Into<Value>) -> Document {
    let mut out = DocumentBuilder::new();
    for element in command.iter() {
        out.append_element(element);
    }
    out.append("rawData", value);
    out.finish()
}

fn number(reply: &Document, name: &str) -> i64 {
    reply
        .get(name)
        .as_exact_i64()
        .unwrap_or_else(|| panic!("{name}: {reply:?}"))
}

fn buckets(fixture: &mut Fixture) -> Vec<Document> {
    let buckets = fixture.all(doc! {"find": "system.buckets.ts"});
    assert!(!buckets.is_empty());
    buckets
}

fn first_id(fixture: &mut Fixture) -> Value {
    buckets(fixture)[0].get("_id").to_value()
}

#[test]
fn reads_return_buckets() {
    let mut fixture = Fixture::with_measurements(30);
    let buckets = buckets(&mut fixture);
    let find = fixture.all(raw(
        doc! {"find": "ts", "sort": doc! {"_id": 1}, "batchSize": 1},
    ));
    let sorted = fixture.all(doc! {"find": "system.buckets.ts", "sort": doc! {"_id": 1}});
    assert_eq!(find, sorted);
    let stages = array![doc! {"$match": doc! {"control.count": doc! {"$gt": 0}}}];
    let pipeline = doc! {"aggregate": "ts", "pipeline": stages, "cursor": doc! {}};
    assert_eq!(fixture.all(raw(pipeline)), buckets);
    let count = fixture.run(raw(doc! {"count": "ts"}));
    assert_eq!(number(&count, "n"), buckets.len() as i64);
    let distinct = fixture.run(raw(doc! {"distinct": "ts", "key": "control.version"}));
    assert_eq!(
        distinct.get("values").as_array().map(|all| all.len()),
        Some(1)
    );
    // Without the option, with `false` and with null the commands mean measurements.
    for value in [Value::Bool(false), Value::Null] {
        let find = with(doc! {"find": "ts"}, value.clone());
        assert_eq!(fixture.all(find).len(), 30);
        let count = with(doc! {"count": "ts"}, value);
        assert_eq!(number(&fixture.run(count), "n"), 30);
    }
}

#[test]
fn other_collections_of_a_pipeline_stay_measurements() {
    let mut fixture = Fixture::with_measurements(30);
    let buckets = buckets(&mut fixture).len();
    let union = array![doc! {"$unionWith": "ts"}];
    let both = raw(doc! {"aggregate": "ts", "pipeline": union, "cursor": doc! {}});
    assert_eq!(fixture.all(both).len(), buckets + 30);
}

#[test]
fn changes_change_buckets() {
    let mut fixture = Fixture::with_measurements(30);
    let all = buckets(&mut fixture);
    let id = first_id(&mut fixture);
    let by_id = doc! {"_id": id.clone()};
    // A closed bucket takes no measurements, and says so.
    let close = doc! {"$set": doc! {"control.closed": true}};
    let statement = doc! {"q": by_id.clone(), "u": close.clone()};
    let update = fixture.run(raw(doc! {"update": "ts", "updates": array![statement]}));
    assert_eq!((number(&update, "n"), number(&update, "nModified")), (1, 1));
    let open = doc! {"$unset": doc! {"control.closed": ""}};
    let modify = doc! {"findAndModify": "ts", "query": by_id.clone(), "update": open, "new": true};
    let modified = fixture.run(raw(modify));
    let opened = modified
        .get("value")
        .as_document()
        .expect("a bucket")
        .to_document();
    assert_eq!(show(&opened), show(&all[0]));
    let statement = doc! {"q": by_id, "limit": 1};
    let delete = fixture.run(raw(doc! {"delete": "ts", "deletes": array![statement]}));
    assert_eq!(number(&delete, "n"), 1);
    assert_eq!(buckets(&mut fixture).len(), all.len() - 1);
    let insert = doc! {"insert": "ts", "documents": array![opened]};
    assert_eq!(number(&fixture.run(raw(insert)), "n"), 1);
    assert_eq!(fixture.all(doc! {"find": "ts"}).len(), 30);
    // The same statement means a measurement without the option.
    let statement = doc! {"q": doc! {"_id": id}, "u": close};
    let update = fixture.run(doc! {"update": "ts", "updates": array![statement]});
    assert_eq!(number(&update, "n"), 0);
}

#[test]
fn bulk_writes_change_buckets_of_every_series_they_name() {
    let mut fixture = Fixture::with_measurements(30);
    fixture.run(doc! {"insert": "plain2", "documents": array![doc! {"_id": 1}]});
    let id = first_id(&mut fixture);
    let namespaces = [doc! {"ns": "test.plain2"}, doc! {"ns": "test.ts"}];
    let operations = |id: &Value| {
        array![
            doc! {"insert": 0, "document": doc! {}},
            doc! {
                "update": 1, "filter": doc! {"_id": id.clone()},
                "updateMods": doc! {"$set": doc! {"control.closed": true}},
            },
        ]
    };
    let listed: Vec<Value> = namespaces.iter().cloned().map(Value::from).collect();
    let bulk = doc! {"bulkWrite": 1, "ops": operations(&id), "nsInfo": listed};
    let reply = fixture.reply_on("admin", raw(bulk));
    assert_eq!(
        (number(&reply, "nInserted"), number(&reply, "nModified")),
        (1, 1)
    );
    let closed = doc! {"count": "ts", "query": doc! {"control.closed": true}};
    assert_eq!(number(&fixture.run(raw(closed)), "n"), 1);
    // The namespaces outside the body, as drivers may send them.
    let bytes: Vec<u8> = namespaces
        .iter()
        .flat_map(|ns| ns.as_bytes().to_vec())
        .collect();
    let end = bytes.len();
    let sequence = DocumentSequence::new("nsInfo".to_owned(), Arc::new(bytes), 0..end);
    let open = doc! {
        "update": 1, "filter": doc! {"_id": id},
        "updateMods": doc! {"$unset": doc! {"control.closed": 1}},
    };
    let body = raw(doc! {"bulkWrite": 1, "$db": "admin", "ops": array![open]});
    let mut request = Request::new(body);
    request.sequences = vec![sequence.expect("documents")];
    let reply = fixture
        .database
        .run_command(&mut ClientSession::embedded(), &request);
    assert_eq!(number(&reply, "nModified"), 1);
}

#[test]
fn indexes_are_those_of_buckets() {
    let mut fixture = Fixture::with_measurements(30);
    let index = doc! {"key": doc! {"control.count": 1}, "name": "by_count"};
    fixture.run(raw(doc! {"createIndexes": "ts", "indexes": array![index]}));
    let names = |listed: &[Document]| -> Vec<String> {
        let names = listed.iter().map(|index| index.get("name").as_str());
        names.map(|name| name.expect("a name").to_owned()).collect()
    };
    let listed = fixture.all(raw(doc! {"listIndexes": "ts"}));
    assert_eq!(
        listed,
        fixture.all(doc! {"listIndexes": "system.buckets.ts"})
    );
    assert!(names(&listed).contains(&"by_count".to_owned()));
    let of_measurements = fixture.all(doc! {"listIndexes": "ts"});
    assert!(!names(&of_measurements).contains(&"by_count".to_owned()));
    let hinted =
        doc! {"find": "ts", "filter": doc! {"control.count": doc! {"$gte": 0}}, "hint": "by_count"};
    assert_eq!(fixture.all(raw(hinted)).len(), buckets(&mut fixture).len());
    fixture.run(raw(doc! {"dropIndexes": "ts", "index": "by_count"}));
    let listed = fixture.all(raw(doc! {"listIndexes": "ts"}));
    assert!(!names(&listed).contains(&"by_count".to_owned()));
}

#[test]
fn figures_are_those_of_buckets() {
    let mut fixture = Fixture::with_measurements(30);
    for command in ["collStats", "validate"] {
        let named = |name: &str| {
            let mut out = DocumentBuilder::new();
            out.append(command, name);
            out.finish()
        };
        let raw = fixture.run(raw(named("ts")));
        let buckets = fixture.run(named("system.buckets.ts"));
        assert_eq!(raw.get("ns").as_str(), buckets.get("ns").as_str());
        assert_eq!(
            raw.get("ns").as_str(),
            Some("test.system.buckets.ts"),
            "{command}"
        );
    }
    // The buckets are listed with and without the option.
    let listed = fixture.all(doc! {"listCollections": 1});
    assert_eq!(fixture.all(raw(doc! {"listCollections": 1})), listed);
}

#[test]
fn explanations_are_those_of_buckets() {
    let mut fixture = Fixture::with_measurements(30);
    let statement = doc! {"q": doc! {"control.count": 0}, "limit": 1};
    for command in [
        doc! {"find": "ts"},
        doc! {"aggregate": "ts", "pipeline": array![], "cursor": doc! {}},
        doc! {"count": "ts"},
        doc! {"distinct": "ts", "key": "control.version"},
        doc! {"delete": "ts", "deletes": array![statement]},
        doc! {"findAndModify": "ts", "query": doc! {}, "remove": true},
    ] {
        let explain = doc! {"explain": raw(command.clone()), "verbosity": "queryPlanner"};
        let told = show(&fixture.run(explain));
        assert!(told.contains("test.system.buckets.ts"), "{told}");
        assert!(!told.contains("npack"), "{told}");
        let asked = with(command, "yes");
        assert_eq!(fixture.code(doc! {"explain": asked}), 14);
    }
}

#[test]
fn the_option_changes_nothing_elsewhere() {
    let mut fixture = Fixture::with_measurements(30);
    fixture.run(doc! {"create": "view", "viewOn": "ts", "pipeline": array![doc! {"$limit": 3}]});
    for collection in ["plain", "view", "system.buckets.ts", "absent"] {
        let expected = fixture.all(doc! {"find": collection});
        assert_eq!(
            fixture.all(raw(doc! {"find": collection})),
            expected,
            "{collection}"
        );
    }
    fixture.run(raw(doc! {"insert": "new", "documents": array![doc! {}]}));
    assert_eq!(fixture.all(doc! {"find": "new"}).len(), 1);
    // Other commands do not know it, and it is a boolean.
    for command in [
        doc! {"drop": "ts"},
        doc! {"collMod": "ts"},
        doc! {"ping": 1},
        doc! {"create": "x"},
    ] {
        assert_eq!(fixture.code(raw(command)), 40_415);
    }
    assert_eq!(fixture.code(with(doc! {"find": "ts"}, 1)), 14);
    assert_eq!(
        fixture.code(with(
            doc! {"insert": "plain", "documents": array![doc! {}]},
            "x"
        )),
        14
    );
    // Version 1 of the stable API does not have it.
    let mut strict = DocumentBuilder::new();
    for element in raw(doc! {"find": "ts"}).iter() {
        strict.append_element(element);
    }
    strict.append("apiVersion", "1").append("apiStrict", true);
    assert_eq!(fixture.code(strict.finish()), 323);
}
