//! Operations of IEEE 754 arithmetic.

use ethnum::U256;

use super::{
    DIGITS_MAX, DecimalParts, EXPONENT_MIN, Finite, Unrounded, digits, digits_wide, pow10_wide,
};
use crate::value::Decimal128;

/// How far a 34-digit coefficient can be shifted within 256 bits.
const ALIGN_MAX: u32 = 42;

/// Rounding direction when the discarded digits are not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// To the nearest; a tie goes to the even digit.
    HalfEven,
    /// Towards zero.
    TowardZero,
    /// Towards negative infinity.
    Floor,
    /// Towards positive infinity.
    Ceiling,
}

#[expect(
    clippy::should_implement_trait,
    reason = "methods are explicit, as for numbers of all types"
)]
impl Decimal128 {
    /// Returns the sum.
    #[must_use]
    pub fn add(self, other: Self) -> Self {
        match (self.parts(), other.parts()) {
            (DecimalParts::Nan, _) | (_, DecimalParts::Nan) => Self::NAN,
            (DecimalParts::Infinite { negative: a }, DecimalParts::Infinite { negative: b }) => {
                if a == b { Self::infinite(a) } else { Self::NAN }
            }
            (DecimalParts::Infinite { negative }, _) | (_, DecimalParts::Infinite { negative }) => {
                Self::infinite(negative)
            }
            _ => match (self.finite(), other.finite()) {
                (Some(a), Some(b)) => add_finite(a, b),
                _ => Self::NAN,
            },
        }
    }

    /// Returns the difference.
    #[must_use]
    pub fn sub(self, other: Self) -> Self {
        self.add(other.negate())
    }

    /// Returns the product.
    #[must_use]
    pub fn mul(self, other: Self) -> Self {
        if self.is_nan() || other.is_nan() {
            return Self::NAN;
        }
        let negative = self.is_negative() != other.is_negative();
        match (self.finite(), other.finite()) {
            (Some(a), Some(b)) => Unrounded {
                negative,
                exponent: a.exponent + b.exponent,
                coefficient: U256::from(a.coefficient) * U256::from(b.coefficient),
                sticky: false,
                preferred: a.exponent + b.exponent,
            }
            .round(),
            _ if self.is_zero() || other.is_zero() => Self::NAN,
            _ => Self::infinite(negative),
        }
    }

    /// Returns the quotient; division by zero gives infinity, 0/0 NaN.
    #[must_use]
    pub fn div(self, other: Self) -> Self {
        if self.is_nan() || other.is_nan() {
            return Self::NAN;
        }
        let negative = self.is_negative() != other.is_negative();
        let (a, b) = match (self.finite(), other.finite()) {
            (Some(a), Some(b)) => (a, b),
            (None, None) => return Self::NAN,
            (None, Some(_)) => return Self::infinite(negative),
            (Some(_), None) => return Self::pack(negative, EXPONENT_MIN, 0),
        };
        let preferred = a.exponent - b.exponent;
        if b.coefficient == 0 {
            return if a.coefficient == 0 {
                Self::NAN
            } else {
                Self::infinite(negative)
            };
        }
        // At least 35 digits of quotient, so the remainder only affects the sticky bit.
        let shift = (DIGITS_MAX + 1 + digits(b.coefficient)).saturating_sub(digits(a.coefficient));
        let shift = if a.coefficient == 0 { 0 } else { shift };
        let dividend = U256::from(a.coefficient) * pow10_wide(shift);
        let divisor = U256::from(b.coefficient);
        Unrounded {
            negative,
            exponent: preferred - shift as i32,
            coefficient: dividend / divisor,
            sticky: dividend % divisor != 0,
            preferred,
        }
        .round()
    }

    /// Returns the exact remainder of the division truncated towards zero, with the sign of `self`.
    #[must_use]
    pub fn rem(self, other: Self) -> Self {
        let (a, b) = match (self.finite(), other.finite()) {
            (Some(a), Some(b)) if b.coefficient != 0 => (a, b),
            (Some(_), None) if !other.is_nan() => return self,
            _ => return Self::NAN,
        };
        let (coefficient, exponent) = if a.exponent >= b.exponent {
            let divisor = U256::from(b.coefficient);
            let power = pow10_modulo((a.exponent - b.exponent) as u32, divisor);
            let rest = U256::from(a.coefficient) % divisor * power % divisor;
            (*rest.low(), b.exponent)
        } else {
            let shift = (b.exponent - a.exponent) as u32;
            if shift > DIGITS_MAX {
                return self;
            }
            let divisor = U256::from(b.coefficient) * pow10_wide(shift);
            (*(U256::from(a.coefficient) % divisor).low(), a.exponent)
        };
        Self::pack(a.negative, exponent, coefficient)
    }

    /// Returns the square root; NaN below zero.
    #[must_use]
    pub fn sqrt(self) -> Self {
        let Some(a) = self.finite() else {
            return if self == Self::INFINITY {
                self
            } else {
                Self::NAN
            };
        };
        let preferred = a.exponent.div_euclid(2);
        if a.coefficient == 0 {
            return Self::pack(a.negative, preferred, 0);
        }
        if a.negative {
            return Self::NAN;
        }
        // A radicand of 70 or 71 digits gives a root of 35 or 36; the exponent must be even.
        let mut shift = 2 * (DIGITS_MAX + 1) - digits(a.coefficient);
        if (a.exponent - shift as i32) % 2 != 0 {
            shift += 1;
        }
        let radicand = U256::from(a.coefficient) * pow10_wide(shift);
        let root = isqrt(radicand);
        Unrounded {
            negative: false,
            exponent: (a.exponent - shift as i32) / 2,
            coefficient: root,
            sticky: root * root != radicand,
            preferred,
        }
        .round()
    }

