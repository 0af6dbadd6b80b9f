//! Parsing of dates without a format: ISO 8601 and common written forms.
//!
//! ```text
//! 2017-02-08   2017/02/08   20170208   2017-02   02/08/2017   2017-039 (day of year)   2017-W06-3
//! 8 February 2017   Feb 8, 2017   08-Feb-2017   Wed, 8 Feb 2017
//! T or space: 12:10   12:10:40   12:10:40.123   3:04 pm   121040
//! zone: Z   UTC   +01   +0130   +01:30   America/New_York   @1486555840 (seconds since 1970)
//! ```
//!
//! A date must be complete: a time alone, a weekday alone or words like "tomorrow" are errors.
//! Every failure is error 241, which `onError` catches.

use nilometer_bson::civil_date::{
    DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, days_in_month, days_of_date, days_of_iso_year, is_leap,
};

use super::format::MONTHS;
use super::zone::{TimeZone, parse_offset};
use crate::error::{Error, ErrorCode, Result};

/// Maximum length of a text: no date is longer.
const TEXT_BYTES_MAX: usize = 128;

/// Zone names that are not in the Olson database, with their offsets in hours.
const ABBREVIATIONS: &[(&str, i64)] = &[
    ("UTC", 0),
    ("GMT", 0),
    ("Z", 0),
    ("EST", -5),
    ("EDT", -4),
    ("CST", -6),
    ("CDT", -5),
    ("MST", -7),
    ("MDT", -6),
    ("PST", -8),
    ("PDT", -7),
    ("CET", 1),
    ("CEST", 2),
    ("BST", 1),
    ("EET", 2),
    ("EEST", 3),
];

/// Parses a text to an instant. `zone` applies if the text names no zone, and must not be given if
/// it does.
pub fn parse_date(text: &str, zone: Option<&TimeZone>) -> Result<i64> {
    let fail = |what: &str| parse_error(text, what);
    if text.len() > TEXT_BYTES_MAX {
        return Err(parse_error("…", "too long"));
    }
    let mut reader = DateReader {
        rest: text.trim(),
        ..DateReader::default()
    };
    reader.run().map_err(fail)?;
    if let Some(seconds) = reader.seconds {
        return seconds
            .checked_mul(SECOND_MS)
            .ok_or_else(|| fail("out of range"));
    }
    let days = reader.days.ok_or_else(|| {
        fail("an incomplete date/time string has been found, with elements missing")
    })?;
    let local = days
        .checked_mul(DAY_MS)
        .and_then(|ms| ms.checked_add(reader.time_ms.unwrap_or(0)))
        .ok_or_else(|| fail("out of range"))?;
    local_to_utc(local, reader.zone.as_ref(), zone, text)
}

/// Applies the zone of the text or the argument, but not both.
pub(super) fn local_to_utc(
    local: i64,
    found: Option<&TimeZone>,
    given: Option<&TimeZone>,
    text: &str,
) -> Result<i64> {
    let zone = match (found, given) {
        (Some(_), Some(given)) if !given.is_utc() => {
            return Err(parse_error(
                text,
                "you cannot pass in a date/time string with time zone information together with a \
                 timezone argument",
            ));
        }
        (Some(zone), _) | (None, Some(zone)) => zone,
        (None, None) => &TimeZone::Utc,
    };
    zone.to_utc(local)
        .ok_or_else(|| parse_error(text, "out of range"))
}

/// Returns the error of a text that is not a date.
pub(super) fn parse_error(text: &str, what: &str) -> Error {
    Error::new(
        ErrorCode::ConversionFailure,
        format!("Error parsing date string '{text}'; {what}"),
    )
}

type ParseStep<T> = Result<T, &'static str>;

/// Parses a text from left to right and records the fields found.
#[derive(Default)]
struct DateReader<'t> {
    rest: &'t str,
    days: Option<i64>,
    time_ms: Option<i64>,
    zone: Option<TimeZone>,
    seconds: Option<i64>,
}

impl<'t> DateReader<'t> {
    fn run(&mut self) -> ParseStep<()> {
        if let Some(seconds) = self.rest.strip_prefix('@') {
            self.seconds = Some(seconds.parse().map_err(|_| "not a number of seconds")?);
            return Ok(());
        }
        while !self.rest.is_empty() {
            let before = self.rest.len();
            self.skip(|c| c.is_ascii_whitespace() || c == ',');
            if self.rest.is_empty() {
                break;
            }
            self.token()?;
            if self.rest.len() == before {
                return Err("an unexpected character");
            }
        }
        Ok(())
    }

