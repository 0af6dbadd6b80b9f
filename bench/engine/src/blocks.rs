//! Keyspaces with large blocks beside others: the same records, read in order and one by one.

use std::path::Path;
use std::time::{Duration, Instant};

use nilometer_storage::{
    Direction, Durability, Engine, KeyspaceId, KeyspaceOptions, LsmEngine, LsmOptions, WriteBatch,
};

use crate::workload::Random;

const RECORDS: u64 = 2_000_000;
const RECORDS_IN_A_BATCH: u64 = 5_000;

/// Prints one row for each size.
pub(crate) fn measure(directory: &Path, time: Duration) {
    println!(
        "| blocks | disk, bytes a record | scan, ns a record | any record, µs | one of 20,000, µs |"
    );
    println!("|---|---:|---:|---:|---:|");
    let engine = LsmEngine::open(directory, LsmOptions::default()).expect("open");
    let sizes = [("ordinary", false), ("large", true)];
    let keyspaces = sizes.map(|(name, large_blocks)| {
        let options = KeyspaceOptions {
            large_blocks,
            ..KeyspaceOptions::default()
        };
        engine.create_keyspace(name, options).expect("create")
    });
    for keyspace in keyspaces {
        fill(&engine, keyspace);
    }
    engine.settle().expect("settle");
    for ((name, _), keyspace) in sizes.into_iter().zip(keyspaces) {
        let statistics = engine.keyspace_statistics(keyspace).expect("statistics");
        let scan = (0..3).map(|_| scan(&engine, keyspace)).min();
        let scan = scan.unwrap_or_default().as_nanos() as f64 / RECORDS as f64;
        // The cache holds a quarter of the records.
        let any = gets(&engine, keyspace, RECORDS, time);
        let few = gets(&engine, keyspace, 20_000, time);
        println!(
            "| {name} | {:.0} | {scan:.0} | {any:.2} | {few:.2} |",
            statistics.disk_bytes as f64 / RECORDS as f64,
        );
    }
    println!();
}

fn fill(engine: &LsmEngine, keyspace: KeyspaceId) {
    let mut random = Random(7);
    for first in (0..RECORDS).step_by(RECORDS_IN_A_BATCH as usize) {
        let mut batch = WriteBatch::new();
        for id in first..first + RECORDS_IN_A_BATCH {
            let record = record(&mut random, id).into_bytes();
            batch.put(keyspace, id.to_be_bytes().to_vec(), record);
        }
        engine.commit(batch, Durability::Buffered).expect("commit");
    }
}

/// Returns an event of about 400 bytes: names and texts that recur, and identifiers that do not.
fn record(random: &mut Random, id: u64) -> String {
    let mut word = |letters: usize| -> String {
        let letter = |_| char::from(b'a' + (random.bits() % 26) as u8);
        (0..letters).map(letter).collect()
    };
    let (by, revision, key, content, of) = (word(24), word(13), word(13), word(48), word(24));
    let kind = ["feed.like", "feed.post", "graph.follow", "feed.repost"][id as usize % 4];
    format!(
        r#"{{"by":"did:plc:{by}","at":{},"kind":"commit","commit":{{"rev":"{revision}","operation":"create","collection":"app.net.{kind}","rkey":"{key}","record":{{"$type":"app.net.{kind}","createdAt":"2024-11-21T16:{:02}:{:02}.000Z","subject":{{"cid":"{content}","uri":"at://did:plc:{of}/app.net.{kind}/{key}"}}}}}}}}"#,
        1_732_206_349_000_000 + id * 137,
        id / 60 % 60,
        id % 60,
    )
}

fn scan(engine: &LsmEngine, keyspace: KeyspaceId) -> Duration {
    let begun = Instant::now();
    let snapshot = engine.snapshot().expect("snapshot");
    let entries = snapshot.scan(keyspace, &[], None, Direction::Forward);
    let count = entries.expect("scan").count();
    assert_eq!(count as u64, RECORDS);
    begun.elapsed()
}

/// Returns the microseconds of a point read of one of so many records that are spread over all.
fn gets(engine: &LsmEngine, keyspace: KeyspaceId, of: u64, time: Duration) -> f64 {
    let mut random = Random(11);
    let snapshot = engine.snapshot().expect("snapshot");
    let mut get = || {
        let id = random.bits() % of * (RECORDS / of);
        let found = snapshot.get(keyspace, &id.to_be_bytes()).expect("get");
        assert!(found.is_some());
    };
    (0..60_000).for_each(|_| get());
    let (begun, mut count) = (Instant::now(), 0);
    while begun.elapsed() < time {
        (0..100).for_each(|_| get());
        count += 100;
    }
    begun.elapsed().as_secs_f64() * 1e6 / f64::from(count)
}
