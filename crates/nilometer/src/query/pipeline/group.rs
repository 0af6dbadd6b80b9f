//! stub
use super::{PipelineContext, Stage};
use crate::error::Result;
use crate::query::planner::needs::Needs;
use nilometer_bson::{DocRef, Document, ValueRef};
/// x
#[derive(Clone, Debug)]
pub struct GroupStage {
    pub source: Document,
}
impl GroupStage {
    pub fn needs(&self) -> Needs {
        Needs::All
    }
}
pub(super) fn parse(
    _: &PipelineContext,
    _: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    out.push(Stage::Group(GroupStage {
        source: value.as_document().unwrap_or(DocRef::EMPTY).to_document(),
    }));
    Ok(())
}
