//! CivilDateTime dates: days since 1970 to year, month, day, week and back, in the proleptic Gregorian
//! calendar, and the ISO 8601 form of an instant.
//!
//! ```text
//! ms since 1970 ──▶ CivilDateTime { year, month, day, hour, … } ──▶ day of year, weeks, text
//!       ▲              │ year, month, day
//!       └── days ◀── days_of_date
//! ```
//!
//! Years are counted from March, so that the leap day is the last of a year, and in eras of 400
//! years (146,097 days), after which the calendar repeats: within an era all divisions are exact.
//! Every 64-bit millisecond is in range. This module knows no time zones and no clock.

/// Milliseconds in a second.
pub const SECOND_MS: i64 = 1000;
/// Milliseconds in a minute.
pub const MINUTE_MS: i64 = 60 * SECOND_MS;
/// Milliseconds in an hour.
pub const HOUR_MS: i64 = 60 * MINUTE_MS;
/// Milliseconds in a day whose UTC offset does not change.
pub const DAY_MS: i64 = 24 * HOUR_MS;
/// Days in 400 years, after which the calendar repeats.
pub const ERA_DAYS: i64 = 146_097;
/// Days from 0000-03-01 to 1970-01-01.
const EPOCH_SHIFT: i64 = 719_468;

/// A date and time of day, without a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CivilDateTime {
    /// Year; 0 is 1 BC.
    pub year: i64,
    /// 1 to 12.
    pub month: i64,
    /// 1 to 31.
    pub day: i64,
    /// 0 to 23.
    pub hour: i64,
    /// 0 to 59.
    pub minute: i64,
    /// 0 to 59.
    pub second: i64,
    /// 0 to 999.
    pub millisecond: i64,
    /// Days since 1970-01-01.
    pub days: i64,
}

/// An ISO 8601 week date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IsoWeek {
    /// The year the week belongs to.
    pub year: i64,
    /// 1 to 53.
    pub week: i64,
    /// 1 (Monday) to 7.
    pub weekday: i64,
}

impl CivilDateTime {
    /// Splits milliseconds since 1970 into date and time of day.
    pub fn from_ms(ms: i64) -> Self {
        let days = ms.div_euclid(DAY_MS);
        let time = ms.rem_euclid(DAY_MS);
        let (year, month, day) = date_of_days(days);
        Self {
            year,
            month,
            day,
            hour: time / HOUR_MS,
            minute: time / MINUTE_MS % 60,
            second: time / SECOND_MS % 60,
            millisecond: time % SECOND_MS,
            days,
        }
    }

    /// Returns the day of the year, 1 to 366.
    pub fn day_of_year(&self) -> i64 {
        self.days - days_of_date(self.year, 1, 1) + 1
    }

    /// Returns the day of the week, 1 (Sunday) to 7.
    pub fn day_of_week(&self) -> i64 {
        sunday_based(self.days) + 1
    }

    /// Returns the week of the year, 0 to 53. Weeks start on Sunday; days before the first Sunday
    /// are week 0.
    pub fn week(&self) -> i64 {
        (self.day_of_year() - 1 + 7 - sunday_based(self.days)) / 7
    }

    /// Returns the ISO week date.
    pub fn iso_week(&self) -> IsoWeek {
        let weekday = (self.days + 3).rem_euclid(7) + 1;
        // The year of a week is the year of its Thursday.
        let thursday = self.days - weekday + 4;
        let (year, _, _) = date_of_days(thursday);
        IsoWeek {
            year,
            week: (thursday - days_of_date(year, 1, 1)) / 7 + 1,
            weekday,
        }
    }
}

/// Returns the days since Sunday, 0 to 6.
fn sunday_based(days: i64) -> i64 {
    (days + 4).rem_euclid(7)
}

/// Returns the days since 1970-01-01 of a date. Any year is allowed; month and day must be in
/// range.
pub fn days_of_date(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let shifted_month = (month + 9) % 12;
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * ERA_DAYS + day_of_era - EPOCH_SHIFT
}

