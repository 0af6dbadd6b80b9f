//! Queries of dashboards and their answers.

use nilometer_bson::{Value as Bson, array, doc};
use nilometer_influx::query::OutputOptions;
use serde_json::{Value, json};

use crate::store::TestStore;

/// Two hosts, a point every ten seconds from 0 to 50; `b` has a gap, integers and a text.
fn store() -> TestStore {
    let mut store = TestStore::new();
    store.write(
        "cpu,host=a,region=eu usage=1,n=1i,state=\"up\" 0\n\
         cpu,host=a,region=eu usage=2,n=3i 10000\n\
         cpu,host=a,region=eu usage=4,n=2i,state=\"down\" 20000\n\
         cpu,host=a,region=eu usage=8 30000\n\
         cpu,host=b usage=10,n=5i 0\n\
         cpu,host=b usage=30,n=7i,state=\"up\" 40000\n\
         cpu,host=b usage=20 50000\n\
         mem,host=a free=7i 5",
    );
    store
}

/// Returns the only series.
fn one(store: &mut TestStore, query: &str) -> (Value, Value) {
    let series = store.series(query);
    assert_eq!(
        series.as_array().map(Vec::len),
        Some(1),
        "{query}: {series}"
    );
    (series[0]["columns"].clone(), series[0]["values"].clone())
}

#[test]
fn values_as_they_are() {
    let store = &mut store();
    let (columns, values) = one(
        store,
        "SELECT usage, n, host FROM cpu WHERE host = 'a' LIMIT 2 OFFSET 1",
    );
    assert_eq!(columns, json!(["time", "usage", "n", "host"]));
    assert_eq!(values, json!([[10000, 2, 3, "a"], [20000, 4, 2, "a"]]));
    let (columns, values) = one(
        store,
        "SELECT * FROM cpu WHERE time <= 0 ORDER BY time DESC",
    );
    assert_eq!(
        columns,
        json!(["time", "host", "n", "region", "state", "usage"])
    );
    assert_eq!(values.as_array().map(Vec::len), Some(2));
    let (_, values) = one(
        store,
        "SELECT state FROM cpu WHERE usage >= 4 AND usage != 20",
    );
    assert_eq!(values, json!([[20000, "down"], [40000, "up"]]));
    let (columns, values) = one(
        store,
        "SELECT usage * 2 + n AS x, usage / 0 FROM cpu WHERE host = 'b' AND n > 5",
    );
    assert_eq!(columns, json!(["time", "x", "usage"]));
    assert_eq!(values, json!([[40000, 67, 0]]));
    let series = store.series("SELECT last(usage), host FROM cpu GROUP BY region");
    assert_eq!(
        series,
        json!([
            {"name": "cpu", "tags": {"region": ""}, "columns": ["time", "last", "host"], "values": [[50000, 20, "b"]]},
            {"name": "cpu", "tags": {"region": "eu"}, "columns": ["time", "last", "host"], "values": [[30000, 8, "a"]]},
        ])
    );
    assert_eq!(store.series("SELECT nothing FROM cpu"), Value::Null);
    assert_eq!(store.series("SELECT host FROM cpu"), Value::Null);
    assert_eq!(store.series("SELECT a FROM nothing"), Value::Null);
    let windows = "SELECT mean(nothing), max(\"nor this\") / 2 FROM cpu GROUP BY time(1m), host";
    assert_eq!(store.series(windows), Value::Null);
}

