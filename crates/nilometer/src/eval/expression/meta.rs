//! What the document does not say: `$meta`, `$rand`, `$createObjectId` and `$currentDate`.
//!
//! `$meta` takes the name of a kind of metadata (17307 if not a string, 17308 if unknown). Sort key, distance, location,
//! record id, index key and text score are read from the field that carries them ([`MetaField`]). The result of others is
//! missing.
//!
//! `$rand: {}` is a double from [0, 1), generated for each evaluation from the operation's random
//! source; arguments are error 3040501. `$createObjectId: {}` draws from the same source.
//! `$currentDate: {}` reads the clock anew for each document.

use nilometer_bson::path::FieldPath;
use nilometer_bson::{ObjectId, Value, ValueRef};

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

/// Parses an operator whose only argument is an empty object.
pub(super) fn parse_without_arguments(
    _: &mut ExpressionParser<'_>,
    spec: &'static OperatorSpec,
    value: ValueRef<'_>,
) -> Result<Expression> {
    match value.as_document() {
        Some(arguments) if arguments.is_empty() => {
            Ok(Operation::new(spec, Vec::new()).into_expression())
        }
        _ => {
            let name = spec.name;
            let text = format!("{name} takes an empty object: {{{name}: {{}}}}");
            Err(Error::failed_to_parse(text))
        }
    }
}

/// Returns the time now, which differs from `$$NOW` once the operation has run for a while.
pub(super) fn current_date<'s>(_: &'s Operation, scope: &Scope<'s>) -> Result<Evaluated<'s>> {
    let clock = scope.context.limits.and_then(|limits| limits.clock);
    let now_ms = clock.map_or(scope.context.now_ms, |clock| clock.now_ms());
    Ok(Evaluated::from(Value::DateTime(now_ms)))
}

/// Returns an id with the time of the operation and random bytes.
pub(super) fn object_id<'s>(_: &'s Operation, scope: &Scope<'s>) -> Result<Evaluated<'s>> {
    /// A number from [0, 1) times this fills 32 bits.
    const WORD: f64 = 4_294_967_296.0;
    let Some(random) = scope.context.random else {
        return Err(Error::new(
            ErrorCode::InternalError,
            "$createObjectId was evaluated without a source of randomness",
        ));
    };
    // The seconds of an id have 32 bits and begin again after 2106.
    let seconds = scope.context.now_ms.div_euclid(1000) & i64::from(u32::MAX);
    let word = || (random.next_f64() * WORD) as u32;
    let words = [u32::try_from(seconds).unwrap_or(0), word(), word()];
    let mut id = [0; 12];
    for (bytes, word) in id.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    Ok(Evaluated::from(Value::ObjectId(ObjectId(id))))
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

    use nilometer_bson::{array, doc};

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
