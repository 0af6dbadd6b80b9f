//! Ranges of ordinary collections move with their documents: nothing is lost and nothing is there twice, whatever fails.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nilometer::database::{HostedPartition, LocalPartition};
use nilometer::router::{Partition, PendingReply};
use nilometer::services::Environment;
use nilometer::{Database, Error, ErrorCode, Request};
use nilometer_bson::{Document, Value, array, doc};

use crate::random::Random;
use crate::router::Cluster;
use crate::router_key_updates::run_with;
use crate::router_writes::{numbered, with};
use crate::support::{Fixture, show};

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// It does not arrive.
    Lost,
    /// It arrives, and its reply does not.
    Unanswered,
    /// It does not arrive, nor does any other to its partition.
    PartitionEnds,
    /// It does not arrive, nor does any other.
    RouterEnds,
    /// It arrives, but not its reply, nor any other request.
    RouterEndsBehind,
}

pub(crate) const FAULTS: [Fault; 5] = [
    Fault::Lost,
    Fault::Unanswered,
    Fault::PartitionEnds,
    Fault::RouterEnds,
    Fault::RouterEndsBehind,
];

/// The requests between a router and its partitions.
#[derive(Default)]
pub(crate) struct Wire {
    /// The number of the request that fails, and how; `None` if none does.
    plan: Mutex<Option<(usize, Fault)>>,
    sent: AtomicUsize,
    /// The partition that has ended.
    ended: Mutex<Option<usize>>,
    /// True if a request has failed.
    has_failed: Mutex<bool>,
    /// What happens behind the request of this number.
    meanwhile: Mutex<Option<(usize, Meanwhile)>>,
}

/// What happens between the reply to a request and the next one.
type Meanwhile = Box<dyn FnOnce() + Send>;

impl Wire {
    pub(crate) fn arm(&self, at: usize, fault: Fault) {
        *self.plan.lock().unwrap() = Some((at, fault));
        self.sent.store(0, Ordering::SeqCst);
        *self.has_failed.lock().unwrap() = false;
    }

    /// Lets something happen behind the reply to the request of this number.
    pub(crate) fn behind(&self, at: usize, meanwhile: impl FnOnce() + Send + 'static) {
        *self.meanwhile.lock().unwrap() = Some((at, Box::new(meanwhile)));
        self.sent.store(0, Ordering::SeqCst);
    }

    /// Lets all arrive again. True if something has failed.
    pub(crate) fn heal(&self) -> bool {
        *self.plan.lock().unwrap() = None;
        *self.ended.lock().unwrap() = None;
        *self.has_failed.lock().unwrap()
    }

    /// Returns what happens behind the request that was sent last.
    fn meanwhile(&self) -> Option<Meanwhile> {
        let mut planned = self.meanwhile.lock().unwrap();
        let last = self.sent.load(Ordering::SeqCst);
        planned
            .take_if(|(at, _)| *at + 1 == last)
            .map(|(_, run)| run)
    }

    /// Returns the fate of the next request: whether it arrives, and its reply.
    fn next(&self, partition: usize) -> (bool, bool) {
        let number = self.sent.fetch_add(1, Ordering::SeqCst);
        let plan = *self.plan.lock().unwrap();
        let Some((at, fault)) = plan else {
            return (true, true);
        };
        if *self.ended.lock().unwrap() == Some(partition) {
            return (false, false);
        }
        let ends_router = matches!(fault, Fault::RouterEnds | Fault::RouterEndsBehind);
        if number > at && ends_router {
            return (false, false);
        }
        if number != at {
            return (true, true);
        }
        *self.has_failed.lock().unwrap() = true;
        if fault == Fault::PartitionEnds {
            *self.ended.lock().unwrap() = Some(partition);
        }
        let arrives = matches!(fault, Fault::Unanswered | Fault::RouterEndsBehind);
        (arrives, false)
    }
}

struct OnWire {
    inner: LocalPartition,
    number: usize,
    wire: Arc<Wire>,
}

/// A reply that has arrived.
struct EarlyReply(Option<Document>);

impl PendingReply for EarlyReply {
    fn wait(&mut self, _: Duration) -> nilometer::Result<Option<Document>> {
        Ok(self.0.take())
    }
}

struct NoReply;

impl PendingReply for NoReply {
    fn wait(&mut self, _: Duration) -> nilometer::Result<Option<Document>> {
        Err(Error::new(ErrorCode::HostUnreachable, "the wire is cut"))
    }
}

impl Partition for OnWire {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn host(&self) -> String {
        self.inner.host()
    }

