//! The server is killed while clients write, and restarted on the same directory.
//!
//! Afterwards every acknowledged document is stored once, an unacknowledged command was applied completely or not at
//! all, nothing else is stored, and the buckets agree with their content. A state settled after one kill stays settled
//! after the next. Meanwhile buckets are opened, reopened, folded, sealed, expired, changed through `system.buckets`
//! and dropped.
//!
//! The fast suite kills a few times; NILOMETER_LONG=1 twenty times; NILOMETER_SOAK=1
//! does so on 25 directories. NILOMETER_SEED repeats the choices of a run, but not its timing.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nilometer::Database;
use nilometer_bson::order::{compare, equal};
use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, column, doc};
use nilometer_storage::testing::Effort;

use crate::client::{Client, body, is_ok, op_msg, sequence};
use crate::random::Random;
use crate::server::{Directory, Server, nilometer};

/// Kills of the server on one directory. The fast suite has neither a round with expiry nor one that settles.
const KILLS: Effort = Effort {
    fast: 2,
    long: 20,
    soak: 20,
};

/// Directories, one after the other.
const DIRECTORIES: Effort = Effort {
    fast: 1,
    long: 1,
    soak: 25,
};

/// After this many kills everything is sealed, flushed and compacted, so that the next recoveries start from tables.
const SETTLE_EVERY: u64 = 5;

/// Concurrent writers.
const WRITERS: u64 = 5;

/// Maximum time before a kill, in ms.
const WRITING_MS_MAX: u64 = 350;

/// One in this many rounds lasts until expiry, which runs once a second, has run.
const EXPIRY_EVERY: u64 = 10;

/// Time until the second run of expiry, in ms.
const EXPIRY_MS: u64 = 2200;

/// Measurements from here on for a week have expired: September 2001.
const EXPIRED_FROM_MS: i64 = 1_000_000_000_000;

/// Collections with measurements: ordinary writes, expiry, buckets changed through `system.buckets`.
const SERIES: [&str; 3] = ["ts", "brief", "raw"];

/// Maximum measurements of a bucket; more than any has.
const COLUMN_LENGTH_MAX: usize = 100_000;

static NEXT_ID: AtomicI64 = AtomicI64::new(1);

/// The known state of a sent command.
#[derive(Clone, Copy, Debug, PartialEq)]
enum InsertState {
    Acknowledged,
    /// The connection was lost before an answer.
    Unknown,
    /// Found missing after a kill: it must not reappear.
    Lost,
}

/// An insert as it was sent.
#[derive(Debug)]
struct SentInsert {
    collection: &'static str,
    documents: Vec<Document>,
    fate: InsertState,
    /// The documents may be gone at any time.
    expires: bool,
}

fn id_of(document: DocRef<'_>) -> i64 {
    document.get("_id").as_exact_i64().expect("an _id")
}

/// Returns a measurement of one of a few series: mostly ascending, sometimes late, rarely with another type.
fn measurement(random: &mut Random, id: i64) -> Document {
    let late = match random.below(20) {
        0 => random.below(7_200_000) as i64,
        1..=3 => random.below(60_000) as i64,
        _ => 0,
    };
    let mut document = DocumentBuilder::new();
    document.append("t", Value::DateTime(1_700_000_000_000 + id * 500 - late));
    let host = match random.below(200) {
        0..=19 => None,
        // Longer than a key of the engine.
        20 => Some("h".repeat(70_000 + random.below(2) as usize)),
        _ => Some(format!("h{}", random.below(6))),
    };
    if let Some(host) = host {
        document.append("m", doc! {"host": host});
    }
    document.append("_id", id);
    document.append("n", random.below(1000) as i32);
    if random.below(5) > 0 {
        document.append("v", random.below(10_000) as f64 / 8.0);
    }
    if random.below(300) == 0 {
        document.append("n2", "text");
    }
    document.append(
        "s",
        *["red", "green", "blue"]
            .get(random.below(3) as usize)
            .unwrap(),
    );
    document.finish()
}

