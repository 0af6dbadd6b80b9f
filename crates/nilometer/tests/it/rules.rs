//! The planner's rules from the client's view: disabled by name, and in explain.

use nilometer_bson::extjson::value_to_canonical;
use nilometer_bson::{DocRef, Document, ObjectId, Value, ValueRef, array, doc};

use crate::support::{Fixture, show};

const T0: i64 = 1_700_000_000_000;

/// Three series of ten buckets, a day apart; in each the earliest measurement arrived late, and a few
/// precede the start of the first.
fn series() -> Fixture {
    let mut fixture = Fixture::new();
    let options = doc! {"timeField": "t", "metaField": "m"};
    fixture.run(doc! {"create": "ts", "timeseries": options});
    fixture.run(doc! {"create": "plain"});
    let mut documents: Vec<Value> = Vec::new();
    for day in [1i64, 2, 3, 0, 4, 5, 6, 7, 8, 9] {
        for (minute, value) in [(30, 1), (31, 9), (2, 5), (59, 3)] {
            for host in ["a", "b", "c"] {
                let at = T0 + day * 86_400_000 + minute * 60_000;
                let id = documents.len() as i64;
                documents.push(
                    doc! {"t": Value::DateTime(at), "m": doc! {"h": host}, "_id": id, "v": value + day}
                        .into(),
                );
            }
        }
    }
    for collection in ["ts", "plain"] {
        fixture.run(doc! {"insert": collection, "documents": documents.clone()});
    }
    fixture
}

pub(crate) fn aggregate(collection: &str, stages: &Value) -> Document {
    doc! {"aggregate": collection, "pipeline": stages.clone(), "cursor": doc! {}}
}

fn explained(fixture: &mut Fixture, stages: &Value) -> Document {
    explained_of(fixture, "ts", stages)
}

/// Returns the explain output of an aggregate, with statistics.
pub(crate) fn explained_of(fixture: &mut Fixture, collection: &str, stages: &Value) -> Document {
    let command = aggregate(collection, stages);
    fixture.run(doc! {"explain": command, "verbosity": "executionStats"})
}

/// Returns the names of the stages, and the first of them.
pub(crate) fn stages_of(explained: &Document) -> (Vec<String>, Document) {
    let list = explained.get("stages").as_array().unwrap();
    let documents = list.iter().map(|stage| stage.as_document().unwrap());
    let names = documents.map(|stage| stage.iter().next().unwrap().name().to_owned());
    let names: Vec<String> = names.collect();
    let first = list.iter().next().unwrap();
    let cursor = first.as_document().unwrap().get("$cursor");
    (names, cursor.as_document().unwrap().to_document())
}

/// Returns a value as text, for comparison.
fn text(value: impl Into<Value>) -> String {
    value_to_canonical(value.into().as_ref())
}

fn value_at(document: DocRef<'_>, path: &str) -> String {
    text(at(document, path))
}

fn at(document: DocRef<'_>, path: &str) -> Value {
    let mut value = ValueRef::Document(document);
    for part in path.split('.') {
        value = value
            .as_document()
            .map_or(ValueRef::Missing, |d| d.get(part));
    }
    value.to_value()
}

pub(crate) fn rules_of(cursor: &Document) -> Vec<String> {
    let fired = at(cursor.as_ref(), "queryPlanner.rulesApplied");
    let names = fired.as_ref().as_array().unwrap();
    names
        .iter()
        .map(|name| name.as_str().unwrap().to_owned())
        .collect()
}

/// Returns the ids, in order.
fn ids(list: &[Document]) -> Vec<Option<i64>> {
    let ids = list.iter().map(|document| document.get("_id"));
    ids.map(|id| id.as_exact_i64()).collect()
}

fn examined(cursor: &Document) -> i64 {
    let examined = at(cursor.as_ref(), "executionStats.totalDocsExamined");
    examined.as_ref().as_exact_i64().unwrap()
}

