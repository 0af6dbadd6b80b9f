//! stub
use super::{PipelineContext, Stage};
use crate::error::Result;
use nilometer_bson::ValueRef;
pub(super) fn parse(
    _: &PipelineContext,
    _: &'static str,
    _: ValueRef<'_>,
    _: &mut Vec<Stage>,
) -> Result<()> {
    Ok(())
}
