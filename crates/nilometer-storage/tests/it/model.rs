//! Random histories, compared with an ordered map.

use nilometer_storage::LsmOptions;
use nilometer_storage::testing::contract::Factory;
use nilometer_storage::testing::model::{Coverage, history};

use crate::support::{Lsm, Memory, effort};

fn histories(factory: &dyn Factory, first: u64, count: u64, steps: u64) {
    let mut total = Coverage::default();
    for seed in first..first + count {
        let one = history(factory, seed, steps);
        total.batches += one.batches;
        total.snapshots += one.snapshots;
        total.reopenings += one.reopenings;
        total.checkpoints += one.checkpoints;
    }
    eprintln!("{count} histories: {total:?}");
}

fn scaled(count: u64) -> u64 {
    effort(count / 2, count * 2, count * 100)
}

#[test]
fn histories_of_the_memory_engine() {
    histories(&Memory, 0, scaled(20), 300);
}

#[test]
fn histories_with_small_sizes() {
    histories(&Lsm::new("small", LsmOptions::tiny()), 1000, scaled(6), 200);
}

#[test]
fn histories_with_memtables_of_a_few_entries() {
    let options = LsmOptions {
        memtable_bytes: 2048,
        segment_bytes: 8192,
        separation_bytes: 64,
        ..LsmOptions::tiny()
    };
    histories(&Lsm::new("few", options), 2000, scaled(6), 200);
}

#[test]
fn histories_of_a_log_that_rests() {
    let options = LsmOptions {
        log_rest_bytes: 0,
        rest_period: std::time::Duration::ZERO,
        ..LsmOptions::tiny()
    };
    histories(&Lsm::new("rest", options), 4000, scaled(6), 200);
}

#[test]
fn histories_with_default_sizes() {
    let options = LsmOptions {
        // Small segments, because each history reserves space for its log.
        segment_bytes: 1 << 20,
        ..LsmOptions::default()
    };
    histories(&Lsm::new("large", options), 3000, scaled(6), 200);
}
