//! Groups over the summaries of sealed buckets: the answer is that of the same documents in an ordinary collection, also
//! when buckets were changed since they were summarized.

use nilometer_bson::{Decimal128, Document, DocumentBuilder, Value, ValueRef, array, doc};
use nilometer_storage::testing::Effort;

use crate::rules::{aggregate, explained_of, rules_of, stages_of};
use crate::support::{Fixture, show};

const HOUR_MS: i64 = 3_600_000;
const HOURS: i64 = 24;
const HOSTS: i64 = 30;
const RULE: &str = "SummariesOfBuckets";

/// A measurement with numbers of all types, texts, and values that are sometimes missing or of another type.
fn measurement(id: i64, host: i64, at: i64) -> Value {
    let mut out = DocumentBuilder::new();
    out.append("_id", id);
    out.append("t", Value::DateTime(at));
    match host {
        0 => {}
        1 => {
            out.append("m", "a text");
        }
        _ => {
            let meta = doc! { "h": format!("host {host}"), "rack": host % 4 };
            out.append("m", meta);
        }
    };
    out.append("int", (id % 13) as i32);
    out.append("long", id * 1_000_000_007);
    out.append("double", (id % 101) as f64 / 8.0 - 3.0);
    out.append("unit", if host % 9 == 5 { "K" } else { "C" });
    match id % 17 {
        3 => {}
        5 => {
            out.append("odd", Value::Null);
        }
        7 => {
            out.append("odd", "text");
        }
        9 => {
            out.append("odd", Decimal128::from(id as i32));
        }
        11 => {
            out.append("odd", f64::NAN);
        }
        _ => {
            out.append("odd", id % 5);
        }
    }
    if host % 6 == 2 {
        out.append("object", doc! { "a": id % 3, "b": array![id % 2] });
    }
    out.finish().into()
}

/// Buckets of an hour each, sealed and summarized.
fn filled() -> Fixture {
    let mut fixture = Fixture::with_oracle();
    let mut documents = Vec::new();
    for hour in 0..HOURS {
        for minute in [0, 7, 58] {
            for host in 0..HOSTS {
                let at = hour * HOUR_MS + minute * 60_000 + host;
                documents.push(measurement(documents.len() as i64, host, at));
            }
        }
    }
    fixture.insert_into_both(&documents);
    fixture.run(doc! { "compact": "system.buckets.ts" });
    fixture
}

fn pipelines() -> Vec<Value> {
    let hour = doc! { "$dateTrunc": doc! { "date": "$t", "unit": "hour" } };
    let day = doc! { "$dateTrunc": doc! { "date": "$t", "unit": "day" } };
    let minutes = doc! { "$dateTrunc": doc! { "date": "$t", "unit": "minute", "binSize": 30 } };
    let keys = [
        Value::Null,
        "$m".into(),
        "$m.h".into(),
        hour.clone().into(),
        doc! { "host": "$m.h", "hour": hour }.into(),
        doc! { "rack": "$m.rack", "day": day }.into(),
        minutes.into(),
    ];
    let filters = [
        doc! {},
        doc! { "t": doc! { "$gte": Value::DateTime(3 * HOUR_MS), "$lt": Value::DateTime(19 * HOUR_MS) } },
        doc! { "t": doc! { "$gte": Value::DateTime(3 * HOUR_MS + 400_000), "$lt": Value::DateTime(9 * HOUR_MS + 1) } },
        doc! { "m.rack": doc! { "$in": array![1, 3] } },
        doc! { "unit": "C" },
        doc! { "int": doc! { "$gte": 5 } },
        doc! { "double": doc! { "$gt": 9.0 }, "m.h": doc! { "$ne": "host 7" } },
        doc! { "odd": Value::Null },
    ];
    let mut out = Vec::new();
    for key in &keys {
        for filter in &filters {
            let group = doc! {
                "_id": key.clone(), "n": doc! { "$sum": 1 }, "count": doc! { "$count": doc! {} },
                "int": doc! { "$sum": "$int" }, "long": doc! { "$sum": "$long" }, "avg": doc! { "$avg": "$double" },
                "min": doc! { "$min": "$double" }, "max": doc! { "$max": "$int" }, "unit": doc! { "$min": "$unit" },
                "odd": doc! { "$sum": "$odd" }, "odder": doc! { "$avg": "$odd" }, "oddest": doc! { "$max": "$odd" },
                "object": doc! { "$max": "$object" }, "last": doc! { "$max": "$t" }, "none": doc! { "$sum": "$none" },
            };
            out.push(array![
                doc! { "$match": filter.clone() },
                doc! { "$group": group }
            ]);
        }
    }
    out
}

