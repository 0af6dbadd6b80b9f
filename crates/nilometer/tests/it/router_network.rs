//! A network between a router and its partitions that loses requests and replies, delays and repeats them, by a seed.
//!
//! ```text
//! driver ── repeats numbered writes ──► router ──► LossyPartition ──┬─ delivered             ──► partition
//!                                                                   ├─ lost, or its reply is
//!                                                                   ├─ delivered later, when the router has given up
//!                                                                   └─ delivered twice
//! ```
//!
//! Drivers repeat a write with its number until it is answered, and one server gets each write once. Both have the same documents
//! and replies at the end: no write is lost, and none done twice.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nilometer::database::{HostedPartition, LocalPartition};
use nilometer::router::{Partition, PendingReply};
use nilometer::services::Environment;
use nilometer::{Database, Error, ErrorCode, Request};
use nilometer_bson::{Binary, Document, DocumentBuilder, Value, ValueRef, array, doc};
use nilometer_storage::MemoryEngine;

use crate::random::Random;
use crate::router::Cluster;
use crate::router_writes::{normal, with};
use crate::support::{Fixture, primary_environment, show};

/// Sessions of drivers.
const SESSIONS: u64 = 3;

/// Values of the key and `_id`s.
const KEYS: i32 = 8;

/// How often a driver repeats a write.
const TRIES_MAX: u32 = 200;

/// What the messages to all partitions share.
struct Network {
    random: Mutex<Random>,
    is_lossy: AtomicBool,
    /// Messages that something happened to, by kind.
    happened: [AtomicUsize; 4],
}

impl Network {
    fn random(&self) -> MutexGuard<'_, Random> {
        self.random.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn chance(&self, one_in: u64) -> bool {
        self.random().below(one_in) == 0
    }
}

/// A partition behind the network.
struct LossyPartition {
    inner: LocalPartition,
    network: Arc<Network>,
    /// Requests that are delivered later.
    late: Mutex<Vec<Request>>,
}

/// A reply that is there already, or an error.
struct Answer {
    reply: Option<nilometer::Result<Document>>,
    /// Looks of the router before it gets the reply.
    looks: u32,
}

impl PendingReply for Answer {
    fn wait(&mut self, _: Duration) -> nilometer::Result<Option<Document>> {
        if self.looks > 0 {
            self.looks -= 1;
            return Ok(None);
        }
        self.reply.take().transpose()
    }
}

impl LossyPartition {
    /// Delivers a request and waits for its end.
    fn deliver(&self, request: Request) -> nilometer::Result<Document> {
        let mut reply = self.inner.send(request);
        loop {
            if let Some(reply) = reply.wait(Duration::from_secs(60))? {
                return Ok(reply);
            }
        }
    }

    fn late(&self) -> MutexGuard<'_, Vec<Request>> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers requests that come late, of the time series only if `all` is set.
    fn deliver_late(&self, all: bool) {
        let late = std::mem::take(&mut *self.late());
        let is_due = |request: &Request| all || request.body.get("insert").as_str() != Some("ts");
        let (due, kept) = late.into_iter().partition(is_due);
        *self.late() = kept;
        let due: Vec<Request> = due;
        for request in due {
            // The sender has given up: the reply is dropped.
            drop(self.deliver(request));
        }
    }

    /// Sends a request once. The error is that of a node that does not answer.
    fn try_once(&self, request: &Request, may_repeat: bool) -> nilometer::Result<Document> {
        let network = &self.network;
        if !network.is_lossy.load(Ordering::Relaxed) {
            return self.deliver(request.clone());
        }
        if network.chance(3) {
            self.deliver_late(true);
        }
        let fate = network.random().below(20);
        let note = |kind: usize| network.happened[kind].fetch_add(1, Ordering::Relaxed);
        let silent = || {
            let text = "the node does not answer";
            Err(Error::new(ErrorCode::HostUnreachable, text))
        };
        match fate {
            0 => {
                note(0);
                silent()
            }
            1 => {
                note(1);
                drop(self.deliver(request.clone())?);
                silent()
            }
            2 if may_repeat => {
                note(2);
                self.late().push(request.clone());
                silent()
            }
            3 if may_repeat => {
                note(3);
                drop(self.deliver(request.clone())?);
                self.deliver(request.clone())
            }
            _ => self.deliver(request.clone()),
        }
    }
}

impl Partition for LossyPartition {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn host(&self) -> String {
        self.inner.host()
    }

    fn send(&self, request: Request) -> Box<dyn PendingReply> {
        let is_numbered = request.body.as_ref().contains("txnNumber");
        // The begin of a read is sent again, as nodes do.
        let is_read = request
            .routed
            .as_ref()
            .is_some_and(|routed| routed.part.is_some());
        let mut reply = self.try_once(&request, is_numbered || is_read);
        while is_read && reply.is_err() {
            reply = self.try_once(&request, true);
        }
        let looks = self.network.random().int(3);
        Box::new(Answer {
            reply: Some(reply),
            looks: u32::try_from(looks).unwrap_or(0),
        })
    }
}

