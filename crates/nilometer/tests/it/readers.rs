//! Readers during heavy ingest, through commands: parallel groups, a cache that is too small, cursors that
//! stay open while buckets are written, folded and sealed.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use nilometer::{ClientSession, Database, Request};
use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, array, doc};
use nilometer_storage::testing::Effort;

use crate::support::{TemporaryDirectory, show};

/// How long writers and readers run, in ms.
const DURATION_MS: Effort = Effort {
    fast: 300,
    long: 800,
    soak: 20_000,
};

/// Series that are written continuously, each by a thread.
const BUSY: i64 = 3;
/// Series that were written before: more buckets than one thread reads.
const QUIET: i64 = 100;
/// Measurements of one insert, all of one series: a divisor of a thousand, so that none spans two buckets.
const BATCH: i64 = 50;

struct Connection<'d> {
    database: &'d Database,
    session: ClientSession,
}

impl<'d> Connection<'d> {
    fn new(database: &'d Database) -> Self {
        Self {
            database,
            session: ClientSession::embedded(),
        }
    }

    fn run(&mut self, db: &str, command: Document) -> Document {
        let mut body = DocumentBuilder::new();
        body.append_all(command.as_ref()).append("$db", db);
        let request = Request::new(body.finish());
        let reply = self.database.run_command(&mut self.session, &request);
        assert_eq!(reply.get("ok").as_exact_i64(), Some(1), "{}", show(&reply));
        reply
    }

    /// Inserts batch number `batch` of a series. Its values add up to zero.
    fn insert(&mut self, series: i64, batch: i64) {
        let one = |at: i64| -> Value {
            let number = batch * BATCH + at;
            let time = Value::DateTime(1_700_000_000_000 + number * 1000);
            let sign = if at % 2 == 0 { 1.0 } else { -1.0 };
            let id = series * 10_000_000 + number;
            doc! {"t": time, "m": doc! {"s": series}, "_id": id, "v": sign * (at / 2) as f64}.into()
        };
        let documents: Vec<Value> = (0..BATCH).map(one).collect();
        let reply = self.run("test", doc! {"insert": "ts", "documents": documents});
        assert_eq!(
            reply.get("n").as_exact_i64(),
            Some(BATCH),
            "{}",
            show(&reply)
        );
    }

    fn set(&mut self, name: &str, value: i64) {
        let mut command = DocumentBuilder::new();
        command.append("setParameter", 1).append(name, value);
        self.run("admin", command.finish());
    }
}

/// Batches of each busy series: begun, and acknowledged.
#[derive(Default)]
struct Progress {
    begun: [AtomicI64; BUSY as usize],
    acknowledged: [AtomicI64; BUSY as usize],
    is_over: AtomicBool,
}

fn values(counters: &[AtomicI64]) -> Vec<i64> {
    let load = |counter: &AtomicI64| counter.load(Ordering::SeqCst) * BATCH;
    counters.iter().map(load).collect()
}

/// Each group of the answer contains all batches acknowledged before, none that was not begun, and whole
/// batches only.
fn check_groups(connection: &mut Connection<'_>, progress: &Progress) {
    let before = values(&progress.acknowledged);
    let group = doc! {"_id": "$m.s", "n": doc! {"$sum": 1}, "v": doc! {"$sum": "$v"}};
    let pipeline = array![
        doc! {"$group": group},
        doc! {"$match": doc! {"_id": doc! {"$lt": BUSY}}}
    ];
    let batch = doc! {"batchSize": 1000};
    let reply = connection.run(
        "test",
        doc! {"aggregate": "ts", "pipeline": pipeline, "cursor": batch},
    );
    let after = values(&progress.begun);
    let cursor = reply.get("cursor").as_document().unwrap();
    let groups = cursor.get("firstBatch").as_array().unwrap();
    let mut seen = vec![0; BUSY as usize];
    for group in groups.iter() {
        let group = group.as_document().unwrap();
        let series = group.get("_id").as_exact_i64().unwrap();
        let n = group.get("n").as_exact_i64().unwrap();
        assert_eq!(n % BATCH, 0, "series {series}: part of a batch");
        assert!(matches!(group.get("v"), ValueRef::Double(0.0)));
        seen[series as usize] = n;
    }
    for (series, seen) in seen.iter().enumerate() {
        let (least, most) = (before[series], after[series]);
        assert!(
            (least..=most).contains(seen),
            "series {series}: {seen}, not {least} to {most}"
        );
    }
}

