//! Rewrites over buckets, one list of pipelines for each kind: with every rule, without each rule that
//! fires, and without any, over three collections, and over plain documents.
//!
//! `same_answers` runs random pipelines; here are those that a rewrite is made for, and similar ones that
//! it must not apply to. The last test compares docs/rewrites.md, which lists the rewrites, with the code.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use nilometer_bson::extjson::{parse_value, value_to_canonical};
use nilometer_bson::{Document, Value, ValueRef, array, doc};
use nilometer_storage::testing::is_long;

use crate::rules::{aggregate, explained_of, rules_of, stages_of};
use crate::support::{Fixture, show};

/// Midnight, so that borders of buckets, hours and days coincide.
const MIDNIGHT: i64 = 1_699_920_000_000;
const MINUTE: i64 = 60_000;

/// The collections, each with the collection of plain documents it is compared with.
const COLLECTIONS: [(&str, &str); 3] = [("ts", "plain"), ("fixed", "plain"), ("wide", "widely")];

/// Three series over eleven hours, unordered, with fields of every kind; in `wide` some more before 1970
/// and after 2038.
fn fixture() -> Fixture {
    let mut fixture = Fixture::new();
    let standard = doc! {"timeField": "t", "metaField": "m"};
    let fixed = doc! {
        "timeField": "t", "metaField": "m", "bucketMaxSpanSeconds": 3600, "bucketRoundingSeconds": 3600,
    };
    for (name, options) in [("ts", &standard), ("fixed", &fixed), ("wide", &standard)] {
        fixture.run(doc! {"create": name, "timeseries": options.clone()});
    }
    let mut documents: Vec<Value> = Vec::new();
    for at in 0..198i64 {
        // Ten minutes apart, some late.
        let minute = (at / 3) * 10 - if at % 7 == 0 { 25 } else { 0 };
        documents.push(measurement(at, MIDNIGHT + minute * MINUTE + at % 3 * 1000));
    }
    let beyond = [
        -86_400_000,
        -MINUTE,
        -1,
        2_147_483_648_000,
        2_147_483_648_001,
    ];
    let beyond = beyond.iter().zip(1000..);
    let beyond: Vec<Value> = beyond.map(|(time, id)| measurement(id, *time)).collect();
    for name in ["plain", "widely", "ts", "fixed", "wide"] {
        for batch in documents.chunks(50) {
            fixture.run(doc! {"insert": name, "documents": batch.to_vec()});
        }
        if name.starts_with("wide") {
            fixture.run(doc! {"insert": name, "documents": beyond.clone()});
        }
    }
    fixture
}

fn measurement(id: i64, time: i64) -> Value {
    let host = ["a", "b", "c"][(id % 3) as usize];
    let mut out = nilometer_bson::DocumentBuilder::new();
    out.append("t", Value::DateTime(time));
    out.append("m", doc! {"h": host, "r": doc! {"x": id % 3 % 2, "z": 1}});
    out.append("_id", id);
    out.append("v", id % 11);
    // Whole numbers and halves, sometimes missing, rarely not numbers.
    let awkward = match id % 20 {
        3 => Value::Missing,
        5 => Value::Null,
        9 => "text".into(),
        13 => f64::NAN.into(),
        _ => ((id % 9) as f64 / 2.0).into(),
    };
    out.append("w", awkward);
    if id % 2 == 0 {
        out.append(
            "o",
            doc! {"a": id % 5, "b": array![doc! {"c": id % 4}, id % 3]},
        );
    }
    out.append("l", array![id % 6, 100 - id % 6]);
    out.finish().into()
}

/// Each line is a pipeline in extended JSON; empty lines and those that begin with `//` are comments.
fn pipelines(text: &str) -> Vec<Value> {
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("//"));
    let parse = |line: &str| {
        // Hours of the day of the measurements: @6 is six o'clock.
        let mut out = String::new();
        for (at, part) in line.split('@').enumerate() {
            if at == 0 {
                out.push_str(part);
                continue;
            }
            let end = part
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(part.len());
            let (hour, rest) = part.split_at(end);
            let ms = MIDNIGHT + hour.parse::<i64>().unwrap() * 60 * MINUTE;
            out.push_str(&format!(
                "{{\"$date\": {{\"$numberLong\": \"{ms}\"}}}}{rest}"
            ));
        }
        parse_value(&out).unwrap_or_else(|e| panic!("{e}: {line}"))
    };
    lines.map(parse).collect()
}

/// Returns the answer of a collection as text: in order if the pipeline sorts by `_id` at or before its end.
fn answer(fixture: &mut Fixture, collection: &str, stages: &Value) -> Vec<String> {
    let reply = fixture.reply(aggregate(collection, stages));
    if reply.get("ok").as_exact_i64() != Some(1) {
        return vec![format!(
            "code {}",
            reply.get("code").as_exact_i64().unwrap_or(0)
        )];
    }
    let found = fixture.rest(reply);
    let mut texts: Vec<String> = found.iter().map(canonical).collect();
    let list = stages.as_ref().as_array().unwrap();
    let last = list
        .iter()
        .last()
        .and_then(|last| last.as_document().map(|d| show(&d.to_document())));
    let in_order = last.is_some_and(|last| last.starts_with("{$sort") && last.contains("_id"));
    if !in_order {
        texts.sort();
    }
    texts
}

/// Returns a document in which equal whole numbers of all types are the same, and top-level fields are
/// sorted.
fn canonical(document: &Document) -> String {
    fn text(value: ValueRef<'_>) -> String {
        match value {
            ValueRef::Document(d) => {
                let fields = d
                    .iter()
                    .map(|e| format!("{}: {}", e.name(), text(e.value())));
                format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
            }
            ValueRef::Array(a) => {
                format!("[{}]", a.iter().map(text).collect::<Vec<_>>().join(", "))
            }
            number => match number.as_exact_i64() {
                Some(whole) => whole.to_string(),
                None => value_to_canonical(number),
            },
        }
    }
    let mut fields: Vec<String> = document
        .iter()
        .map(|e| format!("{}: {}", e.name(), text(e.value())))
        .collect();
    fields.sort();
    fields.join(", ")
}

