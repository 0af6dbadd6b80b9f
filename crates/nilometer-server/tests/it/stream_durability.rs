//! Change streams while the server is killed: they are left and resumed at random points, and show every acknowledged change
//! exactly once, in order.
//!
//! Each writer changes keys of its own, in an ordinary collection or a time series, and numbers its changes. A change in flight
//! when the server is killed may be applied or not; the writer finds out by reading. Followers of several scopes resume from
//! tokens of events or of batches. At the end the events of each writer's keys are compared with what it did, and the contents
//! rebuilt from the events with the stored ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nilometer_bson::testing::{apply_description, with_sorted_fields};
use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, doc};
use nilometer_storage::testing::Effort;

use crate::client::{Client, body, is_ok, op_msg};
use crate::random::Random;
use crate::server::{Directory, Server, nilometer};

/// Kills of the server.
const KILLS: Effort = Effort {
    fast: 2,
    long: 12,
    soak: 100,
};

/// Resumptions of all followers together.
const RESUMPTIONS: Effort = Effort {
    fast: 60,
    long: 2_000,
    soak: 20_000,
};

/// Writers: the even ones of the ordinary collection.
const WRITERS: i32 = 4;

/// Keys of a writer.
const KEYS: u64 = 12;

/// Most measurements of a batch.
const BATCH_MAX: u64 = 6;

/// Time for a follower to show what was acknowledged.
const PATIENCE: Duration = Duration::from_secs(60);

/// The collections, by whether the number of a writer is odd.
const COLLECTIONS: [&str; 2] = ["plain", "ts"];

/// Sends a command; `None` if the connection is lost.
fn send(client: &mut Client, command: &Document) -> Option<Document> {
    let mut command = DocumentBuilder::extending(command.clone());
    command.append("$db", "test");
    client.ask_or_lose(&op_msg(0, &[body(&command.finish())]))
}

/// What a change does to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Effect {
    Insert,
    Update,
    Replace,
    Delete,
}

/// What a change does, or an event shows: key and effect, and the number of the change, which deletions do not show.
type Shown = (Effect, i32, i32);

/// A change that was made: all its keys, at once.
type Made = BTreeSet<Shown>;

struct Writer {
    number: i32,
    random: Random,
    /// The number of the last change.
    last: i32,
    /// Keys that are there, with the number of their last change.
    known: BTreeMap<i32, i32>,
    made: Vec<Made>,
    /// A change that may be applied or not.
    open: Option<Made>,
}

impl Writer {
    fn new(number: i32, seed: u64) -> Self {
        Self {
            number,
            random: Random(seed),
            last: 0,
            known: BTreeMap::new(),
            made: Vec::new(),
            open: None,
        }
    }

    fn is_of_series(&self) -> bool {
        self.number % 2 == 1
    }

