//! Indexes of rollups: what they may be, that queries use them, and that they follow the bins. Random histories of them are in
//! `rollups.rs`.

use nilometer_bson::{Document, Value, ValueRef, array, doc};

use crate::random::Random;
use crate::rollups::{DAY_MS, HOUR_MS, START_MS, hours_and_days, insert, opened, trunc};
use crate::support::{Fixture, show};

/// Returns a command that makes or drops an index of a rollup of a random history.
pub(crate) fn index_change(random: &mut Random, name: &str) -> Document {
    let keys = [
        doc! {"bed": 1, "t": 1},
        doc! {"t": -1, "bed": 1},
        doc! {"kind": 1},
        doc! {"max": -1},
        doc! {"bed": 1, "n": -1},
        doc! {"least": 1, "bed": 1},
        doc! {"least": 1, "ranks": 1},
        doc! {"_id": 1},
        doc! {"_id.bed": 1, "min": 1},
        doc! {"first.a": 1},
    ];
    let key = random.pick(&keys).clone();
    if random.below(4) == 0 {
        return doc! {"dropIndexes": name, "index": key};
    }
    let mut index = doc! {"key": key.clone(), "name": show(&key)};
    if random.below(5) == 0 {
        let filter = doc! {"n": doc! {"$gte": 2}};
        index = doc! {"key": key.clone(), "name": show(&key), "partialFilterExpression": filter};
    }
    doc! {"createIndexes": name, "indexes": array![index]}
}

/// Returns a condition on documents of a rollup of a random history.
pub(crate) fn indexed_filter(random: &mut Random, at: i64) -> Document {
    let n = random.int(120);
    match random.below(11) {
        0 => doc! {"bed": "bed 1"},
        1 => {
            let from = at - random.below(60) as i64 * HOUR_MS;
            let until = from + random.below(40) as i64 * HOUR_MS;
            doc! {"t": doc! {"$gte": Value::DateTime(from), "$lt": Value::DateTime(until)}}
        }
        2 => doc! {"max": doc! {"$gt": n}},
        3 => doc! {"least": n},
        4 => doc! {"n": doc! {"$gte": 2}},
        5 => doc! {"bed": doc! {"$in": array!["bed 0", "p", Value::Null]}},
        6 => doc! {"least": doc! {"$gt": n, "$lt": n + 9}},
        7 => doc! {"_id.bed": "bed 2", "min": doc! {"$lt": n}},
        8 => doc! {"kind": "a"},
        9 => doc! {"least": doc! {"$elemMatch": doc! {"$gte": n, "$lt": n + 20}}},
        _ => doc! {"first.a": doc! {"$exists": true}},
    }
}

pub(crate) fn is_true(value: ValueRef<'_>) -> bool {
    matches!(value, ValueRef::Bool(true))
}

fn create_index(fixture: &mut Fixture, rollup: &str, key: Document, name: &str) {
    let index = doc! {"key": key, "name": name};
    fixture.run(doc! {"createIndexes": rollup, "indexes": array![index]});
}

fn names(fixture: &mut Fixture, rollup: &str) -> Vec<String> {
    let listed = fixture.all(doc! {"listIndexes": rollup});
    let name = |index: &Document| index.get("name").as_str().unwrap().to_owned();
    listed.iter().map(name).collect()
}

/// A time series of ten beds for a hundred hours, and a rollup by bed and hour that stores all but the last hours.
fn beds(fixture: &mut Fixture) {
    fixture.run(doc! {"create": "ts", "timeseries": doc! {"timeField": "t", "metaField": "m"}});
    let key = doc! {"bed": "$m.bed", "t": trunc("hour", 1, "$t")};
    let stage = doc! {"$group": doc! {"_id": key, "sum": doc! {"$sum": "$v"}}};
    let rollup = doc! {"source": "ts", "pipeline": array![stage], "lateness": 7200, "refresh": 0};
    fixture.run(doc! {"create": "hourly", "rollup": rollup});
    for hour in 0..100 {
        let rows = (0..10).map(|bed| {
            let at = Value::DateTime(START_MS + hour * HOUR_MS);
            Value::from(doc! {"t": at, "m": doc! {"bed": format!("bed {bed}")}, "v": bed * 1000 + hour as i32})
        });
        let rows: Vec<Value> = rows.collect();
        fixture.run(doc! {"insert": "ts", "documents": rows});
    }
    fixture.run(doc! {"refreshRollup": "hourly"});
}

