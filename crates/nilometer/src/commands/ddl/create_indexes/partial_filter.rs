//! Checks of the filter of a partial index: it may hold only forms for which the planner can prove that a
//! query implies it.

use nilometer_bson::{DocRef, ValueRef};

use super::key::refused;
use crate::error::Result;

/// The deepest nesting of `$and` and `$or`.
const DEPTH_MAX: usize = 4;

/// Accepted operators on a path.
const OPERATORS: &[&str] = &[
    "$eq",
    "$gt",
    "$gte",
    "$lt",
    "$lte",
    "$in",
    "$type",
    "$exists",
    "$geoWithin",
    "$geoIntersects",
    "$_internalExprEq",
    "$_internalExprGt",
    "$_internalExprGte",
    "$_internalExprLt",
    "$_internalExprLte",
];

/// Refuses other forms (67). That the filter parses is checked elsewhere.
pub(super) fn check(filter: DocRef<'_>) -> Result<()> {
    check_at(filter, 0)
}

fn check_at(filter: DocRef<'_>, depth: usize) -> Result<()> {
    if depth > DEPTH_MAX {
        return Err(refused(format!(
            "partialFilterExpression depth may not exceed {DEPTH_MAX}"
        )));
    }
    for element in filter {
        match (element.name(), element.value()) {
            ("$and" | "$or", ValueRef::Array(arms)) => {
                for arm in arms.iter().filter_map(ValueRef::as_document) {
                    check_at(arm, depth + 1)?;
                }
            }
            ("$comment", _) => {}
            (name, _) if name.starts_with('$') => return Err(unsupported(name)),
            (_, ValueRef::Regex { .. }) => return Err(unsupported("$regex")),
            (_, ValueRef::Document(operators)) => check_operators(operators)?,
            _ => {}
        }
    }
    Ok(())
}

/// An object is a list of operators if its first field is one, else a value to compare with.
fn check_operators(operators: DocRef<'_>) -> Result<()> {
    if !operators
        .iter()
        .next()
        .is_some_and(|e| e.name().starts_with('$'))
    {
        return Ok(());
    }
    for operator in operators {
        match (operator.name(), operator.value()) {
            (name, _) if !OPERATORS.contains(&name) => return Err(unsupported(name)),
            ("$exists", ValueRef::Bool(false) | ValueRef::Int32(0)) => {
                return Err(unsupported("$exists: false"));
            }
            ("$in", ValueRef::Array(values))
                if values.iter().any(|v| matches!(v, ValueRef::Regex { .. })) =>
            {
                return Err(unsupported("$regex"));
            }
            _ => {}
        }
    }
    Ok(())
}

fn unsupported(what: &str) -> crate::error::Error {
    refused(format!("Expression not supported in partial index: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::{array, doc};

    #[test]
    fn only_what_can_be_compared_with_a_query() {
        for filter in [
            doc! {},
            doc! { "a": 1, "b": doc! { "c": 1 } },
            doc! { "a": doc! { "$gt": 1, "$lte": 5 }, "b": doc! { "$exists": true } },
            doc! { "$or": array![doc! { "a": doc! { "$in": array![1, 2] } }, doc! { "$and": array![doc! { "b": 1 }] }] },
        ] {
            assert!(check(filter.as_ref()).is_ok(), "{filter:?}");
        }
        for filter in [
            doc! { "a": doc! { "$ne": 1 } },
            doc! { "a": doc! { "$exists": false } },
            doc! { "a": doc! { "$not": doc! { "$gt": 1 } } },
            doc! { "$nor": array![doc! { "a": 1 }] },
            doc! { "a": doc! { "$regex": "x" } },
            doc! { "$or": array![doc! { "a": doc! { "$size": 1 } }] },
            doc! { "$expr": doc! { "$eq": array!["$a", 1] } },
        ] {
            assert_eq!(check(filter.as_ref()).unwrap_err().code.0, 67, "{filter:?}");
        }
        let mut deep = doc! { "a": 1 };
        for _ in 0..=DEPTH_MAX {
            deep = doc! { "$and": array![deep] };
        }
        assert_eq!(check(deep.as_ref()).unwrap_err().code.0, 67);
    }
}