/// Inserts until the connection is lost. Returns the inserts.
fn write(port: u16, seed: u64) -> Vec<SentInsert> {
    let mut random = Random(seed);
    let mut client = Client::connect(port);
    let mut all = Vec::new();
    loop {
        let collection = match random.below(8) {
            0..=2 => "plain",
            3 => "brief",
            4 => "raw",
            _ => "ts",
        };
        let expires = collection == "brief" && random.below(2) == 0;
        let most = if random.below(10) == 0 { 200 } else { 12 };
        let size = 1 + random.below(most);
        let documents: Vec<Document> = (0..size)
            .map(|_| measurement(&mut random, NEXT_ID.fetch_add(1, Ordering::Relaxed)))
            .map(|document| {
                if expires {
                    long_ago(&document)
                } else {
                    document
                }
            })
            .collect();
        let mut command = DocumentBuilder::new();
        command.append("insert", collection);
        if random.below(4) == 0 {
            command.append("ordered", false);
        }
        match random.below(6) {
            // Without waiting for the disk; the write must still survive the end of the process.
            0 => command.append("writeConcern", doc! {"w": 1, "j": false}),
            1 => command.append("writeConcern", doc! {"w": 1, "j": true}),
            _ => &mut command,
        };
        command.append("$db", "test");
        let message = op_msg(
            0,
            &[body(&command.finish()), sequence("documents", &documents)],
        );
        let reply = client.ask_or_lose(&message);
        let fate = match &reply {
            None => InsertState::Unknown,
            Some(reply) => {
                assert!(
                    is_ok(reply) && reply.get("writeErrors").is_missing(),
                    "{reply:?}"
                );
                assert_eq!(reply.get("n").as_exact_i64(), Some(size as i64));
                InsertState::Acknowledged
            }
        };
        all.push(SentInsert {
            collection,
            documents,
            fate,
            expires,
        });
        if reply.is_none() {
            return all;
        }
    }
}

/// Returns the measurement at an expired time.
fn long_ago(document: &Document) -> Document {
    let id = id_of(document.as_ref());
    let time = Value::DateTime(EXPIRED_FROM_MS + id % 600_000 * 1000);
    let mut out = DocumentBuilder::new();
    out.append("t", time);
    for element in document.iter().filter(|element| element.name() != "t") {
        out.append_element(element);
    }
    out.finish()
}

/// Changes buckets through `system.buckets` until the connection is lost: closes them, and moves them to another
/// series. Their measurements stay.
fn change_buckets(port: u16, seed: u64) {
    let mut random = Random(seed);
    let mut client = Client::connect(port);
    loop {
        let series = format!("h{}", random.below(6));
        let change = match random.below(3) {
            0 => doc! {"$set": doc! {"control.closed": true}},
            _ => doc! {"$set": doc! {"meta": doc! {"host": series.as_str()}}},
        };
        let statement = doc! {
            "q": doc! {"meta.host": format!("h{}", random.below(6)), "control.closed": doc! {"$ne": true}},
            "u": change,
            "multi": true,
        };
        let statements = Value::Array([Value::from(statement)].into_iter().collect());
        let command = doc! {"update": "system.buckets.raw", "updates": statements, "$db": "test"};
        let Some(reply) = client.ask_or_lose(&op_msg(0, &[body(&command)])) else {
            return;
        };
        assert!(
            is_ok(&reply) && reply.get("writeErrors").is_missing(),
            "{reply:?}"
        );
    }
}

/// Collections created and dropped.
#[derive(Debug, Default)]
struct CollectionChanges {
    /// Name and whether it must exist; `None` if the connection was lost in between.
    collections: BTreeMap<String, Option<bool>>,
}

