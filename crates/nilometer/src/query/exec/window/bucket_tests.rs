//! Windows over bucket columns: the results equal those over rows and over plain documents.

use std::sync::Arc;

use nilometer_bson::testing::awkward_values;
use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, array, doc};

use crate::query::batch::Batch;
use crate::query::exec::ExecLimits;
use crate::query::exec::random_tests::{Draw, Drawn, difference, doubled, filter, show};
use crate::query::exec::testing::{
    MemoryBuckets, MemoryCollections, MemoryRecords, executor, operation, run, run_with, settings,
};
use crate::query::planner::rules::RuleSet;
use crate::query::planner::settings::PlanOptions;
use crate::query::source::Resolved;

/// Returns `{name: argument}`.
fn named(name: &str, argument: impl Into<Value>) -> Document {
    let mut out = DocumentBuilder::new();
    out.append(name, argument);
    out.finish()
}

fn bounds(draw: &mut Draw) -> Option<Document> {
    let documents = |low: Value, high: Value| Some(doc! {"documents": array![low, high]});
    match draw.below(9) {
        0 => None,
        1 => documents("unbounded".into(), "current".into()),
        2 => documents("current".into(), "unbounded".into()),
        3 => documents((-3).into(), (draw.below(3) as i32 - 1).into()),
        4 => documents(1.into(), 4.into()),
        5 => Some(doc! {"range": array![-10, 0], "unit": "minute"}),
        6 => Some(doc! {"range": array!["unbounded", 3], "unit": "hour"}),
        7 => Some(doc! {"range": array!["current", 1], "unit": "month"}),
        _ => documents((-9).into(), 0.into()),
    }
}

/// Draws a window function. Few inputs are errors; if they are, all are.
fn function(draw: &mut Draw) -> Document {
    let field = |draw: &mut Draw| -> Value {
        match draw.below(12) {
            0 => "$d".into(),
            1 => "$s".into(),
            2 => "$t".into(),
            3 => "$m.region".into(),
            4 => "$o.b".into(),
            5 => doubled().into(),
            6 => "$none".into(),
            7 => 1.into(),
            _ => "$i".into(),
        }
    };
    let number = |draw: &mut Draw| draw.pick(&["$i", "$i", "$i", "$none", "$d"]);
    let mut out = DocumentBuilder::new();
    match draw.below(20) {
        0 => out.append("$rank", doc! {}),
        1 => out.append("$denseRank", doc! {}),
        2 => out.append("$documentNumber", doc! {}),
        3 => {
            let by = draw.pick(&[-1, 1, 3, -40, 0]);
            let shifted = doc! {"output": field(draw), "by": by};
            out.append("$shift", shifted)
        }
        4 => out.append("$locf", field(draw)),
        5 => out.append("$linearFill", number(draw)),
        6 => {
            let input = draw.pick(&[
                doc! {"input": "$i", "N": 5},
                doc! {"input": "$d", "alpha": 0.25},
            ]);
            out.append("$expMovingAvg", input)
        }
        7 | 8 => {
            let name = draw.pick(&["$derivative", "$integral"]);
            out.append(name, doc! {"input": number(draw), "unit": "minute"});
            let window = bounds(draw).unwrap_or_else(|| doc! {"documents": array![-1, 0]});
            out.append("window", window)
        }
        9 => {
            out.append("$covariancePop", array!["$i", "$d"]);
            out.append("window", bounds(draw))
        }
        10 => {
            let top = doc! {"sortBy": doc! {"i": -1, "_id": 1}, "output": "$i"};
            out.append(draw.pick(&["$top", "$bottom"]), top);
            out.append("window", bounds(draw))
        }
        11 => {
            let name = draw.pick(&["$minN", "$maxN", "$firstN", "$lastN"]);
            out.append(name, doc! {"input": field(draw), "n": 2});
            out.append("window", bounds(draw))
        }
        12 => {
            out.append("$count", doc! {});
            out.append("window", bounds(draw))
        }
        13 => {
            let median = doc! {"input": "$i", "method": "approximate"};
            out.append("$median", median);
            out.append("window", bounds(draw))
        }
        at => {
            let name = match at {
                14 => "$sum",
                15 => "$avg",
                16 => "$min",
                17 => "$max",
                18 => draw.pick(&["$stdDevPop", "$stdDevSamp"]),
                _ => draw.pick(&["$first", "$last", "$push", "$addToSet"]),
            };
            out.append(name, field(draw));
            out.append("window", bounds(draw))
        }
    };
    out.finish()
}

