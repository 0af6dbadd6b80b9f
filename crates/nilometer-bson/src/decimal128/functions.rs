//! Transcendental functions: exponentials, logarithms, powers, trigonometry.
//!
//! Evaluated by an arbitrary-precision library to 50 digits and rounded to 34. An exact result has
//! exponent zero if possible (`log10(1000)` is 3), any other has all 34 digits. Outside its domain
//! a function returns NaN; where MongoDB raises an error instead, the operator checks first.

use dashu_float::round::{Rounded, mode};
use dashu_float::{Context, FBig, FpError, Repr};
use ethnum::U256;

use super::{EXPONENT_MIN, Rounding, Unrounded};
use crate::value::Decimal128;

type Float = FBig<mode::HalfEven, 10>;
type Precision = Context<mode::HalfEven>;
type Outcome = Result<Rounded<Float>, FpError>;

/// `e^x` leaves the range of decimals when |x| exceeds this (6145 × ln 10, rounded up).
const EXP_LIMIT: i64 = 14_300;
/// π / 180, as 34 digits.
const PI_BY_180: u128 = 1_745_329_251_994_329_576_923_690_768_488_613;
/// 180 / π, as 34 digits.
const BY_PI_180: u128 = 5_729_577_951_308_232_087_679_815_481_410_517;
/// Digits requested from the library: more than 34, since its constants at the edge of a domain are
/// rounded twice.
const WORK_DIGITS: usize = 50;
/// Digits of the second attempt, if the first does not determine the rounding.
const RETRY_DIGITS: usize = 80;

impl Decimal128 {
    /// Returns `e` to this power.
    #[must_use]
    pub fn exp(self) -> Self {
        if self.is_infinite() {
            return if self.is_negative() { Self::ZERO } else { self };
        }
        if let Some(outside) = self.beyond_exp() {
            return outside;
        }
        self.evaluate(|c, x| c.exp(x, None))
    }

    /// Returns the natural logarithm: −∞ for zero, NaN below.
    #[must_use]
    pub fn ln(self) -> Self {
        self.logarithm(|c, x| c.ln(x, None))
    }

    /// Returns the logarithm to base ten: −∞ for zero, NaN below.
    #[must_use]
    pub fn log10(self) -> Self {
        self.logarithm(|c, x| c.log10(x, None))
    }

    /// Returns the logarithm to any base: the quotient of the natural logarithms.
    #[must_use]
    pub fn log(self, base: Self) -> Self {
        self.ln().div(base.ln())
    }

    fn logarithm(self, function: impl Fn(&Precision, &Repr<10>) -> Outcome) -> Self {
        if self.is_zero() {
            Self::NEG_INFINITY
        } else if self.is_negative() {
            Self::NAN
        } else if self.is_infinite() {
            self
        } else {
            self.evaluate(function)
        }
    }

    /// Returns this to the power of `exponent`, with the special cases of IEEE 754.
    #[must_use]
    pub fn pow(self, exponent: Self) -> Self {
        let one = Self::ONE;
        if exponent.is_zero() || self.compare(one).is_eq() {
            return one;
        }
        if self.is_nan() || exponent.is_nan() {
            return Self::NAN;
        }
        let whole = exponent.is_infinite()
            || exponent
                .round_to_integral(Rounding::TowardZero)
                .compare(exponent)
                .is_eq();
        let odd = whole && !exponent.is_infinite() && !exponent.rem(Self::from(2)).is_zero();
        let negative = self.is_negative() && odd;
        let signed = |size: Self| if negative { size.negate() } else { size };
        if exponent.is_infinite() {
            let grows = self.abs().compare(one).is_gt() != exponent.is_negative();
            return match self.abs().compare(one).is_eq() {
                true => one,
                false if grows => Self::INFINITY,
                false => Self::ZERO,
            };
        }
        if self.is_zero() || self.is_infinite() {
            let grows = self.is_infinite() != exponent.is_negative();
            return signed(if grows { Self::INFINITY } else { Self::ZERO });
        }
        if self.is_negative() && !whole {
            return Self::NAN;
        }
        if let Some(outside) = self.abs().ln().mul(exponent).beyond_exp() {
            return signed(outside);
        }
        let Some(y) = exponent.to_repr() else {
            return Self::NAN;
        };
        self.evaluate(|c, x| c.powf(x, &y, None))
    }

