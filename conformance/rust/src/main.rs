//! What a Rust program does with a time-series database, through the official driver.
//!
//! Reads `NILOMETER_URI`; prints one line per check, `ok NAME` or `not ok NAME: reason`. The names
//! are the same for every client and are listed in `xtask/src/conformance/checks.rs`.

use std::collections::BTreeSet;
use std::error::Error;
use std::time::Duration;

use mongodb::bson::oid::ObjectId;
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{
    Binary, Bson, DateTime, Document, JavaScriptCodeWithScope, Regex, Timestamp, doc,
};
use mongodb::error::{ErrorKind, WriteFailure};
use mongodb::options::{ClientOptions, Compressor, TimeseriesGranularity, TimeseriesOptions};
use mongodb::sync::{Client, Collection, Database};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const START: i64 = 1_704_067_200_000;
const MINUTE: i64 = 60_000;
const SENSORS: i32 = 4;
const SINGLE: i32 = 10;
const TOTAL: i32 = 1010;

struct Bench {
    uri: String,
    client: Client,
    db: Database,
    readings: Collection<Document>,
}

macro_rules! equal {
    ($got:expr, $expected:expr) => {{
        let (got, expected) = (&$got, &$expected);
        if got != expected {
            return Err(format!("line {}: got {got:?}, expected {expected:?}", line!()).into());
        }
    }};
}

macro_rules! ensure {
    ($holds:expr) => {
        if !$holds {
            return Err(format!("line {}: not so: {}", line!(), stringify!($holds)).into());
        }
    };
}

/// The code of the error that an action must give.
fn code_of<T>(result: mongodb::error::Result<T>) -> Outcome<i32> {
    let error = match result {
        Ok(_) => return Err("no error".into()),
        Err(error) => error,
    };
    match &*error.kind {
        ErrorKind::Write(WriteFailure::WriteError(e)) => Ok(e.code),
        ErrorKind::Command(e) => Ok(e.code),
        _ => Err(error.into()),
    }
}

fn at(i: i32) -> DateTime {
    DateTime::from_millis(START + i64::from(i) * MINUTE)
}

fn measurement(i: i32) -> Document {
    doc! { "time": at(i), "sensor": format!("s{}", i % SENSORS), "value": f64::from(i), "n": i }
}

fn timeseries(granularity: TimeseriesGranularity) -> TimeseriesOptions {
    TimeseriesOptions::builder()
        .time_field("time")
        .meta_field("sensor".to_string())
        .granularity(granularity)
        .build()
}

fn numbers(documents: &[Document]) -> Outcome<Vec<i32>> {
    documents.iter().map(|d| Ok(d.get_i32("n")?)).collect()
}

fn connect_and_ping(b: &Bench) -> Outcome {
    let admin = b.client.database("admin");
    admin.run_command(doc! { "ping": 1 }).run()?;
    let hello = admin.run_command(doc! { "hello": 1 }).run()?;
    equal!(hello.get_i32("maxBsonObjectSize")?, 16 * 1024 * 1024);
    let build = admin.run_command(doc! { "buildInfo": 1 }).run()?;
    equal!(
        build.get_array("versionArray")?.first(),
        Some(&Bson::Int32(8))
    );
    Ok(())
}

fn create_time_series(b: &Bench) -> Outcome {
    b.db.drop().run()?;
    b.db.create_collection("readings")
        .timeseries(timeseries(TimeseriesGranularity::Seconds))
        .run()?;
    let listed =
        b.db.run_command(doc! { "listCollections": 1, "filter": { "name": "readings" } })
            .run()?;
    let batch = listed.get_document("cursor")?.get_array("firstBatch")?;
    let found = batch
        .first()
        .and_then(Bson::as_document)
        .ok_or("not listed")?;
    equal!(found.get_str("type")?, "timeseries");
    let options = found.get_document("options")?.get_document("timeseries")?;
    equal!(options.get_str("metaField")?, "sensor");
    Ok(())
}

fn insert_one_by_one(b: &Bench) -> Outcome {
    for i in 0..SINGLE {
        b.readings.insert_one(measurement(i)).run()?;
    }
    equal!(b.readings.count_documents(doc! {}).run()?, SINGLE as u64);
    Ok(())
}

fn insert_in_bulk(b: &Bench) -> Outcome {
    let result = b
        .readings
        .insert_many((SINGLE..TOTAL).map(measurement))
        .run()?;
    equal!(result.inserted_ids.len(), (TOTAL - SINGLE) as usize);
    equal!(b.readings.count_documents(doc! {}).run()?, TOTAL as u64);
    Ok(())
}

