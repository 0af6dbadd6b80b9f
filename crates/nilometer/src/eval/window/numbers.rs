//! Window accumulators over columns of numbers of one type, or dates, without gaps.
//!
//! These perform the same steps as [`super::sliding`] with smaller states, so results are identical
//! bit by bit. Integers are added exactly; their windows need no stacks, since values can be
//! subtracted.

use std::cmp::Ordering;
use std::ops::Range;

use nilometer_bson::block::{BlockData, ColumnBlock};
use nilometer_bson::number::{DoubleSum, compare_f64};
use nilometer_bson::{Value, ValueRef};

use super::sliding::{Aggregate, slide};
use crate::error::Result;
use crate::eval::accumulator::{AccumulatorKind as Kind, AccumulatorSpec, StdDev, Total};

/// Returns the accumulator's result for every frame; `None` if column or accumulator has no fast
/// path.
// long function: one arm for each accumulator and type of column
pub(super) fn accumulate(
    spec: &AccumulatorSpec,
    column: &ColumnBlock,
    frames: &[Range<usize>],
) -> Result<Option<ColumnBlock>> {
    if !column.is_all_present() {
        return Ok(None);
    }
    let kind = spec.kind();
    Ok(match (kind, column.data()) {
        (Kind::Sum | Kind::Avg, _) => totals(column, kind, frames)?,
        (Kind::Min | Kind::Max, BlockData::Int32(values)) => {
            let best = extremes(values, kind, i32::cmp, frames)?;
            Some(column_of_results(
                best,
                ColumnBlock::from_i32s,
                ValueRef::Int32,
            ))
        }
        (Kind::Min | Kind::Max, BlockData::Int64(values)) => {
            let best = extremes(values, kind, i64::cmp, frames)?;
            Some(column_of_results(
                best,
                ColumnBlock::from_i64s,
                ValueRef::Int64,
            ))
        }
        (Kind::Min | Kind::Max, BlockData::ShortInt64(values)) => {
            let best = extremes(values, kind, i16::cmp, frames)?;
            let longs = |values: Vec<i16>| {
                ColumnBlock::from_i64s(values.into_iter().map(i64::from).collect())
            };
            let wrap = |value: i16| ValueRef::Int64(value.into());
            Some(column_of_results(best, longs, wrap))
        }
        (Kind::Min | Kind::Max, BlockData::DateTime(values)) => {
            let best = extremes(values, kind, i64::cmp, frames)?;
            Some(column_of_results(
                best,
                ColumnBlock::from_datetimes,
                ValueRef::DateTime,
            ))
        }
        (Kind::Min | Kind::Max, BlockData::Double(values)) => {
            let best = extremes(values, kind, |a, b| compare_f64(*a, *b), frames)?;
            Some(column_of_results(
                best,
                ColumnBlock::from_f64s,
                ValueRef::Double,
            ))
        }
        (Kind::StdDevPop | Kind::StdDevSamp, data) => deviations(data, kind, frames)?,
        _ => None,
    })
}

/// Returns the standard deviation of every frame; `None` unless the column holds numbers of one type.
fn deviations(
    data: &BlockData,
    kind: Kind,
    frames: &[Range<usize>],
) -> Result<Option<ColumnBlock>> {
    let values: Vec<f64> = match data {
        BlockData::Int32(values) => values.iter().map(|value| f64::from(*value)).collect(),
        BlockData::Int64(values) => values.iter().map(|value| *value as f64).collect(),
        BlockData::ShortInt64(values) => values.iter().map(|value| f64::from(*value)).collect(),
        BlockData::Double(values) => values.clone(),
        _ => return Ok(None),
    };
    let finish = |deviation: StdDev| match kind {
        Kind::StdDevPop => deviation.population(),
        _ => deviation.sample(),
    };
    let answers = slide(StdDevAggregate(&values), frames, finish)?;
    Ok(Some(ColumnBlock::from_values(&answers)))
}

/// Returns the sum of every frame; `None` unless the column holds numbers of one type.
pub(super) fn sums(column: &ColumnBlock, frames: &[Range<usize>]) -> Result<Option<ColumnBlock>> {
    match column.is_all_present() {
        true => totals(column, Kind::Sum, frames),
        false => Ok(None),
    }
}