    /// Returns infinity or zero if `e` to this power leaves the range.
    fn beyond_exp(self) -> Option<Self> {
        if self.compare_i64(EXP_LIMIT).is_gt() {
            Some(Self::INFINITY)
        } else if self.compare_i64(-EXP_LIMIT).is_lt() && !self.is_nan() {
            Some(Self::pack(false, EXPONENT_MIN, 0))
        } else {
            None
        }
    }

    /// Returns the sine.
    #[must_use]
    pub fn sin(self) -> Self {
        self.evaluate(|c, x| c.sin(x, None))
    }

    /// Returns the cosine.
    #[must_use]
    pub fn cos(self) -> Self {
        self.evaluate(|c, x| c.cos(x, None))
    }

    /// Returns the tangent.
    #[must_use]
    pub fn tan(self) -> Self {
        self.evaluate(|c, x| c.tan(x, None))
    }

    /// Returns the inverse sine; NaN outside −1 … 1.
    #[must_use]
    pub fn asin(self) -> Self {
        if self.abs().compare(Self::ONE).is_gt() {
            return Self::NAN;
        }
        self.evaluate(|c, x| c.asin(x, None))
    }

    /// Returns the inverse cosine; NaN outside −1 … 1.
    #[must_use]
    pub fn acos(self) -> Self {
        if self.abs().compare(Self::ONE).is_gt() {
            return Self::NAN;
        }
        self.evaluate(|c, x| c.acos(x, None))
    }

    /// Returns the inverse tangent.
    #[must_use]
    pub fn atan(self) -> Self {
        self.atan2(Self::ONE)
    }

    /// Returns the angle of the point with y = `self` and `x`.
    #[must_use]
    pub fn atan2(self, x: Self) -> Self {
        if self.is_zero() && (x.is_zero() || x.compare(Self::ZERO).is_gt()) && !x.is_negative() {
            return self;
        }
        let Some(x) = x.to_repr() else {
            return Self::NAN;
        };
        let pi = || Self::evaluated(|c| Ok(c.pi::<10>(None)));
        if self.is_zero() {
            // On the negative x axis: half a turn, on the side of the zero's sign.
            let half_turn = pi();
            return if self.is_negative() {
                half_turn.negate()
            } else {
                half_turn
            };
        }
        match self.to_repr() {
            Some(y) => Self::evaluated(|c| c.atan2(&y, &x, None)),
            None => Self::NAN,
        }
    }

    /// Returns the hyperbolic sine.
    #[must_use]
    pub fn sinh(self) -> Self {
        match self.abs().beyond_exp() {
            Some(_) if self.is_negative() => Self::NEG_INFINITY,
            Some(_) => Self::INFINITY,
            None => self.evaluate(|c, x| c.sinh(x, None)),
        }
    }

    /// Returns the hyperbolic cosine.
    #[must_use]
    pub fn cosh(self) -> Self {
        match self.abs().beyond_exp() {
            Some(_) => Self::INFINITY,
            None => self.evaluate(|c, x| c.cosh(x, None)),
        }
    }

    /// Returns the hyperbolic tangent.
    #[must_use]
    pub fn tanh(self) -> Self {
        match self.abs().beyond_exp() {
            Some(_) if self.is_negative() => Self::ONE.negate(),
            Some(_) => Self::ONE,
            None => self.evaluate(|c, x| c.tanh(x, None)),
        }
    }

    /// Returns the inverse hyperbolic sine.
    #[must_use]
    pub fn asinh(self) -> Self {
        if self.is_infinite() {
            return self;
        }
        self.evaluate(|c, x| c.asinh(x, None))
    }

