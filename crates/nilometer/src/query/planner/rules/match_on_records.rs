//! `$match` on an ordinary collection, pushed into the scan of records.

use super::LogicalRule;
use super::matches::take_leading_match;
use crate::eval::matcher::MatchExpression;
use crate::query::planner::logical::{LogicalPlan, LogicalSource};
use crate::query::planner::settings::PlanSettings;

/// Moves the filter of the first `$match` into the scan of records.
///
/// Comparisons of `_id` then bound the scan or look up one record; other conjuncts may become index bounds.
pub struct MatchOnRecords;

impl LogicalRule for MatchOnRecords {
    fn name(&self) -> &'static str {
        "MatchOnRecords"
    }

    fn apply(&self, plan: &mut LogicalPlan, _: &PlanSettings) -> bool {
        if !matches!(&plan.source, LogicalSource::Records(_)) {
            return false;
        }
        let Some(stage) = take_leading_match(plan) else {
            return false;
        };
        if let LogicalSource::Records(scan) = &mut plan.source {
            scan.filter = Some(with_filter(scan.filter.take(), stage.filter));
        }
        true
    }
}

/// Returns the conjunction of the scan's filter and one more, not simplified.
pub(super) fn with_filter(
    known: Option<MatchExpression>,
    filter: MatchExpression,
) -> MatchExpression {
    let known = known.into_iter().flat_map(MatchExpression::into_conjuncts);
    MatchExpression::And(known.chain(filter.into_conjuncts()).collect())
}
