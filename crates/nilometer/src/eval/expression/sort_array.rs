//! `$sortArray: {input, sortBy}`.
//!
//! `sortBy` is 1 or −1, which sorts whole elements in BSON order, or `{path: ±1, …}`, which sorts
//! documents by fields as `$sort` does (elements that are not documents have no fields). Equal
//! elements keep their order. Null input gives null.
//!
//! Errors: 2942500 not an object, 2942501 unknown member, 2942502 no input, 2942503 no sortBy, 2942504
//! not an array, 2942505 sortBy neither number nor object, 2942506 a direction that is not ±1.

use std::cmp::Ordering;
use std::sync::Arc;

use nilometer_bson::path::{FieldPath, keys::sort_value};
use nilometer_bson::{DocRef, ValueRef};

use super::Expression;
use super::array::ArrayBuilder;
use super::comparison::compare;
use super::evaluated::Evaluated;
use super::field_path::parse_path;
use super::numeric::integral;
use super::operation::Operation;
use super::parse::{ExpressionParser, object};
use super::registry::OperatorSpec;
use super::scope::Scope;
use crate::error::{Error, Result, location};
use crate::eval::value_bytes;

/// The order of elements.
enum ElementOrder {
    Whole { descending: bool },
    Fields(Vec<(FieldPath, bool)>),
}

/// Arguments of the operation: the input; the order is prepared.
pub(super) fn parse(
    parser: &mut ExpressionParser<'_>,
    spec: &'static OperatorSpec,
    value: ValueRef<'_>,
) -> Result<Expression> {
    let doc = object(
        value,
        location::SORT_ARRAY_NOT_OBJECT,
        "$sortArray requires an object as an argument",
    )?;
    let (mut input, mut order) = (None, None);
    for element in doc.iter() {
        match element.name() {
            "input" => input = Some(parser.operand(element.value())?),
            "sortBy" => order = Some(parse_order(element.value())?),
            other => {
                return Err(Error::location(
                    location::SORT_ARRAY_ARGUMENT_UNKNOWN,
                    format!("$sortArray found an unknown argument: {other}"),
                ));
            }
        }
    }
    let Some(input) = input else {
        return Err(Error::location(
            location::SORT_ARRAY_INPUT_MISSING,
            "$sortArray requires 'input' to be specified",
        ));
    };
    let Some(order) = order else {
        return Err(Error::location(
            location::SORT_ARRAY_SORT_BY_MISSING,
            "$sortArray requires 'sortBy' to be specified",
        ));
    };
    let mut operation = Operation::new(spec, vec![Some(input)]);
    operation.prepared = Some(Arc::new(order));
    Ok(operation.into_expression())
}

fn parse_order(value: ValueRef<'_>) -> Result<ElementOrder> {
    match value {
        ValueRef::Document(doc) => {
            let fields = doc
                .iter()
                .map(|e| Ok((parse_path(e.name())?, direction(e.value())?)))
                .collect::<Result<Vec<_>>>()?;
            if fields.is_empty() {
                return Err(Error::location(
                    location::SORT_ARRAY_SORT_BY_INVALID,
                    "The 'sortBy' argument to $sortArray must not be an empty object",
                ));
            }
            Ok(ElementOrder::Fields(fields))
        }
        number if number.is_number() => Ok(ElementOrder::Whole {
            descending: direction(number)?,
        }),
        other => Err(Error::location(
            location::SORT_ARRAY_SORT_BY_INVALID,
            format!(
                "The 'sortBy' argument to $sortArray must be 1, -1 or an object, found: {}",
                other.type_name()
            ),
        )),
    }
}

fn direction(value: ValueRef<'_>) -> Result<bool> {
    match integral(value) {
        Some(1) => Ok(false),
        Some(-1) => Ok(true),
        _ => Err(Error::location(
            location::SORT_ARRAY_DIRECTION,
            "The $sort element value must be either 1 or -1",
        )),
    }
}

pub(super) fn sort<'s>(operation: &'s Operation, scope: &Scope<'s>) -> Result<Evaluated<'s>> {
    let input = operation.value(0, scope)?;
    if input.is_nullish() {
        return Ok(Evaluated::NULL);
    }
    let Some(array) = input.as_array() else {
        return Err(Error::location(
            location::SORT_ARRAY_INPUT_NOT_ARRAY,
            format!(
                "The input argument to $sortArray must be an array, but was of type: {}",
                input.type_name()
            ),
        ));
    };
    let elements = scope.context.elements(array)?;
    let weight = |value: &ValueRef<'_>| value_bytes(*value);
    let elements = match operation.prepared::<ElementOrder>() {
        Some(ElementOrder::Fields(fields)) => by_fields(elements, fields, scope)?,
        Some(ElementOrder::Whole { descending: true }) => {
            scope
                .context
                .sort(elements, weight, |a, b| compare(*b, *a, scope))?
        }
        _ => scope
            .context
            .sort(elements, weight, |a, b| compare(*a, *b, scope))?,
    };
    let mut out = ArrayBuilder::new(scope);
    out.extend(elements)?;
    Ok(out.finish())
}

