//! Numeric functions of one or two operands: `$abs $ceil $floor $exp $ln $log $log10 $pow $sqrt`.
//!
//! | operator | result | errors |
//! |---|---|---|
//! | `$abs` | same type; the smallest int becomes long | 28680 for the smallest long |
//! | `$ceil`, `$floor` | same type | |
//! | `$exp`, `$sqrt`, `$ln`, `$log10` | double, decimal for a decimal | 28714, 28766, 28761 outside the domain |
//! | `$log: [number, base]` | double, decimal if one is | 28756 to 28759 |
//! | `$pow: [base, exponent]` | int and long if the result is an integer and fits, else double; decimal | 28762 to 28764 |
//!
//! Null or missing gives null; other types are error 28765 for the operators of one operand.

use nilometer_bson::Decimal128;
use nilometer_bson::decimal128::Rounding;
use nilometer_bson::number::Number;

use super::decimal_math;
use super::evaluated::Evaluated;
use super::numeric::integer;
use super::operation::{CallContext, arg};
use crate::error::{Error, Result, location};

/// Returns the operand of an operator that takes one number; `None` for null.
pub(super) fn single_number(
    values: &[Evaluated<'_>],
    call: CallContext<'_, '_>,
) -> Result<Option<Number>> {
    let value = arg(values, 0).as_ref();
    if value.is_nullish() {
        return Ok(None);
    }
    Number::of(value).map(Some).ok_or_else(|| {
        Error::location(
            location::MATH_NOT_NUMERIC,
            format!(
                "{} only supports numeric types, not {}",
                call.name,
                value.type_name()
            ),
        )
    })
}

pub(super) fn abs<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    match single_number(values, call)? {
        None => Ok(Evaluated::NULL),
        Some(number) => number.abs().map(Evaluated::from).ok_or_else(|| {
            Error::location(location::ABS_OVERFLOW, "can't take $abs of long long min")
        }),
    }
}

pub(super) fn ceil<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    round_to_whole(values, call, f64::ceil, Rounding::Ceiling)
}

pub(super) fn floor<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    round_to_whole(values, call, f64::floor, Rounding::Floor)
}

fn round_to_whole<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
    double: fn(f64) -> f64,
    decimal: Rounding,
) -> Result<Evaluated<'s>> {
    Ok(match single_number(values, call)? {
        None => Evaluated::NULL,
        Some(Number::Double(v)) => Evaluated::from(double(v)),
        Some(Number::Decimal(v)) => Evaluated::from(v.round_to_integral(decimal)),
        Some(whole) => Evaluated::from(whole),
    })
}

/// Applies a function with versions for doubles and decimals, without domain check.
pub(super) fn function<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
    double: fn(f64) -> f64,
    decimal: fn(Decimal128) -> Decimal128,
) -> Result<Evaluated<'s>> {
    Ok(match single_number(values, call)? {
        None => Evaluated::NULL,
        Some(Number::Decimal(v)) => Evaluated::from(decimal(v)),
        Some(number) => Evaluated::from(double(number.to_f64())),
    })
}

pub(super) fn exp<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    function(values, call, f64::exp, decimal_math::exp)
}

pub(super) fn sqrt<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    if let Some(number) = single_number(values, call)?
        && number.to_f64() < 0.0
    {
        return Err(Error::location(
            location::SQRT_NEGATIVE,
            "$sqrt's argument must be greater than or equal to 0",
        ));
    }
    function(values, call, f64::sqrt, Decimal128::sqrt)
}

pub(super) fn ln<'s>(values: &[Evaluated<'s>], call: CallContext<'_, 's>) -> Result<Evaluated<'s>> {
    require_positive(
        single_number(values, call)?,
        call.name,
        location::LN_NOT_POSITIVE,
    )?;
    logarithm(values, call, f64::ln, decimal_math::ln)
}

pub(super) fn log10<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    require_positive(
        single_number(values, call)?,
        call.name,
        location::LOG10_NOT_POSITIVE,
    )?;
    logarithm(values, call, f64::log10, decimal_math::log10)
}

/// Applies a logarithm. That of a decimal NaN is a double, as in MongoDB.
fn logarithm<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
    double: fn(f64) -> f64,
    decimal: fn(Decimal128) -> Decimal128,
) -> Result<Evaluated<'s>> {
    match single_number(values, call)? {
        Some(number) if number.is_nan() => Ok(Evaluated::from(f64::NAN)),
        _ => function(values, call, double, decimal),
    }
}

