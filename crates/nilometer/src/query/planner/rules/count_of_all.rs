//! A `$group` of all measurements that only counts them.

use nilometer_bson::Value;

use super::PhysicalRule;
use crate::eval::accumulator::AccumulatorKind;
use crate::eval::expression::Expression;
use crate::query::planner::physical::{
    BoundsInput, CountedSource, Input, KeyPart, PhysicalPlan, PhysicalStage,
};
use crate::query::planner::settings::PlanSettings;

/// Computes a `$group` from the number of measurements, which the collection knows, as `countDocuments({})` and `$count`
/// ask for it.
///
/// Conditions: [`GroupFromBounds`](super::GroupFromBounds) applies, the key and the arguments of all accumulators are
/// constants, sums are of integers, and nothing selects among the measurements. A collection that does not know the number is read.
pub struct CountOfAll;

impl PhysicalRule for CountOfAll {
    fn name(&self) -> &'static str {
        "CountOfAll"
    }

    fn apply(&self, plan: &mut PhysicalPlan, _: &PlanSettings) -> bool {
        let (Input::Buckets(input), Some(PhysicalStage::Group(group))) =
            (&plan.input, plan.stages.first_mut())
        else {
            return false;
        };
        let Some(bounds) = &group.from_bounds else {
            return false;
        };
        let mut parts = bounds.parts.iter();
        let specs = group.stage.fields.iter().map(|(_, spec)| spec.kind());
        let mut inputs = bounds.inputs.iter().zip(specs);
        let counts = input.limit.is_none()
            && input.reads_all()
            && parts.all(|part| matches!(part, KeyPart::Constant(Expression::Constant(_))))
            && inputs.all(|(input, kind)| match input {
                BoundsInput::Count => true,
                BoundsInput::Constant(Expression::Constant(value)) => is_added_at_once(kind, value),
                _ => false,
            });
        group.counted = counts.then(|| CountedSource(input.source.clone()));
        counts
    }
}

/// True if adding a value many times takes one step: other totals are rounded at each addition.
fn is_added_at_once(kind: AccumulatorKind, value: &Value) -> bool {
    match kind {
        AccumulatorKind::Sum | AccumulatorKind::Avg => {
            matches!(value, Value::Int32(_) | Value::Int64(_))
        }
        _ => true,
    }
}
