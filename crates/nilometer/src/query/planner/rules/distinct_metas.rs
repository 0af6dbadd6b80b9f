//! Rules that skip through an index over buckets: distinct metadata, and the newest buckets of each series.

use std::sync::Arc;

use super::PhysicalRule;
use super::index_on_buckets::{KeyBoundsFilter, bounds_on_meta};
use super::last_point::keeps_only;
use crate::eval::accumulator::AccumulatorKind;
use crate::eval::matcher::MatchExpression;
use crate::eval::{Collation, Dependencies};
use crate::index::IndexPartKind;
use crate::index::buckets::{BucketIndex, IndexKeyFilter};
use crate::query::batch::FieldSet;
use crate::query::pipeline::GroupStage;
use crate::query::planner::access::shape_of;
use crate::query::planner::bounds::{IndexBounds, KeyBounds};
use crate::query::planner::physical::{
    BucketInput, IndexChoice, Input, MetaInput, PhysicalPlan, PhysicalStage,
};
use crate::query::planner::settings::PlanSettings;
use crate::query::source::{BucketEntries, BucketPredicate};

/// Answers a `$group` that reads metadata only, and ignores repetition, from the distinct values in an index.
/// Accumulators: `$first`, `$last`, `$min`, `$max`, `$addToSet`, whose results depend neither on repeated documents
/// nor, without a sort, on their order.
///
/// Conditions:
/// - no filter on measurements or the time, because a bucket with the values may have no match;
/// - a filter on metadata reads only values in the index and treats equal values alike, because the index shows one
///   of them;
/// - the index is static, so its entries describe every bucket, and it holds every bucket;
/// - values can be read back from its keys: no collation, or the collation of the query, under which any of several
///   equal strings will do;
/// - no value comes from an array, which has several keys.
pub struct DistinctMetas;

impl PhysicalRule for DistinctMetas {
    fn name(&self) -> &'static str {
        "DistinctMetas"
    }

    fn apply(&self, plan: &mut PhysicalPlan, settings: &PlanSettings) -> bool {
        let (Input::Buckets(input), Some(PhysicalStage::Group(group))) =
            (&plan.input, plan.stages.first())
        else {
            return false;
        };
        let repeats_do_not_matter = group.stage.fields.iter().all(|(_, spec)| {
            use AccumulatorKind as K;
            matches!(
                spec.kind(),
                K::First | K::Last | K::Min | K::Max | K::AddToSet
            )
        });
        if !repeats_do_not_matter {
            return false;
        }
        // Dropped fields are missing, whatever the index holds.
        if input.shown() != FieldSet::All {
            return false;
        }
        let Some(read) = metas_for(input, group_dependencies(&group.stage), settings) else {
            return false;
        };
        plan.input = Input::Metas(Box::new(read));
        true
    }
}

/// For `distinct`: the values of `path` in a plan without stages, each at least once.
pub fn distinct_values(plan: &mut PhysicalPlan, path: &str, settings: &PlanSettings) {
    let Input::Buckets(input) = &plan.input else {
        return;
    };
    if !plan.stages.is_empty() {
        return;
    }
    let mut wanted = Dependencies::default();
    wanted.paths.insert(path.into());
    if let Some(read) = metas_for(input, wanted, settings) {
        plan.input = Input::Metas(Box::new(read));
        plan.fired.push(DistinctMetas.name());
    }
}

fn group_dependencies(group: &GroupStage) -> Dependencies {
    let mut dependencies = Dependencies::default();
    group.key.dependencies(&mut dependencies);
    for (_, field) in group.fields.iter() {
        field.dependencies(&mut dependencies);
    }
    dependencies
}