    fn collection(&self) -> &'static str {
        COLLECTIONS[usize::from(self.is_of_series())]
    }

    /// Returns a document with the number of the change.
    fn document(&self, key: i32, random: u64) -> Document {
        let mut out = DocumentBuilder::new();
        out.append("_id", key);
        out.append("s", self.last);
        if self.is_of_series() {
            let ms = 1_700_000_000_000 + i64::from(self.last) * 1000;
            out.append("t", Value::DateTime(ms));
            out.append("m", doc! {"writer": self.number, "key": key % 3});
        }
        out.append("text", "x".repeat(random as usize));
        out.finish()
    }

    /// Returns the next change and the command that makes it.
    fn next(&mut self) -> (Made, Document) {
        self.last += 1;
        let (last, collection) = (self.last, self.collection());
        let base = self.number * 1000;
        let key = base + self.random.int(KEYS);
        let query = doc! {"_id": key};
        let is_there = self.known.contains_key(&key);
        let (effect, command) = match self.random.below(5) {
            0 | 1 if is_there => {
                let change = doc! {"$set": doc! {"s": last}, "$unset": doc! {"text": 1}};
                let statement = Value::from(doc! {"q": query, "u": change});
                let updates = doc! {"update": collection, "updates": vec![statement]};
                (Effect::Update, updates)
            }
            2 if is_there && !self.is_of_series() => {
                let random = self.random.below(40);
                let after = self.document(key, random);
                let statement = Value::from(doc! {"q": query, "u": after});
                let updates = doc! {"update": collection, "updates": vec![statement]};
                (Effect::Replace, updates)
            }
            _ if is_there => {
                let statement = Value::from(doc! {"q": query, "limit": 1});
                let deletes = doc! {"delete": collection, "deletes": vec![statement]};
                (Effect::Delete, deletes)
            }
            // Keys beside it, too: one command, one change.
            _ => {
                let count = 1 + self.random.int(BATCH_MAX);
                let keys = (key..key + count).filter(|key| !self.known.contains_key(key));
                let keys: Vec<i32> = keys.filter(|key| *key < base + KEYS as i32).collect();
                let documents = keys.iter().map(|key| {
                    let length = (*key * 7 + last) % 60;
                    Value::from(self.document(*key, length as u64))
                });
                let documents: Vec<Value> = documents.collect();
                let made = keys.iter().map(|key| (Effect::Insert, *key, last));
                return (
                    made.collect(),
                    doc! {"insert": collection, "documents": documents},
                );
            }
        };
        (Made::from([(effect, key, last)]), command)
    }

    fn apply(&mut self, made: Made) {
        for (effect, key, number) in &made {
            match effect {
                Effect::Delete => drop(self.known.remove(key)),
                _ => drop(self.known.insert(*key, *number)),
            }
        }
        self.made.push(made);
    }

    /// Writes until the connection is lost or the run ends.
    fn write(&mut self, port: u16, ends: &AtomicBool) {
        let Some(mut client) = Client::try_connect(port) else {
            return;
        };
        if !self.settle(&mut client) {
            return;
        }
        while !ends.load(Ordering::Acquire) {
            let (made, command) = self.next();
            let Some(reply) = send(&mut client, &command) else {
                self.open = Some(made);
                return;
            };
            assert!(is_ok(&reply), "{reply:?}");
            assert_eq!(reply.get("n").as_exact_i64(), Some(made.len() as i64));
            self.apply(made);
            std::thread::sleep(Duration::from_micros(self.random.below(3000)));
        }
    }

    /// Finds out whether the change in flight was applied. False if the connection is lost.
    fn settle(&mut self, client: &mut Client) -> bool {
        let Some(made) = self.open.clone() else {
            return true;
        };
        let Some(stored) = contents(client, self.collection()) else {
            return false;
        };
        let applied = made.iter().filter(|(effect, key, number)| {
            let there = stored.get(key).map(|found| found.get("s").as_exact_i64());
            match effect {
                Effect::Delete => there.is_none(),
                _ => there == Some(Some(i64::from(*number))),
            }
        });
        let applied = applied.copied().collect::<Made>();
        assert!(applied.is_empty() || applied == made, "{made:?} in part");
        self.open = None;
        if !applied.is_empty() {
            self.apply(made);
        }
        true
    }
}

/// Returns what is stored, by `_id`; `None` if the connection is lost.
fn contents(client: &mut Client, collection: &str) -> Option<BTreeMap<i32, Document>> {
    let find = doc! {"find": collection, "batchSize": 10_000};
    let reply = send(client, &find)?;
    assert!(is_ok(&reply), "{reply:?}");
    let batch = reply.get("cursor").as_document().expect("a cursor");
    let batch = batch.get("firstBatch").as_array().expect("a batch");
    let documents = batch.iter().map(|document| {
        let document = with_sorted_fields(document.as_document().expect("a document"));
        (id_of(document.as_ref()), document)
    });
    Some(documents.collect())
}

