//! Format strings of `$dateToString` and `$dateFromString`, and formatting of dates.
//!
//! | | | | |
//! |---|---|---|---|
//! | `%Y` year, 4 digits | `%m` month | `%d` day | `%H` hour |
//! | `%M` minute | `%S` second | `%L` millisecond, 3 digits | `%j` day of year, 3 digits |
//! | `%G` ISO year | `%V` ISO week | `%u` ISO weekday, 1 Monday | `%U` week, 00 to 53 |
//! | `%w` weekday, 1 Sunday | `%b` Jan | `%B` January | `%z` +hhmm, `%Z` minutes |
//!
//! `%%` is a percent sign, any other text is literal. Years have four digits, so a year below 0 or
//! above 9999 cannot be formatted.

use std::fmt::Write;

use nilometer_bson::civil_date::{CivilDateTime, MINUTE_MS};

use super::zone::TimeZone;
use crate::error::{Error, Result, location};

/// English names of the months.
pub(super) const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Why a format string is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatError {
    /// It ends with a single percent sign.
    Dangling,
    /// This letter after a percent sign is not a specifier.
    Unknown(char),
}

/// A part of a format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FormatPiece {
    /// Literal text.
    Text(String),
    /// A specifier's letter.
    Specifier(char),
}

/// A parsed format string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DateFormat {
    pub(super) pieces: Vec<FormatPiece>,
}

/// Specifiers allowed for formatting.
const FORMAT_SPECIFIERS: &str = "YmdHMSLjGVuUwbBzZ";
/// Specifiers allowed for parsing: weeks that start on Sunday and their days do not determine a
/// date.
const PARSE_SPECIFIERS: &str = "YmdHMSLjGVubBzZ";
/// The default formats.
const ISO_UTC: &str = "%Y-%m-%dT%H:%M:%S.%LZ";
const ISO_LOCAL: &str = "%Y-%m-%dT%H:%M:%S.%L";

impl DateFormat {
    /// Parses a format string for formatting.
    pub fn for_writing(text: &str) -> Result<Self, FormatError> {
        Self::parse(text, FORMAT_SPECIFIERS)
    }

    /// Parses a format string for parsing.
    pub fn for_reading(text: &str) -> Result<Self, FormatError> {
        Self::parse(text, PARSE_SPECIFIERS)
    }

    fn parse(text: &str, letters: &str) -> Result<Self, FormatError> {
        let mut pieces: Vec<FormatPiece> = Vec::new();
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            let literal = if c != '%' {
                c
            } else {
                match chars.next() {
                    None => return Err(FormatError::Dangling),
                    Some('%') => '%',
                    Some(letter) if letters.contains(letter) => {
                        pieces.push(FormatPiece::Specifier(letter));
                        continue;
                    }
                    Some(other) => return Err(FormatError::Unknown(other)),
                }
            };
            match pieces.last_mut() {
                Some(FormatPiece::Text(text)) => text.push(literal),
                _ => pieces.push(FormatPiece::Text(literal.to_string())),
            }
        }
        Ok(Self { pieces })
    }

    /// Returns the default format: with a final `Z` in UTC, without it in other zones.
    pub fn default_for(zone: &TimeZone) -> Self {
        let text = if zone.is_utc() { ISO_UTC } else { ISO_LOCAL };
        Self::for_writing(text).unwrap_or(Self { pieces: Vec::new() })
    }

    /// Formats a date in ISO form, in UTC.
    pub fn iso_utc(ms: i64) -> Result<String> {
        Self::default_for(&TimeZone::Utc).write(ms, &TimeZone::Utc)
    }

    /// Formats an instant with the clock and calendar of a zone.
    pub fn write(&self, ms: i64, zone: &TimeZone) -> Result<String> {
        let offset = zone.offset_ms(ms);
        let civil = CivilDateTime::from_ms(ms.saturating_add(offset));
        let mut out = String::with_capacity(self.pieces.len() * 3);
        for piece in &self.pieces {
            match piece {
                FormatPiece::Text(text) => out.push_str(text),
                FormatPiece::Specifier(letter) => write_part(&mut out, *letter, &civil, offset)?,
            }
        }
        Ok(out)
    }
}