/// Returns the sum or the average of every frame.
fn totals(
    column: &ColumnBlock,
    kind: Kind,
    frames: &[Range<usize>],
) -> Result<Option<ColumnBlock>> {
    Ok(match column.data() {
        BlockData::Int32(values) => Some(whole(values, false, kind, frames)),
        BlockData::Int64(values) => Some(whole(values, true, kind, frames)),
        BlockData::ShortInt64(values) => Some(whole(values, true, kind, frames)),
        BlockData::Double(values) => Some(doubles(values, kind, frames)?),
        _ => None,
    })
}

/// Builds a column of results; null where there is none.
fn column_of_results<T: Copy>(
    answers: Vec<Option<T>>,
    column: fn(Vec<T>) -> ColumnBlock,
    wrap: fn(T) -> ValueRef<'static>,
) -> ColumnBlock {
    match answers.iter().copied().collect::<Option<Vec<T>>>() {
        Some(all) => column(all),
        None => {
            let value = |answer: &Option<T>| answer.map_or(Value::Null, |v| wrap(v).to_value());
            ColumnBlock::from_values(&answers.iter().map(value).collect::<Vec<_>>())
        }
    }
}

/// Returns sums or averages of ints or longs.
fn whole<T: Copy + Into<i64>>(
    values: &[T],
    is_long: bool,
    kind: Kind,
    frames: &[Range<usize>],
) -> ColumnBlock {
    let (mut start, mut end, mut sum) = (0, 0, 0i128);
    let of = |places: Range<usize>| -> i128 {
        let values = values.get(places).unwrap_or_default().iter();
        values.map(|value| i128::from((*value).into())).sum()
    };
    let totals = frames.iter().map(|frame| {
        if frame.start >= end {
            (start, end, sum) = (frame.start, frame.start, 0);
        }
        sum += of(end..frame.end.max(end)) - of(start..frame.start);
        (start, end) = (frame.start, frame.end.max(end));
        let total = Total::of_whole(sum, is_long && !frame.is_empty());
        (total, frame.len() as u64)
    });
    if kind == Kind::Avg {
        let averages = totals.map(|(total, count)| total.average(count).map(|n| n.to_f64()));
        return column_of_results(averages.collect(), ColumnBlock::from_f64s, ValueRef::Double);
    }
    let sums: Vec<Value> = totals.map(|(total, _)| total.total().into()).collect();
    ColumnBlock::from_values(&sums)
}

/// Returns sums or averages of doubles.
fn doubles(values: &[f64], kind: Kind, frames: &[Range<usize>]) -> Result<ColumnBlock> {
    let is_average = kind == Kind::Avg;
    let finish = |(sum, count): (DoubleSum, u64)| match (count, is_average) {
        (0, _) => None,
        (count, true) => Some(sum.total() / count as f64),
        (_, false) => Some(sum.total()),
    };
    let answers = slide(DoubleAggregate(values), frames, finish)?;
    if is_average || answers.iter().all(Option::is_some) {
        return Ok(column_of_results(
            answers,
            ColumnBlock::from_f64s,
            ValueRef::Double,
        ));
    }
    // The sum of no values is an int.
    let value = |answer: &Option<f64>| answer.map_or(Value::Int32(0), Value::Double);
    Ok(ColumnBlock::from_values(
        &answers.iter().map(value).collect::<Vec<_>>(),
    ))
}

struct DoubleAggregate<'a>(&'a [f64]);

impl Aggregate for DoubleAggregate<'_> {
    /// The sum and the number of values.
    type State = (DoubleSum, u64);

    fn empty(&self) -> Self::State {
        (DoubleSum::default(), 0)
    }

    fn add(&self, (sum, count): &mut Self::State, at: usize) -> Result<()> {
        if let Some(value) = self.0.get(at) {
            sum.add(*value);
            *count += 1;
        }
        Ok(())
    }

    fn merge(&self, (sum, count): &mut Self::State, later: Self::State) -> Result<()> {
        // A state without values is not a sum of doubles.
        if later.1 > 0 {
            sum.merge(&later.0);
            *count += later.1;
        }
        Ok(())
    }
}

/// Returns the least or greatest value of each frame, of equal ones the first.
fn extremes<T: Copy>(
    values: &[T],
    kind: Kind,
    order: impl Fn(&T, &T) -> Ordering,
    frames: &[Range<usize>],
) -> Result<Vec<Option<T>>> {
    let better = match kind {
        Kind::Min => Ordering::Less,
        _ => Ordering::Greater,
    };
    let aggregate = MinMaxAggregate {
        values,
        is_better: |value: &T, best: &T| order(value, best) == better,
    };
    slide(aggregate, frames, |best| best)
}

