//! `$fill`: values for fields that are null or missing.
//!
//! The stage expands to two others: one `$setWindowFields` for all fields filled by a method, then one `$addFields` for
//! all fields filled by a value. Expressions of the second stage see the fields filled by the first.
//!
//! ```text
//! {sortBy: {t: 1}, output: {a: {method: "linear"}, b: {method: "locf"}, c: {value: 0}}}
//!     ──► {$setWindowFields: {sortBy: {t: 1}, output: {a: {$linearFill: "$a"}, b: {$locf: "$b"}}}}
//!         {$addFields: {c: {$ifNull: ["$c", 0]}}}
//! ```

use nilometer_bson::{ArrayRef, DocRef, Document, DocumentBuilder, Value, ValueRef, array, doc};

use super::{PipelineContext, Stage, object, project, set_window_fields};
use crate::error::{Error, Result, location};
use crate::eval::expression::parse_path;

/// Parses `$fill`.
pub(super) fn parse(
    cx: &PipelineContext,
    _: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let spec = object(
        value,
        "The $fill stage specification must be an object, found",
    )?;
    let (mut partition_by, mut by_fields, mut sort_by, mut output) = (None, None, None, None);
    for element in spec {
        match (element.name(), element.value()) {
            ("partitionBy", by @ (ValueRef::String(_) | ValueRef::Document(_))) => {
                partition_by = Some(by.to_value());
            }
            ("partitionBy", other) => {
                return Err(Error::wrong_field_type(
                    "$fill.partitionBy",
                    other,
                    "object",
                ));
            }
            ("partitionByFields", ValueRef::Array(fields)) => by_fields = Some(fields),
            ("partitionByFields", other) => {
                return Err(Error::wrong_field_type(
                    "$fill.partitionByFields",
                    other,
                    "array",
                ));
            }
            ("sortBy", ValueRef::Document(by)) => sort_by = Some(by),
            ("sortBy", other) => {
                return Err(Error::wrong_field_type("$fill.sortBy", other, "object"));
            }
            ("output", ValueRef::Document(fields)) => output = Some(fields),
            ("output", other) => {
                return Err(Error::wrong_field_type("$fill.output", other, "object"));
            }
            (other, _) => return Err(Error::unknown_field(format_args!("$fill.{other}"))),
        }
    }
    let Some(output) = output else {
        return Err(Error::missing_field("$fill.output"));
    };
    if output.is_empty() {
        return Err(Error::location(
            location::FILL_OUTPUT_EMPTY,
            "The output field must contain at least one field to fill",
        ));
    }
    let partition_by = partition(partition_by, by_fields)?;
    let (by_method, by_value) = split(output)?;
    if let Some(fields) = by_method {
        let window = window(partition_by, sort_by, fields);
        let window = ValueRef::Document(window.as_ref());
        set_window_fields::parse(cx, "$setWindowFields", window, out)?;
    }
    if let Some(fields) = by_value {
        let fields = ValueRef::Document(fields.as_ref());
        project::parse_add_fields(cx, "$addFields", fields, out)?;
    }
    Ok(())
}

/// Returns the argument of `$setWindowFields`.
fn window(partition_by: Option<Value>, sort_by: Option<DocRef<'_>>, output: Document) -> Document {
    let mut window = DocumentBuilder::new();
    if let Some(by) = partition_by {
        window.append("partitionBy", by);
    }
    if let Some(by) = sort_by {
        window.append("sortBy", by);
    }
    window.append("output", output);
    window.finish()
}

/// Returns the partition expression, from `partitionBy` or from `partitionByFields`.
fn partition(
    partition_by: Option<Value>,
    by_fields: Option<ArrayRef<'_>>,
) -> Result<Option<Value>> {
    Ok(match (partition_by, by_fields) {
        (Some(_), Some(_)) => {
            return Err(Error::location(
                location::FILL_TWO_PARTITIONS,
                "Maximum one of 'partitionBy' and 'partitionByFields' can be specified in '$fill'",
            ));
        }
        (Some(by), None) => Some(by),
        (None, Some(fields)) => compound_key(fields)?,
        (None, None) => None,
    })
}

/// Returns the fields as an object expression; its member names do not matter.
fn compound_key(fields: ArrayRef<'_>) -> Result<Option<Value>> {
    let mut key = DocumentBuilder::new();
    for (at, field) in fields.iter().enumerate() {
        let Some(path) = field.as_str() else {
            return Err(Error::wrong_field_type(
                "$fill.partitionByFields.0",
                field,
                "string",
            ));
        };
        parse_path(path)?;
        key.append(&format!("f{at}"), format!("${path}"));
    }
    Ok((!fields.is_empty()).then(|| key.finish().into()))
}

