//! Change streams: what a stream shows rebuilds the contents, over resumptions and new starts of the database; its events, options
//! and errors.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nilometer::change_log::ChangeLogOptions;
use nilometer::services::{Environment, MemberRole, ReplicaSet};
use nilometer::{ClientSession, Database, Request};
use nilometer_bson::order::equal;
use nilometer_bson::testing::{apply_description, with_sorted_fields};
use nilometer_bson::{Array, Document, DocumentBuilder, Value, ValueRef, array, doc};

use crate::support::{Fixture, TemporaryDirectory, cursor, show};

fn environment() -> Environment {
    let set = ReplicaSet::new("rs", "localhost:27017");
    set.update(|state| {
        state.role = MemberRole::Primary;
        state.primary = Some("localhost:27017".to_owned());
        state.term = 1;
    });
    Environment {
        replica_set: Some(Arc::new(set)),
        ..Environment::default()
    }
}

fn in_memory() -> Fixture {
    Fixture::of(Database::in_memory_with(environment()).unwrap())
}

fn in_directory(path: &Path) -> Fixture {
    Fixture::of(Database::open_with(path, environment()).unwrap())
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

/// The contents of collections, rebuilt from events.
#[derive(Clone, Debug, Default, PartialEq)]
struct Replica {
    /// By name and document key.
    collections: BTreeMap<String, BTreeMap<Vec<u8>, Document>>,
}

impl Replica {
    fn apply(&mut self, event: &Document) {
        let name = |names: ValueRef<'_>| {
            let names = names.as_document().unwrap();
            names.get("coll").as_str().unwrap_or_default().to_owned()
        };
        let from = name(event.get("ns"));
        let key = event.get("documentKey").as_document();
        let key = key.map(|key| key.as_bytes().to_vec()).unwrap_or_default();
        let document = |field: &str| event.get(field).as_document().unwrap();
        match kind(event) {
            "insert" => {
                let new = document("fullDocument").to_document();
                let before = self.collections.entry(from).or_default().insert(key, new);
                assert!(before.is_none(), "inserted twice: {}", show(event));
            }
            "replace" => {
                let known = self.collections.get_mut(&from).unwrap();
                let after = document("fullDocument").to_document();
                known.insert(key, after).expect("replaced what is there");
            }
            "update" => {
                let known = self.collections.get_mut(&from).unwrap();
                let before = known.get(&key).expect("updated what is there");
                let after = apply_description(before.as_ref(), document("updateDescription"));
                known.insert(key, after);
            }
            "delete" => {
                let known = self.collections.get_mut(&from).unwrap();
                known.remove(&key).expect("removed what is there");
            }
            "drop" => drop(self.collections.remove(&from)),
            "rename" => {
                let documents = self.collections.remove(&from).unwrap_or_default();
                let to = name(event.get("to"));
                self.collections.insert(to, documents);
            }
            "dropDatabase" => assert!(self.collections.is_empty()),
            other => panic!("an event {other}"),
        }
    }

    /// Returns the documents by collection, fields sorted.
    fn contents(&self) -> BTreeMap<String, Vec<Document>> {
        let all = self.collections.iter();
        let filled = all.filter(|(_, documents)| !documents.is_empty());
        let sorted = |documents: &BTreeMap<Vec<u8>, Document>| {
            let documents = documents.values();
            sorted(documents.map(|document| with_sorted_fields(document.as_ref())))
        };
        filled
            .map(|(name, documents)| (name.clone(), sorted(documents)))
            .collect()
    }
}

fn sorted(documents: impl Iterator<Item = Document>) -> Vec<Document> {
    let mut documents: Vec<_> = documents.collect();
    documents.sort_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
    documents
}

const NAMES: [&str; 4] = ["c", "d", "capped", "ts"];