#[test]
fn a_parameter_leaves_rules_out() {
    let mut fixture = series();
    let stages = array![doc! {"$sort": doc! {"v": 1}}, doc! {"$limit": 2}];
    let set = |names: Value| doc! {"setParameter": 1, "internalNilometerDisabledRules": names};
    let get = doc! {"getParameter": 1, "internalNilometerDisabledRules": 1};
    let (names, cursor) = stages_of(&explained(&mut fixture, &stages));
    assert!(rules_of(&cursor).contains(&"SortLimit".to_owned()));
    assert!(!names.contains(&"$limit".to_owned()));
    let reply = fixture.reply_on("admin", set(array!["SortLimit", "MergeLimits"]));
    assert_eq!(
        text(reply.get("was").to_value()),
        text(array![]),
        "{}",
        show(&reply)
    );
    let reply = fixture.reply_on("admin", get.clone());
    let named = array!["MergeLimits", "SortLimit"];
    assert_eq!(
        text(reply.get("internalNilometerDisabledRules").to_value()),
        text(named.clone())
    );
    let (names, cursor) = stages_of(&explained(&mut fixture, &stages));
    assert!(!rules_of(&cursor).contains(&"SortLimit".to_owned()));
    assert!(names.contains(&"$limit".to_owned()));
    // An unknown name changes nothing; the error lists the known ones.
    let reply = fixture.reply_on("admin", set(array!["Sortlimit"]));
    assert_eq!(reply.get("code").as_exact_i64(), Some(2));
    let message = reply.get("errmsg").as_str().unwrap();
    assert!(message.contains("SortLimit") && message.contains("NeededFields"));
    let reply = fixture.reply_on("admin", set(array![1]));
    assert_eq!(reply.get("code").as_exact_i64(), Some(14));
    let reply = fixture.reply_on("admin", get.clone());
    assert_eq!(
        text(reply.get("internalNilometerDisabledRules").to_value()),
        text(named)
    );
    // As on a command line; another database is not affected.
    let reply = fixture.reply_on("admin", set("NeededFields, SortLimit".into()));
    assert_eq!(reply.get("ok").as_exact_i64(), Some(1));
    let reply = Fixture::new().reply_on("admin", get);
    assert_eq!(
        text(reply.get("internalNilometerDisabledRules").to_value()),
        text(array![])
    );
}

#[test]
fn extremes_and_counts_do_not_unpack() {
    let mut fixture = series();
    let group = doc! {
        "_id": "$m.h", "least": doc! {"$min": "$v"}, "newest": doc! {"$max": "$t"}, "n": doc! {"$sum": 1},
    };
    let stages = array![doc! {"$group": group}, doc! {"$sort": doc! {"_id": 1}}];
    let found = fixture.all(aggregate("ts", &stages));
    assert_eq!(found, fixture.all(aggregate("plain", &stages)));
    let shown = explained(&mut fixture, &stages);
    assert_eq!(stages_of(&shown).0, ["$cursor", "$group", "$sort"]);
    let group = shown.get("stages").as_array().unwrap().get(1);
    let group = group.as_document().unwrap();
    assert_eq!(value_at(group, "$group._id"), text("$meta.h"));
    assert_eq!(value_at(group, "$group.least.$min"), text("$control.min.v"));
    assert_eq!(value_at(group, "$group.n.$sum"), text("$control.count"));
    // Deleted measurements are no longer counted.
    for collection in ["ts", "plain"] {
        let deletes = array![doc! {"q": doc! {"v": doc! {"$lte": 3}}, "limit": 0}];
        fixture.run(doc! {"delete": collection, "deletes": deletes});
    }
    let found = fixture.all(aggregate("ts", &stages));
    assert_eq!(found, fixture.all(aggregate("plain", &stages)));
    assert_eq!(found[0].get("least").as_exact_i64(), Some(4));
    let filtered = array![doc! {"$match": doc! {"v": 5}}, doc! {"$count": "n"}];
    let (names, _) = stages_of(&explained(&mut fixture, &filtered));
    assert_eq!(names[1], "$_internalUnpackBucket");
}

