//! Parts of a date: `$year $month $dayOfMonth $hour $minute $second $millisecond $dayOfYear
//! $dayOfWeek $week $isoWeek $isoWeekYear $isoDayOfWeek`, and `$dateToParts`.
//!
//! The argument is a date (or object id or timestamp), or `{date, timezone}`. Results are ints,
//! `$isoWeekYear` a long. `$dayOfWeek` counts from 1 for Sunday, `$isoDayOfWeek` from 1 for Monday;
//! `$week` is 0 before the year's first Sunday. Null or missing gives null, anything else 16006.
//!
//! `$dateToParts: {date, timezone, iso8601}` gives an object of all parts.

use nilometer_bson::ValueRef;
use nilometer_bson::civil_date::CivilDateTime;

use super::Expression;
use super::date_arguments::{any_null, prepare_zone, require_date, zone_of};
use super::evaluated::Evaluated;
use super::operation::{Operation, PreparedData};
use super::parse::ExpressionParser;
use super::registry::{NamedArguments, OperatorSpec, optional, required};
use super::scope::Scope;
use crate::error::{Error, Result, location};
use crate::eval::FoldBudget;
use crate::eval::date::TimeZone;

/// Arguments of the operation: date, timezone.
pub(super) fn parse(
    parser: &mut ExpressionParser<'_>,
    spec: &'static OperatorSpec,
    value: ValueRef<'_>,
) -> Result<Expression> {
    let arguments = match value {
        ValueRef::Document(doc)
            if doc
                .iter()
                .next()
                .is_none_or(|first| !first.name().starts_with('$')) =>
        {
            let mut arguments = [None, None];
            for element in doc.iter() {
                let [date, timezone] = &mut arguments;
                let slot = match element.name() {
                    "date" => date,
                    "timezone" => timezone,
                    other => {
                        return Err(Error::location(
                            location::DATE_PART_OPTION_UNKNOWN,
                            format!("unrecognized option to {}: \"{other}\"", spec.name),
                        ));
                    }
                };
                *slot = Some(parser.operand(element.value())?);
            }
            if arguments.first().is_none_or(Option::is_none) {
                return Err(Error::location(
                    location::DATE_PART_DATE_MISSING,
                    format!("missing 'date' argument to {}", spec.name),
                ));
            }
            arguments
        }
        ValueRef::Array(array) => {
            if array.len() != 1 {
                return Err(Error::location(
                    location::DATE_PART_ARRAY_LENGTH,
                    format!(
                        "{} accepts exactly one argument if given an array, but was given {}",
                        spec.name,
                        array.len()
                    ),
                ));
            }
            [Some(parser.operand(array.get(0))?), None]
        }
        single => [Some(parser.operand(single)?), None],
    };
    Ok(Operation::new(spec, arguments.into()).into_expression())
}

/// Returns the zone is the second argument.
pub(super) fn prepare(operation: &Operation, _: &FoldBudget) -> Option<PreparedData> {
    prepare_zone(operation, 1)
}

/// Evaluates date and zone to the local date and time; `None` if either is null.
fn civil<'s>(operation: &'s Operation, scope: &Scope<'s>) -> Result<Option<CivilDateTime>> {
    let date = operation.value(0, scope)?;
    let timezone = operation.optional(1, scope)?;
    if any_null(&[Some(&date), timezone.as_ref()]) {
        return Ok(None);
    }
    let ms = require_date(date.as_ref())?;
    if let Some(timezone) = &timezone
        && timezone.as_ref().as_str().is_none()
        && operation.spec.name != "$dateToParts"
    {
        return Err(Error::location(
            location::DATE_PART_TIME_ZONE_NOT_STRING,
            format!(
                "{} requires a string for the timezone argument, but was given a {}",
                operation.spec.name,
                timezone.as_ref().type_name()
            ),
        ));
    }
    let zone = zone_of(operation, timezone.as_ref())?;
    Ok(Some(CivilDateTime::from_ms(zone.to_local(ms))))
}

/// Evaluates the operators that return one part.
pub(super) fn part<'s>(operation: &'s Operation, scope: &Scope<'s>) -> Result<Evaluated<'s>> {
    let Some(civil) = civil(operation, scope)? else {
        return Ok(Evaluated::NULL);
    };
    Ok(match operation.spec.name {
        "$isoWeekYear" => Evaluated::from(civil.iso_week().year),
        name => Evaluated::from(int_part(name, civil)),
    })
}

