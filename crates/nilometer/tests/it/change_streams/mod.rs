//! Change streams: their events, options and errors.

mod bins;
mod buckets;
mod histories;
mod images;
mod log;

use std::path::Path;

use nilometer::Database;
use nilometer_bson::order::equal;
use nilometer_bson::{Array, Document, DocumentBuilder, Value, ValueRef, array, doc};

use crate::support::{Fixture, cursor, primary_environment, show};

fn in_memory() -> Fixture {
    Fixture::of(Database::in_memory_with(primary_environment()).unwrap())
}

fn in_directory(path: &Path) -> Fixture {
    Fixture::of(Database::open_with(path, primary_environment()).unwrap())
}

/// Returns a command that opens a stream.
fn watch(target: impl Into<Value>, options: Document, stages: Vec<Value>) -> Document {
    let mut pipeline = vec![Value::from(doc! {"$changeStream": options})];
    pipeline.extend(stages);
    doc! {"aggregate": target.into(), "pipeline": pipeline, "cursor": doc! {}}
}

/// An open stream.
struct Stream {
    id: i64,
    collection: String,
    events: Vec<Document>,
    token: Document,
}

impl Stream {
    fn open(fixture: &mut Fixture, command: Document) -> Self {
        let reply = fixture.run(command);
        let (id, namespace, events) = cursor(&reply, "firstBatch");
        Self {
            id,
            collection: namespace.split_once('.').unwrap().1.to_owned(),
            events,
            token: token(&reply),
        }
    }

    /// Reads until a batch is empty.
    fn read(&mut self, fixture: &mut Fixture) -> &[Document] {
        while self.id != 0 && self.read_batch(fixture, 100) > 0 {}
        &self.events
    }

    /// Reads one batch; returns the number of its events.
    fn read_batch(&mut self, fixture: &mut Fixture, size: i32) -> usize {
        let more = doc! {
            "getMore": self.id, "collection": self.collection.as_str(), "batchSize": size,
            "maxTimeMS": 1
        };
        let reply = fixture.run(more);
        let (id, _, events) = cursor(&reply, "nextBatch");
        self.id = id;
        self.token = token(&reply);
        if let Some(last) = events.last() {
            assert!(id_of(last).as_bytes() <= self.token.as_bytes());
        }
        let count = events.len();
        self.events.extend(events);
        count
    }
}

fn token(reply: &Document) -> Document {
    let cursor = reply.get("cursor").as_document().unwrap();
    let token = cursor.get("postBatchResumeToken").as_document();
    token.expect("a token in every batch").to_document()
}

fn id_of(event: &Document) -> Document {
    event.get("_id").as_document().unwrap().to_document()
}

fn kind(event: &Document) -> &str {
    event.get("operationType").as_str().unwrap()
}

fn kinds(events: &[Document]) -> Vec<&str> {
    events.iter().map(kind).collect()
}

fn sorted(documents: impl Iterator<Item = Document>) -> Vec<Document> {
    let mut documents: Vec<_> = documents.collect();
    documents.sort_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
    documents
}

const START_MS: i64 = 1_700_000_000_000;

/// Creates the capped collection and the time series, if they are not there.
fn create(fixture: &mut Fixture) {
    fixture.reply(doc! {"create": "capped", "capped": true, "size": 4096, "max": 5});
    let options = doc! {"timeField": "t", "metaField": "m"};
    fixture.reply(doc! {"create": "ts", "timeseries": options});
}

