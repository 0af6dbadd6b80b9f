//! A `$group` by time followed by a sort with a limit.

use std::sync::Arc;

use super::PhysicalRule;
use crate::eval::accumulator::{AccumulatorKind, AccumulatorSpec};
use crate::eval::sort_key::SortBy;
use crate::query::pipeline::{GroupStage, SortStage};
use crate::query::planner::physical::{
    BucketArrival, FirstBins, Input, PhysicalPlan, PhysicalStage, time_bins,
};
use crate::query::planner::settings::PlanSettings;
use crate::query::source::Direction;

/// Above this number of bins the end is far off, and tracking them costs more than it saves.
const BINS_MAX: u64 = 10_000;

/// For `$group` by time bins, `$sort` by them, `$limit n`: reads buckets from the end the sort begins with, until no
/// later bucket can hold a measurement of the first n bins.
///
/// Conditions: the group is first, and part of its key is a `$dateTrunc` of the time with constant bins; the sort
/// follows, has a limit, and begins with that part, by name or as the first member of the key (objects compare by
/// their first members). Each bin seen yields at least one group, so n bins are enough. No date lies outside the range
/// of bucket ids, so ids order as times do. To read from the newest bucket, the command must not have set another
/// direction, and no accumulator may depend on the order of measurements.
///
/// If the groups are those of bins alone and ask for extremes of numbers or dates, a bucket whose bounds go beyond none of the
/// extremes found so far is not read either.
pub struct FirstGroupsFirst;

impl PhysicalRule for FirstGroupsFirst {
    fn name(&self) -> &'static str {
        "FirstGroupsFirst"
    }

    fn apply(&self, plan: &mut PhysicalPlan, _: &PlanSettings) -> bool {
        let Input::Buckets(input) = &mut plan.input else {
            return false;
        };
        let [PhysicalStage::Group(group), PhysicalStage::Sort(sort), ..] =
            plan.stages.as_mut_slice()
        else {
            return false;
        };
        let options = input.source.options();
        let Some(wanted) = sort.stage.limit.filter(|limit| *limit <= BINS_MAX) else {
            return false;
        };
        let Some((part, descending)) = leading_part(&group.stage, &sort.stage) else {
            return false;
        };
        let shape = input.shape();
        let key_parts = group.stage.key_parts();
        let bins = key_parts
            .get(part)
            .and_then(|(_, key)| time_bins(key, &shape));
        let (Some(bins), Ok(wanted)) = (bins, usize::try_from(wanted)) else {
            return false;
        };
        let direction = match descending {
            true => Direction::Backward,
            false => Direction::Forward,
        };
        let turns_freely =
            !input.is_direction_fixed && group.stage.fields.iter().all(keeps_no_order);
        let may_turn = input.direction == direction || turns_freely;
        if options.extended_range || !may_turn {
            return false;
        }
        let span_ms = options.bucket_max_span_seconds.saturating_mul(1000);
        let first = FirstBins {
            bins,
            wanted,
            arrival: match descending {
                true => BucketArrival::NewestFirst { span_ms },
                false => BucketArrival::OldestFirst,
            },
            times: input.buckets.times,
        };
        group.first_bins = Some(Arc::new(first));
        input.direction = direction;
        true
    }
}

/// True if the result of the accumulator does not depend on the order of documents; it may keep any of several that tie.
fn keeps_no_order((_, spec): &(Arc<str>, AccumulatorSpec)) -> bool {
    use AccumulatorKind as K;
    matches!(
        spec.kind(),
        K::Sum | K::Avg | K::Count | K::Min | K::Max | K::Top | K::Bottom | K::MinN | K::MaxN
    )
}

/// Returns the part of the key a sort begins with, and true if the sort is descending.
fn leading_part(group: &GroupStage, sort: &SortStage) -> Option<(usize, bool)> {
    let first = sort.pattern.parts().first()?;
    let SortBy::Field(path) = &first.by else {
        return None;
    };
    let part = match path.as_str().strip_prefix("_id")? {
        "" => 0,
        rest => {
            let name = rest.strip_prefix('.')?;
            let parts = group.key_parts();
            parts.iter().position(|(known, _)| *known == Some(name))?
        }
    };
    Some((part, first.descending))
}