fn windows(draw: &mut Draw) -> Value {
    let mut spec = DocumentBuilder::new();
    let partition = draw.pick(&["", "$m", "$m.host", "$m.host", "$m.region", "$s"]);
    if !partition.is_empty() {
        spec.append("partitionBy", partition);
    }
    let order = draw.pick(&[
        doc! {"t": 1},
        doc! {"t": 1},
        doc! {"t": 1},
        doc! {"t": -1},
        doc! {"t": 1, "_id": -1},
    ]);
    spec.append("sortBy", order);
    let mut output = DocumentBuilder::new();
    output.append("w", function(draw));
    for paths in [&["x", "i", "d"][..], &["y", "o.c", "t"]] {
        if draw.chance(30) {
            output.append(draw.pick(paths), function(draw));
        }
    }
    spec.append("output", output.finish());
    doc! {"$setWindowFields": spec.finish()}.into()
}

fn pipeline(draw: &mut Draw, epoch: i64, awkward: &[Value]) -> Value {
    let mut stages: Vec<Value> = Vec::new();
    match draw.below(6) {
        0 | 1 => stages.push(doc! {"$match": filter(draw, epoch, awkward)}.into()),
        2 => stages.push(doc! {"$project": doc! {"t": 1, "i": 1, "d": 1}}.into()),
        _ => {}
    }
    stages.push(windows(draw));
    match draw.below(8) {
        0 => stages.push(doc! {"$match": doc! {"w": doc! {"$gt": 2}}}.into()),
        1 => {
            let all = named("$push", draw.pick(&["$w", "$x", "$i"]));
            let sum = doc! {"$sum": "$w"};
            let key = draw.pick(&[Value::Null, "$m.host".into(), "$m".into()]);
            stages.push(doc! {"$group": doc! {"_id": key, "all": all, "sum": sum}}.into());
            stages.push(doc! {"$sort": doc! {"_id": 1}}.into());
        }
        2 => {
            stages.push(doc! {"$sort": doc! {"w": -1, "_id": 1}}.into());
            stages.push(doc! {"$limit": 7}.into());
        }
        3 => stages.push(doc! {"$project": doc! {"w": 1, "t": 1, "_id": 0}}.into()),
        4 => stages.push(windows(draw)),
        5 => stages.push(doc! {"$set": doc! {"z": doc! {"$ifNull": array!["$w", "$i"]}}}.into()),
        _ => {}
    }
    stages.into()
}

fn outcome(found: crate::Result<Vec<Document>>) -> Result<Vec<Document>, i32> {
    found.map_err(|error| error.code.0)
}

/// True if two results are equal; the bit pattern of a NaN in a sum depends on the order of addition and is ignored.
fn is_same(found: &Result<Vec<Document>, i32>, expected: &Result<Vec<Document>, i32>) -> bool {
    let shown = |rows: &[Document]| {
        let rows = rows
            .iter()
            .map(|row| show(ValueRef::Document(row.as_ref())));
        rows.collect::<Vec<_>>()
    };
    match (found, expected) {
        (Ok(found), Ok(expected)) => found == expected || shown(found) == shown(expected),
        _ => found == expected,
    }
}

/// Draws the stages of a pipeline over measurements from an epoch on.
type Write = fn(&mut Draw, i64, &[Value]) -> Value;

/// Compares execution with `rules` to row execution, and both to plain documents.
fn check(seed: u64, (rules, write): (&[&str], Write), awkward: &[Value], folder: &std::path::Path) {
    let Drawn {
        mut draw,
        epoch,
        plain,
        series,
        ..
    } = Drawn::new(seed, awkward);
    let draw = &mut draw;
    for _ in 0..8 {
        let stages = write(draw, epoch, awkward);
        let all = PlanOptions::default();
        let naive = PlanOptions {
            force_rows: true,
            no_rules: true,
            ..all
        };
        let on_rows = PlanOptions {
            disabled: RuleSet::named(rules.iter().copied()).unwrap(),
            ..all
        };
        let expected = outcome(run(&plain, &stages, naive));
        let spilling = |options| {
            let limits = ExecLimits {
                sort_bytes_max: 1 + seed * 97 % 20_000,
                gather_bytes_max: 30_000,
                ..ExecLimits::default()
            };
            let mut settings = settings(options, limits);
            settings.spill = Some(folder.into());
            outcome(run_with(&series, &stages, settings))
        };
        let ways = [
            ("blocks", outcome(run(&series, &stages, all))),
            ("rows", outcome(run(&series, &stages, on_rows))),
            ("documents", outcome(run(&plain, &stages, all))),
            ("unruled", outcome(run(&series, &stages, naive))),
            ("spilling", spilling(all)),
        ];
        for (way, found) in ways {
            // The fields that functions read must fit into memory.
            let is_too_much = way == "spilling" && matches!(found, Err(292 | 146));
            if !is_same(&found, &expected) && !is_too_much {
                let difference = difference(&found, &expected);
                panic!(
                    "seed {seed}, {way}, {}\n{difference}",
                    show(stages.as_ref())
                );
            }
        }
    }
}