#[test]
fn nulls_objects_and_arrays_are_unpacked() {
    let mut fixture = Fixture::new();
    fixture.run(doc! {"create": "ts", "timeseries": doc! {"timeField": "t", "metaField": "m"}});
    let values: [Value; 8] = [
        Value::Null,
        3.into(),
        doc! {"a": 1, "b": 9}.into(),
        doc! {"a": 2, "b": 0}.into(),
        array![5, 1],
        array![4, 7],
        f64::NAN.into(),
        "text".into(),
    ];
    for (at, value) in values.into_iter().enumerate() {
        let time = Value::DateTime(T0 + at as i64 * 1000);
        let documents = array![doc! {"t": time, "m": 1, "v": value}];
        for collection in ["ts", "plain"] {
            fixture.run(doc! {"insert": collection, "documents": documents.clone()});
        }
    }
    let group = doc! {"_id": "$m", "least": doc! {"$min": "$v"}, "most": doc! {"$max": "$v"}};
    let stages = array![doc! {"$group": group}];
    assert_eq!(
        fixture.all(aggregate("ts", &stages)),
        fixture.all(aggregate("plain", &stages))
    );
}

#[test]
fn sorts_and_limits_show_below() {
    let mut fixture = series();
    let sorted = array![doc! {"$sort": doc! {"m.h": -1}}, doc! {"$limit": 2}];
    let (names, cursor) = stages_of(&explained(&mut fixture, &sorted));
    assert_eq!(names, ["$cursor", "$_internalUnpackBucket", "$limit"]);
    let plan = "queryPlanner.winningPlan";
    assert_eq!(
        value_at(cursor.as_ref(), &format!("{plan}.stage")),
        text("SORT")
    );
    let pattern = doc! {"meta.h": -1};
    assert_eq!(
        value_at(cursor.as_ref(), &format!("{plan}.sortPattern")),
        text(pattern)
    );
    let limited = array![doc! {"$limit": 3}];
    let (names, cursor) = stages_of(&explained(&mut fixture, &limited));
    assert_eq!(names, ["$cursor", "$_internalUnpackBucket", "$limit"]);
    assert_eq!(
        value_at(cursor.as_ref(), &format!("{plan}.stage")),
        text("LIMIT")
    );
    assert_eq!(examined(&cursor), 1);
    let bounded = array![doc! {"$sort": doc! {"t": -1}}];
    let shown = explained(&mut fixture, &bounded);
    assert_eq!(
        stages_of(&shown).0,
        [
            "$cursor",
            "$match",
            "$_internalUnpackBucket",
            "$_internalBoundedSort"
        ]
    );
    let sort = shown.get("stages").as_array().unwrap().get(3);
    let bound = doc! {"base": "min", "offsetSeconds": 3600i64};
    assert_eq!(
        value_at(sort.as_document().unwrap(), "$_internalBoundedSort.bound"),
        text(bound)
    );
    // The assumed bounds hold for every bucket.
    let spanned = doc! {"$subtract": array!["$control.max.t", "$control.min.t"]};
    let guard = doc! {"$expr": doc! {"$lte": array![spanned, doc! {"$const": 3_600_000i64}]}};
    let list = shown.get("stages").as_array().unwrap();
    let first = list.get(1).as_document().unwrap().get("$match");
    assert_eq!(text(first.to_value()), text(guard));
    for pipeline in [
        bounded,
        array![doc! {"$sort": doc! {"t": 1, "_id": 1}}],
        array![doc! {"$sort": doc! {"m.h": -1, "t": 1, "_id": 1}}],
        array![
            doc! {"$sort": doc! {"m.h": 1, "t": -1, "_id": 1}},
            doc! {"$skip": 3}
        ],
    ] {
        let times = |list: &[Document]| -> Vec<String> {
            list.iter().map(|d| text(d.get("t").to_value())).collect()
        };
        let found = fixture.all(aggregate("ts", &pipeline));
        let expected = fixture.all(aggregate("plain", &pipeline));
        // Three ties each in the sort by time.
        assert_eq!(times(&found), times(&expected));
        if text(pipeline.clone()).contains("_id") {
            assert_eq!(found.len(), expected.len());
            assert_eq!(ids(&found), ids(&expected));
        }
    }
}

