//! A leading `$match` on a time-series collection comes apart.

use std::sync::Arc;

use super::Rule;
use super::matches::take_leading_match;
use crate::eval::matcher::MatchExpression;
use crate::query::exec::ExecSettings;
use crate::query::planner::logical::{BucketInput, Input, LogicalPlan};
use crate::query::source::BucketPredicate;
use crate::timeseries::rewrite::{BucketRewriter, FilterContext, IdBounds, TimeRange};

/// The first `$match` becomes
///
/// - a predicate on metadata, which decides for whole buckets and is asked no more;
/// - for the rest: an event filter, asked of every measurement; a loose predicate on control bounds
///   and bounds on `_id` that rule buckets out; and, if the rest is about time alone, a predicate
///   that spares a bucket the event filter.
///
/// Conditions: measurements still look as stored, so it must stand first; and no field of the
/// filter may have been projected away, so the columns must not have been narrowed yet.
pub struct MatchOnBuckets;

impl Rule for MatchOnBuckets {
    fn name(&self) -> &'static str {
        "MatchOnBuckets"
    }

    fn apply(&self, plan: &mut LogicalPlan, settings: &ExecSettings) -> bool {
        let Input::Buckets(input) = &plan.input else {
            return false;
        };
        if input.unpack.fields != crate::query::batch::FieldSet::All {
            return false;
        }
        let rewriter = rewriter_of(input, settings);
        let Some(stage) = take_leading_match(plan) else {
            return false;
        };
        if let Input::Buckets(input) = &mut plan.input {
            narrow(input, &rewriter, stage.filter);
        }
        true
    }
}

/// The rewriter for a collection.
pub(super) fn rewriter_of(input: &BucketInput, settings: &ExecSettings) -> BucketRewriter {
    let options = input.source.options();
    BucketRewriter {
        time_field: Arc::clone(&options.time_field),
        meta_field: options.meta_field.clone(),
        max_span_seconds: options.bucket_max_span_seconds,
        extended_range: options.extended_range,
        mixed_schema: options.mixed_schema,
        bounds_collation: options.collation.clone(),
        context: FilterContext {
            now_ms: settings.now_ms,
            variables: Arc::clone(&settings.variables),
            collator: settings.collator.clone(),
        },
    }
}

fn narrow(input: &mut BucketInput, rewriter: &BucketRewriter, filter: MatchExpression) {
    let all_filters = MatchExpression::and(
        input
            .unpack
            .event_filter
            .take()
            .into_iter()
            .chain([filter])
            .collect(),
    );
    let (meta, events) = all_filters.split(|path| rewriter.is_meta_path(path));
    let mut predicates = vec![std::mem::replace(
        &mut input.buckets.predicate,
        BucketPredicate::Always,
    )];
    predicates.push(match meta {
        MatchExpression::AlwaysTrue => BucketPredicate::Always,
        meta => match rewriter.meta_test(&meta) {
            Some(test) => test,
            // Not reached: the split put nothing else there. Asking again is always right.
            None => {
                input.unpack.event_filter = Some(MatchExpression::and(vec![meta, events]));
                return;
            }
        },
    });
    predicates.push(rewriter.loose(&events));
    bound_ids(
        input,
        rewriter,
        rewriter.time_range(&events),
        &mut predicates,
    );
    input.buckets.predicate = BucketPredicate::all(predicates);
    input.unpack.whole_bucket_filter = match events {
        MatchExpression::AlwaysTrue => None,
        _ => rewriter.whole(&events),
    };
    input.unpack.event_filter = match events {
        MatchExpression::AlwaysTrue => None,
        events => Some(events),
    };
}

fn bound_ids(
    input: &mut BucketInput,
    rewriter: &BucketRewriter,
    range: TimeRange,
    predicates: &mut Vec<BucketPredicate>,
) {
    input.buckets.times = input.buckets.times.intersect(range);
    match rewriter.id_bounds(range) {
        IdBounds::Empty => predicates.push(BucketPredicate::Never),
        IdBounds::Within { min, max } => {
            let buckets = &mut input.buckets;
            buckets.id_min = buckets.id_min.max(min);
            buckets.id_max = match (buckets.id_max, max) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
    }
}
