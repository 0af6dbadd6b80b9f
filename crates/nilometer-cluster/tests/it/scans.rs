//! Scans that change to reading ahead have the same entries.

use std::collections::BTreeMap;
use std::sync::Arc;

use nilometer_cluster::{SlateEngine, SlateOptions};
use nilometer_storage::testing::contract::{TOGETHER, entries, put};
use nilometer_storage::testing::random::Random;
use nilometer_storage::{Direction, Durability, Engine, KeyspaceId, WriteBatch, seek};
use object_store::memory::InMemory;

fn filled() -> (SlateEngine, KeyspaceId, BTreeMap<Vec<u8>, Vec<u8>>) {
    let options = SlateOptions {
        memtable_bytes: 1024 * 1024,
        memory_bytes_max: 4 * 1024 * 1024,
        ..SlateOptions::tiny()
    };
    let engine = SlateEngine::open(Arc::new(InMemory::new()), "db", &options).expect("open");
    let id = engine.create_keyspace("k", TOGETHER).expect("create");
    let beside = engine.create_keyspace("beside", TOGETHER).expect("create");
    let (mut model, mut random) = (BTreeMap::new(), Random::new(1));
    for part in 0..20u32 {
        let mut batch = WriteBatch::new();
        for _ in 0..100 {
            let key = random.bytes(5);
            let length = random.index(4000);
            let value = random.bytes(length);
            batch.put(id, key.clone(), value.clone());
            model.insert(key, value);
        }
        batch.put(beside, part.to_be_bytes().to_vec(), vec![0; 3000]);
        engine.commit(batch, Durability::Buffered).expect("commit");
    }
    (engine, id, model)
}

#[test]
fn long_scans_have_every_entry_once() {
    let (engine, id, model) = filled();
    for settled in [false, true] {
        if settled {
            engine.settle().expect("settle");
        }
        let view = engine.snapshot().expect("snapshot");
        let (start, end) = ([20u8], [230u8]);
        let all = (&[][..], None);
        for (start, end) in [all, (&start[..], Some(&end[..]))] {
            let inside = |key: &[u8]| key >= start && end.is_none_or(|end| key < end);
            let inside = model.iter().filter(|(key, _)| inside(key));
            let mut expected: Vec<_> = inside.map(|(k, v)| (k.clone(), v.clone())).collect();
            let forward = entries(&*view, id, start, end, Direction::Forward);
            assert!(forward == expected, "{settled}, {} entries", forward.len());
            expected.reverse();
            let backward = entries(&*view, id, start, end, Direction::Backward);
            assert!(
                backward == expected,
                "{settled}, {} entries",
                backward.len()
            );
        }
    }
}

fn byte(random: &mut Random) -> u8 {
    random.bytes(1)[0]
}

/// Steps and seeks of a forward scan, near and far, behind its end and after it has read ahead.
#[test]
fn a_scan_continues_where_it_is_moved_to() {
    let (engine, id, model) = filled();
    let mut random = Random::new(3);
    for round in 0..60 {
        if round == 30 {
            engine.settle().expect("settle");
        }
        let view = engine.snapshot().expect("snapshot");
        let end = [byte(&mut random), 7];
        let mut from = vec![byte(&mut random) / 4];
        let scan = view.scan(id, &from, Some(&end), Direction::Forward);
        let mut scan = scan.expect("scan");
        for _ in 0..20 {
            let mut expected = model
                .range(from.clone()..)
                .take_while(|(key, _)| key[..] < end[..]);
            for _ in 0..[0, 1, 3, 300][random.index(4)] {
                let found = scan.next().transpose().expect("readable");
                let found = found.map(|(key, value)| (key.to_vec(), value.to_vec()));
                let wanted = expected
                    .next()
                    .map(|(key, value)| (key.clone(), value.clone()));
                assert!(
                    found == wanted,
                    "round {round}: {:?}",
                    wanted.map(|(key, _)| key)
                );
                if let Some((key, _)) = found {
                    from = [&key[..], &[0]].concat();
                }
            }
            let step = [0, 0, 1, 40][random.index(4)];
            let Some(first) = from[0].checked_add(step) else {
                break;
            };
            let target = vec![first, byte(&mut random)];
            if target < from {
                continue;
            }
            seek(&mut scan, &*view, id, &target, Some(&end)).expect("a seek succeeds");
            from = target;
        }
    }
}

#[test]
fn a_scan_that_is_dropped_early_or_outlives_its_engine_is_harmless() {
    let (engine, id, model) = filled();
    let view = engine.snapshot().expect("snapshot");
    for count in [0, 1, 100, 500] {
        let scan = view.scan(id, &[], None, Direction::Forward).expect("scan");
        assert_eq!(scan.take(count).filter(Result::is_ok).count(), count);
    }
    let scan = view.scan(id, &[], None, Direction::Backward).expect("scan");
    drop(view);
    engine.close().expect("close");
    drop(engine);
    assert_eq!(scan.filter(Result::is_ok).count(), model.len());
}

/// The longest keys survive the memtable, a merge and an opening.
#[test]
fn the_longest_keys_are_stored() {
    let store = Arc::new(InMemory::new());
    let open = || SlateEngine::open(store.clone(), "db", &SlateOptions::tiny()).expect("open");
    let engine = open();
    let id = engine.create_keyspace("k", TOGETHER).expect("create");
    let keys: Vec<Vec<u8>> = (0..40u8)
        .map(|number| [vec![7; 65_534], vec![number]].concat())
        .collect();
    for key in &keys {
        put(&engine, id, key, &[key[65_534]; 3000]);
    }
    engine.settle().expect("settle");
    engine.close().expect("close");
    drop(engine);
    let engine = open();
    let view = engine.snapshot().expect("snapshot");
    for key in &keys {
        let value = view.get(id, key).expect("get").expect("an entry");
        assert_eq!(value[..], [key[65_534]; 3000]);
    }
    let found = entries(&*view, id, &keys[3], Some(&keys[30]), Direction::Backward);
    let found: Vec<_> = found.into_iter().map(|(key, _)| key).collect();
    assert!(found.iter().rev().eq(keys[3..30].iter()));
}
