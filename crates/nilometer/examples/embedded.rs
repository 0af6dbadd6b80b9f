//! An embedded database: a typed collection, an insert, a filter and a pipeline.
//!
//! Run it with `cargo run -p nilometer --example embedded`.

use bson::{DateTime, Document, doc};
use nilometer::Database;
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
struct Reading {
    time: DateTime,
    sensor: String,
    celsius: f64,
}

#[expect(clippy::print_stdout, reason = "an example shows what it found")]
fn main() -> nilometer::Result<()> {
    let database = Database::in_memory()?;
    let readings = database.collection::<Reading>("house", "readings");
    readings.create_timeseries("time", Some("sensor"))?;

    let minutes = 0..180;
    readings.insert_many(minutes.map(|minute| Reading {
        time: DateTime::from_millis(minute * 60_000),
        sensor: ["roof", "cellar"][minute as usize % 2].to_owned(),
        celsius: 15.0 + (minute as f64 / 30.0).sin(),
    }))?;

    for reading in readings.find(doc! { "sensor": "roof", "celsius": { "$gt": 15.99 } })? {
        println!("{:?}", reading?);
    }
    let hour = doc! { "$dateTrunc": { "date": "$time", "unit": "hour" } };
    let by_hour = [
        doc! { "$group": { "_id": { "sensor": "$sensor", "hour": hour }, "mean": { "$avg": "$celsius" } } },
        doc! { "$sort": { "_id": 1 } },
    ];
    for row in readings.aggregate::<Document>(by_hour)? {
        println!("{}", row?);
    }
    Ok(())
}
