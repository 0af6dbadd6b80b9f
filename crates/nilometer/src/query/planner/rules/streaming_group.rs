//! A `$group` that follows the order of time.

use std::sync::Arc;

use super::PhysicalRule;
use crate::eval::expression::{ArithmeticOperator, Expression};
use crate::eval::sort_key::SortBy;
use crate::query::planner::physical::{Input, PhysicalPlan, PhysicalStage};
use crate::query::planner::settings::PlanSettings;

/// Returns the groups of a `$group` after a `$sort` by time as soon as the part of the key that follows the time changes.
///
/// Conditions: the sort is first, so the time is a date in every document, and begins with the time; a part of the key is
/// the time, a `$dateTrunc` of it with constant bins, or one of these plus or minus a constant. Groups are returned in the
/// order in which they first occur, as without the rule.
pub struct GroupInOrder;

impl PhysicalRule for GroupInOrder {
    fn name(&self) -> &'static str {
        "GroupInOrder"
    }

    fn apply(&self, plan: &mut PhysicalPlan, _: &PlanSettings) -> bool {
        let Input::Buckets(input) = &plan.input else {
            return false;
        };
        let time_field = &*input.source.options().time_field;
        let [PhysicalStage::Sort(sort), PhysicalStage::Group(group), ..] =
            plan.stages.as_mut_slice()
        else {
            return false;
        };
        let by_time = sort.stage.pattern.parts().first().is_some_and(
            |part| matches!(&part.by, SortBy::Field(path) if path.as_str() == time_field),
        );
        // A sort within groups leaves the groups in any order.
        if !by_time || sort.within.is_some() || !input.shown().contains(time_field) {
            return false;
        }
        let parts = group.stage.key_parts().into_iter();
        let parts = parts.filter(|(_, part)| follows_time(part, time_field));
        let parts: Vec<(Arc<str>, Expression)> = parts
            .map(|(name, part)| (name.unwrap_or("_id").into(), part.clone()))
            .collect();
        if parts.is_empty() {
            return false;
        }
        group.in_order = Some(parts.into());
        true
    }
}

/// True if the expression is monotonic in the time: never falls, or never rises, while it rises.
pub(super) fn follows_time(expression: &Expression, time_field: &str) -> bool {
    match expression {
        Expression::FieldPath(path) => path.as_str() == time_field,
        Expression::DateTrunc(trunc) => {
            trunc.constant_bins().is_some() && follows_time(&trunc.date, time_field)
        }
        Expression::Arithmetic(arithmetic) => {
            let is_sum = matches!(
                arithmetic.operator,
                ArithmeticOperator::Add | ArithmeticOperator::Subtract
            );
            match arithmetic.operands.as_slice() {
                [a, Expression::Constant(_)] if is_sum => follows_time(a, time_field),
                _ => false,
            }
        }
        _ => false,
    }
}
