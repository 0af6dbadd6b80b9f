//! Time zones: Olson names and offsets from UTC.
//!
//! A local time skipped by an offset change is interpreted with the offset before the change; one
//! that occurs twice is the first of the two. The last rules of a zone apply to all later times.

use jiff::Timestamp;
use jiff::civil::DateTime;
use nilometer_bson::civil_date::{CivilDateTime, DAY_MS, ERA_DAYS, MINUTE_MS, SECOND_MS};

use super::REFERENCE_MS;

/// Four hundred years.
const CYCLE_MS: i64 = ERA_DAYS * DAY_MS;
/// From about the year 9000 on, offsets are looked up a multiple of 400 years earlier.
const FUTURE_MS: i64 = 222_000_000_000_000;
/// Before about the year −9000, the offset of this instant applies.
const PAST_MS: i64 = -346_000_000_000_000;

/// A time zone.
#[derive(Clone, Debug)]
pub enum TimeZone {
    /// No offset.
    Utc,
    /// A fixed offset in milliseconds, east positive.
    Fixed(i64),
    /// A zone of the Olson database.
    Named {
        /// Its rules.
        zone: jiff::tz::TimeZone,
        /// The instant of 2000-01-01T00:00 in this zone, the origin of bins.
        reference_ms: i64,
    },
}

impl TimeZone {
    /// Parses an Olson name, or an offset `±hh`, `±hhmm`, `±hh:mm`.
    pub fn parse(text: &str) -> Option<Self> {
        if text == "UTC" || text == "GMT" || text == "Z" {
            return Some(Self::Utc);
        }
        if let Some(offset) = parse_offset(text) {
            return Some(if offset == 0 {
                Self::Utc
            } else {
                Self::Fixed(offset)
            });
        }
        if !text.starts_with(|c: char| c.is_ascii_alphabetic()) {
            return None;
        }
        let zone = jiff::tz::TimeZone::get(text).ok()?;
        match zone.to_fixed_offset() {
            Ok(offset) if offset.seconds() == 0 => Some(Self::Utc),
            Ok(offset) => Some(Self::Fixed(i64::from(offset.seconds()) * SECOND_MS)),
            Err(_) => {
                let reference_ms = resolve(&zone, REFERENCE_MS).unwrap_or(REFERENCE_MS);
                Some(Self::Named { zone, reference_ms })
            }
        }
    }

    /// True if the offset is always 0.
    pub fn is_utc(&self) -> bool {
        matches!(self, Self::Utc)
    }

    /// Returns the offset at an instant, in milliseconds, east positive.
    pub fn offset_ms(&self, ms: i64) -> i64 {
        match self {
            Self::Utc => 0,
            Self::Fixed(offset) => *offset,
            Self::Named { zone, .. } => {
                let ms = within_database(ms);
                Timestamp::from_millisecond(ms).map_or(0, |instant| {
                    i64::from(zone.to_offset(instant).seconds()) * SECOND_MS
                })
            }
        }
    }

    /// Converts an instant to local milliseconds; saturates at the ends of the range.
    pub fn to_local(&self, ms: i64) -> i64 {
        ms.saturating_add(self.offset_ms(ms))
    }

    /// Returns the instant of 2000-01-01T00:00 in this zone.
    pub fn reference_ms(&self) -> i64 {
        match self {
            Self::Utc => REFERENCE_MS,
            Self::Fixed(offset) => REFERENCE_MS - offset,
            Self::Named { reference_ms, .. } => *reference_ms,
        }
    }

    /// Converts local milliseconds to an instant; `None` if out of range.
    pub fn to_utc(&self, local_ms: i64) -> Option<i64> {
        let offset = match self {
            Self::Utc => 0,
            Self::Fixed(offset) => *offset,
            Self::Named { zone, .. } => {
                let near = within_database(local_ms);
                match resolve(zone, near) {
                    Some(instant) => near - instant,
                    None => self.offset_ms(local_ms),
                }
            }
        };
        local_ms.checked_sub(offset)
    }
}

/// Returns the instant of a local time, if the zone library can represent it.
fn resolve(zone: &jiff::tz::TimeZone, local_ms: i64) -> Option<i64> {
    let instant = zone.to_ambiguous_timestamp(date_time(local_ms)?);
    Some(instant.compatible().ok()?.as_millisecond())
}

