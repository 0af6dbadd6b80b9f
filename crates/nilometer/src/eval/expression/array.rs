//! Arrays and their elements: `$arrayElemAt $first $last $size $isArray $slice $reverseArray
//! $concatArrays $range`.
//!
//! | operator | null, missing | errors |
//! |---|---|---|
//! | `$arrayElemAt` | null | 28689 no array, 28690 and 28691 index |
//! | `$first`, `$last` | null | 28689 |
//! | `$size` | error | 17124 |
//! | `$isArray` | false | |
//! | `$slice: [array, n]` or `[array, position, n]` | null | 28724 to 28729 |
//! | `$reverseArray` | null | 34435 |
//! | `$concatArrays` | null | 28664 |
//! | `$range: [start, end, step = 1]` | error | 34443 to 34449 |
//!
//! Positions count from zero, negative ones from the end. Elements outside the array are missing.

use nilometer_bson::value::Array;
use nilometer_bson::{ArrayRef, DocumentBuilder, Value, ValueRef};

use super::evaluated::Evaluated;
use super::numeric::integral_i32;
use super::operation::{CallContext, arg};
use super::scope::Scope;
use super::{VALUE_BYTES_MAX, check_bytes};
use crate::error::{Error, Result, location};
use crate::eval::EvalContext;
use crate::eval::limits::MemoryMark;

/// Collects values into an array. Beyond the size limit of a value it accepts no more; the
/// evaluator of the operator then returns an error.
pub(super) struct ArrayBuilder<'c> {
    out: DocumentBuilder,
    count: usize,
    context: &'c EvalContext<'c>,
    mark: MemoryMark,
}

impl<'c> ArrayBuilder<'c> {
    /// Makes an empty builder. Values computed from here on are dropped by the next [`ArrayBuilder::push`].
    pub(super) fn new(scope: &Scope<'c>) -> Self {
        Self {
            out: DocumentBuilder::new(),
            count: 0,
            context: scope.context,
            mark: scope.context.mark(),
        }
    }

    /// Appends an element; missing becomes null. Counts its bytes.
    pub(super) fn push(&mut self, value: ValueRef<'_>) -> Result<()> {
        if !self.is_full() {
            self.out.append_indexed(self.count, value);
            self.count += 1;
        }
        self.context.hold(self.mark, self.out.len())
    }

    /// Appends elements.
    pub(super) fn extend<'v>(
        &mut self,
        values: impl IntoIterator<Item = ValueRef<'v>>,
    ) -> Result<()> {
        values.into_iter().try_for_each(|value| self.push(value))
    }

    /// Drops what was computed since the last element and counts a step.
    pub(super) fn skip(&mut self) -> Result<()> {
        self.context.hold(self.mark, self.out.len())
    }

    /// True if no more values are accepted.
    pub(super) fn is_full(&self) -> bool {
        self.out.len() > VALUE_BYTES_MAX
    }

    pub(super) fn finish<'s>(self) -> Evaluated<'s> {
        Evaluated::Owned(Value::Array(Array::from_document(self.out.finish())))
    }
}

/// Returns the element at an index counted from the front, or from the back if negative. The
/// element of a borrowed array is borrowed.
fn element<'s>(array: &Evaluated<'s>, index: i64) -> Evaluated<'s> {
    let at = |array: ArrayRef<'_>| match usize::try_from(index) {
        Ok(index) => Some(index),
        Err(_) => i64::try_from(array.len())
            .ok()
            .and_then(|len| usize::try_from(len + index).ok()),
    };
    match array {
        Evaluated::Borrowed(ValueRef::Array(array)) => at(*array)
            .map_or(Evaluated::MISSING, |index| {
                Evaluated::from(array.get(index))
            }),
        Evaluated::Owned(Value::Array(array)) => at(array.as_ref())
            .map_or(Evaluated::MISSING, |index| {
                Evaluated::Owned(array.as_ref().get(index).to_value())
            }),
        _ => Evaluated::MISSING,
    }
}

fn not_an_array(code: i32, name: &str, found: ValueRef<'_>) -> Error {
    Error::location(
        code,
        format!(
            "{name}'s first argument must be an array, but is {}",
            found.type_name()
        ),
    )
}

