//! `$derivative`, `$integral`, `$expMovingAvg`, `$covariancePop`, `$covarianceSamp`.

use std::ops::Range;

use nilometer_bson::block::ColumnBlock;
use nilometer_bson::number::Number;
use nilometer_bson::{Value, ValueRef};

use super::numbers;
use super::sliding::{Aggregate, slide};
use crate::error::{Error, Result, location};
use crate::eval::accumulator::Total;
use crate::eval::date::Unit;

/// Error codes of `$derivative` or `$integral`.
struct AxisErrorCodes {
    unit_no_date: i32,
    date_no_unit: i32,
    name: &'static str,
}

const DERIVATIVE: AxisErrorCodes = AxisErrorCodes {
    unit_no_date: location::DERIVATIVE_UNIT_WITHOUT_DATE,
    date_no_unit: location::DERIVATIVE_DATE_WITHOUT_UNIT,
    name: "$derivative",
};

const INTEGRAL: AxisErrorCodes = AxisErrorCodes {
    unit_no_date: location::INTEGRAL_UNIT_WITHOUT_DATE,
    date_no_unit: location::INTEGRAL_DATE_WITHOUT_UNIT,
    name: "$integral",
};

/// Returns a position on the horizontal axis, in units.
fn axis_position(
    value: ValueRef<'_>,
    unit: Option<Unit>,
    codes: &AxisErrorCodes,
) -> Result<Number> {
    match (value, unit) {
        (ValueRef::DateTime(ms), Some(_)) => Ok(Number::Long(ms)),
        (ValueRef::DateTime(_), None) => Err(Error::location(
            codes.date_no_unit,
            format!(
                "{} where the sortBy is a Date requires a 'unit'",
                codes.name
            ),
        )),
        (_, Some(_)) => Err(Error::location(
            codes.unit_no_date,
            format!(
                "{} with a 'unit' expects the sortBy field to be a Date",
                codes.name
            ),
        )),
        (number, None) => Number::of(number).ok_or_else(|| {
            Error::location(
                codes.date_no_unit,
                format!("{} requires the sortBy field to be numeric", codes.name),
            )
        }),
    }
}

/// Returns the distance between two positions, in units.
fn distance(from: Number, to: Number, unit: Option<Unit>) -> Number {
    let difference = to.subtract(from);
    match unit {
        Some(unit) => Number::Double(difference.to_f64() / unit.shortest_ms() as f64),
        None => difference,
    }
}

/// Returns a value as a number: dates as milliseconds.
fn numeric_value(value: ValueRef<'_>) -> Option<Number> {
    match value {
        ValueRef::DateTime(ms) => Some(Number::Long(ms)),
        other => Number::of(other),
    }
}

/// Returns the slope between the two ends of each window.
pub(super) fn derivative(
    column: &ColumnBlock,
    sort_values: &ColumnBlock,
    frames: &[Range<usize>],
    unit: Option<Unit>,
) -> Result<Vec<Value>> {
    let slope = |frame: &Range<usize>| -> Result<Value> {
        if frame.len() < 2 {
            return Ok(Value::Null);
        }
        let (first, last) = (frame.start, frame.end - 1);
        let from = axis_position(sort_values.value(first), unit, &DERIVATIVE)?;
        let to = axis_position(sort_values.value(last), unit, &DERIVATIVE)?;
        let (low, high) = (column.value(first), column.value(last));
        if low.is_nullish() || high.is_nullish() {
            return Ok(Value::Null);
        }
        let (Some(low), Some(high)) = (numeric_value(low), numeric_value(high)) else {
            return Err(Error::location(
                location::DERIVATIVE_NOT_NUMBER,
                "$derivative expects its input to be numeric",
            ));
        };
        // A window of width 0 has no slope.
        Ok(high
            .subtract(low)
            .divide(distance(from, to, unit))
            .map_or(Value::Null, Value::from))
    };
    frames.iter().map(slope).collect()
}

