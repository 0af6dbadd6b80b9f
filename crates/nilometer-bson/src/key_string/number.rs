//! Numbers in keys: split into a size class and bytes, and recombined.

use super::decode::KeyStringError;
use super::lead;
use super::type_bits::StoredType;
use crate::decimal128::{self, DecimalParts};
use crate::number::Number;
use crate::value::Decimal128;

/// Bits of a fraction stored in a key.
const FRACTION_BITS: u32 = 55;
/// 2^55.
const FRACTION_UNIT: f64 = (1u64 << FRACTION_BITS) as f64;
/// 2^63: absolute values from here on are stored as doubles.
const WHOLE_END: f64 = 9_223_372_036_854_775_808.0;
/// Added to a decimal exponent to make it positive.
const POWER_OFFSET: i32 = 8192;
/// Bytes that hold 34 decimal digits.
const DIGIT_BYTES: usize = 15;

/// The absolute value of a number as stored in a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Magnitude {
    Nan,
    Zero,
    /// Between 1 and 2^63: whole part, fraction truncated to units of 2^-55, and the exact digits
    /// if truncation lost any.
    Whole {
        whole: u64,
        fraction: u64,
        inexact: Option<Digits>,
    },
    /// Below 1, or 2^63 and above: the double truncated towards zero, and the exact digits if
    /// truncation lost any.
    Double {
        cut: f64,
        inexact: Option<Digits>,
    },
}

/// Absolute value of a decimal, in a form whose order is that of the values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Digits {
    /// Decimal exponent just above the first digit.
    power: i32,
    /// All 34 digits.
    digits: u128,
}

impl Digits {
    pub(super) fn write(self, out: &mut Vec<u8>) {
        let power = u16::try_from(self.power + POWER_OFFSET).unwrap_or(0);
        out.extend_from_slice(&power.to_be_bytes());
        let bytes = self.digits.to_be_bytes();
        out.extend_from_slice(bytes.get(16 - DIGIT_BYTES..).unwrap_or(&[]));
    }

    pub(super) fn from_bytes(power: [u8; 2], digits: [u8; DIGIT_BYTES]) -> Self {
        let digits = digits.iter().fold(0u128, |n, b| (n << 8) | u128::from(*b));
        Self {
            power: i32::from(u16::from_be_bytes(power)) - POWER_OFFSET,
            digits,
        }
    }

    fn to_decimal(self) -> Option<Decimal128> {
        let mut digits = self.digits;
        let mut exponent = self.power - decimal128::DIGITS_MAX as i32;
        while digits != 0 && digits.is_multiple_of(10) {
            digits /= 10;
            exponent += 1;
        }
        if exponent > decimal128::EXPONENT_MAX {
            let excess = u32::try_from(exponent - decimal128::EXPONENT_MAX).ok()?;
            digits = digits.checked_mul(10u128.checked_pow(excess)?)?;
            exponent = decimal128::EXPONENT_MAX;
        }
        Decimal128::from_parts(false, exponent, digits)
    }
}

/// A number as encoded: sign, size, and its type bits if the key alone decodes to another type.
pub(super) struct EncodedNumber {
    pub(super) negative: bool,
    pub(super) size: Magnitude,
    pub(super) kind: Option<StoredType>,
}

pub(super) fn take_apart(number: Number) -> EncodedNumber {
    match number {
        Number::Int(v) => encode_long(v.into(), StoredType::Int),
        Number::Long(v) => encode_long(v, StoredType::Long),
        Number::Double(v) => take_double(v),
        Number::Decimal(v) => take_decimal(v),
    }
}

fn encode_long(value: i64, kind: StoredType) -> EncodedNumber {
    let size = match value.unsigned_abs() {
        0 => Magnitude::Zero,
        // Only the smallest long has this absolute value.
        whole if whole == 1 << 63 => Magnitude::Double {
            cut: WHOLE_END,
            inexact: None,
        },
        whole => Magnitude::Whole {
            whole,
            fraction: 0,
            inexact: None,
        },
    };
    finish(value < 0, size, kind)
}

