//! Helpers of the tests in each family.

use nilometer_bson::{Decimal128, Document, DocumentBuilder, Value, ValueRef, order};

use super::Expression;
use crate::eval::{EvalContext, ParseContext};

/// The operation's start in tests: 2021-03-20T11:30:05.123Z.
pub(super) const NOW_MS: i64 = 1_616_239_805_123;

/// Returns the expression that calls an operator.
pub(super) fn call(name: &str, argument: impl Into<Value>) -> Document {
    let mut out = DocumentBuilder::new();
    out.append(name, argument.into());
    out.finish()
}

/// Parses a decimal, which must be exact.
#[track_caller]
pub(super) fn decimal(text: &str) -> Value {
    Value::from(Decimal128::parse_exact(text).unwrap())
}

fn evaluate(doc: &Document, expression: Value) -> crate::error::Result<Value> {
    let context = EvalContext {
        now_ms: NOW_MS,
        ..Default::default()
    };
    Expression::parse(expression.as_ref(), &ParseContext::new())?.evaluate(doc.as_ref(), &context)
}

/// Checks the value of an expression, numbers by value.
#[track_caller]
pub(super) fn check(doc: &Document, expression: impl Into<Value>, expected: impl Into<Value>) {
    let (expression, expected) = (expression.into(), expected.into());
    let found = match evaluate(doc, expression.clone()) {
        Ok(found) => found,
        Err(error) => panic!("{expression:?}: {error}"),
    };
    assert_same(
        found.as_ref(),
        expected.as_ref(),
        &format!("{expression:?}"),
    );
}

/// Checks value and type.
#[track_caller]
pub(super) fn check_exact(
    doc: &Document,
    expression: impl Into<Value>,
    expected: impl Into<Value>,
) {
    let (expression, expected) = (expression.into(), expected.into());
    let found = match evaluate(doc, expression.clone()) {
        Ok(found) => found,
        Err(error) => panic!("{expression:?}: {error}"),
    };
    let same = found.type_code() == expected.type_code()
        && match (&found, &expected) {
            (Value::Double(a), Value::Double(b)) => a.to_bits() == b.to_bits(),
            (Value::Decimal128(a), Value::Decimal128(b)) => a == b,
            (Value::Document(a), Value::Document(b)) => a == b,
            (Value::Array(a), Value::Array(b)) => {
                a.as_ref().as_document().as_bytes() == b.as_ref().as_document().as_bytes()
            }
            (a, b) => order::equal(a.as_ref(), b.as_ref()),
        };
    assert!(same, "{expression:?}: {found:?}, expected {expected:?}");
}

/// Returns the error code of an expression, from parsing or evaluation.
#[track_caller]
pub(super) fn eval_code(doc: &Document, expression: impl Into<Value>) -> i32 {
    let expression = expression.into();
    match evaluate(doc, expression.clone()) {
        Ok(found) => panic!("{expression:?} gives {found:?}"),
        Err(error) => error.code.0,
    }
}

/// Returns the error code of parsing an expression.
#[track_caller]
pub(super) fn parse_code(expression: impl Into<Value>) -> i32 {
    let expression = expression.into();
    match Expression::parse(expression.as_ref(), &ParseContext::new()) {
        Ok(parsed) => panic!("{expression:?} parses: {parsed:?}"),
        Err(error) => error.code.0,
    }
}

/// Compares in BSON order, and distinguishes missing, null and undefined.
#[track_caller]
pub(super) fn assert_same(found: ValueRef<'_>, expected: ValueRef<'_>, what: &str) {
    let kind = found.is_missing() == expected.is_missing();
    assert!(
        kind && order::equal(found, expected),
        "{what}: {found:?}, expected {expected:?}"
    );
}
