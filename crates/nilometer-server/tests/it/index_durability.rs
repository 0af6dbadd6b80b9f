//! The server is killed while collections with indexes are written to, and while indexes are built.
//!
//! Afterwards an interrupted build resumes and ends; an acknowledged index exists, a dropped one does not; `validate`
//! agrees, and index lookups return what a scan finds. NILOMETER_SEED repeats the choices of a run, but not its timing;
//! NILOMETER_LONG=1 kills more often, NILOMETER_SOAK=1 many times.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use nilometer_bson::{Array, Document, DocumentBuilder, Value, ValueRef, array, doc};
use nilometer_storage::testing::Effort;

use crate::client::{Client, body, is_ok, op_msg, sequence};
use crate::random::Random;
use crate::server::Directory;

/// Kills of the server.
const KILLS: Effort = Effort {
    fast: 2,
    long: 8,
    soak: 200,
};

/// Documents before the first kill, so that a build takes a while.
const FIRST: i64 = 3000;

/// Maximum time from the start of the first build to a kill, in ms.
const WRITING_MS_MAX: u64 = 250;

const COLLECTIONS: [&str; 2] = ["ts", "plain"];

static NEXT_ID: AtomicI64 = AtomicI64::new(1);

fn measurement(random: &mut Random) -> Document {
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    let late = random.below(3_600_000) as i64;
    let mut out = DocumentBuilder::new();
    out.append("t", Value::DateTime(1_700_000_000_000 + id * 1000 - late));
    if random.below(10) > 0 {
        out.append(
            "m",
            doc! {"host": format!("h{}", random.below(40)), "r": random.int(4)},
        );
    }
    out.append("_id", id);
    out.append("n", random.int(1000));
    if random.below(4) > 0 {
        out.append("v", random.int(1000));
    }
    let place = array![random.int(80) - 40, random.int(40) - 20];
    out.append("p", doc! {"type": "Point", "coordinates": place});
    out.finish()
}

fn insert(client: &mut Client, collection: &str, documents: &[Document]) -> Option<Document> {
    let command = doc! {"insert": collection, "$db": "test"};
    client.ask_or_lose(&op_msg(
        0,
        &[body(&command), sequence("documents", documents)],
    ))
}

/// Runs a command. `None` if the connection is lost.
fn run(client: &mut Client, command: Document) -> Option<Document> {
    let mut out = DocumentBuilder::new();
    for element in command.iter() {
        out.append_element(element);
    }
    out.append("$db", "test");
    client.ask_or_lose(&op_msg(0, &[body(&out.finish())]))
}

/// Writes until the connection is lost.
fn write(port: u16, seed: u64) {
    let mut random = Random(seed);
    let mut client = Client::connect(port);
    loop {
        let collection = COLLECTIONS[usize::from(random.below(3) == 0)];
        let reply = match random.below(4) {
            0 => {
                let q = doc! {"m.host": format!("h{}", random.below(40)), "n": doc! {"$gte": random.int(1000)}};
                let change = match random.below(3) {
                    0 => doc! {"$set": doc! {"m.r": random.int(4)}},
                    1 => doc! {"$inc": doc! {"n": 1}},
                    _ => doc! {"$set": doc! {"v": random.int(1000)}},
                };
                let statement = doc! {"q": q, "u": change, "multi": true};
                run(
                    &mut client,
                    doc! {"update": collection, "updates": array![statement]},
                )
            }
            1 => {
                let from = random.int(1000);
                let q = doc! {"n": doc! {"$gte": from, "$lt": from + 4}};
                let statement = doc! {"q": q, "limit": 0};
                run(
                    &mut client,
                    doc! {"delete": collection, "deletes": array![statement]},
                )
            }
            _ => {
                let count = 1 + random.below(60);
                let documents: Vec<Document> =
                    (0..count).map(|_| measurement(&mut random)).collect();
                insert(&mut client, collection, &documents)
            }
        };
        let Some(reply) = reply else {
            return;
        };
        assert!(
            is_ok(&reply) && reply.get("writeErrors").is_missing(),
            "{reply:?}"
        );
    }
}

/// The index that is repeatedly built and dropped.
fn index(number: u64) -> Document {
    let key = match number % 5 {
        0 => doc! {"v": 1},
        1 => doc! {"m.r": 1, "n": -1},
        2 => doc! {"p": "2dsphere"},
        3 => doc! {"m.$**": 1},
        _ => doc! {"n": 1, "m.host": 1},
    };
    let mut out = DocumentBuilder::new();
    out.append("key", key);
    out.append("name", "made");
    if number.is_multiple_of(7) {
        out.append("partialFilterExpression", doc! {"n": doc! {"$gte": 500}});
    }
    out.finish()
}

/// Whether the index "made" must exist according to the last answer; `None` without an answer.
type Expectation = Option<bool>;

fn create_made(collection: &str, number: u64) -> Document {
    doc! {"createIndexes": collection, "indexes": array![index(number)]}
}

