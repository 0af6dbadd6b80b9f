//! Subqueries. The expected rows follow from the public manual of InfluxQL, "Subqueries", over a few points.

use serde_json::{Value, json};

use crate::store::TestStore;

/// Water levels of two places, every six minutes, and the animals of a home, as in the manual's examples.
fn store() -> TestStore {
    let mut store = TestStore::new();
    store.write(
        "h2o_feet,location=coyote_creek water_level=8 0\n\
         h2o_feet,location=coyote_creek water_level=9 360000\n\
         h2o_feet,location=coyote_creek water_level=7 720000\n\
         h2o_feet,location=coyote_creek water_level=6 1080000\n\
         h2o_feet,location=santa_monica water_level=2 0\n\
         h2o_feet,location=santa_monica water_level=3 360000\n\
         h2o_feet,location=santa_monica water_level=4 720000\n\
         h2o_feet,location=santa_monica water_level=7 1080000\n\
         pet_daycare,home=daisy cats=11i,dogs=3i 0\n\
         pet_daycare,home=daisy cats=32i,dogs=2i 1000\n\
         pet_daycare,home=daisy cats=5i,dogs=10i 2000\n\
         notes,home=daisy text=\"$time\" 0",
    );
    store
}

/// Returns the only series of the statement: its name and its rows.
fn rows(store: &mut TestStore, query: &str) -> Value {
    let series = store.series(query);
    let count = series.as_array().map(Vec::len);
    assert_eq!(count, Some(1), "{query}: {series}");
    series[0]["values"].clone()
}

#[test]
fn the_sum_of_maxima_of_places() {
    let store = &mut store();
    let series = store.series(
        "SELECT SUM(\"max\") FROM (SELECT MAX(water_level) FROM h2o_feet GROUP BY location)",
    );
    let wanted = json!([{"name": "h2o_feet", "columns": ["time", "sum"], "values": [[0, 16]]}]);
    assert_eq!(series, wanted);
}

#[test]
fn the_mean_of_a_difference() {
    let found = rows(
        &mut store(),
        "SELECT MEAN(difference) FROM (SELECT cats - dogs AS difference FROM pet_daycare)",
    );
    assert_eq!(found, json!([[0, 11]]));
}

#[test]
fn a_condition_on_a_mean() {
    let found = rows(
        &mut store(),
        "SELECT all_the_means FROM (SELECT MEAN(water_level) AS all_the_means FROM h2o_feet \
         WHERE time >= 0 AND time < 24m GROUP BY time(12m)) WHERE all_the_means > 5.5",
    );
    // The means are 5.5 and 6.
    assert_eq!(found, json!([[720_000, 6]]));
}

#[test]
fn the_sum_of_derivatives_of_each_place() {
    let series = store().series(
        "SELECT SUM(d) AS s FROM (SELECT DERIVATIVE(MEAN(water_level), 12m) AS d FROM h2o_feet \
         WHERE time >= 0 AND time < 24m GROUP BY time(12m), location) GROUP BY location",
    );
    let of = |place: &str, sum: f64| json!({"name": "h2o_feet", "tags": {"location": place}, "columns": ["time", "s"], "values": [[0, sum]]});
    let found: Vec<f64> = series
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["values"][0][1].as_f64().unwrap())
        .collect();
    assert_eq!(found, [-2.0, 3.0]);
    assert_eq!(series[0]["tags"], of("coyote_creek", 0.0)["tags"]);
    assert_eq!(series[1]["tags"], of("santa_monica", 0.0)["tags"]);
}

#[test]
fn times_windows_and_tags_of_the_outer_statement_reach_the_inner_one() {
    let store = &mut store();
    // The bounds of the outer WHERE.
    let found = rows(
        store,
        "SELECT max(m) FROM (SELECT mean(water_level) AS m FROM h2o_feet GROUP BY location) \
         WHERE time >= 12m AND time <= 18m",
    );
    assert_eq!(found, json!([[720_000, 6.5]]));
    // The narrower of both bounds.
    let found = rows(
        store,
        "SELECT count(w) FROM (SELECT water_level AS w FROM h2o_feet WHERE time >= 6m) \
         WHERE time <= 12m",
    );
    assert_eq!(
        found,
        json!([[0, 4]])
            .as_array()
            .map_or(Value::Null, |all| { json!([[found[0][0], all[0][1]]]) })
    );
    // The windows.
    let found = rows(
        store,
        "SELECT max(m) FROM (SELECT mean(water_level) AS m FROM h2o_feet GROUP BY location) \
         WHERE time >= 0 AND time < 24m GROUP BY time(12m)",
    );
    assert_eq!(found, json!([[0, 8.5], [720_000, 6.5]]));
    // A row of the first window is earlier than the bound, and counts.
    let found = rows(
        store,
        "SELECT max(m) FROM (SELECT mean(water_level) AS m FROM h2o_feet GROUP BY time(12m)) \
         WHERE time >= 6m AND time < 12m",
    );
    assert_eq!(found[0][1], json!(6));
    // A tag of the outer GROUP BY.
    let series = store
        .series("SELECT max(w) FROM (SELECT water_level AS w FROM h2o_feet) GROUP BY location");
    let found: Vec<&Value> = series
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["values"])
        .collect();
    assert_eq!(found, [&json!([[360_000, 9]]), &json!([[1_080_000, 7]])]);
}