/// Pipelines that read columns of all buckets, but no whole documents of most.
fn by_columns() -> Vec<Value> {
    let best =
        doc! { "n": 2, "sortBy": doc! { "double": -1, "_id": 1 }, "output": array!["$_id", "$t"] };
    let both = doc! { "$add": array!["$int", "$double"] };
    vec![
        array![
            doc! { "$group": doc! { "_id": "$int", "n": doc! { "$count": doc! {} }, "sum": doc! { "$sum": "$long" } } }
        ],
        array![
            doc! { "$match": doc! { "odd": doc! { "$gte": 1 } } },
            doc! { "$group": doc! { "_id": doc! { "hour": doc! { "$hour": "$t" }, "unit": "$unit", "odd": "$odd" }, "max": doc! { "$max": "$double" } } }
        ],
        array![
            doc! { "$set": doc! { "both": both.clone() } },
            doc! { "$match": doc! { "both": doc! { "$gt": 9 } } },
            doc! { "$group": doc! { "_id": "$m.h", "sum": doc! { "$sum": "$both" }, "n": doc! { "$sum": 1 } } }
        ],
        array![doc! { "$group": doc! { "_id": "$m", "sum": doc! { "$sum": both } } }],
        array![doc! { "$group": doc! { "_id": "$m.rack", "best": doc! { "$topN": best } } }],
        array![
            doc! { "$sort": doc! { "double": -1, "_id": 1 } },
            doc! { "$limit": 7 },
            doc! { "$project": doc! { "_id": 1, "double": 1 } }
        ],
        array![
            doc! { "$match": doc! { "int": doc! { "$lt": 6 } } },
            doc! { "$project": doc! { "odd": 1, "m": 1, "half": doc! { "$divide": array!["$int", 2] } } },
            doc! { "$sort": doc! { "half": -1, "odd": 1, "_id": -1 } },
            doc! { "$limit": 40 },
            doc! { "$project": doc! { "_id": 1, "half": 1 } }
        ],
    ]
}

fn answers(fixture: &mut Fixture, collection: &str, stages: &Value) -> Vec<String> {
    let found = fixture.all(aggregate(collection, stages));
    let mut found: Vec<String> = found.iter().map(show).collect();
    found.sort_unstable();
    found
}

/// The groups of the newest or oldest few minutes, for which a scan by summaries begins at either end and stops early.
fn first_few_groups() -> Vec<Value> {
    let mut out = Vec::new();
    for (unit, order, limit) in [("hour", -1, 2), ("minute", -1, 5), ("minute", 1, 7)] {
        let key = doc! { "$dateTrunc": doc! { "date": "$t", "unit": unit } };
        let group = doc! { "_id": key, "n": doc! { "$sum": 1 }, "max": doc! { "$max": "$double" } };
        for end in [HOURS * HOUR_MS + 1, 5 * HOUR_MS + 500_000, 5 * HOUR_MS] {
            let before = doc! { "t": doc! { "$lt": Value::DateTime(end) } };
            out.push(array![
                doc! { "$match": before },
                doc! { "$group": group.clone() },
                doc! { "$sort": doc! { "_id": order } },
                doc! { "$limit": limit },
            ]);
        }
    }
    out
}

/// Sums alone, for which many whole buckets are added at a time.
fn sums() -> Vec<Value> {
    let hour = doc! { "$dateTrunc": doc! { "date": "$t", "unit": "hour" } };
    let day = doc! { "$dateTrunc": doc! { "date": "$t", "unit": "day" } };
    let keys = [
        doc! { "hour": hour.clone(), "host": "$m.h" }.into(),
        doc! { "rack": "$m.rack", "day": day, "unit": "C" }.into(),
        hour.into(),
        "$m.h".into(),
        "$m".into(),
        Value::Null,
    ];
    let from = |ms: i64| doc! { "$gte": Value::DateTime(ms), "$lt": Value::DateTime(ms + 9 * HOUR_MS + 1_000_000) };
    let filters = [
        doc! {},
        doc! { "t": from(0) },
        doc! { "t": from(3 * HOUR_MS + 400_000) },
        doc! { "t": from(5 * HOUR_MS), "m.rack": 2 },
        doc! { "t": from(5 * HOUR_MS), "m.rack": doc! { "$gte": 0, "$ne": 3 } },
        doc! { "$or": array![doc! { "t": from(0) }, doc! { "t": from(12 * HOUR_MS) }] },
    ];
    let sums = [
        doc! { "int": doc! { "$sum": "$int" }, "avg": doc! { "$avg": "$double" }, "long": doc! { "$avg": "$long" } },
        doc! { "n": doc! { "$count": doc! {} }, "double": doc! { "$sum": "$double" }, "none": doc! { "$avg": "$none" } },
        doc! { "odd": doc! { "$sum": "$odd" }, "int": doc! { "$avg": "$int" } },
        doc! { "one": doc! { "$sum": 1 }, "double": doc! { "$avg": "$double" } },
    ];
    let mut out = Vec::new();
    for key in &keys {
        for filter in &filters {
            for sums in &sums {
                let mut group = DocumentBuilder::new();
                group.append("_id", key.clone());
                group.append_all(sums.as_ref());
                out.push(array![
                    doc! { "$match": filter.clone() },
                    doc! { "$group": group.finish() },
                ]);
            }
        }
    }
    out
}

