//! Arithmetic with dates: `$dateAdd $dateSubtract $dateDiff`.
//!
//! `$dateAdd: {startDate, unit, amount, timezone}`: hours and shorter units are elapsed time; days
//! and longer units keep the local time of day and clamp month ends. `$dateDiff: {startDate,
//! endDate, unit, timezone, startOfWeek}`: the number of local unit boundaries between the dates,
//! as a long, negative if the end is earlier. Null or missing in any argument gives null before the
//! others are validated; `startOfWeek` is read only for weeks.
//!
//! Errors of `$dateAdd` and `$dateSubtract`: 5166400 not an object, 5166401 unknown member, 5166402
//! missing, 5166403 date, 5166404 unit not a string, 9 unknown unit, 5166405 amount not whole, 5166406
//! result out of range, 5976500 amount out of range, 6045000 subtracting the smallest long. Of
//! `$dateDiff`: 5166301 to 5166305, 5166307 date, 5439013 to 5439016 unit and startOfWeek.

use nilometer_bson::ValueRef;

use super::Expression;
use super::date_arguments::{self, any_null, date_ms, prepare_zone, zone_of};
use super::evaluated::Evaluated;
use super::numeric::integral;
use super::operation::{Operation, PreparedData};
use super::registry::{NamedArguments, optional, required};
use super::scope::Scope;
use crate::error::{Error, ErrorCode, Result, location};
use crate::eval::FoldBudget;
use crate::eval::date::{self, AddError, TimeZone, Unit, Weekday};

pub(super) const ADD: NamedArguments = NamedArguments {
    not_object: location::DATE_ADD_NOT_OBJECT,
    unknown: location::DATE_ADD_ARGUMENT_UNKNOWN,
    fields: &[
        required("startDate", location::DATE_ADD_ARGUMENT_MISSING),
        required("unit", location::DATE_ADD_ARGUMENT_MISSING),
        required("amount", location::DATE_ADD_ARGUMENT_MISSING),
        optional("timezone"),
    ],
};

pub(super) const DIFF: NamedArguments = NamedArguments {
    not_object: location::DATE_DIFF_NOT_OBJECT,
    unknown: location::DATE_DIFF_ARGUMENT_UNKNOWN,
    fields: &[
        required("startDate", location::DATE_DIFF_START_DATE_MISSING),
        required("endDate", location::DATE_DIFF_END_DATE_MISSING),
        required("unit", location::DATE_DIFF_UNIT_MISSING),
        optional("timezone"),
        optional("startOfWeek"),
    ],
};

/// Returns the zone is the fourth argument of all three.
pub(super) fn prepare(operation: &Operation, _: &FoldBudget) -> Option<PreparedData> {
    prepare_zone(operation, 3)
}

pub(super) fn add<'s>(operation: &'s Operation, scope: &Scope<'s>) -> Result<Evaluated<'s>> {
    let name = operation.spec.name;
    let start = operation.value(0, scope)?;
    let unit = operation.value(1, scope)?;
    let amount = operation.value(2, scope)?;
    let timezone = operation.optional(3, scope)?;
    if any_null(&[Some(&start), Some(&unit), Some(&amount), timezone.as_ref()]) {
        return Ok(Evaluated::NULL);
    }
    let start = date_ms(start.as_ref()).ok_or_else(|| {
        Error::location(
            location::DATE_ADD_START_DATE_NOT_DATE,
            format!("{name} requires startDate to be convertible to a date"),
        )
    })?;
    let unit = date_arguments::unit(
        unit.as_ref(),
        name,
        location::DATE_ADD_UNIT_NOT_STRING,
        ErrorCode::FailedToParse.0,
    )?;
    let amount = integral(amount.as_ref()).ok_or_else(|| {
        Error::location(
            location::DATE_ADD_AMOUNT_NOT_WHOLE,
            format!("{name} expects integer amount of time units"),
        )
    })?;
    let zone = zone_of(operation, timezone.as_ref())?;
    let amount = if name == "$dateSubtract" {
        amount.checked_neg().ok_or_else(|| {
            Error::location(
                location::DATE_SUBTRACT_AMOUNT_INVALID,
                "invalid $dateSubtract 'amount' parameter value",
            )
        })?
    } else {
        amount
    };
    match date::add(start, unit, amount, &zone) {
        Ok(ms) => Ok(Evaluated::Borrowed(ValueRef::DateTime(ms))),
        Err(AddError::Amount) => Err(Error::location(
            location::DATE_ADD_AMOUNT_OUT_OF_RANGE,
            format!(
                "invalid {name} 'amount' parameter value: {amount} {}",
                unit.name()
            ),
        )),
        Err(AddError::Result) => Err(Error::location(
            location::DATE_ADD_OVERFLOW,
            format!("{name} overflowed"),
        )),
    }
}