#[test]
fn the_first_and_the_last_point_are_found_by_an_index() {
    let mut fixture = series();
    let key = doc! {"m.h": 1, "t": 1};
    let indexes = array![doc! {"key": key, "name": "series"}];
    fixture.run(doc! {"createIndexes": "ts", "indexes": indexes});
    let top = |name: &str, order: i32| {
        let mut spec = nilometer_bson::DocumentBuilder::new();
        spec.append(
            name,
            doc! {"sortBy": doc! {"t": order}, "output": array!["$t", "$v"]},
        );
        let group = doc! {"_id": "$m.h", "x": spec.finish()};
        array![doc! {"$group": group}, doc! {"$sort": doc! {"_id": 1}}]
    };
    let sorted = |name: &str, order: i32| {
        let mut spec = nilometer_bson::DocumentBuilder::new();
        spec.append(name, "$v");
        let group = doc! {"_id": "$m.h", "x": spec.finish()};
        array![
            doc! {"$sort": doc! {"m.h": 1, "t": order}},
            doc! {"$group": group},
            doc! {"$sort": doc! {"_id": 1}},
        ]
    };
    for stages in [
        top("$top", 1),
        top("$bottom", -1),
        sorted("$first", 1),
        sorted("$last", -1),
        top("$top", -1),
        top("$bottom", 1),
        sorted("$last", 1),
        sorted("$first", -1),
    ] {
        let found = fixture.all(aggregate("ts", &stages));
        assert_eq!(found, fixture.all(aggregate("plain", &stages)));
        assert_eq!(found.len(), 3);
        let (_, cursor) = stages_of(&explained(&mut fixture, &stages));
        assert!(rules_of(&cursor).contains(&"PointByIndex".to_owned()));
        // Of ten or more buckets per series, the few that may have the point.
        assert!(examined(&cursor) <= 6, "{}", show(&cursor));
    }
}

/// A bucket of an old server: columns not compressed, measurements not counted.
fn plain_bucket(at_ms: i64, span_ms: i64, meta: &str, values: [i32; 3]) -> Document {
    let time = |at: i64| Value::DateTime(at_ms + at * span_ms / 2);
    // Its id contains its start.
    let mut id = [0; 12];
    id[..4].copy_from_slice(&((at_ms / 1000) as u32).to_be_bytes());
    id[4] = meta.as_bytes()[0];
    let [a, b, c] = values;
    let (least, most) = (a.min(b).min(c), a.max(b).max(c));
    doc! {
        "_id": Value::ObjectId(ObjectId(id)),
        "control": doc! {
            "version": 1,
            "min": doc! {"t": time(0), "v": least},
            "max": doc! {"t": time(2), "v": most},
        },
        "meta": meta,
        "data": doc! {
            "t": doc! {"0": time(1), "1": time(0), "2": time(2)},
            "v": doc! {"0": a, "1": b, "2": c},
        },
    }
}

#[test]
fn buckets_written_as_they_are_answer_alike() {
    let mut fixture = Fixture::new();
    let options = doc! {
        "timeField": "t", "metaField": "m", "bucketMaxSpanSeconds": 3600, "bucketRoundingSeconds": 3600,
    };
    fixture.run(doc! {"create": "ts", "timeseries": options});
    let start = T0 / 3_600_000 * 3_600_000;
    // Two within their hour, one across an hour border, and one that spans a day.
    let buckets = array![
        plain_bucket(start, 1_200_000, "a", [3, 1, 2]),
        plain_bucket(start + 60_000, 1_200_000, "b", [6, 5, 4]),
        plain_bucket(start + 2_400_000, 2_400_000, "c", [9, 8, 7]),
        plain_bucket(start - 7_200_000, 86_400_000, "d", [10, 11, 12]),
    ];
    let insert = doc! {"insert": "system.buckets.ts", "documents": buckets};
    assert_eq!(fixture.run(insert).get("n").as_exact_i64(), Some(4));
    let all = fixture.all(doc! {"find": "ts"});
    assert_eq!(all.len(), 12);
    fixture.run(
        doc! {"insert": "plain", "documents": all.into_iter().map(Value::from).collect::<Vec<_>>()},
    );
    let hour = doc! {"$dateTrunc": doc! {"date": "$t", "unit": "hour"}};
    let extremes = doc! {
        "_id": hour, "least": doc! {"$min": "$v"}, "most": doc! {"$max": "$v"}, "n": doc! {"$sum": 1},
    };
    let aligned = doc! {"t": doc! {"$gte": Value::DateTime(start), "$lt": Value::DateTime(start + 3_600_000)}};
    let by_id = doc! {"$sort": doc! {"_id": 1}};
    for stages in [
        array![doc! {"$group": extremes.clone()}, by_id.clone()],
        array![
            doc! {"$match": aligned.clone()},
            doc! {"$group": extremes},
            by_id
        ],
        array![doc! {"$match": aligned}, doc! {"$sort": doc! {"v": 1}}],
        array![doc! {"$sort": doc! {"t": 1, "v": 1}}],
        array![doc! {"$sort": doc! {"t": -1, "v": 1}}],
        array![doc! {"$sort": doc! {"m": -1, "t": 1}}],
        array![doc! {"$sort": doc! {"t": 1, "v": 1}}, doc! {"$limit": 4}],
        array![doc! {"$count": "n"}],
    ] {
        // Without the `_id`, which an ordinary collection generates.
        let without_id = doc! {"$unset": "_id"};
        let is_group = text(stages.clone()).contains("$group");
        let mut list: Vec<Value> = stages
            .as_ref()
            .as_array()
            .unwrap()
            .iter()
            .map(ValueRef::to_value)
            .collect();
        if !is_group {
            list.push(without_id.into());
        }
        let stages = Value::from(list);
        let found = fixture.all(aggregate("ts", &stages));
        assert_eq!(found, fixture.all(aggregate("plain", &stages)));
    }
}

