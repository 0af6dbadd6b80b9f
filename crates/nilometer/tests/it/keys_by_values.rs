//! Groups by values of measurements of several collections at once: what is known of the values of one does not hold in the other.

use nilometer_bson::{Value, array, doc};

use crate::rules::aggregate;
use crate::support::{Fixture, show};

/// Creates time series with other metadata fields, and ordinary collections with the same documents.
fn filled() -> Fixture {
    let mut fixture = Fixture::new();
    let at = |second: i64| Value::DateTime(1_700_000_000_000 + second * 1000);
    for (name, meta) in [("a", "m"), ("b", "k")] {
        fixture.run(
            doc! { "create": name, "timeseries": doc! { "timeField": "t", "metaField": meta } },
        );
    }
    let of_a = |n: i64| doc! { "t": at(n), "m": doc! { "h": "a" }, "v": if n % 3 == 0 { "x" } else { "x!" }, "_id": n };
    let of_b =
        |n: i64| doc! { "t": at(n), "k": doc! { "h": "a" }, "m": n % 4, "v": n % 2, "_id": n };
    let of_a: Vec<Value> = (0..40).map(|n| of_a(n).into()).collect();
    let of_b: Vec<Value> = (0..40).map(|n| of_b(n).into()).collect();
    for (names, documents) in [(["a", "plain_a"], of_a), (["b", "plain_b"], of_b)] {
        for name in names {
            fixture.run(doc! { "insert": name, "documents": documents.clone() });
        }
    }
    fixture
}

#[test]
fn groups_of_a_union_keep_the_keys_of_each_collection_apart() {
    let mut fixture = filled();
    let text = doc! { "$concat": array![doc! { "$ifNull": array!["$v", "x"] }, "!"] };
    let both = doc! { "m": "$m", "v": "$v" };
    for (first, second, before, key) in [
        ("a", "b", doc! { "$match": doc! {} }, Value::from("$m")),
        ("b", "a", doc! { "$match": doc! {} }, "$m".into()),
        ("a", "b", doc! { "$match": doc! {} }, "$k".into()),
        ("b", "a", doc! { "$match": doc! {} }, both.clone().into()),
        ("a", "b", doc! { "$match": doc! {} }, both.into()),
        (
            "a",
            "a",
            doc! { "$project": doc! { "v": 0 } },
            text.clone().into(),
        ),
        (
            "a",
            "a",
            doc! { "$match": doc! { "_id": doc! { "$lt": 9 } } },
            text.into(),
        ),
    ] {
        let stages = |second: String| {
            array![
                before.clone(),
                doc! { "$unionWith": second },
                doc! { "$group": doc! { "_id": key.clone(), "n": doc! { "$sum": 1 } } },
                doc! { "$sort": doc! { "_id": 1 } },
            ]
        };
        let plain = stages(format!("plain_{second}"));
        let expected = fixture.all(aggregate(&format!("plain_{first}"), &plain));
        let series = stages(second.to_owned());
        let found = fixture.all(aggregate(first, &series));
        let texts = |rows: &[_]| rows.iter().map(show).collect::<Vec<_>>();
        assert_eq!(texts(&found), texts(&expected), "{series:?}");
    }
}
