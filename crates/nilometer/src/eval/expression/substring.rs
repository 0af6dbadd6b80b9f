//! `$substrBytes` (also as `$substr`) and `$substrCP`: string, start, length.
//!
//! The first operand is converted to its text form, null to the empty string. Positions count bytes
//! or code points from zero; a start beyond the end gives the empty string. For bytes, a negative
//! length means the rest, and neither end may be inside a character.

use nilometer_bson::ValueRef;
use nilometer_bson::number::Number;

use super::evaluated::Evaluated;
use super::numeric::integral_i32;
use super::operation::{CallContext, arg};
use super::string::coerce_to_string;
use crate::error::{Error, Result, location};

pub(super) fn bytes<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let text = coerce_to_string(arg(values, 0).as_ref())?;
    let whole = |value: ValueRef<'_>, code: i32, what: &str| {
        Number::of(value)
            .and_then(|number| number.to_i64_truncated().ok())
            .ok_or_else(|| {
                Error::location(
                    code,
                    format!(
                        "{}: {what} must be a numeric type (is BSON type {})",
                        call.name,
                        value.type_name()
                    ),
                )
            })
    };
    let start = whole(
        arg(values, 1).as_ref(),
        location::SUBSTR_START_TYPE,
        "starting index",
    )?;
    let length = whole(
        arg(values, 2).as_ref(),
        location::SUBSTR_LENGTH_TYPE,
        "length",
    )?;
    let start = usize::try_from(start).map_err(|_| {
        Error::location(
            location::SUBSTR_START_NEGATIVE,
            format!(
                "{}: starting index must be non-negative (got: {start})",
                call.name
            ),
        )
    })?;
    if start >= text.len() {
        return Ok(Evaluated::from(String::new()));
    }
    if !text.is_char_boundary(start) {
        return Err(Error::location(
            location::SUBSTR_START_IN_CHARACTER,
            format!(
                "{}: Invalid range, starting index is a UTF-8 continuation byte.",
                call.name
            ),
        ));
    }
    let end = usize::try_from(length).map_or(text.len(), |length| {
        start.saturating_add(length).min(text.len())
    });
    match text.get(start..end) {
        Some(part) => Ok(Evaluated::from(part.to_owned())),
        None => Err(Error::location(
            location::SUBSTR_END_IN_CHARACTER,
            format!(
                "{}: Invalid range, ending index is in the middle of a UTF-8 character.",
                call.name
            ),
        )),
    }
}

pub(super) fn code_points<'s>(
    values: &[Evaluated<'s>],
    _: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let text = coerce_to_string(arg(values, 0).as_ref())?;
    let start = position(
        arg(values, 1).as_ref(),
        "starting index",
        [
            location::SUBSTR_CP_START_TYPE,
            location::SUBSTR_CP_START_RANGE,
            location::SUBSTR_CP_START_NEGATIVE,
        ],
    )?;
    let length = position(
        arg(values, 2).as_ref(),
        "length",
        [
            location::SUBSTR_CP_LENGTH_TYPE,
            location::SUBSTR_CP_LENGTH_RANGE,
            location::SUBSTR_CP_LENGTH_NEGATIVE,
        ],
    )?;
    Ok(Evaluated::from(
        text.chars().skip(start).take(length).collect::<String>(),
    ))
}

/// Parses a non-negative 32-bit integer; the codes are for not a number, not 32 bits, negative.
fn position(value: ValueRef<'_>, what: &str, codes: [i32; 3]) -> Result<usize> {
    let [not_number, not_whole, negative] = codes;
    if !value.is_number() {
        return Err(Error::location(
            not_number,
            format!(
                "$substrCP: {what} must be a numeric type (is BSON type {})",
                value.type_name()
            ),
        ));
    }
    let Some(position) = integral_i32(value) else {
        return Err(Error::location(
            not_whole,
            format!("$substrCP: {what} cannot be represented as a 32-bit integral value"),
        ));
    };
    usize::try_from(position).map_err(|_| {
        Error::location(
            negative,
            format!("$substrCP: {what} must be a nonnegative integer."),
        )
    })
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Value, array, doc};

    use super::super::testing::{call, check_exact, eval_code};

    #[test]
    fn parts() {
        let doc = doc! { "s": "aßc", "n": Value::Null };
        for (name, argument, expected) in [
            ("$substrBytes", array!["$s", 0, 1], "a"),
            ("$substrBytes", array!["$s", 1, 2], "ß"),
            ("$substrBytes", array!["$s", 1, -1], "ßc"),
            ("$substrBytes", array!["$s", 1.9, 2i64], "ß"),
            ("$substrBytes", array!["$s", 9, 1], ""),
            ("$substr", array!["$n", 0, 5], ""),
            ("$substr", array![12345, 1, 2], "23"),
            ("$substrCP", array!["$s", 1, 1], "ß"),
            ("$substrCP", array!["$s", 1, 9], "ßc"),
            ("$substrCP", array!["$s", 5, 1], ""),
            ("$substrCP", array!["$gone", 0, 1], ""),
        ] {
            check_exact(&doc, call(name, argument), expected);
        }
    }

    #[test]
    fn errors() {
        let doc = doc! { "s": "aßc" };
        for (name, argument, code) in [
            ("$substrBytes", array!["$s", "x", 1], 16034),
            ("$substrBytes", array!["$s", 0, Value::Null], 16035),
            ("$substrBytes", array!["$s", -1, 1], 50752),
            ("$substrBytes", array!["$s", 2, 1], 28656),
            ("$substrBytes", array!["$s", 0, 2], 28657),
            ("$substrBytes", array![array![1], 0, 2], 16007),
            ("$substrCP", array!["$s", "x", 1], 34450),
            ("$substrCP", array!["$s", 0.5, 1], 34451),
            ("$substrCP", array!["$s", 0, "x"], 34452),
            ("$substrCP", array!["$s", 0, 0.5], 34453),
            ("$substrCP", array!["$s", 0, -1], 34454),
            ("$substrCP", array!["$s", -1, 0], 34455),
            ("$substrCP", array!["$s", 1], 16020),
        ] {
            assert_eq!(eval_code(&doc, call(name, argument)), code);
        }
    }
}