#[test]
fn sorts_come_in_the_order_of_an_index() {
    let mut fixture = series();
    let indexes = array![
        doc! {"key": doc! {"m.h": 1, "t": 1}, "name": "up"},
        doc! {"key": doc! {"m.h": 1, "t": -1}, "name": "down"},
        doc! {"key": doc! {"m.g": 1, "m.h": 1, "t": 1}, "name": "both"},
        doc! {"key": doc! {"m.h": 1, "v": 1, "t": 1}, "name": "values"},
        doc! {"key": doc! {"m.h": 1, "t": 1}, "name": "some", "partialFilterExpression": doc! {"m.h": "a"}},
    ];
    fixture.run(doc! {"createIndexes": "ts", "indexes": indexes});
    let plan = "queryPlanner.winningPlan";
    let mut check = |filter: Document, sort: Document, hint: &str, way: Option<&str>| {
        let stages = array![doc! {"$match": filter}, doc! {"$sort": sort}];
        let mut command = nilometer_bson::DocumentBuilder::new();
        for element in aggregate("ts", &stages).iter() {
            command.append_element(element);
        }
        command.append("hint", (!hint.is_empty()).then_some(hint));
        let command = command.finish();
        let shown = doc! {"explain": command.clone(), "verbosity": "queryPlanner"};
        let (names, cursor) = stages_of(&fixture.run(shown));
        let step = |path: &str| value_at(cursor.as_ref(), &format!("{plan}.inputStage.{path}"));
        assert_eq!(names.last().unwrap(), "$_internalBoundedSort");
        match way {
            Some(way) => {
                assert_eq!(step("indexName"), text(hint), "{}", show(&cursor));
                assert_eq!(step("direction"), text(way), "{}", show(&cursor));
            }
            None => assert_ne!(step("direction"), text("backward"), "{}", show(&cursor)),
        }
        let found = ids(&fixture.all(command));
        assert_eq!(found, ids(&fixture.all(aggregate("plain", &stages))));
        assert!(!found.is_empty());
    };
    let all = Document::new;
    for (hint, sort, way) in [
        ("up", doc! {"m.h": 1, "t": 1, "_id": 1}, "forward"),
        ("up", doc! {"m.h": -1, "t": -1, "_id": 1}, "backward"),
        ("down", doc! {"m.h": 1, "t": -1, "_id": 1}, "forward"),
        ("down", doc! {"m.h": -1, "t": 1, "_id": 1}, "backward"),
        ("both", doc! {"m.g": 1, "m.h": 1, "t": 1}, "forward"),
    ] {
        check(all(), sort, hint, Some(way));
    }
    // One leading value is unordered, a range of values is not.
    let one = || doc! {"m.g": Value::Null};
    check(one(), doc! {"m.h": -1, "t": -1}, "both", Some("backward"));
    let range = || doc! {"m.g": doc! {"$in": array![Value::Null, 5]}};
    check(range(), doc! {"m.h": -1, "t": -1}, "both", None);
    for (hint, sort) in [
        ("up", doc! {"m.h": 1, "t": -1}),
        ("down", doc! {"m.h": -1, "t": -1}),
        ("up", doc! {"m": 1, "t": -1}),
        ("both", doc! {"m.h": 1, "t": -1}),
        ("values", doc! {"m.h": -1, "t": -1}),
        // Ten buckets of each are collected as well.
        ("", doc! {"m.h": -1, "t": -1}),
    ] {
        check(all(), sort, hint, None);
    }
    // A limit stops reading at the first bucket that suffices.
    let limited = array![
        doc! {"$sort": doc! {"m.h": -1, "t": -1}},
        doc! {"$limit": 3}
    ];
    let (_, cursor) = stages_of(&explained(&mut fixture, &limited));
    assert!(examined(&cursor) <= 3, "{}", show(&cursor));
    let found = ids(&fixture.all(aggregate("ts", &limited)));
    assert_eq!(found, ids(&fixture.all(aggregate("plain", &limited))));
}

