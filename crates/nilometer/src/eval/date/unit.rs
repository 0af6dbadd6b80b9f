//! Units of time and days of the week, as named by date operators.

use nilometer_bson::civil_date::{DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS};

/// A unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Unit {
    Millisecond,
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Quarter,
    Year,
}

impl Unit {
    /// All units, shortest first.
    pub const ALL: [Unit; 9] = [
        Self::Millisecond,
        Self::Second,
        Self::Minute,
        Self::Hour,
        Self::Day,
        Self::Week,
        Self::Month,
        Self::Quarter,
        Self::Year,
    ];

    /// Returns the unit's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Millisecond => "millisecond",
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Quarter => "quarter",
            Self::Year => "year",
        }
    }

    /// Parses a name; names are lower case.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name() == name)
    }

    /// Returns the length of a unit of constant length in milliseconds; `None` for days and longer
    /// units.
    pub fn clock_ms(self) -> Option<i64> {
        match self {
            Self::Millisecond => Some(1),
            Self::Second => Some(SECOND_MS),
            Self::Minute => Some(MINUTE_MS),
            Self::Hour => Some(HOUR_MS),
            _ => None,
        }
    }

    /// Returns the number of months, for units made of months.
    pub fn months(self) -> Option<i64> {
        match self {
            Self::Month => Some(1),
            Self::Quarter => Some(3),
            Self::Year => Some(12),
            _ => None,
        }
    }

    /// Returns the number of days, for units made of days.
    pub fn days(self) -> Option<i64> {
        match self {
            Self::Day => Some(1),
            Self::Week => Some(7),
            _ => None,
        }
    }

    /// Returns the minimum length of the unit in milliseconds.
    pub fn shortest_ms(self) -> i64 {
        match self {
            Self::Month => 28 * DAY_MS,
            Self::Quarter => 90 * DAY_MS,
            Self::Year => 365 * DAY_MS,
            other => other
                .clock_ms()
                .or_else(|| other.days().map(|days| days * DAY_MS))
                .unwrap_or(1),
        }
    }
}

/// A day of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Weekday {
    #[default]
    Sunday,
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
}

impl Weekday {
    const NAMES: [(Weekday, &'static str); 7] = [
        (Self::Sunday, "sunday"),
        (Self::Monday, "monday"),
        (Self::Tuesday, "tuesday"),
        (Self::Wednesday, "wednesday"),
        (Self::Thursday, "thursday"),
        (Self::Friday, "friday"),
        (Self::Saturday, "saturday"),
    ];

    /// Parses a full name or its first three letters, in any case.
    pub fn parse(name: &str) -> Option<Self> {
        Self::NAMES
            .into_iter()
            .find(|(_, full)| {
                full.eq_ignore_ascii_case(name)
                    || full
                        .get(..3)
                        .is_some_and(|short| short.eq_ignore_ascii_case(name))
            })
            .map(|(day, _)| day)
    }

    /// Returns the number of days since Sunday.
    pub fn index(self) -> i64 {
        self as i64
    }

    /// Returns the first day on or after `days` with this weekday, in days since 1970-01-01.
    pub fn on_or_after(self, days: i64) -> i64 {
        // 1970-01-01 was a Thursday.
        days + (self.index() - (days + 4)).rem_euclid(7)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for unit in Unit::ALL {
            assert_eq!(Unit::parse(unit.name()), Some(unit));
        }
        assert_eq!(Unit::parse("Day"), None);
        assert_eq!(Unit::parse("days"), None);
        assert_eq!(Weekday::parse("MON"), Some(Weekday::Monday));
        assert_eq!(Weekday::parse("Saturday"), Some(Weekday::Saturday));
        assert_eq!(Weekday::parse("satu"), None);
        // 2000-01-01 was a Saturday.
        assert_eq!(Weekday::Saturday.on_or_after(10957), 10957);
        assert_eq!(Weekday::Sunday.on_or_after(10957), 10958);
        assert_eq!(Weekday::Friday.on_or_after(10957), 10963);
    }
}
