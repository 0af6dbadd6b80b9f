//! `$lookup`: joins documents of another collection as an array.

use std::sync::Arc;

use nilometer_bson::path::FieldPath;
use nilometer_bson::{DocRef, DocumentBuilder, Value, ValueRef};

use super::needs::Needs;
use super::{PipelineContext, PipelineStage, Place, Stage, object, parse_pipeline_value};
use crate::error::{Error, ErrorCode, Result};
use crate::eval::Expression;
use crate::eval::expression::parse_path;
use crate::eval::matcher::MatchPath;
use crate::eval::variables::check_user_name;

/// A parsed `$lookup`.
#[derive(Clone, Debug)]
pub struct LookupStage {
    /// The other collection; `None` if the pipeline generates its documents.
    pub from: Option<Arc<str>>,
    /// The path that receives the array.
    pub target: FieldPath,
    /// The paths that must be equal.
    pub equality: Option<LookupEquality>,
    /// Variables of the pipeline in the order of their slots, which follow the enclosing variables.
    pub variables: Vec<Expression>,
    /// Number of enclosing variables.
    pub outer: usize,
    /// The pipeline applied to the other documents.
    pub stages: Vec<Stage>,
    /// Nesting depth: the number of enclosing pipelines.
    pub depth: usize,
    source: Value,
}

/// `localField` and `foreignField`.
#[derive(Clone, Debug)]
pub struct LookupEquality {
    /// The path in documents of this pipeline.
    pub local: MatchPath,
    /// The path in documents of the other collection.
    pub foreign: MatchPath,
}

impl LookupStage {
    /// Returns the arguments as written.
    pub fn arguments(&self) -> DocRef<'_> {
        self.source.as_ref().as_document().unwrap_or(DocRef::EMPTY)
    }

    /// True if the pipeline draws at random.
    pub fn is_random(&self) -> bool {
        let spec = self.source.as_ref().as_document();
        spec.is_some_and(|spec| draws(spec.get("pipeline")))
    }
}

/// True if a pipeline as written draws at random, in whatever stage. A literal that looks like an operator counts.
pub fn draws(pipeline: ValueRef<'_>) -> bool {
    match pipeline {
        ValueRef::Document(document) => document.iter().any(|element| {
            matches!(element.name(), "$rand" | "$sample" | "$sampleRate") || draws(element.value())
        }),
        ValueRef::Array(array) => array.iter().any(draws),
        _ => false,
    }
}

impl PipelineStage for LookupStage {
    fn name(&self) -> &'static str {
        "$lookup"
    }

    fn explain(&self, name: &str, out: &mut DocumentBuilder) {
        out.append(name, self.source.clone());
    }

    fn needs(&self, after: &Needs) -> Needs {
        // A replaced field keeps its position, so the input must contain it.
        let mut needs = after.clone();
        if let Some(equality) = &self.equality {
            needs.add_path(equality.local.as_str());
        }
        for variable in &self.variables {
            needs.add(&Needs::of_expression(variable));
        }
        needs
    }

    fn adds(&self) -> Option<&str> {
        Some(self.target.as_str())
    }
}

/// Parses `$lookup`.
pub(super) fn parse(
    cx: &PipelineContext,
    _: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let spec = object(
        value,
        "the $lookup stage specification must be an object, but found",
    )?;
    let mut fields = Fields::default();
    for element in spec {
        fields.read(cx, element.name(), element.value())?;
    }
    let mut inner = cx.expressions.clone();
    let mut variables = Vec::new();
    for (name, variable) in fields.variables.iter().flatten() {
        inner.define(name);
        variables.push(variable.clone());
    }
    let nested = cx.nested(Place::Lookup, inner)?;
    let stages = match &fields.pipeline {
        Some(pipeline) => parse_pipeline_value(&nested, "pipeline", pipeline.as_ref())?,
        None => Vec::new(),
    };
    let makes_documents = stages.first().is_some_and(Stage::is_source);
    let equality = match (&fields.local, &fields.foreign) {
        (Some(local), Some(foreign)) => Some(LookupEquality {
            local: MatchPath::new(local),
            foreign: MatchPath::new(foreign),
        }),
        (None, None) => None,
        _ => {
            return Err(Error::failed_to_parse(
                "$lookup requires both or neither of 'localField' and 'foreignField' to be specified",
            ));
        }
    };
    if let Some(complaint) = fields.complaint(equality.is_some(), makes_documents) {
        return Err(Error::failed_to_parse(complaint));
    }
    let Some(target) = fields.target else {
        return Err(Error::failed_to_parse(
            "must specify 'as' field for a $lookup",
        ));
    };
    out.push(Stage::Lookup(Arc::new(LookupStage {
        from: fields.from,
        target: parse_path(&target)?,
        equality,
        variables,
        outer: cx.expressions.variable_count(),
        stages,
        depth: nested.depth,
        source: value.to_value(),
    })));
    Ok(())
}