pub(super) fn elem_at<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let (array, index) = (arg(values, 0), arg(values, 1).as_ref());
    if array.is_nullish() || index.is_nullish() {
        return Ok(Evaluated::NULL);
    }
    if array.as_array().is_none() {
        return Err(not_an_array(
            location::ARRAY_ELEMENT_NOT_ARRAY,
            call.name,
            array.as_ref(),
        ));
    }
    if !index.is_number() {
        return Err(Error::location(
            location::ARRAY_ELEM_AT_INDEX_TYPE,
            format!(
                "$arrayElemAt's second argument must be a numeric value, but is {}",
                index.type_name()
            ),
        ));
    }
    let index = integral_i32(index).ok_or_else(|| {
        Error::location(
            location::ARRAY_ELEM_AT_INDEX_RANGE,
            "$arrayElemAt's second argument must be representable as a 32-bit integer",
        )
    })?;
    Ok(element(array, index.into()))
}

pub(super) fn first<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    at_end(values, call, 0)
}

pub(super) fn last<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    at_end(values, call, -1)
}

fn at_end<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
    index: i64,
) -> Result<Evaluated<'s>> {
    let array = arg(values, 0);
    if array.is_nullish() {
        return Ok(Evaluated::NULL);
    }
    if array.as_array().is_none() {
        return Err(not_an_array(
            location::ARRAY_ELEMENT_NOT_ARRAY,
            call.name,
            array.as_ref(),
        ));
    }
    Ok(element(array, index))
}

pub(super) fn size<'s>(values: &[Evaluated<'s>], _: CallContext<'_, 's>) -> Result<Evaluated<'s>> {
    match arg(values, 0).as_ref() {
        ValueRef::Array(array) => Ok(Evaluated::from(
            i32::try_from(array.len()).unwrap_or(i32::MAX),
        )),
        other => Err(Error::location(
            location::SIZE_NOT_ARRAY,
            format!(
                "The argument to $size must be an array, but was of type: {}",
                other.type_name()
            ),
        )),
    }
}

pub(super) fn is_array<'s>(
    values: &[Evaluated<'s>],
    _: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    Ok(Evaluated::from(arg(values, 0).as_array().is_some()))
}

pub(super) fn slice<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    if values.iter().any(Evaluated::is_nullish) {
        return Ok(Evaluated::NULL);
    }
    let array = arg(values, 0);
    let Some(array) = array.as_array() else {
        return Err(not_an_array(
            location::SLICE_NOT_ARRAY,
            call.name,
            array.as_ref(),
        ));
    };
    let second = slice_number(
        arg(values, 1).as_ref(),
        "Second",
        location::SLICE_SECOND_TYPE,
        location::SLICE_SECOND_RANGE,
    )?;
    let length = array.len();
    let (start, count) = match values.get(2) {
        None => match usize::try_from(second) {
            Ok(count) => (0, count),
            Err(_) => {
                let count = usize::try_from(second.unsigned_abs()).unwrap_or(usize::MAX);
                (length.saturating_sub(count), count)
            }
        },
        Some(third) => {
            let count = slice_number(
                third.as_ref(),
                "Third",
                location::SLICE_THIRD_TYPE,
                location::SLICE_THIRD_RANGE,
            )?;
            let count = usize::try_from(count).ok().filter(|count| *count > 0);
            let count = count.ok_or_else(|| {
                Error::location(
                    location::SLICE_THIRD_NOT_POSITIVE,
                    "Third argument to $slice must be positive",
                )
            })?;
            let start = match usize::try_from(second) {
                Ok(start) => start,
                Err(_) => {
                    let back = usize::try_from(second.unsigned_abs()).unwrap_or(usize::MAX);
                    length.saturating_sub(back)
                }
            };
            (start, count)
        }
    };
    let mut out = ArrayBuilder::new(call.scope);
    out.extend(array.iter().skip(start).take(count))?;
    Ok(out.finish())
}

fn slice_number(value: ValueRef<'_>, which: &str, of_type: i32, of_value: i32) -> Result<i32> {
    if !value.is_number() {
        return Err(Error::location(
            of_type,
            format!(
                "{which} argument to $slice must be a numeric value, but is of type: {}",
                value.type_name()
            ),
        ));
    }
    integral_i32(value).ok_or_else(|| {
        Error::location(
            of_value,
            format!("{which} argument to $slice can't be represented as a 32-bit integer"),
        )
    })
}

