//! Vectors: the values of an expression in the selected rows of a block.
//!
//! ```text
//! Int Long Double Date Bool   one type, no gaps: kernels
//! Values                      several types, null and missing: operand by operand, still without documents
//! ```

use std::cmp::Ordering;

use nilometer_bson::block::{BlockData, ColumnBlock};
use nilometer_bson::number::{Number, NumberSum};
use nilometer_bson::order::compare_with;
use nilometer_bson::{Value, ValueRef};

use super::arithmetic::order_of_doubles;
use crate::eval::expression::{ArithmeticOperator, is_true};
use crate::query::batch::Selection;

/// Values, one for each row.
#[derive(Clone, Debug)]
pub(crate) enum Vector {
    Int(Vec<i32>),
    Long(Vec<i64>),
    Double(Vec<f64>),
    Date(Vec<i64>),
    Bool(Vec<bool>),
    /// Values of these types, null and missing.
    Values(Vec<Value>),
}

/// True for a value that a vector may have.
fn may_hold(value: &Value) -> bool {
    use Value::{Bool, DateTime, Double, Int32, Int64, Missing, Null};
    matches!(
        value,
        Int32(_) | Int64(_) | Double(_) | DateTime(_) | Bool(_) | Null | Missing
    )
}

impl Vector {
    /// Returns a vector of one value; `None` for types that vectors do not have.
    pub(super) fn repeated(value: &Value, count: usize) -> Option<Self> {
        Some(match value {
            Value::Int32(v) => Self::Int(vec![*v; count]),
            Value::Int64(v) => Self::Long(vec![*v; count]),
            Value::Double(v) => Self::Double(vec![*v; count]),
            Value::DateTime(v) => Self::Date(vec![*v; count]),
            Value::Bool(v) => Self::Bool(vec![*v; count]),
            Value::Null | Value::Missing => Self::Values(vec![value.clone(); count]),
            _ => return None,
        })
    }

    /// Returns the selected values of a column; `None` if some have types that vectors do not have.
    pub(super) fn of_column(column: &ColumnBlock, selection: &Selection) -> Option<Self> {
        if !column.is_all_present() {
            return Self::of_gaps(column, selection);
        }
        Some(match column.data() {
            BlockData::Int32(values) => Self::Int(taken(values, selection)?),
            BlockData::Int64(values) => Self::Long(taken(values, selection)?),
            BlockData::ShortInt64(values) => {
                let values = taken(values, selection)?;
                Self::Long(values.into_iter().map(i64::from).collect())
            }
            BlockData::Double(values) => Self::Double(taken(values, selection)?),
            BlockData::DateTime(values) => Self::Date(taken(values, selection)?),
            BlockData::Bool(values) => Self::Bool(taken(values, selection)?),
            BlockData::Constant(value) => return Self::repeated(value, selection.len()),
            BlockData::Mixed(_) => return Self::of_gaps(column, selection),
            _ => return None,
        })
    }

    fn of_gaps(column: &ColumnBlock, selection: &Selection) -> Option<Self> {
        match column.data() {
            BlockData::Mixed(values) if !values.iter().all(may_hold) => return None,
            BlockData::Constant(value) if !may_hold(value) => return None,
            BlockData::Dictionary { .. } | BlockData::Timestamp(_) | BlockData::ObjectId(_) => {
                return None;
            }
            _ => {}
        }
        let mut values = Vec::with_capacity(selection.len());
        selection.for_each(|row| values.push(column.to_value(row as usize)));
        Some(Self::Values(values))
    }

    /// Returns a vector of values, of one type if they have one.
    pub(super) fn of_values(values: Vec<Value>) -> Self {
        fn all<T>(values: &[Value], of: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
            values.iter().map(of).collect()
        }
        macro_rules! typed {
            ($of:ident, $vector:ident) => {
                all(&values, |value| match value {
                    Value::$of(value) => Some(*value),
                    _ => None,
                })
                .map(Self::$vector)
            };
        }
        let typed = match values.first() {
            Some(Value::Int32(_)) => typed!(Int32, Int),
            Some(Value::Int64(_)) => typed!(Int64, Long),
            Some(Value::Double(_)) => typed!(Double, Double),
            Some(Value::DateTime(_)) => typed!(DateTime, Date),
            _ => None,
        };
        typed.unwrap_or(Self::Values(values))
    }

