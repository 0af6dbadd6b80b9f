//! Random pipelines with enough memory, and the same ones forced to spill: the answers are equal.

use std::sync::Arc;

use nilometer_bson::order::compare;
use nilometer_bson::testing::awkward_values;
use nilometer_bson::{Document, DocumentBuilder, Value, array, doc};

use crate::error::ErrorCode;
use crate::eval::{Collation, memory_bytes};
use crate::query::exec::testing::{
    MemoryCollections, MemoryRecords, executor_with, operation, run_spilling, run_stages, run_with,
    settings,
};
use crate::query::exec::{BATCH_BYTES_MAX, ExecLimits};
use crate::query::planner::settings::PlanOptions;
use crate::query::source::Resolved;

/// A small random number generator: the same on every machine, for every seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

/// Documents of some hundred bytes with positions `t`, numbers `v`, keys `p` and any value in `a`.
fn documents(draw: &mut Draw, awkward: &[Value]) -> Vec<Document> {
    let count = 50 + draw.below(150);
    (0..count)
        .map(|at| {
            let mut out = DocumentBuilder::new();
            out.append("_id", at as i32);
            out.append("t", (at * 7919 % count) as i32 * 2);
            if draw.below(4) > 0 {
                let quarters = draw.below(80) as f64 / 4.0;
                out.append(
                    "v",
                    draw.pick(&[quarters.into(), Value::Int32(draw.0 as i32 % 9)]),
                );
            }
            out.append("p", draw.pick(&["a", "b", "c"]));
            out.append("a", draw.pick(awkward));
            out.append("pad", "x".repeat(200 + draw.below(300)));
            out.finish()
        })
        .collect()
}

fn accumulators(draw: &mut Draw, into: &mut DocumentBuilder) {
    for at in 0..1 + draw.below(4) {
        let n = |argument: &str| doc! {"input": argument, "n": 3};
        let ranked = doc! {"sortBy": doc! {"v": -1, "_id": 1}, "output": "$a"};
        let field = draw.pick(&["$v", "$a", "$t", "$$ROOT"]);
        let percentile = doc! {"input": "$v", "p": array![0.5], "method": "approximate"};
        let accumulator = match draw.below(14) {
            0 => doc! {"$sum": "$v"},
            1 => doc! {"$avg": "$v"},
            2 => doc! {"$min": field},
            3 => doc! {"$max": field},
            4 => doc! {"$first": field},
            5 => doc! {"$last": field},
            6 => doc! {"$push": field},
            7 => doc! {"$addToSet": "$a"},
            8 => doc! {"$count": doc! {}},
            9 => doc! {"$firstN": n("$a")},
            10 => doc! {"$lastN": n("$v")},
            11 => doc! {"$maxN": n(field)},
            12 => doc! {"$top": ranked},
            _ => doc! {"$percentile": percentile},
        };
        into.append(&format!("f{at}"), accumulator);
    }
}

fn window(draw: &mut Draw) -> Document {
    let bounds = draw.pick(&[
        doc! {"documents": array![-3, "current"]},
        doc! {"range": array![-10, 10]},
        doc! {},
    ]);
    let output = draw.pick(&[
        doc! {"o": doc! {"$sum": "$v", "window": bounds.clone()}},
        doc! {"o": doc! {"$rank": doc! {}}, "n": doc! {"$documentNumber": doc! {}}},
        doc! {"v": doc! {"$locf": "$v"}},
        doc! {"o": doc! {"$shift": doc! {"output": "$a", "by": -1}}},
        doc! {"o": doc! {"$max": "$a", "window": bounds}},
    ]);
    let mut spec = DocumentBuilder::new();
    if draw.below(2) == 0 {
        spec.append("partitionBy", "$p");
    }
    spec.append("sortBy", doc! {"t": 1})
        .append("output", output);
    spec.finish()
}