/// Creates and drops collections until the connection is lost.
fn define(port: u16, round: u64) -> CollectionChanges {
    let mut client = Client::connect(port);
    let mut made = CollectionChanges::default();
    for at in 0.. {
        let name = format!("made_{round}_{at}");
        let create =
            doc! {"create": name.as_str(), "timeseries": doc! {"timeField": "t"}, "$db": "test"};
        let reply = client.ask_or_lose(&op_msg(0, &[body(&create)]));
        made.collections
            .insert(name.clone(), reply.as_ref().map(is_ok));
        if reply.is_none() {
            return made;
        }
        // So that it has buckets, tails and queued maintenance when it is dropped.
        let documents: Vec<Document> = (0..200)
            .map(|second| doc! {"t": Value::DateTime(second * 20_000), "v": second})
            .collect();
        let insert = doc! {"insert": name.as_str(), "$db": "test"};
        let insert = op_msg(0, &[body(&insert), sequence("documents", &documents)]);
        if client.ask_or_lose(&insert).is_none() {
            return made;
        }
        if at % 4 == 3 {
            continue;
        }
        let drop = doc! {"drop": name.as_str(), "$db": "test"};
        let reply = client.ask_or_lose(&op_msg(0, &[body(&drop)]));
        made.collections
            .insert(name, reply.as_ref().map(|reply| !is_ok(reply)));
        if reply.is_none() {
            return made;
        }
    }
    made
}

/// Sorts fields by name: a time series returns its time and meta first.
fn by_name(document: DocRef<'_>) -> BTreeMap<&str, (u8, &[u8])> {
    let fields = document.iter();
    fields
        .map(|e| (e.name(), (e.type_code(), e.value_bytes())))
        .collect()
}

/// True if they are equal, except for metadata if buckets are moved to other series.
fn same(collection: &str, a: &Document, b: &Document) -> bool {
    let (mut a, mut b) = (by_name(a.as_ref()), by_name(b.as_ref()));
    if collection == "raw" {
        a.remove("m");
        b.remove("m");
    }
    a == b
}

/// Compares a collection with its inserts, and resolves unknown ones.
fn check_documents(
    client: &mut Client,
    collection: &'static str,
    sent: &mut [SentInsert],
) -> usize {
    let mut found: HashMap<i64, Document> = HashMap::new();
    for document in client.find_all("test", &doc! {"find": collection}) {
        let id = id_of(document.as_ref());
        let twice = found.insert(id, document);
        assert!(
            twice.is_none(),
            "{collection}: document {id} is there twice"
        );
    }
    let total = found.len();
    for command in sent.iter_mut().filter(|c| c.collection == collection) {
        let mut there = 0;
        for document in &command.documents {
            let id = id_of(document.as_ref());
            if let Some(stored) = found.remove(&id) {
                assert!(
                    same(collection, &stored, document),
                    "{collection}: {stored:?} for {document:?}"
                );
                there += 1;
            }
        }
        if command.expires {
            continue;
        }
        let all = command.documents.len();
        let first = id_of(command.documents[0].as_ref());
        match command.fate {
            InsertState::Acknowledged => {
                assert_eq!(there, all, "{collection}: lost of command {first}")
            }
            InsertState::Lost => assert_eq!(there, 0, "{collection}: command {first} came back"),
            InsertState::Unknown => {
                assert!(
                    there == 0 || there == all,
                    "{collection}: {there} of {all} of {first}"
                );
                command.fate = if there == 0 {
                    InsertState::Lost
                } else {
                    InsertState::Acknowledged
                };
            }
        }
    }
    assert!(
        found.is_empty(),
        "{collection}: never sent: {:?}",
        found.keys()
    );
    total
}

fn document_at<'a>(document: DocRef<'a>, name: &str) -> DocRef<'a> {
    let value = document.get(name);
    value
        .as_document()
        .unwrap_or_else(|| panic!("no {name} in {document:?}"))
}