/// Returns what the collections hold.
fn stored(fixture: &mut Fixture) -> BTreeMap<String, Vec<Document>> {
    let mut all = BTreeMap::new();
    for name in NAMES {
        let found = fixture.all(doc! {"find": name});
        let found = found.iter();
        let found = sorted(found.map(|document| with_sorted_fields(document.as_ref())));
        if !found.is_empty() {
            all.insert(name.to_owned(), found);
        }
    }
    all
}

/// A source of choices.
struct Draw(u64);

impl Draw {
    fn below(&mut self, count: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % count
    }

    fn number(&mut self, count: u64) -> i32 {
        i32::try_from(self.below(count)).unwrap()
    }
}

const START_MS: i64 = 1_700_000_000_000;

/// Runs a random command. Those that fail change nothing, or what they say.
fn change(fixture: &mut Fixture, draw: &mut Draw, next_id: &mut i32) {
    let id = draw.number(20);
    let name = ["c", "c", "d", "capped"][draw.below(4) as usize];
    let many = draw.below(3) == 0;
    let update = match draw.below(5) {
        0 => Value::from(doc! {"$set": doc! {"a.b": id, "list": array![1, 2, id]}}),
        1 => doc! {"$unset": doc! {"a": 1}, "$inc": doc! {"n": 1}}.into(),
        2 => doc! {"$push": doc! {"list": doc! {"$each": array![id], "$slice": -2}}}.into(),
        3 => array![doc! {"$set": doc! {"sum": doc! {"$add": array!["$n", 1]}}}],
        _ => doc! {"other": id}.into(),
    };
    let is_replacement = update
        .as_ref()
        .as_document()
        .is_some_and(|u| u.contains("other"));
    let query = match many && !is_replacement {
        true => doc! {"n": doc! {"$gte": id}},
        false => doc! {"_id": id},
    };
    let mut new = |draw: &mut Draw| -> Value {
        *next_id += 1;
        let time = Value::DateTime(START_MS + i64::from(draw.number(5_000_000)));
        let mut document = DocumentBuilder::new();
        document.append("_id", *next_id);
        document.append("t", time);
        document.append("m", doc! {"host": draw.number(3)});
        document.append("v", draw.number(5));
        if draw.below(3) == 0 {
            document.append("extra", "x");
        }
        document.finish().into()
    };
    let command = match draw.below(16) {
        0..=2 => {
            let documents = (0..=draw.below(3)).map(|at| {
                Value::from(doc! {"_id": (id + at as i32) % 20, "n": at as i32, "list": array![1]})
            });
            let documents = documents.collect::<Array>();
            doc! {"insert": name, "documents": documents, "ordered": many}
        }
        3..=5 => {
            let multi = many && !is_replacement;
            let upsert = draw.below(4) == 0;
            let statement = doc! {"q": query, "u": update, "multi": multi, "upsert": upsert};
            doc! {"update": name, "updates": array![statement]}
        }
        6 => {
            let limit = i32::from(!many);
            doc! {"delete": name, "deletes": array![doc! {"q": query, "limit": limit}]}
        }
        7 => match many {
            true => doc! {"findAndModify": name, "query": query, "remove": true},
            false => doc! {"findAndModify": name, "query": query, "update": update, "new": true},
        },
        8..=10 => {
            let documents: Array = (0..=draw.below(5)).map(|_| new(draw)).collect();
            doc! {"insert": "ts", "documents": documents}
        }
        11 => {
            let change = match draw.below(4) {
                0 => doc! {"$set": doc! {"m.host": draw.number(3)}},
                1 => doc! {"$set": doc! {"_id": { *next_id += 1; *next_id }}},
                _ => doc! {"$inc": doc! {"v": 1}, "$unset": doc! {"extra": 1}},
            };
            let multi = !change
                .as_ref()
                .get("$set")
                .as_document()
                .is_some_and(|set| set.contains("_id"));
            let query = doc! {"m.host": draw.number(3), "v": draw.number(5)};
            let statement = doc! {"q": query, "u": change, "multi": multi};
            doc! {"update": "ts", "updates": array![statement]}
        }
        12 => {
            let query = match many {
                true => doc! {"m.host": draw.number(3)},
                false => doc! {"v": draw.number(5)},
            };
            let limit = i32::from(draw.below(2) == 0 && !many);
            doc! {"delete": "ts", "deletes": array![doc! {"q": query, "limit": limit}]}
        }
        13 => match draw.below(6) {
            0 => doc! {"drop": NAMES[draw.below(4) as usize]},
            1 => doc! {"dropDatabase": 1},
            _ => {
                let rename = doc! {
                    "renameCollection": "test.c", "to": "test.d", "dropTarget": many
                };
                fixture.reply_on("admin", rename);
                return;
            }
        },
        14 => {
            let last = match draw.below(3) {
                0 => doc! {"$out": "d"},
                1 => doc! {"$merge": doc! {"into": "d"}},
                _ => doc! {"$merge": doc! {"into": "d", "whenMatched": "replace"}},
            };
            doc! {"aggregate": "c", "pipeline": array![last], "cursor": doc! {}}
        }
        _ => {
            let of_ts = doc! {"t": Value::DateTime(START_MS), "m": 1};
            let operations = array![
                doc! {"insert": 0, "document": doc! {"_id": id}},
                doc! {"update": 0, "filter": doc! {"_id": id}, "updateMods": doc! {"$inc": doc! {"n": 1}}},
                doc! {"insert": 1, "document": with_id(of_ts, { *next_id += 1; *next_id })},
            ];
            let spaces = array![doc! {"ns": "test.c"}, doc! {"ns": "test.ts"}];
            let command =
                doc! {"bulkWrite": 1, "ops": operations, "nsInfo": spaces, "ordered": false};
            fixture.reply_on("admin", command);
            return;
        }
    };
    fixture.reply(command);
    create(fixture);
}