#[test]
fn events_have_the_form_that_drivers_read() {
    let mut fixture = in_memory();
    let mut stream = Stream::open(&mut fixture, watch("c", doc! {}, vec![]));
    let reply =
        fixture.run(doc! {"insert": "c", "documents": array![doc! {"_id": 1, "a": doc! {"b": 1}}]});
    let time = reply.get("operationTime").to_value();
    let shown = reply.get("$clusterTime").as_document().unwrap();
    assert!(equal(shown.get("clusterTime"), time.as_ref()));
    fixture.run(doc! {"insert": "other", "documents": array![doc! {"_id": 1}]});
    let set = doc! {"q": doc! {"_id": 1}, "u": doc! {"$set": doc! {"a.b": 2}}};
    let replace = doc! {"q": doc! {"_id": 1}, "u": doc! {"c": 3}};
    fixture.run(doc! {"update": "c", "updates": array![set, replace]});
    fixture.run(doc! {"delete": "c", "deletes": array![doc! {"q": doc! {}, "limit": 0}]});
    fixture.run(doc! {"drop": "c"});
    let events = stream.read(&mut fixture).to_vec();
    assert_eq!(
        kinds(&events),
        [
            "insert",
            "update",
            "replace",
            "delete",
            "drop",
            "invalidate"
        ]
    );
    assert_eq!(stream.id, 0);
    assert!(events.is_sorted_by(|a, b| id_of(a).as_bytes() < id_of(b).as_bytes()));
    let insert = &events[0];
    assert!(equal(insert.get("clusterTime"), time.as_ref()));
    assert!(matches!(insert.get("wallTime"), ValueRef::DateTime(_)));
    let part = |event: &Document, name: &str| event.get(name).as_document().unwrap().to_document();
    assert_eq!(part(insert, "ns"), doc! {"db": "test", "coll": "c"});
    assert_eq!(part(insert, "documentKey"), doc! {"_id": 1});
    assert_eq!(
        part(insert, "fullDocument"),
        doc! {"_id": 1, "a": doc! {"b": 1}}
    );
    let description = doc! {
        "updatedFields": doc! {"a.b": 2}, "removedFields": array![], "truncatedArrays": array![]
    };
    assert_eq!(part(&events[1], "updateDescription"), description);
    assert!(events[1].get("fullDocument").is_missing());
    assert_eq!(part(&events[2], "fullDocument"), doc! {"_id": 1, "c": 3});
    assert_eq!(part(&events[3], "documentKey"), doc! {"_id": 1});
    // Behind the drop the stream ends, also if it is resumed there.
    let resumed = watch("c", doc! {"resumeAfter": id_of(&events[4])}, vec![]);
    let mut resumed = Stream::open(&mut fixture, resumed);
    assert_eq!(kinds(resumed.read(&mut fixture)), ["invalidate"]);
    // Behind an invalidate event only `startAfter` goes on.
    let last = id_of(&events[5]);
    let again = watch("c", doc! {"resumeAfter": last.clone()}, vec![]);
    assert_eq!(fixture.code(again), 260);
    let mut next = Stream::open(&mut fixture, watch("c", doc! {"startAfter": last}, vec![]));
    fixture.run(doc! {"insert": "c", "documents": array![doc! {"_id": 2}]});
    assert_eq!(kinds(next.read(&mut fixture)), ["insert"]);
    // From a time on.
    let from = watch("c", doc! {"startAtOperationTime": time}, vec![]);
    let mut from = Stream::open(&mut fixture, from);
    assert_eq!(from.read(&mut fixture).len(), 6);
}

