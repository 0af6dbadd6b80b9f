//! `find`, `aggregate`, `count`, `distinct`, `getMore`, `killCursors`, `explain`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use nilometer::Database;
use nilometer::operation::Clock;
use nilometer::services::Environment;
use nilometer_bson::{Document, Value, ValueRef, array, doc};

use crate::support::{Fixture, cursor, show};

const COLLECTIONS: [&str; 2] = ["ts", "plain"];

fn find(collection: &str, filter: Document) -> Document {
    doc! {"find": collection, "filter": filter}
}

fn ids(documents: &[Document]) -> Vec<i64> {
    let id = |d: &Document| d.get("_id").as_exact_i64().unwrap();
    documents.iter().map(id).collect()
}

/// Returns documents as text with sorted fields: a time-series collection returns time and metadata first,
/// an ordinary one `_id`.
fn by_name(documents: &[Document]) -> Vec<Vec<String>> {
    let fields = |d: &Document| {
        let mut fields: Vec<String> = d
            .iter()
            .map(|e| show(&doc! {"field": e.name(), "value": e.value()}))
            .collect();
        fields.sort();
        fields
    };
    documents.iter().map(fields).collect()
}

#[test]
fn find_answers_the_same_on_both_kinds_of_collection() {
    let mut fixture = Fixture::with_measurements(300);
    let at = |n: i64| Value::DateTime(1_700_000_000_000 + n * 10_000);
    for filter in [
        doc! {},
        doc! {"v": 3},
        doc! {"v": doc! {"$gt": 7}},
        doc! {"m.host": "h1"},
        doc! {"t": doc! {"$gte": at(10), "$lt": at(20)}},
        doc! {"m.host": doc! {"$in": array!["h0", "h2"]}, "t": doc! {"$lte": at(7)}, "v": doc! {"$ne": 4}},
        doc! {"$or": array![doc! {"v": 1}, doc! {"t": at(100)}]},
        doc! {"s": "disk"},
        doc! {"none": doc! {"$exists": false}, "_id": doc! {"$lt": 5}},
    ] {
        let sort = doc! {"_id": 1};
        let sorted = |c: &str| doc! {"find": c, "filter": filter.clone(), "sort": sort.clone()};
        let [series, plain] = COLLECTIONS.map(|c| by_name(&fixture.all(sorted(c))));
        assert!(series == plain, "{}", show(&filter));
    }
}

#[test]
fn find_limits_sorts_and_projects() {
    let mut fixture = Fixture::with_measurements(50);
    for collection in COLLECTIONS {
        let command = doc! {
            "find": collection,
            "filter": doc! {"v": doc! {"$lt": 5}},
            "sort": doc! {"_id": -1},
            "skip": 2,
            "limit": 3,
            "projection": doc! {"v": 1},
        };
        assert_eq!(
            fixture.all(command),
            [
                doc! {"_id": 42i64, "v": 2i64},
                doc! {"_id": 41i64, "v": 1i64},
                doc! {"_id": 40i64, "v": 0i64},
            ]
        );
    }
    assert!(fixture.all(find("absent", doc! {})).is_empty());
}

#[test]
fn cursors_return_batches() {
    let mut fixture = Fixture::with_measurements(250);
    for collection in COLLECTIONS {
        let ns = format!("test.{collection}");
        let reply = fixture.run(find(collection, doc! {}));
        let (id, name, batch) = cursor(&reply, "firstBatch");
        assert_eq!((name.as_str(), batch.len()), (ns.as_str(), 101));
        let more = |size: i64| doc! {"getMore": id, "collection": collection, "batchSize": size};
        let reply = fixture.run(more(10));
        let (same, name, batch) = cursor(&reply, "nextBatch");
        assert_eq!((same, name.as_str(), batch.len()), (id, ns.as_str(), 10));
        let reply = fixture.run(doc! {"getMore": id, "collection": collection});
        let (end, _, batch) = cursor(&reply, "nextBatch");
        assert_eq!((end, batch.len()), (0, 139));
        assert_eq!(fixture.code(more(1)), 43);

        let empty = doc! {"find": collection, "batchSize": 0};
        let (id, _, batch) = cursor(&fixture.run(empty), "firstBatch");
        assert!(id != 0 && batch.is_empty());
        let single = doc! {"find": collection, "batchSize": 5, "singleBatch": true};
        let (end, _, batch) = cursor(&fixture.run(single), "firstBatch");
        assert_eq!((end, batch.len()), (0, 5));
        let limited = doc! {"find": collection, "batchSize": 5, "limit": 5};
        let (end, _, batch) = cursor(&fixture.run(limited), "firstBatch");
        assert_eq!((end, batch.len()), (0, 5));

        let elsewhere = doc! {"getMore": id, "collection": "other"};
        assert_eq!(fixture.code(elsewhere), 13);
        let kill = doc! {"killCursors": collection, "cursors": array![id, 12345i64]};
        let killed = fixture.run(kill);
        let list = |name: &str| killed.get(name).as_array().unwrap().len();
        assert_eq!(list("cursorsKilled"), 1);
        assert_eq!(list("cursorsNotFound"), 1);
        assert_eq!(list("cursorsAlive") + list("cursorsUnknown"), 0);
        let gone = doc! {"getMore": id, "collection": collection};
        assert_eq!(fixture.code(gone), 43);
    }
}

