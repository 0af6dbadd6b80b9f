//! `$dateTrunc: {date, unit, binSize = 1, timezone, startOfWeek = "Sunday"}`.
//!
//! Returns the start of the bin that contains the date; see [`date_trunc_ms`] for the bins.
//! `binSize` is an integer of at least 1; `startOfWeek` is a day's name or its first three letters
//! in any case, and is read only if the unit is week. Null or missing in any argument gives null
//! before the others are validated.
//!
//! Errors: 5439007 not an object, 5439008 unknown member, 5439009 no date, 5439010 no unit, 5439012
//! not a date, 5439013 and 5439014 unit, 5439015 and 5439016 startOfWeek, 5439017 and 5439018
//! binSize, 40517 and 40485 timezone.

use std::borrow::Cow;

use nilometer_bson::ValueRef;
use nilometer_bson::civil_date::DAY_MS;

use super::Expression;
use super::date_arguments::{self, date_ms};
use super::evaluated::Evaluated;
use super::numeric::integral;
use super::parse::{ExpressionParser, missing};
use super::registry::{NamedArguments, OperatorSpec, optional, required};
use super::scope::Scope;
use crate::error::{Error, Result, location};
use crate::eval::date::{TimeZone, Unit, Weekday, date_trunc_ms};

pub(super) const ARGUMENTS: NamedArguments = NamedArguments {
    not_object: location::DATE_TRUNC_NOT_OBJECT,
    unknown: location::DATE_TRUNC_ARGUMENT_UNKNOWN,
    fields: &[
        required("date", location::DATE_TRUNC_DATE_MISSING),
        required("unit", location::DATE_TRUNC_UNIT_MISSING),
        optional("binSize"),
        optional("timezone"),
        optional("startOfWeek"),
    ],
};

/// `$dateTrunc`.
#[derive(Clone, Debug)]
pub struct DateTrunc {
    /// The date to truncate.
    pub date: Expression,
    /// The unit's name.
    pub unit: Expression,
    /// Units per bin; default 1.
    pub bin_size: Option<Expression>,
    /// The zone; default UTC.
    pub timezone: Option<Expression>,
    /// First day of the week; default Sunday.
    pub start_of_week: Option<Expression>,
    /// The arguments other than the date, if all are valid constants.
    bins: Option<DateBins>,
}

/// The division of time into bins: the arguments of `$dateTrunc` other than the date.
#[derive(Clone, Debug)]
pub struct DateBins {
    /// The unit.
    pub unit: Unit,
    /// Units per bin, at least 1.
    pub bin_size: i64,
    /// The zone whose calendar and clock apply.
    pub timezone: TimeZone,
    /// First day of the week.
    pub start_of_week: Weekday,
}

impl DateBins {
    /// Returns the start of the bin that contains an instant.
    pub fn trunc(&self, ms: i64) -> Result<i64> {
        date_trunc_ms(
            ms,
            self.unit,
            self.bin_size,
            &self.timezone,
            self.start_of_week,
        )
    }

    /// Returns the bin that contains an instant.
    pub fn bin_of(&self, ms: i64) -> Result<Bin> {
        let start = self.trunc(ms)?;
        let length = self.length_ms();
        let end = length.and_then(|length| start.checked_add(length));
        Ok(Bin { start, end })
    }

    /// Returns the bin that contains an instant and stores it in `last`, the bin of the previous
    /// call.
    #[inline]
    pub fn bin_cached(&self, last: &mut Option<Bin>, ms: i64) -> Result<Bin> {
        if let Some(bin) = last
            && bin.surely_contains(ms)
        {
            return Ok(*bin);
        }
        Ok(*last.insert(self.bin_of(ms)?))
    }

    /// Returns the length of bins in milliseconds, if all have the same.
    pub fn length_ms(&self) -> Option<i64> {
        let unit_ms = match (self.unit.clock_ms(), &self.timezone) {
            (Some(unit_ms), _) => Some(unit_ms),
            (None, TimeZone::Utc | TimeZone::Fixed(_)) => self.unit.days().map(|n| n * DAY_MS),
            (None, TimeZone::Named { .. }) => None,
        };
        unit_ms?.checked_mul(self.bin_size)
    }
}

/// A bin of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bin {
    /// Its first instant.
    pub start: i64,
    /// The first instant after it, for bins of constant length.
    end: Option<i64>,
}

impl Bin {
    /// True if it contains the instant and the bins have constant length.
    #[inline]
    fn surely_contains(self, ms: i64) -> bool {
        self.start <= ms && self.end.is_some_and(|end| ms < end)
    }