fn by_fields<'v>(
    elements: Vec<ValueRef<'v>>,
    fields: &[(FieldPath, bool)],
    scope: &Scope<'_>,
) -> Result<Vec<ValueRef<'v>>> {
    let mut keyed = Vec::with_capacity(elements.len());
    let key_bytes =
        size_of::<(Vec<ValueRef<'_>>, ValueRef<'_>)>() + fields.len() * size_of::<ValueRef<'_>>();
    let mark = scope.context.mark();
    for element in elements {
        scope.context.hold(mark, (keyed.len() + 1) * key_bytes)?;
        scope
            .context
            .charge(fields.len() * (1 + value_bytes(element) / 64))?;
        let doc = element.as_document().unwrap_or(DocRef::EMPTY);
        let mut key = Vec::with_capacity(fields.len());
        for (path, descending) in fields {
            let value = sort_value(path, doc, *descending, scope.context.collator)
                .map_err(|error| Error::bad_value(error.to_string()))?;
            key.push(value);
        }
        keyed.push((key, element));
    }
    let weight = |(_, element): &(Vec<ValueRef<'v>>, ValueRef<'v>)| value_bytes(*element);
    let keyed = scope.context.sort(keyed, weight, |(a, _), (b, _)| {
        for ((a, b), (_, descending)) in a.iter().zip(b).zip(fields) {
            let ordering = compare(*a, *b, scope);
            if ordering != Ordering::Equal {
                return if *descending {
                    ordering.reverse()
                } else {
                    ordering
                };
            }
        }
        Ordering::Equal
    })?;
    Ok(keyed.into_iter().map(|(_, element)| element).collect())
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Document, Value, array, doc};

    use super::super::testing::{check_exact, eval_code, parse_code};

    fn sort(input: impl Into<Value>, sort_by: impl Into<Value>) -> Document {
        doc! { "$sortArray": doc! { "input": input.into(), "sortBy": sort_by.into() } }
    }

    #[test]
    fn orders() {
        let doc = doc! {
            "a": array![3, "x", 1.0, Value::Null, array![1]],
            "d": array![doc! { "k": 2, "v": 1 }, doc! { "k": 1, "v": 2 }, 7, doc! { "k": 2, "v": 3 }],
            "n": Value::Null,
        };
        check_exact(
            &doc,
            sort("$a", 1),
            array![Value::Null, 1.0, 3, "x", array![1]],
        );
        check_exact(
            &doc,
            sort("$a", -1.0),
            array![array![1], "x", 3, 1.0, Value::Null],
        );
        check_exact(
            &doc,
            sort("$d", doc! { "k": 1, "v": -1 }),
            array![
                7,
                doc! { "k": 1, "v": 2 },
                doc! { "k": 2, "v": 3 },
                doc! { "k": 2, "v": 1 }
            ],
        );
        check_exact(
            &doc,
            sort("$d", doc! { "k": -1 }),
            array![
                doc! { "k": 2, "v": 1 },
                doc! { "k": 2, "v": 3 },
                doc! { "k": 1, "v": 2 },
                7
            ],
        );
        check_exact(&doc, sort("$n", 1), Value::Null);
        check_exact(&doc, sort("$gone", 1), Value::Null);
        check_exact(&doc, sort(array![], 1), array![]);
        check_exact(&doc, sort(array![2, 1], 1), array![1, 2]);
    }

    #[test]
    fn errors() {
        for (argument, code) in [
            (Value::from(1), 2_942_500),
            (doc! { "input": 1, "sortBy": 1, "x": 1 }.into(), 2_942_501),
            (doc! { "sortBy": 1 }.into(), 2_942_502),
            (doc! { "input": 1 }.into(), 2_942_503),
            (doc! { "input": 1, "sortBy": "x" }.into(), 2_942_505),
            (doc! { "input": 1, "sortBy": doc! {} }.into(), 2_942_505),
            (doc! { "input": 1, "sortBy": 2 }.into(), 2_942_506),
            (
                doc! { "input": 1, "sortBy": doc! { "a": "x" } }.into(),
                2_942_506,
            ),
        ] {
            assert_eq!(parse_code(doc! { "$sortArray": argument }), code);
        }
        assert_eq!(eval_code(&doc! {}, sort(5, 1)), 2_942_504);
    }
}
