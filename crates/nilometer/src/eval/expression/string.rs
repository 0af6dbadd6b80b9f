//! Strings: `$concat $toLower $toUpper $strcasecmp $strLenBytes $strLenCP $split $replaceOne
//! $replaceAll`.
//!
//! | operator | null, missing | errors |
//! |---|---|---|
//! | `$concat` | null | 16702 not a string |
//! | `$toLower`, `$toUpper`, `$strcasecmp` | as the empty string | 16007 no text form |
//! | `$strLenBytes`, `$strLenCP` | error | 34473, 34471 not a string |
//! | `$split` | null | 40085, 40086 not strings, 40087 empty delimiter |
//! | `$replaceOne`, `$replaceAll` | null | 51744 to 51746 not strings, 51747 to 51751 arguments |
//!
//! Case conversion and comparison apply to ASCII letters only. Numbers and dates are converted to
//! text where the table says "text form".

use std::borrow::Cow;

use nilometer_bson::ValueRef;
use nilometer_bson::number::format_f64;

use super::array::ArrayBuilder;
use super::check_bytes;
use super::evaluated::Evaluated;
use super::operation::{CallContext, arg};
use super::registry::{NamedArguments, required};
use crate::error::{Error, Result, location};
use crate::eval::date::DateFormat;

/// Returns the text form of a value; the empty string for null and missing.
pub(super) fn coerce_to_string(value: ValueRef<'_>) -> Result<Cow<'_, str>> {
    Ok(match value {
        ValueRef::String(text) | ValueRef::Symbol(text) | ValueRef::Code(text) => {
            Cow::Borrowed(text)
        }
        ValueRef::Missing | ValueRef::Null | ValueRef::Undefined => Cow::Borrowed(""),
        ValueRef::Int32(v) => Cow::Owned(v.to_string()),
        ValueRef::Int64(v) => Cow::Owned(v.to_string()),
        ValueRef::Double(v) => Cow::Owned(format_f64(v)),
        ValueRef::Decimal128(v) => Cow::Owned(v.to_string()),
        ValueRef::DateTime(ms) => Cow::Owned(DateFormat::iso_utc(ms)?),
        ValueRef::Timestamp(t) => Cow::Owned(DateFormat::iso_utc(i64::from(t.seconds) * 1000)?),
        other => {
            return Err(Error::location(
                location::STRING_CONVERSION,
                format!(
                    "can't convert from BSON type {} to String",
                    other.type_name()
                ),
            ));
        }
    })
}

pub(super) fn concat<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let mut out = String::new();
    for value in values {
        match value.as_ref() {
            ValueRef::String(text) => {
                check_bytes(out.len().saturating_add(text.len()), call.name)?;
                out.push_str(text);
            }
            value if value.is_nullish() => return Ok(Evaluated::NULL),
            other => {
                return Err(Error::location(
                    location::CONCAT_NOT_STRING,
                    format!("$concat only supports strings, not {}", other.type_name()),
                ));
            }
        }
    }
    Ok(Evaluated::from(out))
}

pub(super) fn to_lower<'s>(
    values: &[Evaluated<'s>],
    _: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let text = coerce_to_string(arg(values, 0).as_ref())?;
    Ok(Evaluated::from(text.to_ascii_lowercase()))
}

pub(super) fn to_upper<'s>(
    values: &[Evaluated<'s>],
    _: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let text = coerce_to_string(arg(values, 0).as_ref())?;
    Ok(Evaluated::from(text.to_ascii_uppercase()))
}

pub(super) fn strcasecmp<'s>(
    values: &[Evaluated<'s>],
    _: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let left = coerce_to_string(arg(values, 0).as_ref())?;
    let right = coerce_to_string(arg(values, 1).as_ref())?;
    let upper = |text: &str| text.to_ascii_uppercase();
    Ok(Evaluated::from(upper(&left).cmp(&upper(&right)) as i32))
}

pub(super) fn len_bytes<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    length(values, call, location::STR_LEN_BYTES_NOT_STRING, str::len)
}

pub(super) fn len_cp<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    length(values, call, location::STR_LEN_CP_NOT_STRING, |text| {
        text.chars().count()
    })
}

