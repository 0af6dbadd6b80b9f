//! What a rollup has stored: as its status shows it, and byte for byte.

use std::sync::Arc;

use nilometer_bson::{Value, ValueRef, array, doc};
use nilometer_storage::{Engine, MemoryEngine};

use crate::rollups::{
    HOUR_MS, START_MS, accumulators, group, hours_and_days, insert, opened, trunc,
};
use crate::support::show;

#[test]
fn the_status_of_a_rollup_shows_its_dirty_bins() {
    let (_, _, mut fixture) = hours_and_days();
    let empty = fixture.run(doc! {"rollupStatus": "hourly"});
    assert!(matches!(empty.get("storedBefore"), ValueRef::Null));
    for hour in 0..10 {
        insert(&mut fixture, START_MS + hour * HOUR_MS, "a", 1);
    }
    fixture.run(doc! {"refreshRollup": "hourly"});
    for hour in [2, 3, 6] {
        insert(&mut fixture, START_MS + hour * HOUR_MS + 1, "a", 1);
    }
    let at = |hour: i64| Value::DateTime(START_MS / HOUR_MS * HOUR_MS + hour * HOUR_MS);
    let status = fixture.run(doc! {"rollupStatus": "hourly"});
    let dirty = array![
        doc! {"from": at(2), "to": at(4)},
        doc! {"from": at(6), "to": at(7)}
    ];
    let expected = doc! {
        "ns": "test.hourly", "source": "ts", "storedBefore": at(9), "frozenBefore": Value::Null,
        "expiredBefore": Value::Null, "dirty": dirty, "isEveryDirtySpanShown": true, "ok": 1.0,
    };
    assert_eq!(show(&status), show(&expected));
    fixture.run(doc! {"refreshRollup": "hourly"});
    let status = fixture.run(doc! {"rollupStatus": "hourly"});
    assert_eq!(status.get("dirty").as_array().unwrap().iter().count(), 0);
    for name in ["ts", "none"] {
        let reply = fixture.reply(doc! {"rollupStatus": name});
        assert_eq!(reply.get("code").as_exact_i64(), Some(26));
    }
}

/// The keyspace of a rollup: its header, the random version of the bins, a mark and a bin.
const STORED_FORM: &str = "\
00 {generation: Int64(1), closed: Int64(1700010000000), frozen: Int64(-9223372036854775808), expired: Int64(-9223372036854775808), arrays: Bool(false)}\n\
0001 8 bytes\n\
018000018bd047100000000000000000018000018bd07dfe804605626564003c6200000b7400788000018bd047100000 {k: {bed: String(\"b\"), t: DateTime(1700006400000)}}\n\
028000018bd04710004605626564003c6100000b7400788000018bd047100000 {k: {bed: String(\"a\"), t: DateTime(1700006400000)}, s: [Binary { subtype: 0, bytes: [0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] }, Binary { subtype: 0, bytes: [0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0] }, Int64(2), Binary { subtype: 0, bytes: [0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] }, [Int32(1)], [Int32(4)], [[[DateTime(1700006400000), Null], Int32(1)]], [[[DateTime(1700006460000), Null], Int32(4)]], [[[DateTime(1700006400000), Null], Null], [[DateTime(1700006460000), Null], Null]], [Int64(2), Double(2.5), Double(4.5)], [], Binary { subtype: 0, bytes: [0, 0, 0, 0, 0, 0, 240, 63, 0, 0, 0, 0, 0, 0, 16, 64] }, Binary { subtype: 0, bytes: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] }]}\n\
";

#[test]
fn the_stored_form_is_as_documented() {
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
    let mut fixture = opened(&engine, &Arc::default());
    let options = doc! {"timeField": "t", "metaField": "m"};
    fixture.run(doc! {"create": "ts", "timeseries": options});
    let key = doc! {"bed": "$m.bed", "t": trunc("hour", 1, "$t")};
    let stages = array![group(key, &accumulators())];
    let rollup = doc! {"source": "ts", "pipeline": stages, "lateness": 0, "refresh": 0};
    fixture.run(doc! {"create": "hourly", "rollup": rollup});
    for (at, value) in [(0, 1), (60_000, 4), (HOUR_MS, 2)] {
        insert(&mut fixture, START_MS + at, "a", value);
    }
    fixture.run(doc! {"refreshRollup": "hourly"});
    insert(&mut fixture, START_MS + 120_000, "b", 7);
    let keyspaces = engine.keyspaces();
    let keyspace = keyspaces
        .iter()
        .find(|found| found.name.starts_with("rollup/"));
    let snapshot = engine.snapshot().unwrap();
    let scan = snapshot.scan(
        keyspace.unwrap().id,
        &[],
        None,
        nilometer_storage::Direction::Forward,
    );
    let mut found = String::new();
    for item in scan.unwrap() {
        let (key, value) = item.unwrap();
        let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        let value = match nilometer_bson::DocRef::new(&value) {
            Some(document) => show(&document.to_document()),
            None => format!("{} bytes", value.len()),
        };
        found.push_str(&format!("{key} {value}\n"));
    }
    assert_eq!(found, STORED_FORM, "{found}");
}

/// A mark of several bins has the key of the first one.
#[test]
fn a_bin_is_found_by_its_whole_key_while_several_are_dirty() {
    let (_, _, mut fixture) = hours_and_days();
    // The first bucket lies in two bins, the other one closes them.
    let from = START_MS / HOUR_MS * HOUR_MS + HOUR_MS / 2;
    for quarter in [0, 1, 2, 3, 40] {
        insert(&mut fixture, from + quarter * HOUR_MS / 4, "a", 1);
    }
    fixture.run(doc! {"refreshRollup": "hourly"});
    fixture.run(doc! {
        "update": "ts",
        "updates": array![doc! {"q": doc! {}, "u": doc! {"$inc": doc! {"v": 5}}, "multi": true}],
    });
    let all = fixture.all(doc! {"find": "hourly", "sort": doc! {"_id": 1}});
    assert_eq!(all.len(), 3);
    for bin in all {
        let filter = doc! {"_id": bin.get("_id").to_value()};
        let found = fixture.all(doc! {"find": "hourly", "filter": filter});
        let shown: Vec<String> = found.iter().map(show).collect();
        assert_eq!(shown, [show(&bin)]);
    }
}
