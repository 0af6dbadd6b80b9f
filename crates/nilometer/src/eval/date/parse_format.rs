//! Parsing of dates by a format string, as in `$dateFromString`.
//!
//! Specifiers take as many digits as present, up to their width; literal text must match exactly.
//! Missing fields default to the first value (January, the 1st, midnight), but a date needs a year.

use nilometer_bson::civil_date::{
    DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, days_in_month, days_of_date, days_of_iso_year, is_leap,
};

use super::format::{DateFormat, FormatPiece};
use super::parse::{local_to_utc, month_of, parse_error};
use super::zone::{TimeZone, parse_offset};
use crate::error::Result;

#[derive(Default)]
struct DateParts {
    year: Option<i64>,
    month: Option<i64>,
    day: Option<i64>,
    day_of_year: Option<i64>,
    iso_year: Option<i64>,
    iso_week: Option<i64>,
    iso_weekday: Option<i64>,
    hour: i64,
    minute: i64,
    second: i64,
    millisecond: i64,
    zone: Option<TimeZone>,
}

impl DateFormat {
    /// Parses a text by this format; `zone` applies if the text names no zone.
    pub fn read(&self, text: &str, zone: Option<&TimeZone>) -> Result<i64> {
        let fail = |what: &str| parse_error(text, what);
        let mut parts = DateParts::default();
        let mut rest = text;
        for piece in &self.pieces {
            match piece {
                FormatPiece::Text(expected) => {
                    rest = rest
                        .strip_prefix(expected.as_str())
                        .ok_or_else(|| fail("the format does not match"))?;
                }
                FormatPiece::Specifier(letter) => parts.read(*letter, &mut rest).map_err(fail)?,
            }
        }
        if !rest.is_empty() {
            return Err(fail("trailing data"));
        }
        let days = parts.days().map_err(fail)?;
        let time = parts.hour * HOUR_MS
            + parts.minute * MINUTE_MS
            + parts.second * SECOND_MS
            + parts.millisecond;
        let local = days
            .checked_mul(DAY_MS)
            .and_then(|ms| ms.checked_add(time))
            .ok_or_else(|| fail("out of range"))?;
        local_to_utc(local, parts.zone.as_ref(), zone, text)
    }
}

impl DateParts {
    fn read(&mut self, letter: char, rest: &mut &str) -> Result<(), &'static str> {
        match letter {
            'Y' => self.year = Some(digits(rest, 4, 4, 0..=9999)?),
            'G' => self.iso_year = Some(digits(rest, 4, 4, 0..=9999)?),
            'm' => self.month = Some(digits(rest, 1, 2, 1..=12)?),
            'd' => self.day = Some(digits(rest, 1, 2, 1..=31)?),
            'j' => self.day_of_year = Some(digits(rest, 3, 3, 1..=366)?),
            'V' => self.iso_week = Some(digits(rest, 1, 2, 1..=53)?),
            'u' => self.iso_weekday = Some(digits(rest, 1, 1, 1..=7)?),
            'H' => self.hour = digits(rest, 1, 2, 0..=23)?,
            'M' => self.minute = digits(rest, 1, 2, 0..=59)?,
            'S' => self.second = digits(rest, 1, 2, 0..=59)?,
            'L' => self.millisecond = fraction(rest)?,
            'b' | 'B' => self.month = Some(month_name(rest)?),
            'z' => {
                let (zone, after) = zone_text(rest)?;
                self.zone = Some(zone);
                *rest = after;
            }
            _ => {
                let minutes = signed_minutes(rest)?;
                self.zone = Some(TimeZone::Fixed(minutes * MINUTE_MS));
            }
        }
        Ok(())
    }

    fn days(&self) -> Result<i64, &'static str> {
        let iso = self.iso_year.is_some() || self.iso_week.is_some() || self.iso_weekday.is_some();
        let calendar = self.year.is_some() || self.month.is_some() || self.day.is_some();
        if iso && (calendar || self.day_of_year.is_some()) {
            return Err("mixing of ISO dates with natural dates is not allowed");
        }
        if iso {
            let year = self.iso_year.ok_or("the ISO year is missing")?;
            let week = self.iso_week.unwrap_or(1);
            return Ok(days_of_iso_year(year) + (week - 1) * 7 + self.iso_weekday.unwrap_or(1) - 1);
        }
        let year = self
            .year
            .ok_or("an incomplete date/time string has been found, with elements missing")?;
        if let Some(day) = self.day_of_year {
            if day > 365 + i64::from(is_leap(year)) {
                return Err("the day of the year is out of range");
            }
            return Ok(days_of_date(year, 1, 1) + day - 1);
        }
        let (month, day) = (self.month.unwrap_or(1), self.day.unwrap_or(1));
        if day > days_in_month(year, month) {
            return Err("the month has no such day");
        }
        Ok(days_of_date(year, month, day))
    }
}

