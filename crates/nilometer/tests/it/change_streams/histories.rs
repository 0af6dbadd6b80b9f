//! What a stream shows rebuilds the contents, over resumptions and new starts of the database.

use std::collections::{BTreeMap, BTreeSet};

use nilometer::{ClientSession, Database, Request};
use nilometer_bson::testing::{apply_description, with_sorted_fields};
use nilometer_bson::{Array, Document, DocumentBuilder, Value, ValueRef, array, doc};
use nilometer_storage::testing::random::Random;
use nilometer_storage::testing::{effort, is_long};

use super::{START_MS, Stream, create, id_of, in_directory, kind, sorted, watch};
use crate::support::{Fixture, TemporaryDirectory, cursor, primary_environment, show};

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

fn number(draw: &mut Random, count: u64) -> i32 {
    i32::try_from(draw.below(count)).unwrap()
}

/// Runs a random command. Those that fail change nothing, or what they say.
fn change(fixture: &mut Fixture, draw: &mut Random, next_id: &mut i32) {
    let id = number(draw, 20);
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
    let mut new = |draw: &mut Random| -> Value {
        *next_id += 1;
        let time = Value::DateTime(START_MS + i64::from(number(draw, 5_000_000)));
        let mut document = DocumentBuilder::new();
        document.append("_id", *next_id);
        document.append("t", time);
        document.append("m", doc! {"host": number(draw, 3)});
        document.append("v", number(draw, 5));
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
                0 => doc! {"$set": doc! {"m.host": number(draw, 3)}},
                1 => doc! {"$set": doc! {"_id": { *next_id += 1; *next_id }}},
                _ => doc! {"$inc": doc! {"v": 1}, "$unset": doc! {"extra": 1}},
            };
            let multi = !change
                .as_ref()
                .get("$set")
                .as_document()
                .is_some_and(|set| set.contains("_id"));
            let query = doc! {"m.host": number(draw, 3), "v": number(draw, 5)};
            let statement = doc! {"q": query, "u": change, "multi": multi};
            doc! {"update": "ts", "updates": array![statement]}
        }
        12 => {
            let query = match many {
                true => doc! {"m.host": number(draw, 3)},
                false => doc! {"v": number(draw, 5)},
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

fn invalidation(stream: &Stream) -> Option<usize> {
    let mut events = stream.events.iter();
    events.position(|event| kind(event) == "invalidate")
}

/// Runs a random history, and rebuilds the contents from a stream that is closed and resumed, and over new starts.
fn history(seed: u64, steps: usize) -> usize {
    let directory = TemporaryDirectory::new();
    let mut fixture = in_directory(&directory.0);
    let mut draw = Random::new(seed);
    let (mut replica, mut next_id, mut resumptions) = (Replica::default(), 1000, 0);
    let mut stream = Stream::open(&mut fixture, watch(1, doc! {}, vec![]));
    create(&mut fixture);
    for _ in 0..steps {
        match draw.below(12) {
            0..=7 => change(&mut fixture, &mut draw, &mut next_id),
            8 | 9 => {
                stream.read_batch(&mut fixture, 1 + number(&mut draw, 7));
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
        // The database was dropped. A new stream starts after the invalidation, and its first
        // batch may already have the next one.
        while let Some(at) = invalidation(&stream) {
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
    let steps = if is_long() { 400 } else { 120 };
    let seeds = effort(6, 60, 60);
    let resumptions: usize = (0..seeds).map(|seed| history(seed, steps)).sum();
    assert!(resumptions > seeds as usize, "{resumptions}");
}

/// Writers whose batches become visible in another order than that of their times: a reader misses none.
#[test]
fn a_reader_beside_writers_misses_nothing() {
    const WRITERS: i32 = 4;
    const INSERTS: i32 = 60;
    let directory = TemporaryDirectory::new();
    let database = Database::open_with(&directory.0, primary_environment()).unwrap();
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
    let seen: BTreeSet<i64> = events.iter().map(id).collect();
    assert_eq!(seen.len(), events.len());
}
