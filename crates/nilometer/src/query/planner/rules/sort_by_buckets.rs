//! `$sort` and related stages that use the order of buckets.

use std::sync::Arc;

use super::PhysicalRule;
use super::index_on_buckets::part_of;
use super::streaming_group::follows_time;
use crate::eval::accumulator::AccumulatorKind;
use crate::eval::expression::{Expression, FieldPath};
use crate::eval::sort_key::{SortBy, SortPattern};
use crate::eval::{Collation, Dependencies, ParseContext};
use crate::index::IndexPartKind;
use crate::query::batch::MeasurementShape;
use crate::query::pipeline::{GroupStage, SortStage};
use crate::query::planner::physical::{
    BucketInput, BucketOrder, DensifyInput, IndexChoice, Input, PhysicalPlan, PhysicalSort,
    PhysicalStage, WindowInput, WithinGroups, is_constant,
};
use crate::query::planner::settings::PlanSettings;
use crate::query::source::{BucketEntries, Direction};

/// Orders buckets for a sort by metadata alone; a sort by time, or by metadata and then time, returns rows as soon as no
/// later bucket can precede them.
///
/// Conditions: the sort is first, and metadata and time have their stored form. For time alone, buckets are read in the
/// order of their ids, in the direction of the sort. If the command set another direction, or some date lies outside the
/// range of ids, buckets are gathered first and sorted by the bounds in their headers. The same is done for metadata and
/// then time, unless an index gives that order ([`in_order_of_index`]). With a limit, the other sorts that include the time
/// keep only the first few rows and are left as they are. Fields after the time in the pattern, and ties, decide as in any
/// sort.
pub struct SortByBuckets;

impl PhysicalRule for SortByBuckets {
    fn name(&self) -> &'static str {
        "SortByBuckets"
    }

    fn apply(&self, plan: &mut PhysicalPlan, settings: &PlanSettings) -> bool {
        let (Input::Buckets(input), Some(PhysicalStage::Sort(sort))) =
            (&mut plan.input, plan.stages.first_mut())
        else {
            return false;
        };
        if sort.buckets.is_some() {
            return false;
        }
        let by_index = in_order_of_index(input, &sort.stage, settings);
        sort.buckets = by_index.or_else(|| order_of(input, &sort.stage));
        sort.buckets.is_some()
    }
}

/// Leaves the rows of different groups in any order in a sort by time, or by metadata and then time, in front of a `$group`.
///
/// Conditions: the sort is first, without a limit, and its last part is the time, in its stored form; buckets are read in the
/// order of their ids, in the direction of the sort; a part of the key reads only metadata, and every part of the sort before
/// the time is such a part; the `$group` reads other metadata only if the key has all of it. The rows of one group keep their order,
/// so any accumulator may follow. Groups are returned at the end, so the rule does not fire where they may be wanted
/// earlier ([`wants_groups_early`]).
pub struct SortWithinGroups;

