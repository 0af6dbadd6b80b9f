//! `$match` on a time-series collection, pushed into the scan of buckets.

use super::LogicalRule;
use super::match_on_records::with_filter;
use super::matches::take_leading_match;
use crate::query::planner::logical::{LogicalPlan, LogicalSource};
use crate::query::planner::settings::PlanSettings;

/// Moves the filter of the first `$match` into the scan of buckets.
///
/// The physical plan splits it into a predicate on bucket headers, bounds on bucket ids, and a filter on measurements.
///
/// Condition: the stage is first, so measurements still have their stored form.
pub struct MatchOnBuckets;

impl LogicalRule for MatchOnBuckets {
    fn name(&self) -> &'static str {
        "MatchOnBuckets"
    }

    fn apply(&self, plan: &mut LogicalPlan, _: &PlanSettings) -> bool {
        if !matches!(&plan.source, LogicalSource::Measurements(_)) {
            return false;
        }
        let Some(stage) = take_leading_match(plan) else {
            return false;
        };
        if let LogicalSource::Measurements(scan) = &mut plan.source {
            scan.filter = Some(with_filter(scan.filter.take(), stage.filter));
        }
        true
    }
}