fn stats(fixture: &mut Fixture, query: Document) -> Document {
    let explained = fixture.run(doc! {"explain": query, "verbosity": "executionStats"});
    explained
        .get("executionStats")
        .as_document()
        .or_else(|| {
            let stages = explained.get("stages").as_array()?;
            let first = stages.iter().next()?.as_document()?;
            let cursor = first.get("$cursor").as_document()?;
            cursor.get("executionStats").as_document()
        })
        .unwrap_or_else(|| panic!("{}", show(&explained)))
        .to_document()
}

fn examined(fixture: &mut Fixture, query: Document) -> (i64, i64) {
    let stats = stats(fixture, query);
    let of = |name: &str| stats.get(name).as_exact_i64().unwrap();
    (of("totalKeysExamined"), of("totalDocsExamined"))
}

#[test]
fn a_condition_reads_the_bins_of_its_series_by_an_index() {
    let mut fixture = Fixture::new();
    beds(&mut fixture);
    let find = |extra: Document| {
        let mut out = nilometer_bson::DocumentBuilder::extending(doc! {"find": "hourly"});
        out.append_all(extra.as_ref());
        out.finish()
    };
    let bed = || find(doc! {"filter": doc! {"bed": "bed 3"}});
    let plain = fixture.all(bed());
    assert_eq!(plain.len(), 100);
    create_index(&mut fixture, "hourly", doc! {"bed": 1, "t": 1}, "bed_1_t_1");
    create_index(&mut fixture, "hourly", doc! {"sum": -1}, "sum_-1");
    create_index(&mut fixture, "hourly", doc! {"t": 1}, "t_1");
    let explained = show(&fixture.run(doc! {"explain": bed()}));
    for part in ["IXSCAN", "bed_1_t_1", "ROLLUP"] {
        assert!(explained.contains(part), "{explained}");
    }
    let (keys, documents) = examined(&mut fixture, bed());
    assert!(
        (90..=98).contains(&keys) && documents <= 120,
        "{keys} {documents}"
    );
    let mut found = fixture.all(bed());
    let time = |row: &Document| match row.get("t") {
        ValueRef::DateTime(at) => at,
        other => panic!("{other:?}"),
    };
    found.sort_by_key(time);
    assert_eq!(found, plain);
    // A range of time within the series reads no more.
    let from = Value::DateTime(START_MS + 10 * HOUR_MS);
    let to = Value::DateTime(START_MS + 14 * HOUR_MS);
    let span = doc! {"$gte": from, "$lt": to};
    let narrow = find(doc! {"filter": doc! {"bed": "bed 3", "t": span.clone()}});
    let (keys, documents) = examined(&mut fixture, narrow.clone());
    assert!(keys <= 5 && documents == 4, "{keys} {documents}");
    assert_eq!(fixture.all(narrow).len(), 4);
    // Bins lie in the order of their time.
    let by_time = find(doc! {"filter": doc! {"t": span.clone()}});
    assert_eq!(examined(&mut fixture, by_time.clone()), (0, 40));
    let hinted = find(doc! {"filter": doc! {"t": span}, "hint": "t_1"});
    assert_eq!(examined(&mut fixture, hinted).0, 40);
    // An accumulator.
    let large = find(doc! {"filter": doc! {"sum": doc! {"$gte": 9090}}});
    let (keys, _) = examined(&mut fixture, large.clone());
    assert!(keys <= 9, "{keys}");
    assert_eq!(fixture.all(large).len(), 10);
    let natural = find(doc! {"filter": doc! {"bed": "bed 3"}, "hint": doc! {"$natural": 1}});
    assert_eq!(examined(&mut fixture, natural.clone()).0, 0);
    assert_eq!(fixture.all(natural), plain);
    // A group of the source that the rollup answers.
    let group = doc! {"$group": doc! {"_id": trunc("day", 1, "$t"), "sum": doc! {"$sum": "$v"}}};
    let stages = array![doc! {"$match": doc! {"m.bed": "bed 3"}}, group];
    let explained = fixture
        .run(doc! {"explain": doc! {"aggregate": "ts", "pipeline": stages, "cursor": doc! {}}});
    assert!(
        show(&explained).contains("bed_1_t_1"),
        "{}",
        show(&explained)
    );
    // A hidden index is not used.
    let hide = doc! {"name": "bed_1_t_1", "hidden": true};
    let reply = fixture.run(doc! {"collMod": "hourly", "index": hide});
    assert!(is_true(reply.get("hidden_new")));
    assert_eq!(examined(&mut fixture, bed()).0, 0);
    let reply = fixture.reply(find(doc! {"hint": "bed_1_t_1"}));
    assert_eq!(
        reply.get("code").as_exact_i64(),
        Some(2),
        "{}",
        show(&reply)
    );
}

