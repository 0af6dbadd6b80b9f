//! `$setWindowFields`: computes fields over windows of neighbouring documents.

use std::sync::Arc;

use nilometer_bson::{DocumentBuilder, ValueRef};

use super::needs::Needs;
use super::{PipelineContext, PipelineStage, Stage};
use crate::error::Result;
use crate::eval::Dependencies;
use crate::eval::window::SetWindowFields;

/// A parsed `$setWindowFields`.
#[derive(Clone, Debug)]
pub struct SetWindowFieldsStage {
    /// Partitions, sort order and outputs.
    pub spec: Arc<SetWindowFields>,
}

impl PipelineStage for SetWindowFieldsStage {
    fn name(&self) -> &'static str {
        "$setWindowFields"
    }

    fn explain(&self, name: &str, out: &mut DocumentBuilder) {
        out.append(name, self.spec.source().clone());
    }

    fn needs(&self, after: &Needs) -> Needs {
        let mut dependencies = Dependencies::default();
        self.spec.dependencies(&mut dependencies);
        // A dotted output is written into an existing object, so none of its fields are removed from the needs.
        Needs::of(&dependencies).and(after)
    }
}

/// Parses `$setWindowFields`.
pub(super) fn parse(
    cx: &PipelineContext,
    _: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let spec = SetWindowFields::parse(value, &cx.expressions)?;
    out.push(Stage::SetWindowFields(Arc::new(SetWindowFieldsStage {
        spec: Arc::new(spec),
    })));
    Ok(())
}
