//! Expressions over columns: arithmetic, comparisons, conditions and dates, a whole block at a time.
//!
//! ```text
//! {$multiply: [{$subtract: ["$a", "$m.zero"]}, 2.5]}
//!                             │       │         └ constant: repeated
//!                             │       └ metadata: constant in the block
//!                             └ a column of doubles without gaps
//! ```
//!
//! Kernels process ints, longs, doubles, dates and bools, with gaps and nulls or without; comparisons with constants process
//! any column. In any other case (a decimal, a sum that overflows its type, a division by zero, an operator without a kernel)
//! the result is `None`, and the expression is evaluated row by row. Row evaluation is the definition, errors included;
//! tests compare the kernels with it.

use std::cmp::Ordering;

use nilometer_bson::block::{BlockData, ColumnBlock};
use nilometer_bson::number::compare_i64_f64;
use nilometer_bson::order::compare_with;
use nilometer_bson::{Document, Value, ValueRef};

use super::functions;
use super::vectors::{Vector, choose, combine_values};
use crate::eval::Dependencies;
use crate::eval::expression::{
    Arithmetic, ArithmeticOperator, Comparison, ComparisonOperator, Expression,
};
use crate::query::batch::{MeasurementBlock, Selection};
use crate::query::exec::ExecContext;
use crate::query::planner::physical::is_constant;

/// Returns the expression's values in the selected measurements, if kernels exist for all of it and for its columns.
pub(crate) fn computed(
    expression: &Expression,
    block: &MeasurementBlock,
    cx: &ExecContext<'_>,
) -> Option<ColumnBlock> {
    computed_vector(expression, block, cx).map(Vector::into_column)
}

/// The same, in the form in which kernels return the values.
pub(crate) fn computed_vector(
    expression: &Expression,
    block: &MeasurementBlock,
    cx: &ExecContext<'_>,
) -> Option<Vector> {
    Rows::new(block, cx).vector(expression)
}

/// Returns the expression's values in all measurements of the block, selected or not.
pub(crate) fn computed_for_all(
    expression: &Expression,
    block: &MeasurementBlock,
    cx: &ExecContext<'_>,
) -> Option<ColumnBlock> {
    let whole = MeasurementBlock {
        selection: Selection::all(block.bucket.count()),
        ..block.clone()
    };
    computed(expression, &whole, cx)
}

/// Returns the rows of a selection in which an expression is true, if kernels exist for it.
pub(super) fn select_computed(
    expression: &Expression,
    block: &MeasurementBlock,
    selection: &Selection,
    cx: &ExecContext<'_>,
) -> Option<Selection> {
    if !has_kernels(expression) {
        return None;
    }
    let selected = MeasurementBlock {
        selection: selection.clone(),
        ..block.clone()
    };
    let mut holds = computed_vector(expression, &selected, cx)?
        .truths()
        .into_iter();
    Some(selection.filter(|_| holds.next().unwrap_or(false)))
}

/// True if kernels may exist for the expression, judged without its columns.
pub(crate) fn has_kernels(expression: &Expression) -> bool {
    match expression {
        Expression::FieldPath(_) => true,
        Expression::Arithmetic(arithmetic) => arithmetic.operands.iter().all(has_kernels),
        Expression::Compare(comparison) => {
            comparison.operator != ComparisonOperator::Cmp
                && has_kernels(&comparison.left)
                && has_kernels(&comparison.right)
        }
        Expression::And(arms) | Expression::Or(arms) => arms.iter().all(has_kernels),
        Expression::Not(arm) => has_kernels(arm),
        Expression::Conditional(choice) => {
            has_kernels(&choice.condition)
                && has_kernels(&choice.then)
                && has_kernels(&choice.otherwise)
        }
        Expression::DateTrunc(trunc) => trunc.constant_bins().is_some() && has_kernels(&trunc.date),
        Expression::Operation(operation) => match operation.constant_difference() {
            Some(difference) => has_kernels(difference.start) && has_kernels(difference.end),
            None => functions::may_apply(operation),
        },
        // Constants, and variables other than documents.
        other => {
            let mut reads = Dependencies::default();
            other.dependencies(&mut reads);
            reads.reads_nothing() && !reads.random
        }
    }
}