/// Checks the consistency of one bucket. Returns the ids of its measurements.
fn check_bucket(bucket: DocRef<'_>) -> Vec<i64> {
    let control = document_at(bucket, "control");
    let count = control.get("count").as_exact_i64().expect("a count");
    let count = usize::try_from(count).expect("a count");
    assert!(count > 0);
    let (min, max) = (document_at(control, "min"), document_at(control, "max"));
    let data = document_at(bucket, "data");
    let mut columns: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for element in data.iter() {
        let ValueRef::Binary { subtype: 7, bytes } = element.value() else {
            panic!("no column: {element:?}")
        };
        let mut values = column::decode_values(bytes, COLUMN_LENGTH_MAX).expect("a column");
        assert!(
            values.len() <= count,
            "{}: longer than {count}",
            element.name()
        );
        values.resize(count, Value::Missing);
        columns.insert(element.name(), values);
    }
    let names = |bounds: DocRef<'_>| bounds.iter().count();
    assert_eq!((names(min), names(max)), (columns.len(), columns.len()));
    for (name, values) in &columns {
        let present = || values.iter().map(Value::as_ref).filter(|v| !v.is_missing());
        let least = present().min_by(|a, b| compare(*a, *b)).expect("a value");
        let most = present().max_by(|a, b| compare(*a, *b)).expect("a value");
        assert!(compare(max.get(name), most).is_eq(), "control.max.{name}");
        match (*name, least, min.get(name)) {
            ("t", ValueRef::DateTime(least), ValueRef::DateTime(min)) => {
                // The measurement that opened the bucket may have been lost with its command.
                assert_eq!(min % 60_000, 0, "control.min.t");
                assert!((0..3_600_000).contains(&(least - min)), "control.min.t");
            }
            (name, least, min) => assert!(compare(min, least).is_eq(), "control.min.{name}"),
        }
    }
    let times = &columns["t"];
    assert!(times.iter().all(|t| matches!(t, Value::DateTime(_))));
    let ascends = times
        .windows(2)
        .all(|pair| compare(pair[0].as_ref(), pair[1].as_ref()).is_le());
    match control.get("version").as_exact_i64() {
        Some(2) => assert!(ascends, "version 2 must ascend"),
        version => assert_eq!(version, Some(3)),
    }
    let id = |id: &Value| id.as_ref().as_exact_i64().expect("an _id");
    columns["_id"].iter().map(id).collect()
}

/// Checks that buckets are consistent and agree with the documents, and that `validate` agrees.
fn check_buckets(client: &mut Client, collection: &str, sent: &[SentInsert], total: usize) {
    let mut meta_of: HashMap<i64, ValueRef<'_>> = HashMap::new();
    for document in sent
        .iter()
        .filter(|c| c.collection == collection)
        .flat_map(|c| &c.documents)
    {
        meta_of.insert(id_of(document.as_ref()), document.get("m"));
    }
    let mut measurements = 0;
    let buckets = client.find_all(
        "test",
        &doc! {"find": format!("system.buckets.{collection}")},
    );
    for bucket in &buckets {
        let ids = check_bucket(bucket.as_ref());
        measurements += ids.len();
        for id in ids {
            assert!(
                collection == "raw" || equal(meta_of[&id], bucket.get("meta")),
                "{id} is in another series' bucket"
            );
        }
    }
    // Measurements may have expired in between.
    assert!(measurements == total || collection == "brief" && measurements < total);
    let found = client.run_on("test", &doc! {"validate": collection});
    assert!(
        matches!(found.get("valid"), ValueRef::Bool(true)),
        "{found:?}"
    );
}

/// Checks the collections with measurements.
fn check_series(client: &mut Client, sent: &mut [SentInsert]) {
    for collection in SERIES {
        let total = check_documents(client, collection, sent);
        check_buckets(client, collection, sent, total);
    }
}

