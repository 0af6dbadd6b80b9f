//! Tests of the language as a whole: parsing, literals, depth, dependencies.

use nilometer_bson::{Document, DocumentBuilder, Value, array, doc};

use super::testing::{check, check_exact, parse_code};
use super::*;

fn parsed(expression: impl Into<Value>) -> Expression {
    Expression::parse(expression.into().as_ref(), &ParseContext::new()).unwrap()
}

#[test]
fn literals() {
    let doc = doc! { "a": 1, "n": Value::Null };
    for literal in [
        Value::from(5),
        Value::Null,
        Value::from("text"),
        Value::DateTime(7),
    ] {
        check_exact(&doc, literal.clone(), literal);
    }
    check_exact(&doc, doc! {}, doc! {});
    check_exact(
        &doc,
        doc! { "x": "$a", "gone": "$gone", "n": "$n", "o": doc! { "y": array!["$a", "$gone"] } },
        doc! { "x": 1, "n": Value::Null, "o": doc! { "y": array![1, Value::Null] } },
    );
}

#[test]
fn malformed_expressions() {
    for (expression, code) in [
        (doc! { "$unknown": 1 }, 168),
        (doc! { "$add": array![1], "$subtract": 1 }, 15983),
        (doc! { "$add": array![1], "x": 1 }, 15983),
        (doc! { "x": 1, "$add": array![1] }, 16410),
        (doc! { "a.b": 1 }, 16412),
        (doc! { "": 1 }, 15998),
    ] {
        assert_eq!(parse_code(expression.clone()), code, "{expression:?}");
    }
    let mut twice = DocumentBuilder::new();
    twice.append("a", 1).append("a", 2);
    assert_eq!(parse_code(twice.finish()), 16406);
}

fn nested(depth: usize) -> Document {
    let mut expression = doc! { "$not": "$a" };
    for _ in 1..depth {
        expression = doc! { "$not": expression };
    }
    expression
}

#[test]
fn nesting_is_bounded() {
    let doc = doc! { "a": true };
    check(&doc, nested(100), true);
    check(&doc, nested(EXPRESSION_DEPTH_MAX), true);
    assert_eq!(parse_code(nested(EXPRESSION_DEPTH_MAX + 1)), 15);
    let mut arrays = array![];
    for _ in 0..EXPRESSION_DEPTH_MAX {
        arrays = array![arrays];
    }
    assert_eq!(parse_code(arrays), 15);
}

#[test]
fn dependencies_are_collected() {
    let expression = parsed(doc! {
        "a": "$x.y",
        "b": doc! { "$cond": array!["$p", doc! { "$dateTrunc": doc! { "date": "$t", "unit": "$u" } }, 1] },
        "c": doc! { "$eq": array!["$$ROOT.q", 1] },
    });
    let mut found = Dependencies::default();
    expression.dependencies(&mut found);
    let paths: Vec<&str> = found.paths.iter().map(|path| &**path).collect();
    assert_eq!(paths, ["p", "q", "t", "u", "x.y"]);
    assert_eq!(
        found.top_level_fields().into_iter().collect::<Vec<_>>(),
        ["p", "q", "t", "u", "x"]
    );
    assert!(!found.whole && !found.random);
}

#[test]
fn evaluation_borrows_from_the_document() {
    let doc = doc! { "a": doc! { "s": "text" } };
    let expression = parsed("$a.s");
    let context = EvalContext::default();
    let found = expression.evaluate_ref(doc.as_ref(), &context).unwrap();
    assert!(matches!(
        found,
        Evaluated::Borrowed(ValueRef::String("text"))
    ));
}

/// A small deterministic generator.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % sides as u64).unwrap()
    }
}

/// Edge-case values for operators, in addition to the shared list.
fn edge_case_values() -> Vec<Value> {
    let mut values: Vec<Value> = nilometer_bson::testing::awkward_groups().concat();
    values.extend([
        Value::from("$a"),
        "$gone".into(),
        "$$ROOT".into(),
        "$$NOW".into(),
        "month".into(),
        "week".into(),
        "America/New_York".into(),
        "-23:59".into(),
        "%Y-%m-%dT%H:%M:%S.%LZ%z%j%G%V%u".into(),
        "2017-02-08T12:10:40.787Z".into(),
        "éß\u{1F600}x".into(),
        "(a*)*b".into(),
        "approximate".into(),
        array![0.0, 0.5, 1],
        array![array!["k", 1], array!["l", 2]],
        array![doc! { "k": "a", "v": 1 }],
        array![3, 1, 2, Value::Null, "x"],
        doc! { "field": "a", "input": "$$ROOT" }.into(),
        Value::DateTime(i64::MIN),
        Value::DateTime(i64::MAX),
        Value::DateTime(-62_135_596_800_001),
        (i64::from(i32::MAX) + 1).into(),
        (-1).into(),
        1.into(),
        2.into(),
        20.into(),
        true.into(),
    ]);
    // A range over all ints is rejected, but only after a hundred megabytes.
    values.retain(|value| {
        !nilometer_bson::number::Number::of(value.as_ref())
            .is_some_and(|n| (1e6..1e10).contains(&n.to_f64().abs()))
    });
    values
}