fn with_id(document: Document, id: i32) -> Document {
    let mut out = DocumentBuilder::new();
    out.append("_id", id);
    out.append_all(document.as_ref());
    out.finish()
}

/// Creates the capped collection and the time series, if they are not there.
fn create(fixture: &mut Fixture) {
    fixture.reply(doc! {"create": "capped", "capped": true, "size": 4096, "max": 5});
    let options = doc! {"timeField": "t", "metaField": "m"};
    fixture.reply(doc! {"create": "ts", "timeseries": options});
}

/// Runs a random history, and rebuilds the contents from a stream that is closed and resumed, and over new starts.
fn history(seed: u64, steps: usize) -> usize {
    let directory = TemporaryDirectory::new();
    let mut fixture = in_directory(&directory.0);
    let mut draw = Draw(seed.wrapping_mul(7919) + 1);
    let (mut replica, mut next_id, mut resumptions) = (Replica::default(), 1000, 0);
    let mut stream = Stream::open(&mut fixture, watch(1, doc! {}, vec![]));
    create(&mut fixture);
    for _ in 0..steps {
        match draw.below(12) {
            0..=7 => change(&mut fixture, &mut draw, &mut next_id),
            8 | 9 => {
                stream.read_batch(&mut fixture, 1 + draw.number(7));
            }
            10 => {
                // Resumed after an event that was returned, or after the batch.
                let taken = match draw.below(3) {
                    0 => stream.events.len(),
                    _ => draw.below(stream.events.len() as u64 + 1) as usize,
                };
                let is_all = taken == stream.events.len();
                let last = stream.events.get(taken.wrapping_sub(1));
                let token = match (is_all, last) {
                    (true, _) => stream.token.clone(),
                    (false, Some(last)) => id_of(last),
                    (false, None) => continue,
                };
                stream
                    .events
                    .drain(..taken)
                    .for_each(|event| replica.apply(&event));
                if draw.below(2) == 0 {
                    let close = doc! {"killCursors": stream.collection.as_str(), "cursors": array![stream.id]};
                    fixture.run(close);
                } else {
                    drop(fixture);
                    fixture = in_directory(&directory.0);
                }
                let option = ["resumeAfter", "startAfter"][draw.below(2) as usize];
                let mut options = DocumentBuilder::new();
                options.append(option, token);
                stream = Stream::open(&mut fixture, watch(1, options.finish(), vec![]));
                resumptions += 1;
            }
            _ => {
                stream.read(&mut fixture);
                if stream.id != 0 {
                    let events = stream.events.drain(..);
                    events.for_each(|event| replica.apply(&event));
                    assert_eq!(replica.contents(), stored(&mut fixture), "seed {seed}");
                }
            }
        }
        let invalid = stream
            .events
            .iter()
            .position(|event| kind(event) == "invalidate");
        if let Some(at) = invalid {
            // The database was dropped: a new stream goes on behind it.
            let token = id_of(&stream.events[at]);
            let resumed = watch(1, doc! {"resumeAfter": token.clone()}, vec![]);
            assert_eq!(fixture.code(resumed), 260);
            stream.events.truncate(at);
            stream
                .events
                .drain(..)
                .for_each(|event| replica.apply(&event));
            assert_eq!(stream.id, 0);
            stream = Stream::open(&mut fixture, watch(1, doc! {"startAfter": token}, vec![]));
        }
    }
    stream.read(&mut fixture);
    resumptions
}

