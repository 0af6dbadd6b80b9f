//! Instants as ISO 8601 text, in the form of Extended JSON.

use crate::civil_date::{
    CivilDateTime, DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, days_in_month, days_of_date,
};

/// Parses `2020-01-02T03:04:05.678Z` to milliseconds since 1970. The fraction may be missing or
/// longer, the zone may be `+01:00`, `+0100` or `+01`. `None` for anything else.
pub fn parse_date(text: &str) -> Option<i64> {
    let (date, time) = text.split_once('T')?;
    let mut parts = date.splitn(3, '-');
    let (year, month, day) = (
        digits(parts.next()?, 4)?,
        digits(parts.next()?, 2)?,
        digits(parts.next()?, 2)?,
    );
    let zone_at = time.find(['Z', '+', '-'])?;
    let (clock, zone) = time.split_at_checked(zone_at)?;
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let mut parts = clock.splitn(3, ':');
    let (hour, minute) = (digits(parts.next()?, 2)?, digits(parts.next()?, 2)?);
    let second = parts.next().map_or(Some(0), |s| digits(s, 2))?;
    let valid = (1..=12).contains(&month)
        && (1..=days_in_month(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    if !valid || fraction.is_empty() || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let ms: i64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
    let time = hour * HOUR_MS + minute * MINUTE_MS + second * SECOND_MS + ms;
    Some(days_of_date(year, month, day) * DAY_MS + time - zone_offset(zone)?)
}

/// Formats an instant as `2020-01-02T03:04:05.678Z`, without the fraction if it is 0. `None` outside
/// the years 0 to 9999.
pub fn format_date(ms: i64) -> Option<String> {
    let at = CivilDateTime::from_ms(ms);
    let (year, month, day) = (at.year, at.month, at.day);
    if !(0..=9999).contains(&year) {
        return None;
    }
    let (hour, minute, second) = (at.hour, at.minute, at.second);
    let fraction = match at.millisecond {
        0 => String::new(),
        ms => format!(".{ms:03}"),
    };
    Some(format!(
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z"
    ))
}

fn digits(text: &str, count: usize) -> Option<i64> {
    let plain = text.len() == count && text.bytes().all(|b| b.is_ascii_digit());
    if plain { text.parse().ok() } else { None }
}

/// Returns the offset of a zone from UTC in milliseconds, east positive.
fn zone_offset(zone: &str) -> Option<i64> {
    let sign = match zone.as_bytes().first()? {
        b'Z' => return (zone.len() == 1).then_some(0),
        b'-' => -1,
        _ => 1,
    };
    let digits_only: String = zone.get(1..)?.chars().filter(|c| *c != ':').collect();
    let (hours, minutes) = match digits_only.len() {
        2 => (digits(&digits_only, 2)?, 0),
        4 => (
            digits(digits_only.get(..2)?, 2)?,
            digits(digits_only.get(2..)?, 2)?,
        ),
        _ => return None,
    };
    (hours < 24 && minutes < 60).then_some(sign * (hours * 60 + minutes) * MINUTE_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants() {
        for (text, ms) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1969-12-31T23:59:59.999Z", -1),
            ("2012-12-24T12:15:30.501Z", 1_356_351_330_501),
            ("2000-02-29T00:00:00Z", 951_782_400_000),
            ("0000-01-01T00:00:00Z", -62_167_219_200_000),
            ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
        ] {
            assert_eq!(parse_date(text), Some(ms), "{text}");
            assert_eq!(format_date(ms).as_deref(), Some(text));
        }
        assert_eq!(parse_date("1970-01-01T01:30:00.5+01:30"), Some(500));
        assert_eq!(
            parse_date("1970-01-01T00:00:00.123456-0100"),
            Some(3_600_123)
        );
        assert_eq!(parse_date("1970-01-01T00:00Z"), Some(0));
        assert_eq!(format_date(253_402_300_800_000), None);
        for text in [
            "",
            "1970-01-01",
            "1970-01-01T00:00:00",
            "1970-13-01T00:00:00Z",
            "1970-02-29T00:00:00Z",
            "1970-01-01T24:00:00Z",
            "1970-01-01T00:00:00.Z",
            "1970-01-01T00:00:00ZZ",
            "70-01-01T00:00:00Z",
            "1970-01-01T00:00:00+1",
            "é970-01-01T00:00:00Z",
        ] {
            assert_eq!(parse_date(text), None, "{text}");
        }
    }
}
