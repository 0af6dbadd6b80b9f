//! Numbers of the four BSON numeric types and arithmetic between them.
//!
//! An operation is computed in the wider type of its operands, int < long < double < decimal. Sums
//! and products of ints that overflow become long, those of longs become double. Comparison is
//! exact across all four types.
//!
//! Operand checks and error messages belong to the operators; this module computes values only.
//! [`NumberSum`] is the total that `$sum` and `$avg` keep.

mod sum;

pub use sum::{DoubleSum, NumberSum};

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

use crate::decimal128::Rounding;
use crate::value::{Decimal128, Value, ValueRef};

/// 2^63 as a double: the least one above every long.
const LONG_END: f64 = 9_223_372_036_854_775_808.0;

/// A BSON number.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    /// 32-bit integer.
    Int(i32),
    /// 64-bit integer.
    Long(i64),
    /// 64-bit binary floating point.
    Double(f64),
    /// 128-bit decimal floating point.
    Decimal(Decimal128),
}

/// Why a number has no value in the requested type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConversionError {
    /// NaN has no integer value.
    #[error("Attempt to convert NaN value to integer type")]
    Nan,
    /// An infinity has no integer value.
    #[error("Attempt to convert infinity value to integer type")]
    Infinite,
    /// Out of the type's range.
    #[error("Conversion would overflow target type")]
    Overflow,
}

/// A division or remainder by zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("division by zero")]
pub struct DivisionByZero;

/// Operands of one operation, converted to the type it is computed in.
enum OperandPair {
    Int(i32, i32),
    Long(i64, i64),
    Double(f64, f64),
    Decimal(Decimal128, Decimal128),
}

#[expect(
    clippy::should_implement_trait,
    reason = "methods are explicit, since some operations can fail"
)]
impl Number {
    /// Returns the value as a number, if it is one.
    pub fn of(value: ValueRef<'_>) -> Option<Self> {
        Some(match value {
            ValueRef::Int32(v) => Self::Int(v),
            ValueRef::Int64(v) => Self::Long(v),
            ValueRef::Double(v) => Self::Double(v),
            ValueRef::Decimal128(v) => Self::Decimal(v),
            _ => return None,
        })
    }

