//! Differences between two instants in units: `$dateDiff`.
//!
//! The difference is the number of unit boundaries crossed, on the local calendar and clock: from
//! 18:59:59 to 19:00:00 is one hour. It is negative if the end is before the start.

use nilometer_bson::civil_date::{CivilDateTime, DAY_MS};

use super::unit::{Unit, Weekday};
use super::zone::TimeZone;

/// Returns the number of boundaries of `unit` between `start` and `end`.
pub fn diff(start: i64, end: i64, unit: Unit, zone: &TimeZone, start_of_week: Weekday) -> i64 {
    if let Some(unit_ms) = unit.clock_ms() {
        return diff_clock(start, end, unit_ms, zone);
    }
    let (start, end) = (zone.to_local(start), zone.to_local(end));
    if let Some(months) = unit.months() {
        return months_since_zero(end).div_euclid(months)
            - months_since_zero(start).div_euclid(months);
    }
    let days = |local: i64| local.div_euclid(DAY_MS);
    if unit == Unit::Week {
        // 1970-01-01 was a Thursday, day 4 of a week that starts on Sunday.
        let week = |local| (days(local) + 4 - start_of_week.index()).div_euclid(7);
        return week(end) - week(start);
    }
    days(end) - days(start)
}

/// Counts hours and shorter units: boundaries of the local clock, except that time skipped or repeated by
/// an offset change counts as elapsed.
fn diff_clock(start: i64, end: i64, unit_ms: i64, zone: &TimeZone) -> i64 {
    let boundary = |ms: i64| {
        let local = i128::from(ms) + i128::from(zone.offset_ms(ms));
        i128::from(ms) - local.rem_euclid(i128::from(unit_ms))
    };
    let units = (boundary(end) - boundary(start)).div_euclid(i128::from(unit_ms));
    i64::try_from(units).unwrap_or(if units < 0 { i64::MIN } else { i64::MAX })
}

fn months_since_zero(local: i64) -> i64 {
    let civil = CivilDateTime::from_ms(local);
    civil.year * 12 + civil.month - 1
}

#[cfg(test)]
mod tests {
    use nilometer_bson::civil_date::{HOUR_MS, MINUTE_MS, days_of_date};

    use super::*;

    fn at(year: i64, month: i64, day: i64, hour: i64, minute: i64) -> i64 {
        days_of_date(year, month, day) * DAY_MS + hour * HOUR_MS + minute * MINUTE_MS
    }

    #[test]
    fn boundaries() {
        let utc = TimeZone::Utc;
        let from = at(2020, 12, 31, 23, 59);
        let to = at(2021, 1, 1, 0, 0);
        for unit in Unit::ALL.into_iter().skip(2) {
            let expected = i64::from(unit != Unit::Week);
            assert_eq!(
                diff(from, to, unit, &utc, Weekday::Sunday),
                expected,
                "{unit:?}"
            );
            assert_eq!(
                diff(to, from, unit, &utc, Weekday::Sunday),
                -expected,
                "{unit:?}"
            );
        }
        // 2021-01-01 was a Friday.
        assert_eq!(diff(from, to, Unit::Week, &utc, Weekday::Friday), 1);
        assert_eq!(diff(from, to, Unit::Second, &utc, Weekday::Sunday), 60);
        assert_eq!(
            diff(from, to, Unit::Millisecond, &utc, Weekday::Sunday),
            60_000
        );
        assert_eq!(
            diff(at(1, 1, 1, 0, 0), to, Unit::Year, &utc, Weekday::Sunday),
            2020
        );
    }

    #[test]
    fn local_boundaries() {
        let ny = TimeZone::parse("America/New_York").unwrap();
        let from = at(2021, 3, 14, 4, 30);
        let to = at(2021, 3, 14, 5, 30);
        assert_eq!(diff(from, to, Unit::Day, &ny, Weekday::Sunday), 1);
        assert_eq!(
            diff(from, to, Unit::Day, &TimeZone::Utc, Weekday::Sunday),
            0
        );
        // 01:59 to 03:00 of the local clock is one minute.
        assert_eq!(
            diff(
                at(2021, 3, 14, 6, 59),
                at(2021, 3, 14, 7, 0),
                Unit::Hour,
                &ny,
                Weekday::Sunday
            ),
            1
        );
        let kathmandu = TimeZone::parse("Asia/Kathmandu").unwrap();
        assert_eq!(
            diff(
                at(2021, 1, 1, 0, 10),
                at(2021, 1, 1, 0, 20),
                Unit::Hour,
                &kathmandu,
                Weekday::Sunday
            ),
            1
        );
    }

    #[test]
    fn the_whole_range() {
        assert_eq!(
            diff(
                i64::MIN,
                i64::MAX,
                Unit::Millisecond,
                &TimeZone::Utc,
                Weekday::Sunday
            ),
            i64::MAX
        );
        assert!(
            diff(
                i64::MIN,
                i64::MAX,
                Unit::Year,
                &TimeZone::Utc,
                Weekday::Sunday
            ) > 500_000_000
        );
    }
}