    /// True if it contains an instant; `bins` is the division it belongs to.
    #[inline]
    pub fn contains(self, ms: i64, bins: &DateBins) -> Result<bool> {
        match self.end {
            Some(_) => Ok(self.surely_contains(ms)),
            None => Ok(bins.trunc(ms)? == self.start),
        }
    }
}

impl DateTrunc {
    /// Returns the arguments other than the date, if they are constant and valid, for kernels.
    pub fn constant_bins(&self) -> Option<&DateBins> {
        self.bins.as_ref()
    }

    pub(super) fn for_each_child(&self, visit: &mut dyn FnMut(&Expression)) {
        visit(&self.date);
        visit(&self.unit);
        for argument in [&self.bin_size, &self.timezone, &self.start_of_week] {
            argument.iter().for_each(&mut *visit);
        }
    }

    pub(super) fn for_each_child_mut(&mut self, visit: &mut dyn FnMut(&mut Expression)) {
        visit(&mut self.date);
        visit(&mut self.unit);
        for argument in [
            &mut self.bin_size,
            &mut self.timezone,
            &mut self.start_of_week,
        ] {
            argument.iter_mut().for_each(&mut *visit);
        }
    }

    /// Parses constant arguments; invalid or null ones are kept for evaluation.
    pub(super) fn prepare(&mut self) {
        let constant = |argument: &Option<Expression>| match argument {
            None => Some(None),
            Some(argument) => argument
                .as_constant()
                .map(|value| Some(Evaluated::from(value.clone()))),
        };
        self.bins = (|| {
            let unit = Evaluated::from(self.unit.as_constant()?.clone());
            let bin_size = constant(&self.bin_size)?;
            let timezone = constant(&self.timezone)?;
            let start_of_week = constant(&self.start_of_week)?;
            read_bins(&unit, &bin_size, &timezone, &start_of_week).ok()?
        })();
    }

    pub(super) fn evaluate<'s>(&'s self, scope: &Scope<'s>) -> Result<Evaluated<'s>> {
        let date = self.date.eval(scope)?;
        if date.is_nullish() {
            return Ok(Evaluated::NULL);
        }
        let bins = match &self.bins {
            Some(bins) => Cow::Borrowed(bins),
            None => {
                let unit = self.unit.eval(scope)?;
                let [bin_size, timezone, start_of_week] =
                    [&self.bin_size, &self.timezone, &self.start_of_week]
                        .map(|argument| argument.as_ref().map(|a| a.eval(scope)).transpose());
                let (bin_size, timezone, start_of_week) = (bin_size?, timezone?, start_of_week?);
                if nullish(&unit, &bin_size, &timezone, &start_of_week) {
                    return Ok(Evaluated::NULL);
                }
                require_date(date.as_ref())?;
                match read_bins(&unit, &bin_size, &timezone, &start_of_week)? {
                    Some(bins) => Cow::Owned(bins),
                    None => return Ok(Evaluated::NULL),
                }
            }
        };
        let ms = require_date(date.as_ref())?;
        bins.trunc(ms)
            .map(|start| Evaluated::Borrowed(ValueRef::DateTime(start)))
    }
}

fn require_date(value: ValueRef<'_>) -> Result<i64> {
    date_ms(value).ok_or_else(|| {
        Error::location(
            location::DATE_TRUNC_NOT_DATE,
            format!(
                "$dateTrunc requires 'date' to be a date, but got {}",
                value.type_name()
            ),
        )
    })
}

/// True if an argument that applies is null; `startOfWeek` applies to weeks only.
fn nullish(
    unit: &Evaluated<'_>,
    bin_size: &Option<Evaluated<'_>>,
    timezone: &Option<Evaluated<'_>>,
    start_of_week: &Option<Evaluated<'_>>,
) -> bool {
    let null =
        |argument: &Option<Evaluated<'_>>| argument.as_ref().is_some_and(Evaluated::is_nullish);
    unit.is_nullish()
        || null(bin_size)
        || null(timezone)
        || (unit.as_str() == Some("week") && null(start_of_week))
}

/// Validates the arguments; `None` if one of them is null.
fn read_bins(
    unit: &Evaluated<'_>,
    bin_size: &Option<Evaluated<'_>>,
    timezone: &Option<Evaluated<'_>>,
    start_of_week: &Option<Evaluated<'_>>,
) -> Result<Option<DateBins>> {
    if nullish(unit, bin_size, timezone, start_of_week) {
        return Ok(None);
    }
    let unit = date_arguments::unit(
        unit.as_ref(),
        "$dateTrunc",
        location::TIME_UNIT_NOT_STRING,
        location::TIME_UNIT_UNKNOWN,
    )?;
    let bin_size = match bin_size {
        None => 1,
        Some(value) => read_bin_size(value.as_ref())?,
    };
    let timezone = match timezone {
        None => TimeZone::Utc,
        Some(value) => date_arguments::zone(value.as_ref())?,
    };
    let start_of_week = match start_of_week {
        Some(value) if unit == Unit::Week => {
            date_arguments::start_of_week(value.as_ref(), "$dateTrunc")?
        }
        _ => Weekday::Sunday,
    };
    Ok(Some(DateBins {
        unit,
        bin_size,
        timezone,
        start_of_week,
    }))
}

