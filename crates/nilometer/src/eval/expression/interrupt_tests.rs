//! Each operator of the table on its worst input: the evaluation ends at the first interrupt after its start.
//!
//! The interrupt is raised by the check itself, so that no clock decides: an operator that does not check computes its
//! value, and the test fails.

use nilometer_bson::{Binary, Decimal128, Document, DocumentBuilder, Value, array, doc};

use super::testing::call;
use super::{Expression, OPERATORS, SupportStatus};
use crate::budget::MemoryPool;
use crate::error::{ErrorCode, Result};
use crate::eval::limits::STEPS_PER_CHECK;
use crate::eval::limits::testing::InterruptAfter;
use crate::eval::{EvalContext, EvaluationCounters, EvaluationLimits, ParseContext};

const ELEMENTS: i32 = 20_000;

/// Returns a document with large values of each type.
fn document() -> Document {
    let list: Value = (0..ELEMENTS).map(Value::from).collect::<Vec<_>>().into();
    let pairs: Vec<Value> = (0..ELEMENTS).map(|at| array![at.to_string(), at]).collect();
    let objects: Vec<Value> = (0..ELEMENTS).map(|at| doc! { "a": at }.into()).collect();
    let mut fields = DocumentBuilder::new();
    for at in 0..ELEMENTS {
        fields.append(&format!("f{at}"), at);
    }
    doc! {
        "list": list,
        "pairs": pairs,
        "objects": objects,
        "object": fields.finish(),
        "text": "ab".repeat(300_000),
        "digits": "1".repeat(600_000),
        "chars": "b".repeat(2_000),
        "one": 1,
        "n": 5,
        "s": "x",
        "date": Value::DateTime(1_616_239_805_123),
        "dateText": "2021-03-20T11:30:05.123Z",
        "parts": doc! { "year": 2021 },
        "stamp": Value::Timestamp(nilometer_bson::Timestamp { seconds: 1, increment: 1 }),
        "id": "507f1f77bcf86cd799439011",
        "uuid": "00112233-4455-6677-8899-aabbccddeeff",
        "decimal": Value::from(Decimal128::parse_exact("1.5").unwrap()),
        "binary": Value::Binary(Binary { subtype: 0, bytes: vec![1; 1_000_000].into() }),
    }
}

/// Returns an operator's call for each element of a long list: for operators whose work does not grow with their input.
fn each(body: impl Into<Value>) -> Value {
    doc! { "$map": doc! { "input": "$list", "in": body.into() } }.into()
}

