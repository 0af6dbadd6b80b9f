//! The contract, bank, fencing and races over Azure's protocol: Azurite, started by `cargo xtask azure`. Without it
//! (`NILOMETER_AZURE_CONTAINER` and the variables `AZURE_…`) these tests are left out.

use nilometer_storage::testing::contract;

use crate::s3::{check_contract, check_fencing, check_races, slate};
use crate::support::effort;

/// Returns the URL of a new database; `None` without a store.
fn azure_url(name: &str) -> Option<String> {
    let Ok(container) = std::env::var("NILOMETER_AZURE_CONTAINER") else {
        eprintln!("left out: there is no store of Azure's protocol");
        return None;
    };
    Some(format!("az://{container}/{}/{name}", std::process::id()))
}

#[test]
fn the_contract_holds_over_azure() {
    if let Some(url) = azure_url("contract") {
        check_contract(&slate(&url));
    }
}

#[test]
fn the_bank_balances_over_azure() {
    if let Some(url) = azure_url("bank") {
        assert!(contract::bank(&slate(&url), effort(50, 500, 10_000)) > 0);
    }
}

#[test]
fn a_second_writer_fences_the_first_over_azure() {
    if let Some(url) = azure_url("fencing") {
        check_fencing(&url);
    }
}

#[test]
fn of_writers_that_race_one_remains_over_azure() {
    if let Some(url) = azure_url("race") {
        check_races(&url, effort(2, 20, 300));
    }
}