fn leave_out(fixture: &mut Fixture, names: &[String]) {
    let names: Vec<Value> = names.iter().map(|name| name.as_str().into()).collect();
    let set = doc! {"setParameter": 1, "internalNilometerDisabledRules": names};
    let reply = fixture.reply_on("admin", set);
    assert_eq!(reply.get("ok").as_exact_i64(), Some(1), "{}", show(&reply));
}

/// Compares every pipeline with plain documents; returns how often each rule fired. The fast suite compares the answers of
/// one collection for each pipeline.
fn check(text: &str) -> BTreeMap<String, usize> {
    let mut fixture = fixture();
    let all = crate::same_answers::known_rules(&mut fixture);
    let mut fired: BTreeMap<String, usize> = BTreeMap::new();
    let every_collection = is_long();
    for (at, stages) in pipelines(text).into_iter().enumerate() {
        let mut answers: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (of, (collection, plain)) in COLLECTIONS.into_iter().enumerate() {
            let is_compared = every_collection || at % COLLECTIONS.len() == of;
            let shown = || value_to_canonical(stages.as_ref());
            let plain = if is_compared { plain } else { "plain" };
            let expected = match answers.get(plain) {
                Some(known) => known.clone(),
                None => answer(&mut fixture, plain, &stages),
            };
            answers.insert(plain, expected.clone());
            if is_compared {
                let found = answer(&mut fixture, collection, &stages);
                assert_eq!(found, expected, "{collection}: {}", shown());
            }
            if expected
                .first()
                .is_some_and(|first| first.starts_with("code "))
            {
                continue;
            }
            let explained = explained_of(&mut fixture, collection, &stages);
            let rules: BTreeSet<String> = rules_of(&stages_of(&explained).1).into_iter().collect();
            for rule in &rules {
                *fired.entry(rule.clone()).or_default() += 1;
            }
            if !is_compared {
                continue;
            }
            for rule in &rules {
                leave_out(&mut fixture, std::slice::from_ref(rule));
                let found = answer(&mut fixture, collection, &stages);
                assert_eq!(found, expected, "{collection} without {rule}: {}", shown());
            }
            leave_out(&mut fixture, &all);
            let found = answer(&mut fixture, collection, &stages);
            assert_eq!(found, expected, "{collection} without rules: {}", shown());
            leave_out(&mut fixture, &[]);
        }
    }
    fired
}

#[track_caller]
fn assert_fired(fired: &BTreeMap<String, usize>, rules: &[&str]) {
    for rule in rules {
        assert!(fired.contains_key(*rule), "{rule} never fired: {fired:?}");
    }
}

