//! Compares a typed column with a constant: tight loops over plain vectors.
//!
//! ```text
//! column    operand                 computed as
//! date      date                    64-bit integers
//! int, long int, long, whole double 64-bit integers
//! int, long double with a fraction  64-bit integers, operand rounded to the side that keeps the result
//! double    int, double, long up to 2^53   doubles
//! ```
//!
//! Other pairs (decimals, NaN operands, longs without an exact double) have no kernel. A NaN in a column
//! matches no number, as in a filter.

use nilometer_bson::Value;
use nilometer_bson::block::{BlockData, ColumnBlock};

use crate::eval::matcher::CompareOp;
use crate::query::batch::Selection;

/// Whole numbers up to this magnitude are exact as doubles.
const EXACT_IN_DOUBLE: i64 = 1 << 53;

/// Returns the rows of `selection` whose value satisfies the comparison with the operand; `None` if there is no kernel
/// for this pair of types.
pub(crate) fn select_compare(
    column: &ColumnBlock,
    op: CompareOp,
    operand: &Value,
    selection: &Selection,
) -> Option<Selection> {
    let selected = match (column.data(), operand) {
        (BlockData::DateTime(values), Value::DateTime(at)) => {
            select_integers(values, |v| *v, op, *at, selection)
        }
        (BlockData::Int32(values), _) => {
            let (op, bound) = integer_bound(op, operand)?;
            select_integers(values, |v| i64::from(*v), op, bound, selection)
        }
        (BlockData::Int64(values), _) => {
            let (op, bound) = integer_bound(op, operand)?;
            select_integers(values, |v| *v, op, bound, selection)
        }
        (BlockData::ShortInt64(values), _) => {
            let (op, bound) = integer_bound(op, operand)?;
            select_integers(values, |v| i64::from(*v), op, bound, selection)
        }
        (BlockData::Double(values), _) => {
            select_doubles(values, op, double_operand(operand)?, selection)
        }
        _ => return None,
    };
    Some(match column.presence() {
        None => selected,
        Some(presence) => selected.filter(|row| presence.get(row as usize)),
    })
}

/// Returns the rows that satisfy the comparison when the whole column ascends; `None` unless the column holds
/// dates without gaps and the operand is a date.
pub(crate) fn sorted_range(
    column: &ColumnBlock,
    op: CompareOp,
    operand: &Value,
) -> Option<std::ops::Range<u32>> {
    let (BlockData::DateTime(times), Value::DateTime(at)) = (column.data(), operand) else {
        return None;
    };
    if column.presence().is_some() {
        return None;
    }
    let below = |limit: i64| first_at_or_above(times, limit);
    let up_to = |limit: i64| match limit.checked_add(1) {
        Some(above) => first_at_or_above(times, above),
        None => times.len(),
    };
    let (from, to) = match op {
        CompareOp::Eq => (below(*at), up_to(*at)),
        CompareOp::Gt => (up_to(*at), times.len()),
        CompareOp::Gte => (below(*at), times.len()),
        CompareOp::Lt => (0, below(*at)),
        CompareOp::Lte => (0, up_to(*at)),
    };
    Some(u32::try_from(from).ok()?..u32::try_from(to).ok()?)
}

/// Returns how many of ascending times lie below a limit. Most series are regular, so the interpolated position is tried
/// first: bisection touches a cache line at each step.
fn first_at_or_above(times: &[i64], limit: i64) -> usize {
    let (Some(first), Some(last)) = (times.first(), times.last()) else {
        return 0;
    };
    if limit <= *first {
        return 0;
    }
    if *last < limit {
        return times.len();
    }
    // Not empty, and neither difference is zero: first time < limit <= last time.
    let guess = || {
        let span = last.checked_sub(*first)?;
        let rows = i64::try_from(times.len() - 1).ok()?;
        let at = limit
            .checked_sub(*first)?
            .checked_mul(rows)?
            .checked_add(span - 1)?
            / span;
        let at = usize::try_from(at).ok()?;
        let is_it = *times.get(at.checked_sub(1)?)? < limit && limit <= *times.get(at)?;
        is_it.then_some(at)
    };
    guess().unwrap_or_else(|| times.partition_point(|time| *time < limit))
}

