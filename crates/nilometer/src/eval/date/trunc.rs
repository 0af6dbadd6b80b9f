//! Truncation of instants to bins: `$dateTrunc`.
//!
//! Bins are counted in both directions from 2000-01-01T00:00 in the zone, or for weeks from the
//! first start-of-week day on or after it. Bins of hours and shorter units have equal length in
//! elapsed time. Bins of days and longer units follow the local calendar, so a day may have 23 or
//! 25 hours. In both cases the function is monotonic, which grouping in time order depends on.

use nilometer_bson::civil_date::{CivilDateTime, DAY_MS, days_of_date};

use super::REFERENCE_DAYS;
use super::unit::{Unit, Weekday};
use super::zone::TimeZone;
use crate::error::{Error, ErrorCode, Result};

const REFERENCE_YEAR: i64 = 2000;

/// Returns the start of the bin of `bin_size` units that contains the instant `ms`.
///
/// Does not allocate. `bin_size` must be at least 1. An error means that the bin starts before the
/// first representable date.
pub fn date_trunc_ms(
    ms: i64,
    unit: Unit,
    bin_size: i64,
    zone: &TimeZone,
    start_of_week: Weekday,
) -> Result<i64> {
    if let Some(unit_ms) = unit.clock_ms() {
        let bin_ms = i128::from(unit_ms) * i128::from(bin_size);
        return floor_to(ms, zone.reference_ms(), bin_ms);
    }
    let local = zone.to_local(ms);
    let days = match unit.days() {
        Some(unit_days) => {
            let reference = if unit == Unit::Week {
                start_of_week.on_or_after(REFERENCE_DAYS)
            } else {
                REFERENCE_DAYS
            };
            let bin = i128::from(unit_days) * i128::from(bin_size);
            floor_to(local.div_euclid(DAY_MS), reference, bin)?
        }
        None => trunc_months(local, unit, bin_size)?,
    };
    days.checked_mul(DAY_MS)
        .and_then(|start| zone.to_utc(start))
        .ok_or_else(out_of_range)
}

/// Returns the start of a bin of months, in days.
fn trunc_months(local: i64, unit: Unit, bin_size: i64) -> Result<i64> {
    let civil = CivilDateTime::from_ms(local);
    let months = (civil.year - REFERENCE_YEAR) * 12 + civil.month - 1;
    let bin = i128::from(unit.months().unwrap_or(1)) * i128::from(bin_size);
    let start = floor_to(months, 0, bin)?;
    let year = REFERENCE_YEAR + start.div_euclid(12);
    // Larger years have no date in 64-bit milliseconds, and would overflow the calendar.
    if year.unsigned_abs() > 300_000_000 {
        return Err(out_of_range());
    }
    Ok(days_of_date(year, start.rem_euclid(12) + 1, 1))
}

/// Returns the greatest `reference + n · bin` that is not above `value`.
fn floor_to(value: i64, reference: i64, bin: i128) -> Result<i64> {
    // Fast path in 64 bits, where division is several times faster.
    if let (Ok(bin), Some(distance)) = (i64::try_from(bin), value.checked_sub(reference)) {
        let behind = distance.checked_rem_euclid(bin).ok_or_else(out_of_range)?;
        return value.checked_sub(behind).ok_or_else(out_of_range);
    }
    let behind = (i128::from(value) - i128::from(reference))
        .checked_rem_euclid(bin)
        .ok_or_else(out_of_range)?;
    i64::try_from(i128::from(value) - behind).map_err(|_| out_of_range())
}

fn out_of_range() -> Error {
    Error::new(
        ErrorCode::Overflow,
        "$dateTrunc: the start of the bin is not representable as a date",
    )
}

#[cfg(test)]
mod tests {
    use nilometer_bson::civil_date::{HOUR_MS, MINUTE_MS};

    use super::*;

    fn at(year: i64, month: i64, day: i64, hour: i64, minute: i64) -> i64 {
        days_of_date(year, month, day) * DAY_MS + hour * HOUR_MS + minute * MINUTE_MS
    }

    fn trunc(ms: i64, unit: Unit, bin: i64, zone: &str) -> i64 {
        let zone = TimeZone::parse(zone).unwrap();
        date_trunc_ms(ms, unit, bin, &zone, Weekday::Sunday).unwrap()
    }

