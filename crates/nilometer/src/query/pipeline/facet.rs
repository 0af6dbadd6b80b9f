//! `$facet`: runs several pipelines over the same input; returns one document with one array for each.

use std::sync::Arc;

use nilometer_bson::{DocumentBuilder, Value, ValueRef};

use super::needs::{Needs, needs_of};
use super::{PipelineContext, PipelineStage, Place, Stage, parse_pipeline};
use crate::error::{Error, Result, location};

/// A parsed `$facet`.
#[derive(Debug)]
pub struct FacetStage {
    /// The pipelines and the fields that receive their results.
    pub facets: Vec<(Arc<str>, Vec<Stage>)>,
    source: Value,
}

impl PipelineStage for FacetStage {
    fn name(&self) -> &'static str {
        "$facet"
    }

    fn explain(&self, name: &str, out: &mut DocumentBuilder) {
        out.append(name, self.source.clone());
    }

    fn needs(&self, _: &Needs) -> Needs {
        let mut all = Needs::none();
        for (_, stages) in &self.facets {
            all.add(&needs_of(stages, &Needs::All));
        }
        all
    }
}

/// Parses `$facet`.
pub(super) fn parse(
    cx: &PipelineContext,
    _: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let Some(document) = value.as_document().filter(|d| !d.is_empty()) else {
        return Err(Error::location(
            location::FACET_NOT_OBJECT,
            "the $facet specification must be a non-empty object",
        ));
    };
    let nested = cx.nested(Place::Facet, cx.expressions.clone())?;
    let mut facets = Vec::new();
    for element in document {
        let name = element.name();
        if name.is_empty() || name.starts_with('$') || name.contains('.') {
            return Err(Error::failed_to_parse(format!(
                "the name of a facet must be a field name without '$' in front and without '.': '{name}'"
            )));
        }
        let Some(array) = element.value().as_array() else {
            return Err(Error::location(
                location::FACET_NOT_ARRAY,
                format!(
                    "arguments to $facet must be arrays, {name} is type {}",
                    element.value().type_name()
                ),
            ));
        };
        let mut stages = Vec::new();
        for value in array.iter() {
            let Some(stage) = value.as_document() else {
                return Err(Error::location(
                    location::FACET_STAGE_NOT_OBJECT,
                    format!(
                        "elements of arrays in $facet spec must be non-empty objects, {name} argument contained an element of type {}",
                        value.type_name()
                    ),
                ));
            };
            stages.push(stage);
        }
        facets.push((name.into(), parse_pipeline(&nested, stages)?));
    }
    out.push(Stage::Facet(Arc::new(FacetStage {
        facets,
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
        let facet = |spec| code(array![doc! {"$facet": spec}]);
        assert_eq!(
            facet(doc! {"a": array![doc! {"$limit": 1}], "b": array![]}),
            0
        );
        assert_eq!(facet(doc! {}), 40_169);
        assert_eq!(facet(doc! {"a": 1}), 40_170);
        assert_eq!(facet(doc! {"a": array![1]}), 40_171);
        let inner = doc! {"b": array![]};
        assert_eq!(facet(doc! {"a": array![doc! {"$facet": inner}]}), 40_600);
        assert_eq!(
            facet(doc! {"a": array![doc! {"$documents": array![]}]}),
            40_600
        );
    }
}
