//! Metadata of a document and random numbers: `$meta` and `$rand`.
//!
//! `$meta` takes the name of a kind of metadata (17307 if not a string, 17308 if unknown). Sort key, distance, location,
//! record id and index key are read from the field that carries them ([`MetaField`]). There is no text search and no
//! score: the result of others is missing.
//!
//! `$rand: {}` is a double from [0, 1), generated for each evaluation from the operation's random
//! source; arguments are error 3040501.

use nilometer_bson::ValueRef;
use nilometer_bson::path::FieldPath;

use super::Expression;
use super::evaluated::Evaluated;
use super::operation::Operation;
use super::parse::{ExpressionParser, missing};
use super::registry::OperatorSpec;
use super::scope::Scope;
use crate::error::{Error, ErrorCode, Result, location};
use crate::eval::projection::MetaField;

const KINDS: &[&str] = &[
    "geoNearDistance",
    "geoNearPoint",
    "indexKey",
    "randVal",
    "recordId",
    "searchHighlights",
    "searchScore",
    "searchScoreDetails",
    "searchSequenceToken",
    "searchSortValues",
    "sortKey",
    "textScore",
    "timeseriesBucketMaxTime",
    "timeseriesBucketMinTime",
    "vectorSearchScore",
];

pub(super) fn parse_meta(
    _: &mut ExpressionParser<'_>,
    _: &'static OperatorSpec,
    value: ValueRef<'_>,
) -> Result<Expression> {
    match value {
        ValueRef::String(kind) if KINDS.contains(&kind) => Ok(match MetaField::of_operand(kind) {
            Some(field) => Expression::FieldPath(FieldPath::parse_lenient(field.carrier())),
            None => missing(),
        }),
        ValueRef::String(other) => Err(Error::location(
            location::META_UNKNOWN,
            format!("Unsupported argument to $meta: {other}"),
        )),
        other => Err(Error::location(
            location::META_NOT_STRING,
            format!(
                "$meta only supports string arguments, found: {}",
                other.type_name()
            ),
        )),
    }
}

pub(super) fn parse_rand(
    _: &mut ExpressionParser<'_>,
    spec: &'static OperatorSpec,
    value: ValueRef<'_>,
) -> Result<Expression> {
    let empty = match value {
        ValueRef::Document(doc) => doc.is_empty(),
        ValueRef::Array(array) => array.is_empty(),
        _ => false,
    };
    if !empty {
        return Err(Error::location(
            location::RAND_WITH_ARGUMENT,
            "$rand does not currently accept arguments",
        ));
    }
    Ok(Operation::new(spec, Vec::new()).into_expression())
}

pub(super) fn rand<'s>(_: &'s Operation, scope: &Scope<'s>) -> Result<Evaluated<'s>> {
    match scope.context.random {
        Some(random) => Ok(Evaluated::from(random.next_f64())),
        None => Err(Error::new(
            ErrorCode::InternalError,
            "$rand was evaluated without a source of randomness",
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use nilometer_bson::{Value, array, doc};

    use super::super::testing::{check_exact, parse_code};
    use super::*;
    use crate::eval::{Dependencies, EvalContext, ParseContext, Random};

    #[test]
    fn meta() {
        check_exact(&doc! {}, doc! { "$meta": "textScore" }, Value::Missing);
        assert_eq!(parse_code(doc! { "$meta": "nonsense" }), 17308);
        assert_eq!(parse_code(doc! { "$meta": 5 }), 17307);
    }

    struct Counter(Cell<f64>);

    impl Random for Counter {
        fn next_f64(&self) -> f64 {
            self.0.set(self.0.get() + 0.25);
            self.0.get()
        }
    }

    #[test]
    fn rand_draws_for_each_evaluation() {
        let call = Value::from(doc! { "$rand": doc! {} });
        let expression = Expression::parse(call.as_ref(), &ParseContext::new()).unwrap();
        let source = Counter(Cell::new(0.0));
        let context = EvalContext {
            random: Some(&source),
            ..Default::default()
        };
        for expected in [0.25, 0.5] {
            let drawn = expression.evaluate(doc! {}.as_ref(), &context).unwrap();
            assert!(matches!(drawn, Value::Double(v) if v == expected));
        }
        let mut dependencies = Dependencies::default();
        expression.dependencies(&mut dependencies);
        assert!(dependencies.random);
        assert_eq!(parse_code(doc! { "$rand": 5 }), 3_040_501);
        assert_eq!(parse_code(doc! { "$rand": array![1] }), 3_040_501);
    }
}
