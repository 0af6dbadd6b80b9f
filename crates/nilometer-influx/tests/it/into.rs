//! `SELECT … INTO`. The expected answers are those of InfluxDB 1.6.7 for the same points.

use serde_json::{Value, json};

use crate::store::TestStore;

fn store() -> TestStore {
    let mut store = TestStore::new();
    store.write(
        "cpu,host=a a=1,b=2i,s=\"x\\\\ \\\"y\\\",z\" 10000\n\
         cpu,host=a a=5,b=3i 20000\n\
         cpu,host=b a=3 30000\n\
         mem,host=a u=7 10000\n\
         mem u=8 20000",
    );
    store
}

/// Writes rows, checks the answer and returns the number of points.
fn written(store: &mut TestStore, query: &str) -> i64 {
    let series = store.series(query);
    let written = series[0]["values"][0][1].as_i64();
    let written = written.unwrap_or_else(|| panic!("{query}: {series}"));
    let answer =
        json!([{"name": "result", "columns": ["time", "written"], "values": [[0, written]]}]);
    assert_eq!(series, answer, "{query}");
    written
}

#[test]
fn columns_become_fields_and_dimensions_tags() {
    let store = &mut store();
    assert_eq!(written(store, "SELECT a INTO copy FROM cpu"), 3);
    let copied = store.series("SELECT * FROM copy");
    assert_eq!(copied[0]["columns"], json!(["time", "a"]));
    assert_eq!(
        copied[0]["values"],
        json!([[10000, 1], [20000, 5], [30000, 3]])
    );
    // Tags that are no dimensions become fields.
    assert_eq!(written(store, "SELECT * INTO fields FROM cpu"), 3);
    let keys = store.series("SHOW FIELD KEYS FROM fields");
    assert_eq!(
        keys[0]["values"],
        json!([
            ["a", "float"],
            ["b", "integer"],
            ["host", "string"],
            ["s", "string"]
        ])
    );
    assert_eq!(written(store, "SELECT * INTO same FROM cpu GROUP BY *"), 3);
    let mut same = store.series("SELECT * FROM same GROUP BY *");
    for series in same.as_array_mut().unwrap() {
        series["name"] = "cpu".into();
    }
    assert_eq!(same, store.series("SELECT * FROM cpu GROUP BY *"));
    // Missing columns are no fields, and rows without values no points.
    assert_eq!(
        written(store, "SELECT max(a), max(missing) INTO mx FROM cpu"),
        1
    );
    let most = store.series("SELECT * FROM mx");
    assert_eq!(most[0]["columns"], json!(["time", "max"]));
    assert_eq!(most[0]["values"], json!([[0, 5]]));
    for nothing in [
        "missing",
        "host",
        "a INTO x FROM cpu WHERE a > 100; SELECT a",
    ] {
        let nothing = format!("SELECT {nothing} INTO nothing FROM cpu");
        let results = store.results(&nothing);
        let series = &results[0]["series"][0]["values"];
        assert_eq!(*series, json!([[0, 0]]), "{nothing}");
    }
    assert_eq!(
        written(
            store,
            "SELECT a INTO \"x y\" FROM (SELECT a FROM cpu) ORDER BY time DESC"
        ),
        3
    );
    // Into the measurement that is read.
    assert_eq!(written(store, "SELECT b INTO cpu FROM cpu GROUP BY *"), 2);
    let count = store.series("SELECT count(a), count(b) FROM cpu");
    assert_eq!(count[0]["values"], json!([[0, 3, 2]]));
}

#[test]
fn windows_become_points_of_other_databases() {
    let store = &mut store();
    let windows = "WHERE time >= 0 AND time < 60s GROUP BY time(20s)";
    let means = |name: &str| format!("SELECT mean(a) INTO {name} FROM cpu {windows}");
    // The third window has no mean.
    assert_eq!(written(store, &means("e..m")), 2);
    assert_eq!(
        written(store, &format!("{}, host fill(none)", means("e.autogen.n"))),
        3
    );
    assert_eq!(
        written(store, &format!("{} fill(0)", means("autogen.zeros"))),
        3
    );
    let found = store.series("SELECT * FROM e..m");
    assert_eq!(found[0]["values"], json!([[0, 1], [20000, 4]]));
    let found = store.series("SELECT * FROM e..n");
    assert_eq!(found[0]["columns"], json!(["time", "host", "mean"]));
    assert_eq!(
        found[0]["values"],
        json!([[0, "a", 1], [20000, "a", 5], [20000, "b", 3]])
    );
    let all = format!("SELECT mean(*) INTO f..:MEASUREMENT FROM /cpu|mem/ {windows}, *");
    assert_eq!(written(store, &all), 5);
    let found = store.series("SELECT * FROM f../.*/");
    let names: Vec<&Value> = found
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["name"])
        .collect();
    assert_eq!(names, ["cpu", "mem"]);
    assert_eq!(found[1]["values"], json!([[0, "a", 7], [20000, null, 8]]));
}

#[test]
fn what_cannot_be_written_is_an_error() {
    let store = &mut store();
    assert_eq!(written(store, "SELECT b INTO conflict FROM cpu"), 2);
    for (query, expected) in [
        (
            "SELECT a AS b INTO conflict FROM cpu",
            "partial write: field type conflict: input field \"b\" on measurement \"conflict\" is type float, already exists as type integer dropped=3",
        ),
        (
            "SELECT a INTO d.nope.x FROM cpu",
            "retention policy not found: nope",
        ),
        (
            "SELECT a INTO system.x FROM cpu",
            "retention policy not found: system",
        ),
        (
            "SELECT a INTO \"system.x\" FROM cpu",
            "partial write: the measurement \"system.x\" begins with 'system.', which names of collections must not dropped=3",
        ),
        (
            "SELECT a AS \"b.c\" INTO x FROM cpu",
            "partial write: the field key \"b.c\" contains a dot, which names of fields must not dropped=3",
        ),
        (
            "SELECT a AS x, b AS x, b AS x_1 INTO y FROM cpu",
            "the column \"x_1\" cannot be a field: it occurs twice, or its name is empty or has a zero byte",
        ),
        (
            "SELECT a AS \"x\0\" INTO y FROM cpu",
            "the column \"x\\u{0}\" cannot be a field: it occurs twice, or its name is empty or has a zero byte",
        ),
    ] {
        assert_eq!(store.error(query), expected, "{query}");
    }
}

#[test]
fn points_are_written_in_parts() {
    let mut store = TestStore::new();
    let lines: Vec<String> = (0..25_000)
        .map(|at| format!("m,t=t{} v={at},s=\"{}\" {at}", at % 3, "x".repeat(100)))
        .collect();
    store.write(&lines.join("\n"));
    let store = &mut store;
    assert_eq!(
        written(store, "SELECT v INTO numbers FROM m GROUP BY t"),
        25_000
    );
    assert_eq!(store.writes.take(), [10_000, 10_000, 5_000]);
    let sums = store.series("SELECT count(v), sum(v) FROM numbers GROUP BY t");
    assert_eq!(
        sums.to_string().replace("numbers", "m"),
        store
            .series("SELECT count(v), sum(v) FROM m GROUP BY t")
            .to_string()
    );
    // Long texts fill a part earlier.
    let longer = format!("l s=\"{}\"", "y".repeat(1 << 20));
    let lines: Vec<String> = (0..6).map(|at| format!("{longer} {at}")).collect();
    store.write(&lines.join("\n"));
    assert_eq!(written(store, "SELECT s INTO texts FROM l"), 6);
    assert_eq!(*store.writes.borrow(), [4, 2]);
}
