//! `$dateFromParts`: `{year, month, day, …}` or `{isoWeekYear, isoWeek, isoDayOfWeek, …}`, each with
//! `hour, minute, second, millisecond, timezone`.
//!
//! Absent parts default to the first value. Parts out of range carry: month 14 is February of the
//! next year, day 0 the last of the previous month. Any null part gives null.
//!
//! Errors: 40519 not an object, 40518 unknown member, 40516 neither kind of year, 40489 and 40525 both
//! kinds mixed, 40515 a part not whole, 40523 and 31095 year beyond 1 to 9999, 31034 another part beyond
//! 16 bits, 159 a date out of range.

use nilometer_bson::ValueRef;
use nilometer_bson::civil_date::{
    DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, days_of_date, days_of_iso_year,
};

use super::Expression;
use super::date_arguments::{prepare_zone, zone_of};
use super::evaluated::Evaluated;
use super::numeric::integral;
use super::operation::{Operation, PreparedData};
use super::parse::ExpressionParser;
use super::registry::{NamedArguments, OperatorSpec, optional};
use super::scope::Scope;
use crate::error::{Error, Result, location};
use crate::eval::FoldBudget;

pub(super) const ARGUMENTS: NamedArguments = NamedArguments {
    not_object: location::DATE_FROM_PARTS_NOT_OBJECT,
    unknown: location::DATE_FROM_PARTS_ARGUMENT_UNKNOWN,
    fields: &[
        optional("timezone"),
        optional("year"),
        optional("month"),
        optional("day"),
        optional("isoWeekYear"),
        optional("isoWeek"),
        optional("isoDayOfWeek"),
        optional("hour"),
        optional("minute"),
        optional("second"),
        optional("millisecond"),
    ],
};

const YEAR: usize = 1;
const ISO_YEAR: usize = 4;
const HOUR: usize = 7;

/// Limits of parts other than years and milliseconds.
const PART_MIN: i64 = i16::MIN as i64;
const PART_MAX: i64 = i16::MAX as i64;

pub(super) fn parse(
    parser: &mut ExpressionParser<'_>,
    spec: &'static OperatorSpec,
    value: ValueRef<'_>,
) -> Result<Expression> {
    let arguments = parser.arguments(spec, value)?;
    let given = |range: std::ops::Range<usize>| {
        arguments
            .get(range)
            .is_some_and(|parts| parts.iter().any(Option::is_some))
    };
    if !given(YEAR..YEAR + 1) && !given(ISO_YEAR..ISO_YEAR + 1) {
        return Err(Error::location(
            location::DATE_PARTS_YEAR_MISSING,
            "$dateFromParts requires either 'year' or 'isoWeekYear' to be present",
        ));
    }
    if given(YEAR..YEAR + 1) && given(ISO_YEAR..HOUR) {
        return Err(Error::location(
            location::DATE_PARTS_NATURAL_WITH_ISO,
            "$dateFromParts does not allow mixing natural dates with ISO dates",
        ));
    }
    if given(ISO_YEAR..ISO_YEAR + 1) && given(YEAR..ISO_YEAR) {
        return Err(Error::location(
            location::DATE_PARTS_ISO_WITH_NATURAL,
            "$dateFromParts does not allow mixing ISO dates with natural dates",
        ));
    }
    Ok(Operation::new(spec, arguments).into_expression())
}

pub(super) fn prepare(operation: &Operation, _: &FoldBudget) -> Option<PreparedData> {
    prepare_zone(operation, 0)
}

pub(super) fn date_from_parts<'s>(
    operation: &'s Operation,
    scope: &Scope<'s>,
) -> Result<Evaluated<'s>> {
    let timezone = operation.optional(0, scope)?;
    if timezone.as_ref().is_some_and(Evaluated::is_nullish) {
        return Ok(Evaluated::NULL);
    }
    let mut parts = [None; 11];
    let names = ARGUMENTS.fields.iter().map(|field| field.name);
    for ((index, part), name) in parts.iter_mut().enumerate().zip(names).skip(1) {
        let Some(value) = operation.optional(index, scope)? else {
            continue;
        };
        if value.is_nullish() {
            return Ok(Evaluated::NULL);
        }
        *part = Some(read_part(value.as_ref(), name)?);
    }
    let [
        _,
        year,
        month,
        day,
        iso_year,
        week,
        weekday,
        hour,
        minute,
        second,
        ms,
    ] = parts;
    let days = match iso_year {
        Some(iso_year) => {
            let week = week.unwrap_or(1) - 1;
            days_of_iso_year(iso_year) + week * 7 + weekday.unwrap_or(1) - 1
        }
        None => {
            let months = year.unwrap_or(1) * 12 + month.unwrap_or(1) - 1;
            let first = days_of_date(months.div_euclid(12), months.rem_euclid(12) + 1, 1);
            first + day.unwrap_or(1) - 1
        }
    };
    let local = days * DAY_MS + hour.unwrap_or(0) * HOUR_MS + minute.unwrap_or(0) * MINUTE_MS;
    let zone = zone_of(operation, timezone.as_ref())?;
    // Seconds and milliseconds may have any value that a date can hold.
    let exact = i128::from(local)
        + i128::from(second.unwrap_or(0)) * i128::from(SECOND_MS)
        + i128::from(ms.unwrap_or(0));
    i64::try_from(exact)
        .ok()
        .and_then(|local| zone.to_utc(local))
        .map(|ms| Evaluated::Borrowed(ValueRef::DateTime(ms)))
        .ok_or_else(|| {
            Error::new(
                crate::ErrorCode::DurationOverflow,
                "Overflow casting from a lower-precision duration to a higher-precision duration",
            )
        })
}

