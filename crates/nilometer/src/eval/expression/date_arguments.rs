//! Arguments shared by date operators: dates, time zones, units, first days of the week.
//!
//! Null takes precedence over validation: an operator first checks whether any argument is null or
//! missing and then validates the others.

use std::borrow::Cow;
use std::sync::Arc;

use nilometer_bson::ValueRef;

use super::evaluated::Evaluated;
use super::operation::{Operation, PreparedData};
use crate::error::{Error, Result, location};
use crate::eval::date::{TimeZone, Unit, Weekday};

/// Returns the instant of a value: a date, or the seconds of an object id or a timestamp.
pub(super) fn date_ms(value: ValueRef<'_>) -> Option<i64> {
    match value {
        ValueRef::DateTime(ms) => Some(ms),
        ValueRef::ObjectId(id) => Some(i64::from(id.timestamp_seconds()) * 1000),
        ValueRef::Timestamp(timestamp) => Some(i64::from(timestamp.seconds) * 1000),
        _ => None,
    }
}

/// [`date_ms`], or the common error of the operators.
pub(super) fn require_date(value: ValueRef<'_>) -> Result<i64> {
    date_ms(value).ok_or_else(|| {
        Error::location(
            location::DATE_CONVERSION,
            format!("can't convert from BSON type {} to Date", value.type_name()),
        )
    })
}

/// Parses a time zone argument.
pub(super) fn zone(value: ValueRef<'_>) -> Result<TimeZone> {
    let ValueRef::String(text) = value else {
        return Err(Error::location(
            location::TIME_ZONE_NOT_STRING,
            format!(
                "timezone must evaluate to a string, found {}",
                value.type_name()
            ),
        ));
    };
    TimeZone::parse(text).ok_or_else(|| {
        Error::location(
            location::TIME_ZONE_UNKNOWN,
            format!("unrecognized time zone identifier: \"{text}\""),
        )
    })
}

/// Returns the zone of an operation: the prepared one, the evaluated one, or UTC if there is no
/// argument.
pub(super) fn zone_of<'z>(
    operation: &'z Operation,
    evaluated: Option<&Evaluated<'_>>,
) -> Result<Cow<'z, TimeZone>> {
    if let Some(zone) = operation.prepared::<TimeZone>() {
        return Ok(Cow::Borrowed(zone));
    }
    match evaluated {
        None => Ok(Cow::Owned(TimeZone::Utc)),
        Some(value) => zone(value.as_ref()).map(Cow::Owned),
    }
}

/// Prepares a constant zone argument; an invalid one is kept and fails during evaluation.
pub(super) fn prepare_zone(operation: &Operation, index: usize) -> Option<PreparedData> {
    let zone = match operation.argument(index) {
        None => TimeZone::Utc,
        Some(_) => zone(operation.constant(index)?.as_ref()).ok()?,
    };
    Some(Arc::new(zone))
}

/// Parses a unit argument, with the operator's error codes.
pub(super) fn unit(value: ValueRef<'_>, name: &str, of_type: i32, of_value: i32) -> Result<Unit> {
    let ValueRef::String(text) = value else {
        return Err(Error::location(
            of_type,
            format!(
                "{name} requires 'unit' to be a string, but got {}",
                value.type_name()
            ),
        ));
    };
    Unit::parse(text).ok_or_else(|| {
        Error::location(
            of_value,
            format!("{name} parameter 'unit' value cannot be recognized as a time unit: {text}"),
        )
    })
}

/// Parses a `startOfWeek` argument.
pub(super) fn start_of_week(value: ValueRef<'_>, name: &str) -> Result<Weekday> {
    let ValueRef::String(text) = value else {
        return Err(Error::location(
            location::START_OF_WEEK_NOT_STRING,
            format!(
                "{name} requires 'startOfWeek' to be a string, but got {}",
                value.type_name()
            ),
        ));
    };
    Weekday::parse(text).ok_or_else(|| {
        Error::location(
            location::START_OF_WEEK_UNKNOWN,
            format!(
                "{name} parameter 'startOfWeek' value cannot be recognized as a day of a week: {text}"
            ),
        )
    })
}

/// True if any argument present is null or missing.
pub(super) fn any_null(values: &[Option<&Evaluated<'_>>]) -> bool {
    values.iter().flatten().any(|value| value.is_nullish())
}
