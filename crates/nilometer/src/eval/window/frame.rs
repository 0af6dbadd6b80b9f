//! Bounds of a window, and the range of positions they give for each document.
//!
//! | bound         | documents              | range                                         |
//! |---------------|------------------------|-----------------------------------------------|
//! | `"unbounded"` | end of the partition   | end of the partition                          |
//! | `"current"`   | this document          | this document alone, also among equal values  |
//! | n             | n positions away       | sort value n (units) away, equal values included |

use std::cmp::Ordering;
use std::ops::Range;

use nilometer_bson::block::ColumnBlock;
use nilometer_bson::number::Number;
use nilometer_bson::order::compare;
use nilometer_bson::{Value, ValueRef};

use crate::error::{Error, ErrorCode, Result, location};
use crate::eval::date::{self, TimeZone, Unit};

/// One end of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound<T> {
    /// The end of the partition.
    Unbounded,
    /// The document itself.
    Current,
    /// At this distance.
    At(T),
}

/// The two ends of a window.
#[derive(Clone, Copy, Debug)]
pub enum Bounds {
    /// By position.
    Documents(Bound<i64>, Bound<i64>),
    /// By the value of the single sort field; with a unit it must be a date.
    Range(Bound<Number>, Bound<Number>, Option<Unit>),
}

impl Bounds {
    /// The whole partition.
    pub const ALL: Self = Self::Documents(Bound::Unbounded, Bound::Unbounded);

    /// True for the whole partition. A range is not: it requires sort values that are numbers or dates.
    pub fn is_all(&self) -> bool {
        matches!(self, Self::Documents(Bound::Unbounded, Bound::Unbounded))
    }

    /// True if the frames depend on the sort values, or only exist if these are numbers or dates.
    pub(super) fn needs_sort_values(&self) -> bool {
        matches!(self, Self::Range(..))
    }

    /// Returns the range of positions of each of `count` documents. Both ends only move forward.
    pub(super) fn frames(
        &self,
        count: usize,
        sort_values: &ColumnBlock,
    ) -> Result<Vec<Range<usize>>> {
        match self {
            Self::Documents(lower, upper) => Ok((0..count)
                .map(|at| {
                    let start = position(*lower, at, count, 0, 0);
                    let end = position(*upper, at, count, count, 1);
                    start..end.max(start)
                })
                .collect()),
            Self::Range(lower, upper, unit) => {
                range_frames(*lower, *upper, *unit, count, sort_values)
            }
        }
    }
}

/// Clips a position to the partition; ends of ranges are one after the last position.
fn position(bound: Bound<i64>, at: usize, count: usize, unbounded: usize, behind: i64) -> usize {
    let offset = match bound {
        Bound::Unbounded => return unbounded,
        Bound::Current => 0,
        Bound::At(offset) => offset,
    };
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let at = i64::try_from(at).unwrap_or(i64::MAX);
    let position = at.saturating_add(offset).saturating_add(behind);
    usize::try_from(position.clamp(0, count)).unwrap_or(0)
}

fn range_frames(
    lower: Bound<Number>,
    upper: Bound<Number>,
    unit: Option<Unit>,
    count: usize,
    sort_values: &ColumnBlock,
) -> Result<Vec<Range<usize>>> {
    if let (Some(dates), Some(unit), true) = (
        sort_values.as_datetime(),
        unit,
        sort_values.is_all_present(),
    ) {
        return ends_of_frames(
            (lower, upper),
            count,
            |at, offset| match dates.get(at) {
                Some(ms) => shifted_date(*ms, offset, unit).map(Some),
                None => Ok(None),
            },
            |position, limit| dates.get(position).copied().cmp(limit),
        );
    }
    for at in 0..count {
        check(sort_values.value(at), unit)?;
    }
    ends_of_frames(
        (lower, upper),
        count,
        |at, offset| shifted(sort_values.value(at), offset, unit),
        |position, limit| compare(sort_values.value(position), limit.as_ref()),
    )
}

/// Computes the frames. `shifted` returns the sort value at an offset from a position, and `order`
/// compares a position's value with it.
fn ends_of_frames<P>(
    (lower, upper): (Bound<Number>, Bound<Number>),
    count: usize,
    shifted: impl Fn(usize, Number) -> Result<P>,
    order: impl Fn(usize, &P) -> Ordering,
) -> Result<Vec<Range<usize>>> {
    let mut frames = Vec::with_capacity(count);
    let (mut start, mut end) = (0, 0);
    for at in 0..count {
        match lower {
            Bound::Unbounded => start = 0,
            Bound::Current => start = at,
            Bound::At(offset) => {
                let limit = shifted(at, offset)?;
                while start < count && order(start, &limit) == Ordering::Less {
                    start += 1;
                }
            }
        }
        match upper {
            Bound::Unbounded => end = count,
            Bound::Current => end = at + 1,
            Bound::At(offset) => {
                let limit = shifted(at, offset)?;
                while end < count && order(end, &limit) != Ordering::Greater {
                    end += 1;
                }
            }
        }
        frames.push(start..end.max(start));
    }
    Ok(frames)
}

fn check(value: ValueRef<'_>, unit: Option<Unit>) -> Result<()> {
    match (unit, value) {
        (Some(_), ValueRef::DateTime(_)) => Ok(()),
        (Some(_), other) => Err(Error::location(
            location::WINDOW_RANGE_NOT_DATE,
            format!(
                "Invalid range: Expected the sortBy field to be a Date, but it was {}",
                other.type_name()
            ),
        )),
        (None, number) if number.is_number() => Ok(()),
        (None, other) => Err(Error::location(
            location::WINDOW_RANGE_NOT_NUMBER,
            format!(
                "Invalid range: Expected the sortBy field to be a number, but it was {}",
                other.type_name()
            ),
        )),
    }
}

/// Returns the sort value at an offset.
fn shifted(value: ValueRef<'_>, offset: Number, unit: Option<Unit>) -> Result<Value> {
    match (value, unit) {
        (ValueRef::DateTime(ms), Some(unit)) => shifted_date(ms, offset, unit).map(Value::DateTime),
        (value, _) => match Number::of(value) {
            Some(number) => Ok(number.add(offset).into()),
            None => Ok(Value::Missing),
        },
    }
}

fn shifted_date(ms: i64, offset: Number, unit: Unit) -> Result<i64> {
    let amount = offset.to_i64_exact().unwrap_or(0);
    date::add(ms, unit, amount, &TimeZone::Utc).map_err(|_| {
        Error::new(
            ErrorCode::Overflow,
            "a window bound is out of the range of dates",
        )
    })
}
