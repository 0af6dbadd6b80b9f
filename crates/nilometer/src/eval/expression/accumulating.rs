//! Accumulators as expressions: `$sum $avg $min $max $stdDevPop $stdDevSamp`, and `$firstN $lastN
//! $minN $maxN`.
//!
//! The first six take several operands, or one that may be an array whose elements are then
//! accumulated. Arrays inside it, and arrays among several operands, are ordinary values. Sums and
//! means ignore values that are not numbers, `$min` and `$max` ignore null and missing.
//!
//! | no values | `$sum` | `$avg` `$min` `$max` `$stdDevPop` | `$stdDevSamp` |
//! |---|---|---|---|
//! | | 0 | null | null, also for one number |
//!
//! `$firstN: {input: array, n}`, `$lastN`, `$minN` and `$maxN` return at most `n` elements; `$minN`
//! and `$maxN` in order, without null. An input that is not an array is error 5788200; `n` must be
//! a positive integer (5787902, 5787903, 5787908).

use nilometer_bson::ValueRef;
use nilometer_bson::number::{Number, NumberSum};

use super::array::ArrayBuilder;
use super::comparison::compare;
use super::evaluated::Evaluated;
use super::operation::{CallContext, arg};
use super::registry::{NamedArgument, NamedArguments, required};
use crate::error::{Error, Result, location};
use crate::eval::value_bytes;

/// Returns the values to accumulate.
fn operands<'v>(
    values: &'v [Evaluated<'_>],
    call: CallContext<'_, '_>,
) -> Result<Vec<ValueRef<'v>>> {
    match values {
        [only] => match only.as_ref() {
            ValueRef::Array(array) => call.scope.context.elements(array),
            value => Ok(vec![value]),
        },
        many => Ok(many.iter().map(Evaluated::as_ref).collect()),
    }
}

/// Calls `add` with each number to accumulate.
fn for_each_number(
    values: &[Evaluated<'_>],
    call: CallContext<'_, '_>,
    mut add: impl FnMut(Number),
) -> Result<()> {
    for value in operands(values, call)? {
        call.scope.context.charge(1)?;
        if let Some(number) = Number::of(value) {
            add(number);
        }
    }
    Ok(())
}

pub(super) fn sum<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let mut sum = NumberSum::new();
    for_each_number(values, call, |number| sum.add(number))?;
    Ok(Evaluated::from(sum.total()))
}

pub(super) fn avg<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let (mut sum, mut count) = (NumberSum::new(), 0);
    for_each_number(values, call, |number| {
        sum.add(number);
        count += 1;
    })?;
    Ok(sum.average(count).map_or(Evaluated::NULL, Evaluated::from))
}

pub(super) fn min<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    extreme(values, call, std::cmp::Ordering::Less)
}

pub(super) fn max<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    extreme(values, call, std::cmp::Ordering::Greater)
}

fn extreme<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
    wanted: std::cmp::Ordering,
) -> Result<Evaluated<'s>> {
    let mut best: Option<ValueRef<'_>> = None;
    for value in operands(values, call)? {
        call.scope.context.charge_value(value)?;
        if value.is_nullish() {
            continue;
        }
        if best.is_none_or(|best| compare(value, best, call.scope) == wanted) {
            best = Some(value);
        }
    }
    Ok(best.map_or(Evaluated::NULL, |best| Evaluated::Owned(best.to_value())))
}

pub(super) fn std_dev_pop<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    std_dev(values, 0, call)
}

pub(super) fn std_dev_samp<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    std_dev(values, 1, call)
}

/// Computes by Welford's method; the divisor is the count minus `missing`.
fn std_dev<'s>(
    values: &[Evaluated<'s>],
    missing: u32,
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let (mut count, mut mean, mut squares) = (0u32, 0.0, 0.0);
    for_each_number(values, call, |number| {
        let value = number.to_f64();
        count += 1;
        let delta = value - mean;
        mean += delta / f64::from(count);
        squares += delta * (value - mean);
    })?;
    if count <= missing {
        return Ok(Evaluated::NULL);
    }
    Ok(Evaluated::from(
        (squares / f64::from(count - missing)).sqrt(),
    ))
}

pub(super) const FIRST_N: NamedArguments = n_arguments(location::FIRST_N_NOT_OBJECT);
pub(super) const MIN_N: NamedArguments = n_arguments(location::MIN_N_NOT_OBJECT);

const N_FIELDS: &[NamedArgument] = &[
    required("input", location::N_INPUT_MISSING),
    required("n", location::N_MISSING),
];

const fn n_arguments(not_object: i32) -> NamedArguments {
    NamedArguments {
        not_object,
        unknown: location::N_FIELD_UNKNOWN,
        fields: N_FIELDS,
    }
}

/// Parses the `n` of `$firstN`, `$lastN`, `$minN` and `$maxN`.
fn read_n(value: ValueRef<'_>) -> Result<usize> {
    let Some(number) = Number::of(value) else {
        return Err(Error::location(
            location::N_NOT_NUMBER,
            format!(
                "Value for 'n' must be of integral type, but found {}",
                value.type_name()
            ),
        ));
    };
    let n = number.to_i64_exact().ok_or_else(|| {
        Error::location(
            location::N_NOT_WHOLE,
            "Value for 'n' must be of integral type",
        )
    })?;
    usize::try_from(n).ok().filter(|n| *n > 0).ok_or_else(|| {
        Error::location(
            location::N_NOT_POSITIVE,
            format!("'n' must be greater than 0, found {n}"),
        )
    })
}

