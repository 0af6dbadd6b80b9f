//! Explain of a plan over partitions.

use nilometer_bson::{Document, Value, doc};

use super::text;
use crate::query::planner::physical::{PartitionsInput, PhysicalPlan, PhysicalStage};

/// Returns the stages of a plan behind its input, as a client writes them.
pub(crate) fn shown_stages(plan: &PhysicalPlan) -> Vec<Document> {
    let shown = plan.stages.iter().filter(|stage| !text::is_hidden(stage));
    shown.map(PhysicalStage::explain).collect()
}

/// Returns the name of the stage that reads partitions.
pub(crate) fn stage_name(input: &PartitionsInput) -> &'static str {
    match &*input.targets {
        [_] => "SINGLE_SHARD",
        _ if input.order.is_some() => "SHARD_MERGE_SORT",
        _ => "SHARD_MERGE",
    }
}

/// Describes how partitions are read.
pub(super) fn step(input: &PartitionsInput) -> Document {
    let names = input.targets.iter();
    let names = names.map(|target| Value::from(input.source.name(*target)));
    let part = input.part.stages.iter().cloned().map(Value::from);
    doc! {
        "stage": stage_name(input),
        "shards": names.collect::<Vec<_>>(),
        "shardsPart": part.collect::<Vec<_>>(),
    }
}
