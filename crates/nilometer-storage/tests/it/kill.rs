//! A process with concurrent writers is killed repeatedly on one directory.
//!
//! The child is this test binary. It prints a line for each acknowledged batch; after the kill the parent reads the
//! lines, opens the directory and compares. In one of the two tests every key is a long one.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nilometer_storage::testing::contract::{APART, SHORT_LIVED, TOGETHER};
use nilometer_storage::testing::random::Random;
use nilometer_storage::{
    Direction, Durability, Engine, KeyspaceId, LongKeyEngine, LsmEngine, LsmOptions, WriteBatch,
};

use crate::support::{Scratch, effort};

const DIRECTORY: &str = "NILOMETER_KILL_DIRECTORY";
const LONG_KEYS: &str = "NILOMETER_KILL_LONG_KEYS";
const WRITERS: u64 = 3;

/// Where keys are cut when they are long ones: before the last byte of the writer's number.
const LENGTHS: (usize, usize) = (8, 7);

/// Entries that each writer keeps. The batch that writes a new one deletes the oldest.
const WINDOW: u64 = 150;

fn options() -> LsmOptions {
    LsmOptions {
        memory_bytes_max: 512 * 1024,
        memtable_bytes: 48 * 1024,
        ..LsmOptions::tiny()
    }
}

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

/// Returns the engine with or without long keys.
fn over(engine: LsmEngine, long_keys: bool) -> Arc<dyn Engine> {
    let engine = Arc::new(engine);
    match long_keys {
        true => {
            let (plain_max, piece) = LENGTHS;
            let engine = LongKeyEngine::with_lengths(engine, plain_max, piece);
            Arc::new(engine.expect("the companions are known"))
        }
        false => engine,
    }
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

/// The child: writes until it is killed.
#[test]
#[ignore = "only as the child of the test below"]
fn child() {
    let Some(path) = std::env::var_os(DIRECTORY) else {
        return;
    };
    let engine = LsmEngine::open(Path::new(&path), options()).expect("the child opens");
    let engine = over(engine, std::env::var_os(LONG_KEYS).is_some());
    let engine = &*engine;
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

#[test]
fn killing_the_process_takes_nothing_acknowledged() {
    kill_repeatedly(false, effort(5, 60, 3000));
}

#[test]
fn killing_the_process_takes_no_part_of_a_long_key() {
    kill_repeatedly(true, effort(3, 60, 3000));
}

fn kill_repeatedly(long_keys: bool, rounds: u64) {
    let directory = Scratch::new("kill");
    let mut random = Random::new(7);
    let (mut acknowledged, mut cuts) = (0u64, 0u64);
    for round in 0..rounds {
        let acks = run_and_kill(
            directory.path(),
            long_keys,
            Duration::from_millis(20 + random.below(150)),
        );
        let engine = LsmEngine::open(directory.path(), options());
        let engine = engine.unwrap_or_else(|error| panic!("round {round}: {error}"));
        let cut = &engine.recovery().cut;
        cuts += u64::from(cut.is_some());
        let interrupted = cut.as_ref().is_none_or(|cut| !cut.write_is_complete);
        assert!(interrupted, "a kill is taken for damage: {cut:?}");
        let engine = over(engine, long_keys);
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
    eprintln!("{rounds} kills, {acknowledged} batches acknowledged, {cuts} torn ends");
}

/// Runs the child for `time` and returns what it acknowledged.
fn run_and_kill(directory: &Path, long_keys: bool, time: Duration) -> Vec<(u64, u64)> {
    let binary = std::env::current_exe().expect("this binary");
    let mut command = Command::new(binary);
    if long_keys {
        command.env(LONG_KEYS, "1");
    }
    let mut child = command
        .args(["kill::child", "--exact", "--ignored", "--nocapture"])
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the child starts");
    let output = child.stdout.take().expect("its output");
    let reader = std::thread::spawn(move || {
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        let acks = lines.filter_map(|line| {
            let mut words = line.strip_prefix("ack ")?.split(' ');
            let writer = words.next()?.parse().ok()?;
            Some((writer, words.next()?.parse().ok()?))
        });
        acks.collect::<Vec<(u64, u64)>>()
    });
    std::thread::sleep(time);
    let ended = child.try_wait().expect("the child's state");
    assert!(ended.is_none(), "the child ended by itself: {ended:?}");
    child.kill().expect("kill");
    child.wait().expect("wait");
    reader.join().expect("its lines")
}
