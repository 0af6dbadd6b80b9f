//! Window functions by table, and random windows compared with accumulating each from scratch.

use nilometer_bson::block::ColumnBlock;
use nilometer_bson::{Document, DocumentBuilder, Value, array, doc, order};

use super::*;
use crate::eval::ParseContext;

fn parse(spec: impl Into<Value>) -> Result<SetWindowFields> {
    SetWindowFields::parse(spec.into().as_ref(), &ParseContext::new())
}

fn one(name: &str, value: impl Into<Value>) -> Document {
    let mut out = DocumentBuilder::new();
    out.append(name, value);
    out.finish()
}

/// Returns the output `o` of a function over sorted documents.
fn run(output: Document, docs: &[Document]) -> Result<Vec<Value>> {
    let spec = parse(doc! {"sortBy": doc! {"t": 1}, "output": doc! {"o": output}})?;
    let out = spec.evaluate_partition(docs, &EvalContext::default())?;
    Ok(out.iter().map(|doc| doc.get("o").to_value()).collect())
}

fn numbered(values: &[Value]) -> Vec<Document> {
    (0..)
        .zip(values)
        .map(|(t, v)| doc! {"t": t, "v": v.clone()})
        .collect()
}

fn same(found: &[Value], expected: &[Value], context: &str) {
    assert_eq!(found.len(), expected.len(), "{context}");
    for (at, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!(
            close(a, b),
            "{context} at {at}: {a:?} is not {b:?} ({found:?})"
        );
    }
}

/// True if equal, doubles up to rounding.
fn close(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Double(a), Value::Double(b)) => {
            a == b
                || (a.is_nan() && b.is_nan())
                || (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1e-3)
        }
        _ => order::equal(a.as_ref(), b.as_ref()) && a.type_code() == b.type_code(),
    }
}

fn check(output: Document, docs: &[Document], expected: &[Value]) {
    let found = run(output.clone(), docs).unwrap_or_else(|e| panic!("{output:?}: {e}"));
    same(&found, expected, &format!("{output:?}"));
}

fn ints(values: &[i32]) -> Vec<Value> {
    values.iter().copied().map(Value::from).collect()
}

const NULL: Value = Value::Null;

#[test]
fn document_windows() {
    let docs = numbered(&ints(&[1, 2, 3, 4]));
    let window = |lower: Value, upper: Value| doc! {"documents": array![lower, upper]};
    let sum = |w: Document| doc! {"$sum": "$v", "window": w};
    check(doc! {"$sum": "$v"}, &docs, &ints(&[10, 10, 10, 10]));
    check(
        sum(window("unbounded".into(), "current".into())),
        &docs,
        &ints(&[1, 3, 6, 10]),
    );
    check(
        sum(window((-1).into(), 1.into())),
        &docs,
        &ints(&[3, 6, 9, 7]),
    );
    check(
        sum(window("current".into(), "unbounded".into())),
        &docs,
        &ints(&[10, 9, 7, 4]),
    );
    check(sum(window(1.into(), 2.into())), &docs, &ints(&[5, 7, 4, 0]));
    check(
        sum(window((-3).into(), (-2).into())),
        &docs,
        &ints(&[0, 0, 1, 3]),
    );
    check(sum(window(0.into(), 0.into())), &docs, &ints(&[1, 2, 3, 4]));
    check(
        sum(window(doc! {"$add": array![0, -1]}.into(), 0.into())),
        &docs,
        &ints(&[1, 3, 5, 7]),
    );
}

