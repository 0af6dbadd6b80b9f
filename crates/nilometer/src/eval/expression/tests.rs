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