pub(super) fn some_of<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let n = read_n(arg(values, 1).as_ref())?;
    let input = arg(values, 0);
    let Some(array) = input.as_array() else {
        return Err(Error::location(
            location::N_INPUT_NOT_ARRAY,
            format!("Input must be an array, but found {}", input.type_name()),
        ));
    };
    let mut elements = call.scope.context.elements(array)?;
    match call.name {
        "$lastN" => {
            let behind = elements.len().saturating_sub(n);
            elements.drain(..behind);
        }
        "$minN" | "$maxN" => {
            elements.retain(|value| !value.is_nullish());
            let weight = |value: &ValueRef<'_>| value_bytes(*value);
            let by_order = |a: &ValueRef<'_>, b: &ValueRef<'_>| compare(*a, *b, call.scope);
            elements = call.scope.context.sort(elements, weight, by_order)?;
            if call.name == "$maxN" {
                elements.reverse();
            }
        }
        _ => {}
    }
    let mut out = ArrayBuilder::new(call.scope);
    out.extend(elements.into_iter().take(n))?;
    Ok(out.finish())
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Decimal128, Value, array, doc};

    use super::super::testing::{call, check_exact, eval_code, parse_code};

    #[test]
    fn sums_and_means() {
        let doc = doc! { "a": array![1, 2, "x", array![9], Value::Null], "n": Value::Null, "big": i64::MAX };
        let cases: Vec<(&str, Value, Value)> = vec![
            ("$sum", "$a".into(), 3.into()),
            ("$sum", array!["$a", 5], 5.into()),
            ("$sum", array![array![1, 2]], 3.into()),
            ("$sum", array![1, 2i64], 3i64.into()),
            ("$sum", array![1, 0.5], 1.5.into()),
            ("$sum", array![i32::MAX, 1], 2_147_483_648i64.into()),
            (
                "$sum",
                array!["$big", 1],
                9_223_372_036_854_775_808.0.into(),
            ),
            ("$sum", array![0.1, 0.2, 0.3, 0.4], 1.0.into()),
            ("$sum", "$gone".into(), 0.into()),
            ("$sum", array![], 0.into()),
            ("$avg", "$a".into(), 1.5.into()),
            ("$avg", array![1, 2], 1.5.into()),
            ("$avg", "$n".into(), Value::Null),
            ("$avg", array!["x"], Value::Null),
            (
                "$avg",
                array![Decimal128::from(1i64), 2],
                Decimal128::parse_exact("1.5").unwrap().into(),
            ),
            ("$min", "$a".into(), 1.into()),
            ("$max", "$a".into(), array![9]),
            ("$max", array!["$n", 3, "$gone", 3.0], 3.into()),
            ("$min", array!["$n"], Value::Null),
            ("$max", array![], Value::Null),
            ("$min", array![5, "$a"], 5.into()),
            ("$stdDevPop", array![2, 4, 4, 4, 5, 5, 7, 9], 2.0.into()),
            ("$stdDevPop", array![5], 0.0.into()),
            ("$stdDevPop", "$n".into(), Value::Null),
            ("$stdDevSamp", array![1, 3], 2f64.sqrt().into()),
            ("$stdDevSamp", array![5], Value::Null),
        ];
        for (name, argument, expected) in cases {
            check_exact(&doc, call(name, argument), expected);
        }
    }

    #[test]
    fn some_of_many() {
        let doc = doc! { "a": array![3, Value::Null, 1, 2], "s": "x" };
        for (name, expected) in [
            ("$firstN", array![3, Value::Null]),
            ("$lastN", array![1, 2]),
            ("$minN", array![1, 2]),
            ("$maxN", array![3, 2]),
        ] {
            check_exact(&doc, call(name, doc! { "input": "$a", "n": 2 }), expected);
            check_exact(
                &doc,
                call(name, doc! { "input": array![], "n": 2i64 }),
                array![],
            );
            for (arguments, code) in [
                (doc! { "input": "$s", "n": 1 }, 5_788_200),
                (doc! { "input": "$gone", "n": 1 }, 5_788_200),
                (doc! { "input": "$a", "n": "$s" }, 5_787_902),
                (doc! { "input": "$a", "n": 1.5 }, 5_787_903),
                (doc! { "input": "$a", "n": 0 }, 5_787_908),
            ] {
                assert_eq!(eval_code(&doc, call(name, arguments)), code);
            }
            let first = matches!(name, "$firstN" | "$lastN");
            let not_object = if first { 5_787_801 } else { 5_787_900 };
            assert_eq!(parse_code(call(name, 5)), not_object);
            assert_eq!(
                parse_code(call(name, doc! { "input": 1, "n": 1, "x": 1 })),
                5_787_901
            );
            assert_eq!(parse_code(call(name, doc! { "input": 1 })), 5_787_906);
            assert_eq!(parse_code(call(name, doc! { "n": 1 })), 5_787_907);
        }
    }
}
