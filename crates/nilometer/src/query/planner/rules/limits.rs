//! Rules about `$limit` and `$skip`.

use super::{LogicalRule, PhysicalRule};
use crate::query::pipeline::Stage;
use crate::query::planner::logical::LogicalPlan;
use crate::query::planner::physical::{Input, PhysicalPlan, PhysicalStage};
use crate::query::planner::settings::PlanSettings;

/// Merges `$limit a, $limit b` into `$limit min(a, b)`, and `$skip a, $skip b` into `$skip a + b`.
pub struct MergeLimits;

impl LogicalRule for MergeLimits {
    fn name(&self) -> &'static str {
        "MergeLimits"
    }

    fn apply(&self, plan: &mut LogicalPlan, _: &PlanSettings) -> bool {
        for at in 1..plan.stages.len() {
            let merged = match plan.stages.get(at - 1..at + 1) {
                Some([Stage::Limit(a), Stage::Limit(b)]) => Stage::Limit(*a.min(b)),
                // A sum that overflows skips everything either way; both stages stay.
                Some([Stage::Skip(a), Stage::Skip(b)]) => match a.checked_add(*b) {
                    Some(sum) => Stage::Skip(sum),
                    None => continue,
                },
                _ => continue,
            };
            plan.stages.splice(at - 1..at + 1, [merged]);
            return true;
        }
        false
    }
}

/// Bounds a `$sort` followed by `$limit n` to n documents; with a `$skip s` between them, to s + n.
///
/// A `$limit` directly after the sort is absorbed; with a `$skip` between them it stays.
pub struct SortLimit;

impl LogicalRule for SortLimit {
    fn name(&self) -> &'static str {
        "SortLimit"
    }

    fn apply(&self, plan: &mut LogicalPlan, _: &PlanSettings) -> bool {
        for at in 0..plan.stages.len() {
            let Some(Stage::Sort(sort)) = plan.stages.get(at) else {
                continue;
            };
            let (keep, absorbed) = match plan.stages.get(at + 1..) {
                Some([Stage::Limit(n), ..]) => (*n, true),
                Some([Stage::Skip(skip), Stage::Limit(n), ..]) => match skip.checked_add(*n) {
                    Some(keep) => (keep, false),
                    None => continue,
                },
                _ => continue,
            };
            let smaller = sort.limit.is_none_or(|known| keep < known);
            if !smaller && !absorbed {
                continue;
            }
            let mut sort = sort.clone();
            if smaller {
                sort.limit = Some(keep);
            }
            plan.stages[at] = Stage::Sort(sort);
            if absorbed {
                plan.stages.remove(at + 1);
            }
            return true;
        }
        false
    }
}

/// Stops reading buckets once a `$limit` at the front, or after a `$skip`, has enough: each bucket holds at least one
/// measurement.
///
/// Does not fire with an event filter, which may reject any number of measurements.
pub struct LimitOnBuckets;

impl PhysicalRule for LimitOnBuckets {
    fn name(&self) -> &'static str {
        "LimitOnBuckets"
    }

    fn apply(&self, plan: &mut PhysicalPlan, _: &PlanSettings) -> bool {
        let Input::Buckets(input) = &mut plan.input else {
            return false;
        };
        if input.unpack.event_filter.is_some() {
            return false;
        }
        input.limit = match plan.stages.as_slice() {
            [PhysicalStage::Limit(n), ..] => Some(*n),
            [PhysicalStage::Skip(skip), PhysicalStage::Limit(n), ..] => skip.checked_add(*n),
            _ => None,
        };
        input.limit.is_some()
    }
}