/// Returns the area under each window, by trapezoids. Documents whose input is not a number are
/// skipped.
pub(super) fn integral(
    column: &ColumnBlock,
    sort_values: &ColumnBlock,
    frames: &[Range<usize>],
    unit: Option<Unit>,
) -> Result<Vec<Value>> {
    // For documents with a number: their positions, and the area up to the next.
    let mut positions = Vec::new();
    let mut points: Vec<(Number, Number)> = Vec::new();
    for (at, value) in column.iter().enumerate() {
        let axis_position = axis_position(sort_values.value(at), unit, &INTEGRAL)?;
        if let Some(numeric_value) = Number::of(value) {
            positions.push(at);
            points.push((axis_position, numeric_value));
        }
    }
    let areas: Vec<Value> = points
        .windows(2)
        .map(|pair| match pair {
            [(from, low), (to, high)] => low
                .add(*high)
                .multiply(distance(*from, *to, unit))
                .divide(Number::Int(2))
                .map_or(Value::Null, Value::from),
            _ => Value::Null,
        })
        .collect();
    // Both ends of a frame only move forward.
    let (mut start, mut end) = (0, 0);
    let narrowed: Vec<Range<usize>> = frames
        .iter()
        .map(|frame| {
            let moved = |from: usize, to: usize| {
                let behind = positions.iter().skip(from);
                from + behind.take_while(|at| **at < to).count()
            };
            (start, end) = (moved(start, frame.start), moved(end, frame.end));
            start..end
        })
        .collect();
    let spans: Vec<Range<usize>> = narrowed
        .iter()
        .map(|points| points.start..points.end.saturating_sub(1).max(points.start))
        .collect();
    let sums = match numbers::sums(&ColumnBlock::from_values(&areas), &spans)? {
        Some(sums) => sums.to_values(),
        None => slide(AreaAggregate(&areas), &spans, |total| total.total().into())?,
    };
    let answers = narrowed.iter().zip(sums).map(
        |(points, sum)| {
            if points.is_empty() { Value::Null } else { sum }
        },
    );
    Ok(answers.collect())
}

/// Sums of areas.
struct AreaAggregate<'a>(&'a [Value]);

impl Aggregate for AreaAggregate<'_> {
    type State = Total;

    fn empty(&self) -> Total {
        Total::default()
    }

    fn add(&self, state: &mut Total, at: usize) -> Result<()> {
        if let Some(area) = self.0.get(at) {
            state.add(area.as_ref());
        }
        Ok(())
    }

    fn merge(&self, state: &mut Total, later: Total) -> Result<()> {
        state.merge(&later);
        Ok(())
    }
}

/// Returns the exponential moving average: each value has weight `alpha`, the previous average the rest. Values
/// that are not numbers leave the average unchanged.
pub(super) fn exp_moving_avg(column: &ColumnBlock, alpha: Number) -> Vec<Value> {
    let rest = Number::Int(1).subtract(alpha);
    let mut average: Option<Number> = None;
    column
        .iter()
        .map(|value| {
            if let Some(number) = Number::of(value) {
                average = Some(match average {
                    None => number,
                    Some(before) => number.multiply(alpha).add(before.multiply(rest)),
                });
            }
            average.map_or(Value::Null, Value::from)
        })
        .collect()
}

/// Returns the covariance of the pairs in each window; pairs with a value that is not a number are
/// skipped.
pub(super) fn covariance(
    column: &ColumnBlock,
    frames: &[Range<usize>],
    sample: bool,
) -> Vec<Value> {
    let pairs: Vec<Option<(f64, f64)>> = column
        .iter()
        .map(|value| {
            let array = value.as_array().filter(|array| array.len() == 2)?;
            let x = Number::of(array.get(0))?.to_f64();
            let y = Number::of(array.get(1))?.to_f64();
            Some((x, y))
        })
        .collect();
    let finish = |state: Comoment| match (state.count, sample) {
        (0, _) | (1, true) => Value::Null,
        (count, true) => Value::Double(state.products / (count - 1) as f64),
        (count, false) => Value::Double(state.products / count as f64),
    };
    // Adding and merging pairs cannot fail.
    slide(CovarianceAggregate(&pairs), frames, finish).unwrap_or_default()
}

struct CovarianceAggregate<'a>(&'a [Option<(f64, f64)>]);

/// Running means and the sum of products of differences from them.
#[derive(Clone, Copy, Debug, Default)]
struct Comoment {
    count: u64,
    mean_x: f64,
    mean_y: f64,
    products: f64,
}

impl Aggregate for CovarianceAggregate<'_> {
    type State = Comoment;

    fn empty(&self) -> Comoment {
        Comoment::default()
    }

    fn add(&self, state: &mut Comoment, at: usize) -> Result<()> {
        if let Some((x, y)) = self.0.get(at).copied().flatten() {
            state.count += 1;
            let count = state.count as f64;
            let before = x - state.mean_x;
            state.mean_x += before / count;
            state.mean_y += (y - state.mean_y) / count;
            state.products += before * (y - state.mean_y);
        }
        Ok(())
    }

    fn merge(&self, state: &mut Comoment, later: Comoment) -> Result<()> {
        if later.count == 0 {
            return Ok(());
        }
        if state.count == 0 {
            *state = later;
            return Ok(());
        }
        let (here, there) = (state.count as f64, later.count as f64);
        let (apart_x, apart_y) = (later.mean_x - state.mean_x, later.mean_y - state.mean_y);
        let both = here + there;
        state.products += later.products + apart_x * apart_y * here * there / both;
        state.mean_x += apart_x * there / both;
        state.mean_y += apart_y * there / both;
        state.count += later.count;
        Ok(())
    }
}
