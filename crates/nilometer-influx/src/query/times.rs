//! Times of conditions: constant expressions, ranges, and the windows of `GROUP BY time`.
//!
//! All times are nanoseconds since 1970 as in InfluxQL; those of documents are milliseconds.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::influxql::Expr;
use crate::influxql::ast::Operator;

/// Nanoseconds of a millisecond.
pub(super) const NS_PER_MS: i64 = 1_000_000;

const MS_PER_HOUR: i64 = 3_600_000;

/// The begin of the bins of `$dateTrunc`, in ms: 2000-01-01.
const TRUNC_REFERENCE_MS: i64 = 946_684_800_000;

/// A range of times, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimeRange {
    /// The first time, in ns; `None` if there is no bound.
    pub from: Option<i64>,
    /// The last time, in ns; `None` if there is no bound.
    pub to: Option<i64>,
}

impl TimeRange {
    /// The range of all times.
    pub(super) const ALL: Self = Self {
        from: None,
        to: None,
    };

    /// Narrows the range by a comparison of the time with a constant.
    pub(super) fn narrow(&mut self, operator: Operator, time: i64) -> Result<(), String> {
        let later =
            |known: Option<i64>, bound: i64| Some(known.map_or(bound, |known| known.max(bound)));
        let earlier =
            |known: Option<i64>, bound: i64| Some(known.map_or(bound, |known| known.min(bound)));
        match operator {
            Operator::Greater => self.from = later(self.from, time.saturating_add(1)),
            Operator::GreaterOrEqual => self.from = later(self.from, time),
            Operator::Less => self.to = earlier(self.to, time.saturating_sub(1)),
            Operator::LessOrEqual => self.to = earlier(self.to, time),
            Operator::Equal => {
                self.from = later(self.from, time);
                self.to = earlier(self.to, time);
            }
            _ => return Err(format!("time {} is not supported", operator.text())),
        }
        Ok(())
    }

    /// Returns the times in both ranges.
    pub(super) fn intersection(self, other: Self) -> Self {
        let both = |a: Option<i64>, b: Option<i64>, choose: fn(i64, i64) -> i64| match (a, b) {
            (Some(a), Some(b)) => Some(choose(a, b)),
            (one, None) | (None, one) => one,
        };
        Self {
            from: both(self.from, other.from, i64::max),
            to: both(self.to, other.to, i64::min),
        }
    }

    /// Returns the first millisecond in the range.
    pub(super) fn first_ms(self) -> Option<i64> {
        let from = self.from?;
        Some(from.div_euclid(NS_PER_MS) + i64::from(from.rem_euclid(NS_PER_MS) != 0))
    }

    /// Returns the last millisecond in the range.
    pub(super) fn last_ms(self) -> Option<i64> {
        Some(self.to?.div_euclid(NS_PER_MS))
    }
}

/// Evaluates a constant time: `now()`, texts, integers, durations, and sums and differences of them.
pub(super) fn constant(expr: &Expr, now_ms: i64, zone: Option<&TimeZone>) -> Result<i64, String> {
    let out_of_range = || "the time is out of range".to_owned();
    match expr {
        Expr::Integer(ns) | Expr::Duration(ns) => Ok(*ns),
        Expr::String(text) => {
            parse_time(text, zone).ok_or_else(|| format!("invalid time '{text}'"))
        }
        Expr::Call(name, arguments) if name == "now" && arguments.is_empty() => {
            now_ms.checked_mul(NS_PER_MS).ok_or_else(out_of_range)
        }
        Expr::Binary(operator @ (Operator::Add | Operator::Subtract), left, right) => {
            let left = constant(left, now_ms, zone)?;
            let right = constant(right, now_ms, zone)?;
            match operator {
                Operator::Add => left.checked_add(right),
                _ => left.checked_sub(right),
            }
            .ok_or_else(out_of_range)
        }
        other => Err(format!("{other} is no time")),
    }
}

/// Parses a time with or without zone, such as `2015-08-18T00:00:00.5Z` or `2015-08-18 00:00:00` or `2015-08-18`.
fn parse_time(text: &str, zone: Option<&TimeZone>) -> Option<i64> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return i64::try_from(time.as_nanosecond()).ok();
    }
    let civil: DateTime = text.parse().ok()?;
    let zone = zone.cloned().unwrap_or(TimeZone::UTC);
    let time = civil.to_zoned(zone).ok()?.timestamp();
    i64::try_from(time.as_nanosecond()).ok()
}

