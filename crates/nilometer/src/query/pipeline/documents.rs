//! `$documents: [..]`: the pipeline contains its own input documents.

use nilometer_bson::{DocumentBuilder, Value, ValueRef};

use super::needs::Needs;
use super::{PipelineContext, PipelineStage, Stage};
use crate::error::{Error, Result, location};
use crate::eval::Expression;

/// A parsed `$documents`.
#[derive(Debug)]
pub struct DocumentsStage {
    /// Computes the array of documents.
    pub expression: Expression,
    source: Value,
}

impl PipelineStage for DocumentsStage {
    fn name(&self) -> &'static str {
        "$documents"
    }

    fn explain(&self, name: &str, out: &mut DocumentBuilder) {
        out.append(name, self.source.clone());
    }

    fn needs(&self, _: &Needs) -> Needs {
        Needs::none()
    }

    fn is_source(&self) -> bool {
        true
    }
}

/// Returns a stage whose input is `documents`.
pub fn given(documents: Vec<nilometer_bson::Document>) -> Stage {
    let documents = Value::from(documents.into_iter().map(Value::from).collect::<Vec<_>>());
    Stage::Documents(std::sync::Arc::new(DocumentsStage {
        expression: Expression::constant(documents.clone()),
        source: documents,
    }))
}

/// Parses `$documents`.
pub(super) fn parse(
    cx: &PipelineContext,
    _: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    if !matches!(
        value,
        ValueRef::Array(_) | ValueRef::Document(_) | ValueRef::String(_)
    ) {
        return Err(not_an_array(value));
    }
    out.push(Stage::Documents(std::sync::Arc::new(DocumentsStage {
        expression: Expression::parse(value, &cx.expressions)?,
        source: value.to_value(),
    })));
    Ok(())
}

/// Returns the error for an argument that is no array of documents.
pub(crate) fn not_an_array(value: ValueRef<'_>) -> Error {
    Error::location(
        location::DOCUMENTS_NOT_ARRAY,
        format!(
            "an array is expected by $documents, found {}",
            value.type_name()
        ),
    )
}
