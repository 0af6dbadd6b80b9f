//! Addition of units to an instant: `$dateAdd` and `$dateSubtract`.
//!
//! Hours and shorter units are elapsed time. Days and longer units move on the local calendar and
//! keep the local time of day across offset changes; a day after the end of a month becomes its
//! last day.

use nilometer_bson::civil_date::{CivilDateTime, DAY_MS, days_in_month, days_of_date};

use super::unit::Unit;
use super::zone::TimeZone;

/// Why an addition has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddError {
    /// The amount is longer than the range of dates.
    Amount,
    /// The result is out of range.
    Result,
}

/// Returns the instant `amount` units after `ms`.
pub fn add(ms: i64, unit: Unit, amount: i64, zone: &TimeZone) -> Result<i64, AddError> {
    // The range of dates is 2^64 milliseconds: larger amounts cannot have a result.
    let most = (1u128 << 64) / u128::from(unit.shortest_ms().unsigned_abs());
    if u128::from(amount.unsigned_abs()) > most {
        return Err(AddError::Amount);
    }
    if let Some(unit_ms) = unit.clock_ms() {
        let sum = i128::from(ms) + i128::from(amount) * i128::from(unit_ms);
        return i64::try_from(sum).map_err(|_| AddError::Result);
    }
    let local = zone.to_local(ms);
    let days = match unit.days() {
        Some(unit_days) => amount
            .checked_mul(unit_days)
            .and_then(|days| local.div_euclid(DAY_MS).checked_add(days)),
        None => add_months(local, amount, unit.months().unwrap_or(1)),
    };
    days.and_then(|days| days.checked_mul(DAY_MS))
        .and_then(|start| start.checked_add(local.rem_euclid(DAY_MS)))
        .and_then(|local| zone.to_utc(local))
        .ok_or(AddError::Result)
}

/// Returns the day `amount` times `unit_months` months later, in days; `None` far out of range.
fn add_months(local: i64, amount: i64, unit_months: i64) -> Option<i64> {
    let civil = CivilDateTime::from_ms(local);
    let months =
        (civil.year * 12 + civil.month - 1).checked_add(amount.checked_mul(unit_months)?)?;
    let (year, month) = (months.div_euclid(12), months.rem_euclid(12) + 1);
    (year.unsigned_abs() < 300_000_000)
        .then(|| days_of_date(year, month, civil.day.min(days_in_month(year, month))))
}

#[cfg(test)]
mod tests {
    use nilometer_bson::civil_date::{HOUR_MS, MINUTE_MS};

    use super::*;

    fn at(year: i64, month: i64, day: i64, hour: i64, minute: i64) -> i64 {
        days_of_date(year, month, day) * DAY_MS + hour * HOUR_MS + minute * MINUTE_MS
    }

    #[test]
    fn calendar_and_clock() {
        let utc = TimeZone::Utc;
        for (from, unit, amount, expected) in [
            (at(2020, 1, 31, 1, 0), Unit::Month, 1, at(2020, 2, 29, 1, 0)),
            (at(2021, 1, 31, 1, 0), Unit::Month, 1, at(2021, 2, 28, 1, 0)),
            (at(2020, 2, 29, 1, 0), Unit::Year, 1, at(2021, 2, 28, 1, 0)),
            (at(2020, 2, 29, 1, 0), Unit::Year, -4, at(2016, 2, 29, 1, 0)),
            (
                at(2020, 11, 30, 0, 0),
                Unit::Quarter,
                1,
                at(2021, 2, 28, 0, 0),
            ),
            (at(2020, 1, 1, 0, 0), Unit::Week, -1, at(2019, 12, 25, 0, 0)),
            (at(2020, 1, 1, 0, 0), Unit::Day, 366, at(2021, 1, 1, 0, 0)),
            (at(2020, 1, 1, 0, 0), Unit::Hour, 25, at(2020, 1, 2, 1, 0)),
        ] {
            assert_eq!(
                add(from, unit, amount, &utc),
                Ok(expected),
                "{unit:?} {amount}"
            );
        }
    }

    #[test]
    fn local_days_keep_the_time_of_day() {
        let ny = TimeZone::parse("America/New_York").unwrap();
        let noon = at(2021, 3, 13, 17, 0);
        assert_eq!(add(noon, Unit::Day, 1, &ny), Ok(at(2021, 3, 14, 16, 0)));
        assert_eq!(add(noon, Unit::Hour, 24, &ny), Ok(at(2021, 3, 14, 17, 0)));
        // Month ends are those of the zone: 2021-01-31T23:00 local.
        assert_eq!(
            add(at(2021, 2, 1, 4, 0), Unit::Month, 1, &ny),
            Ok(at(2021, 3, 1, 4, 0))
        );
    }

    #[test]
    fn limits() {
        let utc = TimeZone::Utc;
        assert_eq!(
            add(0, Unit::Month, 3_600_000_000, &utc),
            Err(AddError::Result)
        );
        assert_eq!(
            add(0, Unit::Month, 30_000_000_000, &utc),
            Err(AddError::Amount)
        );
        assert_eq!(add(0, Unit::Millisecond, i64::MAX, &utc), Ok(i64::MAX));
        assert_eq!(
            add(1, Unit::Millisecond, i64::MAX, &utc),
            Err(AddError::Result)
        );
        for unit in Unit::ALL {
            for amount in [i64::MIN, i64::MAX] {
                for ms in [i64::MIN, 0, i64::MAX] {
                    let _ = add(ms, unit, amount, &utc);
                }
            }
        }
    }
}