fn length<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
    code: i32,
    measure: fn(&str) -> usize,
) -> Result<Evaluated<'s>> {
    match arg(values, 0).as_ref() {
        ValueRef::String(text) => Ok(Evaluated::from(
            i32::try_from(measure(text)).unwrap_or(i32::MAX),
        )),
        other => Err(Error::location(
            code,
            format!(
                "{} requires a string argument, found: {}",
                call.name,
                other.type_name()
            ),
        )),
    }
}

pub(super) fn split<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let (text, delimiter) = (arg(values, 0).as_ref(), arg(values, 1).as_ref());
    if text.is_nullish() || delimiter.is_nullish() {
        return Ok(Evaluated::NULL);
    }
    let (text, delimiter) = match (text, delimiter) {
        (ValueRef::String(text), ValueRef::String(delimiter)) => (text, delimiter),
        (ValueRef::String(_), other) => {
            return Err(Error::location(
                location::SPLIT_SECOND_NOT_STRING,
                format!(
                    "$split requires an expression that evaluates to a string as a second \
                     argument, found: {}",
                    other.type_name()
                ),
            ));
        }
        (other, _) => {
            return Err(Error::location(
                location::SPLIT_FIRST_NOT_STRING,
                format!(
                    "$split requires an expression that evaluates to a string as a first \
                     argument, found: {}",
                    other.type_name()
                ),
            ));
        }
    };
    if delimiter.is_empty() {
        return Err(Error::location(
            location::SPLIT_SEPARATOR_EMPTY,
            "$split requires a non-empty separator",
        ));
    }
    let mut parts = ArrayBuilder::new(call.scope);
    parts.extend(text.split(delimiter).map(ValueRef::String))?;
    Ok(parts.finish())
}

pub(super) const REPLACE: NamedArguments = NamedArguments {
    not_object: location::REPLACE_NOT_OBJECT,
    unknown: location::REPLACE_ARGUMENT_UNKNOWN,
    fields: &[
        required("input", location::REPLACE_INPUT_MISSING),
        required("find", location::REPLACE_FIND_MISSING),
        required("replacement", location::REPLACE_REPLACEMENT_MISSING),
    ],
};

pub(super) fn replace_one<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    replace(values, call, |text, find, with| {
        text.replacen(find, with, 1)
    })
}

pub(super) fn replace_all<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    replace(values, call, |text, find, with| text.replace(find, with))
}