fn stage(draw: &mut Draw) -> Document {
    match draw.below(8) {
        0 | 1 => {
            let mut group = DocumentBuilder::new();
            group.append("_id", draw.pick(&["$p", "$a", "$v", "$none"]));
            accumulators(draw, &mut group);
            doc! {"$group": group.finish()}
        }
        2 | 3 => doc! {"$setWindowFields": window(draw)},
        4 => {
            let mut output = DocumentBuilder::new();
            accumulators(draw, &mut output);
            let buckets = 1 + draw.below(9) as i32;
            let by = draw.pick(&["$v", "$a", "$t"]);
            doc! {"$bucketAuto": doc! {"groupBy": by, "buckets": buckets, "output": output.finish()}}
        }
        5 => {
            let bounds: Value = draw.pick(&["full".into(), "partition".into(), array![-5, 50]]);
            let range = doc! {"step": 1 + draw.below(3) as i32, "bounds": bounds};
            doc! {"$densify": doc! {"field": "t", "partitionByFields": array!["p"], "range": range}}
        }
        6 => doc! {"$sort": doc! {"a": draw.pick(&[1, -1]), "_id": 1}},
        _ => {
            let output = doc! {"v": doc! {"method": "linear"}, "w": doc! {"value": "$v"}};
            doc! {"$fill": doc! {"sortBy": doc! {"t": 1}, "output": output}}
        }
    }
}

/// Sorts the rows of a group, which come in any order.
fn in_order(stage: &Document, mut rows: Vec<Document>) -> Vec<Document> {
    if stage.as_ref().contains("$group") {
        rows.sort_by(|a, b| compare(a.get("_id"), b.get("_id")));
    }
    rows
}

#[test]
fn what_must_write_to_disk_answers_the_same() {
    let awkward: Vec<Value> = awkward_values()
        .into_iter()
        .map(|(_, value)| value)
        .filter(|value| !matches!(value, Value::Missing | Value::Undefined))
        // Windows hold the fields they read in memory, so these must be much smaller than the document.
        .filter(|value| memory_bytes(value) < 200)
        .collect();
    let folder = tempfile::tempdir().unwrap();
    for seed in 1..nilometer_storage::testing::effort(40, 120, 120) {
        let draw = &mut Draw(seed * 2 + 0x9E37_79B9_7F4A_7C15);
        let documents = documents(draw, &awkward);
        let bytes: usize = documents.iter().map(|d| d.as_bytes().len()).sum();
        let limits = ExecLimits {
            group_bytes_max: 1 + draw.below(20_000) as u64,
            sort_bytes_max: 1 + draw.below(20_000) as u64,
            // The fields that windows read fit into memory, the documents do not.
            gather_bytes_max: bytes as u64 * 3 / 4,
            ..ExecLimits::default()
        };
        let stage = stage(draw);
        let facet =
            doc! {"$facet": doc! {"one": array![stage.clone()], "n": array![doc! {"$count": "n"}]}};
        for (stages, stage) in [
            (array![stage.clone()], &stage),
            (array![facet.clone()], &facet),
        ] {
            let roomy = run_stages(stages.clone(), documents.clone());
            let tight = run_spilling(&stages, documents.clone(), limits, folder.path());
            match (roomy, tight) {
                (Ok(roomy), Ok(tight)) if stage.as_ref().contains("$facet") => {
                    // Groups within a facet come in any order; their number is fixed.
                    let sizes = |rows: &[Document]| {
                        let arrays = rows.iter().flat_map(Document::iter);
                        arrays
                            .map(|e| e.value().as_array().unwrap().len())
                            .collect::<Vec<_>>()
                    };
                    assert_eq!(sizes(&roomy), sizes(&tight), "seed {seed} {stages:?}");
                }
                (Ok(roomy), Ok(tight)) => {
                    let (roomy, tight) = (in_order(stage, roomy), in_order(stage, tight));
                    assert!(!roomy.is_empty());
                    assert!(roomy == tight, "seed {seed} {stages:?}");
                }
                (roomy, tight) => {
                    let code = |r: crate::Result<Vec<Document>>| r.map_or_else(|e| e.code.0, |_| 0);
                    assert_eq!(code(roomy), code(tight), "seed {seed} {stages:?}");
                }
            }
        }
    }
}