/// Checks that created collections are complete and dropped ones gone.
fn check_made(client: &mut Client, all: &mut BTreeMap<String, Option<bool>>) {
    let listed = client.find_all("test", &doc! {"listCollections": 1, "nameOnly": true});
    let names: Vec<&str> = listed
        .iter()
        .filter_map(|d| d.get("name").as_str())
        .collect();
    for (name, expected) in all {
        let there = names.contains(&name.as_str());
        let buckets = names.contains(&format!("system.buckets.{name}").as_str());
        assert_eq!(there, buckets, "half of {name} is there");
        assert_eq!(there, expected.unwrap_or(there), "{name}");
        *expected = Some(there);
    }
}

/// Opens the database in this process after a kill, and flushes the log into tables.
fn settle(path: &Path) {
    let database = Database::open(path).expect("a directory that opens after a kill");
    database.settle().expect("room");
    database.close().expect("an end");
}

fn seed() -> u64 {
    match std::env::var("NILOMETER_SEED") {
        Ok(text) => text.parse().expect("a number"),
        Err(_) => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            now.expect("a time after 1970").as_millis() as u64
        }
    }
}

#[test]
fn acknowledged_writes_outlive_kills() {
    let seed = seed();
    for at in 0..DIRECTORIES.requested() {
        kill_on_one_directory(seed.wrapping_add(at), KILLS.requested());
    }
}

#[expect(clippy::print_stdout, reason = "the seed of a run that fails")]
fn kill_on_one_directory(seed: u64, kills: u64) {
    println!("NILOMETER_SEED={seed}");
    let mut random = Random(seed);
    let directory = Directory::new();
    let path = directory.0.join("data");
    let arguments = [
        "serve",
        "--port",
        "0",
        "--quiet",
        "--setParameter",
        "ttlMonitorSleepSecs=1",
        "--dbpath",
        path.to_str().unwrap(),
    ];
    let mut server = Server::spawn(&mut nilometer(&arguments));
    for collection in SERIES {
        let options = doc! {"timeField": "t", "metaField": "m"};
        let mut create = doc! {"create": collection, "timeseries": options.clone()};
        if collection == "brief" {
            // Twenty years: only measurements of 2001 are older.
            create = doc! {
                "create": collection, "timeseries": options, "expireAfterSeconds": 630_720_000i64,
            };
        }
        let created = server.connect().run_on("test", &create);
        assert!(is_ok(&created), "{created:?}");
    }
    let mut sent: Vec<SentInsert> = Vec::new();
    let mut made = BTreeMap::new();
    for round in 0..kills {
        let port = server.port;
        let writers: Vec<_> = (0..WRITERS)
            .map(|_| random.below(u64::MAX))
            .map(|seed| std::thread::spawn(move || write(port, seed)))
            .collect();
        let definer = std::thread::spawn(move || define(port, round));
        let changes = random.below(u64::MAX);
        let changer = std::thread::spawn(move || change_buckets(port, changes));
        let expiry = if round % EXPIRY_EVERY == EXPIRY_EVERY - 1 {
            EXPIRY_MS
        } else {
            0
        };
        let writing_ms = 20 + expiry + random.below(WRITING_MS_MAX);
        std::thread::sleep(Duration::from_millis(writing_ms));
        server.signal("KILL");
        server.wait();
        for writer in writers {
            sent.extend(writer.join().expect("a writer that ends"));
        }
        changer.join().expect("a changer that ends");
        made.extend(definer.join().expect("a definer that ends").collections);
        if round % SETTLE_EVERY == SETTLE_EVERY - 1 {
            settle(&path);
        }
        server = Server::spawn(&mut nilometer(&arguments));
        let mut client = server.connect();
        check_documents(&mut client, "plain", &mut sent);
        check_series(&mut client, &mut sent);
        check_made(&mut client, &mut made);
    }
    let known = |fate: InsertState| sent.iter().filter(|c| c.fate == fate).count();
    let documents: usize = sent.iter().map(|c| c.documents.len()).sum();
    println!(
        "{kills} kills, {} commands with {documents} documents, {} lost before an answer",
        sent.len(),
        known(InsertState::Lost)
    );
    assert!(known(InsertState::Acknowledged) > 0);
    // A clean shutdown and a restart change nothing.
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    let server = Server::spawn(&mut nilometer(&arguments));
    let mut client = server.connect();
    check_documents(&mut client, "plain", &mut sent);
    check_series(&mut client, &mut sent);
    check_made(&mut client, &mut made);
}