// long function: one arm for each family of the table
fn worst_input(name: &str) -> Value {
    let on = |argument: Value| Value::from(call(name, argument));
    let each_on = |argument: Value| each(call(name, argument));
    let text = || Value::from("$text");
    let list = || Value::from("$list");
    match name {
        "$abs" | "$ceil" | "$exp" | "$floor" | "$ln" | "$log10" | "$sqrt" | "$bitNot" | "$acos"
        | "$acosh" | "$asin" | "$asinh" | "$atan" | "$atanh" | "$cos" | "$cosh"
        | "$degreesToRadians" | "$radiansToDegrees" | "$sin" | "$sinh" | "$tan" | "$tanh"
        | "$isNumber" | "$toBool" | "$toInt" | "$toLong" | "$toDouble" | "$toDecimal" | "$not" => {
            each_on("$one".into())
        }
        "$add" | "$multiply" | "$subtract" | "$divide" | "$log" | "$mod" | "$pow" | "$round"
        | "$trunc" | "$atan2" | "$and" | "$or" | "$ifNull" => each_on(array!["$n", "$n"]),
        "$cmp" | "$eq" | "$gt" | "$gte" | "$lt" | "$lte" | "$ne" => {
            each_on(array!["$text", "$text"])
        }
        "$bitAnd" | "$bitOr" | "$bitXor" | "$avg" | "$max" | "$min" | "$stdDevPop"
        | "$stdDevSamp" | "$sum" | "$allElementsTrue" | "$anyElementTrue" | "$first" | "$last"
        | "$isArray" | "$reverseArray" | "$size" | "$type" | "$toHashedIndexKey" => on(list()),
        "$cond" => each_on(array!["$n", "$one", "$s"]),
        "$switch" => each_on(
            doc! { "branches": array![doc! { "case": "$n", "then": 1 }], "default": 2 }.into(),
        ),
        "$arrayElemAt" => on(array!["$list", -1]),
        "$arrayToObject" => on("$pairs".into()),
        "$objectToArray" | "$mergeObjects" | "$bsonSize" => on("$object".into()),
        "$concatArrays" | "$setDifference" | "$setEquals" | "$setIntersection" | "$setIsSubset"
        | "$setUnion" => on(array!["$list", "$list"]),
        "$filter" => on(doc! { "input": "$list", "cond": "$$this" }.into()),
        "$map" => on(doc! { "input": "$list", "in": "$$this" }.into()),
        "$reduce" => on(doc! { "input": "$list", "initialValue": 0, "in": "$$this" }.into()),
        "$firstN" | "$lastN" | "$maxN" | "$minN" => on(doc! { "n": 3, "input": "$list" }.into()),
        "$in" => on(array![-1, "$list"]),
        "$indexOfArray" => on(array!["$list", -1]),
        "$range" => on(array![0, doc! { "$multiply": array!["$n", 1_000_000] }]),
        "$slice" => on(array!["$list", ELEMENTS]),
        "$sortArray" => on(doc! { "input": "$objects", "sortBy": doc! { "a": -1 } }.into()),
        "$zip" => on(doc! { "inputs": array!["$list", "$list"] }.into()),
        "$concat" => on(array!["$text", "$text"]),
        "$indexOfBytes" | "$indexOfCP" | "$split" | "$strcasecmp" => on(array!["$text", "$chars"]),
        "$trim" | "$ltrim" | "$rtrim" => on(doc! { "input": "$text", "chars": "$chars" }.into()),
        "$regexFind" | "$regexFindAll" | "$regexMatch" => {
            on(doc! { "input": "$text", "regex": "(a|b|ab)*c|z" }.into())
        }
        "$replaceAll" | "$replaceOne" => {
            on(doc! { "input": "$text", "find": "$chars", "replacement": "" }.into())
        }
        "$strLenBytes" | "$strLenCP" | "$toLower" | "$toUpper" | "$toString" => on(text()),
        "$substr" | "$substrBytes" | "$substrCP" => on(array!["$text", 1, 500_000]),
        "$getField" => on(doc! { "field": "f19999", "input": "$object" }.into()),
        "$setField" => on(doc! { "field": "x", "input": "$object", "value": 1 }.into()),
        "$unsetField" => on(doc! { "field": "x", "input": "$object" }.into()),
        "$const" | "$literal" => each(call(name, 1)),
        "$let" => each_on(doc! { "vars": doc! { "x": "$n" }, "in": "$$x" }.into()),
        "$dateAdd" | "$dateSubtract" => {
            each_on(doc! { "startDate": "$date", "unit": "month", "amount": 1 }.into())
        }
        "$dateDiff" => {
            each_on(doc! { "startDate": "$date", "endDate": "$date", "unit": "day" }.into())
        }
        "$dateFromParts" => each_on(doc! { "year": "$parts.year" }.into()),
        "$dateFromString" => each_on(doc! { "dateString": "$dateText" }.into()),
        "$dateToParts" | "$dateToString" => each_on(doc! { "date": "$date" }.into()),
        "$dateTrunc" => each_on(doc! { "date": "$date", "unit": "week" }.into()),
        "$dayOfMonth" | "$dayOfWeek" | "$dayOfYear" | "$hour" | "$isoDayOfWeek" | "$isoWeek"
        | "$isoWeekYear" | "$millisecond" | "$minute" | "$month" | "$second" | "$week"
        | "$year" | "$toDate" => each_on("$date".into()),
        "$tsIncrement" | "$tsSecond" => each_on("$stamp".into()),
        "$convert" => on(doc! { "input": "$digits", "to": "double" }.into()),
        "$toObjectId" => each_on("$id".into()),
        "$toUUID" => each_on("$uuid".into()),
        "$median" => on(doc! { "input": "$list", "method": "approximate" }.into()),
        "$percentile" => {
            on(doc! { "input": "$list", "p": array![0.5], "method": "approximate" }.into())
        }
        "$binarySize" => on("$binary".into()),
        "$rand" | "$createObjectId" | "$currentDate" => each_on(doc! {}.into()),
        "$subtype" => on("$binary".into()),
        "$hash" | "$hexHash" => on(doc! { "input": "$text", "algorithm": "sha256" }.into()),
        "$serializeEJSON" | "$deserializeEJSON" => on(doc! { "input": "$object" }.into()),
        other => panic!("{other} has no worst input: add one"),
    }
}

fn evaluate(source: &Value, document: &Document, limits: EvaluationLimits<'_>) -> Result<Value> {
    let expression = Expression::parse(source.as_ref(), &ParseContext::new())?;
    let context = EvalContext {
        limits: Some(limits),
        ..EvalContext::default()
    };
    expression.evaluate(document.as_ref(), &context)
}

#[test]
fn every_operator_is_interrupted_on_its_worst_input() {
    let document = document();
    for spec in OPERATORS {
        // The values of `$meta` are computed by stages.
        if matches!(spec.status, SupportStatus::Refused { .. }) || spec.name == "$meta" {
            continue;
        }
        let interrupt = InterruptAfter::new(0);
        let counters = EvaluationCounters::default();
        let limits = EvaluationLimits {
            counters: &counters,
            interrupt: &interrupt,
            clock: None,
        };
        match evaluate(&worst_input(spec.name), &document, limits) {
            Ok(_) => panic!("{} never looked for an interrupt", spec.name),
            Err(error) => assert_eq!(error.code, ErrorCode::Interrupted, "{}: {error}", spec.name),
        }
    }
}

