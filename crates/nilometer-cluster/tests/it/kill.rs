//! Killing a process that writes to files takes nothing that it acknowledged.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use nilometer_cluster::{SlateEngine, SlateOptions};
use nilometer_storage::Engine;
use nilometer_storage::testing::kill::{Kills, write_until_killed};

use crate::support::{Scratch, effort, files, in_files};

const DIRECTORY: &str = "NILOMETER_KILL_DIRECTORY";

fn open(directory: PathBuf) -> Arc<dyn Engine> {
    let engine = SlateEngine::open(files(directory), "db", &in_files(SlateOptions::tiny()));
    Arc::new(engine.expect("the database opens"))
}

/// The child: writes until it is killed.
#[test]
#[ignore = "only as the child of the test below"]
fn child() {
    if let Some(path) = std::env::var_os(DIRECTORY) {
        write_until_killed(&*open(path.into()));
    }
}

#[test]
fn killing_the_process_takes_nothing_acknowledged() {
    let directory = Scratch::new("kill");
    let start = || {
        let mut child = Command::new(std::env::current_exe().expect("this binary"));
        let child = child.args(["kill::child", "--exact", "--ignored", "--nocapture"]);
        let child = child
            .env(DIRECTORY, directory.path())
            .stdout(Stdio::piped());
        child.spawn().expect("the child starts")
    };
    let kills = Kills {
        start: &start,
        times_ms: (150, 400),
        open: &|_| open(directory.path().to_path_buf()),
    };
    let rounds = effort(3, 25, 1000);
    let acknowledged = kills.run(rounds);
    eprintln!("{rounds} kills, {acknowledged} batches acknowledged");
    assert!(acknowledged > 0);
}