fn check_all(rules: &[&str], write: Write) {
    let awkward: Vec<Value> = awkward_values()
        .into_iter()
        .map(|(_, value)| value)
        .filter(|value| !matches!(value, Value::Missing))
        .collect();
    let folder = tempfile::tempdir().unwrap();
    // Generated collections, eight pipelines over each.
    for seed in 1..nilometer_storage::testing::effort(8, 600, 10_000) {
        check(seed, (rules, write), &awkward, folder.path());
    }
}

#[test]
fn windows_over_blocks_are_windows_over_rows() {
    check_all(&["WindowsOverBlocks"], pipeline);
}

fn densify(draw: &mut Draw, epoch: i64, awkward: &[Value]) -> Value {
    let mut stages: Vec<Value> = Vec::new();
    if draw.chance(30) {
        stages.push(doc! {"$match": filter(draw, epoch, awkward)}.into());
    }
    let partitions = draw.pick(&[
        array!["m"],
        array!["m.host"],
        array!["m.host"],
        array!["m.host"],
        array!["m.host", "m.region"],
        array!["m.region"],
        array!["m.none"],
    ]);
    let at = |draw: &mut Draw| Value::DateTime(epoch + draw.below(20_000) as i64 * 1000);
    let bounds = match draw.below(3) {
        0 => "full".into(),
        1 => "partition".into(),
        _ => {
            let low = at(draw);
            let Value::DateTime(from) = low else {
                panic!("a date")
            };
            array![low, Value::DateTime(from + draw.below(9000) as i64 * 1000)]
        }
    };
    let range = draw.pick(&[(7, "minute"), (90, "second"), (1, "hour"), (1, "month")]);
    let range = doc! {"step": range.0, "unit": range.1, "bounds": bounds};
    let spec = doc! {"field": "t", "partitionByFields": partitions, "range": range};
    stages.push(doc! {"$densify": spec}.into());
    match draw.below(6) {
        0 | 1 => {
            let output = doc! {"i": doc! {"method": "locf"}, "s": doc! {"value": "none"}};
            let mut fill = DocumentBuilder::new();
            let partition = draw.pick(&["", "$m", "$m.host", "$m.host", "$m.region", "$m.none"]);
            if !partition.is_empty() {
                fill.append("partitionBy", partition);
            }
            fill.append("sortBy", doc! {"t": 1});
            fill.append("output", output);
            stages.push(doc! {"$fill": fill.finish()}.into());
        }
        2 => stages.push(doc! {"$match": doc! {"_id": doc! {"$exists": false}}}.into()),
        3 => stages.push(doc! {"$group": doc! {"_id": "$m", "n": doc! {"$sum": 1}}}.into()),
        _ => {}
    }
    if stages.len() > 1 {
        stages.push(doc! {"$sort": doc! {"_id": 1, "t": 1}}.into());
    }
    stages.into()
}

#[test]
fn densify_over_buckets_is_densify_over_rows() {
    check_all(&["DensifyOverBuckets", "WindowsBehindDensify"], densify);
}

