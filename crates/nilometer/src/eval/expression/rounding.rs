//! `$round` and `$trunc`: `number` or `[number, place]`.
//!
//! The place is an integer from −20 to 100; negative places are left of the decimal point. `$round`
//! rounds halves to the even digit, `$trunc` truncates towards zero. The result keeps the operand's
//! type, except that an int that rounds out of its range becomes long (51080 if a long does). Null
//! in either gives null. Errors: 51081 not a number, 51082 place not an integer, 51083 place out of
//! range.

use nilometer_bson::decimal128::Rounding;
use nilometer_bson::number::Number;

use super::evaluated::Evaluated;
use super::numeric::integral;
use super::operation::CallContext;
use crate::error::{Error, Result, location};

/// Minimum place.
const PLACE_MIN: i64 = -20;
const PLACE_MAX: i64 = 100;

pub(super) fn round<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    at_place(values, call, Rounding::HalfEven)
}

pub(super) fn trunc<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    at_place(values, call, Rounding::TowardZero)
}

fn at_place<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
    rounding: Rounding,
) -> Result<Evaluated<'s>> {
    if values.iter().any(Evaluated::is_nullish) {
        return Ok(Evaluated::NULL);
    }
    let mut values = values.iter().map(Evaluated::as_ref);
    let value = values.next().unwrap_or_default();
    let Some(number) = Number::of(value) else {
        return Err(Error::location(
            location::ROUND_NOT_NUMERIC,
            format!(
                "{} only supports numeric types, not {}",
                call.name,
                value.type_name()
            ),
        ));
    };
    let place = match values.next() {
        None => 0,
        Some(place) => integral(place).ok_or_else(|| {
            Error::location(
                location::ROUND_PLACE_NOT_WHOLE,
                format!(
                    "precision argument to {} must be an integral value",
                    call.name
                ),
            )
        })?,
    };
    if !(PLACE_MIN..=PLACE_MAX).contains(&place) {
        return Err(Error::location(
            location::ROUND_PLACE_OUT_OF_RANGE,
            format!(
                "cannot apply {} with precision value {place} value must be in [-20, 100]",
                call.name
            ),
        ));
    }
    let place = i32::try_from(place).unwrap_or_default();
    number
        .round(place, rounding)
        .map(Evaluated::from)
        .ok_or_else(|| {
            Error::location(
                location::ROUND_OVERFLOW,
                format!("{} of a long leaves its range", call.name),
            )
        })
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Value, array, doc};

    use super::super::testing::{call, check_exact, decimal, eval_code};

    #[test]
    fn places() {
        let doc = doc! {};
        let cases: Vec<(Value, Value, Value)> = vec![
            (10.5.into(), 10.0.into(), 10.0.into()),
            (array![11.5], 12.0.into(), 11.0.into()),
            (array![-2.5, 0], (-2.0).into(), (-2.0).into()),
            (array![19.25, 1], 19.2.into(), 19.2.into()),
            (array![1234, -2], 1200.into(), 1200.into()),
            (array![1250, -2], 1200.into(), 1200.into()),
            (array![1350, -2], 1400.into(), 1300.into()),
            (array![1234i64, -3], 1000i64.into(), 1000i64.into()),
            (array![1234, 5], 1234.into(), 1234.into()),
            (
                array![i32::MAX, -9],
                2_000_000_000.into(),
                2_000_000_000.into(),
            ),
            (array![i32::MAX, -10], 0i32.into(), 0.into()),
            (
                array![2_147_483_647, -1],
                2_147_483_650i64.into(),
                2_147_483_640.into(),
            ),
            (array![1.5, 100.0], 1.5.into(), 1.5.into()),
            (
                array![decimal("2.345"), 2],
                decimal("2.34"),
                decimal("2.34"),
            ),
            (
                array![decimal("2.355"), 2],
                decimal("2.36"),
                decimal("2.35"),
            ),
            (array![Value::Null, "x"], Value::Null, Value::Null),
            (array![1, "$gone"], Value::Null, Value::Null),
        ];
        for (argument, rounded, truncated) in cases {
            check_exact(&doc, call("$round", argument.clone()), rounded);
            check_exact(&doc, call("$trunc", argument), truncated);
        }
    }

    #[test]
    fn errors() {
        for name in ["$round", "$trunc"] {
            for (argument, code) in [
                (Value::from("x"), 51081),
                (array![1.5, 1.5], 51082),
                (array![1.5, "x"], 51082),
                (array![1.5, 101], 51083),
                (array![1.5, -21], 51083),
                (array![1, 2, 3], 28667),
                (array![], 28667),
            ] {
                assert_eq!(eval_code(&doc! {}, call(name, argument)), code, "{name}");
            }
        }
        let high = call("$round", array![i64::MAX, -1]);
        assert_eq!(eval_code(&doc! {}, high), 51080);
    }
}
