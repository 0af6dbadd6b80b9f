//! Nodes of a cluster that are killed, paused, cut off, stopped and started under load, while ranges move, also with their documents,
//! the balancer is on, shard keys of documents change, documents and measurements expire, `$out` and `$merge` run, indexes are built,
//! and collections come and go.
//!
//! Writers repeat what failed as drivers do, with the numbers of their statements, at any node. During the rounds a count is never
//! below what was acknowledged before it nor above what was begun before its end; after them each measurement and each document is
//! there once, and each increment was done once. What expires, what `$out` writes, and changes of definitions are in `nodes_work`.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bson::{Binary, Bson, Document, doc, spec::BinarySubtype};
use nilometer_storage::testing::random::Random;

use crate::nodes::{check, insert, measurements, node, until_hosts};
use crate::nodes_work::{EXPIRING, check_work, prepare_work};
use crate::proxy::Proxy;
use crate::server::{Server, command, exchange, url};
use crate::support::{Scratch, SetAtDrop, effort};

/// Nodes that run at the same time, at most.
const NODES_MAX: usize = 4;

/// Time after which a client tries another node.
const PATIENCE: Duration = Duration::from_secs(10);

/// Values of the shard key of documents.
pub(crate) const KEYS: i64 = 64;

/// Bytes of a document: so the balancer finds partitions that are far apart.
const DOCUMENT_BYTES: usize = 2000;

/// The code of a command that has waited too long for others.
const LOCK_TIMEOUT: i32 = 24;

/// Longest time for one write.
const WRITE_MAX: Duration = Duration::from_secs(120);

/// How much was written to a collection.
#[derive(Default)]
pub(crate) struct Written {
    /// The number of the next measurement or document.
    pub(crate) next: AtomicI64,
    pub(crate) acknowledged: AtomicI64,
}

/// What the threads share.
#[derive(Default)]
pub(crate) struct Load {
    /// The ports of the nodes that clients may try.
    ports: Mutex<Vec<u16>>,
    measurements: Written,
    documents: Written,
    /// What does not expire, of the collections where something does.
    pub(crate) lasting: [Written; EXPIRING.len()],
    /// Increments of documents.
    increments: AtomicI64,
    /// Documents whose shard key was changed.
    key_changes: AtomicI64,
    /// What `$out` has written.
    pub(crate) outputs: AtomicI64,
    is_ended: AtomicBool,
}

/// A client with a session, which repeats its writes.
pub(crate) struct Writer<'l> {
    load: &'l Load,
    pub(crate) random: Random,
    session: Binary,
    /// The number of the last write.
    number: i64,
}

impl<'l> Writer<'l> {
    pub(crate) fn new(load: &'l Load, seed: u64, name: u8) -> Self {
        Self {
            load,
            random: Random::new(seed),
            session: Binary {
                subtype: BinarySubtype::Uuid,
                bytes: vec![name; 16],
            },
            number: 0,
        }
    }

    /// Sends a write of so many documents until it is acknowledged.
    pub(crate) fn write(&mut self, mut write: Document, count: i64) {
        self.number += 1;
        write.insert("lsid", doc! { "id": self.session.clone() });
        write.insert("txnNumber", self.number);
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < WRITE_MAX, "no answer to a write");
            let Some(reply) = self.load.ask(&mut self.random, &write) else {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            };
            if reply.get_f64("ok").ok() == Some(1.0) {
                assert_eq!(
                    reply.get_i32("n").ok(),
                    i32::try_from(count).ok(),
                    "{reply}"
                );
                return;
            }
            let labels = reply.get_array("errorLabels").cloned().unwrap_or_default();
            // Reads of a collection may keep an update of a shard key waiting for too long.
            let is_late = reply.get_i32("code").ok() == Some(LOCK_TIMEOUT);
            let may_repeat = labels.contains(&Bson::from("RetryableWriteError"));
            assert!(may_repeat || is_late, "{reply}");
        }
    }
}