/// A cursor over one series returns each measurement once, and all acknowledged before.
fn check_cursor(connection: &mut Connection<'_>, progress: &Progress, series: i64) {
    let before = values(&progress.acknowledged)[series as usize];
    let filter = doc! {"m.s": series};
    let find = doc! {"find": "ts", "filter": filter, "batchSize": 333};
    let mut reply = connection.run("test", find);
    let mut seen = HashSet::new();
    let mut name = "firstBatch";
    loop {
        let cursor = reply.get("cursor").as_document().unwrap();
        for document in cursor.get(name).as_array().unwrap().iter() {
            let document = document.as_document().unwrap();
            let id = document.get("_id").as_exact_i64().unwrap();
            let number = id - series * 10_000_000;
            let time = 1_700_000_000_000 + number * 1000;
            assert!(matches!(document.get("t"), ValueRef::DateTime(at) if at == time));
            assert!(seen.insert(number), "{id} twice");
        }
        let id = cursor.get("id").as_exact_i64().unwrap();
        if id == 0 {
            break;
        }
        name = "nextBatch";
        reply = connection.run(
            "test",
            doc! {"getMore": id, "collection": "ts", "batchSize": 777},
        );
    }
    assert!((0..before).all(|number| seen.contains(&number)));
}

fn exercise(database: &Database) {
    let mut main = Connection::new(database);
    let options = doc! {"timeField": "t", "metaField": "m"};
    main.run("test", doc! {"create": "ts", "timeseries": options});
    main.set("nilometerQueryThreads", 3);
    for series in BUSY..BUSY + QUIET {
        main.insert(series, 0);
    }
    let progress = &Progress::default();
    let duration = Duration::from_millis(DURATION_MS.requested());
    std::thread::scope(|scope| {
        for series in 0..BUSY {
            scope.spawn(move || {
                let mut connection = Connection::new(database);
                for batch in 0.. {
                    if progress.is_over.load(Ordering::SeqCst) {
                        break;
                    }
                    let at = series as usize;
                    progress.begun[at].fetch_add(1, Ordering::SeqCst);
                    connection.insert(series, batch);
                    progress.acknowledged[at].fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let until = Instant::now() + duration;
        let readers = [0, 1].map(|reader| {
            scope.spawn(move || {
                let mut connection = Connection::new(database);
                let mut rounds = 0;
                // On a busy machine a round may take as long as all of them should.
                while rounds < 2 || Instant::now() < until {
                    if reader == 0 {
                        check_groups(&mut connection, progress);
                    } else {
                        check_cursor(&mut connection, progress, rounds % BUSY);
                    }
                    rounds += 1;
                }
                rounds
            })
        });
        // A cache of a few buckets, and one of none.
        for bytes in [300_000, 0, 268_435_456] {
            std::thread::sleep(duration / 4);
            main.set("nilometerBucketCacheBytes", bytes);
        }
        let rounds = readers.map(|reader| reader.join());
        progress.is_over.store(true, Ordering::SeqCst);
        for rounds in rounds {
            rounds.unwrap();
        }
    });
    assert!(values(&progress.acknowledged).iter().all(|n| *n > BATCH));
    check_groups(&mut main, progress);
    for series in 0..BUSY {
        check_cursor(&mut main, progress, series);
    }
}

#[test]
fn readers_see_whole_writes_in_memory() {
    exercise(&Database::in_memory().unwrap());
}

#[test]
fn readers_see_whole_writes_on_disk() {
    let directory = TemporaryDirectory::new();
    let database = Database::open(&directory.0).unwrap();
    exercise(&database);
    database.close().unwrap();
}
