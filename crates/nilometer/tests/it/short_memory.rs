//! A process that has nearly all the memory it may have.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nilometer::Database;
use nilometer::services::{Environment, HostFacts, MemoryUse};
use nilometer_bson::{ValueRef, array, doc};

use crate::support::Fixture;

/// What the test says the process takes.
static RESIDENT_BYTES: AtomicU64 = AtomicU64::new(0);

/// ExceededMemoryLimit.
const EXCEEDED: i64 = 146;

const LIMIT_BYTES: u64 = 1 << 30;

/// How long the test waits for it to be noticed.
const PATIENCE: Duration = Duration::from_secs(30);

fn memory_use() -> Option<MemoryUse> {
    let resident_bytes = RESIDENT_BYTES.load(Ordering::Relaxed);
    Some(MemoryUse {
        resident_bytes,
        virtual_bytes: resident_bytes,
        page_faults: 0,
    })
}

fn is_short(fixture: &mut Fixture) -> bool {
    let status = fixture.run(doc! {"serverStatus": 1});
    let memory = status.get("mem").as_document().expect("a section");
    matches!(memory.get("short"), ValueRef::Bool(true))
}

fn wait_until_short(fixture: &mut Fixture, expected: bool) {
    let end = Instant::now() + PATIENCE;
    while is_short(fixture) != expected {
        assert!(Instant::now() < end, "it is not noticed");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn commands_on_documents_are_refused_until_there_is_enough_again() {
    let host = HostFacts {
        memory_limit_bytes: LIMIT_BYTES,
        memory_use,
        ..HostFacts::default()
    };
    let environment = Environment {
        host,
        ..Environment::default()
    };
    let mut f = Fixture::of(Database::in_memory_with(environment).expect("a database"));
    let documents = || array![doc! {"x": 1}, doc! {"x": 2}, doc! {"x": 3}];
    f.run(doc! {"insert": "c", "documents": documents()});
    let reply = f.run(doc! {"find": "c", "batchSize": 1});
    let cursor = reply.get("cursor").as_document().expect("a cursor");
    let id = cursor.get("id").to_value();
    RESIDENT_BYTES.store(LIMIT_BYTES / 100 * 93, Ordering::Relaxed);
    wait_until_short(&mut f, true);
    assert_eq!(
        f.code(doc! {"insert": "c", "documents": documents()}),
        EXCEEDED
    );
    assert_eq!(f.code(doc! {"find": "c"}), EXCEEDED);
    // What is under way goes on, and whoever wants to help may.
    f.run(doc! {"getMore": id, "collection": "c"});
    f.run(doc! {"ping": 1});
    f.run(doc! {"listCollections": 1});
    f.run(doc! {"drop": "other"});
    // Not before it is well below the limit.
    RESIDENT_BYTES.store(LIMIT_BYTES / 100 * 88, Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(700));
    assert!(is_short(&mut f));
    RESIDENT_BYTES.store(LIMIT_BYTES / 2, Ordering::Relaxed);
    wait_until_short(&mut f, false);
    f.run(doc! {"insert": "c", "documents": documents()});
    let counted = f.run(doc! {"count": "c"});
    assert_eq!(counted.get("n").as_exact_i64(), Some(6));
}