/// The rows of a block to compute.
pub(super) struct Rows<'b, 'c> {
    pub(super) block: &'b MeasurementBlock,
    /// The values that are constant in the block.
    constants: Document,
    cx: &'b ExecContext<'c>,
}

impl<'b, 'c> Rows<'b, 'c> {
    fn new(block: &'b MeasurementBlock, cx: &'b ExecContext<'c>) -> Self {
        Self {
            block,
            constants: block.constant_document(),
            cx,
        }
    }

    pub(super) fn vector(&self, expression: &Expression) -> Option<Vector> {
        if is_constant(expression, &self.block.shape) {
            let value = expression.evaluate(self.constants.as_ref(), &self.cx.eval);
            return Vector::repeated(&value.ok()?, self.block.selection.len());
        }
        match expression {
            Expression::FieldPath(path) if path.len() == 1 => self.column(path.as_str()),
            Expression::FieldPath(path) => {
                let column = self.block.column_at_path(path.as_str()).ok()??;
                Vector::of_column(&column, &self.block.selection)
            }
            Expression::Arithmetic(arithmetic) => self.arithmetic(arithmetic),
            Expression::Compare(comparison) => self.compare(comparison),
            Expression::And(arms) => self.logical(arms, |a, b| a && b),
            Expression::Or(arms) => self.logical(arms, |a, b| a || b),
            Expression::Not(arm) => {
                let truths = self.vector(arm)?.truths();
                Some(Vector::Bool(truths.into_iter().map(|v| !v).collect()))
            }
            Expression::Conditional(choice) => {
                let decides = self.vector(&choice.condition)?.truths();
                let then = self.vector(&choice.then)?;
                Some(choose(&decides, then, self.vector(&choice.otherwise)?))
            }
            Expression::DateTrunc(trunc) => {
                let bins = trunc.constant_bins()?;
                let Vector::Date(mut dates) = self.vector(&trunc.date)? else {
                    return None;
                };
                // Most times lie in the bin of the preceding one.
                let mut bin = None;
                for date in &mut dates {
                    *date = bins.bin_cached(&mut bin, *date).ok()?.start;
                }
                Some(Vector::Date(dates))
            }
            Expression::Operation(operation) => {
                let Some(difference) = operation.constant_difference() else {
                    return self.call(operation);
                };
                let (Vector::Date(mut starts), Vector::Date(ends)) =
                    (self.vector(difference.start)?, self.vector(difference.end)?)
                else {
                    return None;
                };
                for (start, end) in starts.iter_mut().zip(ends) {
                    *start = difference.between(*start, end);
                }
                Some(Vector::Long(starts))
            }
            _ => None,
        }
    }

    fn column(&self, name: &str) -> Option<Vector> {
        let selection = &self.block.selection;
        // An unreadable column fails later, when rows are built from it.
        match self.block.column(name).ok()? {
            Some(column) => Vector::of_column(column, selection),
            None => Vector::repeated(&Value::Missing, selection.len()),
        }
    }

    fn arithmetic(&self, arithmetic: &Arithmetic) -> Option<Vector> {
        let mut operands = arithmetic.operands.iter();
        let first = self.vector(operands.next()?)?;
        let is_number = matches!(first, Vector::Int(_) | Vector::Long(_) | Vector::Double(_));
        if operands.len() == 0 && !is_number {
            return None;
        }
        operands.try_fold(first, |result, operand| {
            combine(arithmetic.operator, result, self.vector(operand)?)
        })
    }

