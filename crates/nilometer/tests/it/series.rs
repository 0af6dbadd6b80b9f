//! Conditions on parts of the metadata, without an index of the user's: the default index gives the buckets of the series
//! that pass, and the answer is that of the same documents in an ordinary collection.

use nilometer_bson::{Document, DocumentBuilder, Value, array, doc};

use crate::rules::{aggregate, explained_of, stages_of};
use crate::support::Fixture;

const DAY_MS: i64 = 86_400_000;
const DAYS: i64 = 12;
const HOSTS: i64 = 30;

/// Returns the metadata of a series: objects with numbers of two types and missing parts, a text, null, and none.
fn meta(series: i64) -> Value {
    let mut out = DocumentBuilder::new();
    out.append("h", format!("host {series}"));
    match series % 5 {
        0 => out.append("rack", series / 5),
        1 => out.append("rack", (series / 5) as f64),
        2 => out.append("rack", Value::Null),
        3 => out.append("place", doc! { "room": series % 3 }),
        _ => out.append("tags", array![series % 4, "x"]),
    };
    match series {
        0 => Value::Null,
        1 => Value::Missing,
        2 => "a text".into(),
        _ => out.finish().into(),
    }
}

fn measurement(id: i64, series: i64, at: i64) -> Value {
    let mut out = DocumentBuilder::new();
    out.append("_id", id);
    out.append("t", Value::DateTime(at));
    match meta(series) {
        Value::Missing => {}
        value => {
            out.append("m", value);
        }
    }
    out.append("v", id % 17);
    out.finish().into()
}

/// Buckets of a day each, of all series.
fn filled() -> Fixture {
    let mut fixture = Fixture::with_oracle();
    let mut documents = Vec::new();
    for day in 0..DAYS {
        for series in 0..HOSTS {
            for minute in [0, 7] {
                let at = day * DAY_MS + minute * 60_000 + series;
                documents.push(measurement(documents.len() as i64, series, at));
            }
        }
    }
    fixture.insert_into_both(&documents);
    fixture
}

fn conditions() -> Vec<Document> {
    let regex = doc! { "$regex": "^host 1" };
    vec![
        doc! { "m.h": "host 7" },
        doc! { "m.h": doc! { "$in": array!["host 3", "host 29", "nobody"] } },
        doc! { "m.h": doc! { "$gt": "host 2", "$lt": "host 24" } },
        doc! { "m.h": "nobody" },
        doc! { "m.rack": 2 },
        doc! { "m.rack": 2.0 },
        doc! { "m.rack": Value::Null },
        doc! { "m.rack": doc! { "$exists": false } },
        doc! { "m.rack": doc! { "$type": "double" } },
        doc! { "m.place.room": doc! { "$gte": 1 } },
        doc! { "m.tags": "x", "m.h": "host 9" },
        doc! { "m.tags": 3 },
        doc! { "m.h": regex, "m.rack": doc! { "$lt": 3 } },
        doc! { "$or": array![doc! { "m.h": "host 4" }, doc! { "m.rack": 1 }] },
        doc! { "$nor": array![doc! { "m.h": doc! { "$lt": "host 8" } }, doc! { "m.rack": 5 }] },
        doc! { "$expr": doc! { "$eq": array!["$m.h", "host 5"] } },
        doc! { "m": "a text" },
        doc! { "m": Value::Null, "m.h": doc! { "$exists": false } },
        doc! { "m.h": doc! { "$ne": "host 5" }, "m.rack": 1 },
    ]
}

fn compare(fixture: &mut Fixture) {
    let times = [None, Some((2, 4)), Some((0, 11)), Some((11, 30))];
    for condition in conditions() {
        for times in times {
            let mut filter = DocumentBuilder::new();
            for element in condition.iter() {
                filter.append_element(element);
            }
            if let Some((from, to)) = times {
                let (from, to) = (from * DAY_MS, to * DAY_MS + 60_000);
                let range = doc! { "$gte": Value::DateTime(from), "$lt": Value::DateTime(to) };
                filter.append("t", range);
            }
            let filter = filter.finish();
            let sort = doc! { "$sort": doc! { "_id": 1 } };
            let shown = doc! { "$project": doc! { "v": 1, "h": "$m.h" } };
            let stages: Value = array![doc! { "$match": filter.clone() }, sort, shown];
            let [series, plain] = ["ts", "plain"].map(|name| fixture.all(aggregate(name, &stages)));
            assert_eq!(series, plain, "{filter:?}");
        }
    }
}

#[test]
fn conditions_on_parts_of_metadata_answer_as_plain_documents() {
    let mut fixture = filled();
    compare(&mut fixture);
    // New series, and series that end.
    let late: Vec<Value> = (0..40)
        .map(|n| {
            measurement(
                10_000 + n,
                3 + (n * 7) % (HOSTS + 20),
                5 * DAY_MS + n * 1000,
            )
        })
        .collect();
    fixture.insert_into_both(&late);
    for collection in ["ts", "plain"] {
        let delete =
            doc! { "q": doc! { "m.h": doc! { "$in": array!["host 7", "host 9"] } }, "limit": 0 };
        fixture.run(doc! { "delete": collection, "deletes": array![delete] });
    }
    compare(&mut fixture);
}

#[test]
fn one_series_of_many_is_read_by_the_default_index() {
    let mut fixture = filled();
    let examined = |fixture: &mut Fixture, stages: Value| {
        let explained = explained_of(fixture, "ts", &stages);
        let (_, cursor) = stages_of(&explained);
        let statistics = cursor
            .get("executionStats")
            .as_document()
            .unwrap()
            .to_document();
        statistics.get("totalDocsExamined").as_exact_i64()
    };
    let one: Value = array![doc! { "$match": doc! { "m.h": "host 7" } }];
    assert_eq!(examined(&mut fixture, one), Some(DAYS));
    let none: Value = array![doc! { "$match": doc! { "m.h": "nobody" } }];
    assert_eq!(examined(&mut fixture, none), Some(0));
}