#[test]
fn a_stream_rebuilds_the_contents_over_resumptions() {
    let long = std::env::var_os("NILOMETER_LONG").is_some();
    let (seeds, steps) = if long { (60, 400) } else { (6, 120) };
    let resumptions: usize = (0..seeds).map(|seed| history(seed, steps)).sum();
    assert!(resumptions > seeds as usize, "{resumptions}");
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

/// Writers whose batches become visible in another order than that of their times: a reader misses none.
#[test]
fn a_reader_beside_writers_misses_nothing() {
    const WRITERS: i32 = 4;
    const INSERTS: i32 = 60;
    let directory = TemporaryDirectory::new();
    let database = Database::open_with(&directory.0, environment()).unwrap();
    let send = |session: &mut ClientSession, command: Document| {
        let mut body = DocumentBuilder::extending(command);
        body.append("$db", "test");
        database.run_command(session, &Request::new(body.finish()))
    };
    let mut reader = ClientSession::embedded();
    let reply = send(&mut reader, watch(1, doc! {}, vec![]));
    let (id, _, _) = cursor(&reply, "firstBatch");
    let mut events = Vec::new();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            scope.spawn(move || {
                let mut session = ClientSession::embedded();
                for at in 0..INSERTS {
                    let documents = array![doc! {"_id": writer * INSERTS + at}];
                    let name = format!("c{writer}");
                    let insert = doc! {"insert": name, "documents": documents};
                    let reply = send(&mut session, insert);
                    assert_eq!(reply.get("n").as_exact_i64(), Some(1), "{}", show(&reply));
                }
            });
        }
        while events.len() < (WRITERS * INSERTS) as usize {
            let more = doc! {"getMore": id, "collection": "$cmd.aggregate", "maxTimeMS": 20};
            let reply = send(&mut reader, more);
            events.extend(cursor(&reply, "nextBatch").2);
        }
    });
    assert!(events.is_sorted_by(|a, b| id_of(a).as_bytes() < id_of(b).as_bytes()));
    let id = |event: &Document| {
        let key = event.get("documentKey").as_document().unwrap();
        key.get("_id").as_exact_i64().unwrap()
    };
    let seen: std::collections::BTreeSet<i64> = events.iter().map(id).collect();
    assert_eq!(seen.len(), events.len());
}

/// Returns an environment whose log has small parts.
fn with_small_parts(retention_min_ms: i64) -> Environment {
    Environment {
        change_log: ChangeLogOptions {
            bytes_max: 16 << 10,
            retention_min_ms,
        },
        ..environment()
    }
}

fn measurement(at: i32) -> Value {
    let time = Value::DateTime(START_MS + i64::from(at));
    doc! {"_id": at, "t": time, "m": doc! {"host": at % 3}, "v": at, "text": "of a measurement"}
        .into()
}

