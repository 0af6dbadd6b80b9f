//! Random histories, compared with an ordered map.

use nilometer_cluster::SlateOptions;
use nilometer_storage::testing::contract::Factory;
use nilometer_storage::testing::model::history;

use crate::support::{LongKeys, Slate, effort};

fn histories(factory: &dyn Factory, first: u64, count: u64) {
    let mut batches = 0;
    for seed in first..first + count {
        batches += history(factory, seed, 150).batches;
    }
    eprintln!("{count} histories, {batches} batches");
}

#[test]
fn histories_in_memory() {
    let factory = Slate::in_memory(SlateOptions::tiny());
    histories(&factory, 0, effort(3, 40, 1000));
}

#[test]
fn histories_with_memtables_of_a_few_entries() {
    let options = SlateOptions {
        memtable_bytes: 4096,
        ..SlateOptions::tiny()
    };
    histories(&Slate::in_memory(options), 1000, effort(3, 40, 1000));
}

#[test]
fn histories_in_files() {
    let factory = Slate::in_files("histories", SlateOptions::tiny());
    histories(&factory, 2000, effort(2, 20, 500));
}

#[test]
fn histories_of_long_keys() {
    let factory = LongKeys {
        below: Slate::in_memory(SlateOptions::tiny()),
        lengths: (4, 3),
    };
    histories(&factory, 3000, effort(2, 20, 500));
}