fn take_double(value: f64) -> EncodedNumber {
    if value == 0.0 && value.is_sign_negative() {
        return finish(false, Magnitude::Zero, StoredType::NegativeZero);
    }
    let abs = value.abs();
    let size = if value.is_nan() {
        Magnitude::Nan
    } else if abs == 0.0 {
        Magnitude::Zero
    } else if (1.0..WHOLE_END).contains(&abs) {
        let whole = abs.trunc();
        Magnitude::Whole {
            whole: whole as u64,
            fraction: ((abs - whole) * FRACTION_UNIT) as u64,
            inexact: None,
        }
    } else {
        Magnitude::Double {
            cut: abs,
            inexact: None,
        }
    };
    finish(value < 0.0, size, StoredType::Double)
}

fn take_decimal(value: Decimal128) -> EncodedNumber {
    let DecimalParts::Finite {
        negative,
        exponent,
        coefficient,
    } = value.parts()
    else {
        let size = if value.is_nan() {
            Magnitude::Nan
        } else {
            Magnitude::Double {
                cut: f64::INFINITY,
                inexact: None,
            }
        };
        return finish(
            value.is_negative() && !value.is_nan(),
            size,
            StoredType::Decimal(0),
        );
    };
    if coefficient == 0 {
        let kind = if negative {
            StoredType::NegativeDecimalZero(exponent)
        } else {
            StoredType::Decimal(exponent)
        };
        return finish(false, Magnitude::Zero, kind);
    }
    let abs = value.abs();
    let count = coefficient.ilog10() + 1;
    let digits = Digits {
        power: exponent + count as i32,
        digits: coefficient * 10u128.pow(decimal128::DIGITS_MAX - count),
    };
    let whole = abs.to_i64(decimal128::Rounding::TowardZero);
    let size = match whole.and_then(|n| u64::try_from(n).ok()) {
        Some(whole) if whole > 0 => {
            let (fraction, exact) = decimal128::fraction_bits(coefficient, exponent, FRACTION_BITS);
            Magnitude::Whole {
                whole,
                fraction,
                inexact: (!exact).then_some(digits),
            }
        }
        _ => {
            let cut = abs.to_f64_toward_zero();
            let exact = abs.compare_f64(cut).is_eq();
            Magnitude::Double {
                cut,
                inexact: (!exact).then_some(digits),
            }
        }
    };
    finish(negative, size, StoredType::Decimal(exponent))
}

fn finish(negative: bool, size: Magnitude, kind: StoredType) -> EncodedNumber {
    let push_default = default_type(negative, size);
    EncodedNumber {
        negative,
        size,
        kind: (kind != push_default).then_some(kind),
    }
}

/// Returns the type a key decodes to without type bits.
fn default_type(negative: bool, size: Magnitude) -> StoredType {
    let int_end = if negative { 1 << 31 } else { (1 << 31) - 1 };
    match size {
        Magnitude::Zero => StoredType::Int,
        Magnitude::Whole {
            whole,
            fraction: 0,
            inexact: None,
        } if whole <= int_end => StoredType::Int,
        Magnitude::Whole {
            fraction: 0,
            inexact: None,
            ..
        } => StoredType::Long,
        _ => StoredType::Double,
    }
}

/// Returns the lead byte of a number.
pub(super) fn lead_byte(negative: bool, size: Magnitude) -> u8 {
    let positive = match size {
        Magnitude::Nan => return lead::NAN,
        Magnitude::Zero => return lead::ZERO,
        Magnitude::Double { cut, .. } if cut < 1.0 => lead::SMALL,
        Magnitude::Double { .. } => lead::LARGE,
        Magnitude::Whole { whole, .. } => lead::WHOLE_1 + whole_bytes(whole) - 1,
    };
    if negative {
        // The order of sizes reverses below zero.
        2 * lead::ZERO - positive
    } else {
        positive
    }
}

/// Returns the number of bytes of twice the whole part.
fn whole_bytes(whole: u64) -> u8 {
    (8 - ((whole << 1).leading_zeros() / 8) as u8).max(1)
}