#[test]
fn full_documents_are_looked_up_and_pipelines_apply() {
    let mut fixture = in_memory();
    let options = doc! {"fullDocument": "updateLookup"};
    let project = doc! {"$project": doc! {"operationType": 1, "fullDocument": 1}};
    let matching = doc! {"$match": doc! {"operationType": "update"}};
    let open = watch("c", options, vec![matching.into(), project.into()]);
    let mut stream = Stream::open(&mut fixture, open);
    fixture.run(doc! {"insert": "c", "documents": array![doc! {"_id": 1}, doc! {"_id": 2}]});
    let before = stream.token.clone();
    assert!(stream.read(&mut fixture).is_empty());
    assert!(
        before.as_bytes() < stream.token.as_bytes(),
        "events that are filtered out are passed"
    );
    let update = |id: i32| {
        let statement = doc! {"q": doc! {"_id": id}, "u": doc! {"$inc": doc! {"n": 1}}};
        doc! {"update": "c", "updates": array![statement]}
    };
    for id in [1, 1, 2] {
        fixture.run(update(id));
    }
    fixture.run(doc! {"delete": "c", "deletes": array![doc! {"q": doc! {"_id": 2}, "limit": 1}]});
    let found = stream.read(&mut fixture).to_vec();
    let found = found.iter();
    let found = found.map(|event| event.get("fullDocument").to_value());
    let found = doc! {"found": found.collect::<Array>()};
    let once = doc! {"_id": 1, "n": 2};
    let wanted = doc! {"found": array![once.clone(), once, Value::Null]};
    assert_eq!(found, wanted);
    // A stage that changes the token ends the stream.
    let open = watch(
        "c",
        doc! {},
        vec![doc! {"$project": doc! {"_id": 0}}.into()],
    );
    let reply = fixture.run(open);
    let (id, _, _) = cursor(&reply, "firstBatch");
    fixture.run(update(1));
    let reply = fixture.reply(doc! {"getMore": id, "collection": "c", "maxTimeMS": 1});
    assert_eq!(
        reply.get("code").as_exact_i64(),
        Some(280),
        "{}",
        show(&reply)
    );
    let labels = reply.get("errorLabels").as_array().unwrap();
    assert_eq!(
        labels.get(0).as_str(),
        Some("NonResumableChangeStreamError")
    );
}

#[test]
fn what_streams_do_not_support_is_refused_by_name() {
    let mut alone = Fixture::new();
    assert_eq!(alone.code(watch("c", doc! {}, vec![])), 40_573);
    let mut fixture = in_memory();
    let token = doc! {"_data": "00"};
    for (options, code) in [
        (doc! {"fullDocument": "other"}, 2),
        (doc! {"fullDocumentBeforeChange": "other"}, 2),
        (doc! {"unknown": 1}, 40_415),
        (doc! {"resumeAfter": token.clone()}, 260),
        (
            doc! {"resumeAfter": token.clone(), "startAfter": token},
            50_674,
        ),
        (doc! {"allChangesForCluster": true}, 72),
    ] {
        let shown = show(&options);
        assert_eq!(fixture.code(watch("c", options, vec![])), code, "{shown}");
    }
    for (stage, code) in [
        ("$sort", 20),
        ("$group", 20),
        ("$changeStreamSplitLargeEvent", 7_182_800),
    ] {
        let mut stages = DocumentBuilder::new();
        stages.append(stage, doc! {"_id": 1});
        let stages = vec![stages.finish().into()];
        assert_eq!(fixture.code(watch("c", doc! {}, stages)), code, "{stage}");
    }
    assert_eq!(fixture.code(watch("system.views", doc! {}, vec![])), 73);
    fixture.run(doc! {"create": "v", "viewOn": "c", "pipeline": array![]});
    assert_eq!(fixture.code(watch("v", doc! {}, vec![])), 166);
    let text = doc! {"$match": doc! {"$text": doc! {"$search": "x"}}};
    let reply = fixture.code(watch("c", doc! {}, vec![text.into()]));
    assert_eq!(reply, 17_313);
    let stream = array![doc! {"$changeStream": doc! {}}];
    let view = doc! {"create": "w", "viewOn": "c", "pipeline": stream.clone()};
    assert_eq!(fixture.code(view), 167);
    let nested = doc! {"$lookup": doc! {"from": "c", "pipeline": stream, "as": "x"}};
    let nested = doc! {"aggregate": "c", "pipeline": array![nested], "cursor": doc! {}};
    assert_eq!(fixture.code(nested), 51_047);
    let second = array![doc! {"$match": doc! {}}, doc! {"$changeStream": doc! {}}];
    let second = doc! {"aggregate": "c", "pipeline": second, "cursor": doc! {}};
    assert_eq!(fixture.code(second), 40_602);
    let mut local = DocumentBuilder::extending(watch("c", doc! {}, vec![]));
    local.append("readConcern", doc! {"level": "local"});
    assert_eq!(fixture.code(local.finish()), 72);
    // A time before the log.
    let early = Value::Timestamp(nilometer_bson::Timestamp {
        seconds: 1,
        increment: 1,
    });
    let reply = fixture.reply(watch("c", doc! {"startAtOperationTime": early}, vec![]));
    assert_eq!(
        reply.get("code").as_exact_i64(),
        Some(286),
        "{}",
        show(&reply)
    );
}

