//! The server is killed while measurements are updated, replaced, moved and deleted through their collection, and
//! restarted on the same directory.
//!
//! Each writer has its own measurements and knows the expected state (`writer.rs`). After a kill its measurements are
//! those after the last answered command, or after the command in flight: each change is applied once, none in part.
//!
//! With NILOMETER_SOAK=1 there are more kills; NILOMETER_SEED repeats the choices of a run, but not its timing.

use std::time::Duration;

use nilometer_bson::{ValueRef, array, doc};
use nilometer_storage::testing::Effort;

use crate::client::{Client, body, is_ok, op_msg};
use crate::random::Random;
use crate::server::Directory;
use crate::writer::{WHOLE_MAX, Work, Writer};

/// Kills of the server.
const KILLS: Effort = Effort {
    fast: 2,
    long: 15,
    soak: 300,
};

const WRITERS: i32 = 4;

/// The work of a writer: so few documents that each statement is atomic.
const WORK: Work = Work {
    collection: "ts",
    documents_max: WHOLE_MAX,
    batch_max: 8,
};

/// Maximum time before a kill, in ms.
const WRITING_MS_MAX: u64 = 300;

/// Reads until the connection is lost, so that buckets are read while they change.
fn read(port: u16) {
    let mut client = Client::connect(port);
    loop {
        let find = doc! {"count": "ts", "query": doc! {"n": doc! {"$gte": 3}}, "$db": "test"};
        match client.ask_or_lose(&op_msg(0, &[body(&find)])) {
            Some(reply) => assert!(is_ok(&reply), "{reply:?}"),
            None => return,
        }
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "what a run did")]
fn each_change_of_measurements_is_there_once_after_kills() {
    let kills = KILLS.requested();
    let mut random = Random::of_run(11);
    let directory = Directory::new();
    let mut server = directory.serve();
    let mut client = server.connect();
    let options = doc! {"timeField": "t", "metaField": "m"};
    let index = doc! {"key": doc! {"m.c": 1, "n": 1}, "name": "cn"};
    for command in [
        doc! {"create": "ts", "timeseries": options},
        doc! {"createIndexes": "ts", "indexes": array![index]},
    ] {
        let reply = client.run_on("test", &command);
        assert!(is_ok(&reply), "{reply:?}");
    }
    let mut writers: Vec<Writer> = (0..WRITERS)
        .map(|number| Writer::new(number, random.below(u64::MAX), WORK))
        .collect();
    for _ in 0..kills {
        let port = server.port;
        std::thread::scope(|scope| {
            for writer in &mut writers {
                scope.spawn(move || writer.write(port));
            }
            scope.spawn(move || read(port));
            std::thread::sleep(Duration::from_millis(20 + random.below(WRITING_MS_MAX)));
            server.signal("KILL");
            server.wait();
        });
        server = directory.serve();
        let mut client = server.connect();
        for writer in &mut writers {
            writer.check(&mut client);
        }
        let valid = client.run_on("test", &doc! {"validate": "ts", "full": true});
        let is_valid = matches!(valid.get("valid"), ValueRef::Bool(true));
        assert!(is_valid, "{valid:?}");
    }
    let answered: u64 = writers.iter().map(|writer| writer.answered).sum();
    println!("{kills} kills, {answered} commands answered");
    assert!(answered > kills);
}