/// Returns an index whose leading parts hold everything the plan reads.
fn metas_for(
    input: &BucketInput,
    mut wanted: Dependencies,
    settings: &PlanSettings,
) -> Option<MetaInput> {
    if input.unpack.event_filter.is_some() || input.is_natural || wanted.random {
        return None;
    }
    if wanted.reads_nothing() {
        return None;
    }
    let mut filters = Vec::new();
    meta_filters(&input.buckets.predicate, &mut filters)?;
    for filter in &filters {
        filter.add_dependencies(&mut wanted);
    }
    let paths = meta_paths(input, &wanted)?;
    let collation = Collation::from(settings.collator.clone());
    let usable = input.source.indexes().ok()?;
    let hinted = input.hint.as_ref().map(|index| index.stored.keyspace);
    let fitting = usable.into_iter().filter_map(|index| {
        if hinted.is_some_and(|hinted| hinted != index.stored.keyspace) {
            return None;
        }
        let is_readable = index.index().collation().collator().is_none()
            || *index.index().collation() == collation;
        let components = values_in_front(&index, &paths)?;
        is_readable.then_some((components, index))
    });
    let bounds = |index: &BucketIndex| match filters.is_empty() {
        true => None,
        false => bounds_on_meta(input, index, &collation),
    };
    // Fewer parts give fewer combinations of values.
    let (components, index) =
        fitting.min_by_key(|(components, index)| (bounds(index).is_none(), *components))?;
    let bounded = bounds(&index);
    let keys = bounded
        .as_ref()
        .map(|(shape, bounds)| KeyBoundsFilter(KeyBounds::new(bounds, shape)));
    Some(MetaInput {
        source: Arc::clone(&input.source),
        namespace: input.namespace.clone(),
        index,
        components,
        filter: (!filters.is_empty()).then(|| MatchExpression::and(filters)),
        start: keys.as_ref().map(IndexKeyFilter::start).unwrap_or_default(),
        end: keys.as_ref().and_then(IndexKeyFilter::end),
        bounds: bounded.map(|(shape, bounds)| bounds.explain(&shape, false)),
    })
}

/// Collects the filters of a predicate if they read metadata only and treat equal values alike.
fn meta_filters(predicate: &BucketPredicate, into: &mut Vec<MatchExpression>) -> Option<()> {
    match predicate {
        BucketPredicate::Always => Some(()),
        BucketPredicate::Meta(test) if treats_equals_alike(&test.filter) => {
            into.push(test.filter.clone());
            Some(())
        }
        BucketPredicate::All(parts) => parts.iter().try_for_each(|part| meta_filters(part, into)),
        _ => None,
    }
}

/// True if the filter treats values that compare as equal alike, such as 1 and 1.0, or strings that are equal under
/// the collation of the query.
fn treats_equals_alike(filter: &MatchExpression) -> bool {
    use MatchExpression as M;
    match filter {
        M::AlwaysTrue | M::AlwaysFalse | M::Compare(_) | M::Exists(_) => true,
        // Patterns ignore collations.
        M::In(list) => list.patterns().is_empty(),
        M::And(arms) | M::Or(arms) | M::Nor(arms) => arms.iter().all(treats_equals_alike),
        M::Not(arm) => treats_equals_alike(arm),
        _ => false,
    }
}

/// Returns the bucket paths of the fields read, if all of them are metadata.
fn meta_paths(input: &BucketInput, wanted: &Dependencies) -> Option<Vec<String>> {
    let meta = input.source.options().meta_field.clone()?;
    if wanted.reads_nothing() || wanted.whole {
        return None;
    }
    let rename = |path: &Arc<str>| {
        let rest = path.strip_prefix(&*meta)?;
        (rest.is_empty() || rest.starts_with('.')).then(|| format!("meta{rest}"))
    };
    wanted.paths.iter().map(rename).collect()
}

/// Returns how many leading parts of an index, none of them time, cover `paths`.
fn values_in_front(index: &BucketIndex, paths: &[String]) -> Option<usize> {
    let kept = index.index();
    let whole = index.is_static()
        && !kept.stored.spec.sparse
        && kept.partial_filter().is_none()
        && kept.stored.multikey() == 0
        && !kept.leaves_documents_out();
    if !whole {
        return None;
    }
    let mut open: Vec<&String> = paths.iter().collect();
    for (at, part) in kept.parts().iter().enumerate() {
        let is_value = matches!(
            part.kind,
            IndexPartKind::Ascending | IndexPartKind::Descending
        );
        let name = part.name();
        if !is_value || !(name == "meta" || name.starts_with("meta.")) {
            return None;
        }
        // Values of two parts, one below the other, do not fit into one document.
        let other_names = kept.parts().iter().take(at).map(|other| other.name());
        if other_names
            .clone()
            .any(|other| is_at_or_below(name, other) || is_at_or_below(other, name))
        {
            return None;
        }
        open.retain(|path| !is_at_or_below(path, name));
        if open.is_empty() {
            return Some(at + 1);
        }
    }
    None
}