    fn compare(&self, comparison: &Comparison) -> Option<Vector> {
        let Comparison {
            operator,
            left,
            right,
        } = comparison;
        if *operator == ComparisonOperator::Cmp {
            return None;
        }
        if let Some(found) = self
            .compare_with_constant(*operator, left, right)
            .or_else(|| self.compare_with_constant(operator.mirrored(), right, left))
        {
            return Some(Vector::Bool(found));
        }
        // The right side is a constant more often.
        let right = self.vector(right)?;
        let left = self.vector(left)?;
        let found = compare_typed(*operator, &left, &right).unwrap_or_else(|| {
            let order = |at| compare_with(left.value(at), right.value(at), None);
            let rows = 0..left.len();
            rows.map(|at| operator.holds(order(at))).collect()
        });
        Some(Vector::Bool(found))
    }

    /// Compares a column of any types, with gaps or without, with a constant of any type.
    fn compare_with_constant(
        &self,
        operator: ComparisonOperator,
        column: &Expression,
        constant: &Expression,
    ) -> Option<Vec<bool>> {
        let name = column.as_field_path().filter(|path| path.len() == 1)?;
        if !is_constant(constant, &self.block.shape) {
            return None;
        }
        let constant = constant.evaluate(self.constants.as_ref(), &self.cx.eval);
        let constant = constant.ok()?;
        let holds = |value: ValueRef<'_>| {
            let order = compare_with(value, constant.as_ref(), self.cx.eval.collator);
            operator.holds(order)
        };
        let column = self.block.column(name.as_str()).ok()?;
        let selection = &self.block.selection;
        let Some(column) = column else {
            return Some(vec![holds(ValueRef::Missing); selection.len()]);
        };
        // Vectors of one type are compared faster.
        if let Some(constants) = Vector::repeated(&constant, selection.len())
            && constants.is_of_one_type()
            && column.is_all_present()
            && let Some(values) = Vector::of_column(column, selection)
            && let Some(found) = compare_typed(operator, &values, &constants)
        {
            return Some(found);
        }
        // Results of codes, and the result of all values, where they do not depend on the row.
        let (mut of_codes, mut of_all) = (Vec::new(), None);
        match column.data() {
            BlockData::Constant(value) => of_all = Some(holds(value.as_ref())),
            BlockData::Dictionary { values, .. } => {
                of_codes = values.iter().map(holds).collect();
            }
            BlockData::Mixed(_) | BlockData::Missing => {}
            _ if matches!(constant, Value::Null) => {
                of_all = Some(operator.holds(Ordering::Greater))
            }
            _ => {}
        }
        if let (Some(of_all), true) = (of_all, column.is_all_present()) {
            return Some(vec![of_all; selection.len()]);
        }
        let of_missing = holds(ValueRef::Missing);
        let mut out = Vec::with_capacity(selection.len());
        selection.for_each(|row| {
            let row = row as usize;
            out.push(match (of_all, column.data()) {
                _ if column.is_missing(row) => of_missing,
                (Some(of_all), _) => of_all,
                (None, BlockData::Dictionary { codes, .. }) => {
                    let code = codes.get(row).map_or(usize::MAX, |code| *code as usize);
                    of_codes.get(code).copied().unwrap_or(of_missing)
                }
                (None, _) => holds(column.value(row)),
            });
        });
        Some(out)
    }

    fn logical(&self, arms: &[Expression], both: fn(bool, bool) -> bool) -> Option<Vector> {
        let mut vectors = arms.iter().map(|arm| Some(self.vector(arm)?.truths()));
        let first = vectors.next()??;
        let all = vectors.try_fold(first, |a, b| Some(each(&a, &b?, both)));
        all.map(Vector::Bool)
    }
}

/// Compares doubles; NaN sorts before all numbers and equals itself.
pub(super) fn order_of_doubles(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b)
        .unwrap_or_else(|| b.is_nan().cmp(&a.is_nan()))
}

