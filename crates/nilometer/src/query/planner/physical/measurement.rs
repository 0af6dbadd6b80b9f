//! What an expression or accumulator reads from measurements of one shape. Strategies depend on it.

use crate::error::Result;
use crate::eval::Dependencies;
use crate::eval::accumulator::{AccumulatorKind, AccumulatorSpec};
use crate::eval::expression::{Bin, DateBins, DateShift, Expression};
use crate::eval::sort_key::SortBy;
use crate::query::batch::MeasurementShape;

/// True if the expression is constant over a block.
pub(crate) fn is_constant(expression: &Expression, shape: &MeasurementShape) -> bool {
    let mut dependencies = Dependencies::default();
    expression.dependencies(&mut dependencies);
    !dependencies.whole
        && !dependencies.random
        && dependencies
            .top_level_fields()
            .iter()
            .all(|field| shape.meta_field.as_deref() == Some(*field))
}

/// The bins of the time in a key: a `$dateTrunc` of the time with constant bins. Constants may shift the time, and the
/// start of its bin.
///
/// ```text
/// {$add: [{$dateTrunc: {date: {$subtract: ["$t", 5000]}, unit: "minute"}}, 5000]}     minutes that begin at second 5
/// ```
#[derive(Clone, Debug)]
pub struct TimeBins {
    bins: DateBins,
    time_shift: Option<DateShift>,
    start_shift: Option<DateShift>,
}

/// One of [`TimeBins`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeBin {
    /// The value of the key in milliseconds. It never falls while the time rises.
    pub(crate) key: i64,
    /// The bin of shifted times.
    bin: Bin,
}

impl TimeBins {
    /// True if the bins are at least this long. Months, and days of zones with summer time, count as long.
    pub(crate) fn are_at_least(&self, ms: i64) -> bool {
        self.bins.length_ms().is_none_or(|length| length >= ms)
    }

    /// Returns how far the starts of neighbouring bins are apart; `None` if that differs.
    pub(crate) fn length_ms(&self) -> Option<i64> {
        self.bins.length_ms()
    }

    /// Returns the bin that contains an instant.
    pub(crate) fn bin_of(&self, ms: i64) -> Result<TimeBin> {
        let bin = self.bins.bin_of(shifted(self.time_shift, ms)?)?;
        let key = shifted(self.start_shift, bin.start)?;
        Ok(TimeBin { key, bin })
    }

    /// Returns the value of the key at an instant.
    pub(crate) fn key_of(&self, ms: i64) -> Result<i64> {
        let start = self.bins.trunc(shifted(self.time_shift, ms)?)?;
        shifted(self.start_shift, start)
    }

    /// True if a bin contains an instant.
    #[inline]
    pub(crate) fn contains(&self, bin: TimeBin, ms: i64) -> Result<bool> {
        let ms = match self.time_shift {
            None => Some(ms),
            Some(shift) => shift.checked(ms),
        };
        ms.map_or(Ok(false), |ms| bin.bin.contains(ms, &self.bins))
    }

    /// Returns the bin that contains an instant and stores it in `last`, the bin of the previous call.
    pub(crate) fn bin_cached(&self, last: &mut Option<TimeBin>, ms: i64) -> Result<TimeBin> {
        if let Some(bin) = *last
            && self.contains(bin, ms)?
        {
            return Ok(bin);
        }
        Ok(*last.insert(self.bin_of(ms)?))
    }
}

#[inline]
fn shifted(shift: Option<DateShift>, ms: i64) -> Result<i64> {
    shift.map_or(Ok(ms), |shift| shift.apply(ms))
}

/// Splits an expression into a date and the constant that shifts it, if there is one.
fn split_shift(expression: &Expression) -> (&Expression, Option<DateShift>) {
    let split = match expression {
        Expression::Arithmetic(arithmetic) => arithmetic.as_date_shift(),
        _ => None,
    };
    split.map_or((expression, None), |(date, shift)| (date, Some(shift)))
}

/// Returns the bins of the time that an expression computes, if it computes such.
pub(crate) fn time_bins(expression: &Expression, shape: &MeasurementShape) -> Option<TimeBins> {
    let (start, start_shift) = split_shift(expression);
    let Expression::DateTrunc(trunc) = start else {
        return None;
    };
    let (time, time_shift) = split_shift(&trunc.date);
    let is_time = time.as_field_path()?.as_str() == &*shape.time_field
        && shape.fields.contains(&shape.time_field);
    is_time.then_some(TimeBins {
        bins: trunc.constant_bins()?.clone(),
        time_shift,
        start_shift,
    })
}

/// The row of a run that an accumulator ordered by time and metadata keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeRank {
    /// By time: the newest or the oldest; `None` if the order does not include the time.
    pub(crate) newest: Option<bool>,
    /// Of equal rows it keeps the last, not the first.
    pub(crate) last: bool,
}

/// Returns how a `$top` or `$bottom` ranks the rows of a block, if it orders by metadata and time only.
pub(crate) fn time_rank(
    spec: &AccumulatorSpec,
    time_field: &str,
    meta_field: Option<&str>,
) -> Option<TimeRank> {
    let last = match spec.kind() {
        AccumulatorKind::Top => false,
        AccumulatorKind::Bottom => true,
        _ => return None,
    };
    let mut newest = None;
    for part in spec.sort()?.parts() {
        let SortBy::Field(path) = &part.by else {
            return None;
        };
        if path.as_str() == time_field {
            newest = Some(part.descending != last);
        } else if meta_field != Some(path.first()) {
            return None;
        }
    }
    Some(TimeRank { newest, last })
}
