//! Every accumulator over the cases of the query reference, whole and merged from parts; kernels
//! compared with rows; bounded states compared with sorting.

use nilometer_bson::block::ColumnBlock;
use nilometer_bson::{Document, DocumentBuilder, Value, array, doc, order};

use super::*;
use crate::eval::ParseContext;

fn one(name: &str, value: impl Into<Value>) -> Document {
    let mut out = DocumentBuilder::new();
    out.append(name, value);
    out.finish()
}

fn parse(name: &str, argument: impl Into<Value>) -> Result<AccumulatorSpec> {
    AccumulatorSpec::parse(name, argument.into().as_ref(), &ParseContext::new())
}

fn run(spec: &AccumulatorSpec, docs: &[Document]) -> Result<AccumulatorState> {
    let ctx = EvalContext::default();
    let mut state = spec.new_state(&Value::Null, &ctx)?;
    for doc in docs {
        spec.add(&mut state, doc.as_ref(), &ctx)?;
    }
    Ok(state)
}

fn same(found: &Value, expected: &Value, context: &str) {
    let bytes = |value: &Value| one("v", value.clone());
    assert_eq!(
        bytes(found).as_bytes(),
        bytes(expected).as_bytes(),
        "{context}: {found:?} is not {expected:?}"
    );
}

/// Checks an accumulator over `{v: …}` documents, whole and merged from two parts split at every
/// position.
fn check(name: &str, argument: impl Into<Value>, values: Vec<Value>, expected: impl Into<Value>) {
    let argument = argument.into();
    let spec = parse(name, argument.clone()).unwrap_or_else(|e| panic!("{name}: {e}"));
    let expected = expected.into();
    let docs: Vec<Document> = values.into_iter().map(|v| one("v", v)).collect();
    let context = format!("{name} {argument:?} of {docs:?}");
    same(
        &spec
            .finish(run(&spec, &docs).unwrap(), &EvalContext::default())
            .unwrap(),
        &expected,
        &context,
    );
    for at in 0..=docs.len() {
        let (early, late) = docs.split_at(at);
        let mut state = run(&spec, early).unwrap();
        let later = run(&spec, late).unwrap();
        let _ = state.memory_bytes();
        spec.merge(&mut state, later).unwrap();
        same(
            &spec.finish(state, &EvalContext::default()).unwrap(),
            &expected,
            &format!("merged at {at}: {context}"),
        );
    }
}

fn decimal(text: &str) -> Value {
    Value::Decimal128(text.parse().unwrap())
}

fn mixed() -> Vec<Value> {
    vec![
        Value::Null,
        "x".into(),
        3.into(),
        Value::Missing,
        1.5.into(),
        array![100],
        Value::DateTime(9),
        true.into(),
    ]
}

#[test]
fn sums() {
    check("$sum", "$v", vec![], 0);
    check("$sum", "$v", mixed(), 4.5);
    check("$sum", "$v", vec![1.into(), 2.into()], 3);
    check("$sum", "$v", vec![1.into(), 2i64.into()], 3i64);
    check(
        "$sum",
        "$v",
        vec![i32::MAX.into(), 1.into()],
        2_147_483_648i64,
    );
    check(
        "$sum",
        "$v",
        vec![i32::MAX.into(), 1.into(), (-5).into()],
        2_147_483_643,
    );
    check(
        "$sum",
        "$v",
        vec![i64::MAX.into(), 1.into()],
        9.223_372_036_854_776e18,
    );
    check("$sum", "$v", vec![0.1.into(); 10], 1.0);
    check(
        "$sum",
        "$v",
        vec![1e16.into(), 1.0.into(), 1.0.into(), (-1e16).into()],
        2.0,
    );
    check("$sum", "$v", vec![1.into(), decimal("0.1")], decimal("1.1"));
    check("$sum", 1, vec![Value::Null, 5.into()], 2);
    check("$sum", array!["$v"], vec![5.into()], 5);
    check(
        "$sum",
        "$v",
        vec![f64::INFINITY.into(), 1.into()],
        f64::INFINITY,
    );
}

#[test]
fn averages() {
    check("$avg", "$v", vec![], Value::Null);
    check("$avg", "$v", vec![Value::Null, "x".into()], Value::Null);
    check("$avg", "$v", mixed(), 2.25);
    check("$avg", "$v", vec![1.into(), 2.into()], 1.5);
    check("$avg", "$v", vec![1.into(), decimal("2")], decimal("1.5"));
    check(
        "$avg",
        "$v",
        vec![i64::MAX.into(), i64::MAX.into()],
        9.223_372_036_854_776e18,
    );
}