#[test]
fn predicates_on_measurements_times_and_metadata() {
    let fired = check(
        r#"
        [{"$match": {"v": 3}}]
        [{"$match": {"v": {"$gt": 8}}}]
        [{"$match": {"v": {"$lte": 0}}}]
        [{"$match": {"v": {"$in": [1, 40]}}}]
        [{"$match": {"v": {"$in": [1, null]}}}]
        [{"$match": {"w": {"$exists": false}}}]
        [{"$match": {"w": {"$exists": true}, "v": {"$lt": 2}}}]
        [{"$match": {"w": null}}]
        [{"$match": {"w": {"$ne": 1.5}}}]
        [{"$match": {"w": {"$nin": [1.5, "text"]}}}]
        [{"$match": {"w": {"$not": {"$gte": 2}}}}]
        [{"$match": {"$nor": [{"w": {"$gte": 2}}, {"v": 1}]}}]
        [{"$match": {"w": {"$type": "string"}}}]
        [{"$match": {"w": {"$regex": "^t"}}}]
        [{"$match": {"w": {"$lt": {"$numberDouble": "NaN"}}}}]
        [{"$match": {"w": {"$gte": {"$numberDouble": "NaN"}}}}]
        [{"$match": {"w": {"$gte": "a"}}}]
        [{"$match": {"v": {"$mod": [5, 2]}}}]
        [{"$match": {"o": {"a": 1}}}]
        [{"$match": {"o.a": {"$gte": 4}}}]
        [{"$match": {"o.b.c": 3}}]
        [{"$match": {"o.b.0.c": {"$lt": 1}}}]
        [{"$match": {"o.b": 2}}]
        [{"$match": {"l": {"$gt": 5, "$lt": 3}}}]
        [{"$match": {"l": {"$elemMatch": {"$gt": 5, "$lt": 96}}}}]
        [{"$match": {"l": [1, 99]}}]
        [{"$match": {"l": {"$size": 2}, "v": 1}}]
        [{"$match": {"l": {"$gt": {"$minKey": 1}}}}]
        [{"$match": {"l.0": 3}}]
        [{"$match": {"$or": [{"v": 1}, {"w": {"$gt": 3.5}}]}}]
        [{"$match": {"$or": [{"v": 1}, {"w": null}]}}]
        [{"$match": {"$or": [{"m.h": "a"}, {"v": 5}]}}]
        [{"$match": {"$and": [{"v": {"$gte": 5}}, {"$or": [{"w": null}, {"m.h": "b"}]}]}}]
        [{"$match": {"$expr": {"$lt": ["$w", "aaa"]}}}]
        [{"$match": {"$expr": {"$lte": ["$w", 1]}}}]
        [{"$match": {"$expr": {"$gt": ["$w", 3]}}}]
        [{"$match": {"$expr": {"$eq": ["$v", "$w"]}}}]
        [{"$match": {"$expr": {"$and": [{"$eq": ["$m.h", "a"]}, {"$gt": ["$v", 7]}]}}}]
        [{"$match": {"$expr": {"$and": [{"$in": ["$m.h", ["a", "c"]]}, {"$in": ["$v", [1, 2]]}]}}}]
        [{"$match": {"$expr": {"$or": [{"$eq": ["$m.h", "a"]}, {"$gte": ["$t", @9]}]}}}]
        // Metadata: whole, in its own order and in another, and in parts.
        [{"$match": {"m": {"h": "a", "r": {"x": 0, "z": 1}}}}]
        [{"$match": {"m.r": {"x": 1, "z": 1}}}]
        [{"$match": {"m.h": {"$ne": "a"}, "m.r.x": {"$type": "number"}}}]
        [{"$match": {"m.q": {"$exists": false}, "m.h": {"$regex": "[ab]"}}}]
        [{"$match": {"m.h": {"$in": ["a", {"$regularExpression": {"pattern": "^c", "options": ""}}]}}}]
        // Times: a border of fixed buckets is @6; six plus a second is not one.
        [{"$match": {"t": {"$gt": @6}}}, {"$count": "n"}]
        [{"$match": {"t": {"$gte": @6}}}, {"$count": "n"}]
        [{"$match": {"t": {"$lt": @6}}}, {"$count": "n"}]
        [{"$match": {"t": {"$lte": @6}}}, {"$count": "n"}]
        [{"$match": {"t": @6}}]
        [{"$match": {"t": {"$in": [@2, @6, @200]}}}]
        [{"$match": {"t": {"$gte": @3, "$lt": @5}}}, {"$count": "n"}]
        [{"$match": {"t": {"$gte": @3}}}, {"$match": {"t": {"$lt": @5}}}, {"$count": "n"}]
        [{"$match": {"$or": [{"t": {"$lt": @1}}, {"t": {"$gte": @9}}]}}, {"$count": "n"}]
        [{"$match": {"t": {"$gte": @5, "$lt": @3}}}]
        [{"$match": {"t": {"$ne": @6}}}, {"$count": "n"}]
        [{"$match": {"t": {"$gte": @3}, "v": {"$lt": 3}}}]
        [{"$match": {"t": {"$gte": @3}, "m.h": "b"}}]
        [{"$match": {"$expr": {"$and": [{"$gte": ["$t", @3]}, {"$lt": ["$t", @5]}]}}}, {"$count": "n"}]
        [{"$match": {"t": {"$gt": 5}}}]
        [{"$match": {"t": null}}]
        [{"$match": {"t": {"$not": {"$gt": 5}}}}, {"$count": "n"}]
        [{"$match": {"$expr": {"$gt": ["$t", 5]}}}, {"$count": "n"}]
        [{"$match": {"t": {"$lt": {"$date": {"$numberLong": "-1"}}}}}]
        [{"$match": {"t": {"$gt": {"$date": {"$numberLong": "-1"}}}}}, {"$count": "n"}]
        [{"$match": {"t": {"$eq": {"$date": {"$numberLong": "-1"}}}}}]
        [{"$match": {"t": {"$gte": {"$date": {"$numberLong": "2147483648000"}}}}}]
        [{"$match": {"t": {"$lte": {"$date": {"$numberLong": "2147483648000"}}}}}, {"$count": "n"}]
        [{"$match": {"$or": [{"t": {"$lt": {"$date": {"$numberLong": "0"}}}}, {"t": {"$gt": @10}}]}}]
        // A filter that moves forward, or stays.
        [{"$sort": {"v": 1, "_id": 1}}, {"$match": {"m.h": "a"}}]
        [{"$project": {"v": 1, "x": "$m.h"}}, {"$match": {"x": "a", "v": 1}}]
        [{"$project": {"x": "$v", "w": 1}}, {"$match": {"x": 3}}]
        [{"$set": {"v": "$m.r.x"}}, {"$match": {"v": 1}}, {"$count": "n"}]
        [{"$project": {"v": 1}}, {"$match": {"w": null}}, {"$count": "n"}]
        [{"$match": {"w": 1.5}}, {"$project": {"v": 1}}]
        "#,
    );
    assert_fired(
        &fired,
        &[
            "MatchOnBuckets",
            "FixedBuckets",
            "DatesOutOfRange",
            "MergeMatches",
            "MatchBeforeSort",
            "MatchBeforeProject",
            "MatchOnRenamed",
            "IndexOnBuckets",
        ],
    );
}

#[test]
fn projections_and_computed_fields() {
    let fired = check(
        r#"
        [{"$project": {"v": 1}}]
        [{"$project": {"v": 1, "_id": 0}}]
        [{"$project": {"m": 0, "t": 0}}]
        [{"$project": {"m": 0}}, {"$project": {"m": "$m", "v": 1}}]
        [{"$project": {"m": 1}}, {"$project": {"t": 1}}]
        [{"$project": {"m": "$$REMOVE", "v": 1}}]
        [{"$set": {"x": "$m.h"}}]
        [{"$set": {"v": "$m.h"}}, {"$group": {"_id": "$v", "n": {"$sum": 1}}}]
        [{"$set": {"t": "$m.h"}}, {"$group": {"_id": "$t", "n": {"$sum": 1}}}]
        [{"$set": {"m": "$v"}}, {"$group": {"_id": "$m", "x": {"$max": "$w"}}}]
        [{"$set": {"m.h": {"$toUpper": "$m.h"}}}, {"$group": {"_id": "$m", "n": {"$count": {}}}}]
        [{"$set": {"x": {"$concat": ["$m.h", "!"]}, "y": "$v"}}, {"$match": {"x": "a!"}}]
        [{"$set": {"l.x": "$v"}}, {"$group": {"_id": null, "x": {"$max": "$l.x"}}}]
        [{"$project": {"o.new": "$v"}}, {"$project": {"_id": 0, "o.a": 0}}]
        [{"$project": {"o.a": 1, "x": "$m.r.x"}}]
        [{"$set": {"a": "$v", "v": "$w", "w": "$m.h"}}, {"$project": {"a": 1, "v": 1, "w": 1}}]
        [{"$unset": ["m.h", "w"]}]
        [{"$replaceRoot": {"newRoot": {"v": "$v", "h": "$m.h"}}}]
        [{"$replaceRoot": {"newRoot": {"x": 1}}}, {"$count": "n"}]
        [{"$replaceWith": {"$ifNull": ["$o", {"none": 1}]}}]
        [{"$project": {"s": {"$add": ["$v", 1]}, "p": {"$multiply": ["$v", 2.5]}, "d": {"$subtract": ["$w", "$v"]}}}, {"$match": {"d": {"$type": "number"}}}]
        [{"$set": {"s": {"$add": ["$v", "$gone"]}}}, {"$match": {"s": {"$gt": 0}}}]
        [{"$set": {"n": {"$not": ["$gone"]}}}, {"$match": {"n": true}}, {"$count": "n"}]
        [{"$set": {"h": {"$dateDiff": {"startDate": @0, "endDate": "$t", "unit": "hour"}}}}, {"$group": {"_id": "$h", "n": {"$sum": 1}}}]
        [{"$set": {"x": {"$dateDiff": {"startDate": "$v", "endDate": "$t", "unit": "hour"}}}}]
        [{"$unwind": "$l"}, {"$group": {"_id": "$l", "n": {"$sum": 1}}}]
        "#,
    );
    assert_fired(
        &fired,
        &[
            "ProjectOnBuckets",
            "ComputedMetas",
            "NeededFields",
            "ComputedKeys",
        ],
    );
}

