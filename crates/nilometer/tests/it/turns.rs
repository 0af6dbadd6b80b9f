//! Long queries beside bulk writes take turns, through commands.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nilometer::services::{Environment, HostFacts};
use nilometer::{ClientSession, Database, Request};
use nilometer_bson::{Document, Value, array, doc};

/// Queries that run at once.
const QUERIES: usize = 4;

/// How long the test waits for a state.
const PATIENCE: Duration = Duration::from_secs(60);

/// Interrupted.
const INTERRUPTED: i64 = 11_601;

/// Returns a database on one processor, with a collection of 150 documents.
fn database() -> Database {
    let environment = Environment {
        host: HostFacts {
            cores: 1,
            ..HostFacts::default()
        },
        ..Environment::default()
    };
    let database = Database::in_memory_with(environment).expect("a database");
    let documents: Vec<Value> = (0..150).map(|i| doc! {"x": i}.into()).collect();
    run(
        &database,
        doc! {"insert": "c", "documents": documents, "$db": "test"},
    );
    database
}

fn run(database: &Database, command: Document) -> Document {
    let mut session = ClientSession::embedded();
    database.run_command(&mut session, &Request::new(command))
}

fn code(reply: &Document) -> i64 {
    reply.get("code").as_exact_i64().unwrap_or(0)
}

/// Writes in bulk until `is_over`.
fn write(database: &Database, is_over: &AtomicBool) {
    let documents: Vec<Value> = (0..100)
        .map(|_| doc! {"x": "x".repeat(1000)}.into())
        .collect();
    let insert = doc! {"insert": "d", "documents": documents, "$db": "test"};
    while !is_over.load(Ordering::Relaxed) {
        assert_eq!(code(&run(database, insert.clone())), 0);
        run(
            database,
            doc! {"delete": "d", "deletes": array![doc! {"q": doc! {}, "limit": 0}], "$db": "test"},
        );
    }
}

/// Returns `serverStatus().globalLock.currentQueue.readers`.
fn waiting(database: &Database) -> i64 {
    let status = run(database, doc! {"serverStatus": 1, "$db": "admin"});
    let lock = status.get("globalLock").as_document().expect("a section");
    let queue = lock.get("currentQueue").as_document().expect("a section");
    assert_eq!(
        queue.get("total").as_exact_i64(),
        queue.get("readers").as_exact_i64()
    );
    queue.get("readers").as_exact_i64().expect("a number")
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns a join of the collection with itself, `times` times.
fn join(times: usize, last: Document) -> Document {
    let joined = |inner: Value| {
        let lookup = doc! {"from": "c", "as": "a", "pipeline": inner};
        array![
            doc! {"$lookup": lookup},
            doc! {"$unwind": "$a"},
            last.clone()
        ]
    };
    let pipeline = (0..times).fold(array![], |inner, _| joined(inner));
    doc! {"aggregate": "c", "pipeline": pipeline, "cursor": doc! {}, "$db": "test"}
}

fn operations(database: &Database) -> Vec<i64> {
    let found = run(
        database,
        doc! {"currentOp": 1, "ns": "test.c", "$db": "admin"},
    );
    let running = found.get("inprog").as_array().expect("a list");
    let ids = running
        .iter()
        .filter_map(|one| one.as_document()?.get("opid").as_exact_i64());
    ids.collect()
}

/// What runs beside a test. It ends with it, also if an assertion fails: the scope of the threads would wait forever.
struct Load<'d> {
    database: &'d Database,
    is_over: AtomicBool,
    /// Queries that have not ended.
    queries: AtomicUsize,
}

impl<'d> Load<'d> {
    fn new(database: &'d Database, queries: usize) -> Self {
        Self {
            database,
            is_over: AtomicBool::new(false),
            queries: AtomicUsize::new(queries),
        }
    }

    /// Returns what is dropped to end it.
    fn end_at_drop(&self) -> LoadEnd<'_, 'd> {
        LoadEnd(self)
    }
}

struct LoadEnd<'l, 'd>(&'l Load<'d>);

impl Drop for LoadEnd<'_, '_> {
    fn drop(&mut self) {
        let Load {
            database,
            is_over,
            queries,
        } = self.0;
        is_over.store(true, Ordering::Relaxed);
        while std::thread::panicking() && queries.load(Ordering::Relaxed) > 0 {
            for id in operations(database) {
                run(database, doc! {"killOp": 1, "op": id, "$db": "admin"});
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn long_queries_wait_for_turns_beside_bulk_writes_and_are_killed_while_they_wait() {
    let database = &database();
    let load = Load::new(database, QUERIES);
    std::thread::scope(|scope| {
        let _end = load.end_at_drop();
        scope.spawn(|| write(database, &load.is_over));
        let endless = || {
            let reply = run(database, join(3, doc! {"$match": doc! {"x": -1}}));
            load.queries.fetch_sub(1, Ordering::Relaxed);
            reply
        };
        let queries: Vec<_> = (0..QUERIES).map(|_| scope.spawn(endless)).collect();
        wait_until("some wait", || waiting(database) > 0);
        wait_until("all run", || operations(database).len() == QUERIES);
        for id in operations(database) {
            let kill = doc! {"killOp": 1, "op": id, "$db": "admin"};
            assert_eq!(code(&run(database, kill)), 0);
        }
        for query in queries {
            assert_eq!(code(&query.join().expect("no panic")), INTERRUPTED);
        }
    });
    assert_eq!(waiting(database), 0);
}

#[test]
fn queries_that_take_turns_give_the_same_answers() {
    let database = &database();
    let load = Load::new(database, 0);
    let ask = || {
        let reply = run(
            database,
            join(
                1,
                doc! {"$group": doc! {"_id": "$a.x", "n": doc! {"$sum": "$x"}}},
            ),
        );
        let cursor = reply.get("cursor").as_document().expect("an answer");
        let groups = cursor.get("firstBatch").as_array().expect("a batch");
        let sums = groups.iter().map(|group| {
            let group = group.as_document().expect("a document");
            (
                group.get("_id").as_exact_i64(),
                group.get("n").as_exact_i64(),
            )
        });
        let mut sums: Vec<_> = sums.collect();
        sums.sort_unstable();
        sums
    };
    let alone = ask();
    assert_eq!(alone.len(), 101);
    std::thread::scope(|scope| {
        let _end = load.end_at_drop();
        scope.spawn(|| write(database, &load.is_over));
        let queries: Vec<_> = (0..QUERIES).map(|_| scope.spawn(ask)).collect();
        for query in queries {
            let sums = query.join().expect("no panic");
            assert_eq!(sums.len(), alone.len());
            assert!(sums.iter().all(|(_, n)| *n == Some(11_175)));
        }
    });
    assert!(alone.iter().all(|(_, n)| *n == Some(11_175)));
}