pub(super) fn diff<'s>(operation: &'s Operation, scope: &Scope<'s>) -> Result<Evaluated<'s>> {
    let name = operation.spec.name;
    let start = operation.value(0, scope)?;
    let end = operation.value(1, scope)?;
    let unit = operation.value(2, scope)?;
    let timezone = operation.optional(3, scope)?;
    let is_week = unit.as_str() == Some(Unit::Week.name());
    let start_of_week = operation.optional(4, scope)?.filter(|_| is_week);
    if any_null(&[
        Some(&start),
        Some(&end),
        Some(&unit),
        timezone.as_ref(),
        start_of_week.as_ref(),
    ]) {
        return Ok(Evaluated::NULL);
    }
    let instant = |value: &Evaluated<'_>, which: &str| {
        date_ms(value.as_ref()).ok_or_else(|| {
            Error::location(
                location::DATE_DIFF_NOT_DATE,
                format!(
                    "{name} requires '{which}' to be a date, but got {}",
                    value.type_name()
                ),
            )
        })
    };
    let start = instant(&start, "startDate")?;
    let end = instant(&end, "endDate")?;
    let unit = date_arguments::unit(
        unit.as_ref(),
        name,
        location::TIME_UNIT_NOT_STRING,
        location::TIME_UNIT_UNKNOWN,
    )?;
    let zone = zone_of(operation, timezone.as_ref())?;
    let first_day = match start_of_week {
        None => Weekday::Sunday,
        Some(value) => date_arguments::start_of_week(value.as_ref(), name)?,
    };
    Ok(Evaluated::from(date::diff(
        start, end, unit, &zone, first_day,
    )))
}

/// A `$dateDiff` whose arguments other than the dates are constant and valid, for kernels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DateDifference<'o> {
    /// The earlier date, for a positive result.
    pub(crate) start: &'o Expression,
    /// The later date.
    pub(crate) end: &'o Expression,
    unit: Unit,
    zone: &'o TimeZone,
    first_day: Weekday,
}

impl DateDifference<'_> {
    /// Returns the number of boundaries crossed between two dates.
    pub(crate) fn between(&self, start: i64, end: i64) -> i64 {
        date::diff(start, end, self.unit, self.zone, self.first_day)
    }
}