#[test]
fn weaker_write_concerns_are_taken() {
    let server = Server::start();
    let mut client = server.connect();
    for concern in [
        doc! {"j": false},
        doc! {"w": 1, "j": false},
        doc! {"w": "majority", "j": true},
        doc! {"w": 1, "wtimeout": 100},
    ] {
        let documents = Value::Array([Value::from(doc! {"a": 1})].into_iter().collect());
        let command = doc! {"insert": "c", "documents": documents, "writeConcern": concern};
        let reply = client.run_on("test", &command);
        assert!(is_ok(&reply), "{reply:?}");
        assert_eq!(reply.get("n").as_exact_i64(), Some(1));
    }
    let unanswered = doc! {"insert": "c", "writeConcern": doc! {"w": 0}, "$db": "test"};
    let documents = [doc! {"a": 1}, doc! {"a": 2}];
    client.send(&op_msg(
        2,
        &[body(&unanswered), sequence("documents", &documents)],
    ));
    let reply = client.run_on("test", &doc! {"count": "c"});
    assert_eq!(reply.get("n").as_exact_i64(), Some(6));
}

/// Starts a server that must fail. Returns its exit code and output.
fn refused(path: &str) -> (Option<i32>, String) {
    let ended = nilometer(&["serve", "--port", "0", "--dbpath", path]).output();
    let ended = ended.expect("the program runs");
    (
        ended.status.code(),
        String::from_utf8_lossy(&ended.stderr).into_owned(),
    )
}

#[test]
fn a_directory_of_a_newer_version_is_refused_untouched() {
    let directory = Directory::new();
    let path = directory.0.join("data");
    let text = path.to_str().unwrap();
    let mut server = Server::spawn(&mut nilometer(&["serve", "--port", "0", "--dbpath", text]));
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    let format = std::fs::read_to_string(path.join("FORMAT")).expect("a format");
    let (name, _) = format.rsplit_once(' ').expect("a version");
    for (other, told) in [
        (format!("{name} 99\n"), "99"),
        ("something else\n".to_owned(), text),
        (String::new(), text),
    ] {
        assert_ne!(other, format);
        std::fs::write(path.join("FORMAT"), &other).unwrap();
        let (code, said) = refused(text);
        assert_eq!(code, Some(100), "{said}");
        assert!(said.contains(told), "{said}");
        assert_eq!(std::fs::read_to_string(path.join("FORMAT")).unwrap(), other);
    }
    std::fs::write(path.join("FORMAT"), &format).unwrap();
    let server = Server::spawn(&mut nilometer(&["serve", "--port", "0", "--dbpath", text]));
    assert!(is_ok(&server.connect().run(&doc! {"ping": 1})));
}

#[test]
fn a_lock_does_not_outlive_its_owner() {
    let directory = Directory::new();
    let path = directory.0.join("data");
    let path = path.to_str().unwrap();
    let arguments = ["serve", "--port", "0", "--dbpath", path];
    let mut server = Server::spawn(&mut nilometer(&arguments));
    let (code, said) = refused(path);
    assert_eq!(code, Some(100));
    assert!(said.contains(path) && said.contains("in use"), "{said}");
    server.signal("KILL");
    server.wait();
    let server = Server::spawn(&mut nilometer(&arguments));
    assert!(is_ok(&server.connect().run(&doc! {"ping": 1})));
}
