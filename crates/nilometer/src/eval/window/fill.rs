//! `$shift`, `$locf`, `$linearFill`: values from other documents.

use nilometer_bson::block::{ColumnBlock, ColumnBlockBuilder};
use nilometer_bson::number::Number;
use nilometer_bson::{Value, ValueRef};

use crate::error::{Error, Result, location};

/// Returns the value `by` positions away; `default` beyond the partition and for missing values.
pub(super) fn shift(column: &ColumnBlock, by: i64, default: &Value) -> ColumnBlock {
    let mut shifted = ColumnBlockBuilder::new();
    for at in 0..column.len() {
        let other = i64::try_from(at)
            .ok()
            .and_then(|at| at.checked_add(by))
            .and_then(|at| usize::try_from(at).ok());
        let other = other.map_or(ValueRef::Missing, |at| column.value(at));
        shifted.push(match other.is_missing() {
            true => default.as_ref(),
            false => other,
        });
    }
    shifted.finish()
}

/// Returns the last value that is neither null nor missing; null before the first.
pub(super) fn last_carried_forward(column: &ColumnBlock) -> ColumnBlock {
    let mut filled = ColumnBlockBuilder::new();
    let mut last = ValueRef::Null;
    for value in column.iter() {
        if !value.is_nullish() {
            last = value;
        }
        filled.push(last);
    }
    filled.finish()
}

/// A position on the axis of the sort field.
#[derive(Clone, Copy)]
enum AxisPosition {
    Date(i64),
    Number(Number),
}

impl AxisPosition {
    fn of(value: ValueRef<'_>) -> Result<Self> {
        match (value, Number::of(value)) {
            (ValueRef::DateTime(ms), _) => Ok(Self::Date(ms)),
            (_, Some(number)) => Ok(Self::Number(number)),
            _ => Err(Error::type_mismatch(format!(
                "$linearFill expects the sortBy field to be numeric or a date, found {}",
                value.type_name()
            ))),
        }
    }

    /// Returns the distance from here to `to`.
    fn distance(self, to: Self) -> Result<Number> {
        match (self, to) {
            (Self::Date(from), Self::Date(to)) => Ok(Number::Long(to).subtract(Number::Long(from))),
            (Self::Number(from), Self::Number(to)) => Ok(to.subtract(from)),
            _ => Err(Error::type_mismatch(
                "$linearFill: there can be no mix of dates and numbers in the sortBy field",
            )),
        }
    }
}

/// Interpolates null and missing values linearly between two numbers; outside they are null.
pub(super) fn linear(column: &ColumnBlock, sort_values: &ColumnBlock) -> Result<Vec<Value>> {
    let places = sort_values
        .iter()
        .map(AxisPosition::of)
        .collect::<Result<Vec<_>>>()?;
    for pair in places.windows(2) {
        if let [from, to] = pair
            && !from.distance(*to)?.is_truthy()
        {
            return Err(Error::location(
                location::FILL_SORT_VALUE_TWICE,
                "There can be no repeated values in the sort field",
            ));
        }
    }
    let mut filled = vec![Value::Null; column.len()];
    let mut known: Option<(usize, Number)> = None;
    for (at, value) in column.iter().enumerate() {
        if value.is_nullish() {
            continue;
        }
        let number = Number::of(value).ok_or_else(|| {
            Error::type_mismatch(format!(
                "Value to be filled must be numeric or nullish, found {}",
                value.type_name()
            ))
        })?;
        filled[at] = value.to_value();
        if let Some((from, low)) = known {
            fill_between(&mut filled, &places, (from, low), (at, number))?;
        }
        known = Some((at, number));
    }
    Ok(filled)
}

fn fill_between(
    filled: &mut [Value],
    places: &[AxisPosition],
    (from, low): (usize, Number),
    (to, high): (usize, Number),
) -> Result<()> {
    let (Some(start), Some(end)) = (places.get(from), places.get(to)) else {
        return Ok(());
    };
    let rise = high.subtract(low);
    let width = start.distance(*end)?;
    for at in from + 1..to {
        if let (Some(slot), Some(place)) = (filled.get_mut(at), places.get(at)) {
            let share = start.distance(*place)?;
            // Distances between different positions are not zero.
            *slot = rise
                .multiply(share)
                .divide(width)
                .map_or(Value::Null, |climbed| low.add(climbed).into());
        }
    }
    Ok(())
}