fn find_filter_sort_limit_projection(b: &Bench) -> Outcome {
    let filter =
        doc! { "sensor": "s1", "value": { "$gte": 100, "$lt": 900 }, "time": { "$gt": at(0) } };
    let found: Vec<Document> = b
        .readings
        .find(filter)
        .projection(doc! { "_id": 0, "n": 1, "time": 1 })
        .sort(doc! { "time": -1 })
        .skip(1)
        .limit(3)
        .run()?
        .collect::<Result<_, _>>()?;
    let expected: Vec<Document> = [893, 889, 885]
        .map(|n| doc! { "time": at(n), "n": n })
        .into();
    equal!(found, expected);
    let one = b
        .readings
        .find_one(doc! { "n": { "$in": [7, 8] } })
        .sort(doc! { "n": 1 })
        .run()?;
    equal!(one.ok_or("nothing found")?.get_i32("n")?, 7);
    Ok(())
}

fn aggregate_by_hour(b: &Bench) -> Outcome {
    let hour = doc! { "$dateTrunc": { "date": "$time", "unit": "hour" } };
    let stages = [
        doc! { "$match": { "time": { "$lt": at(12 * 60) } } },
        doc! { "$group": { "_id": { "hour": hour, "sensor": "$sensor" },
        "mean": { "$avg": "$value" }, "count": { "$sum": 1 } } },
        doc! { "$sort": { "_id.hour": 1, "_id.sensor": 1 } },
    ];
    let got: Vec<Document> = b
        .readings
        .aggregate(stages)
        .run()?
        .collect::<Result<_, _>>()?;
    let mut expected = Vec::new();
    for hour in 0..12 {
        for s in 0..SENSORS {
            let values: Vec<i32> = (hour * 60..hour * 60 + 60)
                .filter(|i| i % SENSORS == s)
                .collect();
            let mean = f64::from(values.iter().sum::<i32>()) / values.len() as f64;
            let id = doc! { "hour": at(hour * 60), "sensor": format!("s{s}") };
            expected.push(doc! { "_id": id, "mean": mean, "count": values.len() as i32 });
        }
    }
    equal!(got, expected);
    Ok(())
}

fn cursor_over_batches(b: &Bench) -> Outcome {
    let found: Vec<Document> = b
        .readings
        .find(doc! {})
        .batch_size(64)
        .sort(doc! { "time": 1 })
        .run()?
        .collect::<Result<_, _>>()?;
    equal!(numbers(&found)?, (0..TOTAL).collect::<Vec<_>>());
    let stages = [
        doc! { "$project": { "n": 1 } },
        doc! { "$sort": { "n": -1 } },
    ];
    let sorted: Vec<Document> = b
        .readings
        .aggregate(stages)
        .batch_size(64)
        .run()?
        .collect::<Result<_, _>>()?;
    equal!(numbers(&sorted)?, (0..TOTAL).rev().collect::<Vec<_>>());
    Ok(())
}

fn cursor_closed_early(b: &Bench) -> Outcome {
    let mut cursor = b.readings.find(doc! {}).batch_size(10).run()?;
    ensure!(cursor.advance()?);
    // The driver hides the number of the cursor, so that closing it is seen by its effect only.
    drop(cursor);
    let first =
        b.db.run_command(doc! { "find": "readings", "batchSize": 2 })
            .run()?;
    let id = first.get_document("cursor")?.get_i64("id")?;
    ensure!(id != 0);
    let killed =
        b.db.run_command(doc! { "killCursors": "readings", "cursors": [id] })
            .run()?;
    equal!(
        killed.get_array("cursorsKilled")?.as_slice(),
        [Bson::Int64(id)]
    );
    let again =
        b.db.run_command(doc! { "getMore": id, "collection": "readings" })
            .run();
    equal!(code_of(again)?, 43);
    Ok(())
}

fn count_and_distinct(b: &Bench) -> Outcome {
    let count = b.readings.count_documents(doc! { "sensor": "s2" }).run()?;
    equal!(count, (2..TOTAL).step_by(SENSORS as usize).count() as u64);
    equal!(b.readings.estimated_document_count().run()?, TOTAL as u64);
    let names = b.readings.distinct("sensor", doc! {}).run()?;
    let names: BTreeSet<&str> = names.iter().filter_map(Bson::as_str).collect();
    equal!(names, BTreeSet::from(["s0", "s1", "s2", "s3"]));
    Ok(())
}