/// Returns year, month and day of a day counted from 1970-01-01.
pub fn date_of_days(days: i64) -> (i64, i64, i64) {
    let shifted = days + EPOCH_SHIFT;
    let era = shifted.div_euclid(ERA_DAYS);
    let day_of_era = shifted.rem_euclid(ERA_DAYS);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

/// Returns the days since 1970-01-01 of the Monday that starts ISO week 1 of a year.
pub fn days_of_iso_year(year: i64) -> i64 {
    let fourth = days_of_date(year, 1, 4);
    fourth - (fourth + 3).rem_euclid(7)
}

/// Returns the days in a month.
pub fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap(year) => 29,
        2 => 28,
        _ => 31,
    }
}

/// True if the year has a 29th of February.
pub fn is_leap(year: i64) -> bool {
    year.rem_euclid(4) == 0 && (year.rem_euclid(100) != 0 || year.rem_euclid(400) == 0)
}

/// Formats an instant in UTC with the offset spelled out: `2026-01-02T03:04:05.678+00:00`.
pub fn iso_with_offset(ms: i64) -> String {
    let at = CivilDateTime::from_ms(ms);
    let (year, month, day) = (at.year, at.month, at.day);
    let (hour, minute, second, millis) = (at.hour, at.minute, at.second, at.millisecond);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}+00:00")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_dates_agree_with_a_day_by_day_count() {
        let (mut year, mut month, mut day) = (-401, 3, 1);
        let mut days = days_of_date(year, month, day);
        while year < 2405 {
            assert_eq!(date_of_days(days), (year, month, day));
            assert_eq!(days_of_date(year, month, day), days);
            days += 1;
            day += 1;
            if day > days_in_month(year, month) {
                (day, month) = (1, month + 1);
            }
            if month > 12 {
                (month, year) = (1, year + 1);
            }
        }
    }

    #[test]
    fn the_ends_of_the_range() {
        for ms in [i64::MIN, i64::MAX, 0, -1] {
            let civil = CivilDateTime::from_ms(ms);
            assert_eq!(
                days_of_date(civil.year, civil.month, civil.day),
                ms.div_euclid(DAY_MS)
            );
        }
        assert_eq!(CivilDateTime::from_ms(-1).year, 1969);
    }

    #[test]
    fn iso_weeks() {
        for (date, expected) in [
            ((2016, 1, 1), (2015, 53, 5)),
            ((2016, 1, 4), (2016, 1, 1)),
            ((2008, 12, 29), (2009, 1, 1)),
            ((2010, 1, 3), (2009, 53, 7)),
            ((1970, 1, 1), (1970, 1, 4)),
            ((2000, 1, 1), (1999, 52, 6)),
        ] {
            let civil = CivilDateTime::from_ms(days_of_date(date.0, date.1, date.2) * DAY_MS);
            let week = civil.iso_week();
            assert_eq!((week.year, week.week, week.weekday), expected, "{date:?}");
            let back = days_of_iso_year(week.year) + (week.week - 1) * 7 + week.weekday - 1;
            assert_eq!(back, civil.days);
        }
    }

    #[test]
    fn sunday_weeks() {
        for (date, week, weekday) in [
            ((2017, 1, 1), 1, 1),
            ((2016, 1, 1), 0, 6),
            ((2016, 1, 3), 1, 1),
            ((2016, 12, 31), 52, 7),
            ((2012, 12, 31), 53, 2),
        ] {
            let civil = CivilDateTime::from_ms(days_of_date(date.0, date.1, date.2) * DAY_MS);
            assert_eq!(
                (civil.week(), civil.day_of_week()),
                (week, weekday),
                "{date:?}"
            );
        }
    }

    #[test]
    fn instants_are_formatted_in_utc() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000+00:00"),
            (951_782_400_000, "2000-02-29T00:00:00.000+00:00"),
            (1_700_000_000_123, "2023-11-14T22:13:20.123+00:00"),
            (-1, "1969-12-31T23:59:59.999+00:00"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000+00:00"),
        ] {
            assert_eq!(iso_with_offset(ms), text);
        }
    }
}