/// Groups of bins and series, in every order of both.
fn check_orders(fixture: &mut Fixture) {
    let hour = doc! { "$dateTrunc": doc! { "date": "$t", "unit": "hour" } };
    let late = doc! { "t": doc! { "$gte": Value::DateTime(2 * HOUR_MS + 60_000) } };
    for (order, limit) in [
        (doc! { "_id.hour": 1, "_id.host": 1 }, 10_000),
        (doc! { "_id.hour": -1, "_id.host": 1 }, 45),
        (doc! { "_id.host": -1, "_id.hour": -1 }, 100),
        (doc! { "_id": -1 }, 10_000),
    ] {
        // A missing host sorts as null and may be either's equal: the groups of both are one.
        let host = doc! { "$ifNull": array!["$m.h", "none"] };
        let key = doc! { "hour": hour.clone(), "host": host };
        let group =
            doc! { "_id": key, "n": doc! { "$avg": "$double" }, "long": doc! { "$sum": "$long" } };
        let stages = array![
            doc! { "$match": late.clone() },
            doc! { "$group": group },
            doc! { "$sort": order },
            doc! { "$limit": limit },
        ];
        let expected = fixture.all(aggregate("plain", &stages));
        let found = fixture.all(aggregate("ts", &stages));
        assert_eq!(found, expected, "{stages:?}");
    }
}

/// One pipeline in this many is compared.
const STEP: Effort = Effort {
    fast: 19,
    long: 1,
    soak: 1,
};

/// Groups of a few hosts, whose buckets an index finds.
fn groups_of_hosts() -> Vec<Value> {
    let hour = doc! { "$dateTrunc": doc! { "date": "$t", "unit": "hour" } };
    let month = doc! { "$dateTrunc": doc! { "date": "$t", "unit": "month" } };
    let keys = [
        Value::Null,
        hour.clone().into(),
        doc! { "host": "$m.h", "month": month }.into(),
    ];
    let hosts = || (2..8).map(|n| Value::from(format!("host {n}")));
    let some: Vec<Value> = hosts().collect();
    let few: Vec<Value> = hosts().take(2).collect();
    let times = [
        (0, HOURS * HOUR_MS),
        (3 * HOUR_MS, 9 * HOUR_MS),
        (3 * HOUR_MS + 400_000, 19 * HOUR_MS + 1),
        (3 * HOUR_MS - 1, 3 * HOUR_MS + 500_000),
    ];
    let mut out = Vec::new();
    for key in &keys {
        for (from, to) in times {
            let range = doc! { "$gte": Value::DateTime(from), "$lt": Value::DateTime(to) };
            for hosts in [&some, &few] {
                let filter = doc! { "m.h": doc! { "$in": hosts.clone() }, "t": range.clone() };
                let group = doc! {
                    "_id": key.clone(), "n": doc! { "$sum": 1 }, "min": doc! { "$min": "$double" },
                    "max": doc! { "$max": "$int" }, "avg": doc! { "$avg": "$double" }, "odd": doc! { "$sum": "$odd" },
                    "unit": doc! { "$max": "$unit" }, "last": doc! { "$max": "$t" }, "object": doc! { "$min": "$object" },
                };
                let at_most = doc! { "_id": key.clone(), "max": doc! { "$max": "$long" } };
                for group in [group, at_most] {
                    out.push(array![
                        doc! { "$match": filter.clone() },
                        doc! { "$group": group }
                    ]);
                }
            }
        }
    }
    out
}

/// True if the rule applies to the buckets that an index finds.
fn reads_list_by_summaries(fixture: &mut Fixture, stages: &Value) -> bool {
    let explained = explained_of(fixture, "ts", stages);
    let (_, cursor) = stages_of(&explained);
    let by_index = show(&cursor).contains("IXSCAN");
    by_index && rules_of(&cursor).iter().any(|rule| rule == RULE)
}

