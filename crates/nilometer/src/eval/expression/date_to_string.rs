//! `$dateToString: {date, format, timezone, onNull}`.
//!
//! Without format: ISO form, with a final `Z` in UTC and without it in other zones. [`DateFormat`]
//! lists the specifiers. `onNull` (null if absent, left out if missing) replaces the result for a
//! null date; a null format or timezone gives null.
//!
//! Errors: 18629 not an object, 18534 unknown member, 18628 no date, 18533 format not a string, 18535
//! dangling `%`, 18536 unknown letter, 16006 not a date, 18537 year beyond 0 to 9999.

use std::borrow::Cow;
use std::sync::Arc;

use nilometer_bson::ValueRef;

use super::date_arguments::{any_null, require_date, zone, zone_of};
use super::evaluated::Evaluated;
use super::operation::{Operation, PreparedData};
use super::registry::{NamedArguments, optional, required};
use super::scope::Scope;
use crate::error::{Error, Result, location};
use crate::eval::FoldBudget;
use crate::eval::date::{DateFormat, FormatError, TimeZone};

pub(super) const ARGUMENTS: NamedArguments = NamedArguments {
    not_object: location::DATE_TO_STRING_NOT_OBJECT,
    unknown: location::DATE_TO_STRING_ARGUMENT_UNKNOWN,
    fields: &[
        required("date", location::DATE_TO_STRING_DATE_MISSING),
        optional("format"),
        optional("timezone"),
        optional("onNull"),
    ],
};

/// Format and zone, if both are constant and valid.
struct PreparedFormat {
    format: DateFormat,
    zone: TimeZone,
}

pub(super) fn prepare(operation: &Operation, _: &FoldBudget) -> Option<PreparedData> {
    let zone = match operation.argument(2) {
        None => TimeZone::Utc,
        Some(_) => zone(operation.constant(2)?.as_ref()).ok()?,
    };
    let format = match operation.argument(1) {
        None => DateFormat::default_for(&zone),
        Some(_) => read_format(operation.constant(1)?.as_ref()).ok()?,
    };
    Some(Arc::new(PreparedFormat { format, zone }))
}

fn read_format(value: ValueRef<'_>) -> Result<DateFormat> {
    let ValueRef::String(text) = value else {
        return Err(Error::location(
            location::DATE_TO_STRING_FORMAT_NOT_STRING,
            format!(
                "$dateToString requires that 'format' be a string, found: {}",
                value.type_name()
            ),
        ));
    };
    DateFormat::for_writing(text).map_err(format_error)
}

/// Returns the errors of invalid formats, common to formatting and parsing.
pub(super) fn format_error(error: FormatError) -> Error {
    match error {
        FormatError::Dangling => Error::location(
            location::DATE_FORMAT_PERCENT_UNMATCHED,
            "Unmatched '%' at end of format string",
        ),
        FormatError::Unknown(letter) => Error::location(
            location::DATE_FORMAT_LETTER_UNKNOWN,
            format!("Invalid format character '%{letter}' in format string"),
        ),
    }
}

pub(super) fn date_to_string<'s>(
    operation: &'s Operation,
    scope: &Scope<'s>,
) -> Result<Evaluated<'s>> {
    let date = operation.value(0, scope)?;
    if date.is_nullish() {
        return Ok(operation.optional(3, scope)?.unwrap_or(Evaluated::NULL));
    }
    let writer = match operation.prepared::<PreparedFormat>() {
        Some(writer) => Cow::Borrowed(writer),
        None => {
            let format = operation.optional(1, scope)?;
            let timezone = operation.optional(2, scope)?;
            if any_null(&[format.as_ref(), timezone.as_ref()]) {
                return Ok(Evaluated::NULL);
            }
            let zone = zone_of(operation, timezone.as_ref())?.into_owned();
            let format = match format {
                None => DateFormat::default_for(&zone),
                Some(format) => read_format(format.as_ref())?,
            };
            Cow::Owned(PreparedFormat { format, zone })
        }
    };
    let ms = require_date(date.as_ref())?;
    writer.format.write(ms, &writer.zone).map(Evaluated::from)
}

impl Clone for PreparedFormat {
    fn clone(&self) -> Self {
        Self {
            format: self.format.clone(),
            zone: self.zone.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Document, Value, doc};

    use super::super::testing::{check_exact, eval_code, parse_code};

    fn call(arguments: Document) -> Document {
        doc! { "$dateToString": arguments }
    }

    #[test]
    fn writes() {
        let doc = doc! { "t": Value::DateTime(1_451_689_507_009), "n": Value::Null, "f": "%Y/%j", "z": "+01" };
        for (arguments, expected) in [
            (doc! { "date": "$t" }, "2016-01-01T23:05:07.009Z"),
            (
                doc! { "date": "$t", "timezone": "UTC" },
                "2016-01-01T23:05:07.009Z",
            ),
            (
                doc! { "date": "$t", "timezone": "$z" },
                "2016-01-02T00:05:07.009",
            ),
            (
                doc! { "date": "$t", "timezone": "America/New_York" },
                "2016-01-01T18:05:07.009",
            ),
            (doc! { "date": "$t", "format": "%d.%m.%Y" }, "01.01.2016"),
            (
                doc! { "date": "$t", "format": "$f", "timezone": "$z" },
                "2016/002",
            ),
            (doc! { "date": "$t", "format": "" }, ""),
            (doc! { "date": "$n", "onNull": "none" }, "none"),
        ] {
            check_exact(&doc, call(arguments), expected);
        }
        for arguments in [
            doc! { "date": "$n" },
            doc! { "date": "$gone", "format": "%Y" },
            doc! { "date": "$t", "format": "$n", "onNull": "x" },
            doc! { "date": "$t", "timezone": "$gone" },
        ] {
            check_exact(&doc, call(arguments), Value::Null);
        }
        check_exact(
            &doc,
            call(doc! { "date": "$n", "onNull": "$gone" }),
            Value::Missing,
        );
    }

    #[test]
    fn errors() {
        let doc = doc! { "t": Value::DateTime(0), "far": Value::DateTime(i64::MAX) };
        for (argument, code) in [
            (Value::from("x"), 18629),
            (doc! { "date": 1, "x": 1 }.into(), 18534),
            (doc! { "format": "%Y" }.into(), 18628),
        ] {
            assert_eq!(parse_code(doc! { "$dateToString": argument }), code);
        }
        for (arguments, code) in [
            (doc! { "date": "$t", "format": 5 }, 18533),
            (doc! { "date": "$t", "format": "%Y%" }, 18535),
            (doc! { "date": "$t", "format": "%n" }, 18536),
            (doc! { "date": "x" }, 16006),
            (doc! { "date": "$t", "timezone": "Nowhere" }, 40485),
            (doc! { "date": "$t", "timezone": 1 }, 40517),
            (doc! { "date": "$far" }, 18537),
        ] {
            assert_eq!(
                eval_code(&doc, call(arguments.clone())),
                code,
                "{arguments:?}"
            );
        }
    }
}
