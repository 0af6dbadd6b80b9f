//! Transcendental functions of decimals, correct to their 34 digits.
//!
//! Computed by an arbitrary-precision library with a few additional digits. This module handles
//! NaN, infinities, results out of range, and exponents for which the result is known without
//! computing.

use std::sync::LazyLock;

use dashu_float::{ConstCache, DBig};
use dashu_int::{IBig, UBig};
use nilometer_bson::Decimal128;
use nilometer_bson::decimal128::DecimalParts;

/// Digits of intermediate results: those of a decimal and a margin for rounding.
const WORKING_DIGITS: usize = 44;
/// Digits of results.
const DIGITS: usize = 34;
/// Above this `e^x` overflows; below its negative it is zero.
const EXP_MAX: f64 = 14_500.0;

fn to_big(value: Decimal128) -> Option<DBig> {
    match value.parts() {
        DecimalParts::Finite {
            negative,
            exponent,
            coefficient,
        } => {
            let size = IBig::from(UBig::from(coefficient));
            let signed = if negative { -size } else { size };
            let big = DBig::from_parts(signed, isize::try_from(exponent).ok()?);
            Some(big.with_precision(WORKING_DIGITS).value())
        }
        _ => None,
    }
}

fn from_big(value: DBig) -> Decimal128 {
    let repr = value.with_precision(DIGITS).value().into_repr();
    let negative = *repr.significand() < IBig::ZERO;
    let size = if negative {
        -repr.significand().clone()
    } else {
        repr.significand().clone()
    };
    let (Ok(mut coefficient), Ok(mut exponent)) =
        (u128::try_from(&size), i32::try_from(repr.exponent()))
    else {
        return Decimal128::NAN;
    };
    // The library strips trailing zeros; integers get exponent zero.
    while exponent > 0 && exponent < 34 && coefficient < 10u128.pow(33) {
        coefficient *= 10;
        exponent -= 1;
    }
    Decimal128::from_parts(negative, exponent, coefficient).unwrap_or_else(|| {
        if exponent > 0 {
            infinity(negative)
        } else {
            Decimal128::ZERO
        }
    })
}

fn infinity(negative: bool) -> Decimal128 {
    if negative {
        Decimal128::NEG_INFINITY
    } else {
        Decimal128::INFINITY
    }
}

/// Applies a function to a finite value; returns NaN for others.
fn finite(value: Decimal128, f: impl FnOnce(DBig) -> DBig) -> Decimal128 {
    to_big(value).map_or(Decimal128::NAN, |big| from_big(f(big)))
}

/// Returns `e^x`.
pub(super) fn exp(value: Decimal128) -> Decimal128 {
    let near = value.to_f64();
    if near.is_nan() {
        Decimal128::NAN
    } else if near > EXP_MAX {
        Decimal128::INFINITY
    } else if near < -EXP_MAX {
        Decimal128::ZERO
    } else if value.is_zero() {
        Decimal128::ONE
    } else {
        finite(value, |big| big.exp())
    }
}

/// Returns the natural logarithm of a positive number.
pub(super) fn ln(value: Decimal128) -> Decimal128 {
    if value.is_infinite() && !value.is_negative() {
        return Decimal128::INFINITY;
    }
    if value.is_zero() {
        return Decimal128::NEG_INFINITY;
    }
    if value.is_negative() {
        return Decimal128::NAN;
    }
    if value.compare(Decimal128::ONE).is_eq() {
        return Decimal128::ZERO;
    }
    finite(value, |big| big.ln())
}

/// Returns the logarithm to base 10 of a positive number; exact for powers of ten.
pub(super) fn log10(value: Decimal128) -> Decimal128 {
    if let DecimalParts::Finite {
        negative: false,
        exponent,
        coefficient: 1,
    } = value.reduce().parts()
    {
        return Decimal128::from(i64::from(exponent));
    }
    if !value.is_finite() || value.is_zero() || value.is_negative() {
        return ln(value);
    }
    finite(value, |big| {
        let ten = DBig::from(10u8).with_precision(WORKING_DIGITS).value();
        big.ln() / ten.ln()
    })
}

