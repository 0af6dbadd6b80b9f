//! Conversions of numbers for operators, in addition to [`Number`].

use nilometer_bson::number::Number;
use nilometer_bson::{Decimal128, ValueRef};

use super::evaluated::Evaluated;

impl From<Number> for Evaluated<'_> {
    fn from(number: Number) -> Self {
        Evaluated::Borrowed(number.to_ref())
    }
}

/// True if a decimal is zero, of any sign and exponent.
pub(crate) fn decimal_is_zero(value: Decimal128) -> bool {
    value.is_zero()
}

/// Returns the integer that a value of any numeric type equals exactly.
pub(crate) fn integral(value: ValueRef<'_>) -> Option<i64> {
    Number::of(value)?.to_i64_exact()
}

/// Returns the 32-bit integer that a value of any numeric type equals exactly.
pub(crate) fn integral_i32(value: ValueRef<'_>) -> Option<i32> {
    integral(value).and_then(|value| i32::try_from(value).ok())
}

/// Returns an integer as int if it fits and `narrow`, else as long.
pub(crate) fn integer(value: i64, narrow: bool) -> Number {
    match i32::try_from(value) {
        Ok(small) if narrow => Number::Int(small),
        _ => Number::Long(value),
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::Value;

    use super::*;

    #[test]
    fn exact_integers() {
        for (value, expected) in [
            (Value::from(3), Some(3)),
            (Value::from(3i64), Some(3)),
            (Value::from(3.0), Some(3)),
            (Value::from(-0.0), Some(0)),
            (Value::from(3.5), None),
            (Value::from(f64::NAN), None),
            (Value::from(f64::INFINITY), None),
            (Value::from(9.3e18), None),
            (Value::from(-9_223_372_036_854_775_808.0), Some(i64::MIN)),
            (Value::from(9_223_372_036_854_775_808.0), None),
            (Value::from(Decimal128::from(7i64)), Some(7)),
            (Value::from("3"), None),
            (Value::Null, None),
        ] {
            assert_eq!(integral(value.as_ref()), expected, "{value:?}");
        }
        assert_eq!(integral_i32(ValueRef::Int64(1 << 40)), None);
    }
}