/// Returns the part that is an int.
fn int_part(name: &str, civil: CivilDateTime) -> i32 {
    let part = match name {
        "$year" => civil.year,
        "$month" => civil.month,
        "$dayOfMonth" => civil.day,
        "$hour" => civil.hour,
        "$minute" => civil.minute,
        "$second" => civil.second,
        "$millisecond" => civil.millisecond,
        "$dayOfYear" => civil.day_of_year(),
        "$dayOfWeek" => civil.day_of_week(),
        "$week" => civil.week(),
        "$isoWeek" => civil.iso_week().week,
        _ => civil.iso_week().weekday,
    };
    year_to_int(part)
}

/// A call that returns one part of a date as an int, in a constant time zone.
pub(crate) struct DatePart<'e> {
    /// The argument.
    pub(crate) date: &'e Expression,
    zone: &'e TimeZone,
    name: &'static str,
    /// The length of spans of local time in which the part is the same.
    span_ms: i64,
}

impl DatePart<'_> {
    /// Returns the number of the span of a date: dates of one span have the same part.
    pub(crate) fn span_of(&self, ms: i64) -> i64 {
        self.zone.to_local(ms).div_euclid(self.span_ms)
    }

    /// True if all dates between two have the same part.
    pub(crate) fn is_same(&self, min: i64, max: i64) -> bool {
        // Local time goes back once in some zones, within less than a day.
        let is_steady = !matches!(self.zone, TimeZone::Named { .. });
        is_steady && self.span_of(min) == self.span_of(max)
    }

    /// Returns the part of a date.
    pub(crate) fn of(&self, ms: i64) -> i32 {
        int_part(self.name, CivilDateTime::from_ms(self.zone.to_local(ms)))
    }
}

impl Operation {
    /// Returns the call as that of one part of a date, if it is one.
    pub(crate) fn date_part(&self) -> Option<DatePart<'_>> {
        let name = self.spec.name;
        let span_ms = match name {
            "$millisecond" => 1,
            "$second" => 1_000,
            "$minute" => 60_000,
            "$hour" => 3_600_000,
            "$year" | "$month" | "$dayOfMonth" | "$dayOfYear" | "$dayOfWeek" | "$week"
            | "$isoWeek" | "$isoDayOfWeek" => 86_400_000,
            _ => return None,
        };
        Some(DatePart {
            date: self.argument(0)?,
            zone: self.prepared()?,
            name,
            span_ms,
        })
    }
}

/// Converts to int: years of any 64-bit date fit.
fn year_to_int(part: i64) -> i32 {
    i32::try_from(part).unwrap_or(i32::MAX)
}

pub(super) const TO_PARTS: NamedArguments = NamedArguments {
    not_object: location::DATE_TO_PARTS_NOT_OBJECT,
    unknown: location::DATE_TO_PARTS_ARGUMENT_UNKNOWN,
    fields: &[
        required("date", location::DATE_TO_PARTS_DATE_MISSING),
        optional("timezone"),
        optional("iso8601"),
    ],
};