#[test]
fn windows_and_what_fills_them() {
    let store = &mut store();
    let query = |fill: &str| {
        format!(
            "SELECT mean(usage) FROM cpu WHERE host = 'b' AND time >= 0 AND time < 60s GROUP BY time(10s) {fill}"
        )
    };
    for (fill, expected) in [
        ("", json!([10, null, null, null, 30, 20])),
        ("fill(null)", json!([10, null, null, null, 30, 20])),
        ("fill(0)", json!([10, 0, 0, 0, 30, 20])),
        ("fill(previous)", json!([10, 10, 10, 10, 30, 20])),
        ("fill(linear)", json!([10, 15, 20, 25, 30, 20])),
    ] {
        let (_, values) = one(store, &query(fill));
        let of_windows: Vec<Value> = values
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row[1].clone())
            .collect();
        assert_eq!(Value::from(of_windows), expected, "{fill}");
    }
    let (_, values) = one(store, &query("fill(none)"));
    assert_eq!(values, json!([[0, 10], [40000, 30], [50000, 20]]));
    let (columns, values) = one(
        store,
        "SELECT count(usage), sum(n), max(n) - min(n) FROM cpu WHERE time >= 0 AND time < 60s GROUP BY time(20s, 5s)",
    );
    assert_eq!(columns, json!(["time", "count", "sum", "max_min"]));
    assert_eq!(
        values,
        json!([
            [-15000, 2, 6, 4],
            [5000, 2, 5, 1],
            [25000, 2, 7, 0],
            [45000, 1, null, null]
        ])
    );
    let (_, values) = one(
        store,
        "SELECT derivative(mean(usage), 1s) FROM cpu WHERE host = 'a' AND time >= 10s AND time < 30s GROUP BY time(10s)",
    );
    assert_eq!(values, json!([[10000, 0.1], [20000, 0.2]]));
    let series = store.series("SELECT cumulative_sum(count(usage)) FROM cpu WHERE time >= 0 AND time < 60s GROUP BY time(30s), host");
    assert_eq!(series[0]["values"], json!([[0, 3], [30000, 4]]));
    assert_eq!(series[1]["values"], json!([[0, 1], [30000, 3]]));
    let (_, values) = one(
        store,
        "SELECT first(usage) FROM cpu WHERE time >= 0 AND time < 86400s GROUP BY time(1d) tz('Europe/Berlin')",
    );
    assert_eq!(values, json!([[-3_600_000, 1], [82_800_000, null]]));
}

#[test]
fn functions_of_all_values() {
    let store = &mut store();
    for (function, expected) in [
        ("mean(usage)", json!([[1, 75.0 / 7.0]])),
        ("median(usage)", json!([[1, 8]])),
        ("median(n)", json!([[1, 3]])),
        ("percentile(usage, 50)", json!([[1, 8]])),
        ("spread(usage)", json!([[1, 29]])),
        ("count(state)", json!([[1, 3]])),
        ("count(distinct(state))", json!([[1, 2]])),
        ("first(n), last(n)", json!([[1, 1, 7]])),
        ("max(usage)", json!([[40000, 30]])),
        ("min(usage), host", json!([[1, 1, "a"]])),
        ("distinct(state)", json!([[1, "down"], [1, "up"]])),
        ("top(usage, 2)", json!([[40000, 30], [50000, 20]])),
        ("bottom(usage, host, 3)", json!([[1, 1, "a"], [1, 10, "b"]])),
        ("difference(n)", Value::Null),
        ("moving_average(usage, 3)", Value::Null),
    ] {
        let query = format!("SELECT {function} FROM cpu WHERE time >= 1ms - 1ms");
        let (_, mut values) = match &expected {
            // More than one point has the time 0, so the order is not determined.
            Value::Null => {
                store.series(&query);
                continue;
            }
            _ => one(store, &query),
        };
        for row in values.as_array_mut().unwrap() {
            // Times of ranges begin at 0.
            if row[0] == json!(0) {
                row[0] = json!(1);
            }
        }
        assert_eq!(values, expected, "{function}");
    }
    let (columns, values) = one(store, "SELECT mean(*) FROM cpu WHERE host = 'a'");
    assert_eq!(columns, json!(["time", "mean_n", "mean_usage"]));
    assert_eq!(values, json!([[0, 2, 3.75]]));
    let (_, values) = one(
        store,
        "SELECT difference(usage) FROM cpu WHERE host = 'a' ORDER BY time DESC LIMIT 2",
    );
    assert_eq!(values, json!([[30000, 4], [20000, 2]]));
    let (_, values) = one(store, "SELECT round(mean(usage)) FROM cpu");
    assert_eq!(values, json!([[0, 11]]));
}