#[test]
fn groups_and_counts() {
    let fired = check(
        r#"
        [{"$group": {"_id": null, "a": {"$min": "$v"}, "b": {"$max": "$v"}, "n": {"$sum": 1}}}]
        [{"$group": {"_id": "$m.h", "a": {"$min": "$w"}, "b": {"$max": "$w"}}}]
        [{"$group": {"_id": "$m", "a": {"$max": "$t"}, "n": {"$count": {}}}}]
        [{"$group": {"_id": "$m.h", "a": {"$min": "$t"}}}]
        [{"$group": {"_id": {"$toUpper": "$m.h"}, "a": {"$min": "$m.r.x"}, "b": {"$max": "$m.h"}}}]
        [{"$group": {"_id": {"h": "$m.h", "c": 5}, "s": {"$sum": 7}}}]
        [{"$group": {"_id": "$m.h", "a": {"$max": {"$add": ["$v", 1]}}}}]
        [{"$group": {"_id": "$m.h", "a": {"$max": "$o.a"}, "b": {"$min": "$l"}, "c": {"$max": "$o"}}}]
        [{"$group": {"_id": "$m.h", "s": {"$sum": "$v"}, "a": {"$avg": "$w"}, "r": {"$sum": "$m.r.x"}}}]
        [{"$group": {"_id": {"h": "$m.h", "v": "$v"}, "b": {"$max": "$w"}}}]
        [{"$group": {"_id": "$gone", "b": {"$max": "$gone"}}}]
        [{"$match": {"m.h": {"$ne": "b"}}}, {"$group": {"_id": "$m.h", "b": {"$max": "$v"}}}]
        [{"$match": {"v": {"$gt": 5}}}, {"$group": {"_id": "$m.h", "b": {"$min": "$v"}, "m": {"$max": "$m.h"}}}]
        [{"$match": {"t": {"$gte": @3, "$lt": @6}}}, {"$group": {"_id": "$m.h", "b": {"$max": "$v"}, "n": {"$sum": 1}}}]
        [{"$project": {"m": 1}}, {"$group": {"_id": null, "o": {"$max": "$t"}}}]
        [{"$project": {"m": 0}}, {"$group": {"_id": "$m", "o": {"$max": "$t"}}}]
        [{"$count": "n"}]
        [{"$match": {"v": 99}}, {"$count": "n"}]
        [{"$group": {"_id": {"$dateTrunc": {"date": "$t", "unit": "hour"}}, "b": {"$max": "$v"}}}]
        [{"$group": {"_id": {"$dateTrunc": {"date": "$t", "unit": "day", "timezone": "America/New_York"}}, "n": {"$sum": 1}}}]
        [{"$group": {"_id": {"$dateTrunc": {"date": "$t", "unit": "hour", "timezone": "Asia/Kathmandu"}}, "n": {"$sum": 1}}}]
        [{"$group": {"_id": {"$dateTrunc": {"date": "$t", "unit": "minute", "binSize": 7}}, "b": {"$min": "$v"}}}]
        [{"$group": {"_id": {"$dateTrunc": {"date": "$t", "unit": "week", "startOfWeek": "monday"}}, "b": {"$max": "$w"}}}]
        [{"$group": {"_id": {"$dateTrunc": {"date": "$t", "unit": "hour", "binSize": "$gone"}}, "b": {"$max": "$w"}}}]
        [{"$group": {"_id": {"h": {"$dateTrunc": {"date": "$t", "unit": "hour"}}, "m": "$m.h"}, "b": {"$max": "$v"}}}]
        [{"$match": {"t": {"$gte": @3}}}, {"$group": {"_id": {"$dateTrunc": {"date": "$t", "unit": "hour"}}, "n": {"$sum": 1}}}]
        [{"$group": {"_id": {"$dateAdd": {"startDate": "$t", "unit": "hour", "amount": 1}}, "n": {"$sum": 1}}}]
        [{"$group": {"_id": {"$dateTrunc": {"date": {"$subtract": ["$t", 90000]}, "unit": "hour"}}, "b": {"$max": "$v"}}}]
        [{"$group": {"_id": {"h": {"$add": [{"$dateTrunc": {"date": {"$subtract": ["$t", 90000]}, "unit": "minute", "binSize": 15}}, 90000]}, "m": "$m.h"}, "s": {"$sum": "$v"}}}]
        [{"$group": {"_id": {"$subtract": [{"$dateTrunc": {"date": {"$add": ["$t", {"$literal": 0.5}]}, "unit": "day"}}, 1]}, "s": {"$sum": {"$cond": [{"$gt": ["$w", null]}, 1, 0]}}}}, {"$sort": {"_id": -1}}, {"$limit": 2}]
        [{"$group": {"_id": "$m.h", "v": {"$sum": {"$cond": [{"$gt": ["$v", null]}, 1, 0]}}, "o": {"$sum": {"$cond": [{"$lte": ["$o", null]}, 1, 0]}}, "g": {"$sum": {"$cond": [{"$eq": ["$gone", null]}, 1, 0]}}}}]
        [{"$group": {"_id": {"$year": "$t"}, "a": {"$avg": "$v"}}}]
        [{"$group": {"_id": {"$ifNull": ["$w", "none"]}, "n": {"$sum": 1}}}]
        [{"$group": {"_id": {"x": "$w"}, "n": {"$sum": 1}}}]
        [{"$group": {"_id": {"$toLower": "$m.gone"}, "n": {"$sum": 1}}}]
        [{"$group": {"_id": "$m.h", "a": {"$sum": {"$multiply": ["$v", "$v"]}}, "b": {"$avg": {"$subtract": ["$v", 3]}}}}]
        [{"$group": {"_id": "$m.h", "a": {"$sum": {"$cond": [{"$gt": ["$v", 4]}, 1, 0]}}}}]
        [{"$group": {"_id": null, "a": {"$addToSet": "$m.h"}}}, {"$unwind": "$a"}]
        [{"$group": {"_id": "$m.h"}}]
        [{"$sortByCount": "$m.r.x"}]
        [{"$sort": {"t": 1, "_id": 1}}, {"$group": {"_id": {"$dateTrunc": {"date": "$t", "unit": "hour"}}, "all": {"$push": "$_id"}}}]
        [{"$sort": {"t": -1, "_id": 1}}, {"$group": {"_id": {"h": {"$dateTrunc": {"date": "$t", "unit": "hour"}}, "m": "$m.h"}, "f": {"$firstN": {"input": "$_id", "n": 2}}}}]
        [{"$sort": {"v": 1, "_id": 1}}, {"$group": {"_id": {"$dateTrunc": {"date": "$t", "unit": "hour"}}, "all": {"$push": "$_id"}}}]
        [{"$group": {"_id": {"$dateTrunc": {"date": "$t", "unit": "hour"}}, "b": {"$max": "$v"}}}, {"$sort": {"_id": -1}}, {"$limit": 3}, {"$sort": {"_id": 1}}]
        [{"$group": {"_id": {"$dateTrunc": {"date": "$t", "unit": "minute", "binSize": 15}}, "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}, {"$limit": 4}, {"$sort": {"_id": 1}}]
        "#,
    );
    assert_fired(
        &fired,
        &[
            "GroupFromBounds",
            "DistinctMetas",
            "GroupInOrder",
            "FirstGroupsFirst",
            "NeededFields",
        ],
    );
}

#[test]
fn sorts_limits_and_last_points() {
    let fired = check(
        r#"
        [{"$sort": {"t": 1, "_id": 1}}]
        [{"$sort": {"t": -1, "_id": 1}}]
        [{"$sort": {"t": 1, "v": -1, "_id": 1}}]
        [{"$sort": {"m.h": 1, "t": 1, "_id": 1}}]
        [{"$sort": {"m.h": -1, "t": 1, "_id": 1}}]
        [{"$sort": {"m.r": 1, "m.h": -1, "t": -1, "_id": 1}}]
        [{"$sort": {"m": 1, "t": -1, "_id": -1}}]
        [{"$sort": {"v": 1, "t": 1, "_id": 1}}]
        [{"$sort": {"t": 1, "_id": 1}}, {"$limit": 7}, {"$sort": {"_id": 1}}]
        [{"$sort": {"t": -1, "_id": 1}}, {"$limit": 7}, {"$sort": {"_id": 1}}]
        [{"$sort": {"t": -1, "_id": 1}}, {"$skip": 3}, {"$limit": 7}, {"$sort": {"_id": 1}}]
        [{"$match": {"v": {"$gt": 4}}}, {"$sort": {"t": -1, "_id": 1}}]
        [{"$match": {"m.h": "b"}}, {"$sort": {"t": 1, "_id": 1}}]
        [{"$match": {"m.h": "b", "t": {"$gte": @4}}}, {"$sort": {"m.h": 1, "t": -1, "_id": 1}}, {"$limit": 5}, {"$sort": {"_id": 1}}]
        [{"$project": {"v": 0}}, {"$sort": {"t": -1, "_id": 1}}]
        [{"$project": {"m": 1, "t": 1}}, {"$sort": {"m.h": 1, "t": 1, "_id": 1}}]
        [{"$project": {"t": 0}}, {"$sort": {"t": 1, "_id": 1}}]
        [{"$unset": "m.h"}, {"$sort": {"m.h": 1, "t": 1, "_id": 1}}]
        [{"$set": {"t": "$v"}}, {"$sort": {"t": 1, "_id": 1}}]
        [{"$set": {"m.h": "x"}}, {"$sort": {"m.h": 1, "t": -1, "_id": 1}}]
        [{"$sort": {"m.h": 1}}, {"$group": {"_id": null, "n": {"$sum": 1}}}]
        [{"$sort": {"m.h": -1}}, {"$limit": 60}, {"$group": {"_id": "$m.h", "n": {"$sum": 1}}}]
        [{"$limit": 5}, {"$limit": 3}, {"$count": "n"}]
        [{"$skip": 190}, {"$limit": 100}, {"$count": "n"}]
        [{"$match": {"v": 3}}, {"$limit": 4}, {"$count": "n"}]
        [{"$sort": {"t": 1, "_id": 1}}, {"$group": {"_id": "$m.h", "x": {"$last": "$v"}, "i": {"$last": "$_id"}}}]
        [{"$sort": {"m.h": 1, "t": -1, "_id": 1}}, {"$group": {"_id": "$m.h", "x": {"$first": "$v"}, "w": {"$first": "$w"}}}]
        [{"$sort": {"m.h": 1, "t": -1}}, {"$group": {"_id": "$m.h", "x": {"$first": "$v"}, "w": {"$first": "$w"}}}]
        [{"$sort": {"m.h": -1, "t": 1}}, {"$group": {"_id": "$m", "x": {"$last": "$t"}, "g": {"$last": "$gone"}}}]
        [{"$sort": {"t": 1}}, {"$group": {"_id": "$m.h", "x": {"$first": "$_id"}}}]
        [{"$sort": {"t": 1, "_id": 1}}, {"$group": {"_id": "$m.h", "x": {"$first": "$v"}, "y": {"$last": "$v"}}}]
        [{"$sort": {"t": 1, "_id": 1}}, {"$group": {"_id": "$m.h", "x": {"$last": "$v"}, "y": {"$max": "$v"}}}]
        [{"$sort": {"t": 1, "_id": 1}}, {"$limit": 20}, {"$group": {"_id": "$m.h", "x": {"$last": "$v"}}}]
        [{"$sort": {"t": 1, "_id": 1}}, {"$group": {"_id": "$v", "x": {"$last": "$_id"}}}]
        [{"$group": {"_id": "$m.h", "x": {"$top": {"sortBy": {"t": -1}, "output": ["$_id", "$gone"]}}}}]
        [{"$group": {"_id": "$m.h", "x": {"$bottom": {"sortBy": {"m.h": 1, "t": 1}, "output": "$v"}}}}]
        [{"$group": {"_id": "$m.h", "x": {"$topN": {"n": 1, "sortBy": {"t": -1}, "output": "$_id"}}}}]
        [{"$group": {"_id": "$m.h", "x": {"$bottomN": {"n": 3, "sortBy": {"t": 1, "_id": 1}, "output": "$_id"}}}}]
        [{"$group": {"_id": "$m.h", "x": {"$bottom": {"sortBy": {"t": 1}, "output": "$v"}}, "y": {"$top": {"sortBy": {"t": -1}, "output": "$w"}}}}]
        [{"$group": {"_id": "$m.h", "x": {"$top": {"sortBy": {"t": 1}, "output": "$_id"}}}}]
        [{"$match": {"m.h": {"$gte": "b"}}}, {"$group": {"_id": "$m.h", "x": {"$top": {"sortBy": {"t": -1}, "output": "$_id"}}}}]
        [{"$match": {"v": {"$lt": 3}}}, {"$group": {"_id": "$m.h", "x": {"$top": {"sortBy": {"t": -1}, "output": "$_id"}}}}]
        [{"$set": {"x": "$m.h"}}, {"$sort": {"t": 1}}, {"$group": {"_id": "$x", "y": {"$last": "$v"}}}]
        [{"$setWindowFields": {"partitionBy": "$m.h", "sortBy": {"t": 1, "_id": 1}, "output": {"s": {"$sum": "$v", "window": {"documents": [-2, 0]}}}}}]
        [{"$setWindowFields": {"partitionBy": "$m", "sortBy": {"t": 1, "_id": 1}, "output": {"s": {"$shift": {"output": "$v", "by": 1}}}}}]
        [{"$setWindowFields": {"sortBy": {"t": 1, "_id": 1}, "output": {"s": {"$documentNumber": {}}}}}]
        [{"$setWindowFields": {"partitionBy": "$m.h", "sortBy": {"t": 1}, "output": {"s": {"$sum": "$v", "window": {"range": [-90, 0], "unit": "minute"}}}}}, {"$sort": {"_id": 1}}]
        [{"$match": {"v": {"$gt": 1}}}, {"$setWindowFields": {"partitionBy": "$m", "sortBy": {"t": -1}, "output": {"s": {"$max": "$v", "window": {"range": ["unbounded", 0], "unit": "hour"}}, "r": {"$rank": {}}}}}, {"$sort": {"_id": 1}}]
        [{"$setWindowFields": {"partitionBy": "$m.h", "sortBy": {"t": 1}, "output": {"s": {"$avg": "$w", "window": {"range": [-2, 2], "unit": "hour"}}}}}, {"$match": {"s": {"$gt": 1}}}, {"$project": {"s": 1}}, {"$sort": {"_id": 1}}]
        [{"$setWindowFields": {"sortBy": {"t": 1}, "output": {"s": {"$sum": "$v", "window": {"range": [-15, 0], "unit": "minute"}}}}}, {"$group": {"_id": "$s", "n": {"$sum": 1}}}]
        [{"$setWindowFields": {"partitionBy": "$m", "sortBy": {"t": 1}, "output": {"s": {"$denseRank": {}}, "n": {"$count": {}}}}}, {"$sort": {"_id": 1}}]
        [{"$densify": {"field": "t", "range": {"step": 1, "unit": "hour", "bounds": [@2, @4]}}}, {"$match": {"v": {"$exists": false}}}]
        [{"$densify": {"field": "t", "range": {"step": 7, "unit": "minute", "bounds": [@1, @3]}}}, {"$group": {"_id": null, "n": {"$sum": 1}}}]
        [{"$match": {"t": {"$gte": @4, "$lt": @7}}}, {"$densify": {"field": "t", "range": {"step": 4, "unit": "minute", "bounds": "full"}}}]
        [{"$match": {"t": {"$gte": @4, "$lt": @7}}}, {"$densify": {"field": "t", "partitionByFields": ["m.h"], "range": {"step": 4, "unit": "minute", "bounds": "partition"}}}]
        [{"$match": {"t": {"$gte": @4, "$lt": @7}}}, {"$densify": {"field": "t", "partitionByFields": ["m"], "range": {"step": 9, "unit": "minute", "bounds": "full"}}}]
        [{"$match": {"t": {"$gte": @4, "$lt": @7}}}, {"$densify": {"field": "t", "partitionByFields": ["m.h"], "range": {"step": 5, "unit": "minute", "bounds": "full"}}}, {"$setWindowFields": {"partitionBy": "$m.h", "sortBy": {"t": 1}, "output": {"s": {"$sum": "$v", "window": {"range": [-30, 0], "unit": "minute"}}}}}, {"$sort": {"m.h": 1, "t": 1, "_id": 1}}]
        [{"$match": {"v": 3, "t": {"$gte": @4, "$lt": @7}}}, {"$densify": {"field": "t", "range": {"step": 20, "unit": "minute", "bounds": "full"}}}, {"$fill": {"sortBy": {"t": 1}, "output": {"v": {"value": 0}}}}]
        [{"$match": {"t": {"$gt": @4000}}}, {"$densify": {"field": "t", "range": {"step": 1, "unit": "hour", "bounds": [@2, @4]}}}]
        [{"$densify": {"field": "t", "range": {"step": 5, "bounds": [1, 9]}}}]
        [{"$match": {"t": {"$gte": @4, "$lt": @5}}}, {"$densify": {"field": "m", "range": {"step": 5, "bounds": "full"}}}]
        [{"$match": {"t": {"$gte": @4, "$lt": @5}}}, {"$densify": {"field": "m.r.x", "range": {"step": 1, "bounds": [0, 4]}}}]
        [{"$fill": {"partitionBy": "$m.h", "sortBy": {"t": 1, "_id": 1}, "output": {"w": {"method": "locf"}}}}]
        [{"$sample": {"size": 1000}}]
        "#,
    );
    assert_fired(
        &fired,
        &[
            "SortByBuckets",
            "SortInOrderOfBuckets",
            "LimitOnBuckets",
            "SortLimit",
            "MergeLimits",
            "FirstOfSorted",
            "NewestFirst",
            "PointByIndex",
            "WindowsInOrder",
            "WindowsOverBlocks",
            "DensifyOverBuckets",
            "WindowsBehindDensify",
        ],
    );
}

/// The metadata field may have an empty name: predicates accept it, paths refuse it.
#[test]
fn an_empty_name_of_the_metadata_is_matched_and_no_path() {
    let mut fixture = Fixture::new();
    fixture.run(doc! {"create": "ts", "timeseries": doc! {"timeField": "t", "metaField": ""}});
    let documents: Vec<Value> = (0..6i64)
        .map(|at| doc! {"t": Value::DateTime(MIDNIGHT + at), "": at % 3, "_id": at, "v": at}.into())
        .collect();
    for collection in ["ts", "plain"] {
        fixture.run(doc! {"insert": collection, "documents": documents.clone()});
    }
    for stages in [
        array![doc! {"$match": doc! {"": 1}}],
        array![doc! {"$match": doc! {"": doc! {"$in": array![0, 2]}}}],
        array![doc! {"$match": doc! {"": doc! {"$gte": 1}}}],
        array![doc! {"$match": doc! {"$or": array![doc! {"": 1}, doc! {"v": 0}]}}],
        array![doc! {"$group": doc! {"_id": Value::Null, "x": doc! {"$max": "$v"}}}],
        array![doc! {"$sort": doc! {"t": 1}}],
    ] {
        let expected = answer(&mut fixture, "plain", &stages);
        assert_eq!(answer(&mut fixture, "ts", &stages), expected);
        assert!(!expected[0].starts_with("code"), "{expected:?}");
    }
    for (stages, code) in [
        (array![doc! {"$sort": doc! {"": 1}}], 40_352),
        (array![doc! {"$project": doc! {"": 1}}], 40_352),
        (array![doc! {"$set": doc! {"": 1}}], 40_352),
        (array![doc! {"$group": doc! {"_id": "$"}}], 16_872),
        (array![doc! {"$addFields": doc! {"x": "$"}}], 16_872),
    ] {
        assert_eq!(fixture.code(aggregate("ts", &stages)), code, "{stages:?}");
    }
    let sorted = doc! {"find": "ts", "sort": doc! {"": 1}};
    assert_eq!(fixture.code(sorted), 40_352);
}

/// Borders of fixed buckets are used until the widths change, and never again.
#[test]
fn a_change_of_the_buckets_ends_what_their_borders_decide() {
    let mut fixture = fixture();
    let stages = array![
        doc! {"$match": doc! {"t": doc! {"$gte": Value::DateTime(MIDNIGHT + 180 * MINUTE)}}},
        doc! {"$sort": doc! {"v": 1, "_id": 1}},
    ];
    let unpack = |fixture: &mut Fixture| {
        let shown = explained_of(fixture, "fixed", &stages);
        let list = shown.get("stages").as_array().unwrap();
        let unpack = list
            .get(1)
            .as_document()
            .unwrap()
            .get("$_internalUnpackBucket");
        let unpack = unpack.as_document().unwrap();
        let has = |name: &str| !unpack.get(name).is_missing();
        (
            has("fixedBuckets"),
            has("eventFilter"),
            has("wholeBucketFilter"),
        )
    };
    assert_eq!(unpack(&mut fixture), (true, false, false));
    let wider = doc! {"bucketMaxSpanSeconds": 7200, "bucketRoundingSeconds": 7200};
    fixture.run(doc! {"collMod": "fixed", "timeseries": wider});
    assert_eq!(unpack(&mut fixture), (false, true, true));
    let expected = answer(&mut fixture, "plain", &stages);
    assert_eq!(answer(&mut fixture, "fixed", &stages), expected);
}

/// Buckets read as documents and unpacked explicitly give the measurements; the collection itself is not
/// unpacked twice.
#[test]
fn unpacking_by_hand_gives_the_measurements() {
    let mut fixture = fixture();
    let unpack = doc! {"timeField": "t", "metaField": "m"};
    let by_hand = |name: &str, spec: Document| {
        let mut stage = nilometer_bson::DocumentBuilder::new();
        stage.append(name, spec);
        Value::from(stage.finish())
    };
    for (collection, plain) in COLLECTIONS {
        let buckets = format!("system.buckets.{collection}");
        for name in ["$_unpackBucket", "$_internalUnpackBucket"] {
            for rest in [
                doc! {"$match": doc! {"v": doc! {"$gt": 4}}},
                doc! {"$sort": doc! {"t": 1, "_id": 1}},
                doc! {"$group": doc! {"_id": "$m.h", "s": doc! {"$sum": "$v"}}},
            ] {
                let stages = array![by_hand(name, unpack.clone()), rest.clone()];
                let expected = answer(&mut fixture, plain, &array![rest]);
                assert_eq!(answer(&mut fixture, &buckets, &stages), expected, "{name}");
            }
            let twice = array![by_hand(name, unpack.clone())];
            assert_eq!(fixture.code(aggregate(collection, &twice)), 2);
            let unnamed = array![by_hand(name, doc! {"timeField": "t"})];
            assert_eq!(fixture.code(aggregate(&buckets, &unnamed)), 5_369_601);
            // Not a bucket.
            assert_eq!(fixture.code(aggregate(plain, &twice)), 2);
        }
        let some = doc! {
            "timeField": "t", "metaField": "m", "bucketMaxSpanSeconds": 3600, "include": array!["_id", "v"],
            "eventFilter": doc! {"v": doc! {"$gt": 4}},
        };
        let stages = array![by_hand("$_internalUnpackBucket", some)];
        let same = array![
            doc! {"$match": doc! {"v": doc! {"$gt": 4}}},
            doc! {"$project": doc! {"v": 1}}
        ];
        let expected = answer(&mut fixture, plain, &same);
        assert_eq!(answer(&mut fixture, &buckets, &stages), expected);
        let nothing = doc! {"timeField": "t", "metaField": "m", "include": array![]};
        let stages = array![
            by_hand("$_internalUnpackBucket", nothing),
            doc! {"$count": "n"}
        ];
        let expected = answer(&mut fixture, plain, &array![doc! {"$count": "n"}]);
        assert_eq!(answer(&mut fixture, &buckets, &stages), expected);
        let computed = doc! {
            "timeField": "t", "metaField": "m", "exclude": array!["o", "l", "w"],
            "computedMetaProjFields": array!["x"],
        };
        let stages = array![
            doc! {"$set": doc! {"x": "$meta.h"}},
            by_hand("$_internalUnpackBucket", computed)
        ];
        let same = array![
            doc! {"$unset": array!["o", "l", "w"]},
            doc! {"$set": doc! {"x": "$m.h"}}
        ];
        let expected = answer(&mut fixture, plain, &same);
        assert_eq!(answer(&mut fixture, &buckets, &stages), expected);
    }
}

/// Returns the Rust files below a folder.
fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("a file").path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

/// Each line of a table in docs/rewrites.md names the place of a rewrite and its tests: those must exist.
#[test]
fn every_rewrite_is_where_the_page_says_and_has_its_tests() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(own.join("../../docs/rewrites.md")).expect("the page");
    let mut files = Vec::new();
    sources(&own.join("src"), &mut files);
    sources(&own.join("tests"), &mut files);
    let texts: Vec<(String, String)> = files
        .iter()
        .map(|path| {
            let text = fs::read_to_string(path).expect("a source file");
            let name = path.strip_prefix(own).expect("below the crate");
            (name.to_string_lossy().replace('\\', "/"), text)
        })
        .collect();
    let words = |text: &str| -> BTreeSet<String> {
        let parts = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        parts.map(str::to_owned).collect()
    };
    let mut wrong = Vec::new();
    let mut named = BTreeSet::new();
    let rows = page
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| rewrite"));
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [_, _, place, tests, _] = cells.as_slice() else {
            wrong.push(format!("not five columns: {row}"));
            continue;
        };
        let quoted = |cell: &str| -> Vec<String> {
            cell.split('`')
                .skip(1)
                .step_by(2)
                .map(str::to_owned)
                .collect()
        };
        for place in quoted(place) {
            // A module below `src`, and an item in it.
            let (module, item) = place.rsplit_once("::").unwrap_or(("", &place));
            let file = module.replace("::", "/");
            let found = texts.iter().any(|(name, text)| {
                let is_module = name.ends_with(&format!("{file}.rs"))
                    || name.ends_with(&format!("{file}/mod.rs"));
                name.starts_with("src/") && is_module && words(text).contains(item)
            });
            if !found {
                wrong.push(format!("there is no {place}"));
            }
            named.insert(item.to_owned());
        }
        let tests = quoted(tests);
        if tests.is_empty() {
            wrong.push(format!("no test: {row}"));
        }
        for test in tests {
            let is_there = match test.ends_with(".script") {
                true => own.join("testdata").join(&test).is_file(),
                false => texts
                    .iter()
                    .any(|(_, text)| text.contains(&format!("fn {test}("))),
            };
            if !is_there {
                wrong.push(format!("there is no test {test}"));
            }
        }
    }
    // Every rule has a line.
    let rules = crate::same_answers::known_rules(&mut Fixture::new());
    let missing = rules.iter().filter(|rule| !named.contains(*rule));
    wrong.extend(missing.map(|rule| format!("no line names the rule {rule}")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The files that the stories of an insert and of a query name exist. A path without a crate is below this crate's `src`.
#[test]
fn the_pages_for_newcomers_name_files_that_exist() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = own.join("../..");
    let mut wrong = Vec::new();
    for page in ["docs/life_of_an_insert.md", "docs/life_of_a_query.md"] {
        let text = fs::read_to_string(root.join(page)).expect("a page");
        let quoted = text.split('`').skip(1).step_by(2);
        for path in quoted.filter(|quoted| quoted.ends_with(".rs") && quoted.contains('/')) {
            let below = [own.join("src"), root.join("crates")];
            let server = path.strip_prefix("nilometer-server/");
            let exists = below.iter().any(|base| base.join(path).is_file())
                || server
                    .is_some_and(|path| root.join("crates/nilometer-server").join(path).is_file());
            if !exists {
                wrong.push(format!("{page}: {path}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