    fn send(&self, request: Request) -> Box<dyn PendingReply> {
        match self.wire.next(self.number) {
            (false, _) => Box::new(NoReply),
            (true, true) => {
                let mut sent = self.inner.send(request);
                let Some(run) = self.wire.meanwhile() else {
                    return sent;
                };
                let reply = loop {
                    if let Some(reply) = sent.wait(Duration::from_secs(1)).unwrap() {
                        break reply;
                    }
                };
                run();
                Box::new(EarlyReply(Some(reply)))
            }
            (true, false) => {
                let mut sent = self.inner.send(request);
                // It runs before anything else does.
                while let Ok(None) = sent.wait(Duration::from_secs(1)) {}
                Box::new(NoReply)
            }
        }
    }
}

/// Opens the router of a cluster again, with a wire to its partitions.
pub(crate) fn reopen(cluster: &mut Cluster, wire: &Arc<Wire>) {
    cluster.router = Fixture::of(open(cluster, wire));
}

/// Opens a router, with a wire to the partitions of the cluster.
pub(crate) fn open(cluster: &Cluster, wire: &Arc<Wire>) -> Database {
    let on_wire = |(number, hosted): (usize, &Arc<HostedPartition>)| {
        let inner = LocalPartition::new(&format!("p{number:04}"), Arc::clone(hosted));
        Arc::new(OnWire {
            inner,
            number,
            wire: Arc::clone(wire),
        }) as Arc<dyn Partition>
    };
    let partitions = cluster.partitions.iter().enumerate().map(on_wire).collect();
    let engine = Arc::clone(&cluster.engine);
    Database::router(engine, Environment::default(), partitions).unwrap()
}

fn documents(count: i32) -> Vec<Document> {
    let one =
        |id: i32| doc! {"_id": id, "k": id % 20, "x": id % 7, "s": "s".repeat(id as usize % 50)};
    (0..count).map(one).collect()
}

fn all(router: &mut Fixture) -> Vec<String> {
    let found = router.all(doc! {"find": "c", "sort": doc! {"_id": 1}});
    found.iter().map(show).collect()
}

/// Fails unless the collection has exactly these documents, each where its key leads.
pub(crate) fn check(cluster: &mut Cluster, expected: &[Document], text: &str) {
    let list: Vec<String> = expected.iter().map(show).collect();
    assert_eq!(all(&mut cluster.router), list, "{text}");
    let total: i64 = cluster.counts("c").iter().sum();
    assert_eq!(total, expected.len() as i64, "{text}");
    for k in 0..20 {
        let count = doc! {"count": "c", "query": doc! {"k": k}};
        let found = cluster.router.run(count).get("n").as_exact_i64();
        let of = expected
            .iter()
            .filter(|one| one.get("k").as_exact_i64() == Some(k));
        assert_eq!(found, Some(of.count() as i64), "{k} {text}");
    }
}

pub(crate) fn sharded(key: &Document, count: i32) -> (Cluster, Arc<Wire>, Vec<Document>) {
    let mut cluster = Cluster::new(3);
    let wire = Arc::new(Wire::default());
    reopen(&mut cluster, &wire);
    cluster.admin(doc! {"shardCollection": "test.c", "key": key.clone()});
    let list = documents(count);
    let values: Vec<Value> = list.iter().cloned().map(Value::from).collect();
    if !values.is_empty() {
        cluster
            .router
            .run(doc! {"insert": "c", "documents": values});
    }
    (cluster, wire, list)
}

fn range(random: &mut Random, key: &Document) -> Document {
    let hashed = key.get("k").as_str() == Some("hashed");
    let mut bounds = [0, 0].map(|_| match hashed {
        true => i64::from(random.int(i32::MAX)) << random.below(33),
        false => i64::from(random.int(20)),
    });
    if hashed && random.below(2) == 0 {
        bounds[0] = -bounds[0];
    }
    bounds.sort_unstable();
    let bound = |at: i64| {
        let mut out = nilometer_bson::DocumentBuilder::new();
        for (number, part) in key.iter().enumerate() {
            match number {
                0 => out.append(part.name(), at),
                _ => out.append(part.name(), Value::MinKey),
            };
        }
        out.finish()
    };
    doc! {
        "moveRange": "test.c", "min": bound(bounds[0]), "max": bound(bounds[1] + 1),
        "toShard": format!("p000{}", random.below(3)),
    }
}

