//! `$sample` at the front of the pipeline.

use super::PhysicalRule;
use crate::query::pipeline::Stage;
use crate::query::planner::physical::{BUCKET_PLACES, Input, PhysicalPlan, PhysicalStage};
use crate::query::planner::settings::PlanSettings;

/// Random reads pay off for at most one in this many of the measurements that all buckets have room for.
const SHARE: u64 = 100;

/// Reads random buckets for a `$sample` of few measurements instead of reading all.
///
/// Conditions: the stage is first, there are no filters and no computed fields, no bucket order is set, and the
/// sample is at most one in a hundred of the measurements that all buckets have room for. The stage stays: it puts the
/// sample in random order, and draws the sample itself where buckets turn out to be too empty.
pub struct SampleFromBuckets;

impl PhysicalRule for SampleFromBuckets {
    fn name(&self) -> &'static str {
        "SampleFromBuckets"
    }

    fn apply(&self, plan: &mut PhysicalPlan, _: &PlanSettings) -> bool {
        let (Input::Buckets(input), Some(PhysicalStage::Plain(Stage::Sample(sample)))) =
            (&mut plan.input, plan.stages.first())
        else {
            return false;
        };
        let size = sample.size;
        let buckets = &input.buckets;
        let is_whole = buckets.predicate.is_always()
            && buckets.index.is_none()
            && buckets.id_min.is_none()
            && buckets.id_max.is_none()
            && input.unpack.event_filter.is_none()
            && input.unpack.computed.is_empty();
        if !is_whole || input.is_natural || input.is_direction_fixed || input.hint.is_some() {
            return false;
        }
        let Ok(count) = input.source.bucket_count_estimate() else {
            return false;
        };
        if size > count.saturating_mul(u64::from(BUCKET_PLACES)) / SHARE {
            return false;
        }
        input.sample = Some(size);
        true
    }
}
