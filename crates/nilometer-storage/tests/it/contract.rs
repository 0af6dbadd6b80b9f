//! Every engine passes the contract.

use nilometer_storage::LsmOptions;
use nilometer_storage::testing::contract;

use crate::support::{Lsm, Memory, effort};

#[test]
fn the_memory_engine_keeps_the_contract() {
    contract::all(&Memory);
}

#[test]
fn the_embedded_engine_keeps_the_contract_with_small_sizes() {
    contract::all(&Lsm::new("tiny", LsmOptions::tiny()));
}

#[test]
fn the_embedded_engine_keeps_the_contract_with_default_sizes() {
    contract::all(&Lsm::new("default", LsmOptions::default()));
}

#[test]
fn the_bank_balances_under_constant_flushing() {
    let options = LsmOptions {
        memtable_bytes: 8 * 1024,
        ..LsmOptions::tiny()
    };
    let rounds = effort(200, 4_000, 100_000);
    let sums = contract::bank(&Lsm::new("bank", options), rounds);
    eprintln!("{sums} snapshots summed");
    assert!(sums > 0);
}