#[test]
fn a_cursor_continues_after_inserts() {
    let mut fixture = Fixture::with_measurements(120);
    for collection in COLLECTIONS {
        let (id, _, first) = cursor(&fixture.run(find(collection, doc! {})), "firstBatch");
        let late = doc! {"t": Value::DateTime(1_800_000_000_000), "_id": 1000i64};
        fixture.run(doc! {"insert": collection, "documents": array![late]});
        let more = doc! {"getMore": id, "collection": collection};
        let (_, _, rest) = cursor(&fixture.run(more), "nextBatch");
        let mut seen = ids(&first);
        seen.extend(ids(&rest));
        seen.retain(|id| *id < 1000);
        seen.sort_unstable();
        assert_eq!(seen, (0..120).collect::<Vec<i64>>());
    }
}

#[test]
fn large_batches_stop_at_sixteen_megabytes() {
    let mut fixture = Fixture::new();
    let big = "x".repeat(3 << 20);
    let documents: Vec<Value> = (0..8)
        .map(|at| doc! {"_id": at, "big": big.as_str()}.into())
        .collect();
    for document in documents {
        fixture.run(doc! {"insert": "c", "documents": array![document]});
    }
    let (id, _, batch) = cursor(&fixture.run(find("c", doc! {})), "firstBatch");
    assert_eq!(batch.len(), 5);
    let more = doc! {"getMore": id, "collection": "c"};
    let (end, _, batch) = cursor(&fixture.run(more), "nextBatch");
    assert_eq!((end, batch.len()), (0, 3));
    // Small documents: the names of array elements count too.
    for from in 0..2 {
        let documents: Vec<Value> = (0..9000)
            .map(|at| doc! {"_id": from * 9000 + at, "text": "x".repeat(1000)}.into())
            .collect();
        fixture.run(doc! {"insert": "small", "documents": documents});
    }
    let reply = fixture.run(doc! {"find": "small", "batchSize": 100_000});
    let (id, _, first) = cursor(&reply, "firstBatch");
    let more = doc! {"getMore": id, "collection": "small"};
    let (end, _, rest) = cursor(&fixture.run(more), "nextBatch");
    assert_eq!((end, first.len() + rest.len()), (0, 18_000));
}

