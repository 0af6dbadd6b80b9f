//! `$indexOfBytes` and `$indexOfCP`: string, token, start?, end?.
//!
//! The position of the first occurrence within [start, end), −1 if there is none or the range is
//! empty. A null string gives null; the token must be a string, the bounds non-negative integers
//! (40096, 40097).

use nilometer_bson::ValueRef;

use super::evaluated::Evaluated;
use super::numeric::integral_i32;
use super::operation::{CallContext, arg};
use crate::error::{Error, Result, location};

/// Parses a bound of a search, with the codes common to all `$indexOf…` operators.
pub(super) fn search_bound(
    values: &[Evaluated<'_>],
    index: usize,
    name: &str,
    what: &str,
) -> Result<Option<usize>> {
    let Some(value) = values.get(index) else {
        return Ok(None);
    };
    let value = value.as_ref();
    let Some(bound) = integral_i32(value) else {
        return Err(Error::location(
            location::INDEX_OF_BOUND_TYPE,
            format!(
                "{name} requires an integral {what} index, found a value of type: {}",
                value.type_name()
            ),
        ));
    };
    usize::try_from(bound).map(Some).map_err(|_| {
        Error::location(
            location::INDEX_OF_BOUND_NEGATIVE,
            format!("{name} requires a nonnegative {what} index, found: {bound}"),
        )
    })
}

/// Returns text and token, or `None` for a null text.
fn operands<'v>(
    values: &'v [Evaluated<'_>],
    call: CallContext<'_, '_>,
    codes: [i32; 2],
) -> Result<Option<(&'v str, &'v str)>> {
    let type_error = |code: i32, which: &str, found: ValueRef<'_>| {
        Error::location(
            code,
            format!(
                "{} requires a string as the {which} argument, found: {}",
                call.name,
                found.type_name()
            ),
        )
    };
    let [first, second] = codes;
    match (arg(values, 0).as_ref(), arg(values, 1).as_ref()) {
        (text, _) if text.is_nullish() => Ok(None),
        (ValueRef::String(text), ValueRef::String(token)) => Ok(Some((text, token))),
        (ValueRef::String(_), other) => Err(type_error(second, "second", other)),
        (other, _) => Err(type_error(first, "first", other)),
    }
}

fn found<'s>(position: Option<usize>) -> Evaluated<'s> {
    Evaluated::from(position.and_then(|at| i32::try_from(at).ok()).unwrap_or(-1))
}

pub(super) fn bytes<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let Some((text, token)) = operands(
        values,
        call,
        [
            location::INDEX_OF_BYTES_FIRST_NOT_STRING,
            location::INDEX_OF_BYTES_SECOND_NOT_STRING,
        ],
    )?
    else {
        return Ok(Evaluated::NULL);
    };
    let start = search_bound(values, 2, call.name, "starting")?.unwrap_or(0);
    let end = search_bound(values, 3, call.name, "ending")?
        .unwrap_or(text.len())
        .min(text.len());
    if start > end {
        return Ok(found(None));
    }
    if token.is_empty() {
        return Ok(found(Some(start)));
    }
    // A token begins and ends between characters, so the search does too; it is linear.
    let (start, end) = (
        text.ceil_char_boundary(start),
        text.floor_char_boundary(end),
    );
    let position = text.get(start..end).and_then(|range| range.find(token));
    Ok(found(position.map(|at| at + start)))
}

pub(super) fn code_points<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let Some((text, token)) = operands(
        values,
        call,
        [
            location::INDEX_OF_CP_FIRST_NOT_STRING,
            location::INDEX_OF_CP_SECOND_NOT_STRING,
        ],
    )?
    else {
        return Ok(Evaluated::NULL);
    };
    let start = search_bound(values, 2, call.name, "starting")?.unwrap_or(0);
    let end = search_bound(values, 3, call.name, "ending")?;
    // Byte positions of the bounds, including the end of the text.
    let byte_at = |index: usize| {
        text.char_indices()
            .map(|(at, _)| at)
            .chain([text.len()])
            .nth(index)
    };
    let Some(from) = byte_at(start) else {
        return Ok(found(None));
    };
    let to = end.and_then(byte_at).unwrap_or(text.len());
    let Some(range) = text.get(from..to) else {
        return Ok(found(None));
    };
    let position = range
        .find(token)
        .and_then(|at| range.get(..at))
        .map(|before| before.chars().count() + start);
    Ok(found(position))
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Value, array, doc};

    use super::super::testing::{call, check_exact, eval_code};

    #[test]
    fn positions() {
        let doc = doc! { "s": "aßca", "n": Value::Null };
        for (argument, bytes, code_points) in [
            (array!["$s", "c"], 3, 2),
            (array!["$s", "a"], 0, 0),
            (array!["$s", "a", 1], 4, 3),
            (array!["$s", "a", 1, 3], -1, -1),
            (array!["$s", "x"], -1, -1),
            (array!["$s", ""], 0, 0),
            (array!["$s", "", 3], 3, 3),
            (array!["$s", "a", 9], -1, -1),
            (array!["$s", "a", 3, 2], -1, -1),
            (array!["", ""], 0, 0),
            (array!["$s", "c", 0.0, 99i64], 3, 2),
        ] {
            check_exact(&doc, call("$indexOfBytes", argument.clone()), bytes);
            check_exact(&doc, call("$indexOfCP", argument), code_points);
        }
        check_exact(&doc, doc! { "$indexOfCP": array!["$n", 5] }, Value::Null);
    }

    #[test]
    fn errors() {
        let doc = doc! {};
        for (name, first, second) in [
            ("$indexOfBytes", 40091, 40092),
            ("$indexOfCP", 40093, 40094),
        ] {
            for (argument, code) in [
                (array![1, "x"], first),
                (array!["x", Value::Null], second),
                (array!["x", "y", "z"], 40096),
                (array!["x", "y", 0.5], 40096),
                (array!["x", "y", -1], 40097),
                (array!["x", "y", 0, -1], 40097),
                (array!["x"], 28667),
                (array!["x", "y", 0, 1, 2], 28667),
            ] {
                assert_eq!(eval_code(&doc, call(name, argument)), code, "{name}");
            }
        }
    }
}
