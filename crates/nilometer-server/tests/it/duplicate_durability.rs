//! The server is killed while clients insert measurements into collections that do not keep duplicates. Clients repeat
//! unanswered commands; afterwards each measurement is stored once.
//!
//! There is one collection for each rule. Two clients send every key at the same time, sometimes late and sometimes
//! twice in one command; the answers under `error` say which was first. With NILOMETER_SOAK=1 there are more kills;
//! NILOMETER_SEED repeats the choices of a run, but not its timing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nilometer_bson::Value;
use nilometer_bson::{Document, DocumentBuilder, ValueRef, doc};
use nilometer_storage::testing::Effort;

use crate::client::{Client, body, is_ok, op_msg, sequence};
use crate::random::Random;
use crate::server::Directory;

/// Kills of the server.
const KILLS: Effort = Effort {
    fast: 2,
    long: 10,
    soak: 200,
};

const RULES: [&str; 3] = ["ignore", "error", "replace"];

/// Clients of each collection, which send the same keys.
const CLIENTS: i64 = 2;

/// Maximum time before a kill, in ms.
const WRITING_MS_MAX: u64 = 250;

const START_MS: i64 = 1_700_000_000_000;

/// Series and number of a measurement.
type Key = (i64, i64);

/// A client of one collection and its expectations.
struct Writer {
    rule: &'static str,
    client: i64,
    random: Random,
    /// The next new key.
    next: i64,
    /// Counts documents, so that no two are the same.
    sent: i64,
    /// The unanswered batch.
    pending: Option<Vec<Document>>,
    /// The last answered document of each key.
    answered: BTreeMap<Key, i64>,
    /// Keys that were inserted according to the answer, under `error`.
    first: BTreeSet<Key>,
}

fn key(document: &Document) -> Key {
    let number = |name| document.get(name).as_exact_i64().expect("a number");
    (number("s"), number("k"))
}

fn sent(document: &Document) -> i64 {
    document.get("sent").as_exact_i64().expect("a number")
}

impl Writer {
    fn measurement(&mut self, k: i64) -> Document {
        self.sent += 1;
        let s = k % 5;
        let time = Value::DateTime(START_MS + k * 7_000);
        let sent = self.sent * CLIENTS + self.client;
        let mut out = DocumentBuilder::new();
        out.append("t", time).append("m", doc! {"s": s});
        out.append("s", s).append("k", k).append("sent", sent);
        out.finish()
    }

    /// Returns new keys, mostly in order, and some that were sent before.
    fn batch(&mut self) -> Vec<Document> {
        let count = 1 + self.random.below(20) as i64;
        let mut keys: Vec<i64> = (self.next..self.next + count).collect();
        self.next += count;
        if self.random.below(3) == 0 {
            keys.reverse();
        }
        for _ in 0..self.random.below(4) {
            let back = 1 + self.random.below(400) as i64;
            keys.push((self.next - back).max(0));
        }
        keys.into_iter().map(|k| self.measurement(k)).collect()
    }

    /// Sends a batch. False if the connection is lost.
    fn send(&mut self, client: &mut Client, documents: Vec<Document>) -> bool {
        let command = doc! {"insert": self.rule, "ordered": false, "$db": "test"};
        let message = op_msg(0, &[body(&command), sequence("documents", &documents)]);
        let Some(reply) = client.ask_or_lose(&message) else {
            self.pending = Some(documents);
            return false;
        };
        assert!(is_ok(&reply), "{reply:?}");
        let mut refused = BTreeSet::new();
        if let Some(errors) = reply.get("writeErrors").as_array() {
            for error in errors.iter() {
                let error = error.as_document().expect("an error");
                assert_eq!(error.get("code").as_exact_i64(), Some(11000), "{reply:?}");
                assert_eq!(self.rule, "error");
                refused.insert(error.get("index").as_exact_i64().expect("an index"));
            }
        }
        for (index, document) in (0..).zip(&documents) {
            let key = key(document);
            if self.rule == "error" && !refused.contains(&index) {
                assert!(self.first.insert(key), "{key:?} was inserted twice");
            }
            self.answered.insert(key, sent(document));
        }
        true
    }

    /// Writes until the connection is lost.
    fn write(&mut self, port: u16) {
        let mut client = Client::connect(port);
        if let Some(again) = self.pending.take()
            && !self.send(&mut client, again)
        {
            return;
        }
        loop {
            let batch = self.batch();
            if !self.send(&mut client, batch) {
                return;
            }
        }
    }
}

/// Checks one collection.
fn check(client: &mut Client, rule: &str, writers: &[Writer]) {
    let mut found = BTreeMap::new();
    for document in client.find_all("test", &doc! {"find": rule}) {
        let key = key(&document);
        let twice = found.insert(key, sent(&document));
        assert!(twice.is_none(), "{rule}: {key:?} is there twice");
    }
    for writer in writers.iter().filter(|writer| writer.rule == rule) {
        let pending = writer.pending.iter().flatten();
        let pending: BTreeSet<Key> = pending.map(key).collect();
        for (key, last) in &writer.answered {
            let Some(stored) = found.get(key) else {
                panic!("{rule}: {key:?} was lost");
            };
            // One of the two clients was last; of a client its last document counts.
            if rule == "replace" && stored % CLIENTS == writer.client && !pending.contains(key) {
                assert_eq!(stored, last, "{rule}: {key:?} was not replaced");
            }
        }
        for key in &writer.first {
            let stored = found.get(key).expect("looked for above");
            assert_eq!(
                stored % CLIENTS,
                writer.client,
                "{key:?}: another was first"
            );
        }
    }
    let valid = client.run_on("test", &doc! {"validate": rule, "full": true});
    let is_valid = matches!(valid.get("valid"), ValueRef::Bool(true));
    assert!(is_valid, "{valid:?}");
}

#[test]
#[expect(clippy::print_stdout, reason = "what a run did")]
fn what_is_sent_again_after_a_kill_is_there_once() {
    let kills = KILLS.requested();
    let mut random = Random::of_run(5);
    let directory = Directory::new();
    let mut server = directory.serve();
    let mut writers = Vec::new();
    for rule in RULES {
        let options = doc! {
            "timeField": "t", "metaField": "m", "nilometer": doc! {"duplicates": rule},
        };
        let create = doc! {"create": rule, "timeseries": options};
        let reply = server.connect().run_on("test", &create);
        assert!(is_ok(&reply), "{reply:?}");
        writers.extend((0..CLIENTS).map(|client| Writer {
            rule,
            client,
            random: Random(random.below(u64::MAX)),
            next: 0,
            sent: 0,
            pending: None,
            answered: BTreeMap::new(),
            first: BTreeSet::new(),
        }));
    }
    for _ in 0..kills {
        let port = server.port;
        std::thread::scope(|scope| {
            for writer in &mut writers {
                scope.spawn(move || writer.write(port));
            }
            std::thread::sleep(Duration::from_millis(20 + random.below(WRITING_MS_MAX)));
            server.signal("KILL");
            server.wait();
        });
        server = directory.serve();
        let mut client = server.connect();
        for rule in RULES {
            check(&mut client, rule, &writers);
        }
    }
    let answered: usize = writers.iter().map(|writer| writer.answered.len()).sum();
    println!("{kills} kills, {answered} measurements answered");
    assert!(answered as u64 > kills);
}