#[test]
fn extremes() {
    check("$min", "$v", vec![], Value::Null);
    check("$max", "$v", vec![Value::Null, Value::Missing], Value::Null);
    check("$min", "$v", mixed(), 1.5);
    check("$max", "$v", mixed(), Value::DateTime(9));
    check("$min", "$v", vec![1.into(), 1.0.into()], 1);
    check("$max", "$v", vec![1.0.into(), 1.into()], 1.0);
    check("$min", "$v", vec![5.into(), f64::NAN.into()], f64::NAN);
    check("$max", "$v", vec!["a".into(), "b".into()], "b");
}

#[test]
fn order_of_input() {
    check("$first", "$v", vec![], Value::Null);
    check("$first", "$v", vec![Value::Missing, 1.into()], Value::Null);
    check("$first", "$v", vec![2.into(), 1.into()], 2);
    check("$last", "$v", vec![2.into(), 1.into()], 1);
    check("$last", "$v", vec![2.into(), Value::Missing], Value::Null);
    let several = |n: i32| doc! {"n": n, "input": "$v"};
    let values = || vec![3.into(), Value::Null, 1.into(), Value::Missing, 2.into()];
    check("$firstN", several(3), values(), array![3, Value::Null, 1]);
    check("$lastN", several(3), values(), array![1, Value::Null, 2]);
    check("$firstN", several(9), vec![1.into()], array![1]);
    check("$lastN", several(2), vec![], array![]);
    check("$minN", several(2), values(), array![1, 2]);
    check("$maxN", several(2), values(), array![3, 2]);
    check("$maxN", several(9), values(), array![3, 2, 1]);
    check(
        "$minN",
        several(2),
        vec![1.into(), 1.0.into(), 1i64.into()],
        array![1, 1.0],
    );
}

#[test]
fn collecting() {
    check(
        "$push",
        "$v",
        vec![1.into(), Value::Null, Value::Missing, array![2]],
        array![1, Value::Null, array![2]],
    );
    check(
        "$push",
        doc! {"a": "$v", "b": "$none"},
        vec![1.into()],
        array![doc! {"a": 1}],
    );
    check(
        "$addToSet",
        "$v",
        vec![
            1.into(),
            1.0.into(),
            "x".into(),
            Value::Null,
            Value::Missing,
            "x".into(),
            1i64.into(),
        ],
        array![1, "x", Value::Null],
    );
    check("$count", doc! {}, vec![1.into(), Value::Missing], 2);
    check("$count", doc! {}, vec![], 0);
    check(
        "$mergeObjects",
        "$v",
        vec![
            doc! {"a": 1, "b": doc! {"x": 1}}.into(),
            Value::Null,
            Value::Missing,
            doc! {"b": doc! {"y": 1}, "c": 3}.into(),
        ],
        doc! {"a": 1, "b": doc! {"y": 1}, "c": 3},
    );
    check("$mergeObjects", "$v", vec![], doc! {});
    let spec = parse("$mergeObjects", "$v").unwrap();
    assert_eq!(run(&spec, &[doc! {"v": 1}]).unwrap_err().code.0, 40400);
}

#[test]
fn deviations() {
    let values = || {
        vec![2, 4, 4, 4, 5, 5, 7, 9]
            .into_iter()
            .map(Value::from)
            .collect::<Vec<_>>()
    };
    let spec = parse("$stdDevPop", "$v").unwrap();
    let docs: Vec<Document> = values().into_iter().map(|v| one("v", v)).collect();
    let Value::Double(found) = spec
        .finish(run(&spec, &docs).unwrap(), &EvalContext::default())
        .unwrap()
    else {
        panic!();
    };
    assert!((found - 2.0).abs() < 1e-12);
    check("$stdDevPop", "$v", vec![], Value::Null);
    check("$stdDevSamp", "$v", vec![], Value::Null);
    check("$stdDevPop", "$v", vec![5.into(), "x".into()], 0.0);
    check("$stdDevSamp", "$v", vec![5.into()], Value::Null);
    check(
        "$stdDevSamp",
        "$v",
        vec![1.into(), 3.into()],
        std::f64::consts::SQRT_2,
    );
}

