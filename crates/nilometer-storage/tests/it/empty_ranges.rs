//! Scans that begin behind deleted entries find what scans of an ordered map find.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nilometer_storage::testing::contract::{APART, SHORT_LIVED, TOGETHER, entries};
use nilometer_storage::testing::random::Random;
use nilometer_storage::{
    Direction, Durability, Engine, KeyspaceId, KeyspaceOptions, LsmEngine, LsmOptions, Snapshot,
    WriteBatch,
};

use crate::support::{Scratch, SetAtDrop, effort};

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

/// Largest number of a key, and of a bound.
const KEYS: u64 = 3000;

fn key(number: u64) -> Vec<u8> {
    let mut key = format!("key{number:05}").into_bytes();
    if number.is_multiple_of(5) {
        // Longer than what is remembered of a batch.
        key.extend([7; 30]);
    }
    key
}

fn compare(view: &dyn Snapshot, id: KeyspaceId, model: &Entries, random: &mut Random) {
    let bound = |random: &mut Random| match random.below(4) {
        0 => None,
        _ => Some(key(random.below(KEYS))),
    };
    let (start, end) = (bound(random).unwrap_or_default(), bound(random));
    let direction = match random.one_in(2) {
        true => Direction::Forward,
        false => Direction::Backward,
    };
    let is_within = |key: &&Vec<u8>| **key >= start && end.as_ref().is_none_or(|end| *key < end);
    let mut expected: Vec<_> = model.iter().filter(|(key, _)| is_within(key)).collect();
    if direction == Direction::Backward {
        expected.reverse();
    }
    let found = entries(view, id, &start, end.as_deref(), direction);
    assert!(
        found.iter().map(|(key, value)| (key, value)).eq(expected),
        "{start:?} to {end:?}, {direction:?}"
    );
}

/// Runs a history in which entries are removed at both ends, and put there, at other places, and where others were.
fn history(seed: u64, options: KeyspaceOptions) {
    let directory = Scratch::new("empty-ranges");
    let engine = LsmEngine::open(directory.path(), LsmOptions::tiny()).expect("open");
    let id = engine.create_keyspace("k", options).expect("create");
    let mut random = Random::new(seed);
    let mut model = Entries::new();
    let mut snapshots: Vec<(Box<dyn Snapshot>, Entries)> = Vec::new();
    let mut end = KEYS / 2;
    for _ in 0..effort(400, 1500, 10_000) {
        let mut batch = WriteBatch::new();
        let put = |batch: &mut WriteBatch, model: &mut Entries, number: u64| {
            let key = key(number % KEYS);
            let value = random_value(number);
            if let Entry::Vacant(place) = model.entry(key.clone()) {
                batch.put(id, key, value.clone());
                place.insert(value);
            }
        };
        let action = random.below(10);
        for _ in 0..=random.below(20) {
            match action {
                0..=2 => {
                    end += 1;
                    put(&mut batch, &mut model, end);
                }
                3 => put(&mut batch, &mut model, random.below(KEYS)),
                _ => {}
            }
        }
        for _ in 0..=random.below(12) {
            let gone = match action {
                4..=7 => model.first_key_value(),
                8 => model.last_key_value(),
                9 => model.range(key(random.below(KEYS))..).next(),
                _ => None,
            };
            if let Some(gone) = gone.map(|(key, _)| key.clone()) {
                batch.delete(id, gone.clone());
                model.remove(&gone);
            }
        }
        engine.commit(batch, Durability::Buffered).expect("commit");
        let view = engine.snapshot().expect("snapshot");
        compare(&*view, id, &model, &mut random);
        match random.below(20) {
            0 => snapshots.push((view, model.clone())),
            1 if !snapshots.is_empty() => {
                let at = random.index(snapshots.len());
                let (view, model) = snapshots.swap_remove(at);
                compare(&*view, id, &model, &mut random);
            }
            2 => engine.settle().expect("settle"),
            _ => {}
        }
        if let Some((view, model)) = snapshots.last() {
            compare(&**view, id, model, &mut random);
        }
    }
    engine.verify().expect("nothing is damaged");
}

fn random_value(number: u64) -> Vec<u8> {
    let length = usize::try_from(number % 300).expect("small");
    vec![1; length]
}