#[test]
fn indexes_follow_late_data_expiry_and_restarts() {
    let (engine, clock, mut fixture) = hours_and_days();
    // Nothing is stored yet.
    create_index(&mut fixture, "hourly", doc! {"sum": 1}, "sum_1");
    for hour in 0..50 {
        insert(&mut fixture, START_MS + hour * HOUR_MS, "a", 1);
    }
    fixture.run(doc! {"refreshRollup": "hourly"});
    fixture.run(doc! {"refreshRollup": "daily"});
    create_index(&mut fixture, "daily", doc! {"sum": 1}, "sum_1");
    let found = |fixture: &mut Fixture, name: &str, sum: i32| {
        fixture
            .all(doc! {"find": name, "filter": doc! {"sum": sum}})
            .len()
    };
    let entries = |fixture: &mut Fixture, name: &str| {
        let checked = fixture.run(doc! {"validate": name});
        assert!(is_true(checked.get("valid")), "{}", show(&checked));
        let keys = checked
            .get("keysPerIndex")
            .as_document()
            .unwrap()
            .to_document();
        keys.get("sum_1").as_exact_i64().unwrap()
    };
    assert_eq!(found(&mut fixture, "hourly", 1), 50);
    assert_eq!(found(&mut fixture, "daily", 24), 2);
    assert_eq!(
        (
            entries(&mut fixture, "hourly"),
            entries(&mut fixture, "daily")
        ),
        (49, 2)
    );
    // Dirty, then stored again.
    for _ in 0..2 {
        insert(&mut fixture, START_MS + 7 * HOUR_MS, "b", 4);
        let sum = fixture.all(
            doc! {"find": "hourly", "filter": doc! {"t": Value::DateTime(START_MS + 7 * HOUR_MS)}},
        );
        let sum = sum[0].get("sum").as_exact_i64().unwrap() as i32;
        for _ in 0..2 {
            assert_eq!(found(&mut fixture, "hourly", sum), 1);
            assert_eq!(found(&mut fixture, "hourly", 1), 49);
            assert_eq!(found(&mut fixture, "daily", 23 + sum), 1);
            for name in ["hourly", "daily"] {
                fixture.run(doc! {"refreshRollup": name});
                assert_eq!(
                    entries(&mut fixture, name),
                    if name == "daily" { 2 } else { 49 }
                );
            }
        }
    }
    // A bin without measurements is gone.
    let gone = doc! {"t": Value::DateTime(START_MS + 9 * HOUR_MS)};
    fixture.run(doc! {"delete": "ts", "deletes": array![doc! {"q": gone, "limit": 0}]});
    assert_eq!(found(&mut fixture, "hourly", 1), 48);
    fixture.run(doc! {"refreshRollup": "hourly"});
    assert_eq!(entries(&mut fixture, "hourly"), 48);
    drop(std::mem::replace(&mut fixture, Fixture::new()));
    fixture = opened(&engine, &clock);
    assert_eq!(names(&mut fixture, "hourly"), ["sum_1"]);
    assert_eq!(found(&mut fixture, "hourly", 1), 48);
    // Expiry removes entries with their bins.
    let age = 100 * 24 - 30;
    fixture.run(doc! {"collMod": "hourly", "expireAfterSeconds": age * 3600});
    fixture.run(doc! {"refreshRollup": "hourly"});
    assert_eq!(found(&mut fixture, "hourly", 1), 20);
    assert_eq!(entries(&mut fixture, "hourly"), 19);
    // The keyspaces go with the index, and with the rollup.
    let keyspaces = engine.keyspaces().len();
    fixture.run(doc! {"dropIndexes": "hourly", "index": "sum_1"});
    assert_eq!(engine.keyspaces().len(), keyspaces - 1);
    fixture.run(doc! {"drop": "daily"});
    assert_eq!(engine.keyspaces().len(), keyspaces - 3);
    assert!(names(&mut fixture, "hourly").is_empty());
}

#[test]
fn a_partial_index_has_bins_after_many_without_entries() {
    let (_, _, mut fixture) = hours_and_days();
    let rows = (0..9_000).map(|hour| {
        let at = Value::DateTime(START_MS - 9_000 * HOUR_MS + hour * HOUR_MS);
        Value::from(doc! {"t": at, "m": 1, "v": i32::from(hour > 8_990)})
    });
    let rows: Vec<Value> = rows.collect();
    fixture.run(doc! {"insert": "ts", "documents": rows});
    fixture.run(doc! {"refreshRollup": "hourly"});
    let filter = doc! {"sum": doc! {"$gt": 0}};
    let index = doc! {"key": doc! {"sum": 1}, "name": "some", "partialFilterExpression": filter};
    fixture.run(doc! {"createIndexes": "hourly", "indexes": array![index]});
    let checked = fixture.run(doc! {"validate": "hourly"});
    assert!(is_true(checked.get("valid")), "{}", show(&checked));
    let query = doc! {"find": "hourly", "filter": doc! {"sum": 1}};
    assert_eq!(fixture.all(query).len(), 9);
}