#[test]
fn rows_that_several_accumulators_show_go_to_disk_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let documents: Vec<Document> = (0..1500)
        .map(|at| match at % 3 {
            0 => doc! {"_id": at, "k": at % 70, "v": at, "w": "x"},
            1 => doc! {"_id": at, "k": at % 70, "w": Value::Null},
            _ => doc! {"_id": at, "k": at % 70, "v": at},
        })
        .collect();
    let group = doc! {
        "_id": "$k",
        "v": doc! {"$first": "$v"},
        "n": doc! {"$sum": 1},
        "w": doc! {"$first": "$w"},
        "lv": doc! {"$last": "$v"},
        "lw": doc! {"$last": "$w"},
    };
    let stages = |sort: i32| {
        let sort = doc! {"$sort": doc! {"_id": sort}};
        array![
            sort,
            doc! {"$group": group.clone()},
            doc! {"$sort": doc! {"_id": 1}}
        ]
    };
    for direction in [1, -1] {
        let edge = |key: i32, newest: bool| {
            let of_key = (0..1500).filter(|at| at % 70 == key);
            let at = if newest { of_key.max() } else { of_key.min() };
            &documents[usize::try_from(at.unwrap()).unwrap()]
        };
        let limits = ExecLimits {
            group_bytes_max: 2000,
            ..ExecLimits::default()
        };
        let found = run_spilling(&stages(direction), documents.clone(), limits, folder.path());
        let found = found.unwrap();
        assert_eq!(found.len(), 70);
        for (key, row) in (0..).zip(&found) {
            let (first, last) = (edge(key, direction < 0), edge(key, direction > 0));
            let mut expected = DocumentBuilder::new();
            let show = |document: &Document, name: &str| match document.get(name).to_value() {
                Value::Missing => Value::Null,
                value => value,
            };
            expected.append("_id", key).append("v", show(first, "v"));
            expected.append("n", row.get("n").to_value());
            expected
                .append("w", show(first, "w"))
                .append("lv", show(last, "v"));
            expected.append("lw", show(last, "w"));
            assert_eq!(row, &expected.finish());
        }
    }
}

#[test]
fn many_groups_of_many_parts() {
    let folder = tempfile::tempdir().unwrap();
    let documents: Vec<Document> = (0..1500)
        .map(|at| doc! {"_id": at, "k": at % 700, "v": at})
        .collect();
    let group = doc! {"_id": "$k", "n": doc! {"$sum": 1}, "all": doc! {"$push": "$v"}};
    let stages = array![doc! {"$group": group}, doc! {"$sort": doc! {"_id": 1}}];
    let expected = run_stages(stages.clone(), documents.clone()).unwrap();
    assert_eq!(expected.len(), 700);
    for group_bytes_max in [1, 1000, 50_000] {
        let limits = ExecLimits {
            group_bytes_max,
            ..ExecLimits::default()
        };
        let found = run_spilling(&stages, documents.clone(), limits, folder.path()).unwrap();
        assert!(found == expected, "{group_bytes_max}");
    }
}

#[test]
fn groups_on_disk_follow_the_collation() {
    let folder = tempfile::tempdir().unwrap();
    let key = |at: i32| match at % 8 {
        0 => Value::from("a1"),
        1 => "A1".into(),
        2 => "a".repeat(at as usize % 3 + 1).into(),
        3 => doc! {"x": "b"}.into(),
        4 => doc! {"x": "B"}.into(),
        5 => array!["c", 1],
        6 => array!["C", 1.0],
        _ => Value::Double(f64::from(at % 5)),
    };
    let documents: Vec<Document> = (0..500).map(|at| doc! {"_id": at, "k": key(at)}).collect();
    let group = doc! {"_id": "$k", "first": doc! {"$first": "$_id"}, "all": doc! {"$push": "$_id"}};
    let stages = array![doc! {"$group": group}, doc! {"$sort": doc! {"first": 1}}];
    let collation = doc! {"locale": "en", "strength": 2};
    let collation = Collation::parse(collation.as_ref(), "").unwrap();
    let grouped = |group_bytes_max| {
        let source = Resolved::Ordinary(Arc::new(MemoryRecords(documents.clone())));
        let limits = ExecLimits {
            group_bytes_max,
            ..ExecLimits::default()
        };
        let mut settings = settings(PlanOptions::default(), limits);
        settings.spill = Some(folder.path().into());
        settings.plan.collator = collation.shared();
        run_with(&MemoryCollections::of(source), &stages, settings).unwrap()
    };
    let expected = grouped(u64::MAX);
    assert_eq!(expected.len(), 11);
    for group_bytes_max in [1, 1000, 5000] {
        assert!(grouped(group_bytes_max) == expected, "{group_bytes_max}");
    }
}

/// Eight megabytes of documents of four kilobytes each.
fn large_documents() -> Vec<Document> {
    let one = |at: i32| doc! {"_id": at, "text": format!("{at:4000}")};
    (0..2000).map(one).collect()
}

