//! Clustered collections: documents are stored in the order of `_id`, so comparisons of `_id` bound the scan and its
//! direction gives an order by `_id`. The oplog is one by `ts`.
//!
//! This module plans bounded scans only; other indexes are preferred where they serve the query, as in MongoDB.

use nilometer_bson::number::Number;
use nilometer_bson::{Value, ValueRef};

use crate::eval::Collation;
use crate::eval::collation::has_text;
use crate::eval::matcher::{CompareOp, MatchExpression};
use crate::eval::sort_key::SortBy;
use crate::query::planner::bounds;
use crate::query::planner::physical::{AccessPath, Input, PhysicalPlan, PhysicalStage};
use crate::query::planner::settings::PlanSettings;
use crate::query::source::{Direction, RecordKey, RecordSource};

/// An end of a scan: a value of the field, and the key of its record.
#[derive(Clone, Debug)]
pub struct ClusterBound {
    /// The key.
    pub key: RecordKey,
    /// The value, for explain.
    pub value: Value,
}

/// True if both ends are one record.
pub fn is_point(min: Option<&ClusterBound>, max: Option<&ClusterBound>) -> bool {
    matches!((min, max), (Some(min), Some(max)) if min.key == max.key)
}

/// Returns the bounded scan of a clustered collection for `conjuncts`, if they test its field.
pub fn bounded(source: &dyn RecordSource, conjuncts: &[MatchExpression]) -> Option<AccessPath> {
    let collation = source.collation();
    let bound = |value: &Value| {
        let key = source.clustered_key(value.as_ref())?;
        let value = value.clone();
        Some(ClusterBound { key, value })
    };
    let (mut min, mut max): (Option<ClusterBound>, Option<ClusterBound>) = (None, None);
    for conjunct in conjuncts {
        let Some((low, high)) = ids_of(conjunct, &collation, source) else {
            continue;
        };
        if let Some(low) = bound(&low)
            && min.as_ref().is_none_or(|known| known.key < low.key)
        {
            min = Some(low);
        }
        if let Some(high) = bound(&high)
            && max.as_ref().is_none_or(|known| known.key > high.key)
        {
            max = Some(high);
        }
    }
    (min.is_some() || max.is_some()).then_some(AccessPath::ClusteredScan { min, max })
}

/// Returns the range of values of the field that holds all matches.
fn ids_of(
    conjunct: &MatchExpression,
    collation: &Collation,
    source: &dyn RecordSource,
) -> Option<(Value, Value)> {
    let is_comparable = |value: &Value, asked: &Collation| {
        is_plain(value.as_ref()) && (asked == collation || !has_text(value))
    };
    match conjunct {
        MatchExpression::Compare(comparison)
            if comparison.path.as_str() == source.cluster_field()
                && is_comparable(&comparison.value, &comparison.collation) =>
        {
            let value = &comparison.value;
            // Only values with a clustered key follow the order of keys.
            source.clustered_key(value.as_ref())?;
            Some(range(comparison.op, value))
        }
        MatchExpression::In(list)
            if list.path.as_str() == source.cluster_field()
                && list.patterns().is_empty()
                && list
                    .values()
                    .iter()
                    .all(|value| is_comparable(value, list.collation())) =>
        {
            let mut keyed = Vec::new();
            for value in list.values() {
                keyed.push((source.clustered_key(value.as_ref())?, value));
            }
            let low = keyed.iter().min_by(|a, b| a.0.cmp(&b.0))?.1.clone();
            let high = keyed.iter().max_by(|a, b| a.0.cmp(&b.0))?.1.clone();
            Some((low, high))
        }
        _ => None,
    }
}

/// Returns the bounds of a comparison. It matches only the type of its value, and NaN only itself.
fn range(op: CompareOp, value: &Value) -> (Value, Value) {
    let is_nan = Number::of(value.as_ref()).is_some_and(|n| n.to_f64().is_nan());
    let (least, greatest) = bounds::ends_of_type(value.as_ref());
    match op {
        _ if is_nan => (value.clone(), value.clone()),
        CompareOp::Eq => (value.clone(), value.clone()),
        CompareOp::Gt | CompareOp::Gte => (value.clone(), greatest),
        CompareOp::Lt | CompareOp::Lte => (least, value.clone()),
    }
}

/// True if the value is one place among the `_id`s: not an array, which is compared with elements as well, nor null, which
/// equals missing values.
pub fn is_plain(value: ValueRef<'_>) -> bool {
    !matches!(
        value,
        ValueRef::Array(_)
            | ValueRef::Null
            | ValueRef::Missing
            | ValueRef::Undefined
            | ValueRef::Regex { .. }
            | ValueRef::MinKey
            | ValueRef::MaxKey
    )
}

/// Reads a clustered collection in the required order, if that is an order by its field alone. Call it when no index was chosen.
pub fn take_order(plan: &mut PhysicalPlan, settings: &PlanSettings) {
    let Some(PhysicalStage::Sort(sort)) = plan.stages.first() else {
        return;
    };
    let [part] = sort.stage.pattern.parts() else {
        return;
    };
    let Input::Records(input) = &mut plan.input else {
        return;
    };
    let field = input.source.cluster_field();
    let is_by_field = matches!(&part.by, SortBy::Field(path) if path.as_str() == field);
    let reads_all = matches!(
        input.access,
        AccessPath::CollectionScan | AccessPath::ClusteredScan { .. }
    );
    let collation = Collation::from(settings.collator.clone());
    let keeps_order = input.source.is_clustered() && input.source.collation() == collation;
    if !is_by_field || !reads_all || !keeps_order || settings.options.no_rules {
        return;
    }
    input.direction = match part.descending {
        true => Direction::Backward,
        false => Direction::Forward,
    };
    let limit = sort.stage.limit.map(PhysicalStage::Limit);
    plan.stages.splice(0..1, limit);
}