/// Evaluates with a pool of 1 MiB; asserts that all memory is returned.
fn within_1_mib(source: Value) -> Result<Value> {
    let pool = std::sync::Arc::new(MemoryPool::default());
    pool.set_most(1 << 20);
    let counters = EvaluationCounters::new(std::sync::Arc::clone(&pool));
    let interrupt = InterruptAfter::new(u32::MAX);
    let limits = EvaluationLimits {
        counters: &counters,
        interrupt: &interrupt,
        clock: None,
    };
    let outcome = evaluate(&source, &doc! { "n": 3_000 }, limits);
    assert!(pool.used() < 1 << 20);
    drop(counters);
    assert_eq!(pool.used(), 0);
    outcome
}

#[test]
fn values_computed_for_one_document_count_against_the_query_memory() {
    let range = || Value::from(doc! { "$range": array![0, "$n"] });
    let mut many = DocumentBuilder::new();
    for at in 0..100 {
        many.append(&format!("v{at}"), range());
    }
    let many = many.finish();
    let hundred: Vec<Value> = (0..100).map(|_| range()).collect();
    let too_large: Vec<Value> = vec![
        doc! { "$let": doc! { "vars": many.clone(), "in": 1 } }.into(),
        many.into(),
        hundred.clone().into(),
        doc! { "$concatArrays": hundred.clone() }.into(),
        doc! { "$zip": doc! { "inputs": hundred.clone() } }.into(),
        doc! { "$setUnion": hundred }.into(),
        doc! { "$map": doc! { "input": doc! { "$range": array![0, 100] }, "in": range() } }.into(),
        doc! { "$reduce": doc! {
            "input": doc! { "$range": array![0, 100] },
            "initialValue": array![],
            "in": doc! { "$concatArrays": array!["$$value", range()] },
        } }
        .into(),
    ];
    for source in too_large {
        let error = within_1_mib(source.clone()).expect_err("more than 1 MiB");
        assert_eq!(error.code, ErrorCode::ExceededMemoryLimit, "{error}");
    }
}

#[test]
fn values_that_were_dropped_do_not_count() {
    let size = doc! { "$size": doc! { "$range": array![0, "$n"] } };
    let sums =
        doc! { "$map": doc! { "input": doc! { "$range": array![0, 100] }, "in": size.clone() } };
    assert!(within_1_mib(sums.into()).is_ok());
    let conditions: Vec<Value> = (0..100)
        .map(|_| doc! { "$range": array![0, "$n"] }.into())
        .collect();
    assert!(within_1_mib(doc! { "$and": conditions }.into()).is_ok());
    let reduced = doc! { "$reduce": doc! {
        "input": doc! { "$range": array![0, 1_000] },
        "initialValue": array![],
        "in": doc! { "$concatArrays": array!["$$value", array!["$$this", "$n"]] },
    } };
    assert!(within_1_mib(reduced.into()).is_ok());
}

#[test]
fn folding_leaves_large_constants_to_run_time() {
    let parse = |source: Document| {
        Expression::parse(Value::from(source).as_ref(), &ParseContext::new()).expect("valid")
    };
    let range = |to: i32| doc! { "$range": array![0, to] };
    assert!(parse(doc! { "$size": range(100) }).as_constant().is_some());
    let large = parse(doc! { "$sum": range(5_000_000) });
    assert!(large.as_constant().is_none());
    // All folds of a command share a budget.
    let many: Vec<Value> = (0..200).map(|_| range(50_000).into()).collect();
    let many = Expression::parse(Value::from(many).as_ref(), &ParseContext::new()).expect("valid");
    let Expression::Array(parts) = many else {
        panic!("not an array");
    };
    let folded = parts
        .iter()
        .filter(|part| part.as_constant().is_some())
        .count();
    assert!(folded > 0 && folded < 100, "{folded}");
}

#[test]
fn checks_are_rare() {
    // A million steps are at most some hundred checks.
    let checks = InterruptAfter::new(u32::MAX);
    let counters = EvaluationCounters::default();
    let limits = EvaluationLimits {
        counters: &counters,
        interrupt: &checks,
        clock: None,
    };
    let context = EvalContext {
        limits: Some(limits),
        ..EvalContext::default()
    };
    for _ in 0..1_000_000 {
        context.charge(1).expect("not interrupted");
    }
    let made = u32::MAX - checks.left();
    assert!(made <= 1_000_000 / STEPS_PER_CHECK + 1, "{made}");
}
