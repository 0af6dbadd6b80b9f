//! `$setWindowFields`: fields computed over a document's neighbours.

use std::sync::Arc;

use nilometer_bson::{Document, DocumentBuilder, ValueRef};

use super::{DensifyStage, OtherStage, PipelineContext, Stage};
use crate::error::Result;
use crate::eval::Dependencies;
use crate::eval::sort_key::SortPattern;
use crate::eval::window::SetWindowFields;
use crate::query::exec::BoxOperator;
use crate::query::exec::window::{WindowFields, WindowInput};
use crate::query::planner::Builder;
use crate::query::planner::needs::Needs;

#[derive(Debug)]
struct SetWindowFieldsStage {
    spec: Arc<SetWindowFields>,
    /// How the input comes.
    input: WindowInput,
}

impl OtherStage for SetWindowFieldsStage {
    fn name(&self) -> &'static str {
        match self.input {
            WindowInput::Any => "$setWindowFields",
            WindowInput::InOrder | WindowInput::Densified => "$_internalSetWindowFields",
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
        (self.input == WindowInput::Any && !out.is_empty()).then(|| out.finish())
    }

    fn in_order(&self) -> Option<Arc<dyn OtherStage>> {
        Some(Arc::new(Self {
            spec: Arc::clone(&self.spec),
            input: WindowInput::InOrder,
        }))
    }

    fn reads_columns(&self, time_field: &str) -> bool {
        self.input == WindowInput::InOrder && self.spec.reads_columns(time_field)
    }

    fn behind_densify(&self, densify: &DensifyStage) -> Option<Arc<dyn OtherStage>> {
        let partition = self.spec.partition_by();
        let is_alike = match (&*densify.partition_by, partition) {
            ([], None) => true,
            ([path], Some(partition)) => partition.as_field_path() == Some(path),
            _ => false,
        };
        let sort = self.spec.sort_by().and_then(SortPattern::single_field);
        // Below a path there may be arrays, which sort by their elements.
        let goes_along = sort.is_some_and(|(path, descending)| {
            !descending && path.len() == 1 && *path == densify.field
        });
        let fits = self.input == WindowInput::Any && is_alike && goes_along;
        fits.then(|| -> Arc<dyn OtherStage> {
            Arc::new(Self {
                spec: Arc::clone(&self.spec),
                input: WindowInput::Densified,
            })
        })
    }

    fn build(&self, input: BoxOperator, _: &Builder) -> Result<BoxOperator> {
        let spec = Arc::clone(&self.spec);
        Ok(Box::new(WindowFields::new(input, spec, self.input)))
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
        input: WindowInput::Any,
    })));
    Ok(())
}
