//! `$setWindowFields`: fields computed over a document's neighbours.

use std::sync::Arc;

use nilometer_bson::{Document, DocumentBuilder, ValueRef};

use super::{OtherStage, PipelineContext, Stage};
use crate::error::Result;
use crate::eval::Dependencies;
use crate::eval::sort_key::SortPattern;
use crate::eval::window::SetWindowFields;
use crate::query::exec::BoxOperator;
use crate::query::exec::set_window_fields::WindowFields;
use crate::query::planner::Builder;
use crate::query::planner::needs::Needs;

#[derive(Debug)]
struct SetWindowFieldsStage {
    spec: Arc<SetWindowFields>,
    /// The input comes by partition, and within each as asked.
    is_in_order: bool,
}

impl OtherStage for SetWindowFieldsStage {
    fn name(&self) -> &'static str {
        match self.is_in_order {
            true => "$_internalSetWindowFields",
            false => "$setWindowFields",
        }
    }

    fn explain(&self, name: &str, out: &mut DocumentBuilder) {
        out.append(name, self.spec.source().clone());
    }

    fn needs(&self, after: &Needs) -> Needs {
        let mut dependencies = Dependencies::default();
        self.spec.dependencies(&mut dependencies);
        // A dotted output writes into what is there, so nothing it names is taken away.
        Needs::of(&dependencies).and(after)
    }

    fn wants_order(&self) -> Option<Document> {
        let mut out = DocumentBuilder::new();
        if let Some(partition) = self.spec.partition_by() {
            out.append(partition.as_field_path()?.as_str(), 1);
        }
        let sort_by = self.spec.sort_by().map(SortPattern::to_document);
        for part in sort_by.iter().flat_map(Document::iter) {
            out.append_element(part);
        }
        (!self.is_in_order && !out.is_empty()).then(|| out.finish())
    }

    fn in_order(&self) -> Option<Arc<dyn OtherStage>> {
        Some(Arc::new(Self {
            spec: Arc::clone(&self.spec),
            is_in_order: true,
        }))
    }

    fn reads_columns(&self, time_field: &str) -> bool {
        self.is_in_order && self.spec.reads_columns(time_field)
    }

    fn build(&self, input: BoxOperator, _: &Builder) -> Result<BoxOperator> {
        let spec = Arc::clone(&self.spec);
        Ok(Box::new(match self.is_in_order {
            true => WindowFields::in_order(input, spec),
            false => WindowFields::new(input, spec),
        }))
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
    out.push(Stage::Other(Arc::new(SetWindowFieldsStage {
        spec: Arc::new(spec),
        is_in_order: false,
    })));
    Ok(())
}
