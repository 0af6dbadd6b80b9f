//! Decimal128 arithmetic: IEEE 754-2008 decimal floating point, 34 digits, round half to even.
//!
//! ```text
//! bit 127       126 … 113              112 … 0
//!     sign      exponent + 6176        coefficient            usual form
//!     sign      11 | exponent | …                             coefficient too large: reads as zero
//!     sign      11110 …                                       infinity
//!     sign      11111 …                                       NaN
//! ```
//!
//! Every operation is correctly rounded and has the exponent the standard prefers: `1.10 + 1.20` is
//! `2.30` and `0 × 1E+294` is `0E+294`. Comparison with integers and doubles is exact.
//!
//! Intermediate results are 256-bit integers; digits that do not fit are folded into a sticky bit
//! before they can affect the result.

mod arithmetic;
mod convert;
mod functions;
#[cfg(test)]
mod tests;
mod text;

pub use arithmetic::Rounding;
pub(crate) use convert::fraction_bits;
pub use text::ParseDecimalError;

use std::cmp::Ordering;

use ethnum::U256;

use crate::value::Decimal128;

/// Maximum number of digits in a coefficient.
pub const DIGITS_MAX: u32 = 34;
/// Smallest exponent.
pub const EXPONENT_MIN: i32 = -6176;
/// Largest exponent.
pub const EXPONENT_MAX: i32 = 6111;
/// One more than the largest coefficient.
const COEFFICIENT_END: u128 = 10u128.pow(DIGITS_MAX);
const EXPONENT_BIAS: i32 = 6176;
const SIGN_BIT: u64 = 1 << 63;

/// The parts of a decimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecimalParts {
    /// Not a number, of either sign.
    Nan,
    /// Infinity.
    Infinite {
        /// Below zero.
        negative: bool,
    },
    /// `coefficient × 10^exponent`.
    Finite {
        /// Below zero (or minus zero).
        negative: bool,
        /// Power of ten.
        exponent: i32,
        /// At most 34 digits.
        coefficient: u128,
    },
}

/// The parts of a finite decimal.
#[derive(Clone, Copy, Debug)]
struct Finite {
    negative: bool,
    exponent: i32,
    coefficient: u128,
}

/// An exact or truncated intermediate result, not yet rounded.
struct Unrounded {
    negative: bool,
    exponent: i32,
    coefficient: U256,
    /// True if digits below the last were discarded.
    sticky: bool,
    /// The exponent of an exact result, if possible.
    preferred: i32,
}

impl Decimal128 {
    /// Zero with exponent zero.
    pub const ZERO: Self = Self::small(0);
    /// One.
    pub const ONE: Self = Self::small(1);
    /// Positive infinity.
    pub const INFINITY: Self = Self {
        low: 0,
        high: 0x7800 << 48,
    };
    /// Negative infinity.
    pub const NEG_INFINITY: Self = Self {
        low: 0,
        high: 0xF800 << 48,
    };
    /// The NaN that operations return.
    pub const NAN: Self = Self {
        low: 0,
        high: 0x7C00 << 48,
    };

    const fn small(coefficient: u64) -> Self {
        Self {
            low: coefficient,
            high: (EXPONENT_BIAS as u64) << 49,
        }
    }

    /// Splits the value into its parts.
    pub fn parts(self) -> DecimalParts {
        let negative = self.high & SIGN_BIT != 0;
        match (self.high >> 58) & 0x1F {
            0x1F => DecimalParts::Nan,
            0x1E => DecimalParts::Infinite { negative },
            top => {
                let large = top >= 0x18;
                let shift = if large { 47 } else { 49 };
                let exponent = ((self.high >> shift) & 0x3FFF) as i32 - EXPONENT_BIAS;
                let coefficient = self.bits() & ((1 << 113) - 1);
                let canonical = !large && coefficient < COEFFICIENT_END;
                DecimalParts::Finite {
                    negative,
                    exponent,
                    coefficient: if canonical { coefficient } else { 0 },
                }
            }
        }
    }