fn write_part(out: &mut String, letter: char, civil: &CivilDateTime, offset_ms: i64) -> Result<()> {
    let (value, width) = match letter {
        'Y' => (four_digits(civil.year)?, 4),
        'G' => (four_digits(civil.iso_week().year)?, 4),
        'm' => (civil.month, 2),
        'd' => (civil.day, 2),
        'H' => (civil.hour, 2),
        'M' => (civil.minute, 2),
        'S' => (civil.second, 2),
        'L' => (civil.millisecond, 3),
        'j' => (civil.day_of_year(), 3),
        'V' => (civil.iso_week().week, 2),
        'U' => (civil.week(), 2),
        'u' => (civil.iso_week().weekday, 1),
        'w' => (civil.day_of_week(), 1),
        'Z' => (offset_ms / MINUTE_MS, 1),
        'z' => {
            let minutes = (offset_ms / MINUTE_MS).abs();
            let sign = if offset_ms < 0 { '-' } else { '+' };
            return write(
                out,
                format_args!("{sign}{:02}{:02}", minutes / 60, minutes % 60),
            );
        }
        _ => {
            let month = usize::try_from(civil.month - 1).ok();
            let name = month.and_then(|at| MONTHS.get(at)).copied().unwrap_or("");
            out.push_str(if letter == 'b' {
                name.get(..3).unwrap_or(name)
            } else {
                name
            });
            return Ok(());
        }
    };
    write(out, format_args!("{value:0width$}"))
}

fn write(out: &mut String, arguments: std::fmt::Arguments<'_>) -> Result<()> {
    out.write_fmt(arguments)
        .map_err(|_| Error::bad_value("cannot format the date"))
}

fn four_digits(year: i64) -> Result<i64> {
    if (0..=9999).contains(&year) {
        return Ok(year);
    }
    Err(Error::location(
        location::DATE_FORMAT_YEAR_OUT_OF_RANGE,
        format!("$dateToString is only defined on year 0-9999, tried to use year {year}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_letter() {
        let format = "%Y %m %d %H %M %S %L %j %G %V %u %U %w %b %B %z %Z %%";
        let format = DateFormat::for_writing(format).unwrap();
        // 2016-01-01T23:05:07.009Z, a Friday.
        let ms = 1_451_689_507_009;
        assert_eq!(
            format.write(ms, &TimeZone::Utc).unwrap(),
            "2016 01 01 23 05 07 009 001 2015 53 5 00 6 Jan January +0000 0 %"
        );
        assert_eq!(
            format
                .write(ms, &TimeZone::parse("Asia/Kathmandu").unwrap())
                .unwrap(),
            "2016 01 02 04 50 07 009 002 2015 53 6 00 7 Jan January +0545 345 %"
        );
        assert_eq!(
            format
                .write(ms, &TimeZone::parse("-0330").unwrap())
                .unwrap(),
            "2016 01 01 19 35 07 009 001 2015 53 5 00 6 Jan January -0330 -210 %"
        );
    }

    #[test]
    fn errors() {
        assert_eq!(DateFormat::for_writing("%Y%"), Err(FormatError::Dangling));
        assert_eq!(
            DateFormat::for_writing("%n"),
            Err(FormatError::Unknown('n'))
        );
        assert_eq!(
            DateFormat::for_reading("%w"),
            Err(FormatError::Unknown('w'))
        );
        let error = DateFormat::iso_utc(i64::MAX).unwrap_err();
        assert_eq!(error.code.0, 18537);
        assert!(DateFormat::iso_utc(-62_167_219_200_000).is_ok());
        assert!(DateFormat::iso_utc(-62_167_219_200_001).is_err());
    }
}