pub(super) fn reverse<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    match arg(values, 0).as_ref() {
        ValueRef::Array(array) => {
            let elements = call.scope.context.elements(array)?;
            let mut out = ArrayBuilder::new(call.scope);
            out.extend(elements.into_iter().rev())?;
            Ok(out.finish())
        }
        value if value.is_nullish() => Ok(Evaluated::NULL),
        other => Err(Error::location(
            location::REVERSE_ARRAY_NOT_ARRAY,
            format!(
                "The argument to $reverseArray must be an array, but was of type: {}",
                other.type_name()
            ),
        )),
    }
}

pub(super) fn concat<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let mut out = ArrayBuilder::new(call.scope);
    for value in values {
        match value.as_ref() {
            ValueRef::Array(array) => out.extend(array.iter())?,
            value if value.is_nullish() => return Ok(Evaluated::NULL),
            other => {
                return Err(Error::location(
                    location::CONCAT_ARRAYS_NOT_ARRAY,
                    format!(
                        "$concatArrays only supports arrays, not {}",
                        other.type_name()
                    ),
                ));
            }
        }
    }
    Ok(out.finish())
}

/// Minimum encoded size of a number in an array, in bytes: type, one digit, terminator, value.
const RANGE_ELEMENT_BYTES_MIN: usize = 7;