#[test]
fn ranked() {
    let docs = [
        doc! {"k": 2, "o": "b"},
        doc! {"k": 1, "o": "a"},
        doc! {"k": 3, "o": "c"},
        doc! {"k": 1},
        doc! {"o": "none"},
    ];
    let cases: Vec<(&str, Document, Value)> = vec![
        (
            "$top",
            doc! {"sortBy": doc! {"k": -1}, "output": "$o"},
            "c".into(),
        ),
        (
            "$bottom",
            doc! {"sortBy": doc! {"k": 1}, "output": "$o"},
            "c".into(),
        ),
        (
            "$top",
            doc! {"sortBy": doc! {"k": 1}, "output": "$o"},
            "none".into(),
        ),
        (
            "$topN",
            doc! {"n": 3, "sortBy": doc! {"k": 1}, "output": array!["$k", "$o"]},
            array![
                array![Value::Null, "none"],
                array![1, "a"],
                array![1, Value::Null]
            ],
        ),
        (
            "$bottomN",
            doc! {"n": 2, "sortBy": doc! {"k": 1}, "output": "$o"},
            array!["b", "c"],
        ),
        (
            "$bottomN",
            doc! {"n": 2, "sortBy": doc! {"k": -1}, "output": "$o"},
            array![Value::Null, "none"],
        ),
        (
            "$topN",
            doc! {"n": 99, "sortBy": doc! {"k": -1}, "output": "$k"},
            array![3, 2, 1, 1, Value::Null],
        ),
    ];
    for (name, argument, expected) in cases {
        let spec = parse(name, argument.clone()).unwrap();
        same(
            &spec
                .finish(run(&spec, &docs).unwrap(), &EvalContext::default())
                .unwrap(),
            &expected,
            &format!("{name} {argument:?}"),
        );
        for at in 0..docs.len() {
            let (early, late) = docs.split_at(at);
            let mut state = run(&spec, early).unwrap();
            spec.merge(&mut state, run(&spec, late).unwrap()).unwrap();
            same(
                &spec.finish(state, &EvalContext::default()).unwrap(),
                &expected,
                &format!("merged {name} {argument:?}"),
            );
        }
    }
    let spec = parse("$top", doc! {"sortBy": doc! {"k": 1}, "output": "$o"}).unwrap();
    same(
        &spec
            .finish(run(&spec, &[]).unwrap(), &EvalContext::default())
            .unwrap(),
        &Value::Null,
        "empty",
    );
}

#[test]
fn percentiles() {
    let argument = |p: Value| doc! {"input": "$v", "p": p, "method": "approximate"};
    let numbers = || (1..=10).rev().map(Value::from).collect::<Vec<_>>();
    check(
        "$percentile",
        argument(array![0.0, 0.5, 0.95, 1]),
        numbers(),
        array![1.0, 5.0, 10.0, 10.0],
    );
    check(
        "$percentile",
        argument(array![0.9]),
        vec![1.into(), 2.into()],
        array![2.0],
    );
    check(
        "$percentile",
        argument(array![0.1, 0.2]),
        vec!["x".into(), f64::NAN.into()],
        array![Value::Null, Value::Null],
    );
    let median = doc! {"input": "$v", "method": "approximate"};
    check("$median", median.clone(), vec![1.into(), 2.into()], 1.0);
    check("$median", median, vec![], Value::Null);
}

#[test]
fn n_may_use_the_group_key() {
    let spec = parse("$firstN", doc! {"n": "$limit", "input": "$v"}).unwrap();
    assert!(spec.n_depends_on_group());
    let ctx = EvalContext::default();
    let mut state = spec.new_state(&doc! {"limit": 2}.into(), &ctx).unwrap();
    for v in 0..5 {
        spec.add(&mut state, doc! {"v": v}.as_ref(), &ctx).unwrap();
    }
    same(
        &spec.finish(state, &EvalContext::default()).unwrap(),
        &array![0, 1],
        "n from the key",
    );
    assert_eq!(
        spec.new_state(&doc! {"limit": 0}.into(), &ctx)
            .unwrap_err()
            .code
            .0,
        5_787_908
    );
    assert_eq!(
        spec.new_state(&Value::Null, &ctx).unwrap_err().code.0,
        5_787_902
    );
}

