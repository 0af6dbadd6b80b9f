//! Rules for "the newest measurement of each series", in the ways users write it.

use std::sync::Arc;

use nilometer_bson::{Document, DocumentBuilder};

use super::{LogicalRule, PhysicalRule};
use crate::eval::accumulator::{AccumulatorKind, AccumulatorSpec};
use crate::eval::sort_key::{SortBy, SortPattern};
use crate::eval::{Dependencies, Expression};
use crate::query::batch::FieldSet;
use crate::query::pipeline::{GroupStage, NamedPart, ShownField, SortStage, Stage};
use crate::query::planner::logical::LogicalPlan;
use crate::query::planner::physical::{
    BucketArrival, BucketInput, Input, PhysicalPlan, PhysicalStage, time_rank,
};
use crate::query::planner::settings::PlanSettings;
use crate::query::source::Direction;

/// An output field and its accumulator.
type Field = (Arc<str>, AccumulatorSpec);

/// Rewrites `$sort, $group {$first}` to `$group {$top}` with the order of the sort; `$last` becomes `$bottom`.
///
/// Of documents that tie, a stable sort gives the first to `$first` and the last to `$last`; `$top` and `$bottom` do
/// the same. The other accumulators must not depend on order: totals and counts. `$min` and `$max` do depend on it
/// (of equal values of two types the first stays), and so does every accumulator that collects. The rule changes the order
/// in which groups are returned, which is not guaranteed.
///
/// Does not fire when the sort has a limit, which decides which documents there are.
pub struct FirstOfSorted;

impl LogicalRule for FirstOfSorted {
    fn name(&self) -> &'static str {
        "FirstOfSorted"
    }

    fn apply(&self, plan: &mut LogicalPlan, _: &PlanSettings) -> bool {
        for at in 1..plan.stages.len() {
            let Some([Stage::Sort(sort), Stage::Group(group)]) = plan.stages.get(at - 1..at + 1)
            else {
                continue;
            };
            let Some(group) = without_sort(sort, group) else {
                continue;
            };
            plan.stages.splice(at - 1..at + 1, [Stage::Group(group)]);
            return true;
        }
        false
    }
}

fn without_sort(sort: &SortStage, group: &GroupStage) -> Option<GroupStage> {
    if sort.limit.is_some() || sort.is_random() {
        return None;
    }
    let mut any = false;
    let fields = group.fields.iter().map(|(name, spec)| {
        let ranked = match spec.kind() {
            AccumulatorKind::First => Some(AccumulatorKind::Top),
            AccumulatorKind::Last => Some(AccumulatorKind::Bottom),
            _ if ignores_order(spec) => None,
            _ => return None,
        };
        any |= ranked.is_some();
        Some((name, spec, ranked))
    });
    let fields: Vec<Unsorted<'_>> = fields.collect::<Option<_>>()?;
    any.then(|| {
        let source = ranked_source(sort, group);
        let (fields, shown) = gathered(&fields, &sort.pattern);
        GroupStage {
            shown,
            ..GroupStage::new(group.key.clone(), fields.into(), source)
        }
    })
}

/// An output field, its accumulator, and the accumulator with the order of the sort.
type Unsorted<'g> = (&'g Arc<str>, &'g AccumulatorSpec, Option<AccumulatorKind>);

/// Merges accumulators that keep the same row into one that keeps their fields as an object: a group then has one state,
/// one key and one comparison instead of one per field. Changes nothing if no two accumulators keep the same row.
fn gathered(
    fields: &[Unsorted<'_>],
    order: &SortPattern,
) -> (Vec<Field>, Option<Arc<[ShownField]>>) {
    let alike = |kind| fields.iter().filter(move |(_, _, own)| *own == Some(kind));
    let (mut kept, mut shown) = (Vec::<Field>::new(), Vec::new());
    // Index of the merged object of each accumulator kind.
    let mut objects: Vec<(AccumulatorKind, usize)> = Vec::new();
    for (name, spec, ranked) in fields {
        let is_part = ranked.is_some_and(|kind| alike(kind).nth(1).is_some());
        let known = objects
            .iter()
            .find(|(kind, _)| is_part && Some(*kind) == *ranked);
        let from = known.map_or(kept.len(), |(_, place)| *place);
        shown.push(ShownField {
            name: Arc::clone(name),
            from,
            is_part,
        });
        if known.is_some() {
            continue;
        }
        let spec = match *ranked {
            None => (*spec).clone(),
            Some(kind) if !is_part => (*spec).clone().ordered_by(kind, order.clone()),
            Some(kind) => {
                objects.push((kind, from));
                let member = |(name, spec, _): &Unsorted<'_>| -> NamedPart {
                    (Arc::clone(name), spec.argument().clone())
                };
                let object = Expression::Object(alike(kind).map(member).collect());
                let spec = (*spec).clone().ordered_by(kind, order.clone());
                spec.with_argument(object)
            }
        };
        kept.push((Arc::clone(name), spec));
    }
    (kept, (!objects.is_empty()).then(|| shown.into()))
}

