//! A process with concurrent writers is killed repeatedly on one database.
//!
//! The child is the test binary. It prints a line for each acknowledged batch; after the kill the parent reads the lines,
//! opens the database and compares.

use std::io::{BufRead, BufReader, Write};
use std::process::Child;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use super::contract::{APART, SHORT_LIVED, TOGETHER};
use super::random::Random;
use crate::engine::{Direction, Durability, Engine, KeyspaceId, WriteBatch};

const WRITERS: u64 = 3;

/// Longest time until a child acknowledges its first batch, on a machine with much other work.
const FIRST_ACKNOWLEDGEMENT_MAX: Duration = Duration::from_secs(120);

/// Entries that each writer keeps. The batch that writes a new one deletes the oldest.
const WINDOW: u64 = 150;

fn key(writer: u64, number: u64) -> Vec<u8> {
    let mut key = writer.to_be_bytes().to_vec();
    key.extend(number.to_be_bytes());
    key
}

fn value(writer: u64, number: u64, id: KeyspaceId) -> Vec<u8> {
    let mut random = Random::new(writer << 48 ^ number << 8 ^ id.0);
    let length = random.index(600);
    random.bytes(length)
}

/// The keyspaces of the test, created by the first child.
fn keyspaces(engine: &dyn Engine) -> [KeyspaceId; 3] {
    [("t", TOGETHER), ("a", APART), ("s", SHORT_LIVED)].map(|(name, options)| {
        let known = engine.keyspaces().into_iter().find(|k| k.name == name);
        match known {
            Some(keyspace) => keyspace.id,
            None => engine.create_keyspace(name, options).expect("create"),
        }
    })
}

/// Returns the number of batches of a writer. The window must be whole and the same in all keyspaces.
fn written(engine: &dyn Engine, ids: [KeyspaceId; 3], writer: u64) -> u64 {
    let view = engine.snapshot().expect("snapshot");
    let counts = ids.map(|id| {
        let (start, end) = (writer.to_be_bytes(), (writer + 1).to_be_bytes());
        let scan = view.scan(id, &start, Some(&end), Direction::Forward);
        let found = scan.expect("scan").map(|entry| entry.expect("readable"));
        let found = found.collect::<Vec<_>>();
        let number = |key: &[u8]| u64::from_be_bytes(key[8..].try_into().expect("a key"));
        let Some(last) = found.last().map(|(key, _)| number(key)) else {
            return 0;
        };
        let first = (last + 1).saturating_sub(WINDOW);
        let expected = (first..=last).map(|n| (key(writer, n), value(writer, n, id)));
        let found = found.into_iter().map(|(k, v)| (k.to_vec(), v.to_vec()));
        assert!(expected.eq(found), "writer {writer}, keyspace {id:?}");
        last + 1
    });
    assert_eq!([counts[0]; 3], counts, "half a batch");
    counts[0]
}

/// Writes to `engine` until this process is killed: what the child does.
pub fn write_until_killed(engine: &dyn Engine) {
    let ids = keyspaces(engine);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            scope.spawn(move || {
                for number in written(engine, ids, writer).. {
                    let mut batch = WriteBatch::new();
                    for id in ids {
                        batch.put(id, key(writer, number), value(writer, number, id));
                        if let Some(old) = number.checked_sub(WINDOW) {
                            batch.delete(id, key(writer, old));
                        }
                    }
                    engine.commit(batch, Durability::Sync).expect("commit");
                    let line = format!("ack {writer} {number}\n");
                    let mut output = std::io::stdout().lock();
                    let written = output.write_all(line.as_bytes());
                    if written.and_then(|()| output.flush()).is_err() {
                        // The parent is gone.
                        std::process::exit(1);
                    }
                }
            });
        }
        scope.spawn(move || {
            for round in 0u64.. {
                let name = format!("passing-{}-{round}", std::process::id());
                let id = engine.create_keyspace(&name, APART).expect("create");
                let mut batch = WriteBatch::new();
                batch.put(id, b"passing keys".to_vec(), vec![1; 2000]);
                engine.commit(batch, Durability::Buffered).expect("commit");
                if round % 4 == 3 {
                    engine.settle().expect("settle");
                }
                engine.drop_keyspace(id).expect("drop");
            }
        });
    });
}

/// A test of kills.
pub struct Kills<'t> {
    /// Starts the child: this binary, with an ignored test that writes until it is killed, and with its output piped.
    pub start: &'t dyn Fn() -> Child,
    /// Times between the start of a child and its kill, in milliseconds: the shortest, and how much longer. In every other
    /// round, the first included, they begin with the first acknowledged batch.
    pub times_ms: (u64, u64),
    /// Opens the database that the child had open.
    pub open: &'t dyn Fn(u64) -> Arc<dyn Engine>,
}

impl Kills<'_> {
    /// Kills a child `rounds` times. Returns the number of acknowledged batches.
    pub fn run(&self, rounds: u64) -> u64 {
        let mut random = Random::new(7);
        let mut acknowledged = 0u64;
        for round in 0..rounds {
            let (shortest, more) = self.times_ms;
            let time = Duration::from_millis(shortest + random.below(more));
            let acks = self.run_and_kill(time, round % 2 == 0);
            let engine = (self.open)(round);
            let engine = &*engine;
            let ids = keyspaces(engine);
            for writer in 0..WRITERS {
                let there = written(engine, ids, writer);
                let last = acks
                    .iter()
                    .filter(|(w, _)| *w == writer)
                    .map(|(_, n)| n + 1);
                let last = last.max().unwrap_or(0);
                assert!(there >= last, "writer {writer}: {there} of {last}");
            }
            acknowledged += acks.len() as u64;
            // The next child finds the state after a kill, or after settling.
            for keyspace in engine.keyspaces() {
                if keyspace.name.starts_with("passing") {
                    engine.drop_keyspace(keyspace.id).expect("drop");
                }
            }
            if random.one_in(2) {
                engine.settle().expect("settle");
            }
            engine.verify().expect("nothing is damaged");
        }
        acknowledged
    }

    /// Runs the child for `time`, or so long after its first acknowledgement. Returns what it acknowledged.
    fn run_and_kill(&self, time: Duration, from_first: bool) -> Vec<(u64, u64)> {
        let mut child = (self.start)();
        let output = child.stdout.take().expect("its output");
        let (first, waits_for_first) = channel();
        let reader = std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            let acks = lines.filter_map(|line| {
                let mut words = line.strip_prefix("ack ")?.split(' ');
                let writer = words.next()?.parse().ok()?;
                Some((writer, words.next()?.parse().ok()?))
            });
            // The parent waits for the first at most.
            let acks = acks.inspect(|_| {
                let _ = first.send(());
            });
            acks.collect::<Vec<(u64, u64)>>()
        });
        if from_first {
            let came = waits_for_first.recv_timeout(FIRST_ACKNOWLEDGEMENT_MAX);
            came.expect("the child acknowledges a batch");
        }
        std::thread::sleep(time);
        let ended = child.try_wait().expect("the child's state");
        assert!(ended.is_none(), "the child ended by itself: {ended:?}");
        child.kill().expect("kill");
        child.wait().expect("wait");
        reader.join().expect("its lines")
    }
}