    #[test]
    fn units_in_utc() {
        let ms = at(2021, 3, 20, 11, 30) + 5_000 + 123;
        for (unit, bin, expected) in [
            (Unit::Millisecond, 1, ms),
            (Unit::Millisecond, 10, ms - 3),
            (Unit::Second, 1, ms - 123),
            (Unit::Minute, 1, at(2021, 3, 20, 11, 30)),
            (Unit::Minute, 20, at(2021, 3, 20, 11, 20)),
            (Unit::Hour, 1, at(2021, 3, 20, 11, 0)),
            (Unit::Hour, 2, at(2021, 3, 20, 10, 0)),
            (Unit::Day, 1, at(2021, 3, 20, 0, 0)),
            (Unit::Week, 1, at(2021, 3, 14, 0, 0)),
            (Unit::Week, 2, at(2021, 3, 14, 0, 0)),
            (Unit::Month, 1, at(2021, 3, 1, 0, 0)),
            (Unit::Month, 2, at(2021, 3, 1, 0, 0)),
            (Unit::Month, 6, at(2021, 1, 1, 0, 0)),
            (Unit::Quarter, 1, at(2021, 1, 1, 0, 0)),
            (Unit::Year, 1, at(2021, 1, 1, 0, 0)),
            (Unit::Year, 3, at(2021, 1, 1, 0, 0)),
            (Unit::Year, 5, at(2020, 1, 1, 0, 0)),
        ] {
            assert_eq!(trunc(ms, unit, bin, "UTC"), expected, "{unit:?} {bin}");
        }
    }

    #[test]
    fn before_the_reference_bins_go_down() {
        assert_eq!(
            trunc(at(1999, 12, 31, 23, 0), Unit::Year, 3, "UTC"),
            at(1997, 1, 1, 0, 0)
        );
        assert_eq!(
            trunc(at(1969, 12, 31, 23, 59), Unit::Hour, 1, "UTC"),
            at(1969, 12, 31, 23, 0)
        );
        assert_eq!(
            trunc(at(1965, 6, 15, 1, 0), Unit::Day, 1, "UTC"),
            at(1965, 6, 15, 0, 0)
        );
        assert_eq!(
            trunc(at(1999, 12, 31, 0, 0), Unit::Week, 1, "UTC"),
            at(1999, 12, 26, 0, 0)
        );
    }

    #[test]
    fn start_of_week() {
        let zone = TimeZone::Utc;
        for (day, expected) in [
            (Weekday::Sunday, at(2021, 3, 14, 0, 0)),
            (Weekday::Monday, at(2021, 3, 15, 0, 0)),
            (Weekday::Saturday, at(2021, 3, 20, 0, 0)),
        ] {
            let ms = at(2021, 3, 20, 11, 30);
            assert_eq!(
                date_trunc_ms(ms, Unit::Week, 1, &zone, day).unwrap(),
                expected
            );
        }
    }

    #[test]
    fn zones_and_changes_of_offset() {
        let ny = "America/New_York";
        assert_eq!(
            trunc(at(2021, 7, 1, 2, 0), Unit::Day, 1, ny),
            at(2021, 6, 30, 4, 0)
        );
        // A day of 23 hours, in bins of a day and of 24 hours.
        assert_eq!(
            trunc(at(2021, 3, 14, 16, 0), Unit::Day, 1, ny),
            at(2021, 3, 14, 5, 0)
        );
        assert_eq!(
            trunc(at(2021, 3, 14, 16, 0), Unit::Hour, 24, ny),
            at(2021, 3, 14, 5, 0)
        );
        // The repeated hour gives two bins.
        assert_eq!(
            trunc(at(2021, 11, 7, 5, 30), Unit::Hour, 1, ny),
            at(2021, 11, 7, 5, 0)
        );
        assert_eq!(
            trunc(at(2021, 11, 7, 6, 30), Unit::Hour, 1, ny),
            at(2021, 11, 7, 6, 0)
        );
        assert_eq!(
            trunc(at(2021, 3, 20, 11, 50), Unit::Hour, 1, "Asia/Kathmandu"),
            at(2021, 3, 20, 11, 15)
        );
        assert_eq!(
            trunc(at(2021, 3, 20, 11, 50), Unit::Hour, 1, "+0530"),
            at(2021, 3, 20, 11, 30)
        );
    }

    #[test]
    fn truncation_is_monotonic_and_never_later() {
        let step = nilometer_storage::testing::effort(101, 17, 17).cast_signed();
        for zone in [
            "UTC",
            "America/New_York",
            "Australia/Lord_Howe",
            "Asia/Kathmandu",
        ] {
            for (unit, bin) in [
                (Unit::Minute, 7),
                (Unit::Hour, 1),
                (Unit::Hour, 5),
                (Unit::Day, 1),
                (Unit::Week, 2),
                (Unit::Month, 1),
            ] {
                let mut last = i64::MIN;
                let mut ms = at(2021, 1, 1, 0, 0);
                while ms < at(2022, 1, 1, 0, 0) {
                    let start = trunc(ms, unit, bin, zone);
                    assert!(start <= ms && start >= last, "{zone} {unit:?} {bin} {ms}");
                    last = start;
                    ms += step * MINUTE_MS;
                }
            }
        }
    }

    #[test]
    fn the_ends_of_the_range_do_not_wrap() {
        let zone = TimeZone::parse("America/New_York").unwrap();
        for unit in Unit::ALL {
            for bin in [1, i64::MAX] {
                for ms in [i64::MIN, i64::MAX, 0] {
                    if let Ok(start) = date_trunc_ms(ms, unit, bin, &zone, Weekday::Sunday) {
                        assert!(start <= ms, "{unit:?} {bin} {ms} {start}");
                    }
                }
            }
        }
    }
}
