//! Stages that read the server instead of a collection's documents: `$collStats`, `$indexStats`,
//! `$currentOp`, `$listCatalog` and their kind.
//!
//! They all stand first and none has rows of its own to optimise, so they share one type: name and
//! argument are handed to [`Collections::introspect`](crate::query::source::Collections::introspect),
//! which knows what to answer.

use nilometer_bson::{Document, DocumentBuilder, ValueRef};

use super::needs::Needs;
use super::{PipelineContext, PipelineStage, Stage, object};
use crate::error::Result;

/// A parsed `$currentOp` or other stage that reads the server.
#[derive(Debug)]
pub struct IntrospectionStage {
    /// The name of the stage.
    pub name: &'static str,
    /// Its argument.
    pub argument: Document,
}

impl PipelineStage for IntrospectionStage {
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
    out.push(Stage::Introspection(std::sync::Arc::new(
        IntrospectionStage {
            name,
            argument: argument.to_document(),
        },
    )));
    Ok(())
}