/// Returns an error for zero and below; NaN is accepted.
fn require_positive(number: Option<Number>, name: &str, code: i32) -> Result<()> {
    match number {
        Some(number) if !is_positive(number) && !number.is_nan() => Err(Error::location(
            code,
            format!(
                "{name}'s argument must be a positive number, but is {}",
                number.to_f64()
            ),
        )),
        _ => Ok(()),
    }
}

fn is_positive(number: Number) -> bool {
    number.compare(Number::Int(0)).is_gt()
}

pub(super) fn log<'s>(values: &[Evaluated<'s>], _: CallContext<'_, 's>) -> Result<Evaluated<'s>> {
    let (value, base) = (arg(values, 0).as_ref(), arg(values, 1).as_ref());
    if value.is_nullish() || base.is_nullish() {
        return Ok(Evaluated::NULL);
    }
    let Some(number) = Number::of(value) else {
        return Err(Error::location(
            location::LOG_NOT_NUMERIC,
            format!("$log's argument must be numeric, not {}", value.type_name()),
        ));
    };
    let Some(base_number) = Number::of(base) else {
        return Err(Error::location(
            location::LOG_BASE_NOT_NUMERIC,
            format!("$log's base must be numeric, not {}", base.type_name()),
        ));
    };
    require_positive(Some(number), "$log", location::LOG_NOT_POSITIVE)?;
    if !base_number.is_nan()
        && (!is_positive(base_number) || base_number.compare(Number::Int(1)).is_eq())
    {
        return Err(Error::location(
            location::LOG_BASE_INVALID,
            format!(
                "$log's base must be a positive number not equal to 1, but is {}",
                base_number.to_f64()
            ),
        ));
    }
    if number.is_nan() || base_number.is_nan() {
        return Ok(Evaluated::from(f64::NAN));
    }
    if matches!(number, Number::Decimal(_)) || matches!(base_number, Number::Decimal(_)) {
        let quotient =
            decimal_math::ln(number.to_decimal()).div(decimal_math::ln(base_number.to_decimal()));
        return Ok(Evaluated::from(quotient));
    }
    Ok(Evaluated::from(
        number.to_f64().ln() / base_number.to_f64().ln(),
    ))
}

pub(super) fn pow<'s>(values: &[Evaluated<'s>], _: CallContext<'_, 's>) -> Result<Evaluated<'s>> {
    let (base, exponent) = (arg(values, 0).as_ref(), arg(values, 1).as_ref());
    if base.is_nullish() || exponent.is_nullish() {
        return Ok(Evaluated::NULL);
    }
    let Some(b) = Number::of(base) else {
        return Err(Error::location(
            location::POW_BASE_NOT_NUMERIC,
            format!("$pow's base must be numeric, not {}", base.type_name()),
        ));
    };
    let Some(e) = Number::of(exponent) else {
        return Err(Error::location(
            location::POW_EXPONENT_NOT_NUMERIC,
            format!(
                "$pow's exponent must be numeric, not {}",
                exponent.type_name()
            ),
        ));
    };
    if !b.is_truthy() && e.compare(Number::Int(0)).is_lt() && !e.is_nan() {
        return Err(Error::location(
            location::POW_ZERO_TO_NEGATIVE,
            "$pow cannot take a base of 0 and a negative exponent",
        ));
    }
    Ok(match (b, e) {
        (Number::Decimal(_), _) | (_, Number::Decimal(_)) => {
            Evaluated::from(decimal_math::pow(b.to_decimal(), e.to_decimal()))
        }
        (Number::Double(_), _) | (_, Number::Double(_)) => {
            Evaluated::from(b.to_f64().powf(e.to_f64()))
        }
        (Number::Int(b), Number::Int(e)) => integer_pow(b.into(), e.into(), true),
        (b, e) => match (b.to_i64_exact(), e.to_i64_exact()) {
            (Some(b), Some(e)) => integer_pow(b, e, false),
            _ => Evaluated::from(b.to_f64().powf(e.to_f64())),
        },
    })
}

