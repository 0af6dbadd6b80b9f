//! Expressions run over the elements of an array: `$map $filter $reduce`.
//!
//! | operator | binds | result |
//! |---|---|---|
//! | `$map: {input, as = "this", in}` | the element | its results, missing as null |
//! | `$filter: {input, as = "this", cond, limit?}` | the element | elements whose condition is true, at most `limit` |
//! | `$reduce: {input, initialValue, in}` | `$$value`, `$$this` | the last value of `in` |
//!
//! Null input gives null. A null limit is no limit.

use nilometer_bson::{DocRef, Value, ValueRef};

use super::Expression;
use super::array::ArrayBuilder;
use super::evaluated::Evaluated;
use super::numeric::integral_i32;
use super::operation::Operation;
use super::parse::{ExpressionParser, object};
use super::registry::OperatorSpec;
use super::scope::Scope;
use crate::error::{Error, Result, location};
use crate::eval::memory_bytes;
use crate::eval::variables::check_user_name;

/// Error codes of an operator's arguments.
struct ArgumentCodes {
    not_object: i32,
    unknown: i32,
}

/// Returns the argument object; an error if it has unknown members.
fn members<'a>(
    value: ValueRef<'a>,
    name: &str,
    known: &[&str],
    codes: ArgumentCodes,
) -> Result<DocRef<'a>> {
    let wanted = format!("{name} only supports an object as its argument");
    let doc = object(value, codes.not_object, &wanted)?;
    match doc.iter().find(|element| !known.contains(&element.name())) {
        None => Ok(doc),
        Some(other) => Err(Error::location(
            codes.unknown,
            format!("Unrecognized parameter to {name}: {}", other.name()),
        )),
    }
}

/// Returns a required member.
fn required<'a>(doc: DocRef<'a>, member: &str, name: &str, code: i32) -> Result<ValueRef<'a>> {
    match doc.get(member) {
        ValueRef::Missing => Err(Error::location(
            code,
            format!("Missing '{member}' parameter to {name}"),
        )),
        value => Ok(value),
    }
}

/// Returns the name that elements are bound to.
fn element_name<'a>(doc: DocRef<'a>) -> Result<&'a str> {
    match doc.get("as") {
        ValueRef::Missing => Ok("this"),
        ValueRef::String(name) => {
            check_user_name(name)?;
            Ok(name)
        }
        other => Err(Error::failed_to_parse(format!(
            "'as' must be a string, found: {}",
            other.type_name()
        ))),
    }
}

/// Arguments of the operation: input, in. Bindings: the element.
pub(super) fn parse_map(
    parser: &mut ExpressionParser<'_>,
    spec: &'static OperatorSpec,
    value: ValueRef<'_>,
) -> Result<Expression> {
    let codes = ArgumentCodes {
        not_object: location::MAP_NOT_OBJECT,
        unknown: location::MAP_ARGUMENT_UNKNOWN,
    };
    let doc = members(value, "$map", &["input", "as", "in"], codes)?;
    let input = required(doc, "input", "$map", location::MAP_INPUT_MISSING)?;
    let body = required(doc, "in", "$map", location::MAP_IN_MISSING)?;
    let name = element_name(doc)?;
    let input = parser.operand(input)?;
    let slot = parser.bind(name);
    let body = parser.operand(body);
    parser.unbind(1);
    let mut operation = Operation::new(spec, vec![Some(input), Some(body?)]);
    operation.bindings = vec![slot];
    Ok(operation.into_expression())
}

/// Arguments of the operation: input, condition, limit. Bindings: the element.
pub(super) fn parse_filter(
    parser: &mut ExpressionParser<'_>,
    spec: &'static OperatorSpec,
    value: ValueRef<'_>,
) -> Result<Expression> {
    let codes = ArgumentCodes {
        not_object: location::FILTER_NOT_OBJECT,
        unknown: location::FILTER_ARGUMENT_UNKNOWN,
    };
    let doc = members(value, "$filter", &["input", "as", "cond", "limit"], codes)?;
    let input = required(doc, "input", "$filter", location::FILTER_INPUT_MISSING)?;
    let condition = required(doc, "cond", "$filter", location::FILTER_COND_MISSING)?;
    let name = element_name(doc)?;
    let input = parser.operand(input)?;
    let limit = match doc.get("limit") {
        ValueRef::Missing => None,
        limit => Some(parser.operand(limit)?),
    };
    let slot = parser.bind(name);
    let condition = parser.operand(condition);
    parser.unbind(1);
    let mut operation = Operation::new(spec, vec![Some(input), Some(condition?), limit]);
    operation.bindings = vec![slot];
    Ok(operation.into_expression())
}