#[test]
fn empty_windows() {
    let docs = numbered(&ints(&[1]));
    let window = || doc! {"documents": array![5, 6]};
    let n = |name: &str| one(name, doc! {"n": 2, "input": "$v"});
    let cases: Vec<(Document, Value)> = vec![
        (doc! {"$sum": "$v"}, 0.into()),
        (doc! {"$count": doc! {}}, 0.into()),
        (doc! {"$push": "$v"}, array![]),
        (doc! {"$addToSet": "$v"}, array![]),
        (n("$firstN"), array![]),
        (n("$lastN"), array![]),
        (n("$minN"), array![]),
        (n("$maxN"), array![]),
        (doc! {"$avg": "$v"}, NULL),
        (doc! {"$min": "$v"}, NULL),
        (doc! {"$max": "$v"}, NULL),
        (doc! {"$first": "$v"}, NULL),
        (doc! {"$last": "$v"}, NULL),
        (doc! {"$stdDevPop": "$v"}, NULL),
        (doc! {"$stdDevSamp": "$v"}, NULL),
        (doc! {"$covariancePop": array!["$v", "$v"]}, NULL),
        (doc! {"$derivative": doc! {"input": "$v"}}, NULL),
        (doc! {"$integral": doc! {"input": "$v"}}, NULL),
        (
            doc! {"$top": doc! {"sortBy": doc! {"v": 1}, "output": "$v"}},
            NULL,
        ),
        (
            doc! {"$bottomN": doc! {"n": 1, "sortBy": doc! {"v": 1}, "output": "$v"}},
            array![],
        ),
        (
            doc! {"$median": doc! {"input": "$v", "method": "approximate"}},
            NULL,
        ),
        (
            doc! {"$percentile": doc! {"input": "$v", "p": array![0.1, 0.9], "method": "approximate"}},
            array![NULL, NULL],
        ),
    ];
    for (function, expected) in cases {
        let mut output = DocumentBuilder::new();
        for element in function.iter() {
            output.append_element(element);
        }
        output.append("window", window());
        check(output.finish(), &docs, &[expected]);
    }
}

#[test]
fn range_windows() {
    let docs = [
        doc! {"t": 1, "v": 1},
        doc! {"t": 2, "v": 2},
        doc! {"t": 2, "v": 3},
        doc! {"t": 5.5, "v": 4},
    ];
    let sum = |lower: Value, upper: Value| {
        doc! {"$sum": "$v", "window": doc! {"range": array![lower, upper]}}
    };
    check(sum((-1).into(), 0.into()), &docs, &ints(&[1, 6, 6, 4]));
    check(
        sum((-1).into(), "current".into()),
        &docs,
        &ints(&[1, 3, 6, 4]),
    );
    check(
        sum("current".into(), "current".into()),
        &docs,
        &ints(&[1, 2, 3, 4]),
    );
    check(
        sum(0.into(), "unbounded".into()),
        &docs,
        &ints(&[10, 9, 9, 4]),
    );
    check(sum(1.into(), 3.5.into()), &docs, &ints(&[5, 4, 4, 0]));
    let date = |ms: i64| Value::DateTime(ms);
    let day = 86_400_000;
    let docs = [
        doc! {"t": date(0), "v": 1},
        doc! {"t": date(30 * day), "v": 2},
        doc! {"t": date(58 * day), "v": 4},
    ];
    let within = |unit: &str, lower: i32| {
        doc! {"$sum": "$v", "window": doc! {"range": array![lower, 0], "unit": unit}}
    };
    check(within("day", -28), &docs, &ints(&[1, 2, 6]));
    // 1970-02-28 minus a month is 1970-01-28: the 31st is within.
    check(within("month", -1), &docs, &ints(&[1, 3, 6]));
    check(within("second", -1), &docs, &ints(&[1, 2, 4]));
    let error = run(sum(0.into(), 1.into()), &docs).unwrap_err();
    assert_eq!(error.code.0, 5_429_414);
    let error = run(within("day", -1), &numbered(&ints(&[1]))).unwrap_err();
    assert_eq!(error.code.0, 5_429_513);
    let error = run(within("day", -1), &[doc! {"v": 1}]).unwrap_err();
    assert_eq!(error.code.0, 5_429_513);
}

#[test]
fn places() {
    let docs = [
        doc! {"t": NULL},
        doc! {},
        doc! {"t": 3},
        doc! {"t": 3.0},
        doc! {"t": 9},
    ];
    check(doc! {"$rank": doc! {}}, &docs, &ints(&[1, 1, 3, 3, 5]));
    check(doc! {"$denseRank": doc! {}}, &docs, &ints(&[1, 1, 2, 2, 3]));
    check(
        doc! {"$documentNumber": doc! {}},
        &docs,
        &ints(&[1, 2, 3, 4, 5]),
    );
}

