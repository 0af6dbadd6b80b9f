//! Streams of rollups: a bin is shown when a refresh stores it.

use super::*;

const HOUR_MS: i64 = 3_600_000;
const FIRST_MS: i64 = START_MS / HOUR_MS * HOUR_MS;

fn insert(fixture: &mut Fixture, hour: i64, value: i32) {
    let row = doc! {"t": Value::DateTime(FIRST_MS + hour * HOUR_MS), "m": 1, "v": value};
    fixture.run(doc! {"insert": "ts", "documents": array![row]});
}

/// Returns the kind, hour and sum of each event since the last call, in the order of the hours.
fn bins(stream: &mut Stream, fixture: &mut Fixture) -> Vec<(String, i64, i64)> {
    stream.events.clear();
    let events = stream.read(fixture).iter();
    let mut found: Vec<_> = events
        .map(|event| {
            let key = event.get("documentKey").as_document().unwrap();
            let id = key.get("_id").as_document().unwrap();
            let ValueRef::DateTime(at) = id.get("t") else {
                panic!("{}", show(event));
            };
            let shown = event.get("fullDocument").as_document();
            let sum = shown.and_then(|bin| bin.get("sum").as_exact_i64());
            let hour = (at - FIRST_MS) / HOUR_MS;
            (kind(event).to_owned(), hour, sum.unwrap_or(0))
        })
        .collect();
    found.sort_by_key(|(_, hour, _)| *hour);
    found
}

#[test]
fn a_stream_of_a_rollup_shows_its_bins() {
    let mut fixture = in_memory();
    create(&mut fixture);
    let key = doc! {"t": doc! {"$dateTrunc": doc! {"date": "$t", "unit": "hour"}}};
    let stage = doc! {"$group": doc! {"_id": key, "sum": doc! {"$sum": "$v"}}};
    let rollup = doc! {"source": "ts", "pipeline": array![stage], "lateness": 0, "refresh": 0};
    fixture.run(doc! {"create": "hourly", "rollup": rollup});
    let mut stream = Stream::open(&mut fixture, watch("hourly", doc! {}, vec![]));
    let event = |kind: &str, hour, sum| (kind.to_owned(), hour, sum);

    // The last hour is open.
    for hour in 0..4 {
        insert(&mut fixture, hour, 10);
    }
    assert_eq!(bins(&mut stream, &mut fixture), []);
    fixture.run(doc! {"refreshRollup": "hourly"});
    let found = bins(&mut stream, &mut fixture);
    let stored = [0, 1, 2].map(|hour| event("insert", hour, 10));
    assert_eq!(found, stored);

    // One changes, one becomes empty, and one is computed again and stays as it is.
    insert(&mut fixture, 0, 5);
    let hour =
        |hour: i64| doc! {"q": doc! {"t": Value::DateTime(FIRST_MS + hour * HOUR_MS)}, "limit": 0};
    fixture.run(doc! {"delete": "ts", "deletes": array![hour(1), hour(2)]});
    insert(&mut fixture, 2, 10);
    fixture.run(doc! {"refreshRollup": "hourly"});
    let found = bins(&mut stream, &mut fixture);
    assert_eq!(found, [event("replace", 0, 15), event("delete", 1, 0)]);

    // A server that applies the oplog computes bins itself.
    let logged = doc! {"find": "oplog.rs", "filter": doc! {"ns": "test.hourly"}};
    let logged = fixture.reply_on("local", logged);
    assert!(cursor(&logged, "firstBatch").2.is_empty());
    fixture.run(doc! {"drop": "hourly"});
    stream.events.clear();
    let events = stream.read(&mut fixture);
    assert_eq!(kinds(events), ["drop", "invalidate"]);
}
