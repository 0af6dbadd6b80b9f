//! The contract, bank, histories, kills and fencing over a store that speaks S3's protocol: versitygw, started by
//! `cargo xtask cluster`. Without it (`NILOMETER_S3_BUCKET` and the variables `AWS_…`) these tests are left out.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nilometer_cluster::{SlateEngine, SlateOptions, StorageUrl};
use nilometer_storage::testing::contract::{self, TOGETHER, put};
use nilometer_storage::testing::kill::{Kills, write_until_killed};
use nilometer_storage::testing::model::history;
use nilometer_storage::{Durability, Engine, Error, WriteBatch};
use object_store::ObjectStore;
use object_store::prefix::PrefixStore;

use crate::support::{Slate, effort};

/// The URL of the child's database.
const URL: &str = "NILOMETER_KILL_URL";

/// Returns the URL of a new database; `None` without a store.
pub(crate) fn s3_url(name: &str) -> Option<String> {
    let Ok(bucket) = std::env::var("NILOMETER_S3_BUCKET") else {
        eprintln!("left out: there is no store of S3's protocol");
        return None;
    };
    Some(format!("s3://{bucket}/{}/{name}", std::process::id()))
}

fn parse(url: &str) -> StorageUrl {
    StorageUrl::parse(url, None, None).expect("a URL")
}

fn options() -> SlateOptions {
    SlateOptions {
        flush_interval: Duration::from_millis(5),
        merge_interval: Duration::from_millis(100),
        ..SlateOptions::tiny()
    }
}

/// Returns a factory of engines in the store.
pub(crate) fn slate(url: &str) -> Slate {
    let url = parse(url);
    let (store, path) = url.connect().expect("a store");
    let store: Arc<dyn ObjectStore> = Arc::new(PrefixStore::new(store, path));
    Slate::over(store, options())
}

/// Checks the contract of engines, without its bank, whose size each test chooses.
pub(crate) fn check_contract(slate: &Slate) {
    for (name, property) in contract::PROPERTIES {
        if *name != "money_is_neither_made_nor_lost" {
            property(slate);
        }
    }
}

#[test]
fn the_contract_holds_over_s3() {
    if let Some(url) = s3_url("contract") {
        check_contract(&slate(&url));
    }
}

#[test]
fn the_bank_balances_over_s3() {
    if let Some(url) = s3_url("bank") {
        assert!(contract::bank(&slate(&url), effort(50, 500, 10_000)) > 0);
    }
}

#[test]
fn histories_over_s3() {
    if let Some(url) = s3_url("histories") {
        let slate = slate(&url);
        for seed in 0..effort(1, 10, 200) {
            history(&slate, 6000 + seed, 100);
        }
    }
}

/// The child: writes until it is killed.
#[test]
#[ignore = "only as the child of the test below"]
fn child() {
    if let Ok(url) = std::env::var(URL) {
        write_until_killed(&parse(&url).open(options()).expect("open"));
    }
}

#[test]
fn killing_the_process_takes_nothing_acknowledged_over_s3() {
    let Some(url) = s3_url("kill") else { return };
    let start = || {
        let mut child = Command::new(std::env::current_exe().expect("this binary"));
        let child = child.args(["s3::child", "--exact", "--ignored", "--nocapture"]);
        let child = child.env(URL, &url).stdout(Stdio::piped());
        child.spawn().expect("the child starts")
    };
    let kills = Kills {
        start: &start,
        times_ms: (800, 700),
        open: &|_| Arc::new(parse(&url).open(options()).expect("open")),
    };
    assert!(kills.run(effort(2, 15, 300)) > 0);
}

#[test]
fn a_second_writer_fences_the_first_over_s3() {
    if let Some(url) = s3_url("fencing") {
        check_fencing(&url);
    }
}

/// Opens a database twice: the second writer fences the first.
pub(crate) fn check_fencing(url: &str) {
    // Each opening probes the store.
    let open = || parse(url).open(options()).expect("open");
    let first = open();
    let id = first.create_keyspace("k", TOGETHER).expect("create");
    put(&first, id, b"a", b"first");
    let second = open();
    let mut batch = WriteBatch::new();
    batch.put(id, b"a".to_vec(), b"late".to_vec());
    let refused = first.commit(batch, Durability::Sync);
    assert!(matches!(refused, Err(Error::Fenced { .. })), "{refused:?}");
    put(&second, id, b"b", b"second");
    drop(first);
    let view = second.snapshot().expect("snapshot");
    assert_eq!(
        view.get(id, b"a").expect("get"),
        Some(b"first".to_vec().into())
    );
}

#[test]
fn of_writers_that_race_one_remains_over_s3() {
    if let Some(url) = s3_url("race") {
        check_races(&url, effort(2, 20, 300));
    }
}

/// Of many that open one new database at once, one writes in the end, and all that any of them acknowledged is there.
pub(crate) fn check_races(url: &str, rounds: u64) {
    for round in 0..rounds {
        let url = format!("{url}/{round}");
        let race = |writer: u64| {
            let engine = parse(&url).open(options())?;
            let id = match engine.create_keyspace("k", TOGETHER) {
                Err(Error::KeyspaceExists { .. }) => engine.keyspaces()[0].id,
                created => created?,
            };
            let mut batch = WriteBatch::new();
            batch.put(id, writer.to_be_bytes().to_vec(), b"1".to_vec());
            engine.commit(batch, Durability::Sync)?;
            Ok::<SlateEngine, Error>(engine)
        };
        let outcomes = std::thread::scope(|scope| {
            let race = &race;
            let racers = (0..4u64).map(|writer| scope.spawn(move || race(writer)));
            let racers = racers.collect::<Vec<_>>();
            let joined = racers
                .into_iter()
                .map(|racer| racer.join().expect("a racer"));
            joined.collect::<Vec<_>>()
        });
        let acknowledged = (0u64..)
            .zip(&outcomes)
            .filter(|(_, outcome)| outcome.is_ok());
        let acknowledged = acknowledged.map(|(writer, _)| writer).collect::<Vec<_>>();
        let last = parse(&url).open(options()).expect("open");
        let view = last.snapshot().expect("snapshot");
        let id = last.keyspaces()[0].id;
        for writer in acknowledged {
            let found = view.get(id, &writer.to_be_bytes()).expect("get");
            assert!(found.is_some(), "round {round}, writer {writer}");
        }
        for engine in outcomes.into_iter().flatten() {
            assert!(engine.commit(WriteBatch::new(), Durability::Sync).is_err());
        }
    }
}