/// Parses `min` to `max` digits.
fn digits(
    rest: &mut &str,
    min: usize,
    max: usize,
    range: std::ops::RangeInclusive<i64>,
) -> Result<i64, &'static str> {
    let count = rest
        .bytes()
        .take(max)
        .take_while(u8::is_ascii_digit)
        .count();
    if count < min {
        return Err("a number is missing or too short");
    }
    let (taken, after) = rest.split_at_checked(count).ok_or("a number is missing")?;
    *rest = after;
    let value = taken.parse().map_err(|_| "a number is out of range")?;
    if !range.contains(&value) {
        return Err("a number is out of range");
    }
    Ok(value)
}

/// Parses up to three digits of milliseconds, as a decimal fraction.
fn fraction(rest: &mut &str) -> Result<i64, &'static str> {
    let before = rest.len();
    let value = digits(rest, 1, 3, 0..=999)?;
    Ok(match before - rest.len() {
        1 => value * 100,
        2 => value * 10,
        _ => value,
    })
}

fn month_name(rest: &mut &str) -> Result<i64, &'static str> {
    let end = rest
        .find(|c: char| !c.is_ascii_alphabetic())
        .unwrap_or(rest.len());
    // The longest matching name: "March" before "Mar".
    for count in (3..=end).rev() {
        if let Some((name, after)) = rest.split_at_checked(count)
            && let Some(month) = month_of(name)
        {
            *rest = after;
            return Ok(month);
        }
    }
    Err("an unknown month")
}

/// Parses `Z`, an offset, or the name of a zone; returns it and the remaining text.
fn zone_text(rest: &str) -> Result<(TimeZone, &str), &'static str> {
    if let Some(after) = rest.strip_prefix(['Z', 'z']) {
        return Ok((TimeZone::Utc, after));
    }
    if rest.starts_with(['+', '-']) {
        for count in [6, 5, 3] {
            if let Some((text, after)) = rest.split_at_checked(count)
                && let Some(offset) = parse_offset(text)
            {
                return Ok((TimeZone::Fixed(offset), after));
            }
        }
        return Err("the zone is not an offset");
    }
    let end = rest
        .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '/' | '_' | '-' | '+')))
        .unwrap_or(rest.len());
    let (text, after) = rest.split_at_checked(end).ok_or("a zone is missing")?;
    let zone = TimeZone::parse(text).ok_or("the time zone is not in the database")?;
    Ok((zone, after))
}

/// Parses minutes with an optional sign.
fn signed_minutes(rest: &mut &str) -> Result<i64, &'static str> {
    let negative = rest.starts_with('-');
    if let Some(after) = rest.strip_prefix(['+', '-']) {
        *rest = after;
    }
    let minutes = digits(rest, 1, 4, 0..=9999)?;
    Ok(if negative { -minutes } else { minutes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, format: &str) -> Result<i64> {
        DateFormat::for_reading(format).unwrap().read(text, None)
    }

    #[test]
    fn formats() {
        let day = days_of_date(2017, 2, 8) * DAY_MS;
        let noon = day + 12 * HOUR_MS + 10 * MINUTE_MS + 40 * SECOND_MS;
        for (text, format, expected) in [
            ("08-02-2017", "%d-%m-%Y", day),
            ("8/2/2017", "%d/%m/%Y", day),
            ("20170208", "%Y%m%d", day),
            ("2017-039", "%Y-%j", day),
            ("2017-06-3", "%G-%V-%u", day),
            ("8 Feb 2017", "%d %b %Y", day),
            ("February 8 2017", "%B %d %Y", day),
            ("2017", "%Y", days_of_date(2017, 1, 1) * DAY_MS),
            (
                "2017-02-08T12:10:40.5Z",
                "%Y-%m-%dT%H:%M:%S.%L%z",
                noon + 500,
            ),
            (
                "2017-02-08 12:10:40 +0130",
                "%Y-%m-%d %H:%M:%S %z",
                noon - 90 * MINUTE_MS,
            ),
            (
                "2017-02-08 12:10:40 -60",
                "%Y-%m-%d %H:%M:%S %Z",
                noon + HOUR_MS,
            ),
            (
                "2017-02-08 12:10:40 America/New_York!",
                "%Y-%m-%d %H:%M:%S %z!",
                noon + 5 * HOUR_MS,
            ),
            ("100% 2017", "100%% %Y", days_of_date(2017, 1, 1) * DAY_MS),
        ] {
            match read(text, format) {
                Ok(ms) => assert_eq!(ms, expected, "{text}"),
                Err(error) => panic!("{text}: {error}"),
            }
        }
    }

    #[test]
    fn mismatches() {
        for (text, format) in [
            ("2017-02-08", "%Y/%m/%d"),
            ("2017-02-08x", "%Y-%m-%d"),
            ("2017-02", "%Y-%m-%d"),
            ("02-08", "%m-%d"),
            ("2017-13-08", "%Y-%m-%d"),
            ("2017-02-30", "%Y-%m-%d"),
            ("17-02-08", "%Y-%m-%d"),
            ("2017-06-2017", "%G-%V-%Y"),
            ("2017 Foo", "%Y %b"),
            ("2017 +1x", "%Y %z"),
        ] {
            assert_eq!(read(text, format).unwrap_err().code.0, 241, "{text}");
        }
    }
}
