//! `bulkWrite` of inserts into several time series, which are one engine batch: the same results as inserts into one after the
//! other, no half of it after a crash, and no two of them that wait for each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nilometer::services::Environment;
use nilometer::{ClientSession, Database, Request};
use nilometer_bson::{Document, DocumentBuilder, Value, array, doc};

use crate::changes_and_crashes::RecordingEngine;
use crate::random::Random;
use crate::support::{Fixture, TemporaryDirectory, primary_environment, show, with_cut_keys};

const POLICIES: [&str; 5] = ["keep", "ignore", "replace", "merge", "error"];

/// The names of `nsInfo`: a time series of each policy, an ordinary collection, one that does not exist, and one of them again.
const NAMES: [&str; 8] = [
    "keep", "ignore", "replace", "merge", "error", "plain", "new", "replace",
];

fn create(fixture: &mut Fixture) {
    for policy in POLICIES {
        let more = doc! {"duplicates": policy};
        let options = doc! {"timeField": "t", "metaField": "m", "nilometer": more};
        fixture.run(doc! {"create": policy, "timeseries": options});
    }
    let index = doc! {"key": doc! {"v": 1}, "name": "v"};
    fixture.run(doc! {"createIndexes": "merge", "indexes": array![index]});
}

fn measurement(random: &mut Random, id: i32) -> Document {
    let time = Value::DateTime(1_700_000_000_000 + i64::from(random.int(12)) * 1000);
    let meta = format!("s{}", random.int(3));
    match random.below(12) {
        0 => doc! {"_id": id, "m": meta},
        1 => doc! {"_id": id, "t": time, "m": meta, "w": array![id], "v": array![1]},
        2 => doc! {"_id": id, "t": time, "m": meta, "w": id},
        _ => doc! {"_id": id, "t": time, "m": meta, "v": random.int(9)},
    }
}

/// Inserts of a `bulkWrite`: the place of the name and the document of each.
type Inserts = Vec<(usize, Document)>;

fn inserts(random: &mut Random, next_id: &mut i32) -> Inserts {
    let neighbours = random.below(2) == 0;
    let mut place = 0;
    let one = |_| {
        if !neighbours || random.below(4) == 0 {
            place = random.below(NAMES.len() as u64) as usize;
        }
        *next_id += 1;
        (place, measurement(random, *next_id))
    };
    (0..20).map(one).collect()
}

fn command(inserts: &Inserts, ordered: bool) -> Document {
    let spaces = NAMES.map(|name| Value::from(doc! {"ns": format!("test.{name}")}));
    let ops = inserts.iter().map(|(place, document)| {
        let place = i32::try_from(*place).unwrap();
        doc! {"insert": place, "document": document.clone()}.into()
    });
    let ops: Vec<Value> = ops.collect();
    doc! {
        "bulkWrite": 1, "ops": ops, "nsInfo": spaces.to_vec(), "ordered": ordered,
        "errorsOnly": true,
    }
}

fn bulk_write(fixture: &mut Fixture, inserts: &Inserts, ordered: bool) -> Document {
    let command = command(inserts, ordered);
    let reply = fixture.reply_on("admin", command);
    assert_eq!(reply.get("ok").as_exact_i64(), Some(1), "{}", show(&reply));
    reply
}

/// Returns position and text of the errors of a `bulkWrite`.
fn errors_of(reply: &Document) -> Vec<(i64, String)> {
    let cursor = reply.get("cursor").as_document().unwrap();
    let batch = cursor.get("firstBatch").as_array().unwrap();
    let one = |error: nilometer_bson::ValueRef<'_>| {
        let error = error.as_document().unwrap();
        let text = error.get("errmsg").as_str().unwrap().to_owned();
        (error.get("idx").as_exact_i64().unwrap(), text)
    };
    batch.iter().map(one).collect()
}

/// Inserts one document after the other; returns position and text of the errors.
fn insert_singly(fixture: &mut Fixture, inserts: &Inserts, ordered: bool) -> Vec<(i64, String)> {
    let mut errors = Vec::new();
    for (at, (place, document)) in inserts.iter().enumerate() {
        let insert = doc! {"insert": NAMES[*place], "documents": array![document.clone()]};
        let reply = fixture.run(insert);
        if let Some(found) = reply.get("writeErrors").as_array() {
            let error = found.get(0).as_document().unwrap();
            let text = error.get("errmsg").as_str().unwrap().to_owned();
            errors.push((i64::try_from(at).unwrap(), text));
            if ordered {
                break;
            }
        }
    }
    errors
}