#[test]
fn neighbours() {
    let docs = [
        doc! {"t": 1, "v": 10},
        doc! {"t": 2},
        doc! {"t": 3, "v": 30},
    ];
    let shift = |by: i32| doc! {"$shift": doc! {"output": "$v", "by": by, "default": "none"}};
    check(shift(1), &docs, &["none".into(), 30.into(), "none".into()]);
    check(shift(-1), &docs, &["none".into(), 10.into(), "none".into()]);
    check(shift(0), &docs, &[10.into(), "none".into(), 30.into()]);
    check(
        doc! {"$shift": doc! {"output": "$v", "by": 1.0}},
        &docs,
        &[NULL, 30.into(), NULL],
    );
    let docs = numbered(&[NULL, 5.into(), Value::Missing, "x".into(), NULL]);
    check(
        doc! {"$locf": "$v"},
        &docs,
        &[NULL, 5.into(), 5.into(), "x".into(), "x".into()],
    );
}

#[test]
fn interpolation() {
    let docs = [
        doc! {"t": 0, "v": NULL},
        doc! {"t": 1, "v": 10},
        doc! {"t": 2},
        doc! {"t": 4, "v": NULL},
        doc! {"t": 5, "v": 30},
        doc! {"t": 6, "v": NULL},
    ];
    check(
        doc! {"$linearFill": "$v"},
        &docs,
        &[NULL, 10.into(), 15.0.into(), 25.0.into(), 30.into(), NULL],
    );
    for (docs, code) in [
        (
            vec![doc! {"t": 1, "v": 1}, doc! {"t": 1, "v": 2}],
            6_050_106,
        ),
        (vec![doc! {"t": 1, "v": "x"}], 14),
        (vec![doc! {"t": "x", "v": 1}], 14),
        (vec![doc! {"v": 1}], 14),
        (
            vec![
                doc! {"t": 1, "v": 1},
                doc! {"t": Value::DateTime(1), "v": 2},
            ],
            14,
        ),
    ] {
        let error = run(doc! {"$linearFill": "$v"}, &docs).unwrap_err();
        assert_eq!(error.code.0, code, "{docs:?}");
    }
}

#[test]
fn calculus() {
    let docs = [
        doc! {"t": 0, "v": 0},
        doc! {"t": 2, "v": 10},
        doc! {"t": 4, "v": 10},
        doc! {"t": 4, "v": 20},
    ];
    let pair = || doc! {"documents": array![-1, 0]};
    check(
        doc! {"$derivative": doc! {"input": "$v"}, "window": pair()},
        &docs,
        &[NULL, 5.0.into(), 0.0.into(), NULL],
    );
    check(
        doc! {"$integral": doc! {"input": "$v"}, "window": doc! {"documents": array!["unbounded", "current"]}},
        &docs,
        &[0.into(), 10.0.into(), 30.0.into(), 30.0.into()],
    );
    check(
        doc! {"$integral": doc! {"input": "$v"}},
        &docs,
        &vec![30.0.into(); 4],
    );
    let dates = [
        doc! {"t": Value::DateTime(0), "v": 0},
        doc! {"t": Value::DateTime(30_000), "v": 10},
    ];
    let with_unit = |unit: &str| doc! {"input": "$v", "unit": unit};
    check(
        doc! {"$derivative": with_unit("minute"), "window": pair()},
        &dates,
        &[NULL, 20.0.into()],
    );
    check(
        doc! {"$integral": with_unit("second")},
        &dates,
        &[150.0.into(), 150.0.into()],
    );
    for (output, docs, code) in [
        (
            doc! {"$derivative": with_unit("second"), "window": pair()},
            &docs[..],
            5_624_900,
        ),
        (
            doc! {"$derivative": doc! {"input": "$v"}, "window": pair()},
            &dates[..],
            5_624_901,
        ),
        (
            doc! {"$integral": with_unit("second")},
            &docs[..],
            5_423_901,
        ),
        (
            doc! {"$integral": doc! {"input": "$v"}},
            &dates[..],
            5_423_902,
        ),
    ] {
        assert_eq!(
            run(output.clone(), docs).unwrap_err().code.0,
            code,
            "{output:?}"
        );
    }
}

