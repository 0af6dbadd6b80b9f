//! `$dateFromString: {dateString, format, timezone, onError, onNull}`.
//!
//! Without format, common written forms are accepted; `timezone` applies if the text names no zone,
//! and is an error if it does. `onNull` replaces a null string, `onError` the result of an invalid
//! one (else error 241). A null format or timezone gives null.
//!
//! Errors: 40540 not an object, 40541 unknown member, 40542 no dateString, 40684 format not a string,
//! 18535 and 18536 bad format.

use std::sync::Arc;

use nilometer_bson::ValueRef;

use super::date_arguments::{any_null, zone};
use super::date_to_string::format_error;
use super::evaluated::Evaluated;
use super::operation::{Operation, PreparedData};
use super::registry::{NamedArguments, optional, required};
use super::scope::Scope;
use crate::error::{Error, ErrorCode, Result, location};
use crate::eval::FoldBudget;
use crate::eval::date::{DateFormat, parse_date};

pub(super) const ARGUMENTS: NamedArguments = NamedArguments {
    not_object: location::DATE_FROM_STRING_NOT_OBJECT,
    unknown: location::DATE_FROM_STRING_ARGUMENT_UNKNOWN,
    fields: &[
        required("dateString", location::DATE_FROM_STRING_DATE_STRING_MISSING),
        optional("format"),
        optional("timezone"),
        optional("onError"),
        optional("onNull"),
    ],
};

pub(super) fn prepare(operation: &Operation, _: &FoldBudget) -> Option<PreparedData> {
    let format = read_format(operation.constant(1)?.as_ref()).ok()?;
    Some(Arc::new(format))
}

fn read_format(value: ValueRef<'_>) -> Result<DateFormat> {
    let ValueRef::String(text) = value else {
        return Err(Error::location(
            location::DATE_FROM_STRING_FORMAT_NOT_STRING,
            format!(
                "$dateFromString requires that 'format' be a string, found: {}",
                value.type_name()
            ),
        ));
    };
    DateFormat::for_reading(text).map_err(format_error)
}

pub(super) fn date_from_string<'s>(
    operation: &'s Operation,
    scope: &Scope<'s>,
) -> Result<Evaluated<'s>> {
    let text = operation.value(0, scope)?;
    if text.is_nullish() {
        return Ok(operation.optional(4, scope)?.unwrap_or(Evaluated::NULL));
    }
    let format = operation.optional(1, scope)?;
    let timezone = operation.optional(2, scope)?;
    if any_null(&[format.as_ref(), timezone.as_ref()]) {
        return Ok(Evaluated::NULL);
    }
    let timezone = timezone.map(|value| zone(value.as_ref())).transpose()?;
    let read;
    let format = match (operation.prepared::<DateFormat>(), &format) {
        (Some(format), _) => Some(format),
        (None, Some(given)) => {
            read = read_format(given.as_ref())?;
            Some(&read)
        }
        (None, None) => None,
    };
    let date = match (text.as_ref(), format) {
        (ValueRef::String(text), Some(format)) => format.read(text, timezone.as_ref()),
        (ValueRef::String(text), None) => parse_date(text, timezone.as_ref()),
        (other, _) => Err(Error::new(
            ErrorCode::ConversionFailure,
            format!(
                "$dateFromString requires that 'dateString' be a string, found: {}",
                other.type_name()
            ),
        )),
    };
    match date {
        Ok(ms) => Ok(Evaluated::Borrowed(ValueRef::DateTime(ms))),
        Err(error) if error.code == ErrorCode::ConversionFailure => {
            match operation.optional(3, scope)? {
                Some(value) => Ok(value),
                None => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Document, Value, doc};

    use super::super::testing::{check_exact, eval_code, parse_code};

    fn call(arguments: Document) -> Document {
        doc! { "$dateFromString": arguments }
    }

    #[test]
    fn reads() {
        let doc =
            doc! { "s": "2017-02-08T12:10:40.787Z", "n": Value::Null, "z": "-01", "f": "%d/%m/%Y" };
        let noon = 1_486_555_840_787;
        let day = 1_486_512_000_000;
        for (arguments, expected) in [
            (doc! { "dateString": "$s" }, noon),
            (
                doc! { "dateString": "2017-02-08", "timezone": "$z" },
                day + 3_600_000,
            ),
            (doc! { "dateString": "08/02/2017", "format": "$f" }, day),
            (
                doc! { "dateString": "08/02/2017", "format": "%d/%m/%Y", "timezone": "$z" },
                day + 3_600_000,
            ),
        ] {
            check_exact(&doc, call(arguments), Value::DateTime(expected));
        }
        for arguments in [
            doc! { "dateString": "$n" },
            doc! { "dateString": "$s", "format": "$n" },
            doc! { "dateString": "$s", "timezone": "$gone" },
        ] {
            check_exact(&doc, call(arguments), Value::Null);
        }
        check_exact(&doc, call(doc! { "dateString": "$gone", "onNull": 5 }), 5);
        check_exact(
            &doc,
            call(doc! { "dateString": "$n", "onNull": "$gone" }),
            Value::Missing,
        );
        check_exact(
            &doc,
            call(doc! { "dateString": "junk", "onError": "$f" }),
            "%d/%m/%Y",
        );
        check_exact(&doc, call(doc! { "dateString": 5, "onError": "no" }), "no");
    }

    #[test]
    fn errors() {
        let doc = doc! { "s": "2017-02-08T12:10:40Z" };
        for (argument, code) in [
            (Value::from("x"), 40540),
            (doc! { "dateString": "", "x": 1 }.into(), 40541),
            (doc! { "format": "" }.into(), 40542),
        ] {
            assert_eq!(parse_code(doc! { "$dateFromString": argument }), code);
        }
        for (arguments, code) in [
            (doc! { "dateString": "junk" }, 241),
            (doc! { "dateString": 5 }, 241),
            (doc! { "dateString": "$s", "timezone": "+01" }, 241),
            (doc! { "dateString": "$s", "format": 5 }, 40684),
            (doc! { "dateString": "$s", "format": "%" }, 18535),
            (doc! { "dateString": "$s", "format": "%n" }, 18536),
            (doc! { "dateString": "$s", "timezone": "Nowhere" }, 40485),
            (doc! { "dateString": "$s", "timezone": 5 }, 40517),
        ] {
            assert_eq!(
                eval_code(&doc, call(arguments.clone())),
                code,
                "{arguments:?}"
            );
        }
    }
}
