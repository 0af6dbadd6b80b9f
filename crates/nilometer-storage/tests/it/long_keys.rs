//! Keys of any length, over both engines.
//!
//! Contract and histories run with keys cut after a few bytes, so that nearly all keys are long ones, of many levels.

use std::collections::BTreeMap;
use std::sync::Arc;

use nilometer_storage::testing::contract::{
    self, APART, Factory, SHORT_LIVED, TOGETHER, commit, entries, put,
};
use nilometer_storage::testing::model::history;
use nilometer_storage::testing::random::Random;
use nilometer_storage::{
    Direction, Engine, KeyspaceId, LongKeyEngine, LsmEngine, LsmOptions, MemoryEngine, Snapshot,
    WriteBatch,
};

use crate::support::{LongKeys, Lsm, Memory, Scratch, effort};

/// Lengths at which tests cut keys.
const LENGTHS: [(usize, usize); 4] = [(1, 1), (4, 3), (8, 8), (6, 40)];

#[test]
fn the_contract_holds_for_long_keys() {
    contract::all(&LongKeys {
        below: Memory,
        lengths: (4, 3),
    });
    contract::all(&LongKeys {
        below: Lsm::new("eight", LsmOptions::tiny()),
        lengths: (8, 8),
    });
}

#[test]
fn histories_of_long_keys() {
    let count = effort(3, 40, 1000);
    for lengths in LENGTHS {
        for seed in 0..count {
            let below = Memory;
            history(&LongKeys { below, lengths }, seed, 300);
        }
    }
    let factory = LongKeys {
        below: Lsm::new("long", LsmOptions::tiny()),
        lengths: (4, 3),
    };
    for seed in 5000..5000 + count {
        history(&factory, seed, 200);
    }
}

fn over_memory(lengths: (usize, usize)) -> (Arc<MemoryEngine>, LongKeyEngine) {
    let below = Arc::new(MemoryEngine::new());
    let engine = LongKeyEngine::with_lengths(below.clone(), lengths.0, lengths.1);
    (below, engine.expect("an engine"))
}

/// Keys over two letters, so that many share their beginnings.
fn any_key(random: &mut Random) -> Vec<u8> {
    let length = 1 + random.index(14);
    (0..length)
        .map(|_| [0, b'a', 255][random.index(3)])
        .collect()
}

/// Every range in both directions, also between keys that share their pieces.
#[test]
fn ranges_of_long_keys_are_those_of_a_map() {
    for (seed, lengths) in (0..effort(20, 200, 2000)).zip(LENGTHS.iter().cycle()) {
        let (_, engine) = over_memory(*lengths);
        let id = engine.create_keyspace("k", TOGETHER).expect("create");
        let mut random = Random::new(seed);
        let mut model = BTreeMap::new();
        for _ in 0..300 {
            let key = any_key(&mut random);
            let mut batch = WriteBatch::new();
            if random.one_in(3) {
                batch.delete(id, key.clone());
                model.remove(&key);
            } else {
                let value = random.bytes(3);
                batch.put(id, key.clone(), value.clone());
                model.insert(key, value);
            }
            commit(&engine, batch);
        }
        let view = engine.snapshot().expect("snapshot");
        for _ in 0..200 {
            let (one, other) = (any_key(&mut random), any_key(&mut random));
            let (start, end) = (one.clone().min(other.clone()), one.max(other));
            let end = (!random.one_in(5)).then_some(end);
            compare_range(&*view, id, &model, &start, end.as_deref());
            let found = view.get(id, &start).expect("get");
            assert_eq!(found.as_deref(), model.get(&start).map(Vec::as_slice));
        }
        compare_range(&*view, id, &model, &[], None);
    }
}

fn compare_range(
    view: &dyn Snapshot,
    id: KeyspaceId,
    model: &BTreeMap<Vec<u8>, Vec<u8>>,
    start: &[u8],
    end: Option<&[u8]>,
) {
    let inside = |key: &[u8]| key >= start && end.is_none_or(|end| key < end);
    let inside = model.iter().filter(|(key, _)| inside(key));
    let mut expected: Vec<_> = inside.map(|(k, v)| (k.clone(), v.clone())).collect();
    let forward = entries(view, id, start, end, Direction::Forward);
    assert_eq!(forward, expected, "{start:?} {end:?}");
    expected.reverse();
    let backward = entries(view, id, start, end, Direction::Backward);
    assert_eq!(backward, expected, "{start:?} {end:?}");
}

/// Removing all keys leaves no entry in the companion.
#[test]
fn a_removed_long_key_leaves_nothing() {
    let (below, engine) = over_memory((4, 4));
    let id = engine.create_keyspace("k", APART).expect("create");
    let keys: Vec<Vec<u8>> = (5..40).map(|length| vec![b'x'; length]).collect();
    for key in &keys {
        put(&engine, id, key, b"v");
        put(&engine, id, key, b"w");
    }
    let companions: Vec<_> = below.keyspaces().into_iter().collect();
    let companion = companions
        .iter()
        .find(|keyspace| keyspace.options.long_keys_of == Some(id));
    let companion = companion.expect("a companion").id;
    let left = |engine: &dyn Engine, id| {
        let view = engine.snapshot().expect("snapshot");
        entries(&*view, id, &[], None, Direction::Forward).len()
    };
    assert!(left(&*below, companion) > keys.len());
    assert_eq!(left(&engine, id), keys.len());
    for key in &keys {
        let mut batch = WriteBatch::new();
        batch.delete(id, key.clone());
        commit(&engine, batch);
    }
    assert_eq!(left(&*below, companion), 0);
    assert_eq!(engine.keyspaces().len(), 1);
    engine.drop_keyspace(id).expect("drop");
    assert!(below.keyspaces().is_empty());
}