/// Splits `output` into the outputs of `$setWindowFields` and the fields of `$addFields`.
fn split(output: DocRef<'_>) -> Result<(Option<Document>, Option<Document>)> {
    let mut by_method = DocumentBuilder::new();
    let mut by_value = DocumentBuilder::new();
    for field in output {
        let path = field.name();
        parse_path(path)?;
        let Some(spec) = field.value().as_document() else {
            return Err(Error::location(
                location::FILL_OUTPUT_NOT_OBJECT,
                format!(
                    "Each field in the $fill 'output' must be an object, but '{path}' is {}",
                    field.value().type_name()
                ),
            ));
        };
        if let Some(other) = spec
            .iter()
            .find(|e| !matches!(e.name(), "value" | "method"))
        {
            let path = format_args!("$fill.output.{}", other.name());
            return Err(Error::unknown_field(path));
        }
        let own = format!("${path}");
        match (spec.get("value"), spec.get("method")) {
            (ValueRef::Missing, ValueRef::String("locf")) => {
                by_method.append(path, doc! {"$locf": own});
            }
            (ValueRef::Missing, ValueRef::String("linear")) => {
                by_method.append(path, doc! {"$linearFill": own});
            }
            (ValueRef::Missing, ValueRef::String(other)) => {
                return Err(Error::location(
                    location::FILL_METHOD_UNKNOWN,
                    format!("Method must be either 'locf' or 'linear', found '{other}'"),
                ));
            }
            (value, ValueRef::Missing) if !value.is_missing() => {
                let filled = array![own, value.to_value()];
                by_value.append(path, doc! {"$ifNull": filled});
            }
            (ValueRef::Missing, other) if !other.is_missing() => {
                return Err(Error::wrong_field_type(
                    "$fill.output.method",
                    other,
                    "string",
                ));
            }
            _ => {
                return Err(Error::location(
                    location::FILL_VALUE_AND_METHOD,
                    "Each output field of $fill must have exactly one of 'value' and 'method'",
                ));
            }
        }
    }
    let some = |fields: DocumentBuilder| {
        let fields = fields.finish();
        (!fields.is_empty()).then_some(fields)
    };
    Ok((some(by_method), some(by_value)))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{code, parse};
    use crate::query::exec::testing::run_stages;
    use nilometer_bson::{Document, Value, array, doc};

    fn fill(spec: Document) -> i32 {
        code(array![doc! {"$fill": spec}])
    }

    #[test]
    fn it_is_two_other_stages() {
        let output = doc! {
            "c": doc! {"value": "$a"},
            "a": doc! {"method": "linear"},
            "b": doc! {"method": "locf"},
        };
        let spec = doc! {"sortBy": doc! {"t": 1}, "output": output};
        let stages = parse(array![doc! {"$fill": spec}]).unwrap();
        let shown: Vec<Document> = stages.iter().map(super::Stage::explain).collect();
        let window = doc! {
            "sortBy": doc! {"t": 1},
            "output": doc! {"a": doc! {"$linearFill": "$a"}, "b": doc! {"$locf": "$b"}},
        };
        assert_eq!(
            shown,
            [
                doc! {"$setWindowFields": window},
                doc! {"$addFields": doc! {"c": doc! {"$ifNull": array!["$c", "$a"]}}},
            ]
        );
    }

    #[test]
    fn values_see_what_methods_have_filled() {
        let output = doc! {"b": doc! {"value": "$a"}, "a": doc! {"method": "linear"}};
        let spec =
            doc! {"partitionByFields": array!["p"], "sortBy": doc! {"t": 1}, "output": output};
        let documents = vec![
            doc! {"p": 1, "t": 0, "a": 10},
            doc! {"p": 1, "t": 2, "a": 20},
            doc! {"p": 1, "t": 1, "a": Value::Null},
            doc! {"p": 2, "t": 1},
        ];
        let found = run_stages(array![doc! {"$fill": spec}], documents).unwrap();
        let filled: Vec<Value> = found.iter().map(|d| d.get("b").to_value()).collect();
        let expected = array![10, 15.0, 20, Value::Null];
        assert_eq!(doc! {"b": filled}, doc! {"b": expected});
    }

    #[test]
    fn arguments_are_checked() {
        let with = |field: Document| fill(doc! {"output": doc! {"a": field}});
        assert_eq!(code(array![doc! {"$fill": 1}]), 9);
        assert_eq!(fill(doc! {}), 40_414);
        assert_eq!(fill(doc! {"x": 1}), 40_415);
        assert_eq!(fill(doc! {"output": 1}), 14);
        assert_eq!(fill(doc! {"output": doc! {}}), 6_050_203);
        assert_eq!(fill(doc! {"output": doc! {"a": 1}}), 6_050_200);
        assert_eq!(with(doc! {"value": 1}), 0);
        assert_eq!(with(doc! {"value": 1, "more": 1}), 40_415);
        assert_eq!(with(doc! {}), 6_050_201);
        assert_eq!(with(doc! {"value": 1, "method": "locf"}), 6_050_201);
        assert_eq!(with(doc! {"method": "cubic"}), 6_050_202);
        assert_eq!(with(doc! {"method": 1}), 14);
        assert_eq!(with(doc! {"method": "linear"}), 605_001);
        let output = doc! {"a": doc! {"value": 1}};
        assert_eq!(fill(doc! {"partitionBy": 1, "output": output.clone()}), 14);
        assert_eq!(fill(doc! {"sortBy": 1, "output": output.clone()}), 14);
        assert_eq!(
            fill(doc! {"partitionByFields": "a", "output": output.clone()}),
            14
        );
        assert_eq!(
            fill(doc! {"partitionByFields": array![1], "output": output.clone()}),
            14
        );
        assert_eq!(
            fill(doc! {"partitionByFields": array!["$a"], "output": output.clone()}),
            16_410
        );
        let both = doc! {"partitionBy": "$a", "partitionByFields": array!["a"], "output": output};
        assert_eq!(fill(both), 6_050_204);
    }
}