/// Builds and drops an index until the connection is lost.
fn define(port: u16, collection: &str, number: u64) -> Expectation {
    let mut client = Client::connect(port);
    loop {
        // The outcome of the last command is unknown.
        let created = run(&mut client, create_made(collection, number))?;
        assert!(is_ok(&created), "{created:?}");
        if number.is_multiple_of(3) {
            // It stays: an acknowledged index must exist after the kill.
            loop {
                if run(&mut client, doc! {"ping": 1}).is_none() {
                    return Some(true);
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        let dropped = run(
            &mut client,
            doc! {"dropIndexes": collection, "index": "made"},
        )?;
        assert!(is_ok(&dropped), "{dropped:?}");
    }
}

fn listed(client: &mut Client, collection: &str) -> Vec<Document> {
    client.find_all("test", &doc! {"listIndexes": collection})
}

fn count(client: &mut Client, collection: &str, hint: Value) -> i64 {
    let query = doc! {"n": doc! {"$gte": 500}, "m.r": doc! {"$gte": 1}, "v": doc! {"$lt": 900}};
    let command = doc! {"count": collection, "query": query, "hint": hint};
    let reply = client.run_on("test", &command);
    assert!(is_ok(&reply), "{reply:?}");
    reply.get("n").as_exact_i64().expect("a count")
}

/// Checks one collection. True if the index "made" exists.
fn check(client: &mut Client, collection: &str, number: u64, known: Expectation) -> bool {
    let named = |index: &Document| index.get("name").as_str() == Some("made");
    let there = listed(client, collection).iter().any(named);
    assert_eq!(there, known.unwrap_or(there), "{collection}: {number}");
    if there {
        // Waits for the resumed build and finds its index.
        let again = client.run_on("test", &create_made(collection, number));
        assert!(is_ok(&again), "{again:?}");
        let (before, after) = (again.get("numIndexesBefore"), again.get("numIndexesAfter"));
        assert_eq!(before.as_exact_i64(), after.as_exact_i64(), "{again:?}");
    }
    let found = client.run_on("test", &doc! {"validate": collection, "full": true});
    assert!(
        matches!(found.get("valid"), ValueRef::Bool(true)),
        "{found:?}"
    );
    let scanned = count(client, collection, doc! {"$natural": 1}.into());
    for index in listed(client, collection) {
        let ordered = index.get("key").as_document().is_some_and(|key| {
            key.iter()
                .all(|part| part.value().is_number() && !part.name().ends_with('*'))
        });
        // Expired documents are missing.
        if ordered && index.get("expireAfterSeconds").is_missing() {
            let name = index.get("name").to_value();
            let counted = count(client, collection, name);
            assert_eq!(counted, scanned, "{collection}: {index:?}");
        }
    }
    there
}

fn fill(client: &mut Client, random: &mut Random) {
    let options = doc! {"timeField": "t", "metaField": "m"};
    let created = client.run_on("test", &doc! {"create": "ts", "timeseries": options});
    assert!(is_ok(&created), "{created:?}");
    for collection in COLLECTIONS {
        let documents: Vec<Document> = (0..FIRST).map(|_| measurement(random)).collect();
        for batch in documents.chunks(1000) {
            let reply = insert(client, collection, batch).expect("an answer");
            assert!(is_ok(&reply), "{reply:?}");
        }
        let indexes: Array = [
            doc! {"key": doc! {"m.host": 1, "t": 1}, "name": "host"},
            doc! {"key": doc! {"v": 1, "n": -1}, "name": "vn"},
            doc! {"key": doc! {"n": 1}, "name": "some", "partialFilterExpression": doc! {"n": doc! {"$gte": 300}}},
            doc! {"key": doc! {"t": -1}, "name": "ttl", "expireAfterSeconds": 1_000_000_000, "partialFilterExpression": doc! {"m.r": 1}},
        ]
        .map(Value::from)
        .into_iter()
        .collect();
        let command = doc! {"createIndexes": collection, "indexes": Value::Array(indexes)};
        let reply = client.run_on("test", &command);
        assert!(is_ok(&reply), "{reply:?}");
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "what a run did")]
fn indexes_agree_after_kills_and_builds_go_on() {
    let kills = KILLS.requested();
    let mut random = Random::of_run(7);
    let directory = Directory::new();
    let mut server = directory.serve();
    fill(&mut server.connect(), &mut random);
    let mut interrupted = 0;
    for round in 0..kills {
        let port = server.port;
        let writers: Vec<_> = (0..3)
            .map(|_| random.below(u64::MAX))
            .map(|seed| std::thread::spawn(move || write(port, seed)))
            .collect();
        let collection = COLLECTIONS[usize::from(random.below(3) == 0)];
        let definer = std::thread::spawn(move || define(port, collection, round));
        std::thread::sleep(Duration::from_millis(10 + random.below(WRITING_MS_MAX)));
        server.signal("KILL");
        server.wait();
        for writer in writers {
            writer.join().expect("a writer that ends");
        }
        let known = definer.join().expect("a definer that ends");
        server = directory.serve();
        let mut client = server.connect();
        for each in COLLECTIONS {
            let there = match each == collection {
                true => check(&mut client, each, round, known),
                false => check(&mut client, each, round, Some(false)),
            };
            interrupted += u32::from(there && known.is_none());
            if there {
                let dropped = doc! {"dropIndexes": each, "index": "made"};
                let reply = client.run_on("test", &dropped);
                assert!(is_ok(&reply), "{reply:?}");
            }
        }
    }
    println!("{kills} kills, {interrupted} of them between asking for an index and the answer");
}