/// `$dateToParts`.
pub(super) fn to_parts<'s>(operation: &'s Operation, scope: &Scope<'s>) -> Result<Evaluated<'s>> {
    let iso = operation.optional(2, scope)?;
    let Some(civil) = civil(operation, scope)? else {
        return Ok(Evaluated::NULL);
    };
    let iso = match iso.as_ref().map(Evaluated::as_ref) {
        None => false,
        Some(ValueRef::Bool(iso)) => iso,
        Some(value) if value.is_nullish() => return Ok(Evaluated::NULL),
        Some(other) => {
            return Err(Error::location(
                location::DATE_TO_PARTS_ISO8601_NOT_BOOL,
                format!(
                    "iso8601 must evaluate to a bool, found {}",
                    other.type_name()
                ),
            ));
        }
    };
    let date = if iso {
        let week = civil.iso_week();
        [
            ("isoWeekYear", week.year),
            ("isoWeek", week.week),
            ("isoDayOfWeek", week.weekday),
        ]
    } else {
        [
            ("year", civil.year),
            ("month", civil.month),
            ("day", civil.day),
        ]
    };
    let time = [
        ("hour", civil.hour),
        ("minute", civil.minute),
        ("second", civil.second),
        ("millisecond", civil.millisecond),
    ];
    let mut out = nilometer_bson::DocumentBuilder::new();
    for (name, part) in date.into_iter().chain(time) {
        out.append(name, year_to_int(part));
    }
    Ok(Evaluated::Owned(out.finish().into()))
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Value, array, doc};

    use super::super::testing::{call, check_exact, eval_code, parse_code};

    const NAMES: [&str; 13] = [
        "$year",
        "$month",
        "$dayOfMonth",
        "$hour",
        "$minute",
        "$second",
        "$millisecond",
        "$dayOfYear",
        "$dayOfWeek",
        "$week",
        "$isoWeek",
        "$isoDayOfWeek",
        "$isoWeekYear",
    ];

    #[test]
    fn all_parts() {
        for (ms, timezone, expected) in [
            // 2016-01-01T23:05:07.009Z, a Friday.
            (
                1_451_689_507_009i64,
                None,
                [2016, 1, 1, 23, 5, 7, 9, 1, 6, 0, 53, 5, 2015],
            ),
            (
                1_451_689_507_009,
                Some("Asia/Kathmandu"),
                [2016, 1, 2, 4, 50, 7, 9, 2, 7, 0, 53, 6, 2015],
            ),
            (
                1_451_689_507_009,
                Some("-2330"),
                [2015, 12, 31, 23, 35, 7, 9, 365, 5, 52, 53, 4, 2015],
            ),
            // Before 1970: 1969-12-31T23:59:59.999Z, a Wednesday.
            (
                -1,
                None,
                [1969, 12, 31, 23, 59, 59, 999, 365, 4, 52, 1, 3, 1970],
            ),
        ] {
            let doc = doc! { "t": Value::DateTime(ms) };
            for (name, expected) in NAMES.iter().zip(expected) {
                let argument = match timezone {
                    None => Value::from("$t"),
                    Some(zone) => doc! { "date": "$t", "timezone": zone }.into(),
                };
                let expected = if *name == "$isoWeekYear" {
                    Value::from(i64::from(expected))
                } else {
                    Value::from(expected)
                };
                check_exact(&doc, call(name, argument), expected);
            }
        }
    }

    #[test]
    fn null_and_errors() {
        let doc = doc! { "t": Value::DateTime(0), "s": "x", "n": Value::Null };
        for name in NAMES {
            check_exact(&doc, call(name, "$n"), Value::Null);
            check_exact(&doc, call(name, array!["$gone"]), Value::Null);
            check_exact(
                &doc,
                call(name, doc! { "date": "$s", "timezone": "$n" }),
                Value::Null,
            );
            assert_eq!(eval_code(&doc, call(name, "$s")), 16006);
            assert_eq!(eval_code(&doc, call(name, 5)), 16006);
            let bad_zone = doc! { "date": "$t", "timezone": "Nowhere" };
            assert_eq!(eval_code(&doc, call(name, bad_zone)), 40485);
            let no_zone = doc! { "date": "$t", "timezone": 5 };
            assert_eq!(eval_code(&doc, call(name, no_zone)), 40533);
            assert_eq!(parse_code(call(name, doc! {})), 40539);
            assert_eq!(parse_code(call(name, doc! { "date": 1, "x": 1 })), 40535);
            assert_eq!(parse_code(call(name, array![1, 2])), 40536);
        }
        check_exact(
            &doc,
            doc! { "$year": doc! { "$add": array!["$t", 1] } },
            1970,
        );
    }

    #[test]
    fn to_parts() {
        let doc = doc! { "t": Value::DateTime(1_451_689_507_009), "n": Value::Null };
        check_exact(
            &doc,
            doc! { "$dateToParts": doc! { "date": "$t" } },
            doc! { "year": 2016, "month": 1, "day": 1, "hour": 23, "minute": 5, "second": 7, "millisecond": 9 },
        );
        check_exact(
            &doc,
            doc! { "$dateToParts": doc! { "date": "$t", "timezone": "+01", "iso8601": true } },
            doc! { "isoWeekYear": 2015, "isoWeek": 53, "isoDayOfWeek": 6, "hour": 0, "minute": 5, "second": 7, "millisecond": 9 },
        );
        for arguments in [
            doc! { "date": "$n" },
            doc! { "date": "$t", "timezone": "$n" },
            doc! { "date": "$t", "iso8601": "$n" },
        ] {
            check_exact(&doc, doc! { "$dateToParts": arguments }, Value::Null);
        }
        assert_eq!(parse_code(doc! { "$dateToParts": 1 }), 40524);
        assert_eq!(parse_code(doc! { "$dateToParts": doc! { "x": 1 } }), 40520);
        assert_eq!(
            parse_code(doc! { "$dateToParts": doc! { "timezone": "UTC" } }),
            40522
        );
        let not_bool = doc! { "$dateToParts": doc! { "date": "$t", "iso8601": 1 } };
        assert_eq!(eval_code(&doc, not_bool), 40521);
        let not_date = doc! { "$dateToParts": doc! { "date": 5 } };
        assert_eq!(eval_code(&doc, not_date), 16006);
    }
}