#[test]
fn a_rollup_that_waits_for_its_source_has_indexes() {
    let mut fixture = Fixture::new();
    let stage = doc! {"$group": doc! {"_id": doc! {"t": trunc("day", 1, "$t")}, "sum": doc! {"$sum": "$v"}}};
    let rollup = doc! {"source": "ts", "pipeline": array![stage], "lateness": 0, "refresh": 0};
    fixture.run(doc! {"create": "daily", "rollup": rollup});
    create_index(&mut fixture, "daily", doc! {"sum": 1}, "sum_1");
    // The definition has them: dumps have no other place for indexes of views.
    let listed = fixture.all(doc! {"listCollections": 1, "filter": doc! {"name": "daily"}});
    let options = listed[0]
        .get("options")
        .as_document()
        .unwrap()
        .to_document();
    fixture.run(doc! {"drop": "daily"});
    let mut create = nilometer_bson::DocumentBuilder::extending(doc! {"create": "daily"});
    create.append_all(options.as_ref());
    let create = create.finish();
    for _ in 0..2 {
        fixture.run(create.clone());
        assert_eq!(names(&mut fixture, "daily"), ["sum_1"]);
    }
    fixture.run(doc! {"create": "ts", "timeseries": doc! {"timeField": "t", "metaField": "m"}});
    for day in 0..5 {
        insert(&mut fixture, START_MS + day * DAY_MS, "a", 7);
    }
    fixture.run(doc! {"refreshRollup": "daily"});
    let query = doc! {"find": "daily", "filter": doc! {"sum": 7}};
    assert_eq!(examined(&mut fixture, query.clone()).0, 4);
    assert_eq!(fixture.all(query).len(), 5);
}

#[test]
fn what_the_index_of_a_rollup_cannot_be_is_refused() {
    let mut fixture = Fixture::new();
    beds(&mut fixture);
    for (key, options, code) in [
        (doc! {"bed": 1}, doc! {"unique": true}, 72),
        (doc! {"bed": 1}, doc! {"sparse": true}, 72),
        (doc! {"t": 1}, doc! {"expireAfterSeconds": 5}, 72),
        (doc! {"bed": "text"}, doc! {}, 72),
        (doc! {"bed": "hashed"}, doc! {}, 72),
        (doc! {"sum": "2dsphere"}, doc! {}, 72),
        (doc! {"$**": 1}, doc! {}, 72),
        (doc! {"bed": 0}, doc! {}, 67),
        (doc! {"bed": 1}, doc! {"fast": true}, 197),
    ] {
        let mut index = nilometer_bson::DocumentBuilder::new();
        index.append("key", key.clone());
        index.append("name", "i");
        index.append_all(options.as_ref());
        let create = doc! {"createIndexes": "hourly", "indexes": array![index.finish()]};
        let reply = fixture.reply(create);
        assert_eq!(
            reply.get("code").as_exact_i64(),
            Some(code),
            "{}",
            show(&reply)
        );
    }
    assert!(names(&mut fixture, "hourly").is_empty());
    let one = doc! {"key": doc! {"bed": 1}, "name": "one"};
    let create = doc! {"createIndexes": "hourly", "indexes": array![one]};
    let reply = fixture.run(create.clone());
    let of = |reply: &Document, name: &str| reply.get(name).as_exact_i64();
    assert_eq!(
        (
            of(&reply, "numIndexesBefore"),
            of(&reply, "numIndexesAfter")
        ),
        (Some(0), Some(1))
    );
    let again = fixture.run(create);
    assert_eq!(
        again.get("note").as_str(),
        Some("all indexes already exist")
    );
    for (index, code) in [(Value::from("two"), 27), (doc! {"sum": 1}.into(), 27)] {
        let reply = fixture.reply(doc! {"dropIndexes": "hourly", "index": index});
        assert_eq!(of(&reply, "code"), Some(code), "{}", show(&reply));
    }
    let stats = doc! {"aggregate": "hourly", "pipeline": array![doc! {"$indexStats": doc! {}}], "cursor": doc! {}};
    assert_eq!(fixture.all(stats)[0].get("name").as_str(), Some("one"));
    let reply = fixture.run(doc! {"dropIndexes": "hourly", "index": "*"});
    assert_eq!(of(&reply, "nIndexesWas"), Some(1));
    assert!(names(&mut fixture, "hourly").is_empty());
}
