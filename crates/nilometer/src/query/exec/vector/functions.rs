//! Functions over whole columns: parts of dates, rounding, remainders, `$switch` and `$ifNull`.
//!
//! A kernel returns `None` where rows have to decide, as in [`arithmetic`](super::arithmetic): an error, a result that
//! outgrows its type, or columns of other types.

use nilometer_bson::Value;
use nilometer_bson::block::BlockData;
use nilometer_bson::path::FieldPath;

use super::arithmetic::{Rows, Vector, choose, has_kernels};
use crate::eval::expression::{Expression, Operation};

/// True if a kernel may exist for the call, judged without columns.
pub(super) fn may_apply(operation: &Operation) -> bool {
    let is_known = match operation.name() {
        "$switch" => operation.arguments.last().is_some_and(Option::is_some),
        "$ifNull" => operation.arguments.len() == 2,
        "$abs" | "$ceil" | "$floor" | "$sqrt" | "$round" | "$trunc" => {
            operation.arguments.iter().flatten().count() == 1
        }
        "$mod" => true,
        _ => {
            return operation
                .date_part()
                .is_some_and(|part| has_kernels(part.date));
        }
    };
    is_known && operation.arguments.iter().flatten().all(has_kernels)
}

impl Rows<'_, '_> {
    /// Returns the results of a call.
    pub(super) fn call(&self, operation: &Operation) -> Option<Vector> {
        let argument = |at| operation.argument(at);
        match operation.name() {
            "$switch" => self.switch(operation),
            "$ifNull" => self.if_null(argument(0)?, argument(1)?),
            "$mod" => remainder(self.vector(argument(0)?)?, self.vector(argument(1)?)?),
            "$abs" | "$ceil" | "$floor" | "$sqrt" | "$round" | "$trunc" => {
                if operation.arguments.iter().flatten().count() != 1 {
                    return None;
                }
                of_number(operation.name(), self.vector(argument(0)?)?)
            }
            _ => self.date_part(operation),
        }
    }

    fn switch(&self, operation: &Operation) -> Option<Vector> {
        let (default, branches) = operation.arguments.split_last()?;
        // From the last branch to the first, which decides.
        let mut result = self.vector(default.as_ref()?)?;
        for branch in branches.rchunks_exact(2) {
            let [Some(case), Some(then)] = branch else {
                return None;
            };
            let Vector::Bool(decides) = self.vector(case)? else {
                return None;
            };
            result = choose(&decides, self.vector(then)?, result)?;
        }
        Some(result)
    }

    fn if_null(&self, value: &Expression, otherwise: &Expression) -> Option<Vector> {
        let path = value.as_field_path().filter(|path| path.len() == 1)?;
        if self.block.shape.meta_field.as_deref() == Some(path.as_str()) {
            return None;
        }
        let column = self.block.column(path.as_str()).ok()?;
        let is_null = |column: &BlockData| match column {
            BlockData::Missing => true,
            BlockData::Constant(value) => matches!(value, Value::Null),
            _ => false,
        };
        let Some(column) = column.filter(|column| !is_null(column.data())) else {
            return self.vector(otherwise);
        };
        if column.is_all_present() {
            return self.vector(value);
        }
        let mut is_present = Vec::with_capacity(self.block.selection.len());
        let selection = &self.block.selection;
        selection.for_each(|row| is_present.push(!column.is_missing(row as usize)));
        choose(
            &is_present,
            self.values_of(column)?,
            self.vector(otherwise)?,
        )
    }

    fn date_part(&self, operation: &Operation) -> Option<Vector> {
        let part = operation.date_part()?;
        let shape = &self.block.shape;
        let is_time = |path: &&FieldPath| {
            path.as_str() == &*shape.time_field && shape.fields.contains(&shape.time_field)
        };
        // The bounds of the bucket may tell, without its times.
        if part.date.as_field_path().filter(is_time).is_some()
            && let (Some(min), Some(max)) = self.block.time_bounds()
            && part.is_same(min, max)
        {
            return Some(Vector::Int(vec![part.of(min); self.block.selection.len()]));
        }
        let Vector::Date(dates) = self.vector(part.date)? else {
            return None;
        };
        // Most times have the part of the preceding one.
        let mut last = None;
        let found = dates.into_iter().map(|date| {
            let span = part.span_of(date);
            match last {
                Some((known, found)) if known == span => found,
                _ => {
                    let found = part.of(date);
                    last = Some((span, found));
                    found
                }
            }
        });
        Some(Vector::Int(found.collect()))
    }
}

/// Applies a function of one number.
fn of_number(name: &str, values: Vector) -> Option<Vector> {
    let doubles = |values: Vec<f64>, of: fn(f64) -> f64| {
        Some(Vector::Double(values.into_iter().map(of).collect()))
    };
    match (name, values) {
        ("$abs", Vector::Double(values)) => doubles(values, f64::abs),
        ("$abs", Vector::Int(values)) => {
            let found = values.into_iter().map(i32::checked_abs);
            found.collect::<Option<_>>().map(Vector::Int)
        }
        ("$abs", Vector::Long(values)) => {
            let found = values.into_iter().map(i64::checked_abs);
            found.collect::<Option<_>>().map(Vector::Long)
        }
        ("$ceil", Vector::Double(values)) => doubles(values, f64::ceil),
        ("$floor", Vector::Double(values)) => doubles(values, f64::floor),
        ("$round", Vector::Double(values)) => doubles(values, f64::round_ties_even),
        ("$trunc", Vector::Double(values)) => doubles(values, f64::trunc),
        // A negative number is an error.
        ("$sqrt", Vector::Double(values)) if !values.iter().any(|value| *value < 0.0) => {
            doubles(values, f64::sqrt)
        }
        ("$ceil" | "$floor" | "$round" | "$trunc", whole @ (Vector::Int(_) | Vector::Long(_))) => {
            Some(whole)
        }
        _ => None,
    }
}

/// Returns the remainders of divisions; `None` if a divisor is zero.
fn remainder(left: Vector, right: Vector) -> Option<Vector> {
    fn whole<T>(left: Vec<T>, right: Vec<T>, of: fn(T, T) -> Option<T>) -> Option<Vec<T>> {
        let pairs = left.into_iter().zip(right);
        pairs.map(|(a, b)| of(a, b)).collect()
    }
    match (left, right) {
        (Vector::Int(a), Vector::Int(b)) => whole(a, b, i32::checked_rem).map(Vector::Int),
        (Vector::Long(a), Vector::Long(b)) => whole(a, b, i64::checked_rem).map(Vector::Long),
        (Vector::Double(a), Vector::Double(b)) if !b.contains(&0.0) => {
            let pairs = a.into_iter().zip(b);
            Some(Vector::Double(pairs.map(|(a, b)| a % b).collect()))
        }
        (Vector::Double(a), Vector::Int(b)) if !b.contains(&0) => {
            let pairs = a.into_iter().zip(b);
            Some(Vector::Double(
                pairs.map(|(a, b)| a % f64::from(b)).collect(),
            ))
        }
        _ => None,
    }
}
