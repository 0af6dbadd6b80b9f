//! Trigonometry: `$sin $cos $tan $asin $acos $atan $atan2 $sinh $cosh $tanh $asinh $acosh $atanh
//! $degreesToRadians $radiansToDegrees`.
//!
//! Doubles in radians; a decimal operand gives a decimal. Null or missing gives null, other types
//! 28765 (51044 and 51045 for `$atan2`). An operand outside the function's domain is error 50989:
//! infinities for `$sin $cos $tan`, beyond [−1, 1] for `$asin $acos $atanh`, below 1 for `$acosh`.

use dashu_float::DBig;
use nilometer_bson::Decimal128;
use nilometer_bson::number::Number;

use super::decimal_math::{self, circular, hyperbolic, periodic};
use super::evaluated::Evaluated;
use super::math::{function, single_number};
use super::operation::{CallContext, arg};
use crate::error::{Error, Result, location};

/// Returns an error unless `low <= value <= high`; NaN is accepted.
fn domain(
    values: &[Evaluated<'_>],
    call: CallContext<'_, '_>,
    low: f64,
    high: f64,
    shown: &str,
) -> Result<()> {
    match single_number(values, call)? {
        Some(number)
            if !number.is_nan()
                && (number.compare(Number::Double(low)).is_lt()
                    || number.compare(Number::Double(high)).is_gt()) =>
        {
            Err(Error::location(
                location::TRIGONOMETRY_OUT_OF_RANGE,
                format!(
                    "cannot apply {} to {}, value must be in {shown}",
                    call.name,
                    number.to_f64()
                ),
            ))
        }
        _ => Ok(()),
    }
}

/// Returns an error for an infinity.
fn bounded(values: &[Evaluated<'_>], call: CallContext<'_, '_>) -> Result<()> {
    domain(values, call, f64::MIN, f64::MAX, "(-inf,inf)").or_else(|error| {
        // A decimal may exceed every double and still be finite.
        match single_number(values, call)? {
            Some(Number::Decimal(v)) if v.is_finite() => Ok(()),
            _ => Err(error),
        }
    })
}

macro_rules! functions {
    ($($name:ident, $check:expr, $double:expr, $decimal:expr;)*) => {$(
        pub(super) fn $name<'s>(values: &[Evaluated<'s>], call: CallContext<'_, 's>) -> Result<Evaluated<'s>> {
            let check: fn(&[Evaluated<'_>], CallContext<'_, '_>) -> Result<()> = $check;
            check(values, call)?;
            function(values, call, $double, $decimal)
        }
    )*};
}

functions! {
    sin, bounded, f64::sin, |v| periodic(v, f64::sin, DBig::sin);
    cos, bounded, f64::cos, |v| periodic(v, f64::cos, DBig::cos);
    tan, bounded, f64::tan, |v| periodic(v, f64::tan, DBig::tan);
    asin, |v, c| domain(v, c, -1.0, 1.0, "[-1,1]"), f64::asin, |v| circular(v, f64::asin, DBig::asin);
    acos, |v, c| domain(v, c, -1.0, 1.0, "[-1,1]"), f64::acos, decimal_acos;
    atan, |_, _| Ok(()), f64::atan, decimal_atan;
    sinh, |_, _| Ok(()), f64::sinh, |v| hyperbolic(v, f64::sinh, DBig::sinh);
    cosh, |_, _| Ok(()), f64::cosh, |v| hyperbolic(v, f64::cosh, DBig::cosh);
    tanh, |_, _| Ok(()), f64::tanh, |v| hyperbolic(v, f64::tanh, DBig::tanh);
    asinh, |_, _| Ok(()), f64::asinh, |v| circular(v, f64::asinh, DBig::asinh);
    acosh, |v, c| domain(v, c, 1.0, f64::INFINITY, "[1,inf]"), f64::acosh, |v| circular(v, f64::acosh, DBig::acosh);
    atanh, |v, c| domain(v, c, -1.0, 1.0, "[-1,1]"), f64::atanh, decimal_atanh;
    degrees_to_radians, |_, _| Ok(()), |v| v * (std::f64::consts::PI / 180.0),
        |v| v.mul(decimal_math::pi()).div(Decimal128::from(180i64));
    radians_to_degrees, |_, _| Ok(()), |v| v * (180.0 / std::f64::consts::PI),
        |v| v.mul(Decimal128::from(180i64)).div(decimal_math::pi());
}

/// Returns acos x, the angle of the point (x, √(1 − x²)); zero gives a quarter turn.
fn decimal_acos(value: Decimal128) -> Decimal128 {
    if value.is_zero() {
        return decimal_math::atan2(Decimal128::ONE, Decimal128::ZERO);
    }
    circular(value, f64::acos, DBig::acos)
}

fn decimal_atan(value: Decimal128) -> Decimal128 {
    if value.is_infinite() {
        let one = if value.is_negative() {
            Decimal128::ONE.negate()
        } else {
            Decimal128::ONE
        };
        return decimal_math::atan2(one, Decimal128::ZERO);
    }
    circular(value, f64::atan, DBig::atan)
}

/// Returns the function has poles at ±1.
fn decimal_atanh(value: Decimal128) -> Decimal128 {
    if value.abs().compare(Decimal128::ONE).is_eq() {
        return if value.is_negative() {
            Decimal128::NEG_INFINITY
        } else {
            Decimal128::INFINITY
        };
    }
    circular(value, f64::atanh, DBig::atanh)
}

pub(super) fn atan2<'s>(values: &[Evaluated<'s>], _: CallContext<'_, 's>) -> Result<Evaluated<'s>> {
    let (y, x) = (arg(values, 0).as_ref(), arg(values, 1).as_ref());
    if y.is_nullish() || x.is_nullish() {
        return Ok(Evaluated::NULL);
    }
    let number = |value: nilometer_bson::ValueRef<'_>, code: i32| {
        Number::of(value).ok_or_else(|| {
            Error::location(
                code,
                format!(
                    "$atan2 only supports numeric types, not {}",
                    value.type_name()
                ),
            )
        })
    };
    let (y, x) = (
        number(y, location::ATAN2_FIRST_NOT_NUMERIC)?,
        number(x, location::ATAN2_SECOND_NOT_NUMERIC)?,
    );
    Ok(match (y, x) {
        (Number::Decimal(_), _) | (_, Number::Decimal(_)) => {
            Evaluated::from(decimal_math::atan2(y.to_decimal(), x.to_decimal()))
        }
        _ => Evaluated::from(y.to_f64().atan2(x.to_f64())),
    })
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Value, array, doc};

    use super::super::testing::{call, check_exact, eval_code};
    use super::*;

    const NAMES: [&str; 14] = [
        "$sin",
        "$cos",
        "$tan",
        "$asin",
        "$acos",
        "$atan",
        "$sinh",
        "$cosh",
        "$tanh",
        "$asinh",
        "$acosh",
        "$atanh",
        "$degreesToRadians",
        "$radiansToDegrees",
    ];

    #[test]
    fn doubles() {
        let doc = doc! {};
        for (name, argument, expected) in [
            ("$sin", Value::from(0), 0.0),
            ("$cos", 0i64.into(), 1.0),
            ("$tan", 0.5.into(), 0.5f64.tan()),
            ("$asin", 1.into(), std::f64::consts::FRAC_PI_2),
            ("$acos", 1.into(), 0.0),
            ("$atan", 1.into(), std::f64::consts::FRAC_PI_4),
            ("$atan", f64::INFINITY.into(), std::f64::consts::FRAC_PI_2),
            ("$sinh", 1.into(), 1f64.sinh()),
            ("$cosh", 0.into(), 1.0),
            ("$tanh", f64::INFINITY.into(), 1.0),
            ("$asinh", 1.into(), 1f64.asinh()),
            ("$acosh", 1.into(), 0.0),
            ("$atanh", 1.into(), f64::INFINITY),
            ("$degreesToRadians", 180.into(), std::f64::consts::PI),
            ("$radiansToDegrees", std::f64::consts::PI.into(), 180.0),
            ("$atan2", array![1, 0], std::f64::consts::FRAC_PI_2),
        ] {
            check_exact(&doc, call(name, argument), expected);
        }
    }

    #[test]
    fn null_types_and_domains() {
        let doc = doc! {};
        for name in NAMES {
            check_exact(&doc, call(name, Value::Null), Value::Null);
            assert_eq!(eval_code(&doc, call(name, "x")), 28765, "{name}");
            let nan = call(name, f64::NAN);
            check_exact(&doc, call("$eq", array![nan, f64::NAN]), true);
        }
        for (name, argument) in [
            ("$sin", Value::from(f64::INFINITY)),
            ("$cos", f64::NEG_INFINITY.into()),
            ("$tan", f64::INFINITY.into()),
            ("$asin", 1.1.into()),
            ("$acos", (-2).into()),
            ("$acosh", 0.into()),
            ("$atanh", 2.into()),
            ("$sin", Decimal128::INFINITY.into()),
        ] {
            assert_eq!(eval_code(&doc, call(name, argument)), 50989, "{name}");
        }
        assert_eq!(eval_code(&doc, call("$atan2", array!["x", 1])), 51044);
        assert_eq!(eval_code(&doc, call("$atan2", array![1, "x"])), 51045);
        check_exact(&doc, call("$atan2", array![1, "$gone"]), Value::Null);
    }

    #[test]
    fn decimals_stay_decimals() {
        let doc = doc! {};
        for name in NAMES.into_iter().chain(["$atan2"]) {
            let one = Decimal128::ONE;
            let argument = if name == "$atan2" {
                array![one, one]
            } else {
                array![one]
            };
            check_exact(&doc, doc! { "$type": call(name, argument) }, "decimal");
        }
        let pi = decimal_math::pi();
        check_exact(
            &doc,
            call("$degreesToRadians", Decimal128::from(180i64)),
            pi,
        );
    }
}