/// A router behind the network, and one server.
struct Pair {
    network: Arc<Network>,
    partitions: Vec<Arc<LossyPartition>>,
    router: Fixture,
    single: Fixture,
    numbers: [i64; SESSIONS as usize],
}

impl Pair {
    fn new(seed: u64, key: &Document) -> Self {
        let network = Arc::new(Network {
            random: Mutex::new(Random::new(seed ^ 0x6e65_7477)),
            is_lossy: AtomicBool::new(false),
            happened: Default::default(),
        });
        let partition = |at: usize| {
            let database = Arc::new(Database::in_memory().unwrap());
            let hosted = Arc::new(HostedPartition::new(database).unwrap());
            Arc::new(LossyPartition {
                inner: LocalPartition::new(&format!("p{at:04}"), hosted),
                network: Arc::clone(&network),
                late: Mutex::default(),
            })
        };
        let partitions: Vec<_> = (0..3).map(partition).collect();
        let named = partitions
            .iter()
            .map(|p| Arc::clone(p) as Arc<dyn Partition>);
        let engine = Arc::new(MemoryEngine::new());
        let router = Database::router(engine, Environment::default(), named.collect());
        let single = Database::in_memory_with(primary_environment());
        let mut new = Self {
            network,
            partitions,
            router: Fixture::of(router.unwrap()),
            single: Fixture::of(single.unwrap()),
            numbers: [0; SESSIONS as usize],
        };
        let series = doc! {"timeField": "t", "metaField": "m"};
        for side in [&mut new.router, &mut new.single] {
            side.run(doc! {"create": "c"});
            side.run(doc! {"create": "ts", "timeseries": series.clone()});
        }
        new.admin(doc! {"shardCollection": "test.c", "key": key.clone()});
        new.admin(doc! {"shardCollection": "test.ts", "key": doc! {"m.k": 1}});
        if key.get("k").is_number() {
            for (at, shard) in [(3, "p0001"), (6, "p0002")] {
                let range = doc! {"moveRange": "test.c", "min": doc! {"k": at}, "toShard": shard};
                new.admin(range);
            }
        }
        new
    }

    fn admin(&mut self, command: Document) {
        let reply = self.router.reply_on("admin", command);
        assert_eq!(reply.get("ok").as_exact_i64(), Some(1), "{}", show(&reply));
    }

    /// Repeats a command of a driver until it is answered.
    fn driven(&mut self, db: &str, command: &Document) -> Document {
        for _ in 0..TRIES_MAX {
            let reply = self.router.reply_on(db, command.clone());
            if reply.get("code").as_exact_i64() != Some(6) {
                return reply;
            }
        }
        panic!("no answer to {}", show(command));
    }

    /// Runs a write of a session on both sides.
    fn write(&mut self, session: usize, command: Document, text: &str) {
        let db = match command.get("bulkWrite") {
            ValueRef::Missing => "test",
            _ => "admin",
        };
        self.numbers[session] += 1;
        let id = Binary {
            subtype: 4,
            bytes: vec![u8::try_from(session).unwrap(); 16].into(),
        };
        let numbered = with(command.clone(), "lsid", doc! {"id": Value::from(id)});
        let numbered = with(numbered, "txnNumber", self.numbers[session]);
        let found = self.driven(db, &numbered);
        // A statement that changed nothing is not remembered, as in MongoDB: a request that comes when others have written could
        // change something. Of the time series each changes something.
        for partition in &self.partitions {
            partition.deliver_late(false);
        }
        let expected = self.single.reply_on(db, command);
        assert_eq!(outcome(&found), outcome(&expected), "{text}");
    }

    fn compare(&mut self, text: &str) {
        for (name, sort) in [("c", doc! {"_id": 1}), ("ts", doc! {"_id": 1})] {
            let all = doc! {"find": name, "sort": sort, "batchSize": 100_000};
            let shown = |list: Vec<Document>| list.iter().map(show).collect::<Vec<_>>();
            let expected = shown(self.single.all(all.clone()));
            assert_eq!(shown(self.router.all(all)), expected, "{name} after {text}");
        }
    }

    /// Delivers what is still on its way, and loses nothing more.
    fn settle(&mut self) {
        self.network.is_lossy.store(false, Ordering::Relaxed);
        for partition in &self.partitions {
            partition.deliver_late(true);
        }
    }
}

/// Returns what a reply says of the documents, without what says that a statement was repeated.
fn outcome(reply: &Document) -> String {
    let mut out = DocumentBuilder::new();
    let others = [
        "$clusterTime",
        "operationTime",
        "retriedStmtId",
        "retriedStmtIds",
        "electionId",
        "opTime",
    ];
    for element in reply.iter().filter(|e| !others.contains(&e.name())) {
        out.append_element(element);
    }
    normal(&out.finish())
}

