//! Salvage keeps the readable entries of a damaged directory, reports losses, and never returns wrong data.

use std::fs;
use std::path::Path;

use nilometer_storage::testing::random::Random;
use nilometer_storage::{
    Direction, Durability, Engine, Error, KeyspaceId, KeyspaceOptions, LsmEngine, LsmOptions,
    SalvageEngine, WriteBatch,
};

use crate::damage::{BATCHES, build, copy, damage, files, options, value};
use crate::support::{Scratch, effort};

/// Returns the number of batches in each keyspace. Each must have the right value.
fn kept(engine: &SalvageEngine, ids: [KeyspaceId; 2]) -> [u64; 2] {
    let view = engine.snapshot().expect("snapshot");
    ids.map(|id| {
        let scan = view.scan(id, &[], None, Direction::Forward).expect("scan");
        let (mut count, mut before) = (0, None);
        for entry in scan {
            let (key, found) = entry.expect("damage is passed over");
            assert!(before < Some(key.to_vec()), "keys ascend");
            before = Some(key.to_vec());
            let Ok(number) = key[..].try_into().map(u64::from_be_bytes) else {
                continue;
            };
            assert_eq!(found[..], value(number, id), "a wrong value");
            count += 1;
        }
        count
    })
}

#[test]
fn everything_readable_is_kept_and_losses_are_reported() {
    let directory = Scratch::new("salvage");
    let ids = build(directory.path());
    let image = directory.path().join("image");
    let names = files(&image);
    let mut random = Random::new(17);
    let (mut opened, mut lossy) = (0, 0);
    for round in 0..effort(2, 12, 60) {
        for name in &names {
            let target = directory.path().join("copy");
            let _ = fs::remove_dir_all(&target);
            copy(&image, &target);
            let name = name.strip_prefix(&image).expect("below");
            let what = damage(&target.join(name), &mut random);
            let what = format!("round {round}, {}: {what}", name.display());
            let engine = match SalvageEngine::open(&target, options()) {
                Ok(engine) => engine,
                // Without the list of keyspaces the content is unknown.
                Err(
                    Error::Corruption { .. }
                    | Error::ForeignDirectory { .. }
                    | Error::UnsupportedFormat { .. },
                ) => {
                    let essential = name.starts_with("TREES") || name.starts_with("FORMAT");
                    assert!(essential, "{what}");
                    continue;
                }
                Err(error) => panic!("{what}: {error}"),
            };
            opened += 1;
            let counts = kept(&engine, ids);
            if counts != [BATCHES; 2] {
                lossy += 1;
                assert!(!engine.losses().is_empty(), "lost in silence: {what}");
            }
        }
    }
    eprintln!("{opened} damaged copies opened, {lossy} with losses");
    assert!(lossy > 0);
}

/// Flips a byte in the middle of a file.
fn flip(path: &Path) {
    let mut bytes = fs::read(path).expect("read");
    let middle = bytes.len() / 3;
    bytes[middle] ^= 1;
    fs::write(path, bytes).expect("write");
}

/// Returns the offset of the record that follows the one at `offset`: after header and payload, aligned to 8.
pub(crate) fn next_record(bytes: &[u8], offset: usize) -> usize {
    let length = bytes[offset + 4..offset + 8].try_into().expect("4 bytes");
    (offset + 48 + u32::from_le_bytes(length) as usize).next_multiple_of(8)
}

#[test]
fn a_damaged_log_costs_the_batches_that_are_damaged() {
    const EACH: u64 = 400;
    let directory = Scratch::new("log");
    let data = directory.path().join("data");
    let options = LsmOptions {
        segment_bytes: 16 * 1024,
        ..LsmOptions::default()
    };
    let engine = LsmEngine::open(&data, options.clone()).expect("open");
    let id = engine
        .create_keyspace("k", KeyspaceOptions::default())
        .expect("create");
    for number in 0..EACH {
        let mut batch = WriteBatch::new();
        batch.put(id, number.to_be_bytes().to_vec(), value(number, id));
        engine.commit(batch, Durability::Sync).expect("commit");
    }
    engine.close().expect("close");
    drop(engine);
    let log = files(&data.join("wal"));
    assert!(log.len() > 4, "several segments");
    let second = |bytes: &[u8]| next_record(bytes, 64);
    type Place<'p> = &'p dyn Fn(&[u8]) -> usize;
    let places: [(&str, Place<'_>, u64); 4] = [
        ("a payload", &|bytes| second(bytes) + 60, 1),
        ("a header", &|bytes| second(bytes) + 10, 1),
        ("the first record", &|_| 64 + 10, 1),
        ("the head of a segment", &|_| 20, 0),
    ];
    for (what, place, lost) in places {
        for segments in [vec![1], vec![0, 2]] {
            let copied = directory.path().join("copy");
            let _ = fs::remove_dir_all(&copied);
            copy(&data, &copied);
            for at in &segments {
                let path = copied.join(log[*at].strip_prefix(&data).expect("below"));
                let mut bytes = fs::read(&path).expect("read");
                let place = place(&bytes);
                bytes[place] ^= 1;
                fs::write(&path, bytes).expect("write");
            }
            let engine = SalvageEngine::open(&copied, options.clone()).expect("open");
            let view = engine.snapshot().expect("snapshot");
            let found = view.scan(id, &[], None, Direction::Forward).expect("scan");
            let lost = lost * segments.len() as u64;
            assert_eq!(found.count() as u64, EACH - lost, "{what} of {segments:?}");
            let told = &engine.losses()[0].what;
            assert!(told.contains("damaged log"), "{told}");
            let counted = told.contains(&format!("at least {lost} batches are lost"));
            assert!(
                counted || lost == 0 || what == "the first record",
                "{what}: {told}"
            );
        }
    }
}

#[test]
fn one_bad_block_costs_one_block_and_one_lost_file_costs_one_file() {
    let directory = Scratch::new("blocks");
    let ids = build(directory.path());
    let image = directory.path().join("image");
    let tables = image
        .join("trees")
        .join(ids[0].0.to_string())
        .join("tables");
    let table = files(&tables).pop().expect("a table");
    flip(&table);
    let copied = directory.path().join("flipped");
    copy(&image, &copied);
    let engine = SalvageEngine::open(&copied, options()).expect("open");
    let [count, other] = kept(&engine, ids);
    assert_eq!(other, BATCHES);
    assert!((BATCHES * 4 / 5..BATCHES).contains(&count), "{count}");
    let losses = engine.losses();
    let gap = losses[0].gap.as_ref().expect("a gap in a scan");
    let number = |key: &Option<Vec<u8>>| {
        let key = key.as_ref().expect("both ends are there");
        u64::from_be_bytes(key[..].try_into().expect("eight bytes"))
    };
    let missing = number(&gap.behind) - number(&gap.before) - 1;
    assert_eq!(missing, BATCHES - count, "{losses:?}");
    drop(engine);
    // Without the table: the log still holds the batches behind it.
    fs::remove_file(&table).expect("remove");
    let copied = directory.path().join("removed");
    copy(&image, &copied);
    let engine = SalvageEngine::open(&copied, options()).expect("open");
    let [count, other] = kept(&engine, ids);
    assert_eq!(other, BATCHES);
    assert!(count > BATCHES / 3, "{count}");
    assert_eq!(engine.losses()[0].keyspace, Some(ids[0]));
}
