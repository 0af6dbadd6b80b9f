//! Documents of a rollup whose bins are in several partitions.
//!
//! ```text
//! p0001: {k: {at, host}, s: [states]} ─┐
//! p0002: {k: {at, host}, s: [states]} ─┴─ merged by key ─► {_id: {at, host}, at, host, mean}
//! ```
//!
//! A bin lives in several partitions if its measurements do: because a series moved, or because the key of the rollup is
//! coarser than that of the series.

use std::sync::Arc;

use nilometer_bson::{DocRef, Document, DocumentBuilder, ValueRef};

use crate::error::Result;
use crate::query::batch::Batch;
use crate::query::exec::group::Group;
use crate::query::exec::{BoxOperator, ExecContext, ExecSettings, Operator, RowBatch};
use crate::query::pipeline::GroupStage;
use crate::query::planner::physical::PhysicalGroup;
use crate::query::source::RollupSource;

/// Merges bins, and returns them as documents of the rollup.
pub(crate) struct MergedBins {
    groups: BoxOperator,
    /// Those of the query without its collation: keys are compared byte by byte.
    settings: Arc<ExecSettings>,
}

impl MergedBins {
    /// Merges the bins with states that `bins` returns.
    pub(crate) fn new(
        bins: BoxOperator,
        rollup: &RollupSource,
        settings: &Arc<ExecSettings>,
    ) -> Self {
        let mut settings = ExecSettings::clone(settings);
        settings.plan.collator = None;
        let definition = &rollup.definition;
        let stage = GroupStage::new(
            definition.key.clone(),
            definition.fields.clone(),
            definition.group.clone(),
        );
        Self {
            groups: Box::new(Group::new(bins, PhysicalGroup::of_states(stage))),
            settings: Arc::new(settings),
        }
    }
}

impl Operator for MergedBins {
    fn next(&mut self, outer: &ExecContext<'_>) -> Result<Option<Batch>> {
        let settings = Arc::clone(&self.settings);
        let cx = ExecContext::new(outer.operation, &settings);
        let Some(batch) = self.groups.next(&cx)? else {
            return Ok(None);
        };
        let mut out = RowBatch::default();
        for group in batch.into_rows()? {
            out.push(document_of(&group));
        }
        Ok(out.into_batch())
    }
}

/// Returns a group as a document of the rollup: its key, the parts of it, and the accumulators.
fn document_of(group: &Document) -> Document {
    let key = group.get("_id").as_document().unwrap_or(DocRef::EMPTY);
    let mut out = DocumentBuilder::with_capacity(2 * group.as_bytes().len());
    out.append_ref("_id", ValueRef::Document(key));
    out.append_all(key);
    for element in group.iter().filter(|element| element.name() != "_id") {
        out.append_element(element);
    }
    out.finish()
}