fn id_of(document: DocRef<'_>) -> i32 {
    let id = document.get("_id").as_exact_i64().expect("an _id");
    i32::try_from(id).expect("a key")
}

/// What a follower watches.
#[derive(Clone, Copy, Debug)]
enum Scope {
    Collection(&'static str),
    Database,
}

struct Follower {
    scope: Scope,
    random: Random,
    /// The token to resume from; `None` before the first start.
    token: Option<Document>,
    events: Vec<Document>,
    resumptions: u64,
}

/// The state that all threads share.
struct Run {
    port: AtomicU16,
    resumptions: AtomicU64,
    /// The writers have ended: followers continue until they have shown this number of events in each collection.
    expected: Mutex<Option<BTreeMap<&'static str, usize>>>,
}

impl Follower {
    fn watched(&self) -> Value {
        match self.scope {
            Scope::Collection(name) => name.into(),
            Scope::Database => 1.into(),
        }
    }

    /// Resumes the stream again and again until it has shown all.
    fn follow(&mut self, run: &Run) {
        let mut until = None;
        loop {
            let expected = run.expected.lock().expect("no panic").clone();
            if let Some(expected) = expected {
                if self.has_shown(&expected) {
                    return;
                }
                let until = *until.get_or_insert_with(|| Instant::now() + PATIENCE);
                assert!(Instant::now() < until, "{:?} lacks events", self.scope);
            }
            let port = run.port.load(Ordering::Acquire);
            let Some(mut client) = Client::try_connect(port) else {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            };
            // A lost connection ends this turn only.
            let _ = self.read_some(&mut client);
            self.resumptions += 1;
            run.resumptions.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn has_shown(&self, expected: &BTreeMap<&'static str, usize>) -> bool {
        let count = |name: &str| self.events.iter().filter(|e| is_of(e, name)).count();
        expected.iter().all(|(name, expected)| match self.scope {
            Scope::Collection(watched) if watched != *name => true,
            _ => count(name) >= *expected,
        })
    }

    /// Opens the stream where it was left, reads some batches, and leaves it at a random event. `None` if the connection is lost.
    fn read_some(&mut self, client: &mut Client) -> Option<()> {
        let option = ["resumeAfter", "startAfter"][self.random.below(2) as usize];
        let mut options = DocumentBuilder::new();
        if let Some(token) = &self.token {
            options.append(option, token.clone());
        }
        let stage = Value::from(doc! {"$changeStream": options.finish()});
        let size = 1 + self.random.int(50);
        let open = doc! {
            "aggregate": self.watched(), "pipeline": vec![stage],
            "cursor": doc! {"batchSize": self.random.int(3)}
        };
        let mut reply = send(client, &open)?;
        let mut batches = self.random.below(4);
        loop {
            let (id, name, events, token) = batch_of(&reply);
            if batches > 0 || self.random.below(2) == 0 {
                self.events.extend(events);
                self.token = Some(token);
            } else {
                let taken = self.random.below(events.len() as u64 + 1) as usize;
                for event in events.into_iter().take(taken) {
                    self.token = Some(event.get("_id").as_document()?.to_document());
                    self.events.push(event);
                }
            }
            if batches == 0 {
                if self.random.below(3) == 0 {
                    let cursors = vec![Value::from(id)];
                    send(client, &doc! {"killCursors": name, "cursors": cursors})?;
                }
                return Some(());
            }
            batches -= 1;
            let more = doc! {"getMore": id, "collection": name, "batchSize": size, "maxTimeMS": 20};
            reply = send(client, &more)?;
        }
    }
}

/// Returns the parts of a batch: cursor, collection, events, and the token behind them.
fn batch_of(reply: &Document) -> (i64, String, Vec<Document>, Document) {
    assert!(is_ok(reply), "{reply:?}");
    let cursor = reply.get("cursor").as_document().expect("a cursor");
    let batch = cursor.get("firstBatch").as_array();
    let batch = batch.or_else(|| cursor.get("nextBatch").as_array());
    let events = batch.expect("a batch").iter();
    let events = events.map(|event| event.as_document().expect("an event").to_document());
    let name = cursor.get("ns").as_str().expect("a name");
    let token = cursor.get("postBatchResumeToken").as_document();
    (
        cursor.get("id").as_exact_i64().expect("an id"),
        name.split_once('.').expect("a name").1.to_owned(),
        events.collect(),
        token.expect("a token").to_document(),
    )
}

fn is_of(event: &Document, collection: &str) -> bool {
    let names = event.get("ns").as_document().expect("ns");
    names.get("coll").as_str() == Some(collection)
}

/// Returns what an event shows.
fn shown(event: &Document) -> Shown {
    let key = event.get("documentKey").as_document();
    let key = id_of(key.expect("a key"));
    let number = |document: ValueRef<'_>| {
        let document = document.as_document().expect("a document");
        let number = document.get("s").as_exact_i64().expect("a number");
        i32::try_from(number).expect("a number")
    };
    let full = event.get("fullDocument");
    match event.get("operationType").as_str() {
        Some("insert") => (Effect::Insert, key, number(full)),
        Some("replace") => (Effect::Replace, key, number(full)),
        Some("delete") => (Effect::Delete, key, 0),
        Some("update") => {
            let description = event.get("updateDescription").as_document();
            let updated = description.expect("a description").get("updatedFields");
            (Effect::Update, key, number(updated))
        }
        other => panic!("{other:?}"),
    }
}

/// Checks that a follower was shown what the writers did, and that the events rebuild what is stored.
fn check(
    follower: &Follower,
    writers: &[Writer],
    stored: &BTreeMap<&str, BTreeMap<i32, Document>>,
) {
    let tokens = follower.events.iter();
    let tokens = tokens.map(|event| event.get("_id").as_document().expect("a token").as_bytes());
    let tokens: Vec<_> = tokens.collect();
    assert!(tokens.is_sorted_by(|a, b| a < b), "{:?}", follower.scope);
    for (name, documents) in stored {
        if matches!(follower.scope, Scope::Collection(watched) if watched != *name) {
            continue;
        }
        let events = follower.events.iter().filter(|event| is_of(event, name));
        let events: Vec<_> = events.collect();
        let of_collection = writers.iter().filter(|writer| writer.collection() == *name);
        for writer in of_collection {
            let shown = events.iter().map(|event| shown(event));
            let mut shown = shown.filter(|(_, key, _)| key / 1000 == writer.number);
            for made in &writer.made {
                let hides = |(effect, key, number): &Shown| match effect {
                    Effect::Delete => (*effect, *key, 0),
                    _ => (*effect, *key, *number),
                };
                let made = made.iter().map(hides).collect::<Made>();
                let next = shown.by_ref().take(made.len()).collect::<Made>();
                assert_eq!(next, made, "{:?}", follower.scope);
            }
            assert_eq!(shown.next(), None);
        }
        assert_eq!(rebuilt(&events), *documents, "{:?}", follower.scope);
    }
}

/// Returns the documents that events leave, by `_id`.
fn rebuilt(events: &[&Document]) -> BTreeMap<i32, Document> {
    let mut documents: BTreeMap<i32, Document> = BTreeMap::new();
    for event in events {
        let (effect, key, _) = shown(event);
        let part = |name: &str| event.get(name).as_document().expect("a document");
        match effect {
            Effect::Insert => {
                let new = part("fullDocument").to_document();
                assert!(documents.insert(key, new).is_none(), "inserted twice");
            }
            Effect::Replace => {
                let known = documents.get_mut(&key).expect("a document");
                *known = part("fullDocument").to_document();
            }
            Effect::Update => {
                let known = documents.get_mut(&key).expect("a document");
                *known = apply_description(known.as_ref(), part("updateDescription"));
            }
            Effect::Delete => drop(documents.remove(&key).expect("a document")),
        }
    }
    let sorted = documents.into_iter();
    sorted
        .map(|(key, document)| (key, with_sorted_fields(document.as_ref())))
        .collect()
}

fn start(directory: &Directory) -> Server {
    let path = directory.0.to_str().expect("a path");
    let arguments = ["serve", "--dbpath", path, "--port", "0", "--replSet", "rs"];
    Server::spawn(&mut nilometer(&arguments))
}

/// Writes, kills and starts the server until enough happened. Returns the server that is left.
fn run_and_kill(
    directory: &Directory,
    writers: &mut [Writer],
    run: &Run,
    random: &mut Random,
) -> Server {
    let (kills, resumptions) = (KILLS.requested(), RESUMPTIONS.requested());
    let mut killed = 0;
    loop {
        let mut server = start(directory);
        run.port.store(server.port, Ordering::Release);
        let (port, ends) = (server.port, AtomicBool::new(false));
        let is_last = killed >= kills && run.resumptions.load(Ordering::Relaxed) >= resumptions;
        std::thread::scope(|scope| {
            for writer in &mut *writers {
                let ends = &ends;
                scope.spawn(move || writer.write(port, ends));
            }
            std::thread::sleep(Duration::from_millis(100 + random.below(400)));
            match is_last {
                true => ends.store(true, Ordering::Release),
                false => {
                    server.signal("KILL");
                    server.wait();
                }
            }
        });
        killed += 1;
        if is_last {
            *run.expected.lock().expect("no panic") = Some(expected_events(writers));
            return server;
        }
    }
}

/// Returns the number of events of each collection.
fn expected_events(writers: &[Writer]) -> BTreeMap<&'static str, usize> {
    let mut expected = BTreeMap::new();
    for writer in writers {
        let events: usize = writer.made.iter().map(BTreeSet::len).sum();
        *expected.entry(writer.collection()).or_insert(0) += events;
    }
    expected
}

#[test]
fn streams_show_every_acknowledged_change_once_over_kills() {
    let directory = Directory::new();
    let mut random = Random::of_run(11);
    let mut writers: Vec<_> = (0..WRITERS)
        .map(|number| Writer::new(number, random.below(u64::MAX)))
        .collect();
    let server = start(&directory);
    let mut client = server.connect();
    let options = doc! {"timeField": "t", "metaField": "m"};
    client.run_on("test", &doc! {"create": "ts", "timeseries": options});
    client.run_on("test", &doc! {"create": "plain"});
    let scopes = [
        Scope::Collection("plain"),
        Scope::Collection("ts"),
        Scope::Database,
        Scope::Database,
    ];
    let mut followers: Vec<_> = scopes
        .map(|scope| Follower {
            scope,
            random: Random(random.below(u64::MAX)),
            token: None,
            events: Vec::new(),
            resumptions: 0,
        })
        .into();
    // Each has a token before the first change.
    for follower in &mut followers {
        while follower.token.is_none() {
            follower.read_some(&mut client).expect("a connection");
        }
    }
    drop((client, server));
    let run = Run {
        port: AtomicU16::new(0),
        resumptions: AtomicU64::new(0),
        expected: Mutex::default(),
    };
    // The last server lives until the followers have ended.
    let server = std::thread::scope(|scope| {
        for follower in &mut followers {
            let run = &run;
            scope.spawn(move || follower.follow(run));
        }
        run_and_kill(&directory, &mut writers, &run, &mut random)
    });
    let mut client = server.connect();
    let stored = COLLECTIONS.map(|name| (name, contents(&mut client, name).expect("a connection")));
    let stored = BTreeMap::from(stored);
    for follower in &followers {
        check(follower, &writers, &stored);
    }
    let resumptions: u64 = followers.iter().map(|follower| follower.resumptions).sum();
    assert!(resumptions >= RESUMPTIONS.requested(), "{resumptions}");
}
