//! Nodes of a cluster that are killed, paused, stopped and started under load, while ranges move and collections come and go.
//!
//! Writers repeat what failed as drivers do, with the numbers of their statements, at any node. During the rounds a count is never
//! below what was acknowledged before it nor above what was begun before its end; after them each measurement is there once.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bson::{Binary, Bson, Document, doc, spec::BinarySubtype};
use nilometer_storage::testing::random::Random;

use crate::nodes::{check, insert, measurements, node, until_owned};
use crate::server::{Server, command, exchange, url};
use crate::support::{Scratch, effort};

/// Nodes that run at the same time, at most.
const NODES_MAX: usize = 4;

/// Time after which a client tries another node.
const PATIENCE: Duration = Duration::from_secs(10);

/// Longest time for one write.
const WRITE_MAX: Duration = Duration::from_secs(120);

/// What the threads share.
#[derive(Default)]
struct Load {
    /// The ports of the nodes that clients may try.
    ports: Mutex<Vec<u16>>,
    /// The number of the next measurement.
    next: AtomicI64,
    acknowledged: AtomicI64,
    is_ended: AtomicBool,
}

impl Load {
    fn ports(&self) -> MutexGuard<'_, Vec<u16>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::Relaxed)
    }

    /// Sends a command to some node; `None` if there is no reply.
    fn ask(&self, random: &mut Random, command: &Document) -> Option<Document> {
        let port = {
            let ports = self.ports();
            let at = random.below(ports.len().max(1) as u64);
            *ports.get(usize::try_from(at).ok()?)?
        };
        let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        exchange(&mut stream, command.clone())
    }

    /// Inserts one batch after the other until the end.
    fn write(&self, seed: u64, writer: u8) {
        let mut random = Random::new(seed);
        let session = Binary {
            subtype: BinarySubtype::Uuid,
            bytes: vec![writer; 16],
        };
        for number in 1_i64.. {
            if self.is_ended() {
                return;
            }
            let count = 1 + i64::try_from(random.below(30)).expect("a number");
            let from = self.next.fetch_add(count, Ordering::SeqCst);
            let insert = doc! {
                "insert": "ts", "documents": measurements(from, count), "ordered": random.below(2) == 0,
                "lsid": { "id": session.clone() }, "txnNumber": number,
            };
            let began = Instant::now();
            loop {
                assert!(began.elapsed() < WRITE_MAX, "no answer to a write");
                let Some(reply) = self.ask(&mut random, &insert) else {
                    std::thread::sleep(Duration::from_millis(20));
                    continue;
                };
                if reply.get_f64("ok").ok() == Some(1.0) {
                    assert_eq!(
                        reply.get_i32("n").ok(),
                        i32::try_from(count).ok(),
                        "{reply}"
                    );
                    break;
                }
                let labels = reply.get_array("errorLabels").cloned().unwrap_or_default();
                let may_repeat = labels.contains(&Bson::from("RetryableWriteError"));
                assert!(may_repeat, "{reply}");
            }
            self.acknowledged.fetch_add(count, Ordering::SeqCst);
        }
    }

    /// Counts again and again.
    fn read(&self, seed: u64) {
        let mut random = Random::new(seed);
        while !self.is_ended() {
            let least = self.acknowledged.load(Ordering::SeqCst);
            let count = doc! { "count": "ts", "query": {} };
            let reply = self.ask(&mut random, &count);
            let most = self.next.load(Ordering::SeqCst);
            if let Some(Ok(n)) = reply.map(|reply| reply.get_i32("n")) {
                let n = i64::from(n);
                assert!((least..=most).contains(&n), "{n} of {least} to {most}");
            }
        }
    }

    /// Moves ranges, and creates and drops collections.
    fn change(&self, seed: u64) {
        let mut random = Random::new(seed);
        while !self.is_ended() {
            let host = i64::try_from(random.below(16)).expect("a number");
            let shard = format!("p{:04}", 1 + random.below(4));
            let command = match random.below(4) {
                0 => doc! { "create": "now" },
                1 => doc! { "drop": "now" },
                _ => doc! {
                    "moveRange": "garden.ts", "min": { "meta.host": host },
                    "max": { "meta.host": host + 1 }, "toShard": shard, "$db": "admin",
                },
            };
            // It may fail while its partition, or the catalog, has no process.
            self.ask(&mut random, &command);
            std::thread::sleep(Duration::from_millis(50 + random.below(200)));
        }
    }
}