/// Returns an argument for an operator: positional, named, or arbitrary.
fn argument(spec: &OperatorSpec, values: &[Value], dice: &mut Dice) -> Value {
    let any = |dice: &mut Dice| values[dice.roll(values.len())].clone();
    let names: Vec<&str> = match spec.arguments {
        Arguments::Named(named) => named.fields.iter().map(|field| field.name).collect(),
        Arguments::Own => vec![
            "input",
            "in",
            "cond",
            "as",
            "vars",
            "sortBy",
            "branches",
            "inputs",
            "initialValue",
            "field",
            "date",
            "timezone",
            "limit",
        ],
        Arguments::Exactly(n) => return (0..n).map(|_| any(dice)).collect::<Vec<_>>().into(),
        Arguments::Between(min, max) => {
            let n = min + dice.roll(max - min + 1);
            return (0..n).map(|_| any(dice)).collect::<Vec<_>>().into();
        }
        Arguments::Any => {
            let n = dice.roll(4);
            return (0..n).map(|_| any(dice)).collect::<Vec<_>>().into();
        }
    };
    if dice.roll(8) == 0 {
        return any(dice);
    }
    let named = matches!(spec.arguments, Arguments::Named(_));
    let mut out = DocumentBuilder::new();
    for name in names {
        if dice.roll(5) < if named { 4 } else { 2 } {
            out.append(name, any(dice));
        }
    }
    out.finish().into()
}

#[test]
fn operators_do_not_panic_on_any_argument() {
    let values = edge_case_values();
    let mut dice = Dice(0x9E37_79B9_7F4A_7C15);
    let context = EvalContext::default();
    for spec in OPERATORS {
        for _ in 0..nilometer_storage::testing::effort(60, 400, 400) {
            let mut call = DocumentBuilder::new();
            call.append(spec.name, argument(spec, &values, &mut dice));
            let mut doc = DocumentBuilder::new();
            doc.append("a", values[dice.roll(values.len())].clone());
            let (call, doc) = (Value::from(call.finish()), doc.finish());
            if let Ok(expression) = Expression::parse(call.as_ref(), &ParseContext::new()) {
                let _ = expression.evaluate(doc.as_ref(), &context);
            }
        }
    }
}

#[test]
fn folding_changes_nothing() {
    let values = edge_case_values();
    let mut dice = Dice(77);
    let parse_context = ParseContext::new();
    let context = EvalContext::default();
    for spec in OPERATORS.iter().filter(|spec| !spec.random) {
        for _ in 0..60 {
            let mut call = DocumentBuilder::new();
            call.append(spec.name, argument(spec, &values, &mut dice));
            let call = Value::from(call.finish());
            let mut doc = DocumentBuilder::new();
            doc.append("a", values[dice.roll(values.len())].clone());
            let doc = doc.finish();
            let Ok(plain) = parse::ExpressionParser::new(&parse_context).operand(call.as_ref())
            else {
                continue;
            };
            let mut folded = plain.clone();
            let unfolded = plain.evaluate(doc.as_ref(), &context);
            match (folded.fold(&parse_context), unfolded) {
                (Ok(()), Ok(expected)) => {
                    let found = folded.evaluate(doc.as_ref(), &context).unwrap();
                    super::testing::assert_same(found.as_ref(), expected.as_ref(), spec.name);
                }
                (Ok(()), Err(expected)) => {
                    let found = folded.evaluate(doc.as_ref(), &context).unwrap_err();
                    assert_eq!(found.code, expected.code, "{call:?}");
                }
                // A constant part that fails may not be evaluated after a null.
                (Err(_), _) => {}
            }
        }
    }
}

#[test]
fn deep_bindings_fit_the_stack() {
    let doc = doc! { "a": array![1] };
    let mut expression = Value::from("$$this");
    for _ in 0..EXPRESSION_DEPTH_MAX / 2 {
        expression = doc! { "$map": doc! { "input": "$a", "in": expression } }.into();
    }
    let found = Expression::parse(expression.as_ref(), &ParseContext::new())
        .unwrap()
        .evaluate(doc.as_ref(), &EvalContext::default());
    assert!(found.is_ok());
    let mut expression = Value::from("$a");
    for _ in 0..EXPRESSION_DEPTH_MAX - 1 {
        expression = doc! { "$let": doc! { "vars": doc! { "x": 1 }, "in": expression } }.into();
    }
    check(&doc, expression, array![1]);
    let mut expression = Value::from("$a");
    for _ in 0..EXPRESSION_DEPTH_MAX - 1 {
        expression = doc! { "$switch": doc! {
            "branches": array![doc! { "case": "$gone", "then": 1 }],
            "default": expression,
        } }
        .into();
    }
    check(&doc, expression, array![1]);
}

/// Expressions that double their value at each step fail long before memory is exhausted.
#[test]
fn computed_values_are_limited_in_size() {
    let reduced = |step: Value, from: Value| -> Value {
        let steps = doc! {"$range": array![0, 60]};
        let reduce = doc! {"input": steps, "initialValue": from, "in": step};
        doc! {"$reduce": reduce}.into()
    };
    let twice = || array!["$$value", "$$value"];
    let long = Value::from("x".repeat(1 << 20));
    let replace = doc! {"input": long.clone(), "find": "x", "replacement": long.clone()};
    let grow: Vec<Value> = vec![
        reduced(doc! {"$concat": twice()}.into(), long.clone()),
        reduced(doc! {"$concatArrays": twice()}.into(), array![long.clone()]),
        reduced(twice(), array![long.clone()]),
        reduced(doc! {"a": "$$value", "b": "$$value"}.into(), long.clone()),
        reduced(
            doc! {"$zip": doc! {"inputs": array![twice(), twice()]}}.into(),
            array![1],
        ),
        doc! {"$replaceAll": replace}.into(),
    ];
    for expression in grow {
        let context = ParseContext::new();
        // Folding, or at the latest evaluation, reaches the limit.
        let outcome = Expression::parse(expression.as_ref(), &context)
            .and_then(|e| e.evaluate(DocRef::EMPTY, &EvalContext::default()));
        let code = outcome.map_or_else(|error| error.code.0, |_| 0);
        assert_eq!(code, ErrorCode::ExceededMemoryLimit.0, "{expression:?}");
    }
}
