//! Parsing and formatting of decimals, in the forms of the BSON Decimal128 specification.
//!
//! Formatted plainly if the exponent is not positive and the leading digit is at most six places
//! after the point, otherwise with an exponent. Parsing accepts both, with any number of digits.

use std::fmt;
use std::str::FromStr;

use ethnum::U256;

use super::{DecimalParts, Unrounded, digits};
use crate::value::Decimal128;

/// Significant digits kept; the rest becomes a sticky bit.
const PARSE_DIGITS: u32 = 70;
/// An exponent beyond this overflows or underflows with any coefficient.
const PARSE_EXPONENT_LIMIT: i64 = 1_000_000;

/// Why a text is not a decimal number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseDecimalError {
    /// Not in the form of a number.
    #[error("not a decimal number")]
    Syntax,
    /// More than 34 digits, or an exponent out of range (only if exactness was required).
    #[error("not representable as a decimal128 without rounding")]
    Inexact,
}

impl Decimal128 {
    /// Parses a number; an error if it needs rounding.
    pub fn parse_exact(text: &str) -> Result<Self, ParseDecimalError> {
        match parse(text)? {
            (value, true) => Ok(value),
            (_, false) => Err(ParseDecimalError::Inexact),
        }
    }
}

impl FromStr for Decimal128 {
    type Err = ParseDecimalError;

    /// Parses a number and rounds to 34 digits; overflow gives infinity.
    fn from_str(text: &str) -> Result<Self, ParseDecimalError> {
        Ok(parse(text)?.0)
    }
}

/// Parses a number; returns it and whether it is exact.
fn parse(text: &str) -> Result<(Decimal128, bool), ParseDecimalError> {
    let (negative, body) = match text.as_bytes().first() {
        Some(b'-') => (true, text.get(1..).unwrap_or("")),
        Some(b'+') => (false, text.get(1..).unwrap_or("")),
        _ => (false, text),
    };
    if body.eq_ignore_ascii_case("inf") || body.eq_ignore_ascii_case("infinity") {
        return Ok((Decimal128::infinite(negative), true));
    }
    if body.eq_ignore_ascii_case("nan") {
        return Ok((Decimal128::NAN, true));
    }
    let (number, exponent) = match body.find(['e', 'E']) {
        Some(at) => {
            let (number, exponent) = body.split_at(at);
            (number, parse_exponent(exponent.get(1..).unwrap_or(""))?)
        }
        None => (body, 0),
    };
    let mut coefficient = U256::ZERO;
    let mut count = 0u32;
    let mut shift: i64 = 0;
    let mut sticky = false;
    let (mut seen_digit, mut seen_point) = (false, false);
    for byte in number.bytes() {
        match byte {
            b'.' if !seen_point => seen_point = true,
            b'0'..=b'9' => {
                seen_digit = true;
                if count < PARSE_DIGITS {
                    coefficient = coefficient * 10 + U256::from(byte - b'0');
                    count += u32::from(count > 0 || byte != b'0');
                    shift -= i64::from(seen_point);
                } else {
                    sticky |= byte != b'0';
                    shift += i64::from(!seen_point);
                }
            }
            _ => return Err(ParseDecimalError::Syntax),
        }
    }
    if !seen_digit {
        return Err(ParseDecimalError::Syntax);
    }
    let exponent = exponent + shift;
    let bounded = exponent.clamp(-PARSE_EXPONENT_LIMIT, PARSE_EXPONENT_LIMIT) as i32;
    let value = Unrounded {
        negative,
        exponent: bounded,
        coefficient,
        sticky,
        preferred: bounded,
    }
    .round();
    Ok((value, !sticky && is_exact(value, coefficient, bounded)))
}

fn parse_exponent(text: &str) -> Result<i64, ParseDecimalError> {
    let (negative, body) = match text.as_bytes().first() {
        Some(b'-') => (true, text.get(1..).unwrap_or("")),
        Some(b'+') => (false, text.get(1..).unwrap_or("")),
        _ => (false, text),
    };
    if body.is_empty() || !body.bytes().all(|b| b.is_ascii_digit()) {
        return Err(ParseDecimalError::Syntax);
    }
    let size = body.bytes().fold(0i64, |n, b| {
        (n * 10 + i64::from(b - b'0')).min(PARSE_EXPONENT_LIMIT * 10)
    });
    Ok(if negative { -size } else { size })
}

/// True if rounding did not change `coefficient × 10^exponent`.
fn is_exact(value: Decimal128, coefficient: U256, exponent: i32) -> bool {
    let DecimalParts::Finite {
        exponent: got,
        coefficient: kept,
        ..
    } = value.parts()
    else {
        return false;
    };
    if coefficient == 0 {
        return true;
    }
    let kept = U256::from(kept);
    let distance = got.abs_diff(exponent);
    if distance > PARSE_DIGITS {
        return false;
    }
    let power = super::pow10_wide(distance);
    if got >= exponent {
        kept.checked_mul(power) == Some(coefficient)
    } else {
        coefficient.checked_mul(power) == Some(kept)
    }
}

impl fmt::Display for Decimal128 {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (negative, exponent, coefficient) = match self.parts() {
            DecimalParts::Nan => return out.write_str("NaN"),
            DecimalParts::Infinite { negative: true } => return out.write_str("-Infinity"),
            DecimalParts::Infinite { negative: false } => return out.write_str("Infinity"),
            DecimalParts::Finite {
                negative,
                exponent,
                coefficient,
            } => (negative, exponent, coefficient),
        };
        let text = coefficient.to_string();
        let count = digits(coefficient) as i32;
        let adjusted = exponent + count - 1;
        if negative {
            out.write_str("-")?;
        }
        if exponent > 0 || adjusted < -6 {
            let (first, rest) = text.split_at(1);
            out.write_str(first)?;
            if !rest.is_empty() {
                write!(out, ".{rest}")?;
            }
            let sign = if adjusted < 0 { '-' } else { '+' };
            return write!(out, "E{sign}{}", adjusted.unsigned_abs());
        }
        let whole = count + exponent;
        if exponent == 0 {
            out.write_str(&text)
        } else if whole > 0 {
            let (whole, fraction) = text.split_at(whole as usize);
            write!(out, "{whole}.{fraction}")
        } else {
            write!(out, "0.{}{text}", "0".repeat(whole.unsigned_abs() as usize))
        }
    }
}