#[test]
fn moving_averages_and_covariance() {
    let docs = numbered(&[NULL, 13.0.into(), 15.4.into(), "x".into(), 12.0.into()]);
    check(
        doc! {"$expMovingAvg": doc! {"input": "$v", "N": 2}},
        &docs,
        &[
            NULL,
            13.0.into(),
            14.6.into(),
            14.6.into(),
            12.866_666_666_666_667.into(),
        ],
    );
    check(
        doc! {"$expMovingAvg": doc! {"input": "$v", "alpha": 0.75}},
        &docs,
        &[NULL, 13.0.into(), 14.8.into(), 14.8.into(), 12.7.into()],
    );
    let docs = [
        doc! {"x": 0, "y": 0},
        doc! {"x": 2, "y": 4},
        doc! {"x": "no", "y": 1},
    ];
    let window = || doc! {"documents": array!["unbounded", "current"]};
    check(
        doc! {"$covariancePop": array!["$x", "$y"], "window": window()},
        &docs,
        &[0.0.into(), 2.0.into(), 2.0.into()],
    );
    check(
        doc! {"$covarianceSamp": array!["$x", "$y"], "window": window()},
        &docs,
        &[NULL, 4.0.into(), 4.0.into()],
    );
}

#[test]
fn partitions_and_outputs() {
    let spec = parse(doc! {
        "partitionBy": "$p", "sortBy": doc! {"t": 1},
        "output": doc! {"a.b": doc! {"$sum": "$v"}, "v": doc! {"$documentNumber": doc! {}}},
    })
    .unwrap();
    let ctx = EvalContext::default();
    assert!(spec.partition_key(&doc! {}, &ctx).unwrap().is_nullish());
    assert_eq!(
        spec.partition_key(&doc! {"p": array![]}, &ctx)
            .unwrap_err()
            .code
            .0,
        14
    );
    let docs = [
        doc! {"v": 5, "a": array![doc! {}, 1]},
        doc! {"v": 6, "a": doc! {"b": 1, "c": 2}},
    ];
    let out = spec.evaluate_partition(&docs, &ctx).unwrap();
    // Functions see the input documents.
    assert_eq!(
        out[0],
        doc! {"v": 1, "a": array![doc! {"b": 11}, doc! {"b": 11}]}
    );
    assert_eq!(out[1], doc! {"v": 2, "a": doc! {"b": 11, "c": 2}});
    let constant = parse(doc! {"partitionBy": 5, "output": doc! {}}).unwrap();
    assert!(constant.partition_by().is_none());
}