fn read_part(value: ValueRef<'_>, name: &str) -> Result<i64> {
    let Some(part) = integral(value) else {
        return Err(Error::location(
            location::DATE_PART_NOT_INTEGER,
            format!(
                "'{name}' must evaluate to an integer, found {}",
                value.type_name()
            ),
        ));
    };
    let (range, code) = match name {
        "year" => (1..=9999, location::YEAR_OUT_OF_RANGE),
        "isoWeekYear" => (1..=9999, location::ISO_WEEK_YEAR_OUT_OF_RANGE),
        "second" | "millisecond" => return Ok(part),
        _ => (PART_MIN..=PART_MAX, location::DATE_PART_OUT_OF_RANGE),
    };
    if !range.contains(&part) {
        return Err(Error::location(
            code,
            format!(
                "'{name}' must evaluate to an integer in the range {} to {}, found {part}",
                range.start(),
                range.end()
            ),
        ));
    }
    Ok(part)
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Document, Value, doc};

    use super::super::testing::{check_exact, eval_code, parse_code};
    use super::*;

    fn call(arguments: Document) -> Document {
        doc! { "$dateFromParts": arguments }
    }

    fn at(year: i64, month: i64, day: i64) -> i64 {
        days_of_date(year, month, day) * DAY_MS
    }

    #[test]
    fn dates() {
        let doc = doc! { "y": 2017, "n": Value::Null };
        for (arguments, expected) in [
            (doc! { "year": "$y" }, at(2017, 1, 1)),
            (
                doc! { "year": "$y", "month": 2, "day": 8, "hour": 12 },
                at(2017, 2, 8) + 12 * HOUR_MS,
            ),
            (doc! { "year": "$y", "month": 14 }, at(2018, 2, 1)),
            (doc! { "year": "$y", "month": 0 }, at(2016, 12, 1)),
            (doc! { "year": "$y", "day": 0 }, at(2016, 12, 31)),
            (doc! { "year": "$y", "month": 2, "day": 31 }, at(2017, 3, 3)),
            (doc! { "year": "$y", "hour": -1 }, at(2017, 1, 1) - HOUR_MS),
            (
                doc! { "year": "$y", "minute": 61, "second": 61, "millisecond": 1001 },
                at(2017, 1, 1) + 3_722_001,
            ),
            (
                doc! { "year": 2017.0, "timezone": "+01" },
                at(2017, 1, 1) - HOUR_MS,
            ),
            (
                doc! { "year": 2016, "month": 12, "day": 31, "hour": 23, "timezone": "America/New_York" },
                at(2017, 1, 1) + 4 * HOUR_MS,
            ),
            (
                doc! { "isoWeekYear": 2017, "isoWeek": 6, "isoDayOfWeek": 3 },
                at(2017, 2, 8),
            ),
            (doc! { "isoWeekYear": 2017 }, at(2017, 1, 2)),
            (doc! { "isoWeekYear": 2017, "isoWeek": 53 }, at(2018, 1, 1)),
        ] {
            check_exact(&doc, call(arguments), Value::DateTime(expected));
        }
        for arguments in [
            doc! { "year": "$n" },
            doc! { "year": "$y", "day": "$gone" },
            doc! { "year": "$y", "timezone": "$n" },
        ] {
            check_exact(&doc, call(arguments), Value::Null);
        }
    }

    #[test]
    fn errors() {
        for (argument, code) in [
            (Value::from(1), 40519),
            (doc! { "x": 1 }.into(), 40518),
            (doc! { "month": 1 }.into(), 40516),
            (doc! { "year": 1, "isoWeek": 1 }.into(), 40489),
            (doc! { "isoWeekYear": 1, "month": 1 }.into(), 40525),
        ] {
            assert_eq!(parse_code(doc! { "$dateFromParts": argument }), code);
        }
        let doc = doc! {};
        for (arguments, code) in [
            (doc! { "year": "x" }, 40515),
            (doc! { "year": 2017.5 }, 40515),
            (doc! { "year": 0 }, 40523),
            (doc! { "year": 10000 }, 40523),
            (doc! { "isoWeekYear": 0 }, 31095),
            (doc! { "year": 2017, "month": 40000 }, 31034),
            (doc! { "year": 2017, "millisecond": i64::MAX }, 159),
            (doc! { "year": 2017, "second": i64::MIN }, 159),
            (doc! { "year": 2017, "timezone": "Nowhere" }, 40485),
            (doc! { "year": 2017, "timezone": 5 }, 40517),
        ] {
            assert_eq!(
                eval_code(&doc, call(arguments.clone())),
                code,
                "{arguments:?}"
            );
        }
    }
}