/// Returns a write of documents that a driver numbers; `new` makes `_id`s of measurements.
fn command(random: &mut Random, new: &mut i32) -> Document {
    let k = random.int(KEYS);
    let id = k * 10 + random.int(3);
    let of_one = match random.below(3) {
        0 => doc! {"_id": id, "k": k},
        1 => doc! {"_id": id},
        _ => doc! {"k": k, "_id": doc! {"$in": array![id]}},
    };
    let count = doc! {"$inc": doc! {"n": 1}};
    match random.below(8) {
        0 | 1 => {
            let documents: Vec<Value> = (0..4)
                .map(|_| {
                    let k = random.int(KEYS);
                    doc! {"_id": k * 10 + random.int(3), "k": k, "n": 0}.into()
                })
                .collect();
            doc! {"insert": "c", "documents": documents, "ordered": random.below(2) == 0}
        }
        2 | 3 => {
            let documents: Vec<Value> = (0..5)
                .map(|_| {
                    *new += 1;
                    let m = doc! {"k": random.int(KEYS)};
                    let t = Value::DateTime(i64::from(*new) * 1000);
                    doc! {"_id": *new, "t": t, "m": m, "x": *new}.into()
                })
                .collect();
            doc! {"insert": "ts", "documents": documents, "ordered": random.below(2) == 0}
        }
        4 => {
            // Another document, so that the repetition of one statement does not see what the other has done.
            let other = doc! {"_id": id + 5, "k": k};
            let updates = array![
                doc! {"q": of_one, "u": count.clone()},
                doc! {"q": other, "u": count, "upsert": true},
            ];
            doc! {"update": "c", "updates": updates, "ordered": random.below(2) == 0}
        }
        5 => doc! {"delete": "c", "deletes": array![doc! {"q": of_one, "limit": 1}]},
        6 => match random.below(3) {
            0 => doc! {"findAndModify": "c", "query": of_one, "remove": true},
            _ => doc! {"findAndModify": "c", "query": of_one, "update": count, "new": true},
        },
        _ => {
            let ops = array![
                doc! {"update": 0, "filter": of_one, "updateMods": count},
                doc! {"delete": 0, "filter": doc! {"_id": id + 5}, "multi": false},
            ];
            let names = array![doc! {"ns": "test.c"}];
            doc! {"bulkWrite": 1, "ops": ops, "nsInfo": names, "ordered": random.below(2) == 0}
        }
    }
}

/// Runs a history. Returns what happened to messages, by kind.
fn history(seed: u64, steps: usize) -> [usize; 4] {
    let mut random = Random::new(seed);
    let keys = [doc! {"_id": "hashed"}, doc! {"k": 1}, doc! {"k": "hashed"}];
    let key = random.pick(&keys).clone();
    let mut pair = Pair::new(seed, &key);
    let mut new = 0;
    for step in 0..steps {
        pair.network.is_lossy.store(true, Ordering::Relaxed);
        let session = usize::try_from(random.below(SESSIONS)).unwrap();
        let write = command(&mut random, &mut new);
        let text = format!("{seed}/{step}: {}", show(&write));
        pair.write(session, write, &text);
        if random.below(6) == 0 {
            // A move is repeated until it is done.
            let from = random.int(KEYS);
            let range = doc! {
                "moveRange": "test.ts", "min": doc! {"meta.k": from},
                "max": doc! {"meta.k": from + 1}, "toShard": format!("p000{}", random.below(3)),
            };
            let reply = pair.driven("admin", &range);
            assert_eq!(reply.get("ok").as_exact_i64(), Some(1), "{}", show(&reply));
        }
        if random.below(4) == 0 {
            pair.compare(&text);
        }
    }
    pair.settle();
    pair.compare(&format!("seed {seed}"));
    pair.network
        .happened
        .each_ref()
        .map(|count| count.load(Ordering::Relaxed))
}

#[test]
fn writes_over_a_bad_network_are_done_once() {
    let histories = nilometer_storage::testing::effort(20, 600, 20_000);
    let first = std::env::var("NILOMETER_SEED").map_or(0, |text| text.parse().expect("a number"));
    let mut happened = [0; 4];
    for seed in first..first + histories {
        let of_one = history(seed, 15);
        for (sum, count) in happened.iter_mut().zip(of_one) {
            *sum += count;
        }
    }
    // Lost requests, lost replies, late and repeated ones.
    assert!(happened.iter().all(|count| *count >= 10), "{happened:?}");
}

/// The sessions of parts would fill the table of a partition: it has one million for all queries of half an hour.
#[test]
fn queries_leave_no_sessions_in_partitions() {
    let mut cluster = Cluster::hashed(3, 6000, 30);
    for filter in [doc! {}, doc! {"m.host": 3}] {
        let find = doc! {"find": "ts", "filter": filter, "batchSize": 100_000};
        cluster.router.run(find);
    }
    let session = doc! {"id": Value::from(Binary { subtype: 4, bytes: vec![7; 16].into() })};
    let insert = doc! {
        "insert": "ts", "documents": array![doc! {"t": Value::DateTime(0), "m": doc! {"host": 1}}], "lsid": session, "txnNumber": 1_i64,
    };
    cluster.router.run(insert);
    for partition in &cluster.partitions {
        let status = bson::doc! {"serverStatus": 1};
        let status = partition.database().command("admin", &status).unwrap();
        let sessions = status.get_document("logicalSessionRecordCache").unwrap();
        let count = sessions.get_i64("activeSessionsCount").unwrap();
        assert_eq!(count, 0, "{sessions}");
    }
}