#[test]
fn conditions() {
    let store = &mut store();
    for (condition, count) in [
        ("host = 'a'", 4),
        ("host != 'a'", 3),
        ("host =~ /^(a|b)$/", 7),
        ("region = ''", 3),
        ("region != ''", 4),
        ("region !~ /eu/", 3),
        ("region =~ /.*/", 7),
        ("region !~ /^$/", 4),
        ("nothing = ''", 7),
        ("nothing = 'x'", 0),
        ("n > 2", 3),
        ("n != 3", 4),
        ("n = 'x'", 0),
        ("state =~ /^u/", 2),
        ("state !~ /^u/", 1),
        ("usage > n", 3),
        ("usage - n = 0 OR usage = 8", 2),
        ("\"host\"::tag = 'a' AND (usage > 7 OR usage < 2)", 2),
        ("time > 10s AND time <= 40s", 3),
        ("time = 0", 2),
        ("time >= '1970-01-01T00:00:40Z' AND time < now()", 2),
        ("true", 7),
        ("false", 0),
    ] {
        let query = format!("SELECT count(usage) FROM cpu WHERE {condition}");
        let series = store.series(&query);
        let found = series[0]["values"][0][1].as_i64().unwrap_or(0);
        assert_eq!(found, count, "{condition}: {series}");
    }
}

#[test]
fn what_there_is() {
    let store = &mut store();
    assert_eq!(
        store.series("SHOW MEASUREMENTS"),
        json!([{"name": "measurements", "columns": ["name"], "values": [["cpu"], ["mem"]]}])
    );
    let (_, values) = one(
        store,
        "SHOW MEASUREMENTS WITH MEASUREMENT =~ /^c/ WHERE host = 'b' LIMIT 5",
    );
    assert_eq!(values, json!([["cpu"]]));
    let (columns, values) = one(store, "SHOW TAG KEYS FROM \"cpu\"");
    assert_eq!(
        (columns, values),
        (json!(["tagKey"]), json!([["host"], ["region"]]))
    );
    let (columns, values) = one(store, "SHOW FIELD KEYS FROM cpu");
    assert_eq!(columns, json!(["fieldKey", "fieldType"]));
    assert_eq!(
        values,
        json!([["n", "integer"], ["state", "string"], ["usage", "float"]])
    );
    let (columns, values) = one(
        store,
        "SHOW TAG VALUES FROM cpu WITH KEY IN (host, region) WHERE region =~ /eu/",
    );
    assert_eq!(columns, json!(["key", "value"]));
    assert_eq!(values, json!([["host", "a"], ["region", "eu"]]));
    let (_, values) = one(store, "SHOW SERIES FROM cpu");
    assert_eq!(values, json!([["cpu,host=a,region=eu"], ["cpu,host=b"]]));
    let (columns, values) = one(store, "SHOW RETENTION POLICIES ON d");
    assert_eq!(
        columns,
        json!([
            "name",
            "duration",
            "shardGroupDuration",
            "replicaN",
            "default"
        ])
    );
    assert_eq!(values, json!([["autogen", "0s", "168h0m0s", 1, true]]));
    store.results("CREATE DATABASE e WITH DURATION 1d");
    let (_, values) = one(store, "SHOW DATABASES");
    assert_eq!(values, json!([["d"], ["e"]]));
    let (_, values) = one(store, "SHOW RETENTION POLICIES ON e");
    assert_eq!(values[0][1], json!("24h0m0s"));
    store.results("DROP MEASUREMENT mem; DROP DATABASE e");
    let (_, values) = one(store, "SHOW MEASUREMENTS");
    assert_eq!(values, json!([["cpu"]]));
}

#[test]
fn an_answer_that_breaks_ends_with_the_error() {
    let mut store = TestStore::new();
    let lines: Vec<String> = (0..3000).map(|at| format!("many v={at} {at}")).collect();
    store.write(&lines.join("\n"));
    for query in [
        "SELECT v FROM many",
        "SELECT w FROM (SELECT v AS w FROM many)",
        "SELECT count(v) FROM many GROUP BY time(1ms) fill(none)",
    ] {
        for chunk_rows in [None, Some(10), Some(1_000_000)] {
            let options = OutputOptions {
                epoch: None,
                chunk_rows,
            };
            store.breaks = false;
            let whole = store.text(query, options);
            assert!(!whole.contains("\"error\""), "{query}");
            store.breaks = true;
            let text = store.text(&format!("{query}; SHOW DATABASES"), options);
            let lines: Vec<Value> = text
                .lines()
                .map(|line| serde_json::from_str(line).expect("whole objects"))
                .collect();
            let results: Vec<&Value> = lines
                .iter()
                .flat_map(|line| line["results"].as_array().expect("results"))
                .collect();
            let [rest @ .., broken, next] = &results[..] else {
                panic!("{text}");
            };
            assert_eq!(broken["error"], json!("the disk broke"), "{query}");
            assert_eq!(next["error"], json!("not executed"), "{query}");
            // No object before the error is the last of its statement.
            assert!(rest.iter().all(|one| one["partial"] == json!(true)));
            assert!(text.len() < whole.len() + 200);
        }
    }
}

