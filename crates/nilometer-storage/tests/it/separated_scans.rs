//! Scans of separated values: the entries that lookups return, in both directions, whatever lies between them in the files.

use std::collections::BTreeMap;
use std::fs;

use nilometer_storage::testing::contract::APART;
use nilometer_storage::testing::random::Random;
use nilometer_storage::{Direction, Durability, Engine, KeyspaceId, LsmEngine, WriteBatch};

use crate::damage::{files, options};
use crate::support::Scratch;

const KEYS: u64 = 400;

/// Writes values of all lengths, most of them several times, into several files.
fn written(engine: &LsmEngine, id: KeyspaceId) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut random = Random::new(7);
    let mut expected = BTreeMap::new();
    for round in 0..4 {
        for _ in 0..KEYS / 2 {
            let key = random.below(KEYS).to_be_bytes().to_vec();
            let length = match random.below(8) {
                0 => random.index(100),
                1 => 20_000 + random.index(9000),
                _ => 200 + random.index(1500),
            };
            let value = random.bytes(length);
            let mut batch = WriteBatch::new();
            if random.below(10) == 0 {
                batch.delete(id, key.clone());
                expected.remove(&key);
            } else {
                batch.put(id, key.clone(), value.clone());
                expected.insert(key, value);
            }
            engine.commit(batch, Durability::Buffered).expect("commit");
        }
        // The last values stay in the memtable.
        if round < 3 {
            engine.settle().expect("settle");
        }
    }
    expected
}

#[test]
fn scans_return_what_lookups_return() {
    let directory = Scratch::new("separated-scans");
    let engine = LsmEngine::open(directory.path(), options()).expect("open");
    let id = engine.create_keyspace("a", APART).expect("create");
    let expected = written(&engine, id);
    let snapshot = engine.snapshot().expect("snapshot");
    // Later writes, and merges that remove files, are not seen.
    let mut batch = WriteBatch::new();
    for key in 0..KEYS {
        batch.put(id, key.to_be_bytes().to_vec(), vec![0; 300]);
    }
    engine.commit(batch, Durability::Buffered).expect("commit");
    let mut random = Random::new(11);
    for round in 0..40u64 {
        let mut bounds = [random.below(KEYS), random.below(KEYS + 1)];
        bounds.sort_unstable();
        let [start, end] = bounds.map(|bound| bound.to_be_bytes().to_vec());
        let within = expected.range(start.clone()..end.clone());
        let within = within.map(|(key, value)| (key.clone(), value.clone()));
        let mut within: Vec<_> = within.collect();
        let direction = match round % 2 {
            0 => Direction::Forward,
            _ => Direction::Backward,
        };
        if direction == Direction::Backward {
            within.reverse();
        }
        let scan = snapshot
            .scan(id, &start, Some(&end), direction)
            .expect("scan");
        if round == 20 {
            engine.settle().expect("settle");
        }
        let found = scan.map(|entry| entry.expect("an entry"));
        let found: Vec<_> = found.map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
        assert!(found == within, "{start:?} to {end:?}, {direction:?}");
    }
    for key in 0..KEYS {
        let key = key.to_be_bytes();
        let found = snapshot.get(id, &key).expect("get").map(|v| v.to_vec());
        assert_eq!(found.as_ref(), expected.get(&key[..]));
    }
}

#[test]
fn entries_before_a_damaged_value_are_returned() {
    let directory = Scratch::new("separated-scans-damage");
    let key = |number: u64| number.to_be_bytes().to_vec();
    {
        let engine = LsmEngine::open(directory.path(), options()).expect("open");
        let id = engine.create_keyspace("a", APART).expect("create");
        let mut batch = WriteBatch::new();
        for number in 0..100 {
            batch.put(
                id,
                key(number),
                format!("value {number:03} ").repeat(40).into(),
            );
        }
        engine.commit(batch, Durability::Sync).expect("commit");
        engine.settle().expect("settle");
        engine.close().expect("close");
    }
    let damaged = files(directory.path()).into_iter().any(|file| {
        let mut bytes = fs::read(&file).expect("read");
        let inside = file.to_string_lossy().contains("blobs");
        let found = bytes.windows(10).position(|text| text == b"value 070 ");
        let (true, Some(at)) = (inside, found) else {
            return false;
        };
        bytes[at + 15] ^= 1;
        fs::write(&file, bytes).expect("write");
        true
    });
    assert!(damaged);
    let engine = LsmEngine::open(directory.path(), options()).expect("open");
    let id = engine.keyspaces()[0].id;
    let snapshot = engine.snapshot().expect("snapshot");
    for (direction, whole) in [(Direction::Forward, 70), (Direction::Backward, 29)] {
        let mut scan = snapshot.scan(id, &[0], None, direction).expect("scan");
        for nth in 0..whole {
            let number = match direction {
                Direction::Forward => nth,
                Direction::Backward => 99 - nth,
            };
            let (found, value) = scan.next().expect("an entry").expect("whole");
            assert_eq!(found.to_vec(), key(number));
            assert!(value.starts_with(format!("value {number:03}").as_bytes()));
        }
        assert!(scan.next().expect("a report").is_err());
        assert!(scan.next().is_none());
    }
}
