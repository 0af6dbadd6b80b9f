//! Killing a process that writes takes nothing that it acknowledged, also if every key is a long one.

use std::cell::Cell;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use nilometer_storage::testing::kill::{Kills, write_until_killed};
use nilometer_storage::{Engine, LongKeyEngine, LsmEngine, LsmOptions};

use crate::support::{Scratch, effort};

const DIRECTORY: &str = "NILOMETER_KILL_DIRECTORY";
const LONG_KEYS: &str = "NILOMETER_KILL_LONG_KEYS";

/// Where keys are cut when they are long ones: before the last byte of the writer's number.
const LENGTHS: (usize, usize) = (8, 7);

fn options() -> LsmOptions {
    LsmOptions {
        memory_bytes_max: 512 * 1024,
        memtable_bytes: 48 * 1024,
        ..LsmOptions::tiny()
    }
}

/// Returns the engine with or without long keys.
fn over(engine: LsmEngine, long_keys: bool) -> Arc<dyn Engine> {
    let engine = Arc::new(engine);
    match long_keys {
        true => {
            let (plain_max, piece) = LENGTHS;
            let engine = LongKeyEngine::with_lengths(engine, plain_max, piece);
            Arc::new(engine.expect("the companions are known"))
        }
        false => engine,
    }
}

/// The child: writes until it is killed.
#[test]
#[ignore = "only as the child of the test below"]
fn child() {
    let Some(path) = std::env::var_os(DIRECTORY) else {
        return;
    };
    let engine = LsmEngine::open(Path::new(&path), options()).expect("the child opens");
    let engine = over(engine, std::env::var_os(LONG_KEYS).is_some());
    write_until_killed(&*engine);
}

#[test]
fn killing_the_process_takes_nothing_acknowledged() {
    kill_repeatedly(false, effort(5, 25, 3000));
}

#[test]
fn killing_the_process_takes_no_part_of_a_long_key() {
    kill_repeatedly(true, effort(3, 25, 3000));
}

fn kill_repeatedly(long_keys: bool, rounds: u64) {
    let directory = Scratch::new("kill");
    let start = || {
        let mut child = Command::new(std::env::current_exe().expect("this binary"));
        if long_keys {
            child.env(LONG_KEYS, "1");
        }
        let child = child.args(["kill::child", "--exact", "--ignored", "--nocapture"]);
        let child = child
            .env(DIRECTORY, directory.path())
            .stdout(Stdio::piped());
        child.spawn().expect("the child starts")
    };
    let cuts = Cell::new(0u64);
    let kills = Kills {
        start: &start,
        times_ms: (20, 150),
        open: &|round| {
            let engine = LsmEngine::open(directory.path(), options());
            let engine = engine.unwrap_or_else(|error| panic!("round {round}: {error}"));
            let cut = &engine.recovery().cut;
            cuts.set(cuts.get() + u64::from(cut.is_some()));
            let interrupted = cut.as_ref().is_none_or(|cut| !cut.write_is_complete);
            assert!(interrupted, "a kill is taken for damage: {cut:?}");
            over(engine, long_keys)
        },
    };
    let acknowledged = kills.run(rounds);
    let cuts = cuts.get();
    eprintln!("{rounds} kills, {acknowledged} batches acknowledged, {cuts} torn ends");
}