fn is_at_or_below(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Reads only the newest (or oldest) buckets of each series, through an index of metadata and time, for a `$group`
/// by metadata that keeps only the newest (or oldest) measurements.
///
/// Bucket starts are rounded, so the index does not tell which of several buckets has the oldest measurement: every
/// bucket that starts within one span of the first is read.
///
/// Conditions:
/// - every accumulator keeps the newest, or every one the oldest (a count would need all);
/// - the key, and what the order reads besides the time, are leading values of the index, so each group consists of
///   whole series and its newest measurement is the newest of one of them;
/// - no filter on measurements or time, so the newest measurement of a series is a match;
/// - a filter on metadata that reads only those values, so it takes or leaves whole series;
/// - the index is as for [`DistinctMetas`], and its next part is the time, ascending;
/// - no dates outside the range of bucket ids, and none before 1970, where a start may be after its measurements.
pub struct PointByIndex;

impl PhysicalRule for PointByIndex {
    fn name(&self) -> &'static str {
        "PointByIndex"
    }

    fn apply(&self, plan: &mut PhysicalPlan, settings: &PlanSettings) -> bool {
        let Some(PhysicalStage::Group(group)) = plan.stages.first() else {
            return false;
        };
        let Input::Buckets(input) = &mut plan.input else {
            return false;
        };
        let Some(choice) = point(input, &group.stage, settings) else {
            return false;
        };
        input.buckets.index = Some(choice);
        true
    }
}

fn point(input: &BucketInput, group: &GroupStage, settings: &PlanSettings) -> Option<IndexChoice> {
    let options = input.source.options();
    let unfiltered = input.unpack.event_filter.is_none()
        && input.shown() == FieldSet::All
        && input.buckets.index.is_none();
    if !unfiltered || input.is_natural || options.extended_range {
        return None;
    }
    let mut wanted = Dependencies::default();
    group.key.dependencies(&mut wanted);
    let newest = keeps_only(input, group, &mut wanted)?;
    read_by(&input.buckets.predicate, &mut wanted)?;
    wanted.paths.remove(&options.time_field);
    let paths = meta_paths(input, &wanted)?;
    let hinted = input.hint.as_ref().map(|index| index.stored.keyspace);
    let usable = input.source.indexes().ok()?;
    let index = usable.into_iter().find(|index| {
        let time = index.time_part();
        hinted.is_none_or(|hinted| hinted == index.stored.keyspace)
            && index.index().collation().collator().is_none()
            && values_in_front(index, &paths).is_some_and(|parts| Some(parts) <= time)
            && time.is_some_and(|time| {
                let kept = index.index();
                let part = kept.parts().get(time);
                part.is_some_and(|part| part.kind == IndexPartKind::Ascending)
            })
    })?;
    let components = index.time_part()?;
    let collation = Collation::from(settings.collator.clone());
    let shape = shape_of(&index.index(), &collation)?;
    Some(IndexChoice {
        entries: match newest {
            true => BucketEntries::Newest(components),
            false => BucketEntries::Oldest(components),
        },
        scanned: None,
        bounds: IndexBounds::all(shape.parts.len()),
        shape: Arc::new(shape),
        index,
    })
}

/// Adds the fields a predicate reads, which must all be metadata.
fn read_by(predicate: &BucketPredicate, into: &mut Dependencies) -> Option<()> {
    use BucketPredicate as P;
    match predicate {
        P::Always | P::Never => Some(()),
        P::Meta(test) => {
            test.filter.add_dependencies(into);
            Some(())
        }
        P::All(parts) | P::Any(parts) => parts.iter().try_for_each(|part| read_by(part, into)),
        P::Bound(_) | P::Values(_) | P::Geo(_) => None,
    }
}