impl Operation {
    /// Returns the call as a difference of dates with constant arguments, if it is one.
    pub(crate) fn constant_difference(&self) -> Option<DateDifference<'_>> {
        let name = self.spec.name;
        if name != "$dateDiff" {
            return None;
        }
        let unit = self.constant(2)?.as_ref();
        let first_day = match self.argument(4) {
            None => Weekday::Sunday,
            Some(_) => date_arguments::start_of_week(self.constant(4)?.as_ref(), name).ok()?,
        };
        Some(DateDifference {
            start: self.argument(0)?,
            end: self.argument(1)?,
            unit: date_arguments::unit(
                unit,
                name,
                location::TIME_UNIT_NOT_STRING,
                location::TIME_UNIT_UNKNOWN,
            )
            .ok()?,
            zone: self.prepared()?,
            first_day,
        })
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Document, Value, doc};

    use super::super::testing::{check_exact, eval_code, parse_code};

    const HOUR: i64 = 3_600_000;
    const T: i64 = 1_580_428_800_000; // 2020-01-31T00:00:00Z

    fn add(arguments: Document) -> Document {
        doc! { "$dateAdd": arguments }
    }

    fn subtract(arguments: Document) -> Document {
        doc! { "$dateSubtract": arguments }
    }

    fn diff(arguments: Document) -> Document {
        doc! { "$dateDiff": arguments }
    }

    #[test]
    fn adds_and_subtracts() {
        let doc = doc! { "t": Value::DateTime(T), "n": Value::Null, "s": "x" };
        let month = doc! { "startDate": "$t", "unit": "month", "amount": 1 };
        check_exact(
            &doc,
            add(month.clone()),
            Value::DateTime(T + 29 * 24 * HOUR),
        );
        check_exact(&doc, subtract(month), Value::DateTime(T - 31 * 24 * HOUR));
        let hours = doc! { "startDate": "$t", "unit": "hour", "amount": 2.0 };
        check_exact(&doc, add(hours.clone()), Value::DateTime(T + 2 * HOUR));
        check_exact(&doc, subtract(hours), Value::DateTime(T - 2 * HOUR));
        for arguments in [
            doc! { "startDate": "$n", "unit": "bad", "amount": "x", "timezone": "Nowhere" },
            doc! { "startDate": "$s", "unit": "$gone", "amount": "x" },
            doc! { "startDate": "$s", "unit": "bad", "amount": "$n" },
            doc! { "startDate": "$s", "unit": "bad", "amount": 1.5, "timezone": "$n" },
        ] {
            check_exact(&doc, add(arguments.clone()), Value::Null);
            check_exact(&doc, subtract(arguments), Value::Null);
        }
    }

    #[test]
    fn add_errors() {
        let doc = doc! { "t": Value::DateTime(T), "s": "x" };
        for (arguments, code) in [
            (
                doc! { "startDate": "$s", "unit": "day", "amount": 1 },
                5_166_403,
            ),
            (
                doc! { "startDate": "$t", "unit": 5, "amount": 1 },
                5_166_404,
            ),
            (doc! { "startDate": "$t", "unit": "days", "amount": 1 }, 9),
            (
                doc! { "startDate": "$t", "unit": "day", "amount": 1.5 },
                5_166_405,
            ),
            (
                doc! { "startDate": "$t", "unit": "month", "amount": 3_600_000_000i64 },
                5_166_406,
            ),
            (
                doc! { "startDate": "$t", "unit": "month", "amount": 30_000_000_000i64 },
                5_976_500,
            ),
            (
                doc! { "startDate": "$t", "unit": "day", "amount": 1, "timezone": "Nowhere" },
                40485,
            ),
        ] {
            assert_eq!(
                eval_code(&doc, add(arguments.clone())),
                code,
                "{arguments:?}"
            );
            assert_eq!(
                eval_code(&doc, subtract(arguments.clone())),
                code,
                "{arguments:?}"
            );
        }
        let least = doc! { "startDate": "$t", "unit": "day", "amount": i64::MIN };
        assert_eq!(eval_code(&doc, subtract(least)), 6_045_000);
        for (argument, code) in [
            (Value::from(1), 5_166_400),
            (doc! { "x": 1 }.into(), 5_166_401),
            (doc! { "startDate": 1, "unit": 1 }.into(), 5_166_402),
        ] {
            assert_eq!(parse_code(doc! { "$dateAdd": argument.clone() }), code);
            assert_eq!(parse_code(doc! { "$dateSubtract": argument }), code);
        }
    }

    #[test]
    fn differences() {
        // 18:59:59 to 19:00:00 is one hour.
        let doc = doc! {
            "a": Value::DateTime(19 * HOUR - 1000),
            "b": Value::DateTime(19 * HOUR),
            "n": Value::Null,
            "s": "x",
        };
        let hours = doc! { "startDate": "$a", "endDate": "$b", "unit": "hour" };
        check_exact(&doc, diff(hours), 1i64);
        let back = doc! { "startDate": "$b", "endDate": "$a", "unit": "minute" };
        check_exact(&doc, diff(back), -1i64);
        let zone = doc! { "startDate": "$a", "endDate": "$b", "unit": "day", "timezone": "+05" };
        check_exact(&doc, diff(zone), 1i64);
        // 1970-01-01 was a Thursday.
        let week = doc! { "startDate": Value::DateTime(-1), "endDate": "$b", "unit": "week", "startOfWeek": "thu" };
        check_exact(&doc, diff(week), 1i64);
        for arguments in [
            doc! { "startDate": "$n", "endDate": "$s", "unit": "bad" },
            doc! { "startDate": "$s", "endDate": "$gone", "unit": "bad" },
            doc! { "startDate": "$s", "endDate": "$s", "unit": "$n" },
            doc! { "startDate": "$s", "endDate": "$s", "unit": "bad", "timezone": "$n" },
            doc! { "startDate": "$s", "endDate": "$s", "unit": "week", "startOfWeek": "$n" },
        ] {
            check_exact(&doc, diff(arguments), Value::Null);
        }
        for (arguments, code) in [
            (
                doc! { "startDate": "$s", "endDate": "$b", "unit": "day" },
                5_166_307,
            ),
            (
                doc! { "startDate": "$a", "endDate": 5, "unit": "day" },
                5_166_307,
            ),
            (
                doc! { "startDate": "$a", "endDate": "$b", "unit": 5 },
                5_439_013,
            ),
            (
                doc! { "startDate": "$a", "endDate": "$b", "unit": "days" },
                5_439_014,
            ),
            (
                doc! { "startDate": "$a", "endDate": "$b", "unit": "week", "startOfWeek": 1 },
                5_439_015,
            ),
            (
                doc! { "startDate": "$a", "endDate": "$b", "unit": "week", "startOfWeek": "x" },
                5_439_016,
            ),
        ] {
            assert_eq!(
                eval_code(&doc, diff(arguments.clone())),
                code,
                "{arguments:?}"
            );
        }
        for (argument, code) in [
            (Value::from(1), 5_166_301),
            (doc! { "x": 1 }.into(), 5_166_302),
            (doc! { "endDate": 1, "unit": 1 }.into(), 5_166_303),
            (doc! { "startDate": 1, "unit": 1 }.into(), 5_166_304),
            (doc! { "startDate": 1, "endDate": 1 }.into(), 5_166_305),
        ] {
            assert_eq!(parse_code(doc! { "$dateDiff": argument }), code);
        }
    }
}