#[test]
fn histories_of_queues_are_those_of_an_ordered_map() {
    for seed in 0..effort(2, 5, 100) {
        for options in [TOGETHER, APART, SHORT_LIVED] {
            history(seed, options);
        }
    }
}

/// Each batch removes an entry and puts another one, so that every reader must find the same number.
#[test]
fn readers_beside_a_writer_lose_no_entry() {
    const COUNT: u64 = 50;
    let directory = Scratch::new("empty-ranges-beside");
    let engine = LsmEngine::open(directory.path(), LsmOptions::tiny()).expect("open");
    let id = engine.create_keyspace("k", TOGETHER).expect("create");
    let mut batch = WriteBatch::new();
    let mut live: Entries = (0..COUNT).map(|at| (key(at), vec![1])).collect();
    for (key, value) in &live {
        batch.put(id, key.clone(), value.clone());
    }
    engine.commit(batch, Durability::Buffered).expect("commit");
    let ended = AtomicBool::new(false);
    let count = |view: &dyn Snapshot, start: &[u8], end: Option<&[u8]>, direction| {
        let found = view.scan(id, start, end, direction).expect("scan");
        found.filter(|entry| entry.is_ok()).count() as u64
    };
    std::thread::scope(|scope| {
        let is_over = SetAtDrop(&ended);
        for reader in 0..2 {
            let (engine, ended) = (&engine, &ended);
            scope.spawn(move || {
                let mut random = Random::new(reader);
                while !ended.load(Ordering::Relaxed) {
                    let view = engine.snapshot().expect("snapshot");
                    let middle = key(random.below(KEYS));
                    let (one, other) = (Direction::Forward, Direction::Backward);
                    assert_eq!(count(&*view, &[], None, one), COUNT);
                    assert_eq!(count(&*view, &[], None, other), COUNT);
                    for (first, second) in [(one, other), (other, one)] {
                        let below = count(&*view, &[], Some(&middle), first);
                        let above = count(&*view, &middle, None, second);
                        assert_eq!(below + above, COUNT);
                    }
                }
            });
        }
        let mut random = Random::new(9);
        let mut end = COUNT;
        for _ in 0..effort(20_000, 100_000, 1_000_000) {
            let mut batch = WriteBatch::new();
            end += 1;
            let number = match random.below(4) {
                0 => random.below(KEYS),
                _ => end % KEYS,
            };
            let gone = match random.below(3) {
                0 => live.last_key_value(),
                _ => live.first_key_value(),
            };
            let gone = gone.map(|(key, _)| key.clone()).expect("an entry");
            let new = key(number);
            if !live.contains_key(&new) {
                batch.delete(id, gone.clone());
                batch.put(id, new.clone(), vec![1]);
                live.remove(&gone);
                live.insert(new, vec![1]);
                engine.commit(batch, Durability::Buffered).expect("commit");
            }
        }
        drop(is_over);
    });
}

/// The time to find the first entry is that of a few, not that of all deleted ones before it.
#[test]
fn the_first_entry_behind_many_deleted_ones_is_found_at_once() {
    const DELETED: u64 = 100_000;
    let directory = Scratch::new("empty-ranges-queue");
    let engine = LsmEngine::open(directory.path(), LsmOptions::default()).expect("open");
    let id = engine.create_keyspace("k", TOGETHER).expect("create");
    let each = |change: &dyn Fn(&mut WriteBatch, Vec<u8>)| {
        let mut batch = WriteBatch::new();
        for number in 0..DELETED {
            change(&mut batch, number.to_be_bytes().to_vec());
        }
        engine.commit(batch, Durability::Buffered).expect("commit");
    };
    each(&|batch, key| batch.put(id, key, vec![1]));
    let last = DELETED.to_be_bytes();
    nilometer_storage::testing::contract::put(&engine, id, &last, b"live");
    engine.settle().expect("settle");
    each(&|batch, key| batch.delete(id, key));
    let search = || {
        let began = Instant::now();
        let view = engine.snapshot().expect("snapshot");
        let mut scan = view.scan(id, &[], None, Direction::Forward).expect("scan");
        let (key, _) = scan.next().expect("an entry").expect("undamaged");
        assert_eq!(key[..], last);
        began.elapsed()
    };
    // The first search passes all of them.
    let first = search();
    let later = (0..20).map(|_| search()).min().unwrap_or(Duration::MAX);
    assert!(later * 10 < first, "{later:?} after {first:?}");
}