fn replace<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
    replace: fn(&str, &str, &str) -> String,
) -> Result<Evaluated<'s>> {
    let mut texts = [""; 3];
    let mut null = false;
    let names = [
        ("input", location::REPLACE_INPUT_NOT_STRING),
        ("find", location::REPLACE_FIND_NOT_STRING),
        ("replacement", location::REPLACE_REPLACEMENT_NOT_STRING),
    ];
    for ((value, text), (name, code)) in values.iter().zip(&mut texts).zip(names) {
        match value.as_ref() {
            ValueRef::String(found) => *text = found,
            value if value.is_nullish() => null = true,
            other => {
                return Err(Error::location(
                    code,
                    format!(
                        "{} requires that '{name}' be a string, found: {}",
                        call.name,
                        other.type_name()
                    ),
                ));
            }
        }
    }
    if null {
        return Ok(Evaluated::NULL);
    }
    let [input, find, replacement] = texts;
    if replacement.len() > find.len() {
        let most = match call.name {
            "$replaceOne" => 1,
            _ => input.matches(find).count(),
        };
        let grown = (replacement.len() - find.len()).saturating_mul(most);
        check_bytes(input.len().saturating_add(grown), call.name)?;
    }
    Ok(Evaluated::from(replace(input, find, replacement)))
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Value, array, doc};

    use super::super::testing::{check_exact, eval_code, parse_code};

    #[test]
    fn values() {
        let doc = doc! { "s": "Höhe", "n": Value::Null, "t": Value::DateTime(0) };
        let cases: Vec<(Value, Value)> = vec![
            (
                doc! { "$concat": array!["a", "$s", "!"] }.into(),
                "aHöhe!".into(),
            ),
            (doc! { "$concat": array![] }.into(), "".into()),
            (doc! { "$concat": array!["a", "$n"] }.into(), Value::Null),
            (doc! { "$concat": array!["$gone"] }.into(), Value::Null),
            (doc! { "$toLower": "ABÖ" }.into(), "abÖ".into()),
            (doc! { "$toUpper": "$s" }.into(), "HöHE".into()),
            (doc! { "$toUpper": "$n" }.into(), "".into()),
            (doc! { "$toLower": "$gone" }.into(), "".into()),
            (doc! { "$toUpper": 1.5 }.into(), "1.5".into()),
            (
                doc! { "$toLower": "$t" }.into(),
                "1970-01-01t00:00:00.000z".into(),
            ),
            (doc! { "$strcasecmp": array!["a", "A"] }.into(), 0.into()),
            (doc! { "$strcasecmp": array!["a", "B"] }.into(), (-1).into()),
            (doc! { "$strcasecmp": array!["$n", ""] }.into(), 0.into()),
            (doc! { "$strcasecmp": array![5, 4] }.into(), 1.into()),
            (doc! { "$strLenBytes": "$s" }.into(), 5.into()),
            (doc! { "$strLenCP": "$s" }.into(), 4.into()),
            (
                doc! { "$split": array!["a-b-", "-"] }.into(),
                array!["a", "b", ""],
            ),
            (doc! { "$split": array!["ab", "-"] }.into(), array!["ab"]),
            (doc! { "$split": array!["$n", 5] }.into(), Value::Null),
            (
                doc! { "$replaceOne": doc! { "input": "aXbX", "find": "X", "replacement": "-" } }
                    .into(),
                "a-bX".into(),
            ),
            (
                doc! { "$replaceAll": doc! { "input": "aXbX", "find": "X", "replacement": "" } }
                    .into(),
                "ab".into(),
            ),
            (
                doc! { "$replaceAll": doc! { "input": "ab", "find": "$n", "replacement": "" } }
                    .into(),
                Value::Null,
            ),
            (
                doc! { "$replaceAll": doc! { "input": "ab", "find": "", "replacement": "-" } }
                    .into(),
                "-a-b-".into(),
            ),
        ];
        for (expression, expected) in cases {
            check_exact(&doc, expression, expected);
        }
    }

    #[test]
    fn errors() {
        let doc = doc! { "a": array![1], "n": Value::Null };
        for (expression, code) in [
            (doc! { "$concat": array!["a", 1] }, 16702),
            (doc! { "$toLower": "$a" }, 16007),
            (doc! { "$strcasecmp": array![true, "x"] }, 16007),
            (doc! { "$strLenBytes": "$n" }, 34473),
            (doc! { "$strLenCP": 5 }, 34471),
            (doc! { "$split": array![1, "x"] }, 40085),
            (doc! { "$split": array!["x", 1] }, 40086),
            (doc! { "$split": array!["x", ""] }, 40087),
        ] {
            assert_eq!(eval_code(&doc, expression.clone()), code, "{expression:?}");
        }
        for name in ["$replaceOne", "$replaceAll"] {
            let call = |argument: Value| {
                let mut out = nilometer_bson::DocumentBuilder::new();
                out.append(name, argument);
                out.finish()
            };
            for (argument, code) in [
                (Value::from(1), 51751),
                (doc! { "x": 1 }.into(), 51750),
                (doc! { "find": 1, "replacement": 1 }.into(), 51749),
                (doc! { "input": 1, "replacement": 1 }.into(), 51748),
                (doc! { "input": 1, "find": 1 }.into(), 51747),
            ] {
                assert_eq!(parse_code(call(argument)), code);
            }
            for (argument, code) in [
                (doc! { "input": 1, "find": "$n", "replacement": "" }, 51746),
                (doc! { "input": "", "find": 1, "replacement": "" }, 51745),
                (doc! { "input": "", "find": "", "replacement": 1 }, 51744),
            ] {
                assert_eq!(eval_code(&doc, call(argument.into())), code);
            }
        }
    }
}