#[test]
fn a_token_of_another_collection_is_not_found() {
    let mut fixture = in_memory();
    let mut whole = Stream::open(&mut fixture, watch(1, doc! {}, vec![]));
    for name in ["a", "b"] {
        fixture.run(doc! {"insert": name, "documents": array![doc! {"_id": 1}]});
    }
    fixture.reply_on("admin", doc! {"renameCollection": "test.b", "to": "test.c"});
    let events = whole.read(&mut fixture).to_vec();
    assert_eq!(kinds(&events), ["insert", "insert", "rename"]);
    let mut resume = |name: &str, event: usize| {
        let options = doc! {"resumeAfter": id_of(&events[event])};
        let reply = fixture.reply(watch(name, options, vec![]));
        reply.get("code").as_exact_i64()
    };
    assert_eq!(resume("a", 0), None);
    assert_eq!(resume("a", 1), Some(280));
    assert_eq!(resume("b", 1), None);
    assert_eq!(resume("b", 0), Some(280));
    assert_eq!(resume("b", 2), None);
    assert_eq!(resume("a", 2), Some(280));
    // The time behind all events is one of every stream.
    let options = doc! {"resumeAfter": whole.token};
    fixture.run(watch("a", options, vec![]));
}

#[test]
fn a_stream_of_the_cluster_shows_all_databases() {
    let mut fixture = in_memory();
    let open = watch(1, doc! {"allChangesForCluster": true}, vec![]);
    let reply = fixture.reply_on("admin", open);
    let (id, _, _) = cursor(&reply, "firstBatch");
    for db in ["one", "two"] {
        fixture.reply_on(
            db,
            doc! {"insert": "c", "documents": array![doc! {"_id": 1}]},
        );
    }
    fixture.reply_on("one", doc! {"dropDatabase": 1});
    let more = doc! {"getMore": id, "collection": "$cmd.aggregate", "maxTimeMS": 1};
    let reply = fixture.reply_on("admin", more);
    let (id, _, events) = cursor(&reply, "nextBatch");
    assert_eq!(kinds(&events), ["insert", "insert", "drop", "dropDatabase"]);
    assert!(id != 0);
}

