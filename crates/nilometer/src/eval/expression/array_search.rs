//! `$in: [value, array]` and `$indexOfArray: [array, value, start?, end?]`.
//!
//! Values compare in BSON order, with the operation's collation. `$in` requires an array (40081,
//! also for null). A null array of `$indexOfArray` gives null, other values 40090; the bounds are
//! non-negative integers (40096, 40097); −1 if the value is not found.

use std::collections::HashSet;
use std::hash::Hasher;
use std::sync::Arc;

use nilometer_bson::{Value, ValueRef, order};

use super::comparison::compare;
use super::evaluated::Evaluated;
use super::operation::{CallContext, Operation, PreparedData, arg};
use super::scope::Scope;
use super::string_search::search_bound;
use crate::error::{Error, Result, location};
use crate::eval::FoldBudget;

/// Minimum number of constants for which a set is built.
const SET_ELEMENTS_MIN: usize = 16;

/// Constants by hash, for lookup; strings by bytes.
struct ConstantSet {
    hashes: HashSet<u64>,
}

fn hash(value: ValueRef<'_>) -> u64 {
    let mut state = std::hash::DefaultHasher::new();
    order::hash(value, &mut state);
    state.finish()
}

/// Converts a long list of constants to a set.
pub(super) fn prepare(operation: &Operation, _: &FoldBudget) -> Option<PreparedData> {
    let Value::Array(array) = operation.constant(1)? else {
        return None;
    };
    let array = array.as_ref();
    if array.len() < SET_ELEMENTS_MIN {
        return None;
    }
    Some(Arc::new(ConstantSet {
        hashes: array.iter().map(hash).collect(),
    }))
}

pub(super) fn is_in<'s>(operation: &'s Operation, scope: &Scope<'s>) -> Result<Evaluated<'s>> {
    let value = operation.value(0, scope)?;
    let value = value.as_ref();
    let list = operation.value(1, scope)?;
    let Some(list) = list.as_array() else {
        return Err(Error::location(
            location::IN_NOT_ARRAY,
            format!(
                "$in requires an array as a second argument, found: {}",
                list.type_name()
            ),
        ));
    };
    // An absent hash means absent; under a collation other strings may be equal.
    if scope.context.collator.is_none()
        && let Some(constants) = operation.prepared::<ConstantSet>()
        && !constants.hashes.contains(&hash(value))
    {
        return Ok(Evaluated::from(false));
    }
    for element in list.iter() {
        scope.context.charge(1)?;
        if compare(value, element, scope).is_eq() {
            return Ok(Evaluated::from(true));
        }
    }
    Ok(Evaluated::from(false))
}

pub(super) fn index_of<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let array = match arg(values, 0).as_ref() {
        ValueRef::Array(array) => array,
        value if value.is_nullish() => return Ok(Evaluated::NULL),
        other => {
            return Err(Error::location(
                location::INDEX_OF_ARRAY_NOT_ARRAY,
                format!(
                    "$indexOfArray requires an array as a first argument, found: {}",
                    other.type_name()
                ),
            ));
        }
    };
    let wanted = arg(values, 1).as_ref();
    let start = search_bound(values, 2, call.name, "starting")?.unwrap_or(0);
    let end = search_bound(values, 3, call.name, "ending")?.unwrap_or(usize::MAX);
    for (at, element) in array.iter().enumerate().take(end).skip(start) {
        call.scope.context.charge(1)?;
        if compare(element, wanted, call.scope).is_eq() {
            return Ok(Evaluated::from(i32::try_from(at).unwrap_or(-1)));
        }
    }
    Ok(Evaluated::from(-1))
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{array, doc};

    use super::super::testing::{check_exact, eval_code};
    use super::*;

    #[test]
    fn membership() {
        let doc = doc! { "a": array![1, "x", Value::Null], "v": 1.0, "n": Value::Null };
        check_exact(&doc, doc! { "$in": array!["$v", "$a"] }, true);
        check_exact(&doc, doc! { "$in": array!["X", "$a"] }, false);
        check_exact(&doc, doc! { "$in": array!["$n", "$a"] }, true);
        check_exact(&doc, doc! { "$in": array!["$gone", "$a"] }, false);
        check_exact(&doc, doc! { "$in": array!["$a", "$a"] }, false);
        for second in [Value::from("$n"), "$gone".into(), 5.into()] {
            assert_eq!(eval_code(&doc, doc! { "$in": array![1, second] }), 40081);
        }
        let many: Vec<Value> = (0..100).map(Value::from).collect();
        check_exact(&doc, doc! { "$in": array!["$v", many.clone()] }, true);
        check_exact(&doc, doc! { "$in": array!["$n", many] }, false);
    }

    #[test]
    fn positions() {
        let doc = doc! { "a": array![1, 2, 1, "x"], "n": Value::Null };
        for (arguments, expected) in [
            (array!["$a", 1], Value::from(0)),
            (array!["$a", 1, 1], 2.into()),
            (array!["$a", 1, 1, 2], (-1).into()),
            (array!["$a", "x"], 3.into()),
            (array!["$a", 9], (-1).into()),
            (array!["$a", 1, 9], (-1).into()),
            (array!["$a", 1, 3, 1], (-1).into()),
            (array!["$n", 1], Value::Null),
            (array!["$gone", 1], Value::Null),
        ] {
            check_exact(&doc, doc! { "$indexOfArray": arguments }, expected);
        }
        for (arguments, code) in [
            (array!["x", 1], 40090),
            (array!["$a", 1, "x"], 40096),
            (array!["$a", 1, -1], 40097),
            (array!["$a"], 28667),
        ] {
            assert_eq!(eval_code(&doc, doc! { "$indexOfArray": arguments }), code);
        }
    }
}
