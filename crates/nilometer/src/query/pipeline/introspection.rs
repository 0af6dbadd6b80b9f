//! Stages that read the server instead of a collection's documents: `$collStats`, `$indexStats`, `$currentOp`,
//! `$listCatalog` and the like.
//!
//! All of them must be the first stage and none has documents to optimise, so they share one type. Name and argument
//! are passed to [`Collections::introspect`](crate::query::source::Collections::introspect), which computes the result.

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

/// Parses any of these stages. The argument must be an object.
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