#[test]
fn expanded_events_show_definitions() {
    let mut fixture = in_memory();
    let mut plain = Stream::open(&mut fixture, watch(1, doc! {}, vec![]));
    let open = watch(1, doc! {"showExpandedEvents": true}, vec![]);
    let mut expanded = Stream::open(&mut fixture, open);
    fixture.run(doc! {"create": "c", "capped": true, "size": 4096});
    let index = doc! {"key": doc! {"a": 1}, "name": "a_1"};
    fixture.run(doc! {"createIndexes": "c", "indexes": array![index]});
    let hide = doc! {"name": "a_1", "hidden": true};
    fixture.run(doc! {"collMod": "c", "index": hide});
    fixture.run(doc! {"collMod": "c", "validationLevel": "off"});
    fixture.run(doc! {"dropIndexes": "c", "index": "a_1"});
    let document = doc! {"_id": 1, "a.b": 1, "d": doc! {"0": 1, "x": 1}};
    fixture.run(doc! {"insert": "c", "documents": array![document]});
    let set = doc! {"$set": doc! {"d.0": 2}};
    let dotted = doc! {"$replaceWith": doc! {"$setField":
    doc! {"field": "a.b", "input": "$$ROOT", "value": 2}}};
    for change in [Value::from(set), array![dotted]] {
        let statement = doc! {"q": doc! {"_id": 1}, "u": change};
        fixture.run(doc! {"update": "c", "updates": array![statement]});
    }
    fixture.reply_on("admin", doc! {"renameCollection": "test.c", "to": "test.d"});
    let options = doc! {"timeField": "t", "metaField": "m"};
    fixture.run(doc! {"create": "ts", "timeseries": options});
    fixture.run(doc! {"create": "v", "viewOn": "d", "pipeline": array![]});
    fixture.run(doc! {"collMod": "d"});
    assert_eq!(
        kinds(plain.read(&mut fixture)),
        ["insert", "update", "update", "rename"]
    );
    let events = expanded.read(&mut fixture);
    assert_eq!(
        kinds(events),
        [
            "create",
            "createIndexes",
            "modify",
            "modify",
            "dropIndexes",
            "insert",
            "update",
            "update",
            "rename",
            "create",
            "create",
            "modify"
        ]
    );
    let part = |at: usize, name: &str| events[at].get(name).as_document().unwrap();
    let first = part(0, "operationDescription");
    assert_eq!(first.get("size").as_exact_i64(), Some(4096));
    assert!(show(&part(1, "operationDescription").to_document()).contains("a_1"));
    assert!(show(&part(2, "stateBeforeChange").to_document()).contains("indexOptions"));
    assert!(show(&part(3, "stateBeforeChange").to_document()).contains("collectionOptions"));
    let uuid = events[0].get("collectionUUID");
    assert!(matches!(uuid, ValueRef::Binary { .. }));
    assert!(
        events
            .iter()
            .take(9)
            .all(|event| equal(event.get("collectionUUID"), uuid))
    );
    let unclear = |at: usize| {
        let description = part(at, "updateDescription");
        description
            .get("disambiguatedPaths")
            .as_document()
            .unwrap()
            .to_document()
    };
    assert_eq!(unclear(6), doc! {"d.0": array!["d", "0"]});
    assert_eq!(unclear(7), doc! {"a.b": array!["a.b"]});
    assert!(show(&part(9, "operationDescription").to_document()).contains("timeField"));
    assert!(show(&part(10, "operationDescription").to_document()).contains("viewOn"));
    let shown = plain.events[1]
        .get("updateDescription")
        .as_document()
        .unwrap();
    assert!(shown.get("disambiguatedPaths").is_missing());
}