fn read_bin_size(value: ValueRef<'_>) -> Result<i64> {
    let Some(size) = integral(value) else {
        return Err(Error::location(
            location::DATE_TRUNC_BIN_SIZE_TYPE,
            format!(
                "$dateTrunc requires 'binSize' to be a 64-bit integer, but got value of type {}",
                value.type_name()
            ),
        ));
    };
    if size < 1 {
        return Err(Error::location(
            location::DATE_TRUNC_BIN_SIZE_NOT_POSITIVE,
            format!("$dateTrunc requires 'binSize' to be greater than 0, but got value {size}"),
        ));
    }
    Ok(size)
}

pub(super) fn parse(
    parser: &mut ExpressionParser<'_>,
    spec: &'static OperatorSpec,
    value: ValueRef<'_>,
) -> Result<Expression> {
    let mut arguments = parser.arguments(spec, value)?.into_iter();
    let mut next = || arguments.next().flatten();
    Ok(Expression::DateTrunc(Box::new(DateTrunc {
        date: next().unwrap_or_else(missing),
        unit: next().unwrap_or_else(missing),
        bin_size: next(),
        timezone: next(),
        start_of_week: next(),
        bins: None,
    })))
}

#[cfg(test)]
mod tests {
    use nilometer_bson::civil_date::HOUR_MS;
    use nilometer_bson::{Decimal128, Document, ObjectId, Timestamp, Value, array, doc};

    use super::super::testing::{check, eval_code, parse_code};
    use super::*;
    use crate::eval::ParseContext;

    const T: i64 = 1_616_239_805_123; // 2021-03-20T11:30:05.123Z

    fn call(arguments: Document) -> Document {
        doc! { "$dateTrunc": arguments }
    }

    #[test]
    fn truncates() {
        let doc = doc! { "t": Value::DateTime(T), "u": "hour", "n": Value::Null };
        let day = T - T.rem_euclid(DAY_MS);
        let hour = T - T.rem_euclid(HOUR_MS);
        let cases = [
            (doc! { "date": "$t", "unit": "hour" }, hour),
            (doc! { "date": "$t", "unit": "$u" }, hour),
            (doc! { "date": "$t", "unit": "day", "binSize": 1.0 }, day),
            (doc! { "date": "$t", "unit": "day", "binSize": 1i64 }, day),
            (
                doc! { "date": "$t", "unit": "day", "binSize": Value::from(Decimal128::from(1i64)) },
                day,
            ),
            (
                doc! { "date": "$t", "unit": "day", "startOfWeek": "x" },
                day,
            ),
            (
                doc! { "date": "$t", "unit": "day", "startOfWeek": Value::Null },
                day,
            ),
            (
                doc! { "date": "$t", "unit": "week", "startOfWeek": "SAT" },
                day,
            ),
            (
                doc! { "date": "$t", "unit": "hour", "timezone": "+05:30" },
                hour + HOUR_MS / 2,
            ),
        ];
        for (arguments, expected) in cases {
            check(&doc, call(arguments), Value::DateTime(expected));
        }
    }

    #[test]
    fn other_types_of_date() {
        let seconds = u32::try_from(T / 1000).unwrap();
        let mut id = [0u8; 12];
        id[..4].copy_from_slice(&seconds.to_be_bytes());
        let doc = doc! {
            "id": ObjectId(id),
            "ts": Timestamp { seconds, increment: 3 },
        };
        let hour = Value::DateTime(T - T.rem_euclid(HOUR_MS));
        check(
            &doc,
            call(doc! { "date": "$id", "unit": "hour" }),
            hour.clone(),
        );
        check(&doc, call(doc! { "date": "$ts", "unit": "hour" }), hour);
    }

