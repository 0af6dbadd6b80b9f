//! Measurements that show a collection by other names.

use nilometer_bson::{Array, Document, Value as Bson, array, doc};
use serde_json::{Value, json};

use crate::store::TestStore;

const MAPPINGS: &str = "nilometer.measurements";

fn map(store: &mut TestStore, mapping: Document) {
    let documents: Array = [Bson::Document(mapping)].into_iter().collect();
    store.command(doc! {"insert": MAPPINGS, "documents": documents, "$db": "d"});
}

fn store() -> TestStore {
    let mut store = TestStore::new();
    store.write(
        "cpu,host=a,region=eu usage=1,n=1i,state=\"up\" 0\n\
         cpu,host=a,region=eu usage=2,n=3i 10000\n\
         cpu,host=a,region=eu usage=4,n=2i,state=\"down\" 20000\n\
         cpu,host=b usage=10,n=5i 0\n\
         cpu,host=b usage=30,n=7i,state=\"up\" 40000\n\
         mem,host=a free=7i 5",
    );
    store
}

/// A query of `load` and the same of `cpu` have the same answer, but for names.
#[test]
fn a_mapping_answers_like_its_collection_under_other_names() {
    let store = &mut store();
    let tags = doc! {"machine": "tags.host", "zone": "tags.region"};
    map(
        store,
        doc! {"_id": "load", "collection": "cpu", "tags": tags, "fields": array!["usage", "n"]},
    );
    for query in [
        "SELECT usage, n, machine FROM load WHERE machine = 'a' LIMIT 2 OFFSET 1",
        "SELECT usage, n FROM load WHERE zone =~ /e/ AND usage > 1",
        "SELECT mean(usage), max(n) FROM load GROUP BY machine, zone",
        "SELECT sum(usage) FROM load WHERE time >= 0 AND time < 60s GROUP BY time(20s), machine fill(0)",
        "SELECT last(usage), machine FROM load WHERE machine != 'x' GROUP BY zone",
        "SELECT top(usage, 2), machine FROM load",
        "SELECT usage FROM load WHERE absent = 'x'",
        "SHOW TAG VALUES FROM load WITH KEY = machine",
        "SHOW TAG VALUES FROM load WITH KEY = machine WHERE zone = 'eu'",
    ] {
        let plain = query
            .replace("load", "cpu")
            .replace("machine", "host")
            .replace("zone", "region");
        let shown = store.series(query).to_string();
        let renamed = store.series(&plain).to_string();
        let renamed = renamed
            .replace("\"cpu\"", "\"load\"")
            .replace("\"host\"", "\"machine\"")
            .replace("\"region\"", "\"zone\"");
        let parse = |text: &str| -> Value { serde_json::from_str(text).unwrap() };
        assert_eq!(parse(&shown), parse(&renamed), "{query}");
    }
    let values = |store: &mut TestStore, query: &str| store.series(query)[0]["values"].clone();
    let columns = store.series("SELECT * FROM load")[0]["columns"].clone();
    assert_eq!(columns, json!(["time", "machine", "n", "usage", "zone"]));
    assert_eq!(
        values(store, "SHOW FIELD KEYS FROM load"),
        json!([["n", "integer"], ["usage", "float"]])
    );
    assert_eq!(
        values(store, "SHOW TAG KEYS FROM load"),
        json!([["machine"], ["zone"]])
    );
    assert_eq!(
        values(store, "SHOW TAG KEYS FROM load WHERE machine = 'b'"),
        json!([["machine"]])
    );
    assert_eq!(
        values(store, "SHOW SERIES FROM load"),
        json!([["load,machine=a,zone=eu"], ["load,machine=b"]])
    );
    assert_eq!(
        values(store, "SHOW MEASUREMENTS"),
        json!([["cpu"], ["load"], ["mem"]])
    );
    assert_eq!(
        values(store, "SHOW MEASUREMENTS WHERE machine = 'a'"),
        json!([["load"]])
    );
    let names: Vec<Value> = store
        .series("SELECT usage FROM /^(cpu|load)$/ LIMIT 1")
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].clone())
        .collect();
    assert_eq!(names, ["cpu", "load"]);
}

#[test]
fn a_field_becomes_a_tag() {
    let store = &mut store();
    map(
        store,
        doc! {"_id": "states", "collection": "cpu", "tags": doc! {"state": "state"}},
    );
    let series = store.series("SELECT max(usage) FROM states GROUP BY state");
    let read: Vec<(String, f64)> = series
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            let state = one["tags"]["state"].as_str().unwrap().to_owned();
            (state, one["values"][0][1].as_f64().unwrap())
        })
        .collect();
    assert_eq!(
        read,
        [
            ("".to_owned(), 10.0),
            ("down".to_owned(), 4.0),
            ("up".to_owned(), 30.0)
        ]
    );
    let fields = store.series("SHOW FIELD KEYS FROM states")[0]["values"].clone();
    assert_eq!(fields, json!([["n", "integer"], ["usage", "float"]]));
}

#[test]
fn a_mapping_may_stand_in_the_place_of_its_collection() {
    let store = &mut store();
    map(store, doc! {"_id": "cpu", "fields": array!["n"]});
    let columns = store.series("SELECT * FROM cpu")[0]["columns"].clone();
    assert_eq!(columns, json!(["time", "host", "n", "region"]));
    assert_eq!(store.series("SELECT usage FROM cpu"), Value::Null);
}

#[test]
fn wrong_mappings_are_named() {
    let store = &mut store();
    map(store, doc! {"_id": "gone", "collection": "nowhere"});
    assert_eq!(store.series("SELECT * FROM gone"), Value::Null);
    let dropped = store.error("DROP MEASUREMENT gone");
    assert!(
        dropped.contains("shows the collection \"nowhere\""),
        "{dropped}"
    );
    map(store, doc! {"_id": "odd", "colection": "cpu"});
    for query in ["SELECT * FROM odd", "SHOW MEASUREMENTS", "SHOW TAG KEYS"] {
        let error = store.error(query);
        assert!(
            error.contains("no option \"colection\""),
            "{query}: {error}"
        );
    }
    // Others are not affected.
    assert!(store.series("SELECT usage FROM cpu").is_array());
}