#[test]
fn what_is_held_is_counted_until_it_is_given_on() {
    let push = doc! {"$push": "$$ROOT"};
    let windows = doc! {"sortBy": doc! {"text": 1}, "output": doc! {"n": doc! {"$sum": 1}}};
    let facet = doc! {"$facet": doc! {"none": array![doc! {"$match": doc! {"_id": -1}}]}};
    for (stage, least) in [
        (doc! {"$sort": doc! {"text": 1}}, 7),
        (doc! {"$group": doc! {"_id": "$text"}}, 7),
        (doc! {"$group": doc! {"_id": "$_id", "all": push}}, 7),
        (doc! {"$sample": doc! {"size": 1900}}, 6),
        (doc! {"$setWindowFields": windows}, 7),
        (facet, 0),
    ] {
        let source = Resolved::Ordinary(Arc::new(MemoryRecords(large_documents())));
        let collections = MemoryCollections::of(source);
        let settings = settings(PlanOptions::default(), ExecLimits::default());
        let pool = Arc::clone(&settings.memory);
        let stages = array![stage.clone()];
        let mut executor = executor_with(&collections, &stages, settings).unwrap();
        let operation = operation();
        executor.next(&operation).unwrap().expect("a batch");
        let used = pool.used() >> 20;
        assert!((least..=18).contains(&used), "{used} MiB: {stage:?}");
        executor.drain(&operation).unwrap();
        assert!(pool.used() < 1 << 20, "{} bytes: {stage:?}", pool.used());
        drop(executor);
        assert_eq!(pool.used(), 0, "{stage:?}");
    }
    // The same with a limit, which keeps a heap of the best rows.
    let stages = array![doc! {"$sort": doc! {"text": 1}}, doc! {"$limit": 1900}];
    let source = Resolved::Ordinary(Arc::new(MemoryRecords(large_documents())));
    let settings = settings(PlanOptions::default(), ExecLimits::default());
    let pool = Arc::clone(&settings.memory);
    let mut executor = executor_with(&MemoryCollections::of(source), &stages, settings).unwrap();
    executor.next(&operation()).unwrap().expect("a batch");
    assert!(pool.used() > 6 << 20, "{}", pool.used());
}

#[test]
fn one_group_must_fit_what_others_leave_even_if_the_rest_is_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let all = doc! {"$push": "$text"};
    let stages = array![doc! {"$group": doc! {"_id": Value::Null, "all": all}}];
    for (most, fits) in [(u64::MAX, true), (40 << 20, true), (4 << 20, false)] {
        let source = Resolved::Ordinary(Arc::new(MemoryRecords(large_documents())));
        let limits = ExecLimits {
            group_bytes_max: 1 << 20,
            ..ExecLimits::default()
        };
        let mut settings = settings(PlanOptions::default(), limits);
        settings.spill = Some(folder.path().into());
        settings.memory.set_most(most);
        let found = run_with(&MemoryCollections::of(source), &stages, settings);
        match found {
            Ok(rows) => {
                assert!(fits);
                let all = rows[0].get("all").as_array().unwrap().len();
                assert_eq!(all, 2000);
            }
            Err(error) => {
                assert!(!fits, "{most}: {error:?}");
                let refused = ErrorCode::QueryExceededMemoryLimitNoDiskUseAllowed;
                assert_eq!(error.code, refused);
            }
        }
    }
}

#[test]
fn batches_are_bounded_in_bytes_too() {
    let unwound = array![
        doc! {"$sort": doc! {"text": 1}},
        doc! {"$lookup": doc! {"from": "c", "localField": "_id", "foreignField": "_id", "as": "same"}},
    ];
    for stages in [array![], unwound] {
        let documents: Vec<Document> = (0..30)
            .map(|at| doc! {"_id": at, "text": "x".repeat(300_000)})
            .collect();
        let source = Resolved::Ordinary(Arc::new(MemoryRecords(documents)));
        let collections = MemoryCollections::of(source);
        let settings = settings(PlanOptions::default(), ExecLimits::default());
        let mut executor = executor_with(&collections, &stages, settings).unwrap();
        let mut rows = 0;
        while let Some(batch) = executor.next_rows(&operation()).unwrap() {
            let bytes: usize = batch.iter().map(|row| row.as_bytes().len()).sum();
            assert!(bytes < BATCH_BYTES_MAX + 700_000, "{bytes}");
            rows += batch.len();
        }
        assert_eq!(rows, 30);
    }
}