#[test]
fn a_companion_without_its_keyspace_is_dropped_when_the_engine_opens() {
    let (below, engine) = over_memory((4, 4));
    let id = engine.create_keyspace("k", SHORT_LIVED).expect("create");
    put(&engine, id, b"a long key", b"1");
    assert_eq!(below.keyspaces().len(), 2);
    below.drop_keyspace(id).expect("drop");
    LongKeyEngine::with_lengths(below.clone(), 4, 4).expect("an engine");
    assert!(below.keyspaces().is_empty());
}

#[test]
fn a_keyspace_without_long_keys_has_no_companion() {
    let (below, engine) = over_memory((4, 4));
    let id = engine.create_keyspace("k", TOGETHER).expect("create");
    put(&engine, id, b"abcd", b"1");
    let mut batch = WriteBatch::new();
    batch.delete(id, b"a long key that is not there".to_vec());
    commit(&engine, batch);
    assert_eq!(below.keyspaces().len(), 1);
    let view = engine.snapshot().expect("snapshot");
    assert_eq!(view.get(id, b"a long key").expect("get"), None);
    let all = entries(&*view, id, b"a", Some(b"b long end"), Direction::Backward);
    assert_eq!(all.len(), 1);
}

/// A key of eight megabytes, and others with the same beginning, through a flush and an opening. A directory with such keys
/// has another format, which its checkpoint has too.
#[test]
fn long_keys_survive_on_disk_and_change_the_format() {
    let directory = Scratch::new("long-keys");
    let (path, copy) = (directory.path().join("db"), directory.path().join("copy"));
    let format = |path: &std::path::Path| std::fs::read_to_string(path.join("FORMAT"));
    let open = |path: &std::path::Path| {
        let engine = LsmEngine::open(path, LsmOptions::default()).expect("open");
        LongKeyEngine::over(Arc::new(engine)).expect("an engine")
    };
    let long = |last: u8, length| [vec![7; length], vec![last]].concat();
    let keys = [
        long(0, 65_535),
        long(1, 65_535),
        long(1, 70_000),
        long(3, 8 << 20),
    ];
    let mut expected: BTreeMap<_, _> = keys.iter().map(|key| (key.clone(), vec![1; 100])).collect();
    expected.insert(vec![7; 65_535], vec![2]);
    expected.insert(vec![7; 20], vec![3]);
    {
        let engine = open(&path);
        let id = engine.create_keyspace("k", TOGETHER).expect("create");
        put(&*engine, id, &[7; 65_535], &[2]);
        for (key, value) in &expected {
            put(&*engine, id, key, value);
        }
        engine.settle().expect("settle");
        engine.checkpoint(&copy).expect("checkpoint");
        engine.close().expect("close");
    }
    // In the copy no keyspace is unflushed.
    for (path, version) in [(&path, 4), (&copy, 2)] {
        assert_eq!(
            format(path).expect("format"),
            format!("nilometer storage format {version}\n")
        );
        let engine = open(path);
        engine.verify().expect("nothing is damaged");
        let id = engine.keyspaces()[0].id;
        let view = engine.snapshot().expect("snapshot");
        for key in &keys {
            assert!(view.get(id, key).expect("get").is_some());
        }
        compare_range(&*view, id, &expected, &[], None);
        compare_range(&*view, id, &expected, &keys[1], Some(&keys[3]));
        compare_range(
            &*view,
            id,
            &expected,
            &long(0, 70_000),
            Some(&long(0, 8 << 20)),
        );
    }
}

/// Bounds longer than any key, on an engine without long keys.
#[test]
fn bounds_may_be_longer_than_keys() {
    for factory in [
        &Memory as &dyn Factory,
        &Lsm::new("bounds", LsmOptions::tiny()),
    ] {
        let engine = factory.create("bounds");
        let id = engine.create_keyspace("k", TOGETHER).expect("create");
        let longest = vec![255; 65_535];
        let keys = [vec![1], vec![7; 65_535], vec![8], longest.clone()];
        for key in &keys {
            put(&*engine, id, key, b"");
        }
        let view = engine.snapshot().expect("snapshot");
        let found = |start: &[u8], end: Option<&[u8]>| {
            let found = entries(&*view, id, start, end, Direction::Forward);
            found.into_iter().map(|(key, _)| key).collect::<Vec<_>>()
        };
        assert_eq!(found(&[7; 65_536], None), keys[2..]);
        assert_eq!(found(&[], Some(&[7; 65_536])), keys[..2]);
        assert_eq!(found(&[7; 65_535], Some(&[7; 65_536])), keys[1..2]);
        assert!(found(&[255; 65_536], None).is_empty());
        assert_eq!(found(&longest, Some(&[255; 65_536])), keys[3..]);
    }
}