/// Returns `base^exponent`. Integer exponents are computed by multiplication, so small powers are
/// exact.
pub(super) fn pow(base: Decimal128, exponent: Decimal128) -> Decimal128 {
    if exponent.is_zero() {
        return Decimal128::ONE;
    }
    if base.is_nan() || exponent.is_nan() {
        return Decimal128::NAN;
    }
    if let Some(whole) = exponent.to_i64_exact()
        && whole.unsigned_abs() <= 1 << 20
    {
        let power = power(base, whole.unsigned_abs());
        return if whole < 0 {
            Decimal128::ONE.div(power)
        } else {
            power
        };
    }
    if !base.is_finite() || !exponent.is_finite() || base.is_zero() {
        return to_decimal(base.to_f64().powf(exponent.to_f64()));
    }
    if base.is_negative() {
        return match exponent.to_i64_exact() {
            Some(whole) => {
                let size = pow(base.negate(), exponent);
                if whole % 2 == 0 { size } else { size.negate() }
            }
            None => Decimal128::NAN,
        };
    }
    exp_of_product(base, exponent)
}

/// Exponentiation by squaring.
fn power(base: Decimal128, mut exponent: u64) -> Decimal128 {
    let (mut result, mut square) = (Decimal128::ONE, base);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = result.mul(square);
        }
        exponent >>= 1;
        if exponent > 0 {
            square = square.mul(square);
        }
    }
    result
}

/// Returns `e^(y · ln x)` for positive `x`.
fn exp_of_product(base: Decimal128, exponent: Decimal128) -> Decimal128 {
    let near = exponent.to_f64() * ln(base).to_f64();
    if near > EXP_MAX {
        return Decimal128::INFINITY;
    }
    if near < -EXP_MAX {
        return Decimal128::ZERO;
    }
    let (Some(base), Some(exponent)) = (to_big(base), to_big(exponent)) else {
        return Decimal128::NAN;
    };
    from_big((base.ln() * exponent).exp())
}

/// Converts a double that is zero, infinite or NaN.
fn to_decimal(value: f64) -> Decimal128 {
    if value.is_infinite() {
        infinity(value < 0.0)
    } else {
        Decimal128::from_f64(value)
    }
}

/// Digits of a full turn after the decimal point: sufficient to reduce the largest decimal and keep
/// its 34 digits correct, with a margin.
const TURN_DIGITS: usize = 6111 + 2 * 34 + 40;

/// A full turn, 2π, times ten to the power of [`TURN_DIGITS`].
static TURN: LazyLock<IBig> = LazyLock::new(|| {
    let pi: DBig = ConstCache::new().pi(TURN_DIGITS + 10).value();
    let scaled = pi * DBig::from_parts(IBig::from(2), TURN_DIGITS as isize);
    scaled.to_int().value()
});

/// Reduces an angle to the first turn, for angles so large that the library would compute with
/// thousands of digits.
fn within_one_turn(value: Decimal128) -> Option<DBig> {
    let DecimalParts::Finite {
        negative,
        exponent,
        coefficient,
    } = value.parts()
    else {
        return None;
    };
    let shift = usize::try_from(exponent).ok().filter(|shift| *shift > 0)?;
    let size = IBig::from(UBig::from(coefficient)) * IBig::from(10).pow(shift + TURN_DIGITS);
    let angle = size % &*TURN;
    let signed = if negative { -angle } else { angle };
    let big = DBig::from_parts(signed, -(TURN_DIGITS as isize));
    Some(big.with_precision(2 * WORKING_DIGITS).value())
}

/// Returns sine, cosine or tangent of a finite angle.
pub(super) fn periodic(
    value: Decimal128,
    double: fn(f64) -> f64,
    big: fn(&DBig) -> DBig,
) -> Decimal128 {
    match within_one_turn(value) {
        Some(angle) => from_big(big(&angle)),
        None => circular(value, double, big),
    }
}

/// Trigonometric functions; values that are not finite are handled by the function of doubles.
pub(super) fn circular(
    value: Decimal128,
    double: fn(f64) -> f64,
    big: fn(&DBig) -> DBig,
) -> Decimal128 {
    if !value.is_finite() || value.is_zero() {
        return to_decimal(double(value.to_f64()));
    }
    finite(value, |value| big(&value))
}

/// Hyperbolic functions, which overflow like the exponential function.
pub(super) fn hyperbolic(
    value: Decimal128,
    double: fn(f64) -> f64,
    big: fn(&DBig) -> DBig,
) -> Decimal128 {
    let near = value.to_f64();
    if near.abs() > EXP_MAX {
        return to_decimal(double(near));
    }
    circular(value, double, big)
}

