//! `$graphLookup`: finds documents reachable through another collection, step by step.

use std::sync::Arc;

use nilometer_bson::number::Number;
use nilometer_bson::path::FieldPath;
use nilometer_bson::{DocumentBuilder, Value, ValueRef};

use super::needs::Needs;
use super::{MatchStage, PipelineContext, PipelineStage, Stage, object};
use crate::error::{Error, Result, location};
use crate::eval::Expression;
use crate::eval::expression::parse_path;
use crate::eval::matcher::{MatchExpression, MatchPath};

/// A parsed `$graphLookup`.
#[derive(Clone, Debug)]
pub struct GraphLookupStage {
    /// The collection to search.
    pub from: Arc<str>,
    /// The path that receives the documents.
    pub target: FieldPath,
    /// Computes the values of the first search.
    pub start_with: Expression,
    /// The path whose values in a found document are searched next.
    pub connect_from: MatchPath,
    /// The path that is compared with the values searched for.
    pub connect_to: MatchPath,
    /// Greatest number of steps after the first search.
    pub depth_max: Option<i64>,
    /// The path in each found document that receives its number of steps.
    pub depth_field: Option<FieldPath>,
    /// A filter that found documents must pass.
    pub restrict: Option<MatchStage>,
    /// Nesting depth: the number of enclosing pipelines.
    pub depth: usize,
    source: Value,
}

impl PipelineStage for GraphLookupStage {
    fn name(&self) -> &'static str {
        "$graphLookup"
    }

    fn explain(&self, name: &str, out: &mut DocumentBuilder) {
        out.append(name, self.source.clone());
    }

    fn needs(&self, after: &Needs) -> Needs {
        // A replaced field keeps its position, so the input must contain it.
        after.clone().and(&Needs::of_expression(&self.start_with))
    }

    fn adds(&self) -> Option<&str> {
        Some(self.target.as_str())
    }
}

/// Parses `$graphLookup`.
pub(super) fn parse(
    cx: &PipelineContext,
    _: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let spec = object(
        value,
        "the $graphLookup stage specification must be an object, but found",
    )?;
    let mut arguments = Arguments::default();
    for element in spec {
        arguments.read(cx, element.name(), element.value())?;
    }
    let Some(from) = arguments.from else {
        return Err(Error::failed_to_parse(
            "missing 'from' option to $graphLookup stage specification",
        ));
    };
    let (Some(target), Some(start_with), Some(connect_from), Some(connect_to)) = (
        arguments.target,
        arguments.start_with,
        arguments.connect_from,
        arguments.connect_to,
    ) else {
        return Err(Error::location(
            location::GRAPH_LOOKUP_ARGUMENT_MISSING,
            "$graphLookup requires 'as', 'startWith', 'connectFromField', and 'connectToField' to be specified.",
        ));
    };
    out.push(Stage::GraphLookup(Arc::new(GraphLookupStage {
        from,
        target,
        start_with,
        connect_from: MatchPath::new(connect_from.as_str()),
        connect_to: MatchPath::new(connect_to.as_str()),
        depth_max: arguments.depth_max,
        depth_field: arguments.depth_field,
        restrict: arguments.restrict,
        depth: cx.depth + 1,
        source: value.to_value(),
    })));
    Ok(())
}

#[derive(Default)]
struct Arguments {
    from: Option<Arc<str>>,
    target: Option<FieldPath>,
    start_with: Option<Expression>,
    connect_from: Option<FieldPath>,
    connect_to: Option<FieldPath>,
    depth_max: Option<i64>,
    depth_field: Option<FieldPath>,
    restrict: Option<MatchStage>,
}

impl Arguments {
    fn read(&mut self, cx: &PipelineContext, name: &str, value: ValueRef<'_>) -> Result<()> {
        match name {
            "startWith" => self.start_with = Some(Expression::parse(value, &cx.expressions)?),
            "maxDepth" => self.depth_max = Some(parse_depth(value)?),
            "restrictSearchWithMatch" => {
                let Some(filter) = value.as_document() else {
                    return Err(Error::location(
                        location::GRAPH_LOOKUP_MATCH_NOT_OBJECT,
                        format!(
                            "restrictSearchWithMatch must be an object, found {}",
                            value.type_name()
                        ),
                    ));
                };
                let filter = MatchExpression::parse(filter, &cx.expressions)?;
                self.restrict = Some(MatchStage::new(filter));
            }
            "from" => self.from = Some(parse_string(name, value)?.into()),
            "as" => self.target = Some(parse_path(parse_string(name, value)?)?),
            "connectFromField" => {
                self.connect_from = Some(parse_path(parse_string(name, value)?)?);
            }
            "connectToField" => self.connect_to = Some(parse_path(parse_string(name, value)?)?),
            "depthField" => self.depth_field = Some(parse_path(parse_string(name, value)?)?),
            other => {
                return Err(Error::location(
                    location::GRAPH_LOOKUP_ARGUMENT_UNKNOWN,
                    format!("Unknown argument to $graphLookup: {other}"),
                ));
            }
        }
        Ok(())
    }
}