impl Load {
    fn ports(&self) -> MutexGuard<'_, Vec<u16>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::Relaxed)
    }

    /// Sends a command to some node; `None` if there is no reply.
    pub(crate) fn ask(&self, random: &mut Random, command: &Document) -> Option<Document> {
        let port = {
            let ports = self.ports();
            let at = random.below(ports.len().max(1) as u64);
            *ports.get(usize::try_from(at).ok()?)?
        };
        let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        exchange(&mut stream, command.clone())
    }

    /// Inserts one batch of measurements after the other until the end.
    fn write_measurements(&self, seed: u64, name: u8) {
        let mut writer = Writer::new(self, seed, name);
        while !self.is_ended() {
            let count = 1 + i64::try_from(writer.random.below(30)).expect("a number");
            let from = self.measurements.next.fetch_add(count, Ordering::SeqCst);
            let insert = doc! {
                "insert": "ts", "documents": measurements(from, count),
                "ordered": writer.random.below(2) == 0,
            };
            writer.write(insert, count);
            self.measurements
                .acknowledged
                .fetch_add(count, Ordering::SeqCst);
        }
    }

    /// Inserts documents and increments fields of them until the end.
    fn write_documents(&self, seed: u64, name: u8) {
        let mut writer = Writer::new(self, seed, name);
        let pad = "x".repeat(DOCUMENT_BYTES);
        while !self.is_ended() {
            let count = 1 + i64::try_from(writer.random.below(10)).expect("a number");
            let from = self.documents.next.fetch_add(count, Ordering::SeqCst);
            let one = |n: i64| doc! { "_id": n, "k": n % KEYS, "c": 0_i64, "pad": &pad };
            let documents: Vec<Document> = (from..from + count).map(one).collect();
            let ordered = writer.random.below(2) == 0;
            let insert = doc! { "insert": "docs", "documents": documents, "ordered": ordered };
            writer.write(insert, count);
            self.documents
                .acknowledged
                .fetch_add(count, Ordering::SeqCst);
            let chosen = from + i64::try_from(writer.random.below(10)).expect("a number") % count;
            // With the shard key or without: then the document is looked for in all partitions.
            let filter = match writer.random.below(2) {
                0 => doc! { "_id": chosen },
                _ => doc! { "_id": chosen, "k": chosen % KEYS },
            };
            let one = doc! { "q": filter, "u": { "$inc": { "c": 1_i64 } } };
            writer.write(doc! { "update": "docs", "updates": [one] }, 1);
            self.increments.fetch_add(1, Ordering::SeqCst);
            if writer.random.below(4) == 0 {
                // It goes to another partition in most cases.
                let key = i64::try_from(writer.random.below(KEYS as u64)).expect("a number");
                let filter = doc! { "_id": chosen, "k": chosen % KEYS };
                let one =
                    doc! { "q": filter, "u": { "$set": { "k": key }, "$inc": { "c": 1_i64 } } };
                writer.write(doc! { "update": "docs", "updates": [one] }, 1);
                self.increments.fetch_add(1, Ordering::SeqCst);
                self.key_changes.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    /// Counts again and again.
    fn read(&self, seed: u64) {
        let mut random = Random::new(seed);
        while !self.is_ended() {
            let (name, query, written) = match random.below(4) {
                0 => ("ts", doc! {}, &self.measurements),
                1 => ("docs", doc! {}, &self.documents),
                at => {
                    let at = usize::try_from(at).expect("a number") - 2;
                    (EXPIRING[at], doc! { "lasts": true }, &self.lasting[at])
                }
            };
            let least = written.acknowledged.load(Ordering::SeqCst);
            let count = doc! { "count": name, "query": query };
            let reply = self.ask(&mut random, &count);
            let most = written.next.load(Ordering::SeqCst);
            if let Some(Ok(n)) = reply.map(|reply| reply.get_i32("n")) {
                let n = i64::from(n);
                assert!(
                    (least..=most).contains(&n),
                    "{name}: {n} of {least} to {most}"
                );
            }
        }
    }
}

/// A node, and the port at which others and clients reach it.
struct Node {
    server: Server,
    proxy: Proxy,
}

impl Node {
    fn start(url: &str, more: &[&str]) -> Self {
        let proxy = Proxy::start(0);
        let address = format!("127.0.0.1:{}", proxy.port);
        let own = [
            "--advertise",
            &address,
            "--setParameter",
            "ttlMonitorSleepSecs=1",
        ];
        let server = node(url, &[&own, more].concat());
        proxy.aim(server.port);
        Self { server, proxy }
    }
}

/// Waits until a node knows that these have partitions.
fn until_shared(server: &Server, nodes: &[Node]) {
    let address = |node: &Node| format!("127.0.0.1:{}", node.proxy.port);
    until_hosts(server, nodes.iter().map(address).collect());
}

/// Does something to a node.
fn disturb(random: &mut Random, nodes: &mut Vec<Node>, load: &Load, url: &str) -> &'static str {
    let at = usize::try_from(random.below(nodes.len() as u64)).expect("a number");
    let away = |port: u16| load.ports().retain(|known| *known != port);
    let seconds = |most: u64, random: &mut Random| Duration::from_secs(1 + random.below(most));
    match random.below(6) {
        0 if nodes.len() > 2 => {
            let killed = nodes.remove(at);
            away(killed.proxy.port);
            drop(killed.server);
            "kill"
        }
        1 if nodes.len() > 2 => {
            let stopped = nodes.remove(at);
            away(stopped.proxy.port);
            stopped.server.stop();
            "stop"
        }
        2 => {
            nodes[at].server.signal("STOP");
            std::thread::sleep(seconds(9, random));
            nodes[at].server.signal("CONT");
            "pause"
        }
        3 => {
            // Neither others nor clients reach it, but it reaches the store.
            nodes[at].proxy.cut();
            std::thread::sleep(seconds(6, random));
            nodes[at].proxy.mend();
            "cut off"
        }
        4 => {
            for node in &*nodes {
                node.proxy.cut();
                node.proxy.mend();
            }
            "connections cut"
        }
        _ if nodes.len() < NODES_MAX => {
            let new = Node::start(url, &[]);
            load.ports().push(new.proxy.port);
            nodes.push(new);
            "start"
        }
        _ => {
            std::thread::sleep(Duration::from_secs(1));
            "wait"
        }
    }
}

/// Makes the collections, and switches the balancer on.
fn prepare(first: &Server) {
    let timeseries = doc! { "timeField": "t", "metaField": "m" };
    command(first, doc! { "create": "ts", "timeseries": timeseries });
    for (name, key) in [("garden.ts", "m.host"), ("garden.docs", "k")] {
        let shard = doc! { "shardCollection": name, "key": { key: 1 }, "$db": "admin" };
        command(first, shard);
    }
    let chunk =
        doc! { "q": { "_id": "chunksize" }, "u": { "$set": { "value": 1 } }, "upsert": true };
    command(
        first,
        doc! { "update": "settings", "updates": [chunk], "$db": "config" },
    );
    command(first, doc! { "balancerStart": 1, "$db": "admin" });
    prepare_work(first);
}

/// Checks that a node answers with all documents of 0 to `count`, and so many increments.
fn check_documents(server: &Server, count: i64, increments: i64) {
    let group = doc! { "_id": "$_id", "n": { "$sum": 1_i64 }, "c": { "$sum": "$c" } };
    let sums = doc! {
        "_id": null, "ids": { "$sum": 1_i64 }, "n": { "$sum": "$n" }, "c": { "$sum": "$c" },
        "first": { "$min": "$_id" }, "last": { "$max": "$_id" },
    };
    let pipeline = vec![doc! { "$group": group }, doc! { "$group": sums }];
    let aggregate = doc! { "aggregate": "docs", "pipeline": pipeline, "cursor": {} };
    let reply = command(server, aggregate);
    let cursor = reply.get_document("cursor").expect("a cursor");
    let batch = cursor.get_array("firstBatch").expect("a batch");
    let found = batch.first().and_then(Bson::as_document).expect("a sum");
    let number = |name| found.get_i64(name).ok();
    assert_eq!(
        [number("ids"), number("n"), number("first"), number("last")],
        [Some(count), Some(count), Some(0), Some(count - 1)],
        "{found}"
    );
    assert_eq!(number("c"), Some(increments), "{found}");
    // Each is where its key leads.
    let by_key = (0..KEYS).map(|key| {
        let reply = command(server, doc! { "count": "docs", "query": { "k": key } });
        i64::from(reply.get_i32("n").expect("a number"))
    });
    assert_eq!(by_key.sum::<i64>(), count);
}

fn campaign(seed: u64, rounds: u64) {
    let directory = Scratch::new("nodes-campaign");
    let url = url(directory.path());
    let mut random = Random::new(seed);
    let mut nodes = vec![Node::start(&url, &["--partitions", "4"])];
    until_shared(&nodes[0].server, &nodes);
    prepare(&nodes[0].server);
    insert(&nodes[0].server, 0, 16);
    nodes.extend([Node::start(&url, &[]), Node::start(&url, &[])]);
    let load = Load::default();
    load.measurements.next.store(16, Ordering::SeqCst);
    load.measurements.acknowledged.store(16, Ordering::SeqCst);
    load.ports()
        .extend(nodes.iter().map(|node| node.proxy.port));
    let mut done = Vec::new();
    std::thread::scope(|scope| {
        let load = &load;
        let end = SetAtDrop(&load.is_ended);
        let mut threads = Vec::new();
        for writer in 1..=4_u8 {
            let seed = seed * 10 + u64::from(writer);
            threads.push(scope.spawn(move || match writer % 2 {
                0 => load.write_documents(seed, writer),
                _ => load.write_measurements(seed, writer),
            }));
        }
        threads.push(scope.spawn(move || load.read(seed * 10 + 5)));
        threads.push(scope.spawn(move || load.change(seed * 10 + 6)));
        threads.push(scope.spawn(move || load.write_expiring(seed * 10 + 7, 7)));
        threads.push(scope.spawn(move || load.output(seed * 10 + 8)));
        for _ in 0..rounds {
            std::thread::sleep(Duration::from_millis(500 + random.below(3000)));
            done.push(disturb(&mut random, &mut nodes, load, &url));
            // A thread that ends has found an error.
            if threads
                .iter()
                .any(std::thread::ScopedJoinHandle::is_finished)
            {
                break;
            }
        }
        drop(end);
    });
    let count = load.measurements.next.load(Ordering::SeqCst);
    let documents = load.documents.next.load(Ordering::SeqCst);
    let increments = load.increments.load(Ordering::SeqCst);
    for node in &nodes {
        until_shared(&node.server, &nodes);
        check(&node.server, count);
        check_documents(&node.server, documents, increments);
        check_work(&node.server, &load, documents);
    }
    let log = doc! { "count": "changelog", "query": {}, "$db": "config" };
    let moves = command(&nodes[0].server, log);
    eprintln!(
        "{} things happened: {count} measurements, {documents} documents, {increments} increments, {} changes of keys, {} outputs, {:?} moves",
        done.len(),
        load.key_changes.load(Ordering::SeqCst),
        load.outputs.load(Ordering::SeqCst),
        moves.get_i32("n").ok()
    );
    for (next, written) in [(count, &load.measurements), (documents, &load.documents)] {
        assert_eq!(
            next,
            written.acknowledged.load(Ordering::SeqCst),
            "{done:?}"
        );
    }
}

#[test]
fn nodes_come_and_go_under_load() {
    let seed = std::env::var("NILOMETER_FUZZ_SEED").ok();
    let seed = seed.map_or(7, |seed| seed.parse().expect("a seed"));
    campaign(seed, effort(2, 30, 300));
}
