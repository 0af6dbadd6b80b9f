//! Conversion of decimals to and from integers and doubles, and exact comparison with them.

use std::cmp::Ordering;
use std::fmt::Write as _;

use ethnum::U256;

use super::arithmetic::Rounding;
use super::{DIGITS_MAX, Finite, Unrounded, digits, digits_wide, pow10_wide};
use crate::value::Decimal128;

/// Digits kept when MongoDB converts a double for mixed arithmetic.
const DOUBLE_DIGITS: usize = 15;
/// Significant digits that represent any double exactly.
const EXACT_DOUBLE_DIGITS: usize = 767;
/// Largest power of ten a double holds exactly.
const EXACT_POWER_OF_TEN: u32 = 22;

impl From<i32> for Decimal128 {
    fn from(value: i32) -> Self {
        Self::from(i64::from(value))
    }
}

impl From<i64> for Decimal128 {
    fn from(value: i64) -> Self {
        Self::pack(value < 0, 0, u128::from(value.unsigned_abs()))
    }
}

impl From<u64> for Decimal128 {
    fn from(value: u64) -> Self {
        Self::pack(false, 0, u128::from(value))
    }
}

impl Decimal128 {
    /// Converts a double to exactly 15 digits, as in mixed arithmetic: 0.1 is 0.100000000000000.
    pub fn from_f64(value: f64) -> Self {
        Self::from_f64_digits(value, DOUBLE_DIGITS).unwrap_or(Self::NAN)
    }

    /// Converts a double to the closest decimal of 34 digits, without trailing zeros after the
    /// point.
    pub fn from_f64_closest(value: f64) -> Self {
        let long = Self::from_f64_digits(value, DIGITS_MAX as usize).unwrap_or(Self::NAN);
        let Some(Finite {
            negative,
            mut exponent,
            mut coefficient,
        }) = long.finite()
        else {
            return long;
        };
        while exponent < 0 && coefficient % 10 == 0 && coefficient != 0 {
            coefficient /= 10;
            exponent += 1;
        }
        // A whole number is written with all its digits and exponent zero, if they fit.
        Unrounded {
            negative,
            exponent,
            coefficient: U256::from(coefficient),
            sticky: false,
            preferred: exponent.min(0),
        }
        .round()
    }

    fn from_f64_digits(value: f64, count: usize) -> Option<Self> {
        if value.is_nan() {
            return Some(Self::NAN);
        }
        if value.is_infinite() {
            return Some(Self::infinite(value < 0.0));
        }
        if value == 0.0 {
            return Some(Self::pack(value.is_sign_negative(), 0, 0));
        }
        let mut text = StackText::default();
        write!(text, "{:.*e}", count - 1, value.abs()).ok()?;
        let (mantissa, exponent) = text.as_str().split_once('e')?;
        let coefficient = mantissa
            .bytes()
            .filter(u8::is_ascii_digit)
            .fold(0u128, |n, b| n * 10 + u128::from(b - b'0'));
        let exponent = exponent.parse::<i32>().ok()? - (count as i32 - 1);
        Self::from_parts(value < 0.0, exponent, coefficient)
    }

    /// Returns the nearest double, ties to even; infinity beyond the range.
    pub fn to_f64(self) -> f64 {
        let Some(a) = self.finite() else {
            return match (self.is_nan(), self.is_negative()) {
                (true, _) => f64::NAN,
                (false, true) => f64::NEG_INFINITY,
                (false, false) => f64::INFINITY,
            };
        };
        let size = a.size_to_f64();
        if a.negative { -size } else { size }
    }

    /// Returns the nearest double of at most this absolute value: the truncated value.
    pub fn to_f64_toward_zero(self) -> f64 {
        let near = self.to_f64();
        if self.abs().compare_f64(near.abs()) == Ordering::Less {
            let below = f64::from_bits(near.abs().to_bits() - 1);
            return if self.is_negative() { -below } else { below };
        }
        near
    }

    /// Returns the integer this equals, if it is one and fits.
    pub fn to_i64_exact(self) -> Option<i64> {
        let whole = self.to_i64(Rounding::TowardZero)?;
        (Self::from(whole).compare(self) == Ordering::Equal).then_some(whole)
    }

    /// Rounds to an integer; `None` if it does not fit or is not a number.
    pub fn to_i64(self, rounding: Rounding) -> Option<i64> {
        let a = self.round_to_integral(rounding).finite()?;
        if a.coefficient == 0 {
            return Some(0);
        }
        if a.magnitude() > 19 {
            return None;
        }
        // The exponent is not negative here, and with at most 19 digits the product fits in 128
        // bits.
        let size = a.coefficient * 10u128.pow(u32::try_from(a.exponent).ok()?);
        let signed = i128::try_from(size).ok()?;
        i64::try_from(if a.negative { -signed } else { signed }).ok()
    }

    /// Compares exactly with an integer.
    pub fn compare_i64(self, other: i64) -> Ordering {
        self.compare(Self::from(other))
    }

    /// Compares exactly with a double; NaNs are equal and below everything else.
    pub fn compare_f64(self, other: f64) -> Ordering {
        if self.is_nan() || other.is_nan() {
            return other.is_nan().cmp(&self.is_nan());
        }
        let Some(a) = self.finite().filter(|_| other.is_finite()) else {
            return self.to_f64_special().total_cmp(&special(other));
        };
        let sign: i8 = if other == 0.0 {
            0
        } else if other < 0.0 {
            -1
        } else {
            1
        };
        if a.signum() != sign || sign == 0 {
            return a.signum().cmp(&sign);
        }
        let size = a.compare_size(other.abs());
        if sign < 0 { size.reverse() } else { size }
    }

