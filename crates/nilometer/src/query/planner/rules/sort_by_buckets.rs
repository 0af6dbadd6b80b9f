//! A `$sort` that the headers of buckets help with.

use super::Rule;
use crate::eval::ParseContext;
use crate::eval::sort_key::{SortBy, SortPattern};
use crate::query::exec::ExecSettings;
use crate::query::pipeline::{BucketOrder, SortStage, Stage};
use crate::query::planner::logical::{BucketInput, Input, LogicalPlan};
use crate::query::source::Direction;

/// A sort by metadata alone puts buckets in order; one by time, or by metadata and then time, gives on
/// what no later bucket can come before.
///
/// Conditions: the sort stands first, and metadata and time look as they are stored. By time alone buckets
/// are read in the order of their ids, in the direction of the sort: not if another direction was asked
/// for, nor if some date lies outside what ids can say. By metadata and then time buckets are gathered first, so neither
/// matters. With a limit the sorts that know time keep only the first few, and are left alone. What follows
/// the time in the pattern, and equal keys, decide as in any sort.
pub struct SortByBuckets;

impl Rule for SortByBuckets {
    fn name(&self) -> &'static str {
        "SortByBuckets"
    }

    fn apply(&self, plan: &mut LogicalPlan, _: &ExecSettings) -> bool {
        let (Input::Buckets(input), Some(Stage::Sort(sort))) =
            (&mut plan.input, plan.stages.first_mut())
        else {
            return false;
        };
        if sort.buckets.is_some() {
            return false;
        }
        sort.buckets = order_of(input, sort);
        sort.buckets.is_some()
    }
}

/// `$setWindowFields` by metadata and time lets buckets be put in order, as a sort does.
///
/// Conditions: it stands first; the partition is metadata, or there is none; what it sorts by is a sort
/// [`SortByBuckets`] knows, but not by falling time alone, where equal times would come the other way round.
pub struct WindowsInOrder;

impl Rule for WindowsInOrder {
    fn name(&self) -> &'static str {
        "WindowsInOrder"
    }

    fn apply(&self, plan: &mut LogicalPlan, settings: &ExecSettings) -> bool {
        let (Input::Buckets(input), Some(Stage::Other(stage))) =
            (&mut plan.input, plan.stages.first())
        else {
            return false;
        };
        let (Some(order), Some(in_order)) = (stage.wants_order(), stage.in_order()) else {
            return false;
        };
        let context = ParseContext::new().with_collator(settings.collator.clone());
        // A field named twice is no sort.
        let Ok(pattern) = SortPattern::parse(order.as_ref(), &context) else {
            return false;
        };
        let time_field = &*input.source.options().time_field;
        let first = pattern.parts().first();
        let is_falling = first.is_some_and(|part| {
            part.descending
                && matches!(&part.by, SortBy::Field(path) if path.as_str() == time_field)
        });
        let mut sort = SortStage::new(pattern);
        sort.buckets = match is_falling {
            true => None,
            false => order_of(input, &sort),
        };
        if sort.buckets.is_none() {
            return false;
        }
        plan.stages
            .splice(..1, [Stage::Sort(sort), Stage::Other(in_order)]);
        true
    }
}

fn order_of(input: &mut BucketInput, sort: &SortStage) -> Option<BucketOrder> {
    let options = input.source.options();
    let shown = &input.unpack.fields;
    for (parts, part) in sort.pattern.parts().iter().enumerate() {
        let SortBy::Field(path) = &part.by else {
            return None;
        };
        if path.as_str() == &*options.time_field && shown.contains(path.as_str()) {
            let by_time = by_time(input, parts, part.descending);
            return by_time.filter(|_| sort.limit.is_none());
        }
        let is_meta = options.meta_field.as_deref() == Some(path.first());
        if !is_meta || !shown.contains(path.first()) {
            return None;
        }
    }
    Some(BucketOrder::Metadata)
}

fn by_time(input: &mut BucketInput, parts: usize, descending: bool) -> Option<BucketOrder> {
    if parts > 0 {
        return Some(BucketOrder::Bounds { parts });
    }
    let options = input.source.options();
    let wanted = match descending {
        true => Direction::Backward,
        false => Direction::Forward,
    };
    let span_ms = options.bucket_max_span_seconds.saturating_mul(1000);
    if options.extended_range || (input.direction != wanted && input.is_direction_fixed) {
        return None;
    }
    input.direction = wanted;
    Some(BucketOrder::Arrival(descending.then_some(span_ms)))
}