/// Returns the argument of the `$group` written without the sort.
fn ranked_source(sort: &SortStage, group: &GroupStage) -> Document {
    let mut out = DocumentBuilder::new();
    for field in group.source.iter() {
        let spec = field.value().as_document().and_then(|d| d.iter().next());
        let ranked = match spec.map(|spec| (spec.name(), spec.value())) {
            Some(("$first", output)) => ("$top", output),
            Some(("$last", output)) => ("$bottom", output),
            _ => {
                out.append_element(field);
                continue;
            }
        };
        out.begin_document(field.name());
        out.begin_document(ranked.0);
        out.append("sortBy", sort.pattern.to_document());
        out.append_ref("output", ranked.1);
        out.end();
        out.end();
    }
    out.finish()
}

fn ignores_order(spec: &AccumulatorSpec) -> bool {
    use AccumulatorKind as K;
    matches!(spec.kind(), K::Sum | K::Avg | K::Count)
}

/// Reads buckets from the newest to the oldest where a group keeps only the newest measurements: almost every bucket then
/// shows by its bounds that it changes nothing.
///
/// The order of reading affects only which of several tied measurements is kept and the order of groups, neither of
/// which is guaranteed. A direction set by the command stays.
pub struct NewestFirst;

impl PhysicalRule for NewestFirst {
    fn name(&self) -> &'static str {
        "NewestFirst"
    }

    fn apply(&self, plan: &mut PhysicalPlan, _: &PlanSettings) -> bool {
        let Some(PhysicalStage::Group(group)) = plan.stages.first() else {
            return false;
        };
        let Input::Buckets(input) = &mut plan.input else {
            return false;
        };
        if input.direction == Direction::Backward || input.is_direction_fixed {
            return false;
        }
        let shows_time = |fields: &FieldSet| fields.contains(&input.source.options().time_field);
        if !shows_time(&input.shown()) || !keeps_newest(input, &group.stage) {
            return false;
        }
        input.direction = Direction::Backward;
        true
    }
}

/// Passes the order in which buckets arrive to a sort by time with a limit, so that it can stop early; for descending
/// time buckets are read from the newest.
///
/// Conditions: the sort is first and begins with the time field; no date lies outside the range of bucket ids, so ids
/// order as times do. The order of documents that tie is not guaranteed.
pub struct SortInOrderOfBuckets;

impl PhysicalRule for SortInOrderOfBuckets {
    fn name(&self) -> &'static str {
        "SortInOrderOfBuckets"
    }

    fn apply(&self, plan: &mut PhysicalPlan, _: &PlanSettings) -> bool {
        let (Input::Buckets(input), Some(PhysicalStage::Sort(sort))) =
            (&mut plan.input, plan.stages.first_mut())
        else {
            return false;
        };
        let options = input.source.options();
        if sort.stage.limit.is_none() || sort.arrival.is_some() || options.extended_range {
            return false;
        }
        let Some(part) = sort.stage.pattern.parts().first() else {
            return false;
        };
        let SortBy::Field(path) = &part.by else {
            return false;
        };
        let is_time = path.as_str() == &*options.time_field;
        if !is_time || !input.shown().contains(path.as_str()) {
            return false;
        }
        let wanted = if part.descending {
            Direction::Backward
        } else {
            Direction::Forward
        };
        if input.direction != wanted && input.is_direction_fixed {
            return false;
        }
        input.direction = wanted;
        sort.arrival = Some(match wanted {
            Direction::Forward => BucketArrival::OldestFirst,
            Direction::Backward => BucketArrival::NewestFirst {
                span_ms: options.bucket_max_span_seconds.saturating_mul(1000),
            },
        });
        true
    }
}

/// True if every accumulator keeps only the newest measurement, or every one only the oldest. Adds the fields they
/// order by to `ordered_by`.
pub(super) fn keeps_only(
    input: &BucketInput,
    group: &GroupStage,
    ordered_by: &mut Dependencies,
) -> Option<bool> {
    let options = input.source.options();
    let mut all = None;
    for (_, spec) in group.fields.iter() {
        let rank = time_rank(spec, &options.time_field, options.meta_field.as_deref())?;
        if let Some(sort) = spec.sort() {
            sort.dependencies(ordered_by);
        }
        let newest = rank.newest?;
        if *all.get_or_insert(newest) != newest {
            return None;
        }
    }
    all
}

fn keeps_newest(input: &BucketInput, group: &GroupStage) -> bool {
    let options = input.source.options();
    let mut any = false;
    let all = group.fields.iter().all(|(_, spec)| {
        let rank = time_rank(spec, &options.time_field, options.meta_field.as_deref());
        match rank.and_then(|rank| rank.newest) {
            Some(true) => {
                any = true;
                true
            }
            _ => ignores_order(spec),
        }
    });
    any && all
}
