//! Functions over whole columns: parts of dates, rounding, remainders, `$switch` and `$ifNull`.
//!
//! A kernel returns `None` where rows have to decide, as in [`arithmetic`](super::arithmetic): an error, a result that
//! outgrows its type, or columns of other types.

use nilometer_bson::path::FieldPath;

use super::arithmetic::{Rows, has_kernels};
use super::vectors::{ListFunction, Vector, choose};
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
        name if ListFunction::of_name(name).is_some() => {
            operation.arguments.iter().flatten().count() > 1
        }
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
            name => match ListFunction::of_name(name) {
                Some(function) => {
                    let operands = operation.arguments.iter();
                    let operands = operands.map(|operand| self.vector(operand.as_ref()?));
                    Some(function.apply(operands.collect::<Option<_>>()?))
                }
                None => self.date_part(operation),
            },
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
            let decides = self.vector(case)?.truths();
            result = choose(&decides, self.vector(then)?, result);
        }
        Some(result)
    }

    fn if_null(&self, value: &Expression, otherwise: &Expression) -> Option<Vector> {
        let values = self.vector(value)?;
        if values.is_of_one_type() {
            return Some(values);
        }
        let is_known = (0..values.len()).map(|at| !values.value(at).is_nullish());
        let is_known: Vec<bool> = is_known.collect();
        Some(choose(&is_known, values, self.vector(otherwise)?))
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