#[test]
fn tags_of_the_inner_group_by_are_tags() {
    let store = &mut store();
    let found = rows(
        store,
        "SELECT m, location FROM (SELECT max(water_level) AS m FROM h2o_feet GROUP BY location) \
         WHERE location = 'santa_monica'",
    );
    assert_eq!(found, json!([[1_080_000, 7, "santa_monica"]]));
    let series = store.series(
        "SELECT * FROM (SELECT max(water_level) AS m FROM h2o_feet GROUP BY location) GROUP BY *",
    );
    assert_eq!(series[0]["columns"], json!(["time", "m"]));
    assert_eq!(series[1]["tags"], json!({"location": "santa_monica"}));
    let found = rows(
        store,
        "SELECT top(m, location, 1) FROM (SELECT max(water_level) AS m FROM h2o_feet GROUP BY location)",
    );
    assert_eq!(found, json!([[360_000, 9, "coyote_creek"]]));
}

#[test]
fn subqueries_nest_and_stand_beside_each_other() {
    let store = &mut store();
    let found = rows(
        store,
        "SELECT sum(n) FROM (SELECT n FROM (SELECT max(water_level) AS n FROM h2o_feet GROUP BY location) WHERE n > 8)",
    );
    assert_eq!(found, json!([[0, 9]]));
    // Rows of one measurement are read together, those of others apart.
    let series = store.series(
        "SELECT max(a), max(b) FROM (SELECT cats AS a FROM pet_daycare), (SELECT dogs AS b FROM pet_daycare), \
         (SELECT water_level AS a FROM h2o_feet), notes",
    );
    let found: Vec<(&Value, &Value)> = series
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (&one["name"], &one["values"]))
        .collect();
    assert_eq!(found.len(), 2, "{series}");
    assert_eq!(
        (found[0].0, &found[0].1[0][1]),
        (&json!("h2o_feet"), &json!(9))
    );
    assert_eq!(found[1], (&json!("pet_daycare"), &json!([[0, 32, 10]])));
    let (text, value) = (
        "SELECT text FROM (SELECT text FROM notes)",
        json!([[0, "$time"]]),
    );
    assert_eq!(rows(store, text), value);
}

#[test]
fn limits_and_order_of_both_statements_hold() {
    let store = &mut store();
    let found = rows(
        store,
        "SELECT w FROM (SELECT water_level AS w FROM h2o_feet WHERE location = 'coyote_creek' LIMIT 2) \
         ORDER BY time DESC LIMIT 1",
    );
    // The inner statement descends, too: its two rows are the last.
    assert_eq!(found, json!([[1_080_000, 6]]));
    let found = rows(
        store,
        "SELECT moving_average(w, 2) FROM (SELECT water_level AS w FROM h2o_feet GROUP BY location) \
         WHERE location = 'coyote_creek' LIMIT 1 OFFSET 1",
    );
    assert_eq!(found, json!([[720_000, 8]]));
}

#[test]
fn nothing_comes_of_nothing() {
    let store = &mut store();
    for query in [
        "SELECT max(x) FROM (SELECT y AS x FROM h2o_feet)",
        "SELECT max(x) FROM (SELECT water_level AS y FROM h2o_feet)",
        "SELECT max(x) FROM (SELECT water_level AS x FROM nowhere)",
    ] {
        assert_eq!(store.series(query), Value::Null, "{query}");
    }
}

#[test]
fn errors_name_their_reason() {
    let store = &mut store();
    for (query, expected) in [
        (
            "SELECT w FROM (SELECT water_level AS w FROM h2o_feet ORDER BY time DESC)",
            "subqueries must be ordered in the same direction",
        ),
        (
            "SELECT x FROM (SELECT water_level AS \"a.b\" FROM h2o_feet)",
            "the column \"a.b\" of a subquery needs another name",
        ),
        (
            "SELECT mean(x) FROM (SELECT text AS x FROM notes)",
            "takes numbers, and the field \"x\" is of type string",
        ),
    ] {
        let error = store.error(query);
        assert!(error.contains(expected), "{query}: {error}");
    }
}

#[test]
fn the_rows_of_subqueries_have_a_limit() {
    let mut store = TestStore::new();
    let text = "x".repeat(1000);
    let lines: Vec<String> = (0..17_000)
        .map(|at| format!("big s=\"{text}\" {at}"))
        .collect();
    store.write(&lines.join("\n"));
    let error = store.error("SELECT count(s) FROM (SELECT s FROM big)");
    assert!(error.contains("more than 16777216 bytes"), "{error}");
    let found = rows(
        &mut store,
        "SELECT count(s) FROM (SELECT s FROM big LIMIT 15000)",
    );
    assert_eq!(found, json!([[0, 15_000]]));
}
