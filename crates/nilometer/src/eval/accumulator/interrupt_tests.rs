//! Each accumulator on its worst input: adding values, or finishing, ends at the first interrupt.

use nilometer_bson::{Document, Value, doc};

use super::{ACCUMULATORS, AccumulatorKind as Kind, AccumulatorSpec};
use crate::error::{ErrorCode, Result};
use crate::eval::limits::testing::InterruptAfter;
use crate::eval::{EvalContext, EvaluationCounters, EvaluationLimits, ParseContext};

/// Documents added at most: a check must come long before.
const DOCUMENTS: i32 = 20_000;

fn spec(name: &str, kind: Kind) -> AccumulatorSpec {
    let ranked = |n: Option<i32>| {
        let mut out = nilometer_bson::DocumentBuilder::new();
        out.append("sortBy", doc! { "v": 1 }).append("output", "$v");
        if let Some(n) = n {
            out.append("n", n);
        }
        Value::from(out.finish())
    };
    let argument: Value = match kind {
        Kind::Count => doc! {}.into(),
        Kind::FirstN | Kind::LastN | Kind::MinN | Kind::MaxN => {
            doc! { "input": "$v", "n": DOCUMENTS }.into()
        }
        Kind::Top | Kind::Bottom => ranked(None),
        Kind::TopN | Kind::BottomN => ranked(Some(DOCUMENTS)),
        Kind::Percentile => {
            doc! { "input": "$v", "p": nilometer_bson::array![0.5], "method": "approximate" }.into()
        }
        Kind::Median => doc! { "input": "$v", "method": "approximate" }.into(),
        Kind::MergeObjects => "$object".into(),
        Kind::ConcatArrays | Kind::SetUnion => "$list".into(),
        _ => "$v".into(),
    };
    AccumulatorSpec::parse(name, argument.as_ref(), &ParseContext::new()).unwrap()
}

fn document(at: i32) -> Document {
    let v = (at * 7919) % 100_003;
    doc! { "v": v, "object": doc! { "a": v }, "list": nilometer_bson::array![v] }
}

fn add_all(spec: &AccumulatorSpec, context: &EvalContext<'_>) -> Result<super::AccumulatorState> {
    let mut state = spec.new_state(&Value::Null, context)?;
    for at in 0..DOCUMENTS {
        spec.add(&mut state, document(at).as_ref(), context)?;
    }
    Ok(state)
}

#[test]
fn every_accumulator_is_interrupted_while_values_are_added() {
    for row in ACCUMULATORS {
        // The count of a group grows by one without looking at the document.
        let Some(kind) = row.kind.filter(|kind| *kind != Kind::Count) else {
            continue;
        };
        let interrupt = InterruptAfter::new(0);
        let counters = EvaluationCounters::default();
        let context = EvalContext {
            limits: Some(EvaluationLimits {
                counters: &counters,
                interrupt: &interrupt,
                clock: None,
            }),
            ..EvalContext::default()
        };
        match add_all(&spec(row.name, kind), &context) {
            Ok(_) => panic!("{} never looked for an interrupt", row.name),
            Err(error) => assert_eq!(error.code, ErrorCode::Interrupted, "{}", row.name),
        }
    }
}

#[test]
fn results_that_are_sorted_are_interrupted() {
    for row in ACCUMULATORS {
        let sorts = |kind: &Kind| {
            matches!(
                kind,
                Kind::TopN | Kind::BottomN | Kind::Percentile | Kind::Median
            )
        };
        let Some(kind) = row.kind.filter(sorts) else {
            continue;
        };
        let spec = spec(row.name, kind);
        let state = add_all(&spec, &EvalContext::default()).unwrap();
        let interrupt = InterruptAfter::new(0);
        let counters = EvaluationCounters::default();
        let context = EvalContext {
            limits: Some(EvaluationLimits {
                counters: &counters,
                interrupt: &interrupt,
                clock: None,
            }),
            ..EvalContext::default()
        };
        match spec.finish(state, &context) {
            Ok(_) => panic!("{} never looked for an interrupt", row.name),
            Err(error) => assert_eq!(error.code, ErrorCode::Interrupted, "{}", row.name),
        }
    }
}

#[test]
fn numbers_in_many_runs_are_sorted() {
    let numbers: Vec<f64> = (0..300_001)
        .map(|at| f64::from((at * 4001) % 300_007) - 7.0)
        .collect();
    let mut expected = numbers.clone();
    expected.sort_by(f64::total_cmp);
    let context = EvalContext::default();
    assert_eq!(context.sort_numbers(numbers).unwrap(), expected);
}