impl PhysicalRule for SortWithinGroups {
    fn name(&self) -> &'static str {
        "SortWithinGroups"
    }

    fn apply(&self, plan: &mut PhysicalPlan, _: &PlanSettings) -> bool {
        let (
            Input::Buckets(input),
            [
                PhysicalStage::Sort(sort),
                PhysicalStage::Group(group),
                rest @ ..,
            ],
        ) = (&mut plan.input, &mut *plan.stages)
        else {
            return false;
        };
        let time_field = &*input.source.options().time_field;
        if wants_groups_early(&group.stage, time_field, rest) {
            return false;
        }
        let Some(prefix) = metas_before_time(input, &sort.stage) else {
            return false;
        };
        let shape = input.shape();
        let parts = group.stage.key_parts().into_iter().map(|(_, part)| part);
        let parts = parts.filter(|part| reads_metadata(part, &shape));
        let parts: Vec<Expression> = parts.cloned().collect();
        let is_part = |path: &FieldPath| {
            let mut paths = parts.iter().filter_map(Expression::as_field_path);
            paths.any(|part| part == path)
        };
        let meta_field = shape.meta_field.as_deref();
        let reads_key_alone = reads_metadata_by_key(&group.stage, &shape);
        let is_whole =
            |part: &Expression| part.as_field_path().map(FieldPath::as_str) == meta_field;
        // Buckets of one key with different metadata could not be merged.
        if !reads_key_alone && !parts.iter().any(is_whole) {
            return false;
        }
        if parts.is_empty() || !prefix.iter().all(is_part) || sort.stage.limit.is_some() {
            return false;
        }
        let descending = sort
            .stage
            .pattern
            .parts()
            .last()
            .is_some_and(|last| last.descending);
        let order = by_time(input, 0, descending);
        if !matches!(order, BucketOrder::Arrival(_)) {
            return false;
        }
        sort.buckets = Some(order);
        sort.within = Some(WithinGroups {
            parts: parts.into(),
            prefix: prefix.into(),
            has_one_part: group.stage.key_parts().len() == 1,
            reads_key_alone,
        });
        true
    }
}

/// True if groups should be returned in the order of time, before all is read: a limit behind them may end the reading, or an
/// accumulator keeps all its input and a part of the key follows the time.
fn wants_groups_early(stage: &GroupStage, time_field: &str, rest: &[PhysicalStage]) -> bool {
    use AccumulatorKind as K;
    let mut behind = rest.iter().take_while(|stage| {
        !matches!(
            stage,
            PhysicalStage::Sort(_) | PhysicalStage::Group(_) | PhysicalStage::Windows(_)
        )
    });
    let is_limited = behind.any(|stage| matches!(stage, PhysicalStage::Limit(_)));
    let keeps_all = |kind| {
        matches!(
            kind,
            K::Push | K::AddToSet | K::ConcatArrays | K::SetUnion | K::Percentile | K::Median
        )
    };
    let mut parts = stage.key_parts().into_iter();
    is_limited
        || (parts.any(|(_, part)| follows_time(part, time_field))
            && stage.fields.iter().any(|(_, spec)| keeps_all(spec.kind())))
}

/// True if a `$group` reads metadata only by parts of its key that read nothing else.
fn reads_metadata_by_key(stage: &GroupStage, shape: &MeasurementShape) -> bool {
    let mut reads = Dependencies::default();
    let parts = stage.key_parts().into_iter().map(|(_, part)| part);
    for part in parts.filter(|part| !reads_metadata(part, shape)) {
        part.dependencies(&mut reads);
    }
    for (_, spec) in stage.fields.iter() {
        spec.dependencies(&mut reads);
    }
    let fields = reads.top_level_fields();
    let mut fields = fields.iter();
    !reads.whole && !fields.any(|field| shape.meta_field.as_deref() == Some(*field))
}

/// True if an expression reads metadata, and nothing else.
fn reads_metadata(expression: &Expression, shape: &MeasurementShape) -> bool {
    let mut reads = Dependencies::default();
    expression.dependencies(&mut reads);
    is_constant(expression, shape) && !reads.top_level_fields().is_empty()
}

/// Returns the metadata by which a sort orders before the time; `None` if the time is not its last part.
fn metas_before_time(input: &BucketInput, sort: &SortStage) -> Option<Vec<FieldPath>> {
    let names = names_in_buckets(input, sort)?;
    let parts = sort.pattern.parts();
    if names.len() != parts.len() {
        return None;
    }
    let (_, metas) = parts.split_last()?;
    let metas = metas.iter().map(|part| match &part.by {
        SortBy::Field(path) => Some(path.clone()),
        _ => None,
    });
    metas.collect()
}

