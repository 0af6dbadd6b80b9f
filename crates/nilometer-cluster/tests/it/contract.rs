//! The engine passes the contract.

use nilometer_cluster::SlateOptions;
use nilometer_storage::testing::contract;

use crate::support::{LongKeys, Slate, effort};

#[test]
fn the_contract_holds_in_memory() {
    contract::all(&Slate::in_memory(SlateOptions::tiny()));
}

#[test]
fn the_contract_holds_in_files() {
    contract::all(&Slate::in_files("contract", SlateOptions::tiny()));
}

#[test]
fn the_contract_holds_for_long_keys() {
    contract::all(&LongKeys {
        below: Slate::in_memory(SlateOptions::tiny()),
        lengths: (4, 3),
    });
}

#[test]
fn the_bank_balances_under_constant_flushing() {
    let options = SlateOptions {
        memtable_bytes: 16 * 1024,
        ..SlateOptions::tiny()
    };
    let rounds = effort(200, 2000, 50_000);
    let sums = contract::bank(&Slate::in_memory(options), rounds);
    eprintln!("{sums} snapshots summed");
    assert!(sums > 0);
}