#[test]
fn refused() {
    let top = |doc: Document| doc;
    for (name, argument, code) in [
        ("$foo", Value::from(1), 15952),
        ("$sum", array![1, 2], 40237),
        ("$push", array!["$a", "$b"], 40237),
        ("$count", 1.into(), 14),
        ("$count", doc! {"a": 1}.into(), 14),
        ("$accumulator", doc! {}.into(), 238),
        ("$firstN", 1.into(), 5_787_801),
        ("$lastN", 1.into(), 5_787_801),
        ("$minN", 1.into(), 5_787_900),
        ("$maxN", doc! {"n": 1, "input": 1, "x": 1}.into(), 5_787_901),
        ("$minN", doc! {"input": 1}.into(), 5_787_906),
        ("$minN", doc! {"n": 1}.into(), 5_787_907),
        ("$minN", doc! {"n": "x", "input": 1}.into(), 5_787_902),
        ("$minN", doc! {"n": 1.5, "input": 1}.into(), 5_787_903),
        ("$minN", doc! {"n": 0, "input": 1}.into(), 5_787_908),
        ("$minN", doc! {"n": -1, "input": 1}.into(), 5_787_908),
        (
            "$top",
            top(doc! {"n": 1, "output": 1, "sortBy": doc! {"a": 1}}).into(),
            5_788_002,
        ),
        (
            "$topN",
            top(doc! {"output": 1, "sortBy": doc! {"a": 1}}).into(),
            5_788_003,
        ),
        (
            "$top",
            top(doc! {"sortBy": doc! {"a": 1}}).into(),
            5_788_004,
        ),
        ("$top", top(doc! {"output": 1}).into(), 5_788_005),
        ("$top", top(doc! {"output": 1, "sortBy": 1}).into(), 10065),
        (
            "$top",
            top(doc! {"output": 1, "sortBy": doc! {"a": "x"}}).into(),
            15974,
        ),
        (
            "$top",
            top(doc! {"output": 1, "sortBy": doc! {"a": 2}}).into(),
            15975,
        ),
        ("$percentile", 1.into(), 7_429_703),
        ("$median", 1.into(), 7_436_100),
        (
            "$percentile",
            doc! {"input": 1, "p": array![0.5]}.into(),
            40414,
        ),
        (
            "$percentile",
            doc! {"input": 1, "p": array![0.5], "method": "x"}.into(),
            2,
        ),
        (
            "$percentile",
            doc! {"input": 1, "p": array![0.5], "method": 1}.into(),
            14,
        ),
        (
            "$percentile",
            doc! {"input": 1, "p": array![], "method": "approximate"}.into(),
            2,
        ),
        (
            "$percentile",
            doc! {"input": 1, "p": array![2], "method": "approximate"}.into(),
            2,
        ),
        (
            "$percentile",
            doc! {"input": 1, "p": array![f64::NAN], "method": "approximate"}.into(),
            2,
        ),
        (
            "$percentile",
            doc! {"input": 1, "p": "$a", "method": "approximate"}.into(),
            2,
        ),
        (
            "$median",
            doc! {"input": 1, "method": "approximate", "p": 1}.into(),
            40415,
        ),
    ] {
        let error = parse(name, argument.clone()).expect_err(&format!("{name} {argument:?}"));
        assert_eq!(error.code.0, code, "{name} {argument:?}: {error}");
    }
    let ctx = ParseContext::new();
    for (output, value, code) in [
        ("a.b", Value::from(doc! {"$sum": 1}), 40235),
        ("$a", doc! {"$sum": 1}.into(), 40236),
        ("a", 1.into(), 40234),
        ("a", doc! {}.into(), 40234),
        ("a", doc! {"sum": 1}.into(), 40234),
        ("a", doc! {"$sum": 1, "$avg": 1}.into(), 40238),
    ] {
        let error = AccumulatorSpec::parse_field(output, value.as_ref(), &ctx).unwrap_err();
        assert_eq!(error.code.0, code, "{output}: {value:?}");
    }
}