/// Orders buckets for `$setWindowFields` by metadata and time, and for `$densify` of the time, as for a sort.
///
/// Conditions: the stage is first; the partition is metadata, or there is none (required for `$densify`, which compares
/// partition values differently from sorts); its order is one that [`SortByBuckets`] handles, except descending time
/// alone, which would reverse equal times.
pub struct WindowsInOrder;

impl PhysicalRule for WindowsInOrder {
    fn name(&self) -> &'static str {
        "WindowsInOrder"
    }

    fn apply(&self, plan: &mut PhysicalPlan, settings: &PlanSettings) -> bool {
        let (Input::Buckets(input), Some(stage)) = (&mut plan.input, plan.stages.first()) else {
            return false;
        };
        let Some(order) = stage.wanted_order() else {
            return false;
        };
        let in_order = stage.over_ordered_input();
        let context = ParseContext::new().with_collator(settings.collator.clone());
        // A field named twice makes no valid sort.
        let Ok(pattern) = SortPattern::parse(order.as_ref(), &context) else {
            return false;
        };
        let time_field = &*input.source.options().time_field;
        let first = pattern.parts().first();
        let is_falling = first.is_some_and(|part| {
            part.descending
                && matches!(&part.by, SortBy::Field(path) if path.as_str() == time_field)
        });
        let mut sort = PhysicalSort::new(SortStage::new(pattern));
        // Read backward, equal times would be reversed.
        let rises = sort
            .stage
            .pattern
            .parts()
            .iter()
            .all(|part| !part.descending);
        sort.buckets = match (is_falling, rises) {
            (true, _) => None,
            (false, true) => in_order_of_index(input, &sort.stage, settings),
            (false, false) => None,
        };
        if !is_falling && sort.buckets.is_none() {
            sort.buckets = order_of(input, &sort.stage);
        }
        if sort.buckets.is_none() {
            return false;
        }
        plan.stages
            .splice(..1, [PhysicalStage::Sort(sort), in_order]);
        true
    }
}

/// Passes blocks from such a sort to windows that need only columns: whole buckets, with columns for computed fields.
///
/// Conditions: the sort ends with the time, so a row's time and order of arrival give its position; the stage reads
/// whole columns.
pub struct WindowsOverBlocks;

impl PhysicalRule for WindowsOverBlocks {
    fn name(&self) -> &'static str {
        "WindowsOverBlocks"
    }

    fn apply(&self, plan: &mut PhysicalPlan, _: &PlanSettings) -> bool {
        let Input::Buckets(input) = &plan.input else {
            return false;
        };
        let [
            PhysicalStage::Sort(sort),
            PhysicalStage::Windows(windows),
            ..,
        ] = &mut *plan.stages
        else {
            return false;
        };
        let time_field = &*input.source.options().time_field;
        let parts = match sort.buckets {
            Some(BucketOrder::Arrival(_)) => 0,
            Some(BucketOrder::Indexed { parts, .. } | BucketOrder::Bounds { parts }) => parts,
            Some(BucketOrder::Metadata) | None => return false,
        };
        sort.as_blocks = parts + 1 == sort.stage.pattern.parts().len()
            && sort.stage.limit.is_none()
            && windows.reads_columns(time_field);
        sort.as_blocks
    }
}

/// Orders buckets for `$densify` of the time by metadata, and turns one after the other into rows.
///
/// Conditions: the stage is first; partitions are metadata; the time has its stored form.
pub struct DensifyOverBuckets;

impl PhysicalRule for DensifyOverBuckets {
    fn name(&self) -> &'static str {
        "DensifyOverBuckets"
    }

    fn apply(&self, plan: &mut PhysicalPlan, _: &PlanSettings) -> bool {
        let (Input::Buckets(input), Some(PhysicalStage::Densify(densify))) =
            (&plan.input, plan.stages.first_mut())
        else {
            return false;
        };
        let options = input.source.options();
        let time_field = &*options.time_field;
        if !input.shown().contains(time_field) {
            return false;
        }
        if !densify.fits_buckets(time_field, options.meta_field.as_deref()) {
            return false;
        }
        densify.input = DensifyInput::Buckets;
        true
    }
}