#[test]
fn several_statements_until_one_fails() {
    let store = &mut store();
    let results =
        store.results("SELECT count(n) FROM cpu; SELECT mean(state) FROM cpu; SELECT n FROM cpu");
    assert_eq!(results[0]["series"][0]["values"], json!([[0, 5]]));
    let error = results[1]["error"].as_str().unwrap_or_default();
    assert!(error.contains("mean() takes numbers"), "{error}");
    assert_eq!(results[2]["error"], json!("not executed"));
    let text = store.text(
        "SELECT n FROM cpu WHERE host = 'b'",
        OutputOptions {
            epoch: None,
            chunk_rows: Some(1),
        },
    );
    assert_eq!(text.lines().count(), 2, "{text}");
    for (query, expected) in [
        (
            "SELECT mean(n), usage FROM cpu",
            "mixing aggregate and non-aggregate",
        ),
        (
            "SELECT n FROM cpu GROUP BY time(1s)",
            "GROUP BY requires at least one aggregate",
        ),
        (
            "SELECT derivative(mean(n)) FROM cpu",
            "requires a GROUP BY interval",
        ),
        ("SELECT mean(state) FROM cpu", "takes numbers"),
        (
            "SELECT n FROM cpu WHERE time > 5 OR n = 1",
            "joined by AND only",
        ),
        ("SELECT n FROM cpu WHERE host > 'a'", "tags are compared by"),
        (
            "SELECT n FROM other.cpu",
            "retention policy not found: other",
        ),
        (
            "SELECT count(n) FROM cpu WHERE time > 0 GROUP BY time(1ms)",
            "more than 1000000 points",
        ),
        (
            "SELECT n FROM cpu tz('Nowhere')",
            "unable to find time zone",
        ),
        (
            "SELECT n FROM cpu WHERE host =~ /(/",
            "invalid regular expression",
        ),
        (
            "SELECT count(n) FROM cpu GROUP BY time(1u)",
            "whole milliseconds",
        ),
        ("SELECT percentile(n, 101) FROM cpu", "from 0 to 100"),
    ] {
        let error = store.error(query);
        assert!(error.contains(expected), "{query}: {error}");
    }
}

#[test]
fn collections_of_other_clients_are_measurements() {
    let store = &mut TestStore::new();
    for (name, meta) in [("nested", true), ("scalar", false)] {
        let timeseries = doc! {"timeField": "t", "metaField": "m"};
        store.command(doc! {"create": name, "timeseries": timeseries, "$db": "d"});
        let documents: Vec<Bson> = (0..4_i64)
            .map(|n| {
                let meta: Bson = match meta {
                    true => doc! {"place": doc! {"room": n % 2}, "kind": "x"}.into(),
                    false => Bson::from(if n % 2 == 0 { "even" } else { "odd" }),
                };
                doc! {"t": Bson::DateTime(n * 1000), "m": meta, "v": n as f64, "list": array![1]}
                    .into()
            })
            .collect();
        store.command(doc! {"insert": name, "documents": Bson::Array(documents.into_iter().collect()), "$db": "d"});
    }
    store.command(doc! {"create": "plain", "$db": "d"});
    let (_, values) = one(store, "SHOW MEASUREMENTS");
    assert_eq!(values, json!([["nested"], ["scalar"]]));
    let (_, values) = one(store, "SHOW TAG KEYS FROM nested");
    assert_eq!(values, json!([["kind"], ["place.room"]]));
    let (_, values) = one(store, "SHOW FIELD KEYS FROM nested");
    assert_eq!(values, json!([["v", "float"]]));
    let (_, values) = one(
        store,
        "SELECT sum(v) FROM nested WHERE \"place.room\" = '1'",
    );
    assert_eq!(values, json!([[0, 4]]));
    let series = store.series("SELECT sum(v) FROM scalar GROUP BY m");
    assert_eq!(series[0]["tags"], json!({"m": "even"}));
    assert_eq!(series[1]["values"], json!([[0, 4]]));
    let series = store.series("SELECT sum(v) FROM nested GROUP BY \"place.room\"");
    assert_eq!(series[1]["tags"], json!({"place.room": "1"}));
}