    fn token(&mut self) -> ParseStep<()> {
        match self.rest.chars().next() {
            Some('0'..='9') => self.number(),
            Some('T' | 't')
                if self.days.is_some()
                    && self.rest.as_bytes().get(1).is_some_and(u8::is_ascii_digit) =>
            {
                self.advance(1);
                self.time()
            }
            Some('+' | '-') if self.time_ms.is_some() || self.days.is_none() => self.signed(),
            Some(c) if c.is_ascii_alphabetic() => self.word(),
            _ => Err("an unexpected character"),
        }
    }

    /// Parses after a sign: an offset, or at the start a year of more than four digits.
    fn signed(&mut self) -> ParseStep<()> {
        if self.days.is_none() {
            let negative = self.rest.starts_with('-');
            self.advance(1);
            let digits = self.digits();
            if digits.len() < 4 || !self.rest.starts_with('-') {
                return Err("an unexpected sign");
            }
            let year: i64 = digits.parse().map_err(|_| "the year is out of range")?;
            let year = if negative { -year } else { year };
            self.advance(1);
            return self.month_and_day(year);
        }
        let end = self
            .rest
            .find(|c: char| c.is_ascii_whitespace())
            .unwrap_or(self.rest.len());
        let text = self.take(end);
        let offset = parse_offset(text)
            .or_else(|| short_offset(text))
            .ok_or("the zone is not an offset")?;
        self.set_zone(TimeZone::Fixed(offset))
    }

    /// Parses a token that starts with digits: a numeric date, a day before its month, or a time.
    fn number(&mut self) -> ParseStep<()> {
        let before = self.rest;
        let digits = self.digits();
        let next = self.rest.chars().next();
        if self.days.is_some() {
            self.rest = before;
            return self.time();
        }
        match (digits.len(), next) {
            (4, Some('-' | '/' | '.')) => {
                let year = number(digits)?;
                self.advance(1);
                if let Some(week) = self.rest.strip_prefix(['W', 'w']) {
                    self.rest = week;
                    return self.iso_week(year);
                }
                self.month_and_day(year)
            }
            (4, Some('W' | 'w')) => {
                self.advance(1);
                self.iso_week(number(digits)?)
            }
            (8, _) => {
                let (year, rest) = digits.split_at(4);
                let (month, day) = rest.split_at(2);
                self.date(number(year)?, number(month)?, number(day)?)
            }
            (14, _) => {
                let (date, time) = digits.split_at(8);
                let (year, rest) = date.split_at(4);
                let (month, day) = rest.split_at(2);
                self.date(number(year)?, number(month)?, number(day)?)?;
                self.compact_time(time)
            }
            (1 | 2, Some('/')) => {
                self.advance(1);
                let day = number(self.digits())?;
                self.expect('/')?;
                let year = self.digits();
                if year.len() != 4 {
                    return Err("the year needs four digits");
                }
                self.date(number(year)?, number(digits)?, day)
            }
            (1 | 2, Some(':')) => {
                self.rest = before;
                self.time()
            }
            (1 | 2, _) => self.day_before_month(number(digits)?),
            _ => Err("an unexpected number"),
        }
    }

    /// Parses after `yyyy-`: a month and a day, a month, or a day of the year.
    fn month_and_day(&mut self, year: i64) -> ParseStep<()> {
        if self.rest.starts_with(|c: char| c.is_ascii_alphabetic()) {
            let month = month_of(self.letters()).ok_or("an unknown month")?;
            self.expect('-')?;
            let day = number(self.digits())?;
            return self.date(year, month, day);
        }
        let digits = self.digits();
        match digits.len() {
            3 => {
                let day = number(digits)?;
                if !(1..=365 + i64::from(is_leap(year))).contains(&day) {
                    return Err("the day of the year is out of range");
                }
                self.set_days(days_of_date(year, 1, 1) + day - 1)
            }
            1 | 2 => {
                let month = number(digits)?;
                match self.rest.chars().next() {
                    Some('-' | '/' | '.') => {
                        self.advance(1);
                        let day = number(self.digits())?;
                        self.date(year, month, day)
                    }
                    _ => self.date(year, month, 1),
                }
            }
            _ => Err("an unexpected number"),
        }
    }

