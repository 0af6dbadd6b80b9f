//! `$bucket`: a `$group` by the lower bound of the range that holds a value, and a `$sort` by that bound.
//!
//! ```text
//! boundaries [0, 10, 20], default "x"
//!   ⇒ $group {_id: {$switch: {branches: [0 <= e < 10 → 0, 10 <= e < 20 → 10], default: "x"}}, …}
//!     $sort  {_id: 1}
//! ```

use std::cmp::Ordering;

use nilometer_bson::order::canonical_type;
use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, array, doc};

use super::{PipelineContext, Stage, group, sort};
use crate::error::{Error, Result, location};
use crate::eval::Collation;
use crate::eval::Expression;

/// Parses `$bucket`.
pub(super) fn parse(
    cx: &PipelineContext,
    _: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let Some(spec) = value.as_document() else {
        return Err(Error::location(
            location::BUCKET_NOT_OBJECT,
            format!(
                "Argument to $bucket stage must be an object, but found type: {}.",
                value.type_name()
            ),
        ));
    };
    let mut group_by = ValueRef::Missing;
    let mut boundaries = None;
    let mut default = None;
    let mut output = None;
    for element in spec {
        let value = element.value();
        match element.name() {
            "groupBy" => group_by = check_group_by(value)?,
            "boundaries" => boundaries = Some(parse_boundaries(cx, value)?),
            "default" => default = Some(parse_default(cx, value)?),
            "output" => output = Some(check_output(value)?),
            other => {
                return Err(Error::location(
                    location::BUCKET_OPTION_UNKNOWN,
                    format!("Unrecognized option to $bucket: {other}."),
                ));
            }
        }
    }
    let (Some(boundaries), false) = (boundaries, group_by.is_missing()) else {
        return Err(Error::location(
            location::BUCKET_OPTION_MISSING,
            "$bucket requires 'groupBy' and 'boundaries' to be specified.",
        ));
    };
    if let Some(default) = &default {
        check_default(default, &boundaries, &Collation::of(&cx.expressions))?;
    }
    let key = switch(group_by, &boundaries, default);
    let group = group_spec(key.into(), output);
    group::parse(cx, "$group", ValueRef::Document(group.as_ref()), out)?;
    let order = doc! {"_id": 1};
    sort::parse(cx, "$sort", ValueRef::Document(order.as_ref()), out)
}

/// Returns the argument of a `$group` with this key and these output fields (a count by default).
pub(super) fn group_spec(key: Value, output: Option<Document>) -> Document {
    let output = output.unwrap_or_else(|| doc! {"count": doc! {"$sum": 1}});
    let mut group = DocumentBuilder::new();
    group.append("_id", key);
    for element in output.iter() {
        group.append_element(element);
    }
    group.finish()
}