/// Arguments of the operation: input, initial value, in. Bindings: this, value.
pub(super) fn parse_reduce(
    parser: &mut ExpressionParser<'_>,
    spec: &'static OperatorSpec,
    value: ValueRef<'_>,
) -> Result<Expression> {
    let codes = ArgumentCodes {
        not_object: location::REDUCE_NOT_OBJECT,
        unknown: location::REDUCE_ARGUMENT_UNKNOWN,
    };
    let doc = members(value, "$reduce", &["input", "initialValue", "in"], codes)?;
    let input = required(doc, "input", "$reduce", location::REDUCE_INPUT_MISSING)?;
    let initial = required(
        doc,
        "initialValue",
        "$reduce",
        location::REDUCE_INITIAL_VALUE_MISSING,
    )?;
    let body = required(doc, "in", "$reduce", location::REDUCE_IN_MISSING)?;
    let input = parser.operand(input)?;
    let initial = parser.operand(initial)?;
    let bindings = vec![parser.bind("this"), parser.bind("value")];
    let body = parser.operand(body);
    parser.unbind(2);
    let mut operation = Operation::new(spec, vec![Some(input), Some(initial), Some(body?)]);
    operation.bindings = bindings;
    Ok(operation.into_expression())
}

fn not_an_array(code: i32, name: &str, found: &Evaluated<'_>) -> Error {
    Error::location(
        code,
        format!("input to {name} must be an array not {}", found.type_name()),
    )
}

pub(super) fn map<'s>(operation: &'s Operation, scope: &Scope<'s>) -> Result<Evaluated<'s>> {
    let input = operation.value(0, scope)?;
    if input.is_nullish() {
        return Ok(Evaluated::NULL);
    }
    let Some(array) = input.as_array() else {
        return Err(not_an_array(location::MAP_INPUT_NOT_ARRAY, "$map", &input));
    };
    let mut out = ArrayBuilder::new(scope);
    for element in array.iter() {
        let frame = scope.bind(operation.binding(0), element);
        out.push(operation.value(1, &scope.within(&frame))?.as_ref())?;
    }
    Ok(out.finish())
}

pub(super) fn filter<'s>(operation: &'s Operation, scope: &Scope<'s>) -> Result<Evaluated<'s>> {
    let input = operation.value(0, scope)?;
    if input.is_nullish() {
        return Ok(Evaluated::NULL);
    }
    let Some(array) = input.as_array() else {
        return Err(not_an_array(
            location::FILTER_INPUT_NOT_ARRAY,
            "$filter",
            &input,
        ));
    };
    let mut left = match operation.optional(2, scope)? {
        None => usize::MAX,
        Some(limit) => filter_limit(limit.as_ref())?,
    };
    let mut out = ArrayBuilder::new(scope);
    for element in array.iter() {
        let frame = scope.bind(operation.binding(0), element);
        if operation.value(1, &scope.within(&frame))?.is_true() {
            out.push(element)?;
            left -= 1;
            if left == 0 {
                break;
            }
        } else {
            out.skip()?;
        }
    }
    Ok(out.finish())
}

fn filter_limit(limit: ValueRef<'_>) -> Result<usize> {
    if limit.is_nullish() {
        return Ok(usize::MAX);
    }
    let Some(limit) = integral_i32(limit) else {
        return Err(Error::location(
            location::FILTER_LIMIT_TYPE,
            format!(
                "$filter: limit must be represented as a 32-bit integral value: {}",
                limit.type_name()
            ),
        ));
    };
    usize::try_from(limit)
        .ok()
        .filter(|limit| *limit > 0)
        .ok_or_else(|| {
            Error::location(
                location::FILTER_LIMIT_NOT_POSITIVE,
                format!("$filter: limit must be greater than 0: {limit}"),
            )
        })
}