fn contents(fixture: &mut Fixture, name: &str) -> Vec<String> {
    let all = fixture.all(doc! {"find": name, "sort": doc! {"_id": 1}});
    let sorted = all.iter().map(|document| {
        let mut fields: Vec<_> = document.iter().collect();
        fields.sort_by_key(|field| field.name());
        let mut out = DocumentBuilder::new();
        fields.into_iter().for_each(|field| {
            out.append_element(field);
        });
        show(&out.finish())
    });
    sorted.collect()
}

#[test]
fn results_are_those_of_single_inserts() {
    for seed in 0..24 {
        let mut random = Random::new(seed);
        let (mut together, mut singly) = (Fixture::new(), Fixture::new());
        create(&mut together);
        create(&mut singly);
        let mut next_id = 0;
        for _ in 0..8 {
            let ordered = random.below(4) == 0;
            let inserts = inserts(&mut random, &mut next_id);
            let reply = bulk_write(&mut together, &inserts, ordered);
            let wanted = insert_singly(&mut singly, &inserts, ordered);
            assert_eq!(errors_of(&reply), wanted, "seed {seed}");
            if random.below(3) == 0 {
                together.database.settle().unwrap();
            }
            for name in NAMES {
                let (found, wanted) = (contents(&mut together, name), contents(&mut singly, name));
                assert_eq!(found, wanted, "seed {seed}, {name}");
                assert_eq!(together.counted(name), singly.counted(name));
            }
        }
    }
}

fn counts(fixture: &mut Fixture, names: &[String]) -> Vec<i64> {
    let counts = names.iter().map(|name| fixture.counted(name));
    counts.collect()
}

#[test]
fn a_crash_leaves_all_or_nothing_of_a_batch() {
    let engine = Arc::new(RecordingEngine::default());
    let database = Database::with_engine(with_cut_keys(engine.clone()), Environment::default());
    let mut fixture = Fixture::of(database.unwrap());
    let names: Vec<String> = (0..30).map(|number| format!("c{number}")).collect();
    for name in &names {
        let options =
            doc! {"timeField": "t", "metaField": "m", "nilometer": doc! {"duplicates": "merge"}};
        fixture.run(doc! {"create": name.as_str(), "timeseries": options});
    }
    let spaces: Vec<Value> = names
        .iter()
        .map(|name| doc! {"ns": format!("test.{name}")}.into())
        .collect();
    let mut positions = vec![engine.position()];
    for round in 0..3_i64 {
        let ops: Vec<Value> = (0..60)
            .map(|number: i32| {
                let time = Value::DateTime(1_700_000_000_000 + round * 1000);
                let document = doc! {"t": time, "m": number, "v": 1};
                doc! {"insert": number % 30, "document": document}.into()
            })
            .collect();
        let command = doc! {
            "bulkWrite": 1, "ops": ops, "nsInfo": spaces.clone(), "ordered": false,
        };
        let reply = fixture.reply_on("admin", command);
        assert_eq!(reply.get("nInserted").as_exact_i64(), Some(60));
        positions.push(engine.position());
    }
    // The first commands of a collection may also note what is durable once.
    assert_eq!(
        positions[3] - positions[2],
        1,
        "engine operations of a command"
    );
    drop(fixture);
    for (round, after) in positions.iter().enumerate() {
        let cut = Arc::new(engine.cut(*after));
        let database = Database::with_engine(with_cut_keys(cut), Environment::default());
        let found = counts(&mut Fixture::of(database.unwrap()), &names);
        assert_eq!(found, vec![2 * round as i64; 30], "round {round}");
    }
    for cut in positions[0]..=positions[3] {
        let cut = Arc::new(engine.cut(cut));
        let database = Database::with_engine(with_cut_keys(cut), Environment::default());
        let found = counts(&mut Fixture::of(database.unwrap()), &names);
        let first = found[0];
        assert!(found.iter().all(|count| *count == first), "{found:?}");
    }
}