/// Returns a time as RFC 3339, in UTC or a zone.
pub(super) fn format_time(ns: i64, zone: Option<&TimeZone>) -> String {
    let Ok(time) = Timestamp::from_nanosecond(ns.into()) else {
        return ns.to_string();
    };
    match zone {
        None => time.to_string(),
        Some(zone) => {
            let local = time.to_zoned(zone.clone());
            let seconds = local.offset().seconds();
            let (sign, seconds) = (if seconds < 0 { '-' } else { '+' }, seconds.abs());
            let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
            match seconds {
                0 => format!("{}Z", local.datetime()),
                _ => format!("{}{sign}{hours:02}:{minutes:02}", local.datetime()),
            }
        }
    }
}

/// Windows of one length, side by side.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    /// Their length in ms.
    pub length_ms: i64,
    /// The shift against 1970, in ms, from 0 to the length.
    pub offset_ms: i64,
    /// They begin at local times of this zone.
    pub zone: Option<TimeZone>,
}

impl Windows {
    /// Makes windows of a length and a shift in ns.
    pub(super) fn new(
        length_ns: i64,
        offset_ns: i64,
        zone: Option<TimeZone>,
    ) -> Result<Self, String> {
        if length_ns % NS_PER_MS != 0 || offset_ns % NS_PER_MS != 0 {
            return Err("GROUP BY time takes whole milliseconds here".to_owned());
        }
        let length_ms = length_ns / NS_PER_MS;
        Ok(Self {
            length_ms,
            offset_ms: (offset_ns / NS_PER_MS).rem_euclid(length_ms),
            zone,
        })
    }

    fn zone_offset_ms(&self, ms: i64) -> i64 {
        let Some(zone) = &self.zone else { return 0 };
        match Timestamp::from_millisecond(ms) {
            Ok(time) => i64::from(zone.to_offset(time).seconds()) * 1_000,
            Err(_) => 0,
        }
    }

    /// Returns the begin of the window of a time.
    pub(super) fn start(&self, ms: i64) -> i64 {
        let shift = self.zone_offset_ms(ms);
        let local = ms + shift;
        let start = local - (local - self.offset_ms).rem_euclid(self.length_ms);
        let start_ms = start - shift;
        match &self.zone {
            None => start_ms,
            // The zone may have changed since the begin.
            Some(_) => (start - self.zone_offset_ms(start_ms)).min(ms),
        }
    }

    /// Returns the begin of the window after the one that begins at `start`.
    pub(super) fn next(&self, start: i64) -> i64 {
        let mut end = start.saturating_add(self.length_ms);
        if self.zone.is_none() {
            return end;
        }
        loop {
            let next = self.start(end);
            if next > start {
                return next;
            }
            // A window in which an hour is repeated is longer.
            end = end.saturating_add(MS_PER_HOUR.min(self.length_ms));
        }
    }

    /// Returns the difference of these windows in UTC to bins of `$dateTrunc` of the same length, at a time.
    fn shift_at(&self, ms: i64) -> i64 {
        (self.offset_ms - self.zone_offset_ms(ms) - TRUNC_REFERENCE_MS).rem_euclid(self.length_ms)
    }

    /// True if the windows are the days of a zone, which `$dateTrunc` knows.
    pub(super) fn are_days(&self) -> bool {
        self.zone.is_some() && self.length_ms == 24 * MS_PER_HOUR && self.offset_ms == 0
    }

    /// Returns the pieces of a range in which bins differ from those of `$dateTrunc` by a constant: the first time of each and
    /// the difference. Windows in which the zone changes are pieces of their own, without one.
    pub(super) fn pieces(&self, from_ms: i64, to_ms: i64) -> Vec<Piece> {
        let whole = Piece {
            from_ms,
            begin: PieceBegin::Shift(self.shift_at(from_ms)),
        };
        let (Some(zone), Ok(first), Ok(last)) = (
            &self.zone,
            Timestamp::from_millisecond(from_ms),
            Timestamp::from_millisecond(to_ms),
        ) else {
            return vec![whole];
        };
        let mut pieces = vec![whole];
        for transition in zone.following(first) {
            let at = transition.timestamp();
            if at > last || pieces.len() > PIECES_MAX {
                break;
            }
            let start = self.start(at.as_millisecond().saturating_sub(1));
            let mut next = self.next(start);
            if next <= at.as_millisecond() {
                // The change begins a window.
                next = at.as_millisecond();
            } else {
                pieces.push(Piece {
                    from_ms: start,
                    begin: PieceBegin::Window(start),
                });
            }
            let begin = PieceBegin::Shift(self.shift_at(next));
            // Hours are cut alike before and after a change by whole hours.
            if pieces.last().is_none_or(|last| last.begin != begin) {
                pieces.push(Piece {
                    from_ms: next,
                    begin,
                });
            }
        }
        pieces
    }
}

