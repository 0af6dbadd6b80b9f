//! Days to years, months, weeks and back, in 64 bits.
//!
//! The conversion between days and dates shifts the year to start in March, so that the leap day
//! comes last, and counts in eras of 400 years (146,097 days), within which it is exact division.

use super::{DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS};

/// Days from 0000-03-01 to 1970-01-01.
const EPOCH_SHIFT: i64 = 719_468;
const ERA_DAYS: i64 = 146_097;

/// A local date and time of day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Civil {
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

impl Civil {
    /// Takes local milliseconds apart.
    pub fn from_local_ms(ms: i64) -> Self {
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

    /// 1 to 366.
    pub fn day_of_year(&self) -> i64 {
        self.days - days_of_date(self.year, 1, 1) + 1
    }

    /// 1 (Sunday) to 7.
    pub fn day_of_week(&self) -> i64 {
        sunday_based(self.days) + 1
    }

    /// Week of the year, 0 to 53: weeks start on Sunday, days before the first Sunday are week 0.
    pub fn week(&self) -> i64 {
        (self.day_of_year() - 1 + 7 - sunday_based(self.days)) / 7
    }

    /// The ISO week date.
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

/// 0 for Sunday to 6.
fn sunday_based(days: i64) -> i64 {
    (days + 4).rem_euclid(7)
}

/// Days since 1970-01-01; month and day must be in range, any year goes.
pub fn days_of_date(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let shifted_month = (month + 9) % 12;
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * ERA_DAYS + day_of_era - EPOCH_SHIFT
}

/// Year, month and day of a number of days since 1970-01-01.
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

/// Days since 1970-01-01 of the Monday that starts ISO week 1 of a year.
pub fn days_of_iso_year(year: i64) -> i64 {
    let fourth = days_of_date(year, 1, 4);
    fourth - (fourth + 3).rem_euclid(7)
}

/// Days in a month.
pub fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap(year) => 29,
        2 => 28,
        _ => 31,
    }
}

/// True for a leap year.
pub fn is_leap(year: i64) -> bool {
    year.rem_euclid(4) == 0 && (year.rem_euclid(100) != 0 || year.rem_euclid(400) == 0)
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
            let civil = Civil::from_local_ms(ms);
            assert_eq!(
                days_of_date(civil.year, civil.month, civil.day),
                ms.div_euclid(DAY_MS)
            );
        }
        assert_eq!(Civil::from_local_ms(-1).year, 1969);
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
            let civil = Civil::from_local_ms(days_of_date(date.0, date.1, date.2) * DAY_MS);
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
            let civil = Civil::from_local_ms(days_of_date(date.0, date.1, date.2) * DAY_MS);
            assert_eq!(
                (civil.week(), civil.day_of_week()),
                (week, weekday),
                "{date:?}"
            );
        }
    }
}