fn check_group_by(value: ValueRef<'_>) -> Result<ValueRef<'_>> {
    let is_expression = match value {
        ValueRef::String(text) => text.starts_with('$'),
        ValueRef::Document(_) => true,
        _ => false,
    };
    if is_expression {
        Ok(value)
    } else {
        Err(Error::location(
            location::BUCKET_GROUP_BY,
            "The $bucket 'groupBy' field must be defined as a $-prefixed path or an expression object",
        ))
    }
}

fn constant(cx: &PipelineContext, value: ValueRef<'_>, code: i32, what: &str) -> Result<Value> {
    match Expression::parse(value, &cx.expressions)?.as_constant() {
        Some(value) => Ok(value.clone()),
        None => Err(Error::location(
            code,
            format!("The $bucket {what} must be constant"),
        )),
    }
}

fn parse_boundaries(cx: &PipelineContext, value: ValueRef<'_>) -> Result<Vec<Value>> {
    let Some(list) = value.as_array() else {
        return Err(Error::location(
            location::BUCKET_BOUNDARIES_NOT_ARRAY,
            format!(
                "The $bucket 'boundaries' field must be an array, but found type: {}.",
                value.type_name()
            ),
        ));
    };
    let boundaries: Vec<Value> = list
        .iter()
        .map(|value| {
            constant(
                cx,
                value,
                location::BUCKET_BOUNDARY_NOT_CONSTANT,
                "'boundaries'",
            )
        })
        .collect::<Result<_>>()?;
    if boundaries.len() < 2 {
        return Err(Error::location(
            location::BUCKET_BOUNDARIES_TOO_FEW,
            format!(
                "The $bucket 'boundaries' field must have at least 2 values, but found {} value(s).",
                boundaries.len()
            ),
        ));
    }
    let collation = Collation::of(&cx.expressions);
    for pair in boundaries.windows(2) {
        let [low, high] = pair else { continue };
        if canonical_type(low.as_ref()) != canonical_type(high.as_ref()) {
            return Err(Error::location(
                location::BUCKET_BOUNDARIES_MIXED,
                format!(
                    "All values in the 'boundaries' option to $bucket must have the same type. Found conflicting types {} and {}.",
                    low.type_name(),
                    high.type_name()
                ),
            ));
        }
        if collation.compare(low.as_ref(), high.as_ref()) != Ordering::Less {
            return Err(Error::location(
                location::BUCKET_BOUNDARIES_UNSORTED,
                "The 'boundaries' option to $bucket must be sorted in ascending order",
            ));
        }
    }
    Ok(boundaries)
}

fn parse_default(cx: &PipelineContext, value: ValueRef<'_>) -> Result<Value> {
    constant(
        cx,
        value,
        location::BUCKET_DEFAULT_NOT_CONSTANT,
        "'default' field",
    )
}

fn check_default(default: &Value, boundaries: &[Value], collation: &Collation) -> Result<()> {
    let (Some(low), Some(high)) = (boundaries.first(), boundaries.last()) else {
        return Ok(());
    };
    let default = default.as_ref();
    let below = collation.compare(default, low.as_ref()).is_lt();
    let above = collation.compare(default, high.as_ref()).is_ge();
    if below || above {
        Ok(())
    } else {
        Err(Error::location(
            location::BUCKET_DEFAULT_WITHIN,
            "The $bucket 'default' field must be less than the lowest boundary or greater than or equal to the highest boundary.",
        ))
    }
}

fn check_output(value: ValueRef<'_>) -> Result<Document> {
    match value.as_document() {
        Some(output) => Ok(output.to_document()),
        None => Err(Error::location(
            location::BUCKET_OUTPUT_NOT_OBJECT,
            format!(
                "The $bucket 'output' field must be an object, but found type: {}.",
                value.type_name()
            ),
        )),
    }
}

fn switch(group_by: ValueRef<'_>, boundaries: &[Value], default: Option<Value>) -> Document {
    let literal = |value: &Value| doc! {"$literal": value.clone()};
    let mut branches = Vec::new();
    for pair in boundaries.windows(2) {
        let [low, high] = pair else { continue };
        let from = doc! {"$gte": array![group_by, literal(low)]};
        let to = doc! {"$lt": array![group_by, literal(high)]};
        let case = doc! {"$and": array![from, to]};
        branches.push(Value::from(doc! {"case": case, "then": literal(low)}));
    }
    let mut switch = DocumentBuilder::new();
    switch.append("branches", branches);
    if let Some(default) = &default {
        switch.append("default", literal(default));
    }
    doc! {"$switch": switch.finish()}
}

#[cfg(test)]
mod tests {
    use super::super::testing::code;
    use super::*;
    use crate::query::exec::testing::run_stages;

    fn bucket(fields: &[(&str, Value)]) -> Value {
        let mut spec = DocumentBuilder::new();
        for (name, value) in fields {
            spec.append(name, value.clone());
        }
        array![doc! {"$bucket": spec.finish()}]
    }

    #[test]
    fn values_fall_into_ranges() {
        let stages = bucket(&[
            ("groupBy", "$a".into()),
            ("boundaries", array![0, 10, 20]),
            ("default", "rest".into()),
        ]);
        let documents = [0, 5, 10, 19, 20, -1].map(|a| doc! {"a": a}).to_vec();
        assert_eq!(
            run_stages(stages, documents).unwrap(),
            [
                doc! {"_id": 0, "count": 2},
                doc! {"_id": 10, "count": 2},
                doc! {"_id": "rest", "count": 2},
            ]
        );
    }

    #[test]
    fn a_value_outside_needs_a_default() {
        let stages = bucket(&[("groupBy", "$a".into()), ("boundaries", array![0, 10])]);
        let error = run_stages(stages, vec![doc! {"a": 10}]).unwrap_err();
        assert_eq!(error.code.0, 40_066);
    }

    #[test]
    fn bad_arguments_are_refused() {
        let by = ("groupBy", Value::from("$a"));
        let bounds = ("boundaries", array![0, 10]);
        assert_eq!(code(array![doc! {"$bucket": 1}]), 40_201);
        assert_eq!(code(bucket(std::slice::from_ref(&by))), 40_198);
        assert_eq!(code(bucket(&[("groupBy", 1.into())])), 40_202);
        let with = |field| code(bucket(&[by.clone(), bounds.clone(), field]));
        assert_eq!(with(("output", 1.into())), 40_196);
        assert_eq!(with(("default", 5.into())), 40_199);
        assert_eq!(with(("default", "$a".into())), 40_195);
        assert_eq!(with(("what", 1.into())), 40_197);
        let bounds = |value| code(bucket(&[by.clone(), ("boundaries", value)]));
        assert_eq!(bounds(1.into()), 40_200);
        assert_eq!(bounds(array![1]), 40_192);
        assert_eq!(bounds(array![1, "a"]), 40_193);
        assert_eq!(bounds(array![2, 1]), 40_194);
        assert_eq!(bounds(array!["$a", 1]), 40_191);
    }
}
