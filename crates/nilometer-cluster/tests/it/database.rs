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