    pub(super) fn into_column(self) -> ColumnBlock {
        match self {
            Self::Int(values) => ColumnBlock::from_i32s(values),
            Self::Long(values) => ColumnBlock::from_i64s(values),
            Self::Double(values) => ColumnBlock::from_f64s(values),
            Self::Date(values) => ColumnBlock::from_datetimes(values),
            Self::Bool(values) => ColumnBlock::from_bools(values),
            Self::Values(values) => ColumnBlock::from_values(&values),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Int(values) => values.len(),
            Self::Double(values) => values.len(),
            Self::Long(values) | Self::Date(values) => values.len(),
            Self::Bool(values) => values.len(),
            Self::Values(values) => values.len(),
        }
    }

    pub(super) fn is_of_one_type(&self) -> bool {
        !matches!(self, Self::Values(_))
    }

    /// Returns the value at a place, missing beyond the end.
    pub(super) fn value(&self, at: usize) -> ValueRef<'_> {
        let value = match self {
            Self::Int(values) => values.get(at).map(|v| ValueRef::Int32(*v)),
            Self::Long(values) => values.get(at).map(|v| ValueRef::Int64(*v)),
            Self::Double(values) => values.get(at).map(|v| ValueRef::Double(*v)),
            Self::Date(values) => values.get(at).map(|v| ValueRef::DateTime(*v)),
            Self::Bool(values) => values.get(at).map(|v| ValueRef::Bool(*v)),
            Self::Values(values) => values.get(at).map(Value::as_ref),
        };
        value.unwrap_or(ValueRef::Missing)
    }

    /// Returns which values are true as conditions.
    pub(super) fn truths(self) -> Vec<bool> {
        match self {
            Self::Bool(values) => values,
            other => (0..other.len())
                .map(|at| is_true(other.value(at)))
                .collect(),
        }
    }
}

/// Returns the selected values of a column.
fn taken<T: Copy>(values: &[T], selection: &Selection) -> Option<Vec<T>> {
    match selection {
        Selection::Range(range) => values
            .get(range.start as usize..range.end as usize)
            .map(<[T]>::to_vec),
        Selection::Rows(rows) => rows
            .iter()
            .map(|row| values.get(*row as usize).copied())
            .collect(),
    }
}

/// Picks one of two values per row.
pub(super) fn choose(decides: &[bool], then: Vector, otherwise: Vector) -> Vector {
    fn pick<T: Copy>(decides: &[bool], then: &[T], otherwise: &[T]) -> Vec<T> {
        let both = then.iter().zip(otherwise);
        let pairs = decides.iter().zip(both);
        pairs
            .map(|(first, (a, b))| if *first { *a } else { *b })
            .collect()
    }
    match (then, otherwise) {
        (Vector::Int(a), Vector::Int(b)) => Vector::Int(pick(decides, &a, &b)),
        (Vector::Long(a), Vector::Long(b)) => Vector::Long(pick(decides, &a, &b)),
        (Vector::Double(a), Vector::Double(b)) => Vector::Double(pick(decides, &a, &b)),
        (Vector::Date(a), Vector::Date(b)) => Vector::Date(pick(decides, &a, &b)),
        (Vector::Bool(a), Vector::Bool(b)) => Vector::Bool(pick(decides, &a, &b)),
        (then, otherwise) => {
            let values = decides.iter().enumerate().map(|(at, first)| match first {
                true => then.value(at).to_value(),
                false => otherwise.value(at).to_value(),
            });
            Vector::of_values(values.collect())
        }
    }
}