/// Skips the sort of `$setWindowFields`, and so of `$fill`, directly after a `$densify` of the same partitions and field,
/// whose output is in order.
///
/// Conditions: there are no partitions, or partitions by one path; both stages order by the same top-level field.
pub struct WindowsBehindDensify;

impl PhysicalRule for WindowsBehindDensify {
    fn name(&self) -> &'static str {
        "WindowsBehindDensify"
    }

    fn apply(&self, plan: &mut PhysicalPlan, _: &PlanSettings) -> bool {
        let mut fired = false;
        for at in 1..plan.stages.len() {
            let Some(
                [
                    PhysicalStage::Densify(densify),
                    PhysicalStage::Windows(windows),
                ],
            ) = plan.stages.get_mut(at - 1..=at)
            else {
                continue;
            };
            if windows.fits_behind(&densify.stage) {
                windows.input = WindowInput::Densified;
                fired = true;
            }
        }
        fired
    }
}

/// Maximum number of buckets to gather where an index gives them in order.
const GATHERED_BUCKETS_MAX: u64 = 4096;

/// Reads buckets in the order of an index, for a sort by metadata and then time: the first rows are returned at once, and
/// memory holds only the buckets that overlap within one series.
///
/// Conditions, besides those of the rule:
/// - the index consists of metadata and time only, so its entries describe every bucket; it holds every bucket, and compares
///   strings as the query does;
/// - none of its values comes from an array, which has several keys;
/// - its parts that are not bounded to one value are those of the sort, up to the time, all in its direction or all against it;
/// - no date lies outside the range of ids.
///
/// It is used where it was hinted or is read anyway, where a limit ends the reading soon, or where there are too many
/// buckets to gather.
fn in_order_of_index(
    input: &mut BucketInput,
    sort: &SortStage,
    settings: &PlanSettings,
) -> Option<BucketOrder> {
    let options = input.source.options();
    if input.is_natural || input.is_direction_fixed || options.extended_range {
        return None;
    }
    let names = names_in_buckets(input, sort)?;
    let parts = names.len().checked_sub(1).filter(|parts| *parts > 0)?;
    let is_unfiltered = input.unpack.event_filter.is_none();
    let ends_soon = sort.limit.is_some() && is_unfiltered;
    let is_much = || {
        let count = input.source.bucket_count_estimate();
        sort.limit.is_none() && count.is_ok_and(|count| count > GATHERED_BUCKETS_MAX)
    };
    let wanted = input.hint.as_ref().map(|index| index.stored.keyspace);
    let chosen = input.buckets.index.as_ref();
    let chosen = wanted.or_else(|| chosen.map(|choice| choice.index.stored.keyspace));
    if chosen.is_none() && !ends_soon && !is_much() {
        return None;
    }
    let collation = Collation::from(settings.collator.clone());
    let usable = match &input.hint {
        Some(hinted) => vec![Arc::clone(hinted)],
        None => input.source.indexes().ok()?,
    };
    let mut fitting = usable.iter().filter_map(|index| {
        if chosen.is_some_and(|chosen| chosen != index.stored.keyspace) {
            return None;
        }
        let choice = match &input.buckets.index {
            Some(choice) => choice.clone(),
            None => part_of(input, index, &collation)?,
        };
        let backward = direction_of(&choice, &names, &collation)?;
        Some((choice, backward))
    });
    let (mut choice, backward) = fitting.next()?;
    let keys = match &choice.entries {
        BucketEntries::Within(keys) | BucketEntries::InIdOrder(keys) => Arc::clone(keys),
        _ => return None,
    };
    let (_, descending) = names.last()?;
    let span_ms = options.bucket_max_span_seconds.saturating_mul(1000);
    let span_ms = descending.then_some(span_ms);
    choice.entries = BucketEntries::InIndexOrder { keys, backward };
    input.buckets.index = Some(choice);
    Some(BucketOrder::Indexed { parts, span_ms })
}

