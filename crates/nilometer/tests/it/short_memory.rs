//! A process near its memory limit.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nilometer::services::{Environment, HostFacts, MemoryUse};
use nilometer::{ClientSession, Database, Request};
use nilometer_bson::{Document, Value, ValueRef, array, doc};

/// The resident memory the test reports.
static RESIDENT_BYTES: AtomicU64 = AtomicU64::new(0);

/// ExceededMemoryLimit.
const EXCEEDED: i64 = 146;

const LIMIT_BYTES: u64 = 1 << 30;

/// How long the test waits for the state to change.
const PATIENCE: Duration = Duration::from_secs(30);

fn memory_use() -> Option<MemoryUse> {
    let resident_bytes = RESIDENT_BYTES.load(Ordering::Relaxed);
    Some(MemoryUse {
        resident_bytes,
        virtual_bytes: resident_bytes,
        page_faults: 0,
    })
}

fn run(database: &Database, command: Document) -> Document {
    let mut session = ClientSession::embedded();
    database.run_command(&mut session, &Request::new(command))
}

fn code(reply: &Document) -> i64 {
    reply.get("code").as_exact_i64().unwrap_or(0)
}

fn is_short(database: &Database) -> bool {
    let status = run(database, doc! {"serverStatus": 1, "$db": "admin"});
    let memory = status.get("mem").as_document().expect("a section");
    matches!(memory.get("short"), ValueRef::Bool(true))
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A query that runs until it is killed or its time limit.
fn endless() -> Document {
    let all = |inner: Value| {
        let lookup = doc! {"from": "c", "as": "a", "pipeline": inner};
        array![doc! {"$lookup": lookup}, doc! {"$unwind": "$a"}]
    };
    let pipeline = all(all(all(array![])));
    doc! {
        "aggregate": "c", "pipeline": array![doc! {"$facet": doc! {"all": pipeline}}],
        "cursor": doc! {}, "maxTimeMS": 20_000, "allowDiskUse": true, "$db": "test",
    }
}

fn runs_a_query(database: &Database) -> Option<i64> {
    let found = run(
        database,
        doc! {"currentOp": 1, "op": "command", "$db": "admin"},
    );
    let running = found.get("inprog").as_array().expect("a list");
    running.iter().find_map(|one| {
        let one = one.as_document()?;
        let is_query = one.get("ns").as_str() == Some("test.c");
        is_query.then(|| one.get("opid").as_exact_i64()).flatten()
    })
}

#[test]
fn while_one_command_runs_others_are_refused_until_memory_suffices() {
    let host = HostFacts {
        memory_limit_bytes: LIMIT_BYTES,
        memory_use,
        ..HostFacts::default()
    };
    let environment = Environment {
        host,
        ..Environment::default()
    };
    let database = Database::in_memory_with(environment).expect("a database");
    let database = &database;
    let documents: Vec<Value> = (0..500).map(|i| doc! {"x": i}.into()).collect();
    let insert = doc! {"insert": "c", "documents": documents, "$db": "test"};
    let small = doc! {"insert": "d", "documents": array![doc! {"x": 1}], "$db": "test"};
    let find = doc! {"find": "c", "batchSize": 1, "$db": "test"};
    assert_eq!(code(&run(database, insert)), 0);
    let reply = run(database, find.clone());
    let cursor = reply.get("cursor").as_document().expect("a cursor");
    let id = cursor.get("id").to_value();
    std::thread::scope(|scope| {
        let query = scope.spawn(|| run(database, endless()));
        wait_until("it runs", || runs_a_query(database).is_some());
        // While memory suffices, no command is refused.
        assert_eq!(code(&run(database, small.clone())), 0);
        RESIDENT_BYTES.store(LIMIT_BYTES / 100 * 93, Ordering::Relaxed);
        wait_until("it is noticed", || is_short(database));
        assert_eq!(code(&run(database, small.clone())), EXCEEDED);
        assert_eq!(code(&run(database, find.clone())), EXCEEDED);
        // Running commands continue, and administrative commands are accepted.
        let more = doc! {"getMore": id, "collection": "c", "$db": "test"};
        assert_eq!(code(&run(database, more)), 0);
        assert_eq!(
            code(&run(database, doc! {"listCollections": 1, "$db": "test"})),
            0
        );
        assert_eq!(
            code(&run(database, doc! {"drop": "other", "$db": "test"})),
            0
        );
        // Not before it is well below the limit.
        RESIDENT_BYTES.store(LIMIT_BYTES / 100 * 88, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(700));
        assert!(is_short(database));
        let id = runs_a_query(database).expect("it still runs");
        let kill = doc! {"killOp": 1, "op": id, "$db": "admin"};
        assert_eq!(code(&run(database, kill)), 0);
        assert_ne!(code(&query.join().expect("no panic")), 0);
    });
    // A single command runs even if memory is short.
    assert!(is_short(database));
    assert_eq!(code(&run(database, small)), 0);
    assert_eq!(code(&run(database, find)), 0);
    RESIDENT_BYTES.store(LIMIT_BYTES / 2, Ordering::Relaxed);
    wait_until("it is over", || !is_short(database));
}
