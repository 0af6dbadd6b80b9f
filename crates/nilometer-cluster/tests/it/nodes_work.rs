//! What the campaign of the nodes does beside writing: documents and measurements that expire, `$out` and `$merge`, moves of ranges,
//! indexes that are built and dropped, and collections that come and go.
//!
//! What does not expire is there once at any time, and what has expired is gone at the end. The target of `$out` has the documents
//! of one run at any time. At the end indexes can be built everywhere, and `validate` finds nothing.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bson::{DateTime, Document, doc};
use nilometer_storage::testing::random::Random;

use crate::nodes::{admin, batch};
use crate::nodes_campaign::{KEYS, Load, Writer};
use crate::server::{Server, command};

/// Collections of which documents expire after a day: an ordinary one, by an index, and a time series.
pub(crate) const EXPIRING: [&str; 2] = ["fleeting", "brief"];

/// Documents that `$out` and `$merge` write.
const COPIED: i64 = 400;

/// Time for what has expired to be removed, on a slow machine.
const EXPIRY_MAX: Duration = Duration::from_secs(60);

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// Makes the collections.
pub(crate) fn prepare_work(first: &Server) {
    let timeseries = doc! { "timeField": "t", "metaField": "m" };
    command(
        first,
        doc! { "create": "brief", "timeseries": timeseries, "expireAfterSeconds": 86_400 },
    );
    let index = doc! { "key": { "at": 1 }, "name": "at_1", "expireAfterSeconds": 86_400 };
    command(
        first,
        doc! { "createIndexes": "fleeting", "indexes": [index] },
    );
    let documents: Vec<Document> = (0..COPIED).map(|n| doc! { "_id": n, "v": n }).collect();
    command(first, doc! { "create": "frozen" });
    for (name, key) in [
        ("garden.brief", doc! { "m.host": 1 }),
        ("garden.fleeting", doc! { "k": 1 }),
        ("garden.frozen", doc! { "_id": "hashed" }),
        ("garden.merged", doc! { "_id": "hashed" }),
    ] {
        admin(first, doc! { "shardCollection": name, "key": key });
    }
    command(first, doc! { "insert": "frozen", "documents": documents });
}

/// Returns documents and measurements from a number on, each beside one that has expired.
fn expiring(from: i64, count: i64) -> Vec<Document> {
    let now = DateTime::now().timestamp_millis();
    let one = |n: i64, lasts: bool| {
        let at = DateTime::from_millis(if lasts { now } else { now - 2 * DAY_MS });
        let id = if lasts { n } else { -1 - n };
        doc! {
            "_id": id, "k": n % KEYS, "m": { "host": n % 16 }, "at": at, "t": at, "x": n, "lasts": lasts,
        }
    };
    let numbers = from..from + count;
    numbers
        .flat_map(|n| [one(n, true), one(n, false)])
        .collect()
}

impl Load {
    /// Inserts documents and measurements of which each second has expired, until the end.
    pub(crate) fn write_expiring(&self, seed: u64, name: u8) {
        let mut writer = Writer::new(self, seed, name);
        while !self.is_ended() {
            let at = usize::try_from(writer.random.below(2)).expect("a number");
            let count = 1 + i64::try_from(writer.random.below(10)).expect("a number");
            let written = &self.lasting[at];
            let from = written.next.fetch_add(count, Ordering::SeqCst);
            let insert = doc! {
                "insert": EXPIRING[at], "documents": expiring(from, count),
                "ordered": writer.random.below(2) == 0,
            };
            writer.write(insert, 2 * count);
            written.acknowledged.fetch_add(count, Ordering::SeqCst);
        }
    }

    /// Runs `$out` and `$merge`, and looks at the target of `$out`, until the end.
    pub(crate) fn output(&self, seed: u64) {
        let mut random = Random::new(seed);
        let mut round = 0_i64;
        while !self.is_ended() {
            round += 1;
            let last = match random.below(3) {
                0 => doc! { "$merge": { "into": "merged", "whenMatched": "replace" } },
                _ => doc! { "$out": "copy" },
            };
            let is_out = last.contains_key("$out");
            let pipeline = vec![doc! { "$set": { "round": round } }, last];
            let output = doc! { "aggregate": "frozen", "pipeline": pipeline, "cursor": {} };
            let reply = self.ask(&mut random, &output);
            let is_done = reply.is_some_and(|reply| reply.get_f64("ok").ok() == Some(1.0));
            if is_done && is_out {
                self.outputs.fetch_add(1, Ordering::SeqCst);
            }
            let Some(reply) = self.ask(&mut random, &rounds_of("copy")) else {
                continue;
            };
            if reply.get_f64("ok").ok() == Some(1.0) {
                check_rounds(&reply, self.outputs.load(Ordering::SeqCst) > 0);
            }
            std::thread::sleep(Duration::from_millis(random.below(300)));
        }
    }