/// Applies an operator to operands of several types, row by row; `None` if that is an error, or may be one.
pub(super) fn combine_values(
    operator: ArithmeticOperator,
    left: &Vector,
    right: &Vector,
) -> Option<Vector> {
    let takes_dates = matches!(
        operator,
        ArithmeticOperator::Add | ArithmeticOperator::Subtract
    );
    // The first operand is checked even if the second one is null.
    let may_combine = |value: ValueRef<'_>| match value {
        ValueRef::Bool(_) => false,
        ValueRef::DateTime(_) => takes_dates,
        _ => true,
    };
    let rows = 0..left.len();
    let values = rows.map(|at| {
        let (left, right) = (left.value(at), right.value(at));
        if !may_combine(left) || !may_combine(right) {
            return None;
        }
        operator.apply(left, right).ok()
    });
    values.collect::<Option<_>>().map(Vector::of_values)
}

/// A function of several values of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ListFunction {
    Min,
    Max,
    Sum,
    Average,
}

impl ListFunction {
    pub(super) fn of_name(name: &str) -> Option<Self> {
        Some(match name {
            "$min" => Self::Min,
            "$max" => Self::Max,
            "$sum" => Self::Sum,
            "$avg" => Self::Average,
            _ => return None,
        })
    }

    /// Applies the function to several operands.
    pub(super) fn apply(self, operands: Vec<Vector>) -> Vector {
        let count = operands.first().map_or(0, Vector::len);
        match self {
            Self::Min | Self::Max => {
                let mut operands = operands.into_iter();
                let first = operands.next().unwrap_or(Vector::Values(Vec::new()));
                let found = operands.fold(first, |best, other| self.extreme(best, other));
                without_missing(found)
            }
            Self::Sum | Self::Average => {
                let values = (0..count).map(|at| {
                    let numbers = operands.iter().filter_map(|one| Number::of(one.value(at)));
                    let (mut sum, mut added) = (NumberSum::new(), 0);
                    for number in numbers {
                        sum.add(number);
                        added += 1;
                    }
                    match self {
                        Self::Sum => Value::from(sum.total()),
                        _ => sum.average(added).map_or(Value::Null, Value::from),
                    }
                });
                Vector::of_values(values.collect())
            }
        }
    }

    /// Returns the extremes of two vectors: of equal values the first.
    fn extreme(self, best: Vector, other: Vector) -> Vector {
        let is_better = |order: Ordering| match self {
            Self::Max => order.is_gt(),
            _ => order.is_lt(),
        };
        match (best, other) {
            (Vector::Int(a), Vector::Int(b)) => {
                Vector::Int(better(a, &b, |b, a| is_better(b.cmp(&a))))
            }
            (Vector::Long(a), Vector::Long(b)) => {
                Vector::Long(better(a, &b, |b, a| is_better(b.cmp(&a))))
            }
            (Vector::Date(a), Vector::Date(b)) => {
                Vector::Date(better(a, &b, |b, a| is_better(b.cmp(&a))))
            }
            (Vector::Double(a), Vector::Double(b)) => {
                Vector::Double(better(a, &b, |b, a| is_better(order_of_doubles(b, a))))
            }
            (a, b) => {
                let values = (0..a.len()).map(|at| {
                    let (best, other) = (a.value(at), b.value(at));
                    let wins = !other.is_nullish()
                        && (best.is_nullish() || is_better(compare_with(other, best, None)));
                    if wins { other } else { best }.to_value()
                });
                Vector::of_values(values.collect())
            }
        }
    }
}

/// Returns the second of each pair of values where that is better, else the first.
fn better<T: Copy>(best: Vec<T>, other: &[T], is_better: impl Fn(T, T) -> bool) -> Vec<T> {
    let pairs = best.into_iter().zip(other);
    pairs
        .map(|(a, b)| if is_better(*b, a) { *b } else { a })
        .collect()
}

/// Gives null for missing.
fn without_missing(vector: Vector) -> Vector {
    match vector {
        Vector::Values(values) => Vector::Values(
            values
                .into_iter()
                .map(|value| match value {
                    Value::Missing => Value::Null,
                    value => value,
                })
                .collect(),
        ),
        typed => typed,
    }
}