    /// Builds a finite value; `None` if coefficient or exponent is out of range.
    pub fn from_parts(negative: bool, exponent: i32, coefficient: u128) -> Option<Self> {
        let fits =
            coefficient < COEFFICIENT_END && (EXPONENT_MIN..=EXPONENT_MAX).contains(&exponent);
        fits.then(|| Self::pack(negative, exponent, coefficient))
    }

    /// Builds a value from parts that are in range.
    fn pack(negative: bool, exponent: i32, coefficient: u128) -> Self {
        debug_assert!(coefficient < COEFFICIENT_END);
        debug_assert!((EXPONENT_MIN..=EXPONENT_MAX).contains(&exponent));
        let biased = (exponent + EXPONENT_BIAS) as u64;
        Self {
            low: coefficient as u64,
            high: (u64::from(negative) << 63) | (biased << 49) | (coefficient >> 64) as u64,
        }
    }

    fn infinite(negative: bool) -> Self {
        if negative {
            Self::NEG_INFINITY
        } else {
            Self::INFINITY
        }
    }

    fn finite(self) -> Option<Finite> {
        match self.parts() {
            DecimalParts::Finite {
                negative,
                exponent,
                coefficient,
            } => Some(Finite {
                negative,
                exponent,
                coefficient,
            }),
            _ => None,
        }
    }

    /// True if NaN.
    pub fn is_nan(self) -> bool {
        (self.high >> 58) & 0x1F == 0x1F
    }

    /// True if infinite, of either sign.
    pub fn is_infinite(self) -> bool {
        (self.high >> 58) & 0x1F == 0x1E
    }

    /// True if neither infinite nor NaN.
    pub fn is_finite(self) -> bool {
        (self.high >> 59) & 0xF != 0xF
    }

    /// True if zero, of either sign and any exponent.
    pub fn is_zero(self) -> bool {
        self.finite().is_some_and(|f| f.coefficient == 0)
    }

    /// True if the sign bit is set (also of minus zero and NaN).
    pub fn is_negative(self) -> bool {
        self.high & SIGN_BIT != 0
    }

    /// Returns the value with opposite sign; NaN is returned unchanged.
    #[must_use]
    pub fn negate(self) -> Self {
        if self.is_nan() {
            return self;
        }
        Self {
            high: self.high ^ SIGN_BIT,
            ..self
        }
    }

    /// Returns the absolute value.
    #[must_use]
    pub fn abs(self) -> Self {
        Self {
            high: self.high & !SIGN_BIT,
            ..self
        }
    }

    /// Compares by value: NaN equals NaN and is below everything, zeros are equal, exponents do not
    /// matter.
    pub fn compare(self, other: Self) -> Ordering {
        match (self.rank(), other.rank()) {
            (0, 0) => {}
            (a, b) => return a.cmp(&b),
        }
        match (self.finite(), other.finite()) {
            (Some(a), Some(b)) => a.compare(b),
            _ => Ordering::Equal,
        }
    }

    /// Returns the class in the order: NaN −3, −∞ −2, finite 0, ∞ 2.
    fn rank(self) -> i8 {
        match self.parts() {
            DecimalParts::Nan => -3,
            DecimalParts::Infinite { negative: true } => -2,
            DecimalParts::Finite { .. } => 0,
            DecimalParts::Infinite { negative: false } => 2,
        }
    }
}

impl Finite {
    /// Returns −1, 0 or 1.
    fn signum(self) -> i8 {
        match (self.coefficient, self.negative) {
            (0, _) => 0,
            (_, true) => -1,
            (_, false) => 1,
        }
    }

    /// Returns the decimal exponent just above the leading digit; only for a coefficient other than
    /// zero.
    fn magnitude(self) -> i32 {
        self.exponent + digits(self.coefficient) as i32
    }