    /// Moves ranges, builds and drops indexes, and creates, shards, renames and drops collections.
    pub(crate) fn change(&self, seed: u64) {
        let mut random = Random::new(seed);
        while !self.is_ended() {
            let command = change(&mut random);
            // It may fail while its partition, or the catalog, has no process.
            self.ask(&mut random, &command);
            std::thread::sleep(Duration::from_millis(50 + random.below(200)));
        }
    }
}

/// Returns a change of a placement or a definition.
fn change(random: &mut Random) -> Document {
    let host = i64::try_from(random.below(16)).expect("a number");
    let key = i64::try_from(random.below(KEYS as u64)).expect("a number");
    let shard = format!("p{:04}", 1 + random.below(4));
    let of_two = usize::try_from(random.below(2)).expect("a number");
    match random.below(16) {
        0 => doc! { "create": "now" },
        1 => doc! { "drop": "now" },
        2 => doc! { "shardCollection": "garden.now", "key": { "k": "hashed" }, "$db": "admin" },
        3 => doc! { "renameCollection": "garden.now", "to": "garden.then", "$db": "admin" },
        4 => doc! { "drop": "then" },
        5 => doc! { "createIndexes": "docs", "indexes": [by_count()] },
        6 => doc! { "dropIndexes": "docs", "index": "c_1" },
        7 => doc! { "createIndexes": "ts", "indexes": [{ "key": { "x": 1 }, "name": "x_1" }] },
        8 => doc! { "dropIndexes": "ts", "index": "x_1" },
        9 => {
            let after = 86_400 + i32::from(random.below(2) == 0);
            let index = doc! { "name": "at_1", "expireAfterSeconds": after };
            doc! { "collMod": "fleeting", "index": index }
        }
        10 | 11 => {
            let name = ["garden.docs", "garden.fleeting"][of_two];
            doc! {
                "moveRange": name, "min": { "k": key }, "max": { "k": key + 4 },
                "toShard": shard, "$db": "admin",
            }
        }
        _ => {
            let name = ["garden.ts", "garden.brief"][of_two];
            doc! {
                "moveRange": name, "min": { "meta.host": host }, "max": { "meta.host": host + 1 },
                "toShard": shard, "$db": "admin",
            }
        }
    }
}

fn by_count() -> Document {
    doc! { "key": { "c": 1 }, "name": "c_1" }
}

/// Returns a query for the runs whose documents a collection has.
fn rounds_of(name: &str) -> Document {
    let group = doc! { "_id": "$round", "n": { "$sum": 1_i64 } };
    doc! { "aggregate": name, "pipeline": [{ "$group": group }], "cursor": {} }
}

/// Checks that a reply has the documents of one run of `$out`, or of none if there was none.
fn check_rounds(reply: &Document, was_written: bool) {
    let rounds = batch(reply);
    let is_whole = |round: &Document| round.get_i64("n").ok() == Some(COPIED);
    let is_right = match rounds.as_slice() {
        [] => !was_written,
        [one] => is_whole(one),
        _ => false,
    };
    assert!(is_right, "{reply}");
}

/// Checks what a node answers at the end.
pub(crate) fn check_work(server: &Server, load: &Load, documents: i64) {
    for (name, written) in EXPIRING.iter().zip(&load.lasting) {
        let expired = doc! { "count": *name, "query": { "lasts": false } };
        let began = Instant::now();
        while command(server, expired.clone()).get_i32("n").ok() != Some(0) {
            assert!(
                began.elapsed() < EXPIRY_MAX,
                "{name} keeps what has expired"
            );
            std::thread::sleep(Duration::from_millis(200));
        }
        let group = doc! { "_id": "$x", "n": { "$sum": 1_i64 } };
        let sums = doc! { "_id": null, "different": { "$sum": 1_i64 }, "all": { "$sum": "$n" } };
        let pipeline = vec![doc! { "$group": group }, doc! { "$group": sums }];
        let reply = command(
            server,
            doc! { "aggregate": *name, "pipeline": pipeline, "cursor": {} },
        );
        let count = written.next.load(Ordering::SeqCst);
        let sums = batch(&reply);
        let number = |field| {
            sums.first()
                .map_or(0, |sums| sums.get_i64(field).unwrap_or(-1))
        };
        assert_eq!([number("different"), number("all")], [count; 2], "{name}");
        assert_eq!(written.acknowledged.load(Ordering::SeqCst), count, "{name}");
    }
    let copy = command(server, rounds_of("copy"));
    check_rounds(&copy, load.outputs.load(Ordering::SeqCst) > 0);
    // An index that was built or dropped in some of the partitions is built in all.
    command(
        server,
        doc! { "createIndexes": "docs", "indexes": [by_count()] },
    );
    let by_index = doc! { "count": "docs", "query": { "c": { "$gte": 0 } }, "hint": "c_1" };
    let found = command(server, by_index);
    assert_eq!(
        found.get_i32("n").map(i64::from).ok(),
        Some(documents),
        "{found}"
    );
    for name in ["ts", "docs", "brief", "fleeting", "frozen", "merged"] {
        let checked = command(server, doc! { "validate": name });
        assert_eq!(checked.get_bool("valid").ok(), Some(true), "{checked}");
    }
}