/// Returns a sort by metadata and then time with the names in buckets and the direction of each part; `None` for any other
/// sort, or one that reads fields that are not unpacked.
fn names_in_buckets(input: &BucketInput, sort: &SortStage) -> Option<Vec<(String, bool)>> {
    let options = input.source.options();
    let shown = input.shown();
    let mut names = Vec::new();
    for part in sort.pattern.parts() {
        let SortBy::Field(path) = &part.by else {
            return None;
        };
        let is_time = path.as_str() == &*options.time_field;
        let rest = match options.meta_field.as_deref() {
            _ if is_time => None,
            Some(meta) if path.first() == meta => path.as_str().strip_prefix(meta),
            _ => return None,
        };
        if !shown.contains(path.first()) {
            return None;
        }
        let name = match rest {
            Some(rest) => format!("meta{rest}"),
            None => format!("control.min.{}", options.time_field),
        };
        names.push((name, part.descending));
        if is_time {
            return Some(names);
        }
    }
    None
}

/// Returns true if an index is read backward to give buckets in an order; `None` if it does not give that order.
fn direction_of(
    choice: &IndexChoice,
    names: &[(String, bool)],
    collation: &Collation,
) -> Option<bool> {
    let kept = choice.index.index();
    let is_whole = choice.index.is_static()
        && !kept.is_wildcard()
        && !kept.stored.spec.sparse
        && kept.partial_filter().is_none()
        && kept.stored.multikey() == 0
        && !kept.leaves_documents_out()
        && kept.collation() == collation;
    if !is_whole {
        return None;
    }
    let mut wanted = names.iter();
    let mut backward = None;
    for (at, part) in kept.parts().iter().enumerate() {
        let goes_down = match part.kind {
            IndexPartKind::Ascending => false,
            IndexPartKind::Descending => true,
            _ => return None,
        };
        let bounds = choice.bounds.parts.get(at)?;
        let next = wanted.clone().next();
        if next.is_none_or(|(name, _)| name != part.name()) {
            // A single value is in any order.
            if bounds.is_point(collation) {
                continue;
            }
            return None;
        }
        let (_, descending) = wanted.next()?;
        let is_against = *descending != goes_down;
        if *backward.get_or_insert(is_against) != is_against {
            return None;
        }
        if Some(at) == choice.index.time_part() {
            // The order is complete; the remaining parts do not matter.
            return wanted.next().is_none().then_some(is_against);
        }
    }
    None
}

fn order_of(input: &mut BucketInput, sort: &SortStage) -> Option<BucketOrder> {
    let options = input.source.options();
    let shown = input.shown();
    for (parts, part) in sort.pattern.parts().iter().enumerate() {
        let SortBy::Field(path) = &part.by else {
            return None;
        };
        if path.as_str() == &*options.time_field && shown.contains(path.as_str()) {
            let unlimited = sort.limit.is_none();
            return unlimited.then(|| by_time(input, parts, part.descending));
        }
        let is_meta = options.meta_field.as_deref() == Some(path.first());
        if !is_meta || !shown.contains(path.first()) {
            return None;
        }
    }
    Some(BucketOrder::Metadata)
}

fn by_time(input: &mut BucketInput, parts: usize, descending: bool) -> BucketOrder {
    let options = input.source.options();
    let wanted = match descending {
        true => Direction::Backward,
        false => Direction::Forward,
    };
    let turns = input.direction == wanted || !input.is_direction_fixed;
    if parts > 0 || options.extended_range || !turns {
        return BucketOrder::Bounds { parts };
    }
    let span_ms = options.bucket_max_span_seconds.saturating_mul(1000);
    input.direction = wanted;
    BucketOrder::Arrival(descending.then_some(span_ms))
}
