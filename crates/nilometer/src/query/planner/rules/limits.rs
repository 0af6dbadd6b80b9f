//! Rules about `$limit` and `$skip`.

use super::{LogicalRule, PhysicalRule};
use crate::query::pipeline::Stage;
use crate::query::planner::logical::LogicalPlan;
use crate::query::planner::physical::{Input, PhysicalPlan, PhysicalStage};
use crate::query::planner::settings::PlanSettings;

/// `$limit a, $limit b` is `$limit min(a, b)`; `$skip a, $skip b` is `$skip a + b`.
pub struct MergeLimits;

impl LogicalRule for MergeLimits {
    fn name(&self) -> &'static str {
        "MergeLimits"
    }

    fn apply(&self, plan: &mut LogicalPlan, _: &PlanSettings) -> bool {
        for at in 1..plan.stages.len() {
            let merged = match plan.stages.get(at - 1..at + 1) {
                Some([Stage::Limit(a), Stage::Limit(b)]) => Stage::Limit(*a.min(b)),
                // A sum that does not fit skips everything either way, but let it be.
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

/// `$sort, $limit n` needs to keep n documents only; with a `$skip s` between them, s + n.
///
/// The `$limit` behind a bare sort is absorbed; with a `$skip` between it stays.
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

/// A `$limit` at the front, or behind a `$skip`, ends the reading of buckets: each holds a measurement or more.
///
/// Not with an event filter, which may take any number of them away.
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