    /// Returns the inverse hyperbolic cosine; NaN below 1.
    #[must_use]
    pub fn acosh(self) -> Self {
        if self.compare(Self::ONE).is_lt() {
            return Self::NAN;
        }
        if self.is_infinite() {
            return self;
        }
        self.evaluate(|c, x| c.acosh(x, None))
    }

    /// Returns the inverse hyperbolic tangent; infinite at −1 and 1, NaN outside.
    #[must_use]
    pub fn atanh(self) -> Self {
        match self.abs().compare(Self::ONE) {
            std::cmp::Ordering::Greater => Self::NAN,
            std::cmp::Ordering::Equal => Self::infinite(self.is_negative()),
            std::cmp::Ordering::Less => self.evaluate(|c, x| c.atanh(x, None)),
        }
    }

    /// Converts degrees to radians.
    #[must_use]
    pub fn to_radians(self) -> Self {
        self.mul(Self::pack(false, -35, PI_BY_180))
    }

    /// Converts radians to degrees.
    #[must_use]
    pub fn to_degrees(self) -> Self {
        self.mul(Self::pack(false, -32, BY_PI_180))
    }

    /// Applies a function to a finite value; infinities and NaN give NaN.
    fn evaluate(self, function: impl Fn(&Precision, &Repr<10>) -> Outcome) -> Self {
        match self.to_repr() {
            Some(x) if self.is_finite() => Self::evaluated(|c| function(c, &x)),
            _ => Self::NAN,
        }
    }

    fn evaluated(function: impl Fn(&Precision) -> Outcome) -> Self {
        let outcome = function(&Context::new(WORK_DIGITS));
        let outcome = match outcome {
            Err(FpError::ZivRetryLimitExceeded) => function(&Context::new(RETRY_DIGITS)),
            settled => settled,
        };
        let negative = |sign| sign == dashu_base::Sign::Negative;
        match outcome {
            Ok(Rounded::Exact(value)) => Self::from_float(&value, true),
            Ok(Rounded::Inexact(value, _)) => Self::from_float(&value, false),
            Err(FpError::Overflow(sign)) => Self::infinite(negative(sign)),
            Err(FpError::Underflow(sign)) => Self::pack(negative(sign), EXPONENT_MIN, 0),
            Err(_) => Self::NAN,
        }
    }

    /// Converts to the library's representation; `None` for NaN.
    fn to_repr(self) -> Option<Repr<10>> {
        if self.is_nan() {
            return None;
        }
        let Some(a) = self.finite() else {
            return Some(if self.is_negative() {
                Repr::neg_infinity()
            } else {
                Repr::infinity()
            });
        };
        if a.coefficient == 0 && a.negative {
            return Some(Repr::neg_zero());
        }
        let size = i128::try_from(a.coefficient).ok()?;
        let signed = if a.negative { -size } else { size };
        Some(Repr::new(signed.into(), isize::try_from(a.exponent).ok()?))
    }