/// Commands in opposite orders of collections, with the same series and times, beside others that lock the collections.
#[test]
fn batches_of_many_clients_end() {
    let directory = TemporaryDirectory::new();
    let database = Database::open(&directory.0).unwrap();
    let mut fixture = Fixture::of(database);
    create(&mut fixture);
    let database = &fixture.database;
    let run = |db: &str, command: Document| {
        let mut body = DocumentBuilder::new();
        body.append_all(command.as_ref());
        body.append("$db", db);
        let request = Request::new(body.finish());
        database.run_command(&mut ClientSession::embedded(), &request)
    };
    let client = |client: i32| {
        let mut random = Random::new(client as u64);
        for round in 0..40 {
            let mut next_id = 100_000 * (client + 1) + round * 100;
            let mut inserts = inserts(&mut random, &mut next_id);
            if client % 2 == 0 {
                inserts.reverse();
            }
            let reply = run("admin", command(&inserts, false));
            // The collection may be dropped meanwhile.
            let code = reply.get("code").as_exact_i64();
            assert!(matches!(code, None | Some(175)), "{}", show(&reply));
        }
    };
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|number| scope.spawn(move || client(number)))
            .collect();
        scope.spawn(|| {
            let mut round = 0;
            while !is_done.load(Ordering::Relaxed) {
                round += 1;
                let name = POLICIES[round % POLICIES.len()];
                let index = doc! {"key": doc! {"m": 1, "v": 1}, "name": "mv"};
                let change =
                    doc! {"q": doc! {"v": 3}, "u": doc! {"$set": doc! {"x": 1}}, "multi": true};
                let delete = doc! {"q": doc! {"v": 4}, "limit": 0};
                run(
                    "test",
                    doc! {"createIndexes": name, "indexes": array![index]},
                );
                run("test", doc! {"update": name, "updates": array![change]});
                run("test", doc! {"delete": name, "deletes": array![delete]});
                run("test", doc! {"dropIndexes": name, "index": "mv"});
                if round % 7 == 0 {
                    run("test", doc! {"drop": "ignore"});
                    let options = doc! {"timeField": "t", "metaField": "m"};
                    run("test", doc! {"create": "ignore", "timeseries": options});
                }
            }
        });
        let ended: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        is_done.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok));
    });
    for name in POLICIES {
        fixture.run(doc! {"validate": name});
        let found = contents(&mut fixture, name);
        assert_eq!(found.len() as i64, fixture.counted(name), "{name}");
    }
}

#[test]
fn a_change_stream_shows_all_collections_of_a_batch() {
    let directory = TemporaryDirectory::new();
    let database = Database::open_with(&directory.0, primary_environment());
    let mut fixture = Fixture::of(database.unwrap());
    create(&mut fixture);
    let stages = array![doc! {"$changeStream": doc! {"fullDocument": "updateLookup"}}];
    let watch = doc! {"aggregate": 1, "pipeline": stages, "cursor": doc! {}};
    let stream = fixture.run(watch);
    let id = stream
        .get("cursor")
        .as_document()
        .unwrap()
        .get("id")
        .as_exact_i64();
    let inserts: Inserts = (0..10_i32)
        .map(|id| {
            let time = Value::DateTime(1_700_000_000_000 + i64::from(id) * 1000);
            (
                id as usize % 4,
                doc! {"_id": id, "t": time, "m": "a", "v": 1},
            )
        })
        .collect();
    bulk_write(&mut fixture, &inserts, false);
    let mut seen = Vec::new();
    while seen.len() < inserts.len() {
        let more = doc! {"getMore": id.unwrap(), "collection": "$cmd.aggregate", "maxTimeMS": 1000};
        let reply = fixture.run(more);
        let cursor = reply.get("cursor").as_document().unwrap();
        let batch = cursor.get("nextBatch").as_array().unwrap();
        assert!(batch.iter().next().is_some(), "after {seen:?}");
        for event in batch.iter() {
            let event = event.as_document().unwrap();
            assert_eq!(event.get("operationType").as_str(), Some("insert"));
            let name = event.get("ns").as_document().unwrap();
            let name = name.get("coll").as_str().unwrap().to_owned();
            let document = event.get("fullDocument").as_document().unwrap();
            seen.push((document.get("_id").as_exact_i64().unwrap(), name));
        }
    }
    seen.sort();
    let wanted = inserts.iter().enumerate();
    let wanted: Vec<_> = wanted
        .map(|(at, (place, _))| (at as i64, NAMES[*place].to_owned()))
        .collect();
    assert_eq!(seen, wanted);
}