#[test]
fn a_range_that_moves_loses_and_doubles_nothing_whatever_fails() {
    let rounds = nilometer_storage::testing::effort(1, 4, 40);
    let keys = [doc! {"k": 1}, doc! {"k": "hashed"}, doc! {"k": 1, "x": 1}];
    for seed in 0..rounds as u64 {
        for (number, key) in keys.iter().enumerate() {
            let mut random = Random::new(seed * 10 + number as u64);
            let (mut cluster, wire, mut expected) = sharded(key, 80);
            for fault in FAULTS {
                for at in 0.. {
                    let text = format!("{seed} {} {fault:?} at {at}", show(key));
                    let command = range(&mut random, key);
                    wire.arm(at, fault);
                    let reply = cluster.router.reply_on("admin", command);
                    let has_failed = wire.heal();
                    if has_failed && random.below(2) == 0
                        || matches!(fault, Fault::RouterEnds | Fault::RouterEndsBehind)
                    {
                        reopen(&mut cluster, &wire);
                    }
                    if random.below(2) == 0 {
                        // The first that asks is a write.
                        let id = random.below(expected.len() as u64) as usize;
                        let q = doc! {"_id": id as i32};
                        let u = doc! {"$inc": doc! {"n": 1}};
                        let update = array![doc! {"q": q, "u": u}];
                        let changed = cluster.router.run(doc! {"update": "c", "updates": update});
                        assert_eq!(changed.get("n").as_exact_i64(), Some(1), "{text}");
                        let found = doc! {"find": "c", "filter": doc! {"_id": id as i32}};
                        expected[id] = cluster.router.all(found).remove(0);
                        assert!(expected[id].get("n").is_number(), "{text}");
                    }
                    check(&mut cluster, &expected, &text);
                    if !has_failed {
                        // A move of nothing asks no partition.
                        let is_done = reply.get("ok").as_exact_i64() == Some(1);
                        assert!(is_done, "{text}: {}", show(&reply));
                        if at > 40 {
                            break;
                        }
                    }
                }
            }
            let found = cluster.counts("c");
            assert!(
                found.iter().filter(|count| **count > 0).count() > 1,
                "{found:?}"
            );
        }
    }
}

#[test]
fn a_large_range_moves_in_steps() {
    let (mut cluster, _, expected) = sharded(&doc! {"_id": 1}, 12_000);
    let of_source = cluster.counts("c").iter().position(|count| *count > 0);
    let to = format!("p000{}", (of_source.unwrap() + 1) % 3);
    let bounds = (doc! {"_id": 500}, doc! {"_id": Value::MaxKey});
    let first = cluster
        .router
        .run(doc! {"find": "c", "batchSize": 10, "sort": doc! {"_id": 1}});
    let unsorted = cluster.router.run(doc! {"find": "c", "batchSize": 10});
    cluster.admin(doc! {"moveRange": "test.c", "min": bounds.0, "max": bounds.1, "toShard": to});
    // An open cursor would miss what has left, or find it again.
    for reply in [first, unsorted] {
        let id = reply
            .get("cursor")
            .as_document()
            .unwrap()
            .get("id")
            .to_value();
        let more = doc! {"getMore": id, "collection": "c", "batchSize": 100_000};
        let reply = cluster.router.reply(more);
        let code = reply.get("code").as_exact_i64();
        assert_eq!(code, Some(175), "{}", show(&reply));
    }
    let mut counts = cluster.counts("c");
    counts.sort_unstable();
    assert_eq!(counts, [0, 500, 11_500]);
    check(&mut cluster, &expected, "moved");
    let chunks = cluster.router.reply_on("config", doc! {"find": "chunks"});
    assert_eq!(cluster.router.rest(chunks).len(), 2);
    let log = cluster
        .router
        .reply_on("config", doc! {"find": "changelog"});
    // It has the commit, and what clients count.
    assert_eq!(cluster.router.rest(log).len(), 2);
}

