//! Stages that read the server instead of a collection's documents: `$collStats`, `$indexStats`,
//! `$currentOp`, `$listCatalog` and their kind.
//!
//! They all stand first and none has rows of its own to optimise, so they share one type: name and
//! argument are handed to [`Collections::introspect`](crate::query::source::Collections::introspect),
//! which knows what to answer.

use nilometer_bson::{Document, DocumentBuilder, ValueRef};

use super::{OtherStage, PipelineContext, Stage, object};
use crate::error::Result;
use crate::query::exec::BoxOperator;
use crate::query::exec::scan::documents::GivenDocuments;
use crate::query::planner::needs::Needs;
use crate::query::planner::physical::Builder;

#[derive(Debug)]
struct IntrospectionStage {
    name: &'static str,
    argument: Document,
}

impl OtherStage for IntrospectionStage {
    fn name(&self) -> &'static str {
        self.name
    }

    fn explain(&self, name: &str, out: &mut DocumentBuilder) {
        out.append(name, self.argument.clone());
    }

    fn needs(&self, _: &Needs) -> Needs {
        Needs::none()
    }

    fn is_source(&self) -> bool {
        true
    }

    fn build(&self, _: BoxOperator, builder: &Builder) -> Result<BoxOperator> {
        let documents = builder.introspect(self.name, self.argument.as_ref())?;
        Ok(Box::new(GivenDocuments::new(documents)))
    }
}

/// Parses any of them: the argument is an object.
pub(super) fn parse(
    _: &PipelineContext,
    name: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let complaint = format!("the {name} stage specification must be an object, found");
    let argument = object(value, &complaint)?;
    out.push(Stage::Other(std::sync::Arc::new(IntrospectionStage {
        name,
        argument: argument.to_document(),
    })));
    Ok(())
}