/// Compares two vectors of one type each; `None` for other types.
fn compare_typed(operator: ComparisonOperator, left: &Vector, right: &Vector) -> Option<Vec<bool>> {
    let holds = |order| operator.holds(order);
    Some(match (left, right) {
        (Vector::Int(a), Vector::Int(b)) => each(a, b, |a, b| holds(a.cmp(&b))),
        (Vector::Long(a), Vector::Long(b)) | (Vector::Date(a), Vector::Date(b)) => {
            each(a, b, |a, b| holds(a.cmp(&b)))
        }
        (Vector::Bool(a), Vector::Bool(b)) => each(a, b, |a, b| holds(a.cmp(&b))),
        (Vector::Int(a), Vector::Long(b)) => each(a, b, |a, b| holds(i64::from(a).cmp(&b))),
        (Vector::Long(a), Vector::Int(b)) => each(a, b, |a, b| holds(a.cmp(&i64::from(b)))),
        (Vector::Double(a), Vector::Double(b)) => each(a, b, |a, b| holds(order_of_doubles(a, b))),
        (Vector::Int(a), Vector::Double(b)) => {
            each(a, b, |a, b| holds(order_of_doubles(f64::from(a), b)))
        }
        (Vector::Double(a), Vector::Int(b)) => {
            each(a, b, |a, b| holds(order_of_doubles(a, f64::from(b))))
        }
        (Vector::Long(a), Vector::Double(b)) => each(a, b, |a, b| holds(order_of_long(a, b))),
        (Vector::Double(a), Vector::Long(b)) => {
            each(a, b, |a, b| holds(order_of_long(b, a).reverse()))
        }
        _ => return None,
    })
}

/// Compares a long and a double exactly, which no conversion to one of the two types achieves for all longs.
fn order_of_long(a: i64, b: f64) -> Ordering {
    const EXACT_MAX: u64 = 1 << f64::MANTISSA_DIGITS;
    match a.unsigned_abs() <= EXACT_MAX {
        true => order_of_doubles(a as f64, b),
        false => compare_i64_f64(a, b),
    }
}

fn each<A: Copy, B: Copy, R>(a: &[A], b: &[B], of: impl Fn(A, B) -> R) -> Vec<R> {
    a.iter().zip(b).map(|(a, b)| of(*a, *b)).collect()
}

fn doubles(vector: Vector) -> Option<Vec<f64>> {
    match vector {
        Vector::Double(values) => Some(values),
        Vector::Int(values) => Some(values.into_iter().map(f64::from).collect()),
        Vector::Long(values) => Some(values.into_iter().map(|v| v as f64).collect()),
        Vector::Date(_) | Vector::Bool(_) | Vector::Values(_) => None,
    }
}

/// Converts whole numbers to longs.
fn longs(vector: Vector) -> Option<Vec<i64>> {
    match vector {
        Vector::Long(values) => Some(values),
        Vector::Int(values) => Some(values.into_iter().map(i64::from).collect()),
        Vector::Double(_) | Vector::Date(_) | Vector::Bool(_) | Vector::Values(_) => None,
    }
}