/// Returns a power of integers: an integer if exact and in 64 bits.
fn integer_pow<'s>(base: i64, exponent: i64, narrow: bool) -> Evaluated<'s> {
    let whole = match (base, exponent) {
        (1, _) => Some(1),
        (-1, e) => Some(if e % 2 == 0 { 1 } else { -1 }),
        (_, e) if e < 0 => None,
        (0, e) => Some(i64::from(e == 0)),
        (b, e) => u32::try_from(e).ok().and_then(|e| b.checked_pow(e)),
    };
    match whole {
        Some(whole) => Evaluated::from(integer(whole, narrow)),
        None => Evaluated::from((base as f64).powf(exponent as f64)),
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Value, array, doc};

    use super::super::testing::{call, check_exact, decimal, eval_code};

    #[test]
    fn one_operand() {
        let doc = doc! {};
        let cases: Vec<(&str, Value, Value)> = vec![
            ("$abs", (-5).into(), 5.into()),
            ("$abs", i32::MIN.into(), 2_147_483_648i64.into()),
            ("$abs", (-2.5).into(), 2.5.into()),
            ("$abs", decimal("-1.50"), decimal("1.50")),
            ("$ceil", 5.into(), 5.into()),
            ("$ceil", 2.1.into(), 3.0.into()),
            ("$ceil", (-2.8).into(), (-2.0).into()),
            ("$ceil", decimal("2.1"), decimal("3")),
            ("$floor", 7i64.into(), 7i64.into()),
            ("$floor", (-2.1).into(), (-3.0).into()),
            ("$floor", decimal("-2.1"), decimal("-3")),
            ("$exp", 0.into(), 1.0.into()),
            ("$exp", decimal("0"), decimal("1")),
            ("$ln", 1.into(), 0.0.into()),
            ("$log10", 1000.into(), 3.0.into()),
            ("$log10", decimal("1000"), decimal("3")),
            ("$sqrt", 16.into(), 4.0.into()),
            ("$sqrt", decimal("2.25"), decimal("1.5")),
        ];
        for (name, argument, expected) in cases {
            check_exact(&doc, call(name, argument), expected);
        }
        for name in ["$abs", "$ceil", "$floor", "$exp", "$ln", "$log10", "$sqrt"] {
            check_exact(&doc, call(name, "$gone"), Value::Null);
            check_exact(&doc, call(name, array![Value::Null]), Value::Null);
            assert_eq!(eval_code(&doc, call(name, "text")), 28765, "{name}");
            assert_eq!(eval_code(&doc, call(name, array![1, 2])), 16020, "{name}");
            let nan = call(name, f64::NAN);
            check_exact(&doc, call("$eq", array![nan, f64::NAN]), true);
        }
        for (name, argument) in [
            ("$ln", decimal("NaN")),
            ("$log10", decimal("NaN")),
            ("$log", array![decimal("NaN"), 10]),
            ("$log", array![decimal("10"), f64::NAN]),
        ] {
            let of_nan = call("$type", call(name, argument));
            check_exact(&doc, of_nan, "double");
        }
    }

    #[test]
    fn domains() {
        let doc = doc! {};
        for (name, argument, code) in [
            ("$abs", Value::from(i64::MIN), 28680),
            ("$sqrt", (-1).into(), 28714),
            ("$ln", 0.into(), 28766),
            ("$ln", (-1.0).into(), 28766),
            ("$log10", 0.into(), 28761),
            ("$log", array!["a", 2], 28756),
            ("$log", array![2, "a"], 28757),
            ("$log", array![0, 2], 28758),
            ("$log", array![2, 1], 28759),
            ("$log", array![2, 0], 28759),
            ("$pow", array!["a", 2], 28762),
            ("$pow", array![2, "a"], 28763),
            ("$pow", array![0, -1], 28764),
        ] {
            assert_eq!(
                eval_code(&doc, call(name, argument.clone())),
                code,
                "{name} {argument:?}"
            );
        }
    }

    #[test]
    fn two_operands() {
        let doc = doc! {};
        let cases: Vec<(&str, Value, Value)> = vec![
            ("$log", array![8, 2], (8f64.ln() / 2f64.ln()).into()),
            ("$log", array![Value::Null, 1], Value::Null),
            ("$log", array![decimal("100"), 10], decimal("2")),
            ("$pow", array![2, 10], 1024.into()),
            ("$pow", array![2, 31], 2_147_483_648i64.into()),
            ("$pow", array![2i64, 3], 8i64.into()),
            ("$pow", array![2, 64], 18_446_744_073_709_551_616.0.into()),
            ("$pow", array![2, -1], 0.5.into()),
            ("$pow", array![-1, -3], (-1).into()),
            ("$pow", array![0, 0], 1.into()),
            ("$pow", array![2.0, 3], 8.0.into()),
            ("$pow", array![2, 0.5], std::f64::consts::SQRT_2.into()),
            ("$pow", array![decimal("2"), 3], decimal("8")),
            ("$pow", array!["$gone", 1], Value::Null),
        ];
        for (name, argument, expected) in cases {
            check_exact(&doc, call(name, argument), expected);
        }
    }
}
