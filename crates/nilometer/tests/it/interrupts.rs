//! Commands whose work is inside one document end at `maxTimeMS`, and their values count as memory of queries.
//!
//! The clock moves by a millisecond whenever it is read, so that a command ends after a number of checks and never by
//! the time it takes: one that does not check continues to its end and succeeds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nilometer::Database;
use nilometer::operation::Clock;
use nilometer::services::Environment;
use nilometer_bson::{Document, DocumentBuilder, Value, array, doc};
use nilometer_storage::testing::effort;

use crate::support::{Fixture, show};

/// A clock that moves when it is read.
#[derive(Default)]
struct CheckClock(AtomicU64);

impl Clock for CheckClock {
    fn now_ms(&self) -> i64 {
        1_714_979_289_010
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

fn fixture() -> Fixture {
    let environment = Environment {
        clock: Arc::new(CheckClock::default()),
        ..Environment::default()
    };
    let mut fixture = Fixture::of(Database::in_memory_with(environment).unwrap());
    let text = "ab".repeat(150_000);
    fixture
        .run(doc! { "insert": "c", "documents": array![doc! { "_id": 1, "n": 1000, "s": text }] });
    fixture
}

/// Sums over a range inside ranges: a million elements.
fn nested() -> Value {
    let range = || doc! { "$range": array![0, "$n"] };
    let inner = doc! { "$sum": range() };
    doc! { "$sum": doc! { "$map": doc! { "input": range(), "in": inner } } }.into()
}

fn with_limit(command: Document) -> Document {
    let mut out = DocumentBuilder::new();
    for element in command.iter() {
        out.append_element(element);
    }
    out.append("maxTimeMS", 60);
    out.finish()
}

/// Returns the code of a reply or of its first write error; 0 if it succeeded.
fn code(reply: &Document) -> i64 {
    let errors = reply.get("writeErrors").as_array();
    let first = errors.and_then(|errors| errors.get(0).as_document());
    let code = first.map_or(reply.get("code"), |error| error.get("code"));
    code.as_exact_i64().unwrap_or(0)
}

#[test]
fn every_command_is_interrupted_inside_one_document() {
    let never = || doc! { "$expr": doc! { "$lt": array![nested(), 0] } };
    let set = || array![doc! { "$set": doc! { "x": nested() } }];
    let pattern = || doc! { "s": doc! { "$regex": "(?:a|b|[ab]d){20000}z" } };
    let update =
        |q: Document, u: Value| doc! { "update": "c", "updates": array![doc! { "q": q, "u": u }] };
    let commands = [
        doc! { "find": "c", "filter": never() },
        doc! { "find": "c", "projection": doc! { "x": nested() } },
        doc! { "find": "c", "filter": pattern() },
        doc! { "count": "c", "query": never() },
        doc! { "distinct": "c", "key": "n", "query": never() },
        doc! { "aggregate": "c", "pipeline": array![doc! { "$set": doc! { "x": nested() } }], "cursor": doc! {} },
        doc! { "aggregate": "c", "pipeline": array![doc! { "$group": doc! { "_id": nested() } }], "cursor": doc! {} },
        doc! { "aggregate": "c", "pipeline": array![doc! { "$redact": doc! { "$cond": array![nested(), "$$KEEP", "$$PRUNE"] } }], "cursor": doc! {} },
        update(doc! {}, set()),
        update(never(), doc! { "$set": doc! { "x": 1 } }.into()),
        doc! { "delete": "c", "deletes": array![doc! { "q": never(), "limit": 0 }] },
        doc! { "findAndModify": "c", "update": set() },
        doc! { "findAndModify": "c", "query": never(), "remove": true },
    ];
    let mut fixture = fixture();
    for command in commands {
        let reply = fixture.reply(with_limit(command.clone()));
        assert_eq!(code(&reply), 50, "{}: {}", show(&command), show(&reply));
    }
}

#[test]
fn validators_are_interrupted() {
    let mut fixture = fixture();
    fixture.run(
        doc! { "create": "v", "validator": doc! { "$expr": doc! { "$gte": array![nested(), 0] } } },
    );
    let insert = doc! { "insert": "v", "documents": array![doc! { "n": 1000 }] };
    let reply = fixture.reply(with_limit(insert));
    assert_eq!(code(&reply), 50, "{}", show(&reply));
    fixture.run(doc! { "insert": "v", "documents": array![doc! { "n": 1 }] });
}

/// A filter that reads metadata alone decides for whole buckets; also its evaluation ends.
#[test]
fn filters_on_metadata_are_interrupted() {
    let mut fixture = fixture();
    fixture.run(doc! { "create": "ts", "timeseries": doc! { "timeField": "t", "metaField": "n" } });
    let measurement = doc! { "t": Value::DateTime(1_700_000_000_000), "n": 1000 };
    fixture.run(doc! { "insert": "ts", "documents": array![measurement] });
    let never = || doc! { "$expr": doc! { "$lt": array![nested(), 0] } };
    let set = || Value::from(doc! { "$set": doc! { "x": 1 } });
    for command in [
        doc! { "find": "ts", "filter": never() },
        doc! { "count": "ts", "query": never() },
        doc! { "update": "ts", "updates": array![doc! { "q": never(), "u": set(), "multi": true }] },
        doc! { "delete": "ts", "deletes": array![doc! { "q": never(), "limit": 0 }] },
    ] {
        let reply = fixture.reply(with_limit(command.clone()));
        assert_eq!(code(&reply), 50, "{}: {}", show(&command), show(&reply));
    }
}

/// The result of an accumulator may take long after its last input.
#[test]
fn results_of_groups_and_windows_are_interrupted() {
    let mut fixture = fixture();
    let shuffled = |at: i32| (at * 7919) % 100_003;
    let documents: Vec<Value> = (0..100_003)
        .map(|at| doc! { "v": shuffled(at), "s": "x".repeat(20) }.into())
        .collect();
    for some in documents.chunks(20_000) {
        fixture.run(doc! { "insert": "many", "documents": some.to_vec() });
    }
    let group = |accumulator: Document| {
        Value::from(doc! { "$group": doc! { "_id": Value::Null, "r": accumulator } })
    };
    let windows = |output: Document| {
        let sort_by = doc! { "v": 1 };
        let output = doc! { "r": output };
        Value::from(doc! { "$setWindowFields": doc! { "sortBy": sort_by, "output": output } })
    };
    let growing = || doc! { "documents": array!["unbounded", "current"] };
    let top = |n: i32| doc! { "sortBy": doc! { "v": 1 }, "output": "$v", "n": n };
    for stage in [
        group(doc! { "$topN": top(100_000) }),
        group(doc! { "$median": doc! { "input": "$v", "method": "approximate" } }),
        windows(doc! { "$push": "$v", "window": growing() }),
        windows(doc! { "$addToSet": "$v", "window": growing() }),
        windows(doc! { "$topN": top(1000), "window": growing() }),
    ] {
        // Read without a limit of checks up to the last step: the clock moves by a millisecond at each.
        let pipeline = array![doc! { "$match": doc! {} }, stage.clone()];
        let command = doc! { "aggregate": "many", "pipeline": pipeline, "cursor": doc! {} };
        let mut limited = DocumentBuilder::new();
        for element in command.iter() {
            limited.append_element(element);
        }
        limited.append("maxTimeMS", 400);
        let reply = fixture.reply(limited.finish());
        let shown = show(&doc! { "stage": stage });
        assert!(
            matches!(code(&reply), 50 | 146),
            "{shown}: {}",
            show(&reply)
        );
    }
}

#[test]
fn validating_against_a_slow_validator_is_interrupted() {
    let mut fixture = fixture();
    fixture.run(doc! { "create": "v" });
    fixture.run(doc! { "insert": "v", "documents": array![doc! { "n": 1000 }] });
    let slow = doc! { "$expr": doc! { "$gte": array![nested(), 0] } };
    fixture.run(doc! { "collMod": "v", "validator": slow });
    let reply = fixture.reply(with_limit(doc! { "validate": "v" }));
    assert_eq!(code(&reply), 50, "{}", show(&reply));
}

#[test]
fn constants_of_geo_near_are_bounded() {
    let mut fixture = fixture();
    let at = doc! { "type": "Point", "coordinates": array![1, 1] };
    fixture.run(doc! { "insert": "g", "documents": array![doc! { "at": at.clone() }] });
    let index = doc! { "key": doc! { "at": "2dsphere" }, "name": "at" };
    fixture.run(doc! { "createIndexes": "g", "indexes": array![index] });
    let range = || doc! { "$range": array![0, "$$n"] };
    let inner = doc! { "$sum": range() };
    let sum = doc! { "$sum": doc! { "$map": doc! { "input": range(), "in": inner } } };
    let near = doc! { "near": at, "distanceField": "d", "maxDistance": sum };
    for (n, expected) in [(2, 0), (3000, 146)] {
        let reply = fixture.reply(doc! {
            "aggregate": "g", "pipeline": array![doc! { "$geoNear": near.clone() }],
            "cursor": doc! {}, "let": doc! { "n": n },
        });
        assert_eq!(code(&reply), expected, "{}", show(&reply));
    }
}

/// Partial filters have no expressions, but may have many conditions on a long array.
#[test]
fn a_slow_partial_filter_is_interrupted_while_an_index_is_built_and_checked() {
    let mut fixture = fixture();
    let numbers: Vec<Value> = (0..effort(2_500, 8_000, 8_000) as i32)
        .map(Value::from)
        .collect();
    let below = |limit: i32| -> Value { doc! { "m.a": doc! { "$lt": -1 - limit } }.into() };
    let clauses: Vec<Value> = (0..100).map(below).collect();
    let meta = doc! { "a": numbers };
    let document = doc! { "_id": 1, "t": Value::DateTime(0), "m": meta };
    let timeseries = doc! { "timeField": "t", "metaField": "m" };
    fixture.run(doc! { "create": "ts", "timeseries": timeseries });
    for collection in ["d", "ts"] {
        fixture.run(doc! { "insert": collection, "documents": array![document.clone()] });
        let index = doc! {
            "key": doc! { "t": 1 }, "name": "slow",
            "partialFilterExpression": doc! { "$or": clauses.clone() },
        };
        let build = doc! { "createIndexes": collection, "indexes": array![index] };
        let reply = fixture.reply(with_limit(build.clone()));
        assert_eq!(code(&reply), 50, "{collection}: {}", show(&reply));
        fixture.run(build);
        let mut commands = vec![doc! { "validate": collection }];
        if collection == "d" {
            commands.push(doc! { "reIndex": collection });
        }
        for command in commands {
            let reply = fixture.reply(with_limit(command.clone()));
            assert_eq!(code(&reply), 50, "{}", show(&reply));
            fixture.run(command);
        }
    }
}

/// An index with several keys of a document leads to it several times, so a scan remembers the documents it has returned.
#[test]
fn documents_that_a_scan_remembers_count_as_memory_of_queries() {
    let mut fixture = Fixture::new();
    let documents: Vec<Value> = (0..10_000)
        .map(|i| doc! { "_id": i, "a": array![i, i + 1], "b": i, "c": i }.into())
        .collect();
    fixture.run(doc! { "insert": "c", "documents": documents });
    let with = |name: &str, value: Value| {
        let mut out = DocumentBuilder::new();
        out.append(name, value);
        out.finish()
    };
    let index = |name: &str| doc! { "key": with(name, 1.into()), "name": name };
    let indexes = array![index("a"), index("b"), index("c")];
    fixture.run(doc! { "createIndexes": "c", "indexes": indexes });
    let at_least = |name: &str| with(name, doc! { "$gte": 0 }.into());
    let either = doc! { "$or": array![at_least("b"), at_least("c")] };
    let all: i32 = 1000;
    let commands = [
        doc! { "aggregate": "c", "pipeline": array![doc! { "$match": at_least("a") }, doc! { "$count": "n" }],
        "cursor": doc! {}, "hint": "a" },
        doc! { "aggregate": "c", "pipeline": array![doc! { "$match": either }, doc! { "$count": "n" }],
        "cursor": doc! {} },
        doc! { "update": "c", "updates": array![doc! { "q": at_least("a"), "u": doc! { "$set": doc! { "d": all } },
        "multi": true, "hint": "a" }] },
    ];
    for command in &commands {
        limit_query_memory(&mut fixture, 240_000);
        let refused = fixture.reply(command.clone());
        assert_eq!(code(&refused), 292, "{}", show(&refused));
        limit_query_memory(&mut fixture, 0);
        let reply = fixture.reply(command.clone());
        assert_eq!(code(&reply), 0, "{}", show(&reply));
    }
}

fn limit_query_memory(fixture: &mut Fixture, bytes: i64) {
    let command = doc! { "setParameter": 1, "nilometerQueryMemoryBytes": bytes };
    let reply = fixture.reply_on("admin", command);
    assert_eq!(reply.get("ok").as_exact_i64(), Some(1));
}

/// Each command joins, walks or windows more bytes than the limit. It is refused by name, and runs without the limit.
#[test]
fn products_of_joins_and_windows_count_as_memory_of_queries() {
    let mut fixture = Fixture::new();
    let pad = "x".repeat(1000);
    let documents: Vec<Value> = (0..800)
        .map(|i| doc! { "_id": i, "k": 1, "next": i + 1, "v": i, "pad": pad.as_str() }.into())
        .collect();
    fixture.run(doc! { "insert": "many", "documents": documents });
    fixture.run(doc! { "insert": "one", "documents": array![doc! { "_id": 1, "k": 1, "n": 0 }] });
    let lookup = |more: Document| {
        let mut spec = DocumentBuilder::new();
        spec.append("as", "found");
        for element in more.iter() {
            spec.append_element(element);
        }
        array![
            doc! { "$lookup": spec.finish() },
            doc! { "$project": doc! { "n": doc! { "$size": "$found" } } }
        ]
    };
    let equal = || doc! { "$expr": doc! { "$eq": array!["$k", "$$k"] } };
    let walk = doc! {
        "from": "many", "startWith": "$n", "connectFromField": "next", "connectToField": "_id", "as": "found",
    };
    let window = |output: Document| {
        let output = doc! { "r": output };
        array![
            doc! { "$setWindowFields": doc! { "sortBy": doc! { "v": 1 }, "output": output } },
            doc! { "$count": "n" },
        ]
    };
    let two = || doc! { "documents": array![-1, "current"] };
    let cases = [
        (
            "one",
            lookup(doc! { "from": "many", "localField": "k", "foreignField": "k" }),
            292,
        ),
        (
            "one",
            lookup(doc! { "from": "many", "pipeline": array![] }),
            292,
        ),
        (
            "one",
            lookup(
                doc! { "from": "many", "let": doc! { "k": "$k" }, "pipeline": array![doc! { "$match": equal() }] },
            ),
            292,
        ),
        (
            "one",
            lookup(doc! {
                "from": "many", "localField": "k", "foreignField": "k", "pipeline": array![doc! { "$set": doc! { "x": 1 } }],
            }),
            292,
        ),
        (
            "one",
            array![
                doc! { "$graphLookup": walk },
                doc! { "$project": doc! { "n": doc! { "$size": "$found" } } }
            ],
            40099,
        ),
        (
            "many",
            window(doc! { "$push": "$pad", "window": two() }),
            292,
        ),
        (
            "many",
            window(doc! { "$addToSet": "$$ROOT", "window": two() }),
            292,
        ),
        (
            "many",
            window(doc! { "$shift": doc! { "output": "$$ROOT", "by": 1 } }),
            292,
        ),
    ];
    for (collection, pipeline, expected) in cases {
        let command = doc! { "aggregate": collection, "pipeline": pipeline, "cursor": doc! {}, "allowDiskUse": false };
        limit_query_memory(&mut fixture, 190_000);
        let refused = fixture.reply(command.clone());
        assert_eq!(
            code(&refused),
            expected,
            "{}: {}",
            show(&command),
            show(&refused)
        );
        limit_query_memory(&mut fixture, 0);
        let reply = fixture.reply(command.clone());
        assert_eq!(code(&reply), 0, "{}: {}", show(&command), show(&reply));
    }
}

/// A pattern of thirty thousand literals is compiled and searched in steps.
#[test]
fn patterns_of_thirty_thousand_literals_are_interrupted_and_longer_ones_are_refused() {
    let mut fixture = fixture();
    let search = |pattern: &str| {
        let filter = doc! { "s": doc! { "$regex": pattern } };
        let command = doc! { "aggregate": "c", "pipeline": array![doc! { "$match": filter }], "cursor": doc! {} };
        (command.clone(), with_limit(command))
    };
    // As many states as literals at each byte of the text.
    for slow in ["a?".repeat(16_000) + "c", "(a|b)".repeat(6000) + "c"] {
        let (_, limited) = search(&slow);
        let reply = fixture.reply(limited);
        assert_eq!(code(&reply), 50, "{}", show(&reply));
    }
    // The time of these does not depend on the number of literals.
    let words: Vec<String> = (0..6500).map(|at| format!("{at:04x}")).collect();
    for fast in [
        "abcdefgh".repeat(4000),
        words.join("|"),
        "c|".repeat(16_000) + "c",
    ] {
        let (command, _) = search(&fast);
        let reply = fixture.reply(command);
        assert_eq!(code(&reply), 0, "{}", show(&reply));
    }
    for (length, expected) in [(32_761, 0), (32_762, 51091)] {
        let (command, _) = search(&"x".repeat(length));
        assert_eq!(code(&fixture.reply(command)), expected);
    }
}

/// A document of `$facet` may be larger than one that a client can receive, up to 100 MiB, if a later stage makes it small.
#[test]
fn facets_may_have_a_hundred_megabytes_of_output() {
    let mut fixture = Fixture::new();
    let pad = "x".repeat(1 << 20);
    let documents: Vec<Value> = (0..10)
        .map(|i| doc! { "_id": i, "pad": pad.as_str() }.into())
        .collect();
    fixture.run(doc! { "insert": "c", "documents": documents });
    let command = |facets: usize, later: Value| {
        let mut spec = DocumentBuilder::new();
        for at in 0..facets {
            spec.append(&format!("f{at}"), array![doc! { "$match": doc! {} }]);
        }
        let facet = doc! { "$facet": spec.finish() };
        doc! { "aggregate": "c", "pipeline": array![facet, later], "cursor": doc! {} }
    };
    let sizes = || {
        let size = |name: &str| doc! { "$size": name };
        Value::from(doc! { "$project": doc! { "first": size("$f0"), "last": size("$f8") } })
    };
    let found = fixture.all(command(9, sizes()));
    assert_eq!(show(&found[0]), show(&doc! { "first": 10, "last": 10 }));
    let found = fixture.all(command(
        2,
        doc! { "$replaceWith": doc! { "$first": "$f1" } }.into(),
    ));
    assert_eq!(found[0].get("_id").as_exact_i64(), Some(0));
    // A client cannot receive it.
    let whole = fixture.reply(command(2, doc! { "$match": doc! {} }.into()));
    assert_eq!(code(&whole), 10334, "{}", show(&whole));
    let too_large = fixture.reply(command(11, sizes()));
    assert_eq!(code(&too_large), 4_031_700, "{}", show(&too_large));
}

/// What has no room is compiled for each document, and the command continues.
#[test]
fn constant_patterns_of_expressions_share_the_memory_of_a_command() {
    let mut fixture = Fixture::new();
    fixture.run(doc! { "insert": "c", "documents": array![doc! { "_id": 1, "s": "abcdefghijk" }] });
    let one = |at: i32| -> Value {
        let regex = format!(
            "^\\p{{L}}{{1,8}}{}",
            "k".repeat(usize::try_from(at % 2).unwrap())
        );
        doc! { "$regexMatch": doc! { "input": "$s", "regex": regex } }.into()
    };
    let all: Vec<Value> = (0..150).map(one).collect();
    let stage = doc! { "$project": doc! { "all": doc! { "$and": all } } };
    let command = doc! { "aggregate": "c", "pipeline": array![stage], "cursor": doc! {} };
    let found = fixture.all(command);
    assert_eq!(show(&found[0]), show(&doc! { "_id": 1, "all": false }));
}