#[test]
fn aggregations_answer_the_same_on_both_kinds_of_collection() {
    let mut fixture = Fixture::with_measurements(1000);
    let hour = doc! {"$dateTrunc": doc! {"date": "$t", "unit": "hour"}};
    let minutes = doc! {"$dateTrunc": doc! {"date": "$t", "unit": "minute", "binSize": 10}};
    let key = doc! {"h": hour.clone(), "host": "$m.host"};
    for stages in [
        array![
            doc! {"$group": doc! {"_id": hour, "max": doc! {"$max": "$v"}, "n": doc! {"$sum": 1}}},
            doc! {"$sort": doc! {"_id": 1}},
        ],
        array![
            doc! {"$match": doc! {"m.host": "h1", "v": doc! {"$gte": 3}}},
            doc! {"$group": doc! {"_id": minutes, "avg": doc! {"$avg": "$v"}, "sum": doc! {"$sum": "$v"}}},
            doc! {"$sort": doc! {"_id": -1}},
            doc! {"$limit": 5},
        ],
        array![
            doc! {"$group": doc! {"_id": key, "min": doc! {"$min": "$t"}, "last": doc! {"$last": "$v"}}},
            doc! {"$sort": doc! {"_id.h": 1, "_id.host": 1}},
        ],
        array![doc! {"$count": "n"}],
        array![doc! {"$match": doc! {"v": 5}}, doc! {"$count": "n"}],
        array![
            doc! {"$sort": doc! {"t": -1}},
            doc! {"$limit": 4},
            doc! {"$project": doc! {"_id": 0, "t": 1, "twice": doc! {"$add": array!["$v", "$v"]}}},
        ],
        array![
            doc! {"$addFields": doc! {"v": array!["$v", 1]}},
            doc! {"$unwind": "$v"},
            doc! {"$sortByCount": "$v"},
            doc! {"$sort": doc! {"_id": 1}},
        ],
    ] {
        let aggregate =
            |c: &str| doc! {"aggregate": c, "pipeline": stages.clone(), "cursor": doc! {}};
        let [series, plain] = COLLECTIONS.map(|c| fixture.all(aggregate(c)));
        assert!(
            series == plain,
            "{}",
            show(&doc! {"pipeline": stages.clone()})
        );
        assert!(!series.is_empty());
    }
}

#[test]
fn views_are_resolved() {
    let mut fixture = Fixture::with_measurements(100);
    let filter = array![doc! {"$match": doc! {"v": doc! {"$gt": 7}}}];
    fixture.run(doc! {"create": "high", "viewOn": "ts", "pipeline": filter});
    let hosts = array![doc! {"$project": doc! {"host": "$m.host", "v": 1}}];
    fixture.run(doc! {"create": "hosts", "viewOn": "high", "pipeline": hosts});
    assert_eq!(fixture.all(find("high", doc! {})).len(), 20);
    let found = fixture.all(find("hosts", doc! {"host": "h2"}));
    assert!(!found.is_empty());
    assert!(found.iter().all(|d| d.get("host").as_str() == Some("h2")));
    let reply = fixture.run(find("hosts", doc! {}));
    assert_eq!(cursor(&reply, "firstBatch").1, "test.hosts");
    let counted = fixture.run(doc! {"count": "high"});
    assert_eq!(counted.get("n").as_exact_i64(), Some(20));
}

#[test]
fn counts_and_distinct_values() {
    let mut fixture = Fixture::with_measurements(100);
    for collection in COLLECTIONS {
        let mut count = |command: Document| {
            let reply = fixture.run(command);
            assert!(matches!(reply.get("n"), ValueRef::Int32(_)));
            reply.get("n").as_exact_i64().unwrap()
        };
        assert_eq!(count(doc! {"count": collection}), 100);
        assert_eq!(
            count(doc! {"count": collection, "query": doc! {"v": 3}}),
            10
        );
        assert_eq!(count(doc! {"count": collection, "skip": 95}), 5);
        assert_eq!(count(doc! {"count": collection, "limit": 7, "skip": 1}), 7);
        assert_eq!(count(doc! {"count": collection, "limit": -7}), 7);
        assert_eq!(count(doc! {"count": "absent"}), 0);
        let reply = fixture.run(doc! {"distinct": collection, "key": "m.host"});
        let values = reply
            .get("values")
            .as_array()
            .unwrap()
            .as_document()
            .to_document();
        assert_eq!(values, doc! {"0": "h0", "1": "h1", "2": "h2"});
        let filter = doc! {"v": doc! {"$lt": 2}};
        let reply = fixture.run(doc! {"distinct": collection, "key": "v", "query": filter});
        assert_eq!(reply.get("values").as_array().unwrap().len(), 2);
    }
}

#[test]
fn distinct_looks_into_arrays() {
    let mut fixture = Fixture::new();
    let documents = array![
        doc! {"a": array![1, 2, array![3]]},
        doc! {"a": 2.0},
        doc! {"a": Value::Null},
        doc! {"b": 1},
        doc! {"a": array![]},
    ];
    fixture.run(doc! {"insert": "c", "documents": documents});
    let reply = fixture.run(doc! {"distinct": "c", "key": "a"});
    let values = reply
        .get("values")
        .as_array()
        .unwrap()
        .as_document()
        .to_document();
    assert_eq!(
        values,
        doc! {"0": 1, "1": 2, "2": array![3], "3": Value::Null}
    );
}