    fn iso_week(&mut self, year: i64) -> ParseStep<()> {
        let digits = self.digits();
        let (week, day) = match digits.len() {
            2 => match self.rest.strip_prefix('-') {
                Some(rest) => {
                    self.rest = rest;
                    (number(digits)?, number(self.digits())?)
                }
                None => (number(digits)?, 1),
            },
            3 => {
                let (week, day) = digits.split_at(2);
                (number(week)?, number(day)?)
            }
            _ => return Err("an unexpected week"),
        };
        if !(1..=53).contains(&week) || !(1..=7).contains(&day) {
            return Err("the week is out of range");
        }
        self.set_days(days_of_iso_year(year) + (week - 1) * 7 + day - 1)
    }

    /// Parses `8 February 2017`, `08-Feb-2017`.
    fn day_before_month(&mut self, day: i64) -> ParseStep<()> {
        for suffix in ["st", "nd", "rd", "th"] {
            if let Some(rest) = self.rest.strip_prefix(suffix) {
                self.rest = rest;
                break;
            }
        }
        self.skip(|c| c.is_ascii_whitespace() || matches!(c, '-' | '.'));
        let month = month_of(self.letters()).ok_or("an unknown month")?;
        self.skip(|c| c.is_ascii_whitespace() || matches!(c, '-' | '.' | ','));
        self.parse_year_after(month, day)
    }

    fn parse_year_after(&mut self, month: i64, day: i64) -> ParseStep<()> {
        let year = self.digits();
        if year.len() != 4 {
            return Err("the year is missing");
        }
        self.date(number(year)?, month, day)
    }

    /// Parses a word: a month, a weekday, am or pm, or a zone.
    fn word(&mut self) -> ParseStep<()> {
        let end = self
            .rest
            .find(|c: char| {
                !(c.is_ascii_alphanumeric() || matches!(c, '/' | '_' | '+' | '-' | ':'))
            })
            .unwrap_or(self.rest.len());
        let text = self.rest.get(..end).unwrap_or("");
        let letters: &str = text
            .split(|c: char| !c.is_ascii_alphabetic())
            .next()
            .unwrap_or("");
        if self.days.is_none()
            && let Some(month) = month_of(letters)
        {
            self.advance(letters.len());
            self.skip(|c| c.is_ascii_whitespace() || matches!(c, '-' | '.'));
            let day = number(self.digits())?;
            for suffix in ["st", "nd", "rd", "th"] {
                if let Some(rest) = self.rest.strip_prefix(suffix) {
                    self.rest = rest;
                }
            }
            self.skip(|c| c.is_ascii_whitespace() || matches!(c, '-' | '.' | ','));
            return self.parse_year_after(month, day);
        }
        if is_weekday(letters) && letters.len() == text.len() {
            self.advance(letters.len());
            return Ok(());
        }
        self.advance(end);
        if let Some((_, hours)) = ABBREVIATIONS
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(text))
        {
            return self.set_zone(if *hours == 0 {
                TimeZone::Utc
            } else {
                TimeZone::Fixed(hours * HOUR_MS)
            });
        }
        if self.days.is_none() {
            return Err("an unknown word");
        }
        let zone = TimeZone::parse(text).ok_or("the time zone is not in the database")?;
        self.set_zone(zone)
    }

    /// Parses `12:10`, `12:10:40.123`, `3 pm`, `121040`.
    fn time(&mut self) -> ParseStep<()> {
        let digits = self.digits();
        if matches!(digits.len(), 4 | 6) && !self.rest.starts_with(':') {
            return self.compact_time(digits);
        }
        if !matches!(digits.len(), 1 | 2) {
            return Err("an unexpected number");
        }
        let mut hour = number(digits)?;
        let (mut minute, mut second, mut fraction) = (0, 0, 0);
        let has_minutes = self.rest.starts_with(':');
        if has_minutes {
            self.advance(1);
            minute = number(self.digits())?;
            if self.rest.starts_with(':') {
                self.advance(1);
                second = number(self.digits())?;
                fraction = self.fraction();
            }
        }
        let half = self.half_of_day();
        match half {
            None if !has_minutes => return Err("the time is incomplete"),
            Some(_) if !(1..=12).contains(&hour) => return Err("the hour is out of range"),
            Some(afternoon) => hour = hour % 12 + if afternoon { 12 } else { 0 },
            None => {}
        }
        self.set_time(hour, minute, second, fraction)
    }

    fn compact_time(&mut self, digits: &str) -> ParseStep<()> {
        let part = |at: usize| digits.get(at..at + 2).map_or(Ok(0), number);
        let (hour, minute, second) = (part(0)?, part(2)?, part(4)?);
        let fraction = self.fraction();
        self.set_time(hour, minute, second, fraction)
    }

    /// Parses the digits after a decimal point as milliseconds, truncated.
    fn fraction(&mut self) -> i64 {
        let Some(rest) = self.rest.strip_prefix(['.', ',']) else {
            return 0;
        };
        if !rest.starts_with(|c: char| c.is_ascii_digit()) {
            return 0;
        }
        self.rest = rest;
        let digits = self.digits();
        let mut ms = 0;
        for at in 0..3 {
            let digit = digits.as_bytes().get(at).map_or(0, |b| i64::from(b - b'0'));
            ms = ms * 10 + digit;
        }
        ms
    }

    /// Parses `am` or `pm`; returns true for `pm`.
    fn half_of_day(&mut self) -> Option<bool> {
        let text = self.rest.trim_start();
        let half = text.get(..2)?;
        let afternoon = if half.eq_ignore_ascii_case("am") {
            false
        } else if half.eq_ignore_ascii_case("pm") {
            true
        } else {
            return None;
        };
        let after = text.get(2..)?;
        if after.starts_with(|c: char| c.is_ascii_alphabetic()) {
            return None;
        }
        self.rest = after;
        Some(afternoon)
    }

    fn set_time(&mut self, hour: i64, minute: i64, second: i64, ms: i64) -> ParseStep<()> {
        // 24:00 is the end of the day, second 60 a leap second: both mean the start of the next day
        // or minute.
        let end_of_day = hour == 24 && minute == 0 && second == 0 && ms == 0;
        if !(hour < 24 || end_of_day) || minute > 59 || second > 60 {
            return Err("the time is out of range");
        }
        if self.time_ms.is_some() {
            return Err("a second time");
        }
        self.time_ms = Some(hour * HOUR_MS + minute * MINUTE_MS + second * SECOND_MS + ms);
        Ok(())
    }

    fn date(&mut self, year: i64, month: i64, day: i64) -> ParseStep<()> {
        if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
            return Err("the date is out of range");
        }
        if day > days_in_month(year, month) {
            return Err("the month has no such day");
        }
        self.set_days(days_of_date(year, month, day))
    }

    fn set_days(&mut self, days: i64) -> ParseStep<()> {
        if self.days.is_some() {
            return Err("a second date");
        }
        self.days = Some(days);
        Ok(())
    }

    fn set_zone(&mut self, zone: TimeZone) -> ParseStep<()> {
        if self.zone.is_some() {
            return Err("a second time zone");
        }
        self.zone = Some(zone);
        Ok(())
    }

    fn take(&mut self, count: usize) -> &'t str {
        let (taken, rest) = self.rest.split_at_checked(count).unwrap_or((self.rest, ""));
        self.rest = rest;
        taken
    }

    fn advance(&mut self, count: usize) {
        self.take(count);
    }

    fn skip(&mut self, skipped: impl Fn(char) -> bool) {
        self.rest = self.rest.trim_start_matches(skipped);
    }

    fn expect(&mut self, c: char) -> ParseStep<()> {
        self.rest = self.rest.strip_prefix(c).ok_or("a separator is missing")?;
        Ok(())
    }

    fn digits(&mut self) -> &'t str {
        let end = self
            .rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(self.rest.len());
        self.take(end)
    }

    fn letters(&mut self) -> &'t str {
        let end = self
            .rest
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(self.rest.len());
        self.take(end)
    }
}