/// The log goes on in new parts while the buckets stay the same. Time must pass, because parts end at intervals.
#[test]
fn measurements_are_read_over_parts_of_the_log() {
    let directory = TemporaryDirectory::new();
    let open =
        || Fixture::of(Database::open_with(&directory.0, with_small_parts(i64::MAX)).unwrap());
    let mut fixture = open();
    create(&mut fixture);
    let mut stream = Stream::open(&mut fixture, watch("ts", doc! {}, vec![]));
    let token = stream.token.clone();
    let mut next = 0;
    for _ in 0..2 {
        let until = Instant::now() + Duration::from_millis(1300);
        while Instant::now() < until {
            let documents: Array = (next..next + 40).map(measurement).collect();
            fixture.run(doc! {"insert": "ts", "documents": documents});
            next += 40;
            if next >= 4000 {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        drop(fixture);
        fixture = open();
    }
    stream = Stream::open(
        &mut fixture,
        watch("ts", doc! {"resumeAfter": token}, vec![]),
    );
    let events = stream.read(&mut fixture);
    let inserted = events.iter().map(|event| {
        let document = event.get("fullDocument").as_document().unwrap();
        with_sorted_fields(document)
    });
    let wanted = (0..next).map(|at| {
        let document = measurement(at);
        with_sorted_fields(document.as_ref().as_document().unwrap())
    });
    assert!(
        sorted(inserted) == sorted(wanted),
        "{} of {next}",
        events.len()
    );
}

/// Waits until the oldest entries are gone. Then a token of theirs is too old.
#[test]
fn old_entries_are_removed_and_their_tokens_are_refused() {
    let mut fixture = Fixture::of(Database::in_memory_with(with_small_parts(0)).unwrap());
    let mut stream = Stream::open(&mut fixture, watch("c", doc! {}, vec![]));
    fixture.run(doc! {"insert": "c", "documents": array![doc! {"_id": 0}]});
    stream.read(&mut fixture);
    let token = id_of(&stream.events[0]);
    let resume = || watch("c", doc! {"resumeAfter": token.clone()}, vec![]);
    let until = Instant::now() + Duration::from_secs(60);
    for id in 1.. {
        let text = "x".repeat(4096);
        fixture.run(doc! {"insert": "c", "documents": array![doc! {"_id": id, "text": text}]});
        let reply = fixture.reply(resume());
        match reply.get("code").as_exact_i64() {
            Some(code) => {
                assert_eq!(code, 286, "{}", show(&reply));
                let labels = reply.get("errorLabels").as_array().unwrap();
                assert_eq!(
                    labels.get(0).as_str(),
                    Some("NonResumableChangeStreamError")
                );
                break;
            }
            None => {
                let (id, _, _) = cursor(&reply, "firstBatch");
                fixture.run(doc! {"killCursors": "c", "cursors": array![id]});
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        assert!(Instant::now() < until, "nothing was removed");
    }
    // The open stream comes too late, too.
    let more = doc! {"getMore": stream.id, "collection": "c", "maxTimeMS": 1};
    assert_eq!(fixture.code(more), 286);
}

/// Without a set changes are not noted, so the log must not go on behind them.
#[test]
fn a_start_without_the_set_ends_the_log() {
    let directory = TemporaryDirectory::new();
    let mut fixture = in_directory(&directory.0);
    let stream = Stream::open(&mut fixture, watch("c", doc! {}, vec![]));
    let token = stream.token;
    drop(fixture);
    let mut fixture = in_directory(&directory.0);
    let resume = watch("c", doc! {"resumeAfter": token}, vec![]);
    Stream::open(&mut fixture, resume.clone());
    drop(fixture);
    let mut fixture = Fixture::open(&directory.0);
    let reply = fixture.run(doc! {"insert": "c", "documents": array![doc! {"_id": 1}]});
    assert!(reply.get("operationTime").is_missing());
    drop(fixture);
    let mut fixture = in_directory(&directory.0);
    assert_eq!(fixture.code(resume), 286);
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