/// The expected answers are those of InfluxDB 1.6.7 for the same points.
#[test]
fn fields_that_the_measurement_does_not_have() {
    let mut store = TestStore::new();
    store.write(
        "cpu,host=a a=1,b=2i 10000\n\
         cpu,host=a a=5,b=3i 20000\n\
         cpu,host=b a=3 30000",
    );
    let store = &mut store;
    for (select, expected) in [
        // Two functions: the time is no document's.
        ("max(a), max(missing)", json!([[0, 5, null]])),
        ("max(missing), max(a)", json!([[0, null, 5]])),
        ("mean(a), count(missing)", json!([[0, 3, null]])),
        ("mean(a) + mean(missing)", json!([[0, null]])),
        // The deviation of one value.
        ("stddev(a)", json!([[0, 2]])),
        ("stddev(b) + mean(missing)", json!([[0, null]])),
        ("count(distinct(missing)), count(a)", json!([[0, null, 3]])),
        // A name beside one selector is of its document.
        ("max(a), missing", json!([[20000, 5, null]])),
        ("a, max(missing)", Value::Null),
        ("max(missing)", Value::Null),
        ("missing, max(b), host", json!([[20000, null, 3, "a"]])),
        (
            "derivative(a), derivative(missing)",
            json!([[20000, 0.4, null], [30000, -0.2, null]]),
        ),
    ] {
        let series = store.series(&format!("SELECT {select} FROM cpu"));
        assert_eq!(series[0]["values"], expected, "{select}");
    }
    let windows = "FROM cpu WHERE time >= 0 AND time < 60s GROUP BY time(20s)";
    for (select, fill, expected) in [
        (
            "max(a), max(missing)",
            "",
            json!([[0, 1, null], [20000, 5, null], [40000, null, null]]),
        ),
        // These give a number to a function of a field that is not there if its type does not depend on the field.
        (
            "count(a), count(missing), mean(missing), sum(missing), last(missing)",
            "fill(1.5)",
            json!([
                [0, 1, 1, 1.5, null, null],
                [20000, 2, 1, 1.5, null, null],
                [40000, 1, 1, 1.5, null, null]
            ]),
        ),
        (
            "max(a), derivative(max(missing)), cumulative_sum(max(missing)), cumulative_sum(count(missing))",
            "fill(3)",
            json!([
                [0, 1, 3, null, 3],
                [20000, 5, 3, null, 3],
                [40000, 3, 3, null, 3]
            ]),
        ),
        (
            "max(a) + mean(missing)",
            "fill(0)",
            json!([[0, 1], [20000, 5], [40000, 0]]),
        ),
        (
            "stddev(a)",
            "fill(none)",
            json!([[0, null], [20000, std::f64::consts::SQRT_2]]),
        ),
        // A point makes a row.
        (
            "max(a) + mean(missing)",
            "fill(none)",
            json!([[0, null], [20000, null]]),
        ),
        (
            "max(a), max(missing)",
            "fill(7)",
            json!([[0, 1, null], [20000, 5, null], [40000, 7, null]]),
        ),
        (
            "count(a), count(missing)",
            "",
            json!([[0, 1, null], [20000, 2, null], [40000, 0, null]]),
        ),
        (
            "max(a), derivative(max(missing))",
            "fill(none)",
            json!([[0, 1, null], [20000, 5, null]]),
        ),
    ] {
        let series = store.series(&format!("SELECT {select} {windows} {fill}"));
        assert_eq!(series[0]["values"], expected, "{select} {fill}");
    }
    let mixed = "mixing aggregate and non-aggregate queries is not supported";
    for (select, windows, expected) in [
        ("mean(missing), missing", "", mixed),
        ("mean(a), missing", "", mixed),
        ("a, mean(missing)", "", mixed),
        ("derivative(a), missing", "", mixed),
        (
            "derivative(missing)",
            "GROUP BY time(20s)",
            "aggregate function required inside the call to derivative",
        ),
    ] {
        let error = store.error(&format!("SELECT {select} FROM cpu {windows}"));
        assert_eq!(error, expected, "{select}");
    }
}