fn list_collections_and_databases(b: &Bench) -> Outcome {
    ensure!(
        b.client
            .list_database_names()
            .run()?
            .iter()
            .any(|n| n == b.db.name())
    );
    let mut names = b.db.list_collection_names().run()?;
    names.retain(|n| !n.starts_with("system."));
    equal!(names, ["readings"]);
    Ok(())
}

fn read_buckets(b: &Bench) -> Outcome {
    let buckets =
        b.db.collection::<Document>("system.buckets.readings")
            .find(doc! {})
            .run()?;
    let (mut series, mut count) = (BTreeSet::new(), 0);
    for bucket in buckets {
        let bucket = bucket?;
        let control = bucket.get_document("control")?;
        ensure!([2, 3].contains(&control.get_i32("version")?));
        count += control.get_i32("count")?;
        series.insert(bucket.get_str("meta")?.to_string());
    }
    equal!(series.len(), SENSORS as usize);
    equal!(count, TOTAL);
    Ok(())
}

fn every_type_comes_back(b: &Bench) -> Outcome {
    b.db.create_collection("types")
        .timeseries(TimeseriesOptions::builder().time_field("t").build())
        .run()?;
    let types = b.db.collection::<Document>("types");
    let values: Vec<Bson> = vec![
        Bson::Double(1.5),
        Bson::Double(f64::INFINITY),
        "text".into(),
        doc! { "a": { "b": [1, "x"] } }.into(),
        Bson::Array(vec![
            1.into(),
            Bson::Array(vec![2.into()]),
            doc! { "c": null }.into(),
        ]),
        Binary {
            subtype: BinarySubtype::Generic,
            bytes: vec![0, 1],
        }
        .into(),
        ObjectId::parse_str("0123456789abcdef01234567")?.into(),
        true.into(),
        Bson::Null,
        Bson::RegularExpression(Regex {
            pattern: "^a".try_into()?,
            options: "i".try_into()?,
        }),
        i32::MAX.into(),
        (1_i64 << 40).into(),
        Bson::Timestamp(Timestamp {
            time: 5,
            increment: 6,
        }),
        Bson::Decimal128("1.10".parse()?),
        Bson::MinKey,
        Bson::MaxKey,
        Bson::JavaScriptCode("f()".into()),
        JavaScriptCodeWithScope {
            code: "g()".into(),
            scope: doc! { "x": 1 },
        }
        .into(),
        DateTime::from_millis(-2_177_452_800_000).into(),
    ];
    let early = |i: usize| DateTime::from_millis(-3_124_224_000_000 + i as i64 * MINUTE);
    let documents: Vec<Document> = values
        .iter()
        .enumerate()
        .map(|(i, v)| doc! { "_id": i as i32, "t": early(i), "v": v })
        .collect();
    types.insert_many(&documents).run()?;
    let got: Vec<Document> = types
        .find(doc! {})
        .sort(doc! { "_id": 1 })
        .run()?
        .collect::<Result<_, _>>()?;
    for (got, expected) in got.iter().zip(&documents) {
        equal!(got.get("v"), expected.get("v"));
        equal!(got.get("t"), expected.get("t"));
    }
    equal!(got.len(), documents.len());
    types.drop().run()?;
    Ok(())
}

fn ordinary_collection(b: &Bench) -> Outcome {
    let plain = b.db.collection::<Document>("plain");
    let tags = ["a", "b"];
    plain
        .insert_many((0..6).map(|i| doc! { "_id": i, "tags": tags[..(i % 3) as usize].to_vec() }))
        .run()?;
    let found = plain
        .find(doc! { "tags": "b" })
        .sort(doc! { "_id": 1 })
        .run()?;
    let ids: Vec<i32> = found
        .map(|d| Ok(d?.get_i32("_id")?))
        .collect::<Outcome<_>>()?;
    equal!(ids, [2, 5]);
    equal!(code_of(plain.insert_one(doc! { "_id": 3 }).run())?, 11000);
    plain.drop().run()?;
    Ok(())
}

fn compressed_messages(b: &Bench) -> Outcome {
    for compressor in [Compressor::Snappy, Compressor::Zlib { level: None }] {
        let mut options = ClientOptions::parse(&b.uri).run()?;
        options.compressors = Some(vec![compressor]);
        let other = Client::with_options(options)?;
        let readings = other
            .database(b.db.name())
            .collection::<Document>("readings");
        let found = readings.find(doc! { "n": { "$lt": TOTAL } }).run()?;
        equal!(found.collect::<Result<Vec<_>, _>>()?.len(), TOTAL as usize);
    }
    Ok(())
}