pub(super) fn range<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let number = |index: usize, what: &str, of_type: i32, of_value: i32| {
        let value = arg(values, index).as_ref();
        if !value.is_number() {
            return Err(Error::location(
                of_type,
                format!(
                    "$range requires a numeric {what}, found value of type: {}",
                    value.type_name()
                ),
            ));
        }
        integral_i32(value).map(i64::from).ok_or_else(|| {
            Error::location(
                of_value,
                format!("$range requires a {what} that can be represented as a 32-bit integer"),
            )
        })
    };
    let start = number(
        0,
        "starting value",
        location::RANGE_START_TYPE,
        location::RANGE_START_RANGE,
    )?;
    let end = number(
        1,
        "ending value",
        location::RANGE_END_TYPE,
        location::RANGE_END_RANGE,
    )?;
    let step = match values.get(2) {
        None => 1,
        Some(_) => number(
            2,
            "step value",
            location::RANGE_STEP_TYPE,
            location::RANGE_STEP_RANGE,
        )?,
    };
    if step == 0 {
        return Err(Error::location(
            location::RANGE_STEP_ZERO,
            "$range requires a non-zero step value",
        ));
    }
    let mut out = ArrayBuilder::new(call.scope);
    let distance = if step > 0 { end - start } else { start - end };
    let count = usize::try_from(distance).map_or(0, |distance| {
        distance.div_ceil(usize::try_from(step.unsigned_abs()).unwrap_or(usize::MAX))
    });
    // Checked first: a short expression can request two thousand million numbers.
    check_bytes(count.saturating_mul(RANGE_ELEMENT_BYTES_MIN), "$range")?;
    let mut at = start;
    while if step > 0 { at < end } else { at > end } {
        out.push(ValueRef::Int32(i32::try_from(at).unwrap_or_default()))?;
        if out.is_full() {
            break;
        }
        at += step;
    }
    Ok(out.finish())
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{array, doc};

    use super::super::testing::{check_exact, eval_code};
    use super::*;

    #[test]
    fn values() {
        let doc = doc! { "a": array![1, 2, 3], "e": array![], "n": Value::Null, "s": "x" };
        let cases: Vec<(Value, Value)> = vec![
            (doc! { "$arrayElemAt": array!["$a", 0] }.into(), 1.into()),
            (doc! { "$arrayElemAt": array!["$a", -1] }.into(), 3.into()),
            (
                doc! { "$arrayElemAt": array!["$a", 3] }.into(),
                Value::Missing,
            ),
            (
                doc! { "$arrayElemAt": array!["$a", -4] }.into(),
                Value::Missing,
            ),
            (doc! { "$arrayElemAt": array!["$a", 1.0] }.into(), 2.into()),
            (
                doc! { "$arrayElemAt": array![array![5, 6], -2] }.into(),
                5.into(),
            ),
            (doc! { "$arrayElemAt": array!["$n", 0] }.into(), Value::Null),
            (
                doc! { "$arrayElemAt": array!["$a", "$gone"] }.into(),
                Value::Null,
            ),
            (doc! { "$first": "$a" }.into(), 1.into()),
            (doc! { "$last": "$a" }.into(), 3.into()),
            (doc! { "$first": "$e" }.into(), Value::Missing),
            (doc! { "$last": "$gone" }.into(), Value::Null),
            (doc! { "$size": "$a" }.into(), 3.into()),
            (doc! { "$size": array![array![]] }.into(), 0.into()),
            (doc! { "$isArray": "$a" }.into(), true.into()),
            (doc! { "$isArray": array!["$gone"] }.into(), false.into()),
            (doc! { "$isArray": array![array![1]] }.into(), true.into()),
            (doc! { "$slice": array!["$a", 2] }.into(), array![1, 2]),
            (doc! { "$slice": array!["$a", -2] }.into(), array![2, 3]),
            (doc! { "$slice": array!["$a", -9] }.into(), array![1, 2, 3]),
            (doc! { "$slice": array!["$a", 0] }.into(), array![]),
            (doc! { "$slice": array!["$a", 1, 1] }.into(), array![2]),
            (doc! { "$slice": array!["$a", -2, 1] }.into(), array![2]),
            (doc! { "$slice": array!["$a", -9, 2] }.into(), array![1, 2]),
            (doc! { "$slice": array!["$a", 9, 2] }.into(), array![]),
            (doc! { "$slice": array!["$n", 1] }.into(), Value::Null),
            (doc! { "$reverseArray": "$a" }.into(), array![3, 2, 1]),
            (doc! { "$reverseArray": "$n" }.into(), Value::Null),
            (
                doc! { "$concatArrays": array!["$a", array![4], "$e"] }.into(),
                array![1, 2, 3, 4],
            ),
            (doc! { "$concatArrays": array![] }.into(), array![]),
            (
                doc! { "$concatArrays": array!["$a", "$gone"] }.into(),
                Value::Null,
            ),
            (doc! { "$range": array![0, 3] }.into(), array![0, 1, 2]),
            (doc! { "$range": array![0, 10, 4] }.into(), array![0, 4, 8]),
            (doc! { "$range": array![3, 0, -1] }.into(), array![3, 2, 1]),
            (doc! { "$range": array![3, 0] }.into(), array![]),
            (
                doc! { "$range": array![i32::MAX - 1, i32::MAX, 5] }.into(),
                array![i32::MAX - 1],
            ),
        ];
        for (expression, expected) in cases {
            check_exact(&doc, expression, expected);
        }
    }

    #[test]
    fn errors() {
        let doc = doc! { "a": array![1, 2, 3], "n": Value::Null, "s": "x" };
        for (expression, code) in [
            (doc! { "$arrayElemAt": array!["$s", 0] }, 28689),
            (doc! { "$arrayElemAt": array!["$a", "$s"] }, 28690),
            (doc! { "$arrayElemAt": array!["$a", 0.5] }, 28691),
            (doc! { "$first": "$s" }, 28689),
            (doc! { "$last": "$s" }, 28689),
            (doc! { "$size": "$n" }, 17124),
            (doc! { "$size": "$gone" }, 17124),
            (doc! { "$slice": array!["$s", 1] }, 28724),
            (doc! { "$slice": array!["$a", "$s"] }, 28725),
            (doc! { "$slice": array!["$a", 0.5] }, 28726),
            (doc! { "$slice": array!["$a", 1, "$s"] }, 28727),
            (doc! { "$slice": array!["$a", 1, 0.5] }, 28728),
            (doc! { "$slice": array!["$a", 1, 0] }, 28729),
            (doc! { "$slice": array!["$a"] }, 28667),
            (doc! { "$reverseArray": "$s" }, 34435),
            (doc! { "$concatArrays": array!["$a", "$s"] }, 28664),
            (doc! { "$range": array!["$s", 1] }, 34443),
            (doc! { "$range": array![0.5, 1] }, 34444),
            (doc! { "$range": array![0, "$n"] }, 34445),
            (doc! { "$range": array![0, 1i64 << 40] }, 34446),
            (doc! { "$range": array![0, 1, "$s"] }, 34447),
            (doc! { "$range": array![0, 1, 0.5] }, 34448),
            (doc! { "$range": array![0, 1, 0] }, 34449),
            (doc! { "$range": array![0, i32::MAX] }, 146),
        ] {
            assert_eq!(eval_code(&doc, expression.clone()), code, "{expression:?}");
        }
    }
}