    #[test]
    fn null_beats_validation() {
        let doc = doc! { "t": Value::DateTime(T), "s": "x", "n": Value::Null };
        for arguments in [
            doc! { "date": "$n", "unit": "bad", "binSize": -1, "timezone": "Nowhere" },
            doc! { "date": "$gone", "unit": 5 },
            doc! { "date": "$s", "unit": "$n" },
            doc! { "date": "$s", "unit": "bad", "binSize": "$gone" },
            doc! { "date": "$t", "unit": "bad", "timezone": "$gone" },
            doc! { "date": "$t", "unit": "week", "startOfWeek": "$n" },
            doc! { "date": "$t", "unit": "day", "binSize": Value::Null },
        ] {
            check(&doc, call(arguments), Value::Null);
        }
    }

    #[test]
    fn errors() {
        let doc = doc! { "t": Value::DateTime(T), "s": "x" };
        for (argument, code) in [
            (Value::from(1), 5_439_007),
            (array!["$t", "day"], 5_439_007),
            (
                doc! { "date": "$t", "unit": "day", "x": 1 }.into(),
                5_439_008,
            ),
            (doc! { "unit": "day" }.into(), 5_439_009),
            (doc! { "date": "$t" }.into(), 5_439_010),
        ] {
            assert_eq!(parse_code(doc! { "$dateTrunc": argument }), code);
        }
        for (arguments, code) in [
            (doc! { "date": "$s", "unit": "day" }, 5_439_012),
            (doc! { "date": "$t", "unit": 5 }, 5_439_013),
            (doc! { "date": "$t", "unit": "days" }, 5_439_014),
            (
                doc! { "date": "$t", "unit": "week", "startOfWeek": 1 },
                5_439_015,
            ),
            (
                doc! { "date": "$t", "unit": "week", "startOfWeek": "x" },
                5_439_016,
            ),
            (
                doc! { "date": "$t", "unit": "day", "binSize": "1" },
                5_439_017,
            ),
            (
                doc! { "date": "$t", "unit": "day", "binSize": 1.5 },
                5_439_017,
            ),
            (
                doc! { "date": "$t", "unit": "day", "binSize": 0 },
                5_439_018,
            ),
            (doc! { "date": "$t", "unit": "day", "timezone": 1 }, 40517),
            (
                doc! { "date": "$t", "unit": "day", "timezone": "Nowhere" },
                40485,
            ),
        ] {
            assert_eq!(
                eval_code(&doc, call(arguments.clone())),
                code,
                "{arguments:?}"
            );
        }
    }

    #[test]
    fn constant_bins_are_prepared() {
        let parse = |arguments: Document| {
            let value = Value::from(call(arguments));
            Expression::parse(value.as_ref(), &ParseContext::new()).unwrap()
        };
        let Expression::DateTrunc(trunc) =
            parse(doc! { "date": "$t", "unit": "hour", "binSize": 2 })
        else {
            panic!("a shape of its own");
        };
        let bins = trunc.constant_bins().unwrap();
        assert_eq!((bins.unit, bins.bin_size), (Unit::Hour, 2));
        let Expression::DateTrunc(trunc) = parse(doc! { "date": "$t", "unit": "$u" }) else {
            panic!("a shape of its own");
        };
        assert!(trunc.constant_bins().is_none());
    }

    #[test]
    fn a_bin_contains_the_instants_truncated_to_its_start() {
        let zones = ["UTC", "+0530", "America/New_York"];
        let units = [
            (Unit::Millisecond, 1),
            (Unit::Second, 7),
            (Unit::Minute, 1),
            (Unit::Hour, 5),
            (Unit::Day, 1),
            (Unit::Week, 2),
            (Unit::Month, 1),
            (Unit::Hour, i64::MAX),
        ];
        for (zone, (unit, bin_size)) in zones.iter().flat_map(|z| units.map(|u| (z, u))) {
            let bins = DateBins {
                unit,
                bin_size,
                timezone: TimeZone::parse(zone).unwrap(),
                start_of_week: Weekday::Monday,
            };
            let mut last = None;
            for at in (-40_000_000_000..40_000_000_000).step_by(997_654_321) {
                for ms in [at, at + 1, at + 60_000, at - 3_600_000, at + 90_000_000] {
                    let Ok(start) = bins.trunc(ms) else {
                        assert!(bins.bin_of(ms).is_err());
                        continue;
                    };
                    let bin = bins.bin_cached(&mut last, ms).unwrap();
                    assert_eq!((bin, bin.start), (bins.bin_of(ms).unwrap(), start));
                    for other in [ms, start, start - 1, at, at + 3_600_000, at + 604_800_000] {
                        let truncated = bins.trunc(other);
                        let held = truncated.is_ok_and(|other| other == start);
                        assert_eq!(
                            bin.contains(other, &bins).unwrap_or(false),
                            held,
                            "{zone} {unit:?} {bin_size} {other} in {bin:?}"
                        );
                    }
                }
            }
        }
    }
}