/// Dates before 1970 and after 2038, which bucket ids cannot represent: sorts use the bounds in headers,
/// with any hint and in either direction.
#[test]
fn dates_beyond_ids_are_sorted_by_the_bounds_of_buckets() {
    const LATE: i64 = 2_147_483_648_000;
    for extended in [true, false] {
        let mut fixture = series();
        let mut documents: Vec<Value> = Vec::new();
        let starts: &[i64] = match extended {
            true => &[-90 * 86_400_000, -7_200_000, -1, 0, LATE, LATE + 86_400_000],
            false => &[T0 - 86_400_000, T0 + 30 * 86_400_000],
        };
        for (day, start) in starts.iter().enumerate() {
            for at in [0, 500, 1_800_000, 61_000] {
                let id = 1000 + documents.len() as i64;
                let host = ["a", "b"][day % 2];
                let time = Value::DateTime(start + at);
                documents.push(doc! {"t": time, "m": doc! {"h": host}, "_id": id, "v": id}.into());
            }
        }
        for collection in ["ts", "plain"] {
            fixture.run(doc! {"insert": collection, "documents": documents.clone()});
        }
        let indexes = array![
            doc! {"key": doc! {"t": 1}, "name": "up"},
            doc! {"key": doc! {"t": -1}, "name": "down"},
            doc! {"key": doc! {"m.h": 1, "t": -1}, "name": "series"},
        ];
        fixture.run(doc! {"createIndexes": "ts", "indexes": indexes});
        let natural = |way: i32| Value::from(doc! {"$natural": way});
        for hint in [
            Value::Missing,
            "up".into(),
            "down".into(),
            "series".into(),
            natural(1),
            natural(-1),
        ] {
            for sort in [
                doc! {"t": 1, "_id": 1},
                doc! {"t": -1, "_id": -1},
                doc! {"m.h": 1, "t": -1, "_id": 1},
            ] {
                let stages = array![doc! {"$sort": sort}];
                let mut command = nilometer_bson::DocumentBuilder::new();
                for element in aggregate("ts", &stages).iter() {
                    command.append_element(element);
                }
                if !hint.is_missing() {
                    command.append("hint", hint.clone());
                }
                let command = command.finish();
                let explain = doc! {"explain": command.clone(), "verbosity": "queryPlanner"};
                let (names, cursor) = stages_of(&fixture.run(explain));
                let last = names.last().unwrap();
                assert_eq!(last, "$_internalBoundedSort", "{}", show(&cursor));
                let found = ids(&fixture.all(command.clone()));
                assert_eq!(found, ids(&fixture.all(aggregate("plain", &stages))));
                let set = |names: Value| doc! {"setParameter": 1, "internalNilometerDisabledRules": names};
                fixture.reply_on("admin", set(array!["SortByBuckets"]));
                assert_eq!(found, ids(&fixture.all(command)));
                fixture.reply_on("admin", set(array![]));
            }
        }
    }
}

