//! `$match` on a time-series collection: asked where buckets are read.

use super::LogicalRule;
use super::match_on_records::with_filter;
use super::matches::take_leading_match;
use crate::query::planner::logical::{LogicalPlan, LogicalSource};
use crate::query::planner::settings::PlanSettings;

/// The filter of the first `$match` is asked where buckets are read.
///
/// The physical plan makes of it a predicate on the headers of buckets, bounds on their ids, and a filter on
/// measurements.
///
/// Condition: measurements still look as stored, so the stage must stand first.
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
