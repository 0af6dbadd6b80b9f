//! `$bitAnd`, `$bitOr`, `$bitXor` over ints and longs, `$bitNot` of one.
//!
//! The result is long if an operand is long. A single operand may be an array, whose elements are
//! then combined. Null or missing gives null; without operands `$bitAnd` is −1, the others are 0.
//! Other types are error 14 (28765 if `$bitNot` has no number at all).

use nilometer_bson::ValueRef;
use nilometer_bson::number::Number;

use super::evaluated::Evaluated;
use super::math::single_number;
use super::numeric::integer;
use super::operation::CallContext;
use crate::error::{Error, Result};

pub(super) fn and<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    combine(values, call, -1, |a, b| a & b)
}

pub(super) fn or<'s>(values: &[Evaluated<'s>], call: CallContext<'_, 's>) -> Result<Evaluated<'s>> {
    combine(values, call, 0, |a, b| a | b)
}

pub(super) fn xor<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    combine(values, call, 0, |a, b| a ^ b)
}

fn combine<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
    neutral: i64,
    combine: fn(i64, i64) -> i64,
) -> Result<Evaluated<'s>> {
    let mut state = BitAccumulator {
        bits: neutral,
        narrow: true,
        combine,
    };
    let complete = match values {
        [only] if only.as_array().is_some() => {
            let elements = only.as_array().into_iter().flat_map(|array| array.iter());
            state.add_all(elements, call)?
        }
        values => state.add_all(values.iter().map(Evaluated::as_ref), call)?,
    };
    Ok(if complete {
        Evaluated::from(integer(state.bits, state.narrow))
    } else {
        Evaluated::NULL
    })
}

struct BitAccumulator {
    bits: i64,
    narrow: bool,
    combine: fn(i64, i64) -> i64,
}

impl BitAccumulator {
    /// Returns false if a value was null.
    fn add_all<'v>(
        &mut self,
        values: impl Iterator<Item = ValueRef<'v>>,
        call: CallContext<'_, '_>,
    ) -> Result<bool> {
        let mut complete = true;
        for value in values {
            call.scope.context.charge(1)?;
            match value {
                ValueRef::Int32(v) => self.bits = (self.combine)(self.bits, v.into()),
                ValueRef::Int64(v) => {
                    self.narrow = false;
                    self.bits = (self.combine)(self.bits, v);
                }
                value if value.is_nullish() => complete = false,
                other => return Err(type_error(call.name, other.type_name())),
            }
        }
        Ok(complete)
    }
}

fn type_error(name: &str, found: &str) -> Error {
    Error::type_mismatch(format!(
        "{name} only supports int and long operands, not {found}"
    ))
}

pub(super) fn not<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    Ok(match single_number(values, call)? {
        None => Evaluated::NULL,
        Some(Number::Int(v)) => Evaluated::from(!v),
        Some(Number::Long(v)) => Evaluated::from(!v),
        Some(other) => return Err(type_error(call.name, other.to_ref().type_name())),
    })
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Value, array, doc};

    use super::super::testing::{check_exact, eval_code};

    #[test]
    fn combinations() {
        let doc = doc! { "a": 6, "b": 3i64, "l": array![12, 10], "n": Value::Null };
        check_exact(&doc, doc! { "$bitAnd": array!["$a", 3] }, 2);
        check_exact(&doc, doc! { "$bitOr": array!["$a", "$b"] }, 7i64);
        check_exact(&doc, doc! { "$bitXor": array!["$a", 3] }, 5);
        check_exact(&doc, doc! { "$bitXor": "$l" }, 6);
        check_exact(&doc, doc! { "$bitAnd": array![] }, -1);
        check_exact(&doc, doc! { "$bitOr": array![] }, 0);
        check_exact(&doc, doc! { "$bitAnd": array![-1, 5i64] }, 5i64);
        check_exact(
            &doc,
            doc! { "$bitOr": array![i32::MIN, 0i64] },
            i64::from(i32::MIN),
        );
        check_exact(&doc, doc! { "$bitOr": array!["$a", "$n"] }, Value::Null);
        check_exact(&doc, doc! { "$bitNot": "$a" }, -7);
        check_exact(&doc, doc! { "$bitNot": "$b" }, -4i64);
        check_exact(&doc, doc! { "$bitNot": "$gone" }, Value::Null);
        for (expression, code) in [
            (doc! { "$bitAnd": array!["$a", 1.0] }, 14),
            (doc! { "$bitOr": array!["x"] }, 14),
            (doc! { "$bitXor": array!["$l", 1] }, 14),
            (doc! { "$bitNot": 1.5 }, 14),
            (doc! { "$bitNot": "x" }, 28765),
        ] {
            assert_eq!(eval_code(&doc, expression.clone()), code, "{expression:?}");
        }
    }
}
