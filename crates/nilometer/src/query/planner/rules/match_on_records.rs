//! A leading `$match` on an ordinary collection becomes the filter of its scan.

use nilometer_bson::ValueRef;

use super::Rule;
use super::matches::take_leading_match;
use crate::eval::Collation;
use crate::eval::collation::has_text;
use crate::eval::matcher::{CompareOp, MatchExpression};
use crate::query::exec::ExecSettings;
use crate::query::planner::access::cluster::{self, is_plain};
use crate::query::planner::logical::{AccessPath, Input, LogicalPlan, RecordInput};
use crate::query::source::Direction;

/// The filter of the first `$match` is asked where records are read.
///
/// Where the collection is clustered, comparisons of `_id` bound the scan; where there is an `_id`
/// index, an equality is looked up. The filter is asked all the same, so bounds need only be wide
/// enough.
pub struct MatchOnRecords;

impl Rule for MatchOnRecords {
    fn name(&self) -> &'static str {
        "MatchOnRecords"
    }

    fn apply(&self, plan: &mut LogicalPlan, _: &ExecSettings) -> bool {
        if !matches!(&plan.input, Input::Records(_)) {
            return false;
        }
        let Some(stage) = take_leading_match(plan) else {
            return false;
        };
        if let Input::Records(input) = &mut plan.input {
            let mut conjuncts = input
                .filter
                .take()
                .map_or_else(Vec::new, |f| f.into_conjuncts());
            conjuncts.extend(stage.filter.into_conjuncts());
            choose_access(input, &conjuncts);
            input.filter = match MatchExpression::and(conjuncts) {
                MatchExpression::AlwaysTrue => None,
                filter => Some(filter),
            };
        }
        true
    }
}

fn choose_access(input: &mut RecordInput, conjuncts: &[MatchExpression]) {
    if !matches!(input.access, AccessPath::CollectionScan) || input.is_tail {
        return;
    }
    if input.source.is_clustered() {
        if let Some(access) = cluster::bounded(&*input.source, conjuncts) {
            input.access = access;
        }
        return;
    }
    let collation = input.source.collation();
    let ids = conjuncts
        .iter()
        .filter_map(|conjunct| id_comparison(conjunct, &collation));
    // An array matches documents with that array and those with it as an element, null those without
    // an `_id`: neither is one place in the index. `find_by_id` is asked only for plain scalars.
    for (op, value) in ids {
        if op == CompareOp::Eq
            && is_plain(value)
            && input.direction == Direction::Forward
            && input.source.has_id_index()
        {
            input.access = AccessPath::IdLookup(value.to_value());
            return;
        }
    }
}

fn id_comparison<'f>(
    filter: &'f MatchExpression,
    index: &Collation,
) -> Option<(CompareOp, ValueRef<'f>)> {
    match filter {
        MatchExpression::Compare(comparison)
            if comparison.path.as_str() == "_id"
                && (comparison.collation == *index || !has_text(&comparison.value)) =>
        {
            Some((comparison.op, comparison.value.as_ref()))
        }
        _ => None,
    }
}