#[test]
fn few_of_many_are_drawn_from_random_buckets() {
    let mut fixture = series();
    let sample = |size: i32| array![doc! {"$sample": doc! {"size": size}}];
    let (_, cursor) = stages_of(&explained(&mut fixture, &sample(2)));
    let stage = value_at(cursor.as_ref(), "queryPlanner.winningPlan.stage");
    assert_eq!(stage, text("SAMPLE_FROM_TIMESERIES_BUCKET"));
    // Three or four measurements of a thousand places each: sampling gives up, and all are read.
    assert!(examined(&cursor) > 30, "{}", show(&cursor));
    for size in [1, 7, 119, 200] {
        let found = fixture.all(aggregate("ts", &sample(size)));
        let mut drawn: Vec<i64> = found
            .iter()
            .filter_map(|d| d.get("_id").as_exact_i64())
            .collect();
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn.len(), 120.min(size as usize));
    }
    // Full buckets: two of twenty are opened.
    fixture.run(doc! {"create": "full", "timeseries": doc! {"timeField": "t", "metaField": "m"}});
    for host in 0..20i32 {
        let one = |at: i32| -> Value {
            let time = Value::DateTime(T0 + i64::from(at));
            doc! {"t": time, "m": host, "_id": host * 1000 + at}.into()
        };
        let documents: Vec<Value> = (0..1000).map(one).collect();
        fixture.run(doc! {"insert": "full", "documents": documents});
    }
    let explain = doc! {"explain": aggregate("full", &sample(3)), "verbosity": "executionStats"};
    let (_, cursor) = stages_of(&fixture.run(explain));
    assert!(examined(&cursor) <= 3, "{}", show(&cursor));
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..40 {
        let found = fixture.all(aggregate("full", &sample(3)));
        assert_eq!(found.len(), 3);
        seen.extend(found.iter().filter_map(|d| d.get("_id").as_exact_i64()));
    }
    // 120 samples of 20,000: hardly any repeats, and they are spread evenly.
    assert!(seen.len() > 100, "{}", seen.len());
    assert!(seen.iter().any(|id| *id < 5000) && seen.iter().any(|id| *id > 15_000));
    // More than one in a hundred, or a filter before: no sampling of buckets.
    let filtered = array![
        doc! {"$match": doc! {"m": doc! {"$gt": 1}}},
        doc! {"$sample": doc! {"size": 2}}
    ];
    for stages in [sample(201), filtered] {
        let explain = doc! {"explain": aggregate("full", &stages), "verbosity": "queryPlanner"};
        let (_, cursor) = stages_of(&fixture.run(explain));
        let stage = value_at(cursor.as_ref(), "queryPlanner.winningPlan.stage");
        assert_ne!(stage, text("SAMPLE_FROM_TIMESERIES_BUCKET"));
    }
}

#[test]
fn counts_of_all_measurements_read_no_bucket() {
    let mut fixture = series();
    let group = |n: Document| Value::from(doc! {"$group": doc! {"_id": 1, "n": n}});
    let one = || group(doc! {"$sum": 1});
    let all = || Value::from(doc! {"$match": doc! {}});
    for (stages, counts) in [
        (array![all(), one()], true),
        (array![one()], true),
        (array![doc! {"$count": "n"}], true),
        (
            array![
                doc! {"$group": doc! {"_id": doc! {"a": 1}, "n": doc! {"$count": doc! {}}, "s": doc! {"$sum": 2}, "f": doc! {"$first": "x"}}}
            ],
            true,
        ),
        (
            array![doc! {"$match": doc! {"v": doc! {"$gt": 3}}}, one()],
            false,
        ),
        (array![doc! {"$match": doc! {"m.h": "a"}}, one()], false),
        (array![doc! {"$limit": 5}, one()], false),
        (
            array![doc! {"$group": doc! {"_id": "$m.h", "n": doc! {"$sum": 1}}}],
            false,
        ),
        (array![group(doc! {"$sum": 2.5})], false),
        (array![group(doc! {"$max": "$v"})], false),
        (array![group(doc! {"$sum": doc! {"$rand": doc! {}}})], false),
    ] {
        let explained = explained(&mut fixture, &stages);
        let text = show(&explained);
        assert_eq!(text.contains("CountOfAll"), counts, "{text}");
        let (_, cursor) = stages_of(&explained);
        assert_eq!(examined(&cursor) == 0, counts, "{text}");
        let found = fixture.all(aggregate("ts", &stages));
        let expected = fixture.all(aggregate("plain", &stages));
        if !text.contains("$rand") {
            assert_eq!(found, expected, "{text}");
        }
    }
    let delete = doc! {"q": doc! {}, "limit": 0};
    fixture.run(doc! {"delete": "ts", "deletes": array![delete]});
    assert!(fixture.all(aggregate("ts", &array![one()])).is_empty());
}