#[test]
fn refused() {
    let output = |spec: Document| doc! {"sortBy": doc! {"t": 1}, "output": doc! {"o": spec}};
    let unsorted = |spec: Document| doc! {"output": doc! {"o": spec}};
    let sum = |window: Document| doc! {"$sum": "$v", "window": window};
    for (spec, code) in [
        (Value::from(1), 9),
        (doc! {"sortBy": 1, "output": doc! {}}.into(), 14),
        (doc! {"output": 1}.into(), 14),
        (doc! {"output": doc! {}, "x": 1}.into(), 40415),
        (doc! {}.into(), 40414),
        (doc! {"partitionBy": doc! {"$nope": 1}, "output": doc! {}}.into(), 168),
        (output(doc! {}).into(), 9),
        (output(doc! {"sum": 1}).into(), 9),
        (output(doc! {"$nope": 1}).into(), 9),
        (output(doc! {"$mergeObjects": 1}).into(), 9),
        (output(doc! {"$sum": 1, "$avg": 1}).into(), 9),
        (output(doc! {"$sum": 1, "x": 1}).into(), 9),
        (doc! {"output": doc! {"o": 1}}.into(), 9),
        (
            doc! {"output": doc! {"a": doc! {"$sum": 1}, "a.b": doc! {"$sum": 1}}}.into(),
            6_307_900,
        ),
        (output(sum(doc! {"documents": array![1, 0]})).into(), 5_339_900),
        (output(sum(doc! {"documents": array!["current", -1]})).into(), 5_339_900),
        (output(sum(doc! {"range": array![1, "current"]})).into(), 5_339_900),
        (unsorted(sum(doc! {"documents": array![0, 1]})).into(), 5_339_901),
        (unsorted(sum(doc! {"range": array![0, 1]})).into(), 5_339_902),
        (
            doc! {"sortBy": doc! {"t": -1}, "output": doc! {"o": sum(doc! {"range": array![0, 1]})}}.into(),
            5_339_902,
        ),
        (
            doc! {"sortBy": doc! {"t": 1, "u": 1}, "output": doc! {"o": sum(doc! {"range": array![0, 1]})}}
                .into(),
            5_339_902,
        ),
        (output(sum(doc! {"documents": array![0]})).into(), 9),
        (output(sum(doc! {"documents": array![0, 1.5]})).into(), 9),
        (output(sum(doc! {"documents": array!["x", 1]})).into(), 9),
        (output(sum(doc! {"documents": array!["$v", 1]})).into(), 9),
        (output(sum(doc! {"range": array![0, 1.5], "unit": "day"})).into(), 9),
        (output(sum(doc! {"range": array![0, 1], "unit": "eon"})).into(), 9),
        (output(sum(doc! {"documents": array![0, 1], "unit": "day"})).into(), 9),
        (output(sum(doc! {"documents": array![0, 1], "range": array![0, 1]})).into(), 9),
        (output(sum(doc! {"x": 1})).into(), 9),
        (output(doc! {"$derivative": doc! {"input": 1}}).into(), 9),
        (
            output(doc! {"$derivative": doc! {"input": 1, "unit": "month"}, "window": doc! {}}).into(),
            5_490_704,
        ),
        (output(doc! {"$integral": doc! {"input": 1, "unit": "year"}}).into(), 5_490_710),
        (output(doc! {"$rank": doc! {}, "window": doc! {}}).into(), 5_371_601),
        (unsorted(doc! {"$denseRank": doc! {}}).into(), 5_371_602),
        (output(doc! {"$documentNumber": 1}).into(), 5_371_603),
        (output(doc! {"$shift": doc! {"output": 1}}).into(), 9),
        (output(doc! {"$shift": doc! {"by": 1}}).into(), 9),
        (output(doc! {"$shift": doc! {"output": 1, "by": "x"}}).into(), 9),
        (output(doc! {"$shift": doc! {"output": 1, "by": 1.5}}).into(), 9),
        (output(doc! {"$shift": doc! {"output": 1, "by": 1, "default": "$v"}}).into(), 9),
        (unsorted(doc! {"$shift": doc! {"output": 1, "by": 1}}).into(), 9),
        (output(doc! {"$expMovingAvg": doc! {"input": 1}}).into(), 9),
        (output(doc! {"$expMovingAvg": doc! {"input": 1, "N": 1, "alpha": 0.5}}).into(), 9),
        (output(doc! {"$expMovingAvg": doc! {"input": 1, "N": 0}}).into(), 9),
        (output(doc! {"$expMovingAvg": doc! {"input": 1, "alpha": 1}}).into(), 9),
        (unsorted(doc! {"$expMovingAvg": doc! {"input": 1, "N": 1}}).into(), 9),
        (output(doc! {"$locf": 1, "window": doc! {}}).into(), 9),
        (output(doc! {"$linearFill": 1, "window": doc! {}}).into(), 9),
        (unsorted(doc! {"$linearFill": 1}).into(), 605_001),
        (output(doc! {"$minN": 1}).into(), 5_787_900),
        (output(doc! {"$firstN": 1}).into(), 5_787_801),
        (output(doc! {"$percentile": 1}).into(), 7_429_703),
        (output(doc! {"$median": 1}).into(), 7_436_100),
    ] {
        let error = parse(spec.clone()).expect_err(&format!("{spec:?}"));
        assert_eq!(error.code.0, code, "{spec:?}: {error}");
    }
}

