//! Instants as ISO 8601 text, as Extended JSON has them.

const MS_PER_SECOND: i64 = 1000;
const MS_PER_MINUTE: i64 = 60 * MS_PER_SECOND;
const MS_PER_DAY: i64 = 24 * 60 * MS_PER_MINUTE;
/// Days in 400 years, after which the calendar repeats.
const DAYS_PER_ERA: i64 = 146_097;
/// Days from 0000-03-01 to 1970-01-01.
const EPOCH_DAYS: i64 = 719_468;

/// Milliseconds since 1970 of `2020-01-02T03:04:05.678Z`; the fraction may be missing or longer, the
/// zone may be `+01:00`, `+0100` or `+01`. `None` for anything else.
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
    let time = (hour * 60 + minute) * MS_PER_MINUTE + second * MS_PER_SECOND + ms;
    Some(days_from_civil(year, month, day) * MS_PER_DAY + time - zone_offset(zone)?)
}

/// `2020-01-02T03:04:05.678Z`, without a fraction if there is none; `None` outside the years 0 to 9999.
pub fn format_date(ms: i64) -> Option<String> {
    let (year, month, day) = civil_from_days(ms.div_euclid(MS_PER_DAY));
    if !(0..=9999).contains(&year) {
        return None;
    }
    let time = ms.rem_euclid(MS_PER_DAY);
    let minutes = time / MS_PER_MINUTE;
    let (hour, minute) = (minutes / 60, minutes % 60);
    let (second, ms) = (time % MS_PER_MINUTE / MS_PER_SECOND, time % MS_PER_SECOND);
    let fraction = if ms == 0 {
        String::new()
    } else {
        format!(".{ms:03}")
    };
    Some(format!(
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z"
    ))
}

fn digits(text: &str, count: usize) -> Option<i64> {
    let plain = text.len() == count && text.bytes().all(|b| b.is_ascii_digit());
    if plain { text.parse().ok() } else { None }
}

/// Milliseconds a zone is ahead of UTC.
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
    (hours < 24 && minutes < 60).then_some(sign * (hours * 60 + minutes) * MS_PER_MINUTE)
}

fn days_in_month(year: i64, month: i64) -> i64 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since 1970 of a date in the Gregorian calendar; years begin in March to put the leap day last.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * DAYS_PER_ERA + day_of_era - EPOCH_DAYS
}

/// Year, month, day of a day since 1970.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + EPOCH_DAYS;
    let (era, day) = (days.div_euclid(DAYS_PER_ERA), days.rem_euclid(DAYS_PER_ERA));
    let year_of_era = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    (year, month, day_of_year - (153 * shifted + 2) / 5 + 1)
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

    #[test]
    fn every_day_of_some_centuries() {
        for day in -800_000..200_000 {
            let (year, month, date) = civil_from_days(day);
            assert_eq!(days_from_civil(year, month, date), day);
        }
    }
}
