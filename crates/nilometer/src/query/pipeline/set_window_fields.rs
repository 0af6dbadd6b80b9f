//! `$setWindowFields`: fields computed over a document's neighbours.

use std::sync::Arc;

use nilometer_bson::{DocumentBuilder, ValueRef};

use super::{OtherStage, PipelineContext, Stage};
use crate::error::Result;
use crate::eval::Dependencies;
use crate::eval::window::SetWindowFields;
use crate::query::exec::BoxOperator;
use crate::query::exec::set_window_fields::WindowFields;
use crate::query::planner::Builder;
use crate::query::planner::needs::Needs;

#[derive(Debug)]
struct SetWindowFieldsStage(Arc<SetWindowFields>);

impl OtherStage for SetWindowFieldsStage {
    fn name(&self) -> &'static str {
        "$setWindowFields"
    }

    fn explain(&self, name: &str, out: &mut DocumentBuilder) {
        out.append(name, self.0.source().clone());
    }

    fn needs(&self, after: &Needs) -> Needs {
        let mut dependencies = Dependencies::default();
        self.0.dependencies(&mut dependencies);
        // A dotted output writes into what is there, so nothing it names is taken away.
        Needs::of(&dependencies).and(after)
    }

    fn build(&self, input: BoxOperator, _: &Builder) -> Result<BoxOperator> {
        Ok(Box::new(WindowFields::new(input, Arc::clone(&self.0))))
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
    out.push(Stage::Other(Arc::new(SetWindowFieldsStage(Arc::new(spec)))));
    Ok(())
}