/// Random numbers, added as rows, as slices, repeated, and in merged parts.
#[test]
fn kernels_match_rows() {
    let mut seed = 0x1234_5678_9ABC_DEF1u64;
    let mut next = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for round in 0..200 {
        let count = (next() % 40) as usize;
        let doubles: Vec<f64> = (0..count)
            .map(|_| match next() % 6 {
                0 => f64::NAN,
                1 => -0.0,
                _ => (next() as i64 >> 20) as f64 / 1024.0,
            })
            .collect();
        let longs: Vec<i64> = (0..count).map(|_| next() as i64).collect();
        let ints: Vec<i32> = longs.iter().map(|v| *v as i32).collect();
        let shorts: Vec<i16> = longs.iter().map(|v| *v as i16).collect();
        for name in [
            "$sum",
            "$avg",
            "$min",
            "$max",
            "$stdDevPop",
            "$stdDevSamp",
            "$push",
            "$first",
            "$last",
            "$addToSet",
        ] {
            let spec = parse(name, "$v").unwrap();
            let ctx = EvalContext::default();
            let empty = || spec.new_state(&Value::Null, &ctx).unwrap();
            let (mut rows, mut slices) = (empty(), empty());
            for v in &ints {
                spec.add_value(&mut rows, ValueRef::Int32(*v)).unwrap();
            }
            for v in &doubles {
                spec.add_value(&mut rows, ValueRef::Double(*v)).unwrap();
            }
            for v in &longs {
                spec.add_value(&mut rows, ValueRef::Int64(*v)).unwrap();
            }
            for v in &shorts {
                let v = ValueRef::Int64((*v).into());
                spec.add_value(&mut rows, v).unwrap();
            }
            for v in &longs {
                spec.add_value(&mut rows, ValueRef::DateTime(*v)).unwrap();
            }
            for _ in 0..5 {
                spec.add_value(&mut rows, ValueRef::Int32(7)).unwrap();
            }
            spec.add_i32s(&mut slices, &ints).unwrap();
            spec.add_f64s(&mut slices, &doubles).unwrap();
            spec.add_i64s(&mut slices, &longs).unwrap();
            spec.add_short_i64s(&mut slices, &shorts).unwrap();
            spec.add_dates(&mut slices, &longs).unwrap();
            spec.add_repeated(&mut slices, ValueRef::Int32(7), 5)
                .unwrap();
            same(
                &spec.finish(slices, &EvalContext::default()).unwrap(),
                &spec.finish(rows, &EvalContext::default()).unwrap(),
                &format!("round {round} {name}"),
            );
        }
    }
}

/// Columns of all kinds, added by their totals if they have one.
#[test]
fn column_totals_match_their_columns() {
    let mut seed = 0x2545_F491_4F6C_DD1Du64;
    let mut next = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let mut stood = 0;
    for round in 0..500 {
        let mut columns: Vec<Vec<Value>> = Vec::new();
        for _ in 0..next() % 5 {
            let (kind, wild) = (next() % 7, next() % 8);
            let one = |next: &mut dyn FnMut() -> u64| -> Value {
                match (kind, next() % 40 * wild) {
                    (0, 1) => Value::Missing,
                    (1, 1) => "text".into(),
                    (2, 1) => f64::NAN.into(),
                    (2, 2) => f64::INFINITY.into(),
                    (0, _) => (next() as i32).into(),
                    (1, _) => ((next() >> 40) as i64).into(),
                    (2, _) => (next() as i64 as f64 / 1024.0).into(),
                    (3, _) => (next() as i64).into(),
                    (4, _) => ((next() as i16) as i64).into(),
                    (5, _) => Value::DateTime(5),
                    _ => 0.25.into(),
                }
            };
            let count = 1 + next() % 30;
            columns.push((0..count).map(|_| one(&mut next)).collect());
        }
        for name in ["$sum", "$avg", "$max", "$push"] {
            let spec = parse(name, "$v").unwrap();
            let ctx = EvalContext::default();
            let empty = || spec.new_state(&Value::Null, &ctx).unwrap();
            let (mut rows, mut totals) = (empty(), empty());
            for column in &columns {
                let block = ColumnBlock::from_values(column).shortened();
                let total = ColumnTotal::of(&block);
                if total.is_some_and(|total| spec.add_total(&mut totals, &total)) {
                    stood += 1;
                } else {
                    for value in column {
                        spec.add_value(&mut totals, value.as_ref()).unwrap();
                    }
                }
                for value in column {
                    spec.add_value(&mut rows, value.as_ref()).unwrap();
                }
            }
            let context = format!("round {round} {name} {columns:?}");
            same(
                &spec.finish(totals, &EvalContext::default()).unwrap(),
                &spec.finish(rows, &EvalContext::default()).unwrap(),
                &context,
            );
        }
    }
    assert!(stood > 500, "{stood}");
}