    /// Returns the number as a value that borrows nothing.
    pub fn to_ref(self) -> ValueRef<'static> {
        match self {
            Self::Int(v) => ValueRef::Int32(v),
            Self::Long(v) => ValueRef::Int64(v),
            Self::Double(v) => ValueRef::Double(v),
            Self::Decimal(v) => ValueRef::Decimal128(v),
        }
    }

    fn pair(self, other: Self) -> OperandPair {
        use Number::{Decimal, Double, Int, Long};
        match (self, other) {
            (Int(a), Int(b)) => OperandPair::Int(a, b),
            (Int(a), Long(b)) => OperandPair::Long(a.into(), b),
            (Long(a), Int(b)) => OperandPair::Long(a, b.into()),
            (Long(a), Long(b)) => OperandPair::Long(a, b),
            (Decimal(_), _) | (_, Decimal(_)) => {
                OperandPair::Decimal(self.to_decimal(), other.to_decimal())
            }
            (Double(_), _) | (_, Double(_)) => OperandPair::Double(self.to_f64(), other.to_f64()),
        }
    }

    /// Converts to double, rounding to nearest.
    pub fn to_f64(self) -> f64 {
        match self {
            Self::Int(v) => v.into(),
            Self::Long(v) => v as f64,
            Self::Double(v) => v,
            Self::Decimal(v) => v.to_f64(),
        }
    }

    /// Converts to decimal. A double keeps 15 digits, as in MongoDB's mixed arithmetic.
    pub fn to_decimal(self) -> Decimal128 {
        match self {
            Self::Int(v) => v.into(),
            Self::Long(v) => v.into(),
            Self::Double(v) => Decimal128::from_f64(v),
            Self::Decimal(v) => v,
        }
    }

    /// Returns the integer this number equals exactly, if there is one that fits in 64 bits.
    pub fn to_i64_exact(self) -> Option<i64> {
        match self {
            Self::Int(v) => Some(v.into()),
            Self::Long(v) => Some(v),
            Self::Double(v) => {
                (v.trunc() == v && (-LONG_END..LONG_END).contains(&v)).then_some(v as i64)
            }
            Self::Decimal(v) => v.to_i64_exact(),
        }
    }

    /// Truncates towards zero to a long, as `$toLong` does.
    pub fn to_i64_truncated(self) -> Result<i64, ConversionError> {
        match self {
            Self::Int(v) => Ok(v.into()),
            Self::Long(v) => Ok(v),
            Self::Double(v) if v.is_nan() => Err(ConversionError::Nan),
            Self::Double(v) if v.is_infinite() => Err(ConversionError::Infinite),
            Self::Double(v) if (-LONG_END..LONG_END).contains(&v) => Ok(v as i64),
            Self::Double(_) => Err(ConversionError::Overflow),
            Self::Decimal(v) if v.is_nan() => Err(ConversionError::Nan),
            Self::Decimal(v) if v.is_infinite() => Err(ConversionError::Infinite),
            Self::Decimal(v) => v
                .to_i64(Rounding::TowardZero)
                .ok_or(ConversionError::Overflow),
        }
    }

    /// Truncates towards zero to an int, as `$toInt` does.
    pub fn to_i32_truncated(self) -> Result<i32, ConversionError> {
        let whole = self.to_i64_truncated()?;
        i32::try_from(whole).map_err(|_| ConversionError::Overflow)
    }

    /// Converts to double as `$toDouble` does: a decimal out of range is an error.
    pub fn to_f64_checked(self) -> Result<f64, ConversionError> {
        let double = self.to_f64();
        match self {
            Self::Decimal(v) if double.is_infinite() && !v.is_infinite() => {
                Err(ConversionError::Overflow)
            }
            _ => Ok(double),
        }
    }

    /// True if not zero (NaN is true), the value of a number as a condition.
    pub fn is_truthy(self) -> bool {
        match self {
            Self::Int(v) => v != 0,
            Self::Long(v) => v != 0,
            Self::Double(v) => v != 0.0,
            Self::Decimal(v) => !v.is_zero(),
        }
    }

    /// True for a NaN of either type.
    pub fn is_nan(self) -> bool {
        match self {
            Self::Double(v) => v.is_nan(),
            Self::Decimal(v) => v.is_nan(),
            Self::Int(_) | Self::Long(_) => false,
        }
    }

    /// Compares exactly by value; NaNs are equal and below all others, zeros are equal.
    pub fn compare(self, other: Self) -> Ordering {
        use Number::{Decimal, Double, Int, Long};
        match (self, other) {
            (Int(a), Int(b)) => a.cmp(&b),
            (Long(a), Long(b)) => a.cmp(&b),
            (Int(a), Long(b)) => i64::from(a).cmp(&b),
            (Long(a), Int(b)) => a.cmp(&b.into()),
            (Double(a), Double(b)) => compare_f64(a, b),
            (Int(a), Double(b)) => compare_i64_f64(a.into(), b),
            (Long(a), Double(b)) => compare_i64_f64(a, b),
            (Double(a), Int(b)) => compare_i64_f64(b.into(), a).reverse(),
            (Double(a), Long(b)) => compare_i64_f64(b, a).reverse(),
            (Decimal(a), Decimal(b)) => a.compare(b),
            (Decimal(a), Int(b)) => a.compare_i64(b.into()),
            (Decimal(a), Long(b)) => a.compare_i64(b),
            (Decimal(a), Double(b)) => a.compare_f64(b),
            (Int(a), Decimal(b)) => b.compare_i64(a.into()).reverse(),
            (Long(a), Decimal(b)) => b.compare_i64(a).reverse(),
            (Double(a), Decimal(b)) => b.compare_f64(a).reverse(),
        }
    }

    /// Returns the sum.
    #[must_use]
    pub fn add(self, other: Self) -> Self {
        match self.pair(other) {
            OperandPair::Int(a, b) => narrow(i64::from(a) + i64::from(b)),
            OperandPair::Long(a, b) => a
                .checked_add(b)
                .map_or_else(|| Self::Double(a as f64 + b as f64), Self::Long),
            OperandPair::Double(a, b) => Self::Double(a + b),
            OperandPair::Decimal(a, b) => Self::Decimal(a.add(b)),
        }
    }

    /// Returns the difference.
    #[must_use]
    pub fn subtract(self, other: Self) -> Self {
        match self.pair(other) {
            OperandPair::Int(a, b) => narrow(i64::from(a) - i64::from(b)),
            OperandPair::Long(a, b) => a
                .checked_sub(b)
                .map_or_else(|| Self::Double(a as f64 - b as f64), Self::Long),
            OperandPair::Double(a, b) => Self::Double(a - b),
            OperandPair::Decimal(a, b) => Self::Decimal(a.sub(b)),
        }
    }

    /// Returns the product.
    #[must_use]
    pub fn multiply(self, other: Self) -> Self {
        match self.pair(other) {
            OperandPair::Int(a, b) => narrow(i64::from(a) * i64::from(b)),
            OperandPair::Long(a, b) => a
                .checked_mul(b)
                .map_or_else(|| Self::Double(a as f64 * b as f64), Self::Long),
            OperandPair::Double(a, b) => Self::Double(a * b),
            OperandPair::Decimal(a, b) => Self::Decimal(a.mul(b)),
        }
    }

    /// Returns the quotient: a double, or a decimal if either operand is one.
    pub fn divide(self, other: Self) -> Result<Self, DivisionByZero> {
        match self.pair(other) {
            OperandPair::Decimal(_, b) if b.is_zero() => Err(DivisionByZero),
            OperandPair::Decimal(a, b) => Ok(Self::Decimal(a.div(b))),
            _ if other.to_f64() == 0.0 => Err(DivisionByZero),
            _ => Ok(Self::Double(self.to_f64() / other.to_f64())),
        }
    }

    /// Returns the remainder of the division truncated towards zero; it has the sign of the
    /// dividend. A whole double that is an int counts as one if it divides an int or a long.
    pub fn modulo(self, other: Self) -> Result<Self, DivisionByZero> {
        let other = match (self, other) {
            (Self::Int(_) | Self::Long(_), Self::Double(v))
                if v.trunc() == v && i32::try_from(v as i64).is_ok_and(|n| f64::from(n) == v) =>
            {
                Self::Int(v as i32)
            }
            (_, other) => other,
        };
        match self.pair(other) {
            OperandPair::Int(_, 0) | OperandPair::Long(_, 0) => Err(DivisionByZero),
            OperandPair::Int(a, b) => Ok(Self::Int(a.wrapping_rem(b))),
            OperandPair::Long(a, b) => Ok(Self::Long(a.wrapping_rem(b))),
            OperandPair::Double(_, 0.0) => Err(DivisionByZero),
            OperandPair::Double(a, b) => Ok(Self::Double(a % b)),
            OperandPair::Decimal(_, b) if b.is_zero() => Err(DivisionByZero),
            OperandPair::Decimal(a, b) => Ok(Self::Decimal(a.rem(b))),
        }
    }

    /// Returns the value with opposite sign, in a wider type if required.
    #[must_use]
    pub fn negate(self) -> Self {
        match self {
            Self::Int(v) => narrow(-i64::from(v)),
            Self::Long(v) => v.checked_neg().map_or(Self::Double(LONG_END), Self::Long),
            Self::Double(v) => Self::Double(-v),
            Self::Decimal(v) => Self::Decimal(v.negate()),
        }
    }

    /// Returns the absolute value; `None` for the smallest long, whose absolute value is not a
    /// long.
    pub fn abs(self) -> Option<Self> {
        Some(match self {
            Self::Int(v) => narrow(i64::from(v).abs()),
            Self::Long(v) => Self::Long(v.checked_abs()?),
            Self::Double(v) => Self::Double(v.abs()),
            Self::Decimal(v) => Self::Decimal(v.abs()),
        })
    }

    /// Rounds to `place` decimal places (before the decimal point if negative), in the same type.
    /// An int out of range becomes long; `None` for a long out of range.
    pub fn round(self, place: i32, rounding: Rounding) -> Option<Self> {
        match self {
            Self::Int(v) => {
                let whole = round_long(v.into(), place, rounding)?;
                Some(narrow(whole))
            }
            Self::Long(v) => round_long(v, place, rounding).map(Self::Long),
            Self::Double(v) => Some(Self::Double(round_double(v, place, rounding))),
            // With more places than fit, the result has all the digits a decimal can have.
            Self::Decimal(v) => Some(Self::Decimal(
                v.quantize(-place, rounding)
                    .unwrap_or_else(|| v.to_all_digits()),
            )),
        }
    }
}