fn ordered_and_unordered_errors(b: &Bench) -> Outcome {
    b.db.create_collection("mixed")
        .timeseries(timeseries(TimeseriesGranularity::Seconds))
        .run()?;
    let mixed = b.db.collection::<Document>("mixed");
    for (ordered, left) in [(true, 1), (false, 3)] {
        let batch = [measurement(0), doc! { "sensor": "x" }, measurement(1)];
        let Err(error) = mixed.insert_many(batch).ordered(ordered).run() else {
            return Err("no error".into());
        };
        let ErrorKind::InsertMany(failed) = &*error.kind else {
            return Err(error.into());
        };
        let indexes = failed.write_errors.iter().flatten().map(|e| e.index);
        equal!(indexes.collect::<Vec<_>>(), [1]);
        equal!(mixed.count_documents(doc! {}).run()?, left);
    }
    mixed.drop().run()?;
    Ok(())
}

fn error_create_with_other_options(b: &Bench) -> Outcome {
    let other = timeseries(TimeseriesGranularity::Hours);
    equal!(
        code_of(b.db.create_collection("readings").timeseries(other).run())?,
        48
    );
    Ok(())
}

fn error_no_date(b: &Bench) -> Outcome {
    equal!(
        code_of(
            b.readings
                .insert_one(doc! { "sensor": "s0", "value": 1 })
                .run()
        )?,
        2
    );
    equal!(
        code_of(
            b.readings
                .insert_one(doc! { "time": "today", "sensor": "s0" })
                .run()
        )?,
        2
    );
    Ok(())
}

fn error_unknown_command(b: &Bench) -> Outcome {
    equal!(
        code_of(b.db.run_command(doc! { "noSuchCommand": 1 }).run())?,
        59
    );
    Ok(())
}

fn error_unknown_stage(b: &Bench) -> Outcome {
    equal!(
        code_of(b.readings.aggregate([doc! { "$noSuchStage": {} }]).run())?,
        40324
    );
    Ok(())
}

fn drop_all(b: &Bench) -> Outcome {
    b.readings.drop().run()?;
    let names = b.db.list_collection_names().run()?;
    ensure!(
        !names
            .iter()
            .any(|n| n == "readings" || n == "system.buckets.readings")
    );
    b.db.drop().run()?;
    ensure!(
        !b.client
            .list_database_names()
            .run()?
            .iter()
            .any(|n| n == b.db.name())
    );
    Ok(())
}

type Check = (&'static str, fn(&Bench) -> Outcome);

const CHECKS: [Check; 20] = [
    ("connect_and_ping", connect_and_ping),
    ("create_time_series", create_time_series),
    ("insert_one_by_one", insert_one_by_one),
    ("insert_in_bulk", insert_in_bulk),
    (
        "find_filter_sort_limit_projection",
        find_filter_sort_limit_projection,
    ),
    ("aggregate_by_hour", aggregate_by_hour),
    ("cursor_over_batches", cursor_over_batches),
    ("cursor_closed_early", cursor_closed_early),
    ("count_and_distinct", count_and_distinct),
    (
        "list_collections_and_databases",
        list_collections_and_databases,
    ),
    ("read_buckets", read_buckets),
    ("every_type_comes_back", every_type_comes_back),
    ("ordinary_collection", ordinary_collection),
    ("compressed_messages", compressed_messages),
    ("ordered_and_unordered_errors", ordered_and_unordered_errors),
    (
        "error_create_with_other_options",
        error_create_with_other_options,
    ),
    ("error_no_date", error_no_date),
    ("error_unknown_command", error_unknown_command),
    ("error_unknown_stage", error_unknown_stage),
    ("drop", drop_all),
];

fn main() -> Outcome {
    let uri = std::env::var("NILOMETER_URI")?;
    let mut options = ClientOptions::parse(&uri).run()?;
    options.server_selection_timeout = Some(Duration::from_secs(10));
    let client = Client::with_options(options)?;
    let db = client.database("conformance_rust");
    let readings = db.collection("readings");
    let bench = Bench {
        uri,
        client,
        db,
        readings,
    };
    for (name, check) in CHECKS {
        match check(&bench) {
            Ok(()) => println!("ok {name}"),
            Err(e) => println!("not ok {name}: {}", e.to_string().replace('\n', " ")),
        }
    }
    Ok(())
}