/// Returns a comparison of whole numbers equivalent to the comparison with the operand.
fn integer_bound(op: CompareOp, operand: &Value) -> Option<(CompareOp, i64)> {
    match operand {
        Value::Int32(v) => Some((op, i64::from(*v))),
        Value::Int64(v) => Some((op, *v)),
        Value::Double(v) => {
            let limit = EXACT_IN_DOUBLE as f64;
            if v.is_nan() || v.abs() > limit {
                return None;
            }
            if v.fract() == 0.0 {
                return Some((op, *v as i64));
            }
            // Strictly between two whole numbers: above it means from the next one on.
            Some(match op {
                CompareOp::Gt | CompareOp::Gte => (CompareOp::Gte, v.ceil() as i64),
                CompareOp::Lt | CompareOp::Lte => (CompareOp::Lte, v.floor() as i64),
                CompareOp::Eq => return None,
            })
        }
        _ => None,
    }
}

fn double_operand(operand: &Value) -> Option<f64> {
    match operand {
        Value::Int32(v) => Some(f64::from(*v)),
        Value::Int64(v) if v.unsigned_abs() <= EXACT_IN_DOUBLE.unsigned_abs() => Some(*v as f64),
        Value::Double(v) if !v.is_nan() => Some(*v),
        _ => None,
    }
}

fn select_integers<T>(
    values: &[T],
    read: impl Fn(&T) -> i64 + Copy,
    op: CompareOp,
    bound: i64,
    selection: &Selection,
) -> Selection {
    match op {
        CompareOp::Eq => select_where(values, selection, |v| read(v) == bound),
        CompareOp::Gt => select_where(values, selection, |v| read(v) > bound),
        CompareOp::Gte => select_where(values, selection, |v| read(v) >= bound),
        CompareOp::Lt => select_where(values, selection, |v| read(v) < bound),
        CompareOp::Lte => select_where(values, selection, |v| read(v) <= bound),
    }
}

/// Selects doubles by IEEE comparison, as the filter does: NaN compares false with every number, zeros are equal.
fn select_doubles(values: &[f64], op: CompareOp, bound: f64, selection: &Selection) -> Selection {
    match op {
        CompareOp::Eq => select_where(values, selection, |v| *v == bound),
        CompareOp::Gt => select_where(values, selection, |v| *v > bound),
        CompareOp::Gte => select_where(values, selection, |v| *v >= bound),
        CompareOp::Lt => select_where(values, selection, |v| *v < bound),
        CompareOp::Lte => select_where(values, selection, |v| *v <= bound),
    }
}