#[test]
fn a_write_that_is_repeated_after_a_move_is_not_done_again() {
    let (mut cluster, _, _) = sharded(&doc! {"k": 1}, 40);
    let move_to = |k: i32, shard: usize| {
        let shard = format!("p000{shard}");
        doc! {"moveRange": "test.c", "min": doc! {"k": k}, "max": doc! {"k": k + 1}, "toShard": shard}
    };
    let q = doc! {"_id": 3, "k": 3};
    let update = doc! {"update": "c", "updates": array![doc! {"q": q.clone(), "u": doc! {"$inc": doc! {"n": 1}}}]};
    let modify = doc! {"findAndModify": "c", "query": q.clone(), "update": doc! {"$inc": doc! {"m": 1}}, "new": true};
    let insert = doc! {"insert": "c", "documents": array![doc! {"_id": 103, "k": 3}]};
    let delete =
        doc! {"delete": "c", "deletes": array![doc! {"q": doc! {"k": 3, "_id": 23}, "limit": 1}]};
    for (number, command) in (1..).zip([update, modify, insert, delete]) {
        let command = numbered(command, number);
        for shard in [0, 1, 2, 0, 1] {
            let reply = cluster.router.run(command.clone());
            let n = reply.get("n").as_exact_i64();
            assert!(n.is_none_or(|n| n == 1), "{}", show(&reply));
            cluster.admin(move_to(3, shard));
        }
    }
    let found = cluster
        .router
        .all(doc! {"find": "c", "filter": doc! {"k": 3}, "sort": doc! {"_id": 1}});
    let text: Vec<String> = found.iter().map(show).collect();
    assert_eq!(found.len(), 2, "{text:?}");
    assert_eq!(found[0].get("n").as_exact_i64(), Some(1), "{text:?}");
    assert_eq!(found[0].get("m").as_exact_i64(), Some(1), "{text:?}");
}

#[test]
fn documents_with_one_id_do_not_come_together() {
    let (mut cluster, _, _) = sharded(&doc! {"k": 1}, 0);
    for (k, shard) in [(1, "p0000"), (2, "p0001")] {
        let (min, max) = (doc! {"k": k}, doc! {"k": k + 1});
        cluster.admin(doc! {"moveRange": "test.c", "min": min, "max": max, "toShard": shard});
        // Unique are ids in each partition, as in MongoDB.
        let list = array![doc! {"_id": 5, "k": k}, doc! {"_id": 10 + k, "k": k}];
        cluster.router.run(doc! {"insert": "c", "documents": list});
    }
    let (min, max) = (doc! {"k": 2}, doc! {"k": 3});
    let together = doc! {"moveRange": "test.c", "min": min, "max": max, "toShard": "p0000"};
    assert_eq!(cluster.admin_code(together), 11_000);
    assert_eq!(cluster.counts("c")[..2], [2, 2]);
    for k in [1, 2] {
        let found = cluster
            .router
            .all(doc! {"find": "c", "filter": doc! {"k": k}});
        assert_eq!(found.len(), 2, "{k}");
    }
}

/// A partition has answered, and another one has not been asked yet, when documents move between them.
#[test]
fn a_statement_for_many_changes_each_document_once_while_ranges_move() {
    for key in [doc! {"k": 1}, doc! {"k": "hashed"}] {
        let is_hashed = key.get("k").as_str().is_some();
        let bound = |at: i64| match is_hashed {
            true => (at - 10) << 59,
            false => at,
        };
        let range = |low: i64, high: i64, to: usize| {
            doc! {
                "moveRange": "test.c", "min": doc! {"k": bound(low)}, "max": doc! {"k": bound(high)},
                "toShard": format!("p000{to}"),
            }
        };
        let kinds = [
            doc! {"update": "c", "updates": array![
                doc! {"q": doc! {"x": doc! {"$gte": 0}}, "u": doc! {"$inc": doc! {"n": 1}}, "multi": true},
            ]},
            doc! {"delete": "c", "deletes": array![doc! {"q": doc! {"x": doc! {"$gte": 0}}, "limit": 0}]},
        ];
        for (kind, command) in kinds.into_iter().enumerate() {
            for at in 0..2 {
                // To a partition that has answered, from one, and beside it.
                for (low, high, to) in [
                    (7, 9, 0),
                    (2, 4, 1),
                    (2, 4, 2),
                    (8, 13, 0),
                    (14, 18, 1),
                    (1, 18, 2),
                ] {
                    let (mut cluster, wire, list) = sharded(&key, 60);
                    for (low, high, to) in [(5, 10, 1), (10, 20, 2)] {
                        cluster.admin(range(low, high, to));
                    }
                    let moved = with(range(low, high, to), "$db", "admin");
                    let reply = run_with(&mut cluster, &wire, &command, (at, moved));
                    let text =
                        format!("{kind} {low} {high} to {to} behind {at}, hashed: {is_hashed}");
                    assert_eq!(
                        reply.get("n").as_exact_i64(),
                        Some(60),
                        "{text}: {}",
                        show(&reply)
                    );
                    let found = all(&mut cluster.router);
                    let expected: Vec<String> = match kind {
                        0 => list
                            .iter()
                            .map(|one| show(&with(one.clone(), "n", 1)))
                            .collect(),
                        _ => Vec::new(),
                    };
                    assert_eq!(found, expected, "{text}");
                }
            }
        }
    }
}
