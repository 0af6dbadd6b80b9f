//! `$unionWith`: appends the documents of another collection.

use std::sync::Arc;

use nilometer_bson::{DocumentBuilder, Value, ValueRef};

use super::needs::Needs;
use super::{PipelineContext, PipelineStage, Place, Stage, parse_pipeline_value};
use crate::error::{Error, Result};

/// A parsed `$unionWith`.
#[derive(Debug)]
pub struct UnionWithStage {
    /// The other collection; `None` if the pipeline generates its documents.
    pub collection: Option<Arc<str>>,
    /// The pipeline applied to its documents.
    pub stages: Vec<Stage>,
    /// Nesting depth: the number of enclosing pipelines.
    pub depth: usize,
    source: Value,
}

impl PipelineStage for UnionWithStage {
    fn name(&self) -> &'static str {
        "$unionWith"
    }

    fn explain(&self, name: &str, out: &mut DocumentBuilder) {
        out.append(name, self.source.clone());
    }

    fn needs(&self, after: &Needs) -> Needs {
        after.clone()
    }
}

/// Parses `$unionWith`.
pub(super) fn parse(
    cx: &PipelineContext,
    _: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let nested = cx.nested(Place::Union, cx.expressions.clone())?;
    let mut collection = None;
    let mut stages = Vec::new();
    match value {
        ValueRef::String(name) => collection = Some(Arc::from(name)),
        ValueRef::Document(document) => {
            for element in document {
                match (element.name(), element.value()) {
                    ("coll", ValueRef::String(name)) => collection = Some(Arc::from(name)),
                    ("coll", other) => {
                        return Err(Error::wrong_field_type("$unionWith.coll", other, "string"));
                    }
                    ("pipeline", value) => {
                        stages = parse_pipeline_value(&nested, "pipeline", value)?;
                    }
                    (other, _) => {
                        return Err(Error::unknown_field(format_args!("$unionWith.{other}")));
                    }
                }
            }
        }
        other => {
            return Err(Error::failed_to_parse(format!(
                "the $unionWith stage specification must be an object or string, but found {}",
                other.type_name()
            )));
        }
    }
    if collection.is_none() && !stages.first().is_some_and(Stage::is_source) {
        return Err(Error::failed_to_parse(
            "the $unionWith stage without explicit collection must have a pipeline with $documents as first stage",
        ));
    }
    out.push(Stage::UnionWith(Arc::new(UnionWithStage {
        collection,
        stages,
        depth: nested.depth,
        source: value.to_value(),
    })));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::code;
    use nilometer_bson::{array, doc};

    #[test]
    fn arguments_are_checked() {
        let union = |spec: nilometer_bson::Value| code(array![doc! {"$unionWith": spec}]);
        assert_eq!(union("other".into()), 0);
        assert_eq!(union(doc! {"coll": "x", "pipeline": array![]}.into()), 0);
        let own = array![doc! {"$documents": array![]}];
        assert_eq!(union(doc! {"pipeline": own}.into()), 0);
        assert_eq!(union(doc! {"pipeline": array![]}.into()), 9);
        assert_eq!(union(1.into()), 9);
        assert_eq!(union(doc! {"coll": 1}.into()), 14);
        assert_eq!(union(doc! {"coll": "x", "what": 1}.into()), 40_415);
    }
}