#[test]
fn images_show_documents_before_and_after_their_changes() {
    let mut fixture = in_memory();
    let images = doc! {"enabled": true};
    fixture.run(doc! {"create": "c", "changeStreamPreAndPostImages": images});
    let options = |value: &str| doc! {"fullDocument": value, "fullDocumentBeforeChange": value};
    let mut stream = Stream::open(&mut fixture, watch("c", options("required"), vec![]));
    let update = |change: Document| {
        let statement = doc! {"q": doc! {"_id": 1}, "u": change};
        doc! {"update": "c", "updates": array![statement]}
    };
    fixture.run(doc! {"insert": "c", "documents": array![doc! {"_id": 1, "n": 1}]});
    fixture.run(update(doc! {"$inc": doc! {"n": 1}}));
    fixture.run(update(doc! {"n": 9}));
    fixture.run(doc! {"delete": "c", "deletes": array![doc! {"q": doc! {}, "limit": 1}]});
    let images_of = |event: &Document| {
        ["fullDocumentBeforeChange", "fullDocument"].map(|name| {
            event
                .get(name)
                .as_document()
                .map(|n| n.get("n").as_exact_i64().unwrap())
        })
    };
    let found: Vec<_> = stream.read(&mut fixture).iter().map(images_of).collect();
    let wanted = [
        [None, Some(1)],
        [Some(1), Some(2)],
        [Some(2), Some(9)],
        [Some(9), None],
    ];
    assert_eq!(found, wanted);
    // Each change alone: the document before it stays with its event over resumptions.
    for (at, wanted) in wanted.iter().enumerate().skip(1) {
        let after = id_of(&stream.events[at - 1]);
        let mut options = DocumentBuilder::extending(options("whenAvailable"));
        options.append("resumeAfter", after);
        let open = watch("c", options.finish(), vec![]);
        let mut resumed = Stream::open(&mut fixture, open);
        assert_eq!(images_of(&resumed.read(&mut fixture)[0]), *wanted);
    }
    // Without them.
    fixture.run(doc! {"collMod": "c", "changeStreamPreAndPostImages": doc! {"enabled": false}});
    let mut available = Stream::open(&mut fixture, watch("c", options("whenAvailable"), vec![]));
    let required = fixture.run(watch("c", options("required"), vec![]));
    let (id, _, _) = cursor(&required, "firstBatch");
    fixture.run(doc! {"insert": "c", "documents": array![doc! {"_id": 1, "n": 1}]});
    fixture.run(update(doc! {"$inc": doc! {"n": 1}}));
    let event = available.read(&mut fixture)[1].clone();
    assert!(matches!(event.get("fullDocument"), ValueRef::Null));
    assert!(matches!(
        event.get("fullDocumentBeforeChange"),
        ValueRef::Null
    ));
    let more = doc! {"getMore": id, "collection": "c", "maxTimeMS": 1};
    assert_eq!(fixture.code(more), 47);
}

#[test]
fn large_events_are_split() {
    let mut fixture = in_memory();
    let images = doc! {"enabled": true};
    fixture.run(doc! {"create": "c", "changeStreamPreAndPostImages": images});
    let options = doc! {"fullDocument": "required", "fullDocumentBeforeChange": "required"};
    let with = |token: Option<&Document>| {
        let mut out = DocumentBuilder::extending(options.clone());
        out.append("resumeAfter", token.cloned());
        out.finish()
    };
    let split = || vec![Value::from(doc! {"$changeStreamSplitLargeEvent": doc! {}})];
    let mut stream = Stream::open(&mut fixture, watch("c", options.clone(), split()));
    let start = stream.token.clone();
    let large = "x".repeat(15 << 20);
    let document = doc! {"_id": 1, "text": large.as_str(), "n": 1};
    fixture.run(doc! {"insert": "c", "documents": array![document]});
    let statement = doc! {"q": doc! {"_id": 1}, "u": doc! {"$inc": doc! {"n": 1}}};
    fixture.run(doc! {"update": "c", "updates": array![statement]});
    fixture.run(doc! {"insert": "c", "documents": array![doc! {"_id": 2}]});
    let events = stream.read(&mut fixture).to_vec();
    let places: Vec<_> = events
        .iter()
        .map(|event| {
            let place = event.get("splitEvent").as_document();
            place.map(|place| {
                (
                    place.get("fragment").as_exact_i64(),
                    place.get("of").as_exact_i64(),
                )
            })
        })
        .collect();
    let fragment = |number| Some((Some(number), Some(2)));
    assert_eq!(places, [None, fragment(1), fragment(2), None]);
    let tokens = events.iter().map(|event| {
        let token = id_of(event);
        token.get("_data").as_str().unwrap().to_owned()
    });
    assert!(tokens.is_sorted());
    for (at, event) in events.iter().enumerate().take(3) {
        let token = id_of(event);
        let open = watch("c", with(Some(&token)), split());
        let mut resumed = Stream::open(&mut fixture, open);
        let rest = resumed.read(&mut fixture);
        assert!(
            rest == &events[at + 1..],
            "after {at}: {} events",
            rest.len()
        );
    }
    // Without the stage.
    let token = id_of(&events[1]);
    assert_eq!(fixture.code(watch("c", with(Some(&token)), vec![])), 280);
    assert_eq!(fixture.code(watch("c", with(Some(&start)), vec![])), 10_334);
}
