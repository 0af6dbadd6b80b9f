//! `$count: "n"`: a `$group` of all documents and a `$project` that drops the key.

use nilometer_bson::{Value, ValueRef, doc};

use super::{PipelineContext, Stage, group, project};
use crate::error::{Error, Result, location};

/// Parses `$count`.
pub(super) fn parse(
    cx: &PipelineContext,
    _: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let name = check_name(value)?;
    let mut group = nilometer_bson::DocumentBuilder::new();
    group.append("_id", Value::Null);
    group.append(name, doc! {"$sum": 1});
    let group = group.finish();
    group::parse(cx, "$group", ValueRef::Document(group.as_ref()), out)?;
    let project = doc! {"_id": 0};
    project::parse_project(cx, "$project", ValueRef::Document(project.as_ref()), out)
}

fn check_name(value: ValueRef<'_>) -> Result<&str> {
    let Some(name) = value.as_str() else {
        return Err(Error::location(
            location::COUNT_NOT_STRING,
            "the count field must be a non-empty string",
        ));
    };
    if name.is_empty() {
        return Err(Error::location(
            location::COUNT_EMPTY,
            "the count field must be a non-empty string",
        ));
    }
    if name.starts_with('$') {
        return Err(Error::location(
            location::COUNT_DOLLAR_PREFIX,
            "the count field cannot be a $-prefixed path",
        ));
    }
    if name.contains('\0') {
        return Err(Error::location(
            location::COUNT_NUL,
            "the count field cannot contain a null byte",
        ));
    }
    if name.contains('.') {
        return Err(Error::location(
            location::COUNT_DOTTED,
            "the count field cannot contain '.'",
        ));
    }
    if name == "_id" {
        return Err(Error::location(
            location::COUNT_IS_ID,
            "the count field cannot be '_id'",
        ));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{code, parse};
    use super::*;
    use nilometer_bson::array;

    #[test]
    fn is_a_group_and_a_projection() {
        let stages = parse(array![doc! {"$count": "n"}]).unwrap();
        assert!(matches!(
            stages.as_slice(),
            [Stage::Group(_), Stage::Project(_)]
        ));
    }

    #[test]
    fn bad_names_are_refused() {
        assert_eq!(code(array![doc! {"$count": 1}]), 40_156);
        assert_eq!(code(array![doc! {"$count": ""}]), 40_157);
        assert_eq!(code(array![doc! {"$count": "$a"}]), 40_158);
        assert_eq!(code(array![doc! {"$count": "a.b"}]), 40_160);
    }
}