/// Returns the result of an int operation: int if it fits, else long.
fn narrow(value: i64) -> Number {
    i32::try_from(value).map_or(Number::Long(value), Number::Int)
}

fn round_long(value: i64, place: i32, rounding: Rounding) -> Option<i64> {
    if place >= 0 {
        return Some(value);
    }
    let rounded = Decimal128::from(value).quantize(-place, rounding)?;
    rounded.to_i64(Rounding::TowardZero)
}

/// Rounds the exact value of a double: 2.675 is stored just below the tie and rounds down.
fn round_double(value: f64, place: i32, rounding: Rounding) -> f64 {
    if !value.is_finite() || value == 0.0 {
        return value;
    }
    if place == 0 {
        return match rounding {
            Rounding::HalfEven => value.round_ties_even(),
            Rounding::TowardZero => value.trunc(),
            Rounding::Floor => value.floor(),
            Rounding::Ceiling => value.ceil(),
        };
    }
    Decimal128::from_f64_closest(value)
        .quantize(-place, rounding)
        .map_or(value, Decimal128::to_f64)
}

/// Compares doubles in BSON order: NaN is equal to itself and lowest, zeros are equal.
pub fn compare_f64(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b)
        .unwrap_or_else(|| b.is_nan().cmp(&a.is_nan()))
}