/// Applies an operator to two operands, row by row.
fn combine(operator: ArithmeticOperator, left: Vector, right: Vector) -> Option<Vector> {
    use ArithmeticOperator as Op;
    if !left.is_of_one_type() || !right.is_of_one_type() {
        return combine_values(operator, &left, &right);
    }
    Some(match (operator, left, right) {
        (Op::Add, Vector::Date(dates), other) | (Op::Add, other, Vector::Date(dates)) => {
            Vector::Date(checked(dates, longs(other)?, i64::overflowing_add)?)
        }
        (Op::Subtract, Vector::Date(a), Vector::Date(b)) => {
            Vector::Long(checked(a, b, i64::overflowing_sub)?)
        }
        (Op::Subtract, Vector::Date(dates), other) => {
            Vector::Date(checked(dates, longs(other)?, i64::overflowing_sub)?)
        }
        (Op::Divide, a, b) => {
            let (mut a, b) = (doubles(a)?, doubles(b)?);
            if b.contains(&0.0) {
                return None;
            }
            a.iter_mut().zip(b).for_each(|(a, b)| *a /= b);
            Vector::Double(a)
        }
        (operator, Vector::Int(a), Vector::Int(b)) => Vector::Int(match operator {
            Op::Add => checked(a, b, i32::overflowing_add)?,
            Op::Subtract => checked(a, b, i32::overflowing_sub)?,
            Op::Multiply | Op::Divide => checked(a, b, i32::overflowing_mul)?,
        }),
        (operator, a @ Vector::Double(_), b) | (operator, a, b @ Vector::Double(_)) => {
            let (mut a, b) = (doubles(a)?, doubles(b)?);
            let pairs = a.iter_mut().zip(b);
            match operator {
                Op::Add => pairs.for_each(|(a, b)| *a += b),
                Op::Subtract => pairs.for_each(|(a, b)| *a -= b),
                Op::Multiply | Op::Divide => pairs.for_each(|(a, b)| *a *= b),
            }
            Vector::Double(a)
        }
        (operator, a, b) => {
            let (a, b) = (longs(a)?, longs(b)?);
            Vector::Long(match operator {
                Op::Add => checked(a, b, i64::overflowing_add)?,
                Op::Subtract => checked(a, b, i64::overflowing_sub)?,
                Op::Multiply | Op::Divide => checked(a, b, i64::overflowing_mul)?,
            })
        }
    })
}