#[test]
fn bad_options_are_refused() {
    let mut fixture = Fixture::with_measurements(5);
    let with = |name: &str, value: Value| {
        let mut command = nilometer_bson::DocumentBuilder::new();
        command.append("find", "ts");
        command.append(name, value);
        command.finish()
    };
    for (name, value, code) in [
        ("limit", Value::from(-1), 51_024),
        ("skip", (-1).into(), 51_024),
        ("batchSize", (-1).into(), 51_024),
        ("filter", 1.into(), 14),
        ("filter", doc! {"a": doc! {"$nope": 1}}.into(), 2),
        ("what", 1.into(), 40_415),
        ("hint", "none".into(), 2),
        ("hint", 1.into(), 9),
        ("tailable", true.into(), 168),
        ("awaitData", true.into(), 9),
        ("min", doc! {"a": 1}.into(), 51_173),
        ("collation", doc! {"locale": "simple"}.into(), 0),
        ("showRecordId", true.into(), 168),
        ("sort", doc! {"a": 2}.into(), 2),
    ] {
        let command = with(name, value);
        assert_eq!(fixture.code(command.clone()), code, "{}", show(&command));
    }
    assert_eq!(fixture.code(doc! {"find": ""}), 73);
    assert_eq!(fixture.code(doc! {"find": 1}), 73);
    let aggregate = |name: &str, value: Value| {
        let mut command = nilometer_bson::DocumentBuilder::new();
        command.append("aggregate", "ts");
        command.append(name, value);
        command.finish()
    };
    assert_eq!(fixture.code(aggregate("pipeline", array![])), 9);
    assert_eq!(fixture.code(aggregate("cursor", doc! {}.into())), 40_414);
    let none =
        doc! {"aggregate": 1, "pipeline": array![doc! {"$match": doc! {}}], "cursor": doc! {}};
    assert_eq!(fixture.code(none), 73);
    assert_eq!(fixture.code(doc! {"getMore": 5, "collection": "ts"}), 14);
    assert_eq!(
        fixture.code(doc! {"killCursors": "ts", "cursors": array![]}),
        2
    );
    assert_eq!(fixture.code(doc! {"distinct": "ts"}), 40_414);
}

#[test]
fn documents_need_no_collection() {
    let mut fixture = Fixture::new();
    let documents = array![doc! {"a": 1}, doc! {"a": 2}];
    let stages = array![
        doc! {"$documents": documents},
        doc! {"$match": doc! {"$expr": doc! {"$eq": array!["$a", "$$x"]}}},
    ];
    let command = doc! {
        "aggregate": 1,
        "pipeline": stages,
        "cursor": doc! {},
        "let": doc! {"x": doc! {"$add": array![1, 1]}},
    };
    assert_eq!(fixture.all(command), [doc! {"a": 2}]);
}

fn winning(reply: &Document) -> Document {
    let planner = reply.get("queryPlanner").as_document().unwrap();
    planner
        .get("winningPlan")
        .as_document()
        .unwrap()
        .to_document()
}

#[test]
fn explain_of_an_ordinary_collection_is_a_tree() {
    let mut fixture = Fixture::with_measurements(30);
    let find = doc! {
        "find": "plain",
        "filter": doc! {"v": doc! {"$gt": 7}},
        "sort": doc! {"v": 1},
        "limit": 2,
        "projection": doc! {"v": 1},
    };
    let command = doc! {"explain": find, "verbosity": "executionStats"};
    let reply = fixture.run(command);
    let mut plan = winning(&reply);
    let mut stages = Vec::new();
    loop {
        stages.push(plan.get("stage").as_str().unwrap().to_owned());
        let Some(input) = plan.get("inputStage").as_document() else {
            break;
        };
        plan = input.to_document();
    }
    assert_eq!(stages, ["PROJECTION_SIMPLE", "SORT", "COLLSCAN"]);
    let stats = reply.get("executionStats").as_document().unwrap();
    assert_eq!(stats.get("nReturned").as_exact_i64(), Some(2));
    assert_eq!(stats.get("totalDocsExamined").as_exact_i64(), Some(30));
}

