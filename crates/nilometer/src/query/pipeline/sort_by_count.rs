//! `$sortByCount: expr`: a `$group` that counts and a `$sort` by the count, descending.

use nilometer_bson::{ValueRef, doc};

use super::{PipelineContext, Stage, group, sort};
use crate::error::{Error, Result, location};

/// Parses `$sortByCount`.
pub(super) fn parse(
    cx: &PipelineContext,
    _: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    check_key(value)?;
    let group = doc! {"_id": value, "count": doc! {"$sum": 1}};
    group::parse(cx, "$group", ValueRef::Document(group.as_ref()), out)?;
    let sort = doc! {"count": -1};
    sort::parse(cx, "$sort", ValueRef::Document(sort.as_ref()), out)
}

fn check_key(value: ValueRef<'_>) -> Result<()> {
    match value {
        ValueRef::Document(document) => {
            let is_expression = document
                .iter()
                .next()
                .is_some_and(|element| element.name().starts_with('$'));
            if is_expression {
                Ok(())
            } else {
                Err(Error::location(
                    location::SORT_BY_COUNT_OBJECT,
                    "the sortByCount field must be defined as a $-prefixed path or an expression inside an object",
                ))
            }
        }
        ValueRef::String(text) if text.starts_with('$') => Ok(()),
        ValueRef::String(_) => Err(Error::location(
            location::SORT_BY_COUNT_STRING,
            "the sortByCount field must be defined as a $-prefixed path or an expression inside an object",
        )),
        _ => Err(Error::location(
            location::SORT_BY_COUNT_OPERAND,
            "the sortByCount field must be specified as a string or as an object",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{code, parse};
    use super::*;
    use nilometer_bson::array;

    #[test]
    fn is_a_group_and_a_sort() {
        let stages = parse(array![doc! {"$sortByCount": "$a"}]).unwrap();
        assert!(matches!(
            stages.as_slice(),
            [Stage::Group(_), Stage::Sort(_)]
        ));
    }

    #[test]
    fn bad_keys_are_refused() {
        assert_eq!(code(array![doc! {"$sortByCount": doc! {"a": 1}}]), 40_147);
        assert_eq!(code(array![doc! {"$sortByCount": "a"}]), 40_148);
        assert_eq!(code(array![doc! {"$sortByCount": 1}]), 40_149);
    }
}