/// Combines whole numbers; `None` if a result overflows, which in row evaluation changes its type or is an error.
fn checked<T: Copy>(
    mut left: Vec<T>,
    right: Vec<T>,
    combine: impl Fn(T, T) -> (T, bool),
) -> Option<Vec<T>> {
    let mut outgrown = false;
    for (a, b) in left.iter_mut().zip(right) {
        let (result, overflow) = combine(*a, b);
        *a = result;
        outgrown |= overflow;
    }
    (!outgrown).then_some(left)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nilometer_bson::{DocumentBuilder, Value, array, doc};

    use super::*;
    use crate::eval::ParseContext;
    use crate::eval::expression::is_true;
    use crate::query::batch::{FieldSet, MeasurementShape};
    use crate::query::exec::testing::{MemoryBuckets, in_context};

    const T0: i64 = 1_700_000_000_000;

    /// Builds a block of whole numbers near the limits of their types, doubles of every kind, dates, bools, and columns without
    /// kernels.
    fn block() -> MeasurementBlock {
        let longs = [i64::MAX, 5, -7, i64::MIN + 3, 0, 11];
        let doubles = [0.5, -0.0, f64::NAN, f64::INFINITY, 1e300, -2.25];
        let list: Vec<Document> = (0..6usize)
            .map(|at| {
                let mut out = DocumentBuilder::new();
                out.append("t", Value::DateTime(T0 + at as i64 * 61_000));
                out.append("m", doc! {"k": 3, "h": "a"});
                out.append("i", [1, -4, 7, 0, 100, 2_000_000_000][at]);
                out.append("j", [1, 2, 3, 4, 5, 6][at]);
                out.append("l", longs[at]);
                out.append("s", at as i64 * 1000);
                out.append("d", doubles[at]);
                out.append("e", at as f64 + 0.25);
                out.append("b", at % 2 == 0);
                out.append("c", 2.5);
                out.append(
                    "x",
                    [Value::from(1), "text".into(), Value::Null][at % 3].clone(),
                );
                out.append("g", (at != 2).then_some(1.5));
                if at != 3 {
                    out.append(
                        "y",
                        [
                            Value::from(at as i32),
                            Value::Null,
                            (at as f64 - 3.5).into(),
                        ][at % 3]
                            .clone(),
                    );
                    out.append("z", Value::DateTime(T0 + at as i64));
                }
                if at != 4 {
                    out.append("w", ["dry", "wet", "Text"][at % 3]);
                }
                out.finish()
            })
            .collect();
        let buckets = MemoryBuckets::new(&list, 10);
        let shape = MeasurementShape {
            time_field: "t".into(),
            meta_field: Some("m".into()),
            fields: FieldSet::All,
        };
        let bucket = buckets.first_bucket();
        MeasurementBlock {
            selection: Selection::all(bucket.count()),
            bucket,
            shape: Arc::new(shape),
        }
    }

    /// Compares every kernel with row evaluation, for all measurements and for a selection.
    #[test]
    fn kernels_agree_with_rows() {
        let block = block();
        let fields = [
            "$i", "$j", "$l", "$s", "$d", "$e", "$t", "$b", "$c", "$x", "$g", "$w", "$y", "$z",
            "$none", "$m.k", "$m.none",
        ];
        let constants: [Value; 9] = [
            Value::Null,
            "text".into(),
            array![1],
            2.into(),
            7i64.into(),
            0.5.into(),
            0.into(),
            Value::DateTime(T0),
            i32::MAX.into(),
        ];
        let operands = fields.iter().map(|f| Value::from(*f)).chain(constants);
        let operands: Vec<Value> = operands.collect();
        let mut expressions: Vec<Value> = Vec::new();
        for operator in [
            "$add",
            "$subtract",
            "$multiply",
            "$divide",
            "$eq",
            "$ne",
            "$gt",
            "$gte",
            "$lt",
            "$lte",
        ] {
            for left in &operands {
                for right in &operands {
                    let mut call = DocumentBuilder::new();
                    call.append(operator, array![left.clone(), right.clone()]);
                    expressions.push(call.finish().into());
                }
            }
        }
        let late = doc! {"$gt": array!["$e", 2]};
        let difference = |unit: &str, start: Value, end: Value| {
            doc! {"$dateDiff": doc! {"startDate": start, "endDate": end, "unit": unit}}
        };
        for expression in [
            doc! {"$add": array!["$i", "$e", "$s", 1]},
            doc! {"$add": array!["$e"]},
            doc! {"$add": array!["$t"]},
            doc! {"$add": array!["$b"]},
            doc! {"$multiply": array!["$t"]},
            doc! {"$multiply": array![2, "$d", "$l", "$e"]},
            doc! {"$cond": array![late.clone(), 1, 0]},
            doc! {"$cond": array![late.clone(), "$e", "$c"]},
            doc! {"$cond": array![doc! {"$gt": array!["$g", Value::Null]}, 1, 0]},
            doc! {"$cond": array![doc! {"$gt": array!["$x", Value::Null]}, 1, 0]},
            doc! {"$cond": array![late.clone(), "$e", 1]},
            doc! {"$cond": array!["$e", "$e", "$c"]},
            doc! {"$cond": array!["$d", "$j", "$$REMOVE"]},
            doc! {"$cond": array!["$y", "$y", Value::Null]},
            doc! {"$cond": array!["$g", "$z", "$l"]},
            doc! {"$cond": array![late.clone(), "$w", 1]},
            doc! {"$add": array!["$y", "$g", "$e"]},
            doc! {"$add": array!["$z", "$y", 1]},
            doc! {"$add": array!["$g", "$t", "$z"]},
            doc! {"$multiply": array!["$z", "$g"]},
            doc! {"$multiply": array!["$b", "$none"]},
            doc! {"$subtract": array!["$t", "$z"]},
            doc! {"$not": array!["$y"]},
            doc! {"$or": array!["$y", "$g"]},
            doc! {"$max": array!["$i", "$j"]},
            doc! {"$max": array!["$d", "$e", 0.0]},
            doc! {"$min": array!["$d", "$l", "$y"]},
            doc! {"$min": array!["$g", "$none"]},
            doc! {"$max": array!["$none", "$m.none"]},
            doc! {"$min": array!["$t", "$z"]},
            doc! {"$max": array!["$b", "$y", "$t"]},
            doc! {"$max": array!["$w", "$y"]},
            doc! {"$sum": array!["$i", "$j"]},
            doc! {"$sum": array!["$i", 2_000_000_000]},
            doc! {"$sum": array!["$l", "$l"]},
            doc! {"$sum": array!["$d", "$e", "$y", "$t"]},
            doc! {"$sum": array!["$none", "$b"]},
            doc! {"$avg": array!["$i", "$j", "$g"]},
            doc! {"$avg": array!["$none", "$t"]},
            doc! {"$avg": array!["$d", "$l"]},
            doc! {"$max": array!["$i"]},
            doc! {"$sum": "$i"},
            doc! {"$abs": "$y"},
            doc! {"$hour": "$z"},
            doc! {"$and": array![late.clone(), "$b"]},
            doc! {"$or": array![doc! {"$not": array![late.clone()]}, doc! {"$lt": array!["$d", 0.25]}]},
            doc! {"$and": array![late.clone(), "$i"]},
            doc! {"$dateTrunc": doc! {"date": "$t", "unit": "minute"}},
            doc! {"$hour": "$t"},
            doc! {"$minute": doc! {"$add": array!["$t", "$s"]}},
            doc! {"$second": "$t"},
            doc! {"$millisecond": doc! {"$add": array!["$t", "$j"]}},
            doc! {"$dayOfWeek": doc! {"date": "$t", "timezone": "America/New_York"}},
            doc! {"$year": doc! {"$subtract": array!["$t", doc! {"$multiply": array!["$s", 40_000_000]}]}},
            doc! {"$isoWeekYear": "$t"},
            doc! {"$week": "$i"},
            doc! {"$hour": doc! {"date": "$t", "timezone": "$w"}},
            doc! {"$floor": "$d"},
            doc! {"$ceil": doc! {"$multiply": array!["$e", -1]}},
            doc! {"$round": "$d"},
            doc! {"$round": doc! {"$add": array!["$e", 0.25]}},
            doc! {"$round": array!["$e", 1]},
            doc! {"$trunc": "$d"},
            doc! {"$floor": "$l"},
            doc! {"$abs": "$i"},
            doc! {"$abs": "$l"},
            doc! {"$abs": doc! {"$subtract": array!["$l", 3]}},
            doc! {"$sqrt": "$e"},
            doc! {"$sqrt": "$d"},
            doc! {"$mod": array!["$i", 3]},
            doc! {"$mod": array!["$l", 4i64]},
            doc! {"$mod": array!["$d", 2]},
            doc! {"$mod": array!["$d", "$e"]},
            doc! {"$mod": array!["$j", 0]},
            doc! {"$mod": array!["$l", "$i"]},
            doc! {"$ifNull": array!["$g", 0.5]},
            doc! {"$ifNull": array!["$g", "$e"]},
            doc! {"$ifNull": array!["$g", 1]},
            doc! {"$ifNull": array!["$none", "$i"]},
            doc! {"$ifNull": array!["$e", "text"]},
            doc! {"$ifNull": array!["$x", 1]},
            doc! {"$ifNull": array!["$m", 1]},
            doc! {"$switch": doc! {"branches": array![
                doc! {"case": late.clone(), "then": "$e"}, doc! {"case": doc! {"$lt": array!["$j", 3]}, "then": 0.5},
            ], "default": "$c"}},
            doc! {"$switch": doc! {"branches": array![doc! {"case": late.clone(), "then": 1}], "default": "$j"}},
            doc! {"$switch": doc! {"branches": array![doc! {"case": late.clone(), "then": 1}]}},
            doc! {"$eq": array![doc! {"$hour": "$t"}, 22]},
            doc! {"$dateTrunc": doc! {"date": doc! {"$add": array!["$t", "$s"]}, "unit": "hour"}},
            doc! {"$dateTrunc": doc! {"date": "$i", "unit": "hour"}},
            difference("minute", Value::DateTime(T0), "$t".into()),
            difference("week", Value::DateTime(0), "$t".into()),
            difference("second", "$t".into(), Value::DateTime(T0 + 100_000)),
            difference("minute", "$i".into(), "$t".into()),
            difference("nothing", "$t".into(), "$t".into()),
            doc! {"$divide": array![doc! {"$subtract": array!["$t", Value::DateTime(T0)]}, 1000]},
        ] {
            expressions.push(expression.into());
        }
        let selections = [
            Selection::all(6),
            Selection::Range(1..4),
            Selection::Rows(vec![1, 5]),
        ];
        let mut with_kernels = 0;
        for value in &expressions {
            let Ok(expression) = Expression::parse(value.as_ref(), &ParseContext::new()) else {
                continue;
            };
            for selection in &selections {
                let block = MeasurementBlock {
                    selection: selection.clone(),
                    ..block.clone()
                };
                in_context(|cx| {
                    let Some(found) = computed(&expression, &block, cx) else {
                        return;
                    };
                    with_kernels += 1;
                    let rows = block.to_rows().unwrap();
                    assert_eq!(found.len(), rows.len());
                    let all = Selection::all(block.bucket.count());
                    let whole = MeasurementBlock {
                        selection: all,
                        ..block.clone()
                    };
                    let kept = select_computed(&expression, &whole, selection, cx);
                    let is_true = |row: &Document| {
                        let value = expression.evaluate(row.as_ref(), &cx.eval).unwrap();
                        is_true(value.as_ref())
                    };
                    let places = selection.to_vec().into_iter().zip(&rows);
                    let expected: Vec<u32> = places
                        .filter(|(_, row)| is_true(row))
                        .map(|(at, _)| at)
                        .collect();
                    if let Some(kept) = kept {
                        assert_eq!(kept.to_vec(), expected, "{value:?}");
                    }
                    for (at, row) in rows.iter().enumerate() {
                        let expected = expression.evaluate(row.as_ref(), &cx.eval).unwrap();
                        let (found, expected) =
                            (doc! {"v": found.to_value(at)}, doc! {"v": expected});
                        assert_eq!(found.as_bytes(), expected.as_bytes(), "{value:?} row {at}");
                    }
                });
            }
        }
        // Most pairs have kernels; gaps, mixed columns and overflowing results do not.
        assert!(with_kernels > 1500, "{with_kernels}");
    }

    #[test]
    fn what_has_no_kernel_is_left_to_rows() {
        let block = block();
        for (value, expected) in [
            (doc! {"$add": array!["$e", 1]}, true),
            (doc! {"$multiply": array!["$j", "$m.k"]}, true),
            (doc! {"$add": array!["$e", "$m.h"]}, false),
            (doc! {"$add": array!["$e", "$g"]}, true),
            (doc! {"$add": array!["$e", "$x"]}, false),
            (doc! {"$add": array!["$e", "$none"]}, true),
            (doc! {"$add": array!["$i", "$i"]}, false),
            (doc! {"$add": array!["$l", "$l"]}, false),
            (doc! {"$divide": array!["$e", 0]}, false),
            (doc! {"$divide": array!["$e", "$d"]}, false),
            (doc! {"$cond": array!["$b", 1, 0.5]}, true),
            (doc! {"$concat": array!["$x", "a"]}, false),
            (doc! {"$abs": "$e"}, true),
            (doc! {"$hour": "$t"}, true),
            (doc! {"$mod": array!["$i", 3]}, true),
            (doc! {"$ifNull": array!["$g", 0.5]}, true),
            (doc! {"$ifNull": array!["$g", 1]}, true),
            (doc! {"$cmp": array!["$e", 1]}, false),
            (doc! {"$eq": array!["$l", "$d"]}, true),
            (doc! {"$eq": array!["$g", "$x"]}, false),
            (doc! {"$gt": array!["$x", Value::Null]}, true),
            (doc! {"$lte": array!["text", "$w"]}, true),
            (doc! {"$cmp": array!["$x", Value::Null]}, false),
            (doc! {"$add": array!["$t", "$t"]}, false),
        ] {
            let expression =
                Expression::parse(Value::from(value.clone()).as_ref(), &ParseContext::new());
            let expression = expression.unwrap();
            in_context(|cx| {
                let found = computed(&expression, &block, cx).is_some();
                assert_eq!(found, expected, "{value:?}");
            });
        }
    }
}
