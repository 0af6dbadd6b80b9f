//! Lowers a logical plan to a physical one: the access path that follows from the filter of the scan, and the simplest
//! strategy of each operator. Rules improve it afterwards.

use std::sync::Arc;

use nilometer_bson::ValueRef;

use super::{
    AccessPath, BucketChoice, BucketInput, Input, PhysicalPlan, RecordInput, RollupInput, Unpack,
};
use crate::eval::Collation;
use crate::eval::collation::has_text;
use crate::eval::matcher::{CompareOp, MatchExpression};
use crate::query::planner::access::cluster::{self, is_plain};
use crate::query::planner::logical::{
    LogicalMeasurements, LogicalPlan, LogicalRecords, LogicalRollup, LogicalSource,
};
use crate::query::planner::settings::PlanSettings;
use crate::query::source::{BucketPredicate, Direction};
use crate::timeseries::rewrite::{BucketRewriter, FilterContext, IdBounds, TimeRange};

/// Returns the physical plan of a logical one, before any physical rule.
pub fn lower(plan: LogicalPlan, settings: &PlanSettings) -> PhysicalPlan {
    PhysicalPlan {
        input: match plan.source {
            LogicalSource::Nothing => Input::Nothing,
            LogicalSource::FirstStage => Input::FirstStage,
            LogicalSource::Records(scan) => Input::Records(Box::new(records(*scan))),
            LogicalSource::Measurements(scan) => Input::Buckets(Box::new(buckets(*scan, settings))),
            LogicalSource::Partitions(_) => unreachable!("a plan over partitions is cut instead"),
            LogicalSource::Rollup(LogicalRollup::Documents(rollup, hint)) => {
                let collation = Collation::from(settings.collator.clone());
                let first = plan.stages.first();
                let input = RollupInput::documents(rollup, first, &hint, &collation);
                Input::Rollup(Box::new(input))
            }
            LogicalSource::Rollup(LogicalRollup::States(input)) => Input::Rollup(input),
        },
        stages: plan.stages.into_iter().map(Into::into).collect(),
        wanted: plan.wanted,
        distinct: plan.distinct,
        fired: plan.fired,
    }
}

/// Returns the best access path to records that needs no index but `_id`.
///
/// In a clustered collection, comparisons of `_id` bound the scan; with an `_id` index, an equality becomes a look-up.
/// The filter is tested in any case, so the bounds may be wider than necessary.
fn records(scan: LogicalRecords) -> RecordInput {
    let mut input = RecordInput {
        source: scan.source,
        namespace: scan.namespace,
        access: AccessPath::CollectionScan,
        direction: scan.direction,
        filter: None,
        show_record_id: scan.show_record_id,
        is_natural: scan.is_natural,
        is_tail: scan.is_tail,
        start_after: scan.start_after,
        forced: scan.forced,
        limit: None,
        choice: Arc::default(),
    };
    if let Some(filter) = scan.filter {
        let conjuncts = filter.into_conjuncts();
        choose_access(&mut input, &conjuncts);
        input.filter = match MatchExpression::and(conjuncts) {
            MatchExpression::AlwaysTrue => None,
            filter => Some(filter),
        };
    }
    input
}

/// Reads buckets in the order of their ids, between the ids the filter allows.
fn buckets(scan: LogicalMeasurements, settings: &PlanSettings) -> BucketInput {
    let mut input = BucketInput {
        source: scan.source,
        namespace: scan.namespace,
        direction: scan.direction,
        is_direction_fixed: scan.is_direction_fixed,
        is_natural: scan.is_natural,
        hint: scan.hint,
        buckets: BucketChoice::default(),
        limit: None,
        sample: None,
        unpack: Unpack::default(),
    };
    if let Some(filter) = scan.filter {
        split_filter(&mut input, filter.simplify(), settings);
    }
    input
}

fn choose_access(input: &mut RecordInput, conjuncts: &[MatchExpression]) {
    // A tail of the oplog begins at the bounds of its filter.
    let is_clustered = input.source.is_clustered();
    let goes_on = input.is_tail && !is_clustered || input.start_after.is_some();
    if !matches!(input.access, AccessPath::CollectionScan) || goes_on {
        return;
    }
    if is_clustered {
        if let Some(access) = cluster::bounded(&*input.source, conjuncts) {
            input.access = access;
        }
        return;
    }
    let collation = input.source.collation();
    let ids = conjuncts
        .iter()
        .filter_map(|conjunct| id_comparison(conjunct, &collation));
    // An array matches documents with that array and those with it as an element, and null those without an `_id`: neither
    // is one place in the index. `find_by_id` takes plain scalars only.
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

/// Returns the rewriter for a collection.
fn rewriter_of(input: &BucketInput, settings: &PlanSettings) -> BucketRewriter {
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
            ..FilterContext::default()
        },
    }
}

/// Splits the filter of the scan into
///
/// - a predicate on metadata, which decides for whole buckets and is not tested again;
/// - for the rest: an event filter, tested on every measurement; a loose predicate on control bounds and bounds on `_id`
///   that rule buckets out; and, if the rest reads the time alone, a predicate on buckets that need no event filter.
fn split_filter(input: &mut BucketInput, filter: MatchExpression, settings: &PlanSettings) {
    let rewriter = &rewriter_of(input, settings);
    let (meta, events) = filter.split(|path| rewriter.is_meta_path(path));
    let mut predicates = Vec::new();
    predicates.push(match meta {
        MatchExpression::AlwaysTrue => BucketPredicate::Always,
        meta => match rewriter.meta_test(&meta) {
            Some(test) => test,
            // Unreachable: the split puts nothing else there. The event filter is always correct.
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