pub(super) fn reduce<'s>(operation: &'s Operation, scope: &Scope<'s>) -> Result<Evaluated<'s>> {
    let input = operation.value(0, scope)?;
    if input.is_nullish() {
        return Ok(Evaluated::NULL);
    }
    let Some(array) = input.as_array() else {
        return Err(not_an_array(
            location::REDUCE_INPUT_NOT_ARRAY,
            "$reduce",
            &input,
        ));
    };
    let mark = scope.context.mark();
    let mut value: Value = operation.value(1, scope)?.into_value();
    for element in array.iter() {
        let next = {
            let this = scope.bind(operation.binding(0), element);
            let within = scope.within(&this);
            let accumulated = within.bind(operation.binding(1), value.as_ref());
            operation
                .value(2, &within.within(&accumulated))?
                .into_value()
        };
        value = next;
        scope.context.hold(mark, memory_bytes(&value))?;
    }
    Ok(Evaluated::Owned(value))
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Document, array, doc};

    use super::super::testing::{check_exact, eval_code, parse_code};
    use super::*;

    #[test]
    fn map_binds_elements() {
        let doc = doc! { "a": array![1, 2], "k": 10, "n": Value::Null };
        let map = |arguments: Document| doc! { "$map": arguments };
        check_exact(
            &doc,
            map(doc! { "input": "$a", "as": "x", "in": doc! { "$add": array!["$$x", "$k"] } }),
            array![11, 12],
        );
        check_exact(
            &doc,
            map(doc! { "input": "$a", "in": "$$this" }),
            array![1, 2],
        );
        check_exact(
            &doc,
            map(doc! { "input": "$a", "in": "$gone" }),
            array![Value::Null, Value::Null],
        );
        check_exact(&doc, map(doc! { "input": "$n", "in": 1 }), Value::Null);
        // Nested: the inner name hides the outer one, which can be read under another name.
        let inner = doc! { "$map": doc! { "input": array![1, 2], "in": doc! { "$multiply": array!["$$this", "$$outer"] } } };
        check_exact(
            &doc,
            map(doc! { "input": "$a", "as": "outer", "in": inner }),
            array![array![1, 2], array![2, 4]],
        );
        let paths = doc! { "input": array![doc! { "q": 5 }, 1], "in": "$$this.q" };
        check_exact(&doc, map(paths), array![5, Value::Null]);
    }

    #[test]
    fn filter_keeps_what_is_true() {
        let doc = doc! { "a": array![1, 2, 3, 4], "n": Value::Null };
        let odd = doc! { "$mod": array!["$$this", 2] };
        let filter = |arguments: Document| doc! { "$filter": arguments };
        check_exact(
            &doc,
            filter(doc! { "input": "$a", "cond": odd.clone() }),
            array![1, 3],
        );
        check_exact(
            &doc,
            filter(doc! { "input": "$a", "cond": odd.clone(), "limit": 1 }),
            array![1],
        );
        check_exact(
            &doc,
            filter(doc! { "input": "$a", "cond": odd.clone(), "limit": "$n" }),
            array![1, 3],
        );
        check_exact(&doc, filter(doc! { "input": "$n", "cond": 1 }), Value::Null);
        for (limit, code) in [
            (Value::from(0), 327_392),
            (1.5.into(), 327_391),
            ("x".into(), 327_391),
        ] {
            let arguments = doc! { "input": "$a", "cond": odd.clone(), "limit": limit };
            assert_eq!(eval_code(&doc, filter(arguments)), code);
        }
    }

    #[test]
    fn reduce_accumulates() {
        let doc = doc! { "a": array!["a", "b"], "n": Value::Null };
        let reduce = |arguments: Document| doc! { "$reduce": arguments };
        let concat = doc! { "$concat": array!["$$value", "$$this"] };
        check_exact(
            &doc,
            reduce(doc! { "input": "$a", "initialValue": "", "in": concat.clone() }),
            "ab",
        );
        check_exact(
            &doc,
            reduce(doc! { "input": array![], "initialValue": 7, "in": concat.clone() }),
            7,
        );
        check_exact(
            &doc,
            reduce(doc! { "input": "$n", "initialValue": 7, "in": concat }),
            Value::Null,
        );
        let both = doc! {
            "input": array![1, 2, 3],
            "initialValue": doc! { "s": 0, "p": 1 },
            "in": doc! {
                "s": doc! { "$add": array!["$$value.s", "$$this"] },
                "p": doc! { "$multiply": array!["$$value.p", "$$this"] },
            },
        };
        check_exact(&doc, reduce(both), doc! { "s": 6, "p": 6 });
    }

    #[test]
    fn errors() {
        let call = |name: &str, argument: Value| {
            let mut out = nilometer_bson::DocumentBuilder::new();
            out.append(name, argument);
            out.finish()
        };
        for (name, argument, code) in [
            ("$map", Value::from(1), 16878),
            ("$map", doc! { "x": 1 }.into(), 16879),
            ("$map", doc! { "in": 1 }.into(), 16880),
            ("$map", doc! { "input": 1 }.into(), 16882),
            ("$map", doc! { "input": 1, "in": 1, "as": "1x" }.into(), 9),
            ("$filter", 1.into(), 28646),
            ("$filter", doc! { "x": 1 }.into(), 28647),
            ("$filter", doc! { "cond": 1 }.into(), 28648),
            ("$filter", doc! { "input": 1 }.into(), 28650),
            ("$reduce", 1.into(), 40075),
            ("$reduce", doc! { "x": 1 }.into(), 40076),
            ("$reduce", doc! { "initialValue": 1, "in": 1 }.into(), 40077),
            ("$reduce", doc! { "input": 1, "in": 1 }.into(), 40078),
            (
                "$reduce",
                doc! { "input": 1, "initialValue": 1 }.into(),
                40079,
            ),
            (
                "$map",
                doc! { "input": array![1], "as": "x", "in": "$$this" }.into(),
                17276,
            ),
        ] {
            assert_eq!(parse_code(call(name, argument)), code, "{name}");
        }
        let doc = doc! { "s": "x" };
        for (name, argument, code) in [
            ("$map", doc! { "input": "$s", "in": 1 }, 16883),
            ("$filter", doc! { "input": "$s", "cond": 1 }, 28651),
            (
                "$reduce",
                doc! { "input": "$s", "initialValue": 1, "in": 1 },
                40080,
            ),
        ] {
            assert_eq!(eval_code(&doc, call(name, argument.into())), code);
        }
    }
}