#[derive(Default)]
struct Fields {
    from: Option<Arc<str>>,
    local: Option<Arc<str>>,
    foreign: Option<Arc<str>>,
    target: Option<Arc<str>>,
    variables: Option<Vec<(Arc<str>, Expression)>>,
    pipeline: Option<Value>,
}

impl Fields {
    /// Returns the error message if the options are incomplete or exclude each other.
    fn complaint(&self, has_equality: bool, makes_documents: bool) -> Option<&'static str> {
        let has_pipeline = self.pipeline.is_some();
        if !has_equality && !has_pipeline {
            Some(
                "$lookup requires either 'pipeline' or both 'localField' and 'foreignField' to be specified",
            )
        } else if self.variables.is_some() && !has_pipeline {
            Some("$lookup with a 'let' argument must also specify 'pipeline'")
        } else if self.from.is_none() && !makes_documents {
            Some("must specify 'from' field for a $lookup")
        } else {
            None
        }
    }

    fn read(&mut self, cx: &PipelineContext, name: &str, value: ValueRef<'_>) -> Result<()> {
        let slot = match name {
            "from" => &mut self.from,
            "localField" => &mut self.local,
            "foreignField" => &mut self.foreign,
            "as" => &mut self.target,
            "pipeline" => {
                if value.as_array().is_none() {
                    return Err(Error::type_mismatch(
                        "'pipeline' option must be specified as an array",
                    ));
                }
                self.pipeline = Some(value.to_value());
                return Ok(());
            }
            "let" => {
                let Some(list) = value.as_document() else {
                    return Err(Error::failed_to_parse(format!(
                        "$lookup argument 'let: {}' must be an object",
                        value.type_name()
                    )));
                };
                let mut variables = Vec::new();
                for element in list {
                    check_user_name(element.name())?;
                    let expression = Expression::parse(element.value(), &cx.expressions)?;
                    variables.push((element.name().into(), expression));
                }
                self.variables = Some(variables);
                return Ok(());
            }
            other => {
                return Err(Error::new(
                    ErrorCode::FailedToParse,
                    format!("unknown argument to $lookup: {other}"),
                ));
            }
        };
        match value.as_str() {
            Some(text) => *slot = Some(text.into()),
            None => {
                return Err(Error::failed_to_parse(format!(
                    "$lookup argument '{name}' must be a string, is type {}",
                    value.type_name()
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::code;
    use super::*;
    use nilometer_bson::{array, doc};

    #[test]
    fn arguments_are_checked() {
        let lookup = |fields: &[(&str, Value)]| {
            let mut spec = DocumentBuilder::new();
            for (name, value) in fields {
                spec.append(name, value.clone());
            }
            code(array![doc! {"$lookup": spec.finish()}])
        };
        let from = ("from", Value::from("c"));
        let target = ("as", Value::from("x"));
        let local = ("localField", Value::from("a"));
        let foreign = ("foreignField", Value::from("b"));
        let pipeline = ("pipeline", array![]);
        let all = [from.clone(), local.clone(), foreign.clone(), target.clone()];
        assert_eq!(lookup(&all), 0);
        assert_eq!(lookup(&[from.clone(), pipeline.clone(), target.clone()]), 0);
        assert_eq!(lookup(&[from.clone(), local.clone(), target.clone()]), 9);
        assert_eq!(lookup(&[from.clone(), target.clone()]), 9);
        assert_eq!(lookup(&[local, foreign, target.clone()]), 9);
        assert_eq!(lookup(&[from.clone(), pipeline]), 9);
        let variables = ("let", Value::from(doc! {"v": "$a"}));
        assert_eq!(lookup(&[from, variables, target]), 9);
        assert_eq!(code(array![doc! {"$lookup": 1}]), 9);
    }
}
