//! Groups of more series than the cache of metadata numbers holds (10,000): first each once, then each again.

use std::collections::HashMap;

use nilometer_bson::{Document, Value, ValueRef, array, doc};
use nilometer_storage::testing::is_long;

use crate::support::{Fixture, TemporaryDirectory};

/// More than the cache holds, in two buckets each.
const SERIES: i64 = 10_400;

const HOUR_MS: i64 = 3_600_000;

/// Returns the time of a round. Rounds are two hours apart, so that each opens new buckets.
fn time(round: i64) -> Value {
    Value::DateTime(1_700_000_000_000 + round * 2 * HOUR_MS)
}

fn load(fixture: &mut Fixture) {
    let timeseries = doc! {"timeField": "t", "metaField": "m"};
    fixture.run(doc! {"create": "ts", "timeseries": timeseries});
    for round in 0..2 {
        let one = |series: i64| -> Value {
            let meta = doc! {"series": series, "half": series % 2};
            doc! {"t": time(round), "m": meta, "v": series * 2 + round}.into()
        };
        let documents: Vec<Value> = (0..SERIES).map(one).collect();
        let reply = fixture.run(doc! {"insert": "ts", "documents": documents});
        assert_eq!(reply.get("n").as_exact_i64(), Some(SERIES));
    }
}

fn shown(value: ValueRef<'_>) -> String {
    nilometer_bson::extjson::value_to_relaxed(value)
}

/// Returns the results of a group, by key as text.
fn groups(fixture: &mut Fixture, stage: Document) -> HashMap<String, Document> {
    let pipeline = array![doc! {"$group": stage}];
    let cursor = doc! {"batchSize": 2 * SERIES};
    let given = fixture.all(doc! {"aggregate": "ts", "pipeline": pipeline, "cursor": cursor});
    let count = given.len();
    let by_key = given
        .into_iter()
        .map(|group| (shown(group.get("_id")), group));
    let found: HashMap<String, Document> = by_key.collect();
    assert_eq!(found.len(), count);
    found
}

/// Returns the number of measurements of each group with this key.
fn counts(fixture: &mut Fixture, key: impl Into<Value>) -> Vec<i64> {
    let key: Value = key.into();
    let found = groups(fixture, doc! {"_id": key, "n": doc! {"$sum": 1}});
    let counts = found
        .values()
        .filter_map(|group| group.get("n").as_exact_i64());
    counts.collect()
}

fn check(fixture: &mut Fixture) {
    let newest = doc! {"$top": doc! {"sortBy": doc! {"t": -1}, "output": array!["$t", "$v", "$w"]}};
    let stage = doc! {"_id": "$m", "n": doc! {"$sum": 1}, "newest": newest};
    let by_series = groups(fixture, stage);
    assert_eq!(by_series.len(), SERIES as usize);
    for group in by_series.values() {
        let meta = group.get("_id").as_document().unwrap();
        let series = meta.get("series").as_exact_i64().unwrap();
        assert_eq!(group.get("n").as_exact_i64(), Some(2));
        let expected = doc! {"newest": array![time(1), series * 2 + 1, Value::Null]};
        assert_eq!(shown(group.get("newest")), shown(expected.get("newest")));
    }
    assert_eq!(counts(fixture, "$m.half"), [SERIES; 2]);
    let named = doc! {"half": "$m.half", "none": "$m.none"};
    assert_eq!(counts(fixture, named), [SERIES; 2]);
    let hour = doc! {"$dateTrunc": doc! {"date": "$t", "unit": "hour"}};
    let by_hour = doc! {"half": "$m.half", "hour": hour};
    assert_eq!(counts(fixture, by_hour), [SERIES / 2; 4]);
}

#[test]
fn more_series_than_the_cache_holds_are_grouped_alike() {
    if !is_long() {
        return;
    }
    let directory = TemporaryDirectory::new();
    let mut fixture = Fixture::open(&directory.0);
    load(&mut fixture);
    check(&mut fixture);
    fixture.database.settle().unwrap();
    // Opened for the first time, then from the cache.
    check(&mut fixture);
    check(&mut fixture);
}
