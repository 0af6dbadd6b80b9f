//! The parts of the change log: new ones, old ones that are removed, and the end of the log.

use std::time::{Duration, Instant};

use nilometer::Database;
use nilometer::change_log::ChangeLogOptions;
use nilometer::services::Environment;
use nilometer_bson::testing::with_sorted_fields;
use nilometer_bson::{Array, Value, array, doc};

use super::{START_MS, Stream, create, id_of, in_directory, sorted, watch};
use crate::support::{Fixture, TemporaryDirectory, cursor, primary_environment, show};

/// Returns an environment whose log has small parts.
fn with_small_parts(retention_min_ms: i64) -> Environment {
    Environment {
        change_log: ChangeLogOptions {
            bytes_max: 16 << 10,
            retention_min_ms,
        },
        ..primary_environment()
    }
}

fn measurement(at: i32) -> Value {
    let time = Value::DateTime(START_MS + i64::from(at));
    doc! {"_id": at, "t": time, "m": doc! {"host": at % 3}, "v": at, "text": "of a measurement"}
        .into()
}

/// The log continues in new parts while the buckets stay the same. Time must pass, because parts end at intervals.
#[test]
fn measurements_are_read_over_parts_of_the_log() {
    let directory = TemporaryDirectory::new();
    let open =
        || Fixture::of(Database::open_with(&directory.0, with_small_parts(i64::MAX)).unwrap());
    let mut fixture = open();
    create(&mut fixture);
    let mut stream = Stream::open(&mut fixture, watch("ts", doc! {}, vec![]));
    let token = stream.token.clone();
    let mut next = 0;
    for _ in 0..2 {
        let until = Instant::now() + Duration::from_millis(1300);
        while Instant::now() < until {
            let documents: Array = (next..next + 40).map(measurement).collect();
            fixture.run(doc! {"insert": "ts", "documents": documents});
            next += 40;
            if next >= 4000 {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        drop(fixture);
        fixture = open();
    }
    stream = Stream::open(
        &mut fixture,
        watch("ts", doc! {"resumeAfter": token}, vec![]),
    );
    let events = stream.read(&mut fixture);
    let inserted = events.iter().map(|event| {
        let document = event.get("fullDocument").as_document().unwrap();
        with_sorted_fields(document)
    });
    let wanted = (0..next).map(|at| {
        let document = measurement(at);
        with_sorted_fields(document.as_ref().as_document().unwrap())
    });
    assert!(
        sorted(inserted) == sorted(wanted),
        "{} of {next}",
        events.len()
    );
}

/// Waits until the oldest entries are gone. Then a token of theirs is too old.
#[test]
fn old_entries_are_removed_and_their_tokens_are_refused() {
    let mut fixture = Fixture::of(Database::in_memory_with(with_small_parts(0)).unwrap());
    let mut stream = Stream::open(&mut fixture, watch("c", doc! {}, vec![]));
    fixture.run(doc! {"insert": "c", "documents": array![doc! {"_id": 0}]});
    stream.read(&mut fixture);
    let token = id_of(&stream.events[0]);
    let resume = || watch("c", doc! {"resumeAfter": token.clone()}, vec![]);
    let until = Instant::now() + Duration::from_secs(60);
    for id in 1.. {
        let text = "x".repeat(4096);
        fixture.run(doc! {"insert": "c", "documents": array![doc! {"_id": id, "text": text}]});
        let reply = fixture.reply(resume());
        match reply.get("code").as_exact_i64() {
            Some(code) => {
                assert_eq!(code, 286, "{}", show(&reply));
                let labels = reply.get("errorLabels").as_array().unwrap();
                assert_eq!(
                    labels.get(0).as_str(),
                    Some("NonResumableChangeStreamError")
                );
                break;
            }
            None => {
                let (id, _, _) = cursor(&reply, "firstBatch");
                fixture.run(doc! {"killCursors": "c", "cursors": array![id]});
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        assert!(Instant::now() < until, "nothing was removed");
    }
    // The open stream comes too late, too.
    let more = doc! {"getMore": stream.id, "collection": "c", "maxTimeMS": 1};
    assert_eq!(fixture.code(more), 286);
}

/// Without a set changes are not noted, so the log must not continue after them.
#[test]
fn a_start_without_the_set_ends_the_log() {
    let directory = TemporaryDirectory::new();
    let mut fixture = in_directory(&directory.0);
    let stream = Stream::open(&mut fixture, watch("c", doc! {}, vec![]));
    let token = stream.token;
    drop(fixture);
    let mut fixture = in_directory(&directory.0);
    let resume = watch("c", doc! {"resumeAfter": token}, vec![]);
    Stream::open(&mut fixture, resume.clone());
    drop(fixture);
    let mut fixture = Fixture::open(&directory.0);
    let reply = fixture.run(doc! {"insert": "c", "documents": array![doc! {"_id": 1}]});
    assert!(reply.get("operationTime").is_missing());
    drop(fixture);
    let mut fixture = in_directory(&directory.0);
    assert_eq!(fixture.code(resume), 286);
}