fn parse_string<'a>(name: &str, value: ValueRef<'a>) -> Result<&'a str> {
    value.as_str().ok_or_else(|| {
        Error::location(
            location::GRAPH_LOOKUP_ARGUMENT_NOT_STRING,
            format!(
                "expected string as argument for {name}, found: {}",
                value.type_name()
            ),
        )
    })
}

fn parse_depth(value: ValueRef<'_>) -> Result<i64> {
    let Some(number) = Number::of(value) else {
        return Err(Error::location(
            location::GRAPH_LOOKUP_DEPTH_NOT_NUMBER,
            format!(
                "maxDepth requires a numeric argument, found type: {}",
                value.type_name()
            ),
        ));
    };
    if number.compare(Number::Int(0)).is_lt() && !number.is_nan() {
        return Err(Error::location(
            location::GRAPH_LOOKUP_DEPTH_NEGATIVE,
            "maxDepth requires a nonnegative argument",
        ));
    }
    number.to_i64_exact().ok_or_else(|| {
        Error::location(
            location::GRAPH_LOOKUP_DEPTH_NOT_WHOLE,
            "maxDepth could not be represented as a long long",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::code;
    use super::*;
    use nilometer_bson::{array, doc};

    #[test]
    fn arguments_are_checked() {
        let all: [(&str, Value); 5] = [
            ("from", "c".into()),
            ("startWith", "$a".into()),
            ("connectFromField", "a".into()),
            ("connectToField", "b".into()),
            ("as", "x".into()),
        ];
        let graph = |name: &str, value: Value| {
            let mut spec = DocumentBuilder::new();
            for (known, given) in all.iter().filter(|(known, _)| *known != name) {
                spec.append(known, given.clone());
            }
            if !value.is_missing() {
                spec.append(name, value);
            }
            code(array![doc! {"$graphLookup": spec.finish()}])
        };
        assert_eq!(graph("none", Value::Missing), 0);
        assert_eq!(graph("from", Value::Missing), 9);
        for name in ["startWith", "connectFromField", "connectToField", "as"] {
            assert_eq!(
                graph(name, Value::Missing),
                location::GRAPH_LOOKUP_ARGUMENT_MISSING,
                "{name}"
            );
        }
        for name in [
            "from",
            "connectFromField",
            "connectToField",
            "as",
            "depthField",
        ] {
            assert_eq!(
                graph(name, 1.into()),
                location::GRAPH_LOOKUP_ARGUMENT_NOT_STRING,
                "{name}"
            );
        }
        assert_eq!(graph("as", "$x".into()), 16_410);
        assert_eq!(
            graph("maxDepth", "1".into()),
            location::GRAPH_LOOKUP_DEPTH_NOT_NUMBER
        );
        assert_eq!(
            graph("maxDepth", (-1).into()),
            location::GRAPH_LOOKUP_DEPTH_NEGATIVE
        );
        assert_eq!(
            graph("maxDepth", 1.5.into()),
            location::GRAPH_LOOKUP_DEPTH_NOT_WHOLE
        );
        assert_eq!(graph("maxDepth", 1.0.into()), 0);
        assert_eq!(
            graph("restrictSearchWithMatch", 1.into()),
            location::GRAPH_LOOKUP_MATCH_NOT_OBJECT
        );
        assert_eq!(
            graph(
                "restrictSearchWithMatch",
                doc! {"a": doc! {"$gt": 1}}.into()
            ),
            0
        );
        assert_eq!(
            graph("what", 1.into()),
            location::GRAPH_LOOKUP_ARGUMENT_UNKNOWN
        );
        assert_eq!(code(array![doc! {"$graphLookup": 1}]), 9);
    }
}