/// Compares a long and a double exactly.
pub fn compare_i64_f64(a: i64, b: f64) -> Ordering {
    if b.is_nan() {
        return Ordering::Greater;
    }
    if b >= LONG_END {
        return Ordering::Less;
    }
    if b < -LONG_END {
        return Ordering::Greater;
    }
    let whole = b.trunc();
    a.cmp(&(whole as i64)).then_with(|| compare_f64(whole, b))
}

impl Hash for Number {
    /// Numbers that compare equal have equal hashes, whatever their types.
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self.to_i64_exact() {
            Some(whole) => whole.hash(state),
            None if self.is_nan() => state.write_u64(f64::NAN.to_bits()),
            // Equal numbers have the same nearest double.
            None => state.write_u64(self.to_f64().to_bits()),
        }
    }
}

impl From<Number> for Value {
    fn from(number: Number) -> Self {
        number.to_ref().to_value()
    }
}

/// Decimal exponents of doubles that are printed without an exponent.
const PLAIN_POWERS: std::ops::Range<i32> = -5..16;

/// Formats a double as `$toString` does: the shortest digits that parse to the same double, with an
/// exponent (`1e+20`, `1e-05`) outside 10^-5 … 10^16.
pub fn format_f64(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let power = exponent.parse::<i32>().unwrap_or(0);
    if PLAIN_POWERS.contains(&power) {
        return value.to_string();
    }
    let sign = if power < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", power.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> Number {
        Number::Decimal(text.parse().unwrap())
    }

    fn show(number: Number) -> String {
        match number {
            Number::Int(v) => format!("int {v}"),
            Number::Long(v) => format!("long {v}"),
            Number::Double(v) => format!("double {v:?}"),
            Number::Decimal(v) => format!("decimal {v}"),
        }
    }

    #[test]
    fn overflow_widens() {
        use Number::{Double, Int, Long};
        assert_eq!(show(Int(i32::MAX).add(Int(1))), "long 2147483648");
        assert_eq!(show(Int(i32::MIN).subtract(Int(1))), "long -2147483649");
        assert_eq!(show(Int(65536).multiply(Int(65536))), "long 4294967296");
        assert_eq!(show(Long(1).add(Int(1))), "long 2");
        assert_eq!(
            show(Long(i64::MAX).add(Int(1))),
            "double 9.223372036854776e18"
        );
        assert_eq!(show(Long(i64::MIN).negate()), "double 9.223372036854776e18");
        assert_eq!(show(Int(i32::MIN).negate()), "long 2147483648");
        assert_eq!(show(Int(1).add(Double(0.5))), "double 1.5");
        assert_eq!(
            show(decimal("0.1").add(Double(0.1))),
            "decimal 0.200000000000000"
        );
        assert!(Long(i64::MIN).abs().is_none());
    }

    #[test]
    fn a_product_of_all_types_keeps_its_exponent() {
        let product = Number::Int(2)
            .multiply(Number::Double(-0.0))
            .multiply(Number::Long(i64::MIN))
            .multiply(Number::Decimal(Decimal128::from_f64(f64::MAX)));
        assert_eq!(show(product), "decimal 0E+294");
    }

    #[test]
    fn division_and_remainder() {
        use Number::{Double, Int, Long};
        assert_eq!(show(Int(6).divide(Int(3)).unwrap()), "double 2.0");
        assert_eq!(
            show(decimal("1").divide(Int(3)).unwrap()),
            "decimal 0.3333333333333333333333333333333333"
        );
        assert_eq!(Int(1).divide(Double(-0.0)).err(), Some(DivisionByZero));
        assert_eq!(show(Int(-7).modulo(Int(3)).unwrap()), "int -1");
        assert_eq!(show(Long(i64::MIN).modulo(Int(-1)).unwrap()), "long 0");
        assert_eq!(show(Double(7.5).modulo(Int(2)).unwrap()), "double 1.5");
        assert!(Double(1.0).modulo(Double(0.0)).is_err());
        assert_eq!(show(Long(7).modulo(Double(3.0)).unwrap()), "long 1");
        assert_eq!(show(Int(7).modulo(Double(-3.0)).unwrap()), "int 1");
        assert_eq!(show(Double(7.0).modulo(Int(3)).unwrap()), "double 1.0");
        assert_eq!(show(Long(7).modulo(Double(1e10)).unwrap()), "double 7.0");
        assert!(Long(7).modulo(Double(0.0)).is_err());
    }

    #[test]
    fn comparison_is_exact() {
        use Number::{Double, Long};
        let big = 1i64 << 53;
        assert_eq!(Long(big + 1).compare(Double(big as f64)), Ordering::Greater);
        assert_eq!(Long(big).compare(Double(big as f64)), Ordering::Equal);
        assert_eq!(Long(i64::MAX).compare(Double(LONG_END)), Ordering::Less);
        assert_eq!(Long(i64::MIN).compare(Double(-LONG_END)), Ordering::Equal);
        assert_eq!(Long(-1).compare(Double(-1.5)), Ordering::Greater);
        assert_eq!(
            Double(f64::NAN).compare(Double(f64::NEG_INFINITY)),
            Ordering::Less
        );
        assert_eq!(Double(0.1).compare(decimal("0.1")), Ordering::Greater);
        assert_eq!(Double(0.5).compare(decimal("0.50")), Ordering::Equal);
    }

    #[test]
    fn rounding_to_a_place() {
        let half = |n: Number, place| show(n.round(place, Rounding::HalfEven).unwrap());
        let cut = |n: Number, place| show(n.round(place, Rounding::TowardZero).unwrap());
        assert_eq!(half(Number::Double(2.5), 0), "double 2.0");
        assert_eq!(half(Number::Double(-1.5), 0), "double -2.0");
        assert_eq!(half(Number::Double(2.675), 2), "double 2.67");
        assert_eq!(half(Number::Double(1234.5678), -2), "double 1200.0");
        assert_eq!(half(Number::Double(f64::INFINITY), 2), "double inf");
        assert_eq!(half(Number::Int(25), -1), "int 20");
        assert_eq!(half(Number::Int(i32::MAX), -9), "int 2000000000");
        assert_eq!(half(Number::Int(i32::MAX), -1), "long 2147483650");
        assert_eq!(half(Number::Long(15), -20), "long 0");
        assert_eq!(half(Number::Int(15), 100), "int 15");
        assert!(
            Number::Long(i64::MAX)
                .round(-1, Rounding::HalfEven)
                .is_none()
        );
        assert_eq!(half(decimal("1.25"), 1), "decimal 1.2");
        assert_eq!(half(decimal("1.5"), 3), "decimal 1.500");
        assert_eq!(
            half(decimal("1.298912343250054252245154325"), 100),
            "decimal 1.298912343250054252245154325000000"
        );
        assert_eq!(
            cut(decimal("-1.5E+30"), 20),
            "decimal -1500000000000000000000000000000.000"
        );
        assert_eq!(cut(Number::Double(-1.79), 1), "double -1.7");
        assert_eq!(cut(Number::Int(19), -1), "int 10");
    }

    #[test]
    fn truncating_conversions() {
        assert_eq!(Number::Double(-1.9).to_i32_truncated(), Ok(-1));
        assert_eq!(
            Number::Double(LONG_END).to_i64_truncated(),
            Err(ConversionError::Overflow)
        );
        assert_eq!(
            Number::Double(f64::NAN).to_i64_truncated(),
            Err(ConversionError::Nan)
        );
        assert_eq!(decimal("5.9").to_i64_truncated(), Ok(5));
        assert_eq!(
            decimal("1E+19").to_i64_truncated(),
            Err(ConversionError::Overflow)
        );
        assert_eq!(
            decimal("1E+400").to_f64_checked(),
            Err(ConversionError::Overflow)
        );
        assert_eq!(
            Number::Long(1 << 31).to_i32_truncated(),
            Err(ConversionError::Overflow)
        );
    }

    #[test]
    fn doubles_as_text() {
        for (value, text) in [
            (1.0, "1"),
            (-0.0, "-0"),
            (0.1, "0.1"),
            (123_456_789.125, "123456789.125"),
            (1e15, "1000000000000000"),
            (1e16, "1e+16"),
            (1.5e-7, "1.5e-07"),
            (1e300, "1e+300"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
        ] {
            assert_eq!(format_f64(value), text);
        }
    }
}