    /// Returns the value as a multiple of `10^exponent`; `None` if that needs more than 34 digits.
    /// Infinities and NaN are returned unchanged.
    pub fn quantize(self, exponent: i32, rounding: Rounding) -> Option<Self> {
        let Some(a) = self.finite() else {
            return Some(self);
        };
        if a.coefficient == 0 || exponent <= a.exponent {
            let shift = u32::try_from(a.exponent - exponent).unwrap_or(0);
            if a.coefficient == 0 {
                return Self::from_parts(a.negative, exponent, 0);
            }
            if shift + digits(a.coefficient) > DIGITS_MAX {
                return None;
            }
            return Self::from_parts(a.negative, exponent, a.coefficient * 10u128.pow(shift));
        }
        let drop = (exponent - a.exponent) as u32;
        let (quotient, rest, half) = if drop > DIGITS_MAX {
            (0, a.coefficient, u128::MAX)
        } else {
            let unit = 10u128.pow(drop);
            (a.coefficient / unit, a.coefficient % unit, unit / 2)
        };
        let up = rest != 0
            && match rounding {
                Rounding::HalfEven => rest > half || (rest == half && quotient % 2 == 1),
                Rounding::TowardZero => false,
                Rounding::Floor => a.negative,
                Rounding::Ceiling => !a.negative,
            };
        Self::from_parts(a.negative, exponent, quotient + u128::from(up))
    }

    /// Returns the same value with as many trailing zeros as fit its 34 digits. Infinities and NaN are returned
    /// unchanged.
    #[must_use]
    pub fn to_all_digits(self) -> Self {
        let Some(a) = self.finite() else {
            return self;
        };
        let free = DIGITS_MAX.saturating_sub(digits(a.coefficient)) as i32;
        self.quantize(a.exponent - free, Rounding::TowardZero)
            .unwrap_or(self)
    }

    /// Rounds to a whole number; a value without fraction keeps its exponent.
    #[must_use]
    pub fn round_to_integral(self, rounding: Rounding) -> Self {
        match self.finite() {
            Some(a) if a.exponent < 0 => self.quantize(0, rounding).unwrap_or(self),
            _ => self,
        }
    }

    /// Removes trailing zeros from the coefficient; zero gets exponent zero.
    #[must_use]
    pub fn reduce(self) -> Self {
        let Some(mut a) = self.finite() else {
            return self;
        };
        if a.coefficient == 0 {
            return Self::pack(a.negative, 0, 0);
        }
        while a.coefficient % 10 == 0 && a.exponent < super::EXPONENT_MAX {
            a.coefficient /= 10;
            a.exponent += 1;
        }
        Self::pack(a.negative, a.exponent, a.coefficient)
    }
}

fn add_finite(a: Finite, b: Finite) -> Decimal128 {
    let preferred = a.exponent.min(b.exponent);
    let (high, low) = if a.exponent >= b.exponent {
        (a, b)
    } else {
        (b, a)
    };
    // A zero has no digits to align: only the exponent is lowered.
    if high.coefficient == 0 || low.coefficient == 0 {
        let (value, negative) = match (high.coefficient, low.coefficient) {
            (0, 0) => (low, high.negative && low.negative),
            (0, _) => (low, low.negative),
            _ => (high, high.negative),
        };
        return Unrounded {
            negative,
            exponent: value.exponent,
            coefficient: U256::from(value.coefficient),
            sticky: false,
            preferred,
        }
        .round();
    }
    let distance = (high.exponent - low.exponent) as u32;
    let shift = distance.min(ALIGN_MAX);
    let left = U256::from(high.coefficient) * pow10_wide(shift);
    let cut = distance - shift;
    let (right, sticky) = if cut > DIGITS_MAX {
        (0, true)
    } else {
        let unit = 10u128.pow(cut);
        (low.coefficient / unit, low.coefficient % unit != 0)
    };
    let right = U256::from(right);
    let (coefficient, negative) = if high.negative == low.negative {
        (left + right, high.negative)
    } else if left > right {
        // The discarded part makes the true difference smaller: borrow one and keep the sticky bit.
        (left - right - u128::from(sticky), high.negative)
    } else if left == right {
        (U256::ZERO, false)
    } else {
        (right - left, low.negative)
    };
    Unrounded {
        negative,
        exponent: high.exponent - shift as i32,
        coefficient,
        sticky,
        preferred,
    }
    .round()
}

/// Returns `10^power mod modulus`, with `modulus` below 10^34 so that products fit.
fn pow10_modulo(mut power: u32, modulus: U256) -> U256 {
    let mut result = U256::ONE % modulus;
    let mut base = U256::from(10u8) % modulus;
    while power > 0 {
        if power & 1 == 1 {
            result = result * base % modulus;
        }
        base = base * base % modulus;
        power >>= 1;
    }
    result
}

/// Returns the largest integer whose square is at most `n`.
fn isqrt(n: U256) -> U256 {
    // Newton's method from above converges downwards and stops at the floor.
    let mut root = pow10_wide(digits_wide(n).div_ceil(2));
    loop {
        let next = (root + n / root) / 2;
        if next >= root {
            return root;
        }
        root = next;
    }
}
