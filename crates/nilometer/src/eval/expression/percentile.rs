//! `$percentile: {input, p: [..], method: "approximate"}` and `$median: {input, method}`.
//!
//! The input is a number or an array; NaN and values that are not numbers are skipped. The value
//! for `p` is the one at rank ⌈p·n⌉ of the sorted numbers (the least for 0), a double; null if
//! there is no number. `p` must be a constant array of numbers from 0 to 1.
//!
//! Errors: 40414 a member missing, 40415 unknown, 14 not an object or wrong types, 2 bad method or `p`.

use nilometer_bson::number::Number;
use nilometer_bson::{Value, ValueRef};

use super::Expression;
use super::evaluated::Evaluated;
use super::operation::{CallContext, Operation, arg};
use super::parse::ExpressionParser;
use super::registry::{NamedArguments, OperatorSpec, required};
use crate::error::{Error, ErrorCode, Result};

const MISSING: i32 = ErrorCode::IDLFailedToParse.0;

pub(super) const PERCENTILE: NamedArguments = NamedArguments {
    not_object: ErrorCode::TypeMismatch.0,
    unknown: ErrorCode::IDLUnknownField.0,
    fields: &[
        required("input", MISSING),
        required("p", MISSING),
        required("method", MISSING),
    ],
};

pub(super) const MEDIAN: NamedArguments = NamedArguments {
    not_object: ErrorCode::TypeMismatch.0,
    unknown: ErrorCode::IDLUnknownField.0,
    fields: &[required("input", MISSING), required("method", MISSING)],
};

/// Checks the method: only `approximate` exists in this version.
fn check_method(doc: ValueRef<'_>) -> Result<()> {
    let ValueRef::Document(doc) = doc else {
        return Ok(());
    };
    match doc.get("method") {
        ValueRef::Missing => Ok(()),
        ValueRef::String("approximate") => Ok(()),
        ValueRef::String(other) => Err(Error::bad_value(format!(
            "Currently only 'approximate' can be used as percentile 'method', found: {other}"
        ))),
        other => Err(Error::type_mismatch(format!(
            "'method' must be a string, found: {}",
            other.type_name()
        ))),
    }
}

pub(super) fn parse(
    parser: &mut ExpressionParser<'_>,
    spec: &'static OperatorSpec,
    value: ValueRef<'_>,
) -> Result<Expression> {
    check_method(value)?;
    let arguments = parser.arguments(spec, value)?;
    Ok(Operation::new(spec, arguments).into_expression())
}

/// Parses the list of probabilities.
fn probabilities(value: ValueRef<'_>) -> Result<Vec<f64>> {
    let wrong = || {
        Error::bad_value("The $percentile 'p' field must be an array of numbers from [0.0, 1.0]")
    };
    let ValueRef::Array(array) = value else {
        return Err(wrong());
    };
    let list: Option<Vec<f64>> = array
        .iter()
        .map(|value| {
            let p = Number::of(value)?.to_f64();
            (0.0..=1.0).contains(&p).then_some(p)
        })
        .collect();
    list.filter(|list| !list.is_empty()).ok_or_else(wrong)
}

/// Returns the numbers of the input, ascending.
fn sorted(value: ValueRef<'_>, call: CallContext<'_, '_>) -> Result<Vec<f64>> {
    let number = |value: ValueRef<'_>| {
        Number::of(value)
            .map(Number::to_f64)
            .filter(|value| !value.is_nan())
    };
    let context = call.scope.context;
    let numbers: Vec<f64> = match value {
        ValueRef::Array(array) => {
            let elements = context.elements(array)?;
            elements.into_iter().filter_map(number).collect()
        }
        single => number(single).into_iter().collect(),
    };
    context.sort(numbers, |_| 0, f64::total_cmp)
}

/// Returns the value at rank ⌈p·n⌉.
fn at(sorted: &[f64], p: f64) -> Value {
    let rank = (p * sorted.len() as f64).ceil() as usize;
    sorted
        .get(rank.max(1) - 1)
        .map_or(Value::Null, |value| Value::Double(*value))
}

pub(super) fn percentile<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let list = probabilities(arg(values, 1).as_ref())?;
    let numbers = sorted(arg(values, 0).as_ref(), call)?;
    let found: Vec<Value> = list.into_iter().map(|p| at(&numbers, p)).collect();
    Ok(Evaluated::from(found))
}

pub(super) fn median<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let numbers = sorted(arg(values, 0).as_ref(), call)?;
    Ok(Evaluated::Owned(at(&numbers, 0.5)))
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Document, array, doc};

    use super::super::testing::{check_exact, eval_code, parse_code};
    use super::*;

    #[test]
    fn ranks() {
        let doc =
            doc! { "a": array![5, 1.5, "x", 3i64, Value::Null, f64::NAN, 2], "n": Value::Null };
        let percentile = |input: Value, p: Value| {
            doc! { "$percentile": doc! { "input": input, "p": p, "method": "approximate" } }
        };
        check_exact(
            &doc,
            percentile("$a".into(), array![0, 0.25, 0.5, 0.75, 1]),
            array![1.5, 1.5, 2.0, 3.0, 5.0],
        );
        check_exact(&doc, percentile(7.into(), array![0.5]), array![7.0]);
        check_exact(
            &doc,
            percentile("$n".into(), array![0.5, 1]),
            array![Value::Null, Value::Null],
        );
        let median =
            |input: Value| doc! { "$median": doc! { "input": input, "method": "approximate" } };
        check_exact(&doc, median("$a".into()), 2.0);
        check_exact(&doc, median(array![1, 2]), 1.0);
        check_exact(&doc, median("$gone".into()), Value::Null);
        for p in [
            Value::from(0.5),
            array![],
            array![1.1],
            array!["x"],
            array![f64::NAN],
        ] {
            assert_eq!(eval_code(&doc, percentile("$a".into(), p)), 2);
        }
    }

    #[test]
    fn errors() {
        let full = |method: Value| doc! { "input": "$a", "p": array![0.5], "method": method };
        for (argument, code) in [
            (Value::from(1), 14),
            (full(5.into()).into(), 14),
            (full("discrete".into()).into(), 2),
            (doc! { "input": 1, "p": array![0.5] }.into(), 40414),
            (doc! { "input": 1, "method": "approximate" }.into(), 40414),
            (
                doc! { "input": 1, "p": array![0.5], "method": "approximate", "x": 1 }.into(),
                40415,
            ),
        ] {
            assert_eq!(parse_code(doc! { "$percentile": argument }), code);
        }
        let with_p: Document = full("approximate".into());
        assert_eq!(parse_code(doc! { "$median": with_p }), 40415);
    }
}