/// Returns the angle of a point.
pub(super) fn atan2(y: Decimal128, x: Decimal128) -> Decimal128 {
    if !y.is_finite() || !x.is_finite() || y.is_zero() || x.is_zero() {
        let near = y.to_f64().atan2(x.to_f64());
        let eighths = near / std::f64::consts::FRAC_PI_4;
        // Multiples of an eighth turn are exact in decimals too.
        if eighths == eighths.round() {
            let fourths = |n: i64| pi().mul(Decimal128::from(n)).div(Decimal128::from(4i64));
            let size = match eighths.abs() as i64 {
                4 => pi(),
                2 => pi().div(Decimal128::from(2i64)),
                odd => fourths(odd),
            };
            return if eighths < 0.0 { size.negate() } else { size };
        }
        return to_decimal(near);
    }
    let (Some(y), Some(x)) = (to_big(y), to_big(x)) else {
        return Decimal128::NAN;
    };
    from_big(y.atan2(&x))
}

/// Returns π to 34 digits.
pub(super) fn pi() -> Decimal128 {
    Decimal128::from_parts(false, -33, 3_141_592_653_589_793_238_462_643_383_279_503)
        .unwrap_or(Decimal128::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> Decimal128 {
        Decimal128::parse_exact(text).unwrap()
    }

    #[track_caller]
    fn same(found: Decimal128, expected: Decimal128) {
        assert!(
            found.compare(expected).is_eq(),
            "{found}, expected {expected}"
        );
    }

    #[test]
    fn known_values() {
        same(
            exp(decimal("1")),
            decimal("2.718281828459045235360287471352662"),
        );
        same(
            ln(decimal("2")),
            decimal("0.6931471805599453094172321214581766"),
        );
        same(
            log10(decimal("2")),
            decimal("0.3010299956639811952137388947244930"),
        );
        same(log10(decimal("1E-5")), decimal("-5"));
        same(
            pow(decimal("2"), decimal("0.5")),
            decimal("1.414213562373095048801688724209698"),
        );
        same(pow(decimal("1.1"), decimal("2")), decimal("1.21"));
        same(pow(decimal("2"), decimal("-2")), decimal("0.25"));
        same(
            circular(decimal("1"), f64::sin, DBig::sin),
            decimal("0.8414709848078965066525023216302990"),
        );
        same(
            hyperbolic(decimal("1"), f64::cosh, DBig::cosh),
            decimal("1.543080634815243778477905620757062"),
        );
        assert!(pi().compare(atan2(decimal("0"), decimal("-1"))).is_eq());
    }

    #[test]
    fn large_angles_are_reduced_exactly() {
        // Both methods agree where the library's own is still fast.
        for text in ["1E1", "7E2", "123456789E20", "-9.75E60", "1E99"] {
            let angle = decimal(text);
            let found = periodic(angle, f64::sin, DBig::sin);
            same(found, circular(angle, f64::sin, DBig::sin));
        }
        let largest = decimal("9.999999999999999999999999999999999E+6144");
        let (sin, cos) = (
            periodic(largest, f64::sin, DBig::sin),
            periodic(largest, f64::cos, DBig::cos),
        );
        let one = sin.mul(sin).add(cos.mul(cos)).to_f64();
        assert!((one - 1.0).abs() < 1e-12, "{sin} {cos}");
    }

    #[test]
    fn the_edges() {
        assert_eq!(exp(decimal("1E6000")), Decimal128::INFINITY);
        assert!(exp(decimal("-1E6000")).is_zero());
        assert!(exp(Decimal128::NAN).is_nan());
        assert!(exp(Decimal128::NEG_INFINITY).is_zero());
        assert_eq!(exp(decimal("14200")), Decimal128::INFINITY);
        assert!(ln(decimal("-1")).is_nan());
        assert_eq!(ln(Decimal128::INFINITY), Decimal128::INFINITY);
        assert_eq!(pow(decimal("1E6000"), decimal("2.5")), Decimal128::INFINITY);
        assert!(pow(decimal("-8"), decimal("0.5")).is_nan());
        assert!(circular(Decimal128::NAN, f64::sin, DBig::sin).is_nan());
        assert!(hyperbolic(decimal("1E6111"), f64::sinh, DBig::sinh).is_infinite());
        let tiny = decimal("1E-6176");
        assert_eq!(periodic(tiny, f64::cos, DBig::cos), Decimal128::ONE);
        assert!(circular(decimal("1E-6176"), f64::sin, DBig::sin).is_finite());
    }
}