#[test]
fn bounded_states_match_sorting() {
    let mut seed = 99u64;
    let mut next = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % 50) as i32
    };
    let ctx = EvalContext::default();
    for n in [1, 2, 7, 40] {
        let values: Vec<i32> = (0..300).map(|_| next()).collect();
        let mut sorted = values.clone();
        sorted.sort_unstable();
        for (name, greatest) in [("$minN", false), ("$maxN", true)] {
            let spec = parse(name, doc! {"n": n, "input": "$v"}).unwrap();
            let mut state = spec.new_state(&Value::Null, &ctx).unwrap();
            spec.add_i32s(&mut state, &values).unwrap();
            let mut expected = sorted.clone();
            if greatest {
                expected.reverse();
            }
            expected.truncate(n as usize);
            let expected: Vec<Value> = expected.into_iter().map(Value::from).collect();
            assert!(order::equal(
                spec.finish(state, &EvalContext::default())
                    .unwrap()
                    .as_ref(),
                Value::from(expected).as_ref()
            ));
        }
        for name in ["$topN", "$bottomN"] {
            let argument = doc! {"n": n, "sortBy": doc! {"v": 1}, "output": "$v"};
            let spec = parse(name, argument).unwrap();
            let docs: Vec<Document> = values.iter().map(|v| doc! {"v": *v}).collect();
            let found = spec
                .finish(run(&spec, &docs).unwrap(), &EvalContext::default())
                .unwrap();
            let kept = match name {
                "$topN" => &sorted[..n as usize],
                _ => &sorted[sorted.len() - n as usize..],
            };
            let expected: Vec<Value> = kept.iter().copied().map(Value::from).collect();
            assert!(
                order::equal(found.as_ref(), Value::from(expected).as_ref()),
                "{name} {n}"
            );
        }
    }
}

#[test]
fn every_kind_has_a_row() {
    let mut names: Vec<&str> = ACCUMULATORS.iter().map(|row| row.name).collect();
    assert_eq!(names.len(), 25);
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 25);
}

#[test]
fn awkward_values_keep_their_order() {
    let values = nilometer_bson::testing::awkward_values();
    let ctx = EvalContext::default();
    let finish = |name: &str, values: &[&Value]| {
        let spec = parse(name, "$v").unwrap();
        let mut state = spec.new_state(&Value::Null, &ctx).unwrap();
        for value in values {
            spec.add_value(&mut state, value.as_ref()).unwrap();
        }
        spec.finish(state, &EvalContext::default()).unwrap()
    };
    for (a, left) in &values {
        for (b, right) in &values {
            if left.is_nullish() || right.is_nullish() {
                continue;
            }
            let (least, greatest) = match a.cmp(b) {
                std::cmp::Ordering::Greater => (right, left),
                std::cmp::Ordering::Less => (left, right),
                std::cmp::Ordering::Equal => (left, left),
            };
            same(&finish("$min", &[left, right]), least, "$min");
            same(&finish("$max", &[left, right]), greatest, "$max");
            let Value::Array(set) = finish("$addToSet", &[left, right]) else {
                panic!();
            };
            assert_eq!(
                set.as_ref().len(),
                if a == b { 1 } else { 2 },
                "{left:?} {right:?}"
            );
        }
    }
}

#[test]
fn arrays_are_concatenated_or_united() {
    let values = vec![
        array![1, 2, 2],
        Value::Missing,
        array![],
        array![2.0, array![1]],
    ];
    check(
        "$concatArrays",
        "$v",
        values.clone(),
        array![1, 2, 2, 2.0, array![1]],
    );
    check("$setUnion", "$v", values, array![1, 2, array![1]]);
    for name in ["$concatArrays", "$setUnion"] {
        check(name, "$v", vec![], array![]);
        check(name, "$v", vec![Value::Null], array![Value::Null]);
        let spec = parse(name, "$v").unwrap();
        assert_eq!(run(&spec, &[doc! {"v": 1}]).unwrap_err().code.0, 14);
        let mut state = spec
            .new_state(&Value::Null, &EvalContext::default())
            .unwrap();
        assert!(spec.add_i64s(&mut state, &[1, 2]).is_err());
    }
}

#[test]
fn states_are_small() {
    // A group keeps one for each accumulator.
    assert!(size_of::<AccumulatorState>() <= 40);
}