struct MinMaxAggregate<'a, T, B> {
    values: &'a [T],
    is_better: B,
}

impl<T: Copy, B: Fn(&T, &T) -> bool> Aggregate for MinMaxAggregate<'_, T, B> {
    type State = Option<T>;

    fn empty(&self) -> Option<T> {
        None
    }

    fn add(&self, state: &mut Option<T>, at: usize) -> Result<()> {
        self.merge(state, self.values.get(at).copied())
    }

    fn merge(&self, state: &mut Option<T>, later: Option<T>) -> Result<()> {
        match (&state, &later) {
            (Some(best), Some(value)) if !(self.is_better)(value, best) => {}
            (_, Some(_)) => *state = later,
            (_, None) => {}
        }
        Ok(())
    }
}

struct StdDevAggregate<'a>(&'a [f64]);

impl Aggregate for StdDevAggregate<'_> {
    type State = StdDev;

    fn empty(&self) -> StdDev {
        StdDev::default()
    }

    fn add(&self, state: &mut StdDev, at: usize) -> Result<()> {
        if let Some(value) = self.0.get(at) {
            state.add_f64(*value);
        }
        Ok(())
    }

    fn merge(&self, state: &mut StdDev, later: StdDev) -> Result<()> {
        state.merge(&later);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::{Bound, Bounds};
    use super::super::partition::FunctionInput;
    use super::super::sliding::accumulate_any;
    use super::*;
    use crate::eval::{EvalContext, ParseContext};

    /// Returns columns of one type each, and of two types, for which the general path is used.
    fn columns(below: &mut impl FnMut(usize) -> usize) -> Vec<Vec<Value>> {
        let awkward = [
            0.0,
            -0.0,
            f64::NAN,
            f64::INFINITY,
            1e300,
            -1e300,
            1e-20,
            0.1,
        ];
        let length = below(40);
        let mut of = |make: &mut dyn FnMut(usize) -> Value| -> Vec<Value> {
            (0..length).map(|_| make(below(8))).collect()
        };
        vec![
            of(&mut |n| Value::Int32((n as i32 - 4) * 500_000_000)),
            of(&mut |n| Value::Int64((n as i64 - 4) * 2_000_000_000_000_000_000)),
            of(&mut |n| Value::Int64(n as i64 * 9000 - 32_000)),
            of(&mut |n| Value::Double(n as f64 / 8.0)),
            of(&mut |n| Value::Double(awkward[n])),
            of(&mut |n| Value::DateTime(n as i64)),
            of(&mut |n| {
                if n == 0 {
                    Value::Missing
                } else {
                    Value::Int32(1)
                }
            }),
        ]
    }

    #[test]
    fn typed_columns_match_values_of_any_type() {
        let mut seed = 0x2545_F491_4F6C_DD1Du64;
        let mut below = |n: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed % n as u64) as usize
        };
        let names = ["$sum", "$avg", "$min", "$max", "$stdDevPop", "$stdDevSamp"];
        let ctx = EvalContext::default();
        let mut taken = 0;
        for _ in 0..300 {
            let mut end = || match below(5) {
                0 => Bound::Unbounded,
                1 => Bound::Current,
                at => Bound::At(at as i64 * 2 - 6),
            };
            let bounds = Bounds::Documents(end(), end());
            for values in columns(&mut below) {
                let column = ColumnBlock::from_values(&values).shortened();
                let frames = bounds.frames(values.len(), &column).unwrap();
                for name in names {
                    let context = ParseContext::new();
                    let spec = AccumulatorSpec::parse(name, ValueRef::String("$v"), &context);
                    let spec = spec.unwrap();
                    let Some(found) = accumulate(&spec, &column, &frames).unwrap() else {
                        continue;
                    };
                    taken += 1;
                    let argument = FunctionInput {
                        values: column.clone(),
                        keys: Vec::new(),
                    };
                    let expected = accumulate_any(&spec, &argument, &frames, &ctx).unwrap();
                    let shown = |column: &ColumnBlock| format!("{:?}", column.to_values());
                    assert_eq!(
                        shown(&found),
                        shown(&expected),
                        "{name} {bounds:?} of {values:?}"
                    );
                }
            }
        }
        assert!(taken > 5000, "{taken}");
    }
}