#[test]
fn explain_of_a_time_series_shows_the_unpacking() {
    let mut fixture = Fixture::with_measurements(30);
    let at = Value::DateTime(1_700_000_000_000);
    let stages = array![
        doc! {"$match": doc! {"m.host": "h1", "v": 4, "t": doc! {"$gte": at}}},
        doc! {"$group": doc! {"_id": "$m.host", "max": doc! {"$max": "$v"}}},
    ];
    let aggregate = doc! {"aggregate": "ts", "pipeline": stages, "cursor": doc! {}};
    let reply = fixture.run(doc! {"explain": aggregate, "verbosity": "executionStats"});
    let stages = reply.get("stages").as_array().unwrap();
    let cursor = stages
        .get(0)
        .as_document()
        .unwrap()
        .get("$cursor")
        .as_document()
        .unwrap();
    let plan = winning(&cursor.to_document());
    assert_eq!(plan.get("stage").as_str(), Some("CLUSTERED_IXSCAN"));
    assert!(matches!(plan.get("minRecord"), ValueRef::ObjectId(_)));
    let unpack = stages.get(1).as_document().unwrap();
    let unpack = unpack.get("$_internalUnpackBucket").as_document().unwrap();
    assert_eq!(unpack.get("timeField").as_str(), Some("t"));
    assert_eq!(unpack.get("metaField").as_str(), Some("m"));
    let include = unpack
        .get("include")
        .as_array()
        .unwrap()
        .as_document()
        .to_document();
    assert_eq!(include, doc! {"0": "m", "1": "v"});
    assert!(unpack.get("eventFilter").as_document().is_some());
    assert!(unpack.get("wholeBucketFilter").is_missing());
    let stats = cursor.get("executionStats").as_document().unwrap();
    assert_eq!(stats.get("totalDocsExamined").as_exact_i64(), Some(3));
    assert!(stages.get(2).as_document().unwrap().contains("$group"));
}

#[test]
fn buckets_can_be_read_as_documents() {
    let mut fixture = Fixture::with_measurements(30);
    let buckets = fixture.all(find("system.buckets.ts", doc! {}));
    assert_eq!(buckets.len(), 3);
    let counted: i64 = buckets
        .iter()
        .map(|b| {
            let control = b.get("control").as_document().unwrap();
            control.get("count").as_exact_i64().unwrap()
        })
        .sum();
    assert_eq!(counted, 30);
    let id = buckets[1].get("_id").to_value();
    let one = fixture.all(find("system.buckets.ts", doc! {"_id": id.clone()}));
    assert_eq!(one, [buckets[1].clone()]);
    let explain = doc! {"explain": find("system.buckets.ts", doc! {"_id": id}), "verbosity": "executionStats"};
    let reply = fixture.run(explain);
    assert_eq!(
        winning(&reply).get("stage").as_str(),
        Some("CLUSTERED_IXSCAN")
    );
    let stats = reply.get("executionStats").as_document().unwrap();
    assert_eq!(stats.get("totalDocsExamined").as_exact_i64(), Some(1));
}

#[test]
fn pipelines_with_growing_output_stop_at_their_time_limit() {
    let mut fixture = Fixture::with_measurements(1);
    let many = doc! {"$range": array!["$n", 100_000]};
    let more_than_5 = doc! {"$gt": array![doc! {"$size": many.clone()}, 5]};
    for make in [
        doc! {"$set": doc! {"a": many.clone()}},
        doc! {"$replaceWith": doc! {"a": many}},
        doc! {"$match": doc! {"$expr": more_than_5}},
    ] {
        let begin = array![
            doc! {"$documents": array![doc! {"n": doc! {"$range": array![0, 5000]}}]},
            doc! {"$unwind": "$n"},
            make,
            doc! {"$unwind": "$a"},
            doc! {"$group": doc! {"_id": Value::Null, "sum": doc! {"$sum": "$a"}}}
        ];
        let command = doc! {
            "aggregate": 1, "pipeline": begin, "cursor": doc! {}, "maxTimeMS": 20,
        };
        assert_eq!(fixture.code(command), 50);
    }
}