    fn compare(self, other: Self) -> Ordering {
        let (left, right) = (self.signum(), other.signum());
        if left != right || left == 0 {
            return left.cmp(&right);
        }
        let by_size = self
            .magnitude()
            .cmp(&other.magnitude())
            .then_with(|| self.left_aligned().cmp(&other.left_aligned()));
        if left < 0 { by_size.reverse() } else { by_size }
    }

    /// Returns the coefficient scaled to all 34 digits.
    fn left_aligned(self) -> u128 {
        self.coefficient * 10u128.pow(DIGITS_MAX - digits(self.coefficient))
    }
}

/// Returns the number of decimal digits; 1 for zero.
fn digits(n: u128) -> u32 {
    n.checked_ilog10().map_or(1, |log| log + 1)
}

fn digits_wide(n: U256) -> u32 {
    if *n.high() == 0 {
        return digits(*n.low());
    }
    38 + digits_wide(n / U256::from(10u128.pow(38)))
}

/// Returns ten to a power of at most 76.
fn pow10_wide(power: u32) -> U256 {
    debug_assert!(power <= 76);
    let low = power.min(38);
    U256::from(10u128.pow(low)) * U256::from(10u128.pow(power - low))
}

impl Unrounded {
    /// Rounds once, half to even, to 34 digits and into the exponent range.
    fn round(mut self) -> Decimal128 {
        let count = digits_wide(self.coefficient);
        let too_long = count.saturating_sub(DIGITS_MAX) as i32;
        let drop = too_long
            .max(EXPONENT_MIN.saturating_sub(self.exponent))
            .max(0);
        if drop > 0 {
            let exact = self.drop_digits(drop as u32, count);
            if exact && !self.sticky {
                self.move_to_preferred();
            }
        } else if !self.sticky {
            self.move_to_preferred();
        }
        let Self {
            negative,
            mut exponent,
            coefficient,
            ..
        } = self;
        let mut coefficient = *coefficient.low();
        if exponent > EXPONENT_MAX {
            if coefficient == 0 {
                exponent = EXPONENT_MAX;
            } else {
                let excess = (exponent - EXPONENT_MAX) as u32;
                if excess + digits(coefficient) > DIGITS_MAX {
                    return Decimal128::infinite(negative);
                }
                coefficient *= 10u128.pow(excess);
                exponent = EXPONENT_MAX;
            }
        }
        Decimal128::pack(negative, exponent, coefficient)
    }

    /// Drops `drop` digits with rounding; true if all of them were zero.
    fn drop_digits(&mut self, drop: u32, count: u32) -> bool {
        self.exponent += drop as i32;
        if drop > count {
            let exact = self.coefficient == 0;
            self.coefficient = U256::ZERO;
            return exact;
        }
        let unit = pow10_wide(drop);
        let (quotient, rest) = (self.coefficient / unit, self.coefficient % unit);
        let half = unit / 2;
        let up = match rest.cmp(&half) {
            Ordering::Less => false,
            Ordering::Greater => true,
            Ordering::Equal => self.sticky || quotient.low() & 1 == 1,
        };
        self.coefficient = quotient;
        if up {
            self.coefficient += 1;
            if self.coefficient == U256::from(COEFFICIENT_END) {
                self.coefficient /= 10;
                self.exponent += 1;
            }
        }
        rest == 0
    }

    /// Moves the exponent of an exact result towards the preferred one.
    fn move_to_preferred(&mut self) {
        let preferred = self.preferred.clamp(EXPONENT_MIN, EXPONENT_MAX);
        if self.coefficient == 0 {
            self.exponent = preferred;
            return;
        }
        let mut coefficient = *self.coefficient.low();
        if self.exponent > preferred {
            let room = DIGITS_MAX - digits(coefficient);
            let shift = room.min((self.exponent - preferred) as u32);
            coefficient *= 10u128.pow(shift);
            self.exponent -= shift as i32;
        }
        while self.exponent < preferred && coefficient.is_multiple_of(10) {
            coefficient /= 10;
            self.exponent += 1;
        }
        self.coefficient = U256::from(coefficient);
    }
}