/// Documents without the partition field and those with null form one partition, even with documents of `$densify` between them.
#[test]
fn partitions_of_null_are_one_behind_densify() {
    let values = [
        Value::Missing,
        Value::Null,
        Value::MinKey,
        Value::Undefined,
        1.into(),
        1.0.into(),
        "a".into(),
        doc! {"q": 1}.into(),
    ];
    let naive = PlanOptions {
        no_rules: true,
        ..PlanOptions::default()
    };
    for seed in 1..200 {
        let draw = &mut Draw(seed * 2 + 0x9E37_79B9_7F4A_7C15);
        let from = draw.below(4);
        let taken = &values[from..(from + 1 + draw.below(4)).min(values.len())];
        let of = |at: usize, draw: &mut Draw| {
            let mut out = DocumentBuilder::new();
            out.append("_id", at as i32);
            out.append("p", draw.pick(taken));
            out.append("t", draw.below(30) as i32);
            out.append("v", draw.pick(&[Value::Missing, 1.into(), 2.into()]));
            out.finish()
        };
        let list: Vec<Document> = (0..draw.below(20)).map(|at| of(at, draw)).collect();
        let plain = MemoryCollections::of(Resolved::Ordinary(Arc::new(MemoryRecords(list))));
        let path = draw.pick(&["p", "p", "p.q"]);
        let range = doc! {"step": 4, "bounds": draw.pick(&["full", "partition"])};
        let dense = doc! {"field": "t", "partitionByFields": array![path], "range": range};
        let output = doc! {"v": doc! {"method": "locf"}};
        let by = format!("${path}");
        let fill = doc! {"partitionBy": by, "sortBy": doc! {"t": 1}, "output": output};
        let stages = array![doc! {"$densify": dense}, doc! {"$fill": fill}];
        let found = outcome(run(&plain, &stages, PlanOptions::default()));
        let expected = outcome(run(&plain, &stages, naive));
        assert!(
            found == expected,
            "seed {seed}, {}\n{}",
            show(stages.as_ref()),
            difference(&found, &expected)
        );
    }
}

/// Measurements of three interleaved series, every ten seconds.
fn taking_turns(count: i64) -> Vec<Document> {
    (0..count)
        .map(|at| {
            let meta = doc! {"host": (at % 3) as i32};
            doc! {"t": Value::DateTime(at * 10_000), "m": meta, "_id": at, "i": at as i32 % 7}
        })
        .collect()
}

/// Returns the number of measurements returned in blocks and in rows by a pipeline over `list` in buckets of 50.
fn in_blocks_and_rows(list: &[Document], stages: &Value) -> (usize, usize) {
    let series = Resolved::TimeSeries(Arc::new(MemoryBuckets::new(list, 50)));
    let mut running = executor(&MemoryCollections::of(series), stages);
    let (mut blocks, mut rows) = (0, 0);
    while let Some(batch) = running.next(&operation()).unwrap() {
        match batch {
            Batch::Block(block) => blocks += block.selection.len(),
            Batch::Rows(list) => rows += list.len(),
        }
    }
    (blocks, rows)
}

#[test]
fn windows_give_blocks_on() {
    let sum = || doc! {"$sum": "$i", "window": doc! {"documents": array![-3, 0]}};
    let stage = |partition: &str, sort: Document, path: &str| -> Value {
        let mut spec = DocumentBuilder::new();
        if !partition.is_empty() {
            spec.append("partitionBy", partition);
        }
        spec.append("sortBy", sort);
        spec.append("output", named(path, sum()));
        doc! {"$setWindowFields": spec.finish()}.into()
    };
    let rising = || doc! {"t": 1};
    let in_order = taking_turns(1000);
    let mut disorder = in_order.clone();
    // Disorder within each hour, so that buckets overlap.
    disorder.chunks_mut(300).for_each(<[Document]>::reverse);
    for list in [&in_order, &disorder] {
        for (stages, are_blocks) in [
            (array![stage("$m.host", rising(), "x")], true),
            (array![stage("$m", doc! {"t": -1}, "x")], true),
            (array![stage("$m", rising(), "i")], true),
            // A second window stage over the output of the first sorts again, by rows.
            (
                array![stage("$m", rising(), "x"), stage("$m", rising(), "y")],
                false,
            ),
            // Results written into documents, or over the fields that sort them.
            (array![stage("$m", rising(), "x.y")], false),
            (array![stage("$m", rising(), "t")], false),
            (array![stage("$m", doc! {"t": 1, "_id": 1}, "x")], false),
            // Interleaved series, with `_id` shown or not.
            (array![stage("", rising(), "x")], false),
            (
                array![
                    stage("", rising(), "x"),
                    doc! {"$project": doc! {"x": 1, "_id": 0}}
                ],
                true,
            ),
        ] {
            let expected = if are_blocks { (1000, 0) } else { (0, 1000) };
            assert_eq!(in_blocks_and_rows(list, &stages), expected, "{stages:?}");
        }
    }
    let rows_left = in_blocks_and_rows(
        &in_order,
        &array![stage("$m", rising(), "x"), doc! {"$match": doc! {"x": 3}}],
    );
    assert!(rows_left.0 > 0 && rows_left.1 == 0);
}