/// Changes of a zone that a query may span.
pub(super) const PIECES_MAX: usize = 1_000;

/// Part of a range, up to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Its first time.
    pub from_ms: i64,
    /// Where its windows begin.
    pub begin: PieceBegin,
}

/// Where the windows of a piece begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PieceBegin {
    /// So many ms after the bins of `$dateTrunc`.
    Shift(i64),
    /// The piece is this one window.
    Window(i64),
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000_000_000;

    #[test]
    fn constant_times() {
        use crate::influxql::{Bindings, Statement, parse};
        for (text, expected) in [
            ("now() - 1h", 7_200_000_000_000 - HOUR),
            ("1500ms", 1_500_000_000),
            ("17", 17),
            ("'1970-01-01T00:00:01.5Z' + 1s", 2_500_000_000),
            ("'1970-01-01 00:00:01'", 1_000_000_000),
            ("'1970-01-02'", 24 * HOUR),
            ("'1970-01-01T01:00:00+01:00'", 0),
        ] {
            let text = format!("SELECT a FROM m WHERE time > {text}");
            let all = parse(&text, &Bindings::new()).unwrap();
            let [Statement::Select(select)] = &all[..] else {
                panic!()
            };
            let Some(Expr::Binary(_, _, right)) = &select.condition else {
                panic!()
            };
            assert_eq!(constant(right, 7_200_000, None), Ok(expected), "{text}");
        }
    }

    #[test]
    fn ranges_end_at_whole_milliseconds() {
        let mut range = TimeRange::ALL;
        range.narrow(Operator::Greater, 1_000_000).unwrap();
        range.narrow(Operator::Less, 3_000_000).unwrap();
        assert_eq!((range.first_ms(), range.last_ms()), (Some(2), Some(2)));
        range.narrow(Operator::GreaterOrEqual, 2_000_001).unwrap();
        assert_eq!(range.first_ms(), Some(3));
        assert!(range.narrow(Operator::NotEqual, 1).is_err());
    }

    #[test]
    fn windows_lie_side_by_side_also_where_the_zone_changes() {
        for (name, hours, offset) in [
            ("UTC", 168, 0),
            ("Europe/Berlin", 24, 0),
            ("Europe/Berlin", 6, 1),
            ("America/New_York", 1, 0),
            ("Australia/Lord_Howe", 12, 0),
            ("Asia/Kolkata", 1, 0),
        ] {
            let zone = TimeZone::get(name).unwrap();
            let windows = Windows::new(hours * HOUR, offset * HOUR, Some(zone)).unwrap();
            // A year from 2024-01-01.
            let (from, to) = (1_704_067_200_000, 1_735_689_600_000);
            let pieces = windows.pieces(from, to);
            let mut start = windows.start(from);
            while start < to {
                let next = windows.next(start);
                assert!(next > start);
                for ms in [start, (start + next) / 2, next - 1] {
                    assert_eq!(windows.start(ms), start, "{name} {hours} {ms}");
                    let Some(piece) = pieces.iter().rev().find(|piece| piece.from_ms <= ms) else {
                        continue;
                    };
                    let begin = match piece.begin {
                        PieceBegin::Window(begin) => begin,
                        PieceBegin::Shift(shift) => {
                            let bin = ms - shift - TRUNC_REFERENCE_MS;
                            ms - bin.rem_euclid(windows.length_ms)
                        }
                    };
                    assert_eq!(begin, start, "{name} {hours} {ms} {piece:?}");
                }
                start = next;
            }
        }
    }

    #[test]
    fn times_are_written_in_a_zone() {
        assert_eq!(format_time(1_500_000_000, None), "1970-01-01T00:00:01.5Z");
        let zone = TimeZone::get("Asia/Kolkata").unwrap();
        assert_eq!(format_time(0, Some(&zone)), "1970-01-01T05:30:00+05:30");
    }
}