#[test]
fn groups_of_listed_buckets_by_summaries() {
    let mut fixture = filled();
    let index = doc! { "key": doc! { "m.h": 1, "t": 1 }, "name": "hosts" };
    fixture.run(doc! { "createIndexes": "ts", "indexes": array![index] });
    let all = groups_of_hosts();
    assert!(reads_list_by_summaries(&mut fixture, &all[4]));
    // Bins that are shorter than buckets need columns.
    let minute = doc! { "$dateTrunc": doc! { "date": "$t", "unit": "minute" } };
    let group = doc! { "$group": doc! { "_id": minute, "max": doc! { "$max": "$int" } } };
    let hosts = doc! { "m.h": doc! { "$in": array!["host 2", "host 3"] } };
    let in_minutes = array![doc! { "$match": hosts.clone() }, group];
    assert!(!reads_list_by_summaries(&mut fixture, &in_minutes));
    let group = doc! { "$group": doc! { "_id": Value::Null, "max": doc! { "$max": "$int" } } };
    let in_all = array![doc! { "$match": hosts }, group];
    assert!(reads_list_by_summaries(&mut fixture, &in_all));
    check(&mut fixture);
}

fn check(fixture: &mut Fixture) {
    let wide = pipelines();
    let wide = wide.into_iter().step_by(STEP.requested() as usize);
    let sums = sums();
    let sums = sums.into_iter().step_by(STEP.requested() as usize);
    let listed = groups_of_hosts();
    let listed = listed.into_iter().step_by(STEP.requested().min(5) as usize);
    check_orders(fixture);
    for stages in wide
        .chain(first_few_groups())
        .chain(sums)
        .chain(listed)
        .chain(by_columns())
    {
        let expected = answers(fixture, "plain", &stages);
        assert_eq!(answers(fixture, "ts", &stages), expected, "{stages:?}");
    }
}

#[test]
fn groups_by_summaries() {
    let mut fixture = filled();
    let stages = &pipelines()[1];
    let explained = explained_of(&mut fixture, "ts", stages);
    let (_, cursor) = stages_of(&explained);
    assert!(rules_of(&cursor).iter().any(|rule| rule == RULE));
    check(&mut fixture);
    for stages in first_few_groups() {
        let explained = explained_of(&mut fixture, "ts", &stages);
        let (_, cursor) = stages_of(&explained);
        assert!(rules_of(&cursor).iter().any(|rule| rule == RULE));
    }
    for stages in by_columns() {
        let explained = explained_of(&mut fixture, "ts", &stages);
        let (_, cursor) = stages_of(&explained);
        assert!(
            rules_of(&cursor).iter().any(|rule| rule == RULE),
            "{stages:?}"
        );
    }
    let by_rows =
        array![doc! { "$group": doc! { "_id": "$m.h", "all": doc! { "$push": "$$ROOT" } } }];
    let explained = explained_of(&mut fixture, "ts", &by_rows);
    let (_, cursor) = stages_of(&explained);
    assert!(!rules_of(&cursor).iter().any(|rule| rule == RULE));
}

#[test]
fn buckets_that_change_are_read_instead_of_their_summaries() {
    let mut fixture = filled();
    let index = doc! { "key": doc! { "m.h": 1, "t": 1 }, "name": "hosts" };
    fixture.run(doc! { "createIndexes": "ts", "indexes": array![index] });
    let both = |fixture: &mut Fixture, command: &dyn Fn(&str) -> Document| {
        for collection in ["ts", "plain"] {
            fixture.run(command(collection));
        }
    };
    // Late measurements, a change, a removal.
    let late: Vec<Value> = (0..90)
        .map(|n| measurement(100_000 + n, n % HOSTS, n % HOURS * HOUR_MS + 1_000_000))
        .collect();
    fixture.insert_into_both(&late);
    check(&mut fixture);
    both(&mut fixture, &|collection| {
        let update = doc! { "q": doc! { "m.h": "host 9" }, "u": doc! { "$set": doc! { "m.h": "host 10" } }, "multi": true };
        doc! { "update": collection, "updates": array![update] }
    });
    check(&mut fixture);
    both(&mut fixture, &|collection| {
        let delete = doc! { "q": doc! { "int": 4 }, "limit": 0 };
        doc! { "delete": collection, "deletes": array![delete] }
    });
    check(&mut fixture);
    fixture.run(doc! { "compact": "system.buckets.ts" });
    check(&mut fixture);
    let found = fixture.run(doc! { "validate": "ts", "full": true });
    assert!(
        matches!(found.get("valid"), ValueRef::Bool(true)),
        "{}",
        show(&found)
    );
}

/// A cache that is full is not filled with the buckets of a wide scan.
#[test]
fn without_room_in_the_cache_columns_are_decoded_and_buckets_stay_closed() {
    let mut fixture = filled();
    let no_cache = doc! { "setParameter": 1, "nilometerBucketCacheBytes": 0 };
    let reply = fixture.reply_on("admin", no_cache);
    assert_eq!(reply.get("ok").as_exact_i64(), Some(1));
    check(&mut fixture);
}