fn number(digits: &str) -> ParseStep<i64> {
    digits.parse().map_err(|_| "a number is missing")
}

/// Parses `±h:mm`, `±h`.
fn short_offset(text: &str) -> Option<i64> {
    let (sign, rest) = text.split_at_checked(1)?;
    let padded = format!("{sign}0{rest}");
    parse_offset(&padded)
}

pub(super) fn month_of(name: &str) -> Option<i64> {
    let at = MONTHS.iter().position(|month| {
        month.eq_ignore_ascii_case(name)
            || (name.len() == 3
                && month
                    .get(..3)
                    .is_some_and(|short| short.eq_ignore_ascii_case(name)))
            || (*month == "September" && name.eq_ignore_ascii_case("sept"))
    })?;
    i64::try_from(at + 1).ok()
}

fn is_weekday(name: &str) -> bool {
    super::Weekday::parse(name).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(year: i64, month: i64, day: i64, hour: i64, minute: i64, second: i64) -> i64 {
        days_of_date(year, month, day) * DAY_MS
            + hour * HOUR_MS
            + minute * MINUTE_MS
            + second * SECOND_MS
    }

    #[test]
    fn forms() {
        let day = at(2017, 2, 8, 0, 0, 0);
        let noon = at(2017, 2, 8, 12, 10, 40);
        for (text, expected) in [
            ("2017-02-08", day),
            ("2017-2-8", day),
            ("2017/02/08", day),
            ("20170208", day),
            ("02/08/2017", day),
            ("2017-039", day),
            ("2017-W06-3", day),
            ("2017W063", day),
            ("2017-02", at(2017, 2, 1, 0, 0, 0)),
            ("8 February 2017", day),
            ("February 8, 2017", day),
            ("Feb 8th 2017", day),
            ("08-Feb-2017", day),
            ("2017-Feb-08", day),
            ("Wed, 8 Feb 2017", day),
            ("2017-02-08T12:10:40Z", noon),
            ("2017-02-08t12:10:40z", noon),
            ("2017-02-08 12:10:40", noon),
            ("2017-02-08T12:10:40.987654Z", noon + 987),
            ("2017-02-08T12:10:40.9Z", noon + 900),
            ("2017-02-08T12:10", at(2017, 2, 8, 12, 10, 0)),
            ("20170208T121040", noon),
            ("20170208T121040Z", noon),
            ("20170208121040", noon),
            ("2017-02-08 12:10:40 UTC", noon),
            ("2017-02-08 12:10:40 GMT", noon),
            ("2017-02-08T12:10:40+01:00", noon - HOUR_MS),
            ("2017-02-08T12:10:40+0130", noon - HOUR_MS - HOUR_MS / 2),
            ("2017-02-08T12:10:40-05", noon + 5 * HOUR_MS),
            ("2017-02-08 12:10:40 America/New_York", noon + 5 * HOUR_MS),
            ("2017-02-08 12:10:40 EST", noon + 5 * HOUR_MS),
            ("2017-02-08 3:04 pm", at(2017, 2, 8, 15, 4, 0)),
            ("2017-02-08 12:04AM", at(2017, 2, 8, 0, 4, 0)),
            ("12:10:40 2017-02-08", noon),
            ("2017-02-08T24:00:00Z", day + DAY_MS),
            ("2012-06-30T23:59:60Z", at(2012, 7, 1, 0, 0, 0)),
            ("0001-01-01T00:00:00Z", at(1, 1, 1, 0, 0, 0)),
            ("-0500-01-01T00:00:00Z", at(-500, 1, 1, 0, 0, 0)),
            ("1960-01-01", at(1960, 1, 1, 0, 0, 0)),
            ("@1486555840", noon),
            ("@-1", -1000),
        ] {
            match parse_date(text, None) {
                Ok(ms) => assert_eq!(ms, expected, "{text}"),
                Err(error) => panic!("{text}: {error}"),
            }
        }
    }

    #[test]
    fn refused() {
        for text in [
            "",
            " ",
            "tomorrow",
            "Friday",
            "12:10:40",
            "2017",
            "2017-13-01",
            "2017-02-30",
            "2017-02-08T25:00",
            "2017-02-08T12:61",
            "2017-02-08T12:10:61Z",
            "2017-02-08 12",
            "2017-02-08 Nowhere/City",
            "2017-02-08T12:10:40Z Z",
            "2017-02-08 2017-02-09",
            "2017-366",
            "2017-W54-1",
            "8 Foo 2017",
            "60.Monday1770/06:59",
            "2017-02-08x",
            "2017-02-08T",
            "@x",
            "1.5",
            "é",
            "+12",
        ] {
            match parse_date(text, None) {
                Ok(ms) => panic!("{text:?} is {ms}"),
                Err(error) => assert_eq!(error.code, ErrorCode::ConversionFailure),
            }
        }
        let zone = TimeZone::parse("+01").unwrap();
        assert!(parse_date("2017-02-08T12:10:40Z", Some(&zone)).is_err());
        assert_eq!(
            parse_date("2017-02-08", Some(&zone)).unwrap(),
            at(2017, 2, 7, 23, 0, 0)
        );
    }

    #[test]
    fn parsing_any_text_does_not_panic() {
        // Every prefix and every one-character change of valid dates.
        let texts = [
            "2017-02-08T12:10:40.123+01:30",
            "Wed, 8 Feb 2017 3:04 pm EST",
            "2017W063",
        ];
        for text in texts {
            for end in 0..=text.len() {
                let _ = parse_date(&text[..end], None);
                for c in ['x', '9', '-', ':', '/', ' ', 'é', '+', 'T', '@'] {
                    let mut changed = text.to_owned();
                    if end < text.len() {
                        changed.replace_range(end..=end, &c.to_string());
                    } else {
                        changed.push(c);
                    }
                    let _ = parse_date(&changed, None);
                }
            }
        }
    }
}