/// Does something to a node.
fn disturb(random: &mut Random, servers: &mut Vec<Server>, load: &Load, url: &str) -> &'static str {
    let at = usize::try_from(random.below(servers.len() as u64)).expect("a number");
    let away = |port: u16| load.ports().retain(|known| *known != port);
    match random.below(4) {
        0 if servers.len() > 2 => {
            let killed = servers.remove(at);
            away(killed.port);
            drop(killed);
            "kill"
        }
        1 if servers.len() > 2 => {
            let stopped = servers.remove(at);
            away(stopped.port);
            stopped.stop();
            "stop"
        }
        2 => {
            servers[at].signal("STOP");
            std::thread::sleep(Duration::from_secs(3 + random.below(7)));
            servers[at].signal("CONT");
            "pause"
        }
        _ if servers.len() < NODES_MAX => {
            let new = node(url, &[]);
            load.ports().push(new.port);
            servers.push(new);
            "start"
        }
        _ => {
            std::thread::sleep(Duration::from_secs(1));
            "wait"
        }
    }
}

fn campaign(seed: u64, rounds: u64) {
    let directory = Scratch::new("nodes-campaign");
    let url = url(directory.path());
    let mut random = Random::new(seed);
    let first = node(&url, &["--partitions", "4"]);
    until_owned(&first, &[&first]);
    let timeseries = doc! { "timeField": "t", "metaField": "m" };
    command(&first, doc! { "create": "ts", "timeseries": timeseries });
    let shard = doc! { "shardCollection": "garden.ts", "key": { "m.host": 1 }, "$db": "admin" };
    command(&first, shard);
    insert(&first, 0, 16);
    let mut servers = vec![first, node(&url, &[]), node(&url, &[])];
    let load = Load::default();
    load.next.store(16, Ordering::SeqCst);
    load.acknowledged.store(16, Ordering::SeqCst);
    load.ports()
        .extend(servers.iter().map(|server| server.port));
    let mut done = Vec::new();
    std::thread::scope(|scope| {
        let load = &load;
        let mut threads = Vec::new();
        for writer in 1..=3_u8 {
            let seed = seed * 10 + u64::from(writer);
            threads.push(scope.spawn(move || load.write(seed, writer)));
        }
        threads.push(scope.spawn(move || load.read(seed * 10 + 5)));
        threads.push(scope.spawn(move || load.change(seed * 10 + 6)));
        for _ in 0..rounds {
            std::thread::sleep(Duration::from_millis(500 + random.below(3000)));
            done.push(disturb(&mut random, &mut servers, load, &url));
            // A thread that ends has found an error.
            if threads
                .iter()
                .any(std::thread::ScopedJoinHandle::is_finished)
            {
                break;
            }
        }
        load.is_ended.store(true, Ordering::Relaxed);
    });
    let all: Vec<&Server> = servers.iter().collect();
    let count = load.next.load(Ordering::SeqCst);
    for server in &all {
        until_owned(server, &all);
        check(server, count);
    }
    assert_eq!(count, load.acknowledged.load(Ordering::SeqCst), "{done:?}");
}

#[test]
fn nodes_come_and_go_under_load() {
    let seed = std::env::var("NILOMETER_FUZZ_SEED").ok();
    let seed = seed.map_or(7, |seed| seed.parse().expect("a seed"));
    campaign(seed, effort(2, 30, 300));
}