/// Selects rows in one pass without data-dependent branches: every row is written, and kept by advancing the position.
fn select_where<T>(values: &[T], selection: &Selection, keep: impl Fn(&T) -> bool) -> Selection {
    match selection {
        Selection::Range(range) => {
            let Some(part) = values.get(range.start as usize..range.end as usize) else {
                return Selection::none();
            };
            let mut rows = vec![0u32; part.len()];
            let mut kept = 0;
            for (row, value) in (range.start..).zip(part) {
                if let Some(slot) = rows.get_mut(kept) {
                    *slot = row;
                }
                kept += usize::from(keep(value));
            }
            rows.truncate(kept);
            Selection::from_rows(rows)
        }
        Selection::Rows(rows) => {
            let kept = rows
                .iter()
                .copied()
                .filter(|row| values.get(*row as usize).is_some_and(&keep));
            Selection::from_rows(kept.collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::matcher::{Comparison, MatchPath};

    const OPS: [CompareOp; 5] = [
        CompareOp::Eq,
        CompareOp::Gt,
        CompareOp::Gte,
        CompareOp::Lt,
        CompareOp::Lte,
    ];

    #[test]
    fn a_place_among_times_is_the_one_counting_gives() {
        let regular: Vec<i64> = (0..50).map(|i| 1_000 + i * 10).collect();
        let columns = [
            regular.clone(),
            regular.iter().map(|t| t + t % 7).collect(),
            vec![5; 9],
            vec![-3, -3, 0, 4, 4, 4, 90],
            vec![i64::MIN, -1, 0, i64::MAX],
            vec![7],
            Vec::new(),
        ];
        for times in &columns {
            let mut limits = vec![i64::MIN, 0, i64::MAX];
            limits.extend(
                times
                    .iter()
                    .flat_map(|t| [t.saturating_sub(1), *t, t.saturating_add(1)]),
            );
            for limit in limits {
                let counted = times.iter().filter(|time| **time < limit).count();
                assert_eq!(
                    first_at_or_above(times, limit),
                    counted,
                    "{limit} in {times:?}"
                );
            }
        }
    }

    /// Compares every kernel with the filter's own test, value by value.
    #[test]
    fn kernels_agree_with_the_filter() {
        let numbers = [
            i64::MIN,
            -(1 << 53) - 1,
            -(1 << 53),
            -2,
            -1,
            0,
            1,
            2,
            3,
            i64::from(i32::MAX),
            (1 << 53) + 1,
            i64::MAX,
        ];
        let shorts = [i64::from(i16::MIN), -2, -1, 0, 1, 2, 3, i64::from(i16::MAX)];
        let doubles = [
            f64::NAN,
            f64::NEG_INFINITY,
            -2.5,
            -0.0,
            0.0,
            0.5,
            1.0,
            1.5,
            2.5,
            9_007_199_254_740_993.0,
            1e300,
            f64::INFINITY,
        ];
        let ints = [i32::MIN, -1, 0, 1, 2, i32::MAX];
        let mut operands: Vec<Value> = numbers.iter().map(|v| Value::Int64(*v)).collect();
        operands.extend(doubles.iter().map(|v| Value::Double(*v)));
        operands.extend(ints.iter().map(|v| Value::Int32(*v)));
        operands.extend(numbers.iter().map(|v| Value::DateTime(*v)));
        operands.push("x".into());
        let gap = Value::Missing;
        let columns = [
            ints.iter()
                .map(|v| Value::Int32(*v))
                .chain([gap.clone()])
                .collect::<Vec<_>>(),
            numbers
                .iter()
                .map(|v| Value::Int64(*v))
                .chain([gap.clone()])
                .collect(),
            doubles
                .iter()
                .map(|v| Value::Double(*v))
                .chain([gap.clone()])
                .collect(),
            numbers.iter().map(|v| Value::DateTime(*v)).collect(),
            shorts
                .iter()
                .map(|v| Value::Int64(*v))
                .chain([gap.clone()])
                .collect(),
        ];
        for values in &columns {
            let column = ColumnBlock::from_values(values).shortened();
            let is_short = matches!(column.data(), BlockData::ShortInt64(_));
            assert_eq!(
                is_short,
                values[0].as_ref().as_exact_i64() == Some(shorts[0])
            );
            let count = u32::try_from(values.len()).unwrap();
            for operand in &operands {
                for op in OPS {
                    let test = Comparison {
                        path: MatchPath::new("v"),
                        op,
                        value: operand.clone(),
                        collation: crate::eval::Collation::default(),
                    };
                    let expected: Vec<u32> = (0..count)
                        .filter(|row| test.test(values[*row as usize].as_ref()))
                        .collect();
                    let all = Selection::all(count);
                    if let Some(found) = select_compare(&column, op, operand, &all) {
                        assert_eq!(found.to_vec(), expected, "{op:?} {operand:?}");
                    }
                    let some = Selection::Rows((0..count).step_by(2).collect());
                    if let Some(found) = select_compare(&column, op, operand, &some) {
                        let expected: Vec<u32> = expected
                            .iter()
                            .copied()
                            .filter(|row| row % 2 == 0)
                            .collect();
                        assert_eq!(found.to_vec(), expected, "{op:?} {operand:?}");
                    }
                    if let Some(range) = sorted_range(&column, op, operand) {
                        assert_eq!(range.collect::<Vec<_>>(), expected, "{op:?} {operand:?}");
                    }
                }
            }
        }
    }
}