    fn from_float(value: &Float, exact: bool) -> Self {
        let repr = value.repr();
        let negative = repr.sign() == dashu_base::Sign::Negative;
        if repr.is_infinite() {
            return Self::infinite(negative);
        }
        let text = format!("{}E{}", repr.significand(), repr.exponent());
        let Some(read) = text.parse().ok().and_then(Self::finite) else {
            return Self::NAN;
        };
        // The library drops trailing zeros: an inexact result has 34 digits, an exact one an
        // exponent as close to zero as possible.
        let preferred = if exact { 0 } else { EXPONENT_MIN };
        Unrounded {
            negative,
            exponent: read.exponent,
            coefficient: U256::from(read.coefficient),
            sticky: false,
            preferred,
        }
        .round()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dec(text: &str) -> Decimal128 {
        text.parse().unwrap()
    }

    #[track_caller]
    fn check(got: Decimal128, expected: &str) {
        assert_eq!(got.to_string(), expected);
    }

    #[test]
    fn exponentials_and_logarithms() {
        check(dec("1").exp(), "2.718281828459045235360287471352662");
        check(dec("0").exp(), "1");
        check(dec("1E+6000").exp(), "Infinity");
        check(dec("-1E+6000").exp(), "0E-6176");
        check(dec("-Infinity").exp(), "0");
        check(dec("1E-6000").exp(), "1");
        check(dec("10").ln(), "2.302585092994045684017991454684364");
        check(dec("1").ln(), "0");
        check(dec("0").ln(), "-Infinity");
        check(dec("-1").ln(), "NaN");
        check(dec("1000").log10(), "3");
        check(dec("1E-6176").log10(), "-6176");
        check(dec("2").log10(), "0.3010299956639811952137388947244930");
        check(
            dec("8").log(dec("2")),
            "3.000000000000000000000000000000000",
        );
        check(dec("NaN").exp(), "NaN");
    }

    #[test]
    fn powers() {
        for (base, exponent, power) in [
            ("2", "3", "8"),
            ("10", "2", "100"),
            ("1.5", "2", "2.25"),
            ("-2", "3", "-8"),
            ("-2", "0.5", "NaN"),
            ("2", "0.5", "1.414213562373095048801688724209698"),
            ("2", "-1", "0.5"),
            ("3", "-1", "0.3333333333333333333333333333333333"),
            ("0", "-1", "Infinity"),
            ("-0", "-1", "-Infinity"),
            ("-0", "3", "-0"),
            ("NaN", "0", "1"),
            ("1", "NaN", "1"),
            ("Infinity", "-2", "0"),
            ("0.5", "Infinity", "0"),
            ("-1", "Infinity", "1"),
            ("10", "7000", "Infinity"),
            ("-10", "7001", "-Infinity"),
            ("10", "-7000", "0E-6176"),
            ("10", "1E+6000", "Infinity"),
            (
                "1.000000000000000000000000000000001",
                "1E+33",
                "2.718281828459045235360287471352661",
            ),
        ] {
            let got = dec(base).pow(dec(exponent)).to_string();
            assert_eq!(got, power, "{base} to the {exponent}");
        }
    }

    #[test]
    fn trigonometry() {
        check(dec("1").sin(), "0.8414709848078965066525023216302990");
        check(dec("0").cos(), "1");
        check(dec("-0").sin(), "-0");
        check(dec("1").tan(), "1.557407724654902230506974807458360");
        check(dec("1E-6000").sin(), "1E-6000");
        assert!(dec("1E+600").sin().abs().compare(Decimal128::ONE).is_lt());
        check(dec("Infinity").sin(), "NaN");
        check(dec("1").asin(), "1.570796326794896619231321691639751");
        check(dec("1.1").asin(), "NaN");
        check(dec("-1").acos(), "3.141592653589793238462643383279503");
        check(dec("1").atan(), "0.7853981633974483096156608458198757");
        check(
            dec("Infinity").atan(),
            "1.570796326794896619231321691639751",
        );
        check(dec("-0").atan(), "-0");
        check(
            dec("0").atan2(dec("-1")),
            "3.141592653589793238462643383279503",
        );
        check(
            dec("-0").atan2(dec("-0")),
            "-3.141592653589793238462643383279503",
        );
        check(
            dec("1").atan2(dec("-1")),
            "2.356194490192344928846982537459627",
        );
        check(dec("1").sinh(), "1.175201193643801456882381850595601");
        check(dec("1").cosh(), "1.543080634815243778477905620757062");
        check(dec("1E+5").cosh(), "Infinity");
        check(dec("-1E+5").tanh(), "-1");
        check(dec("1").asinh(), "0.8813735870195430252326093249797923");
        check(dec("1").acosh(), "0");
        check(dec("0.5").atanh(), "0.5493061443340548456976226184612629");
        check(dec("-1").atanh(), "-Infinity");
        check(
            dec("180").to_radians(),
            "3.141592653589793238462643383279503",
        );
        check(dec("0").to_degrees(), "0E-32");
    }
}