#[test]
fn large_documents_are_unwound_like_small_ones() {
    let mut fixture = Fixture::with_measurements(1);
    for text in [10, 10_000] {
        let pipeline = array![
            doc! {"$documents": array![
                doc! {"a": doc! {"$range": array![0, 2500]}, "text": "x".repeat(text)},
                doc! {"a": array![], "text": "y".repeat(text)},
                doc! {"a": 7, "text": "z".repeat(text)}
            ]},
            doc! {"$unwind": doc! {
                "path": "$a", "includeArrayIndex": "at", "preserveNullAndEmptyArrays": true,
            }},
            doc! {"$set": doc! {"text": doc! {"$strLenBytes": "$text"}}}
        ];
        let command = doc! {"aggregate": 1, "pipeline": pipeline, "cursor": doc! {}};
        let found = fixture.all(command);
        assert_eq!(found.len(), 2502);
        let length = text as i32;
        let last = doc! {"a": 2499, "text": length, "at": 2499_i64};
        assert_eq!(found[2499], last);
        assert_eq!(found[2500], doc! {"text": length, "at": Value::Null});
        assert_eq!(
            found[2501],
            doc! {"a": 7, "text": length, "at": Value::Null}
        );
    }
}

/// A wall clock that moves when it is read.
#[derive(Default)]
struct MovingClock(AtomicI64);

impl Clock for MovingClock {
    fn now_ms(&self) -> i64 {
        1_714_979_289_010 + self.0.fetch_add(1, Ordering::Relaxed)
    }

    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
}

#[test]
fn the_current_date_moves_while_a_query_runs() {
    let environment = Environment {
        clock: Arc::new(MovingClock::default()),
        ..Environment::default()
    };
    let mut fixture = Fixture::of(Database::in_memory_with(environment).unwrap());
    let documents: Vec<Value> = (0..50).map(|n| doc! {"_id": n}.into()).collect();
    fixture.run(doc! {"insert": "c", "documents": documents});
    let mut dates = |expression: Value| {
        let set = doc! {"$set": doc! {"d": expression}};
        let all = fixture.all(doc! {"aggregate": "c", "pipeline": array![set], "cursor": doc! {}});
        assert_eq!(all.len(), 50);
        let dates = all.iter().map(|document| match document.get("d") {
            ValueRef::DateTime(ms) => ms,
            other => panic!("{other:?}"),
        });
        dates.collect::<BTreeSet<i64>>().len()
    };
    assert_eq!(dates("$$NOW".into()), 1);
    assert_eq!(dates(doc! {"$currentDate": doc! {}}.into()), 50);
    // In updates, too.
    let set = array![doc! {"$set": doc! {"d": doc! {"$currentDate": doc! {}}}}];
    let update = doc! {"q": doc! {}, "u": set, "multi": true};
    fixture.run(doc! {"update": "c", "updates": array![update]});
    let distinct = fixture.run(doc! {"distinct": "c", "key": "d"});
    assert_eq!(
        distinct.get("values").as_array().map(|values| values.len()),
        Some(50)
    );
}

/// As in MongoDB, a scan does not look for a record behind its last batch.
#[test]
fn a_cursor_stays_open_behind_a_last_batch_that_is_full() {
    let mut fixture = Fixture::new();
    let documents: Vec<Value> = (0..3).map(|i| doc! { "_id": i, "a": i }.into()).collect();
    fixture.run(doc! { "insert": "c", "documents": documents });
    let index = doc! { "key": doc! { "a": 1 }, "name": "a" };
    fixture.run(doc! { "createIndexes": "c", "indexes": array![index] });
    let opens = |fixture: &mut Fixture, command: Document| {
        let reply = fixture.run(command);
        let cursor = reply.get("cursor").as_document().unwrap();
        cursor.get("id").as_exact_i64().unwrap()
    };
    let by_index = doc! { "a": doc! { "$gte": 0 } };
    for filter in [doc! {}, by_index] {
        let find = doc! { "find": "c", "filter": filter, "batchSize": 3 };
        let id = opens(&mut fixture, find);
        assert_ne!(id, 0);
        let reply = fixture.run(doc! { "getMore": id, "collection": "c", "batchSize": 3 });
        let cursor = reply.get("cursor").as_document().unwrap();
        assert_eq!(cursor.get("id").as_exact_i64(), Some(0));
        assert!(cursor.get("nextBatch").as_array().unwrap().is_empty());
    }
    // A limit, a sort in memory and a lookup of one _id know their end, and so does a batch with room.
    for command in [
        doc! { "find": "c", "batchSize": 3, "limit": 3 },
        doc! { "find": "c", "batchSize": 3, "sort": doc! { "b": 1 } },
        doc! { "find": "c", "batchSize": 1, "filter": doc! { "_id": 1 } },
        doc! { "find": "c", "batchSize": 4 },
    ] {
        assert_eq!(opens(&mut fixture, command), 0);
    }
}