/// Returns the instant itself, or one with the same offset that the zone library can look up: the
/// calendar and the last rules of a zone repeat every 400 years, and before the first year of the
/// database offsets do not change.
fn within_database(ms: i64) -> i64 {
    if ms > FUTURE_MS {
        FUTURE_MS - CYCLE_MS + (ms - FUTURE_MS).rem_euclid(CYCLE_MS)
    } else {
        ms.max(PAST_MS)
    }
}

/// Converts local milliseconds to the library's date and time; `None` beyond its range.
fn date_time(local_ms: i64) -> Option<DateTime> {
    let civil = CivilDateTime::from_ms(local_ms);
    DateTime::new(
        i16::try_from(civil.year).ok()?,
        i8::try_from(civil.month).ok()?,
        i8::try_from(civil.day).ok()?,
        i8::try_from(civil.hour).ok()?,
        i8::try_from(civil.minute).ok()?,
        i8::try_from(civil.second).ok()?,
        i32::try_from(civil.millisecond).ok()? * 1_000_000,
    )
    .ok()
}

/// Parses `±hh`, `±hhmm` or `±hh:mm` to milliseconds.
pub(super) fn parse_offset(text: &str) -> Option<i64> {
    let (negative, digits) = match text.as_bytes() {
        [b'+', rest @ ..] => (false, rest),
        [b'-', rest @ ..] => (true, rest),
        _ => return None,
    };
    let [h1, h2, m1, m2] = match *digits {
        [h1, h2] => [h1, h2, b'0', b'0'],
        [h1, h2, m1, m2] | [h1, h2, b':', m1, m2] => [h1, h2, m1, m2],
        _ => return None,
    };
    let digit = |b: u8| b.is_ascii_digit().then(|| i64::from(b - b'0'));
    let hours = digit(h1)? * 10 + digit(h2)?;
    let minutes = digit(m1)? * 10 + digit(m2)?;
    let offset = (hours * 60 + minutes) * MINUTE_MS;
    Some(if negative { -offset } else { offset })
}

#[cfg(test)]
mod tests {
    use nilometer_bson::civil_date::{HOUR_MS, days_of_date};

    use super::*;

    fn at(year: i64, month: i64, day: i64, hour: i64, minute: i64) -> i64 {
        days_of_date(year, month, day) * DAY_MS + hour * HOUR_MS + minute * MINUTE_MS
    }

    #[test]
    fn offsets_and_names() {
        for (text, expected) in [
            ("+05", Some(5 * HOUR_MS)),
            ("-0530", Some(-(5 * 60 + 30) * MINUTE_MS)),
            ("+05:45", Some((5 * 60 + 45) * MINUTE_MS)),
            ("UTC", Some(0)),
            ("GMT", Some(0)),
            ("America/New_York", Some(-5 * HOUR_MS)),
            ("Asia/Kathmandu", Some((5 * 60 + 45) * MINUTE_MS)),
            ("", None),
            ("+5", None),
            ("+05:4", None),
            ("Nowhere/City", None),
            ("+0a", None),
            ("../etc/passwd", None),
        ] {
            let found = TimeZone::parse(text).map(|zone| zone.offset_ms(at(2020, 1, 1, 0, 0)));
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn gaps_and_folds() {
        let zone = TimeZone::parse("America/New_York").unwrap();
        // 2021-03-14 02:30 does not exist; 2021-11-07 01:30 exists twice.
        assert_eq!(
            zone.to_utc(at(2021, 3, 14, 2, 30)),
            Some(at(2021, 3, 14, 7, 30))
        );
        assert_eq!(
            zone.to_utc(at(2021, 11, 7, 1, 30)),
            Some(at(2021, 11, 7, 5, 30))
        );
        assert_eq!(zone.to_local(at(2021, 7, 1, 12, 0)), at(2021, 7, 1, 8, 0));
    }

    #[test]
    fn last_zone_rules_apply_far_in_the_future() {
        let zone = TimeZone::parse("Europe/Berlin").unwrap();
        for (month, hours) in [(1, 1), (6, 2)] {
            let far = at(20_000, month, 1, 0, 0);
            let local = zone.to_local(far);
            assert_eq!(local - far, hours * HOUR_MS);
            assert_eq!(zone.to_utc(local), Some(far));
        }
        assert_eq!(
            zone.to_utc(zone.to_local(i64::MIN + DAY_MS)),
            Some(i64::MIN + DAY_MS)
        );
        assert_eq!(zone.to_local(i64::MAX), i64::MAX);
    }
}