/// Compares every accumulator in random windows with the accumulator over the window's documents.
#[test]
fn sliding_matches_accumulating_from_scratch() {
    let mut seed = 0xABCD_EF01_2345u64;
    let mut below = |bound: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % bound
    };
    let ranked = |n: bool| {
        let mut argument = DocumentBuilder::new();
        argument.append("sortBy", doc! {"v": 1});
        argument.append("output", array!["$v", "$t"]);
        if n {
            argument.append("n", 2);
        }
        Value::from(argument.finish())
    };
    let several = || Value::from(doc! {"n": 2, "input": "$v"});
    let functions: Vec<(&str, Value)> = vec![
        ("$sum", "$v".into()),
        ("$avg", "$v".into()),
        ("$min", "$v".into()),
        ("$max", "$v".into()),
        ("$stdDevPop", "$v".into()),
        ("$stdDevSamp", "$v".into()),
        ("$push", "$v".into()),
        ("$addToSet", "$v".into()),
        ("$first", "$v".into()),
        ("$last", "$v".into()),
        ("$count", doc! {}.into()),
        ("$firstN", several()),
        ("$lastN", several()),
        ("$minN", several()),
        ("$maxN", several()),
        ("$top", ranked(false)),
        ("$bottom", ranked(false)),
        ("$topN", ranked(true)),
        ("$bottomN", ranked(true)),
        (
            "$median",
            doc! {"input": "$v", "method": "approximate"}.into(),
        ),
    ];
    let ctx = EvalContext::default();
    for round in 0..60 {
        let count = below(14) as usize;
        let mut t = 0;
        let docs: Vec<Document> = (0..count)
            .map(|_| {
                t += below(3) as i32;
                let v: Value = match below(7) {
                    0 => Value::Missing,
                    1 => NULL,
                    2 => "s".into(),
                    3 => (below(1000) as f64 / 8.0).into(),
                    _ => (below(20) as i32).into(),
                };
                doc! {"t": t, "v": v}
            })
            .collect();
        let lower = below(7) as i32 - 3;
        let upper = lower + below(4) as i32;
        let pair = match below(4) {
            0 => array!["unbounded", upper],
            1 => array![lower, "unbounded"],
            _ => array![lower, upper],
        };
        let kind = if below(2) == 0 { "documents" } else { "range" };
        let bounds = one(kind, pair);
        for (name, argument) in &functions {
            let mut output = DocumentBuilder::new();
            output.append(name, argument.clone());
            output.append("window", bounds.clone());
            let output = output.finish();
            let spec = parse(doc! {"sortBy": doc! {"t": 1}, "output": doc! {"o": output.clone()}})
                .unwrap();
            let found = run(output.clone(), &docs).unwrap();
            let sort_values: Vec<Value> = docs.iter().map(|d| d.get("t").to_value()).collect();
            let sort_values = ColumnBlock::from_values(&sort_values);
            let accumulator =
                AccumulatorSpec::parse(name, argument.as_ref(), &ParseContext::new()).unwrap();
            let expected: Vec<Value> = spec.outputs()[0]
                .bounds
                .frames(docs.len(), &sort_values)
                .unwrap()
                .into_iter()
                .map(|frame| {
                    let mut state = accumulator.new_state(&NULL, &ctx).unwrap();
                    for doc in &docs[frame] {
                        accumulator.add(&mut state, doc.as_ref(), &ctx).unwrap();
                    }
                    accumulator.finish(state, &ctx).unwrap()
                })
                .collect();
            same(
                &found,
                &expected,
                &format!("round {round} {output:?} of {docs:?}"),
            );
        }
    }
}

/// Compares frames with their definition.
#[test]
fn frames_match_their_definition() {
    let values = [1, 1, 2, 4, 4, 4, 7, 9];
    let sort_values = ColumnBlock::from_values(&ints(&values));
    let none = ColumnBlock::missing(0);
    for lower in -4i32..4 {
        for upper in lower..5 {
            let by_range = Bounds::Range(
                Bound::At(Number::Int(lower)),
                Bound::At(Number::Int(upper)),
                None,
            );
            let by_position = Bounds::Documents(Bound::At(lower.into()), Bound::At(upper.into()));
            let ranges = by_range.frames(values.len(), &sort_values).unwrap();
            let positions = by_position.frames(values.len(), &none).unwrap();
            for at in 0..values.len() {
                let expected: Vec<usize> = (0..values.len())
                    .filter(|other| {
                        (values[at] + lower..=values[at] + upper).contains(&values[*other])
                    })
                    .collect();
                assert_eq!(ranges[at].clone().collect::<Vec<_>>(), expected);
                let expected: Vec<usize> = (0..values.len())
                    .filter(|other| {
                        let apart = *other as i32 - at as i32;
                        (lower..=upper).contains(&apart)
                    })
                    .collect();
                assert_eq!(positions[at].clone().collect::<Vec<_>>(), expected);
            }
        }
    }
}

#[test]
fn values_that_left_the_window_leave_no_rounding_error() {
    let docs = numbered(&[
        1e300.into(),
        1e-20.into(),
        f64::NAN.into(),
        2.into(),
        3.into(),
    ]);
    check(
        doc! {"$sum": "$v", "window": doc! {"documents": array![0, 1]}},
        &docs,
        &[
            1e300.into(),
            f64::NAN.into(),
            f64::NAN.into(),
            5.into(),
            3.into(),
        ],
    );
}