/// Writes the bytes after the lead byte, not yet inverted.
pub(super) fn write_size(size: Magnitude, out: &mut Vec<u8>) {
    let inexact = match size {
        Magnitude::Nan | Magnitude::Zero => None,
        Magnitude::Whole {
            whole,
            fraction,
            inexact,
        } => {
            let has_fraction = fraction != 0 || inexact.is_some();
            let bytes = ((whole << 1) | u64::from(has_fraction)).to_be_bytes();
            let skip = 8 - usize::from(whole_bytes(whole));
            out.extend_from_slice(bytes.get(skip..).unwrap_or(&[]));
            if has_fraction {
                let bytes = ((fraction << 1) | u64::from(inexact.is_some())).to_be_bytes();
                out.extend_from_slice(bytes.get(1..).unwrap_or(&[]));
            }
            inexact
        }
        Magnitude::Double { cut, inexact } => {
            let bits = (cut.to_bits() << 1) | u64::from(inexact.is_some());
            out.extend_from_slice(&bits.to_be_bytes());
            inexact
        }
    };
    if let Some(digits) = inexact {
        digits.write(out);
    }
}

/// Rebuilds the number of a key, given its type.
pub(super) fn rebuild(
    negative: bool,
    size: Magnitude,
    kind: Option<StoredType>,
) -> Result<Number, KeyStringError> {
    let kind = kind.unwrap_or_else(|| default_type(negative, size));
    let number = match kind {
        StoredType::Int => {
            let long = long_of(negative, size).and_then(|v| i32::try_from(v).ok());
            long.map(Number::Int)
        }
        StoredType::Long => long_of(negative, size).map(Number::Long),
        StoredType::Double => {
            double_of(size).map(|v| Number::Double(if negative { -v } else { v }))
        }
        StoredType::Decimal(exponent) => decimal_of(size, exponent)
            .map(|v| Number::Decimal(if negative { v.negate() } else { v })),
        StoredType::NegativeZero => (size == Magnitude::Zero).then_some(Number::Double(-0.0)),
        StoredType::NegativeDecimalZero(exponent) => Decimal128::from_parts(true, exponent, 0)
            .filter(|_| size == Magnitude::Zero)
            .map(Number::Decimal),
        StoredType::Symbol => None,
    };
    number.ok_or(KeyStringError::TypeBits)
}

fn long_of(negative: bool, size: Magnitude) -> Option<i64> {
    match size {
        Magnitude::Zero => Some(0),
        Magnitude::Whole {
            whole,
            fraction: 0,
            inexact: None,
        } => {
            let long = i64::try_from(whole).ok()?;
            Some(if negative { -long } else { long })
        }
        Magnitude::Double { cut, inexact: None } if negative && cut == WHOLE_END => Some(i64::MIN),
        _ => None,
    }
}

fn double_of(size: Magnitude) -> Option<f64> {
    match size {
        Magnitude::Nan => Some(f64::NAN),
        Magnitude::Zero => Some(0.0),
        Magnitude::Whole {
            whole,
            fraction,
            inexact: None,
        } => Some(whole as f64 + fraction as f64 / FRACTION_UNIT),
        Magnitude::Double { cut, inexact: None } => Some(cut),
        _ => None,
    }
}

fn decimal_of(size: Magnitude, exponent: i32) -> Option<Decimal128> {
    let value = match size {
        Magnitude::Nan => return Some(Decimal128::NAN),
        Magnitude::Zero => return Decimal128::from_parts(false, exponent, 0),
        Magnitude::Whole {
            inexact: Some(digits),
            ..
        }
        | Magnitude::Double {
            inexact: Some(digits),
            ..
        } => digits.to_decimal()?,
        // The exact binary fraction of a decimal has few bits, so the double holds it exactly.
        Magnitude::Whole {
            whole, fraction, ..
        } => Decimal128::from(whole).add(Decimal128::from_f64_closest(
            fraction as f64 / FRACTION_UNIT,
        )),
        Magnitude::Double { cut, .. } => Decimal128::from_f64_closest(cut),
    };
    value.quantize(exponent, decimal128::Rounding::TowardZero)
}
