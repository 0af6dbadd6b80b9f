//! Syncing after buffered commits.

use std::sync::Barrier;

use nilometer_storage::{Durability, Engine, KeyspaceOptions, LsmEngine, LsmOptions, WriteBatch};

use crate::support::Scratch;

const WRITERS: u64 = 16;
const BATCHES: u64 = 40;

#[test]
fn concurrent_waiters_share_a_sync() {
    let directory = Scratch::new("syncing");
    let engine = LsmEngine::open(directory.path(), LsmOptions::default()).unwrap();
    let options = KeyspaceOptions::default();
    let keyspace = engine.create_keyspace("a", options).unwrap();
    let before = engine.statistics().syncs;
    let round = Barrier::new(WRITERS as usize);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (engine, round) = (&engine, &round);
            scope.spawn(move || {
                for at in 0..BATCHES {
                    let mut batch = WriteBatch::new();
                    batch.put(
                        keyspace,
                        (writer * BATCHES + at).to_be_bytes().to_vec(),
                        vec![1],
                    );
                    engine.commit(batch, Durability::Buffered).unwrap();
                    // All have committed: the first sync of the round is for all of them.
                    round.wait();
                    engine.sync().unwrap();
                    round.wait();
                }
            });
        }
    });
    let syncs = engine.statistics().syncs - before;
    // If all threads rest for a tenth of a second, the log falls idle, which takes a sync of its own.
    assert!((BATCHES..BATCHES * 2).contains(&syncs), "{syncs}");
    // Everything is durable.
    let before = engine.statistics().syncs;
    engine.sync().unwrap();
    assert_eq!(engine.statistics().syncs, before);
}