    /// Converts infinities to themselves, anything finite to zero.
    fn to_f64_special(self) -> f64 {
        if self.is_infinite() {
            self.to_f64()
        } else {
            0.0
        }
    }
}

fn special(value: f64) -> f64 {
    if value.is_infinite() { value } else { 0.0 }
}

impl Finite {
    fn size_to_f64(self) -> f64 {
        if self.coefficient == 0 {
            return 0.0;
        }
        let power = self.exponent.unsigned_abs();
        if self.coefficient <= 1 << 53 && power <= EXACT_POWER_OF_TEN {
            // Both operands are exact, so the single operation rounds correctly.
            let unit = 10u64.pow(power.min(19)) as f64 * 10u64.pow(power.saturating_sub(19)) as f64;
            let whole = self.coefficient as f64;
            return if self.exponent < 0 {
                whole / unit
            } else {
                whole * unit
            };
        }
        let mut text = StackText::default();
        match write!(text, "{}e{}", self.coefficient, self.exponent) {
            Ok(()) => text.as_str().parse().unwrap_or(f64::NAN),
            Err(_) => f64::NAN,
        }
    }

    /// Compares absolute values exactly; both are above zero.
    fn compare_size(self, other: f64) -> Ordering {
        // Rounding to nearest preserves order, so unequal doubles decide.
        let near = self.size_to_f64();
        if near != other {
            return near.total_cmp(&other);
        }
        let (mantissa, power) = split_double(other);
        self.compare_binary(mantissa, power)
            .unwrap_or_else(|| self.compare_digits(other))
    }

    /// Compares with `mantissa × 2^power` in 256 bits; `None` if they are not sufficient.
    fn compare_binary(self, mantissa: u64, power: i32) -> Option<Ordering> {
        let binary = if power >= 0 {
            U256::from(mantissa).checked_mul(U256::ONE << u32::try_from(power.min(200)).ok()?)?
        } else {
            // 2^-n is 5^n / 10^n.
            U256::from(mantissa).checked_mul(U256::from(5u8).checked_pow(power.unsigned_abs())?)?
        };
        if power > 200 {
            return None;
        }
        let exponent = power.min(0);
        let coefficient = U256::from(self.coefficient);
        let distance = self.exponent.abs_diff(exponent);
        let scaled = |n: U256| (distance + digits_wide(n) <= 76).then(|| n * pow10_wide(distance));
        Some(if self.exponent >= exponent {
            scaled(coefficient)?.cmp(&binary)
        } else {
            coefficient.cmp(&scaled(binary)?)
        })
    }

    /// Compares with all decimal digits of the double.
    fn compare_digits(self, other: f64) -> Ordering {
        let text = format!("{:.*e}", EXACT_DOUBLE_DIGITS - 1, other);
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let magnitude = exponent.parse::<i32>().unwrap_or(0) + 1;
        let by_magnitude = self.magnitude().cmp(&magnitude);
        if by_magnitude != Ordering::Equal {
            return by_magnitude;
        }
        let own = self.coefficient.to_string();
        let padded = own.bytes().chain(std::iter::repeat(b'0'));
        let theirs = mantissa.bytes().filter(u8::is_ascii_digit);
        let count = EXACT_DOUBLE_DIGITS.max(digits(self.coefficient) as usize);
        padded
            .take(count)
            .cmp(theirs.chain(std::iter::repeat(b'0')).take(count))
    }
}

/// Splits a finite positive double into `mantissa × 2^power` with an odd mantissa.
fn split_double(value: f64) -> (u64, i32) {
    let bits = value.to_bits();
    let fraction = bits & ((1 << 52) - 1);
    let biased = (bits >> 52) as i32 & 0x7FF;
    let (mantissa, power) = if biased == 0 {
        (fraction, -1074)
    } else {
        (fraction | (1 << 52), biased - 1075)
    };
    let zeros = mantissa.trailing_zeros().min(63);
    (mantissa >> zeros, power + zeros as i32)
}

/// A short text built on the stack.
struct StackText {
    bytes: [u8; 64],
    length: usize,
}

impl Default for StackText {
    fn default() -> Self {
        Self {
            bytes: [0; 64],
            length: 0,
        }
    }
}

impl StackText {
    fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..self.length).unwrap_or(&[]);
        std::str::from_utf8(bytes).unwrap_or("")
    }
}

impl std::fmt::Write for StackText {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let end = self.length + text.len();
        let slot = self
            .bytes
            .get_mut(self.length..end)
            .ok_or(std::fmt::Error)?;
        slot.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

/// Returns the fraction of `coefficient × 10^exponent` in units of `2^-bits`, truncated, and
/// whether that is exact. The value must have at least one digit before the point, so at most 33
/// after it.
pub(crate) fn fraction_bits(coefficient: u128, exponent: i32, bits: u32) -> (u64, bool) {
    if exponent >= 0 {
        return (0, true);
    }
    let unit = 10u128.pow(exponent.unsigned_abs().min(DIGITS_MAX));
    let scaled = U256::from(coefficient % unit) << bits;
    let unit = U256::from(unit);
    let (units, rest) = (scaled / unit, scaled % unit);
    (*units.low() as u64, rest == 0)
}
