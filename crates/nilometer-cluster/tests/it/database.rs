//! A whole database over object storage.

use std::sync::Arc;
use std::time::Duration;

use bson::{DateTime, Document, doc};
use nilometer::services::{Environment, StorageEnd};
use nilometer::{Database, ErrorCode};
use nilometer_cluster::{SlateEngine, SlateOptions};
use object_store::memory::InMemory;

use crate::faulty::{Faults, FaultyStore};

/// A database whose engine has ended asks its process to end, and its clients to look elsewhere.
#[test]
fn a_database_whose_storage_has_ended_says_so() {
    let (store, plan) = FaultyStore::over(Arc::new(InMemory::new()), 1, Faults::default());
    let engine = SlateEngine::open(store, "db", &SlateOptions::tiny()).expect("open");
    let database = Database::with_engine(Arc::new(engine), Environment::default());
    let database = database.expect("a database");
    let (sender, ends) = std::sync::mpsc::channel();
    let request = Box::new(move |why| {
        let _ = sender.send(why);
    });
    assert!(database.services().storage_ended.set(request).is_ok());
    let beds = database.collection::<Document>("garden", "beds");
    beds.insert_one(doc! { "_id": 1 }).expect("inserted");
    plan.set(Faults {
        refuses_puts: true,
        ..Faults::default()
    });
    let refused = beds.insert_one(doc! { "_id": 2 });
    assert!(refused.is_err());
    let why = ends.recv_timeout(Duration::from_secs(60));
    assert_eq!(why, Ok(StorageEnd::Failed));
    let found = beds
        .find(doc! {})
        .and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let refused = found.expect_err("nothing can be read");
    assert_eq!(refused.code, ErrorCode::InterruptedAtShutdown, "{refused}");
}

#[test]
fn a_time_series_is_there_after_reopening() {
    let store = Arc::new(InMemory::new());
    let open = || {
        let engine = SlateEngine::open(store.clone(), "db", &SlateOptions::tiny()).expect("open");
        Database::with_engine(Arc::new(engine), Environment::default()).expect("a database")
    };
    let by_sensor = [
        doc! { "$group": { "_id": "$sensor", "n": { "$sum": 1 }, "all": { "$sum": "$n" } } },
        doc! { "$sort": { "_id": 1 } },
    ];
    let expected = [
        doc! { "_id": "cellar", "n": 500, "all": 250_000 },
        doc! { "_id": "roof", "n": 500, "all": 249_500 },
    ];
    let mut database = open();
    let readings = database.collection::<Document>("house", "readings");
    readings
        .create_timeseries("time", Some("sensor"))
        .expect("created");
    for part in 0..10i32 {
        let numbers = part * 100..(part + 1) * 100;
        let measurements = numbers.map(|n| {
            let time = DateTime::from_millis(i64::from(n) * 60_000);
            let sensor = ["roof", "cellar"][n as usize % 2];
            doc! { "time": time, "sensor": sensor, "n": n }
        });
        readings.insert_many(measurements).expect("inserted");
    }
    for round in 0..3 {
        let readings = database.collection::<Document>("house", "readings");
        let found = readings.aggregate::<Document>(by_sensor.clone());
        let found = found.expect("an answer").map(|row| row.expect("a row"));
        assert_eq!(found.collect::<Vec<_>>(), expected, "round {round}");
        if round == 1 {
            database.settle().expect("settle");
        }
        database.close().expect("close");
        drop(database);
        database = open();
    }
}

/// A rollup over object storage answers as its source: with stored bins, dirty ones, and after reopening.
#[test]
fn a_rollup_answers_as_its_source() {
    let store = Arc::new(InMemory::new());
    let open = || {
        let engine = SlateEngine::open(store.clone(), "db", &SlateOptions::tiny()).expect("open");
        Database::with_engine(Arc::new(engine), Environment::default()).expect("a database")
    };
    let hour = |field: &str| doc! { "$dateTrunc": { "date": field, "unit": "hour" } };
    let group = doc! { "$group": {
        "_id": { "sensor": "$sensor", "time": hour("$time") },
        "mean": { "$avg": "$n" }, "high": { "$max": "$n" }, "n": { "$count": {} },
    } };
    let in_order = doc! { "$sort": { "_id.sensor": 1, "_id.time": 1 } };
    let mut database = open();
    let readings = database.collection::<Document>("house", "readings");
    readings
        .create_timeseries("time", Some("sensor"))
        .expect("created");
    let rollup = doc! { "source": "readings", "pipeline": [group.clone()], "refresh": 0 };
    let create = doc! { "create": "hourly", "rollup": rollup };
    database.command("house", &create).expect("created");
    for part in 0..12i32 {
        let measurements = (0..100i32).map(|n| {
            // Every third part is late.
            let at = if part % 3 == 2 { part / 2 } else { part } * 100 + n;
            let time = DateTime::from_millis(i64::from(at) * 60_000);
            let sensor = ["roof", "cellar"][n as usize % 2];
            doc! { "time": time, "sensor": sensor, "n": at }
        });
        let readings = database.collection::<Document>("house", "readings");
        readings.insert_many(measurements).expect("inserted");
        let remove = doc! { "q": { "n": part * 50 }, "limit": 0 };
        let remove = doc! { "delete": "readings", "deletes": [remove] };
        database.command("house", &remove).expect("deleted");
        if part % 4 == 1 {
            let refresh = doc! { "refreshRollup": "hourly" };
            database.command("house", &refresh).expect("refreshed");
        }
        if part % 4 == 2 {
            database.close().expect("close");
            drop(database);
            database = open();
        }
        let rows = |name: &str, stages: Vec<Document>| -> Vec<Document> {
            let collection = database.collection::<Document>("house", name);
            let found = collection.aggregate::<Document>(stages);
            let found = found.expect("an answer");
            found.collect::<Result<_, _>>().expect("rows")
        };
        let stages = vec![group.clone(), in_order.clone()];
        // The planner may use the rollup for a `$group` that comes first.
        let expected = rows(
            "readings",
            [vec![doc! { "$limit": 100_000 }], stages.clone()].concat(),
        );
        assert!(expected.len() > 3);
        assert_eq!(rows("readings", stages), expected, "part {part}");
        let shown = doc! { "$project": { "mean": 1, "high": 1, "n": 1 } };
        let found = rows("hourly", vec![in_order.clone(), shown]);
        assert_eq!(found, expected, "part {part}");
    }
}
