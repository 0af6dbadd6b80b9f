//! `$out` and `$merge`, and queries that spill to disk.

use nilometer_bson::{Document, Value, array, doc};

use crate::support::{Fixture, TemporaryDirectory};

/// Documents inserted by each test.
const COUNT: i64 = 3000;

fn filled(directory: &TemporaryDirectory) -> Fixture {
    let mut fixture = Fixture::open(&directory.0);
    let of =
        |at: i64| -> Value { doc! {"_id": at, "k": at * 7 % 100, "pad": "x".repeat(100)}.into() };
    let documents: Vec<Value> = (0..COUNT).map(of).collect();
    fixture.run(doc! {"insert": "c", "documents": documents});
    fixture
}

fn aggregate(collection: &str, stages: Value) -> Document {
    doc! {"aggregate": collection, "pipeline": stages, "cursor": doc! {"batchSize": 10_000}}
}

#[test]
fn the_output_survives_reopening() {
    let directory = TemporaryDirectory::new();
    let mut fixture = filled(&directory);
    let group = doc! {"$group": doc! {"_id": "$k", "n": doc! {"$sum": 1}}};
    let expected = fixture.all(aggregate(
        "c",
        array![group.clone(), doc! {"$sort": doc! {"_id": 1}}],
    ));
    // The second time it replaces a collection.
    for stages in [
        array![doc! {"$out": "sums"}],
        array![group, doc! {"$out": "sums"}],
    ] {
        assert!(fixture.all(aggregate("c", stages)).is_empty());
    }
    drop(fixture);
    let mut fixture = Fixture::open(&directory.0);
    let found = fixture.all(doc! {"find": "sums", "sort": doc! {"_id": 1}});
    assert_eq!(found, expected);
    let validated = fixture.run(doc! {"validate": "sums"});
    assert_eq!(validated.get("nrecords").as_exact_i64(), Some(100));
}

#[test]
fn a_cursor_without_a_first_batch_writes_on_get_more() {
    let directory = TemporaryDirectory::new();
    let mut fixture = filled(&directory);
    let stages = array![doc! {"$limit": 3}, doc! {"$out": "few"}];
    let command = doc! {"aggregate": "c", "pipeline": stages, "cursor": doc! {"batchSize": 0}};
    let reply = fixture.run(command);
    assert!(fixture.rest(reply).is_empty());
    let count = fixture.run(doc! {"count": "few"});
    assert_eq!(count.get("n").as_exact_i64(), Some(3));
}

#[test]
fn merging_again_changes_nothing() {
    let directory = TemporaryDirectory::new();
    let mut fixture = filled(&directory);
    let group = doc! {"$group": doc! {"_id": "$k", "n": doc! {"$sum": 1}}};
    let merge = |matched: Value| doc! {"$merge": doc! {"into": "sums", "whenMatched": matched}};
    let same = array![doc! {"$set": doc! {"n": doc! {"$max": array!["$n", "$$new.n"]}}}];
    let mut states = Vec::new();
    for matched in [
        "merge".into(),
        "replace".into(),
        "keepExisting".into(),
        same,
    ] {
        fixture.run(aggregate("c", array![group.clone(), merge(matched)]));
        states.push(fixture.all(doc! {"find": "sums", "sort": doc! {"_id": 1}}));
    }
    assert_eq!(states[0].len(), 100);
    assert!(states.iter().all(|state| *state == states[0]));
}

#[test]
fn disk_use_can_be_refused() {
    let directory = TemporaryDirectory::new();
    let mut fixture = filled(&directory);
    for name in [
        "internalDocumentSourceGroupMaxMemoryBytes",
        "internalQueryMaxBlockingSortMemoryUsageBytes",
    ] {
        let mut command = nilometer_bson::DocumentBuilder::new();
        command.append("setParameter", 1).append(name, 10_000);
        let reply = fixture.reply_on("admin", command.finish());
        assert_eq!(reply.get("ok").as_exact_i64(), Some(1));
    }
    let all = doc! {"_id": "$_id", "all": doc! {"$push": "$pad"}};
    for stage in [doc! {"$group": all}, doc! {"$sort": doc! {"k": 1}}] {
        let with = |allow: Option<bool>| {
            let mut command = nilometer_bson::DocumentBuilder::new();
            for element in aggregate("c", array![stage.clone(), doc! {"$count": "n"}]).iter() {
                command.append_element(element);
            }
            if let Some(allow) = allow {
                command.append("allowDiskUse", allow);
            }
            command.finish()
        };
        assert_eq!(fixture.code(with(Some(false))), 292);
        assert_eq!(fixture.code(with(Some(true))), 0);
        assert_eq!(fixture.code(with(None)), 0);
        let by_default = |allow: bool| doc! {"setParameter": 1, "allowDiskUseByDefault": allow};
        fixture.reply_on("admin", by_default(false));
        assert_eq!(fixture.code(with(None)), 292);
        fixture.reply_on("admin", by_default(true));
    }
}

#[test]
fn out_into_a_new_time_series_makes_the_index_that_create_makes() {
    let mut fixture = Fixture::with_measurements(20);
    let options = doc! {"timeField": "t", "metaField": "m"};
    fixture.run(doc! {"create": "made", "timeseries": options.clone()});
    let out = doc! {"$out": doc! {"db": "test", "coll": "out", "timeseries": options}};
    fixture.run(doc! {"aggregate": "ts", "pipeline": array![out], "cursor": doc! {}});
    let indexes = |fixture: &mut Fixture, of: &str| fixture.all(doc! {"listIndexes": of});
    assert_eq!(indexes(&mut fixture, "out"), indexes(&mut fixture, "made"));
    assert_eq!(indexes(&mut fixture, "out").len(), 1);
    let valid = fixture.run(doc! {"validate": "out", "full": true});
    assert!(matches!(
        valid.get("valid"),
        nilometer_bson::ValueRef::Bool(true)
    ));
    let hinted = doc! {"find": "out", "hint": "m_1_t_1"};
    assert_eq!(fixture.all(hinted).len(), 20);
}
